"""All-reduce compared with a reduce-scatter followed by an all-gather, as FSDP runs them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec import structs

from busbw_analysis.data.series import Series, SeriesKey
from busbw_analysis.diagnosis.curves import Curve


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
