"""Many ranks: 64 or 128 that are really there, and a thousand that are not, whose numbers nobody may believe."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from exhaustive import EXHAUSTIVE
from testing.narrow import require
from testing.plans import sweep

from busbw.runs.records import Failed, Measurement

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.conftest import Commands

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.timeout(600)]

_MANY = 128 if EXHAUSTIVE else 32
_MOST_PRIVATE_MIB = 64
"""Forked ranks share torch with their parent; a rank that was started from nothing has 143 MiB of its own."""


def _private_mib(pid: int) -> float:
    """What a process has for itself alone, MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:"))) / 1024


@pytest.mark.slow
def test_many_ranks_of_one_machine_come_to_the_end(
    commands: Commands, record_property: Callable[[str, object], None]
) -> None:
    plan = commands.plan(sweep("all_reduce,barrier", "8"), sweep("all_gather", "64KiB", groups="div:8"))
    started = commands.start("run", "--plan", plan, "--ranks", str(_MANY), "--timeout", "240", "--quiet")
    started.rows(atleast=1)
    private = statistics.median(_private_mib(pid) for pid in started.pids())
    finished = started.wait(500)
    assert finished.code == 0, finished.told
    run = commands.read()
    assert require(run.end).status == "complete"
    assert {row.case.op for row in run.measurements} == {"all_reduce", "barrier", "all_gather"}
    groups = next(row.groups for row in run.measurements if row.case.op == "all_gather")
    assert [group.ranks for group in groups] == [tuple(range(first, first + 8)) for first in range(0, _MANY, 8)]
    record_property("private_mib_per_rank", private)
    assert private < _MOST_PRIVATE_MIB


@pytest.mark.slow
def test_a_thousand_ranks_that_are_not_there_are_not_believed(commands: Commands) -> None:
    """Plan, groups, records and report at 1024 ranks, over a process group that moves nothing."""
    wrong = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
    plan = commands.plan(
        sweep(",".join([*wrong, "barrier"]), "64KiB", root=5), sweep("all_reduce", "64KiB", groups="div:8")
    )
    commands.succeed(commands.results, "1024", plan, program=commands.program("pretend_many.py"))
    run = commands.read()
    assert len(run.run.hosts) == 1024
    refused = [row for row in run.rows if isinstance(row, Failed)]
    assert [row.case.op for row in refused if row.case.group == "all"] != []
    assert {row.case.op for row in refused} == set(wrong)
    assert {(row.case.group, row.case.ranks) for row in refused} == {("all", 1024), ("div:8", 1024)}
    assert all(row.error.startswith("wrong data before timing: ") for row in refused)
    assert {row.case.op for row in run.rows if isinstance(row, Measurement)} == {"barrier"}
    commands.succeed("report", "latest", "--output", commands.folder / "report")
    page = (commands.folder / "report" / "report.md").read_text(encoding="utf-8")
    assert "1024" in page
