"""Algorithms by hand on real ranks: verified data, beside the library's own, by Gloo and by MPI."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from exhaustive import AT_NIGHT
from testing.plans import sweep

from busbw.ops.algorithms import ALGORITHMS
from busbw.ops.settings import explicit_algorithm

if TYPE_CHECKING:
    from tests.integration.conftest import Commands

    from busbw.runs.store import StoredRun

pytestmark = pytest.mark.integration

RANKS = 3
IMPOSSIBLE = {
    ("all_gather", "recursive-doubling"),
    ("all_gather", "neighbour-exchange"),
    ("reduce_scatter", "neighbour-exchange"),
    *((op, name) for op, named in ALGORITHMS.items() for name, algorithm in named.items() if algorithm.levels),
}
"""On three ranks of one host; those of several hosts run in ``tests/cluster/test_by_hand.py``."""


def measured(commands: Commands, backend: str) -> StoredRun:
    """Every algorithm of every op at two sizes, one of which no number of ranks divides."""
    plan = commands.plan(sweep(",".join(ALGORITHMS), "12,40004", algorithms=["all"]), blocks=1)
    options = ("--backend", backend, "--ranks", str(RANKS))
    commands.succeed("run", "--plan", plan, *options, "--results-dir", commands.results / backend)
    return commands.read(commands.results / backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", pytest.param("mpi", marks=AT_NIGHT)])
def test_what_can_be_is_verified_and_the_rest_is_skipped_with_its_reason(commands: Commands, backend: str) -> None:
    run = measured(commands, backend)
    assert not run.failed
    done = {(row.case.op, explicit_algorithm(row.case.settings)) for row in run.measurements}
    every = {(op, name) for op, named in ALGORITHMS.items() for name in named}
    not_here = set(IMPOSSIBLE)
    assert done == (every - not_here) | {(op, None) for op in ALGORITHMS}
    assert {(row.case.op, explicit_algorithm(row.case.settings)) for row in run.skipped} == not_here
    assert all(re.search("needs", row.reason) for row in run.skipped)
    for row in run.measurements:
        assert row.check.state == ("not checked" if row.case.op == "barrier" else "verified"), row.case
