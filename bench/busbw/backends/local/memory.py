"""Kernels in memory: of the host, or of the device that the buffers are on."""

from collections.abc import Callable
from functools import partial

import torch

from busbw.backends.base import Operation
from busbw.backends.local.base import Bound, Local
from busbw.ops.copies import SCALAR
from busbw.records import Case

_KERNEL_DTYPES = ("float32", "float64")


def _halves(bound: Bound) -> tuple[torch.Tensor, torch.Tensor]:
    half = len(bound.send) // 2
    return bound.send[:half], bound.send[half:]


def _wrong(expected: Callable[[Bound], torch.Tensor | float], bound: Bound) -> int:
    return int((bound.receive != expected(bound)).sum())


def _copy(bound: Bound) -> Operation:
    return Operation(partial(bound.receive.copy_, bound.send))


def _scale(bound: Bound) -> Operation:
    call = partial(torch.mul, bound.send, SCALAR, out=bound.receive)
    return Operation(call, wrong=partial(_wrong, lambda one: SCALAR * one.send, bound))


def _add(bound: Bound) -> Operation:
    one, other = _halves(bound)
    call = partial(torch.add, one, other, out=bound.receive)
    return Operation(call, wrong=lambda: int((bound.receive != one + other).sum()))


def _triad(bound: Bound) -> Operation:
    one, other = _halves(bound)
    call = partial(torch.add, one, other, alpha=SCALAR, out=bound.receive)
    return Operation(call, wrong=lambda: int((bound.receive != one + SCALAR * other).sum()))


def _read(bound: Bound) -> Operation:
    bits = bound.send.view(torch.int32)
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    call = partial(torch.sum, bits, 0, out=total)

    def wrong() -> int:
        right = int(total) == int(bits.sum())
        total.fill_(-1)
        return 0 if right else 1

    return Operation(call, wrong=wrong)


def _write(bound: Bound) -> Operation:
    return Operation(partial(bound.receive.fill_, SCALAR), wrong=partial(_wrong, lambda _bound: SCALAR, bound))


def _refuse_copy(case: Case) -> str | None:
    obstacles = (
        (case.mode == "persistent", f"{case.op} is nothing that could be prepared"),
        (
            case.mode == "overlap" and case.device == "cpu",
            "work of the processor in its memory is computation itself; it does not overlap with any",
        ),
        (
            case.mode == "overlap" and case.device != "cpu",
            f"{case.op} is one step, which cannot be posted first and waited for later",
        ),
    )
    return next((reason for applies, reason in obstacles if applies), None)


def _refuse(case: Case) -> str | None:
    if case.dtype not in _KERNEL_DTYPES:
        return f"{case.op} is there in {' and '.join(_KERNEL_DTYPES)}, as in STREAM; not in {case.dtype}"
    return _refuse_copy(case)


OPERATIONS: dict[str, Local] = {
    "memory_copy": Local(_copy, _refuse_copy),
    "stream_copy": Local(_copy, _refuse),
    "stream_scale": Local(_scale, _refuse),
    "stream_add": Local(_add, _refuse),
    "stream_triad": Local(_triad, _refuse),
    "memory_read": Local(_read, _refuse),
    "memory_write": Local(_write, _refuse),
}
