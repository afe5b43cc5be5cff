"""Who is called late: on data of which it is known who was, and on healthy data of every ugly kind that was seen."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from exhaustive import trials
from testing.narrow import require
from testing.synthetic import Machine, World, case, synthetic_run, with_blocks, with_groups

from busbw.runs.records import GroupSamples, Measurement
from busbw.runs.store import StoredRun
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.lateness import GroupLateness
from busbw_analysis.data.load import pool
from busbw_analysis.diagnosis.judge import Judgement

Floats = npt.NDArray[np.float64]
Arrivals = Callable[[np.random.Generator, int, int], Floats]
"""Random numbers, launch, samples → µs at which each rank comes (ranks × samples)."""

CASES = ((8, 300.0), (65536, 1000.0), (1 << 20, 4000.0))
"""Size and median time of the call alone, µs."""
SIZES = [64, 4096, 256 << 10, 4 << 20, 16 << 20]


def arriving(
    arrivals: Arrivals,
    ranks: int = 4,
    *,
    launches: int = 2,
    samples: int = 60,
    hosts: tuple[str, ...] = ("n0",),
    seed: int = 0,
    entries: bool = True,
    times: tuple[tuple[int, float], ...] = CASES,
) -> Judgement:
    """The judgement on a run in which the ranks come as told; every call is over some time after the last one came."""
    generator = np.random.default_rng(seed)
    cases = {case("all_reduce", size, ranks): micros for size, micros in times}
    run = synthetic_run(list(cases), machine=Machine(hosts=hosts), launches=launches, blocks=2, samples=samples)

    def seen(block: Measurement) -> Measurement:
        come = arrivals(generator, block.launch, samples) * 1e3
        alone = generator.lognormal(0, 0.5, samples) * cases[block.case] * 1e3
        return msgspec.structs.replace(block, groups=(_seen(block.groups[0], come, alone, entries=entries),))

    return judge(pool((with_blocks(run, seen),)))


def _seen(group: GroupSamples, come: Floats, alone: Floats, *, entries: bool) -> GroupSamples:
    leave = come.max(axis=0) + alone
    durations = leave - come
    start = np.arange(come.shape[1]) * 1e8
    whole = [tuple(int(value) for value in row) for row in (start + come - come.min())]
    return msgspec.structs.replace(
        group,
        slowest_ns=_whole(durations.max(axis=0)),
        fastest_ns=_whole(durations.min(axis=0)),
        fastest_rank=tuple(int(place) for place in durations.argmin(axis=0)),
        last_rank=tuple(int(place) for place in come.argmax(axis=0)),
        arrival_skew_ns=_whole(come.max(axis=0) - come.min(axis=0)),
        per_rank=tuple(
            msgspec.structs.replace(rank, entries_ns=whole[place] if entries else None)
            for place, rank in enumerate(group.per_rank)
        ),
    )


def _whole(values: Floats) -> tuple[int, ...]:
    return tuple(int(value) for value in np.maximum(np.rint(values), 1))


def flagged(judgement: Judgement) -> list[int]:
    return [member.rank for group in judgement.results.lateness for member in group.flagged]


def said(judgement: Judgement) -> str:
    return " ".join(finding.text for finding in judgement.findings if finding.code == "straggler")


def only(judgement: Judgement) -> GroupLateness:
    (group,) = judgement.results.lateness
    return group


def scattered(generator: np.random.Generator, ranks: int, samples: int) -> Floats:
    """What was measured with Gloo on cores that are shared: some 60 µs of scatter, and ticks of 4 ms now and then."""
    come = generator.exponential(60, (ranks, samples))
    return come + np.where(generator.random((ranks, samples)) < 0.015, 4000, 0)


def delayed(rank: int, share: float = 0.3, micros: float = 2000, ranks: int = 4) -> Arrivals:
    def arrivals(generator: np.random.Generator, _launch: int, samples: int) -> Floats:
        come = scattered(generator, ranks, samples)
        come[rank] += np.where(generator.random(samples) < share, micros, 0)
        return come

    return arrivals


def test_the_share_lies_within_its_interval_though_it_is_of_one_launch() -> None:
    def arrivals(generator: np.random.Generator, launch: int, samples: int) -> Floats:
        return delayed(3, share=0.9 if launch == 4 else 0.0)(generator, launch, samples)

    member = only(arriving(arrivals, launches=10)).members[3]
    assert member.share == pytest.approx(0.09, abs=0.03)
    assert require(member.low) <= member.share <= require(member.high)


# --- who is late is named --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "rank"), [(2, 0), (2, 1), (4, 0), (4, 3)])
@pytest.mark.parametrize("entries", [True, False])
def test_a_rank_that_is_late_in_some_samples_is_named_alone(ranks: int, rank: int, entries: bool) -> None:  # noqa: FBT001
    for seed in range(5):
        judgement = arriving(delayed(rank, ranks=ranks), ranks, seed=seed, entries=entries)
        assert flagged(judgement) == [rank]
        member = only(judgement).members[rank]
        assert member.share == pytest.approx(0.3, abs=0.1)
        assert member.median_ns == pytest.approx(2e6, rel=0.1)
        assert (member.cases, member.launches) == (3, 2)


def test_ranks_that_are_late_in_turns_do_not_hide_each_other() -> None:
    def arrivals(generator: np.random.Generator, _launch: int, samples: int) -> Floats:
        come = scattered(generator, 4, samples)
        for rank in (2, 3):
            come[rank] += np.where(generator.random(samples) < 0.4, 2000, 0)
        return come

    judgement = arriving(arrivals, hosts=("n3", "n4"))
    assert sorted(flagged(judgement)) == [2, 3]


# --- who is not, is not ----------------------------------------------------------------------------------------


def _first_released_last(generator: np.random.Generator, _launch: int, samples: int) -> Floats:
    """A barrier that rank 0 is the last to leave in half of all samples, by as much as ranks scatter anyway."""
    come = scattered(generator, 4, samples)
    come[0] += np.where(generator.random(samples) < 0.5, 60, 0)
    return come


def _spells(generator: np.random.Generator, _launch: int, samples: int) -> Floats:
    """A busy core: now and then a rank is some milliseconds late for a dozen samples in a row."""
    come = scattered(generator, 4, samples)
    for rank in range(4):
        if generator.random() < 0.25:
            start = int(generator.integers(samples))
            come[rank, start : start + 12] += 3000
    return come


def _heavy(generator: np.random.Generator, _launch: int, samples: int) -> Floats:
    return 50 * generator.pareto(1.2, (4, samples))


@pytest.mark.parametrize("arrivals", [_first_released_last, _spells, _heavy])
@pytest.mark.parametrize("entries", [True, False])
def test_nobody_is_accused_of_what_healthy_ranks_do(arrivals: Arrivals, entries: bool) -> None:  # noqa: FBT001
    wrong = [
        seed for seed in range(trials(8, 20)) if flagged(arriving(arrivals, launches=1, seed=seed, entries=entries))
    ]
    assert len(wrong) <= 1


@pytest.mark.parametrize("entries", [True, False])
def test_the_order_in_which_a_barrier_lets_its_ranks_go_is_no_lateness(entries: bool) -> None:  # noqa: FBT001
    """Two MPI ranks in shared memory: rank 1 last in every sample, by 0.8 µs, where a call takes 1.6."""

    def arrivals(generator: np.random.Generator, _launch: int, samples: int) -> Floats:
        return np.stack([generator.exponential(0.02, samples), 0.8 + generator.exponential(0.1, samples)])

    short = ((8, 1.6), (1024, 2.1))
    assert flagged(arriving(arrivals, ranks=2, times=short, entries=entries)) == []


@pytest.mark.parametrize("entries", [True, False])
def test_who_leaves_a_barrier_over_sockets_last_is_not_late(entries: bool) -> None:  # noqa: FBT001
    """Two Gloo ranks, seen: rank 1 last in most samples, by up to half of the 200 µs that the only case takes."""
    shares = [0, 0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98, 1]
    behind = [-90, -70, -15, 4, 18, 55, 72, 80, 100]

    def arrivals(generator: np.random.Generator, _launch: int, samples: int) -> Floats:
        by = np.interp(generator.random(samples), shares, behind)
        return np.stack([np.maximum(-by, 0), np.maximum(by, 0)])

    for seed in range(5):
        assert flagged(arriving(arrivals, ranks=2, times=((8, 170.0),), seed=seed, entries=entries)) == []
        late = delayed(1, ranks=2)
        assert flagged(arriving(late, ranks=2, times=((8, 170.0),), seed=seed, entries=entries)) == [1]


def test_one_launch_of_four_accuses_nobody() -> None:
    def arrivals(generator: np.random.Generator, launch: int, samples: int) -> Floats:
        return delayed(1, share=0.9 if launch == 2 else 0.0)(generator, launch, samples)

    assert flagged(arriving(arrivals, launches=4)) == []


@pytest.mark.parametrize("seed", range(4))
def test_nobody_is_accused_where_all_are_late_alike(seed: int) -> None:
    cases = [case("all_reduce", size) for size in SIZES]
    run = synthetic_run(cases, World(jitter_seconds=20e-6), launches=4, samples=100, seed=seed)
    assert flagged(judge(pool((run,)))) == []


@pytest.mark.parametrize(
    ("jitter_seconds", "late_seconds", "why"),
    [
        (0.0, 1e-6, "always last, but it costs 5 % of the time"),
        (40e-6, 30e-6, "last more often than chance, but by no more than is usual"),
    ],
)
def test_a_rank_that_is_a_little_late_is_not_accused(jitter_seconds: float, late_seconds: float, why: str) -> None:
    world = World(jitter_seconds=jitter_seconds, late_rank=1, late_seconds=late_seconds)
    judgement = judge(pool((synthetic_run([case("all_reduce", 64)], world, launches=4, samples=200),)))
    group = require(judgement.cases[0].only)
    assert group.views[1].late_count > 0.35 * group.samples, why
    assert flagged(judgement) == [], why


def test_nobody_is_accused_by_three_samples() -> None:
    for seed in range(20):
        run = synthetic_run([case("barrier", 0)], World(jitter_seconds=50e-6), launches=1, samples=3, seed=seed)
        assert flagged(judge(pool((run,)))) == []


def test_the_late_rank_of_an_op_that_does_not_synchronise_is_nobodys_business() -> None:
    run = synthetic_run([case("broadcast", 64)], World(late_rank=1, late_seconds=60e-6))
    assert judge(pool((run,))).results.lateness == ()


# --- without a common clock ------------------------------------------------------------------------------------


def swapped_late_ranks(run: StoredRun, last: int | None) -> StoredRun:
    """``run`` with rank 3 holding every shortest time, and rank ``last`` entering last by the clock if there is one."""

    def swapped(group: GroupSamples) -> GroupSamples:
        return msgspec.structs.replace(
            group,
            fastest_rank=(3,) * len(group.fastest_rank),
            last_rank=None if last is None else (last,) * len(group.fastest_rank),
            per_rank=tuple(msgspec.structs.replace(rank, entries_ns=None) for rank in group.per_rank),
        )

    return with_groups(run, swapped)


@pytest.mark.parametrize(("last", "named"), [(1, 1), (None, 3)])
def test_the_clock_says_who_came_last_and_the_shortest_time_only_without_it(last: int | None, named: int) -> None:
    world = World(late_rank=1, late_seconds=60e-6)
    run = synthetic_run([case("all_reduce", size) for size in SIZES[:2]], world, launches=4)
    judgement = judge(pool((swapped_late_ranks(run, last),)))
    assert flagged(judgement) == [named]
    assert ("shortest" in said(judgement)) == (last is None)
    group = require(judgement.cases[0].only)
    assert group.entry_known == (last is not None)
    assert group.views[named].late_count == group.samples


def test_the_shortest_time_of_some_samples_proves_nothing() -> None:
    world = World(jitter_seconds=5e-6, late_rank=1, late_seconds=60e-6, late_share=0.3, shared_clock=False)
    run = synthetic_run([case("all_reduce", size) for size in SIZES[:3]], world, launches=4, samples=100)
    assert flagged(judge(pool((run,)))) == []
    clocked = synthetic_run(
        [case("all_reduce", size) for size in SIZES[:3]], replace(world, shared_clock=True), launches=4, samples=100
    )
    assert flagged(judge(pool((clocked,)))) == [1]
