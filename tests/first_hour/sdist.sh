#!/usr/bin/env bash
# The source archive builds and imports in an environment of its own. Its dependencies are those of the
# wheel, which run.sh has installed: here they are looked at in the checkout's .venv.
#
#     tests/first_hour/sdist.sh dist/midspan-0.1.0.tar.gz
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
archive=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/pip install --quiet --constraint "$here/constraints.txt" hatchling
env/bin/pip install --quiet --no-deps --no-build-isolation "$archive"
env/bin/pip install --quiet --constraint "$here/constraints.txt" numpy
env/bin/python - <<'PYTHON'
import pathlib, midspan
assert "site-packages" in midspan.__file__, midspan.__file__
root = pathlib.Path(midspan.__file__).parent
for name in ("py.typed", "service/page/index.html", "gallery/catalogue/migrations/env.py"):
    assert (root / name).is_file(), name
print("sdist: midspan", midspan.__version__)
PYTHON
