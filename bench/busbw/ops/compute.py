"""Compute kernels: their place below a roofline shows whether memory or arithmetic limits this machine.

FLOP follow the usual counts: 2 n³ for the product of two n × n matrices; 4 h T² d for attention of h heads over T
tokens, which are its two products, without the softmax (Dao 2023, https://arxiv.org/abs/2307.08691, section 4.1).
A multiplication and an addition are 2 FLOP, fused or not.
"""

import math
from functools import partial

from busbw.ops.base import Op, Shape, always, nothing, written

SIDE_STEP = 16
"""Matrix sides are multiples of this: matrix units work in tiles, and other sides would be measured with padding."""

HEADS, HEAD_SIZE = 8, 128
"""Shape of attention: one sequence; every token has this many heads of this many elements."""

TOKEN = HEADS * HEAD_SIZE


_computed = partial(Op, computed=True, local=True, threaded=True)
_attention = partial(
    _computed,
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
    _computed(
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
    _attention("attention", "softmax(QKᵀ/√d)V in one fused kernel where torch has one", least_traffic=always(4.0)),
    _attention(
        "attention_unfused",
        "attention as separate operations: the T × T scores go through memory",
        least_traffic=_unfused_traffic,
    ),
)
