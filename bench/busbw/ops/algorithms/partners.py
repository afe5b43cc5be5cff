"""Recursive doubling and halving, and ranks beyond a power of two."""

from collections.abc import Iterator

from busbw.ops.algorithms.base import Round, Slots, every_turn, same


def core(ranks: int) -> int:
    """The largest power of two up to ``ranks``."""
    return 1 << (ranks.bit_length() - 1)


def distances(ranks: int) -> list[int]:
    """1, 2, 4, … below ``ranks``: ⌈lg n⌉ distances."""
    return [1 << level for level in range((ranks - 1).bit_length())]


def halving(ranks: int) -> Iterator[Round]:
    """Recursive halving of a power of two of ranks: rank r ends with the sum of block r. In each round it sends its
    partner's half of the blocks that it still adds up.
    """
    return every_turn(
        ranks,
        reversed(distances(ranks)),
        lambda rank, far: same(rank, rank ^ far, aligned(rank ^ far, far), adds=True),
    )


def doubling(ranks: int) -> Iterator[Round]:
    """Recursive doubling of a power of two of ranks: rank r starts with block r, and all end with all blocks. In each
    round a rank sends everything it has.
    """
    return every_turn(ranks, distances(ranks), lambda rank, near: same(rank, rank ^ near, aligned(rank, near)))


def aligned(rank: int, length: int) -> Slots:
    """The ``length`` consecutive slots around slot ``rank``, starting at a multiple of ``length``."""
    first = rank // length * length
    return tuple(range(first, first + length))


def fold(ranks: int, whole: Slots) -> Iterator[Round]:
    """Ranks beyond a power of two send their input to a partner."""
    middle = core(ranks)
    yield tuple(same(rank, rank - middle, whole, adds=True) for rank in range(middle, ranks))


def unfold(ranks: int, whole: Slots) -> Iterator[Round]:
    """Ranks beyond a power of two receive the result."""
    middle = core(ranks)
    yield tuple(same(rank - middle, rank, whole) for rank in range(middle, ranks))
