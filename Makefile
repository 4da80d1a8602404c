# `make demo` and `make test` need nothing but Python 3.10 to 3.13: they make .venv and install into it by themselves.
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test test-slow test-gpu test-engines lint bench docs clean
.DELETE_ON_ERROR:

demo: $(READY)
	rm -rf runs/demo
	$(BIN)/cordee train examples/digits.py --workers 2 --out runs/demo --set epochs=20

# -n auto: several tests at a time; tests/conftest.py says how many, and which of them follow each other.
test: $(READY)
	$(BIN)/python -m pytest -n auto

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

test-gpu: $(READY)
	$(BIN)/python -m pytest -m gpu

# Clusters of Ray, Spark and Slurm on hosts of a twin: as root. Slurm is installed where apt-get can; Java the system has to have.
test-engines: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,ray,spark]'
	@command -v slurmctld >/dev/null || apt-get install --yes --no-install-recommends slurm-wlm munge || true
	$(BIN)/python -m pytest -m engines tests/engines

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY) .venv-loaders/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,bench]'
	@failed=0; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python "$$script" || failed=1; done; exit $$failed

docs: $(READY)
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo 'open site/index.html; with search: $(BIN)/python -m http.server --directory site'

clean:
	rm -rf .venv .venv-loaders build dist site .mypy_cache .ruff_cache .pytest_cache
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# What benchmarks/loaders.py compares with asks for versions that do not fit ours, nor all of them each other's: Streaming
# has an environment within the others', with older packages that come first. What cannot be installed is left out.
LOADERS := .venv-loaders
LOADERS_PIP := -m pip install --quiet --constraint benchmarks/peers/loaders.txt
$(LOADERS)/ready: benchmarks/peers/loaders.txt constraints.txt
	$(PYTHON) -m venv $(LOADERS)
	$(LOADERS)/bin/python -m pip install --quiet --constraint constraints.txt torch numpy
	for peer in torchdata litdata grain webdataset datasets; do $(LOADERS)/bin/python $(LOADERS_PIP) $$peer || true; done
	$(PYTHON) -m venv $(LOADERS)/streaming
	$(LOADERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> `$(LOADERS)/streaming/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'`/loaders.pth
	$(LOADERS)/streaming/bin/python $(LOADERS_PIP) mosaicml-streaming || true
	@touch $@

# The stamp is written last: an installation that broke off is begun again. torch goes first and alone, so that the
# version of constraints.txt is taken wherever pip finds it, before anything else asks for "some torch".
$(READY): pyproject.toml constraints.txt
	@rm -f $@
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 10) <= v < (3, 14) else "Cordée needs Python 3.10 to 3.13, but $(PYTHON) is %d.%d; say: make PYTHON=python3.12" % v[:2])'
	@$(PYTHON) -m venv .venv || { echo 'No virtual environment: on Debian and Ubuntu install python3-venv.' >&2; exit 1; }
	@echo 'Installing Cordée and what it needs into .venv, PyTorch first; this takes some minutes, once.'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@
