"""Resumed runs: which of their launches were resumed, and how to resume them."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from busbw.escape import as_argument
from busbw.runs.progress import progress_of
from busbw.runs.records import Ended, LaunchStarted
from busbw.runs.resume import command_resuming
from busbw.runs.store import StoredRun, usual_results_dir

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


def resumed_launches(stored: StoredRun) -> Iterator[tuple[LaunchStarted, Ended | None]]:
    """The launches that complete another launch, and those that started after an end of the run; each with this end."""
    end: Ended | None = None
    for place, row in enumerate(stored.rows):
        if isinstance(row, Ended):
            end = row
        elif isinstance(row, LaunchStarted):
            if row.resumes is not None or (end is not None and not _comes_next(stored, place, row, end)):
                yield row, end
            end = None


def _comes_next(stored: StoredRun, place: int, begun: LaunchStarted, end: Ended) -> bool:
    """Whether the launch begun at row ``place`` is simply the next of the plan, with all earlier ones complete."""
    until_then = progress_of(replace(stored, rows=stored.rows[:place]))
    between = datetime.fromisoformat(begun.started) - datetime.fromisoformat(end.ended)
    planned = end.status == "interrupted" and len(until_then.there) < until_then.planned
    return planned and not until_then.partial and between.total_seconds() <= SOON_SECONDS
