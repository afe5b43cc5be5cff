"""Measured steps beside the plan's: the traffic that real steps were counted to have, and errors part by part."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from busbw.backends.pytorch.training import WORKLOADS
from busbw.ops import STRATEGIES
from busbw.ops.base import Strategy
from busbw.ops.training import EXCHANGE, OTHER_MODELS, Workload, _step
from busbw.runs.records import Measurement, StepParts
from busbw.runs.store import read
from busbw_analysis.models.results import Results
from busbw_analysis.predict import Questions, read_results
from busbw_analysis.training.layout import Layout
from busbw_analysis.training.memory import memory
from busbw_analysis.training.prices import Measured
from busbw_analysis.training.step_time import StepTime
from busbw_analysis.training.step_verdicts import StepVerdict, order_kept, step_verdicts
from busbw_analysis.training.steps import Trained, step_of, steps_of
from busbw_analysis.training.traffic import traffic

STORED = Path(__file__).parents[1] / "data" / "runs" / "training"
COUNTED: dict[str, tuple[dict[str, int], dict[tuple[str, int], int]]] = {
    "train_ddp": ({"dp": 4}, {("all_reduce", 524288): 1}),
    "train_zero1": ({"dp": 4}, {("reduce_scatter", 524288): 1, ("all_gather", 524288): 1}),
    "train_fsdp": ({"dp": 4, "micro_batches": 2}, {("all_gather", 131072): 16, ("reduce_scatter", 131072): 8}),
    "train_fsdp_kept": ({"dp": 4}, {("all_gather", 131072): 4, ("reduce_scatter", 131072): 4}),
    "train_tensor": ({"tp": 4, "micro_batches": 2}, {("all_reduce", 4096): 16}),
    "train_1f1b": ({"pp": 4, "micro_batches": 8}, {("send_recv", 1024): 16}),
    "train_gpipe": ({"pp": 4, "micro_batches": 4}, {("send_recv", 2048): 8}),
}
"""Operation → its layout on 4 ranks, and what PyTorch was counted to send in one step of MLP 1024 at scale 1/8 (of a
stage in the middle): op and S → calls."""


@pytest.fixture(scope="module")
def stored() -> Results:
    (results,) = read_results([read(STORED)])
    return results


def verdicts(results: Results) -> tuple[StepVerdict, ...]:
    return step_verdicts(steps_of(results), Measured(Questions([results])))


@pytest.mark.parametrize("op", list(COUNTED))
def test_the_plans_traffic_is_what_real_steps_were_counted_to_send(op: str) -> None:
    degrees, sent = COUNTED[op]
    plain: dict[str, Any] = {"dp": 1, "tp": 1, "pp": 1, "micro_batches": 1}
    workload = Workload(model="MLP 1024", scale=0.125, interleave=1, **{**plain, **degrees})
    found: Counter[tuple[str, int]] = Counter()
    for row in traffic(step_of(op, workload)):
        found[row.op, row.size_bytes] += row.messages
    assert dict(found) == sent


@pytest.mark.parametrize("op", ["train_fsdp", "train_ulysses", "train_gpipe"])
def test_a_new_step_has_the_layout_of_its_own_row(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, "train_new", STRATEGIES[op])
    degrees: dict[str, Any] = {"dp": 1, "tp": 1, "pp": 1, "cp": 1, **dict.fromkeys(STRATEGIES[op].splits, 4)}
    model = OTHER_MODELS.get(op, "MLP 1024")
    workload = Workload(
        model=model, scale=0.0625, interleave=1, micro_batches=8 if op == "train_gpipe" else 1, **degrees
    )
    known, new = step_of(op, workload), step_of("train_new", workload)
    assert (traffic(new), memory(new, "sgd", "eager")) == (traffic(known), memory(known, "sgd", "eager"))
    plain = replace(known, layout=Layout(**degrees, micro_batches=workload.micro_batches))
    assert (traffic(new), memory(new, "sgd", "eager")) != (traffic(plain), memory(plain, "sgd", "eager"))


def test_a_step_without_a_strategy_cannot_be_written() -> None:
    with pytest.raises(TypeError):
        _step("train_new", "weights sharded")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Strategy(splits=("dp",))  # type: ignore[call-arg]
    assert set(STRATEGIES) == set(WORKLOADS) | {EXCHANGE}


def test_a_step_that_no_plan_describes_is_refused_with_its_reason(
    stored: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all("no plan" not in verdict.refused for verdict in verdicts(stored))
    monkeypatch.setitem(STRATEGIES, "train_ddp", replace(STRATEGIES["train_ddp"], unplanned="no plan"))
    refused = {verdict.refused for verdict in verdicts(stored) if verdict.step.op == "train_ddp"}
    assert refused == {"train_ddp: no plan"}


def test_steps_without_computation_alone_are_left_out(stored: Results) -> None:
    assert steps_of(stored)
    (run,) = stored.runs
    rows = (msgspec.structs.replace(row, supplement=None) if isinstance(row, Measurement) else row for row in run.rows)
    assert not steps_of(replace(stored, runs=(replace(run, rows=tuple(rows)),)))


def test_stored_steps_have_the_traffic_that_was_counted(stored: Results) -> None:
    blocks = [row for row in stored.runs[0].measurements if isinstance(row.supplement, StepParts)]
    assert {block.case.op for block in blocks} >= {"train_ddp", "train_1f1b"}
    for block in blocks:
        case, apart = block.case, block.supplement
        assert isinstance(apart, StepParts)
        assert isinstance(case.settings, Workload)
        if case.op == "train_all_reduce":
            continue
        counted = sum(row.size_bytes * row.calls for row in apart.sent if 0 in row.ranks)
        assert sum(row.size_bytes * row.messages for row in traffic(step_of(case.op, case.settings), 0)) == counted


def test_every_measured_step_is_predicted_or_refused(stored: Results) -> None:
    found = verdicts(stored)
    assert {verdict.step.op for verdict in found} == {
        row.case.op for row in stored.cases if isinstance(row.case.settings, Workload)
    }
    for verdict in found:
        assert (verdict.predicted is None) == bool(verdict.refused)


def verdict_of(step: Trained, seconds: float, predicted: float, pp: int = 1) -> StepVerdict:
    workload = Workload(model="MLP 1024", scale=1.0, dp=2 // pp, tp=1, pp=pp, micro_batches=4, interleave=1)
    time = StepTime(0.5 * predicted, 0.2 * predicted, 0.0, {"dp": 0.3 * predicted}, {}, ())
    return StepVerdict(replace(step, workload=workload, step_ns=seconds * 1e9, compute_ns=0.6e9 * seconds), time)


def test_errors_are_shares_of_the_measured_step_and_add_up(stored: Results) -> None:
    verdict = verdict_of(steps_of(stored)[0], 2.0, 2.4, pp=2)
    assert verdict.error == pytest.approx(0.2)
    assert verdict.step.bubble_ns == pytest.approx(1.2e9 / 4)
    assert verdict.errors == {
        "computation": pytest.approx((1.2 - 1.2) / 2),
        "waiting": pytest.approx((0.48 - 0.3) / 2),
        "exposed communication": pytest.approx((0.72 - 0.5) / 2),
    }
    assert sum(verdict.errors.values()) == pytest.approx(verdict.error)


def test_without_a_pipeline_there_is_no_bubble(stored: Results) -> None:
    verdict = verdict_of(steps_of(stored)[0], 2.0, 2.4)
    assert verdict.step.bubble_ns == 0
    assert "waiting" not in verdict.errors


def test_the_order_is_kept_as_far_as_pairs_are(stored: Results) -> None:
    times = [(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 4.0)]
    kept = order_kept([verdict_of(steps_of(stored)[0], *pair) for pair in times])
    assert kept == pytest.approx(4 / 6)
