"""What theory says of algorithms: messages, bytes and sums in closed form, and where two of them cross.

No formula here is trusted: a test counts every schedule of ``busbw.ops.algorithms`` round by round for all n up to 64
and holds these against it. S is the size as in docs/method.md; n ranks, k hosts; ⌈lg n⌉ and ⌊lg n⌋ are whole numbers.
"""

from typing import Final

from busbw.errors import AnalysisError
from busbw_analysis.models.all_reduce import ALL_REDUCE
from busbw_analysis.models.counts import (
    BRUCK,
    CHAN,
    LEVELS,
    PAT,
    RABENSEIFNER,
    SANDERS,
    SEGMENTS,
    THAKUR,
    Textbook,
    below,
    bits,
    core,
    down,
    even,
    folds,
    half,
    in_pairs,
    is_power,
    levels,
    none,
    one,
    others,
    powers_of_two,
    several_hosts,
    share,
    the_share,
    twice_the_levels,
    twice_the_others,
    twice_the_share,
    up,
)
from busbw_analysis.models.in_network import LIMITS, SWITCHED

__all__ = [
    "LIMITS",
    "SWITCHED",
    "TEXTBOOK",
    "Textbook",
    "crossover_bytes",
    "rows_of",
    "share",
    "textbook",
    "up",
]

_ROUNDING = 1e-12
_ONE_ELEMENT = "an all_reduce of one element, as PyTorch has its barrier over NCCL"


def _segments_down_a_tree(ranks: int) -> float:
    """Two in a round, but one in the last where the deepest rank has no neighbour, and one in all where nobody has."""
    rounds = SEGMENTS + down(ranks) - 1
    return {1: 0, 2: SEGMENTS}.get(ranks, 2 * rounds - (1 if is_power(ranks) else 0))


def _segments_down_twins(ranks: int) -> float:
    """Two in a round, but one in the last where the trees of the others are that small."""
    return 0 if ranks == 1 else 2 * (SEGMENTS + up(ranks - 1)) - (1 if ranks in {3, 4} else 0)


def _around_both(ranks: int, hosts: int) -> float:
    """Once around the ranks of a host, and once around the hosts."""
    return ranks // hosts - 1 + hosts - 1


def _inside(ranks: int, hosts: int) -> float:
    """(g−1)/g, as of a ring of one host."""
    return share(ranks // hosts)


def _others_inside(ranks: int, hosts: int) -> float:
    """g−1."""
    return ranks // hosts - 1


TEXTBOOK: tuple[Textbook, ...] = (
    *ALL_REDUCE,
    Textbook("all_gather", "ring", others, the_share, none, others, "(n−1) α + (n−1)/n S β", CHAN),
    Textbook("all_gather", "bruck", levels, the_share, none, others, "⌈lg n⌉ α + (n−1)/n S β", BRUCK),
    Textbook(
        "all_gather",
        "recursive-doubling",
        levels,
        the_share,
        none,
        others,
        "lg n α + (n−1)/n S β, n a power of 2",
        THAKUR,
        powers_of_two,
    ),
    Textbook(
        "all_gather",
        "neighbour-exchange",
        half,
        the_share,
        none,
        others,
        "n/2 α + (n−1)/n S β, n even",
        "Chen et al. 2005",
        even,
    ),
    Textbook("all_gather", "pairwise", others, the_share, none, others, "(n−1) α + (n−1)/n S β", "counted"),
    Textbook("all_gather", "pat", levels, the_share, none, others, "⌈lg n⌉ α + (n−1)/n S β", PAT),
    Textbook("all_gather", "direct", one, the_share, none, others, "α + (n−1)/n S β", "counted", messages=others),
    Textbook(
        "all_gather",
        "hierarchical",
        _around_both,
        the_share,
        none,
        others,
        f"(g−1) α_i + (k−1) α + (g−1)/g S β_i + (k−1)/n S β; {LEVELS}",
        "counted",
        several_hosts,
        inner_rounds=_others_inside,
        inner_sent=_inside,
    ),
    Textbook(
        "reduce_scatter", "ring", others, the_share, the_share, others, "(n−1) α + (n−1)/n S β + (n−1)/n S γ", CHAN
    ),
    Textbook(
        "reduce_scatter",
        "recursive-halving",
        lambda n, _k: folds(n, up(n), down(n) + 2),
        lambda n, _k: folds(n, share(n), 1 + (in_pairs(n) + 1) / n),
        lambda n, _k: folds(n, share(n), 1 + in_pairs(n) / n),
        lambda n, _k: n - 1 + (n - core(n)) / n,
        "lg n α + (n−1)/n S β + (n−1)/n S γ, n a power of 2; for other n = 2^⌊lg n⌋ + r (⌊lg n⌋ + 2) α + "
        "(1 + (K+1)/n) S β + (1 + K/n) S γ, K = Σ over d = 1, 2, 4 … below 2^⌊lg n⌋ of d + min(r, d)",
        f"{THAKUR}; counted where ranks fold in",
    ),
    Textbook(
        "reduce_scatter",
        "pairwise",
        others,
        the_share,
        the_share,
        others,
        "(n−1) α + (n−1)/n S β + (n−1)/n S γ",
        THAKUR,
    ),
    Textbook(
        "reduce_scatter",
        "bruck",
        levels,
        the_share,
        the_share,
        others,
        "⌈lg n⌉ α + (n−1)/n S β + (n−1)/n S γ",
        f"{BRUCK}, the other way round; counted",
    ),
    Textbook(
        "reduce_scatter",
        "neighbour-exchange",
        half,
        the_share,
        the_share,
        others,
        "n/2 α + (n−1)/n S β + (n−1)/n S γ, n even",
        "Chen et al. 2005, the other way round; counted",
        even,
    ),
    Textbook(
        "reduce_scatter", "pat", levels, the_share, the_share, others, "⌈lg n⌉ α + (n−1)/n S β + (n−1)/n S γ", PAT
    ),
    Textbook(
        "reduce_scatter",
        "direct",
        one,
        the_share,
        the_share,
        others,
        "α + (n−1)/n S β + (n−1)/n S γ",
        "counted",
        messages=others,
    ),
    Textbook(
        "reduce_scatter",
        "hierarchical",
        _around_both,
        the_share,
        the_share,
        others,
        f"(g−1) α_i + (k−1) α + (g−1)/g S β_i + (k−1)/n S β + (n−1)/n S γ; {LEVELS}",
        "counted",
        several_hosts,
        inner_rounds=_others_inside,
        inner_sent=_inside,
    ),
    Textbook("all_to_all", "pairwise", others, the_share, none, others, "(n−1) α + (n−1)/n S β", THAKUR),
    Textbook("all_to_all", "spread", one, the_share, none, others, "α + (n−1)/n S β", "counted", messages=others),
    Textbook(
        "all_to_all",
        "bruck",
        levels,
        lambda n, _k: bits(n) / n,
        none,
        lambda n, _k: bits(n),
        "⌈lg n⌉ α + K/n S β, K = Σ_j #{i < n : bit j of i is set} (n/2 lg n for a power of 2)",
        f"{BRUCK}; {THAKUR} has n/2 lg n for every n, which is too much",
    ),
    Textbook(
        "all_to_all",
        "two-level",
        _around_both,
        lambda n, k: share(n // k) + share(k),
        none,
        lambda n, k: n * (share(n // k) + share(k)),
        f"(g−1) α_i + (k−1) α + (g−1)/g S β_i + (k−1)/k S β; {LEVELS}",
        "counted; NCCL's PXN does likewise",
        several_hosts,
        inner_rounds=lambda n, k: n // k - 1,
        inner_sent=lambda n, k: share(n // k),
    ),
    Textbook("broadcast", "binomial-tree", levels, levels, none, others, "⌈lg n⌉ (α + S β)", CHAN),
    Textbook(
        "broadcast",
        "scatter-ring",
        lambda n, _k: up(n) + n - 1,
        twice_the_share,
        none,
        lambda n, k: below(n, k) + n - 1,
        "(⌈lg n⌉ + n − 1) α + 2(n−1)/n S β",
        "van de Geijn: Barnett et al. 1994",
    ),
    Textbook(
        "broadcast",
        "chain",
        lambda n, _k: n - 2 + SEGMENTS if n > 1 else 0,
        lambda n, _k: (n - 2 + SEGMENTS) / SEGMENTS if n > 1 else 0,
        none,
        others,
        "(n − 2 + m)(α + S/m β), m = 8 segments",
        "counted",
    ),
    Textbook(
        "broadcast",
        "binary-tree",
        lambda n, _k: SEGMENTS + down(n) - 1 if n > 1 else 0,
        lambda n, _k: _segments_down_a_tree(n) / SEGMENTS,
        none,
        others,
        "(m + d − 1) α + 2(m + d − 1)/m S β, d = ⌊lg n⌋ levels, m = 8 segments; one segment less for a power of 2 "
        "above 2, half as many bytes for 2 ranks",
        "counted",
        messages=lambda n, _k: _segments_down_a_tree(n),
    ),
    Textbook(
        "broadcast",
        "double-tree",
        lambda n, _k: SEGMENTS + up(n - 1) if n > 1 else 0,
        lambda n, _k: _segments_down_twins(n) / (2 * SEGMENTS),
        none,
        others,
        "(m + ⌈lg(n−1)⌉)(α + S/m β), m = 8 segments in each tree; half a segment less for 3 and 4 ranks",
        f"{SANDERS}; counted",
        messages=lambda n, _k: _segments_down_twins(n),
    ),
    Textbook(
        "broadcast",
        "hierarchical",
        lambda n, k: up(n // k) + up(k) + n // k - 1,
        lambda n, k: 2 * share(n // k) + up(k) * k / n,
        none,
        lambda n, k: below(n // k, k) + k - 1 + k * (n // k - 1),
        f"(⌈lg g⌉ + g−1) α_i + ⌈lg k⌉ α + 2(g−1)/g S β_i + ⌈lg k⌉/g S β; {LEVELS}",
        "counted",
        several_hosts,
        inner_rounds=lambda n, k: up(n // k) + n // k - 1,
        inner_sent=lambda n, k: 2 * share(n // k),
    ),
    Textbook("reduce", "binomial-tree", levels, levels, levels, others, "⌈lg n⌉ (α + S β + S γ)", CHAN),
    Textbook(
        "reduce",
        "rabenseifner",
        lambda n, _k: folds(n, 2 * up(n), 2 * down(n) + 1),
        lambda n, _k: 2 * share(core(n)) + folds(n, 0, 1),
        lambda n, _k: share(core(n)) + folds(n, 0, 1),
        lambda n, k: n - 1 + below(core(n), k),
        "2 lg n α + 2(n−1)/n S β + (n−1)/n S γ; for other n with 2^⌊lg n⌋ in place of n, and α + S β + S γ more",
        f"{RABENSEIFNER}; {THAKUR}",
    ),
    Textbook("gather", "binomial-tree", levels, the_share, none, below, "⌈lg n⌉ α + (n−1)/n S β", CHAN),
    Textbook("gather", "linear", one, the_share, none, the_share, "α + (n−1)/n S β", "counted", messages=others),
    Textbook("scatter", "binomial-tree", levels, the_share, none, below, "⌈lg n⌉ α + (n−1)/n S β", CHAN),
    Textbook("scatter", "linear", one, the_share, none, the_share, "α + (n−1)/n S β", "counted", messages=others),
    Textbook("barrier", "dissemination", levels, none, none, none, "⌈lg n⌉ α", "Hensgen et al. 1988"),
    Textbook("barrier", "linear", twice_the_others, none, none, none, "2(n−1) α", "counted"),
    Textbook("barrier", "ring", twice_the_others, none, none, none, "2(n−1) α", _ONE_ELEMENT),
    Textbook(
        "barrier", "binomial-tree", twice_the_levels, none, none, none, "2⌈lg n⌉ α", "an all_reduce of one element"
    ),
    Textbook(
        "barrier",
        "recursive-doubling",
        lambda n, _k: folds(n, up(n), down(n) + 2),
        none,
        none,
        none,
        "lg n α; (⌊lg n⌋ + 2) α for other n",
        f"{_ONE_ELEMENT}; {THAKUR}",
    ),
)
"""Every algorithm that can be measured by hand, and none else."""


_SWITCHING: Final = frozenset({"nccl"})
"""Backends that run what a switch adds up."""


def rows_of(op: str, backend: str | None = None) -> tuple[Textbook, ...]:
    """The algorithms that may be behind ``op`` over a backend: those that can be measured by hand, and of one that has
    them those of a switch that adds; None: all of both.
    """
    every = (*TEXTBOOK, *SWITCHED) if backend is None or backend in _SWITCHING else TEXTBOOK
    return tuple(row for row in every if row.op == op)


def textbook(op: str, algorithm: str) -> Textbook | None:
    """The row of an algorithm, whether it can be measured by hand or not; None for an unknown one."""
    every = (*TEXTBOOK, *LIMITS, *SWITCHED)
    return next((row for row in every if (row.op, row.algorithm) == (op, algorithm)), None)


def crossover_bytes(
    one: Textbook,
    other: Textbook,
    ranks: int,
    hosts: int,
    alpha_seconds: float,
    beta_seconds_per_byte: float,
    gamma_seconds_per_byte: float = 0.0,
    host_bytes_per_second: float | None = None,
) -> float | None:
    """S* at which two algorithms take the same time on ``ranks`` ranks of ``hosts`` hosts: below it the one with fewer
    rounds is faster, above it the one with fewer bytes. None where one of them is at least as fast at every size.
    ``host_bytes_per_second`` is R where all ranks share one host.

    Raises AnalysisError where one of them does not exist for so many ranks and hosts, or a parameter is no time.
    """
    for row in (one, other):
        if not row.possible(ranks, hosts):
            message = f"there is no {row.op} by {row.algorithm} of {ranks} ranks on {hosts} hosts: {row.formula}"
            raise AnalysisError(message)
    if not (alpha_seconds >= 0 and beta_seconds_per_byte >= 0 and gamma_seconds_per_byte >= 0):
        given = f"α {alpha_seconds} s, β {beta_seconds_per_byte} s/B and γ {gamma_seconds_per_byte} s/B"
        message = f"{given} cannot be: each is a number of seconds, 0 or more"
        raise AnalysisError(message)
    if host_bytes_per_second is not None and not host_bytes_per_second > 0:
        message = f"a host that carries {host_bytes_per_second} B/s has no crossing; want a rate above 0"
        raise AnalysisError(message)

    def of_a_byte(row: Textbook) -> float:
        moving = row.sent(ranks, hosts) * beta_seconds_per_byte
        if host_bytes_per_second is not None:
            moving = max(moving, row.moved(ranks, hosts) / host_bytes_per_second)
        return moving + row.added(ranks, hosts) * gamma_seconds_per_byte

    rounds = (other.rounds(ranks, hosts) - one.rounds(ranks, hosts)) * alpha_seconds
    a_byte = of_a_byte(one) - of_a_byte(other)
    # Equal costs may differ by what floating point makes of them.
    if abs(a_byte) <= _ROUNDING * of_a_byte(one) or rounds * a_byte <= 0:
        return None
    return rounds / a_byte
