"""What an operation is: a small record of pure functions. No torch here, so that every package may read the table."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from busbw.ops.bounds import Crossing, LowerBound

Matrix = tuple[tuple[int, ...], ...]

REDUCED = -1
"""As the source of a span: the reduction over all ranks of the group."""


def first_reason(*reasons: tuple[object, str | None]) -> str | None:
    """Of reasons why something cannot be, each with whether it applies, the first that does; None: it can be."""
    return next((words for applies, words in reasons if applies), None)


@dataclass(frozen=True, slots=True)
class Span:
    """``length`` elements of rank ``source`` of the group, or of the reduction (``REDUCED``), from ``phase`` on."""

    length: int
    source: int
    phase: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """The buffers of one rank: what it puts in, what must have come out, and whether the two share memory.

    ``send`` and ``expect`` are spans from the start of the send and the receive buffer. ``sends_from_receive`` is the
    element of the receive buffer at which the send buffer starts, ``receives_into_send`` the other way round; at most
    one of them is given, and none when the buffers are apart.
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
    """One rank's part in one call: rank ``rank`` of ``ranks`` in its group, ``count`` elements in S.

    ``root`` is a rank of the group. ``traffic[s][d]`` is how many elements s sends to d (uneven ops only).
    """

    rank: int
    ranks: int
    count: int
    in_place: bool = False
    root: int = 0
    traffic: Matrix = ()


def own(share: Share) -> Layout:
    """A buffer of a rank's own into another one of it."""
    span = (Span(share.count, share.rank),)
    return Layout(span, span)


def written(share: Share) -> Layout:
    """A buffer of a rank's own, of what nobody has sent."""
    return Layout((), (Span(share.count, share.rank),))


def nothing(_share: Share) -> Layout:
    """No buffers: an operation without data, or whose data are the call's own."""
    return Layout((), ())


def one(_ranks: int) -> float:
    """The bus factor of what crosses a wire once."""
    return 1.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Which numbers of elements S can hold, where they are no multiples: ``down`` gives the largest one that is at most
    the given one, or else the smallest; ``words`` says what they are.
    """

    down: Callable[[int], int]
    words: str


Split = Literal["dp", "shard", "ep", "cp", "tp", "pp"]
"""What ranks divide: the batch (dp), and with it weights (shard) or experts (ep); each sequence (cp), each layer (tp),
the layers (pp)."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. Sizes follow nccl-tests, so that the two can be laid side by side.

    size_meaning: what S is, in words.
    layout: the buffers of a rank.
    bus_factor: busbw over algbw for n > 1 ranks; None where nothing crosses a wire that is known of.
    wire_bytes: of n ranks and S, what all ranks together must send by the best algorithm, bytes.
    multiple: S must hold a multiple of so many elements for n ranks.
    in_place: whether it can receive into the buffer that it sends from, the usual answer first.
    reduces, rooted, uneven, sized: it has a reduction, a root, a traffic matrix, a size.
    synchronising: no rank can leave before the last one has come, so the fastest rank is the one that came last.
    members: which ranks of a group take part: all, its two ends, or every ordered pair in turn.
    trips: messages in a row that one invocation makes and that count as that many calls (2 for a ping-pong).
    computed: the operation itself counts what is wrong (``Operation.wrong``); the layout gives only the length.
    fresh: what a call finds is made anew before it (``Operation.prepare``), so a sample is one call.
    threaded: threads of a rank can share a call.
    local: no other rank takes part, and the backends share how it is called (``backends.local``).
    memory_traffic: bytes that memory reads and writes for every byte of S; None: not in memory, or not counted.
    plain_sockets: over TCP sockets of the host, without a library; the backends share it (``backends.sockets``).
    stores: it makes files below the path of the plan; each rank its own where it is local, too.
    needs_device: there is nothing to do where ranks drive no device.
    host_memory: one of its buffers is the host's, pinned or pageable.
    flop: floating-point operations of a call whose S has so many elements.
    least_traffic: bytes that must be read and written at least for every byte of S, of a kernel that computes.
    shape: which numbers of elements S can hold, where they are no multiples.
    lower_bound: the least that any algorithm has to do.
    least_crossing: the least that must cross between hosts.
    splits: it is a step of training, and what its ranks divide among them.
    """

    name: str
    summary: str
    size_meaning: str
    layout: Callable[[Share], Layout]
    bus_factor: Callable[[int], float] | None = None
    wire_bytes: Callable[[int, float], float] = lambda _ranks, _size: 0.0
    multiple: Callable[[int], int] = lambda _ranks: 1
    in_place: tuple[bool, ...] = (False,)
    reduces: bool = False
    rooted: bool = False
    uneven: bool = False
    sized: bool = True
    synchronising: bool = False
    members: Literal["all", "ends", "pairs"] = "all"
    trips: int = 1
    computed: bool = False
    fresh: bool = False
    threaded: bool = False
    local: bool = False
    memory_traffic: float | None = None
    plain_sockets: bool = False
    stores: bool = False
    needs_device: bool = False
    host_memory: bool = False
    flop: Callable[[int], int] | None = None
    least_traffic: float | None = None
    shape: Shape | None = None
    lower_bound: LowerBound | None = None
    least_crossing: Crossing | None = None
    splits: tuple[Split, ...] = ()

    def factor(self, ranks: int) -> float | None:
        """busbw / algbw for ``ranks`` ranks in the group; None for one: there is no wire, and a 0 would be a lie."""
        return None if self.bus_factor is None or ranks < 2 else self.bus_factor(ranks)

    @property
    def in_blocks(self) -> bool:
        """Whether S is a block for each rank, which lie in the order of the ranks."""
        return self.uneven or self.multiple(2) > 1

    def least_ranks(self) -> int:
        """The smallest group the op makes sense in."""
        return 1 if self.members == "all" and self.trips == 1 else 2
