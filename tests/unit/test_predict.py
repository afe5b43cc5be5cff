"""Predictions of what was not measured, held against a truth that is known."""

import json
import math
import re
import shlex
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from exhaustive import fewest_held, trials
from hypothesis import given, settings
from hypothesis import strategies as st
from refused import refused
from testing.narrow import require, require_type
from testing.synthetic import Machine, Piece, World, case, synthetic_run, write_synthetic

from busbw.cli.main import main
from busbw.errors import AnalysisError, UnlikeRuns, UsageError
from busbw.ops import OPS
from busbw.runs.records import Case
from busbw.runs.store import StoredRun
from busbw_analysis.data.sources import find
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.fitting.score import validation
from busbw_analysis.models.results import Results
from busbw_analysis.models.select import candidates
from busbw_analysis.predict.forecast import FittedCurve, Forecast, HeldOut, Value
from busbw_analysis.predict.selection import MeasuredCurves, measured_curves, query, read_results
from busbw_analysis.predict.ways import Prediction, Ways, scaling
from busbw_analysis.report import predict as predict_tables

ALPHA, BETA, CALL = 20e-6, 1e-9, 30e-6
LOGS = Path(__file__).parents[1] / "data/logs"
SIZES = tuple(8 * 4**step for step in range(12))
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def truth(op: str, ranks: int, size_bytes: int, hosts: int = 1, algorithm: str | None = None) -> float:
    """Seconds of one call where Gloo does what is known of it."""
    model, where = candidates(op, "gloo", algorithm)[0], (ranks, hosts, size_bytes)
    return model.rounds(*where) * ALPHA + model.sent(*where) * size_bytes * BETA


@dataclass(frozen=True, slots=True)
class Obeying(World):
    """All ops of Gloo take what their models say, on ``hosts`` hosts."""

    hosts: int = 1

    def seconds(self, op: str, size_bytes: int, ranks: Sequence[int], apart: int | None = None) -> float:
        del apart
        return size_bytes * BETA if op == "memory_copy" else truth(op, len(ranks), size_bytes, self.hosts)


OBEYING = Obeying(sample_noise=0.01, launch_noise=0.01)


def cases(ranks: int, ops: Sequence[str] = ("all_reduce", "ping_pong"), **changes: Any) -> list[Case]:  # noqa: ANN401
    sizes = {op: SIZES if OPS[op].sized else (0,) for op in ops}
    return [case(op, size, ranks, **changes) for op in ops for size in sizes[op]]


def run(ranks: int, world: World = OBEYING, *, hosts: int = 1, launches: int = 6, **more: Any) -> StoredRun:  # noqa: ANN401
    names = tuple(f"node{number}" for number in range(hosts))
    seed = more.pop("seed", ranks)
    own = more.pop("cases", None) or cases(ranks, nodes=hosts, **more)
    return synthetic_run(own, world, machine=Machine(hosts=names), launches=launches, samples=7, seed=seed)


@cache
def results() -> tuple[Results, ...]:
    return read_results([run(ranks) for ranks in (2, 3, 4, 8)])


@cache
def evidence() -> MeasuredCurves:
    return measured_curves(results(), "all_reduce")


def answer(known: MeasuredCurves, ranks: int, *sizes: int, **where: int) -> Prediction:
    return Ways(known).predict(query(known, ranks, sizes, **where))


def kinds(forecast: Forecast) -> list[str]:
    """In what the answer goes beyond the data: size, ranks, cores, hosts …"""
    return [extrapolation.respect for extrapolation in forecast.extrapolated]


@pytest.mark.parametrize("size", [200, 100 * KIB, 3 * MIB])
def test_a_size_between_the_measured_ones_is_predicted_from_the_curve_of_its_ranks(size: int) -> None:
    (forecast,) = answer(evidence(), 4, size).forecasts
    assert forecast.seconds.value == pytest.approx(truth("all_reduce", 4, size), rel=0.05)
    assert require(forecast.seconds.low) < forecast.seconds.value < require(forecast.seconds.high)
    assert forecast.held_out.passed
    assert forecast.ends == (forecast.seconds.low, forecast.seconds.high)
    assert not forecast.extrapolated
    assert forecast.measured is None
    assert forecast.busbw == pytest.approx(size / forecast.seconds.value * 1.5)


def test_what_was_measured_stands_beside_what_is_predicted() -> None:
    (forecast,) = answer(evidence(), 4, SIZES[5]).forecasts
    assert require(forecast.measured).time_ns == pytest.approx(truth("all_reduce", 4, SIZES[5]) * 1e9, rel=0.03)
    assert abs(require(forecast.error)) < 0.05


@pytest.mark.parametrize(("reach", "passed"), [(4, True), (1 << 20, False)])
def test_a_larger_size_follows_from_the_last_piece_and_is_validated_as_far_as_was_tried(
    reach: int,
    passed: bool,  # noqa: FBT001 - a parameter
) -> None:
    (forecast,) = answer(evidence(), 2, reach * SIZES[-1]).forecasts
    assert forecast.seconds.value == pytest.approx(truth("all_reduce", 2, reach * SIZES[-1]), rel=0.1)
    assert kinds(forecast) == ["size"]
    assert forecast.held_out.passed == passed


def alone(world: World, sizes: Sequence[int], launches: int = 6) -> MeasuredCurves:
    own = [case("all_reduce", size) for size in sizes]
    return measured_curves(read_results([synthetic_run(own, world, launches=launches, samples=7)]), "all_reduce")


def test_the_size_that_is_as_far_as_the_question_has_to_pass_by_itself() -> None:
    slower = World(pieces=(Piece(20e-6, 1e-10), Piece(20e-6, 2e-10, 48 * MIB)), sample_noise=0.01)
    (forecast,) = answer(alone(slower, [8 << step for step in range(25)]), 4, 4 * GIB).forecasts
    assert require(forecast.held_out.median_error) < 0.1
    assert not forecast.held_out.passed
    steady = World(pieces=(Piece(20e-6, 1e-10),), sample_noise=0.01)
    assert answer(alone(steady, [8 << step for step in range(25)]), 4, 4 * GIB).forecasts[0].held_out.passed


def test_sizes_below_the_smallest_of_a_curve_are_not_validated() -> None:
    known = alone(
        World(pieces=(Piece(20e-6, 1e-10), Piece(400e-6, 1e-10, 64 * KIB))), [128 * KIB << step for step in range(12)]
    )
    (forecast,) = answer(known, 4, 8).forecasts
    assert not forecast.held_out.passed
    assert answer(known, 4, 200 * KIB).forecasts[0].held_out.passed


@pytest.mark.parametrize("launches", [3, 6])
def test_between_two_pieces_the_interval_holds_what_both_say(launches: int) -> None:
    jump = World(pieces=(Piece(20e-6, 1e-10), Piece(400e-6, 2e-10, 33 * KIB)), sample_noise=0.01)
    known = alone(jump, [8 << step for step in range(24)], launches)
    (forecast,) = answer(known, 4, 40 * KIB).forecasts
    assert not forecast.held_out.passed
    assert kinds(forecast) == ["jump"]
    assert re.findall(r"\d+ KiB", forecast.extrapolated[0].how) == ["40 KiB", "32 KiB", "64 KiB"]
    if launches >= 5:
        assert forecast.seconds.high is not None
        assert require(forecast.seconds.low) <= 25e-6
        assert forecast.seconds.high >= jump.seconds("all_reduce", 40 * KIB, range(4)) * 0.98
        assert forecast.ends is None, "launches do not know the error of a method that is not validated"
    for beside in (32 * KIB, 64 * KIB):
        (measured,) = answer(known, 4, beside).forecasts
        assert measured.held_out.passed
        assert not measured.extrapolated


@pytest.mark.parametrize("ranks", [6, 16, 256])
@pytest.mark.parametrize("size", [8, 64 * KIB, 32 * MIB])
def test_other_numbers_of_ranks_are_carried_from_the_nearest_curve(ranks: int, size: int) -> None:
    (forecast,) = answer(evidence(), ranks, size).forecasts
    assert (forecast.basis, forecast.carried_from) == ("carried", (8, 1))
    assert forecast.seconds.value == pytest.approx(truth("all_reduce", ranks, size), rel=0.05)
    assert forecast.held_out.passed == (ranks <= 16)
    assert require(forecast.held_out.median_error) < 0.05
    assert ("ranks" in kinds(forecast)) == (ranks > 8)


@cache
def ways() -> Ways:
    return Ways(evidence())


def carried(ranks: int, size: int) -> Value:
    carry = ways().carry((ranks, 1), size)
    assert not isinstance(carry, Unavailable)
    return carry.seconds(size)


@settings(deadline=None)
@given(ranks=st.integers(2, 4096), size=st.integers(1, GIB))
def test_the_interval_of_a_carried_time_holds_it(ranks: int, size: int) -> None:
    time = carried(ranks, size)
    assert 0 < require(time.low) <= time.value <= require(time.high)


@pytest.mark.parametrize("ranks", [2, 5])
def test_a_curve_of_an_imbalance_is_predicted_with_its_busbw(ranks: int) -> None:
    """A setting that is no algorithm is a way to measure an op: the usual one answers, or that asked for."""
    worlds = {0.5: BETA, 0.9: 4 * BETA}
    stored = synthetic_run(
        [case("all_to_all_v", size, ranks, imbalance=imbalance) for imbalance in worlds for size in SIZES],
        World(by_setting={imbalance: (Piece(CALL, beta),) for imbalance, beta in worlds.items()}, sample_noise=0.003),
        samples=7,
    )
    for asked, taken in ((None, 0.5), (0.9, 0.9)):
        known = measured_curves(read_results([stored]), "all_to_all_v", imbalance=asked)
        (forecast,) = answer(known, ranks, 3 * MIB).forecasts
        wanted = CALL + 3 * MIB * worlds[taken]
        assert forecast.seconds.value == pytest.approx(wanted, rel=0.05)
        assert forecast.busbw == pytest.approx(3 * MIB / forecast.seconds.value * (ranks - 1) / ranks)
        assert any(str(taken) in note for note in known.notes)
    with refused(AnalysisError, "way-not-measured"):
        measured_curves(read_results([stored]), "all_to_all_v", imbalance=1)
    with refused(AnalysisError, "op-not-modelled"):
        answer(measured_curves(read_results([stored]), "all_to_all_v"), ranks + 1, MIB)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """Between the sizes and beyond them."""
    world = World(pieces=(Piece(20e-6, 1e-10), Piece(60e-6, 2e-10, 64 * KIB)), sample_noise=0.03, launch_noise=0.03)
    held: Counter[int] = Counter()
    curves = trials(8, 15)
    for seed in range(curves):
        stored = synthetic_run(
            [case("all_reduce", 8 << step) for step in range(20)], world, launches=6, samples=5, seed=seed
        )
        for forecast in answer(
            measured_curves(read_results([stored]), "all_reduce"), 4, 1_500_000, 128 * MIB
        ).forecasts:
            assert forecast.seconds.low is not None
            assert forecast.seconds.high is not None
            true = world.seconds("all_reduce", forecast.size_bytes, range(4))
            held[forecast.size_bytes] += forecast.seconds.low <= true <= forecast.seconds.high
    # 155 of 160 such curves did.
    assert min(held[1_500_000], held[128 * MIB]) >= fewest_held(curves)


@pytest.mark.slow
def test_the_interval_of_other_ranks_holds_the_truth_about_as_often_as_it_says() -> None:
    held, widths = 0, []
    for seed in range(trials(4, 10)):
        few = {ranks: [case("all_reduce", size, ranks) for size in SIZES[::2]] for ranks in (2, 4, 8)}
        runs = [run(ranks, cases=own, seed=10 * seed + ranks) for ranks, own in few.items()]
        known = measured_curves(read_results(runs), "all_reduce")
        for forecast in answer(known, 6, SIZES[0], SIZES[-1]).forecasts:
            assert forecast.seconds.low is not None
            assert forecast.seconds.high is not None
            widths.append(forecast.seconds.high / forecast.seconds.low - 1)
            held += forecast.seconds.low <= truth("all_reduce", 6, forecast.size_bytes) <= forecast.seconds.high
    assert held >= fewest_held(len(widths))
    # Launches scatter by 1 %: an interval that says nothing holds everything.
    assert max(widths) < 0.05


def test_ranks_that_would_share_cores_as_none_did_are_a_new_regime() -> None:
    (forecast,) = answer(evidence(), 128, MIB).forecasts
    assert kinds(forecast) == ["ranks", "cores"]
    assert re.findall(r"\d+", forecast.extrapolated[1].how) == ["128", "64"]
    assert not forecast.held_out.passed
    (inside,) = answer(evidence(), 16, MIB).forecasts
    assert "cores" not in kinds(inside)
    assert inside.held_out.passed


def test_more_ranks_of_another_op_are_no_test_of_more_ranks() -> None:
    runs = [run(ranks, ops=("all_reduce", "send_recv")) for ranks in (2, 4)]
    known = measured_curves(read_results([*runs, run(16, ops=("send_recv", "ping_pong"))]), "all_reduce")
    (forecast,) = answer(known, 64, MIB).forecasts
    assert not forecast.held_out.passed


def test_an_algorithm_that_was_not_measured_is_not_validated() -> None:
    known = measured_curves(results(), "all_reduce", "rabenseifner")
    for forecast in answer(known, 8, MIB, 32 << 40).forecasts:
        size = forecast.size_bytes
        assert (forecast.held_out.passed, forecast.held_out.median_error, forecast.measured) == (None, None, None)
        assert ("size" in kinds(forecast)) == (size > MIB)
        assert forecast.algorithm == "rabenseifner"
        assert forecast.seconds.value == pytest.approx(truth("all_reduce", 8, size, algorithm="rabenseifner"), rel=0.05)


@pytest.mark.parametrize(("size", "words"), [(8, "sizes below 128 B"), (GIB, "sizes beyond 32 MiB")])
def test_sizes_on_a_side_that_no_test_covered_are_not_validated(size: int, words: str) -> None:
    large = [
        case(op, size, ranks) for ranks in (2, 3, 4, 8) for op in ("all_reduce", "ping_pong") for size in SIZES[2:]
    ]
    runs = [run(ranks, cases=[setting for setting in large if setting.ranks == ranks]) for ranks in (2, 3, 4, 8)]
    known = measured_curves(read_results(runs), "all_reduce")
    (forecast,) = answer(known, 12, size).forecasts
    assert forecast.held_out.no_test_of == (words,)
    assert not forecast.held_out.passed
    assert answer(known, 12, MIB).forecasts[0].held_out.passed


def test_what_rounding_to_whole_elements_leaves_off_is_no_other_size() -> None:
    """2 MiB on six ranks are measured as 2,097,144 B."""
    errors = tuple((size // 24 * 24, 0.01) for size in (2048, 65536, 2 << 20))
    tested = HeldOut(validation("", [0.01], 0.1), errors, ((6, 6),), ((4, 4),))
    assert tested.untested((8, 8), 2 << 20) == ()
    assert tested.untested((8, 8), 4 << 20) == ("sizes beyond 2097144 B",)


@cache
def _on_two_hosts() -> MeasuredCurves:
    runs = [run(ranks, Obeying(sample_noise=0.01, hosts=2), hosts=2, ops=("all_reduce",)) for ranks in (6, 8, 16)]
    return measured_curves(read_results(runs), "all_reduce")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ((32, 16), ("16 hosts", "2 ranks on a host")),
        ((16, 8), ("8 hosts", "2 ranks on a host")),
        ((8, 8), ("8 hosts", "one rank on each host")),
        ((128, 2), ("128 ranks", "64 ranks on a host")),
        ((32, 2), ()),
    ],
)
def test_hosts_and_ranks_on_them_that_no_test_covered_are_not_validated(
    asked: tuple[int, int], words: tuple[str, ...]
) -> None:
    ranks, hosts = asked
    (forecast,) = answer(_on_two_hosts(), ranks, MIB, hosts=hosts).forecasts
    assert forecast.basis == "carried"
    assert forecast.held_out.no_test_of == words
    assert forecast.held_out.passed == (not words)
    fewer = -(-ranks // hosts) < 3
    assert ("ranks per host" in kinds(forecast)) == (fewer or ranks / hosts > 8)


def test_a_shape_that_was_measured_in_part_is_carried_from_another() -> None:
    part = [case("all_reduce", size, 8) for size in SIZES[4:7]]
    known = measured_curves(read_results([*(run(ranks) for ranks in (2, 3, 4)), run(8, cases=part)]), "all_reduce")
    prediction = answer(known, 6, MIB)
    assert prediction.forecasts[0].carried_from == (4, 1)
    assert len(prediction.notes) == 1
    (same,) = answer(known, 8, MIB).forecasts
    assert (same.carried_from, len(same.notes)) == ((4, 1), 2)


def test_a_barrier_is_predicted_without_a_size() -> None:
    known = measured_curves(read_results([run(ranks, ops=("barrier", "ping_pong")) for ranks in (2, 4, 8)]), "barrier")
    (forecast,) = answer(known, 64).forecasts
    assert forecast.seconds.value == pytest.approx(truth("barrier", 64, 0), rel=0.05)
    assert (forecast.algbw, forecast.busbw) == (None, None)


def test_what_a_switch_would_make_of_it_is_predicted_by_name() -> None:
    known = measured_curves(results(), "all_reduce", "nvls")
    (forecast,) = answer(known, 8, MIB).forecasts
    assert (forecast.algorithm, forecast.formula) == ("nvls", "2 α + (n+1)/n S β: one α to reduce, one α to multicast")
    ring = answer(measured_curves(results(), "all_reduce", "ring"), 8, MIB)
    assert forecast.seconds.value < 0.8 * ring.forecasts[0].seconds.value
    with pytest.raises(AnalysisError, match="nvls"):
        answer(measured_curves(read_results([run(8, hosts=2), run(4, hosts=2)]), "all_reduce", "nvls"), 8, MIB, hosts=2)


def test_a_prediction_begins_with_whether_to_believe_it() -> None:
    far = answer(evidence(), 16, MIB)
    (forecast,) = far.forecasts
    for passed in (True, False):
        asked = replace(far, forecasts=(replace(forecast, held_out=replace(forecast.held_out, passed=passed)),))
        assert predict_tables.document(asked)["validated"] is passed
        assert predict_tables.headline(asked).startswith("NOT VALIDATED") is not passed


def test_a_host_says_nothing_of_a_network() -> None:
    with refused(AnalysisError, "between-hosts-not-measured"):
        query(evidence(), 8, [MIB], hosts=2)
    with refused(AnalysisError, "between-hosts-not-measured"):
        query(evidence(), 8, [MIB], ranks_per_host=4)


def test_a_network_that_was_measured_carries_on_to_more_hosts() -> None:
    runs = [run(ranks, Obeying(sample_noise=0.01, hosts=ranks), hosts=ranks) for ranks in (2, 3, 4)]
    known = measured_curves(read_results(runs), "all_reduce")
    asked = query(known, 8, [MIB])
    assert asked.hosts == 8
    (forecast,) = Ways(known).predict(asked).forecasts
    assert forecast.seconds.value == pytest.approx(truth("all_reduce", 8, MIB, 8), rel=0.05)
    assert "hosts" in kinds(forecast)
    with refused(AnalysisError, "within-host-not-measured"):
        query(known, 8, [MIB], hosts=1)


def test_without_a_size_a_few_that_were_measured_are_predicted() -> None:
    known = evidence()
    measured = sorted({point.size_bytes for curve in known.of_op for point in curve.points})
    asked = query(known, 8, []).sizes_bytes
    assert (asked[0], asked[-1], len(asked)) == (measured[0], measured[-1], min(5, len(measured)))
    assert set(asked) <= set(measured)


def test_a_pair_is_two_ranks() -> None:
    known = measured_curves(read_results([run(4)]), "ping_pong")
    assert answer(known, 2, 100 * KIB).forecasts[0].seconds.value == pytest.approx(
        truth("ping_pong", 2, 100 * KIB), rel=0.05
    )
    with refused(UsageError, "two-ranks"):
        query(known, 3, [MIB])


def test_runs_of_other_machines_or_backends_are_not_taken_together() -> None:
    other = synthetic_run(cases(8), OBEYING, machine=Machine(name="another"), seed=9)
    with pytest.raises(UnlikeRuns, match="'machine' is 'synthetic' in run synthetic-4 and 'another'"):
        read_results([run(4), other])
    mpi = synthetic_run(cases(8, backend="mpi"), OBEYING, seed=9)
    with pytest.raises(UnlikeRuns, match="'backend' is 'gloo' in run synthetic-4 and 'mpi'"):
        read_results([run(4), mpi])
    assert len(read_results([run(4), mpi], force=True)) == 2


def test_one_size_carries_no_curve_and_no_model() -> None:
    known = measured_curves(read_results([synthetic_run([case("all_reduce", MIB)], OBEYING)]), "all_reduce")
    with refused(AnalysisError, "few-sizes") as caught:
        answer(known, 4, GIB)
    assert "ping_pong" in str(caught.value)
    with refused(AnalysisError, "nothing-to-carry"):
        answer(known, 8, MIB)


def test_pairs_of_a_matrix_have_no_curve_and_an_op_without_a_setting_says_so() -> None:
    pairs = read_results([synthetic_run([case("pair_matrix", size, 3) for size in SIZES])])
    with refused(AnalysisError, "no-curve") as caught:
        measured_curves(pairs, "pair_matrix")
    assert "ping_pong" in str(caught.value)
    with refused(UsageError, "no-such-setting"):
        measured_curves(read_results([run(4)]), "all_reduce", imbalance=0.5)


def test_what_a_library_runs_is_not_guessed() -> None:
    own = cases(4, backend="mpi")
    known = measured_curves(read_results([synthetic_run(own, OBEYING)]), "all_reduce")
    with refused(AnalysisError, "algorithm-not-known"):
        answer(known, 8, MIB)
    named = measured_curves(read_results([synthetic_run(own, OBEYING)]), "all_reduce", "ring")
    assert answer(named, 8, MIB).forecasts[0].algorithm == "ring"


def test_a_copy_in_memory_has_no_other_ranks() -> None:
    copies = synthetic_run([case("memory_copy", size) for size in SIZES], World())
    known = measured_curves(read_results([copies]), "memory_copy")
    assert answer(known, 4, 3 * MIB).forecasts[0].basis == "curve"
    with refused(AnalysisError, "op-not-modelled"):
        answer(known, 8, MIB)


def test_what_was_measured_beside_messages_was_not_among_their_data() -> None:
    short = [case("all_reduce", size) for size in (KIB, MIB)] + cases(4, ("ping_pong",))
    known = measured_curves(read_results([synthetic_run(short, OBEYING)]), "all_reduce")
    prediction = answer(known, 4, MIB)
    assert prediction.forecasts[0].measured is not None


def test_messages_of_one_size_are_too_few_sizes() -> None:
    short = [case("all_reduce", size) for size in SIZES] + [case("ping_pong", MIB)]
    far = measured_curves(read_results([synthetic_run(short, OBEYING)]), "all_reduce").messages[False]
    assert require_type(Unavailable, far).code == "sizes-too-narrow"


@pytest.mark.parametrize("algorithm", [None, "ring"])
def test_a_curve_that_cannot_be_fitted_comes_first_where_there_are_no_messages(algorithm: str | None) -> None:
    log = find(LOGS, str(LOGS / "nccl-tests-collapse.txt")).read()
    known = measured_curves(read_results([log.stored]), "all_reduce", algorithm)
    unfitted = require_type(Unavailable, FittedCurve.of(known.of_library[0]))
    with refused(AnalysisError, "nothing-to-carry" if algorithm else "algorithm-not-known") as caught:
        answer(known, 32, GIB)
    assert f"ranks: {unfitted.reason}" in str(caught.value)


def test_a_curve_without_a_slope_says_nothing_of_larger_sizes() -> None:
    level = World(pieces=(Piece(20e-6, -2e-13),))
    flat = synthetic_run([case("all_reduce", 8 << step) for step in range(20)], level)
    known = measured_curves(read_results([flat]), "all_reduce")
    assert answer(known, 4, 1000).forecasts[0].seconds.value == pytest.approx(20e-6, rel=0.05)
    beyond = require_type(Unavailable, require_type(FittedCurve, FittedCurve.of(known.curves[0])).forecast(GIB))
    assert beyond.code == "no-slope"
    with refused(AnalysisError, "no-slope"):
        answer(known, 4, GIB)


def test_groups_that_ran_at_once_are_no_evidence_for_one_that_runs_alone() -> None:
    split = synthetic_run([case("all_reduce", size, 4, group="div:2") for size in SIZES], OBEYING)
    with refused(AnalysisError, "no-curve"):
        measured_curves(read_results([split]), "all_reduce")


def test_the_most_usual_way_is_taken_and_the_others_are_named() -> None:
    mixed = synthetic_run([*cases(4), *cases(4, mode="pipelined"), *cases(4, dtype="bfloat16")], OBEYING)
    known = measured_curves(read_results([mixed]), "all_reduce")
    assert {(curve.key.mode, curve.key.dtype) for curve in known.curves} == {("isolated", "float32")}
    used = "gloo, float32, sum, isolated, barrier, warm, in place"
    assert known.notes == (f"all_reduce was measured with 3 sets of settings; used here: {used}",)
    asked = measured_curves(read_results([mixed]), "all_reduce", dtype="bfloat16")
    assert {curve.key.dtype for curve in asked.curves} == {"bfloat16"}


def test_data_types_are_not_mixed_on_ranks_that_lack_the_one_that_is_asked_for() -> None:
    runs = [run(ranks) for ranks in (2, 3, 4)]
    runs.append(run(8, cases=[*cases(8, ("all_reduce",), dtype="bfloat16"), *cases(8, ("reduce",))]))
    known = measured_curves(read_results(runs), "all_reduce", dtype="bfloat16")
    assert {curve.key.dtype for curve in known.curves} == {"bfloat16"}
    assert answer(known, 12, MIB).forecasts[0].carried_from == (8, 1)
    usual = answer(measured_curves(read_results(runs), "all_reduce"), 12, MIB)
    assert usual.forecasts[0].carried_from == (4, 1)


def test_the_latest_run_is_taken_where_none_is_named(tmp_path: Path) -> None:
    for op in ("all_gather", "all_reduce"):
        write_synthetic(tmp_path / "results", synthetic_run([case(op, size, 4) for size in SIZES], Obeying()))
    asked = ["predict", "--op", "all_reduce", "--ranks", "4", "--json", "--results-dir", str(tmp_path / "results")]
    answers = [CliRunner().invoke(main, [*asked, *run]) for run in ((), ("--from", "latest"))]
    assert [answer.exit_code for answer in answers] == [0, 0], answers[0].output
    assert answers[0].stdout == answers[1].stdout


def test_the_command_that_a_refusal_gives_keeps_what_was_given(tmp_path: Path) -> None:
    write_synthetic(tmp_path / "results", synthetic_run([case("all_reduce", size, 4) for size in SIZES], Obeying()))
    kept = ["--size", "2MiB", "--results-dir", str(tmp_path / "results"), "--force"]
    said = CliRunner().invoke(main, ["predict", "--op", "all_reduce", *kept])
    words = shlex.split(said.stderr.split("busbw predict")[1])
    assert said.exit_code == 2
    assert words == ["latest", "--op", "all_reduce", "--ranks", "8", "--size", "2MiB", *words[7:]]
    assert sorted(words[5:]) == sorted(kept)


def test_without_messages_the_refusal_says_what_to_measure(tmp_path: Path) -> None:
    write_synthetic(tmp_path / "results", synthetic_run([case("all_reduce", size, 2) for size in SIZES], Obeying()))
    asked = ["predict", "--op", "all_reduce", "--ranks", "4", "--results-dir", str(tmp_path / "results")]
    said = CliRunner().invoke(main, asked)
    assert said.exit_code == 1
    assert "--no-baseline" in said.stderr


def test_the_errors_of_a_prediction_are_printed_once(kept: tuple[Path, ...]) -> None:
    asked = "--ranks", "8", "--size", "1MiB"
    (prediction,) = json.loads(busbw(kept, *asked, "--json").stdout)["predictions"]
    shown = busbw(kept, *asked).stdout
    for error in ("held_out_median_error", "held_out_worst_error"):
        assert len(re.findall(rf"\b{prediction[error]:.1%}", shown)) == 1


def test_scaling_reaches_65536_ranks_by_every_algorithm() -> None:
    scaled = scaling(ways(), query(evidence(), 256, [MIB]))
    chosen = scaled.lines[0]
    assert chosen.chosen
    assert chosen.points[-1][0] == 65536
    for ranks, time in chosen.points:
        assert time.value == pytest.approx(truth("all_reduce", ranks, MIB), rel=0.05)
    assert {"ring", "rabenseifner", "recursive-doubling"} <= {line.algorithm for line in scaled.lines}
    assert not scaled.measured
    assert [ranks for ranks, _ in scaled.fitted] == [2, 3, 4, 8]
    measured = scaling(ways(), query(evidence(), 256, [SIZES[4]]))
    assert [ranks for ranks, _ in measured.measured] == [2, 3, 4, 8]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    place = tmp_path_factory.mktemp("runs")
    return tuple(write_synthetic(place, run(ranks)) for ranks in (2, 3, 4))


def busbw(kept: tuple[Path, ...], *options: str) -> Result:
    chosen = [word for folder in kept for word in ("--from", str(folder))]
    return CliRunner().invoke(main, ["predict", *chosen, "--op", "all_reduce", *options])


def test_the_command_as_json_has_everything_in_base_units(kept: tuple[Path, ...]) -> None:
    said = busbw(kept, "--ranks", "3", "--size", f"{SIZES[6]},1GiB", "--json")
    assert said.exit_code == 0
    document = json.loads(said.stdout)
    assert (document["op"], document["ranks"], document["hosts"], document["measured_ranks"]) == (
        "all_reduce",
        3,
        1,
        [2, 3, 4],
    )
    inside, outside = document["predictions"]
    assert inside["seconds"] == pytest.approx(truth("all_reduce", 3, SIZES[6]), rel=0.05)
    assert inside["measured_seconds"] == pytest.approx(inside["seconds"], rel=0.05)
    assert inside["validated"]
    assert len(outside["extrapolated"]) == 1
    assert math.isfinite(outside["busbw"])


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_plot_is_a_file_that_says_what_is_extrapolated(kept: tuple[Path, ...], ending: str, tmp_path: Path) -> None:
    target = tmp_path / f"scaling.{ending}"
    said = busbw(kept, "--ranks", "256", "--size", "1MiB", "--plot", str(target))
    assert said.exit_code == 0, said.output
    if ending == "png":
        assert target.read_bytes().startswith(b"\x89PNG")
        return
    drawing = ET.fromstring(target.read_text())  # noqa: S314 (our own drawing)
    words = " ".join("".join(text.itertext()) for text in drawing.iter() if text.tag.endswith("text"))
    for word in ("extrapolated beyond 4 ranks", "segmented ring (gloo), used for the prediction", "32,768", "busbw"):
        assert word in words
    again = tmp_path / f"again.{ending}"
    busbw(kept, "--ranks", "256", "--size", "1MiB", "--plot", str(again))
    assert again.read_bytes() == target.read_bytes()
