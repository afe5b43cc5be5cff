"""Self-verifying data: inputs that differ between ranks, with results that are exact in the dtype used.

Everything repeats with a prime period, so one period determines the expected result of any size. Block sizes are not
multiples of that prime, so a block in the wrong place is detected.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from busbw.ops.base import REDUCED, Span
from busbw.runs.records import DTYPE_BYTES, FLOAT8

PERIOD = 1021
_MOVED_TOP = 126
_PHASE_STEP = 37
_PERIODS_AT_ONCE = 4096
"""Periods compared in one pass, about 4 million elements. On a GPU torch counts by writing booleans and their int64
copies (count_nonzero_cuda, ATen/native/TensorAdvancedIndexing.cpp): 9 B per element, which may not be free.
"""

TORCH_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, {"float8_e4m3": "float8_e4m3fn"}.get(name, name)) for name in DTYPE_BYTES
}

EXACT_UP_TO: dict[str, int] = {
    name: round(2 / torch.finfo(kind).eps) if kind.is_floating_point else torch.iinfo(kind).max
    for name, kind in TORCH_DTYPES.items()
}
"""Largest integer N per dtype such that all integers up to N, and sums up to N, are exact."""


class Unverifiable(Exception):
    """No input distinguishes these ranks and has an exact result; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One period of the inputs and of their reduction, in the dtype of the case.

    table: input of each rank of a group, ranks × PERIOD.
    reduced: result of the reduction, PERIOD (None: the op reduces nothing).
    """

    table: torch.Tensor
    reduced: torch.Tensor | None

    def row(self, span: Span) -> torch.Tensor:
        """One period of the data, as rotated at the start of ``span``."""
        source = self.reduced if span.source == REDUCED else self.table[span.source]
        if source is None:
            raise ValueError("an op that reduces nothing expects a reduced span")
        # A reduced block is a slice of the whole buffer; its phase is its first element. A moved block's phase is its
        # receiver, a small number, which is multiplied so that neighbours differ.
        shift = span.phase if span.source == REDUCED else span.phase * _PHASE_STEP
        return torch.roll(source, -(shift % PERIOD))


def pattern(ranks: int, dtype: str, redop: str | None, seed: int) -> Pattern:
    """Inputs of a group of ``ranks`` and the exact result. Raises Unverifiable if there is none."""
    generator = torch.Generator().manual_seed(seed)
    if redop is None:
        # The first 127 ranks differ in every element, so even a block of one element identifies its sender.
        values = _MOVED_TOP + 1
        own = torch.randperm(values, generator=generator)[torch.arange(ranks) % values]
        table = (torch.randint(0, values, (PERIOD,), generator=generator) + own[:, None]) % values
        kind = TORCH_DTYPES[dtype]
        return Pattern(table.to(torch.uint8).view(kind) if dtype in FLOAT8 else table.to(kind), None)
    contributions, reduction = _REDUCTIONS[redop]
    table = contributions(ranks, dtype, generator)
    return Pattern(table.to(TORCH_DTYPES[dtype]), reduction(table).to(TORCH_DTYPES[dtype]))


def _for_sum(ranks: int, dtype: str, generator: torch.Generator) -> torch.Tensor:
    top = min(_MOVED_TOP, EXACT_UP_TO[dtype] // ranks)
    if top >= 1:
        return _above_zero(top, ranks, generator)
    # More ranks than the dtype can count: only every k-th rank contributes to an element, in rotation.
    every = -(-ranks // EXACT_UP_TO[dtype])
    return ((torch.arange(ranks)[:, None] + torch.arange(PERIOD)[None, :]) % every == 0).to(torch.int64)


def _above_zero(top: int, ranks: int, generator: torch.Generator) -> torch.Tensor:
    """Contributions from 1 to ``top``, so that a lost one is always detected; from 0 to 1 if ``top`` is 1."""
    return torch.randint(1 if top > 1 else 0, top + 1, (ranks, PERIOD), generator=generator)


def _for_average(ranks: int, dtype: str, generator: torch.Generator) -> torch.Tensor:
    top = min(_MOVED_TOP, EXACT_UP_TO[dtype] // ranks - ranks)
    if top < 1:
        raise Unverifiable(f"an average over {ranks} ranks has no exact test in {dtype}")
    table = _above_zero(top, ranks, generator)
    # At each element one rank, in rotation, rounds the sum up to a multiple of the number of ranks.
    columns = torch.arange(PERIOD)
    table[columns % ranks, columns] += (-table.sum(0)) % ranks
    return table


def _for_product(ranks: int, dtype: str, _generator: torch.Generator) -> torch.Tensor:
    # In floats, powers of two are exact far beyond EXACT_UP_TO, but the limit for integers is enough.
    # Up to ``most`` ranks double an element, so that the product differs from the sum and the maximum.
    most = min(ranks, EXACT_UP_TO[dtype].bit_length() - 1, 10)
    columns = torch.arange(PERIOD)
    doubled = (torch.arange(ranks)[:, None] - columns[None, :]) % ranks < columns[None, :] % (most + 1)
    return torch.where(doubled, 2, 1)


def _signed(ranks: int, dtype: str, generator: torch.Generator) -> torch.Tensor:
    top = min(_MOVED_TOP, EXACT_UP_TO[dtype])
    low = 0 if dtype == "uint8" else -top
    return torch.randint(low, top + 1, (ranks, PERIOD), generator=generator)


_REDUCTIONS: dict[str, tuple[Callable[..., torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
    "sum": (_for_sum, lambda table: table.sum(0)),
    "avg": (_for_average, lambda table: table.sum(0) // len(table)),
    "product": (_for_product, lambda table: table.prod(0)),
    "min": (_signed, lambda table: table.amin(0)),
    "max": (_signed, lambda table: table.amax(0)),
}
"""Reduction → contributions of the ranks, and the reduction of these."""


def poison(buffer: torch.Tensor, redop: str | None) -> None:
    """Fill a receive buffer with a value that no result contains, so that an unwritten element is detected.

    Results are integers: non-negative if summed, averaged or multiplied (positive in uint8), and within ± 126 if moved
    or compared. Moved 8-bit floats have the bytes 0 to 126.
    """
    plain = _plain(buffer)
    if plain.dtype != buffer.dtype:
        plain.fill_(255)
    elif buffer.dtype.is_floating_point:
        buffer.fill_(0.5)
    elif buffer.dtype.is_signed:
        buffer.fill_(-128)
    else:
        buffer.fill_(0 if redop in {"sum", "avg", "product"} else 255)


def _plain(data: torch.Tensor) -> torch.Tensor:
    """``data`` that can be compared: of 8-bit floats the bytes, because moved ones may be NaN."""
    return data.view(torch.uint8) if data.is_floating_point() and data.itemsize == 1 else data


def fill(buffer: torch.Tensor, spans: Sequence[Span], made_of: Pattern) -> None:
    """Write ``spans`` into ``buffer`` (1-D, of the same total length)."""
    for periods, rest, row in _parts(buffer, spans, made_of):
        periods.copy_(row)
        rest.copy_(row[: len(rest)])


def _parts(
    buffer: torch.Tensor, spans: Sequence[Span], made_of: Pattern
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """For each span: its whole periods as rows, the remaining elements, and one expected period."""
    start, buffer = 0, _plain(buffer)
    for span in spans:
        part = buffer[start : start + span.length]
        whole = span.length // PERIOD * PERIOD
        yield part[:whole].view(-1, PERIOD), part[whole:], _plain(made_of.row(span)).to(buffer.device)
        start += span.length


def count_wrong(buffer: torch.Tensor, spans: Sequence[Span], made_of: Pattern) -> int:
    """Number of elements of ``buffer`` that differ from ``spans``; NaN counts as wrong."""
    wrong = 0
    for whole, rest, row in _parts(buffer, spans, made_of):
        for periods in torch.split(whole, _PERIODS_AT_ONCE):
            wrong += int(torch.count_nonzero(periods != row))
        wrong += int(torch.count_nonzero(rest != row[: len(rest)]))
    return wrong


def settle(buffer: torch.Tensor, redop: str) -> None:
    """Fill with the neutral element, so that thousands of in-place reductions neither overflow nor reach denormals.

    Some CPUs add denormals a hundred times slower.
    """
    buffer.fill_(0 if redop == "sum" else 1)
