# A fresh machine needs git, make and Python 3.11 or newer; the rest is made here.
# Each target does again only what is missing.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# The first that is new enough; override with `make PYTHON=/path/to/python3.12 ...`.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; \
	done)

PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --quiet
ALL := -e '.[dev]' -c constraints.txt
# Set it, to whatever, and uv fetches the packages, many at a time. It knows no settings of pip's,
# which may say where builds of torch without CUDA are: that one is pip's, and uv leaves it alone.
UV ?=
FAST := $(PIP) uv torch -c constraints.txt && $(BIN)/uv pip install --quiet --python $(BIN)/python $(ALL)
INSTALL := $(if $(UV),$(FAST) || )$(PIP) $(ALL)

MODEL ?= demo
SERVE_ARGS ?=
BENCH_ARGS ?=
PYTEST_ARGS ?=
CHAOS_S ?= 300
CHAOS_SEED ?= 1

.PHONY: help install model serve test lint types imports chaos fmt bench clean

help:
	@echo 'make install  set up .venv, with the command tidegate in .venv/bin'
	@echo 'make serve    two CPU replicas of the demo model behind http://127.0.0.1:8000'
	@echo 'make test     format and lint checks, types, import rules, all tests'
	@echo 'make chaos    load while processes are killed, for CHAOS_S=300 seconds, with CHAOS_SEED=1'
	@echo 'make bench    benchmarks on this machine'
	@echo 'make fmt      format the code'
	@echo 'make clean    remove the virtual environment and all caches of the tools'

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo 'tidegate needs Python 3.11 or newer: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || '$(PYTHON)' -m venv --clear $(VENV)
	$(INSTALL)
	@touch $@

# Not a file target: the cache lies outside this folder and may be emptied at any time.
model: $(INSTALLED)
	@$(BIN)/python -c 'from engine.loader import resolve; resolve("demo")'

serve: $(INSTALLED) $(if $(filter demo,$(MODEL)),model)
	@exec $(BIN)/tidegate serve '$(MODEL)' --replicas 2 $(SERVE_ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

imports: $(INSTALLED)
	$(BIN)/lint-imports --no-logo

# The tests come last, so that their closing line is the last that is printed. Types are checked
# beside them.
test: lint imports model
	$(BIN)/python -m tests.side_by_side $(PYTEST_ARGS)

# The test that `make test` runs for some seconds. Another seed is another course of events.
chaos: $(INSTALLED)
	@CHAOS_S='$(CHAOS_S)' CHAOS_SEED='$(CHAOS_SEED)' \
		$(BIN)/python -m pytest tests/chaos -s $(PYTEST_ARGS)

bench: $(INSTALLED) model
	@exec $(BIN)/tidegate bench $(BENCH_ARGS)

fmt: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
