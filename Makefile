# What people and CI type. Everything runs from .venv, which `make venv` makes out of nothing.

PYTHON ?= python3
RANKS ?=
RUN ?= latest
ROUNDS ?= 5
SELECT ?=
MINUTES ?= 10

# Where each part of the tests leaves its times, as JUnit XML.
times := build/times
# `make test` leaves out the tests marked slow; `make test-all` has them.
fast := and not slow
# The parts whose tests disturb nobody run on all cores, a thread each; more than eight workers cost more than they bring.
beside := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

venv := .venv
installed := $(venv)/.installed
developed := $(venv)/.developed
pytest := $(venv)/bin/python -m pytest --durations 15

.DEFAULT_GOAL := help
.PHONY: help venv demo readme-picture test unit-test integration-test test-all test-exhaustive planted faults fuzz cluster-setup cluster-test golden lint format sbatch drawings bench bench-fit bench-gpu bench-metrology bench-scale clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(installed) ## make .venv and install busbw and what it runs with, editable, with the pinned versions of constraints.txt

# The build backend is installed first and isolation is off: the pins then hold for it too, and nothing is fetched twice.
$(installed): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "busbw needs Python 3.11 or newer; $(PYTHON) is %d.%d. Name another one: make PYTHON=python3.12" % v[:2])'
	@test -x $(venv)/bin/python || $(PYTHON) -m venv $(venv)
	@echo "Installing into $(venv); the first time this downloads torch."
	@$(venv)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt hatchling
	@$(venv)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable '.[mpi]'
	@touch $@

$(developed): $(installed)
	@echo "Installing the tools that tests and lint need into $(venv)."
	@$(venv)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@

# A self-test that finds the machine too noisy is no failure of the demonstration: the report says it.
demo: $(installed) ## test the instrument, measure RANKS local ranks (one a core, at least 2) and write a report: about three minutes
	$(venv)/bin/busbw selftest $(addprefix --ranks ,$(RANKS)) --results-dir results || test $$? -eq 1
	@echo "Measuring the quick suite: one to two minutes."
	$(venv)/bin/busbw run --suite quick --quiet $(addprefix --ranks ,$(RANKS)) --results-dir results
	$(venv)/bin/busbw report latest --results-dir results

readme-picture: $(installed) ## docs/report.png: the first screen of the report of RUN (latest), by Chromium
	page=$$(realpath "$$($(venv)/bin/busbw report $(RUN) --results-dir results 2>/dev/null)") && chromium --headless --no-sandbox \
		--hide-scrollbars --window-size=1280,1450 --screenshot=docs/report.png "file://$$page"

test: unit-test integration-test ## unit tests, and those with real ranks that matter most: six minutes on two cores

unit-test: $(developed) ## tests without real ranks
	$(beside) $(pytest) tests/unit -m "not alone $(fast)" --numprocesses logical --maxprocesses 8 --dist worksteal --junitxml $(times)/unit.xml
	$(pytest) $$(grep -rl --include '*.py' mark.alone tests/unit) -m "alone $(fast)" --junitxml $(times)/unit-alone.xml

integration-test: $(developed) ## tests with real ranks, and those of a GPU where there is one
	$(pytest) tests/integration -m "not alone $(fast)" --numprocesses 3 --dist worksteal --junitxml $(times)/integration.xml
	$(pytest) $$(grep -rl --include '*.py' mark.alone tests/integration) tests/gpu -m "(alone or gpu) $(fast)" --junitxml $(times)/integration-alone.xml

test-all: fast :=
test-all: test cluster-test ## those and the slow ones, then the cluster tests: what CI runs

test-exhaustive: export BUSBW_EXHAUSTIVE = 1
test-exhaustive: test-all ## test-all with every number of ranks, every network and more trials: about an hour and a half

planted: $(developed) ## break the sources in some 60 ways, one at a time, and see which test notices: about ten minutes
	$(venv)/bin/python tests/planted/planted.py

faults: $(developed) ## break ROUNDS=5 × 20 real runs at random moments, and count what is left of them: a minute a round or more
	$(venv)/bin/python tests/faults/campaign.py --rounds $(ROUNDS)

fuzz: $(developed) ## hostile run folders and plans, MINUTES=10 for each campaign
	PYTHONPATH=tests/shared $(venv)/bin/python tests/fuzz/fuzz.py --minutes $(MINUTES)

cluster-setup: ## as root on Debian: install what the cluster tests need (Slurm, ip, cc), and Chromium, if it is missing
	sh tests/cluster/setup.sh

# Each part may be without any of the tests that SELECT names (pytest's exit status 5).
cluster-test: $(developed) ## tests on a virtual cluster whose network and faults are set; root, TUN, make cluster-setup
	$(pytest) tests/cluster -m "not alone" --numprocesses 4 --dist loadfile --junitxml $(times)/cluster.xml $(SELECT) || test $$? -eq 5
	$(pytest) tests/cluster -m alone --junitxml $(times)/cluster-alone.xml $(SELECT) || test $$? -eq 5

lint: $(developed) ## style, types and import layers
	$(venv)/bin/ruff check
	$(venv)/bin/ruff format --check
	$(venv)/bin/mypy
	$(venv)/bin/lint-imports --no-logo

sbatch: $(installed) ## rewrite the batch files in slurm/ from the jobs in tests/shared/batch_files.py
	$(venv)/bin/python tests/shared/batch_files.py slurm

golden: $(installed) ## rewrite the words of every command in tests/golden, which test_golden.py compares
	$(venv)/bin/python tests/shared/golden.py

drawings: $(installed) ## rewrite the drawings of the algorithms in docs/drawings
	$(venv)/bin/python tests/models/drawing_tool.py --into docs/drawings

format: $(developed) ## rewrite the sources in the project's style
	$(venv)/bin/ruff check --fix
	$(venv)/bin/ruff format

bench: $(installed) ## how much time the instrument itself costs, as ratios
	$(venv)/bin/python tests/bench/overhead.py
	$(venv)/bin/python tests/bench/mpi_against_c.py
	$(venv)/bin/python tests/bench/control_time.py
	$(venv)/bin/python tests/bench/stream.py

bench-fit: $(installed) ## how often fits find what is there, and how often their intervals hold it: 10 to 20 minutes
	PYTHONPATH=tests/shared $(venv)/bin/python tests/bench/fits.py

bench-gpu: $(installed) ## on a GPU: how close a copy in its memory comes to the fastest of cudaMemcpyAsync, torch and Triton
	$(venv)/bin/python tests/bench/hbm.py

bench-metrology: $(installed) ## how often the statistics are right when the truth is known, and what this machine tells apart
	PYTHONPATH=tests/shared $(venv)/bin/python tests/bench/metrology.py

bench-scale: $(installed) ## how long the analysis takes for many ranks, pairs, samples and runs, and its memory: minutes
	PYTHONPATH=tests/shared $(venv)/bin/python tests/bench/scale.py

clean: ## remove .venv and caches; runs in results/ stay
	rm -rf $(venv) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find bench analysis tests -name __pycache__ -type d -prune -exec rm -rf {} +
