PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench campaign campaign-slice campaign-quick docs gallery dist clean

help:  ## list what make can do
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' Makefile

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

setup: $(VENV)/.installed  ## make .venv with everything that development and CI need

demo: setup  ## race to 99% on MNIST: a plain PyTorch loop, one worker, a worker per core
	$(BIN)/tenfold demo

test: export PYTHONDONTWRITEBYTECODE :=  # the tests start many processes, and each would compile the package again
test: setup  ## run the tests
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

check: setup  ## lint, types, import contract
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy tests/typing/keyword_arguments.py
	$(BIN)/lint-imports

bench: setup  ## run every benchmark; each prints its ratios
	for benchmark in benchmarks/*.py; do $(BIN)/python $$benchmark || exit 1; done

campaign: setup  ## attack the program with seeded faults for 30 minutes
	$(BIN)/python tests/campaign

campaign-slice: setup  ## the same for 5 minutes, as CI does
	$(BIN)/python tests/campaign --minutes 5

campaign-quick: setup  ## a few of its cheap attempts, in about half a minute
	$(BIN)/python tests/campaign --kinds file,command,data,model,foreign,flip --turns 1 --most 6

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@

build/gallery/gallery.json:
	$(BIN)/python docs/make_gallery.py build/gallery

gallery: setup  ## make the pages and pictures of the gallery again
	$(BIN)/python docs/make_gallery.py build/gallery

docs: $(VENV)/.docs build/gallery/gallery.json  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

dist: setup  ## build the wheel and the source distribution into dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation

clean:  ## remove .venv and caches
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
