"""Copies between the memory of a GPU and another one: the host's, or that of a GPU beside it.

A rank copies with its own GPU and no other rank takes part, so both buffers are its own, wherever they are. Directions
and S are those of nvbandwidth; what takes two directions at once says so, and S is one of them.
"""

from busbw.ops.base import Layout, Op, Share, Span


def _copied(share: Share) -> Layout:
    own = (Span(share.count, share.rank),)
    return Layout(own, own)


def _by_the_first(share: Share) -> Layout:
    """The first of the two copies; the other one lends its GPU and does nothing."""
    return _copied(share) if share.rank == 0 else Layout((), ())


def _no_wire(_ranks: int, _size: float) -> float:
    return 0.0


def _one(_ranks: int) -> float:
    return 1.0


DEVICE_COPIES = (
    Op(
        name="host_to_device",
        summary="every rank copies from the memory of the host to its GPU, all at once",
        size_meaning="bytes that are copied",
        layout=_copied,
        bus_factor=None,
        wire_bytes=_no_wire,
        local=True,
        needs_device=True,
        host_memory=True,
    ),
    Op(
        name="device_to_host",
        summary="every rank copies from its GPU to the memory of the host, all at once",
        size_meaning="bytes that are copied",
        layout=_copied,
        bus_factor=None,
        wire_bytes=_no_wire,
        local=True,
        needs_device=True,
        host_memory=True,
    ),
    Op(
        name="host_and_device",
        summary="every rank copies from the host to its GPU and back at once; the rate is that of one direction",
        size_meaning="bytes that are copied in one direction; the other one carries as many",
        layout=_copied,
        bus_factor=None,
        wire_bytes=_no_wire,
        local=True,
        needs_device=True,
        host_memory=True,
    ),
    Op(
        name="peer_copy",
        summary="every ordered pair of GPUs of a host: one copies into the memory of the other, with peer access",
        size_meaning="bytes that are copied",
        layout=_by_the_first,
        bus_factor=_one,
        wire_bytes=lambda _ranks, size: size,
        members="pairs",
        local=True,
        needs_device=True,
    ),
    Op(
        name="peer_copy_both",
        summary="every pair of GPUs of a host, each into the memory of the other at once; the rate is one direction's",
        size_meaning="bytes that one of the two copies; the other one copies as many",
        layout=_copied,
        bus_factor=_one,
        wire_bytes=lambda _ranks, size: 2 * size,
        members="pairs",
        local=True,
        needs_device=True,
    ),
    Op(
        name="peer_copy_driver",
        summary="peer_copy where there is no peer access: by whatever way the driver takes then",
        size_meaning="bytes that are copied",
        layout=_by_the_first,
        bus_factor=_one,
        wire_bytes=lambda _ranks, size: size,
        members="pairs",
        local=True,
        needs_device=True,
    ),
    Op(
        name="peer_copy_staged",
        summary="peer_copy by way of pinned memory of the host, in two steps: where there is peer access, too",
        size_meaning="bytes that are copied",
        layout=_by_the_first,
        bus_factor=_one,
        wire_bytes=lambda _ranks, size: size,
        members="pairs",
        local=True,
        needs_device=True,
    ),
)
