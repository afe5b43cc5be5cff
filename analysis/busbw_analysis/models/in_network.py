"""What cannot be measured by hand: limits that finer and finer segments come near to, and algorithms that need a switch
which adds and hands out. Tests hold each against a schedule that is executed and counted, the switch one more member.
"""

from busbw_analysis.models.counts import (
    LEVELS,
    SANDERS,
    Textbook,
    none,
    one,
    others,
    several_hosts,
    share,
    the_share,
    twice_the_levels,
    twice_the_others,
    two,
)


def _twins(ranks: int, _hosts: int) -> float:
    return min(2, ranks / 2) if ranks > 1 else 0


def _to_the_switch_and_back(ranks: int, hosts: int) -> float:
    on_host = ranks // hosts
    return 2 * share(on_host) + (1 / on_host if hosts > 1 else 0)


LIMITS: tuple[Textbook, ...] = (
    Textbook(
        "all_reduce",
        "double binary tree, pipelined",
        twice_the_levels,
        _twins,
        lambda n, k: _twins(n, k) / 2,
        twice_the_others,
        "2⌈lg n⌉ α + 2 S β + S γ; S β for 2 ranks, 3/2 S β for 3",
        f"{SANDERS}; the filling of the pipeline left out",
    ),
)
"""The least that a pipeline needs: the rounds that there are with one segment, the bytes that there are with many."""

_NVLS = "NVLink SHARP; counted, the (n+1)/n as in pull request 239 of NVIDIA/nccl-tests"


def _one_host(ranks: int, hosts: int) -> bool:
    return ranks > 1 and hosts == 1


SWITCHED: tuple[Textbook, ...] = (
    Textbook(
        "all_reduce",
        "nvls",
        two,
        lambda n, _k: (n + 1) / n if n > 1 else 0,
        none,
        lambda n, _k: n + 1 if n > 1 else 0,
        "2 α + (n+1)/n S β: α to fetch a sum, α to hand it out",
        _NVLS,
        _one_host,
    ),
    Textbook(
        "all_reduce",
        "sharp",
        lambda n, k: 2 * (n // k - 1) + one(k, k),
        _to_the_switch_and_back,
        lambda n, k: share(n // k),
        lambda n, k: n * _to_the_switch_and_back(n, k),
        f"2(g−1) α_i + α + 2(g−1)/g S β_i + 1/g S β + (g−1)/g S γ; {LEVELS}",
        "Graham et al. 2016; counted",
        several_hosts,
        inner_rounds=lambda n, k: 2 * (n // k - 1),
        inner_sent=lambda n, k: 2 * share(n // k),
    ),
    Textbook("all_gather", "nvls", one, the_share, none, one, "α + (n−1)/n S β", _NVLS, _one_host),
    Textbook(
        "reduce_scatter",
        "nvls",
        one,
        the_share,
        lambda n, _k: 1 / n if n > 1 else 0,
        others,
        "α + (n−1)/n S β + 1/n S γ",
        _NVLS,
        _one_host,
    ),
)
"""What a switch that adds would make of it. What the switch itself adds takes no γ."""
