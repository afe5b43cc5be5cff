"""Partners twice as far, or half as far, in every round, and how ranks beyond a power of two take part."""

from collections.abc import Iterator

from busbw.ops.algorithms.base import Round, Slots, every_turn, same


def core(ranks: int) -> int:
    """The largest power of two that is not more than ``ranks``."""
    return 1 << (ranks.bit_length() - 1)


def distances(ranks: int) -> list[int]:
    """1, 2, 4 … below ``ranks``: ⌈lg n⌉ of them."""
    return [1 << level for level in range((ranks - 1).bit_length())]


def halving(ranks: int) -> Iterator[Round]:
    """Recursive halving of a power of two of ranks: rank r ends with the sum of block r alone. It sends the half of
    what it still adds up that is its partner's.
    """
    return every_turn(
        ranks,
        reversed(distances(ranks)),
        lambda rank, far: same(rank, rank ^ far, aligned(rank ^ far, far), adds=True),
    )


def doubling(ranks: int) -> Iterator[Round]:
    """Recursive doubling of a power of two of ranks: of block r, which rank r has, everybody ends with a copy. A rank
    sends all that it has got.
    """
    return every_turn(ranks, distances(ranks), lambda rank, near: same(rank, rank ^ near, aligned(rank, near)))


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
