# plait's commands. `make demo` and `make test` need Python 3.11+ and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.installed-run
STAMP := $(VENV)/.installed-dev
SITE := $(VENV)/.installed-docs
PROMPT ?= Why is the sky blue?
INSTALL := $(BIN)/python scripts/install.py
PROTOS := $(wildcard protos/plait/wire/v1/*.proto)

# What is compiled once serves every process that the tests start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check static proto proto-check lint type fast bench soak docs clean

# An environment with a pip of today.
$(VENV)/.made:
	@echo "Making an environment in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "plait needs Python 3.11 or newer: make PYTHON=python3.11"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@touch $@

# The parts that run: SDK, coordinator, node.
$(RUN): pyproject.toml | $(VENV)/.made
	@echo "Installing plait into $(VENV): a few minutes the first time, torch being most of it"
	@$(INSTALL) -e '.[all]'
	@touch $@

# And what tests and checks need beside them.
$(STAMP): $(RUN)
	@echo "Installing what tests and checks need beside plait"
	@$(INSTALL) -e '.[all,dev]'
	@touch $@

# A whole network on this machine: coordinator, three nodes, one streamed answer.
demo: $(RUN)
	@$(BIN)/plait demo --prompt "$(PROMPT)"

# Tests run in so many processes; a file's tests stay together (WORKERS=0: all in one), and the short
# files come last, so that all processes end together.
WORKERS ?= 2
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Everything, real weights and real processes included.
test: $(STAMP)
	$(PYTEST)

# What has to hold before every commit.
check: $(STAMP)
	@$(MAKE) --no-print-directory -j2 --output-sync=target fast static

static: $(STAMP) lint type proto-check

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

type: $(STAMP)
	$(BIN)/mypy

fast: $(STAMP)
	$(PYTEST) -q -m "not slow and not gpu"

define PROTOC
$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=$(1) --grpc_python_out=$(1) \
	--plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy \
	--plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
	--mypy_out=quiet:$(1) --mypy_grpc_out=quiet:$(1) $(PROTOS)
endef

# Writes the stubs; they are committed.
proto: $(STAMP)
	$(call PROTOC,.)

# Fails when the committed stubs are not what the protos say.
proto-check: $(STAMP)
	@rm -rf build/protos && mkdir -p build/protos
	@$(call PROTOC,build/protos)
	@for f in build/protos/plait/wire/v1/*; do \
		cmp -s $$f plait/wire/v1/$$(basename $$f) || { echo "stale stub: $$(basename $$f); run make proto"; exit 1; }; done
	@echo "stubs are fresh"

# Random faults against real processes, MINUTES long, with requests all the while.
MINUTES ?= 30
soak: $(STAMP)
	$(BIN)/python benchmarks/soak.py --minutes $(MINUTES) --strict

# What builds the pages as a site.
$(SITE): pyproject.toml | $(VENV)/.made
	@echo "Installing what builds the site"
	@$(INSTALL) -e '.[docs]'
	@touch $@

# The pages as a site, under build/site/; a link that leads nowhere fails.
docs: $(SITE)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

# Every benchmark, with its figures under build/bench/.
bench: $(STAMP)
	@mkdir -p build/bench
	@for f in $(filter-out benchmarks/soak.py,$(wildcard benchmarks/[!_]*.py)); do echo "== $$f"; $(BIN)/python $$f --json build/bench/$$(basename $$f .py).json || exit 1; done

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
