"""Matrix products and attention through torch on the device of the buffers: points below a roofline.

Operands are dense and non-zero: on zeros a GPU draws less power and clocks higher than with real work
(https://www.thonking.ai/p/strangely-matrix-multiplications).
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import torch
from torch.nn.functional import scaled_dot_product_attention

from busbw.backends.base import ALONE, Bound, Limits, Local, Operation
from busbw.backends.patterns import EXACT_UP_TO
from busbw.ops.local import HEAD_SIZE, HEADS, TOKEN
from busbw.ops.settings import host_settings

_SEED = 5
_LARGEST_OPERAND = 126
_MOST_DEVIATIONS = 8
"""Standard deviations that no sum of random products exceeds."""

_VECTORS = 8
_ROWS_AT_ONCE = 1024
_SAMPLE_STEP = 64
"""Every 64th row is recomputed (more for a small matrix), so that every tile of a kernel is sampled."""

_ROUNDING_STEPS = 8
"""Roundings allowed for a sum that is kept in 16 bits between the parts of a row."""

_TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 2.0**-7, "bfloat16": 2.0**-4}
"""Tolerance of attention, as a fraction of (the element + the RMS of its row). Kernels round sums and exponentials in
different orders; a lost tile of keys changes rows by more."""


@cache
def _default_threads() -> int:
    """Threads of torch before any case changes them; backends on host memory set one."""
    return torch.get_num_threads()


def _with_threads(bind: Callable[[Bound], Operation], bound: Bound) -> Operation:
    """Bind an operation and set torch's number of threads to the case's until it is freed."""
    own, threads = _default_threads(), host_settings(bound.case.settings).threads
    operation = bind(bound)
    if threads is None:
        return operation
    torch.set_num_threads(threads)
    return replace(operation, free=partial(torch.set_num_threads, own))


def _matmul(bound: Bound) -> Operation:
    side = math.isqrt(bound.receive.numel())
    generator = torch.Generator(bound.receive.device).manual_seed(_SEED)
    left, right = (_integers(bound.receive, side, generator) for _ in range(2))
    product = bound.receive.view(side, side)
    wrong = wrong_rows if bound.case.dtype in {"float32", "float64"} else wrong_elements
    return Operation(partial(torch.mm, left, right, out=product), wrong=partial(wrong, left, right, product))


def _integers(like: torch.Tensor, side: int, generator: torch.Generator) -> torch.Tensor:
    """Random integers of either sign, small enough that float32 products are exact and float16 ones finite."""
    largest = _LARGEST_OPERAND
    if like.dtype == torch.float32:
        largest = min(largest, math.isqrt(EXACT_UP_TO["float32"] // side))
    elif like.dtype == torch.float16:
        # A product of two uniform numbers up to t has the mean square (t² / 3)².
        largest = min(
            largest, math.isqrt(int(3 * torch.finfo(torch.float16).max / (_MOST_DEVIATIONS * math.sqrt(side))))
        )
    integers = torch.randint(1, largest + 1, (side, side), generator=generator, device=like.device, dtype=torch.int16)
    integers *= torch.randint(0, 2, (side, side), generator=generator, device=like.device, dtype=torch.int16) * 2 - 1
    return integers.to(like.dtype)


def wrong_rows(left: torch.Tensor, right: torch.Tensor, product: torch.Tensor) -> int:
    """Number of rows of ``product`` that differ from ``left`` · ``right``, for integers with exact sums.

    Freivalds' check (1977): product · x against left · (right · x) for vectors of ±1, exactly in float64.
    A single wrong element in a row is always detected; several are missed with probability 2⁻⁸.
    """
    generator = torch.Generator(product.device).manual_seed(_SEED)
    signs = torch.randint(0, 2, (len(right), _VECTORS), generator=generator, device=product.device) * 2 - 1
    vectors = signs.double()
    expected = _times(left, _times(right, vectors))
    return int((_times(product, vectors) != expected).any(1).sum())


def _times(matrix: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows.double() @ vectors for rows in torch.split(matrix, _ROWS_AT_ONCE)])


def wrong_elements(left: torch.Tensor, right: torch.Tensor, product: torch.Tensor) -> int:
    """Number of elements of sampled rows whose error against float64 exceeds the rounding of 16 bits."""
    sample = _sample(len(left), left.device)
    rows = left[sample].double()
    expected = torch.cat([rows @ columns.double() for columns in torch.split(right, _ROWS_AT_ONCE, dim=1)], dim=1)
    usual = expected.square().mean().sqrt()
    allowed = torch.finfo(product.dtype).eps * (expected.abs() + _ROUNDING_STEPS * usual)
    return _count_beyond(product[sample].double() - expected, allowed)


def _sample(rows: int, device: torch.device) -> torch.Tensor:
    step = min(_SAMPLE_STEP, max(1, rows // _SAMPLE_STEP))
    return torch.arange(0, rows, step, device=device)


def _count_beyond(difference: torch.Tensor, allowed: torch.Tensor) -> int:
    """Number of elements whose difference exceeds ``allowed``; NaN counts."""
    return int((~(difference.abs() <= allowed)).sum())


Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _unfused_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.softmax(query @ key.transpose(-2, -1) / math.sqrt(HEAD_SIZE), dim=-1) @ value


def _attention(how: Attention, bound: Bound) -> Operation:
    shape = (1, HEADS, bound.case.count // TOKEN, HEAD_SIZE)
    where = bound.receive.device
    generator = torch.Generator(where).manual_seed(_SEED)
    query, key, value = (
        torch.randn(shape, generator=generator, device=where).to(bound.receive.dtype) for _ in range(3)
    )
    # torch has no output argument here, so each call makes a new tensor and the last is kept. A replayed graph writes
    # to the tensor that was the last at the capture.
    results = [torch.full((), math.nan, dtype=query.dtype, device=where).expand(shape)]

    def call() -> None:
        results[0] = how(query, key, value)

    def wrong() -> int:
        count = wrong_attention(query, key, value, results[0])
        results[0].fill_(math.nan)  # so that the next check covers only later results
        return count

    return Operation(call, wrong=wrong)


def wrong_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, result: torch.Tensor) -> int:
    """Number of elements of sampled tokens whose difference from float64 attention exceeds _TOLERANCE."""
    sample = _sample(query.shape[-2], query.device)
    expected = _unfused_attention(query[..., sample, :].double(), key.double(), value.double())
    usual = expected.square().mean(-1, keepdim=True).sqrt()
    allowed = _TOLERANCE[str(query.dtype).removeprefix("torch.")] * (expected.abs() + usual)
    return _count_beyond(result[..., sample, :].double() - expected, allowed)


_LIMITS = Limits(modes=ALONE, dtypes=tuple(_TOLERANCE), pre_enqueue=True)

OPERATIONS: dict[str, Local] = {
    "matmul": Local(partial(_with_threads, _matmul), _LIMITS),
    "attention": Local(partial(_with_threads, partial(_attention, scaled_dot_product_attention)), _LIMITS),
    "attention_unfused": Local(partial(_with_threads, partial(_attention, _unfused_attention)), _LIMITS),
}
