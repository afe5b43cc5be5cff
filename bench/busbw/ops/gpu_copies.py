"""Copies between the memory of a GPU and another one: the host's, or that of a GPU beside it.

A rank copies with its own GPU and no other rank takes part, so both buffers are its own, wherever they are. Directions
and S are those of nvbandwidth; what takes two directions at once says so, and S is one of them.
"""

from functools import partial

from busbw.ops.base import Layout, Op, Share, nothing, one, own


def _by_the_first(share: Share) -> Layout:
    """The first of the two copies; the other one lends its GPU and does nothing."""
    return own(share) if share.rank == 0 else nothing(share)


_copy = partial(Op, size_meaning="bytes that are copied", layout=own, local=True, needs_device=True)
_of_the_host = partial(_copy, host_memory=True)
_of_a_pair = partial(_copy, layout=_by_the_first, bus_factor=one, wire_bytes=lambda _ranks, size: size, members="pairs")

DEVICE_COPIES = (
    _of_the_host(
        name="host_to_device",
        summary="every rank copies from the memory of the host to its GPU, all at once",
    ),
    _of_the_host(
        name="device_to_host",
        summary="every rank copies from its GPU to the memory of the host, all at once",
    ),
    _of_the_host(
        name="host_and_device",
        summary="every rank copies from the host to its GPU and back at once; the rate is that of one direction",
        size_meaning="bytes that are copied in one direction; the other one carries as many",
    ),
    _of_a_pair(
        name="peer_copy",
        summary="every ordered pair of GPUs of a host: one copies into the memory of the other, with peer access",
    ),
    _of_a_pair(
        name="peer_copy_both",
        summary="every pair of GPUs of a host, each into the memory of the other at once; the rate is one direction's",
        size_meaning="bytes that one of the two copies; the other one copies as many",
        layout=own,
        wire_bytes=lambda _ranks, size: 2 * size,
    ),
    _of_a_pair(
        name="peer_copy_driver",
        summary="peer_copy where there is no peer access: by whatever way the driver takes then",
    ),
    _of_a_pair(
        name="peer_copy_staged",
        summary="peer_copy by way of pinned memory of the host, in two steps: where there is peer access, too",
    ),
)
