# The same commands on a laptop and in CI. Needs Python 3.11+, pip and make; the rest is installed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MILVUS := $(VENV)/milvus-server
# A file's tests stay together; the order of the files is that of tests/conftest.py.
# A worker that dies ends the run: xdist can wait for ever for the tests that it had.
SHARED := -n 2 --dist loadscope --no-loadscope-reorder --max-worker-restart 0

# The tests start many processes: each would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup browser axe demo docs test coverage lint check format wheel clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## make .venv with all extras that work on a CPU, and the dev tools

# trdg brings the fonts of the demo's data set; its own dependencies are old and not needed.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[all,dev,docs]"
	$(BIN)/python -m pip install --quiet --no-deps "trdg==1.8.0"
	@touch $(STAMP)

# What only the tests need. A server in a wheel: nobody imports it, so it has a folder of its own.
$(MILVUS): $(STAMP)
	@$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(MILVUS) "milvus==2.3.5" \
	|| echo "No Milvus server was installed (is there a wheel for this platform?): its tests are skipped."
	@mkdir -p $(MILVUS) && touch $(MILVUS)

# The page is tested in a real browser. Debian's own is taken; nothing is fetched by Playwright.
browser:
	@for name in chromium chromium-browser google-chrome; do \
	  command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; \
	else \
	  echo "no Chromium found: the browser tests are skipped; install it with: sudo apt-get install chromium"; \
	fi

# axe-core finds faults of the page that screen readers and keyboards meet; it is one file of npm.
AXE := $(VENV)/axe/package/axe.min.js
axe: $(AXE)
$(AXE): $(STAMP)
	@mkdir -p $(VENV)/axe
	@if command -v npm >/dev/null && (cd $(VENV)/axe && npm pack --silent axe-core@4.10.3 >/dev/null \
	  && tar -xzf axe-core-4.10.3.tgz); then touch $(AXE); \
	else echo "axe-core was not installed (it needs npm and a network): its test is skipped."; fi

# Only what the demo needs: no servers, no cluster, no hub. A .venv with everything will do too.
DEMO := $(VENV)/.demo
$(DEMO): pyproject.toml constraints.txt
	@test -f $(STAMP) || ( $(PYTHON) -m venv $(VENV) && \
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[demo]" && \
	$(BIN)/python -m pip install --quiet --no-deps "trdg==1.8.0" )
	@touch $(DEMO)

demo: $(DEMO) ## train an old and two new encoders on real images, and show why one can search the old gallery
	$(BIN)/midspan demo

# Milvus takes a core as long as it is there, and gRPC's threads in its client do not go with the
# forks of Ray, whose own threads may end their process: each has a process to itself. What they
# print is shown when the other tests are done.
SERVERS := $(VENV)/servers.txt
# Where their tests are: to collect all the others takes ten seconds (tests/test_marks.py).
RAY_TESTS := tests/cli/test_ray.py tests/upgrade/test_cluster_real.py
MILVUS_TESTS := tests/gallery tests/upgrade/test_state_machine.py

test: setup browser axe $(MILVUS) ## all tests
	@rm -f .coverage .coverage.*
	@( failed=0; \
	  timeout 1800 $(BIN)/python -m pytest -m ray $(RAY_TESTS) || failed=1; \
	  COVERAGE_FILE=.coverage.milvus timeout 1800 $(BIN)/python -m pytest -m milvus $(COUNTED) \
	    $(MILVUS_TESTS) || failed=1; \
	  exit $$failed ) >$(SERVERS) 2>&1 & servers=$$!; \
	COVERAGE_FILE=.coverage.others timeout 2400 $(BIN)/python -m pytest $(SHARED) \
	  -m "not milvus and not ray" $(COUNTED); others=$$?; \
	wait $$servers; servers=$$?; echo "Ray and Milvus:"; cat $(SERVERS); \
	[ $$others = 0 ] && [ $$servers = 0 ]

# To note each line that runs takes an eighth of the processor's time: CI does, a person need not.
coverage: COUNTED := --cov --cov-report=
coverage: test ## all tests, and that they run at least 85 % of the lines
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under=85 | tail -40

lint: setup ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/vulture --config vulture.toml
	$(BIN)/mypy

# NO_MKDOCS_2_WARNING: mkdocs-material advertises its successor at every build.
# The site is built beside the tests, mypy after it: two cores are busy all the time.
check: setup ## format, lint, types, fast tests, docs site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/vulture --config vulture.toml
	@( NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict && $(BIN)/mypy ) \
	  >$(VENV)/check.txt 2>&1 & others=$$!; \
	$(BIN)/python -m pytest -q $(SHARED) -m "not slow"; tests=$$?; \
	wait $$others; others=$$?; echo "docs site and mypy:"; cat $(VENV)/check.txt; \
	[ $$tests = 0 ] && [ $$others = 0 ]

docs: setup ## the docs site, offline and strict, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: setup ## rewrite the files in the house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove what the commands above made
	rm -rf $(VENV) demo dist site .coverage .pytest_cache .mypy_cache .ruff_cache

# What a release gives people: both archives, and the first hour of somebody who has only the wheel.
wheel: setup ## build wheel and sdist, and walk the first hour on the wheel in an empty folder
	rm -rf dist
	$(BIN)/python -m build --outdir dist . >$(VENV)/build.txt 2>&1 || { cat $(VENV)/build.txt; exit 1; }
	tests/first_hour/run.sh dist/*.whl demo
	tests/first_hour/sdist.sh dist/*.tar.gz
