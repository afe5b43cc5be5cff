"""Copies between GPU memory and host memory, or between GPUs of one host.

A rank copies with its own GPU and no other rank takes part, so it owns both buffers. Directions and S follow
nvbandwidth; for simultaneous copies in both directions, S is one direction.
"""

from functools import partial

from busbw.ops.base import Layout, Op, Share, nothing, one, own


def _by_the_first(share: Share) -> Layout:
    """The first rank of the pair copies; the second lends its GPU and does nothing."""
    return own(share) if share.rank == 0 else nothing(share)


_copy = partial(Op, size_meaning="bytes copied", layout=own, local=True, needs_device=True)
_of_the_host = partial(_copy, host_memory=True)
_of_a_pair = partial(_copy, layout=_by_the_first, bus_factor=one, wire_bytes=lambda _ranks, size: size, members="pairs")

DEVICE_COPIES = (
    _of_the_host("host_to_device", "every rank copies from host memory to its GPU, all together"),
    _of_the_host("device_to_host", "every rank copies from its GPU to host memory, all together"),
    _of_the_host(
        "host_and_device",
        "every rank copies from the host to its GPU and back simultaneously; the rate is one direction",
        size_meaning="bytes copied in one direction; the other direction carries as many",
    ),
    _of_a_pair("peer_copy", "every ordered pair of GPUs of a host: one writes to the other's memory with peer access"),
    _of_a_pair(
        "peer_copy_both",
        "every pair of GPUs of a host: each writes to the other's memory; the rate is one direction",
        size_meaning="bytes copied by one GPU; the other GPU copies as many",
        layout=own,
        wire_bytes=lambda _ranks, size: 2 * size,
    ),
    _of_a_pair("peer_copy_driver", "peer_copy without peer access: the driver chooses the path"),
    _of_a_pair("peer_copy_staged", "peer_copy in two steps through pinned host memory, even if peer access exists"),
)
