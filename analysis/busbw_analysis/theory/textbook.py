"""What theory says of the algorithms that can be measured by hand: messages, bytes and sums in closed form.

No formula here is trusted: a test counts every schedule of ``busbw.schedules`` round by round for all n up to 64 and
holds these against it. S is the size as in docs/method.md; n ranks, k hosts; ⌈lg n⌉ and ⌊lg n⌋ are whole numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

BY_HAND: Final = "by hand: "
"""What the variant of a case begins with that was measured with one of these; its name follows."""

Count = Callable[[int, int], float]
"""n ranks on k hosts → a number."""


@dataclass(frozen=True, slots=True)
class Textbook:
    """What one algorithm costs: its rounds (times α), the bytes through one direction of the link of its busiest rank
    (times β) and those that it adds up (times γ), the last two in units of S; ``moved`` is what all ranks send
    together, in units of S. ``possible(n, k)``: whether there is such a thing.

    Messages of a round are under way together, so that each round costs one α, however many they are; what sending
    another one costs a processor (o of LogP) is left out. ``messages`` is how many the busiest rank has (None: one a
    round).
    """

    op: str
    algorithm: str
    rounds: Count
    sent: Count
    added: Count
    moved: Count
    formula: str
    source: str
    possible: Callable[[int, int], bool] = lambda ranks, _hosts: ranks > 1
    messages: Count | None = None


def up(ranks: int) -> int:
    """⌈lg n⌉."""
    return (ranks - 1).bit_length()


def down(ranks: int) -> int:
    """⌊lg n⌋."""
    return ranks.bit_length() - 1


def is_power(ranks: int) -> bool:
    """Whether n is a power of two."""
    return up(ranks) == down(ranks)


def share(ranks: int) -> float:
    """(n−1)/n."""
    return (ranks - 1) / ranks


def _none(_ranks: int, _hosts: int) -> float:
    return 0.0


def _one(ranks: int, _hosts: int) -> float:
    return 1.0 if ranks > 1 else 0.0


def _two(ranks: int, hosts: int) -> float:
    return 2 * _one(ranks, hosts)


def _others(ranks: int, _hosts: int) -> float:
    return ranks - 1


def _twice_the_others(ranks: int, _hosts: int) -> float:
    return 2 * (ranks - 1)


def _share(ranks: int, _hosts: int) -> float:
    return share(ranks)


def _twice_the_share(ranks: int, _hosts: int) -> float:
    return 2 * share(ranks)


def _levels(ranks: int, _hosts: int) -> float:
    return up(ranks)


def _twice_the_levels(ranks: int, _hosts: int) -> float:
    return 2 * up(ranks)


def _depth(ranks: int) -> float:
    """Levels below the root of a binary tree that is filled level by level."""
    return down(ranks)


def _children(ranks: int, children: int = 2) -> float:
    """Messages in a row on the way up a tree: ``children`` a level, in the last one no more than there are."""
    first, width, total = 1, children, 0
    while first < ranks:
        total += min(children, ranks - first)
        first, width = first + width, width * children
    return total


def _bits(ranks: int) -> float:
    """Σ over bits j of #{i < n : bit j of i is set}: n/2 lg n for a power of two."""
    return sum(number.bit_count() for number in range(ranks))


def _below(ranks: int, _hosts: int) -> float:
    """Blocks in a binomial scatter, over n: each rank hears of itself and of all below it."""
    return sum(min(rank & -rank, ranks - rank) for rank in range(1, ranks)) / ranks


def _folds(ranks: int, power: float, other: float) -> float:
    return power if is_power(ranks) else other


def _core(ranks: int) -> int:
    return 1 << down(ranks)


def _across(ranks: int, hosts: int) -> float:
    return 2 * share(ranks // hosts) + 2 * (hosts - 1) / ranks


_SEGMENTS = 8

_CHAN, _THAKUR, _BRUCK = "Chan et al. 2007", "Thakur et al. 2005", "Bruck et al. 1997"
_SERVER = "Li et al. 2014 (the pattern); counted"


def _powers_of_two(ranks: int, _hosts: int) -> bool:
    return ranks > 1 and is_power(ranks)


def _even(ranks: int, _hosts: int) -> bool:
    return ranks > 1 and ranks % 2 == 0


def _several_hosts(ranks: int, hosts: int) -> bool:
    return hosts > 1 and ranks % hosts == 0


TEXTBOOK: tuple[Textbook, ...] = (
    Textbook(
        "all_reduce",
        "ring",
        _twice_the_others,
        _twice_the_share,
        _share,
        _twice_the_others,
        "2(n−1) α + 2(n−1)/n S β + (n−1)/n S γ",
        f"Patarasuk and Yuan 2009; {_CHAN}",
    ),
    Textbook(
        "all_reduce",
        "recursive-doubling",
        lambda n, _k: _folds(n, up(n), down(n) + 2),
        lambda n, _k: _folds(n, up(n), down(n) + 2),
        lambda n, _k: _folds(n, up(n), down(n) + 1),
        lambda n, _k: _core(n) * down(n) + 2 * (n - _core(n)),
        "lg n (α + S β + S γ); (⌊lg n⌋ + 2)(α + S β) + (⌊lg n⌋ + 1) S γ for other n",
        _THAKUR,
    ),
    Textbook(
        "all_reduce",
        "rabenseifner",
        lambda n, _k: _folds(n, 2 * up(n), 2 * down(n) + 2),
        lambda n, _k: 2 * share(_core(n)) + _folds(n, 0, 2),
        lambda n, _k: share(_core(n)) + _folds(n, 0, 1),
        _twice_the_others,
        "2 lg n α + 2(n−1)/n S β + (n−1)/n S γ; for other n with 2^⌊lg n⌋ in place of n, and 2 α + 2 S β + S γ more",
        f"Rabenseifner 2004; {_THAKUR}",
    ),
    Textbook(
        "all_reduce",
        "binomial-tree",
        _twice_the_levels,
        _twice_the_levels,
        _levels,
        _twice_the_others,
        "2⌈lg n⌉ (α + S β) + ⌈lg n⌉ S γ",
        _CHAN,
    ),
    Textbook(
        "all_reduce",
        "binary-tree",
        lambda n, _k: 2 * _depth(n),
        lambda n, _k: 2 * _children(n),
        lambda n, _k: _children(n),
        _twice_the_others,
        "2d α + 2c S β + c S γ, d levels, c = 2 for each, fewer for the last one where it has no two",
        "counted",
        messages=lambda n, _k: 2 * _children(n),
    ),
    Textbook(
        "all_reduce",
        "parameter-server",
        _two,
        _twice_the_others,
        _others,
        _twice_the_others,
        "2 α + 2(n−1) S β + (n−1) S γ",
        _SERVER,
        messages=_twice_the_others,
    ),
    Textbook(
        "all_reduce",
        "sharded-parameter-server",
        _two,
        _twice_the_share,
        _share,
        _twice_the_others,
        "2 α + 2(n−1)/n S β + (n−1)/n S γ",
        _SERVER,
        messages=_twice_the_others,
    ),
    Textbook(
        "all_reduce",
        "direct",
        _one,
        _others,
        _others,
        lambda n, _k: n * (n - 1),
        "α + (n−1)(S β + S γ)",
        "counted",
        messages=_others,
    ),
    Textbook(
        "all_reduce",
        "hierarchical",
        lambda n, k: 2 * (n // k - 1) + 2 * (k - 1),
        _across,
        lambda n, k: _across(n, k) / 2,
        lambda n, k: n * _across(n, k),
        "(2(g−1) + 2(k−1)) α + (2(g−1)/g + 2(k−1)/n) S β + half of those bytes γ, g = n/k on each host",
        "counted",
        _several_hosts,
    ),
    Textbook("all_gather", "ring", _others, _share, _none, _others, "(n−1) α + (n−1)/n S β", _CHAN),
    Textbook("all_gather", "bruck", _levels, _share, _none, _others, "⌈lg n⌉ α + (n−1)/n S β", _BRUCK),
    Textbook(
        "all_gather",
        "recursive-doubling",
        _levels,
        _share,
        _none,
        _others,
        "lg n α + (n−1)/n S β, n a power of 2",
        _THAKUR,
        _powers_of_two,
    ),
    Textbook(
        "all_gather",
        "neighbour-exchange",
        lambda n, _k: n / 2,
        _share,
        _none,
        _others,
        "n/2 α + (n−1)/n S β, n even",
        "Chen et al. 2005",
        _even,
    ),
    Textbook("all_gather", "direct", _one, _share, _none, _others, "α + (n−1)/n S β", "counted", messages=_others),
    Textbook("reduce_scatter", "ring", _others, _share, _share, _others, "(n−1) α + (n−1)/n S β + (n−1)/n S γ", _CHAN),
    Textbook(
        "reduce_scatter",
        "recursive-halving",
        _levels,
        _share,
        _share,
        _others,
        "lg n α + (n−1)/n S β + (n−1)/n S γ, n a power of 2",
        _THAKUR,
        _powers_of_two,
    ),
    Textbook(
        "reduce_scatter", "pairwise", _others, _share, _share, _others, "(n−1) α + (n−1)/n S β + (n−1)/n S γ", _THAKUR
    ),
    Textbook("all_to_all", "pairwise", _others, _share, _none, _others, "(n−1) α + (n−1)/n S β", _THAKUR),
    Textbook("all_to_all", "spread", _one, _share, _none, _others, "α + (n−1)/n S β", "counted", messages=_others),
    Textbook(
        "all_to_all",
        "bruck",
        _levels,
        lambda n, _k: _bits(n) / n,
        _none,
        lambda n, _k: _bits(n),
        "⌈lg n⌉ α + K/n S β, K = Σ_j #{i < n : bit j of i is set} (n/2 lg n for a power of 2)",
        f"{_BRUCK}; {_THAKUR} has n/2 lg n for every n, which is too much",
    ),
    Textbook("broadcast", "binomial-tree", _levels, _levels, _none, _others, "⌈lg n⌉ (α + S β)", _CHAN),
    Textbook(
        "broadcast",
        "scatter-ring",
        lambda n, _k: up(n) + n - 1,
        _twice_the_share,
        _none,
        lambda n, k: _below(n, k) + n - 1,
        "(⌈lg n⌉ + n − 1) α + 2(n−1)/n S β",
        "van de Geijn: Barnett et al. 1994",
    ),
    Textbook(
        "broadcast",
        "chain",
        lambda n, _k: n - 2 + _SEGMENTS,
        lambda n, _k: (n - 2 + _SEGMENTS) / _SEGMENTS,
        _none,
        _others,
        "(n − 2 + m)(α + S/m β), m = 8 segments",
        "counted",
    ),
    Textbook("reduce", "binomial-tree", _levels, _levels, _levels, _others, "⌈lg n⌉ (α + S β + S γ)", _CHAN),
    Textbook("gather", "binomial-tree", _levels, _share, _none, _below, "⌈lg n⌉ α + (n−1)/n S β", _CHAN),
    Textbook("gather", "linear", _one, _share, _none, _share, "α + (n−1)/n S β", "counted", messages=_others),
    Textbook("scatter", "binomial-tree", _levels, _share, _none, _below, "⌈lg n⌉ α + (n−1)/n S β", _CHAN),
    Textbook("scatter", "linear", _one, _share, _none, _share, "α + (n−1)/n S β", "counted", messages=_others),
    Textbook("barrier", "dissemination", _levels, _none, _none, _none, "⌈lg n⌉ α", "Hensgen et al. 1988"),
)
"""Every algorithm that there is a schedule of, and none else."""


def textbook(op: str, algorithm: str) -> Textbook | None:
    """The row of an algorithm; None for an unknown one."""
    return next((row for row in TEXTBOOK if (row.op, row.algorithm) == (op, algorithm)), None)
