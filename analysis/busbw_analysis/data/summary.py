"""The summary of every case: its state, flags, and one summary per group of ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

import numpy as np

from busbw.ops import LOCAL, PAIRED
from busbw.runs.causes import WRONG_DATA
from busbw.runs.records import Case, Check, FailureCause, Imported, LoopKind, Measurement
from busbw_analysis.data.disturbance import Disturbance, disturbance_of
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.groups import GroupSummary, summarise_group, summarise_imported
from busbw_analysis.data.load import Block, CaseRow, CaseState, Dataset, once
from busbw_analysis.data.pair_columns import PairBlock
from busbw_analysis.data.pair_groups import Groups, PairGroups, has_modes, of_groups, ranks_in
from busbw_analysis.data.pair_numbers import CLOCK_ERROR_SHARE

Flag = Literal[
    "bimodal",
    "outlier mode",
    "skew>10%",
    "drift",
    "autocorrelated",
    "outliers",
    "oversubscribed",
    "disturbed",
    "unbalanced",
    "clock error",
    "excess traffic",
    "not converged",
]

FLAGS: Final[dict[Flag, str]] = {
    "bimodal": "two groups of samples; the median may jump, so compare uses the mean",
    "outlier mode": "samples above 1 ms and 5 × the median take over 10 % of the time",
    "skew>10%": "ranks enter the call more than 10 % of its time apart",
    "drift": "the first and the last third of a block differ; rerun when idle",
    "autocorrelated": "neighbouring samples are alike; 5 or more of them count as one",
    "outliers": "over 5 % of samples are outliers; trust the median, not the mean",
    "oversubscribed": "more ranks than cores, so ranks also wait for a core",
    "disturbed": "other load on the machine, or missed starts; rerun when it is quiet",
    "unbalanced": "computation not 0.5 to 2 × the call's time; hidden is uncertain",
    "clock error": "clocks may differ by over 5 % of the time; arrival order unknown",
    "excess traffic": "moves more bytes than necessary, so it cannot reach the peak",
    "not converged": "a limit came before a narrow interval; try --max-seconds 2",
}
"""What each flag means, and what to do where that helps: one line of a terminal each."""


@dataclass(frozen=True, slots=True)
class Total:
    """All concurrent groups together: rates (B/s) and bytes are sums, the time (ns per call) is the slowest group's."""

    time_ns: float
    algbw: float | None
    busbw: float | None
    wire_bytes: float


@dataclass(frozen=True, slots=True)
class CaseSummary:
    """One case of the plan: its state and, if measured, one summary per group of ranks.

    index, case, state, reasons, lost, cause: from ``CaseRow``
    check: ``verified``, ``wrong (what)``, ``not checked (reason)`` or, for another failure, ``failed (reason)``
    stop_reasons: why its blocks ended
    groups: empty unless ``state`` is measured; a failed case has no result, even if some launches succeeded
    total: sum over concurrent groups; None for one group and for a pair matrix, whose pairs take turns
    flags: reasons for caution
    disturbance: system interference
    loops: which loops made the calls
    """

    index: int
    case: Case
    state: CaseState
    reasons: tuple[str, ...]
    check: str
    stop_reasons: tuple[str, ...]
    groups: Groups
    total: Total | None
    flags: tuple[Flag, ...]
    disturbance: Disturbance
    loops: tuple[LoopKind, ...] = ("python",)
    lost: tuple[str, ...] = ()
    cause: FailureCause | None = None

    @property
    def only(self) -> GroupSummary | None:
        """The group, if there is exactly one; None for several groups, a pair matrix and a case without a result."""
        return self.groups[0] if len(self.groups) == 1 else None


@once
def summarise(dataset: Dataset) -> tuple[CaseSummary, ...]:
    """Summaries of all cases of ``dataset``, in the order of the plan, including those without results."""
    blocks = grouped(dataset.blocks, lambda block: block.case)
    pairs = by_key((case, (run, block)) for run, case, block in dataset.pair_blocks)
    imported = by_key((case, (run, row)) for run, case, row in dataset.imported)
    summaries = (
        _summary(row, blocks.get(row.index, []), pairs.get(row.index, []), imported.get(row.index, []))
        for row in dataset.cases
    )
    shared = dataset.oversubscribed_hosts
    return tuple(
        replace(summary, flags=(*summary.flags, "oversubscribed"))
        if shared and shared.keys() & dataset.hosts_of(ranks_in(summary.groups))
        else summary
        for summary in summaries
    )


def _summary(
    row: CaseRow,
    blocks: Sequence[Block],
    pairs: Sequence[tuple[int, PairBlock]],
    imported: Sequence[tuple[int, Imported]],
) -> CaseSummary:
    """Summarise a case from its results, which are all of one kind."""
    groups: Groups = ()
    if row.state == "measured" and pairs:
        groups = PairGroups(row.case, pairs)
    elif row.state == "measured":
        measured_by = grouped(blocks, lambda block: block.samples.ranks)
        printed_by = grouped(imported, lambda item: item[1].ranks)
        groups = (
            *(summarise_group(row.case, ranks, members) for ranks, members in measured_by.items()),
            *(summarise_imported(row.case, ranks, members) for ranks, members in printed_by.items()),
        )
    pair_blocks = [block for _, block in pairs]
    measured = [*(block.measurement for block in blocks), *pair_blocks]
    checks = [*(record.check for record in measured), *(result.check for _, result in imported)]
    disturbance = disturbance_of(blocks, pair_blocks)
    return CaseSummary(
        index=row.index,
        case=row.case,
        state=row.state,
        reasons=row.reasons,
        check=_failure(row) if row.state == "failed" else _check(checks),
        stop_reasons=tuple(sorted({record.stop_reason for record in measured})),
        groups=groups,
        total=_total(groups) if len(groups) > 1 and row.case.op not in PAIRED else None,
        flags=_flags(row.case, measured, groups, disturbance) if groups else (),
        disturbance=disturbance,
        loops=tuple(sorted({record.loop for record in measured})),
        lost=row.lost,
        cause=row.cause,
    )


def _failure(row: CaseRow) -> str:
    if row.cause == "wrong_data":
        return f"wrong ({row.reasons[0].removeprefix(WRONG_DATA).lstrip(': ') or 'no number given'})"
    return f"failed ({'; '.join(row.reasons)})"


def _check(checks: Sequence[Check]) -> str:
    reasons = list(dict.fromkeys(check.reason or "no reason given" for check in checks if check.state == "not checked"))
    if reasons:
        return f"not checked ({'; '.join(reasons)})"
    return "verified" if checks else "–"


def _total(groups: Sequence[GroupSummary]) -> Total:
    return Total(
        time_ns=max(group.time_ns for group in groups),
        algbw=_added([group.algbw for group in groups]),
        busbw=_added([group.busbw for group in groups]),
        wire_bytes=sum(group.wire_bytes for group in groups),
    )


def _added(rates: Sequence[float | None]) -> float | None:
    """The sum; None if any rate is None."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if len(known) == len(rates) else None


def _flags(case: Case, measured: Sequence[Measurement], groups: Groups, disturbance: Disturbance) -> tuple[Flag, ...]:
    """The flags of a case, except ``oversubscribed``, which depends on the hosts."""
    of = partial(of_groups, groups)
    overlaps = () if isinstance(groups, PairGroups) else [group.overlap for group in groups if group.overlap]
    wanted: tuple[tuple[Flag, bool | np.bool_], ...] = (
        ("bimodal", has_modes(groups)),
        ("outlier mode", (of("slow_time_share") > 0.1).any()),
        # Local ops do not wait for other ranks, so arrival skew does not matter.
        ("skew>10%", case.op not in LOCAL and (of("skew_share") > 0.1).any()),
        ("drift", of("drift").any()),
        ("autocorrelated", (of("tau") >= 5).any()),
        ("outliers", (of("outlier_share") > 0.05).any()),
        ("disturbed", disturbance.high),
        ("unbalanced", any(overlap.unbalanced for overlap in overlaps)),
        ("clock error", (of("clock_error_ns") > CLOCK_ERROR_SHARE * of("time_ns")).any()),
        ("excess traffic", (of("traffic_factor") > 1).any()),
        ("not converged", any(record.stop_reason != "converged" for record in measured)),
    )
    return tuple(flag for flag, raised in wanted if raised)
