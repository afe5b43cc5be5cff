"""Cost models of textbook algorithms: rounds, bytes and reductions in closed form.

A test checks every formula: it counts each schedule of ``busbw.ops.algorithms`` round by round for all n up to 64. S is
the size as in docs/method.md, n the number of ranks, k the number of hosts; ⌈lg n⌉ and ⌊lg n⌋ are integers.
"""

from dataclasses import replace
from functools import partial
from typing import Final

from busbw.ops.algorithms import SEGMENTS
from busbw_analysis.models.costs import NCCL, CostModel, Count

CHAN: Final = "Chan et al. 2007"
THAKUR: Final = "Thakur et al. 2005"
RABENSEIFNER: Final = "Rabenseifner 2004"
BRUCK: Final = "Bruck et al. 1997"
SANDERS: Final = "Sanders et al. 2009"
PAT: Final = "Jeaugey 2025 (arXiv 2506.20252), with buffers for all blocks of a round"

LEVELS: Final = "g = n/k ranks per host, α_i and β_i inside it, one network card per rank (g β if they share one)"
"""The common notation of hierarchical algorithms."""


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
    """1; 0 on one rank."""
    return 1.0 if ranks > 1 else 0.0


def half(ranks: int, *_: float) -> float:
    """⌊n/2⌋."""
    return ranks // 2


def others(ranks: int, *_: float) -> float:
    """n−1."""
    return ranks - 1


def twice(count: Count) -> Count:
    """Twice ``count``."""
    return lambda *where: 2 * count(*where)


two = twice(one)
twice_up = twice(up)
twice_the_others = twice(others)
twice_the_share = twice(share)


def levels(ranks: int, children: int) -> list[int]:
    """The number of ranks in each level below the root of a complete tree, filled level by level."""
    widths: list[int] = []
    left, width = ranks - 1, children
    while left > 0:
        widths.append(min(width, left))
        left, width = left - width, width * children
    return widths


def down_a_tree_at_once(ranks: int, *_: float) -> int:
    """Sequential messages down a binomial tree whose rank i sends to all i + 2^j, 2^j > i, concurrently: they share its
    link, so all arrive when the last one does. The longest path is 0, 1, 3, 7 …, where rank 2^j − 1 sends to
    ⌊lg(n − 2^j)⌋ − j + 1 ranks.
    """
    return sum(down(ranks - (1 << level)) - level + 1 for level in range(down(ranks)))


def bits(ranks: int) -> float:
    """Σ over bits j of #{i < n : bit j of i is set}: n/2 lg n for a power of two."""
    return sum(number.bit_count() for number in range(ranks))


def below(ranks: int, *_: float) -> float:
    """Blocks sent in a binomial scatter, over n: each rank receives its own block and those of all ranks below it."""
    return sum(min(rank & -rank, ranks - rank) for rank in range(1, ranks)) / ranks


def folds(ranks: int, power: float, other: float) -> float:
    """``power`` if n is a power of two, else ``other``."""
    return power if is_power(ranks) else other


def core(ranks: int) -> int:
    """The largest power of two that is at most n."""
    return 1 << down(ranks)


def in_pairs(ranks: int) -> int:
    """Blocks that the busiest rank exchanges in recursive halving with n = 2^⌊lg n⌋ + r ranks, where every second of
    the first 2r ranks also reduces for its neighbour: Σ of d + min(r, d) over d = 1, 2, 4 … below 2^⌊lg n⌋.
    """
    rest = ranks - core(ranks)
    return sum((1 << level) + min(rest, 1 << level) for level in range(down(ranks)))


def powers_of_two(ranks: int, *_: float) -> bool:
    """Whether n is a power of two above 1."""
    return ranks > 1 and is_power(ranks)


def even(ranks: int, *_: float) -> bool:
    """Whether n is even."""
    return ranks > 1 and ranks % 2 == 0


def several_hosts(ranks: int, hosts: int, _size_bytes: float) -> bool:
    """Whether there are several hosts with equally many ranks."""
    return hosts > 1 and ranks % hosts == 0


def _twins(ranks: int, *_: float) -> float:
    return min(2, ranks / 2) if ranks > 1 else 0


def _to_the_switch_and_back(ranks: int, hosts: int, _size_bytes: float) -> float:
    on_host = ranks // hosts
    return 2 * share(on_host) + (1 / on_host if hosts > 1 else 0)


LIMITS: tuple[CostModel, ...] = (
    CostModel(
        "all_reduce",
        "double binary tree, pipelined",
        twice_up,
        "2⌈lg n⌉ α + 2 S β + S γ; S β for 2 ranks, 3/2 S β for 3",
        f"{SANDERS}; without filling the pipeline",
        sent=_twins,
        added=lambda n, *_: _twins(n) / 2,
        moved=twice_the_others,
    ),
)
"""Limits of pipelining: the rounds of a single segment with the bytes of infinitely many."""


_nvls = partial(
    CostModel,
    algorithm="nvls",
    source="NVLink SHARP; counted, the (n+1)/n as in pull request 239 of NVIDIA/nccl-tests",
    possible=lambda n, k, _: n > 1 and k == 1,
)

SWITCHED: tuple[CostModel, ...] = (
    _nvls(
        "all_reduce",
        rounds=two,
        formula="2 α + (n+1)/n S β: one α to reduce, one α to multicast",
        sent=lambda n, *_: (n + 1) / n if n > 1 else 0,
        moved=lambda n, *_: n + 1 if n > 1 else 0,
    ),
    CostModel(
        "all_reduce",
        "sharp",
        lambda n, k, _: 2 * (n // k - 1) + one(k),
        f"2(g−1) α_i + α + 2(g−1)/g S β_i + 1/g S β + (g−1)/g S γ; {LEVELS}",
        "Graham et al. 2016; counted",
        sent=_to_the_switch_and_back,
        added=lambda n, k, _: share(n // k),
        moved=lambda n, *where: n * _to_the_switch_and_back(n, *where),
        possible=several_hosts,
        inner_rounds=lambda n, k, _: 2 * (n // k - 1),
        inner_sent=lambda n, k, _: 2 * share(n // k),
    ),
    _nvls("all_gather", rounds=one, formula="α + (n−1)/n S β", sent=share, moved=one),
    _nvls(
        "reduce_scatter",
        rounds=one,
        formula="α + (n−1)/n S β + 1/n S γ",
        sent=share,
        added=lambda n, *_: 1 / n if n > 1 else 0,
        moved=others,
    ),
)
"""In-network algorithms. In the tests' schedules, the switch is an additional rank. Reduction in the switch costs no γ.
"""


_ONE_ELEMENT = "an all_reduce of one element, like PyTorch's barrier over NCCL"
_SERVER: Final = "Li et al. 2014 (the pattern); counted"
_CHEN: Final = "Chen et al. 2005"
_RING_SEGMENTS, _IN_FLIGHT = 4, 2


def _folded(ranks: int, *_: float) -> float:
    """Rounds of recursive doubling: two more if n is not a power of two."""
    return folds(ranks, up(ranks), down(ranks) + 2)


def _over_hosts(ranks: int, hosts: int, _size_bytes: float) -> float:
    """Bytes of a reduce-scatter and all-gather inside hosts, and of those of one rank's block between hosts."""
    return 2 * share(ranks // hosts) + 2 * (hosts - 1) / ranks


def _segments_through_twins(ranks: int, *_: float) -> float:
    """Segments through the busiest link up two trees, each with half of S in eight segments: two per round, but one in
    the last round, which only reaches the roots. Two ranks have one child each; three have one round less.
    """
    return {1: 0, 2: SEGMENTS, 3: 2 * SEGMENTS}.get(ranks, 2 * (SEGMENTS + up(ranks)) - 3)


def _segments_down_a_tree(ranks: int, *_: float) -> float:
    """Two per round; one in the last round if the deepest rank has no sibling; one in every round if none has one."""
    rounds = SEGMENTS + down(ranks) - 1
    return {1: 0, 2: SEGMENTS}.get(ranks, 2 * rounds - (1 if is_power(ranks) else 0))


def _segments_down_twins(ranks: int, *_: float) -> float:
    """Two per round; one in the last round for 3 and 4 ranks."""
    return 0 if ranks == 1 else 2 * (SEGMENTS + up(ranks - 1)) - (1 if ranks in {3, 4} else 0)


def _around_both(ranks: int, hosts: int, _size_bytes: float) -> float:
    """g−1 + k−1: rounds of a ring over the ranks of a host plus those of a ring over the hosts."""
    return ranks // hosts - 1 + hosts - 1


def _inside(ranks: int, hosts: int, _size_bytes: float) -> float:
    """(g−1)/g: bytes of a ring inside a host."""
    return share(ranks // hosts)


def _others_inside(ranks: int, hosts: int, _size_bytes: float) -> float:
    """g−1."""
    return ranks // hosts - 1


_all_reduce = partial(CostModel, "all_reduce", sent=twice_the_share, added=share, moved=twice_the_others)
_all_gather = partial(CostModel, "all_gather", sent=share, moved=others)
_all_to_all = partial(CostModel, "all_to_all", sent=share, moved=others)
_broadcast = partial(CostModel, "broadcast", moved=others)
_reduce = partial(CostModel, "reduce", moved=others)
_gather = partial(CostModel, "gather", sent=share)
_scatter = partial(CostModel, "scatter", sent=share)
_barrier = partial(CostModel, "barrier")


def _all_reduce_by_tree(name: str, children: int, in_words: str) -> CostModel:
    def in_a_row(ranks: int, *_: float) -> float:
        """Sequential messages up the tree: ``children`` per level, in the last one at most as many as it has ranks."""
        return sum(min(children, level) for level in levels(ranks, children))

    return _all_reduce(
        name,
        lambda n, *_: 2 * len(levels(n, children)),
        f"2d α + 2c S β + c S γ, d levels, c: children summed over the levels, {children} each, fewer in a last level "
        f"with less than {in_words}",
        "counted",
        sent=twice(in_a_row),
        added=in_a_row,
        messages=twice(in_a_row),
    )


_ALL_GATHER: Final = (
    _all_gather("ring", others, "(n−1) α + (n−1)/n S β", CHAN, in_a_ring=True),
    _all_gather("bruck", up, "⌈lg n⌉ α + (n−1)/n S β", BRUCK),
    _all_gather("recursive-doubling", up, "lg n α + (n−1)/n S β, n a power of 2", THAKUR, possible=powers_of_two),
    _all_gather("neighbour-exchange", half, "n/2 α + (n−1)/n S β, n even", _CHEN, possible=even),
    _all_gather("pairwise", others, "(n−1) α + (n−1)/n S β", "counted"),
    _all_gather("pat", up, "⌈lg n⌉ α + (n−1)/n S β", PAT),
    _all_gather("direct", one, "α + (n−1)/n S β", "counted", messages=others),
    _all_gather(
        "hierarchical",
        _around_both,
        f"(g−1) α_i + (k−1) α + (g−1)/g S β_i + (k−1)/n S β; {LEVELS}",
        "counted",
        possible=several_hosts,
        inner_rounds=_others_inside,
        inner_sent=_inside,
    ),
)


def _reversed(name: str, source: str, formula: str) -> CostModel:
    """The reduce_scatter that is the reverse of an all_gather, and reduces all received bytes."""
    row = next(row for row in _ALL_GATHER if row.algorithm == name)
    return replace(row, op="reduce_scatter", formula=formula, source=source, added=share)


TEXTBOOK: tuple[CostModel, ...] = (
    _all_reduce(
        "ring",
        twice_the_others,
        "2(n−1) α + 2(n−1)/n S β + (n−1)/n S γ",
        f"Patarasuk and Yuan 2009; {CHAN}",
        in_a_ring=True,
    ),
    _all_reduce(
        "segmented-ring",
        lambda n, *_: 2 * -(-(n - 1) * _RING_SEGMENTS // _IN_FLIGHT),
        "4(n−1) α + 2(n−1)/n S β + (n−1)/n S γ: 4 segments of each rank's block, 2 in flight",
        "counted; gloo/allreduce.cc uses segments of at most 1 MiB",
        messages=lambda n, *_: 2 * (n - 1) * _RING_SEGMENTS,
        in_a_ring=True,
    ),
    _all_reduce(
        "double-ring",
        twice_the_others,
        "2(n−1) α + 2(n−1)/n S β + (n−1)/n S γ",
        "counted",
        messages=lambda n, *_: 2 * (n - 1) * (2 if n > 2 else 1),
    ),
    _all_reduce(
        "multi-ring",
        twice_the_others,
        f"2(n−1) α + 2(n−1)/n S/g β, or 2(n−1) α_i + 2(n−1)/n S β_i if that is longer, + (n−1)/n S γ; {LEVELS}",
        "counted",
        possible=several_hosts,
        # Each ring leaves a host at another rank: a round has one message on the host, and one to the next host.
        messages=lambda n, k, _: 2 * (n - 1) * (2 if n > k else 1),
        inner_sent=lambda n, k, _: 2 * share(n) * share(n // k),
        overlapped=True,
    ),
    _all_reduce(
        "recursive-doubling",
        _folded,
        "lg n (α + S β + S γ); (⌊lg n⌋ + 2)(α + S β) + (⌊lg n⌋ + 1) S γ for other n",
        THAKUR,
        sent=_folded,
        added=lambda n, *_: folds(n, up(n), down(n) + 1),
        moved=lambda n, *_: core(n) * down(n) + 2 * (n - core(n)),
    ),
    _all_reduce(
        "rabenseifner",
        lambda n, *_: folds(n, 2 * up(n), 2 * down(n) + 2),
        "2 lg n α + 2(n−1)/n S β + (n−1)/n S γ; for other n with 2^⌊lg n⌋ instead of n, plus 2 α + 2 S β + S γ",
        f"{RABENSEIFNER}; {THAKUR}",
        sent=lambda n, *_: 2 * share(core(n)) + folds(n, 0, 2),
        added=lambda n, *_: share(core(n)) + folds(n, 0, 1),
    ),
    _all_reduce("binomial-tree", twice_up, "2⌈lg n⌉ (α + S β) + ⌈lg n⌉ S γ", CHAN, sent=twice_up, added=up),
    _all_reduce_by_tree("binary-tree", 2, "two"),
    _all_reduce_by_tree("4-ary-tree", 4, "four"),
    _all_reduce(
        "double-tree",
        lambda n, *_: 2 * (SEGMENTS + up(n) - 1) if n > 1 else 0,
        "2(m + ⌈lg n⌉ − 1) α + (2 + (2⌈lg n⌉ − 3)/m) S β + half of those bytes γ, m = 8 segments in each tree, n > 3; "
        "S β for 2 ranks, 2 S β for 3",
        f"{SANDERS}; counted",
        sent=lambda n, *_: _segments_through_twins(n) / SEGMENTS,
        added=lambda n, *_: _segments_through_twins(n) / (2 * SEGMENTS),
        messages=twice(_segments_through_twins),
    ),
    _all_reduce("reduce-scatter-all-gather", twice_up, "2⌈lg n⌉ α + 2(n−1)/n S β + (n−1)/n S γ", PAT),
    _all_reduce(
        "parameter-server",
        two,
        "2 α + 2(n−1) S β + (n−1) S γ",
        _SERVER,
        sent=twice_the_others,
        added=others,
        messages=twice_the_others,
    ),
    _all_reduce(
        "sharded-parameter-server", two, "2 α + 2(n−1)/n S β + (n−1)/n S γ", _SERVER, messages=twice_the_others
    ),
    _all_reduce(
        "direct",
        one,
        "α + (n−1)(S β + S γ)",
        "counted",
        sent=others,
        added=others,
        moved=lambda n, *_: n * (n - 1),
        messages=others,
    ),
    _all_reduce(
        "hierarchical",
        twice(_around_both),
        f"2(g−1) α_i + 2(k−1) α + 2(g−1)/g S β_i + 2(k−1)/n S β + half of those bytes γ; {LEVELS}",
        "counted",
        sent=_over_hosts,
        added=lambda *where: _over_hosts(*where) / 2,
        moved=lambda n, *where: n * _over_hosts(n, *where),
        possible=several_hosts,
        inner_rounds=twice(_others_inside),
        inner_sent=twice(_inside),
    ),
    *_ALL_GATHER,
    _reversed("ring", CHAN, "(n−1) α + (n−1)/n S β + (n−1)/n S γ"),
    CostModel(
        "reduce_scatter",
        "recursive-halving",
        _folded,
        "lg n α + (n−1)/n S β + (n−1)/n S γ, n a power of 2. Other n = 2^⌊lg n⌋ + r: (⌊lg n⌋ + 2) α + "
        "(1 + (K+1)/n) S β + (1 + K/n) S γ, K = Σ over d = 1, 2, 4 … below 2^⌊lg n⌋ of d + min(r, d)",
        f"{THAKUR}; counted for other n",
        sent=lambda n, *_: folds(n, share(n), 1 + (in_pairs(n) + 1) / n),
        added=lambda n, *_: folds(n, share(n), 1 + in_pairs(n) / n),
        moved=lambda n, *_: n - 1 + (n - core(n)) / n,
    ),
    _reversed("pairwise", THAKUR, "(n−1) α + (n−1)/n S β + (n−1)/n S γ"),
    _reversed("bruck", f"{BRUCK}, reversed; counted", "⌈lg n⌉ α + (n−1)/n S β + (n−1)/n S γ"),
    _reversed("neighbour-exchange", f"{_CHEN}, reversed; counted", "n/2 α + (n−1)/n S β + (n−1)/n S γ, n even"),
    _reversed("pat", PAT, "⌈lg n⌉ α + (n−1)/n S β + (n−1)/n S γ"),
    _reversed("direct", "counted", "α + (n−1)/n S β + (n−1)/n S γ"),
    _reversed(
        "hierarchical",
        "counted",
        f"(g−1) α_i + (k−1) α + (g−1)/g S β_i + (k−1)/n S β + (n−1)/n S γ; {LEVELS}",
    ),
    _all_to_all("pairwise", others, "(n−1) α + (n−1)/n S β", THAKUR),
    _all_to_all("spread", one, "α + (n−1)/n S β", "counted", messages=others),
    _all_to_all(
        "bruck",
        up,
        "⌈lg n⌉ α + K/n S β, K = Σ_j #{i < n : bit j of i is set} (n/2 lg n for a power of 2)",
        f"{BRUCK}; {THAKUR} has n/2 lg n for every n, which is too much",
        sent=lambda n, *_: bits(n) / n,
        moved=lambda n, *_: bits(n),
    ),
    _all_to_all(
        "two-level",
        _around_both,
        f"(g−1) α_i + (k−1) α + (g−1)/g S β_i + (k−1)/k S β; {LEVELS}",
        "counted; like NCCL's PXN",
        sent=lambda n, k, _: share(n // k) + share(k),
        moved=lambda n, k, _: n * (share(n // k) + share(k)),
        possible=several_hosts,
        inner_rounds=_others_inside,
        inner_sent=_inside,
    ),
    _broadcast("binomial-tree", up, "⌈lg n⌉ (α + S β)", CHAN, sent=up),
    _broadcast(
        "scatter-ring",
        lambda n, *_: up(n) + n - 1,
        "(⌈lg n⌉ + n − 1) α + 2(n−1)/n S β",
        "van de Geijn: Barnett et al. 1994",
        sent=twice_the_share,
        moved=lambda n, *_: below(n) + n - 1,
    ),
    _broadcast(
        "chain",
        lambda n, *_: n - 2 + SEGMENTS if n > 1 else 0,
        "(n − 2 + m)(α + S/m β), m = 8 segments",
        "counted",
        sent=lambda n, *_: (n - 2 + SEGMENTS) / SEGMENTS if n > 1 else 0,
    ),
    _broadcast(
        "binary-tree",
        lambda n, *_: SEGMENTS + down(n) - 1 if n > 1 else 0,
        "(m + d − 1) α + 2(m + d − 1)/m S β, d = ⌊lg n⌋ levels, m = 8 segments; one segment less for a power of 2 "
        "above 2, half as many bytes for 2 ranks",
        "counted",
        sent=lambda n, *_: _segments_down_a_tree(n) / SEGMENTS,
        messages=_segments_down_a_tree,
    ),
    _broadcast(
        "double-tree",
        lambda n, *_: SEGMENTS + up(n - 1) if n > 1 else 0,
        "(m + ⌈lg(n−1)⌉)(α + S/m β), m = 8 segments in each tree; half a segment less for 3 and 4 ranks",
        f"{SANDERS}; counted",
        sent=lambda n, *_: _segments_down_twins(n) / (2 * SEGMENTS),
        messages=_segments_down_twins,
    ),
    _broadcast(
        "hierarchical",
        lambda n, k, _: up(n // k) + up(k) + n // k - 1,
        f"(⌈lg g⌉ + g−1) α_i + ⌈lg k⌉ α + 2(g−1)/g S β_i + ⌈lg k⌉/g S β; {LEVELS}",
        "counted",
        sent=lambda n, k, _: 2 * share(n // k) + up(k) * k / n,
        moved=lambda n, k, _: below(n // k) + k - 1 + k * (n // k - 1),
        possible=several_hosts,
        inner_rounds=lambda n, k, _: up(n // k) + n // k - 1,
        inner_sent=twice(_inside),
    ),
    _reduce("binomial-tree", up, "⌈lg n⌉ (α + S β + S γ)", CHAN, sent=up, added=up),
    _reduce(
        "rabenseifner",
        lambda n, *_: folds(n, 2 * up(n), 2 * down(n) + 1),
        "2 lg n α + 2(n−1)/n S β + (n−1)/n S γ; for other n with 2^⌊lg n⌋ instead of n, plus α + S β + S γ",
        f"{RABENSEIFNER}; {THAKUR}",
        sent=lambda n, *_: 2 * share(core(n)) + folds(n, 0, 1),
        added=lambda n, *_: share(core(n)) + folds(n, 0, 1),
        moved=lambda n, *_: n - 1 + below(core(n)),
    ),
    _gather("binomial-tree", up, "⌈lg n⌉ α + (n−1)/n S β", CHAN, moved=below),
    _gather("linear", one, "α + (n−1)/n S β", "counted", moved=share, messages=others),
    _scatter("binomial-tree", up, "⌈lg n⌉ α + (n−1)/n S β", CHAN, moved=below),
    _scatter("linear", one, "α + (n−1)/n S β", "counted", moved=share, messages=others),
    _barrier("dissemination", up, "⌈lg n⌉ α", "Hensgen et al. 1988"),
    _barrier("linear", twice_the_others, "2(n−1) α", "counted"),
    _barrier("ring", twice_the_others, "2(n−1) α", _ONE_ELEMENT),
    _barrier("binomial-tree", twice_up, "2⌈lg n⌉ α", "an all_reduce of one element"),
    _barrier("recursive-doubling", _folded, "lg n α; (⌊lg n⌋ + 2) α for other n", f"{_ONE_ELEMENT}; {THAKUR}"),
)
"""Exactly the algorithms that can be measured over send/recv. The partials above have the common fields of each op."""


ROWS: Final = {(row.op, row.algorithm): row for row in (*TEXTBOOK, *LIMITS, *SWITCHED)}
"""All rows by operation and algorithm, including those that cannot be measured over send/recv."""


def rows_of(op: str, family: str | None = None) -> tuple[CostModel, ...]:
    """The algorithms that may be behind ``op`` in a family: those over send/recv, and for NCCL or None also the
    in-network algorithms.
    """
    every = (*TEXTBOOK, *SWITCHED) if family in {None, NCCL} else TEXTBOOK
    return tuple(row for row in every if row.op == op)
