"""When a run was broken off, how far it was, and when it was gone on with: said beside what is made of its launches."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from busbw.runs.progress import progress_of
from busbw.runs.records import Ended, LaunchStarted
from busbw.runs.store import StoredRun
from busbw_analysis.data.load import Dataset

SOON_SECONDS = 600.0
"""A launcher whose world is one launch ends the run after each of them, and the next one resumes it. So soon after, it
is no interruption that anybody has to be told of.
"""


def ended_in_words(stored: StoredRun) -> str:
    """How a run ended that is not complete, how many of its launches are, and how to measure the rest."""
    end, progress = stored.end, progress_of(stored)
    if end is None:
        text = f"Run {stored.run.id} has no end: it was killed, or it is still going on. What it finished is kept"
    else:
        text = f"Run {stored.run.id} {_ended(end)}{f': {end.reason}' if end.reason else ''}"
    if progress.complete >= progress.planned:
        return f"{text}."
    return f"{text}. {progress.in_words()}; busbw run --resume {stored.run.id} measures the rest."


def _ended(end: Ended) -> str:
    return end.status if end.status == "failed" else f"was {end.status}"


def resumptions(dataset: Dataset) -> Iterator[str]:
    """One text for each run that was resumed. Its launches are told apart by their numbers, like all others: fresh
    processes are another launch, also when they measure what an earlier one did not come to.
    """
    for stored in dataset.runs:
        told = list(_launches_that_went_on(stored))
        if told:
            yield (
                f"Run {stored.run.id} was resumed: {'; '.join(told)}. A launch that measures what another one left "
                "counts as a launch of its own: cases whose blocks are spread over both have one launch more, of fewer "
                "blocks."
            )


def _launches_that_went_on(stored: StoredRun) -> Iterator[str]:
    """Those that say whose blocks they measure, and those that began after an end of the run."""
    end: Ended | None = None
    for place, row in enumerate(stored.rows):
        if isinstance(row, Ended):
            end = row
        elif isinstance(row, LaunchStarted):
            if row.resumes is not None or (end is not None and not _comes_next(stored, place, row, end)):
                yield _in_words(stored, row, end)
            end = None


def _comes_next(stored: StoredRun, place: int, begun: LaunchStarted, end: Ended) -> bool:
    """Whether this is just the next launch of the plan, begun at row ``place``, where all before it were through."""
    until_then = progress_of(replace(stored, rows=stored.rows[:place]))
    between = datetime.fromisoformat(begun.started) - datetime.fromisoformat(end.ended)
    planned = end.status == "interrupted" and len(until_then.there) < until_then.planned
    return planned and not until_then.partial and between.total_seconds() <= SOON_SECONDS


def _in_words(stored: StoredRun, begun: LaunchStarted, end: Ended | None) -> str:
    blocks = sum(row.launch == begun.launch for row in stored.measurements)
    what = "is a new one" if begun.resumes is None else f"is what launch {begun.resumes + 1} had left"
    before = "" if end is None else f", after the run {_ended(end)} at {end.ended}"
    count = "1 block" if blocks == 1 else f"{blocks} blocks"
    return f"launch {begun.launch + 1} (begun {begun.started}, {count}) {what}{before}"
