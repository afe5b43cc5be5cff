"""Times on other numbers of ranks, carried from the nearest curve, held against algorithms of known cost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refused import refused
from testing.narrow import require, require_type
from testing.synthetic import Machine, Piece, World, case, synthetic_run

from busbw.errors import AnalysisError
from busbw.ops import OPS
from busbw.runs.records import Case
from busbw.runs.store import StoredRun
from busbw_analysis.data.series import Series
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.fitting.curve import Fit, Segment, fit_points
from busbw_analysis.models.costs import CostModel, Parameters
from busbw_analysis.models.select import candidates
from busbw_analysis.models.textbook import ROWS
from busbw_analysis.predict.forecast import Carrier, Carry, FittedCurve, Forecast
from busbw_analysis.predict.selection import measured_curves, query, read_results
from busbw_analysis.predict.ways import Prediction, Ways, scaling

KIB, MIB = 1 << 10, 1 << 20
SIZES = tuple(8 * 4**step for step in range(12))
"""Ranks, hosts and bytes → seconds."""


@dataclass(frozen=True, slots=True)
class Ran(World):
    """All ops run ``algorithm`` (None: Gloo's own) on ``hosts`` hosts and take ``times`` its cost on ``on`` ranks."""

    algorithm: str | None = None
    hosts: int = 1
    alpha: float = 20e-6
    beta: float = 1e-9
    on: int = 0
    times: float = 1.0
    from_bytes: int = 0

    def seconds(self, op: str, size_bytes: int, ranks: Sequence[int], apart: int | None = None) -> float:
        del apart
        model = candidates(op, "gloo", None if op == "ping_pong" else self.algorithm)[0]
        where = len(ranks), self.hosts, size_bytes
        taken = model.rounds(*where) * self.alpha + model.sent(*where) * size_bytes * self.beta
        return taken * (self.times if len(ranks) == self.on and size_bytes >= self.from_bytes else 1)


def run(
    ranks: int,
    world: Ran | None = None,
    ops: Sequence[str] = ("all_reduce",),
    cores: int = 64,
    launches: int = 2,
    **changes: str,
) -> StoredRun:
    world = world or Ran()
    own: list[Case] = [
        case(op, size, ranks, nodes=world.hosts, **(changes if op != "ping_pong" else {}))
        for op in ops
        for size in (SIZES if OPS[op].sized else (0,))
    ]
    hosts = tuple(f"node{number}" for number in range(world.hosts))
    machine = Machine(hosts=hosts, usable_cores=cores)
    return synthetic_run(own, world, machine=machine, launches=launches, samples=7, seed=ranks)


def answer(
    runs: Sequence[StoredRun], ranks: int, *sizes: int, algorithm: str | None = None, **where: int
) -> Prediction:
    data = measured_curves(read_results(list(runs)), "all_reduce", algorithm)
    return Ways(data).predict(query(data, ranks, sizes or (MIB,), **where))


def forecast(runs: Sequence[StoredRun], ranks: int, size: int = MIB, **more: int | str) -> Forecast:
    (carried,) = answer(runs, ranks, size, **more).forecasts  # type: ignore[arg-type]
    return carried


FLAT = tuple(row for row in ROWS.values() if not row.two_levels and row.op in {"all_reduce", "all_gather", "broadcast"})


@cache
def shaped() -> Series:
    return measured_curves(read_results([run(4)]), "all_reduce").curves[0]


def fitted(model: CostModel, ranks: int, alpha: float, beta: float) -> FittedCurve:
    """The fit of a curve that takes exactly what the model says, on one host."""
    series = shaped()
    series = replace(series, key=msgspec.structs.replace(series.key, op=model.op, ranks=tuple(range(ranks))))
    times = [model.rounds(ranks, 1, s) * alpha * 1e9 + model.sent(ranks, 1, s) * s * beta * 1e9 for s in SIZES]
    return FittedCurve(series, fit_points(SIZES, times), None)


@settings(deadline=None, max_examples=60)
@given(
    model=st.sampled_from(FLAT),
    measured=st.sampled_from([3, 4, 5, 8, 16, 48, 64]),
    wanted=st.one_of(st.integers(2, 4096), st.sampled_from([2**power for power in range(1, 13)])),
    size=st.integers(1, SIZES[-1]),
    alpha=st.floats(1e-7, 1e-3),
    beta=st.floats(1e-12, 1e-8),
)
def test_the_exact_cost_of_an_algorithm_is_carried_to_its_exact_cost(
    model: CostModel, measured: int, wanted: int, size: int, alpha: float, beta: float
) -> None:
    where = [(ranks, 1, at) for ranks in (measured, wanted) for at in (1, size, *SIZES)]
    straight = all(
        model.possible(*place)
        and model.rounds(*place) == model.rounds(place[0], 1, 1)
        and model.sent(*place) == model.sent(place[0], 1, 1)
        for place in where
    )
    if not straight:
        return
    carry = require_type(
        Carry, Carrier((fitted(model, measured, alpha, beta),), lambda *_: model, None).carry((wanted, 1), size)
    )
    truth = model.rounds(wanted, 1, size) * alpha + model.sent(wanted, 1, size) * size * beta
    assert carry.seconds(size).value == pytest.approx(truth, rel=1e-4)


def test_most_algorithms_are_straight_lines_over_size() -> None:
    """The test above compares most of them."""
    compared = {
        row.algorithm
        for row in FLAT
        if row.possible(8, 1, 1) and row.rounds(8, 1, 1) == row.rounds(8, 1, MIB) and row.sent(8, 1, 1) > 0
    }
    assert {"ring", "recursive-doubling", "rabenseifner", "binomial-tree"} <= compared


@pytest.mark.parametrize("algorithm", ["ring", "recursive-doubling", "rabenseifner"])
def test_the_nearest_curve_is_carried_by_the_named_algorithm(algorithm: str) -> None:
    """Named with its own curves it is measured; its held-out test is that of these."""
    world = Ran(algorithm=algorithm)
    carried = forecast([run(ranks, world, algorithm=algorithm) for ranks in (2, 4, 8)], 16, algorithm=algorithm)
    assert carried.seconds.value == pytest.approx(world.seconds("all_reduce", MIB, range(16)), rel=0.03)
    assert (carried.basis, carried.carried_from, carried.algorithm) == ("carried", (8, 1), algorithm)
    assert carried.held_out.passed


@pytest.mark.parametrize(("hosts", "wanted"), [((2, 3, 4), 8), ((2, 4, 6), 8)])
def test_more_hosts_are_carried_from_fewer(hosts: Sequence[int], wanted: int) -> None:
    carried = forecast([run(count, Ran(hosts=count)) for count in hosts], wanted, hosts=wanted)
    truth = Ran(hosts=wanted).seconds("all_reduce", MIB, range(wanted))
    assert carried.seconds.value == pytest.approx(truth, rel=0.03)
    # From 3 hosts to 4 is a third more, from 4 to 6 a half.
    assert carried.held_out.passed == (hosts[-1] ** 2 / hosts[-2] >= wanted)


@pytest.mark.parametrize("exists", [True, False])
def test_two_levels_are_carried_only_with_as_many_ranks_on_a_host(exists: bool) -> None:  # noqa: FBT001 - a parameter
    model = ROWS["all_reduce", "hierarchical"]
    series = shaped()
    key = msgspec.structs.replace(series.key, hosts=2)
    curve = fitted(ROWS["all_reduce", "ring"], 4, 1e-5, 1e-9)
    carrier = Carrier((replace(curve, series=replace(series, key=key)),), lambda *_: model, None)
    carry = carrier.carry((8, 4) if exists else (8, 2), KIB)
    assert isinstance(carry, Carry) == exists
    if isinstance(carry, Unavailable):
        assert carry.code == "nothing-to-carry"


def test_a_rate_that_all_ranks_of_a_host_share_scales_with_all_of_their_bytes() -> None:
    """A ring moves 2(n−1) S: from 4 to 8 ranks 7/3 as much, of which each rank sends 7/6 as much."""
    model = ROWS["all_reduce", "ring"]
    curve = fitted(model, 4, 1e-5, 1e-9)
    factors = {}
    for rate in (None, 1e8, 1e12):
        carry = require_type(
            Carry, Carrier((curve,), lambda *_: model, Parameters(1e-5, 1e-9, rate, "")).carry((8, 1), MIB)
        )
        factors[rate] = carry.moved
    assert factors == {None: pytest.approx(7 / 6), 1e8: pytest.approx(7 / 3), 1e12: pytest.approx(7 / 6)}


def test_two_ranks_are_never_carried() -> None:
    with refused(AnalysisError, "nothing-to-carry") as caught:
        answer([run(2)], 8)
    assert "ping_pong" in str(caught.value)
    by_messages = forecast([run(2, ops=("all_reduce", "ping_pong"))], 8)
    assert (by_messages.basis, by_messages.carried_from) == ("messages", None)
    assert by_messages.held_out.median_error is not None


def test_messages_answer_only_where_no_curve_does() -> None:
    ops = ("all_reduce", "ping_pong")
    assert forecast([run(2, ops=ops), run(4, ops=ops)], 8).basis == "carried"
    assert forecast([run(2, ops=ops), run(4, ops=ops)], 8, algorithm="rabenseifner").basis == "messages"


@pytest.mark.parametrize(("counts", "passed"), [((2, 4), None), ((4,), None), ((2, 3, 4), False), ((2, 4, 8), True)])
def test_validated_means_that_the_largest_count_was_carried_from_fewer(
    counts: Sequence[int],
    passed: bool | None,  # noqa: FBT001 - a parameter
) -> None:
    held_out = forecast([run(ranks) for ranks in counts], 16).held_out
    assert held_out.passed is passed
    assert (held_out.median_error is None) == (passed is None)


def test_a_count_that_cannot_be_carried_to_is_not_validated() -> None:
    bent = Ran(on=8, times=2.5)
    held_out = forecast([run(ranks, bent) for ranks in (2, 4, 8)], 16).held_out
    assert held_out.median_error == pytest.approx(0.6, abs=0.02)
    assert held_out.passed is False
    right = forecast([run(ranks, bent) for ranks in (2, 3, 4)], 5).held_out
    assert right.passed


@pytest.mark.parametrize(("size", "passed"), [(KIB, True), (8 * MIB, False)])
def test_the_sizes_near_the_question_have_to_pass_by_themselves(size: int, passed: bool) -> None:  # noqa: FBT001
    slow = Ran(on=8, times=2.0, from_bytes=MIB)
    held_out = forecast([run(ranks, slow) for ranks in (4, 8)], 16, size).held_out
    assert require(held_out.median_error) < 0.1
    assert held_out.passed == passed


def test_ranks_that_share_cores_are_carried_from_such_if_any() -> None:
    def ran(*counts: int) -> list[StoredRun]:
        return [run(ranks, cores=5) for ranks in counts]

    assert forecast(ran(4, 8), 6).carried_from == (8, 1)
    other = forecast(ran(3, 4), 6)
    assert other.carried_from == (4, 1)
    assert other.held_out.no_test_of[-1] == "ranks that share cores"
    alone = forecast(ran(6, 8), 4)
    assert alone.held_out.no_test_of[-1] == "ranks with a core each"
    assert not other.held_out.passed
    assert not alone.held_out.passed


def test_an_algorithm_that_is_only_named_carries_the_curves_of_a_library_and_is_not_validated() -> None:
    world = Ran(algorithm="ring")
    runs = [run(ranks, world, backend="mpi") for ranks in (2, 4, 8)]
    with refused(AnalysisError, "algorithm-not-known"):
        answer(runs, 16)
    carried = forecast(runs, 16, algorithm="ring")
    assert carried.seconds.value == pytest.approx(world.seconds("all_reduce", MIB, range(16)), rel=0.03)
    assert (carried.carried_from, carried.held_out.passed) == ((8, 1), False)
    # Gloo's own algorithm is known, so its curves are not those of another.
    with refused(AnalysisError, "nothing-to-carry"):
        answer([run(4), run(8)], 16, algorithm="rabenseifner")


def test_a_size_between_two_segments_is_not_validated() -> None:
    jump = World(pieces=(Piece(20e-6, 1e-10), Piece(400e-6, 2e-10, 33 * KIB)))
    sizes = [8 << step for step in range(24)]
    runs = [
        synthetic_run([case("all_reduce", size, ranks) for size in sizes], jump, launches=2, seed=ranks)
        for ranks in (3, 4, 5)
    ]
    carried = forecast(runs, 6, 40 * KIB)
    assert "sizes at a jump" in carried.held_out.no_test_of


def test_an_interval_is_that_of_the_carried_curve() -> None:
    runs = [run(ranks, Ran(sample_noise=0.02, launch_noise=0.02), launches=6) for ranks in (4, 8)]
    widths = []
    for ranks in (8, 16):
        seconds = forecast(runs, ranks, 3 * MIB).seconds
        widths.append(require(seconds.high) / require(seconds.low))
    assert widths[0] > 1.005
    assert widths[1] == pytest.approx(widths[0], rel=0.05)


def test_the_plot_has_the_carried_line_and_the_others_by_messages() -> None:
    runs = [run(ranks, Ran(), ops=("all_reduce", "ping_pong")) for ranks in (2, 4, 8)]
    data = measured_curves(read_results(runs), "all_reduce")
    shown = scaling(Ways(data), query(data, 16, [MIB]))
    assert [line.chosen for line in shown.lines].count(True) == 1
    for ranks, time in shown.lines[0].points:
        assert time.value == pytest.approx(Ran().seconds("all_reduce", MIB, range(ranks)), rel=0.05)
    ring = next(line for line in shown.lines if line.algorithm == "ring")
    without = measured_curves(read_results([run(ranks) for ranks in (2, 4, 8)]), "all_reduce")
    (alone,) = scaling(Ways(without), query(without, 16, [MIB])).lines
    assert alone.chosen
    assert len(ring.points) > 10


def test_a_segment_starts_with_the_rounds_of_its_first_size() -> None:
    """Rounds that become more with size are in the slope of the measured line, not in its α."""
    rising = replace(ROWS["all_reduce", "ring"], rounds=lambda n, _hosts, size: 2 * (n - 1) * (1 if size < MIB else 8))
    curve = fitted(ROWS["all_reduce", "ring"], 4, 1e-5, 1e-9)
    assert isinstance(curve.fit, Fit)
    segment = Segment(1e-4, 1e-9, KIB, SIZES[-1], ())
    curve = replace(curve, fit=replace(curve.fit, segments=(segment,), breaks_bytes=()))
    carry = require_type(
        Carry,
        Carrier((curve,), lambda shape, _: rising if shape == (4, 1) else ROWS["all_reduce", "ring"], None).carry(
            (8, 1), MIB
        ),
    )
    assert carry.rounds == pytest.approx(7 / 3)


def test_the_nearest_curve_that_ran_the_same_algorithm_is_carried() -> None:
    ring, tree = ROWS["all_reduce", "ring"], ROWS["all_reduce", "binomial-tree"]
    curves = tuple(fitted(model, ranks, 1e-5, 1e-9) for model, ranks in ((ring, 4), (tree, 8)))

    def ran(shape: tuple[int, int], _size: int) -> CostModel:
        return tree if shape == (8, 1) else ring

    carry = require_type(Carry, Carrier(curves, ran, None).carry((16, 1), MIB))
    assert carry.source.series.shape == (4, 1)
    other = require_type(Unavailable, Carrier(curves[1:], ran, None).carry((16, 1), MIB))
    assert other.code == "nothing-to-carry"


def test_messages_answer_the_sizes_of_which_no_curve_tells_whatever_is_asked_beside_them() -> None:
    """From a curve that does not grow with size: it is not carried beyond its sizes."""
    level = World(by_op={"all_reduce": (Piece(2e-3, -2e-12),), "ping_pong": (Piece(1e-5, 1e-9),)})
    sizes = tuple(64 << step for step in range(0, 20, 2))
    runs = [
        synthetic_run(
            [case(op, size, ranks) for op in ops for size in sizes],
            level,
            machine=Machine(usable_cores=64),
            launches=2,
            seed=ranks,
        )
        for ranks, ops in ((3, ("all_reduce", "ping_pong")), (4, ("all_reduce",)))
    ]
    prediction = answer(runs, 16, 64, 512 * MIB, 1024 * MIB)
    assert [size_forecast.basis for size_forecast in prediction.forecasts] == ["carried", "messages", "messages"]
    assert not prediction.unanswered
    for size_forecast in prediction.forecasts:
        alone = forecast(runs, 16, size_forecast.size_bytes)
        assert (alone.seconds, alone.basis, alone.held_out) == (
            size_forecast.seconds,
            size_forecast.basis,
            size_forecast.held_out,
        )
    with refused(AnalysisError, "no-slope"):
        answer(runs[1:], 8, 1 << 30)
