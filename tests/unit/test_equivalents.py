"""One call between two barriers: timed with the barrier behind it, and divided into unit and method. An all-reduce
beside its two halves: the same sizes, measured in one way.
"""

import json
import math

import pytest
from testing.blocks import measured
from testing.fakes import FakeWorld, Script
from testing.narrow import require
from testing.synthetic import Piece, World, case, synthetic_run

from busbw.measure.unsupported import Place, unsuited
from busbw.runs.records import Case
from busbw_analysis.assembly import compose
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import pool
from busbw_analysis.diagnosis.equivalents import UNIT, SingleCall, compositions_of, single_calls
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.report.equivalents import one_call

MIB = 1 << 20
WORLD = World(pieces=(Piece(1e-3, 1e-9),), sample_noise=0.1)


def test_the_barrier_behind_a_call_is_in_its_time() -> None:
    world = FakeWorld(3, Script(barrier_ns=250))
    assert set(measured(world, case("all_reduce", 48, 3, mode="barriers")).groups[0].slowest_ns) == {1_250}


def test_the_barrier_waits_for_the_slowest() -> None:
    script = Script(durations=lambda rank, _index, _case: 1_000 * (rank + 1), barrier_ns=250)
    (group,) = measured(FakeWorld(3, script), case("broadcast", 48, 3, mode="barriers")).groups
    assert set(group.slowest_ns) == set(group.fastest_ns) == {3_250}


@pytest.mark.parametrize("changes", [{"group": "div:2"}, {"op": "ping_pong"}, {"pre_enqueue": True, "device": "cuda"}])
def test_a_barrier_that_some_do_not_come_to_is_refused(changes: dict[str, object]) -> None:
    setting = case(str(changes.pop("op", "all_reduce")), 64, 4, mode="barriers", **changes)
    assert unsuited(setting, Place(oversubscribed=False, comparable=True)) is not None


def test_what_is_printed_is_busbw_times_unit_barrier_and_one_call() -> None:
    call = SingleCall("all_reduce", 4, 400 * MIB, 100.0, 3e9, 110.0, 132, 99, 150)
    assert call.printed == pytest.approx(3e9 * 100 / 132 / 2**30)
    assert call.barrier == pytest.approx(100 / 110)
    assert call.one_call == pytest.approx(110 / 132)
    assert call.whole == pytest.approx(UNIT * call.barrier * call.one_call)
    assert math.isclose(1 / UNIT, 1.074, abs_tol=5e-4)


def test_a_case_of_both_modes_is_in_the_report_and_is_no_curve_of_its_own() -> None:
    cases = [case("all_reduce", MIB, mode=mode) for mode in ("barriers", "isolated")]
    stored = synthetic_run([*cases, case("reduce_scatter", MIB, mode="barriers")], WORLD, launches=2)
    judgement = judge(pool([stored]))
    (call,) = single_calls(judgement.cases, judgement.samples)
    first = stored.measurements[0] if stored.measurements[0].case.mode == "barriers" else stored.measurements[1]
    assert call.one_ns == first.groups[0].slowest_ns[0]
    assert call.least_ns <= call.enclosed_ns <= call.most_ns
    assert [curve.series.key.mode for curve in judgement.curves] == ["isolated"]
    require(one_call(judgement))
    assert one_call(judge(pool([synthetic_run(cases[1:], WORLD, launches=2)]))) is None


HALVES = World(
    by_op={
        "all_reduce": (Piece(0.0, 3e-9),),
        "reduce_scatter": (Piece(0.0, 2e-9),),
        "all_gather": (Piece(0.0, 1.6e-9),),
    },
    sample_noise=0.0,
    launch_noise=0.0,
    jitter_seconds=0.0,
)


def judged(cases: list[Case]) -> Judgement:
    return judge(pool((synthetic_run(cases, HALVES, samples=5),)))


def test_the_sum_stands_beside_the_all_reduce_where_all_three_were_measured() -> None:
    cases = [case(op, size) for op in ("all_reduce", "reduce_scatter", "all_gather") for size in (MIB, 4 * MIB)]
    judgement = judged([*cases, case("all_reduce", 16 * MIB), case("all_gather", 64 * MIB)])
    compositions = compositions_of(judgement.curves)
    assert [composition.size_bytes for composition in compositions] == [MIB, 4 * MIB]
    for composition in compositions:
        assert composition.sum_ns == pytest.approx(3.6e-9 * composition.size_bytes * 1e9, rel=1e-3)
        assert composition.ratio == pytest.approx(1.2, rel=1e-3)
    written = compose.compose(judgement)
    assert [composition["ratio"] for composition in json.loads(written.json)["compositions"]] == [
        composition.ratio for composition in compositions
    ]
    assert written.html.count(">1.20<") == 2


@pytest.mark.parametrize(
    "other",
    [
        case("all_gather", MIB, dtype="float64"),
        case("all_gather", MIB, mode="pipelined"),
        case("all_gather", MIB, algorithm="ring"),
        case("all_gather", 2 * MIB),
    ],
)
def test_what_was_measured_in_another_way_or_at_another_size_is_not_added(other: Case) -> None:
    judgement = judged([case("all_reduce", MIB), case("reduce_scatter", MIB), other])
    assert compositions_of(judgement.curves) == ()
