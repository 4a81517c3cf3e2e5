# `make demo` and `make test` do all set-up on a fresh machine; a second run skips it.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
FOLDERS := schemas tasks policy dataset collect relabel train evaluate cli
# Made last, so that an interrupted installation is begun again.
INSTALLED := $(VENV)/installed
DEMO := runs/demo

.PHONY: help setup demo test test-long test-zarr lint typing clean

help:
	@echo "make demo       install, then run the whole loop on Crafter (8 minutes on 2 cores)"
	@echo "make test       install, lint, and run the tests (10 minutes on 2 cores)"
	@echo "make test-long  kills at every point, and the README from top to bottom (hours: the races on a store take most)"
	@echo "make test-zarr  compare another zarr-python (ZARR_PYTHON=) with this one on the golden datasets"
	@echo "make lint       ruff and mypy alone"
	@echo "make clean      remove what the above made, the runs excepted"

setup: $(INSTALLED)

# Made again only when what is to be installed changes.
$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 to 3.13 is not on the path. Install it, or give make PYTHON=/path/to/python3.11."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { echo "$(PYTHON) is not Python 3.11 to 3.13. Give make PYTHON=/path/to/python3.11."; exit 1; }
	@echo "Installing into $(VENV): some minutes, once."
	@test -e $@ || rm -rf $(VENV)
	@rm -f $@
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,envs,figures,interchange,video]'
	@touch $@

# Type checkers cannot see setuptools' mapping; they read this tree of links.
typing:
	@mkdir -p build/typing/retold
	@for folder in $(FOLDERS); do ln -sfn "../../../$$folder" "build/typing/retold/$$folder"; done

lint: setup typing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -m 'not long' -n 2 --dist loadfile --durations=10

test-long: setup
	$(BIN)/pytest -m long --timeout=0 --durations=10

# E.g. `make test-zarr ZARR_PYTHON=python3.12`, with any zarr installed in it: does it read what ours reads?
ZARR_PYTHON ?= $(BIN)/python
test-zarr: setup
	@mkdir -p build
	$(BIN)/python tests/read_with_zarr.py tests/golden/v1 > build/zarr-ours.json
	$(ZARR_PYTHON) tests/read_with_zarr.py tests/golden/v1 > build/zarr-other.json
	cmp build/zarr-ours.json build/zarr-other.json

# Interrupted, it goes on where it was; finished, it prints the table again.
demo: setup
	$(BIN)/retold loop examples/crafter.toml --run $(DEMO) --resume
	$(BIN)/retold audit $(DEMO)/raw
	$(BIN)/retold audit $(DEMO)/retold

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
