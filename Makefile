# Two commands do everything: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
unexport PYTHONDONTWRITEBYTECODE  # else every process of the tests compiles the package again

.PHONY: fuzz help install demo check-readme flower-demo soak test test-browser test-flower test-ray test-portable docs lint bench bench-peers clean

help:  ## what each target does
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt src/asyncmanifold/server/inner_products.c
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[curved,data,dev,flower,huggingface,privacy,report]'
	@touch $@

install: $(STAMP)  ## create the environment in .venv

demo: install  ## compare the main methods on scikit-learn's digits and print the table
	@rm -rf build/demo
	$(BIN)/asyncmanifold compare digits --portable --seeds 0,1 --out build/demo
	$(BIN)/asyncmanifold report build/demo

check-readme: install  ## the table in README.md against the one that `make demo` printed
	$(BIN)/python results/readme_table.py check

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

test-browser: $(BIN)/playwright  ## the report's page and the live one in a real Chromium
	$(BIN)/pytest -n 0 tests/browser

$(BIN)/ray: $(STAMP)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[flower,ray]' 'flwr[simulation]'
	@touch $@

test-flower: $(BIN)/ray  ## Flower's own processes: simulation, deployment, failures, security
	$(BIN)/pytest --dist loadfile tests/flower

soak: $(BIN)/ray  ## a run on Flower while everything goes wrong, for about MINUTES; then its files are checked
	PYTHONPATH=tests:examples $(BIN)/python tests/flower/soak.py --minutes $(or $(MINUTES),10)

test-ray: $(BIN)/ray  ## one simulation over a Ray cluster: the same bits, whoever is lost on the way
	$(BIN)/pytest -n 0 tests/cluster

$(BIN)/sphinx-build: $(STAMP)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@

docs: $(BIN)/sphinx-build  ## the documentation site, its tutorials executed, into build/docs
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs build/docs
	@echo "documentation: build/docs/index.html"

test-portable: install  ## portable arithmetic on emulated processors of both makers; needs qemu-user
	$(BIN)/pytest tests/portable

fuzz: install  ## mutated replies through the wire form, the codec and the session; REPLIES=10000 of each
	$(BIN)/python tests/fuzz.py --replies $(or $(REPLIES),10000)

bench: install  ## the speed figures, as ratios within one run, into build/bench.json
	$(BIN)/python benchmarks/bench.py

bench-peers: install  ## the same work done by FLGo, APPFL, Flower and a bare loop, into build/peers.json
	$(BIN)/python benchmarks/bench_peers.py

clean:  ## remove the environment and everything built
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
