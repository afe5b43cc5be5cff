"""Published curves of other authors, with their source, to compare runs with; tests check the fit on them.

The numbers are those of the source (``published.toml``).
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import msgspec

from busbw.runs.records import Record
from busbw.units import format_rate, parse_sizes
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.series import SeriesKey
from busbw_analysis.models.textbook import share


class Published(Record, frozen=True, kw_only=True):
    """One published curve of all_reduce on ``ranks`` ranks and ``hosts`` hosts: a row of the file.

    ``times_us``, ``busbw_gbs``: exactly one of them has a value for each of ``sizes``.
    ``switches``: sizes at which the library changed its algorithm according to its log, if published.
    ``fitted_from``, ``left_out_because``: smaller sizes are not fitted, and why.
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
        """Sizes S in bytes."""
        return parse_sizes(self.sizes)

    @property
    def times_ns(self) -> tuple[float, ...]:
        """Time of a call at each size."""
        if self.times_us:
            return tuple(value * 1e3 for value in self.times_us)
        return tuple(self.bus_factor * size / rate for size, rate in zip(self.sizes_bytes, self.busbw_gbs, strict=True))

    @property
    def bus_factor(self) -> float:
        """busbw / algbw = 2(n−1)/n."""
        return 2 * share(self.ranks)

    def busbw(self, position: int) -> float:
        """Published busbw in B/s at the size with this index."""
        return self.bus_factor * self.sizes_bytes[position] / self.times_ns[position] * 1e9


class _File(Record, frozen=True, kw_only=True):
    curve: tuple[Published, ...]


@cache
def published_curves() -> tuple[Published, ...]:
    """All published curves, in the order of the file."""
    rows = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))
    return msgspec.convert(rows, _File).curve


def published_like(key: SeriesKey, gpu: str) -> tuple[Published, ...]:
    """Published curves of the same op, numbers of GPUs and hosts, and kind of GPU (``gpu`` is a catalogue name)."""
    return tuple(
        curve
        for curve in published_curves()
        if key.op == "all_reduce" and key.algorithm is None and gpu.startswith(curve.gpu)
        if (curve.ranks, curve.hosts) == (len(key.ranks), key.hosts)
    )


@dataclass(frozen=True, slots=True)
class PublishedPoint:
    """Published values for one size. ``ratio``: measured time over published time (the median of several)."""

    of: Published
    rates: tuple[float, ...]
    ratio: float
    sources: tuple[str, ...]

    @property
    def rate_in_words(self) -> str:
        """Published busbw, lowest to highest."""
        low, high = (format_rate(rate) for rate in (min(self.rates), max(self.rates)))
        return low if low == high else f"{low} to {high}"

    @property
    def in_words(self) -> str:
        """A sentence that compares the measured time with the published one."""
        return (
            f"the time is {self.ratio:.2g} × the published time: {self.rate_in_words} at this size on "
            f"{self.of.ranks} × {self.of.gpu} ({', '.join(self.sources)})"
        )


def published_of(curves: Sequence[Published], point: GroupSummary) -> PublishedPoint | None:
    """The published values for the size of ``point``; None if there are none."""
    matching = [
        (curve, curve.sizes_bytes.index(point.size_bytes)) for curve in curves if point.size_bytes in curve.sizes_bytes
    ]
    if not matching or point.busbw is None:
        return None
    times = median([curve.times_ns[place] for curve, place in matching])
    rates = tuple(curve.busbw(place) for curve, place in matching)
    sources = tuple(dict.fromkeys(curve.source for curve, _ in matching))
    return PublishedPoint(matching[0][0], rates, point.time_ns / times, sources)
