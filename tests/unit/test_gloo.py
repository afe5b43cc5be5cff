"""What the models say of Gloo is what its programs take when they are executed: delays, bytes and sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import gloo_programs as gloo
import pytest
from exhaustive import RANKS
from gloo_programs import Counted, Mark, Step
from testing.narrow import require_type

from busbw_analysis.models.costs import CostModel
from busbw_analysis.models.gloo import MODELS, gloo_segments
from busbw_analysis.models.select import model_for

MIB = 1 << 20
Program = Callable[[int, int, int], list[Step]]
Content = Callable[[int, int, int], dict[int, int]]
"""Rank, ranks and segments → what is in its slots."""


def own_bit(rank: int, ranks: int, segments: int) -> dict[int, int]:
    return dict.fromkeys(range(ranks * segments), 1 << rank)


def everybody(_rank: int, ranks: int, segments: int) -> dict[int, int]:
    return dict.fromkeys(range(ranks * segments), (1 << ranks) - 1)


def own_block(rank: int, _ranks: int, segments: int) -> dict[int, int]:
    return {rank * segments + segment: 1 << rank for segment in range(segments)}


def all_blocks(_rank: int, ranks: int, segments: int) -> dict[int, int]:
    return {slot: 1 << slot // segments for slot in range(ranks * segments)}


def at_root(what: Content) -> Content:
    return lambda rank, ranks, segments: {} if rank else what(rank, ranks, segments)


def block_of_mine(what: Content) -> Content:
    """Of what everybody has, a rank is asked for its own block alone."""
    return lambda rank, ranks, segments: {
        slot: what(rank, ranks, segments)[slot] for slot in own_block(rank, ranks, segments)
    }


def to_each(rank: int, ranks: int, _segments: int) -> dict[int, int]:
    return {to: 64 * rank + to for to in range(ranks)}


def from_each(rank: int, ranks: int, _segments: int) -> dict[int, int]:
    return {ranks + source: 64 * source + rank for source in range(ranks) if source != rank}


def nothing(_rank: int, _ranks: int, _segments: int) -> dict[int, int]:
    return {}


PROGRAMS: dict[str, tuple[Program, Content, Content]] = {
    "all_reduce": (gloo.all_reduce, own_bit, everybody),
    "reduce_scatter": (gloo.all_reduce, own_bit, block_of_mine(everybody)),
    "reduce": (gloo.reduce, own_bit, at_root(everybody)),
    "all_gather": (gloo.all_gather, own_block, all_blocks),
    "all_to_all": (gloo.all_to_all, to_each, from_each),
    "broadcast": (gloo.broadcast, at_root(lambda *_: {0: 1}), lambda *_: {0: 1}),
    "gather": (gloo.gather, own_block, at_root(all_blocks)),
    "scatter": (gloo.scatter, at_root(all_blocks), own_block),
    "barrier": (gloo.barrier, nothing, nothing),
}
"""Op → what a rank does, what it begins with, and what it has to end with."""

CUT = {"all_gather": 2, "broadcast": 0, "barrier": 0}
"""Into how many parts a program cuts each rank's share of S, where that is neither Gloo's segments nor one."""
SEGMENTED = ("all_reduce", "reduce_scatter", "reduce")


@cache
def ran(program: Program, begins: Content, ranks: int, segments: int) -> Counted:
    every = range(ranks)
    return gloo.run(
        [program(rank, ranks, segments) for rank in every], [begins(rank, ranks, segments) for rank in every]
    )


def executed(op: str, ranks: int, segments: int) -> Counted:
    program, begins, ends = PROGRAMS[op]
    outcome = ran(program, begins, ranks, segments)
    for rank, slots in enumerate(outcome.slots):
        wanted = ends(rank, ranks, segments)
        assert {slot: slots[slot] for slot in wanted} == wanted, (op, ranks, rank)
    return outcome


def model(op: str) -> CostModel:
    return require_type(CostModel, model_for(op, "gloo"))


@pytest.mark.parametrize(
    ("op", "times"), [(op, times) for op in PROGRAMS for times in (1, *((3, 5) if op in SEGMENTED else ()))]
)
def test_a_model_says_what_its_program_takes(op: str, times: int) -> None:
    """``times`` n MiB: 2, 3 and 5 segments for each rank's block."""
    row = model(op)
    for ranks in RANKS if times < 5 else [few for few in RANKS if few <= 16]:
        size = times * ranks * MIB
        segments = gloo_segments(ranks, size) // ranks if op in SEGMENTED else CUT.get(op, 1)
        assert op not in SEGMENTED or segments == max(times, 2)
        counted = executed(op, ranks, segments)
        block = size / (ranks * segments) if segments else size
        assert row.rounds(ranks, 1, size) == counted.delays, ranks
        if op != "broadcast":
            assert row.sent(ranks, 1, size) * size == pytest.approx(counted.sent * block), ranks
        assert row.added(ranks, 1, size) * size == pytest.approx(counted.added * block), ranks
        assert row.moved(ranks, 1, size) * size == pytest.approx(counted.moved * block), ranks


@pytest.mark.parametrize("ranks", RANKS)
def test_who_hears_a_broadcast_last_waits_for_all_messages_that_share_a_link_with_its_own(ranks: int) -> None:
    """Gloo does not wait for one of them before it begins the next, so all that a rank sends come at the same time."""
    heard = {0: 0}
    for rank in range(ranks):
        below = [step.to for step in gloo.broadcast(rank, ranks, 0) if isinstance(step, gloo.Send)]
        heard.update(dict.fromkeys(below, heard[rank] + len(below)))
    assert len(heard) == ranks
    assert model("broadcast").sent(ranks, 1, MIB) * MIB == MIB * max(heard.values())
    if ranks in {2, 4, 8, 16, 32, 64}:
        levels = ranks.bit_length() - 1
        assert max(heard.values()) == levels * (levels + 1) / 2


def both_ways(rank: int, ranks: int) -> list[Step]:
    """A message to the next rank, and one of the rank before, as of send_recv and, of two ranks, pair_bidir."""
    return [gloo.Send((rank + 1) % ranks, (0,)), gloo.Receive((rank - 1) % ranks), gloo.Sent(), gloo.Arrived((1,))]


@pytest.mark.parametrize("ranks", [2, 3, 64])
def test_messages_that_pass_each_other_are_asked_for_first(ranks: int) -> None:
    every = range(ranks)
    counted = gloo.run([both_ways(rank, ranks) for rank in every], [{0: rank} for rank in every])
    assert [slots[1] for slots in counted.slots] == [(rank - 1) % ranks for rank in every]
    assert (counted.delays, counted.sent, counted.moved) == (2, 1, ranks)
    for op in ("send_recv", "pair_bidir") if ranks == 2 else ("send_recv",):
        assert (model(op).rounds(ranks, 1, MIB), model(op).sent(ranks, 1, MIB) * MIB) == (2, MIB)
        assert model(op).moved(ranks, 1, MIB) * MIB == ranks * MIB
        over_mpi = require_type(CostModel, model_for(op, "mpi"))
        assert over_mpi.rounds(ranks, 1, MIB) == 1


def test_an_answer_is_asked_for_while_the_message_is_under_way() -> None:
    there: list[Step] = [gloo.Send(1, (0,)), gloo.Sent(), gloo.Receive(1), gloo.Arrived((0,))]
    back: list[Step] = [gloo.Receive(0), gloo.Arrived((0,)), gloo.Send(0, (0,)), gloo.Sent()]
    trips = 8
    counted = gloo.run([there * trips, back * trips], [{0: 1}, {}])
    assert counted.delays == 1 + 2 * trips  # the first one has to be asked for
    assert model("ping_pong").rounds(2, 1, MIB) == 1


def test_every_collective_of_gloo_is_executed() -> None:
    messages = {"send_recv", "ping_pong", "pair_uni", "pair_bidir", "pair_matrix"}
    assert {row.op for row in MODELS if row.family == "gloo"} - messages == set(PROGRAMS)


@pytest.mark.parametrize("op", PROGRAMS)
def test_one_rank_alone_waits_for_nothing(op: str) -> None:
    row = model(op)
    amounts = (row.rounds, row.sent, row.added, row.moved)
    assert [amount(1, 1, size) for amount in amounts for size in (0, 1, MIB, 64 * MIB)] == [0] * 16
    assert not row.possible(1, 1, MIB)


def after_a_barrier(op: str, ranks: int) -> float:
    """Delays of the slowest rank by its own clock, as samples are taken: each call after a barrier of Gloo's."""
    program, begins, _ = PROGRAMS[op]
    segments = 2 if op in SEGMENTED else CUT.get(op, 1) or 1
    calls = 6
    every = range(ranks)
    steps = [[*gloo.barrier(rank, ranks, 0), Mark(), *program(rank, ranks, segments), Mark()] * calls for rank in every]
    slots = [begins(rank, ranks, segments) for rank in every]
    if op in SEGMENTED:
        slots = [dict.fromkeys(rank_slots, 0) for rank_slots in slots]  # what comes out was seen above
    marks = gloo.run(steps, slots).marks
    return max(mark[-1] - mark[-2] for mark in marks)


@pytest.mark.parametrize("op", sorted(PROGRAMS.keys() - {"broadcast"}))
def test_a_barrier_before_each_call_changes_nothing(op: str) -> None:
    for ranks in range(2, 17):
        assert after_a_barrier(op, ranks) == model(op).rounds(ranks, 1, 1024), ranks


def test_but_of_a_broadcast_who_hears_last_also_begins_last() -> None:
    taken = {ranks: after_a_barrier("broadcast", ranks) for ranks in (2, 3, 4, 7, 8, 16)}
    assert taken == {2: 2, 3: 2, 4: 2, 7: 2, 8: 3, 16: 4}
    assert [model("broadcast").rounds(ranks, 1, 1024) for ranks in taken] == [2, 2, 3, 3, 4, 5]
