"""Explicit algorithms: collectives by a schedule of sends and receives, measured beside the library's own.

The memory of each slot, the copies and the messages of every round are prepared when the operation is bound. A call
only executes that list.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from busbw.backends.base import Bound, Call, Operation, in_order
from busbw.ops.algorithms import ALGORITHMS
from busbw.ops.base import Op, first_reason
from busbw.ops.groups import Ranks, split_world
from busbw.ops.schedules import NOTHING, Round, Schedule, Slots
from busbw.ops.settings import explicit_algorithm
from busbw.runs.records import FLOAT8, Case

Messages = Sequence[tuple[int, torch.Tensor]]
"""Pairs of a rank of the world and the data that are sent to or received from it."""


@dataclass(frozen=True, slots=True)
class Messaging:
    """Concurrent messages of one round on this rank.

    expect: posts the receives; called before ``finish``, possibly much earlier.
    finish: sends, and returns when all messages are sent and received.
    """

    expect: Call
    finish: Call


def in_both_directions(
    receives: Sequence[Callable[[], Any]],
    sends: Sequence[Callable[[], Any]],
    wait_for: Callable[[Sequence[Any]], object],
) -> Messaging:
    """Messages that ``receives`` and ``sends`` start, and ``wait_for`` completes."""
    under_way: list[Any] = []

    def expect() -> None:
        under_way[:] = [start() for start in receives]

    def finish() -> None:
        wait_for([*under_way, *[start() for start in sends]])

    return Messaging(expect, finish)


Exchange = Callable[[Messages, Messages], Messaging]
"""(Messages to send, messages to receive) → the prepared exchange."""

_ADD: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "sum": lambda there, received: there.add_(received),
    "product": lambda there, received: there.mul_(received),
    "min": lambda there, received: torch.minimum(there, received, out=there),
    "max": lambda there, received: torch.maximum(there, received, out=there),
}


def refuse(op: Op, case: Case) -> str | None:
    """Reason why ``case`` cannot use its explicit algorithm, or None."""
    name = explicit_algorithm(case.settings) or ""
    algorithm = ALGORITHMS.get(op.name, {}).get(name)
    if algorithm is None:
        return f"{op.name} has no algorithm {name!r}; it has {', '.join(ALGORITHMS.get(op.name, {})) or 'none'}"
    groups = split_world(case.group, case.ranks)
    refused = first_reason(
        (
            case.mode in {"overlap", "persistent"},
            f"mode {case.mode} does not support explicit algorithms such as {name}, which have several steps",
        ),
        (bool(case.root), "explicit algorithms support only root 0"),
        (
            op.reduces and case.redop not in _ADD,
            f"explicit algorithms do not support reduction {case.redop}, only {', '.join(_ADD)}",
        ),
        (op.reduces and case.dtype in FLOAT8, f"torch cannot add {case.dtype}, which explicit algorithms need"),
        (any(len(group) == 1 for group in groups), "explicit algorithms need at least 2 ranks in every group"),
        (
            algorithm.levels and (case.nodes == 1 or case.ranks % case.nodes > 0 or case.group != "all"),
            f"algorithm {name} needs {algorithm.needs}, and all ranks in one group",
        ),
    )
    return refused or next((reason for group in groups if (reason := algorithm.refuse(len(group))) is not None), None)


def bind(op: Op, bound: Bound, exchange: Exchange) -> Operation:
    """Bind ``op``, which ``refuse`` allows, over ``exchange``."""
    case, group, me = bound.case, bound.group, bound.me
    schedule = ALGORITHMS[op.name][explicit_algorithm(case.settings) or ""].on(len(group), case.nodes)
    memory = _Memory(schedule, me, case.count, bound.send, bound.receive)
    add = _ADD[bound.redop]
    mine = [
        transfers
        for transfers in schedule.rounds
        if any(me in {transfer.source, transfer.to} for transfer in transfers)
    ]
    turns = [_turn(transfers, group, me, memory, add, exchange) for transfers in mine]
    return Operation(in_order(*memory.input_copies(), *_calls_of(turns), *memory.output_copies()))


@dataclass(frozen=True, slots=True)
class _Turn:
    """This rank's work in one round.

    before: copies that pack outgoing messages.
    messaging: the messages.
    after: copies and reductions of received data.
    touched: slots that the round reads or writes.
    into: slots that messages are received into directly.
    """

    before: tuple[Call, ...]
    messaging: Messaging
    after: tuple[Call, ...]
    touched: frozenset[int]
    into: frozenset[int]


def _calls_of(turns: Sequence[_Turn]) -> Iterator[Call]:
    """The calls of all rounds in order.

    The receives of the next round are posted in the current one, unless that one uses the same slots. A sender that
    waits for a posted receive then need not wait.
    """
    ready = False
    for turn, following in zip(turns, [*turns[1:], None], strict=True):
        if not ready:
            yield turn.messaging.expect
        ready = following is not None and turn.touched.isdisjoint(following.into)
        if following is not None and ready:
            yield following.messaging.expect
        yield from turn.before
        yield turn.messaging.finish
        yield from turn.after


def _turn(
    transfers: Round,
    group: Ranks,
    me: int,
    memory: "_Memory",
    add: Callable[[torch.Tensor, torch.Tensor], object],
    exchange: Exchange,
) -> _Turn:
    """Prepare one round: pack scattered slots, exchange messages, unpack or reduce the received data."""
    there = [transfer for transfer in transfers if not memory.count or any(map(len, memory.parts(transfer.sent)))]
    going = [transfer for transfer in there if transfer.source == me]
    coming = [transfer for transfer in there if transfer.to == me]
    busy = {slot for transfer in going for slot in transfer.sent}
    sends: list[tuple[int, torch.Tensor]] = []
    receives: list[tuple[int, torch.Tensor]] = []
    before: list[Call] = []
    after: list[Call] = []
    into: set[int] = set()
    for transfer in going:
        outgoing, packed = memory.contiguous(transfer.sent)
        if packed:
            before.append(partial(_copy_parts, packed, memory.parts(transfer.sent)))
        sends.append((group[transfer.to], outgoing))
    for transfer in coming:
        # Data that will be reduced, or that overwrite a slot being sent, are received into separate memory.
        apart = transfer.adds or not busy.isdisjoint(transfer.received)
        incoming, packed = memory.contiguous(transfer.received, apart=apart)
        slots = memory.parts(transfer.received)
        if not packed:
            into.update(transfer.received)
        elif transfer.adds:
            after += [partial(add, there, part) for there, part in zip(slots, packed, strict=True)]
        else:
            after.append(partial(_copy_parts, slots, packed))
        receives.append((group[transfer.source], incoming))
    touched = busy | {slot for transfer in coming for slot in transfer.received}
    return _Turn(tuple(before), exchange(sends, receives), tuple(after), frozenset(touched), frozenset(into))


def _copy_parts(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


class _Memory:
    """Memory of the slots of rank ``me`` of the group: in the buffers themselves where possible, otherwise separate.

    count: elements that the blocks of a region divide.
    """

    def __init__(self, schedule: Schedule, me: int, count: int, send: torch.Tensor, receive: torch.Tensor) -> None:
        self._schedule, self._me, self.count, self._send, self._receive = schedule, me, count, send, receive
        self._regions: list[torch.Tensor] = []  # region k holds slots k·blocks up to (k+1)·blocks
        begins, ends, blocks = schedule.begins[me], schedule.ends[me], schedule.blocks
        transfers = [transfer for transfers in schedule.rounds for transfer in transfers if transfer.to == me]
        written = {slot for transfer in transfers for slot in transfer.received}
        for first in range(0, len(begins), blocks):
            slots = range(first, first + blocks)
            is_input = len(send) == count and begins[first : first + blocks] == tuple(range(blocks))
            in_place = [slot == slots[place] for place, slot in enumerate(ends) if slot in slots]
            # Blocks of the result that are outside this region are copied to it at the end.
            is_result = len(receive) == count and len(ends) == blocks and all(in_place)
            if is_input and written.isdisjoint(slots):
                self._regions.append(send)
            elif is_result and any(in_place):
                self._regions.append(receive)
            else:
                self._regions.append(receive.new_empty(count))

    def _edge(self, block: int) -> int:
        return block * self.count // self._schedule.blocks

    def slot(self, slot: int, length: int = 1) -> torch.Tensor:
        """Memory of one slot, or of ``length`` consecutive slots of a region."""
        region, block = divmod(slot, self._schedule.blocks)
        return self._regions[region][self._edge(block) : self._edge(block + length)]

    def parts(self, slots: Slots) -> list[torch.Tensor]:
        """Memory of each slot."""
        return [self.slot(slot) for slot in slots]

    def contiguous(self, slots: Slots, *, apart: bool = False) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """Contiguous memory for ``slots``, and its parts if it is not the slots themselves.

        apart: it must not be the slots themselves.
        """
        if not self.count:  # a barrier's messages are empty and are represented by one element
            return self._receive.new_zeros(1), ()
        first, blocks = slots[0], self._schedule.blocks
        together = all(slot == first + place for place, slot in enumerate(slots))
        if together and first // blocks == slots[-1] // blocks and not apart:
            return self.slot(first, len(slots)), ()
        lengths = [len(part) for part in self.parts(slots)]
        whole = self._receive.new_empty(sum(lengths))
        return whole, torch.split(whole, lengths)

    def input_copies(self) -> Iterator[Call]:
        """Copies of the input into slots outside the send buffer."""
        for slot, block in enumerate(self._schedule.begins[self._me]):
            if block != NOTHING:
                first = self._edge(block) if len(self._send) == self.count else 0
                yield from _copied(self.slot(slot), self._send[first : first + len(self.slot(slot))])

    def output_copies(self) -> Iterator[Call]:
        """Copies of result slots outside the receive buffer into it."""
        first = 0
        for slot in self._schedule.ends[self._me]:
            slots = self.slot(slot)
            yield from _copied(self._receive[first : first + len(slots)], slots)
            first += len(slots)


def _copied(target: torch.Tensor, source: torch.Tensor) -> Iterator[Call]:
    if len(source) and target.data_ptr() != source.data_ptr():
        yield partial(target.copy_, source)
