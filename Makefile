# Every target makes its own virtual environment and installs what it needs. See `make help`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One more than two cores can run: tests wait about as much as they work. Each process has servers of
# its own, and whoever is done first takes over from the others.
PARALLEL := --numprocesses=3 --dist=worksteal

.DEFAULT_GOAL := help
.PHONY: help demo check test bench bench-spark simulate chaos mutants models fuzz docs format clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

demo: $(READY) ## See it work on SQLite, by real workers, with a lake and a report by Spark, in a minute
	@$(BIN)/rowmq demo --spark

check: $(READY) ## Format, lint, types, layers and unit tests; no server, under a minute
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/pytest tests/unit -q --numprocesses=2

test: $(READY) ## All tests, on SQLite, PostgreSQL and MariaDB servers of their own
	@$(BIN)/pytest $(PARALLEL)

bench: $(READY) ## Measure RowMQ, its peers and the raw limit on servers of its own, in an hour or more
	@$(BIN)/python -m benchmarks $(BENCH)

bench-spark: $(READY) ## Measure Spark's reads and writes against its own JDBC, on PostgreSQL
	@$(BIN)/python -m benchmarks.spark

mutants: $(READY) ## Turn off one guard of ours at a time, and see that the tests notice
	@$(BIN)/python -m tests.mutants $(JSON:%=--json %)

models: $(READY) ## Compare topics, queues and schedules with their models, in EXAMPLES others each time
	@$(BIN)/python -m tests.models $(if $(EXAMPLES),--examples $(EXAMPLES)) $(JSON:%=--json %)

simulate: $(READY) ## Play seeds on real databases, statement by statement: SEEDS=, DATABASE=, ONLY=
	@$(BIN)/python -m tests.simulation $(addprefix --database ,$(DATABASE)) \
		$(addprefix --seeds ,$(SEEDS)) $(addprefix --only ,$(ONLY)) $(JSON:%=--json %)

chaos: $(READY) ## Kill, stop and starve real processes and servers, and judge; FAULT=, DATABASE=, SECONDS=
	@$(BIN)/python -m tests.chaos $(FAULT:%=--fault %) $(DATABASE:%=--database %) $(SECONDS:%=--seconds %) \
		$(JSON:%=--json %)

fuzz: $(READY) ## Give every call and command EXAMPLES=1000 random inputs, on all databases
	@ROWMQ_FUZZ_EXAMPLES=$(or $(EXAMPLES),1000) $(BIN)/pytest tests/fuzz $(PARALLEL) --timeout=0

# The warning that is turned off is about a future MkDocs, not about these pages; all others are errors.
docs: $(READY) ## Build the documentation into site/, with every warning an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

format: $(READY) ## Format the code and mend what the linter can
	@$(BIN)/python docs/extensions/examples.py
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format --quiet .

clean: ## Remove the virtual environment and all caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist site

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "RowMQ needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "Python has no venv; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@echo "Installing into $(VENV) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[postgres,mysql,spark,dev]'
	@touch $(READY)
