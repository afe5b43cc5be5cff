"""Collectives, one row per operation.

S, bus factors and wire bytes: nccl-tests ``src/*.cu`` (``GetBw``) and ``doc/PERFORMANCE.md``. Wire bytes are the
bandwidth lower bounds of Chan et al. 2007, summed over the ranks of the group.
"""

from functools import partial

from busbw.ops import bounds
from busbw.ops.base import REDUCED, Layout, Op, Share, Span, nothing, one


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
    return Layout(send, (Span(share.count, share.root),), sends_from_receive=0 if send else None)


def _reduce(share: Share) -> Layout:
    # In place, the buffers of the other ranks are scratch: their contents afterwards are undefined.
    expect = (Span(share.count, REDUCED),) if share.rank == share.root else ()
    return Layout((Span(share.count, share.rank),), expect, receives_into_send=0 if expect else None)


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
_gathering = partial(_among_all, multiple=_blocks, in_place=(False, True), least_crossing=bounds.blocks_of_others)
_of_the_root = partial(
    Op,
    size_meaning="buffer",
    bus_factor=one,
    wire_bytes=lambda ranks, size: (ranks - 1) * size,
    in_place=(True,),
    rooted=True,
    least_crossing=bounds.once,
)
_of_blocks = partial(
    Op,
    size_meaning="n × the block of one rank",
    bus_factor=_others,
    wire_bytes=lambda ranks, size: (ranks - 1) / ranks * size,
    multiple=_blocks,
    in_place=(False, True),
    rooted=True,
    lower_bound=bounds.OF_A_ROOT,
    least_crossing=bounds.through_root,
)

COLLECTIVES = (
    Op(
        "all_reduce",
        "every rank ends with the reduction of all buffers",
        size_meaning="buffer of one rank",
        layout=_all_reduce,
        bus_factor=lambda ranks: 2 * (ranks - 1) / ranks,
        wire_bytes=lambda ranks, size: 2 * (ranks - 1) * size,
        # torch.distributed has no all-reduce into a second buffer.
        in_place=(True,),
        reduces=True,
        synchronising=True,
        lower_bound=bounds.OF_ALL_REDUCE,
        least_crossing=bounds.reduced,
    ),
    _gathering(
        "all_gather",
        "every rank ends with the blocks of all ranks",
        size_meaning="output of one rank (n × its own block)",
        layout=_all_gather,
        lower_bound=bounds.OF_BLOCKS,
    ),
    _gathering(
        "reduce_scatter",
        "every rank ends with its block of the reduction",
        size_meaning="input of one rank (n × the block it keeps)",
        layout=_reduce_scatter,
        reduces=True,
        lower_bound=bounds.OF_REDUCE_SCATTER,
    ),
    _among_all(
        "all_to_all",
        "every rank sends an equal block to every rank",
        size_meaning="send buffer of one rank, including its own block",
        layout=_all_to_all,
        personalised=True,
        multiple=_blocks,
        lower_bound=bounds.OF_BLOCKS,
        least_crossing=bounds.exchanged,
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
    _of_the_root(
        "broadcast", "every rank ends with the root's buffer", layout=_broadcast, lower_bound=bounds.OF_BROADCAST
    ),
    _of_the_root(
        "reduce",
        "the root ends with the reduction of all buffers",
        layout=_reduce,
        reduces=True,
        lower_bound=bounds.OF_REDUCE,
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
        lower_bound=bounds.OF_A_BARRIER,
    ),
)
