"""Point to point: one row per operation. The pair ops run between the two ends of a group, the matrix between all."""

from busbw.ops import bounds
from busbw.ops.base import Layout, Op, Share, Span


def _ring(share: Share) -> Layout:
    return Layout((Span(share.count, share.rank),), (Span(share.count, (share.rank - 1) % share.ranks),))


def _both_ways(share: Share) -> Layout:
    return Layout((Span(share.count, share.rank),), (Span(share.count, 1 - share.rank),))


def _one_way(share: Share) -> Layout:
    message = (Span(share.count, 0),)
    return Layout(message, ()) if share.rank == 0 else Layout((), message)


def _one(_ranks: int) -> float:
    return 1.0


POINT_TO_POINT = (
    Op(
        name="send_recv",
        summary="ring: every rank sends to the next and receives from the one before",
        size_meaning="message of one rank",
        layout=_ring,
        bus_factor=_one,
        wire_bytes=lambda ranks, size: ranks * size if ranks > 1 else 0,
        least_crossing=bounds.ring,
    ),
    Op(
        name="ping_pong",
        summary="a message there and one back between the ends of the group; the time is half a round trip",
        size_meaning="message",
        layout=_both_ways,
        bus_factor=_one,
        wire_bytes=lambda _ranks, size: size,
        members="ends",
        trips=2,
        least_crossing=bounds.once,
    ),
    Op(
        name="pair_uni",
        summary="one message from the first to the last rank of the group, answered with one element",
        size_meaning="message",
        layout=_one_way,
        bus_factor=_one,
        wire_bytes=lambda _ranks, size: size,
        members="ends",
        least_crossing=bounds.once,
    ),
    Op(
        name="pair_bidir",
        summary="the ends of the group send to each other at once; busbw is one direction, both carry it",
        size_meaning="message of one rank",
        layout=_both_ways,
        bus_factor=_one,
        wire_bytes=lambda _ranks, size: 2 * size,
        members="ends",
        least_crossing=bounds.once,
    ),
    Op(
        name="pair_matrix",
        summary="pair_uni for every ordered pair of ranks, disjoint pairs together or every pair alone",
        size_meaning="message",
        layout=_one_way,
        bus_factor=_one,
        wire_bytes=lambda _ranks, size: size,
        members="pairs",
    ),
)

PLAIN_SOCKETS = (
    Op(
        name="tcp_stream",
        summary="ring over plain TCP sockets of one host, without a library: the peak of ranks that use sockets",
        size_meaning="message of one rank",
        layout=_ring,
        bus_factor=_one,
        wire_bytes=lambda ranks, size: ranks * size if ranks > 1 else 0,
        plain_sockets=True,
    ),
)
