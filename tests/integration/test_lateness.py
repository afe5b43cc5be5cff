"""A rank that is really late, and ranks that are not: the whole way from Gloo to the words of the report."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest
from testing.plans import STEADY, plan_text, sweep

if TYPE_CHECKING:
    from tests.integration.conftest import Commands

pytestmark = [pytest.mark.integration, pytest.mark.alone]

_TIMING = {**STEADY, "min_samples": 60, "least_samples": 60, "max_seconds": 0.05, "blocks": 3}


@pytest.mark.parametrize("fault", ["late", pytest.param(None, marks=pytest.mark.slow)])
def test_a_late_rank_is_named_and_a_healthy_one_is_not(commands: Commands, fault: str | None) -> None:
    plan = commands.folder / "late.toml"
    plan.write_text(plan_text(sweep("all_reduce,all_gather,barrier", "1KiB"), timing=_TIMING), encoding="utf-8")
    arguments = ("run", "--plan", plan, "--ranks", "2")
    ran = (
        commands.run(*arguments)
        if fault is None
        else commands.run(fault, *arguments, program=commands.program("with_fault.py"))
    )
    assert ran.code == 0, ran.told
    commands.succeed("report", "latest", "--json")
    document = json.loads((commands.read().path / "report.json").read_text(encoding="utf-8"))
    (group,) = document["lateness"]
    assert group["seen"] == "every entry"
    assert [member["rank"] for member in group["members"] if member["flagged"]] == ([] if fault is None else [1])
    findings = [finding["text"] for finding in document["warnings"] if finding["code"] == "straggler"]
    assert len(findings) == (fault is not None)
    for text in findings:
        assert text.startswith(f"Rank 1 (host {socket.gethostname()}) is a straggler: late in ")
