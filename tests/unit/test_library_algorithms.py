"""What MPI libraries run does what it is for, and costs what its row says: schedules written from the libraries' own
rules, executed and counted.
"""

import pytest
from drawable import DRAWABLE
from exhaustive import RANKS
from library_schedules import LIBRARY_SCHEDULES, Children, barrier_at_once, binomial_children, four_nomial_children
from schedule_counts import Contribution, cost, execute
from testing.narrow import require

from busbw_analysis.models.library_algorithms import LIBRARY_ROWS, OF_LIBRARIES, formula_of
from busbw_analysis.models.textbook import TEXTBOOK

ROOT = 0


def binary_children(ranks: int, rank: int) -> list[int]:
    width = 1 << (rank + 1).bit_length() - 1
    return [child for child in (rank + width, rank + 2 * width) if child < ranks]


def heard(ranks: int, children: Children) -> tuple[int, int]:
    """How far the farthest rank is from the root, and who hears last, in messages: a rank of Open MPI sends to all of
    its children and then waits for all, so that those share its link and come at the same time.
    """
    passed, came, reached = {ROOT: 0}, {ROOT: 0}, [ROOT]
    for rank in reached:  # it grows
        below = children(ranks, rank)
        passed.update(dict.fromkeys(below, passed[rank] + 1))
        came.update(dict.fromkeys(below, came[rank] + len(below)))
        reached += below
    assert sorted(reached) == [*range(ranks)]
    return max(passed.values()), max(came.values())


NAMES = sorted(LIBRARY_SCHEDULES)
AT_ONCE: dict[str, Children] = {
    "unsegmented-binary-tree": binary_children,
    "binomial-tree-at-once": binomial_children,
    "4-nomial-tree-at-once": four_nomial_children,
}
"""Broadcasts down trees in which a rank sends to all children at once, and does not wait for other ranks to do so."""


def all_of(ranks: int, block: int) -> Contribution:
    return frozenset((rank, block) for rank in range(ranks))


def meaning(op: str, ranks: int, blocks: int) -> tuple[tuple[Contribution, ...], ...]:
    sums = tuple(all_of(ranks, block) for block in range(blocks))
    nothing = ((),) * (ranks - 1)
    return {
        "all_reduce": (sums,) * ranks,
        "broadcast": (tuple(frozenset({(ROOT, block)}) for block in range(blocks)),) * ranks,
        "reduce": (sums, *nothing),
        "reduce_scatter": tuple((all_of(ranks, rank),) for rank in range(ranks)),
        "gather": (tuple(frozenset({(rank, 0)}) for rank in range(ranks)), *nothing),
        "barrier": ((),) * ranks,
    }[op]


@pytest.mark.parametrize(("op", "name"), NAMES)
def test_what_a_library_runs_is_what_its_row_says(op: str, name: str) -> None:
    row = LIBRARY_ROWS[op, name]
    tried = 0
    for ranks in RANKS[1:]:
        if not row.possible(ranks, 1, 1):
            continue
        schedule = LIBRARY_SCHEDULES[op, name](ranks)
        assert execute(schedule) == meaning(op, ranks, schedule.blocks), ranks
        counted = cost(schedule)
        messages = row.messages or row.rounds
        said = [count(ranks, 1, 1) for count in (row.rounds, messages, row.sent, row.added, row.moved)]
        by_schedule = [counted.rounds, counted.messages, *map(float, (counted.sent, counted.added, counted.moved))]
        if op == "broadcast" and name in AT_ONCE:
            farthest, last = heard(ranks, AT_ONCE[name])
            by_schedule[:3] = [farthest, last, last]
        assert said == pytest.approx(by_schedule), ranks
        tried += 1
    assert tried >= 5


@pytest.mark.parametrize(
    ("name", "counts"),
    [("binomial", {4: 3, 8: 6, 16: 10, 32: 15}), ("knomial", {4: 3, 5: 4, 8: 7, 16: 9, 32: 16, 64: 18})],
)
def test_messages_that_open_mpi_sends_down_a_tree_at_once_share_a_link(name: str, counts: dict[int, int]) -> None:
    for ranks, sent in counts.items():
        row = require(formula_of("Open MPI", "broadcast", name, ranks))
        assert row.sent(ranks, 1, 1) == sent
    # MPICH sends one after the other.
    blocking = require(formula_of("MPICH", "broadcast", "binomial", 32))
    assert blocking.sent(32, 1, 1) == 5


def test_every_row_of_a_library_has_a_schedule_a_drawing_and_a_name_of_its_own() -> None:
    assert sorted((row.op, row.algorithm) for row in OF_LIBRARIES) == NAMES
    assert all(name in DRAWABLE[op] for op, name in NAMES)
    assert not set(NAMES) & {(row.op, row.algorithm) for row in TEXTBOOK}


def test_in_a_barrier_by_rank_0_nobody_goes_before_the_last_has_come() -> None:
    for ranks in RANKS[1:]:
        heard = [{rank} for rank in range(ranks)]
        for transfers in barrier_at_once(ranks).rounds:
            before = [set(words) for words in heard]
            for message in transfers:
                heard[message.to] |= before[message.source]
        assert all(words == set(range(ranks)) for words in heard)


@pytest.mark.parametrize(("op", "name"), [("broadcast", "linear"), ("reduce", "linear"), ("barrier", "linear-at-once")])
def test_messages_that_are_under_way_at_once_are_counted(op: str, name: str) -> None:
    row = LIBRARY_ROWS[op, name]
    assert [row.at_once(ranks, 1, 1) for ranks in (2, 8, 64)] == [1, 7, 63]
