# Needs Python 3.11 to 3.13 with venv, and make; everything else is installed into .venv.
#   make demo      multiply two matrices and check the result
#   make test      run the quick tests
#   make docs      build the documentation site
# A second run is quick: the environment is rebuilt only when pyproject.toml changes.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test slow faults fuzz browser lint format bench docs clean

VENV   := .venv
BIN    := $(VENV)/bin
CORES  := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
JOBS   ?= $(shell [ $(CORES) -gt 8 ] && echo 8 || echo $(CORES))
PYTEST := $(BIN)/python -m pytest
XDIST  := $(shell [ $(JOBS) -gt 1 ] && echo "-n $(JOBS) --dist worksteal")
SAMPLE ?= 80
SECONDS ?= 60

# Tests start hundreds of Python processes; without bytecode each would compile the whole library.
unexport PYTHONDONTWRITEBYTECODE

# pip's advice about itself is noise here; its errors still show.
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check

# The first Python that is new enough and can make a virtual environment.
FIND_PYTHON := for p in python3.13 python3.12 python3.11 python3 python; do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	2>/dev/null && { echo "$$p"; break; }; done

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.run  ## Generate a kernel, run it on the best target here, check the result
	@$(BIN)/coordgraph run --m 512 --n 768 --k 1024 --schedule two-tile-stream-k --check

test: $(VENV)/.test  ## Run the quick tests (PYTEST_ARGS="..." is passed on)
	@$(PYTEST) $(XDIST) $(PYTEST_ARGS)

slow: $(VENV)/.test  ## Run a sample of the slow tests (SAMPLE=80 of them, other ones every day)
	@$(PYTEST) $(XDIST) -m slow --sample $(SAMPLE) $(PYTEST_ARGS)

fuzz: $(VENV)/.test  ## Try mutants of graphs (SECONDS=60; SEED=... repeats them, else today's date)
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

faults: $(VENV)/.test  ## Put every fault of the catalogue into a correct graph, and list the checks that refute it
	@$(BIN)/python -m tests.faults

browser: $(VENV)/.browser  ## Run the tests of HTML pages in Chromium, which must be installed
	@COORDGRAPH_REQUIRE_BROWSER=1 $(PYTEST) -m browser $(PYTEST_ARGS)

lint: $(VENV)/.dev  ## Check style (ruff) and types (pyright)
	@$(BIN)/ruff check .
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@$(BIN)/pyright --pythonpath $(BIN)/python --project pyright-basic.json

format: $(VENV)/.dev  ## Format the sources
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

bench: $(VENV)/.bench  ## Run the speed measures (BENCH_ARGS="..." is passed on)
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

docs: $(VENV)/.docs  ## Build the documentation site into site/
	@log=$$(NO_COLOR=1 $(BIN)/zensical build --clean --strict 2>&1); status=$$?; echo "$$log"; \
	case "$$log" in *griffe:*) status=1;; esac; exit $$status # griffe: a docstring is malformed
	@$(BIN)/python -c 'import importlib.resources as r, shutil; \
	shutil.copy(str(r.files("mermaidx") / "assets" / "mermaid.js"), "site/assets/mermaid.js")'

clean:  ## Remove the environment, caches and build outputs
	@rm -rf $(VENV) build dist site .cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@python=$$(PYTHON="$(PYTHON)"; if [ -n "$$PYTHON" ]; then echo "$$PYTHON"; else $(FIND_PYTHON); fi); \
	[ -n "$$python" ] || { echo "Python 3.11, 3.12 or 3.13 with venv is needed (on Debian: apt-get install python3-venv)" >&2; exit 1; }; \
	echo "creating $(VENV) with $$("$$python" --version)"; "$$python" -m venv --clear $(VENV)

$(VENV)/.run: pyproject.toml | $(BIN)/python
	@echo "installing coordgraph"
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.test $(VENV)/.browser $(VENV)/.dev $(VENV)/.bench $(VENV)/.docs: $(VENV)/.%: pyproject.toml | $(BIN)/python
	@echo "installing coordgraph with what '$*' needs"
	@$(INSTALL) -e '.[$*]'
	@touch $@ $(VENV)/.run
