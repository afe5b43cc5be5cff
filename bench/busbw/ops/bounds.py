"""The least that any algorithm for an operation has to do: rounds, bytes and sums, and what must cross to other hosts.

No algorithm has a smaller term, whatever the others are (Chan et al. 2007). They hold for ranks that do all by
themselves: a switch that adds up and hands out (NVLS, SHARP) takes rounds, bytes and sums from them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Crossing = Callable[[Sequence[str], int], float]
"""The host of every rank, and the root → the least that must go in one direction through the interface of the busiest
host, in units of S. From counting cuts between a host and the rest: a host has to receive all blocks of the others
(all_gather), may add up its own ranks first (all_reduce, reduce_scatter), and so on.
"""


@dataclass(frozen=True, slots=True)
class Term:
    """What n ranks cannot do without, in ``units`` of S, and the ``words`` of it in a formula (none where it is 0)."""

    units: Callable[[int], float]
    words: str

    def __call__(self, ranks: int) -> float:
        """Units of S."""
        return self.units(ranks)


@dataclass(frozen=True, slots=True)
class LowerBound:
    """What no algorithm can do without: bytes that some rank has to send or receive (times β), that some rank has to
    add up (times γ) and that all ranks together have to send.
    """

    sent: Term
    added: Term
    moved: Term

    def rounds(self, ranks: int, ports: int = 1) -> int:
        """⌈log_(p+1) n⌉ rounds where a rank sends and receives ``ports`` messages at once (Bruck et al. 1997): in each,
        at most p + 1 times as many ranks can know of one, and one of as many. ⌈lg n⌉ for one message at a time.
        """
        reached, rounds = 1, 0
        while reached < ranks:
            reached, rounds = reached * (ports + 1), rounds + 1
        return rounds

    def formula(self, *, ports: int, sharing: bool, sums: bool) -> str:
        """The bound as it is printed: with R when ranks share a host (``sharing``), with γ where it is known."""
        terms = ["⌈lg n⌉ α" if ports == 1 else "α"]
        if self.sent.words:
            both = f"max({self.sent.words} S β, {self.moved.words} S / R)"
            terms.append(both if sharing else f"{self.sent.words} S β")
        if self.added.words and sums:
            terms.append(f"{self.added.words} S γ")
        return " + ".join(terms).replace("1 S", "S")


_NOTHING = Term(lambda _ranks: 0.0, "")
_WHOLE = Term(lambda _ranks: 1.0, "1")
_NEARLY_ALL = Term(lambda ranks: (ranks - 1) / ranks, "(n−1)/n")
_TWICE_NEARLY_ALL = Term(lambda ranks: 2 * (ranks - 1) / ranks, "2(n−1)/n")
_OF_OTHERS = Term(lambda ranks: ranks - 1, "(n−1)")
_TWICE_OF_OTHERS = Term(lambda ranks: 2 * (ranks - 1), "2(n−1)")

# Terms of α, β and γ: Chan et al. 2007. What all ranks send together: as much as the outputs need of other ranks.
# Every byte of S: its n inputs meet over at least n − 1 messages, and the result needs as many to be everywhere.
OF_ALL_REDUCE = LowerBound(_TWICE_NEARLY_ALL, _NEARLY_ALL, _TWICE_OF_OTHERS)
OF_REDUCE_SCATTER = LowerBound(_NEARLY_ALL, _NEARLY_ALL, _OF_OTHERS)
OF_REDUCE = LowerBound(_WHOLE, _NEARLY_ALL, _OF_OTHERS)
OF_BROADCAST = LowerBound(_WHOLE, _NOTHING, _OF_OTHERS)
OF_BLOCKS = LowerBound(_NEARLY_ALL, _NOTHING, _OF_OTHERS)
"""all_gather and all_to_all."""
OF_A_ROOT = LowerBound(_NEARLY_ALL, _NOTHING, _NEARLY_ALL)
"""gather and scatter: S is all blocks together, and the root's own block stays where it is."""
OF_A_BARRIER = LowerBound(_NOTHING, _NOTHING, _NOTHING)


def through_root(placement: Sequence[str], root: int) -> float:
    """Blocks of all ranks that are not on the root's host, S / n each."""
    return sum(host != placement[root] for host in placement) / len(placement)


def reduced(placement: Sequence[str], _root: int) -> float:
    """Each host adds up its own ranks, and hosts do the rest as ranks would."""
    hosts = len(set(placement))
    return 2 * (hosts - 1) / hosts


def blocks_of_others(placement: Sequence[str], _root: int) -> float:
    """Blocks that the host with the fewest ranks does not own: it has to receive each (all_gather), or to send a sum of
    its own for each (reduce_scatter). What goes the other way, the blocks of one host, is never more.
    """
    fewest = min(Counter(placement).values())
    return (len(placement) - fewest) / len(placement)


def exchanged(placement: Sequence[str], _root: int) -> float:
    """Every rank of a host sends a block of S / n to every rank elsewhere."""
    count = len(placement)
    return max(on_host * (count - on_host) for on_host in Counter(placement).values()) / count


def ring(placement: Sequence[str], _root: int) -> float:
    """How many of the ranks on the busiest host send to a rank elsewhere."""
    leaving = Counter(
        host for host, following in zip(placement, [*placement[1:], placement[0]], strict=True) if host != following
    )
    return float(max(leaving.values()))


def once(_placement: Sequence[str], _root: int) -> float:
    """S has to come in, or to go out."""
    return 1.0
