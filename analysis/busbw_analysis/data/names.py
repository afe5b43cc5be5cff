"""Names of groups of ranks."""

from collections.abc import Sequence


def statistic_in_words(statistic: str) -> str:
    """What another tool's number is, such as ``mean``; or that its log does not state it."""
    return "mean or median: not stated" if statistic == "unknown" else statistic


def rank_list(ranks: Sequence[int]) -> str:
    """The ranks of a group as text: ``0-3`` for three or more consecutive ranks, else ``0,2``."""
    ordered = list(ranks)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[0] + len(ordered))):
        return f"{ordered[0]}-{ordered[-1]}"
    return ",".join(str(rank) for rank in ordered)
