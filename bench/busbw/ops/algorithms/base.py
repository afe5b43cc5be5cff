"""What an algorithm is: who sends which blocks to whom, round by round, as plain data that can be counted and run.

A rank keeps ``slots`` blocks of equal size, its slots. It begins with blocks of its input in some of them and ends with
its result in some of them. In a round every transfer reads what was there before the round; what is received replaces a
slot or is added to it. The same data are counted for the cost models, simulated, and run over send and receive.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

Slots = tuple[int, ...]
NOTHING = -1
"""In ``begins``: the slot is empty."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message: the slots ``sent`` of rank ``source`` go to the slots ``received`` of rank ``to``, in that order.
    ``adds``: they are added to what is there, otherwise they replace it.
    """

    source: int
    to: int
    sent: Slots
    received: Slots
    adds: bool = False


Round = tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """An algorithm for ``ranks`` ranks. ``blocks`` is into how many blocks S is cut.

    ``begins[rank][slot]`` is the block of that rank's input that is in the slot at first, or ``NOTHING``;
    ``ends[rank]`` are the slots that hold its result, in the order of its blocks.
    """

    ranks: int
    blocks: int
    begins: tuple[Slots, ...]
    rounds: tuple[Round, ...]
    ends: tuple[Slots, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a schedule takes one after the other, each round as long as its busiest rank: rounds (times α: messages of
    one round are under way together), the messages of that rank, and the bytes that go through one direction of its
    link (times β) and that it adds (times γ), both in units of S. ``moved`` is what all ranks send together, in units
    of S.
    """

    rounds: int
    messages: int
    sent: Fraction
    added: Fraction
    moved: Fraction


def cost(schedule: Schedule) -> Cost:
    """Counts a schedule. A rank sends one message after the other, receives likewise, and does both at once."""
    messages, sent, added, moved = 0, 0, 0, 0
    for one in schedule.rounds:
        out_messages, in_messages = Counter(each.source for each in one), Counter(each.to for each in one)
        out_blocks, in_blocks, sums = Counter[int](), Counter[int](), Counter[int]()
        for transfer in one:
            out_blocks[transfer.source] += len(transfer.sent)
            in_blocks[transfer.to] += len(transfer.sent)
            sums[transfer.to] += len(transfer.sent) if transfer.adds else 0
            moved += len(transfer.sent)
        messages += max([*out_messages.values(), *in_messages.values()], default=0)
        sent += max([*out_blocks.values(), *in_blocks.values()], default=0)
        added += max(sums.values(), default=0)
    unit = schedule.blocks
    return Cost(len(schedule.rounds), messages, Fraction(sent, unit), Fraction(added, unit), Fraction(moved, unit))


Contribution = frozenset[tuple[int, int]]
"""Whose input is in a block, and which block of it: pairs of rank and block."""


def execute(schedule: Schedule) -> tuple[tuple[Contribution, ...], ...]:
    """What every rank ends with: for each block of its result, the inputs that were added up in it.

    Raises ValueError for a schedule that sends what is not there, adds the same input twice, or writes a slot twice in
    one round.
    """
    state: list[list[Contribution | None]] = [
        [None if block == NOTHING else frozenset({(rank, block)}) for block in slots]
        for rank, slots in enumerate(schedule.begins)
    ]
    for number, one in enumerate(schedule.rounds):
        sent = [[state[transfer.source][slot] for slot in transfer.sent] for transfer in one]
        written: set[tuple[int, int]] = set()
        for transfer, blocks in zip(one, sent, strict=True):
            for slot, target, block in zip(transfer.sent, transfer.received, blocks, strict=True):
                there = state[transfer.to][target]
                if block is None:
                    raise ValueError(_at(number, transfer, f"slot {slot} of rank {transfer.source} is empty"))
                if not transfer.adds and (transfer.to, target) in written:
                    raise ValueError(_at(number, transfer, f"slot {target} of rank {transfer.to} was just written"))
                written.add((transfer.to, target))
                if not transfer.adds:
                    state[transfer.to][target] = block
                elif there is None or there & block:
                    raise ValueError(_at(number, transfer, f"cannot add to slot {target} of rank {transfer.to}"))
                else:
                    state[transfer.to][target] = there | block
    return tuple(
        tuple(_filled(state[rank][slot], rank, slot) for slot in slots) for rank, slots in enumerate(schedule.ends)
    )


def _at(number: int, transfer: Transfer, what: str) -> str:
    return f"round {number}, {transfer.source} to {transfer.to}: {what}"


def _filled(block: Contribution | None, rank: int, slot: int) -> Contribution:
    if block is None:
        raise ValueError(f"at the end slot {slot} of rank {rank} is empty")
    return block


# --- what most algorithms are made of ----------------------------------------------------------------------------


def is_power_of_two(ranks: int) -> bool:
    """Whether ``ranks`` is 1, 2, 4, 8 and so on."""
    return ranks & (ranks - 1) == 0


def vectors(ranks: int, blocks: int) -> tuple[Slots, ...]:
    """Every rank has all blocks of its input, each in the slot of its number."""
    return (tuple(range(blocks)),) * ranks


def own_blocks(ranks: int) -> tuple[Slots, ...]:
    """Rank r has one block, in slot r of as many as there are ranks."""
    return tuple(tuple(0 if slot == rank else NOTHING for slot in range(ranks)) for rank in range(ranks))


def every_turn(ranks: int, turns: Iterable[int], transfer: Callable[[int, int], Transfer]) -> Iterator[Round]:
    """A round for each of ``turns``, in which each rank sends one message, ``transfer(rank, turn)``."""
    return (tuple(transfer(rank, turn) for rank in range(ranks)) for turn in turns)


def same(source: int, to: int, slots: Slots, *, adds: bool = False) -> Transfer:
    """A message of blocks that have the same slots on both sides."""
    return Transfer(source, to, slots, slots, adds)


def joined(*parts: Iterable[Round]) -> tuple[Round, ...]:
    """The rounds of one part after the other, without those in which nothing is sent."""
    return tuple(one for part in parts for one in part if one)
