"""What costs are counted with: how many rounds, blocks and sums there are for n ranks."""

from typing import Final

CHAN: Final = "Chan et al. 2007"
THAKUR: Final = "Thakur et al. 2005"
RABENSEIFNER: Final = "Rabenseifner 2004"
BRUCK: Final = "Bruck et al. 1997"
SANDERS: Final = "Sanders et al. 2009"
PAT: Final = "Jeaugey 2025 (arXiv 2506.20252), with buffers for all blocks of a round"

LEVELS: Final = "g = n/k on each host, α_i and β_i inside it, a network card for each (g β where they share one)"
"""What the formulas of algorithms that know hosts have in common."""

SEGMENTS: Final = 8
"""Of a chain and of each tree where they are pipelined."""


def up(ranks: int, *_: float) -> int:
    """⌈lg n⌉."""
    return (ranks - 1).bit_length()


def down(ranks: int, *_: float) -> int:
    """⌊lg n⌋."""
    return ranks.bit_length() - 1


def is_power(ranks: int) -> bool:
    """Whether n is a power of two."""
    return up(ranks) == down(ranks)


def share(ranks: int, *_: float) -> float:
    """(n−1)/n."""
    return (ranks - 1) / ranks


def one(ranks: int, *_: float) -> float:
    """One, unless there is nobody to send to."""
    return 1.0 if ranks > 1 else 0.0


def two(ranks: int, *_: float) -> float:
    """Two, unless there is nobody to send to."""
    return 2 * one(ranks)


def half(ranks: int, *_: float) -> float:
    """n/2 of an even number, nothing of one rank."""
    return ranks // 2


def others(ranks: int, *_: float) -> float:
    """n−1."""
    return ranks - 1


def twice_the_others(ranks: int, *_: float) -> float:
    """2(n−1)."""
    return 2 * (ranks - 1)


def twice_the_share(ranks: int, *_: float) -> float:
    """2(n−1)/n."""
    return 2 * share(ranks)


def twice_up(ranks: int, *_: float) -> float:
    """2⌈lg n⌉."""
    return 2 * up(ranks)


def depth(ranks: int, children: int = 2) -> int:
    """Levels below the root of a tree that is filled level by level."""
    levels_below, ranks_in_it, width = 0, 1, 1
    while ranks_in_it < ranks:
        levels_below, width = levels_below + 1, width * children
        ranks_in_it += width
    return levels_below


def children_in_a_row(ranks: int, children: int = 2) -> float:
    """Messages in a row on the way up a tree: ``children`` a level, in the last one no more than there are."""
    first, width, total = 1, children, 0
    while first < ranks:
        total += min(children, ranks - first)
        first, width = first + width, width * children
    return total


def down_a_tree_at_once(ranks: int, *_: float) -> int:
    """Messages in a row down a binomial tree whose rank i sends to all i + 2^j, 2^j > i, at once: they share its link,
    and each has come when the last one has. Most wait on the way 0, 1, 3, 7 …, where rank 2^j − 1 sends to
    ⌊lg(n − 2^j)⌋ − j + 1 ranks.
    """
    return sum(down(ranks - (1 << level)) - level + 1 for level in range(down(ranks)))


def bits(ranks: int) -> float:
    """Σ over bits j of #{i < n : bit j of i is set}: n/2 lg n for a power of two."""
    return sum(number.bit_count() for number in range(ranks))


def below(ranks: int, *_: float) -> float:
    """Blocks in a binomial scatter, over n: each rank hears of itself and of all below it."""
    return sum(min(rank & -rank, ranks - rank) for rank in range(1, ranks)) / ranks


def folds(ranks: int, power: float, other: float) -> float:
    """One number where n is a power of two, another one where ranks have to fold in."""
    return power if is_power(ranks) else other


def core(ranks: int) -> int:
    """The largest power of two that is not more than n."""
    return 1 << down(ranks)


def in_pairs(ranks: int) -> int:
    """Blocks that the busiest rank exchanges in recursive halving, where of the first 2r of n = 2^⌊lg n⌋ + r ranks each
    second one adds up for its neighbour, too: Σ of d + min(r, d) over d = 1, 2, 4 … below 2^⌊lg n⌋.
    """
    rest = ranks - core(ranks)
    return sum((1 << level) + min(rest, 1 << level) for level in range(down(ranks)))


def powers_of_two(ranks: int, *_: float) -> bool:
    """Whether n is a power of two, and more than one."""
    return ranks > 1 and is_power(ranks)


def even(ranks: int, *_: float) -> bool:
    """Whether n is even."""
    return ranks > 1 and ranks % 2 == 0


def several_hosts(ranks: int, hosts: int, _size_bytes: float) -> bool:
    """Whether there are several hosts, with as many ranks on each."""
    return hosts > 1 and ranks % hosts == 0
