"""Schedules of algorithms: which blocks each rank sends to which rank, round by round, as plain data.

A rank keeps ``slots``, which hold blocks of equal size. Some slots hold its input at the start and its result at the
end. All transfers of a round read the state before the round; received blocks replace a slot or are added to it. The
same data feed the cost models and the simulation, and run over send and receive.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

Slots = tuple[int, ...]
NOTHING = -1
"""In ``begins``: an empty slot."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message: slots ``sent`` of rank ``source`` go to slots ``received`` of rank ``to``, in that order.
    ``adds``: received blocks are added to the slots; otherwise they replace them.
    """

    source: int
    to: int
    sent: Slots
    received: Slots
    adds: bool = False


Round = tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """An algorithm for ``ranks`` ranks.

    blocks: number of blocks of S
    begins: ``begins[rank][slot]`` is the input block that the slot holds at the start, or ``NOTHING``
    ends: ``ends[rank]`` are the slots that hold the result, in block order
    """

    ranks: int
    blocks: int
    begins: tuple[Slots, ...]
    rounds: tuple[Round, ...]
    ends: tuple[Slots, ...]


def vectors(ranks: int, blocks: int) -> tuple[Slots, ...]:
    """Every rank holds all blocks of its input: block b in slot b."""
    return (tuple(range(blocks)),) * ranks


def own_blocks(ranks: int) -> tuple[Slots, ...]:
    """Rank r holds one block, in slot r; there are as many slots as ranks."""
    return tuple(tuple(0 if slot == rank else NOTHING for slot in range(ranks)) for rank in range(ranks))


def every_turn(ranks: int, turns: Iterable[int], transfer: Callable[[int, int], Transfer]) -> Iterator[Round]:
    """One round per turn; in each, every rank sends one message, ``transfer(rank, turn)``."""
    return (tuple(transfer(rank, turn) for rank in range(ranks)) for turn in turns)


def same(source: int, to: int, slots: Slots, *, adds: bool = False) -> Transfer:
    """A message whose blocks have the same slots on both sides."""
    return Transfer(source, to, slots, slots, adds)


def joined(*parts: Iterable[Round]) -> tuple[Round, ...]:
    """The rounds of all parts in sequence, without empty rounds."""
    return tuple(transfers for part in parts for transfers in part if transfers)
