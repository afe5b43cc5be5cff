"""What cannot be measured over send/recv: limits of finer and finer segments, and algorithms that need a switch which
adds and hands out. Tests hold each against a schedule that is executed and counted, the switch one more member.
"""

from functools import partial

from busbw_analysis.models.costs import CostModel
from busbw_analysis.models.counts import (
    LEVELS,
    SANDERS,
    one,
    others,
    several_hosts,
    share,
    twice_the_others,
    twice_up,
    two,
)


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
        f"{SANDERS}; the filling of the pipeline left out",
        sent=_twins,
        added=lambda n, *_: _twins(n) / 2,
        moved=twice_the_others,
    ),
)
"""The least that a pipeline needs: the rounds that there are with one segment, the bytes that there are with many."""


def _one_host(ranks: int, hosts: int, _size_bytes: float) -> bool:
    return ranks > 1 and hosts == 1


_nvls = partial(
    CostModel,
    algorithm="nvls",
    source="NVLink SHARP; counted, the (n+1)/n as in pull request 239 of NVIDIA/nccl-tests",
    possible=_one_host,
)

SWITCHED: tuple[CostModel, ...] = (
    _nvls(
        "all_reduce",
        rounds=two,
        formula="2 α + (n+1)/n S β: α to fetch a sum, α to hand it out",
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
"""What a switch that adds would make of it. What the switch itself adds takes no γ."""
