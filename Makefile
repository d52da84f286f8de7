# Everything here builds .venv by itself first and leaves it alone while it is up to date.
# Needed: make, git, and Python 3.11 or later (PYTHON=/path/to/python names a certain one). What runs a real vLLM engine
# builds .venv-engine beside it, with Python 3.11.
.DEFAULT_GOAL := help
.PHONY: help env dev engine demo flower test test-engine check format bench reference lock clean
MAKEFLAGS += --no-print-directory
PY := .venv/bin/python
# Several processes share the tests (ARGS='-n 0': one, as a debugger needs it). Those of an engine compute, the others
# wait a lot.
PYTEST := -m pytest --dist worksteal
BENCHMARKS := overhead streaming inference routing aggregation mixtures gateway
BENCH_PY := $(if $(filter inference,$(NAME)),.venv-engine/bin/python,$(PY))

# Values that come from people are taken as they are: never expanded by make, never part of a shell command.
override REPO := $(value REPO)
override SINCE := $(value SINCE)
override TICKETS := $(value TICKETS)
override MODEL := $(value MODEL)
export DEMO_REPO := $(value REPO)
export DEMO_SINCE := $(value SINCE)
export DEMO_TICKETS := $(value TICKETS)
export DEMO_MODEL := $(value MODEL)

help: ## this text
	@echo "make TARGET, where TARGET is one of:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' Makefile
	@echo "Start with: make demo"

env:
	@PYTHON="$(PYTHON)" scripts/bootstrap

dev: env ## build .venv, the development environment
	@echo "ready: .venv/bin/mosaic --help, or activate it: . .venv/bin/activate"

engine: ## build .venv-engine, an environment with vLLM for the CPU (2.5 GB)
	@PYTHON="$(PYTHON)" scripts/bootstrap engine

demo: env $(if $(MODEL),engine) ## the weekly report of a git repository (REPO=path SINCE='2 weeks ago' TICKETS=file MODEL=smollm2; default: this clone, no model)
	@$(PY) scripts/demo.py

flower: env ## a run watched in Flower, on http://127.0.0.1:5555 (FLOWER_PORT=n: on another port), until Ctrl-C
	@$(PY) scripts/flower.py

test: env ## all tests but those of a real engine (ARGS='-k name -x' goes to pytest)
	@$(PY) $(PYTEST) -n auto $(ARGS)

test-engine: engine ## tests/engine: the tests with a real vLLM engine
	@.venv-engine/bin/python $(PYTEST) -n 2 -o testpaths=tests/engine $(ARGS)

check: env ## lint, format, types, import rules: what must hold before a commit
	@scripts/check

format: env ## format the code and mend what can be mended by itself
	@.venv/bin/ruff check --fix --quiet . || true
	@.venv/bin/ruff format .

bench: env ## one benchmark (NAME=overhead QUICK=1); figures go to benchmarks/out/NAME.json
	@case " $(BENCHMARKS) " in *" $(NAME) "*) ;; *) echo "make bench NAME=...: one of: $(BENCHMARKS)" >&2; exit 2;; esac
	@[ -x "$(BENCH_PY)" ] || { echo "the benchmark $(NAME) needs vLLM, which is not here; build it with: make engine" >&2; exit 2; }
	@$(BENCH_PY) "benchmarks/$(NAME).py" $(if $(QUICK),--quick)

reference: env ## write docs/reference anew from the code
	@$(PY) scripts/reference.py

lock: env ## write requirements/lock.txt anew (UPGRADE=1: with the newest versions)
	@$(PY) scripts/lock.py $(if $(UPGRADE),--upgrade)

clean: ## remove the environments, caches and outputs (not .mosaic, which holds your runs)
	rm -rf .venv .venv-engine build dist out benchmarks/out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name .git -prune -o -name .mosaic -prune -o -type d -name __pycache__ -exec rm -rf {} +
