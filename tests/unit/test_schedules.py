"""Algorithms do what they are for, whatever the number of ranks, and cost what theory says that they cost."""

from __future__ import annotations

import pytest

from busbw.schedules import ALGORITHMS, BY_HAND, all_reduce
from busbw.schedules.base import Contribution, Schedule, Transfer, cost, execute
from busbw_analysis.theory import textbook
from busbw_analysis.theory.textbook import TEXTBOOK, Textbook

RANKS = range(1, 65)

EVERY = [(op, name) for op, named in ALGORITHMS.items() for name in named]


def schedule_of(op: str, name: str, ranks: int, hosts: int = 1) -> Schedule | None:
    algorithm = ALGORITHMS[op][name]
    return None if algorithm.refuse(ranks) is not None else algorithm.on(ranks, hosts)


def all_of(ranks: int, block: int) -> Contribution:
    return frozenset((rank, block) for rank in range(ranks))


def one_of(rank: int, block: int) -> Contribution:
    return frozenset({(rank, block)})


def meaning(op: str, ranks: int, blocks: int) -> tuple[tuple[Contribution, ...], ...]:
    """What each rank has to end with, from the definition of the operation."""
    every = range(ranks)
    only_root = ((),) * (ranks - 1)
    meanings: dict[str, tuple[tuple[Contribution, ...], ...]] = {
        "all_reduce": (tuple(all_of(ranks, block) for block in range(blocks)),) * ranks,
        "all_gather": (tuple(one_of(rank, 0) for rank in every),) * ranks,
        "reduce_scatter": tuple((all_of(ranks, rank),) for rank in every),
        "all_to_all": tuple(tuple(one_of(source, rank) for source in every) for rank in every),
        "broadcast": (tuple(one_of(0, block) for block in range(blocks)),) * ranks,
        "reduce": (tuple(all_of(ranks, block) for block in range(blocks)), *only_root),
        "gather": (tuple(one_of(rank, 0) for rank in every), *only_root),
        "scatter": tuple((one_of(0, rank),) for rank in every),
        "barrier": ((),) * ranks,
    }
    return meanings[op]


@pytest.mark.parametrize(("op", "name"), EVERY)
def test_every_rank_ends_with_what_the_operation_means(op: str, name: str) -> None:
    tried = 0
    for ranks in RANKS:
        schedule = schedule_of(op, name, ranks)
        if schedule is not None:
            assert execute(schedule) == meaning(op, ranks, schedule.blocks), ranks
            tried += 1
    assert tried >= 7


@pytest.mark.parametrize("hosts", [1, 2, 3, 4, 8])
def test_levels_of_hosts_end_alike(hosts: int) -> None:
    for on_host in range(1, 9):
        schedule = schedule_of("all_reduce", "hierarchical", hosts * on_host, hosts)
        assert schedule is not None
        assert execute(schedule) == meaning("all_reduce", hosts * on_host, schedule.blocks)


def test_a_barrier_lets_nobody_go_before_the_last_has_come() -> None:
    for ranks in RANKS:
        schedule = schedule_of("barrier", "dissemination", ranks)
        assert schedule is not None
        heard = [{rank} for rank in range(ranks)]
        for one in schedule.rounds:
            before = [set(words) for words in heard]
            for transfer in one:
                heard[transfer.to] |= before[transfer.source]
        assert all(words == set(range(ranks)) for words in heard)


@pytest.mark.parametrize("row", TEXTBOOK, ids=lambda row: f"{row.op} {row.algorithm}")
def test_the_formula_is_what_is_counted(row: Textbook) -> None:
    tried = 0
    for ranks in RANKS:
        for hosts in (1, 2, 4, 8) if row.algorithm == "hierarchical" else (1,):
            if not row.possible(ranks, hosts):
                continue
            schedule = schedule_of(row.op, row.algorithm, ranks, hosts)
            assert schedule is not None
            counted = cost(schedule)
            counts = (row.rounds, row.messages or row.rounds, row.sent, row.added, row.moved)
            in_bytes = [float(one) for one in (counted.sent, counted.added, counted.moved)]
            said = [count(ranks, hosts) for count in counts]
            assert said == pytest.approx([counted.rounds, counted.messages, *in_bytes]), (ranks, hosts)
            tried += 1
    assert tried >= 6


def test_there_is_a_row_for_every_schedule_and_for_nothing_else() -> None:
    assert {(row.op, row.algorithm) for row in TEXTBOOK} == set(EVERY)
    assert len(TEXTBOOK) == len(EVERY)
    assert textbook.BY_HAND == BY_HAND


def test_where_a_schedule_is_possible_so_is_its_row() -> None:
    for row in TEXTBOOK:
        for ranks in range(2, 65):
            hosts = 2 if row.algorithm == "hierarchical" else 1
            there = ranks % hosts == 0 and ALGORITHMS[row.op][row.algorithm].refuse(ranks) is None
            assert row.possible(ranks, hosts) == there, (row, ranks)


class TestExecute:
    """What a wrong schedule is told."""

    def of(self, *transfers: Transfer) -> Schedule:
        return Schedule(2, 1, ((0, -1), (0, -1)), (transfers,), ((1,), (1,)))

    def test_an_empty_slot_cannot_be_sent(self) -> None:
        with pytest.raises(ValueError, match="round 0, 0 to 1: slot 1 of rank 0 is empty"):
            execute(self.of(Transfer(0, 1, (1,), (1,))))

    def test_nothing_is_added_twice(self) -> None:
        with pytest.raises(ValueError, match="cannot add to slot 0 of rank 1"):
            execute(self.of(Transfer(0, 1, (0,), (0,), adds=True), Transfer(0, 1, (0,), (0,), adds=True)))

    def test_nothing_is_written_twice_in_a_round(self) -> None:
        with pytest.raises(ValueError, match="slot 1 of rank 1 was just written"):
            execute(self.of(Transfer(0, 1, (0,), (1,)), Transfer(1, 1, (0,), (1,))))

    def test_a_result_that_never_came_is_seen(self) -> None:
        with pytest.raises(ValueError, match="at the end slot 1 of rank 0 is empty"):
            execute(self.of(Transfer(0, 1, (0,), (1,))))

    def test_hosts_have_to_be_of_one_size(self) -> None:
        with pytest.raises(ValueError, match="6 ranks are not a multiple of 4"):
            all_reduce.hierarchical(6, 4)
