.DEFAULT_GOAL := help
VENV := .venv/bin

.PHONY: help setup check test format generated bench soak start

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile

setup: ## install what is missing
	@node local/setup.mjs --development

check: setup ## lint, formatting and types
	$(VENV)/ruff check
	$(VENV)/ruff format --check
	$(VENV)/mypy

test: ## the tests; ARGS are for pytest
	@node local/test.mjs $(ARGS)

format: setup ## rewrite the sources in the one style
	$(VENV)/ruff check --fix
	$(VENV)/ruff format

generated: setup ## rewrite the files that are made from the sources
	PYTHONPATH=src $(VENV)/python -m tests.generated

bench: ## the benchmarks, with their peers
	@node local/bench.mjs $(ARGS)

soak: ## mixed clients, crashes and faults against the Worker; ARGS="--minutes N"
	@node local/soak.mjs $(ARGS)

start: ## run the Worker here
	@node local/start.mjs
