"""The state of every case of the plan over all pooled runs: measured, failed, skipped or not reached."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from busbw.runs import store
from busbw.runs.progress import progress_of
from busbw.runs.records import Case, FailureCause
from busbw_analysis.data.grouped import by_key, grouped

CaseState = Literal["measured", "failed", "skipped", "not reached"]


@dataclass(frozen=True, slots=True)
class CaseRow:
    """One case of the plan and its state over all pooled runs.

    index: position in ``Dataset.cases``
    reasons: why it failed, was skipped or was not reached
    lost: launches of a measured case that failed for a transient reason and were not measured again
    cause: code of the first reason of a failed case; wrong data come first
    """

    index: int
    case: Case
    state: CaseState
    reasons: tuple[str, ...]
    lost: tuple[str, ...] = ()
    cause: FailureCause | None = None


def cases_of(runs: Iterable[store.StoredRun]) -> tuple[CaseRow, ...]:
    """The cases of all ``runs``, in the order of their plans."""
    outcomes = by_key((outcome.case, outcome) for stored in runs for outcome in _outcomes(stored))
    return tuple(_case_row(index, case, case_outcomes) for index, (case, case_outcomes) in enumerate(outcomes.items()))


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What one record says about the state of a case. ``lost``: a launch ended for a transient reason."""

    case: Case
    state: Literal["planned", "measured", "skipped", "failed", "lost"]
    reason: str = ""
    cause: FailureCause | None = None


def _outcomes(stored: store.StoredRun) -> Iterator[_Outcome]:
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


def _case_row(index: int, case: Case, outcomes: Iterable[_Outcome]) -> CaseRow:
    ordered = sorted(outcomes, key=lambda outcome: outcome.cause != "wrong_data")
    by_state = grouped(ordered, lambda outcome: outcome.state)
    reasons = {
        state: tuple(dict.fromkeys(outcome.reason for outcome in members)) for state, members in by_state.items()
    }
    # A failure outweighs successful launches: an op that once returned wrong data has no result.
    # A rank that died does not invalidate the launches before.
    if "failed" in reasons:
        return CaseRow(index, case, "failed", reasons["failed"], cause=by_state["failed"][0].cause)
    if "measured" in reasons:
        return CaseRow(index, case, "measured", reasons.get("skipped", ()), reasons.get("lost", ()))
    if "lost" in reasons:
        return CaseRow(index, case, "failed", reasons["lost"], cause=by_state["lost"][0].cause)
    if "skipped" in reasons:
        return CaseRow(index, case, "skipped", reasons["skipped"])
    return CaseRow(index, case, "not reached", ("the run ended before this case was measured",))
