# Two commands do everything: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help install demo flower-demo test test-browser test-flower test-ray lint bench bench-peers clean

help:  ## what each target does
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[curved,data,dev,flower,report]'
	@touch $@

install: $(STAMP)  ## create the environment in .venv

demo: install  ## compare every method on scikit-learn's digits and print the table
	@rm -rf build/demo
	$(BIN)/asyncmanifold compare digits --out build/demo
	$(BIN)/asyncmanifold report build/demo

flower-demo: install  ## asynchronous training on a real SuperLink with four SuperNodes, on this machine
	$(BIN)/python examples/flower_demo.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy benchmarks/*.py

test: lint  ## lint, format check, strict types and all tests
	$(BIN)/pytest

$(BIN)/playwright: $(STAMP)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[browser]'
	@touch $@

test-browser: $(BIN)/playwright  ## the report's page in a real Chromium
	$(BIN)/pytest -n 0 tests/browser

$(BIN)/ray: $(STAMP)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[flower,ray]' 'flwr[simulation]'
	@touch $@

test-flower: $(BIN)/ray  ## Flower's own processes: simulation, deployment, failures, security
	$(BIN)/pytest --dist loadfile tests/flower

test-ray: $(BIN)/ray  ## one simulation over a Ray cluster: the same bits, whoever is lost on the way
	$(BIN)/pytest -n 0 tests/cluster

bench: install  ## the speed figures, as ratios within one run, into build/bench.json
	$(BIN)/python benchmarks/bench.py

bench-peers: install  ## the same work done by FLGo, APPFL, Flower and a bare loop, into build/peers.json
	$(BIN)/python benchmarks/bench_peers.py

clean:  ## remove the environment and everything built
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
