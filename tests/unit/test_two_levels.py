"""Which algorithms send as much to other hosts as their busiest rank sends."""

import gloo_programs as gloo
import pytest
from schedule_counts import by_level

from busbw.ops.algorithms import ALGORITHMS
from busbw_analysis.models.costs import CostModel
from busbw_analysis.models.select import candidates
from busbw_analysis.models.textbook import TEXTBOOK

MIB = 1 << 20
FLAT = [row for row in TEXTBOOK if not ALGORITHMS[row.op][row.algorithm].levels and row.op != "barrier"]
UNEQUAL = ((4, 2), (6, 3), (8, 2), (12, 3), (12, 4), (16, 4), (32, 4))
"""Ranks and hosts."""


@pytest.mark.parametrize("row", FLAT, ids=lambda row: f"{row.op} {row.algorithm}")
def test_of_one_ring_alone_a_host_sends_what_its_busiest_rank_sends_and_every_round_leaves_it(row: CostModel) -> None:
    places = [(ranks, hosts) for ranks, hosts in UNEQUAL if row.possible(ranks, hosts, 1)]
    counted = [by_level(ALGORITHMS[row.op][row.algorithm].on(*place), place[0] // place[1]) for place in places]
    all_of_it = [
        levels.inner_rounds == 0
        and (float(levels.between), float(levels.of_a_host)) == pytest.approx((row.sent(*place, 1),) * 2)
        for levels, place in zip(counted, places, strict=True)
    ]
    assert len(places) >= 4
    assert all(all_of_it) if row.in_a_ring else not all(all_of_it)
    assert row.of_hosts_known(8, 2, MIB) == all(all_of_it)
    assert all(row.of_hosts_known(8, hosts, MIB) for hosts in (1, 8))


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce"])
def test_gloos_rings_are_known_by_what_its_programs_send_to_other_hosts(op: str) -> None:
    program = {"reduce_scatter": gloo.all_reduce}.get(op) or getattr(gloo, op)
    equal = []
    for ranks, hosts in UNEQUAL:
        each, leaving, sent = ranks // hosts, [0] * hosts, [0] * ranks
        for rank in range(ranks):
            for step in program(rank, ranks, 2):
                if isinstance(step, gloo.Send):
                    sent[rank] += len(step.slots)
                    leaving[rank // each] += len(step.slots) * (rank // each != step.to // each)
        equal.append(max(leaving) == max(sent))
    own, *_ = candidates(op, "gloo")
    assert own.family == "gloo"
    assert own.of_hosts_known(8, 2, MIB) == all(equal)
