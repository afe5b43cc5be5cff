"""The report section on operations: verdicts, and time and rate over size with fit, model and peak."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from msgspec import structs

from busbw.ops import ARITHMETIC, MEMORY_TRAFFIC, ON_SOCKETS, STORING
from busbw.ops.groups import groups_in_words
from busbw.units import counted, format_rate, format_size, format_time, listed
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.names import rank_list
from busbw_analysis.data.sentences import sentences
from busbw_analysis.data.series import SeriesKey
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.judge import Curve, Judgement
from busbw_analysis.fitting.curve import Fit, Segment
from busbw_analysis.models.select import Prediction
from busbw_analysis.peaks.peaks import Peak, noun_of
from busbw_analysis.report import plots
from busbw_analysis.report.document import (
    Block,
    Column,
    Figure,
    Paragraph,
    Picture,
    Section,
    Table,
    checked,
    ends_in_words,
    ends_of,
    flagged,
    percent,
    refusals,
    table,
    three_digits,
)
from busbw_analysis.report.plots import SLOTS
from busbw_analysis.report.show import common_flags

_STEPS_OF_A_SEGMENT = 24
_DESCRIBED = 2
"""Most curves described in a figure's caption."""
_NO_WIRE = "One rank sends nothing, so there is no busbw; algbw is shown."
_NO_KNOWN_WIRE = "This operation has no busbw."


_WITHOUT: Final = {
    "algorithm": "the library's own",
    "threads": "own thread",
    "numa_node": "no NUMA node",
}
"""Settings → label of a curve that lacks one, if other curves have it."""


def curve_label(key: SeriesKey, varying: frozenset[str]) -> str:
    """``curve_parts`` as one text."""
    return " · ".join(curve_parts(key, varying))


def curve_parts(key: SeriesKey, varying: frozenset[str]) -> tuple[str, ...]:
    """The fields ``varying``, in which a curve differs from its neighbours; its full name if there are none."""
    texts = {
        "backend": key.backend,
        "device": key.device,
        "dtype": key.dtype or "no data type",
        "redop": key.redop or "no reduction",
        "ranks": f"ranks {rank_list(key.ranks)}",
        "group": groups_in_words(key.group) or "all ranks",
        "hosts": counted(key.hosts, "host"),
        "mode": key.mode,
        "sync": f"sync {key.sync}",
        "cache": key.cache,
        "pre_enqueue": "pre-enqueued" if key.pre_enqueue else "not pre-enqueued",
        "registered": "registered" if key.registered else "not registered",
        "in_place": "in place" if key.in_place else "out of place",
        "root": "no root" if key.root is None else f"root {key.root}",
    }
    settings = key.setting_words
    texts |= {name: settings.get(name) or _WITHOUT.get(name, f"no {name}") for name in sorted(varying - texts.keys())}
    return tuple(text for name, text in texts.items() if name in varying) or key.parts


def varying_fields(keys: Iterable[SeriesKey]) -> frozenset[str]:
    """The fields in which ``keys`` differ."""
    series_keys = list(keys)
    texts = [key.setting_words for key in series_keys]
    settings = {name for words in texts for name in words if len({other.get(name) for other in texts}) > 1}
    others = set(SeriesKey.__struct_fields__) - {"op", "settings", "tool_op"}
    return frozenset(name for name in others if len({getattr(key, name) for key in series_keys}) > 1) | settings


def op_anchor(op: str) -> str:
    """The anchor of an operation's section."""
    return f"op-{op.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class _Rate:
    """The rate that a curve is drawn in.

    name: busbw or algbw.
    factor: algbw × factor is this rate.
    peak, practical: the peak, and the part of it that others reach, in B/s.
    noun: what the peak is called.
    """

    name: str
    factor: float
    peak: float | None = None
    practical: float | None = None
    noun: str = "peak"

    def at(self, size_bytes: float, time_ns: float) -> float:
        """The rate in B/s of ``size_bytes`` in ``time_ns``."""
        return self.factor * size_bytes / time_ns * 1e9


def _rate_of(curve: Curve) -> _Rate:
    factor, peak = curve.series.bus_factor, curve.peak
    if not isinstance(peak, Peak):
        return _Rate("algbw", 1.0) if factor is None else _Rate("busbw", factor)
    noun = noun_of(peak.level)
    if factor is None:
        return _Rate("algbw", 1.0, peak.algbw, peak.practical, noun)
    return _Rate("busbw", factor, peak.busbw, peak.practical_busbw, noun)


@dataclass(frozen=True, slots=True)
class Side:
    """A judgement, and its name if several judgements share the figures.

    name: empty if it is the only one.
    reference: draw its curves as thin lines, without points, numbers and verdicts.
    """

    judgement: Judgement
    name: str = ""
    reference: bool = False

    def called(self, *parts: str) -> str:
        """The label with these ``parts`` and the name of this side, unless they begin with it, as a backend may."""
        named = any(" · ".join(parts[:count]) == self.name for count in range(1, len(parts) + 1))
        return " · ".join(parts if named or not self.name else (self.name, *parts))


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A curve in a figure, and its side."""

    side: Side
    curve: Curve

    @property
    def op(self) -> str:
        """The operation."""
        return self.curve.series.key.op

    @property
    def alike(self) -> SeriesKey:
        """The key without backend, shared by curves that are compared."""
        return structs.replace(self.curve.series.key, backend="", cost_models="")

    def label(self, varying: frozenset[str]) -> str:
        """The fields ``varying``, in which it differs from its neighbours, and its side."""
        return self.side.called(*(curve_parts(self.curve.series.key, varying) if varying or not self.side.name else ()))


_Slotted: TypeAlias = tuple[int, _Drawn]
"""A curve and its slot; a reference has the slot that it is compared with."""


def _by_op(sides: Sequence[Side]) -> dict[str, list[_Drawn]]:
    """The curves of messages by op; curves with the same key on several sides are neighbours."""
    elsewhere = MEMORY_TRAFFIC.keys() | STORING  # these have their own sections
    every = (_Drawn(side, curve) for side in sides for curve in side.judgement.curves)
    alike = grouped((member for member in every if member.op not in elsewhere), lambda member: member.alike)
    return by_key((key.op, member) for key, members in alike.items() for member in members)


def operations(sides: Sequence[Side], facing: Mapping[str, Sequence[Block]]) -> Section:
    """One part per operation, in the order of the plan, preceded by the blocks in ``facing`` (its verdicts)."""
    drawn = {
        op: members for op, members in _by_op(sides).items() if not all(member.side.reference for member in members)
    }
    parts = tuple(_operation(op_anchor(op), op, members, facing.get(op, ())) for op, members in drawn.items())
    if not parts:
        first = sides[0].judgement
        text = "No messages were sent: see the sections below." if first.curves else "No operation gave a result."
        text = "Only pairs of ranks were measured: see below." if first.matrices else text
        return Section("operations", "Operations", (Paragraph(text),))
    how = (
        "Each point is the median over launches of the slowest rank's time, on logarithmic axes; its bar is the "
        "interval or range of the launches. A vertical dotted line marks a breakpoint of the fit."
    )
    return Section("operations", "Operations", (Paragraph(how, tone="quiet"),), parts)


def overview(sides: Sequence[Side]) -> Figure | None:
    """busbw over size of every operation and side in one figure, with the peaks; None if nothing can be drawn."""
    chosen, references = _choose_curves(sides)
    varying = {
        place: varying_fields(drawn.curve.series.key for drawn in members)
        for place, members in grouped((drawn for _, drawn in chosen), lambda drawn: (drawn.side.name, drawn.op)).items()
    }
    series: list[plots.Series] = []
    peaks: dict[tuple[float, str], list[str]] = {}
    for slot, drawn in chosen:
        settings = varying[drawn.side.name, drawn.op]
        label = drawn.side.called(drawn.op, *(curve_parts(drawn.curve.series.key, settings) if settings else ()))
        points = tuple(points_of(drawn.curve, "rate", label))
        series.append(plots.Series(slot, points, label=label, link=op_anchor(drawn.op)))
        peak = drawn.curve.peak
        if isinstance(peak, Peak) and peak.busbw:
            what = f"{peak.what} ({drawn.side.name})" if drawn.side.name else peak.what
            peaks.setdefault((peak.busbw, what), []).append(drawn.op)
    if not plots.drawable(series):
        return None
    lines = list(_thin_lines(references, [(slot, drawn.curve) for slot, drawn in chosen], "rate"))
    for number, ((rate, what), ops) in enumerate(peaks.items()):
        of = f", for {listed(dict.fromkeys(ops))}" if len(peaks) > 1 else ""
        lines.append(peak_line(series, rate, number, label=f"peak {format_rate(rate)}: {what}{of}"))
    caption = "busbw over size of every operation: medians over launches."
    marks = "A bar is the interval or range of the launches, a horizontal line a peak."
    panel = plots.Panel("rate", "busbw over size", tuple(series), tuple(lines), wide=True)
    drawing = partial(plots.draw, panel, "overview", "busbw over size of every operation", f"{caption} {marks}")
    columns: tuple[Column[int], ...] = (
        Column("Size S", lambda size: size, format_size),
        *(
            Column(plotted.label, {point.size_bytes: point.value for point in plotted.points}.get, format_rate)
            for plotted in series
        ),
    )
    rows = sorted({point.size_bytes for plotted in series for point in plotted.points})
    note = "Medians over launches; each operation's section has their ranges."
    values = table("busbw by size and operation", columns, rows, note, folded=True)
    return Figure(caption, (drawing,), plots.legend(panel), values, marks)


def _choose_curves(sides: Sequence[Side]) -> tuple[list[_Slotted], list[_Slotted]]:
    """The curves of the overview with their slots, and those drawn as thin lines.

    If there are more curves than ``SLOTS``, one of each operation is drawn: the one with the most sizes, then the
    fastest. Curves that are compared share a colour; if there is nothing else to tell apart, each side has its own.
    """

    def rank(member: _Drawn) -> tuple[int, float]:
        rates = [point.busbw for point in member.curve.series.points if point.busbw and point.size_bytes]
        return len(rates), max(rates, default=0.0)

    every = [member for members in _by_op(sides).values() for member in members if member.op not in ON_SOCKETS]
    every = [member for member in every if rank(member)[0] > 1]
    all_fit = len({member.alike for member in every}) <= SLOTS

    def colour_of(member: _Drawn) -> Hashable:
        key = member.alike
        return structs.replace(key, ranks=() if key.group == "all" else key.ranks, hosts=0) if all_fit else key.op

    names = [side.name for side in sides]
    alike = grouped(every, lambda member: (colour_of(member), names.index(member.side.name)))
    colours = list(dict.fromkeys(colour for colour, _ in alike))
    stride = 1 if len(colours) == 1 else -(-len(colours) // SLOTS) * SLOTS
    slotted = [
        (colours.index(colour) + stride * place, max(members, key=rank)) for (colour, place), members in alike.items()
    ]
    drawn = sorted((entry for entry in slotted if not entry[1].side.reference), key=lambda entry: entry[0])
    return drawn, [(slot % stride, member) for slot, member in slotted if member.side.reference]


def _operation(anchor: str, op: str, drawn: Sequence[_Drawn], facing: Sequence[Block]) -> Section:
    """The figures of one operation: one for each split of the ranks, several if there are many curves."""
    splits = grouped(
        (member for member in drawn if not member.side.reference), lambda member: member.curve.series.key.group
    )
    blocks: list[Block] = [*facing]
    for split, members in splits.items():
        varying = varying_fields(member.curve.series.key for member in members)
        where = "" if len(splits) == 1 else "All ranks. " if split == "all" else f"Groups {split}, running together. "
        for start in range(0, len(members), SLOTS):
            chunk = members[start : start + SLOTS]
            labels = [member.label(varying) for member in chunk]
            keys = [member.alike for member in chunk]
            references = [
                (keys.index(member.alike), member) for member in drawn if member.side.reference and member.alike in keys
            ]
            blocks.append(_figure(f"{anchor}-{len(blocks) + 1}", op, where, chunk, labels, references))
    own = [member.curve for members in splits.values() for member in members]
    varying = varying_fields(curve.series.key for curve in own)
    missing = sorted(
        (curve.model.reason, curve_label(curve.series.key, varying))
        for curve in own
        if isinstance(curve.model, Unavailable)
    )
    blocks += refusals("model", missing, several=len(own) > 1)
    return Section(anchor, op, tuple(blocks))


def _figure(
    identity: str, op: str, where: str, drawn: Sequence[_Drawn], labels: Sequence[str], references: Sequence[_Slotted]
) -> Figure:
    curves = [member.curve for member in drawn]
    described = zip(curves[:_DESCRIBED], labels, strict=False)
    finding = where + sentences(*(_finding(curve, label if len(curves) > 1 else "") for curve, label in described))
    if len(curves) > _DESCRIBED:
        finding += f" The figure and its table have {len(curves) - _DESCRIBED} more curves."
    panels: dict[plots.Panel, Picture] = {}
    quantities: dict[plots.Quantity, str] = {"time": "time of one call", "rate": "rate"}
    for quantity, what in quantities.items():
        panel = panel_of(curves, labels, quantity, references)
        # Of sockets two sizes are only a peak for other operations.
        if plots.drawable(panel.series, sizes=3 if op in ON_SOCKETS else 2):
            panels[panel] = partial(plots.draw, panel, f"{identity}-{quantity}", f"{op}: {what} over size", finding)
    # Without a drawing, the numbers are not folded.
    numbers = _numbers(op, drawn, labels, folded=bool(panels))
    return Figure(finding, tuple(panels.values()), plots.legend(*panels), numbers)


def _finding(curve: Curve, label: str) -> str:
    """The curve's smallest time and best rate, in one or two sentences."""
    first = curve.series.points[0]
    rate = _rate_of(curve)
    name = f"{label}: a" if label else "A"
    start = f"{name} call of {format_size(first.size_bytes)} takes {format_time(first.time_ns)}"
    if curve.series.key.op in ARITHMETIC:
        last = curve.series.points[-1]
        end = "" if last is first else f", one of {format_size(last.size_bytes)} {format_time(last.time_ns)}"
        return f"{start}{end}."
    rates = [(point.algbw * rate.factor, point) for point in curve.series.points if point.algbw is not None]
    if not rates:
        return f"{name} call takes {format_time(first.time_ns)}."
    best, point = max(rates, key=lambda pair: pair[0])
    text = f"{start}; the best {rate.name} is {format_rate(best)} at {format_size(point.size_bytes)}"
    if rate.peak is not None:
        text += f", {percent(best / rate.peak)} % of the {rate.noun} of {format_rate(rate.peak)}"
    if rate.practical is not None:
        text += f" and {percent(best / rate.practical)} % of the {format_rate(rate.practical)} reached in practice"
    return f"{text}."


def points_of(curve: Curve, quantity: plots.Quantity, label: str = "") -> Iterator[plots.Point]:
    """The times or rates of ``curve`` with their ends and tooltips."""
    rate = _rate_of(curve)
    for point in curve.series.points:
        values = (point.time_ns, point.interval.low_ns, point.interval.high_ns)
        text: Callable[[float], str] = format_time
        of_peak = ""
        if quantity == "rate":
            if not point.size_bytes:
                continue
            value, high, low = (rate.at(point.size_bytes, time_ns) if time_ns else None for time_ns in values)
            values, text = (value or 0.0, low, high), format_rate
            of_peak = f", {percent(values[0] / rate.peak)} % of {rate.noun}" if rate.peak else ""
        ends = " – ".join(text(end) for end in values[1:] if end is not None)
        launches = counted(len(point.launch_medians_ns), "launch", "launches")
        tip = f"{label} · {format_size(point.size_bytes)}\n{text(values[0])}{of_peak}\n"
        yield plots.Point(point.size_bytes, *values, tip + ", ".join(filter(None, (ends, launches))))


def _thin_lines(
    references: Iterable[_Slotted], curves: Iterable[tuple[int, Curve]], quantity: plots.Quantity
) -> Iterator[plots.Line]:
    """References, and published curves of the same operation and number of GPUs of the same kind.

    Each has the colour of the first slot that it is compared with.
    """
    for slot, reference in references:
        points = tuple((float(point.size_bytes), point.value) for point in points_of(reference.curve, quantity))
        yield plots.Line("reference", points, slot, label=f"reference: {reference.side.name}")
    slots = {published: slot for slot, curve in reversed(list(curves)) for published in curve.published}
    for published, slot in slots.items():
        sizes = published.sizes_bytes
        values = published.times_ns if quantity == "time" else map(published.busbw, range(len(sizes)))
        points = tuple(zip(map(float, sizes), values, strict=True))
        yield plots.Line("reference", points, slot, label=f"published: {published.what}")


def panel_of(
    curves: Sequence[Curve],
    labels: Sequence[str],
    quantity: plots.Quantity = "rate",
    references: Sequence[_Slotted] = (),
) -> plots.Panel:
    """Time or rate over size with fits and models, curve i in slot i.

    Rates are busbw with peaks, or algbw if no curve has a busbw; times have a line at each breakpoint of a fit.
    """
    wired = any(curve.series.bus_factor is not None for curve in curves)
    series: list[plots.Series] = []
    lines: list[plots.Line] = []
    breaks: set[float] = set()
    for slot, (curve, label) in enumerate(zip(curves, labels, strict=True)):
        rate = _rate_of(curve) if quantity == "rate" else None
        if rate and (curve.series.key.op in ARITHMETIC or (wired and curve.series.bus_factor is None)):
            continue
        points = tuple(points_of(curve, quantity, label))
        name = label if len(curves) > 1 else f"{label}, measured"
        series.append(plots.Series(slot, points, joined=not isinstance(curve.fit, Fit), label=name))
        if isinstance(curve.fit, Fit):
            lines += [_line("fit", _vertices(segment), slot, rate, "fit") for segment in curve.fit.segments]
            breaks.update(curve.fit.breaks_bytes)
        if not isinstance(curve.model, Unavailable):
            algorithms = dict.fromkeys(prediction.algorithm for prediction in curve.model)
            times = ((prediction.size_bytes, prediction.time_ns) for prediction in curve.model)
            lines.append(_line("model", times, slot, rate, f"model: {', '.join(algorithms)}"))
    lines += _thin_lines(references, enumerate(curves), quantity)
    if quantity == "rate":
        lines += _peak_lines(curves, series)
    heading = "Time of one call" if quantity == "time" else "busbw" if wired else "algbw"
    marks = tuple(sorted(breaks)) if quantity == "time" else ()
    return plots.Panel(quantity, f"{heading} over size", tuple(series), tuple(lines), marks)


def _peak_lines(curves: Sequence[Curve], series: Sequence[plots.Series]) -> Iterator[plots.Line]:
    """The peaks of a figure of rates; one alone has the colour of no curve."""
    peaks = by_key(
        (rate, (plotted.slot, peak.what))
        for plotted in series
        if (rate := _rate_of(curves[plotted.slot]).peak) is not None
        and isinstance(peak := curves[plotted.slot].peak, Peak)
    )
    for number, (rate, members) in enumerate(peaks.items()):
        which, slot = (f" {format_rate(rate)}", members[0][0]) if len(peaks) > 1 else ("", None)
        label = f"peak{which}: {listed(dict.fromkeys(what for _, what in members))}"
        yield peak_line(series, rate, number, slot=slot, label=label)


def peak_line(
    series: Iterable[plots.Series],
    rate: float,
    number: int,
    *,
    slot: int | None = None,
    name: str = "peak",
    label: str = "",
) -> plots.Line:
    """A ``rate`` (B/s) across all sizes of ``series``, with ``number`` and ``label`` as in ``plots.Line``."""
    sizes = [float(point.size_bytes) for curve in series for point in curve.points]
    ends = ((min(sizes, default=1.0), rate), (max(sizes, default=1.0), rate))
    return plots.Line("peak", ends, slot, f"{name} {format_rate(rate)}", number, label)


def _line(
    kind: plots.LineKind, vertices: Iterable[tuple[float, float]], slot: int, rate: _Rate | None, label: str
) -> plots.Line:
    """A line of times, or of rates if a ``rate`` is given."""
    shown = ((float(size), rate.at(size, time) if rate else time) for size, time in vertices if size or not rate)
    return plots.Line(kind, tuple(shown), slot, label=label)


def _vertices(segment: Segment) -> Iterable[tuple[float, float]]:
    """A segment as a smooth line on logarithmic axes: (size in bytes, ns)."""
    first, last = max(1.0, float(segment.first_bytes)), max(1.0, float(segment.last_bytes))
    for step in range(_STEPS_OF_A_SEGMENT + 1):
        size = first * (last / first) ** (step / _STEPS_OF_A_SEGMENT)
        time_ns = 1e9 * segment.seconds(size)
        if time_ns > 0:
            yield size, time_ns


def predictions_of(curve: Curve) -> tuple[Prediction, ...]:
    """The model's predictions; empty if there is no model."""
    return () if isinstance(curve.model, Unavailable) else curve.model


def _numbers(op: str, drawn: Sequence[_Drawn], labels: Sequence[str], *, folded: bool) -> Table:
    rows = [
        (label, point, member.side.judgement.cases[point.case], model.get(point.size_bytes))
        for member, label in zip(drawn, labels, strict=True)
        for model in [{prediction.size_bytes: prediction.time_ns for prediction in predictions_of(member.curve)}]
        for point in member.curve.series.points
    ]
    curves = [member.curve for member in drawn]
    every = [case.flags for _, _, case, _ in rows]
    common, flags_note = common_flags(every)
    several = len(curves) > 1
    columns: tuple[Column[tuple[str, GroupSummary, CaseSummary, float | None]], ...] = (
        Column("Curve", lambda row: row[0] if several else None),
        Column("Size S", lambda row: row[1].size_bytes, format_size),
        Column("Time", lambda row: row[1].time_ns, format_time, ends=lambda row: ends_of(row[1].interval)),
        Column("Fastest rank", lambda row: row[1].fastest_ns, format_time),
        Column("algbw", lambda row: row[1].algbw, format_rate),
        Column("busbw", lambda row: row[1].busbw, format_rate),
        Column("Model", lambda row: row[3], format_time),
        Column("Time / model", lambda row: row[1].time_ns / row[3] if row[3] else None, three_digits),
        Column("Launches", lambda row: len(row[1].launch_medians_ns), str),
        Column("Samples", lambda row: row[1].samples, str),
        Column("NCCL", lambda row: row[2].choice),
        Column("Data", lambda row: checked(row[2].check)),
        Column("Flags", lambda row: flagged(row[2].flags, common)),
    )
    notes = [ends_in_words(point.interval.kind for _, point, _, _ in rows), flags_note]
    unwired = {len(curve.series.key.ranks) for curve in curves if curve.series.bus_factor is None}
    if unwired:
        notes.append(_NO_WIRE if unwired == {1} else _NO_KNOWN_WIRE)
    notes += [
        f"This backend moves {moved:g} times the bytes that the best algorithm needs."
        for moved in sorted({curve.series.traffic_factor for curve in curves} - {1.0})
    ]
    title = f"{op} · {len(curves)} curves" if several else curves[0].series.key.label
    headers = 2 if several else 1
    return table(title, columns, rows, *notes, row_headers=headers, folded=folded)
