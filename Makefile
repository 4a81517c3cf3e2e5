# `make demo` and `make test` do all set-up on a fresh machine; a second run skips it.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
FOLDERS := schemas tasks policy dataset collect relabel train evaluate cli
INSTALLED := $(VENV)/installed

.PHONY: setup demo test test-long lint typing clean

setup: $(INSTALLED)

# Made again only when what is to be installed changes.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,envs]'
	touch $@

# Type checkers cannot see setuptools' mapping; they read this tree of links.
typing:
	mkdir -p build/typing/retold
	for folder in $(FOLDERS); do ln -sfn "../../../$$folder" "build/typing/retold/$$folder"; done

lint: setup typing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -m 'not long' --durations=10

test-long: setup
	$(BIN)/pytest -m long --timeout=0

demo: setup
	$(BIN)/python benchmarks/demo.py

clean:
	rm -rf $(VENV) build dist *.egg-info
