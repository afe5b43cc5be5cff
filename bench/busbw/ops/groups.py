"""Splits of the world into groups (semantics of nccl-tests), and rounds of disjoint pairs."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import lru_cache

from busbw.errors import UsageError

Ranks = tuple[int, ...]
Round = tuple[Ranks, ...]

ALL = "all"
EACH = "each"
"""Every rank alone, one after the other: one case per rank."""
ASKED = "asked"
"""The groups are chosen while the run measures (``runs.asked``)."""
# 010 is 8 in C and 10 to people, so it is refused.
_MASK = re.compile(r"(and|or|mod|div):(0x[0-9a-f]{1,8}|0|[1-9][0-9]{0,8})", re.IGNORECASE | re.ASCII)
_LIST = re.compile(r"[0-9]{1,9}([,;][0-9]{1,9})*+")

_COLOUR: dict[str, Callable[[int, int], int]] = {
    "and": lambda rank, value: rank & value,
    "or": lambda rank, value: rank | value,
    "mod": lambda rank, value: rank % value,
    "div": lambda rank, value: rank // value,
}


def groups_in_words(spec: str) -> str:
    """What tables call the groups of a specification: ``groups div:2``; empty for the one group of all ranks."""
    return {ALL: "", ASKED: "listed groups"}.get(spec, f"groups {spec}")


@lru_cache(maxsize=4)  # all cases of a sweep use the same split, which takes 0.1 s for the most ranks
def split_world(spec: str, ranks: int) -> Round:
    """The groups into which ``spec`` splits ranks 0 … ``ranks`` − 1.

    ``all``, and ``asked``, whose groups are not known before; ``div:2``, ``mod:2``, ``and:0x7``, ``or:0x7``: ranks with
    the same value form a group (NCCL_TESTS_SPLIT); or a list, ``0,1;2,3``: unlisted ranks stay idle. Raises UsageError
    for any other text, for a rank that does not exist, and for a rank that is listed twice.
    """
    if spec in {ALL, ASKED}:
        return (tuple(range(ranks)),)
    mask = _MASK.fullmatch(spec)
    if mask is not None:
        return _by_colour(spec, mask[1].lower(), int(mask[2], 0), ranks)
    if not _LIST.fullmatch(spec.replace(" ", "")):
        raise UsageError(
            f"groups {spec!r:.60} is not a split; use all, each, div:N, mod:N, and:MASK, or:MASK, or a list "
            "such as 0,1;2,3"
        )
    groups = tuple(tuple(int(rank) for rank in part.split(",")) for part in spec.replace(" ", "").split(";"))
    named = [rank for group in groups for rank in group]
    unknown = sorted({rank for rank in named if rank >= ranks})
    twice = sorted(rank for rank, times in Counter(named).items() if times > 1)
    if unknown or twice:
        problem = f"ranks {unknown!s:.60} do not exist" if unknown else f"ranks {twice!s:.60} are listed twice"
        raise UsageError(f"groups {spec!r:.60}: {problem}; use ranks 0 to {ranks - 1}, each once")
    return groups


def in_turn(spec: str, ranks: int) -> tuple[str, ...]:
    """The splits of ``spec``, run one after the other: ``each`` gives one per rank."""
    return tuple(map(str, range(ranks))) if spec == EACH else (spec,)


def _by_colour(spec: str, how: str, value: int, ranks: int) -> Round:
    if value == 0 and how in {"mod", "div"}:
        raise UsageError(f"groups {spec!r:.60}: the divisor must be above 0")
    colours: defaultdict[int, list[int]] = defaultdict(list)
    for rank in range(ranks):
        colours[_COLOUR[how](rank, value)].append(rank)
    return tuple(tuple(members) for _, members in sorted(colours.items()))


def pair_rounds(members: Ranks, *, together: bool) -> tuple[Round, ...]:
    """Every ordered pair of ``members`` once, in rounds.

    ``together``: round-robin tournament (circle method): pairs of a round are disjoint and run concurrently; n − 1
    rounds for even n, n for odd n, each in both directions. Otherwise one pair per round.
    """
    circle: list[int | None] = [*members, *([None] if len(members) % 2 else [])]
    rounds: list[Round] = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairings = zip(circle[:half], reversed(circle[half:]), strict=True)
        pairs = tuple((first, second) for first, second in pairings if first is not None and second is not None)
        rounds += [pairs, tuple((second, first) for first, second in pairs)]
        circle = [circle[0], circle[-1], *circle[1:-1]]
    if together:
        return tuple(rounds)
    return tuple((pair,) for pairs in rounds for pair in pairs)


def number_of_rounds(members: int, *, together: bool) -> int:
    """Number of rounds of ``pair_rounds``, without building them."""
    return 2 * (members - 1 + members % 2) if together else members * (members - 1)
