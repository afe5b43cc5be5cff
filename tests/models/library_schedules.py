"""What MPI libraries run and nobody can measure by hand, as schedules: written from the libraries' own rules, so that
they can be drawn, executed and counted.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from busbw.ops.algorithms import is_power_of_two
from busbw.ops.schedules import NOTHING, Round, Schedule, Slots, own_blocks, same, vectors

Children = Callable[[int, int], list[int]]
"""Of the number of ranks and a rank: to whom it sends all that it has, in one step."""

_ROOT = 0


def _core(ranks: int) -> int:
    """The largest power of two that is not above ``ranks``."""
    return 1 << ranks.bit_length() - 1


def _rounds_of(*parts: Iterable[Round]) -> tuple[Round, ...]:
    return tuple(messages for part in parts for messages in part if messages)


def _broadcast(ranks: int, blocks: int, *parts: Iterable[Round]) -> Schedule:
    begins = (tuple(range(blocks)), *[(NOTHING,) * blocks] * (ranks - 1))
    return Schedule(ranks, blocks, begins, _rounds_of(*parts), vectors(ranks, blocks))


def _reduce(ranks: int, blocks: int, *parts: Iterable[Round]) -> Schedule:
    ends = (tuple(range(blocks)), *[()] * (ranks - 1))
    return Schedule(ranks, blocks, vectors(ranks, blocks), _rounds_of(*parts), ends)


def _to_everybody(ranks: int) -> list[Round]:
    return [tuple(same(_ROOT, rank, (0,)) for rank in range(1, ranks))]


def _along_the_chain(ranks: int) -> list[Round]:
    return [(same(rank - 1, rank, (0,)),) for rank in range(1, ranks)]


def _down_the_binary_tree(ranks: int) -> Iterator[Round]:
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


def binomial_children(ranks: int, rank: int) -> list[int]:
    """Ranks further by every power of two above the own number, the near ones first."""
    return [rank + step for step in _powers(2, ranks) if rank < step < ranks - rank]


def four_nomial_children(ranks: int, rank: int) -> list[int]:
    """Up to three for every power of four below the one that divides the own number, the far ones first."""
    below = [step for step in _powers(4, ranks) if rank % (4 * step) == 0]
    return [rank + step * child for step in reversed(below) for child in (1, 2, 3) if rank + step * child < ranks]


def _powers(base: int, limit: int) -> Iterator[int]:
    power = 1
    while power < limit:
        yield power
        power *= base


def _generation_by_generation(ranks: int, children: Children) -> Iterator[Round]:
    parents = [_ROOT]
    while parents:
        sent = [(rank, child) for rank in parents for child in children(ranks, rank)]
        yield tuple(same(rank, child, (0,)) for rank, child in sent)
        parents = [child for _, child in sent]


def _upwards(rounds: Iterable[Round]) -> list[Round]:
    """The same the other way round, adding up."""
    there = [*rounds]
    return [
        tuple(same(message.to, message.source, message.sent, adds=True) for message in messages)
        for messages in reversed(there)
    ]


def scattered_and_doubled(ranks: int) -> Schedule:
    """A broadcast: S in blocks down a binomial tree, then recursive doubling; a power of two of ranks."""
    steps = [1 << power for power in range(ranks.bit_length() - 1)]
    scatter = [
        tuple(same(rank, rank + step, _span(rank + step, step)) for rank in range(0, ranks, 2 * step))
        for step in reversed(steps)
    ]
    return _broadcast(ranks, ranks, scatter, _doubling([*range(ranks)]))


def _span(first: int, length: int) -> Slots:
    return tuple(range(first, first + length))


def _doubling(members: list[int]) -> Iterator[Round]:
    """Members exchange all that they have got with one twice as far."""
    step = 1
    while step < len(members):
        yield tuple(
            same(members[place], members[place ^ step], _span(place // step * step, step))
            for place in range(len(members))
        )
        step *= 2


def _halving(members: list[int]) -> Iterator[Round]:
    step = len(members) // 2
    while step:
        yield tuple(
            same(members[place], members[place ^ step], _span((place ^ step) // step * step, step), adds=True)
            for place in range(len(members))
        )
        step //= 2


def _gathered(members: list[int]) -> Iterator[Round]:
    step = 1
    while step < len(members):
        yield tuple(
            same(members[place], members[place - step], _span(place, step))
            for place in range(step, len(members), 2 * step)
        )
        step *= 2


def _folded_in_halves(ranks: int) -> tuple[list[int], list[Round], list[Round]]:
    """Who is left, what is done before, and how the others hear of it."""
    middle = _core(ranks)
    rest = ranks - middle
    low, high = _span(0, middle // 2), _span(middle // 2, middle // 2)
    pairs = [(2 * number, 2 * number + 1) for number in range(rest)]
    before: list[Round] = [
        tuple(
            message
            for even, odd in pairs
            for message in (same(even, odd, high, adds=True), same(odd, even, low, adds=True))
        ),
        tuple(same(odd, even, high) for even, odd in pairs),
    ]
    after: list[Round] = [tuple(same(even, odd, _span(0, middle)) for even, odd in pairs)]
    return [*(even for even, _ in pairs), *range(2 * rest, ranks)], before, after


def rabenseifner_all_reduce(ranks: int) -> Schedule:
    """Halving, then doubling; of a pair with one rank beyond the power of two each adds up a half before."""
    members, before, after = _folded_in_halves(ranks)
    whole = vectors(ranks, len(members))
    rounds = _rounds_of(before, _halving(members), _doubling(members), after)
    return Schedule(ranks, len(members), whole, rounds, whole)


def rabenseifner_reduce(ranks: int) -> Schedule:
    """Halving, then a tree that gathers at rank 0; ranks beyond the power of two as in the all_reduce."""
    members, before, _ = _folded_in_halves(ranks)
    return _reduce(ranks, len(members), before, _halving(members), _gathered(members))


def doubled_to_scatter(ranks: int) -> Schedule:
    """All that is not at home yet to a partner twice as far; a power of two of ranks."""

    def all_but(rank: int, step: int) -> Slots:
        first = rank // step * step
        return tuple(block for block in range(ranks) if not first <= block < first + step)

    steps = [1 << power for power in range(ranks.bit_length() - 1)]
    rounds = [tuple(same(rank, rank ^ step, all_but(rank, step), adds=True) for rank in range(ranks)) for step in steps]
    return Schedule(ranks, ranks, vectors(ranks, ranks), tuple(rounds), tuple((rank,) for rank in range(ranks)))


def butterfly(ranks: int) -> Schedule:
    """Träff 2005, as in Open MPI: distances grow while what is left is halved, so that blocks end mirrored."""
    middle = _core(ranks)
    rest, bits = ranks - middle, middle.bit_length() - 1

    def mirror(number: int) -> int:
        return int(f"{number:0{bits}b}"[::-1], 2) if bits else 0

    def real(place: int) -> int:
        return 2 * place + 1 if place < rest else place + rest

    def blocks(first: int, length: int) -> Slots:
        return tuple(
            block
            for place in _span(first, length)
            for block in ((2 * place, 2 * place + 1) if place < rest else (place + rest,))
        )

    keeps, rounds = [0] * middle, list[Round]()
    rounds.append(tuple(same(2 * pair, 2 * pair + 1, _span(0, ranks), adds=True) for pair in range(rest)))
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
    if is_power_of_two(ranks):
        # Blocks were put at mirrored places before, at home.
        begins = tuple(tuple(mirror(slot) for slot in range(ranks)) for _ in range(ranks))
        return Schedule(ranks, ranks, begins, _rounds_of(rounds), tuple((mirror(rank),) for rank in range(ranks)))
    # What a place of the core keeps now is the block of the mirrored one.
    rounds.append(tuple(same(real(mirror(pair)), 2 * pair, (2 * pair,)) for pair in range(rest)))
    rounds.append(
        tuple(
            same(real(mirror(place)), real(place), (real(place),)) for place in range(middle) if mirror(place) != place
        )
    )
    return Schedule(ranks, ranks, vectors(ranks, ranks), _rounds_of(rounds), tuple((rank,) for rank in range(ranks)))


def gathered_in_turns(ranks: int) -> Schedule:
    """Rank 0 asks one rank after the other for its block."""
    rounds = [
        messages for rank in range(1, ranks) for messages in ((same(_ROOT, rank, ()),), (same(rank, _ROOT, (rank,)),))
    ]
    return Schedule(ranks, ranks, own_blocks(ranks), tuple(rounds), (_span(0, ranks), *[()] * (ranks - 1)))


def barrier_at_once(ranks: int) -> Schedule:
    """Every rank to rank 0, and back."""
    others = range(1, ranks)
    nothing: tuple[Slots, ...] = ((),) * ranks
    rounds = (tuple(same(rank, _ROOT, ()) for rank in others), tuple(same(_ROOT, rank, ()) for rank in others))
    return Schedule(ranks, 1, nothing, rounds, nothing)


LIBRARY_SCHEDULES: Final[dict[tuple[str, str], Callable[[int], Schedule]]] = {
    ("all_reduce", "rabenseifner-in-halves"): rabenseifner_all_reduce,
    ("broadcast", "linear"): lambda n: _broadcast(n, 1, _to_everybody(n)),
    ("broadcast", "unsegmented-chain"): lambda n: _broadcast(n, 1, _along_the_chain(n)),
    ("broadcast", "unsegmented-binary-tree"): lambda n: _broadcast(n, 1, _down_the_binary_tree(n)),
    ("broadcast", "binomial-tree-at-once"): lambda n: _broadcast(n, 1, _generation_by_generation(n, binomial_children)),
    ("broadcast", "4-nomial-tree-at-once"): lambda n: _broadcast(
        n, 1, _generation_by_generation(n, four_nomial_children)
    ),
    ("broadcast", "scatter-recursive-doubling"): scattered_and_doubled,
    ("reduce", "linear"): lambda n: _reduce(n, 1, _upwards(_to_everybody(n))),
    ("reduce", "unsegmented-chain"): lambda n: _reduce(n, 1, _upwards(_along_the_chain(n))),
    ("reduce", "unsegmented-binary-tree"): lambda n: _reduce(n, 1, _upwards(_down_the_binary_tree(n))),
    ("reduce", "rabenseifner-in-halves"): rabenseifner_reduce,
    ("reduce_scatter", "recursive-doubling"): doubled_to_scatter,
    ("reduce_scatter", "butterfly"): butterfly,
    ("gather", "linear-in-turns"): gathered_in_turns,
    ("barrier", "linear-at-once"): barrier_at_once,
}
"""Operation and algorithm, as the rows of ``library_algorithms``, of a number of ranks."""
