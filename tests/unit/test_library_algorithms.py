"""What MPI libraries run does what it is for, and costs what its row says: schedules written here from the libraries'
own rules, executed and counted.
"""

from collections.abc import Callable, Iterator

import pytest

from busbw.schedules.base import NOTHING, Contribution, Round, Schedule, Slots, cost, execute, own_blocks, same, vectors
from busbw_analysis.theory.counts import core, is_power
from busbw_analysis.theory.library_algorithms import formula_of
from busbw_analysis.theory.library_rows import OF_LIBRARIES, library_row
from busbw_analysis.theory.textbook import TEXTBOOK

RANKS = range(2, 65)
ROOT = 0


def rounds_of(*parts: Iterator[Round] | list[Round]) -> tuple[Round, ...]:
    return tuple(one for part in parts for one in part if one)


def broadcast(ranks: int, blocks: int, *parts: Iterator[Round] | list[Round]) -> Schedule:
    begins = (tuple(range(blocks)), *[(NOTHING,) * blocks] * (ranks - 1))
    return Schedule(ranks, blocks, begins, rounds_of(*parts), vectors(ranks, blocks))


def reduce(ranks: int, blocks: int, *parts: Iterator[Round] | list[Round]) -> Schedule:
    ends = (tuple(range(blocks)), *[()] * (ranks - 1))
    return Schedule(ranks, blocks, vectors(ranks, blocks), rounds_of(*parts), ends)


def at_once(ranks: int) -> list[Round]:
    return [tuple(same(ROOT, rank, (0,)) for rank in range(1, ranks))]


def along_the_chain(ranks: int) -> list[Round]:
    return [(same(rank - 1, rank, (0,)),) for rank in range(1, ranks)]


def down_the_binary_tree(ranks: int) -> Iterator[Round]:
    """Open MPI hangs all first children of a level before the second ones: below 1 and 2 are 3, 4, 5 and 6 in turns."""
    for level in range(ranks.bit_length()):
        width = 1 << level
        parents = range(width - 1, min(2 * width - 1, ranks))
        yield tuple(
            same(rank, rank + width * child, (0,))
            for child in (1, 2)
            for rank in parents
            if rank + width * child < ranks
        )


def binary_children(ranks: int, rank: int) -> list[int]:
    width = 1 << (rank + 1).bit_length() - 1
    return [child for child in (rank + width, rank + 2 * width) if child < ranks]


def binomial_children(ranks: int, rank: int) -> list[int]:
    return [rank + step for step in (1 << power for power in range(7)) if rank < step < ranks - rank]


def four_nomial_children(ranks: int, rank: int) -> list[int]:
    below = [step for step in (1, 4, 16, 64) if rank % (4 * step) == 0]
    return [rank + step * child for step in reversed(below) for child in (1, 2, 3) if rank + step * child < ranks]


Children = Callable[[int, int], list[int]]


def generation_by_generation(ranks: int, children: Children) -> Iterator[Round]:
    parents = [ROOT]
    while parents:
        sent = [(rank, child) for rank in parents for child in children(ranks, rank)]
        yield tuple(same(rank, child, (0,)) for rank, child in sent)
        parents = [child for _, child in sent]


def heard(ranks: int, children: Children) -> tuple[int, int]:
    """How far the farthest rank is from the root, and who hears last, in messages: a rank of Open MPI sends to all of
    its children and then waits for all, so that those share its link and come at the same time.
    """
    passed, came, told = {ROOT: 0}, {ROOT: 0}, [ROOT]
    for rank in told:  # it grows
        below = children(ranks, rank)
        passed.update(dict.fromkeys(below, passed[rank] + 1))
        came.update(dict.fromkeys(below, came[rank] + len(below)))
        told += below
    assert sorted(told) == [*range(ranks)]
    return max(passed.values()), max(came.values())


def upwards(rounds: Iterator[Round] | list[Round]) -> list[Round]:
    """The same the other way round, adding up."""
    there = [*rounds]
    return [tuple(same(one.to, one.source, one.sent, adds=True) for one in messages) for messages in reversed(there)]


def scattered_and_doubled(ranks: int) -> Schedule:
    steps = [1 << power for power in range(ranks.bit_length() - 1)]
    scatter = [
        tuple(same(rank, rank + step, span(rank + step, step)) for rank in range(0, ranks, 2 * step))
        for step in reversed(steps)
    ]
    return broadcast(ranks, ranks, scatter, doubling([*range(ranks)]))


def span(first: int, length: int) -> Slots:
    return tuple(range(first, first + length))


def doubling(members: list[int]) -> Iterator[Round]:
    """Members exchange all that they have got with one twice as far."""
    step = 1
    while step < len(members):
        yield tuple(
            same(members[place], members[place ^ step], span(place // step * step, step))
            for place in range(len(members))
        )
        step *= 2


def halving(members: list[int]) -> Iterator[Round]:
    step = len(members) // 2
    while step:
        yield tuple(
            same(members[place], members[place ^ step], span((place ^ step) // step * step, step), adds=True)
            for place in range(len(members))
        )
        step //= 2


def gathered(members: list[int]) -> Iterator[Round]:
    step = 1
    while step < len(members):
        yield tuple(
            same(members[place], members[place - step], span(place, step))
            for place in range(step, len(members), 2 * step)
        )
        step *= 2


def folded_in_halves(ranks: int) -> tuple[list[int], list[Round], list[Round]]:
    """Who is left, what is done before, and how the others hear of it."""
    middle = core(ranks)
    rest = ranks - middle
    low, high = span(0, middle // 2), span(middle // 2, middle // 2)
    pairs = [(2 * number, 2 * number + 1) for number in range(rest)]
    before: list[Round] = [
        tuple(
            one for even, odd in pairs for one in (same(even, odd, high, adds=True), same(odd, even, low, adds=True))
        ),
        tuple(same(odd, even, high) for even, odd in pairs),
    ]
    after: list[Round] = [tuple(same(even, odd, span(0, middle)) for even, odd in pairs)]
    return [*(even for even, _ in pairs), *range(2 * rest, ranks)], before, after


def rabenseifner_all_reduce(ranks: int) -> Schedule:
    members, before, after = folded_in_halves(ranks)
    whole = vectors(ranks, len(members))
    rounds = rounds_of(before, halving(members), doubling(members), after)
    return Schedule(ranks, len(members), whole, rounds, whole)


def rabenseifner_reduce(ranks: int) -> Schedule:
    members, before, _ = folded_in_halves(ranks)
    return reduce(ranks, len(members), before, halving(members), gathered(members))


def doubled_to_scatter(ranks: int) -> Schedule:
    def all_but(rank: int, step: int) -> Slots:
        first = rank // step * step
        return tuple(block for block in range(ranks) if not first <= block < first + step)

    steps = [1 << power for power in range(ranks.bit_length() - 1)]
    rounds = [tuple(same(rank, rank ^ step, all_but(rank, step), adds=True) for rank in range(ranks)) for step in steps]
    return Schedule(ranks, ranks, vectors(ranks, ranks), tuple(rounds), tuple((rank,) for rank in range(ranks)))


def butterfly(ranks: int) -> Schedule:
    """Träff 2005, as in Open MPI: distances grow while what is left is halved, so that blocks end mirrored."""
    middle = core(ranks)
    rest, bits = ranks - middle, middle.bit_length() - 1

    def mirror(number: int) -> int:
        return int(f"{number:0{bits}b}"[::-1], 2) if bits else 0

    def real(place: int) -> int:
        return 2 * place + 1 if place < rest else place + rest

    def blocks(first: int, length: int) -> Slots:
        return tuple(
            block
            for place in span(first, length)
            for block in ((2 * place, 2 * place + 1) if place < rest else (place + rest,))
        )

    keeps, rounds = [0] * middle, list[Round]()
    rounds.append(tuple(same(2 * one, 2 * one + 1, span(0, ranks), adds=True) for one in range(rest)))
    length, step = middle, 1
    while step < middle:
        length //= 2
        sent = [keeps[place] + (0 if place & step else length) for place in range(middle)]
        rounds.append(
            tuple(
                same(real(place), real(place ^ step), blocks(sent[place], length), adds=True) for place in range(middle)
            )
        )
        keeps = [keeps[place] + (length if place & step else 0) for place in range(middle)]
        step *= 2
    if is_power(ranks):
        # Blocks were put at mirrored places before, at home.
        begins = tuple(tuple(mirror(slot) for slot in range(ranks)) for _ in range(ranks))
        return Schedule(ranks, ranks, begins, rounds_of(rounds), tuple((mirror(rank),) for rank in range(ranks)))
    assert keeps == [mirror(place) for place in range(middle)]
    rounds.append(tuple(same(real(mirror(one)), 2 * one, (2 * one,)) for one in range(rest)))
    rounds.append(
        tuple(same(real(mirror(one)), real(one), (real(one),)) for one in range(middle) if mirror(one) != one)
    )
    return Schedule(ranks, ranks, vectors(ranks, ranks), rounds_of(rounds), tuple((rank,) for rank in range(ranks)))


def gathered_in_turns(ranks: int) -> Schedule:
    rounds = [one for rank in range(1, ranks) for one in ((same(ROOT, rank, ()),), (same(rank, ROOT, (rank,)),))]
    return Schedule(ranks, ranks, own_blocks(ranks), tuple(rounds), (span(0, ranks), *[()] * (ranks - 1)))


def barrier_at_once(ranks: int) -> Schedule:
    others = range(1, ranks)
    nothing: tuple[Slots, ...] = ((),) * ranks
    rounds = (tuple(same(rank, ROOT, ()) for rank in others), tuple(same(ROOT, rank, ()) for rank in others))
    return Schedule(ranks, 1, nothing, rounds, nothing)


SCHEDULES: dict[tuple[str, str], Callable[[int], Schedule]] = {
    ("all_reduce", "rabenseifner-in-halves"): rabenseifner_all_reduce,
    ("broadcast", "linear"): lambda n: broadcast(n, 1, at_once(n)),
    ("broadcast", "unsegmented-chain"): lambda n: broadcast(n, 1, along_the_chain(n)),
    ("broadcast", "unsegmented-binary-tree"): lambda n: broadcast(n, 1, down_the_binary_tree(n)),
    ("broadcast", "binomial-tree-at-once"): lambda n: broadcast(n, 1, generation_by_generation(n, binomial_children)),
    ("broadcast", "4-nomial-tree-at-once"): lambda n: broadcast(
        n, 1, generation_by_generation(n, four_nomial_children)
    ),
    ("broadcast", "scatter-recursive-doubling"): scattered_and_doubled,
    ("reduce", "linear"): lambda n: reduce(n, 1, upwards(at_once(n))),
    ("reduce", "unsegmented-chain"): lambda n: reduce(n, 1, upwards(along_the_chain(n))),
    ("reduce", "unsegmented-binary-tree"): lambda n: reduce(n, 1, upwards(down_the_binary_tree(n))),
    ("reduce", "rabenseifner-in-halves"): rabenseifner_reduce,
    ("reduce_scatter", "recursive-doubling"): doubled_to_scatter,
    ("reduce_scatter", "butterfly"): butterfly,
    ("gather", "linear-in-turns"): gathered_in_turns,
    ("barrier", "linear-at-once"): barrier_at_once,
}
NAMES = sorted(SCHEDULES)
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
    row = library_row(op, name)
    assert row is not None
    tried = 0
    for ranks in RANKS:
        if not row.possible(ranks, 1):
            continue
        schedule = SCHEDULES[op, name](ranks)
        assert execute(schedule) == meaning(op, ranks, schedule.blocks), ranks
        counted = cost(schedule)
        messages = row.messages or row.rounds
        said = [count(ranks, 1) for count in (row.rounds, messages, row.sent, row.added, row.moved)]
        told = [counted.rounds, counted.messages, *map(float, (counted.sent, counted.added, counted.moved))]
        if op == "broadcast" and name in AT_ONCE:
            farthest, last = heard(ranks, AT_ONCE[name])
            told[:3] = [farthest, last, last]
        assert said == pytest.approx(told), ranks
        tried += 1
    assert tried >= 6


@pytest.mark.parametrize(
    ("name", "counts"),
    [("binomial", {4: 3, 8: 6, 16: 10, 32: 15}), ("knomial", {4: 3, 5: 4, 8: 7, 16: 9, 32: 16, 64: 18})],
)
def test_messages_that_open_mpi_sends_down_a_tree_at_once_share_a_link(name: str, counts: dict[int, int]) -> None:
    for ranks, sent in counts.items():
        row = formula_of("Open MPI", "broadcast", name, ranks)
        assert row is not None
        assert row.sent(ranks, 1) == sent
    # MPICH sends one after the other.
    blocking = formula_of("MPICH", "broadcast", "binomial", 32)
    assert blocking is not None
    assert blocking.sent(32, 1) == 5


def test_every_row_of_a_library_has_a_schedule_and_a_name_of_its_own() -> None:
    assert sorted((row.op, row.algorithm) for row in OF_LIBRARIES) == NAMES
    assert not set(NAMES) & {(row.op, row.algorithm) for row in TEXTBOOK}


def test_in_a_barrier_by_rank_0_nobody_goes_before_the_last_has_come() -> None:
    for ranks in RANKS:
        heard = [{rank} for rank in range(ranks)]
        for one in barrier_at_once(ranks).rounds:
            before = [set(words) for words in heard]
            for message in one:
                heard[message.to] |= before[message.source]
        assert all(words == set(range(ranks)) for words in heard)


@pytest.mark.parametrize(("op", "name"), [("broadcast", "linear"), ("reduce", "linear"), ("barrier", "linear-at-once")])
def test_messages_that_are_under_way_at_once_are_counted(op: str, name: str) -> None:
    row = library_row(op, name)
    assert row is not None
    assert [row.at_once(ranks, 1) for ranks in (2, 8, 64)] == [1, 7, 63]
