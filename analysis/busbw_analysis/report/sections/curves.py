"""The part of a report about operations: time and rate over size with fit, model and peak, and their numbers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Final, TypeAlias

from busbw.ops import ARITHMETIC, MEMORY_TRAFFIC, STORING
from busbw.runs.records import SETTINGS, settings_in_words
from busbw.units import format_rate, format_size, format_time
from busbw_analysis.data.load import rank_list
from busbw_analysis.data.series import Point, SeriesKey
from busbw_analysis.data.summary import CaseSummary, Interval
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.judge import Curve, Judgement
from busbw_analysis.fitting.curve import Fit, Segment
from busbw_analysis.models.select import Prediction
from busbw_analysis.peaks.peaks import Peak
from busbw_analysis.report.document import (
    Block,
    Cell,
    Column,
    Figure,
    LegendEntry,
    Paragraph,
    Section,
    Table,
    micro,
    percent,
    table,
    three_digits,
)
from busbw_analysis.report.plots import curves as plots
from busbw_analysis.report.plots.axes import SLOTS
from busbw_analysis.report.plots.curves import Line, Panel
from busbw_analysis.report.tables.show import common_flags, flags_note

_STEPS_OF_A_SEGMENT = 24
_TOLD = 2
"""So many curves of a figure are told in its caption."""
_LIMITED = (
    "R limits all of them, also where the textbook's formula leaves it out: no time is less than that of all bytes of "
    "all ranks at R, which is why algorithms that move as many bytes take alike at a large size."
)
_NO_WIRE = "One rank: there is no wire, so there is no busbw; algbw is shown."


@dataclass(frozen=True, slots=True)
class _Rate:
    """Which rate a curve is drawn in: its name and what turns algbw into it."""

    name: str
    factor: float

    def of(self, point: Point) -> float | None:
        """The rate of ``point`` in B/s."""
        return None if point.algbw is None else point.algbw * self.factor

    def at(self, size_bytes: float, time_ns: float) -> float:
        """The rate in B/s of ``size_bytes`` in ``time_ns``."""
        return self.factor * size_bytes / time_ns * 1e9


def operations(judgement: Judgement) -> Section:
    """One part per operation, in the order of the plan."""
    by_op: dict[str, list[Curve]] = {}
    elsewhere = MEMORY_TRAFFIC.keys() | STORING  # these have sections of their own
    for curve in judgement.curves:
        if curve.series.key.op not in elsewhere:
            by_op.setdefault(curve.series.key.op, []).append(curve)
    cases = {case.index: case for case in judgement.cases}
    parts = tuple(
        _operation(f"op-{number}", op, curves, cases) for number, (op, curves) in enumerate(by_op.items(), start=1)
    )
    if not parts:
        text = (
            "Pairs of ranks alone were measured: they are below."
            if judgement.matrices
            else "No message was sent: what was measured is below."
            if judgement.memory or judgement.files
            else "No operation gave a result that can be shown."
        )
        return Section("operations", "Operations", (Paragraph(text),))
    how = (
        "Each point is the median over launches of the slowest rank's time, on logarithmic axes. Bars are what the "
        "table below each figure says. A vertical dotted line marks a size at which the fit changes."
    )
    return Section("operations", "Operations", (Paragraph(how),), parts)


_WITHOUT: Final = {
    "algorithm": "the library's own",
    "threads": "own thread",
    "numa_node": "no NUMA node",
    "pairs": "no pairs",
    "traffic": "no traffic matrix",
}
"""Settings → what a curve is called that has none where others have."""


def curve_label(key: SeriesKey, varying: frozenset[str] | None = None) -> str:
    """The name of a curve; with ``varying``, only the fields in which it differs from its neighbours."""
    texts = {
        "backend": key.backend,
        "device": key.device,
        "dtype": key.dtype or "no data type",
        "redop": key.redop or "no reduction",
        "ranks": f"ranks {rank_list(key.ranks)}",
        "group": "all ranks" if key.group == "all" else f"groups {key.group}",
        "hosts": f"{key.hosts} host{'s' if key.hosts > 1 else ''}",
        "mode": key.mode,
        "sync": f"sync {key.sync}",
        "cache": key.cache,
        "pre_enqueue": "pre-enqueued" if key.pre_enqueue else "not pre-enqueued",
        "in_place": "in place" if key.in_place else "out of place",
        "root": "no root" if key.root is None else f"root {key.root}",
        **{name: " ".join(settings_in_words(key, {name})) or _WITHOUT.get(name, f"no {name}") for name in SETTINGS},
    }
    if varying is None:
        return key.label
    return " · ".join(text for name, text in texts.items() if name in varying) or key.label


def varying_fields(keys: Iterable[SeriesKey]) -> frozenset[str]:
    """The fields in which ``keys`` are not all alike."""
    known = list(keys)
    return frozenset(
        field.name for field in fields(SeriesKey) if len({getattr(key, field.name) for key in known}) > 1
    ) - {"op"}


def _operation(anchor: str, op: str, curves: Sequence[Curve], cases: dict[int, CaseSummary]) -> Section:
    """The figures of one operation: one for each way of splitting the ranks, more where there are many curves."""
    splits: dict[str, list[Curve]] = {}
    for curve in curves:
        splits.setdefault(curve.series.key.group, []).append(curve)
    blocks: list[Block] = []
    for split, members in splits.items():
        varying = varying_fields(curve.series.key for curve in members)
        where = "" if len(splits) == 1 else "All ranks. " if split == "all" else f"Groups {split}, all at once. "
        for start in range(0, len(members), SLOTS):
            chunk = members[start : start + SLOTS]
            labels = [curve_label(curve.series.key, varying) for curve in chunk]
            blocks.append(_figure(f"{anchor}-{len(blocks) + 1}", op, where, chunk, labels, cases))
    blocks += _models(curves, varying_fields(curve.series.key for curve in curves))
    return Section(anchor, op, tuple(blocks))


def _figure(
    identity: str, op: str, where: str, curves: Sequence[Curve], labels: Sequence[str], cases: dict[int, CaseSummary]
) -> Figure:
    told = zip(curves[:_TOLD], labels, strict=False)
    finding = where + " ".join(_finding(curve, label if len(curves) > 1 else "") for curve, label in told)
    if len(curves) > _TOLD:
        finding += f" {len(curves) - _TOLD} more in the figure and its table."
    peaks = dict.fromkeys(curve.peak.denominator for curve in curves if isinstance(curve.peak, Peak))
    description = " ".join((finding, *(f"The peak is {denominator}." for denominator in peaks)))
    pictures: list[str] = []
    for panel, what in ((_time_panel(curves), "time of one call"), (rate_panel(curves), "rate")):
        if plots.drawable(panel.series):
            title = f"{op}: {what} over size"
            pictures.append(plots.draw(panel, f"{identity}-{panel.quantity}", title, description))
    # Nothing is hidden behind a picture that is not there.
    table = _numbers(op, curves, labels, cases, folded=bool(pictures))
    return Figure(finding, tuple(pictures), tuple(_legend(curves, labels)), table)


def _finding(curve: Curve, label: str) -> str:
    """What a curve shows, in one or two sentences."""
    first = curve.series.points[0]
    rate = _rate_of(curve)
    name = f"{label}: a" if label else "A"
    start = f"{name} call of {format_size(first.size_bytes)} takes {format_time(first.time_ns)}"
    if curve.series.key.op in ARITHMETIC:
        last = curve.series.points[-1]
        end = "" if last is first else f", one of {format_size(last.size_bytes)} {format_time(last.time_ns)}"
        return f"{start}{end}."
    rates = [(value, point) for point in curve.series.points if (value := rate.of(point)) is not None]
    if not rates:
        return f"{name} call takes {format_time(first.time_ns)}."
    best, point = max(rates, key=lambda pair: pair[0])
    text = f"{start}; the best {rate.name} is {format_rate(best)} at {format_size(point.size_bytes)}"
    peak = _peak_of(curve)
    if peak is not None:
        text += f", {percent(best / peak)} % of the peak of {format_rate(peak)}"
        practical = _practical_of(curve)
        if practical is not None:
            text += f" and {percent(best / practical)} % of the {format_rate(practical)} that are reached in practice"
    return f"{text}."


def _rate_of(curve: Curve) -> _Rate:
    factor = curve.series.bus_factor
    return _Rate("algbw", 1.0) if factor is None else _Rate("busbw", factor)


def _peak_of(curve: Curve) -> float | None:
    """The peak in the rate that the curve is drawn in."""
    if not isinstance(curve.peak, Peak):
        return None
    return curve.peak.algbw if curve.series.bus_factor is None else curve.peak.busbw


def _practical_of(curve: Curve) -> float | None:
    """What others reach on such hardware, in the rate that the curve is drawn in."""
    if not isinstance(curve.peak, Peak):
        return None
    return curve.peak.practical if curve.series.bus_factor is None else curve.peak.practical_busbw


def _time_panel(curves: Sequence[Curve]) -> Panel:
    series: list[plots.Series] = []
    lines: list[Line] = []
    breaks: set[float] = set()
    for slot, curve in enumerate(curves):
        points = tuple(
            plots.Point(point.size_bytes, point.time_ns, point.interval.low_ns, point.interval.high_ns)
            for point in curve.series.points
        )
        series.append(plots.Series(slot, points))
        if isinstance(curve.fit, Fit):
            lines += [Line("fit", tuple(_vertices(segment)), slot) for segment in curve.fit.segments]
            breaks.update(curve.fit.breaks_bytes)
        if not isinstance(curve.model, Unavailable):
            lines.append(Line("model", tuple((float(p.size_bytes), p.time_ns) for p in curve.model), slot))
    return Panel("time", "Time of one call over size", tuple(series), tuple(lines), tuple(sorted(breaks)))


def rate_panel(curves: Sequence[Curve]) -> Panel:
    """busbw over size with fits, models and peaks, curve i in slot i; algbw where none has a wire."""
    wired = any(curve.series.bus_factor is not None for curve in curves)
    series: list[plots.Series] = []
    lines: list[Line] = []
    peaks: dict[float, list[int]] = {}
    for slot, curve in enumerate(curves):
        rate = _rate_of(curve)
        if curve.series.key.op in ARITHMETIC or (wired and curve.series.bus_factor is None):
            continue
        points = tuple(
            plots.Point(
                point.size_bytes,
                rate.at(point.size_bytes, point.time_ns),
                rate.at(point.size_bytes, point.interval.high_ns) if point.interval.high_ns else None,
                rate.at(point.size_bytes, point.interval.low_ns) if point.interval.low_ns else None,
            )
            for point in curve.series.points
            if point.size_bytes
        )
        series.append(plots.Series(slot, points))
        if isinstance(curve.fit, Fit):
            lines += [
                Line("fit", tuple((size, rate.at(size, time)) for size, time in _vertices(segment)), slot)
                for segment in curve.fit.segments
            ]
        if not isinstance(curve.model, Unavailable):
            model = tuple((float(p.size_bytes), rate.at(p.size_bytes, p.time_ns)) for p in curve.model if p.size_bytes)
            lines.append(Line("model", model, slot))
        if (peak := _peak_of(curve)) is not None:
            peaks.setdefault(peak, []).append(slot)
    sizes = [float(point.size_bytes) for one in series for point in one.points]
    for peak, slots in peaks.items():
        ends = ((min(sizes, default=1.0), peak), (max(sizes, default=1.0), peak))
        lines.append(Line("peak", ends, None if len(peaks) == 1 else slots[0], f"peak {format_rate(peak)}"))
    return Panel("rate", f"{'busbw' if wired else 'algbw'} over size", tuple(series), tuple(lines))


def _vertices(segment: Segment) -> Iterable[tuple[float, float]]:
    """A segment as a line that is smooth on logarithmic axes: (size in bytes, ns)."""
    first, last = max(1.0, float(segment.first_bytes)), max(1.0, float(segment.last_bytes))
    for step in range(_STEPS_OF_A_SEGMENT + 1):
        size = first * (last / first) ** (step / _STEPS_OF_A_SEGMENT)
        time_ns = 1e9 * (segment.alpha_seconds + segment.beta_seconds_per_byte * size)
        if time_ns > 0:
            yield size, time_ns


def _legend(curves: Sequence[Curve], labels: Sequence[str]) -> Iterable[LegendEntry]:
    for slot, label in enumerate(labels):
        yield LegendEntry(plots.swatch(slot, "points"), f"{label}, measured" if len(labels) == 1 else label)
    shared = 0 if len(labels) == 1 else None
    if any(isinstance(curve.fit, Fit) for curve in curves):
        yield LegendEntry(plots.swatch(shared, "fit"), "fit")
    algorithms = dict.fromkeys(p.algorithm for curve in curves for p in _predictions(curve))
    if algorithms:
        yield LegendEntry(plots.swatch(shared, "model"), f"model: {', '.join(algorithms)}")
    denominators = dict.fromkeys(curve.peak.denominator for curve in curves if isinstance(curve.peak, Peak))
    for denominator in denominators:
        yield LegendEntry(plots.swatch(None, "peak"), f"peak: {denominator}")


def _predictions(curve: Curve) -> tuple[Prediction, ...]:
    return () if isinstance(curve.model, Unavailable) else curve.model


_Row: TypeAlias = tuple[Curve, str, Point]
"""A point of a curve with the curve's label."""


def _columns(rates: Sequence[float], cases: Mapping[int, CaseSummary], common: Sequence[str]) -> list[Column[_Row]]:
    unit, factor = ("GB/s", 1e9) if max(rates, default=0.0) >= 1e9 else ("MB/s", 1e6)

    def rate(value: float) -> str:
        return three_digits(value / factor)

    def model(row: _Row) -> float | None:
        return next((one.time_ns for one in _predictions(row[0]) if one.size_bytes == row[2].size_bytes), None)

    return [
        Column("Curve", lambda row: row[1]),
        Column("Size S", lambda row: row[2].size_bytes, format_size),
        Column("Time", lambda row: row[2].time_ns, micro, "µs"),
        Column("low", lambda row: row[2].interval.low_ns, micro, "µs"),
        Column("high", lambda row: row[2].interval.high_ns, micro, "µs"),
        Column("Fastest rank", lambda row: row[2].fastest_ns, micro, "µs"),
        Column("algbw", lambda row: row[2].algbw, rate, unit),
        Column("busbw", lambda row: row[2].busbw, rate, unit),
        Column("Model", model, micro, "µs"),
        Column("Measured / model", lambda row: row[2].time_ns / found if (found := model(row)) else None, three_digits),
        Column("Launches", lambda row: len(row[2].launch_medians_ns), str),
        Column("Samples", lambda row: row[2].samples, str),
        Column("Data", lambda row: checked(cases[row[2].case].check)),
        Column("Flags", lambda row: flagged(cases[row[2].case].flags, common)),
    ]


def checked(check: str) -> Cell:
    """Whether data were verified."""
    return Cell(check, tone="plain" if check == "verified" else "quiet")


def flagged(flags: Iterable[str], common: Sequence[str] = ()) -> str | None:
    """The flags but for those in ``common``."""
    return ", ".join(flag for flag in flags if flag not in common) or None


def _numbers(
    op: str, curves: Sequence[Curve], labels: Sequence[str], cases: Mapping[int, CaseSummary], *, folded: bool
) -> Table:
    rows = [(curve, label, point) for curve, label in zip(curves, labels, strict=True) for point in curve.series.points]
    several = len(curves) > 1
    every = [cases[point.case].flags for _, _, point in rows]
    common = common_flags(every)
    notes = [ends_in_words(point.interval for _, _, point in rows), flags_note(every, common)]
    if any(curve.series.bus_factor is None for curve in curves):
        ranks = {len(curve.series.key.ranks) for curve in curves if curve.series.bus_factor is None}
        notes.append(
            _NO_WIRE if ranks == {1} else "This operation moves no data over a wire that busbw could describe."
        )
    notes += [
        f"This backend is known to move {moved:g} times the bytes that the best algorithm needs."
        for moved in sorted({curve.series.moved_factor for curve in curves} - {1.0})
    ]
    title = f"{op} · {len(curves)} curves" if several else curves[0].series.key.label
    columns = _columns([point.algbw for _, _, point in rows if point.algbw], cases, common)
    shown = columns if several else columns[1:]
    return table(title, shown, rows, *notes, row_headers=2 if several else 1, folded=folded)


def ends_in_words(intervals: Iterable[Interval]) -> str:
    """What the columns low and high of a table are, as a sentence."""
    kinds = dict.fromkeys(interval.kind for interval in intervals)
    none = "no interval, because one launch with fewer than 6 free samples has none"
    return "Low and high: " + ", ".join(none if kind == "none" else kind for kind in kinds) + "."


def _models(curves: Sequence[Curve], varying: frozenset[str]) -> list[Block]:
    """What each model assumes, or why there is none."""
    used: dict[tuple[str, str, str, str], list[int]] = {}
    for curve in curves:
        for one in _predictions(curve):
            used.setdefault((one.algorithm, one.formula, one.parameters, one.source), []).append(one.size_bytes)
    columns: tuple[Column[tuple[tuple[str, str, str, str], list[int]]], ...] = (
        Column("Algorithm", lambda one: one[0][0]),
        Column("Sizes", lambda one: f"{format_size(min(one[1]))} … {format_size(max(one[1]))}"),
        Column("Time", lambda one: one[0][1]),
        Column("Parameters", lambda one: one[0][2]),
        Column("Source", lambda one: one[0][3]),
    )
    blocks: list[Block] = [table("What the model assumes", columns, used.items(), folded=True)] if used else []
    several = len(curves) > 1
    blocks += [
        _alternatives(curve, curve_label(curve.series.key, varying) if several else "")
        for curve in curves
        if curve.alternatives
    ]
    missing = [
        (curve.model.reason, curve_label(curve.series.key, varying))
        for curve in curves
        if isinstance(curve.model, Unavailable)
    ]
    for reason, group in groupby(sorted(missing), key=lambda pair: pair[0]):
        which = ", ".join(label for _, label in group)
        blocks.append(Paragraph(f"No model{f' for {which}' if several else ''}: {reason}", tone="quiet"))
    return blocks


def _alternatives(curve: Curve, label: str) -> Table:
    """The textbook algorithms for the op next to the one that the backend runs, at the largest size."""
    point = curve.series.points[-1]
    own = [one for one in _predictions(curve) if one.size_bytes == point.size_bytes]
    mark = " (over send/recv)" if curve.series.key.algorithm is not None else " (this backend)"
    columns: tuple[Column[Prediction], ...] = (
        Column("Algorithm", lambda one: f"{one.algorithm}{mark if one in own else ''}"),
        Column("Predicted time", lambda one: one.time_ns, format_time),
        Column("busbw", lambda one: one.busbw, format_rate),
        Column("Formula", lambda one: one.formula),
        Column("Source", lambda one: one.source),
    )
    name = f"{label}: other" if label else "Other"
    caption = (
        f"{name} algorithms from the textbooks at {format_size(point.size_bytes)} with the same α, β and R; "
        f"{format_time(point.time_ns)} was measured"
    )
    return table(caption, columns, [*own, *curve.alternatives], _LIMITED, folded=True)
