"""The record of an operation: pure functions and flags. It imports no torch, so every package may read the table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Matrix = tuple[tuple[int, ...], ...]

REDUCED = -1
"""Source of a span that holds the reduction over all ranks of the group."""


def first_reason(*reasons: tuple[object, str | None]) -> str | None:
    """The first reason whose condition is true; None if none is. Each pair is (condition, reason)."""
    return next((words for applies, words in reasons if applies), None)


@dataclass(frozen=True, slots=True)
class Span:
    """``length`` elements of rank ``source`` of the group (or ``REDUCED``).

    phase: what of them it is: of a reduction, its first element; of a rank's data, the number of the block
    """

    length: int
    source: int
    phase: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """The buffers of one rank: its input, the expected output, and whether the two share memory.

    send, expect: spans from the start of the send buffer and of the receive buffer
    sends_from_receive: element of the receive buffer at which the send buffer starts
    receives_into_send: element of the send buffer at which the receive buffer starts
    At most one of the last two is given; neither if the buffers are separate.
    """

    send: tuple[Span, ...]
    expect: tuple[Span, ...]
    sends_from_receive: int | None = None
    receives_into_send: int | None = None

    @property
    def send_count(self) -> int:
        """Elements of the send buffer."""
        return sum(span.length for span in self.send)

    @property
    def receive_count(self) -> int:
        """Elements of the receive buffer."""
        return sum(span.length for span in self.expect)


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's share of one call.

    rank, ranks: rank within the group, and size of the group
    count: elements in S
    root: a rank of the group
    traffic: ``traffic[s][d]`` is the number of elements that s sends to d (uneven ops only)
    """

    rank: int
    ranks: int
    count: int
    in_place: bool = False
    root: int = 0
    traffic: Matrix = ()


def own(share: Share) -> Layout:
    """The rank sends from one of its own buffers into another."""
    span = (Span(share.count, share.rank),)
    return Layout(span, span)


def written(share: Share) -> Layout:
    """The rank writes a buffer of its own; nothing is sent."""
    return Layout((), (Span(share.count, share.rank),))


def nothing(_share: Share) -> Layout:
    """No buffers: the operation has no data, or the call allocates its own."""
    return Layout((), ())


def one(_ranks: int) -> float:
    """Bus factor of data that crosses a wire once."""
    return 1.0


def always(number: float) -> Callable[[int], float]:
    """A number that does not depend on the number of elements in S."""
    return lambda _count: number


@dataclass(frozen=True, slots=True)
class Shape:
    """The element counts that S may have, for ops whose counts are not multiples of a number.

    down: the largest allowed count up to the given one, or else the smallest allowed count
    words: describes the allowed counts
    """

    down: Callable[[int], int]
    words: str


Split = Literal["dp", "shard", "ep", "cp", "tp", "pp"]
"""What the ranks divide: the batch (dp) and with it weights (shard) or experts (ep), each sequence (cp), each layer
(tp), or the layers (pp)."""
Schedule = Literal["gpipe", "1f1b"]
"""The order of passes in a pipeline: all forward passes first, or one forward and one backward pass in turn."""
Context = Literal["ring", "ulysses"]
"""How ranks that divide a sequence exchange its keys and values: around a ring, or by heads in an all_to_all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How the ranks of a training step divide it: what decides its memory, its calls, and its predicted time.

    splits: what the ranks divide among them
    zero: what data-parallel ranks divide: 0 nothing, 1 optimizer states, 2 gradients too, 3 weights too (Rajbhandari et
        al. 2020, https://arxiv.org/abs/1910.02054)
    reshard: with zero 3, weights are gathered again for the backward pass
    bucketed: gradients are reduced in buckets during the backward pass, as in DistributedDataParallel
    columns: the last matrices of a layer are also divided by columns
    sequence_parallel: tokens are divided between the halves of a layer
    keep_inputs: with it, gathered inputs are kept for the gradients of weights
    context: exchange of keys and values
    schedule: of a pipeline
    unplanned: why no plan describes its calls, so that its time is not predicted; "" if one does
    """

    splits: tuple[Split, ...]
    zero: Literal[0, 1, 2, 3]
    reshard: bool = True
    bucketed: bool = False
    columns: bool = False
    sequence_parallel: bool = False
    keep_inputs: bool = False
    context: Context = "ring"
    schedule: Schedule = "1f1b"
    unplanned: str = ""


# --- lower bounds of any algorithm: rounds, bytes, reductions, and traffic between hosts -----------------------------
#
# Each term is a lower bound by itself, whatever the other terms are (Chan et al. 2007). The bounds hold if the ranks do
# all the work: a switch that reduces and multicasts (NVLS, SHARP) saves rounds, bytes and reductions.

Crossing = Callable[[Sequence[str], int], float]
"""(host of every rank, root) → least traffic in one direction through the interface of the busiest host, in units of
S. From cuts between a host and the rest: in all_gather a host receives all blocks of the others, in all_reduce and
reduce_scatter it may first reduce its own ranks, and so on.
"""


@dataclass(frozen=True, slots=True)
class Term:
    """Lower bound for n ranks in ``units`` of S; ``words``: its factor in a formula, empty if it is 0."""

    units: Callable[[int], float]
    words: str

    @property
    def of_size(self) -> str:
        """The factor times S."""
        return "S" if self.words == "1" else f"{self.words} S"

    def __call__(self, ranks: int) -> float:
        """Units of S."""
        return self.units(ranks)


@dataclass(frozen=True, slots=True)
class LowerBound:
    """Minimum cost of any algorithm.

    sent: bytes that some rank sends or receives (times β)
    added: bytes that some rank reduces (times γ)
    moved: bytes that all ranks together send
    """

    sent: Term
    added: Term
    moved: Term

    def rounds(self, ranks: int, ports: int = 1) -> int:
        """⌈log_(p+1) n⌉ rounds if a rank sends and receives p = ``ports`` messages at once (Bruck et al. 1997): each
        round multiplies by at most p + 1 the number of ranks that one rank's data can reach. ⌈lg n⌉ for one port.
        """
        reached, rounds = 1, 0
        while reached < ranks:
            reached, rounds = reached * (ports + 1), rounds + 1
        return rounds

    def formula(self, *, ports: int, sharing: bool, sums: bool) -> str:
        """The bound as printed: with R if ranks share a host (``sharing``), with γ if it is known (``sums``)."""
        terms = ["⌈lg n⌉ α" if ports == 1 else "α"]
        if self.sent.words:
            both = f"max({self.sent.of_size} β, {self.moved.of_size} / R)"
            terms.append(both if sharing else f"{self.sent.of_size} β")
        if self.added.words and sums:
            terms.append(f"{self.added.of_size} γ")
        return " + ".join(terms)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. Sizes follow nccl-tests, so results can be compared directly.

    summary: one line for ``busbw list ops``
    size_meaning: what S measures
    layout: the buffers of a rank
    bus_factor: busbw / algbw for n > 1 ranks; None if no known wire is crossed
    wire_bytes: bytes that all n ranks together must send under the best algorithm, given n and S
    multiple: S must hold a multiple of this many elements for n ranks
    in_place: whether the receive buffer may be the send buffer; the default comes first
    personalised: every rank sends each other rank a block of its own, so that all but its own block crosses a wire
    reduces, rooted, uneven, sized: whether the op has a reduction, a root, a traffic matrix, a size
    synchronising: no rank can leave before the last one has entered, so the fastest rank is the last arrival
    members: participating ranks of a group: all, its two ends, or every ordered pair in turn
    trips: consecutive messages (or steps) of one invocation, counted as that many calls (2 for a ping-pong)
    sequential: its messages follow one another, so it has no nonblocking form
    computed: the operation counts wrong elements itself (``Operation.wrong``); the layout gives only the length
    fresh: input is recreated, or the last result checked, before each call (``Operation.prepare``), so a sample is one
        call
    repeatable: all ranks compute the same, so their results are compared (``Operation.signature``)
    threaded: threads of a rank can share a call
    local: no other rank takes part; the backends share its implementation (``backends.local``)
    memory_traffic: bytes that memory reads and writes per byte of S; None if not in memory or not counted
    plain_sockets: uses the host's TCP sockets without a library; the backends share it (``backends.sockets``)
    stores: writes files below the plan's path; if also local, each rank has its own file
    needs_device: requires ranks that drive a device
    host_memory: one of its buffers is in host memory, pinned or pageable
    flop: floating-point operations of a call, given the number of elements in S
    least_traffic: minimum bytes read and written per byte of S, given the number of elements in S, for a kernel that
        computes: the operands and results of each of its operations, once
    shape: allowed element counts of S, if they are not multiples
    lower_bound: minimum cost of any algorithm
    least_crossing: minimum traffic between hosts
    strategy: how the ranks of a training step divide it; None for other ops
    """

    name: str
    summary: str
    size_meaning: str
    layout: Callable[[Share], Layout]
    bus_factor: Callable[[int], float] | None = None
    wire_bytes: Callable[[int, float], float] = lambda _ranks, _size: 0.0
    multiple: Callable[[int], int] = lambda _ranks: 1
    in_place: tuple[bool, ...] = (False,)
    personalised: bool = False
    reduces: bool = False
    rooted: bool = False
    uneven: bool = False
    sized: bool = True
    synchronising: bool = False
    members: Literal["all", "ends", "pairs"] = "all"
    trips: int = 1
    sequential: bool = False
    computed: bool = False
    fresh: bool = False
    repeatable: bool = False
    threaded: bool = False
    local: bool = False
    memory_traffic: float | None = None
    plain_sockets: bool = False
    stores: bool = False
    needs_device: bool = False
    host_memory: bool = False
    flop: Callable[[int], int] | None = None
    least_traffic: Callable[[int], float] | None = None
    shape: Shape | None = None
    lower_bound: LowerBound | None = None
    least_crossing: Crossing | None = None
    strategy: Strategy | None = None

    @property
    def splits(self) -> tuple[Split, ...]:
        """What the ranks of a training step divide among them; empty for other ops."""
        return () if self.strategy is None else self.strategy.splits

    def factor(self, ranks: int) -> float | None:
        """busbw / algbw for ``ranks`` ranks in the group; None for one rank, which has no wire (0 would mislead)."""
        return None if self.bus_factor is None or ranks < 2 else self.bus_factor(ranks)

    @property
    def in_blocks(self) -> bool:
        """Whether S is a block for each rank, which lie in the order of the ranks."""
        return self.uneven or self.multiple(2) > 1

    @property
    def communicates(self) -> bool:
        """Whether it measures what ranks send each other, so that a rank alone has nothing to measure."""
        return not (self.local or self.stores or self.splits)

    @property
    def between_devices(self) -> bool:
        """Whether it copies from the device of one rank to that of another."""
        return self.needs_device and not self.host_memory

    def least_ranks(self) -> int:
        """Smallest group in which the call can be made; one rank that ``communicates`` calls for nothing."""
        alone = self.members == "all" and (self.trips == 1 or self.local)
        return 1 if alone and not self.between_devices else 2
