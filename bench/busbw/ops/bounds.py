"""Lower bounds of any algorithm for an operation: rounds, bytes, reductions, and traffic between hosts.

Each term is a lower bound by itself, whatever the other terms are (Chan et al. 2007). The bounds hold if the ranks do
all the work: a switch that reduces and multicasts (NVLS, SHARP) saves rounds, bytes and reductions.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Crossing = Callable[[Sequence[str], int], float]
"""(host of every rank, root) → least traffic in one direction through the interface of the busiest host, in units of
S. From cuts between a host and the rest: in all_gather a host receives all blocks of the others, in all_reduce and
reduce_scatter it may first reduce its own ranks, and so on.
"""


@dataclass(frozen=True, slots=True)
class Term:
    """Lower bound for n ranks in ``units`` of S; ``words``: its factor in a formula, empty if it is 0."""

    units: Callable[[int], float]
    words: str

    @property
    def of_size(self) -> str:
        """The factor times S."""
        return "S" if self.words == "1" else f"{self.words} S"

    def __call__(self, ranks: int) -> float:
        """Units of S."""
        return self.units(ranks)


@dataclass(frozen=True, slots=True)
class LowerBound:
    """Minimum cost of any algorithm.

    sent: bytes that some rank sends or receives (times β)
    added: bytes that some rank reduces (times γ)
    moved: bytes that all ranks together send
    """

    sent: Term
    added: Term
    moved: Term

    def rounds(self, ranks: int, ports: int = 1) -> int:
        """⌈log_(p+1) n⌉ rounds if a rank sends and receives p = ``ports`` messages at once (Bruck et al. 1997): each
        round multiplies by at most p + 1 the number of ranks that one rank's data can reach. ⌈lg n⌉ for one port.
        """
        reached, rounds = 1, 0
        while reached < ranks:
            reached, rounds = reached * (ports + 1), rounds + 1
        return rounds

    def formula(self, *, ports: int, sharing: bool, sums: bool) -> str:
        """The bound as printed: with R if ranks share a host (``sharing``), with γ if it is known (``sums``)."""
        terms = ["⌈lg n⌉ α" if ports == 1 else "α"]
        if self.sent.words:
            both = f"max({self.sent.of_size} β, {self.moved.of_size} / R)"
            terms.append(both if sharing else f"{self.sent.of_size} β")
        if self.added.words and sums:
            terms.append(f"{self.added.of_size} γ")
        return " + ".join(terms)


_NOTHING = Term(lambda _ranks: 0.0, "")
_WHOLE = Term(lambda _ranks: 1.0, "1")
_NEARLY_ALL = Term(lambda ranks: (ranks - 1) / ranks, "(n−1)/n")
_TWICE_NEARLY_ALL = Term(lambda ranks: 2 * (ranks - 1) / ranks, "2(n−1)/n")
_OF_OTHERS = Term(lambda ranks: ranks - 1, "(n−1)")
_TWICE_OF_OTHERS = Term(lambda ranks: 2 * (ranks - 1), "2(n−1)")

# Terms of α, β and γ: Chan et al. 2007. Total traffic: all data that the outputs need from other ranks. For all_reduce,
# every byte of S combines n inputs in at least n − 1 messages, and its result needs as many to reach all ranks.
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
    """Each host reduces its own ranks; then hosts behave like ranks."""
    hosts = len(set(placement))
    return 2 * (hosts - 1) / hosts


def blocks_of_others(placement: Sequence[str], _root: int) -> float:
    """Blocks that the host with the fewest ranks does not own: it must receive each of them (all_gather), or send a
    partial sum for each (reduce_scatter). The other direction, one host's own blocks, never carries more.
    """
    fewest = min(Counter(placement).values())
    return (len(placement) - fewest) / len(placement)


def exchanged(placement: Sequence[str], _root: int) -> float:
    """Every rank of a host sends a block of S / n to every rank elsewhere."""
    count = len(placement)
    return max(on_host * (count - on_host) for on_host in Counter(placement).values()) / count


def ring(placement: Sequence[str], _root: int) -> float:
    """Number of ranks on the busiest host that send to a rank elsewhere."""
    leaving = Counter(
        host for host, following in zip(placement, [*placement[1:], placement[0]], strict=True) if host != following
    )
    return float(max(leaving.values()))


def once(_placement: Sequence[str], _root: int) -> float:
    """All of S enters or leaves."""
    return 1.0
