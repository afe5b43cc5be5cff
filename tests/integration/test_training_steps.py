"""Steps of training on two real ranks: right, as large as the formulas, and caught when they are not right."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import training_ranks
from training_ranks import MODELS, PAIRED, RANKS, REPLICATED, formula, workload

from busbw.errors import UsageError
from busbw.ops import TRAINED
from busbw.ops.training import EXCHANGE, parse_compute, parse_slow
from busbw.workloads.shapes import StepShape
from busbw_analysis.training.memory import memory
from busbw_analysis.training.steps import step_of

WORKER: Final = Path(training_ranks.__file__)

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.alone]
"""Alone, and so in one process: what the ranks say is asked for once."""


def heard(ranks: int) -> list[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen([sys.executable, WORKER, str(rank), port, str(ranks)], stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    return [json.loads(process.communicate(timeout=300)[0].splitlines()[-1]) for process in started]


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    """What each of two ranks says of every step, whole and with every fault planted."""
    return heard(RANKS)


@pytest.fixture(scope="module")
def replicated() -> list[dict[str, Any]]:
    """The same of four ranks, which train two replicas."""
    return heard(2 * RANKS)


@pytest.mark.parametrize(("op", "model"), [(op, model) for op in PAIRED for model in MODELS[op]])
def test_loss_gradients_and_weights_are_those_of_one_process(ranks: list[dict[str, Any]], model: str, op: str) -> None:
    assert [rank[op][model]["wrong"] for rank in ranks] == [0, 0]


@pytest.mark.parametrize(("op", "model"), [(op, model) for op in PAIRED for model in MODELS[op]])
def test_the_bytes_that_are_sent_are_those_of_the_formulas(ranks: list[dict[str, Any]], model: str, op: str) -> None:
    for rank, steps in enumerate(ranks):
        hold(sent_of(steps[op][model]), formula(op, workload(op, model), rank), rank)


@pytest.mark.parametrize("op", REPLICATED)
def test_replicas_are_right_and_send_what_the_formulas_say(replicated: list[dict[str, Any]], op: str) -> None:
    model = MODELS[op][-1]
    assert [rank[op][model]["wrong"] for rank in replicated] == [0] * 4
    for rank, steps in enumerate(replicated):
        hold(sent_of(steps[op][model]), formula(op, workload(op, model, 2 * RANKS), rank), rank)


@pytest.mark.parametrize("op", REPLICATED)
def test_a_fault_among_four_ranks_is_caught(replicated: list[dict[str, Any]], op: str) -> None:
    assert sum(rank["faults"][op] for rank in replicated) > 0


def hold(sent: dict[str, int], expected: dict[str, int], rank: int) -> None:
    """Of exchanges that are not even, the formula has those of the ranks with the busiest experts."""
    if rank % RANKS and "all_to_all_v" in expected:
        assert 0 < sent.pop("all_to_all_v") < expected.pop("all_to_all_v")
    assert sent == expected


def sent_of(step: dict[str, Any]) -> dict[str, int]:
    sent: dict[str, int] = {}
    for kind, _, size, calls in step["sent"]:
        sent[kind] = sent.get(kind, 0) + size * calls
    return sent


@pytest.mark.parametrize(("op", "model"), [(op, model) for op in PAIRED for model in MODELS[op]])
def test_memory_is_near_that_of_the_formulas(ranks: list[dict[str, Any]], model: str, op: str) -> None:
    """These models are so small that what a library keeps besides shows: larger ones are within a tenth."""
    most = max(rank[op][model]["peak_bytes"] for rank in ranks)
    assert 0.7 < most / memory(step_of(op, workload(op, model)), "sgd", "eager").total < 1.5


@pytest.mark.parametrize("op", PAIRED)
def test_products_are_those_of_the_formula(ranks: list[dict[str, Any]], op: str) -> None:
    assert sum(rank[op][MODELS[op][-1]]["flop"] for rank in ranks) == ranks[0][op][MODELS[op][-1]]["whole_flop"]
    shape = StepShape(workload(op, MODELS[op][-1]))
    assert (ranks[0][op][MODELS[op][-1]]["whole_flop"] == shape.flop) == (op != "train_ring")


@pytest.mark.parametrize("op", PAIRED)
def test_parts_leave_the_step_as_it_was(ranks: list[dict[str, Any]], op: str) -> None:
    assert [rank[op][MODELS[op][0]]["wrong_after_parts"] for rank in ranks] == [0, 0]


def test_the_profiler_of_torch_sees_the_calls(ranks: list[dict[str, Any]]) -> None:
    assert all(rank["train_ddp"][MODELS["train_ddp"][0]]["profiled"] for rank in ranks)


@pytest.mark.parametrize("op", PAIRED)
def test_a_timeline_has_every_call_and_its_end(ranks: list[dict[str, Any]], op: str) -> None:
    for rank in ranks:
        step = rank[op][MODELS[op][0]]
        calls = [name for name, _, _ in step["spans"] if name not in {"compute", "receive"}]
        assert len(calls) == sum(row[3] for row in step["sent"])
        assert len(calls) < len(step["spans"])
        assert all(begin <= end for _, begin, end in step["spans"])


@pytest.mark.parametrize("op", PAIRED)
def test_a_waiting_step_lasts_as_long_as_was_said(ranks: list[dict[str, Any]], op: str) -> None:
    assert all(rank[op][MODELS[op][0]]["waited"] >= 0.9 for rank in ranks)


@pytest.mark.parametrize(
    ("op", "fault"),
    [
        ("train_all_reduce", "missing all_reduce"),
        ("train_all_reduce", "wrong scale"),
        ("train_all_reduce", "stale parameter"),
        ("train_all_reduce", "wrong slice"),
        ("train_ddp", "missing all_reduce"),
        ("train_zero1", "wrong slice"),
        ("train_zero1", "wrong scale"),
        ("train_zero1", "stale parameter"),
        ("train_fsdp", "missing reduce_scatter"),
        ("train_fsdp", "stale parameter"),
        ("train_fsdp_kept", "wrong slice"),
        ("train_fsdp_prefetch", "missing reduce_scatter"),
        ("train_hsdp", "wrong slice"),
        ("train_tensor", "missing all_reduce"),
        ("train_tensor", "stale parameter"),
        ("train_columns", "missing all_gather"),
        ("train_sequence", "missing all_gather"),
        ("train_sequence", "norms of some tokens"),
        ("train_ring", "missing send"),
        ("train_ring", "wrong slice"),
        ("train_ulysses", "missing all_to_all"),
        ("train_ulysses", "places of the first rank"),
        ("train_experts", "missing all_to_all"),
        ("train_experts", "tokens of other experts"),
        ("train_gpipe", "wrong scale"),
        ("train_1f1b", "wrong slice"),
        ("train_1f1b", "stale parameter"),
        ("train_interleaved", "wrong slice"),
    ],
)
def test_a_fault_is_caught(ranks: list[dict[str, Any]], op: str, fault: str) -> None:
    assert sum(rank["faults"][op][fault] for rank in ranks) > 0


def test_every_step_has_a_fault_that_is_planted(ranks: list[dict[str, Any]], replicated: list[dict[str, Any]]) -> None:
    """But ``train_exchange``, whose faults test_exchanges.py plants."""
    assert set(ranks[0]["faults"]) | set(replicated[0]["faults"]) == TRAINED - {EXCHANGE}


@pytest.mark.parametrize(
    ("given", "wait_ns"), [("real", None), ("wait=20ms", 20_000_000), ("wait=1.5s", 1_500_000_000), ("wait=1us", 1000)]
)
def test_how_products_are_done(given: str, wait_ns: int | None) -> None:
    assert parse_compute(given) == wait_ns


@pytest.mark.parametrize(
    ("given", "slow"), [("1=20ms", (1, 20_000_000)), ("0=1us", (0, 1000)), ("12=2s", (12, 2 * 10**9))]
)
def test_which_rank_is_late(given: str, slow: tuple[int, int]) -> None:
    assert parse_slow(given) == slow


@pytest.mark.parametrize("given", ["", "1", "wait=20ms", "1=0ms", "-1=20ms", "1=20", "1=601s", "1=2ms,2=2ms"])
def test_what_is_no_late_rank_is_refused(given: str) -> None:
    with pytest.raises(UsageError):
        parse_slow(given)


@pytest.mark.parametrize("given", ["", "wait", "wait=0ms", "wait=20", "wait=-1ms", "wait=601s", "wait=nans", "1=20ms"])
def test_what_is_no_wait_is_refused(given: str) -> None:
    with pytest.raises(UsageError):
        parse_compute(given)
