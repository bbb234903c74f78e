# Each target sets up .venv by itself: all that a fresh machine needs is make and Python 3.11 or newer.
#
#   make demo     train, merge, evaluate and report a small model on CPU, seven minutes on two cores
#   make test     lint, types, tests and their coverage
#   make lint     ruff and mypy
#   make bench    comparisons with peers, printed
#   make test-machines    the tests as on other CPUs and with more threads, an hour or two
#
# PYTHON=python3.12 picks the interpreter. TORCH="torch --index-url URL" says where torch comes from,
# for a machine on which the default build (CUDA, on Linux) is not wanted.

PYTHON ?= python3
TORCH ?= torch

VENV := .venv
BIN := $(VENV)/bin
# Named after the place, because an editable install points at it: a checkout that was moved or copied
# is installed again.
READY := $(VENV)/ready-$(shell pwd | cksum | tr -dc '0-9')

export PIP_DISABLE_PIP_VERSION_CHECK = 1
export TOKENIZERS_PARALLELISM = false
# Files are UTF-8 whatever the locale is, of tests too.
export PYTHONUTF8 = 1

.PHONY: help demo test lint bench test-machines
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   make/make/p' Makefile

# All cores work on the demo: torch picks its number of threads itself.
demo: $(READY)
	$(BIN)/python -m emberge run boom/demo --out out/demo

# Tests work on tensors so small that a second thread costs more than it gives, and float32 sums must
# not depend on the machine that runs them: what other cores are for is other files of tests.
test: export OMP_NUM_THREADS = 1
test: lint
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --cov --cov-report=term:skip-covered --cov-fail-under=90

lint: $(READY)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

# TESTS="tests/core -x" runs pytest with these arguments instead of on everything.
TESTS ?=
test-machines: $(READY)
	$(BIN)/python -m tests.support.machines $(TESTS)

# BENCH= (empty) takes models of full size.
BENCH ?= --small
bench: $(READY)
	$(BIN)/python -m tests.benchmarks.merge $(BENCH)

$(READY): $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(TORCH)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo,dev]'
	@rm -f $(VENV)/ready-* && touch $@

# A virtual environment whose interpreter is gone counts as missing and is made anew.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "emberge needs Python 3.11 or newer, and '$(PYTHON)' is not; try: make PYTHON=python3.12" >&2; \
	  exit 2; }
	$(PYTHON) -m venv --clear $(VENV)
