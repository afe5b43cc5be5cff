"""Texts about interrupted and resumed runs: how far a run got, when it ended, and when it was resumed."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from busbw.escape import as_argument
from busbw.runs.progress import progress_of
from busbw.runs.records import Ended, LaunchStarted
from busbw.runs.resume import command_resuming
from busbw.runs.store import StoredRun, usual_results_dir
from busbw.units import counted

SOON_SECONDS = 600.0
"""If every launch is a job of its own, the run ends after each launch and the next job resumes it. A resumption this
soon is not reported as an interruption.
"""


def resuming(stored: StoredRun) -> str:
    """The command that measures the rest of a run; its folder is named unless it is in the usual place."""
    in_place = (
        stored.path.name == stored.run.id and stored.path.parent.parent.absolute() == usual_results_dir().absolute()
    )
    return command_resuming(stored.run, "" if in_place else as_argument(stored.path))


def ended_in_words(stored: StoredRun) -> tuple[str, ...]:
    """How an incomplete run ended, how many of its launches are complete, and how to measure the rest, as sentences
    without full stops.
    """
    end, progress = stored.end, progress_of(stored)
    if end is None:
        ended = [f"Run {stored.run.id} has no end: it was killed or is still running", "Its finished blocks are kept"]
    elif (log := stored.run.imported) is not None:
        ends = "reports a failure" if end.status == "failed" else "ends early"
        ended = [f"The log {log.file} {ends}{'' if end.reason is None else f': {end.reason}'}"]
    else:
        ended = [f"Run {stored.run.id} {'' if end.status == 'failed' else 'was '}{end.in_words()}"]
    incomplete = progress.complete < progress.planned and stored.run.imported is None
    return (*ended, *([f"{progress.in_words()}; {resuming(stored)} measures the rest"] if incomplete else []))


def resumptions(runs: Sequence[StoredRun]) -> Iterator[tuple[str, ...]]:
    """For each run that was resumed, sentences without full stops. Fresh processes are a new launch with its own
    number, even if they measure the blocks that an earlier launch did not reach.
    """
    separate = (
        "A launch that measures the remaining blocks of another counts as a separate launch: cases with blocks in both "
        "have one launch more, with fewer blocks each"
    )
    for stored in runs:
        resuming = list(_resuming_launches(stored))
        if resuming:
            yield f"Run {stored.run.id} was resumed: {'; '.join(resuming)}", separate


def _resuming_launches(stored: StoredRun) -> Iterator[str]:
    """The launches that complete another launch, and those that started after an end of the run."""
    end: Ended | None = None
    for place, row in enumerate(stored.rows):
        if isinstance(row, Ended):
            end = row
        elif isinstance(row, LaunchStarted):
            if row.resumes is not None or (end is not None and not _comes_next(stored, place, row, end)):
                yield _in_words(stored, row, end)
            end = None


def _comes_next(stored: StoredRun, place: int, begun: LaunchStarted, end: Ended) -> bool:
    """Whether the launch begun at row ``place`` is simply the next of the plan, with all earlier ones complete."""
    until_then = progress_of(replace(stored, rows=stored.rows[:place]))
    between = datetime.fromisoformat(begun.started) - datetime.fromisoformat(end.ended)
    planned = end.status == "interrupted" and len(until_then.there) < until_then.planned
    return planned and not until_then.partial and between.total_seconds() <= SOON_SECONDS


def _in_words(stored: StoredRun, begun: LaunchStarted, end: Ended | None) -> str:
    blocks = sum(row.launch == begun.launch for row in stored.measurements)
    what = "is new" if begun.resumes is None else f"measured the remaining blocks of launch {begun.resumes + 1}"
    before = (
        "" if end is None else f", after the run {'' if end.status == 'failed' else 'was '}{end.status} at {end.ended}"
    )
    count = counted(blocks, "block")
    return f"launch {begun.launch + 1} (started {begun.started}, {count}) {what}{before}"
