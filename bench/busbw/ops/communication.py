"""Operations between ranks: collectives, point-to-point operations, and plain sockets, one row each.

S, bus factors and wire bytes of collectives: nccl-tests ``src/*.cu`` (``GetBw``) and ``doc/PERFORMANCE.md``. Wire bytes
are the bandwidth lower bounds of Chan et al. 2007, summed over the ranks of the group.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial

from busbw.ops.base import REDUCED, Layout, LowerBound, Op, Share, Span, Term, nothing, one

# --- lower bounds of any algorithm ---------------------------------------------------------------------------------

_NOTHING = Term(lambda _ranks: 0.0, "")
_WHOLE = Term(lambda _ranks: 1.0, "1")
_NEARLY_ALL = Term(lambda ranks: (ranks - 1) / ranks, "(n−1)/n")
_TWICE_NEARLY_ALL = Term(lambda ranks: 2 * (ranks - 1) / ranks, "2(n−1)/n")
_OF_OTHERS = Term(lambda ranks: ranks - 1, "(n−1)")
_TWICE_OTHERS = Term(lambda ranks: 2 * (ranks - 1), "2(n−1)")

# Terms of α, β and γ: Chan et al. 2007. Total traffic: all data that the outputs need from other ranks. For all_reduce,
# every byte of S combines n inputs in at least n − 1 messages, and its result needs as many to reach all ranks.
_OF_ALL_REDUCE = LowerBound(_TWICE_NEARLY_ALL, _NEARLY_ALL, _TWICE_OTHERS)
_OF_REDUCE_SCATTER = LowerBound(_NEARLY_ALL, _NEARLY_ALL, _OF_OTHERS)
_OF_REDUCE = LowerBound(_WHOLE, _NEARLY_ALL, _OF_OTHERS)
_OF_BROADCAST = LowerBound(_WHOLE, _NOTHING, _OF_OTHERS)
_OF_BLOCKS = LowerBound(_NEARLY_ALL, _NOTHING, _OF_OTHERS)
"""all_gather and all_to_all."""
_OF_A_ROOT = LowerBound(_NEARLY_ALL, _NOTHING, _NEARLY_ALL)
"""gather and scatter: S is all blocks together, and the root's own block stays where it is."""
_OF_A_BARRIER = LowerBound(_NOTHING, _NOTHING, _NOTHING)


def _through_root(placement: Sequence[str], root: int) -> float:
    """Blocks of all ranks that are not on the root's host, S / n each."""
    return sum(host != placement[root] for host in placement) / len(placement)


def _reduced(placement: Sequence[str], _root: int) -> float:
    """Each host reduces its own ranks; then hosts behave like ranks."""
    hosts = len(set(placement))
    return 2 * (hosts - 1) / hosts


def _blocks_of_others(placement: Sequence[str], _root: int) -> float:
    """Blocks that the host with the fewest ranks does not own: it must receive each of them (all_gather), or send a
    partial sum for each (reduce_scatter). The other direction, one host's own blocks, never carries more.
    """
    fewest = min(Counter(placement).values())
    return (len(placement) - fewest) / len(placement)


def _exchanged(placement: Sequence[str], _root: int) -> float:
    """Every rank of a host sends a block of S / n to every rank elsewhere."""
    count = len(placement)
    return max(on_host * (count - on_host) for on_host in Counter(placement).values()) / count


def _next_host(placement: Sequence[str], _root: int) -> float:
    """Number of ranks on the busiest host that send to a rank elsewhere."""
    leaving = Counter(
        host for host, following in zip(placement, [*placement[1:], placement[0]], strict=True) if host != following
    )
    return float(max(leaving.values()))


def _once(_placement: Sequence[str], _root: int) -> float:
    """All of S enters or leaves."""
    return 1.0


# --- collectives ---------------------------------------------------------------------------------------------------


def _all_reduce(share: Share) -> Layout:
    send = (Span(share.count, share.rank),)
    return Layout(send, (Span(share.count, REDUCED),), receives_into_send=0 if share.in_place else None)


def _all_gather(share: Share) -> Layout:
    block = share.count // share.ranks
    expect = tuple(Span(block, rank) for rank in range(share.ranks))
    return Layout((Span(block, share.rank),), expect, sends_from_receive=share.rank * block if share.in_place else None)


def _reduce_scatter(share: Share) -> Layout:
    block = share.count // share.ranks
    start = share.rank * block
    expect = (Span(block, REDUCED, start),)
    return Layout((Span(share.count, share.rank),), expect, receives_into_send=start if share.in_place else None)


def _all_to_all(share: Share) -> Layout:
    even = (share.count // share.ranks,) * share.ranks
    return _exchange(share, even, even)


def _all_to_all_v(share: Share) -> Layout:
    return _exchange(share, share.traffic[share.rank], tuple(row[share.rank] for row in share.traffic))


def _exchange(share: Share, sent: tuple[int, ...], received: tuple[int, ...]) -> Layout:
    """``sent`` and ``received``: elements to and from each rank."""
    # The phase is the receiver's: a block that reaches the wrong rank is detected even if its source is right.
    send = tuple(Span(length, share.rank, to) for to, length in enumerate(sent))
    return Layout(send, tuple(Span(length, source, share.rank) for source, length in enumerate(received)))


def _broadcast(share: Share) -> Layout:
    send = (Span(share.count, share.root),) if share.rank == share.root else ()
    return Layout(send, (Span(share.count, share.root),), sends_from_receive=0 if send and share.in_place else None)


def _reduce(share: Share) -> Layout:
    # In place, the buffers of the other ranks are scratch: their contents afterwards are undefined.
    expect = (Span(share.count, REDUCED),) if share.rank == share.root else ()
    within = bool(expect) and share.in_place
    return Layout((Span(share.count, share.rank),), expect, receives_into_send=0 if within else None)


def _gather(share: Share) -> Layout:
    at_root = _all_gather(share)
    return at_root if share.rank == share.root else Layout(at_root.send, ())


def _scatter(share: Share) -> Layout:
    block = share.count // share.ranks
    expect = (Span(block, share.root, share.rank),)
    if share.rank != share.root:
        return Layout((), expect)
    send = tuple(Span(block, share.root, to) for to in range(share.ranks))
    return Layout(send, expect, receives_into_send=share.rank * block if share.in_place else None)


def _others(ranks: int) -> float:
    return (ranks - 1) / ranks


def _blocks(ranks: int) -> int:
    return ranks


_among_all = partial(Op, wire_bytes=lambda ranks, size: (ranks - 1) * size, bus_factor=_others, synchronising=True)
_gathering = partial(_among_all, multiple=_blocks, in_place=(False, True), least_crossing=_blocks_of_others)
_of_the_root = partial(
    Op,
    size_meaning="buffer",
    bus_factor=one,
    wire_bytes=lambda ranks, size: (ranks - 1) * size,
    in_place=(True, False),
    rooted=True,
    least_crossing=_once,
)
_of_blocks = partial(
    Op,
    size_meaning="n × the block of one rank",
    bus_factor=_others,
    wire_bytes=lambda ranks, size: (ranks - 1) / ranks * size,
    multiple=_blocks,
    in_place=(False, True),
    rooted=True,
    lower_bound=_OF_A_ROOT,
    least_crossing=_through_root,
)

COLLECTIVES = (
    Op(
        "all_reduce",
        "every rank ends with the reduction of all buffers",
        size_meaning="buffer of one rank",
        layout=_all_reduce,
        bus_factor=lambda ranks: 2 * (ranks - 1) / ranks,
        wire_bytes=lambda ranks, size: 2 * (ranks - 1) * size,
        in_place=(True, False),
        reduces=True,
        synchronising=True,
        lower_bound=_OF_ALL_REDUCE,
        least_crossing=_reduced,
    ),
    _gathering(
        "all_gather",
        "every rank ends with the blocks of all ranks",
        size_meaning="output of one rank (n × its own block)",
        layout=_all_gather,
        lower_bound=_OF_BLOCKS,
    ),
    _gathering(
        "reduce_scatter",
        "every rank ends with its block of the reduction",
        size_meaning="input of one rank (n × the block it keeps)",
        layout=_reduce_scatter,
        reduces=True,
        lower_bound=_OF_REDUCE_SCATTER,
    ),
    _among_all(
        "all_to_all",
        "every rank sends an equal block to every rank",
        size_meaning="send buffer of one rank, including its own block",
        layout=_all_to_all,
        personalised=True,
        multiple=_blocks,
        lower_bound=_OF_BLOCKS,
        least_crossing=_exchanged,
    ),
    _among_all(
        "all_to_all_v",
        "every rank sends blocks of different sizes, set by an imbalance or a traffic matrix",
        size_meaning="the most that any rank sends or receives, its own block included",
        layout=_all_to_all_v,
        personalised=True,
        # Overridden by the traffic matrix: see traffic.crossing.
        uneven=True,
    ),
    _of_the_root("broadcast", "every rank ends with the root's buffer", layout=_broadcast, lower_bound=_OF_BROADCAST),
    _of_the_root(
        "reduce",
        "the root ends with the reduction of all buffers",
        layout=_reduce,
        reduces=True,
        lower_bound=_OF_REDUCE,
    ),
    _of_blocks("gather", "the root ends with the blocks of all ranks", layout=_gather),
    _of_blocks("scatter", "every rank ends with its block of the root's buffer", layout=_scatter),
    Op(
        "barrier",
        "no rank leaves before the last one has entered",
        size_meaning="unused (time only)",
        layout=nothing,
        sized=False,
        synchronising=True,
        lower_bound=_OF_A_BARRIER,
    ),
)


# --- point to point: pair ops run between the two ends of a group, the matrix between all pairs ----------------------


def _ring(share: Share) -> Layout:
    return Layout((Span(share.count, share.rank),), (Span(share.count, (share.rank - 1) % share.ranks),))


def _both_ways(share: Share) -> Layout:
    last = share.ranks - 1
    if share.rank not in {0, last}:
        return Layout((), ())
    return Layout((Span(share.count, share.rank),), (Span(share.count, last - share.rank),))


def _one_way(share: Share) -> Layout:
    message = (Span(share.count, 0),)
    return Layout(message, ()) if share.rank == 0 else Layout((), message)


_message = partial(Op, size_meaning="message", bus_factor=one, wire_bytes=lambda _ranks, size: size)
_between_ends = partial(_message, members="ends", least_crossing=_once)
_around = partial(
    Op,
    size_meaning="message of one rank",
    layout=_ring,
    bus_factor=one,
    wire_bytes=lambda ranks, size: ranks * size if ranks > 1 else 0,
)

POINT_TO_POINT = (
    _around(
        "send_recv",
        "ring: every rank sends to the next rank and receives from the previous one",
        least_crossing=_next_host,
    ),
    _between_ends(
        "ping_pong",
        "one message there and one back between the ends of the group; the time is half a round trip",
        layout=_both_ways,
        trips=2,
        sequential=True,
    ),
    _between_ends(
        "pair_uni",
        "one message from the first to the last rank of the group, acknowledged with one element",
        layout=_one_way,
        sequential=True,
    ),
    _between_ends(
        "pair_bidir",
        "the ends of the group send to each other simultaneously; busbw is one direction",
        size_meaning="message of one rank",
        layout=_both_ways,
        wire_bytes=lambda _ranks, size: 2 * size,
    ),
    _message(
        "pair_matrix",
        "pair_uni for every ordered pair of ranks; disjoint pairs together, or one pair at a time",
        layout=_one_way,
        members="pairs",
        sequential=True,
    ),
)

PLAIN_SOCKETS = (
    _around(
        "tcp_stream",
        "ring over plain TCP sockets of one host, without a library: the peak for socket-based backends",
        plain_sockets=True,
    ),
    _message(
        "tcp_ping_pong",
        "ping_pong over a plain TCP socket between the first and last rank: the peak in one direction",
        layout=_both_ways,
        wire_bytes=lambda ranks, size: size if ranks > 1 else 0,
        trips=2,
        sequential=True,
        plain_sockets=True,
    ),
)
