"""What overlaps, what disturbed, and whose clocks can be believed: runs whose truth is written down."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import pytest
from testing.narrow import require
from testing.synthetic import World, case, synthetic_run, with_blocks

from busbw.runs import store
from busbw.runs.records import GroupSamples, HostConditions, Measurement, OverlapSamples
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import pool
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.diagnosis.compare import compare
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.report import show
from busbw_analysis.report.to_terminal import render

SAMPLES = 40


def run_of(
    change: Callable[[Measurement], Measurement],
    launches: int = 6,
    mode: str = "isolated",
    blocks: int = 1,
    ops: Sequence[str] = ("all_reduce",),
) -> store.StoredRun:
    """A healthy run of one case of each of ``ops``, with ``change`` in every block."""
    cases = [case(op, 1 << 20, 2, mode=mode) for op in ops]
    stored = synthetic_run(cases, World(launch_noise=0.02), launches=launches, samples=SAMPLES, blocks=blocks)
    return with_blocks(stored, change)


def with_groups(block: Measurement, change: Callable[[GroupSamples], GroupSamples]) -> Measurement:
    return msgspec.structs.replace(block, groups=tuple(map(change, block.groups)))


def only(stored: store.StoredRun) -> CaseSummary:
    (summary,) = pool((stored,)).summaries
    return summary


def judged(stored: store.StoredRun) -> Judgement:
    return judge(pool((stored,)))


# --- overlap ---------------------------------------------------------------------------------------------------


def overlapped(pure: int, post: int, compute: int, wait: int, alone: int) -> Callable[[Measurement], Measurement]:
    def change(block: Measurement) -> Measurement:
        samples = OverlapSamples(
            pure_ns=(pure,) * SAMPLES,
            post_ns=(post,) * SAMPLES,
            compute_ns=(compute,) * SAMPLES,
            wait_ns=(wait,) * SAMPLES,
            exposed_ns=(post + wait,) * SAMPLES,
            compute_alone_ns=alone,
        )
        whole = post + compute + wait
        return with_groups(
            block,
            lambda group: msgspec.structs.replace(
                group, overlap=samples, slowest_ns=(whole,) * SAMPLES, fastest_ns=(whole,) * SAMPLES
            ),
        )

    return change


@pytest.mark.parametrize(
    ("post", "compute", "wait", "share", "slowdown"),
    [(0, 1000, 0, 1.0, 1.0), (100, 1000, 900, 0.0, 1.0), (50, 1500, 200, 0.75, 1.5), (900, 1000, 900, 0.0, 1.0)],
)
def test_overlap_is_what_post_and_wait_leave_of_the_call_alone(
    post: int, compute: int, wait: int, share: float, slowdown: float
) -> None:
    group = require(only(run_of(overlapped(1000, post, compute, wait, 1000), mode="overlap")).only)
    assert group.overlap is not None
    assert group.overlap.share == pytest.approx(share)
    assert group.overlap.low == pytest.approx(share)
    assert group.overlap.high == pytest.approx(share)
    assert (group.overlap.post_ns, group.overlap.wait_ns, group.overlap.pure_ns) == (post, wait, 1000)
    assert group.overlap.slowdown == pytest.approx(slowdown)
    # Most of such a sample is computation: it is no rate of anything, and has no curve.
    assert group.algbw is None
    assert group.busbw is None


@pytest.mark.parametrize(
    ("launches", "ends"), [(1, (None, None)), (2, (0.1, 0.2)), (5, (0.1, 0.5)), (6, (0.1357, 0.5643))]
)
def test_overlap_over_launches_is_a_median_with_an_interval_or_a_range(
    launches: int, ends: tuple[float | None, float | None]
) -> None:
    def change(block: Measurement) -> Measurement:
        return overlapped(1000, 0, 1000, 900 - 100 * block.launch, 1000)(block)

    group = require(only(run_of(change, launches, mode="overlap")).only)
    assert group.overlap is not None
    assert group.overlap.share == pytest.approx(0.1 * (launches + 1) / 2)
    for end, wanted in zip((group.overlap.low, group.overlap.high), ends, strict=True):
        assert end == (None if wanted is None else pytest.approx(wanted, abs=1e-4))


def test_the_slowdown_is_that_of_every_block_over_its_own_amount() -> None:
    """Each block has as much to compute as was found there: medians of all blocks would hold one against another."""

    def change(block: Measurement) -> Measurement:
        amount = (1000, 4000, 2000)[block.launch] * (1 + 3 * block.block)
        factor = (2.2, 1.2, 1.0)[block.launch]
        return overlapped(1000, 0, round(amount * factor), 0, amount)(block)

    overlap = require(only(run_of(change, 3, mode="overlap", blocks=3)).groups[0].overlap)
    assert overlap.slowdown == pytest.approx(1.2)
    assert overlap.slowdown_low == pytest.approx(1.0)
    assert overlap.slowdown_high == pytest.approx(2.2)


@pytest.mark.parametrize(
    ("alone", "flagged"), [(490, True), (510, False), (1000, False), (1990, False), (2010, True), (55_000, True)]
)
def test_a_launch_that_computed_much_more_or_less_than_the_call_takes_flags_its_case(
    alone: int, *, flagged: bool
) -> None:
    def change(block: Measurement) -> Measurement:
        own = alone if block.launch == 4 else 1000
        return overlapped(1000, 50, own, 200, own)(block)

    judgement = judged(run_of(change, mode="overlap"))
    assert ("unbalanced" in judgement.cases[0].flags) == flagged
    assert ("unbalanced" in render(show.show_blocks(show.show_rows(judgement)))) == flagged


# --- disturbance -----------------------------------------------------------------------------------------------


def host(*, foreign: float | None = 0.0, steal: float | None = 0.0) -> HostConditions:
    return HostConditions(
        host="node0",
        load_before=1.0,
        load_after=1.0,
        busy_share=0.5,
        foreign_share=foreign,
        steal_share=steal,
        switches=(0, 0),
    )


def under(conditions: HostConditions) -> Callable[[Measurement], Measurement]:
    return lambda block: msgspec.structs.replace(block, conditions=(conditions,))


def test_a_comparison_says_which_side_was_disturbed() -> None:
    quiet, busy = (run_of(under(host(foreign=foreign))) for foreign in (0.0, 0.5))
    busy = replace(busy, run=msgspec.structs.replace(busy.run, id="busy"))
    notices = compare(pool((quiet,)), pool((busy,))).notices
    assert [(notice.code, notice.text.startswith("side B:")) for notice in notices if "50%" in notice.text] == [
        ("disturbed", True)
    ]


def flagging(disturbed: int = 0, missed: int = 0) -> Callable[[Measurement], Measurement]:
    return lambda block: with_groups(
        block,
        lambda group: msgspec.structs.replace(
            group, disturbed=tuple(range(disturbed)), missed=tuple(range(SAMPLES - missed, SAMPLES))
        ),
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (under(host(foreign=0.2)), "other programs used 20% of the CPUs"),
        (under(host(steal=0.02)), "the hypervisor took 2.0% of the CPU time"),
        (flagging(missed=20), "a rank missed its window in 50% of the samples"),
    ],
)
def test_what_disturbed_a_case_is_said_with_its_size(change: Callable[[Measurement], Measurement], words: str) -> None:
    judgement = judged(run_of(change))
    assert "disturbed" in judgement.cases[0].flags
    (finding,) = (finding for finding in judgement.findings if finding.code == "disturbed")
    assert words[1:] in finding.text
    assert "disturbed" in render(show.show_blocks(show.show_rows(judgement)))


def test_a_stream_that_was_not_held_long_enough_is_no_window() -> None:
    setting = case("all_reduce", 1 << 20, 2, device="cuda", pre_enqueue=True)
    stored = synthetic_run([setting], launches=6, samples=SAMPLES)
    assert "50%" in only(with_blocks(stored, flagging(missed=20))).disturbance.in_words()


@pytest.mark.parametrize(
    "change",
    [
        under(host(foreign=0.05, steal=0.004)),
        under(host(foreign=None, steal=None)),
        flagging(disturbed=20, missed=4),
        lambda block: block,
    ],
)
def test_a_little_of_it_is_no_warning(change: Callable[[Measurement], Measurement]) -> None:
    judgement = judged(run_of(change))
    assert "disturbed" not in judgement.cases[0].flags
    assert not [finding for finding in judgement.findings if finding.code == "disturbed"]


def test_a_disturbed_sample_is_kept() -> None:
    with_it, without = (only(run_of(change)).only for change in (flagging(disturbed=30), flagging()))
    assert with_it is not None
    assert without is not None
    assert (with_it.samples, with_it.time_ns) == (without.samples, without.time_ns)


# --- clocks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "agree"), [(0.04, True), (0.06, False)])
def test_who_came_when_is_told_only_where_clocks_agree(share: float, agree: bool) -> None:  # noqa: FBT001
    time_ns = only(run_of(lambda block: block)).groups[0].time_ns

    def uncertain(block: Measurement) -> Measurement:
        return msgspec.structs.replace(block, clock_error_ns=round(share * time_ns))

    summary = only(run_of(uncertain))
    assert (summary.groups[0].skew_share is not None) == agree
    assert ("clock error" in summary.flags) != agree


def test_modes_starts_and_caches_are_curves_of_their_own() -> None:
    cases = [
        case("all_reduce", size, 2, **changes)
        for size in (1024, 1 << 20)
        for changes in ({}, {"mode": "pipelined"}, {"sync": "window"}, {"cache": "flushed"})
    ]
    judgement = judge(pool((synthetic_run(cases),)))
    assert sorted(curve.series.key.label for curve in judgement.curves) == [
        "all_reduce · float32 · sum · in place · 2 ranks",
        "all_reduce · float32 · sum · in place · flushed · 2 ranks",
        "all_reduce · float32 · sum · in place · pipelined · 2 ranks",
        "all_reduce · float32 · sum · in place · sync window · 2 ranks",
    ]
