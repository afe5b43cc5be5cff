"""Times of the kernels of a layer, from the shapes of their matrices and the bytes that they read and write.

A matrix product computes whole tiles, as many at once as the GPU has processors, and each tile first fills its pipeline
(NVIDIA, https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/). How full the last wave
of tiles is depends on the kernel's tiles, which libraries choose by shape; on average half of a wave is lost. All else
is limited by memory. The host needs time for each kernel, too: a pass takes the longer of both.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Final, NamedTuple

from busbw.system.catalog import Gpu, Products
from busbw.workloads.model_rows import Model
from busbw_analysis.training.layout import Step

_TILE: Final = 128
"""Rows and columns of the part of a product that a processor computes at once (CUTLASS's default)."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What a rank reaches in kernels.

    flop_per_second: in products so large that nothing else counts.
    memory: B/s, reads and writes (None: not counted).
    processors: tiles that are computed at once; 1: no loss.
    depth: multiplications deep, what a tile takes before and after its product.
    attention: FLOP/s in the forward and backward pass of fused attention (None: as in products).
    launch: seconds of the host for a kernel.
    started: seconds that a kernel takes on the GPU beside its FLOP and bytes.
    float8: by how much faster products of float8 are.
    """

    flop_per_second: float
    memory: float | None = None
    processors: int = 1
    depth: float = 0.0
    attention: tuple[float, float] | None = None
    launch: float = 0.0
    float8: float = 1.0
    started: float = 0.0

    def product(self, m: float, n: float, k: float, count: float = 1.0, kept: int = 2, *, fp8: bool = False) -> float:
        """Seconds of ``count`` products m × k by k × n on the GPU. kept: bytes moved for each element of the result.

        In float8 both factors are also read in 16 bits and written in 8.
        """
        if self.processors == 1:
            multiplied = count * m * n
        else:
            tiles = count * ceil(m / _TILE) * ceil(n / _TILE)
            multiplied = max(self.processors, tiles + self.processors / 2) * float(_TILE * _TILE)
        seconds = 2 * multiplied * (k + self.depth) / self.flop_per_second
        if fp8:
            factors = count * (m + n) * k
            return max(seconds / self.float8, self.moved(factors + count * kept * m * n)) + self.moved(3 * factors)
        return max(seconds, self.moved(count * (2 * (m + n) * k + kept * m * n)))

    def moved(self, bytes_: float) -> float:
        """Seconds to read and write ``bytes_``."""
        return 0.0 if self.memory is None else bytes_ / self.memory


LAUNCH: Final = 75e-6
"""Seconds of the host for a kernel and what Megatron does around it: fitted to measured steps (docs/training.md)."""
STARTED: Final = 27e-6
"""Seconds of a kernel on the GPU beside its FLOP and bytes: fitted to the same, beside ``LAUNCH``."""
_ALIGNED: Final = 8
UNALIGNED: Final = 2.6
"""By how much longer products take whose rows are not a multiple of 16 bytes, ``_ALIGNED`` elements: fitted to the same
(https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/, on tensor core requirements).
Vocabularies that are divided are padded.
"""
_ASSUMED: Final = Products(
    processors=128,
    share=0.7,
    depth=150,
    memory=0.666,
    source="https://github.com/MooreThreads/SimuMax/tree/4dcaae513ba7679d56c116a17cd4a691ec41e252/configs/system",
)
"""For GPUs without a row: between an A100 (0.77) and a B200 (0.49)."""


def memory_of(gpu: Gpu) -> float:
    """B/s that kernels reach, reads and writes."""
    return (_ASSUMED if gpu.products is None else gpu.products).memory * gpu.memory_bytes_per_second


def speed_of(gpu: Gpu, dtype: str, share: float | None = None) -> Speed:
    """The speed of a GPU. share: of the datasheet's FLOP/s in products of all shapes (None: by shape)."""
    products, peak = gpu.products or _ASSUMED, gpu.flops[dtype]
    by_shape = share is None
    return Speed(
        peak * (products.share if share is None else share),
        memory_of(gpu),
        products.processors if by_shape else 1,
        products.depth if by_shape else 0.0,
        (products.attention[0] * peak, products.attention[1] * peak),
        LAUNCH,
        gpu.flops.get("float8", peak) / peak,
        STARTED,
    )


class Pass(NamedTuple):
    """Seconds on the GPU, and kernels, of a forward or backward pass."""

    seconds: float = 0.0
    kernels: float = 0.0

    def and_then(self, other: "Pass", times: float = 1.0) -> "Pass":
        """This pass, and another one ``times``."""
        return Pass(self.seconds + times * other.seconds, self.kernels + times * other.kernels)


_NOTHING: Final = Pass()
_SOFTMAX: Final = 4
"""Heads that Megatron-LM's softmax computes at once. Other numbers of them take separate operations in float32: a cast,
a scale, a mask, a softmax, and a cast; backward, torch copies what it masks (``FusedScaleMaskSoftmax`` in
https://github.com/NVIDIA/Megatron-LM/blob/00caa53af30912914981c86f39db123961678bbd/megatron/core/fusions/fused_softmax.py).
"""


@dataclass(frozen=True, slots=True)
class Block:
    """Forward and backward pass of one layer, or of the head, in one micro-batch, and what is in them.

    attention: scores and weighted values, forward and backward. light: norms, activations, and products that widen
    queries, keys and values, forward.
    """

    forward: Pass
    backward: Pass
    attention: tuple[Pass, Pass] = (_NOTHING, _NOTHING)
    light: Pass = _NOTHING


class Shape(NamedTuple):
    """What the time of a layer depends on. sequences: of a micro-batch; ranks hold ``tokens`` of them together."""

    tokens: int
    own_tokens: int
    sequences: int
    sequence: int
    tp: int
    cp: int
    local: int
    imbalance: float
    gradient_bytes: int
    fused: bool
    causal: bool
    fp8: bool
    by_heads: bool
    width: int


def shape_of(step: Step, *, fused: bool, causal: bool) -> Shape:
    """The shape of the layers of a step."""
    layout, model = step.layout, step.model
    local = max(1, model.experts // layout.ep)
    return Shape(
        step.tokens,
        step.own_tokens,
        step.micro_batch,
        step.sequence,
        layout.tp,
        layout.cp,
        local,
        step.imbalance,
        step.gradient_bytes,
        fused,
        causal,
        layout.fp8,
        layout.cp > 1 and layout.context == "ulysses",
        model.width_bytes,
    )


def _products(model: Model, at: Shape, *, experts: bool) -> Iterator[tuple[float, float, float, float]]:
    """(rows, columns, depth, count) of the products of a layer with weights."""
    t, tokens, h = at.tp, float(at.tokens), model.hidden
    if model.heads:
        q, v = model.heads * model.key_dim, model.heads * model.head_value_dim
        if model.kv_rank:
            if model.q_rank:
                yield tokens, model.q_rank, h, 1
            yield tokens, q / t, model.q_rank or h, 1
            yield tokens, model.kv_rank + model.rope_dim, h, 1
            yield tokens, model.heads * (model.head_dim + model.value_dim) / t, model.kv_rank, 1
        else:
            yield tokens, (q + model.kv_heads * (model.key_dim + model.head_value_dim)) / t, h, 1
        yield tokens, h, v / t, 1
    up = 2 if model.gated else 1
    if not experts:
        yield tokens, up * model.ffn / t, h, 1
        yield tokens, h, model.ffn / t, 1
        return
    yield tokens, model.experts, h, 1
    routed = tokens * model.top_k * at.imbalance / at.local
    for rows, count in ((routed, at.local), (tokens, model.shared_experts)):
        if count:
            yield rows, up * model.expert_ffn / t, h, count
            yield rows, h, model.expert_ffn / t, count


def _attention(model: Model, at: Shape, speed: Speed) -> tuple[Pass, Pass]:
    """Scores, softmax and weighted values. Fused: FLOP alone. Else also the scores, 2 bytes each, in every kernel."""
    if not model.heads:
        return Pass(), Pass()
    heads, width = at.sequences * model.heads / at.tp / at.cp, model.key_dim + model.head_value_dim
    pairs = heads * float(at.sequence) * at.sequence
    if at.fused:
        seen = pairs * (at.sequence + 1) / (2 * at.sequence) if at.causal else pairs
        forward, backward = speed.attention or (speed.flop_per_second, speed.flop_per_second)
        return Pass(2 * seen * width / forward, 1), Pass(4 * seen * width / backward, 2)
    s, d = at.sequence, width / 2
    forward = speed.product(s, s, d, heads) + speed.product(s, d, s, heads)
    backward = 2 * forward
    forward += speed.moved(pairs * (4 + 5 * model.dropout))
    backward += speed.moved(pairs * (6 + 5 * model.dropout))
    if heads % _SOFTMAX:
        return Pass(forward + speed.moved(32 * pairs), 8), Pass(backward + speed.moved(42 * pairs), 11)
    return Pass(forward, 4), Pass(backward, 6)


def _of_width(speed: Speed, at: Shape) -> Speed:
    """The speed for elements of ``at.width`` bytes: bytes are counted as of elements of 2."""
    return speed if speed.memory is None or at.width == 2 else replace(speed, memory=speed.memory * 2 / at.width)


def _kept(at: Shape) -> int:
    """Bytes to add to a gradient, as of elements of 2 bytes."""
    return 4 * at.gradient_bytes // at.width


@lru_cache(maxsize=1 << 14)
def layer(model: Model, at: Shape, speed: Speed, experts: bool) -> Block:  # noqa: FBT001 - cached by place
    """One layer. Bytes of norms, residual sums, activations and rotations are counted as fused kernels move them."""
    speed = _of_width(speed, at)
    own, tokens, h = at.own_tokens, at.tokens, model.hidden
    products = list(_products(model, at, experts=experts))
    forward = sum(speed.product(m, n, k, count, fp8=at.fp8) for m, n, k, count in products)
    backward = sum(
        speed.product(m, k, n, count, fp8=at.fp8) + speed.product(n, k, m, count, _kept(at), fp8=at.fp8)
        for m, n, k, count in products
    )
    blocks = 1 + (model.heads > 0)
    used = model.top_k * at.imbalance + model.shared_experts if experts else 1.0
    inner = used * tokens * (model.expert_ffn if experts else model.ffn) / at.tp
    whole = own * h * blocks
    turned = 0.0 if model.positions else tokens * (model.heads + model.kv_heads) * model.key_dim / at.tp
    if at.by_heads:  # queries, keys, values and results are put in order before and after their all_to_all
        turned += 2 * tokens * (model.heads + model.kv_heads) * (model.key_dim + model.head_value_dim) / at.tp
    moved = whole * (4 + 6 + model.dropout) + inner * (6 if model.gated else 4) + 4 * turned
    back = whole * (6 + 4 + model.dropout) + inner * (10 if model.gated else 6) + 4 * turned
    if experts:
        routed = tokens * model.top_k * at.imbalance * h
        moved, back = moved + 10 * routed, back + 10 * routed
    attention = _attention(model, at, speed)
    count = len(products) + 2.0 * blocks + 3
    ahead = Pass(forward + speed.moved(moved), count).and_then(attention[0])
    behind = Pass(backward + speed.moved(back), 2 * count).and_then(attention[1])
    light = Pass(speed.moved(4 * whole + inner * (6 if model.gated else 4)), blocks + 1.0)
    if model.kv_rank:
        narrow = {model.q_rank, model.kv_rank}
        widening = [speed.product(m, n, k, count, fp8=at.fp8) for m, n, k, count in products if k in narrow]
        light = light.and_then(Pass(sum(widening), len(widening)))
    return Block(ahead, behind, attention, light)


def head(model: Model, at: Shape, speed: Speed) -> Block:
    """The output head and the loss: logits in float32 are moved once a pass if fused, else by every operation."""
    if not model.vocabulary:
        return Block(Pass(), Pass())
    speed = _of_width(speed, at)
    m, n, k = at.tokens, model.vocabulary / at.tp, model.hidden
    logits = float(m) * n
    unaligned = speed.processors > 1 and at.tp == 1 and model.vocabulary % _ALIGNED > 0
    slower = UNALIGNED if unaligned else 1.0
    forward = slower * speed.product(m, n, k) + speed.moved(logits * (6 if at.fused else 34))
    backward = slower * (speed.product(m, k, n) + speed.product(n, k, m, 1, _kept(at)))
    return Block(Pass(forward, 8), Pass(backward + speed.moved(logits * (6 if at.fused else 14)), 8))
