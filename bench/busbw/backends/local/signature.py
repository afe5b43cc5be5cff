"""Products whose results are known or equal on all ranks, bit for bit: a rank that differs computes wrongly.

Silent data corruptions are faults of processors that raise no error (Hochschild et al., "Cores that don't count", HotOS
2021; six interruptions of the 54 days that Llama 3 trained, https://arxiv.org/abs/2407.21783, table 5).
"""

import hashlib
import math
from typing import Final

import torch

from busbw.backends.base import Bound, Limits, Local, Operation
from busbw.ops.local import PERIOD
from busbw.system.environment import cpu_model

_LEFT: Final = "-++-+---+-++-+-+"
_RIGHT: Final = "++++++++++++++-+"
"""Signs of period 16, whose sums of products over a period are 2 or −2 at every shift: all sums along a row of the
product stay small, and are exact in any order and in 16 bits, up to a side of 2048.
"""
_MULTIPLIER, _MODULUS = 2_654_435_761, 1 << 16
"""Of the numbers in the product of fractions (Knuth's multiplicative hash): whole numbers, so equal on all machines."""


def _signs(text: str) -> list[int]:
    return [1 if sign == "+" else -1 for sign in text]


class _Signature:
    """One product of whole numbers, one of fractions with its sums over columns, and what is wrong with them."""

    def __init__(self, bound: Bound) -> None:
        like = bound.receive
        side = math.isqrt(like.numel())
        number = torch.arange(side, device=like.device)
        left, right = (torch.tensor(_signs(text), device=like.device) for text in (_LEFT, _RIGHT))
        sums = [
            sum(a * b for a, b in zip(_signs(_LEFT)[at:] + _signs(_LEFT)[:at], _signs(_RIGHT), strict=True))
            for at in range(PERIOD)
        ]
        places = (number[:, None] + number[None, :]) % PERIOD
        self._whole = left[places].to(like.dtype), right[places].to(like.dtype)
        expected = torch.tensor(sums, device=like.device) * (side // PERIOD)
        self._expected = expected[(number[:, None] - number[None, :]) % PERIOD].to(like.dtype)
        numbers = (torch.arange(2 * side * side, device=like.device) + 1) * _MULTIPLIER // _MODULUS % _MODULUS
        fractions = (numbers.double() / (_MODULUS / 2) - 1).to(like.dtype).view(2, side, side)
        self._fractions = fractions[0], fractions[1]
        self._product = like.view(side, side)
        self._other = torch.empty_like(self._product)
        self._sums = torch.empty_like(self._product[0])
        self._first: torch.Tensor | None = None
        self._called = False
        self._wrong = 0
        kind = cpu_model() if like.device.type == "cpu" else torch.cuda.get_device_name(like.device)
        self._kind = f"{kind}, torch {torch.__version__}, {torch.get_num_threads()} threads, {like.dtype}, {side}"

    def call(self) -> None:
        """Compute all of it."""
        torch.mm(*self._whole, out=self._product)
        torch.mm(*self._fractions, out=self._other)
        torch.sum(self._other, 0, out=self._sums)
        self._called = True

    def prepare(self) -> None:
        """Check what the last call left, and erase it."""
        self._check()
        for result in (self._product, self._other, self._sums):
            result.fill_(math.nan)

    def _check(self) -> None:
        """Count what differs from the known product, and from the results of the first call."""
        if not self._called:
            return
        self._called = False
        results = torch.cat([self._other.view(-1), self._sums])
        if self._first is None:
            self._first = results
        self._wrong += int((self._product != self._expected).sum()) + int((results != self._first).sum())

    def wrong(self) -> int:
        """Number of wrong elements of all calls since it was last asked."""
        self._check()
        wrong, self._wrong = self._wrong, 0
        return wrong

    def signature(self) -> tuple[str, str]:
        """What has to be equal for results to be, and the hash of the results with fractions."""
        results = torch.cat([self._other.view(-1), self._sums]).cpu()
        return self._kind, hashlib.sha256(results.view(torch.uint8).numpy().tobytes()).hexdigest()


def _bind(bound: Bound) -> Operation:
    made = _Signature(bound)
    # Erasing is this operation's own part, between the check of a call and the next one.
    buffers = (bound.send, bound.receive[:0])
    return Operation(made.call, wrong=made.wrong, prepare=made.prepare, buffers=buffers, signature=made.signature)


OPERATIONS: dict[str, Local] = {
    "signature": Local(
        _bind,
        Limits(modes=("isolated", "barriers"), caches=("warm",), dtypes=("float32", "float64", "float16", "bfloat16")),
    )
}
