"""Schedules counted and executed on sets: what formulas, simulations and drawings are held against."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from fractions import Fraction

from busbw.ops.schedules import NOTHING, Schedule, Transfer


@dataclass(frozen=True, slots=True)
class Levels:
    """How a schedule is spread over hosts: its rounds without a message between hosts (``inner_rounds``), and in units
    of S, each round as long as the busiest, the bytes of a rank inside its host (``inner``), those of a rank to or from
    other hosts (``between``), and those of all ranks of a host together to or from others (``of_a_host``).
    """

    inner_rounds: int
    inner: Fraction
    between: Fraction
    of_a_host: Fraction


def by_level(schedule: Schedule, on_host: int) -> Levels:
    """Counts a schedule whose ranks sit on hosts in their order, ``on_host`` on each."""
    inner_rounds, inner, between, of_a_host = 0, 0, 0, 0
    for transfers in schedule.rounds:
        near, far, hosts = (defaultdict[tuple[int, bool], int](int) for _ in range(3))
        for transfer in transfers:
            ends = ((transfer.source, True), (transfer.to, False))
            across = transfer.source // on_host != transfer.to // on_host
            for rank, out in ends:
                (far if across else near)[rank, out] += len(transfer.sent)
                if across:
                    hosts[rank // on_host, out] += len(transfer.sent)
        inner_rounds += not far
        inner += max(near.values(), default=0)
        between += max(far.values(), default=0)
        of_a_host += max(hosts.values(), default=0)
    unit = schedule.blocks
    return Levels(inner_rounds, Fraction(inner, unit), Fraction(between, unit), Fraction(of_a_host, unit))


def through_a_link(schedule: Schedule, ranks: int) -> Fraction:
    """What goes through the busier direction of the link of the busiest of the first ``ranks`` members in all rounds
    together, in units of S: what is left of ``Cost.sent`` where data are cut so finely that rounds overlap.
    """
    blocks: dict[tuple[int, bool], int] = defaultdict(int)
    for transfers in schedule.rounds:
        for transfer in transfers:
            blocks[transfer.source, True] += len(transfer.sent)
            blocks[transfer.to, False] += len(transfer.sent)
    return Fraction(max((count for (rank, _), count in blocks.items() if rank < ranks), default=0), schedule.blocks)


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
    for transfers in schedule.rounds:
        out_messages, in_messages = Counter(each.source for each in transfers), Counter(each.to for each in transfers)
        out_blocks, in_blocks, sums = Counter[int](), Counter[int](), Counter[int]()
        for transfer in transfers:
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
    for number, transfers in enumerate(schedule.rounds):
        sent = [[state[transfer.source][slot] for slot in transfer.sent] for transfer in transfers]
        written: set[tuple[int, int]] = set()
        for transfer, blocks in zip(transfers, sent, strict=True):
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
