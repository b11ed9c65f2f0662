# make run    set up, then: probe this machine, advise on an R730 with two P40, train on this machine
# make test   set up, then: lint, types, every test
# make bench  ratios of run times, measured side by side

PYTHON ?= python3
BIN := .venv/bin
# A stamp newer than these files means that there is nothing to install: no network is needed then.
STAMP := .venv/.installed-$(shell cat pyproject.toml requirements.txt hatch_build.py | cksum | cut -d' ' -f1)
CATALOG := $(shell find catalog -name '*.toml')

.PHONY: run test lint types check bench docs clean

run: $(STAMP) gpucheck/_catalog.json
	$(BIN)/gpucheck probe || test $$? -eq 1 -o $$? -eq 3
	$(BIN)/gpucheck advise --model R730 --gpu P40 --count 2
	$(BIN)/gpucheck smoke

test: check
	$(BIN)/python -m pytest -n auto --dist loadgroup

check: lint types

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

bench: $(STAMP) gpucheck/_catalog.json
	$(BIN)/python scripts/bench.py

docs: $(STAMP)
	$(BIN)/python scripts/generate.py

gpucheck/_catalog.json: $(CATALOG) $(STAMP)
	$(BIN)/python scripts/pack_catalog.py

# Exact versions, from requirements.txt; the package itself, editable, with what it needs to build.
$(STAMP): pyproject.toml requirements.txt hatch_build.py
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	rm -f .venv/.installed-*
	touch $@

clean:
	rm -rf .venv build dist gpucheck/_catalog.json tests/fake_nvml/build .pytest_cache .mypy_cache .ruff_cache
