"""The one record of what an algorithm costs, and what a call takes by it with the α, β, γ and R of messages.

T = rounds · α + max(sent · S β, moved · S / R) + copied · S / M + added · S γ. A joint fit (``fitting.joint``) has more
parameters for the same record, and the same method ``seconds``.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

from busbw.errors import AnalysisError

Count = Callable[[int, int, float], float]
"""n ranks on k hosts and S bytes → a number."""

INSIDE_AS_BETWEEN: Final = (
    "some rounds and bytes may stay inside a host and are taken as between hosts: an upper bound where each rank has a "
    "card of its own, and none where the ranks of a host share one"
)
"""What is to be said of a flat algorithm that is no ring, where hosts have several ranks."""

_ROUNDING: Final = 1e-12
_LABELS: Final = {
    "4-ary-tree": "4-ary tree",
    "bruck": "Bruck",
    "nvls": "NVLS",
    "pat": "PAT",
    "rabenseifner": "Rabenseifner",
    "reduce-scatter-all-gather": "reduce-scatter, then all-gather",
    "sharp": "SHARP",
}


def none(*_: float) -> float:
    """Nothing."""
    return 0.0


def several_ranks(ranks: int, *_: float) -> bool:
    """Whether there is somebody to send to."""
    return ranks > 1


@dataclass(frozen=True, slots=True)
class CostModel:
    """One op by one algorithm, in counts of n ranks, k hosts and S. Amounts of bytes are in units of S.

    Messages of a round are under way together, so that each round costs one α, however many they are; what sending
    another one costs a processor (o of LogP) is left out. All of a flat algorithm is taken as between hosts, where
    there are several: an upper bound where a host has several ranks, each with a card of its own.

    ``algorithm``: the name that ``--algorithm`` takes, or what a backend runs, in words.
    ``rounds``: message times in a row (times α).
    ``formula``, ``source``: the cost in symbols, and whose it is.
    ``family``: that of the backends that run it by default (``BackendTraits.cost_models``), or ``textbook``.
    ``sent``: bytes through one direction of the link of the busiest rank (times β).
    ``added``: bytes that the busiest rank adds up (times γ).
    ``moved``: bytes that all ranks send together (over R, where they share one host).
    ``copied``: bytes that all ranks of one host copy from buffer to buffer besides (over M).
    ``possible``: whether there is such a thing; the counts may raise AnalysisError where there is not.
    ``messages``: how many the busiest rank has; None: one a round.
    ``inner_rounds``, ``inner_sent``: what of ``rounds`` and ``sent`` stays inside a host and takes the α and β there.
    ``overlapped``: all rounds have messages inside and between hosts, and the longer of both ways counts.
    ``in_a_ring``: one ring through ranks on hosts in their order, or one message: in every round one rank of each host
    sends to another host, as much as any.
    ``of_call``: the algorithm of one call, where a table decides that; ``source`` is then that of the table.
    """

    op: str
    algorithm: str
    rounds: Count
    formula: str
    source: str
    _: KW_ONLY
    family: str = "textbook"
    sent: Count = none
    added: Count = none
    moved: Count = none
    copied: Count = none
    possible: Callable[[int, int, float], bool] = several_ranks
    messages: Count | None = None
    inner_rounds: Count = none
    inner_sent: Count = none
    overlapped: bool = False
    in_a_ring: bool = False
    of_call: "Callable[[int, int, float], CostModel] | None" = None

    @property
    def label(self) -> str:
        """The algorithm as a text has it: ``recursive doubling``, ``Bruck``."""
        if self.family != "textbook":
            return self.algorithm
        name, bracket, more = self.algorithm.partition(" (")
        return _LABELS.get(name, name.replace("-", " ")) + bracket + more

    @property
    def two_levels(self) -> bool:
        """Whether it knows hosts."""
        return self.inner_sent is not none

    @property
    def by_table(self) -> str | None:
        """Where the table is from that says what is run for each call; None where one algorithm is."""
        return None if self.of_call is None else self.source

    def at(self, ranks: int, hosts: int, size_bytes: float) -> "CostModel":
        """What is run for one call."""
        return self if self.of_call is None else self.of_call(ranks, hosts, size_bytes)

    def between(self, ranks: int, hosts: int, size_bytes: float) -> float:
        """What the busiest rank sends to other hosts, in units of S; of one host and of a flat algorithm, all."""
        return self.sent(ranks, hosts, size_bytes) - self.inner_sent(ranks, hosts, size_bytes)

    def at_once(self, ranks: int, hosts: int, size_bytes: float) -> float:
        """How many messages the busiest rank has in a round, on average: 1 where it is one at a time. All of them are
        taken to cost one α, which is less true the more they are.
        """
        row = self.at(ranks, hosts, size_bytes)
        rounds = row.rounds(ranks, hosts, size_bytes)
        return row.messages(ranks, hosts, size_bytes) / rounds if row.messages is not None and rounds else 1.0

    def of_hosts_known(self, ranks: int, hosts: int, size_bytes: float) -> bool:
        """Whether it is known of a call what stays on each host and what its ranks send to others together."""
        return hosts in {1, ranks} or self.two_levels or self.at(ranks, hosts, size_bytes).in_a_ring


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a cost is fed with.

    ``alpha_seconds``: a message.
    ``beta_seconds_per_byte``: a byte through one direction of a link.
    ``host_bytes_per_second``: R, what all ranks of one host move together; None: no limit, or not known.
    ``origin``: where they were measured, in words.
    ``gamma_seconds_per_byte``: a byte that is added up; 0 where it is not known.
    ``copy_bytes_per_second``: M, what all ranks of one host copy in memory together; None: not known, taken as free.
    """

    alpha_seconds: float
    beta_seconds_per_byte: float
    host_bytes_per_second: float | None
    origin: str
    gamma_seconds_per_byte: float = 0.0
    copy_bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        """Raise AnalysisError for a host that moves or copies nothing."""
        for name, rate in (("R", self.host_bytes_per_second), ("M", self.copy_bytes_per_second)):
            if rate is not None and not rate > 0:
                raise AnalysisError(f"{name} of a host is {rate} B/s; want above 0, or none")

    def seconds(self, model: CostModel, ranks: int, hosts: int, size_bytes: float) -> float:
        """What one call should take by ``model``."""
        where = (ranks, hosts, size_bytes)
        sent, moved, added = (count(*where) * size_bytes for count in (model.sent, model.moved, model.added))
        seconds = self.seconds_of(model.rounds(*where), sent, moved, added)
        if self.copy_bytes_per_second is not None:
            seconds += model.copied(*where) * size_bytes / self.copy_bytes_per_second
        return seconds

    def seconds_of(self, rounds: float, sent_bytes: float, moved_bytes: float, added_bytes: float) -> float:
        """What so much takes."""
        moving = sent_bytes * self.beta_seconds_per_byte
        if self.host_bytes_per_second is not None:
            moving = max(moving, moved_bytes / self.host_bytes_per_second)
        return rounds * self.alpha_seconds + moving + added_bytes * self.gamma_seconds_per_byte

    def crossover_bytes(self, one: CostModel, other: CostModel, ranks: int, hosts: int) -> float | None:
        """S* at which two algorithms whose counts do not depend on S take the same time: below it the one with fewer
        rounds is faster, above it the one with fewer bytes. None where one is at least as fast at every size.
        """
        where = (ranks, hosts, 1.0)
        waiting = (other.rounds(*where) - one.rounds(*where)) * self.alpha_seconds
        of_a_byte = [
            self.seconds_of(0.0, row.sent(*where), row.moved(*where), row.added(*where)) for row in (one, other)
        ]
        difference = of_a_byte[0] - of_a_byte[1]
        # Equal costs may differ by what floating point makes of them.
        if abs(difference) <= _ROUNDING * of_a_byte[0] or waiting * difference <= 0:
            return None
        return waiting / difference
