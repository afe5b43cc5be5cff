"""What is counted of a schedule by tests and drawings alone: its spread over hosts, and what a link carries."""

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction

from busbw.ops.algorithms.base import Schedule


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
    for one in schedule.rounds:
        near, far, hosts = (defaultdict[tuple[int, bool], int](int) for _ in range(3))
        for transfer in one:
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
    for one in schedule.rounds:
        for transfer in one:
            blocks[transfer.source, True] += len(transfer.sent)
            blocks[transfer.to, False] += len(transfer.sent)
    return Fraction(max((count for (rank, _), count in blocks.items() if rank < ranks), default=0), schedule.blocks)
