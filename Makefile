# Two commands on a fresh machine: `make demo` and `make test`. Each first builds .venv if it is missing or stale.

PYTHON ?= python3
BIN := .venv/bin
SOURCES := asng $(wildcard tests examples benchmarks)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test format hooks bench clean

demo: .venv/installed  ## a whole search on handwritten digits: search, training from scratch, test
	@[ ! -e runs/demo/summary.json ] || rm -r runs/demo  # finished: anew; interrupted: it goes on
	$(BIN)/asng digits search --out runs/demo

test: .venv/installed  ## format, lint, types, tests: what the CI runs
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy $(SOURCES)
	$(BIN)/python -m pytest

format: .venv/installed  ## rewrite the sources in the project's format
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

hooks: .venv/installed  ## run the checks before each commit
	$(BIN)/pre-commit install

bench: .venv/installed-bench  ## cost of ask and tell beside other libraries
	$(BIN)/python benchmarks/ask_tell.py

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

# setuptools comes first and without build isolation, so that it too has the pinned version.
.venv/installed: pyproject.toml constraints.txt
	@echo 'Installing into .venv, which takes some minutes ...'
	$(PYTHON) -m venv .venv
	$(INSTALL) setuptools
	$(INSTALL) --no-build-isolation --editable '.[nas,onnx,dev]'
	touch $@

.venv/installed-bench: .venv/installed
	$(INSTALL) --no-build-isolation --editable '.[nas,onnx,dev,bench]'
	touch $@
