"""Other ways to do the same work: an all-reduce beside its two halves, as FSDP runs them; and one call between two
barriers, as many scripts time it, beside a correct measurement of the same call.

Such a script takes one sample in mode ``barriers`` and prints its busbw in GiB/s, labelled GB/s.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from busbw.runs.records import Measurement
from busbw_analysis.data.load import Samples
from busbw_analysis.data.series import Series, SeriesKey
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.diagnosis.curves import Curve

UNIT: Final = 1e9 / 2**30
"""A rate in GiB/s over the same rate in GB/s, as numbers."""


@dataclass(frozen=True, slots=True)
class Composition:
    """One size at which all three were measured in the same way, with the library's own algorithms. Times are ns per
    call.

    label: the all-reduce.
    size_bytes: S of all three: the buffer of the all-reduce, the input of the reduce-scatter, the output of the
        all-gather.
    """

    label: str
    size_bytes: int
    all_reduce_ns: float
    reduce_scatter_ns: float
    all_gather_ns: float

    @property
    def sum_ns(self) -> float:
        """Reduce-scatter plus all-gather."""
        return self.reduce_scatter_ns + self.all_gather_ns

    @property
    def ratio(self) -> float:
        """``sum_ns`` over ``all_reduce_ns``; above 1 the all-reduce is faster."""
        return self.sum_ns / self.all_reduce_ns


def compositions_of(curves: Sequence[Curve]) -> tuple[Composition, ...]:
    """Every size that an all-reduce has in common with both halves. In place or out of place is ignored, because each
    op is measured in its usual way.
    """
    measured: dict[SeriesKey, Series] = {}
    for curve in curves:
        key = curve.series.key
        if key.algorithm is None:
            measured.setdefault(structs.replace(key, in_place=False), curve.series)
    return tuple(
        row for key, series in measured.items() if key.op == "all_reduce" for row in _rows(series, key, measured)
    )


def _rows(series: Series, key: SeriesKey, measured: dict[SeriesKey, Series]) -> Iterator[Composition]:
    scattered = measured.get(structs.replace(key, op="reduce_scatter"))
    gathered = measured.get(structs.replace(key, op="all_gather", redop=None))
    if scattered is None or gathered is None:
        return
    for point in series.points:
        first, second = scattered.at(point.size_bytes), gathered.at(point.size_bytes)
        if first is not None and second is not None:
            yield Composition(series.key.label, point.size_bytes, point.time_ns, first.time_ns, second.time_ns)


@dataclass(frozen=True, slots=True)
class SingleCall:
    """One op at one size. Times are ns of the slowest rank.

    time_ns: time of a call; median in mode isolated.
    busbw: by ``time_ns``, B/s.
    enclosed_ns: time of a call with the barrier after it; median.
    one_ns: first sample with a barrier.
    least_ns, most_ns: shortest and longest of these samples.
    """

    op: str
    ranks: int
    size_bytes: int
    time_ns: float
    busbw: float
    enclosed_ns: float
    one_ns: int
    least_ns: int
    most_ns: int

    @property
    def printed(self) -> float:
        """The number that the script prints as "GB/s"."""
        return self._printed(self.one_ns)

    @property
    def printed_range(self) -> tuple[float, float]:
        """The range of numbers that it could have printed, by its other samples."""
        return self._printed(self.most_ns), self._printed(self.least_ns)

    @property
    def barrier(self) -> float:
        """The factor on the rate due to the barrier."""
        return self.time_ns / self.enclosed_ns

    @property
    def one_call(self) -> float:
        """The factor on the rate due to one call instead of the median of many."""
        return self.enclosed_ns / self.one_ns

    @property
    def whole(self) -> float:
        """Printed number over busbw in GB/s: unit × barrier × one call."""
        return self.printed / (self.busbw / 1e9)

    def _printed(self, time_ns: float) -> float:
        return self.busbw * self.time_ns / time_ns / 2**30


def single_calls(cases: Sequence[CaseSummary], samples: Samples) -> tuple[SingleCall, ...]:
    """Every case that was measured in both modes, in the order of the plan."""
    measured = [summary for summary in cases if summary.state == "measured"]
    proper = {summary.case: summary.groups[0] for summary in measured}
    calls = []
    for summary in measured:
        isolated = proper.get(structs.replace(summary.case, mode="isolated"))
        if summary.case.mode != "barriers" or isolated is None or isolated.busbw is None:
            continue
        blocks = (row for _, case, row in samples.rows() if case == summary.index and isinstance(row, Measurement))
        times_ns = [time_ns for block in blocks for group in block.groups for time_ns in group.slowest_ns]
        calls.append(
            SingleCall(
                op=summary.case.op,
                ranks=summary.case.ranks,
                size_bytes=summary.case.size_bytes,
                time_ns=isolated.time_ns,
                busbw=isolated.busbw,
                enclosed_ns=summary.groups[0].time_ns,
                one_ns=times_ns[0],
                least_ns=min(times_ns),
                most_ns=max(times_ns),
            )
        )
    return tuple(calls)
