# Each target sets up .venv by itself: all that a fresh machine needs is make and Python 3.11 or newer.
#
#   make demo     train, merge, evaluate and report a small model on CPU, five minutes on two cores
#   make test     lint, types and every quick test: before each commit
#   make test-all  lint, types and all tests, the slow ones too: nightly and before a release
#   make docs     the documentation as a website in out/site; index.html opens without a server
#   make coverage  the tests again, and which lines they reach
#   make lint     ruff and mypy
#   make bench    comparisons with peers, printed
#   make gpu      on a machine with a GPU: what only a GPU can show, in one table; installs nothing
#   make mutants  plant small faults and print how many the tests find; an hour or two
#
# PYTHON=python3.12 picks the interpreter. TORCH="torch --index-url URL" says where torch comes from,
# for a machine on which the default build (CUDA, on Linux) is not wanted.

PYTHON ?= python3
TORCH ?= torch

VENV := .venv
BIN := $(VENV)/bin
# Named after the place, because an editable install points at it: a checkout that was moved or copied
# is installed again. Installing also compiles the kernels.
KERNELS := $(addprefix core/emberge/numerics/native/,build.py row_kernels.c)
READY := $(VENV)/ready-$(shell pwd | cksum | tr -dc '0-9')

export PIP_DISABLE_PIP_VERSION_CHECK = 1
export TOKENIZERS_PARALLELISM = false
# Files are UTF-8 whatever the locale is, of tests too.
export PYTHONUTF8 = 1

.PHONY: help demo test test-all docs coverage lint style bench gpu mutants
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   make/make/p' Makefile

# All cores work on the demo: torch picks its number of threads itself.
demo: $(READY)
	$(BIN)/python -m emberge run boom/demo --out out/demo

# Tests work on tensors so small that a second thread costs more than it gives, and float32 sums must
# not depend on the machine that runs them: what other cores are for is other files of tests.
test test-all coverage: export OMP_NUM_THREADS = 1
# Empty counts as unset: without bytecode each worker compiles all tests again, half of the time of collecting.
test test-all coverage: export PYTHONDONTWRITEBYTECODE =
SUITE := -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
test-all: SUITE += -m 'not benchmark'
# Types beside the tests: mypy takes one core, on a fresh checkout for two minutes.
test test-all: style
	$(BIN)/python -m mypy & types=$$!; $(BIN)/python $(SUITE); tests=$$?; wait $$types && exit $$tests

# Strict: a broken link, an unlisted page and whatever loads from another server are errors. The theme's
# advertisement of another generator is left out.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(READY)
	$(BIN)/python -m mkdocs build --quiet
	@echo "out/site/index.html"

# Counting lines takes two fifths of the time again.
coverage: $(READY)
	$(BIN)/python $(SUITE) --cov --cov-report=term:skip-covered --cov-fail-under=90

lint: style
	$(BIN)/python -m mypy

style: $(READY)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

# BENCH= (empty) takes models of full size.
BENCH ?= --size small
bench: $(READY)
	$(BIN)/python -m tests.benchmarks.merge $(BENCH)

# Takes the torch with CUDA that PYTHON has, and needs no network. GPU= has options, such as --only merge.
GPU ?=
gpu:
	PYTHONPATH=core:plugins $(PYTHON) -m tests.gpu.run_all $(GPU)

# MUTANTS="losses journal" takes files by a part of their path, SAMPLE=20 so many faults, SEED=7 others.
MUTANTS ?=
SAMPLE ?= 50
SEED ?= 0
mutants: export OMP_NUM_THREADS = 1
mutants: $(READY)
	$(BIN)/python -m tests.support.mutants $(MUTANTS) --sample $(SAMPLE) --seed $(SEED)

$(READY): $(BIN)/python pyproject.toml constraints.txt $(KERNELS)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(TORCH)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo,dev,docs]'
	@rm -f $(VENV)/ready-* && touch $@

# A virtual environment whose interpreter is gone counts as missing and is made anew.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "emberge needs Python 3.11 or newer, and '$(PYTHON)' is not; try: make PYTHON=python3.12" >&2; \
	  exit 2; }
	$(PYTHON) -m venv --clear $(VENV)
