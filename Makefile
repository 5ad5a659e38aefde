# Everything a person or a machine does here is a target of this file. `make` lists them.
SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?=
ARGS ?=
FUZZ_SECONDS ?= 60
# So many share the tests: more than the two processors of a small machine, because tests often wait.
WORKERS ?= 5

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where this is set, every one of the processes that tests start would compile all sources anew.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install --quiet --quiet --constraint constraints.txt
REQUIREMENTS := pyproject.toml constraints.txt

# A stamp per set of packages, so that a second run installs nothing.
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
	@echo "· installing interlock and what its tests need into $(VENV) (a minute, the first time)"
	@$(INSTALL) --editable '.[dev]'
	@touch $@ $(RUNTIME)

$(BENCH): $(REQUIREMENTS) | $(BIN)/python
	@echo "· installing interlock and what it is measured against into $(VENV)"
	@$(INSTALL) --editable '.[dev,bench]'
	@touch $@ $(DEV) $(RUNTIME)

.PHONY: setup
setup: $(DEV) ## create .venv with everything that development needs

.PHONY: serve
serve: $(RUNTIME) ## start a node on 127.0.0.1 with the demo upstream (ARGS="..." is passed on)
	@$(BIN)/interlock up --demo $(ARGS)

.PHONY: test
test: $(DEV) peers frameworks ## everything that must hold: lint, types, layers, tests, a short fuzz run, spec coverage
	@$(MAKE) --no-print-directory --jobs=2 lint compile-tests
	@echo "· pytest"
	@# A file by one of them, the longest first. All must name the cases alike, also those from sets.
	@PYTHONHASHSEED=0 $(BIN)/python -m pytest --quiet --hypothesis-profile=ci \
		--numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=25 $(ARGS)
	@$(MAKE) --no-print-directory fuzz-short
	@echo "· spec coverage"
	@$(BIN)/python -m tools.spec_coverage --check

# Tests that start few programs, without the rest: an answer within three minutes.
CHECKED := tests/aql tests/automation tests/channels tests/contracts tests/core tests/manifests \
	tests/primitives tests/protocol tests/tools tests/topics tests/tree tests/trust

.PHONY: check
check: $(DEV) ## the fast part of test: lint, types, layers, and the tests that start few programs
	@$(MAKE) --no-print-directory lint
	@echo "· pytest"
	@PYTHONHASHSEED=0 $(BIN)/python -m pytest --quiet --hypothesis-profile=check \
		--numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(CHECKED) $(ARGS)

# Once, beside the type checker, which uses one processor: otherwise each worker compiles every test.
.PHONY: compile-tests
compile-tests: $(DEV)
	@$(BIN)/python -m pytest --collect-only --quiet --quiet >/dev/null 2>&1 || true

.PHONY: peers
peers: # real programs that pip does not carry; a test whose peer is absent skips
	@tools/install_peers.sh

.PHONY: frameworks
frameworks: # LLM frameworks that tests run as clients; where they cannot be had, those tests skip
	@tools/install_frameworks.sh $(FRAMEWORKS) $(BIN)/python $(FRAMEWORK_REQUIREMENTS)

.PHONY: test-without
test-without: $(DEV) peers ## the tests of a build without a feature (FEATURE=topics)
	@$(BIN)/python -m tools.test_without $(FEATURE) -- --numprocesses $(WORKERS) --dist loadfile \
		--no-loadscope-reorder $(ARGS)

.PHONY: lint
lint: $(DEV) ## ruff, mypy and the import layers
	@echo "· ruff"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "run: make format" >&2; exit 1; }
	@echo "· mypy"
	@$(BIN)/mypy --no-error-summary
	@echo "· import layers"
	@$(BIN)/lint-imports --no-logo

.PHONY: format
format: $(DEV) ## put the code into the house style
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format .

.PHONY: soak-topics
soak-topics: $(DEV) ## many come and go in topics for ten minutes (ARGS="--minutes 1")
	@$(BIN)/python -m bench.topic_soak $(or $(ARGS),--minutes 10)

.PHONY: bench
bench: $(BENCH) peers ## measure against peers and limits in one interleaved run (ARGS="..." is passed on)
	@$(BIN)/python -m bench $(ARGS)

.PHONY: conformance
conformance: $(DEV) peers ## the official MCP conformance suite: servers through nodes and across eras, a node as client
	@CONF_ALL=1 $(BIN)/python -m pytest --quiet $(ARGS) tests/conformance

.PHONY: aql-conformance
aql-conformance: $(DEV) ## the conformance of a live node with MCP-AQL (ARGS="test --level 2" is what is run)
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
coverage-spec: $(DEV) ## what of the specs is proven by a test; rewrites docs/spec-coverage.md
	@$(BIN)/python -m tools.spec_coverage $(ARGS)

.PHONY: spec-mutations
spec-mutations: $(DEV) peers ## break each clause of the MUSTs once; its tests must fail (ARGS="--item AX-5 --jobs 2")
	@$(BIN)/python -m tools.spec_mutations $(ARGS)

.PHONY: constraints
constraints: ## refresh constraints.txt: the newest versions that pyproject.toml allows
	@rm -rf $(VENV)-fresh && tools/create_venv.sh $(VENV)-fresh $(PYTHON)
	@$(VENV)-fresh/bin/python -m pip install --quiet --quiet --editable '.[dev,bench,embeddings]'
	@sed -n '/^#/p' constraints.txt > $(VENV)-fresh/constraints.txt
	@$(VENV)-fresh/bin/python -m pip freeze --exclude-editable >> $(VENV)-fresh/constraints.txt
	@mv $(VENV)-fresh/constraints.txt constraints.txt && rm -rf $(VENV)-fresh
	@echo "· constraints.txt is fresh; run: make test"

.PHONY: clean
clean: ## remove .venv and every cache
	@rm -rf $(VENV) $(VENV)-fresh $(FRAMEWORKS) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find src tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
