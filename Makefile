# One command does all its own set-up: on a machine with Python 3.11 and pip, `make demo` or `make test` is enough.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Tests wait more than they compute: more of them at once than there are cores.
WORKERS ?= 4

# Compiled once, not anew by each of the hundreds of processes that tests start.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): requirements/dev.txt pyproject.toml
	@echo "==> Python environment in $(VENV) (about a minute the first time)"
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is needed (set PYTHON=...)"; exit 2; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements/dev.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: setup
setup: $(READY) ## Create the virtual environment

.PHONY: demo
demo: $(READY) ## The whole loop, embedded: no cluster, under a minute
	@$(BIN)/smw demo

.PHONY: test
test: $(READY) check controlplane ## Everything: checks, unit, integration, real API server
	@echo "==> Tests"
	@$(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: coverage
coverage: $(READY) ## Hold model and compiler to 100 % branch coverage by their own tests
	@$(BIN)/coverage run --source=supervisor_middleware.model,supervisor_middleware.compiler --data-file=.coverage.core -m pytest --quiet -p no:cacheprovider tests/model tests/compiler
	@$(BIN)/coverage report --data-file=.coverage.core --skip-covered --show-missing --fail-under=100

.PHONY: check
check: $(READY) ## Format, lint, types, import contracts, generated files
	@$(MAKE) --no-print-directory --jobs types collectable contracts generated-fresh format-check lint

.PHONY: format
format: $(READY) ## Rewrite sources in the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix --quiet . || true

.PHONY: format-check lint types contracts generated-fresh collectable
format-check: $(READY)
	@echo "==> Format"; $(BIN)/ruff format --check --quiet .
lint: $(READY)
	@echo "==> Lint"; $(BIN)/ruff check --quiet .
types: $(READY)
	@echo "==> Types"; $(BIN)/mypy operator tests e2e
contracts: $(READY)
	@echo "==> Import contracts"; $(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports
generated-fresh: $(READY)
	@echo "==> Generated files are fresh"; $(BIN)/python -m tests.contract.generate --check
# Beside the types, which keep one core busy: the workers find every test module compiled.
collectable: $(READY)
	@echo "==> Tests can be collected"; $(BIN)/pytest --collect-only --quiet --quiet >/dev/null || $(BIN)/pytest --collect-only --quiet --quiet

.PHONY: generate
generate: $(READY) ## Regenerate protobuf code, CRDs and reference docs
	@$(BIN)/python -m tests.contract.generate

.PHONY: bench
bench: $(READY) ## Benchmarks: one line a figure
	@$(BIN)/python -m tests.benchmarks

.PHONY: controlplane
controlplane: $(READY) ## Build etcd, kube-apiserver, kube-controller-manager, kubectl, Helm and promtool (cached)
	@$(BIN)/python -m e2e.controlplane.build
	@$(BIN)/python -m e2e.helm.build
	@$(BIN)/python -m e2e.promtool.build

.PHONY: kube-up kube-down kube-demo
kube-up: controlplane ## Start a local API server and write a kubeconfig
	@$(BIN)/python -m e2e.controlplane up
kube-down: $(READY) ## Stop it and remove its data
	@$(BIN)/python -m e2e.controlplane down
kube-demo: controlplane ## The demo's story on the real API server, with kubectl
	@$(BIN)/python -m e2e.kube_demo

.PHONY: pins
pins: $(READY) ## Refresh requirements/dev.txt
	@$(BIN)/pip install --quiet uv && $(BIN)/uv pip compile --quiet --no-emit-index-url --no-header --no-annotate --all-extras --python-version 3.11 pyproject.toml -o requirements/dev.txt
	@sed -i '1i # Every pin of every extra. Refresh: make pins' requirements/dev.txt
