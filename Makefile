# Every target works from a fresh clone: it makes what it needs and says what it does.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PYTHONUNBUFFERED = 1

.PHONY: help setup assets test lint demo bench e2e docs crds lock clean

help:  ## show this list
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

setup: $(VENV)/.complete  ## virtual environment with the locked dependencies, in .venv

$(VENV)/.complete: requirements-dev.lock pyproject.toml
	@echo "setup: locked dependencies into $(VENV) (about a minute)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Crossover needs Python 3.11 or newer; run make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

assets:  ## etcd, kube-apiserver, kube-controller-manager, kubectl, helm: built once into a cache outside the tree
	@$(PYTHON) hack/assets.py >/dev/null

test: setup assets  ## all tests, against a real kube-apiserver
	@echo "test: the whole suite on 2 workers (about 7 minutes)"
	@$(BIN)/python -m pytest -n 2 --dist loadgroup

lint: setup  ## ruff, mypy --strict, import-linter, generated files
	@echo "lint: ruff, mypy, import-linter, drift of generated files"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/crossover crds --check

demo: setup assets  ## two emulated fleets on a real control plane, load up and down, the story in kubectl describe
	@$(BIN)/python -m e2e.demo

e2e: setup assets  ## user scenarios on the real control plane
	@$(BIN)/python -m pytest e2e -v

bench: setup assets  ## what is measured, into bench/results
	@$(BIN)/python -m bench

docs: setup  ## regenerate the reference pages from the models
	@$(BIN)/crossover crds --docs docs/reference
	@echo "docs: docs/README.md is the start page"

crds: setup  ## regenerate crds/ and the chart's copies from the models
	@$(BIN)/crossover crds --dir crds --chart charts/crossover/templates

lock: setup  ## recompile both lock files from pyproject.toml
	@$(BIN)/pip-compile --quiet --no-emit-index-url --no-emit-find-links --no-header --generate-hashes --allow-unsafe --extra analysis --group dev -o requirements-dev.lock pyproject.toml
	@$(BIN)/pip-compile --quiet --no-emit-index-url --no-emit-find-links --no-header --generate-hashes --allow-unsafe -o requirements.lock pyproject.toml

clean:  ## the virtual environment and caches inside the tree
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build *.egg-info
