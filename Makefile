# The same commands on a laptop and in CI. Needs Python 3.11+, pip and make; the rest is installed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MILVUS := $(VENV)/milvus-server
# A file's tests stay together; the order of the files is that of tests/conftest.py.
SHARED := -n 2 --dist loadscope --no-loadscope-reorder

# The tests start many processes: each would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup browser demo test check format bench clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## make .venv with all extras that work on a CPU, and the dev tools

# trdg brings the fonts of the demo's data set; its own dependencies are old and not needed.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[all,dev]"
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

demo: setup ## train an old and two new encoders on real images, and show why one can search the old gallery
	$(BIN)/midspan demo

test: setup browser $(MILVUS) ## all tests, with coverage
	$(BIN)/python -m pytest $(SHARED) -m "not milvus" --cov --cov-report=
	$(BIN)/python -m pytest -m milvus --cov --cov-append --cov-report=term --cov-fail-under=85

check: setup ## format, lint, types, fast tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(BIN)/mypy >$(VENV)/mypy.txt 2>&1 & types=$$!; \
	$(BIN)/python -m pytest -q $(SHARED) -m "not slow"; tests=$$?; \
	wait $$types; types=$$?; echo "mypy:"; cat $(VENV)/mypy.txt; \
	[ $$tests = 0 ] && [ $$types = 0 ]

format: setup ## rewrite the files in the house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove what the commands above made
	rm -rf $(VENV) demo .coverage .pytest_cache .mypy_cache .ruff_cache
