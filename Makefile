# `make demo` and `make test` need nothing but python3: they set up .venv by themselves.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DISTRIBUTIONS := hookspecs core plugins/metrics plugins/checkpoint plugins/evaluation plugins/status plugins/verifiers \
	plugins/environments plugins/wandb plugins/tensorboard plugins/trackio plugins/mlflow \
	plugins/ray \
	bridges/lightning bridges/sb3 bridges/transformers
EXAMPLES := examples/third_party_plugin

.PHONY: help demo test check format dist bench docs site release clean

help: ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

$(VENV)/.installed: requirements-dev.txt constraints.txt $(DISTRIBUTIONS:%=%/pyproject.toml) $(EXAMPLES:%=%/pyproject.toml)
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt -c constraints.txt
	touch $@

# One more worker than cores, since many tests wait: for processes, ports and deadlines.
WORKERS = $(shell $(PYTHON) -c "import os; print(min(os.cpu_count() + 1, 4))")

test: $(VENV)/.installed ## Install everything into .venv and run all tests
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(ARGS)

# Trackers are on by their install, and here all are installed.
demo bench: export HOOKLINE_DISABLE ?= mlflow,tensorboard,trackio,wandb

demo: $(VENV)/.installed ## Install everything into .venv and run the main job, about two minutes
	$(BIN)/hookline train arithmetic --profile-plugins $(ARGS)

check: $(VENV)/.installed ## Lint and type-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed ## Write docs/events.md, docs/plugins.md and docs/configuration.md anew
	$(BIN)/hookline hooks --markdown > docs/events.md
	$(BIN)/hookline plugins --available --markdown > docs/plugins.md
	$(BIN)/python tools/configuration_reference.py > docs/configuration.md

site: $(VENV)/.installed ## Build the documentation site into build/site, with all links checked
	$(BIN)/python -m mkdocs build --strict

bench: $(VENV)/.installed ## Measure the promises of the design, and write benchmarks/RESULTS.md
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r benchmarks/requirements.txt -c constraints.txt
	$(BIN)/python benchmarks/run_all.py

dist: $(VENV)/.installed ## Build every wheel and try them in an empty environment
	$(BIN)/python tests/try_wheels.py $(DISTRIBUTIONS)

release: $(VENV)/.installed ## Give all distributions a version and date the changelog: make release VERSION=0.2.0
	$(BIN)/python tools/release.py "$(VERSION)"

clean: ## Remove what the other targets made
	rm -rf $(VENV) dist build
