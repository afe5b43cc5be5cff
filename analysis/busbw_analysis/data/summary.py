"""What became of every case, and its numbers: one summary per group of ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from busbw.ops import LOCAL, PAIRED
from busbw.runs.records import Case, Check, Imported, LoopKind, Measurement
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
    "not checked",
]


@dataclass(frozen=True, slots=True)
class Total:
    """All groups of a split together: rates add up (B/s), the time is that of the slowest group (ns per call)."""

    time_ns: float
    algbw: float | None
    busbw: float | None
    wire_bytes: float


@dataclass(frozen=True, slots=True)
class CaseSummary:
    """One case of the plan: what became of it and, where it was measured, one summary per group of ranks.

    ``groups`` is empty unless the case was measured and never failed by its own doing: wrong data are no fast result,
    and the launches that went well stay in the run folder. ``total`` is there for concurrent groups only (not for the
    pair matrix, whose pairs take turns). ``check`` is ``verified``, ``wrong (what)``, ``not checked (reason)``
    or, when the case failed for another reason, ``failed (reason)``. ``loops`` have made the calls. ``lost`` says which
    launches of a measured case failed by no doing of it, and wait for ``--resume``.
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

    @property
    def only(self) -> GroupSummary | None:
        """The one group of an op on all ranks or on one pair; None for splits, the pair matrix and unmeasured cases."""
        return self.groups[0] if len(self.groups) == 1 else None


@once
def summarise(dataset: Dataset) -> tuple[CaseSummary, ...]:
    """Every case of ``dataset``, in the order of the plan, whatever became of it."""
    by_case = grouped(dataset.blocks, lambda block: block.case)
    pairs = by_key((case, (run, block)) for run, case, block in dataset.pair_blocks)
    told = by_key((case, (run, imported)) for run, case, imported in dataset.imported)
    summaries = (
        _pair_case(row, pairs[row.index])
        if row.index in pairs
        else _imported_case(row, told[row.index])
        if row.index in told
        else _case(row, by_case.get(row.index, []))
        for row in dataset.cases
    )
    shared = dataset.oversubscribed_hosts
    return tuple(
        replace(one, flags=(*one.flags, "oversubscribed"))
        if shared and shared.keys() & dataset.hosts_of(ranks_in(one.groups))
        else one
        for one in summaries
    )


def _pair_case(row: CaseRow, blocks: Sequence[tuple[int, PairBlock]]) -> CaseSummary:
    rows = [block for _, block in blocks]
    groups = PairGroups(row.case, blocks) if row.state == "measured" else ()
    return _summary(row, groups, rows)


def _case(row: CaseRow, blocks: Sequence[Block]) -> CaseSummary:
    by_ranks = grouped(blocks if row.state == "measured" else (), lambda block: block.samples.ranks)
    groups = tuple(summarise_group(row.case, ranks, members) for ranks, members in by_ranks.items())
    return _summary(row, groups, [block.measurement for block in blocks], blocks)


def _imported_case(row: CaseRow, told: Sequence[tuple[int, Imported]]) -> CaseSummary:
    """A case of another tool's log: its groups are made of what is printed, and nothing is made of samples."""
    by_ranks = grouped(told if row.state == "measured" else (), lambda one: one[1].ranks)
    groups = tuple(summarise_imported(row.case, ranks, members) for ranks, members in by_ranks.items())
    return _summary(row, groups, [one for _, one in told])


def _summary(
    row: CaseRow, groups: Groups, rows: Sequence[Measurement | Imported], blocks: Sequence[Block] = ()
) -> CaseSummary:
    measured = [one for one in rows if isinstance(one, Measurement)]
    disturbance = disturbance_of(blocks, [one for one in rows if isinstance(one, PairBlock)])
    return CaseSummary(
        index=row.index,
        case=row.case,
        state=row.state,
        reasons=row.reasons,
        check=_failure(row.reasons) if row.state == "failed" else _check([one.check for one in rows]),
        stop_reasons=tuple(sorted({one.stop_reason for one in measured})),
        groups=groups,
        total=_total(groups) if len(groups) > 1 and row.case.op not in PAIRED else None,
        flags=_flags(row.case, measured, groups, disturbance) if groups else (),
        disturbance=disturbance,
        loops=tuple(sorted({one.loop for one in measured})),
        lost=row.lost,
    )


def _failure(reasons: Sequence[str]) -> str:
    wrong = next((reason for reason in reasons if reason.startswith("wrong data")), None)
    if wrong is not None:
        return f"wrong ({wrong.removeprefix('wrong data').lstrip(': ') or 'no number given'})"
    return f"failed ({'; '.join(reasons)})"


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
    """The sum, or None when one of them does not exist: half a sum is no sum."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if len(known) == len(rates) else None


def _flags(case: Case, measured: Sequence[Measurement], groups: Groups, disturbance: Disturbance) -> tuple[Flag, ...]:
    """What a reader of one row must know, but for ``oversubscribed``, which the machine tells."""
    of = partial(of_groups, groups)
    overlaps = () if isinstance(groups, PairGroups) else [one.overlap for one in groups if one.overlap is not None]
    wanted: tuple[tuple[Flag, bool | np.bool_], ...] = (
        ("bimodal", has_modes(groups)),
        ("outlier mode", (of("slow_time_share") > 0.1).any()),
        # Ranks that copy wait for nobody, so when they come changes nothing.
        ("skew>10%", case.op not in LOCAL and (of("skew_share") > 0.1).any()),
        ("drift", of("drift").any()),
        ("autocorrelated", (of("tau") >= 5).any()),
        ("outliers", (of("outlier_share") > 0.05).any()),
        ("disturbed", disturbance.high),
        ("unbalanced", any(one.unbalanced for one in overlaps)),
        ("clock error", (of("clock_error_ns") > CLOCK_ERROR_SHARE * of("time_ns")).any()),
        ("excess traffic", (of("moved_factor") > 1).any()),
        ("not converged", any(one.stop_reason != "converged" for one in measured)),
    )
    return tuple(flag for flag, raised in wanted if raised)
