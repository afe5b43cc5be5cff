"""Memory of a rank's own: no wire, but the peaks that every wire of this host runs under.

S is the bytes of one array, as in STREAM (McCalpin 1995), whose four kernels are here with its scalar.
"""

from functools import partial

from busbw.ops.base import Layout, Op, Share, Span, nothing, own, written

SCALAR = 3.0
"""What STREAM multiplies by, and what is written where only writing is measured."""


def _of_two(share: Share) -> Layout:
    """Two arrays one after the other go in, of which the second is another one than the first; one comes out."""
    one = Span(share.count, share.rank)
    return Layout((one, Span(share.count, share.rank, phase=1)), (one,))


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
        name="memory_copy",
        summary="every rank copies a buffer in host memory, all at once; the peak of ranks that share a host",
        size_meaning="bytes of the source (read once, written once)",
        layout=own,
        memory_traffic=2.0,
    ),
    _from_one(
        name="stream_copy",
        summary="STREAM's copy: a[i] = b[i] as a plain loop, unlike memory_copy, which is the library's",
    ),
    _from_one(name="stream_scale", summary="STREAM's scale: a[i] = 3 × b[i]", computed=True, flop=lambda count: count),
    _from_two(name="stream_add", summary="STREAM's add: a[i] = b[i] + c[i]", flop=lambda count: count),
    _from_two(name="stream_triad", summary="STREAM's triad: a[i] = b[i] + 3 × c[i]", flop=lambda count: 2 * count),
    _computed(
        name="memory_read",
        summary="reads an array: the sum of its bit patterns as whole numbers, to which every element counts",
        size_meaning="bytes of the array (read once)",
        layout=_read,
        memory_traffic=1.0,
    ),
    _computed(
        name="memory_write",
        summary="writes an array: the same number everywhere",
        size_meaning="bytes of the array (written once)",
        layout=written,
        memory_traffic=1.0,
    ),
    _computed(
        name="memory_touch",
        summary="touches fresh pages for the first time: the system clears each, and a number goes to its start",
        size_meaning="bytes of the pages (cleared, so written once)",
        layout=nothing,
        fresh=True,
        memory_traffic=1.0,
    ),
)
