"""Copies inside a host: no wire, but the roof that every wire of this host runs under."""

from busbw.ops.base import Layout, Op, Share, Span


def _copy(share: Share) -> Layout:
    own = (Span(share.count, share.rank),)
    return Layout(own, own)


COPIES = (
    Op(
        name="memory_copy",
        summary="every rank copies a buffer in host memory, all at once; the roof of ranks that share a host",
        size_meaning="bytes of the source (read once, written once)",
        layout=_copy,
        bus_factor=None,
        wire_bytes=lambda _ranks, _size: 0.0,
        local=True,
        memory_traffic=2.0,
    ),
)
