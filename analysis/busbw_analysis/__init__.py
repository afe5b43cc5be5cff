"""busbw_analysis: reads run folders and judges them; it measures nothing and never imports torch.

In a notebook: ``import busbw_analysis as ba; ba.load("latest").table()``.
"""

from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from busbw_analysis.notebook import Run

__all__ = ["load"]


def load(
    *runs: "str | PathLike[str]",
    results_dir: "str | PathLike[str]" = "results",
    force: bool = False,
    **said: "str | int | None",
) -> "Run":
    """The run that is named, judged: a folder, a log of another tool, the start or end of a name, or ``latest``.
    Several runs are pooled.

    results_dir: where runs are kept.
    force: pool runs although their machines or settings differ.
    said: of logs, what they do not say themselves: the fields of ``LogFacts``, such as ``op``, ``ranks``, ``hosts``.

    Raises StoreError for what is no run, LogError for a log that says too little, UnlikeRuns for runs that may not be
    pooled, UsageError without any.
    """
    from busbw_analysis.notebook import judged  # noqa: PLC0415 - pandas and scipy come with it

    return judged(tuple(map(str, runs)), results_dir, force=force, said=said)
