"""Point-to-point operations: pair ops run between the two ends of a group, the matrix between all pairs."""

from functools import partial

from busbw.ops import bounds
from busbw.ops.base import Layout, Op, Share, Span, one


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
_between_ends = partial(_message, members="ends", least_crossing=bounds.once)
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
        least_crossing=bounds.ring,
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
