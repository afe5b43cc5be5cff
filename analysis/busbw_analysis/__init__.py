"""busbw_analysis: reads and analyses run folders; it measures nothing and never imports torch.

In a notebook: ``import busbw_analysis as ba; ba.load("latest").table()``.
"""

from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from busbw_analysis.notebook import Run

__all__ = ["load"]


def load(
    *runs: "str | PathLike[str]",
    results_dir: "str | PathLike[str] | None" = None,
    force: bool = False,
    **facts: "str | int | None",
) -> "Run":
    """Load and analyse runs; several runs are pooled.

    runs: each a run folder, a log of another tool, the start or end of a run's name, or ``latest``.
    results_dir: the folder that contains the runs; by default ``$BUSBW_RESULTS_DIR``, else ``results``.
    force: pool runs even if their machines or settings differ.
    facts: facts that a log does not contain, by the fields of ``LogFacts``, such as ``op``, ``ranks``, ``hosts``.

    Raises StoreError if a run is not found, LogError for a log without necessary facts, UnlikeRuns for runs that
    may not be pooled, UsageError if no run is given.
    """
    from busbw_analysis.notebook import judged  # noqa: PLC0415 - imports numpy

    return judged(tuple(map(str, runs)), results_dir, force=force, facts=facts)
