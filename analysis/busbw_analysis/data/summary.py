"""The summary of every case: its state, flags, and one summary per group of ranks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal, NamedTuple

import numpy as np

from busbw.ops import LOCAL, PAIRED
from busbw.runs.progress import progress_of
from busbw.runs.records import JSON, Case, Check, FailureCause, Imported, LoopKind, Measurement, NcclChoice
from busbw.runs.store import StoredRun
from busbw_analysis.data.facts import Facts
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.groups import CLOCK_ERROR_SHARE, Groups, GroupSummary, groups_of
from busbw_analysis.data.launches import LaunchTable

CaseState = Literal["measured", "failed", "skipped", "not reached"]
FLAGS: Final[dict[str, str]] = {
    "bimodal": "two groups of samples; the median may jump, so compare uses the mean",
    "outlier mode": "samples above 1 ms and 5 × the median take over 10 % of the time",
    "skew>10%": "first and last rank enter over 10 % of the call's time apart",
    "drift": "the first and the last third of a block differ; rerun when idle",
    "autocorrelated": "neighbouring samples are alike; 5 or more of them count as one",
    "outliers": "over 5 % of samples are outliers; trust the median, not the mean",
    "oversubscribed": "more ranks than cores, so ranks also wait for a core",
    "disturbed": "other load, or starts missed with --sync window; rerun when quiet",
    "unbalanced": "computation not 0.5 to 2 × the call; hidden share uncertain",
    "clock error": "clocks may differ by over 5 % of the time; arrival order unknown",
    "excess traffic": "moves more bytes than necessary, so it cannot reach the peak",
    "not converged": "a limit came before a narrow interval; try --max-seconds 2",
}
"""What each flag means, and what to do where that helps: one line of a terminal each."""

_SLOW_TIME: Final = 0.1
_SKEW: Final = 0.1
_OUTLIERS: Final = 0.05
_ALIKE: Final = 5
"""Limits of flags: shares of the time, of samples, and the autocorrelation time in samples."""


# Interference: no sample is removed; an affected case is flagged, so that its result is read with caution. Above these
# shares of foreign and stolen CPU time, launches were observed to differ (docs/method.md). A rank that loses its core
# is not counted: its library's own threads take the core, in most samples of a quiet machine.
_FOREIGN: Final = 0.06
_STOLEN: Final = 0.005
_MISSED: Final = 0.25


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Interference with one case, over all its blocks. Shares are fractions from 0 to 1.

    missed: share of samples in which a rank missed its window or, with ``pre_enqueue``, the GPU started too early
    pre_enqueue: whether the calls were enqueued before the GPU was allowed to start
    foreign, stolen: CPU time used by other programs, or taken by the hypervisor, on the worst host: median over the
        blocks that recorded it (None: no block did)
    throttled: reasons why GPUs ran below their full clock
    """

    missed: float
    pre_enqueue: bool
    foreign: float | None
    stolen: float | None
    throttled: tuple[str, ...]

    @property
    def high(self) -> bool:
        """Whether any limit is exceeded."""
        return bool(self.in_words())

    @property
    def loaded(self) -> bool:
        """Whether other programs, or the hypervisor, took much of the CPU time."""
        return (self.foreign or 0.0) > _FOREIGN or (self.stolen or 0.0) > _STOLEN

    def in_words(self) -> str:
        """The exceeded limits as text, worst first; empty when there are none."""
        what = "a GPU started before all calls were enqueued" if self.pre_enqueue else "a rank missed its window"
        phrases = [
            f"other programs used {self.foreign:.0%} of the CPUs" if (self.foreign or 0.0) > _FOREIGN else "",
            f"the hypervisor took {self.stolen:.1%} of the CPU time" if (self.stolen or 0.0) > _STOLEN else "",
            f"{what} in {self.missed:.0%} of the samples" if self.missed > _MISSED else "",
            f"GPUs were throttled ({', '.join(self.throttled)})" if self.throttled else "",
        ]
        return ", ".join(text for text in phrases if text)


def disturbance_of(measured: Sequence[Measurement], samples: int, missed: int) -> Disturbance:
    """The interference with the blocks of a case, of whose ``samples`` ``missed`` lack a start window."""
    reasons = {reason for row in measured for host in row.conditions for gpu in host.gpus for reason in gpu.throttled}
    return Disturbance(
        missed=missed / (samples or 1),
        pre_enqueue=any(row.case.pre_enqueue for row in measured),
        foreign=_on_worst_host(measured, "foreign_share"),
        stolen=_on_worst_host(measured, "steal_share"),
        throttled=tuple(sorted(reasons)),
    )


def _on_worst_host(measured: Iterable[Measurement], name: str) -> float | None:
    """The median over blocks of the highest share on any host; None if no block recorded one."""
    recorded = ([getattr(host, name) for host in row.conditions if getattr(host, name) is not None] for row in measured)
    highest = [max(shares) for shares in recorded if shares]
    return median(highest) if highest else None


@dataclass(frozen=True, slots=True)
class Total:
    """All concurrent groups together: rates (B/s) and bytes are sums, the time (ns per call) is the slowest group's."""

    time_ns: float
    algbw: float | None
    busbw: float | None
    wire_bytes: float


DataState = Literal["verified", "wrong", "not checked", "failed", "no data"]
"""``failed``: the case failed for another reason than wrong data; ``no data``: no launch checked any."""


@dataclass(frozen=True, slots=True)
class DataCheck:
    """The checks of a case's data over all launches; ``reasons``: what is wrong, or why data were not checked."""

    state: DataState
    reasons: tuple[str, ...] = ()

    @property
    def in_words(self) -> str:
        """``verified``, ``wrong data: …``, ``not checked (reason)``, ``failed (reason)``, or a dash without data."""
        if self.state == "no data":
            return "–"
        if self.state == "wrong":
            return self.reasons[0]
        return f"{self.state} ({'; '.join(self.reasons)})" if self.reasons else self.state

    @property
    def document(self) -> dict[str, JSON]:
        """The keys ``check`` (text) and ``check_state`` of a JSON object."""
        return {"check": self.in_words, "check_state": self.state}


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSummary:
    """One case of the plan: its state over all pooled runs and, if measured, one summary per group of ranks.

    index: position in ``Dataset.summaries``
    reasons: why it failed, was skipped or was not reached
    lost: launches of a measured case that failed for a transient reason and were not measured again
    cause: code of the first reason of a failed case; wrong data come first
    check: whether its data were right
    groups: empty unless ``state`` is measured; a failed case has no result, even if some launches succeeded
    wrong: the groups of a case with wrong data, for those who show times without a result; empty otherwise
    total: sum over concurrent groups; None for one group and for a pair matrix, whose pairs take turns
    flags: reasons for caution, of ``FLAGS``
    disturbance: system interference
    loops: which loops made the calls
    choices: what NCCL chose for the calls; several if blocks differ
    """

    index: int
    case: Case
    state: CaseState
    reasons: tuple[str, ...]
    lost: tuple[str, ...] = ()
    cause: FailureCause | None = None
    check: DataCheck
    groups: Groups
    wrong: Groups
    total: Total | None
    flags: tuple[str, ...]
    disturbance: Disturbance
    loops: tuple[LoopKind, ...] = ("python",)
    choices: tuple[NcclChoice, ...] = ()

    @property
    def only(self) -> GroupSummary | None:
        """The group, if there is exactly one; None for several groups, a pair matrix and a case without a result."""
        return self.groups[0] if len(self.groups) == 1 else None

    @property
    def choice(self) -> str | None:
        """What NCCL chose, in words."""
        return " or ".join(choice.in_words for choice in self.choices) or None


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What one record says about the state of a case. ``lost``: a launch ended for a transient reason."""

    case: Case
    state: Literal["planned", "measured", "skipped", "failed", "lost"]
    reason: str = ""
    cause: FailureCause | None = None


def _outcomes(stored: StoredRun) -> Iterator[_Outcome]:
    """Everything that a run records about the state of its cases."""
    yield from (_Outcome(case, "planned") for case in stored.run.cases)
    yield from (_Outcome(case, "measured") for case, _ in stored.checks)
    yield from (_Outcome(row.case, "skipped", row.reason) for row in stored.skipped)
    progress = progress_of(stored)
    for row in stored.failed:
        if not row.transient:
            yield _Outcome(row.case, "failed", row.error, row.cause)
        elif (row.case, row.block) in progress.lacking(progress.planned_as(row.launch)):
            reason = f"launch {row.launch + 1} of run {stored.run.id}: {row.error}"
            yield _Outcome(row.case, "lost", reason, row.cause)
        else:
            yield _Outcome(row.case, "planned")
    for case, check in stored.checks:
        if check.state == "wrong":
            reason = f"wrong data: {check.reason or f'{check.wrong_elements} elements differ'}"
            yield _Outcome(case, "failed", reason, "wrong_data")


class _State(NamedTuple):
    """The fields of a ``CaseSummary`` that the outcomes of its case decide."""

    state: CaseState
    reasons: tuple[str, ...]
    lost: tuple[str, ...] = ()
    cause: FailureCause | None = None


def _state_of(outcomes: Iterable[_Outcome]) -> _State:
    ordered = sorted(outcomes, key=lambda outcome: outcome.cause != "wrong_data")
    by_state = grouped(ordered, lambda outcome: outcome.state)
    reasons = {
        state: tuple(dict.fromkeys(outcome.reason for outcome in members)) for state, members in by_state.items()
    }
    # A failure outweighs successful launches: an op that once returned wrong data has no result.
    # A rank that died does not invalidate the launches before.
    if "failed" in reasons:
        return _State("failed", reasons["failed"], cause=by_state["failed"][0].cause)
    if "measured" in reasons:
        return _State("measured", reasons.get("skipped", ()), reasons.get("lost", ()))
    if "lost" in reasons:
        return _State("failed", reasons["lost"], cause=by_state["lost"][0].cause)
    if "skipped" in reasons:
        return _State("skipped", reasons["skipped"])
    return _State("not reached", ("the run ended before this case was measured",))


def summarise(runs: Sequence[StoredRun], tables: Sequence[LaunchTable], facts: Facts) -> tuple[CaseSummary, ...]:
    """Summaries of the cases of all ``runs``, in the order of their plans, including those without results.

    tables: the numbers of the launches of each run
    """
    outcomes = by_key((outcome.case, outcome) for stored in runs for outcome in _outcomes(stored))
    results = (row for stored in runs for row in stored.rows if isinstance(row, Measurement | Imported))
    rows = grouped(results, lambda row: row.case)
    parts = by_key(
        (stored.run.cases[number], (place, table.take(np.flatnonzero(table.case_index == number))))
        for place, (stored, table) in enumerate(zip(runs, tables, strict=True))
        for number in np.unique(table.case_index).tolist()
    )
    oversubscribed = facts.oversubscribed_hosts
    crowded = [host in oversubscribed for host in facts.hosts]
    return tuple(
        _summary(index, case, _state_of(of_case), rows.get(case, []), parts.get(case, []), crowded)
        for index, (case, of_case) in enumerate(outcomes.items())
    )


def _summary(
    index: int,
    case: Case,
    state: _State,
    results: Sequence[Measurement | Imported],
    tables: Sequence[tuple[int, LaunchTable]],
    crowded: Sequence[bool],
) -> CaseSummary:
    measured = [result for result in results if isinstance(result, Measurement)]
    groups = groups_of(index, case, tables if state.state == "measured" else ())
    samples, missed = (sum(int(getattr(table, name).sum()) for _, table in tables) for name in ("samples", "missed"))
    disturbance = disturbance_of(measured, samples, missed)
    return CaseSummary(
        **state._asdict(),
        index=index,
        case=case,
        check=_check(state, [result.check for result in results]),
        groups=groups,
        wrong=groups_of(index, case, tables if state.cause == "wrong_data" else ()),
        total=_total(groups) if len(groups) > 1 and _together(case, groups) else None,
        flags=_flags(case, measured, groups, disturbance, crowded) if groups else (),
        disturbance=disturbance,
        loops=tuple(sorted({result.loop for result in measured})),
        choices=tuple(dict.fromkeys(row.supplement for row in measured if isinstance(row.supplement, NcclChoice))),
    )


def _check(state: _State, checks: Sequence[Check]) -> DataCheck:
    if state.state == "failed":
        return DataCheck("wrong" if state.cause == "wrong_data" else "failed", state.reasons)
    reasons = dict.fromkeys(check.reason or "no reason given" for check in checks if check.state == "not checked")
    if reasons:
        return DataCheck("not checked", tuple(reasons))
    return DataCheck("verified" if checks else "no data")


def _together(case: Case, groups: Sequence[GroupSummary]) -> bool:
    """Whether all ``groups`` can have run at the same time: no rank is in two of them."""
    return case.op not in PAIRED and len(set(ranks := [rank for group in groups for rank in group.ranks])) == len(ranks)


def _total(groups: Sequence[GroupSummary]) -> Total:
    return Total(
        time_ns=max(group.time_ns for group in groups),
        algbw=_added([group.algbw for group in groups]),
        busbw=_added([group.busbw for group in groups]),
        wire_bytes=sum(group.wire_bytes for group in groups),
    )


def _added(rates: Sequence[float | None]) -> float | None:
    """The sum; None if any rate is None."""
    measured = [rate for rate in rates if rate is not None]
    return sum(measured) if len(measured) == len(rates) else None


def _flags(
    case: Case, measured: Sequence[Measurement], groups: Groups, disturbance: Disturbance, crowded: Sequence[bool]
) -> tuple[str, ...]:
    """The flags of a case."""
    overlaps = [group.overlap for group in groups if group.overlap] if case.mode == "overlap" else []
    candidates: tuple[tuple[str, bool | np.bool_], ...] = (
        ("bimodal", groups.bimodal.any()),
        ("outlier mode", (groups.slow_time_share > _SLOW_TIME).any()),
        # Local ops do not wait for other ranks, so arrival skew does not matter.
        ("skew>10%", case.op not in LOCAL and (groups.skew_share > _SKEW).any()),
        ("drift", groups.drift.any()),
        ("autocorrelated", (groups.tau >= _ALIKE).any()),
        ("outliers", (groups.outlier_share > _OUTLIERS).any()),
        ("disturbed", disturbance.high),
        ("unbalanced", any(overlap.unbalanced for overlap in overlaps)),
        ("clock error", (groups.clock_error_ns > CLOCK_ERROR_SHARE * groups.time_ns).any()),
        ("excess traffic", (groups.traffic_factor > 1).any()),
        ("not converged", any(row.stop_reason != "converged" for row in measured)),
        ("oversubscribed", any(rank < len(crowded) and crowded[rank] for rank in groups.members)),
    )
    return tuple(flag for flag, raised in candidates if raised)
