"""Partners twice as far, or half as far, in every round, and how ranks beyond a power of two take part."""

from collections.abc import Iterator
from functools import partial

from busbw.ops.algorithms.base import Round, Slots, Transfer, every_rank, levels, same


def core(ranks: int) -> int:
    """The largest power of two that is not more than ``ranks``."""
    return 1 << (ranks.bit_length() - 1)


def distances(ranks: int) -> list[int]:
    """1, 2, 4 … below ``ranks``."""
    return [1 << level for level in range(levels(ranks))]


def halving(ranks: int) -> Iterator[Round]:
    """Recursive halving of a power of two of ranks: rank r ends with the sum of block r alone."""
    return (every_rank(ranks, partial(_halved, distance=far)) for far in reversed(distances(ranks)))


def doubling(ranks: int) -> Iterator[Round]:
    """Recursive doubling of a power of two of ranks: of block r, which rank r has, everybody ends with a copy."""
    return (every_rank(ranks, partial(_doubled, distance=near)) for near in distances(ranks))


def _halved(rank: int, distance: int) -> Transfer:
    """The half of what ``rank`` still adds up that is its partner's."""
    partner = rank ^ distance
    return same(rank, partner, aligned(partner, distance), adds=True)


def _doubled(rank: int, distance: int) -> Transfer:
    """All that ``rank`` has got."""
    return same(rank, rank ^ distance, aligned(rank, distance))


def aligned(rank: int, length: int) -> Slots:
    """The ``length`` slots, from a multiple of it on, that ``rank`` is among."""
    first = rank // length * length
    return tuple(range(first, first + length))


def fold(ranks: int, whole: Slots) -> Iterator[Round]:
    """The ranks beyond a power of two hand in their input."""
    middle = core(ranks)
    yield tuple(same(rank, rank - middle, whole, adds=True) for rank in range(middle, ranks))


def unfold(ranks: int, whole: Slots) -> Iterator[Round]:
    """They hear the result."""
    middle = core(ranks)
    yield tuple(same(rank - middle, rank, whole) for rank in range(middle, ranks))
