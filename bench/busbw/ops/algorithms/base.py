"""What an algorithm is: who sends which blocks to whom, round by round, as plain data that can be counted and run.

A rank keeps ``slots`` blocks of equal size, its slots. It begins with blocks of its input in some of them and ends with
its result in some of them. In a round every transfer reads what was there before the round; what is received replaces a
slot or is added to it. The same data are counted for the cost models, simulated, and run over send and receive.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

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
