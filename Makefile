# `make test` needs nothing but python3: it sets up .venv by itself.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DISTRIBUTIONS := hookspecs core plugins/metrics plugins/checkpoint plugins/evaluation plugins/status plugins/verifiers
EXAMPLES := examples/third_party_plugin

.PHONY: help test check format dist bench docs clean

help: ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

$(VENV)/.installed: requirements-dev.txt constraints.txt $(DISTRIBUTIONS:%=%/pyproject.toml) $(EXAMPLES:%=%/pyproject.toml)
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt -c constraints.txt
	touch $@

test: $(VENV)/.installed ## Install everything into .venv and run all tests
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 $(ARGS)

check: $(VENV)/.installed ## Lint and type-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed ## Write docs/events.md anew from the hookspecs
	$(BIN)/hookline hooks --markdown > docs/events.md

bench: $(VENV)/.installed ## Measure the promises of the design
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r benchmarks/requirements.txt -c constraints.txt
	for script in dispatch rollout sampling rewards ppo checkpoint; do $(BIN)/python benchmarks/$$script.py; done

dist: $(VENV)/.installed ## Build every wheel and try them in an empty environment
	$(BIN)/python tests/try_wheels.py $(DISTRIBUTIONS)

clean: ## Remove what the other targets made
	rm -rf $(VENV) dist
