"""Operations of a rank alone: local memory, computation, copies of a GPU, and files.

They use no network, but give the peaks that limit all communication on a host, or train and load models.
"""

import math
from functools import partial

from busbw.ops.base import Layout, Op, Shape, Share, Span, always, nothing, one, own, written
from busbw.ops.settings import GRAIN_BYTES

# --- memory: S is the bytes of one array, as in STREAM (McCalpin 1995), whose four kernels are here with its scalar --

LINE_BYTES = 128
"""A line of the caches of NVIDIA's GPUs, of which a load moves a sector of 32 B at least."""

LOADS = 4_099
"""Loads of a call of ``memory_latency``: some ms. A prime, so that a call ends elsewhere than it began."""

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
    Op(
        "memory_latency",
        "one thread follows pointers in random order through the memory of a GPU: the time of one load",
        size_meaning="bytes of the array, of which a load reads one line; the time is that of a load",
        layout=nothing,
        local=True,
        computed=True,
        trips=LOADS,
        shape=Shape(
            lambda count: max(LINE_BYTES, count // LINE_BYTES * LINE_BYTES),
            f"a multiple of {LINE_BYTES} elements, so of whole lines",
        ),
    ),
)


# --- computation: the place below a roofline shows whether memory or arithmetic limits this machine ------------------
#
# FLOP follow the usual counts: 2 n³ for the product of two n × n matrices; 4 h T² d for attention of h heads over T
# tokens, which are its two products, without the softmax (Dao 2023, https://arxiv.org/abs/2307.08691, section 4.1).
# A multiplication and an addition are 2 FLOP, fused or not.

SIDE_STEP = 16
"""Matrix sides are multiples of this: matrix units work in tiles, and other sides would be measured with padding."""

PERIOD = 16
"""Period of the signs in the matrices of ``signature``."""

HEADS, HEAD_SIZE = 8, 128
"""Shape of attention: one sequence; every token has this many heads of this many elements."""

TOKEN = HEADS * HEAD_SIZE


_product = partial(Op, computed=True, local=True, threaded=True)
_attention = partial(
    _product,
    size_meaning=f"bytes of the queries: {HEADS} heads × {HEAD_SIZE} elements per token; keys, values, result alike",
    layout=nothing,  # fused attention returns a new tensor
    shape=Shape(
        lambda count: max(TOKEN, count // TOKEN * TOKEN), f"whole tokens of {HEADS} heads × {HEAD_SIZE} elements"
    ),
    flop=lambda count: 4 * count * (count // TOKEN),
)


def _unfused_traffic(count: int) -> float:
    """Bytes that separate operations read and write per byte of S: 4 + 6 T / d.

    The h matrices of T × T scores have T / d times the bytes of S. QKᵀ writes them, the division by √d and the softmax
    each read and write them, and the product with V reads them. Dao et al. 2022 (https://arxiv.org/abs/2205.14135,
    algorithm 0) divide nothing and count 4: scores and probabilities, each written and read.
    """
    return 4 + 6 * (count // TOKEN) / HEAD_SIZE


COMPUTE = (
    _product(
        "matmul",
        "every rank multiplies two square matrices: the compute peak of the processor",
        size_meaning="bytes of one matrix (two are read, one written)",
        # The call makes its own operands: products of the collectives' test pattern would overflow.
        layout=written,
        shape=Shape(
            lambda count: max(SIDE_STEP, math.isqrt(count) // SIDE_STEP * SIDE_STEP) ** 2,
            f"a square matrix with a side that is a multiple of {SIDE_STEP}",
        ),
        flop=lambda count: 2 * math.isqrt(count) ** 3,
        least_traffic=always(3.0),
    ),
    _product(
        "signature",
        "every rank computes the same products: a rank that differs in a bit corrupts data silently, and is named",
        size_meaning="bytes of one matrix (two products are computed, of two matrices each)",
        layout=written,
        fresh=True,
        repeatable=True,
        threaded=False,
        shape=Shape(
            lambda count: (PERIOD << max(0, (math.isqrt(count) // PERIOD).bit_length() - 1)) ** 2,
            f"a square matrix with a side that is {PERIOD} times a power of two",
        ),
    ),
    _attention("attention", "softmax(QKᵀ/√d)V in one fused kernel where torch has one", least_traffic=always(4.0)),
    _attention(
        "attention_unfused",
        "attention as separate operations: the T × T scores go through memory",
        least_traffic=_unfused_traffic,
    ),
)


# --- copies between GPU memory and host memory, or between GPUs of one host ------------------------------------------
#
# A rank copies with its own GPU and no other rank takes part, so it owns both buffers. Directions and S follow
# nvbandwidth; for simultaneous copies in both directions, S is one direction.


def _by_the_first(share: Share) -> Layout:
    """The first rank of the pair copies; the second lends its GPU and does nothing."""
    return own(share) if share.rank == 0 else nothing(share)


_copy = partial(Op, size_meaning="bytes copied", layout=own, local=True, needs_device=True)
_of_the_host = partial(_copy, host_memory=True)
_of_a_pair = partial(_copy, layout=_by_the_first, bus_factor=one, wire_bytes=lambda _ranks, size: size, members="pairs")
_with_one = partial(
    _copy,
    bus_factor=lambda ranks: ranks - 1,
    wire_bytes=lambda ranks, size: (ranks - 1) * size,
    least_crossing=lambda places, _root: len(places) - 1,
    rooted=True,
)

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
    _of_a_pair("peer_copy_sm", "peer_copy by a kernel on the GPU's multiprocessors; peer_copy uses its copy engines"),
    _of_a_pair("peer_copy_driver", "peer_copy without peer access: the driver chooses the path"),
    _of_a_pair("peer_copy_staged", "peer_copy in two steps through pinned host memory, even if peer access exists"),
    _with_one(
        "peer_all_to_one",
        "all GPUs of a host write to the memory of the root's GPU; the rate is that of all together",
        size_meaning="bytes copied by each GPU but the root's",
        layout=lambda share: nothing(share) if share.rank == share.root else own(share),
    ),
    _with_one(
        "peer_one_to_all",
        "the root's GPU writes to the memory of all other GPUs of a host; the rate is that of all together",
        size_meaning="bytes copied to each GPU but the root's",
        layout=lambda share: own(share) if share.rank == share.root else nothing(share),
    ),
)


# --- storage: a file of each rank, or a checkpoint of all ranks. No known wire is crossed: there is no bus bandwidth --

_GRAINS = Shape(
    lambda count: max(GRAIN_BYTES, count // GRAIN_BYTES * GRAIN_BYTES),
    f"a multiple of {GRAIN_BYTES} elements, the block of storage devices",
)
_file = partial(Op, size_meaning="bytes of the file of one rank", layout=own, local=True, stores=True, shape=_GRAINS)

STORAGE = (
    _file("storage_write", "every rank writes its own file sequentially and waits until it is on the device (fsync)"),
    _file("storage_read", "every rank reads its own file sequentially, bypassing the page cache"),
    Op(
        "checkpoint_save",
        "all ranks save one sharded state with torch.distributed.checkpoint, until it is on the device",
        size_meaning="bytes of one rank's shard",
        layout=own,
        stores=True,
    ),
)
