"""Ways to exchange gradients on three real ranks: right, as large as the formulas, caught where they are not right."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import exchange_ranks
import pytest
from exchange_ranks import FAULTS, RANKS, SCALE

from busbw.ops.training import EVERY_EXCHANGE, STEPS, problem_width
from busbw.runs.records import StepParts

if TYPE_CHECKING:
    from tests.integration.conftest import Commands

WORKER: Final = Path(exchange_ranks.__file__)
WEIGHTS: Final = problem_width(SCALE) ** 2

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.alone]


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    """What each rank says of every way, whole and with every fault planted."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen([sys.executable, WORKER, str(rank), port], stdout=subprocess.PIPE, text=True)
        for rank in range(RANKS)
    ]
    return [json.loads(process.communicate(timeout=300)[0].splitlines()[-1]) for process in started]


@pytest.mark.parametrize("exchange", EVERY_EXCHANGE)
def test_weights_are_those_of_the_same_rule_in_one_process(ranks: list[dict[str, Any]], exchange: str) -> None:
    """Before and after what takes a training apart."""
    assert [rank[exchange]["wrong"] for rank in ranks] == [[0, 0, 0]] * RANKS


SENT: Final[dict[str, tuple[str, int, int, int]]] = {
    "exact": ("all_reduce", RANKS, 4 * WEIGHTS, STEPS),
    "local_sgd:4": ("all_reduce", RANKS, 4 * WEIGHTS, STEPS // 4),
    "server:2": ("send_recv", 2, 4 * WEIGHTS, STEPS),
    "int8": ("all_gather", RANKS, RANKS * (WEIGHTS + 4), STEPS),
}
"""By the definitions of the methods: op, ranks of its group, S, calls."""


@pytest.mark.parametrize("exchange", EVERY_EXCHANGE)
def test_the_bytes_that_are_sent_are_those_of_the_formulas(ranks: list[dict[str, Any]], exchange: str) -> None:
    op, group, size, calls = SENT[exchange]
    of_a_server = calls * (RANKS - 1) if exchange.startswith("server") else calls
    assert [rank[exchange]["sent"] for rank in ranks] == [
        [[op, group, size, calls if number else of_a_server]] for number in range(RANKS)
    ]


@pytest.mark.parametrize("exchange", EVERY_EXCHANGE)
def test_ranks_tell_the_same_record_which_comes_near_to_the_optimum(ranks: list[dict[str, Any]], exchange: str) -> None:
    gaps = ranks[0][exchange]["gaps"]
    assert all(rank[exchange]["gaps"] == gaps for rank in ranks)
    assert len(gaps) == STEPS + 1
    assert gaps[-1] < 0.01 * gaps[0]


@pytest.mark.parametrize("exchange", EVERY_EXCHANGE)
def test_a_timeline_has_calls_and_computation(ranks: list[dict[str, Any]], exchange: str) -> None:
    op = SENT[exchange][0]
    for rank in ranks:
        names = [name for name, _, _ in rank[exchange]["spans"]]
        assert op in names
        assert "compute" in names


@pytest.mark.parametrize(
    ("exchange", "fault"), [(exchange, fault) for exchange, planted in FAULTS.items() for fault in planted]
)
def test_a_fault_is_caught(ranks: list[dict[str, Any]], exchange: str, fault: str) -> None:
    assert sum(rank["faults"][exchange][fault] for rank in ranks) > 0


def test_a_run_is_verified_and_compared(commands: Commands) -> None:
    keys: dict[str, object] = {
        "exchanges": ["exact", "int8"],
        "scale": 0.02,
        "compute": "wait=1ms",
        "slow_ranks": ["1=1ms"],
    }
    finished = commands.run("run", "--plan", commands.sweep("train_exchange", **keys), "--ranks", "2")
    assert finished.code == 0, finished.told
    run = commands.read()
    steps = [
        row.supplement
        for row in run.measurements
        if isinstance(row.supplement, StepParts) and row.check.state == "verified"
    ]
    assert {(step.steps, len(step.gaps)) for step in steps} == {(STEPS, STEPS + 1)}
    assert {row.case for row in run.measurements if row.check.state == "verified"} == set(run.run.cases)
    reported = commands.succeed("report", "latest", "--json")
    compared = json.loads(reported.out)["exchanges"]
    assert [row["exchange"] for row in compared] == ["exact", "int8"] * 2
