"""Names of groups of ranks."""

from collections.abc import Sequence


def rank_list(ranks: Sequence[int]) -> str:
    """The ranks of a group as text: ``0-3`` for three or more consecutive ranks, else ``0,2``."""
    ordered = list(ranks)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[0] + len(ordered))):
        return f"{ordered[0]}-{ordered[-1]}"
    return ",".join(str(rank) for rank in ordered)
