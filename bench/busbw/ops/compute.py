"""Kernels that compute: where they stand below a roofline says whether memory or arithmetic holds this machine back.

FLOP are those of the algorithm as it is usually counted: 2 n³ for the product of two n × n matrices, and 4 h T² d for
attention of h heads over T tokens, which are its two products; the softmax is not counted (Dao 2023,
https://arxiv.org/abs/2307.08691, section 4.1). A multiplication and an addition are 2 FLOP, fused or not.
"""

import math

from busbw.ops.base import Layout, Op, Shape, Share, Span, nothing

SIDE_STEP = 16
"""Sides of matrices are multiples of it: matrix units work in tiles, and other sides would be measured with padding."""

HEADS, HEAD_SIZE = 8, 128
"""Of attention, with one sequence: every token has so many heads of so many elements."""

TOKEN = HEADS * HEAD_SIZE


def _square(count: int) -> int:
    side = max(SIDE_STEP, math.isqrt(count) // SIDE_STEP * SIDE_STEP)
    return side * side


def _tokens(count: int) -> int:
    return max(TOKEN, count // TOKEN * TOKEN)


def _product(share: Share) -> Layout:
    """The operands are the call's own: the pattern of the collectives would overflow where it is multiplied."""
    return Layout((), (Span(share.count, share.rank),))


def _product_flop(count: int) -> int:
    return 2 * math.isqrt(count) ** 3


def _attention_flop(count: int) -> int:
    return 4 * count * (count // TOKEN)


def _attention(name: str, summary: str) -> Op:
    return Op(
        name=name,
        summary=summary,
        size_meaning=f"bytes of the queries: {HEADS} heads × {HEAD_SIZE} elements a token; keys, values, result alike",
        layout=nothing,  # fused attention returns a new tensor
        computed=True,
        local=True,
        threaded=True,
        shape=Shape(_tokens, f"whole tokens of {HEADS} heads × {HEAD_SIZE} elements"),
        flop=_attention_flop,
        least_traffic=4.0,
    )


COMPUTE = (
    Op(
        name="matmul",
        summary="every rank multiplies two square matrices: what the processor computes at most",
        size_meaning="bytes of one matrix (two are read, one written)",
        layout=_product,
        computed=True,
        local=True,
        threaded=True,
        shape=Shape(_square, f"a square matrix with a side that is a multiple of {SIDE_STEP}"),
        flop=_product_flop,
        least_traffic=3.0,
    ),
    _attention("attention", "softmax(QKᵀ/√d)V in one fused kernel, as far as torch has one"),
    _attention("attention_unfused", "the same written out: the T × T scores go through memory"),
)
