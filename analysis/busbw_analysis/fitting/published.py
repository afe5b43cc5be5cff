"""Curves that others measured and published, with their source: what the fit is proved on where we have no machine.

The numbers are data (``published.toml``), as they stand in the source; nothing of them is ours but the fit.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import msgspec

from busbw.errors import AnalysisError
from busbw.runs.records import Record
from busbw.units import format_rate, parse_size, parse_sizes
from busbw_analysis.data.series import Point, SeriesKey
from busbw_analysis.fitting.curve import Fit, fit_points
from busbw_analysis.models.textbook import share


class Published(Record, frozen=True, kw_only=True):
    """One published curve of all_reduce: ``ranks`` ranks on ``hosts`` hosts, a row of the file.

    One of ``times_us`` and ``busbw_gbs`` has a value for each of ``sizes``. Sizes below ``fitted_from`` are no part of
    the fit; ``left_out_because`` says why. ``switches``: at which sizes the library changed its algorithm, by its own
    log, where that was published.
    """

    name: str
    what: str
    gpu: str
    ranks: int
    hosts: int
    sizes: str
    source: str
    looked_up: str
    times_us: tuple[float, ...] = ()
    busbw_gbs: tuple[float, ...] = ()
    switches: tuple[str, ...] = ()
    fitted_from: str = "0"
    left_out_because: str = ""

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        """S of every point."""
        return parse_sizes(self.sizes)

    @property
    def times_ns(self) -> tuple[float, ...]:
        """Of a call at each size."""
        rates = zip(self.sizes_bytes, self.busbw_gbs, strict=bool(self.busbw_gbs))
        told = tuple(value * 1e3 for value in self.times_us)
        return told or tuple(self.bus_factor * size / rate for size, rate in rates)

    @property
    def left_out(self) -> int:
        """How many of the first sizes are no part of the fit."""
        return sum(size < parse_size(self.fitted_from) for size in self.sizes_bytes)

    @property
    def bus_factor(self) -> float:
        """busbw over algbw: 2(n−1)/n."""
        return 2 * share(self.ranks)

    def busbw(self, position: int) -> float:
        """B/s at the size at ``position``, as measured."""
        return self.bus_factor * self.sizes_bytes[position] / self.times_ns[position] * 1e9

    def fit(self) -> Fit:
        """Our fit of it, by the same function as that of a run."""
        start = self.left_out
        return fit_points(self.sizes_bytes[start:], self.times_ns[start:], bus_factor=self.bus_factor)


class _File(Record, frozen=True, kw_only=True):
    curve: tuple[Published, ...]


@cache
def published_curves() -> tuple[Published, ...]:
    """All that there are, in the order of the file."""
    return parse(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))


def published_like(key: SeriesKey, gpu: str) -> tuple[Published, ...]:
    """The curves of the same operation over as many GPUs and hosts, of the kind that the row ``gpu`` belongs to."""
    return tuple(
        curve
        for curve in published_curves()
        if key.op == "all_reduce" and key.algorithm is None and gpu.startswith(curve.gpu)
        if (curve.ranks, curve.hosts) == (len(key.ranks), key.hosts)
    )


@dataclass(frozen=True, slots=True)
class PublishedPoint:
    """What others published of one size. ``ratio``: a measured time over theirs (the median of several)."""

    of: Published
    rates: tuple[float, ...]
    ratio: float
    sources: tuple[str, ...]

    @property
    def rate_in_words(self) -> str:
        """Their busbw, lowest to highest."""
        low, high = (format_rate(rate) for rate in (min(self.rates), max(self.rates)))
        return low if low == high else f"{low} to {high}"


def published_of(curves: Sequence[Published], point: Point) -> PublishedPoint | None:
    """What was published of the size of ``point``; None: nothing."""
    found = [
        (curve, curve.sizes_bytes.index(point.size_bytes)) for curve in curves if point.size_bytes in curve.sizes_bytes
    ]
    if not found or point.busbw is None:
        return None
    times = median([curve.times_ns[place] for curve, place in found])
    rates = tuple(curve.busbw(place) for curve, place in found)
    sources = tuple(dict.fromkeys(curve.source for curve, _ in found))
    return PublishedPoint(found[0][0], rates, point.time_ns / times, sources)


def published_words(found: PublishedPoint) -> str:
    """Whose machine it was, what it reached, and how many times that the measured time is."""
    return (
        f"published for {found.of.ranks} × {found.of.gpu}: {found.rate_in_words} at this size, so it takes "
        f"{found.ratio:.2g} times as long as published ({', '.join(found.sources)})"
    )


def parse(text: str) -> tuple[Published, ...]:
    """The curves of a file in TOML. Raises AnalysisError for one that is wrong, and says in what."""
    try:
        rows = msgspec.convert(tomllib.loads(text), _File).curve
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise AnalysisError(f"published curves: {error}") from error
    for row in rows:
        values, sizes = row.times_us or row.busbw_gbs, row.sizes_bytes
        if bool(row.times_us) == bool(row.busbw_gbs):
            raise AnalysisError(f"published curve {row.name}: it needs times_us or busbw_gbs, and not both")
        if len(values) != len(sizes) or min(values) <= 0:
            message = f"published curve {row.name}: {len(sizes)} sizes need as many positive values, not {values}"
            raise AnalysisError(message)
        if bool(row.left_out) != bool(row.left_out_because):
            raise AnalysisError(f"published curve {row.name}: sizes that are left out and a reason belong together")
    return rows
