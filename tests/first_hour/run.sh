#!/usr/bin/env bash
# The first hour of somebody who has only the wheel: an empty folder, a fresh environment, the README's
# Python, an upgrade by commands, and with "demo" as second word the quick demo. Prints the time of
# each step.
#
#     tests/first_hour/run.sh dist/midspan-0.1.0-py3-none-any.whl [demo]
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
wheel=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

step() {
  local name=$1 start=$SECONDS
  shift
  "$@" >step.txt 2>&1 || { cat step.txt; echo "FAILED: $name"; exit 1; }
  echo "$((SECONDS - start)) s  $name"
}

# A verb that needs an extra names it, with exit code 2 and no traceback.
refused() { # NAME_OF_EXTRA COMMAND …
  local extra=$1 code=0
  shift
  "$@" >refused.txt 2>&1 || code=$?
  cat refused.txt
  [ "$code" = 2 ] && grep -q "midspan\[$extra\]" refused.txt && ! grep -q Traceback refused.txt
}

readme() { # the Python blocks of the README, one after another
  env/bin/python - "$here/README.md" <<'PYTHON'
import re, sys
names = {}
for block in re.findall(r"```python\n(.*?)```", open(sys.argv[1], encoding="utf-8").read(), re.DOTALL):
    exec(block, names)
names["old"].save("old.npz")
names["new"].save("new.npz")
PYTHON
}

python3 -m venv env
step "install" env/bin/pip install --quiet --constraint "$here/constraints.txt" "$wheel"
step "import" env/bin/python -c "import midspan, sys; assert 'torch' not in sys.modules"
step "doctor" env/bin/midspan doctor
step "the README's Python" readme
step "gallery create" env/bin/midspan gallery create first.midspan --vectors old.npz
step "upgrade plan" env/bin/midspan upgrade plan first.midspan --to new.npz --mode both
step "upgrade start" env/bin/midspan upgrade start first.midspan --to new.npz --mode both
step "upgrade run" env/bin/midspan upgrade run first.midspan --vectors new.npz
step "gallery search" env/bin/midspan gallery search first.midspan \
  --vectors old.npz --vectors new.npz -k 3
step "upgrade finish" env/bin/midspan upgrade finish first.midspan
step "upgrade rollback" env/bin/midspan upgrade rollback first.midspan
printf '[data]\nname = "digits"\n' >run.toml
mkdir -p photos && printf 'no image' >photos/a.jpg
step "core install: train" refused train env/bin/midspan train run.toml --out run
step "core install: bench" refused train env/bin/midspan bench --data digits --out bench
step "core install: demo" refused train env/bin/midspan demo --quick
step "core install: embed" refused "[a-z]*" env/bin/midspan embed efficientnet-lite0 photos --out photos.npz
step "core install: serve" refused serve env/bin/midspan serve --gallery first.midspan
if [ "${2:-}" = demo ]; then
  step "install the demo" env/bin/pip install --quiet --constraint "$here/constraints.txt" "$wheel[demo]"
  step "install its fonts" env/bin/pip install --quiet --no-deps "trdg==1.8.0"
  began=$SECONDS
  step "midspan demo --quick" env/bin/midspan demo --quick
  test -s demo/index.html
  took=$((SECONDS - began))
  # a minute is what the README promises on a quiet machine; CI may be busy
  [ "$took" -le 60 ] || echo "WARNING: midspan demo --quick took $took s, more than a minute"
  [ "$took" -le 120 ] || { echo "FAILED: midspan demo --quick took $took s"; exit 1; }
fi
echo "done in $SECONDS s"
