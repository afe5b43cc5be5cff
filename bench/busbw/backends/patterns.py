"""Data that prove themselves: inputs that tell every rank apart, and results that are exact in the dtype used.

Everything repeats with a period that is a prime, so the expected result of any size is known from one period, and a
block that landed in the wrong place (block sizes are no multiples of that prime) is seen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from busbw.ops.base import REDUCED, Span
from busbw.runs.records import DTYPE_BYTES

PERIOD = 1021
_MOVED_TOP = 126
_PHASE_STEP = 37
_PERIODS_AT_ONCE = 4096
"""Compared at a time, about 4 million elements: torch counts on a GPU by writing truth values and then int64 of them
(count_nonzero_cuda, ATen/native/TensorAdvancedIndexing.cpp), 9 B an element, and a buffer may leave no such room.
"""

TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_BYTES}

EXACT_UP_TO: dict[str, int] = {
    name: round(2 / torch.finfo(kind).eps) if kind.is_floating_point else torch.iinfo(kind).max
    for name, kind in TORCH_DTYPES.items()
}
"""Every whole number up to this one is exact in the dtype, and so is every sum that stays below it."""


class Unverifiable(Exception):
    """No input tells these ranks apart and still has an exact result; the message says why."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One period of what each rank of a group puts in (``table``, ranks × PERIOD) and of the result of reducing it
    (``reduced``, PERIOD; None for ops that reduce nothing), in the dtype of the case.
    """

    table: torch.Tensor
    reduced: torch.Tensor | None

    def row(self, span: Span) -> torch.Tensor:
        """The period that a span starts with."""
        source = self.reduced if span.source == REDUCED else self.table[span.source]
        if source is None:
            raise ValueError("an op that reduces nothing expects a reduced span")
        # A reduced block is a slice of the whole buffer: its phase is the element it starts at. A moved block's phase
        # is its receiver, a small number, and is spread out so that neighbours differ.
        shift = span.phase if span.source == REDUCED else span.phase * _PHASE_STEP
        return torch.roll(source, -(shift % PERIOD))


def pattern(ranks: int, dtype: str, redop: str | None, seed: int) -> Pattern:
    """The inputs of a group of ``ranks`` and the exact result. Raises Unverifiable where there is none."""
    generator = torch.Generator().manual_seed(seed)
    if redop is None:
        # At every element the first 127 ranks differ, so that a block of one element tells whose it is.
        values = _MOVED_TOP + 1
        own = torch.randperm(values, generator=generator)[torch.arange(ranks) % values]
        table = (torch.randint(0, values, (PERIOD,), generator=generator) + own[:, None]) % values
        return Pattern(table.to(TORCH_DTYPES[dtype]), None)
    contribution, reduced = _REDUCTIONS[redop](ranks, dtype, generator)
    return Pattern(contribution.to(TORCH_DTYPES[dtype]), reduced.to(TORCH_DTYPES[dtype]))


def _summed(ranks: int, dtype: str, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    top = min(_MOVED_TOP, EXACT_UP_TO[dtype] // ranks)
    if top >= 1:
        table = _above_zero(top, ranks, generator)
    else:
        # More ranks than the dtype can count: only every k-th rank contributes to an element, in turn.
        every = -(-ranks // EXACT_UP_TO[dtype])
        table = ((torch.arange(ranks)[:, None] + torch.arange(PERIOD)[None, :]) % every == 0).to(torch.int64)
    return table, table.sum(0)


def _above_zero(top: int, ranks: int, generator: torch.Generator) -> torch.Tensor:
    """Contributions up to ``top``, none of them 0, so that a lost one is always seen; with 0 where 1 is the top."""
    return torch.randint(1 if top > 1 else 0, top + 1, (ranks, PERIOD), generator=generator)


def _averaged(ranks: int, dtype: str, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    top = min(_MOVED_TOP, EXACT_UP_TO[dtype] // ranks - ranks)
    if top < 1:
        raise Unverifiable(f"an average over {ranks} ranks has no exact test in {dtype}")
    table = _above_zero(top, ranks, generator)
    # One rank, another one at each element, makes up what is missing to a multiple of the number of ranks.
    columns = torch.arange(PERIOD)
    table[columns % ranks, columns] += (-table.sum(0)) % ranks
    return table, table.sum(0) // ranks


def _multiplied(ranks: int, dtype: str, _generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    # Powers of two are exact far beyond EXACT_UP_TO in floats, but the rule that holds for integers is enough.
    # From none to all of the ranks double an element, so that the product is neither their sum nor their largest.
    most = min(ranks, EXACT_UP_TO[dtype].bit_length() - 1, 10)
    columns = torch.arange(PERIOD)
    doubled = (torch.arange(ranks)[:, None] - columns[None, :]) % ranks < columns[None, :] % (most + 1)
    table = torch.where(doubled, 2, 1)
    return table, table.prod(0)


def _smallest(ranks: int, dtype: str, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    table = _signed(ranks, dtype, generator)
    return table, table.min(0).values


def _largest(ranks: int, dtype: str, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    table = _signed(ranks, dtype, generator)
    return table, table.max(0).values


def _signed(ranks: int, dtype: str, generator: torch.Generator) -> torch.Tensor:
    low = 0 if dtype == "uint8" else -_MOVED_TOP
    return torch.randint(low, _MOVED_TOP + 1, (ranks, PERIOD), generator=generator)


_REDUCTIONS = {"sum": _summed, "avg": _averaged, "product": _multiplied, "min": _smallest, "max": _largest}


def poison(buffer: torch.Tensor, redop: str | None) -> None:
    """Fill a receive buffer with what no expected result holds, so that an element that is never written is seen.

    Results are whole numbers, not negative where they are summed, averaged or multiplied, above 0 for those in uint8,
    and within ± 126 where they are moved or compared.
    """
    if buffer.dtype.is_floating_point:
        buffer.fill_(0.5)
    elif buffer.dtype.is_signed:
        buffer.fill_(-128)
    else:
        buffer.fill_(0 if redop in {"sum", "avg", "product"} else 255)


def fill(buffer: torch.Tensor, spans: Sequence[Span], made_of: Pattern) -> None:
    """Write ``spans`` into ``buffer`` (1-D, exactly as long) from its start."""
    for periods, rest, row in _parts(buffer, spans, made_of):
        periods.copy_(row)
        rest.copy_(row[: len(rest)])


def _parts(
    buffer: torch.Tensor, spans: Sequence[Span], made_of: Pattern
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Of each span its whole periods, as rows, what is left behind them, and one period."""
    start = 0
    for span in spans:
        part = buffer[start : start + span.length]
        whole = span.length // PERIOD * PERIOD
        yield part[:whole].view(-1, PERIOD), part[whole:], made_of.row(span).to(buffer.device)
        start += span.length


def count_wrong(buffer: torch.Tensor, spans: Sequence[Span], made_of: Pattern) -> int:
    """How many elements of ``buffer`` are not what ``spans`` say; NaN counts as wrong."""
    wrong = 0
    for whole, rest, row in _parts(buffer, spans, made_of):
        for periods in torch.split(whole, _PERIODS_AT_ONCE):
            wrong += int(torch.count_nonzero(periods != row))
        wrong += int(torch.count_nonzero(rest != row[: len(rest)]))
    return wrong


def settle(buffer: torch.Tensor, redop: str) -> None:
    """Fill with what the reduction leaves as it is, so that thousands of reductions in place neither overflow nor
    run into denormals, which some CPUs add a hundred times slower.
    """
    buffer.fill_(0 if redop == "sum" else 1)
