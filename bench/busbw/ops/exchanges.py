"""How ranks of data parallel training exchange what they learn: all at once or apart, exactly or compressed.

A method is written ``name`` or ``name:number``, such as ``local_sgd:4``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from busbw.errors import UsageError, refuse_unknown

STEPS: Final = 48
"""A training of so many steps is one call, whose time is shared evenly among them."""


@dataclass(frozen=True, slots=True)
class Method:
    """A way to exchange. ``number``: what it is told unless asked for (None: nothing), and which ones it takes."""

    summary: str
    source: str
    number: int | None = None
    allowed: Sequence[int] = ()


METHODS: Final = {
    "exact": Method("an all_reduce of gradients in every step", "DistributedDataParallel"),
    "local_sgd": Method(
        "each rank steps on its own, weights are averaged every K steps",
        "Stich 2019, https://arxiv.org/abs/1805.09767",
        4,
        tuple(steps for steps in range(2, STEPS + 1) if STEPS % steps == 0),
    ),
    "late": Method(
        "the all_reduce of a step goes on during the next one, which then applies it",
        "Li et al. 2018, https://arxiv.org/abs/1811.03619",
    ),
    "server": Method(
        "rank 0 applies gradients as they come; no worker is more than S steps ahead of another",
        "Ho et al. 2013, https://proceedings.neurips.cc/paper/2013/hash/b7bb35b9c6ca2aee2df08cf09d7016c2-Abstract.html",
        2,
        range(STEPS + 1),
    ),
    "fp16": Method("an all_reduce in float16", "torch's fp16_compress_hook"),
    "bf16": Method("an all_reduce in bfloat16", "torch's bf16_compress_hook"),
    "int8": Method(
        "an all_gather of gradients in 255 steps up to the largest; what rounding left is added to the next gradient",
        "Karimireddy et al. 2019, https://arxiv.org/abs/1901.09847",
    ),
    "powersgd": Method(
        "two all_reduce of the factors of a matrix of rank R; what it lacks is added to the next gradient",
        "Vogels et al. 2019, https://arxiv.org/abs/1905.13727, torch's PowerSGD hook",
        4,
        range(1, 65),
    ),
}
"""By name. The first one is what others are held against."""

_WRITTEN = re.compile(r"(?P<name>[a-z0-9_]{1,20})(:(?P<number>[0-9]{1,4}))?")


def parse_exchange(text: str) -> tuple[str, int]:
    """The name of a method and its number; 0 where it has none. Raises UsageError."""
    written = _WRITTEN.fullmatch(text)
    if written is None or written["name"] not in METHODS:
        refuse_unknown("exchange", text, METHODS)
    method = METHODS[written["name"]]
    if written["number"] is None:
        return written["name"], method.number or 0
    number = int(written["number"])
    if number not in method.allowed:
        allowed = method.allowed
        span = f"{allowed[0]} to {allowed[-1]}" if isinstance(allowed, range) else ", ".join(map(str, allowed))
        raise UsageError(f"exchange {text!r}: {number} is not allowed; allowed is {span or 'no number'}")
    return written["name"], number


def exchange_in_words(name: str, number: int) -> str:
    """As it is written, its number always said."""
    return name if METHODS[name].number is None else f"{name}:{number}"


EVERY: Final = tuple(exchange_in_words(name, one.number or 0) for name, one in METHODS.items())
"""All methods, with their usual numbers."""
