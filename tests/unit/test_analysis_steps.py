"""What a step of training is taken apart into."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from testing.narrow import require
from testing.pipelines import play

from busbw.ops.training import Workload
from busbw.runs.records import RankMemory, Sent
from busbw.workloads.model_rows import models
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import load
from busbw_analysis.data.summary import DataCheck
from busbw_analysis.training.slice import Training
from busbw_analysis.training.step_verdicts import StepVerdict, steps
from busbw_analysis.training.steps import Trained, ranked, slowed, steps_like

GOLDEN = Path(__file__).parents[1] / "data" / "runs" / "training"


def workload(pp: int = 1, micro_batches: int = 1, interleave: int = 1, wait_ns: int | None = None) -> Workload:
    return Workload(
        model="MLP 1024",
        scale=1.0,
        dp=1,
        tp=1,
        pp=pp,
        micro_batches=micro_batches,
        interleave=interleave,
        wait_ns=wait_ns,
    )


ONE = Trained(
    op="train_ddp",
    case=0,
    workload=workload(),
    ranks=4,
    time_ns=100.0,
    low_ns=None,
    high_ns=None,
    step_ns=100.0,
    compute_ns=80.0,
    communication_ns=50.0,
    sent=(),
    parameters=10,
    flop=6000,
    tokens=20,
    dropped=0,
    product_rate=1.2e11,
    check=DataCheck("verified"),
    tries_ns=(100.0,),
)


def test_what_is_not_computation_is_exposed() -> None:
    assert (ONE.exposed_ns, ONE.exposed_share, ONE.hidden) == (20.0, 0.2, 0.6)
    assert (ONE.tokens_per_second, ONE.flop_per_second, ONE.product_share) == (2e8, 6e10, 0.5)


@given(st.floats(1, 1e12), st.floats(1, 1e12), st.floats(0, 1e12))
def test_shares_are_shares(time_ns: float, compute_ns: float, communication_ns: float) -> None:
    step = replace(ONE, step_ns=time_ns, compute_ns=compute_ns, communication_ns=communication_ns)
    assert 0 <= step.exposed_share <= 1
    assert step.hidden is None or 0 <= step.hidden <= 1


@pytest.mark.parametrize(("pp", "m", "v", "share"), [(4, 8, 1, 3 / 11), (4, 8, 2, 3 / 19), (2, 1, 1, 0.5)])
def test_the_bubble_is_that_of_the_formula(pp: int, m: int, v: int, share: float) -> None:
    step = replace(ONE, workload=workload(pp, m, v))
    assert step.bubble == share
    assert step.hidden is None
    assert ONE.bubble is None


def test_a_step_waits_for_the_bubble_or_for_what_it_sends() -> None:
    assert ONE.waits_for == ("", 20.0), "a layout of one rank sends nothing"
    assert replace(ONE, workload=workload(pp=4, micro_batches=16)).waits_for == ("bubble", 15.0)
    assert replace(ONE, workload=workload(pp=4, micro_batches=48)).waits_for == ("pp", 15.0)
    assert replace(ONE, workload=workload(pp=4, micro_batches=4)).bubble_ns == 20.0, "no more than is exposed"


def test_steps_are_ranked_among_those_of_the_same_model() -> None:
    slow, other = replace(ONE, op="train_zero1", time_ns=250.0), replace(ONE, ranks=2)
    rows = ranked([slow, other, ONE])
    assert [(row.step.op, row.times) for row in rows] == [("train_ddp", 1.0), ("train_zero1", 2.5)]


def test_only_steps_of_a_models_widths_say_how_fast_its_layers_are() -> None:
    slow = msgspec.structs.replace(ONE.workload, slow_rank=0, slow_ns=10**6)
    small = msgspec.structs.replace(ONE.workload, scale=0.5)
    steps = [
        ONE,
        *(replace(ONE, workload=other) for other in (workload(wait_ns=10**6), slow, small)),
        replace(ONE, op="train_all_reduce"),
    ]
    ((step, seconds),) = steps_like(models()["MLP 1024"], steps)
    assert (step.model.hidden, seconds) == (1024, ONE.step_ns / 1e9)
    assert not list(steps_like(models()["Llama 3 8B"], steps))


def test_products_that_are_waited_for_have_no_rate() -> None:
    step = replace(ONE, workload=workload(wait_ns=1000))
    assert (step.flop_per_second, step.product_share) == (None, None)


def test_the_rank_that_sends_most_speaks_for_all() -> None:
    sent = (
        Sent(op="all_reduce", group=4, size_bytes=1000, calls=2, ranks=(0, 1)),
        Sent(op="send_recv", group=2, size_bytes=100, calls=3, ranks=(1,)),
    )
    assert replace(ONE, sent=sent).sent_bytes == 2 * 1000 * 1.5 + 300


def test_the_rank_that_needs_most_memory_is_held_against_the_formulas() -> None:
    small = RankMemory(rank=0, peak_bytes=7, weights_bytes=4, gradients_bytes=2)
    large = msgspec.structs.replace(small, rank=1, peak_bytes=9)
    recorded = replace(ONE, memory=(small, large))
    assert (recorded.fullest, ONE.fullest) == (large, None)
    computed = require(recorded.computed_memory)
    assert (computed.weights, computed.gradients, computed.optimizer) == (4 * 2**23, 4 * 2**23, 0)
    sharded = replace(recorded, op="train_zero1")
    over_nccl = require(replace(sharded, device="cuda").computed_memory)
    assert require(sharded.computed_memory).buffers - over_nccl.buffers == over_nccl.gradients
    with_memory, without = (require(steps([StepVerdict(step)])) for step in (recorded, ONE))
    assert len(with_memory.blocks) == len(without.blocks) + 1


def test_a_stored_step_is_in_the_report() -> None:
    training = judge(load([GOLDEN])).of(Training)
    assert [(step.op, step.sent_bytes) for step in training.steps] == [("train_1f1b", 1792.0), ("train_ddp", 100352.0)]
    section = require(steps(training.verdicts))
    assert section.anchor == "steps"


@pytest.mark.parametrize(
    ("pp", "rank", "expected"), [(1, 3, 50.0), (4, 0, 50.0), (4, 1, 40.0), (4, 3, 20.0), (4, 2, 30.0)]
)
def test_a_late_rank_delays_all_but_a_stage_that_others_come_before(pp: int, rank: int, expected: float) -> None:
    usual = replace(ONE, workload=workload(pp, 2), compute_ns=60.0)
    late = msgspec.structs.replace(usual.workload, slow_rank=rank, slow_ns=50)
    (effect,) = slowed(
        [usual, replace(usual, workload=late, time_ns=145.0), replace(ONE, workload=late, op="train_fsdp")]
    )
    assert (effect.longer_ns, effect.expected_ns) == (45.0, expected)
    assert (effect.longer_low_ns, effect.longer_high_ns) == (None, None)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(
    ("pp", "v", "m"), [(2, 1, 4), (4, 1, 8), (4, 1, 2), (8, 1, 16), (2, 2, 4), (4, 2, 8), (4, 3, 12)]
)
def test_a_late_stage_delays_a_played_pipeline_by_what_is_expected(pp: int, v: int, m: int, schedule: str) -> None:
    if schedule == "gpipe" and v > 1:
        return
    usual = replace(ONE, ranks=pp, workload=workload(pp, m, v), compute_ns=3000.0 * m)
    without, _ = play(pp, v, m, schedule)
    for stage in range(pp):
        for late_ns in (500, 1000, 2500, 30_000):
            late = msgspec.structs.replace(usual.workload, slow_rank=stage, slow_ns=late_ns)
            (effect,) = slowed([usual, replace(usual, workload=late)])
            seconds, _ = play(pp, v, m, schedule, late={stage: late_ns / 1000})
            assert effect.expected_ns == pytest.approx(1000 * (seconds - without))


def test_how_much_longer_a_step_takes_is_no_better_known_than_both_times() -> None:
    usual = replace(ONE, time_ns=100.0, low_ns=90.0, high_ns=110.0)
    late = msgspec.structs.replace(usual.workload, slow_rank=1, slow_ns=50)
    (effect,) = slowed([usual, replace(usual, workload=late, time_ns=150.0, low_ns=140.0, high_ns=170.0)])
    assert (effect.longer_low_ns, effect.longer_ns, effect.longer_high_ns) == (30.0, 50.0, 80.0)
