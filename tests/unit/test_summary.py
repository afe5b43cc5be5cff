from dataclasses import replace

import msgspec
import numpy as np
import pytest
from testing.narrow import require
from testing.synthetic import Piece, SyntheticEnd, World, case, synthetic_run, with_groups

from busbw.ops import OPS, SYNCHRONISING
from busbw.runs.records import JSON, GroupSamples, Measurement
from busbw_analysis.data.launches import all_drifts, all_modes, all_outliers
from busbw_analysis.data.load import pool
from busbw_analysis.data.summary import CaseSummary


def summary_of(
    op: str, size: int, world: World | None = None, *, launches: int = 3, samples: int = 40, **changes: JSON
) -> CaseSummary:
    run = synthetic_run([case(op, size, **changes)], world, launches=launches, samples=samples)
    return pool((run,)).summaries[0]


def test_synchronising_ops_are_those_of_the_instrument() -> None:
    assert {op.name for op in OPS.values() if op.synchronising} == SYNCHRONISING


def test_headline_is_the_median_of_launch_medians() -> None:
    run = synthetic_run([case("all_reduce", 1 << 20)], World(launch_noise=0.3), launches=5, samples=9)
    medians = [float(np.median(row.groups[0].slowest_ns)) for row in run.measurements]
    group = require(pool((run,)).summaries[0].only)
    assert group.time_ns == np.median(medians)
    assert group.launch_medians_ns == tuple(medians)
    assert group.algbw == pytest.approx((1 << 20) / np.median(medians) * 1e9)
    assert group.busbw == pytest.approx(1.5 * (group.algbw or 0))


def test_a_ping_pong_counts_half_a_round_trip() -> None:
    group = require(summary_of("ping_pong", 1 << 20, World(pieces=(Piece(1e-4, 1e-9),), sample_noise=0.0)).only)
    assert group.time_ns == pytest.approx(1e5 + (1 << 20), rel=1e-3)
    assert group.views[0].median_ns == pytest.approx(group.time_ns, rel=1e-3)


def test_one_rank_has_no_busbw_and_it_is_not_zero() -> None:
    group = require(summary_of("all_reduce", 1 << 20, ranks=1).only)
    assert group.busbw is None
    assert group.algbw is not None


def test_a_barrier_has_a_time_and_no_rate() -> None:
    group = require(summary_of("barrier", 0).only)
    assert (group.algbw, group.busbw) == (None, None)
    assert group.time_ns > 0


@pytest.mark.parametrize(
    ("launches", "kind"),
    [
        (1, "95 % within this launch"),
        (2, "range of launch medians"),
        (5, "range of launch medians"),
        (6, "95 % over launches"),
    ],
)
def test_the_interval_says_what_it_is(launches: int, kind: str) -> None:
    group = require(summary_of("all_reduce", 4096, World(launch_noise=0.1), launches=launches).only)
    assert group.interval.kind == kind
    assert require(group.interval.low_ns) <= group.time_ns <= require(group.interval.high_ns)


def test_one_launch_of_few_samples_has_no_interval() -> None:
    group = require(summary_of("all_reduce", 4096, launches=1, samples=5).only)
    assert (group.interval.kind, group.interval.low_ns) == ("none", None)


def test_split_groups_are_reported_each_and_in_total() -> None:
    summary = summary_of("all_gather", 1 << 20, group="div:2")
    assert [group.ranks for group in summary.groups] == [(0, 1), (2, 3)]
    assert summary.only is None
    assert summary.total is not None
    assert summary.total.busbw == pytest.approx(sum(group.busbw or 0 for group in summary.groups))
    assert summary.total.time_ns == max(group.time_ns for group in summary.groups)


def test_pairs_take_turns_and_have_no_total() -> None:
    summary = summary_of("pair_matrix", 1024)
    assert len(summary.groups) == 12
    assert summary.total is None


def test_skew_is_part_of_the_time_and_flagged() -> None:
    late = World(sample_noise=0.01, late_rank=2, late_seconds=20e-6)
    summary = summary_of("all_reduce", 64, late)
    group = require(summary.only)
    assert group.skew_share == pytest.approx(0.5, abs=0.05)
    assert group.fastest_ns == pytest.approx(20e3, rel=0.05)
    assert "skew>10%" in summary.flags
    assert group.views[2].late_count == group.samples
    assert group.views[2].median_ns < group.views[0].median_ns
    assert "skew>10%" not in summary_of("all_reduce", 64, World()).flags


def test_slow_mode_share_counts_samples_and_time() -> None:
    slow = World(pieces=(Piece(1e-4, 0.0),), sample_noise=0.01, slow_share=0.1, slow_seconds=4e-3)
    summary = summary_of("all_reduce", 64, slow, samples=400)
    group = require(summary.only)
    share = summary.groups.rows.slow.sum() / group.samples
    assert share == pytest.approx(0.1, abs=0.03)
    assert group.slow_time_share == pytest.approx(share * 4.1 / (share * 4.1 + (1 - share) * 0.1), rel=0.05)
    assert "outlier mode" in summary.flags
    assert "bimodal" not in summary.flags


def test_two_modes_are_found_with_their_centres_and_shares() -> None:
    generator = np.random.default_rng(1)
    samples = np.concatenate([generator.lognormal(np.log(2e5), 0.1, 300), generator.lognormal(np.log(4e6), 0.1, 200)])
    fast, slow, share = all_modes(generator.permutation(samples)[np.newaxis])[0]
    assert (fast, slow) == pytest.approx((2e5, 4e6), rel=0.05)
    assert share == pytest.approx(0.4, abs=0.01)


@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.5, 1.0])
def test_one_hump_is_not_called_two(sigma: float) -> None:
    assert np.isnan(all_modes(np.random.default_rng(2).lognormal(10, sigma, (50, 200)))).all()


def test_outliers_are_counted_and_nothing_is_dropped() -> None:
    samples = np.concatenate([np.linspace(90, 110, 95), [500.0] * 4, [1.0]])
    assert all_outliers(np.stack([samples, np.full(100, 7.0)])).tolist() == [5, 0]
    far = World(pieces=(Piece(1e-4, 0.0),), sample_noise=0.01, slow_share=0.1, slow_seconds=5e-5)
    summary = summary_of("all_reduce", 64, far, samples=400)
    group = require(summary.only)
    assert group.outlier_share == pytest.approx(0.1, abs=0.03)
    assert "outliers" in summary.flags
    assert "outliers" not in summary_of("all_reduce", 64, samples=400).flags


def test_a_level_that_moves_within_a_block_is_drift() -> None:
    generator = np.random.default_rng(3)
    steady = generator.lognormal(0, 0.02, 300)
    moving = steady * np.linspace(1, 1.2, 300)
    assert all_drifts(np.stack([steady, moving]), np.ones(2)).tolist() == [False, True]


def test_samples_that_know_of_their_neighbours_count_as_fewer() -> None:
    run = synthetic_run([case("all_reduce", 64)], launches=2, samples=4000)
    free = pool((run,)).summaries[0]

    def repeated(group: GroupSamples) -> GroupSamples:
        # Each sample stands for twenty: runs of equal values have an autocorrelation time of their length.
        return msgspec.structs.replace(group, slowest_ns=tuple(np.repeat(group.slowest_ns[::20], 20).tolist()))

    tied = pool((with_groups(run, repeated),)).summaries[0]
    assert free.only is not None
    assert tied.only is not None
    assert free.only.tau < 2
    assert free.groups.rows.effective.sum() > 4000
    assert tied.only.tau == pytest.approx(20, rel=0.3)
    assert tied.groups.rows.effective.sum() == pytest.approx(400, rel=0.3)
    assert ("autocorrelated" in tied.flags, "autocorrelated" in free.flags) == (True, False)


@pytest.mark.parametrize(("launches", "sure"), [(1, False), (5, False), (6, True)])
def test_the_mean_over_launches_has_an_interval_from_six_of_them_on(launches: int, sure: bool) -> None:  # noqa: FBT001
    group = require(summary_of("all_reduce", 4096, World(launch_noise=0.1), launches=launches).only)
    assert group.mean is not None
    assert group.p99 is not None
    assert group.mean.value == pytest.approx(np.mean(group.launch_means_ns))
    assert group.launch_keys == tuple((0, launch) for launch in range(launches))
    assert group.p99.value > group.mean.value
    assert (group.mean.low is not None) == sure
    assert (group.p99.low is not None) == sure


def test_p99_is_exceeded_by_one_sample_in_a_hundred() -> None:
    dataset = pool((synthetic_run([case("all_reduce", 4096)], World(sample_noise=0.3), launches=1, samples=1000),))
    group = require(dataset.summaries[0].only)
    assert group.p99 is not None
    ((_, _, block),) = dataset.samples.rows()
    assert isinstance(block, Measurement)
    assert sum(time / block.calls > group.p99.value for time in block.groups[0].slowest_ns) == 10


def test_unmeasured_cases_are_summarised_without_numbers() -> None:
    cases = [case("all_reduce", size) for size in (64, 128)]
    run = synthetic_run(cases, launches=1, end=SyntheticEnd(skipped={cases[1]: "not here"}))
    summary = pool((run,)).summaries[1]
    assert (summary.state, len(summary.groups), summary.check.state) == ("skipped", 0, "no data")


def test_no_rank_takes_longer_than_the_slowest_however_unequal_the_blocks() -> None:
    world = World(pieces=(Piece(1e-4, 0.0),), launch_noise=1.0, sample_noise=0.2)
    for summary in pool((synthetic_run([case("all_reduce", 1024)], world, launches=5, blocks=3),)).summaries:
        for group in summary.groups:
            assert all(0 < view.own_share <= 1 for view in group.views)


def test_launches_that_differ_are_not_taken_for_two_modes() -> None:
    """Each has one hump, some here and some there: pooled they would have two, and comparisons would go by means."""
    run = synthetic_run([case("all_reduce", 1 << 20)], World(sample_noise=0.02), launches=6, samples=40)

    slow = with_groups(
        run, lambda group: msgspec.structs.replace(group, slowest_ns=tuple(3 * time for time in group.slowest_ns))
    )
    rows = (other if getattr(row, "launch", 1) % 2 else row for row, other in zip(run.rows, slow.rows, strict=True))
    (summary,) = pool((replace(run, rows=tuple(rows)),)).summaries
    (group,) = summary.groups
    assert max(group.launch_medians_ns) > 2.5 * min(group.launch_medians_ns)
    assert group.modes is None
    assert "bimodal" not in summary.flags
    # A spread is that of a launch, not of the pot.
    assert require(group.spread) < 0.2
