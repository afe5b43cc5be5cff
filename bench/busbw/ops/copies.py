"""Local memory operations: no network, but they give the memory peaks that limit all communication on a host.

S is the bytes of one array, as in STREAM (McCalpin 1995), whose four kernels are here with its scalar.
"""

from functools import partial

from busbw.ops.base import Layout, Op, Share, Span, nothing, own, written

SCALAR = 3.0
"""STREAM's scalar; also the value that write-only kernels store."""


def _of_two(share: Share) -> Layout:
    """Two different arrays, stored one after the other, are the input; one array is the output."""
    span = Span(share.count, share.rank)
    return Layout((span, Span(share.count, share.rank, phase=1)), (span,))


def _read(share: Share) -> Layout:
    return Layout((Span(share.count, share.rank),), ())


_kernel = partial(Op, threaded=True, local=True)
_computed = partial(_kernel, computed=True)
_from_one = partial(
    _kernel, size_meaning="bytes of one array (one is read, one written)", layout=own, memory_traffic=2.0
)
_from_two = partial(
    _computed, size_meaning="bytes of one array (two are read, one written)", layout=_of_two, memory_traffic=3.0
)

COPIES = (
    _kernel(
        "memory_copy",
        "every rank copies a buffer in host memory, all together: the peak for ranks that share a host",
        size_meaning="bytes of the source (read once, written once)",
        layout=own,
        memory_traffic=2.0,
    ),
    _from_one("stream_copy", "STREAM copy: a[i] = b[i] as a plain loop (memory_copy uses the library's copy)"),
    _from_one("stream_scale", "STREAM scale: a[i] = 3 × b[i]", computed=True, flop=lambda count: count),
    _from_two("stream_add", "STREAM add: a[i] = b[i] + c[i]", flop=lambda count: count),
    _from_two("stream_triad", "STREAM triad: a[i] = b[i] + 3 × c[i]", flop=lambda count: 2 * count),
    _computed(
        "memory_read",
        "reads an array: sums the bit patterns of its elements as integers",
        size_meaning="bytes of the array (read once)",
        layout=_read,
        memory_traffic=1.0,
    ),
    _computed(
        "memory_write",
        "writes one value to every element of an array",
        size_meaning="bytes of the array (written once)",
        layout=written,
        memory_traffic=1.0,
    ),
    _computed(
        "memory_touch",
        "touches fresh pages for the first time: the kernel clears each page, then one number is written to it",
        size_meaning="bytes of the pages (written once, by clearing)",
        layout=nothing,
        fresh=True,
        memory_traffic=1.0,
    ),
)
