# Commands for developers and CI. Everything runs in .venv, which `make venv` creates.

PYTHON ?= python3
RANKS ?=
RUN ?= latest
SELECT ?=
MINUTES ?= 10

# Folder for the times of the tests, as JUnit XML.
times := build/times
# `make test` skips tests marked slow; `make test-all` includes them.
fast := and not slow
# Tests that do not disturb each other run on all cores with one thread each; more than eight workers do not pay off.
beside := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# Each of a thousand processes would compile the sources anew.
export PYTHONDONTWRITEBYTECODE :=

venv := .venv
installed := $(venv)/.installed
developed := $(venv)/.developed
# Python compiles what is imported when it is first imported: a minute less than compiling all that is installed.
# The first import is here, for shells with PYTHONDONTWRITEBYTECODE.
install := $(venv)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
pytest := $(venv)/bin/python -m pytest --durations 15

.DEFAULT_GOAL := help
.PHONY: help venv demo readme-picture test unit-test integration-test test-all test-exhaustive planted faults fuzz cluster-setup cluster-test golden documents gallery man site lint format drawings bench bench-fit bench-fleet bench-gates bench-gpu gpu-acceptance bench-metrology bench-scale bench-training dist clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(installed) ## create .venv and install busbw (editable) with the pinned dependencies of constraints.txt

# What builds is installed first and isolation is off, so that its version is pinned and nothing is fetched twice.
$(installed): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "busbw needs Python 3.11 or newer; $(PYTHON) is %d.%d. Use another one: make PYTHON=python3.12" % v[:2])'
	@test -x $(venv)/bin/python || $(PYTHON) -m venv $(venv)
	@echo "Installing into $(venv); the first time this downloads torch."
	@$(install) hatchling hatch-vcs
	@$(install) --no-build-isolation --editable '.[run,report,frames,mpi]'
	@$(venv)/bin/python -c 'import duckdb, matplotlib.pyplot, pandas, torch.distributed.fsdp'
	@touch $@

$(developed): $(installed)
	@echo "Installing the tools that tests and lint need into $(venv)."
	@$(install) --no-build-isolation --editable '.[dev]'
	@touch $@

# A self-test that finds the machine too noisy does not fail the demonstration; the report shows it.
demo: $(installed) ## self-test, quick suite on RANKS local ranks (default: one per core), report: three minutes
	$(venv)/bin/busbw selftest $(addprefix --ranks ,$(RANKS)) --results-dir results || test $$? -eq 1
	@echo "Measuring the quick suite: one to two minutes."
	$(venv)/bin/busbw run --suite quick --quiet $(addprefix --ranks ,$(RANKS)) $(addprefix --launches ,$(LAUNCHES)) --results-dir results
	$(venv)/bin/busbw report latest --results-dir results

readme-picture: $(installed) ## docs/report.png: screenshot of the report of RUN (default: latest), with Chromium
	page=$$(realpath "$$($(venv)/bin/busbw report $(RUN) --results-dir results 2>/dev/null)") && chromium --headless --no-sandbox \
		--hide-scrollbars --window-size=1280,1450 --screenshot=docs/report.png "file://$$page"

# Where processes write which lines of the GPU side they have executed; without ``test``, nothing is recorded.
test: export BUSBW_COVERAGE := $(CURDIR)/build/coverage
test: unit-test integration-test ## unit tests and the main tests with real ranks: six minutes on two cores
	$(pytest) tests/gpu/share.py

unit-test: $(developed) ## tests without real ranks
	rm -rf build/coverage
	$(beside) $(pytest) tests/unit -m "not alone $(fast)" --numprocesses logical --maxprocesses 8 --dist worksteal --junitxml $(times)/unit.xml
	$(pytest) $$(grep -rl --include '*.py' mark.alone tests/unit) -m "alone $(fast)" --junitxml $(times)/unit-alone.xml

integration-test: $(developed) ## tests with real ranks, and of GPUs: real ones, or simulated ones where there are none
	$(pytest) tests/integration tests/gpu -m "not alone $(fast)" --numprocesses 4 --dist worksteal --junitxml $(times)/integration.xml
	$(pytest) $$(grep -rl --include '*.py' mark.alone tests/integration) tests/gpu -m "alone $(fast)" --junitxml $(times)/integration-alone.xml

test-all: fast :=
test-all: test cluster-test ## all tests, including slow ones and cluster tests, as in CI

test-exhaustive: export BUSBW_EXHAUSTIVE = 1
test-exhaustive: test-all ## test-all with every number of ranks, every network and more trials: about an hour and a half

planted: $(developed) ## mutation test: some 80 faults in the sources that tests must detect: ten minutes
	$(venv)/bin/python tests/planted/planted.py

faults: $(developed) ## break real runs at random moments, 5 × 14, and check the results: minutes
	BUSBW_EXHAUSTIVE=1 $(pytest) tests/integration/test_resume.py -k broken_at_any_moment

fuzz: $(developed) ## fuzz run folders and plans, MINUTES=10 each
	PYTHONPATH=tests/shared $(venv)/bin/python tests/fuzz/fuzz.py --minutes $(MINUTES)

cluster-setup: ## as root on Debian: install the packages of the cluster tests (Slurm, ip, cc) and Chromium
	sh tests/cluster/setup.sh

# SELECT may match no test of a part (pytest's exit status 5).
cluster-test: $(developed) ## tests on a virtual cluster with a controlled network; needs root, TUN, make cluster-setup
	$(pytest) tests/cluster -m "not alone" --numprocesses 4 --dist loadfile --junitxml $(times)/cluster.xml $(SELECT) || test $$? -eq 5
	$(pytest) tests/cluster -m alone --junitxml $(times)/cluster-alone.xml $(SELECT) || test $$? -eq 5

lint: $(developed) ## check style, types, import layers and the form of changes/
	$(venv)/bin/ruff check
	$(venv)/bin/ruff format --check
	$(venv)/bin/mypy
	$(venv)/bin/lint-imports --no-logo
	$(venv)/bin/towncrier build --draft --version next >/dev/null

golden: $(installed) ## regenerate tests/golden, the expected output of every command, and tests/data/logs/expected.json
	$(venv)/bin/python tests/shared/golden.py

documents: $(installed) ## regenerate the tables in docs/ that rows and records define
	PYTHONPATH=tests/models $(venv)/bin/python tests/shared/documents.py

gallery: documents ## docs/gallery.md: judge twelve public measurements anew (a part of the documents)

drawings: $(installed) ## regenerate the drawings of algorithms in docs/drawings
	$(venv)/bin/python tests/models/drawing_tool.py docs/drawings

# The links of the documents lead to files beside docs/, too. `no-run` is a word of the tests; MkDocs knows no such fence.
site := build/site-source
site: $(installed) ## build/site: the documents as a site; without network
	$(install) --no-build-isolation --editable '.[docs]'
	rm -rf $(site) && mkdir -p $(site)
	cp -r --parents *.md LICENSE docs slurm tests/cluster/README.md results/README.md $(site)
	find $(site) -name '*.md' -exec sed -i 's/^```sh no-run$$/```sh/' {} +
	$(venv)/bin/python -m mkdocs build --quiet --strict

man: $(installed) ## build/man: a man page of every command
	$(venv)/bin/python tests/shared/man_pages.py build/man

format: $(developed) ## format the sources
	$(venv)/bin/ruff check --fix
	$(venv)/bin/ruff format

bench: $(installed) ## measure the overhead of busbw, as ratios
	$(venv)/bin/python tests/bench/overhead.py
	$(venv)/bin/python tests/bench/mpi_against_c.py
	$(venv)/bin/python tests/bench/stream.py
	PYTHONPATH=tests/shared $(venv)/bin/python tests/bench/engine.py

bench-fit: $(installed) ## accuracy of fits and coverage of their intervals: 10 to 20 minutes
	PYTHONPATH=tests/shared $(venv)/bin/python tests/bench/fits.py

bench-fleet: $(installed) ## recall and precision of busbw fleet: simulated, beside the field's ways: 15 minutes; on the test bed: 2 hours, resumable
	PYTHONPATH=tests/shared $(venv)/bin/python tests/bench/fleet.py
	PYTHONPATH=tests/shared:tests/cluster $(venv)/bin/python tests/bench/fleet_bed.py

bench-gates: $(installed) ## error rates of gates, on resampled launches and on REAL=10 real runs: 15 minutes
	PYTHONPATH=tests/shared $(venv)/bin/python tests/bench/gates.py --real $(or $(REAL),10)

bench-gpu: $(installed) ## on a GPU: memory copy rate relative to the best of cudaMemcpyAsync and torch
	$(venv)/bin/python tests/bench/hbm.py

gpu-acceptance: $(developed) ## on a machine with GPUs: all that must be seen there, 20 minutes; leaves an archive to send back
	$(venv)/bin/python tests/gpu/acceptance.py

bench-metrology: $(installed) ## error rates of the statistics on simulated data
	PYTHONPATH=tests/shared $(venv)/bin/python tests/bench/metrology.py

bench-scale: $(installed) ## time and memory of the analysis for many ranks, pairs, samples and runs: minutes
	PYTHONPATH=tests/shared $(venv)/bin/python tests/bench/scale.py

bench-training: $(installed) ## predicted training steps against published ones, or with OWN=FOLDER those of a run of the suite training
	PYTHONPATH=tests/shared $(venv)/bin/python tests/bench/training.py $(if $(OWN),--own $(OWN))

dist: $(developed) ## dist/: wheel and sdist, the same bytes for the same commit
	rm -rf dist
	$(venv)/bin/python -m hatchling build -d dist
	$(venv)/bin/twine check --strict dist/*

clean: ## remove .venv and caches, but not results/
	rm -rf $(venv) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find bench analysis tests -name __pycache__ -type d -prune -exec rm -rf {} +
