# The targets for development. `make` lists them.
SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?=
ARGS ?=
FUZZ_SECONDS ?= 60
# The number of test processes. It exceeds the two processors of a small machine, because tests often wait.
WORKERS ?= 5

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# With this variable, each process that tests start would compile all sources again.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install --quiet --quiet --constraint constraints.txt
REQUIREMENTS := pyproject.toml constraints.txt

# One stamp file per set of packages, so that a second run installs nothing.
RUNTIME := $(VENV)/.ready-runtime
DEV := $(VENV)/.ready-dev
BENCH := $(VENV)/.ready-bench
FRAMEWORKS := $(VENV)-frameworks
FRAMEWORK_REQUIREMENTS := tests/behaviour/frameworks/requirements.txt

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	@tools/create_venv.sh $(VENV) $(PYTHON)

$(RUNTIME): $(REQUIREMENTS) | $(BIN)/python
	@echo "· installing interlock into $(VENV)"
	@$(INSTALL) --editable '.[oauth]'
	@touch $@

$(DEV): $(REQUIREMENTS) | $(BIN)/python
	@echo "· installing interlock and the test dependencies into $(VENV) (about one minute)"
	@$(INSTALL) --editable '.[dev]'
	@touch $@ $(RUNTIME)

$(BENCH): $(REQUIREMENTS) | $(BIN)/python
	@echo "· installing interlock and the dependencies of the benchmarks into $(VENV)"
	@$(INSTALL) --editable '.[dev,bench]'
	@touch $@ $(DEV) $(RUNTIME)

.PHONY: setup
setup: $(DEV) ## create .venv with all dependencies for development

.PHONY: serve
serve: $(RUNTIME) ## start a node on 127.0.0.1 with the demo upstream (ARGS="..." is passed on)
	@$(BIN)/interlock up --demo $(ARGS)

.PHONY: test
test: $(DEV) peers frameworks ## run all checks: lint, types, layers, tests, a short fuzz run, spec coverage
	@$(MAKE) --no-print-directory --jobs=2 lint compile-tests
	@echo "· pytest"
	@# One process runs a whole file, the longest files first. The hash seed gives all processes the same case names.
	@PYTHONHASHSEED=0 $(BIN)/python -m pytest --quiet --hypothesis-profile=ci \
		--numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=25 $(ARGS)
	@$(MAKE) --no-print-directory fuzz-short
	@echo "· spec coverage"
	@$(BIN)/python -m tools.spec_coverage --check
	@$(BIN)/python -m tools.spec_mutations --check

# Tests that start few programs. They take about three minutes.
CHECKED := tests/aql tests/automation tests/channels tests/contracts tests/core tests/manifests \
	tests/primitives tests/protocol tests/tools tests/topics tests/tree tests/trust

.PHONY: check
check: $(DEV) ## run the fast part of test: lint, types, layers, and the tests that start few programs
	@$(MAKE) --no-print-directory lint
	@echo "· pytest"
	@PYTHONHASHSEED=0 $(BIN)/python -m pytest --quiet --hypothesis-profile=check \
		--numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(CHECKED) $(ARGS)

# Compiles the tests once, in parallel to the type checker. Otherwise each worker compiles all tests.
.PHONY: compile-tests
compile-tests: $(DEV)
	@$(BIN)/python -m pytest --collect-only --quiet --quiet >/dev/null 2>&1 || true

.PHONY: peers
peers: # install programs that are not in pip; tests without their program are skipped
	@tools/install_peers.sh

.PHONY: frameworks
frameworks: # install LLM frameworks that tests run as clients; without them, those tests are skipped
	@tools/install_frameworks.sh $(FRAMEWORKS) $(BIN)/python $(FRAMEWORK_REQUIREMENTS)

.PHONY: test-without
test-without: $(DEV) peers ## run the tests of a build without a feature (FEATURE=topics)
	@$(BIN)/python -m tools.test_without $(FEATURE) -- --numprocesses $(WORKERS) --dist loadfile \
		--no-loadscope-reorder $(ARGS)

.PHONY: lint
lint: $(DEV) ## run ruff, mypy and the check of import layers
	@echo "· ruff"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "run: make format" >&2; exit 1; }
	@echo "· mypy"
	@$(BIN)/mypy --no-error-summary
	@echo "· import layers"
	@$(BIN)/lint-imports --no-logo

.PHONY: format
format: $(DEV) ## format the code
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format .

.PHONY: soak-topics
soak-topics: $(DEV) ## run joins and messages in topics for ten minutes (ARGS="--minutes 1")
	@$(BIN)/python -m bench.topic_soak $(or $(ARGS),--minutes 10)

.PHONY: bench
bench: $(BENCH) peers ## compare the node with peers and limits in one interleaved run (ARGS="..." is passed on)
	@$(BIN)/python -m bench $(ARGS)

.PHONY: conformance
conformance: $(DEV) peers ## run the official MCP conformance suite: servers through nodes and across protocol generations, a node as client
	@CONF_ALL=1 $(BIN)/python -m pytest --quiet $(ARGS) tests/conformance

.PHONY: aql-conformance
aql-conformance: $(DEV) ## check the conformance of a live node with MCP-AQL (default: ARGS="test --level 2")
	@$(BIN)/python -m tools.aql_conformance $(or $(ARGS),test --level 2)

.PHONY: fuzz
fuzz: $(DEV) ## fuzz every parser (FUZZ_SECONDS=60 each)
	@$(BIN)/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS)

.PHONY: fuzz-short
fuzz-short: $(DEV)
	@if $(BIN)/python -c 'import atheris' 2>/dev/null; \
	then echo "· fuzz"; $(BIN)/python tests/fuzz/run.py --seconds 3; \
	else echo "· fuzz: skipped, atheris has no build for this Python or machine"; fi

.PHONY: coverage-spec
coverage-spec: $(DEV) ## list the requirements that tests prove; rewrites docs/spec-coverage.md
	@$(BIN)/python -m tools.spec_coverage $(ARGS)

.PHONY: spec-mutations
spec-mutations: $(DEV) peers ## break each clause of the MUSTs once and check that its tests fail (ARGS="--item AX-5 --jobs 2")
	@$(BIN)/python -m tools.spec_mutations $(ARGS)

.PHONY: constraints
constraints: ## update constraints.txt to the newest versions that pyproject.toml allows
	@rm -rf $(VENV)-fresh && tools/create_venv.sh $(VENV)-fresh $(PYTHON)
	@$(VENV)-fresh/bin/python -m pip install --quiet --quiet --editable '.[dev,bench,embeddings]'
	@sed -n '/^#/p' constraints.txt > $(VENV)-fresh/constraints.txt
	@$(VENV)-fresh/bin/python -m pip freeze --exclude-editable >> $(VENV)-fresh/constraints.txt
	@mv $(VENV)-fresh/constraints.txt constraints.txt && rm -rf $(VENV)-fresh
	@echo "· constraints.txt is updated; run: make test"

.PHONY: clean
clean: ## remove .venv and all caches
	@rm -rf $(VENV) $(VENV)-fresh $(FRAMEWORKS) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find src tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
