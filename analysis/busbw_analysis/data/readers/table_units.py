"""Which unit the numbers of a table have, where their headings or cells leave several, or none.

The other columns have to leave one: size over time is algbw, and busbw by the factor of the operation. Microseconds and
GB/s are what nccl-tests prints without a unit; they are taken only if size, time and a rate agree so.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from math import log2
from typing import Final, NamedTuple

from busbw_analysis.data.readers.headings import RATES, Column, amount, factors
from busbw_analysis.data.readers.lines import scaled

_USUAL: Final = {"size": 1.0, "time": 1e-6}
_USUAL_RATE: Final = 1e9
_AGREES: Final = 0.005
_SURE: Final = 0.01
"""Relative errors: numbers agree up to the first besides their last digits, and show their units if those are below
the second.
"""
_MOST_STEP: Final = 64
_LEAST_SECONDS: Final = 1e-8
"""No operation is faster."""


class _Amount(NamedTuple):
    """A number in base units, by each of the meanings of its unit, and its relative error.

    error: of its last digit; of sizes without decimals none
    digit: of its last digit
    """

    values: tuple[float, ...]
    error: float
    digit: float

    def by(self, meaning: int) -> float:
        return self.values[min(meaning, len(self.values) - 1)]


class Units:
    """The units of a table: the meaning of each, which is a place in its ``factors``.

    factor: busbw over algbw; None: unknown
    blocks: how many ranks a size may be the block of, where a bandwidth says it; 1: it is none
    notes: code and text of what is ambiguous
    size_is_known: whether the sizes, if there are any, have one meaning; without it no number of the table has one
    """

    def __init__(
        self,
        columns: Sequence[Column],
        rows: Sequence[Sequence[str]],
        at: Mapping[str, int],
        factor: float | None,
        *,
        blocks: int = 1,
        usual: bool,
    ) -> None:
        self._columns, self._usual, self._blocks = columns, usual, 1
        self._size = next((place for place, entry in enumerate(columns) if entry.name == "size"), -1)
        self._notes: dict[str, str] = {}
        self._like_algbw = columns[at["algbw"]].factors if "algbw" in at else None
        self._size_meaning, self._rate_meaning, self.size_is_known = 0, None, True
        if self._size < 0:
            return
        known = self._agreeing(rows, at, factor)
        if not known and blocks > 1 and "bandwidth" in at:
            known = self._agreeing(rows, at, factor, blocks)
            if known:
                self._blocks = blocks
                self._notes["by its rates, the size is one rank's share: it is multiplied by the ranks"] = (
                    "size-per-rank"
                )
        if not known and factor is not None and "bandwidth" in at and "algbw" not in at:
            heading = columns[at["bandwidth"]].heading[:80]
            why = f"{heading!r} is neither size over time nor busbw: size or time may be of something else"
            self._notes[why] = "rate-differs"
        of_size, of_rate = ({pair[which] for pair in known} for which in (0, 1))
        size_meaning = self._only(of_size, [self._amount(self._size, row) for row in rows])
        sizes = f"sizes such as {rows[0][self._size][:40]!r} below {columns[self._size].heading[:80]!r}"
        if size_meaning is None and len(rows) > 1 and all(map(_is_bare, (row[self._size] for row in rows))):
            size_meaning = 1
            self._notes[f"{sizes} are taken for powers of 1024, as programs print them"] = "binary-unit"
        self._size_meaning, self._rate_meaning = size_meaning or 0, of_rate.pop() if len(of_rate) == 1 else None
        self.size_is_known = False
        if size_meaning is None:
            why = f"{sizes} may be powers of 1000 or of 1024: write them in bytes, or with KiB, MiB or GiB"
        elif self._are_too_small(rows, [at[name] for name in RATES if name in at]):
            why = f"{sizes} have no unit, and bytes would take less than 10 ns: write the unit, such as size (MiB)"
        else:
            self.size_is_known = True
            return
        self._notes[why] = "ambiguous-heading"

    @property
    def notes(self) -> list[tuple[str, str]]:
        """Code and text of everything that is ambiguous so far."""
        return [(code, why) for why, code in self._notes.items()]

    def sized(self, cells: Sequence[str]) -> str | None:
        """The size of a row in bytes; None without a column of sizes, or if its cell has no number of a known unit
        or none of whole bytes.
        """
        size = None if self._size < 0 else self._amount(self._size, cells)
        if size is None or abs((known := size.by(self._size_meaning)) - round(known)) > known * size.digit:
            return None
        return str(round(known) * self._blocks)

    def rate_or_time(self, at: int, cell: str) -> float | None:
        """The number of a cell in base units; None if it has none, or, which is noted, no known unit."""
        entry, number = self._columns[at], amount(cell, whole=False)
        name, heading = entry.name or "", repr(entry.heading[:80])
        if number is None:
            return None
        known = factors(name, number.unit) if number.unit else entry.factors
        if not known and self._usual and not number.unit:
            known = (_USUAL.get(name, _USUAL_RATE),)
        meaning = self._rate_meaning if entry.factors == self._like_algbw else None
        if not known:
            example = "time (us)" if name == "time" else f"{name} (GB/s)"
            self._notes[f"the heading {heading} has no known unit: write it as {example!r}"] = "no-unit"
        elif len(known) > 1 and meaning is None:
            self._notes[f"rates below {heading} may be bytes or bits: write GB/s or Gb/s"] = "ambiguous-heading"
        else:
            return scaled(number.value, known[min(meaning or 0, len(known) - 1)])
        return None

    def _amount(self, at: int, cells: Sequence[str]) -> _Amount | None:
        entry = self._columns[at]
        name = entry.name or ""
        number = amount(cells[at], whole=name == "size")
        if number is None or not number.value:
            return None
        known = factors(name, number.unit) if number.unit else entry.factors or (_USUAL.get(name, _USUAL_RATE),)
        digit = number.error / abs(number.value)
        values = tuple(number.value * factor for factor in known)
        return _Amount(values, 0.0 if name == "size" and not number.value % 1 else digit, digit) if values else None

    def _are_too_small(self, rows: Sequence[Sequence[str]], rates: Sequence[int]) -> bool:
        """Whether sizes without a unit are too small for their rates, so that they are no bytes."""
        pairs = ((self._amount(self._size, row), self._amount(at, row)) for row in rows for at in rates)
        return not self._columns[self._size].factors and any(
            size.by(0) < rate.by(0) * _LEAST_SECONDS for size, rate in pairs if size is not None and rate is not None
        )

    def _agreeing(
        self, rows: Sequence[Sequence[str]], at: Mapping[str, int], factor: float | None, blocks: int = 1
    ) -> list[tuple[int, int]]:
        """The meanings of size and a rate with which algbw is size over time; all of them where nothing says so."""
        everything = list(product((0, 1), (0, 1)))
        rates = {"algbw": {1.0}, "bandwidth": {1.0, factor or 1.0}, "busbw": {factor} if factor else set[float]()}
        rate = next((name for name, factors_of in rates.items() if name in at and factors_of), None)
        if "time" not in at or rate is None:
            return everything
        triples = [tuple(self._amount(place, row) for place in (self._size, at["time"], at[rate])) for row in rows]
        known = [
            (size, time, algbw, size.error + time.error + algbw.error)
            for size, time, algbw in triples
            if size is not None and time is not None and algbw is not None
        ]
        sure = [row for row in known if row[-1] < _SURE]
        agreeing = [
            (of_size, of_rate)
            for of_size, of_rate in everything
            if any(
                all(
                    abs(blocks * over_algbw * size.by(of_size) / time.by(0) / algbw.by(of_rate) - 1) <= error + _AGREES
                    for size, time, algbw, error in sure
                )
                for over_algbw in rates[rate]
            )
        ]
        self._usual = self._usual or bool(sure and agreeing)
        return agreeing if sure else everything

    def _only(self, meanings: set[int], sizes: Sequence[_Amount | None]) -> int | None:
        """The one meaning of the sizes that is left; None if there are two.

        Powers of two that go on across a unit (256 MB, 512 MB, 1 GB; 1024 KB) are multiples of 1024; sizes that are
        powers of two only after rounding (8.39 MB, 67.1 MB) are multiples of 1000.
        """
        several = sorted(
            (size for size in sizes if size is not None and len(size.values) > 1), key=lambda size: size.by(1)
        )
        if not several or len(meanings) == 1:
            return next(iter(meanings)) if several else 0
        if all(_is_power(size.by(1), 0.0) for size in several):
            if any(size.by(1) >= 1024 * _unit(size.values) for size in several):
                return 1
            steps = [(high.by(1) / low.by(1), high.by(0) / low.by(0)) for low, high in pairwise(several)]
            return 1 if any(binary != decimal and binary <= _MOST_STEP for binary, decimal in steps) else None
        rounded = all(size.digit < _SURE and _is_power(size.by(0), size.digit) for size in several)
        return 0 if rounded else None


def _is_bare(cell: str) -> bool:
    """Whether a size is a power of two with only a letter behind it, such as 2M or 512k."""
    size = amount(cell, whole=True)
    return size is not None and len(size.unit) == 1 and size.unit not in "Bb" and _is_power(size.value, 0.0)


def _unit(meanings: tuple[float, ...]) -> float:
    """The unit of a size by its decimal and its binary meaning, as multiples of 1024."""
    return 2.0 ** (10 * round(log2(meanings[1] / meanings[0]) / log2(1.024)))


def _is_power(size: float, error: float) -> bool:
    """Whether a size is a power of two, up to its relative ``error``."""
    return size >= 1 and abs(size / 2.0 ** round(log2(size)) - 1) <= error
