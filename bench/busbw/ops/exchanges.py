"""How data-parallel ranks exchange gradients or weights: every step or less often, exact or compressed.

A method is written ``name`` or ``name:number``, such as ``local_sgd:4``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from busbw.errors import UsageError, refuse_unknown

STEPS: Final = 48
"""One call trains for this many steps; its time is divided evenly among them."""


@dataclass(frozen=True, slots=True)
class Method:
    """An exchange method. ``number``: default of its parameter (None: it has none); ``allowed``: allowed values."""

    summary: str
    source: str
    number: int | None = None
    allowed: Sequence[int] = ()


METHODS: Final = {
    "exact": Method("all_reduce of gradients in every step", "DistributedDataParallel"),
    "local_sgd": Method(
        "each rank trains on its own; weights are averaged every K steps",
        "Stich 2019, https://arxiv.org/abs/1805.09767",
        4,
        tuple(steps for steps in range(2, STEPS + 1) if STEPS % steps == 0),
    ),
    "server": Method(
        "rank 0 applies gradients as they arrive; no worker is more than S steps ahead of another",
        "Ho et al. 2013, https://proceedings.neurips.cc/paper/2013/hash/b7bb35b9c6ca2aee2df08cf09d7016c2-Abstract.html",
        2,
        range(STEPS + 1),
    ),
    "int8": Method(
        "all_gather of gradients quantized to 255 levels; the rounding error is added to the next gradient",
        "Karimireddy et al. 2019, https://arxiv.org/abs/1901.09847",
    ),
}
"""Methods by name. The first one is the reference."""

_WRITTEN = re.compile(r"(?P<name>[a-z0-9_]{1,20})(:(?P<number>[0-9]{1,4}))?")


def parse_exchange(text: str) -> tuple[str, int]:
    """Name of a method and its parameter, 0 if it has none. Raises UsageError."""
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
        raise UsageError(f"exchange {text!r}: {number} is not allowed; allowed: {span or 'no number'}")
    return written["name"], number


def exchange_in_words(name: str, number: int) -> str:
    """The method as users write it, always with its parameter."""
    return name if METHODS[name].number is None else f"{name}:{number}"


EVERY: Final = tuple(exchange_in_words(name, method.number or 0) for name, method in METHODS.items())
"""All methods, with their default parameters."""
