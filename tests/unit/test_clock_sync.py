"""Clocks of ranks, with scripted offsets, latencies and drifts: the truth lies within the bound, always."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.blocks import measured, quick
from testing.fakes import FakeBackend, FakeWorld, Script
from testing.narrow import require, require_type
from testing.synthetic import case

from busbw.measure import clock as clock_sync
from busbw.measure.bench import Bench
from busbw.measure.block import measure
from busbw.measure.clock import CommonClock, compare_all
from busbw.runs.records import Measurement, RankClock

SECOND_NS = 1_000_000_000
ROUNDING_NS = 2
"""A fake clock that drifts shows whole nanoseconds: one at each end of a comparison."""


def apart(size: int) -> tuple[str, ...]:
    return tuple(f"clock {rank}" for rank in range(size))


def on_all(world: FakeWorld, work: Callable[[FakeBackend], object]) -> list[object]:
    outcomes: list[object] = list(world.run(work))
    for outcome in outcomes:
        assert not isinstance(outcome, Exception), outcome
    return outcomes


def compared(world: FakeWorld, exchanges: int = 20) -> tuple[RankClock, ...]:
    """How all clocks stand, as every rank was told."""
    clocks = on_all(world, lambda backend: compare_all(backend, backend.clock, exchanges))
    assert all(rank_clocks == clocks[0] for rank_clocks in clocks)
    return require_type(tuple, clocks[0])


def uneven(seed: int, slowest_ns: int) -> Callable[[int, int, int], int]:
    """Latencies of which no two are the same: the way there takes another time than the way back."""

    def latency(source: int, to: int, number: int) -> int:
        generator = np.random.default_rng((seed, source, to, number))
        return int(generator.integers(0, slowest_ns) * (1 + source))

    return latency


@given(
    offsets=st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=7),
    seed=st.integers(0, 10**6),
    slowest=st.integers(1, 10**6),
    exchanges=st.integers(1, 12),
)
@settings(deadline=None, max_examples=60)
def test_the_offset_lies_within_the_bound_whatever_the_latencies(
    offsets: list[int], seed: int, slowest: int, exchanges: int
) -> None:
    world = FakeWorld(len(offsets), Script(offsets_ns=tuple(offsets), latency_ns=uneven(seed, slowest)))
    clocks = compared(world, exchanges)
    assert clocks[0] == RankClock(rank=0, offset_ns=0, error_ns=0, rtt_ns=0)
    for clock, ahead in zip(clocks, offsets, strict=True):
        assert abs(clock.offset_ns - (offsets[0] - ahead)) <= clock.error_ns


def test_even_latencies_give_the_offset_itself_and_half_a_round_trip_as_its_bound() -> None:
    clocks = compared(FakeWorld(2, Script(offsets_ns=(0, 777_777), latency_ns=lambda *_: 5_000)), 100)
    assert clocks[1].offset_ns == -777_777
    assert clocks[1].rtt_ns == 10_000
    # Two crystals may drift apart by 100 ppm between the exchange in the middle, which bounds it best, and the middle.
    assert clocks[1].error_ns == 5_000 + 1


def test_one_way_that_is_slow_shifts_the_offset_within_its_bound() -> None:
    clocks = compared(FakeWorld(2, Script(latency_ns=lambda source, *_: 9_000 if source else 1_000)), 10)
    assert clocks[1].offset_ns == 4_000
    assert 4_000 < clocks[1].error_ns <= 5_001


def test_more_exchanges_narrow_the_bound() -> None:
    few, many = (
        compared(FakeWorld(2, Script(latency_ns=uneven(1, 50_000))), exchanges)[1].error_ns for exchanges in (2, 100)
    )
    assert many < few / 2


# --- over ranks and hosts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaders", range(1, 10))
def test_the_tree_takes_as_many_rounds_as_the_hosts_have_binary_digits(leaders: int) -> None:
    exchanges, latency, rounds = 10, 5_000, (leaders - 1).bit_length()
    world = FakeWorld(2 * leaders, Script(latency_ns=lambda *_: latency))
    domains = tuple(f"host {rank // 2}" for rank in range(world.size))
    on_all(world, lambda backend: CommonClock(backend, backend.clock, domains).renew(exchanges))
    assert world.backends[0]._sent == rounds * (exchanges + 1), "stamps, and where it stands itself"
    spent = max(backend._true_ns() for backend in world.backends) - SECOND_NS
    assert spent <= rounds * (exchanges * 2 + 1) * latency


def test_ranks_beside_a_leader_inherit_its_offset_and_send_nothing() -> None:
    world = FakeWorld(6, Script(offsets_ns=(0, 0, 500, 500, 500, -70), latency_ns=uneven(3, 4_000)))
    domains = ("a", "a", "b", "b", "b", "c")

    def work(backend: FakeBackend) -> tuple[RankClock, ...] | None:
        common = CommonClock(backend, backend.clock, domains)
        common.renew()
        return common.ranks

    (first, *others) = on_all(world, work)
    assert others == [first] * 5
    assert isinstance(first, tuple)
    assert [clock.offset_ns for clock in first[:2]] == [0, 0]
    assert len({(clock.offset_ns, clock.error_ns, clock.rtt_ns) for clock in first[2:5]}) == 1
    assert [backend._sent > 0 for backend in world.backends] == [True, False, True, False, False, True]


@pytest.mark.parametrize("domains", [("a", "a", "a"), (None, "a", "a"), (None, None, None)])
def test_one_clock_or_an_unknown_one_exchanges_nothing(domains: Sequence[str | None]) -> None:
    world = FakeWorld(3, Script(offsets_ns=(0, 5, 5)))

    def work(backend: FakeBackend) -> tuple[bool, int | None, object]:
        common = CommonClock(backend, backend.clock, tuple(domains))
        common.renew()
        return common.comparable, common.error_ns(), common.ranks

    shared = None not in domains
    assert on_all(world, work) == [(shared, 0 if shared else None, None)] * 3
    assert [(backend._sent, backend.reductions) for backend in world.backends] == [(0, 0)] * 3


# --- over time -------------------------------------------------------------------------------------------------


def watched(backend: FakeBackend, points: int, every_ns: int, domains: Sequence[str] | None = None) -> CommonClock:
    """A common clock that was renewed ``points`` times, one in ``every_ns``."""
    common = CommonClock(backend, backend.clock, tuple(domains or apart(backend.size)))
    for number in range(points):
        if number:
            backend.clock.advance(every_ns)
        common.renew(10)
    return common


def test_the_bound_grows_by_100_ppm_as_long_as_nobody_has_watched() -> None:
    def work(backend: FakeBackend) -> list[int]:
        common = watched(backend, 19, SECOND_NS)
        errors = [common.error_ns() or 0]
        for _ in range(3):
            backend.clock.advance(SECOND_NS)
            errors.append(common.error_ns() or 0)
        return np.diff(errors).tolist()

    assert on_all(FakeWorld(2), work)[1] == [100_000] * 3


def test_clocks_go_on_drifting_while_they_are_compared() -> None:
    """The first exchange alone is fast and gives a bound of nothing: it was true then, and is not any more."""
    world = FakeWorld(2, Script(drifts_ppm=(0.0, 90.0), latency_ns=lambda *sent: SECOND_NS // 100 if sent[-1] else 0))
    root = world.backends[0]

    def work(backend: FakeBackend) -> int:
        common = watched(backend, 1, 0)
        here = backend.clock.now_ns()
        truth = round(backend._true_ns() * root._pace) + root._ahead_ns
        off = abs(int(common.common(np.asarray([here], dtype=np.int64))[0]) - truth)
        assert off <= (common.error_ns() or 0) + ROUNDING_NS
        return off

    assert on_all(world, work)[1] > 1_000, "or nothing was held here"  # type: ignore[operator]


def test_a_drift_that_was_fitted_leaves_room_for_the_temperature() -> None:
    def work(backend: FakeBackend) -> int:
        common = watched(backend, 40, SECOND_NS)
        before = common.error_ns() or 0
        backend.clock.advance(SECOND_NS)
        return (common.error_ns() or 0) - before

    growth = require_type(int, on_all(FakeWorld(2, Script(latency_ns=lambda *_: 100)), work)[1])
    assert 1_000 <= growth < 2_000, "1 ppm, and the little that 40 comparisons over 39 s leave open"


def test_too_short_a_time_gives_no_drift_however_many_points() -> None:
    def work(backend: FakeBackend) -> list[float | None]:
        return [clock.drift_ppm for clock in watched(backend, 40, SECOND_NS // 100).ranks or ()]

    assert on_all(FakeWorld(2, Script(drifts_ppm=(0.0, 30.0))), work) == [[None, None]] * 2


@pytest.mark.parametrize("drifts", [(0.0, 50.0, -50.0), (20.0, 20.0, -3.0)])
def test_a_drift_is_recovered_after_twenty_points_over_five_seconds(drifts: tuple[float, ...]) -> None:
    def work(backend: FakeBackend) -> list[float | None]:
        return [clock.drift_ppm for clock in watched(backend, 21, SECOND_NS * 3 // 10).ranks or ()]

    (first, *_) = on_all(FakeWorld(3, Script(drifts_ppm=drifts, offsets_ns=(0, 10**9, -5))), work)
    assert isinstance(first, list)
    assert first == pytest.approx([drifts[0] - drift for drift in drifts], abs=0.1)


@given(
    drifts=st.lists(st.floats(-45, 45), min_size=2, max_size=4),
    seed=st.integers(0, 10**6),
    slowest=st.integers(1, 10**5),
    points=st.sampled_from([1, 5, 21]),
    later=st.integers(0, 20 * SECOND_NS),
)
@settings(deadline=None, max_examples=25)
def test_a_moment_is_named_within_the_bound_whatever_the_drift(
    drifts: list[float], seed: int, slowest: int, points: int, later: int
) -> None:
    script = Script(drifts_ppm=tuple(drifts), latency_ns=uneven(seed, slowest))
    world = FakeWorld(len(drifts), script)
    root = world.backends[0]

    def work(backend: FakeBackend) -> tuple[int, int, int]:
        common = watched(backend, points, SECOND_NS * 3 // 10)
        backend.clock.advance(later)
        here = backend.clock.now_ns()
        there = int(common.common(np.asarray([here], dtype=np.int64))[0])
        assert abs(common.local(there) - here) <= 1
        truth = round(backend._true_ns() * root._pace) + root._ahead_ns
        return there, truth, common.error_ns() or 0

    for outcome in on_all(world, work):
        assert isinstance(outcome, tuple)
        there, truth, error = outcome
        assert abs(there - truth) <= error + ROUNDING_NS


@given(
    st.lists(st.integers(0, 5000), min_size=20, max_size=60), st.integers(0, 10**6), st.sampled_from(["ends", "any"])
)
def test_no_error_within_the_bounds_of_the_points_makes_the_drift_worse_than_its_bound(
    errors: list[int], seed: int, errs: str
) -> None:
    """The truth is no drift; the offsets err as they may, at worst to one side early and to the other one late."""
    generator = np.random.default_rng(seed)
    signs = (
        np.sign(np.arange(len(errors)) - len(errors) / 2) if errs == "ends" else generator.uniform(-1, 1, len(errors))
    )
    moments = np.sort(generator.integers(0, 10 * SECOND_NS, len(errors)))
    moments[-1] = moments[0] + 6 * SECOND_NS + moments[-1]
    points = [
        clock_sync._Point(int(at), int(sign * error), error, 0)
        for at, sign, error in zip(moments, signs, errors, strict=True)
    ]
    drift_ppm, unnoticed_ppm = clock_sync._fit(points)
    assert drift_ppm is not None
    assert abs(drift_ppm) <= unnoticed_ppm - clock_sync._WANDER_PPM + 1e-9


# --- what is measured by it ------------------------------------------------------------------------------------


def late_by(rank: int) -> int:
    return (0, 30_000, 90_000, 60_000)[rank]


@pytest.mark.parametrize("domains", [apart(4), ("a", "a", "b", "b")])
def test_skews_by_synchronised_clocks_are_the_truth_within_the_bound(domains: tuple[str, ...]) -> None:
    offsets = (0, 10**9, -(10**6), 5) if domains == apart(4) else (0, 0, 10**10, 10**10)
    script = Script(
        durations=lambda rank, _index, _case: 40_000 + 1_000 * rank,
        lateness=lambda rank, _number: late_by(rank),
        offsets_ns=offsets,
        latency_ns=uneven(4, 8_000),
    )
    made = measured(FakeWorld(4, script), case("all_reduce", 64), domains=domains)
    bound = require(made.clock_error_ns)
    assert 0 < bound < 20_000, "or nothing is held here"
    assert made.clocks is not None
    (group,) = made.groups
    assert set(group.last_rank or ()) == {2}
    for skew, span, left in zip(
        group.arrival_skew_ns or (), group.exit_span_ns or (), group.exit_skew_ns or (), strict=True
    ):
        assert abs(skew - 90_000) <= bound
        assert abs(span - 43_000) <= bound
        assert abs(left - 3_000) <= bound
    entries = np.asarray([rank.entries_ns for rank in group.per_rank])
    assert entries.min() == 0
    truth = np.asarray([late_by(rank) for rank in range(4)])[:, None]
    assert (np.abs((entries - entries[0]) - (truth - truth[0])) <= bound).all()


def test_exits_are_corrected_for_the_drift_of_a_long_sample() -> None:
    script = Script(
        durations=lambda *_: SECOND_NS, drifts_ppm=(0.0, 80.0), latency_ns=lambda *_: 500, offsets_ns=(0, 10**7)
    )

    def work(backend: FakeBackend) -> object:
        common = watched(backend, 21, SECOND_NS * 3 // 10)
        return measure(Bench(backend, backend.clock, quick(), common, 1), case("all_reduce", 64, 2), (), 0, 0)

    (made, _) = on_all(FakeWorld(2, script), work)
    assert isinstance(made, Measurement)
    assert made.clock_error_ns is not None
    assert made.clock_error_ns < 60_000, "80 µs are 80 ppm of a sample"
    assert max(made.groups[0].exit_skew_ns or ()) <= made.clock_error_ns
