"""What all-reduces cost in closed form."""

from typing import Final

from busbw_analysis.models.counts import (
    CHAN,
    LEVELS,
    PAT,
    RABENSEIFNER,
    SANDERS,
    SEGMENTS,
    THAKUR,
    Textbook,
    children_in_a_row,
    core,
    depth,
    down,
    folds,
    levels,
    one,
    others,
    several_hosts,
    share,
    the_share,
    twice_the_levels,
    twice_the_others,
    twice_the_share,
    two,
    up,
)

_SERVER: Final = "Li et al. 2014 (the pattern); counted"
_RING_SEGMENTS, _IN_FLIGHT = 4, 2


def _two_levels(ranks: int, hosts: int) -> float:
    return 2 * share(ranks // hosts) + 2 * (hosts - 1) / ranks


def _segments_through_twins(ranks: int) -> float:
    """Segments through the busiest link on the way up two trees, of which each cuts its half into eight: two in a round
    but the last, in which only the roots are told. Two ranks have one child each, three have a round less.
    """
    return {1: 0, 2: SEGMENTS, 3: 2 * SEGMENTS}.get(ranks, 2 * (SEGMENTS + up(ranks)) - 3)


def _around_hosts(ranks: int, hosts: int) -> float:
    """Messages of rings that leave a host at different ranks: a round has one on the host, and one to the next host."""
    return 2 * (ranks - 1) * (2 if ranks > hosts else 1)


ALL_REDUCE: tuple[Textbook, ...] = (
    Textbook(
        "all_reduce",
        "ring",
        twice_the_others,
        twice_the_share,
        the_share,
        twice_the_others,
        "2(n−1) α + 2(n−1)/n S β + (n−1)/n S γ",
        f"Patarasuk and Yuan 2009; {CHAN}",
    ),
    Textbook(
        "all_reduce",
        "segmented-ring",
        lambda n, _k: 2 * -(-(n - 1) * _RING_SEGMENTS // _IN_FLIGHT),
        twice_the_share,
        the_share,
        twice_the_others,
        "4(n−1) α + 2(n−1)/n S β + (n−1)/n S γ: 4 segments of each rank's block, 2 under way",
        "counted; gloo/allreduce.cc has as many that none is longer than 1 MiB",
        messages=lambda n, _k: 2 * (n - 1) * _RING_SEGMENTS,
    ),
    Textbook(
        "all_reduce",
        "double-ring",
        twice_the_others,
        twice_the_share,
        the_share,
        twice_the_others,
        "2(n−1) α + 2(n−1)/n S β + (n−1)/n S γ",
        "counted",
        messages=lambda n, _k: 2 * (n - 1) * (2 if n > 2 else 1),
    ),
    Textbook(
        "all_reduce",
        "multi-ring",
        twice_the_others,
        twice_the_share,
        the_share,
        twice_the_others,
        f"2(n−1) α + 2(n−1)/n S/g β, or 2(n−1) α_i + 2(n−1)/n S β_i where that is longer, + (n−1)/n S γ; {LEVELS}",
        "counted",
        several_hosts,
        messages=_around_hosts,
        inner_sent=lambda n, k: 2 * share(n) * share(n // k),
        overlapped=True,
    ),
    Textbook(
        "all_reduce",
        "recursive-doubling",
        lambda n, _k: folds(n, up(n), down(n) + 2),
        lambda n, _k: folds(n, up(n), down(n) + 2),
        lambda n, _k: folds(n, up(n), down(n) + 1),
        lambda n, _k: core(n) * down(n) + 2 * (n - core(n)),
        "lg n (α + S β + S γ); (⌊lg n⌋ + 2)(α + S β) + (⌊lg n⌋ + 1) S γ for other n",
        THAKUR,
    ),
    Textbook(
        "all_reduce",
        "rabenseifner",
        lambda n, _k: folds(n, 2 * up(n), 2 * down(n) + 2),
        lambda n, _k: 2 * share(core(n)) + folds(n, 0, 2),
        lambda n, _k: share(core(n)) + folds(n, 0, 1),
        twice_the_others,
        "2 lg n α + 2(n−1)/n S β + (n−1)/n S γ; for other n with 2^⌊lg n⌋ in place of n, and 2 α + 2 S β + S γ more",
        f"{RABENSEIFNER}; {THAKUR}",
    ),
    Textbook(
        "all_reduce",
        "binomial-tree",
        twice_the_levels,
        twice_the_levels,
        levels,
        twice_the_others,
        "2⌈lg n⌉ (α + S β) + ⌈lg n⌉ S γ",
        CHAN,
    ),
    Textbook(
        "all_reduce",
        "binary-tree",
        lambda n, _k: 2 * depth(n),
        lambda n, _k: 2 * children_in_a_row(n),
        lambda n, _k: children_in_a_row(n),
        twice_the_others,
        "2d α + 2c S β + c S γ, d levels, c = 2 for each, fewer for the last one where it has no two",
        "counted",
        messages=lambda n, _k: 2 * children_in_a_row(n),
    ),
    Textbook(
        "all_reduce",
        "4-ary-tree",
        lambda n, _k: 2 * depth(n, 4),
        lambda n, _k: 2 * children_in_a_row(n, 4),
        lambda n, _k: children_in_a_row(n, 4),
        twice_the_others,
        "2d α + 2c S β + c S γ, d levels, c = 4 for each, fewer for the last one where it has no four",
        "counted",
        messages=lambda n, _k: 2 * children_in_a_row(n, 4),
    ),
    Textbook(
        "all_reduce",
        "double-tree",
        lambda n, _k: 2 * (SEGMENTS + up(n) - 1) if n > 1 else 0,
        lambda n, _k: _segments_through_twins(n) / SEGMENTS,
        lambda n, _k: _segments_through_twins(n) / (2 * SEGMENTS),
        twice_the_others,
        "2(m + ⌈lg n⌉ − 1) α + (2 + (2⌈lg n⌉ − 3)/m) S β + half of those bytes γ, m = 8 segments in each tree, n > 3; "
        "S β for 2 ranks, 2 S β for 3",
        f"{SANDERS}; counted",
        messages=lambda n, _k: 2 * _segments_through_twins(n),
    ),
    Textbook(
        "all_reduce",
        "reduce-scatter-all-gather",
        twice_the_levels,
        twice_the_share,
        the_share,
        twice_the_others,
        "2⌈lg n⌉ α + 2(n−1)/n S β + (n−1)/n S γ",
        PAT,
    ),
    Textbook(
        "all_reduce",
        "parameter-server",
        two,
        twice_the_others,
        others,
        twice_the_others,
        "2 α + 2(n−1) S β + (n−1) S γ",
        _SERVER,
        messages=twice_the_others,
    ),
    Textbook(
        "all_reduce",
        "sharded-parameter-server",
        two,
        twice_the_share,
        the_share,
        twice_the_others,
        "2 α + 2(n−1)/n S β + (n−1)/n S γ",
        _SERVER,
        messages=twice_the_others,
    ),
    Textbook(
        "all_reduce",
        "direct",
        one,
        others,
        others,
        lambda n, _k: n * (n - 1),
        "α + (n−1)(S β + S γ)",
        "counted",
        messages=others,
    ),
    Textbook(
        "all_reduce",
        "hierarchical",
        lambda n, k: 2 * (n // k - 1) + 2 * (k - 1),
        _two_levels,
        lambda n, k: _two_levels(n, k) / 2,
        lambda n, k: n * _two_levels(n, k),
        f"2(g−1) α_i + 2(k−1) α + 2(g−1)/g S β_i + 2(k−1)/n S β + half of those bytes γ; {LEVELS}",
        "counted",
        several_hosts,
        inner_rounds=lambda n, k: 2 * (n // k - 1),
        inner_sent=lambda n, k: 2 * share(n // k),
    ),
)
