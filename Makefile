# The two commands of the README are `make demo` and `make test`; everything else serves them.
# All output goes to build/. Python packages come from constraints-dev.txt, by hash.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

BUILD := $(CURDIR)/build
VENV  := $(BUILD)/venv
PY    := $(VENV)/bin/python
PYTEST_ARGS ?=
BENCH_ARGS ?=

PLUGIN_SOURCES := $(shell find plugin -name '*.py' -o -name '*.pyi' -o -name py.typed) pyproject.toml README.md
SAY = @printf '\033[1m== %s\033[0m\n'

.PHONY: test-matrix test-gpu gpu-bundle bench-prepare bench-cores bench-shim soak help demo demo-kueue can-run test setup lint types proto shim fakes wheel image cluster-build check unit clean
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# KEEP=0 and an empty KEEP are no.
KEPT := $(filter-out 0 no false,$(KEEP))
demo: can-run setup wheel shim fakes ## lab A on a real Kubernetes with two simulated T4s (KEEP=1 leaves it up)
	@$(PY) -m tests.lab $(if $(KEPT),--keep)

demo-kueue: can-run setup wheel shim fakes ## lab B: whole cards and shares under Kueue's quotas (KEEP=1 likewise)
	@$(PY) -m tests.lab --lab b $(if $(KEPT),--keep)

# Said before minutes of building, not after.
can-run:
	@[ "$$(id -u)" = 0 ] || { echo "demo: needs root, for the cluster's nodes are namespaces; run it by sudo" >&2; exit 1; }

test: setup lint types wheel shim fakes check image ## everything but a real GPU; pytest's summary last
	$(SAY) "all tiers"
	$(PY) -m pytest -m "not gpu" $(PYTEST_ARGS)

setup: $(BUILD)/.setup ## Debian packages and the Python environment
$(BUILD)/.setup: scripts/setup.sh constraints-dev.txt
	$(SAY) "setting up"
	@scripts/setup.sh $(VENV) constraints-dev.txt
	@touch $@

lint: setup ## ruff and the import contract
	$(SAY) "lint"
	$(VENV)/bin/ruff check --quiet
	$(VENV)/bin/ruff format --check --quiet
	PYTHONPATH=plugin $(VENV)/bin/lint-imports >$(BUILD)/lint-imports.log || { cat $(BUILD)/lint-imports.log; exit 1; }

types: setup ## mypy, strict
	$(SAY) "types"
	$(VENV)/bin/mypy

proto: setup ## regenerate plugin/apportion/kubelet/pb from proto/
	PYTHON=$(PY) proto/generate.sh

shim: setup ## the front libraries and the OCI hook
	@$(MAKE) --silent --no-print-directory -C shim BUILD=$(BUILD)/shim

fakes: setup ## the simulated driver
	@$(MAKE) --silent --no-print-directory -C tests/fakes BUILD=$(BUILD)/fakes

wheel: $(BUILD)/.wheel ## build the wheel and install it: the tests run on it, not on the checkout
$(BUILD)/.wheel: $(BUILD)/.setup $(PLUGIN_SOURCES)
	$(SAY) "wheel"
	@rm -rf $(BUILD)/dist $(BUILD)/lib $(BUILD)/bdist.*
	@$(PY) -m build --wheel --no-isolation --outdir $(BUILD)/dist . >$(BUILD)/wheel.log 2>&1 || { cat $(BUILD)/wheel.log; exit 1; }
	@$(VENV)/bin/pip install --quiet --no-deps --force-reinstall $(BUILD)/dist/*.whl
	@touch $@

cluster-build: setup ## Kubernetes, etcd, containerd and Kueue from source, once, into the cache
	$(PY) -m tests.harness build

image: setup ## the Dockerfile's image, as an OCI archive in the cache
	$(SAY) "image"
	$(PY) -m tests.lab --build-only

test-matrix: setup wheel shim fakes image ## the cluster tier on each Kubernetes of tests/harness/versions.py (VERSIONS="1.34 1.37")
	$(SAY) "the cluster tier on $(or $(VERSIONS),every version)"
	@$(PY) -m tests.matrix $(VERSIONS) --table $(BUILD)/matrix.md

test-gpu: ## the tests and measurements before a real GPU (docs/gpu-testing.md)
	scripts/test_gpu.sh $(PYTEST_ARGS)

gpu-bundle: setup ## one file of at most 64 MiB to do that on a machine without a network
	@scripts/gpu_bundle.sh $(PY) constraints-dev.txt $(BUILD)/gpu-bundle.tar.gz

bench-shim: setup ## what the front libraries cost; last line of output: JSON
	$(SAY) "what the front libraries cost"
	@$(PY) -m bench.shim $(BENCH_ARGS)

bench-cores: setup ## how exactly shares get their cores, on simulated GPUs; one line of JSON last
	$(SAY) "how exactly shares get their cores"
	@$(PY) -m bench.cores $(BENCH_ARGS)

check: unit
unit: wheel ## unit tier; each pure module is covered by 95 % or more
	$(SAY) "unit tier with coverage"
	$(PY) -m pytest tests/unit -q --no-header --cov=apportion --cov-report= $(PYTEST_ARGS)
	@$(VENV)/bin/coverage json -q -o $(BUILD)/coverage.json
	@$(PY) scripts/coverage_gate.py $(BUILD)/coverage.json

soak: setup wheel shim fakes ## pods with shares come and go for MINUTES=30 on a real Kubernetes; one line of JSON last
	@$(PY) -m bench.soak --minutes $(or $(MINUTES),30)

bench-prepare: setup wheel shim fakes ## Prepare as kubelet sees it, at 0 to 1000 claims; one line of JSON last
	@$(PY) -m bench.prepare

clean: ## remove all that was made here; the cluster's cache stays
	rm -rf $(BUILD) plugin/apportion.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
