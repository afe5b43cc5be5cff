"""The cost model of an algorithm, and the time of a call with the α, β, γ and R of messages.

T = rounds · α + max(sent · S β, moved · S / R) + copied · S / M + added · S γ.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

GLOO: Final = "gloo"
"""The family of cost models (``BackendTraits.cost_models``) with one algorithm per op, as in the sources of Gloo."""
MPI: Final = "mpi"
"""The family whose library selects the algorithm from its tables."""
NCCL: Final = "nccl"
"""The family whose tuner selects the algorithm, possibly with reduction in switches."""

Count = Callable[[int, int, float], float]
"""n ranks on k hosts and S bytes → a number."""

INSIDE_AS_BETWEEN: Final = (
    "all rounds and bytes count as between hosts, although some may stay inside a host: an upper bound if each rank "
    "has its own card, but not if the ranks of a host share one"
)
"""A note on flat algorithms other than rings, if hosts have several ranks."""

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
    """0."""
    return 0.0


def several_ranks(ranks: int, *_: float) -> bool:
    """Whether there is more than one rank."""
    return ranks > 1


@dataclass(frozen=True, slots=True)
class CostModel:
    """The cost of one op with one algorithm, as functions of n ranks, k hosts and S. Bytes are in units of S.

    The messages of a round overlap, so each round costs one α, however many messages it has; the processor overhead per
    message (o of LogP) is ignored. A flat algorithm on several hosts counts entirely as between hosts: an upper bound
    if each rank of a host has its own card.

    ``algorithm``: the name for ``--algorithm``, or a description of a backend's algorithm.
    ``rounds``: sequential message latencies (times α).
    ``formula``, ``source``: the cost in symbols, and its reference.
    ``family``: of the backends that run it by default (``BackendTraits.cost_models``), or ``textbook``.
    ``sent``: bytes through one direction of the link of the busiest rank (times β).
    ``added``: bytes that the busiest rank reduces (times γ).
    ``moved``: bytes that all ranks send together (over R, if they share one host).
    ``copied``: bytes that all ranks of one host additionally copy between buffers (over M).
    ``possible``: whether the algorithm exists for a call; if not, the counts may raise AnalysisError.
    ``messages``: number of messages of the busiest rank; None: one per round.
    ``inner_rounds``, ``inner_sent``: the part of ``rounds`` and ``sent`` inside a host, with the α and β there.
    ``overlapped``: every round has messages inside and between hosts, and the slower of the two determines the time.
    ``in_a_ring``: one ring through the ranks in host order, or a single message: in every round, one rank of each host
    sends to another host, as much as any other rank.
    ``own_label``: the algorithm as written in text, if it does not follow from ``algorithm``.
    ``of_call``: the algorithm of one call, if a table selects it; ``source`` is then the source of the table.
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
    own_label: str | None = None

    @property
    def label(self) -> str:
        """The algorithm as written in text: ``recursive doubling``, ``Bruck``."""
        if self.own_label is not None or self.family != "textbook":
            return self.own_label or self.algorithm
        return _LABELS.get(self.algorithm, self.algorithm.replace("-", " "))

    @property
    def two_levels(self) -> bool:
        """Whether it is hierarchical: it treats ranks inside a host differently."""
        return self.inner_sent is not none

    @property
    def by_table(self) -> str | None:
        """The source of the table that selects the algorithm of each call; None for a single algorithm."""
        return None if self.of_call is None else self.source

    def at(self, ranks: int, hosts: int, size_bytes: float) -> "CostModel":
        """The cost model of the algorithm for one call."""
        return self if self.of_call is None else self.of_call(ranks, hosts, size_bytes)

    def between(self, ranks: int, hosts: int, size_bytes: float) -> float:
        """Bytes that the busiest rank sends to other hosts, in units of S; for a flat algorithm, all bytes."""
        return self.sent(ranks, hosts, size_bytes) - self.inner_sent(ranks, hosts, size_bytes)

    def at_once(self, ranks: int, hosts: int, size_bytes: float) -> float:
        """The mean number of concurrent messages of the busiest rank per round. Together they count as one α, which is
        less accurate the more there are.
        """
        row = self.at(ranks, hosts, size_bytes)
        rounds = row.rounds(ranks, hosts, size_bytes)
        return row.messages(ranks, hosts, size_bytes) / rounds if row.messages is not None and rounds else 1.0

    def of_hosts_known(self, ranks: int, hosts: int, size_bytes: float) -> bool:
        """Whether it is known how many bytes of a call stay inside a host and how many its ranks send to others."""
        return hosts in {1, ranks} or self.two_levels or self.at(ranks, hosts, size_bytes).in_a_ring


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a cost model.

    ``alpha_seconds``: α, time of a message.
    ``beta_seconds_per_byte``: β, time per byte through one direction of a link.
    ``host_bytes_per_second``: R, rate of all ranks of one host together; None: no limit, or unknown.
    ``origin``: a description of the measurement.
    ``gamma_seconds_per_byte``: γ, time per reduced byte; 0 if unknown.
    ``copy_bytes_per_second``: M, memory copy rate of all ranks of one host together; None: unknown, copies are free.
    ``cases``: indices of the cases that α, β, R and M were measured with.
    """

    alpha_seconds: float
    beta_seconds_per_byte: float
    host_bytes_per_second: float | None
    origin: str
    gamma_seconds_per_byte: float = 0.0
    copy_bytes_per_second: float | None = None
    cases: tuple[int, ...] = ()

    def seconds(self, model: CostModel, ranks: int, hosts: int, size_bytes: float) -> float:
        """The time of one call with ``model``."""
        where = (ranks, hosts, size_bytes)
        sent, moved, added = (count(*where) * size_bytes for count in (model.sent, model.moved, model.added))
        seconds = self.seconds_of(model.rounds(*where), sent, moved, added)
        if self.copy_bytes_per_second is not None:
            seconds += model.copied(*where) * size_bytes / self.copy_bytes_per_second
        return seconds

    def seconds_of(self, rounds: float, sent_bytes: float, moved_bytes: float, added_bytes: float) -> float:
        """The time of these rounds and bytes."""
        moving = sent_bytes * self.beta_seconds_per_byte
        if self.host_bytes_per_second is not None:
            moving = max(moving, moved_bytes / self.host_bytes_per_second)
        return rounds * self.alpha_seconds + moving + added_bytes * self.gamma_seconds_per_byte

    def crossover_bytes(self, first: CostModel, other: CostModel, ranks: int, hosts: int) -> float | None:
        """The crossover size S* of two algorithms whose counts do not depend on S: below it the one with fewer rounds
        is faster, above it the one with fewer bytes. None if one is at least as fast at every size.
        """
        where = (ranks, hosts, 1.0)
        waiting = (other.rounds(*where) - first.rounds(*where)) * self.alpha_seconds
        of_a_byte = [
            self.seconds_of(0.0, row.sent(*where), row.moved(*where), row.added(*where)) for row in (first, other)
        ]
        difference = of_a_byte[0] - of_a_byte[1]
        # Equal costs may differ by rounding.
        if abs(difference) <= _ROUNDING * of_a_byte[0] or waiting * difference <= 0:
            return None
        return waiting / difference
