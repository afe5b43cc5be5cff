"""Training steps in the answer to a run: their parts, their prediction, what they lack, and the command for that."""

import json
import re
import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from testing.synthetic import Machine, Piece, World, case, synthetic_run

from busbw.cli.main import main
from busbw.ops import STRATEGIES
from busbw.ops.training import OTHER_MODELS, Workload
from busbw.runs.records import Measurement, RankTimeline, Sent, StepParts
from busbw.runs.store import StoredRun, read
from busbw_analysis.assembly import compose
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import load, pool
from busbw_analysis.diagnosis.answer import Answer, answer_of
from busbw_analysis.models.results import Results, results_of
from busbw_analysis.predict import Questions, read_results
from busbw_analysis.report.document import Paragraph
from busbw_analysis.report.show import show_blocks, show_rows
from busbw_analysis.training.layout import Layout
from busbw_analysis.training.memory import memory
from busbw_analysis.training.prices import Measured, Price
from busbw_analysis.training.slice import SLICE, Training
from busbw_analysis.training.step_time import StepTime
from busbw_analysis.training.step_verdicts import StepVerdict, order_kept, step_verdicts
from busbw_analysis.training.steps import Trained, step_of, steps_of
from busbw_analysis.training.timelines import rank_times
from busbw_analysis.training.traffic import traffic

STORED = Path(__file__).parents[1] / "data" / "runs" / "training"
MIB = 1 << 20
SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 23, 1 << 25)
DDP = Workload(model="MLP 1024", scale=1.0, dp=2, tp=1, pp=1, micro_batches=1, interleave=1)
COMPUTE_NS = 50_000_000
PER_BYTE = 1e-9
"""Seconds of a byte of all_reduce: 33.6 ms for all gradients, 8 layers of 1024 × 1024 elements."""
EXPOSED_NS = round(2**25 * PER_BYTE * 1e9 * 25 / 32)
"""The last bucket of 25 of the 32 MiB does not overlap."""


def run_of(
    step_ns: int, calls: tuple[str, ...] = ("all_reduce",), *, products: bool = True, machine: Machine | None = None
) -> StoredRun:
    """``train_ddp`` of two ranks that takes ``step_ns`` beside its parts, and single calls whose times are known.

    Its samples take half as long, as if the machine had been quieter meanwhile.
    """
    trained = case("train_ddp", 0, 2, workload=DDP)
    cases = [trained, *(case(op, size, 2) for op in calls for size in SIZES)]
    cases += [case("matmul", 4 * MIB, 2)] if products else []
    pieces = {"all_reduce": Piece(1e-6, PER_BYTE), "matmul": Piece(0.01, 0.0), "train_ddp": Piece(step_ns / 2e9, 0.0)}
    by_op = {op: (piece,) for op, piece in pieces.items()}
    stored = synthetic_run(cases, World(by_op=by_op, sample_noise=0.0), machine=machine, launches=6)
    parts = StepParts(
        step_ns=(step_ns,) * 3,
        compute_ns=(COMPUTE_NS,) * 3,
        communication_ns=(34_000_000,) * 3,
        sent=(Sent(op="all_reduce", group=2, size_bytes=2**24, calls=2, ranks=(0, 1)),),
        parameters=2**23,
        flop=10**10,
        tokens=1024,
    )
    rows = (
        msgspec.structs.replace(row, supplement=parts) if isinstance(row, Measurement) and row.case == trained else row
        for row in stored.rows
    )
    return replace(stored, rows=tuple(rows))


def answered(stored: StoredRun) -> tuple[Answer, StepVerdict]:
    judgement = judge(pool((stored,)))
    (verdict,) = judgement.of(Training).verdicts
    return answer_of(judgement), verdict


@pytest.mark.parametrize(
    ("factor", "status"), [(1.0, "as expected"), (1.2, "as expected"), (1.5, "slower"), (0.7, "faster")]
)
def test_a_step_is_compared_with_what_calls_of_the_same_run_predict(factor: float, status: str) -> None:
    expected_ns = COMPUTE_NS + EXPOSED_NS
    answer, verdict = answered(run_of(round(factor * expected_ns)))
    assert verdict.predicted_ns == pytest.approx(expected_ns, rel=0.01)
    assert verdict.ratio == pytest.approx(factor, rel=0.01)
    assert verdict.step.time_ns == pytest.approx(factor * expected_ns / 2, rel=0.01)
    assert (verdict.status, verdict.extrapolated, verdict.lacks) == (status, (), ())
    assert verdict.longest == ("exposed communication" if factor > 1 else None)
    assert answer.status == {"faster": "as expected"}.get(status, status)
    assert verdict.computed == pytest.approx(min(1.0, COMPUTE_NS / (factor * expected_ns)), rel=0.01)
    # 10 GFLOP in 50 ms, where both ranks together multiply 2 × 2 GFLOP in 10 ms.
    assert verdict.of_matmul == pytest.approx(10**10 / 0.05 / (2 * 2 * 1024**3 / 0.01), rel=0.01)


def test_twice_the_rate_shortens_a_predicted_step_by_half_its_communication() -> None:
    _, verdict = answered(run_of(COMPUTE_NS + EXPOSED_NS))
    changes = dict(verdict.changes)
    half = -0.5 * EXPOSED_NS / (COMPUTE_NS + EXPOSED_NS)
    assert changes["twice the rate inside hosts"] == pytest.approx(half, rel=0.05)
    assert list(changes.values()) == sorted(changes.values())


def test_a_run_without_the_calls_of_its_step_says_how_to_measure_them() -> None:
    answer, verdict = answered(run_of(90_000_000, ()))
    assert (answer.status, verdict.status, verdict.lacks) == ("not judged", "not judged", ("all_reduce",))
    assert answer.answer.startswith(answer.headline)
    assert answer.answer != answer.headline
    assert verdict.largest_bytes == 2**25
    assert sum(verdict.parts.values()) == pytest.approx(1)
    command = answer.action[answer.action.index("busbw run") :].partition(" to measure ")[0]
    printed = CliRunner().invoke(main, [*shlex.split(command)[1:], "--dry-run", "--json"])
    assert printed.exit_code == 0, printed.output
    planned = json.loads(printed.stdout)
    of_calls = [row["size_bytes"] for row in planned["cases"] if row["op"] == "all_reduce"]
    assert max(of_calls) >= 2**25
    assert len(of_calls) >= 4
    assert {row["ranks"] for row in planned["cases"]} == {2}


def test_a_run_without_matmul_says_so() -> None:
    answer, verdict = answered(run_of(90_000_000, products=False))
    assert (verdict.lacks, verdict.of_matmul) == (("matmul",), None)
    assert verdict.predicted_ns is not None
    assert "--no-baseline" in answer.action


def test_a_step_that_no_plan_describes_gives_its_own_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    unplanned = replace(STRATEGIES["train_ddp"], unplanned="it has no plan")
    monkeypatch.setitem(STRATEGIES, "train_ddp", unplanned)
    answer, verdict = answered(run_of(90_000_000, products=False))
    assert (verdict.refused, verdict.lacks) == ("train_ddp: it has no plan", ("matmul",))
    assert verdict.refused in answer.headline


def test_a_slower_step_on_shared_cores_is_explained_by_them() -> None:
    for machine, expected in ((Machine(usable_cores=1), ("explained", "oversubscribed")), (None, ("slower", None))):
        judgement = judge(pool((run_of(150_000_000, machine=machine),)))
        answer = answer_of(judgement)
        (step,) = SLICE.as_json(judgement, answer)["steps"]
        assert (answer.status, step["verdict"]["explained_by"]) == expected


def one_step(**changes: float | tuple[float, ...]) -> Trained:
    (step,) = steps_of(results_of(pool((run_of(90_000_000),))))
    return replace(step, **changes)  # type: ignore[arg-type]


def predicted(step: Trained, *extrapolated: str) -> StepVerdict:
    price = Price(0.0, 1.0, far=False, origin="", extrapolated=extrapolated)
    return StepVerdict(step, StepTime(1.0, 0.0, 0.0, {}, {}, (price,)))


def test_an_extrapolation_calls_no_step_slower() -> None:
    step = one_step(step_ns=2e9, compute_ns=1e9, tries_ns=(2e9, 2.1e9))
    assert [predicted(step, *of).status for of in ((), ("size: twice",))] == ["slower", "undecided"]


def test_tries_on_both_sides_of_the_limit_decide_nothing() -> None:
    verdict = predicted(one_step(step_ns=2e9, compute_ns=1e9, tries_ns=(1.1e9, 2e9, 2e9)))
    assert (verdict.status, verdict.low, verdict.high) == ("undecided", 1.1, 2.0)


STEP = one_step()


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(1, 4), st.integers(1, 8), st.integers(0, 100))
def test_the_parts_of_a_step_add_up(step_ns: int, compute_ns: int, pp: int, micro_batches: int, late: int) -> None:
    workload = msgspec.structs.replace(DDP, pp=pp, micro_batches=micro_batches)
    spans = [[("compute", 0, 10), ("all_reduce", 10 + after, 120)] for after in (0, late)]
    rows = tuple(RankTimeline(rank=rank, spans=tuple(of)) for rank, of in enumerate(spans))
    sent = (Sent(op="all_reduce", group=2, size_bytes=8, calls=1, ranks=(0, 1)),)
    timeline = rank_times(rows, sent)
    step = replace(STEP, workload=workload, step_ns=step_ns, compute_ns=compute_ns, timeline=timeline)
    verdict = StepVerdict(step)
    assert sum(verdict.parts.values()) == pytest.approx(1)
    assert all(share >= -1e-9 for share in verdict.parts.values())
    assert verdict.waiting is not None
    if pp == 1:
        # Both ranks wait 220 - late in all, one of them ``late`` of it for the other.
        assert verdict.waiting == pytest.approx(step.exposed_share * late / (220 - late))


def test_every_output_has_the_parts_of_a_step() -> None:
    judgement = judge(pool((run_of(COMPUTE_NS + EXPOSED_NS),)))
    (verdict,) = judgement.of(Training).verdicts
    (row,) = [row for row in show_rows(judgement) if row.case.op == "train_ddp"]
    numbers = {number.key: number.values[verdict.step.case] for number in row.numbers}
    assert (numbers["computed"], numbers["exposed"]) == (verdict.computed, verdict.communicating)
    assert (numbers["predicted_ns"], numbers["of_predicted"]) == (verdict.predicted_ns, verdict.ratio)
    assert numbers.items() <= row.document.items()
    document = json.loads(compose.compose(judgement).json)
    (of_step,) = document["steps"]
    assert of_step["verdict"]["ratio"] == verdict.ratio
    assert of_step["verdict"]["status"] == "as expected"
    assert dict(answer_of(judgement).lines)["Steps"] in document["answer"]["answer"]


def test_stored_steps_that_nothing_predicts_have_their_parts_in_the_answer() -> None:
    judgement = judge(load([STORED]))
    assert {step.op for step in judgement.of(Training).steps} == {"train_1f1b", "train_ddp"}
    assert "Steps" in dict(answer_of(judgement).lines)


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
    messages: Counter[tuple[str, int]] = Counter()
    for row in traffic(step_of(op, workload)):
        messages[row.op, row.size_bytes] += row.messages
    assert dict(messages) == sent


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
    predictions = verdicts(stored)
    assert {verdict.step.op for verdict in predictions} == {
        row.case.op for row in stored.cases if isinstance(row.case.settings, Workload)
    }
    for verdict in predictions:
        assert (verdict.predicted is None) == bool(verdict.refused)


def test_computation_and_calls_are_those_that_were_timed_in_turns_with_the_step(stored: Results) -> None:
    """Computation alone, of the slowest stage, was taken for the mean of all stages."""
    for verdict in verdicts(stored):
        if verdict.predicted is not None:
            assert verdict.predicted.compute * 1e9 == pytest.approx(verdict.step.compute_ns)
        if verdict.step.op in {"train_zero1", "train_fsdp", "train_tensor"} and verdict.predicted is not None:
            assert verdict.predicted.communication * 1e9 == pytest.approx(verdict.step.communication_ns, rel=0.02)


def verdict_of(step: Trained, seconds: float, predicted: float, pp: int = 1) -> StepVerdict:
    workload = Workload(model="MLP 1024", scale=1.0, dp=2 // pp, tp=1, pp=pp, micro_batches=4, interleave=1)
    time = StepTime(0.5 * predicted, 0.2 * predicted, 0.0, {"dp": 0.3 * predicted}, {}, ())
    return StepVerdict(replace(step, workload=workload, step_ns=seconds * 1e9, compute_ns=0.6e9 * seconds), time)


def test_errors_are_shares_of_the_measured_step_and_add_up() -> None:
    verdict = verdict_of(STEP, 2.0, 2.4, pp=2)
    assert verdict.error == pytest.approx(0.2)
    assert verdict.step.bubble_ns == pytest.approx(1.2e9 / 4)
    assert verdict.errors == {
        "computation": pytest.approx((1.2 - 1.2) / 2),
        "waiting": pytest.approx((0.48 - 0.3) / 2),
        "exposed communication": pytest.approx((0.72 - 0.5) / 2),
    }
    assert sum(verdict.errors.values()) == pytest.approx(verdict.error)
    assert "waiting" not in verdict_of(STEP, 2.0, 2.4).errors, "there is no pipeline"


def test_the_order_is_kept_as_far_as_pairs_are() -> None:
    times = [(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 4.0)]
    assert order_kept([verdict_of(STEP, *pair) for pair in times]) == pytest.approx(4 / 6)


@pytest.mark.parametrize(("factor", "codes"), [(2.5, ["step-parts"]), (1.1, []), (0.5, ["step-parts"])])
def test_parts_of_a_step_that_takes_another_time_are_a_finding(factor: float, codes: list[str]) -> None:
    """Shares of a step of 40 ms stood beside a time of 16 ms."""
    step = one_step(time_ns=16e6, step_ns=factor * 16e6)
    assert [finding.code for finding in Training((StepVerdict(step),), ()).findings] == codes
    assert step.in_turns == pytest.approx(factor)


def test_flags_are_counted_by_cases() -> None:
    """Rows of the median and of the slowest pair counted a case twice."""
    rows = show_rows(judge(load([STORED])))
    cases = {row.summary.index: row.summary.flags for row in rows}
    assert len(rows) > len(cases)
    note = "".join(block.text for block in show_blocks(rows) if isinstance(block, Paragraph))
    for flag, count in re.findall(r"([a-z ]+) \((\d+)\)", note):
        assert int(count) == sum(flag.strip() in flags for flags in cases.values())
