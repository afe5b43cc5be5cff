"""The report section on memory: traffic over the working set with plateaus, thread scaling, peaks and first touch."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from busbw.units import about_size, counted, format_rate, format_size, format_time, listed
from busbw_analysis.data.grouped import grouped
from busbw_analysis.data.sentences import sentences
from busbw_analysis.data.series import SeriesKey
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.node.memory import (
    FIRST_TOUCH,
    MemoryCurve,
    MemoryPoint,
    Scaled,
    compared_at_largest,
    most_of_memory,
    scaling,
    who,
)
from busbw_analysis.node.plateaus import Plateau, Plateaus
from busbw_analysis.peaks.peaks import LEAST_COPY_BYTES, Peak
from busbw_analysis.report import plots
from busbw_analysis.report.curves import curve_label, peak_line, varying_fields
from busbw_analysis.report.document import (
    Block,
    Cell,
    Column,
    Figure,
    LegendEntry,
    Paragraph,
    Picture,
    Section,
    Table,
    checked,
    ends_in_words,
    flagged,
    percent,
    refusals,
    table,
    three_digits,
)
from busbw_analysis.report.plots import SLOTS

_COUNTED: Final = (
    "Traffic is the bytes that a kernel reads and writes, each counted once, as in STREAM. With arrays of S bytes, "
    "copy and scale move 2 × S, add and triad 3 × S, reading and writing S. A rank's working set has the same size."
)
_FETCHED: Final = (
    "Not counted: on the host a plain store first fetches the line that it writes. Beyond the caches, memory then "
    "moves up to 1.5 times the traffic of copy and scale, 1.33 times that of add and triad, and twice that of writing."
)
_FOUND: Final = (
    "Plateaus are found from the curve alone: levels separated by ramps, as many as the noise resolves, each at least "
    "three sizes and a factor of two long. The cache sizes that the system reports do not place them; they only decide "
    "whether the last one is main memory."
)
_PAST_CACHES: Final = (
    "The library's copy can write large blocks past the caches (non-temporal stores). The plain loop fetches every "
    "line before writing it, so memory moves three bytes for every two counted: the loop reaches at most two thirds "
    "of the copy's rate where memory is the limit."
)
_COMMON_SIZE: Final = "Each kernel is shown at the largest size that was measured with all of its thread counts."
_TOUCHED: Final = (
    "The first write to a page makes the kernel allocate and clear it. Other operations touch their buffers before "
    "timing."
)
_PAGE_BYTES = 4096
_ALIKE = 1.1


def memory(curves: Sequence[MemoryCurve], cases: Sequence[CaseSummary], huge_pages: Collection[str]) -> Section | None:
    """All measurements of kernels in memory; None if there are none.

    huge_pages: how the hosts use transparent huge pages.
    """
    if not curves:
        return None
    by_op = grouped(curves, lambda curve: (curve.key.op, curve.key.device))
    devices = {device for _, device in by_op}
    parts = tuple(
        _kernel(f"memory-{number}", f"{op} ({device})" if len(devices) > 1 else op, members, cases)
        for number, ((op, device), members) in enumerate(by_op.items(), start=1)
    )
    counted = f"{_COUNTED} {_FETCHED}" if "cpu" in devices else _COUNTED
    # State once what 100 % means for all kernels that share it.
    peaks = dict.fromkeys(sentences(_denominator(curve)) for curve in curves)
    blocks: list[Block] = [*map(Paragraph, (counted, _FOUND, *peaks))]
    blocks += [*_scaling(curves), *_library(curves), *_touch(curves, huge_pages)]
    most, op = max((point.rate, curve.key.op) for curve in curves for point in curve.points)
    gist = f"Up to {format_rate(most)} of traffic of all ranks together, by {op}."
    if all(curve.points[-1].working_set_bytes < LEAST_COPY_BYTES for curve in curves):
        gist = f"No working set of {format_size(LEAST_COPY_BYTES)} or more: the rate of the memory is unknown."
    return Section("memory", "Memory", tuple(blocks), parts, gist=gist)


def _denominator(curve: MemoryCurve) -> str:
    if not isinstance(curve.peak, Peak):
        return f"no percentages of nominal: {curve.peak.reason}"
    # S differs between operations, but the memory is the same.
    whole = f"100 % of nominal is {format_rate(curve.nominal)} of traffic: {curve.peak.basis}"
    return f"{whole}; rates above it are from caches"


def _scaling(curves: Sequence[MemoryCurve]) -> Iterator[Table]:
    rows = [row for row in scaling(curves) if row.curve.key.op != FIRST_TOUCH]
    varying = varying_fields(row.curve.key for row in rows) - {"threads", "numa_node", "ranks"}
    devices = dict.fromkeys(row.curve.key.device for row in rows)
    best = {device: most_of_memory(curve for curve in curves if curve.key.device == device) for device in devices}
    of_what = [
        f"Of the best: 100 % is {format_rate(level.rate)}, the traffic of {who(level.curve)} beyond the caches"
        f"{'' if device == 'cpu' else f' ({device})'}: the highest median of any kernel over working sets of at least "
        f"{about_size(level.first_bytes)}. Working sets that caches partly hold can be far above 100 %."
        for device, level in best.items()
        if level is not None
    ]

    def of_best(row: Scaled) -> float | None:
        level = best[row.curve.key.device]
        return None if level is None else row.point.rate / level.rate

    columns: tuple[Column[Scaled], ...] = (
        Column("Kernel", lambda row: _named(row.curve.key, varying)),
        Column("Threads", lambda row: f"{row.curve.threads}{row.curve.where}", str),
        Column("Size S", lambda row: row.point.size_bytes, format_size),
        Column("Traffic", lambda row: row.point.rate, format_rate, ends=lambda row: (row.point.low, row.point.high)),
        Column("Times one thread", lambda row: row.times_one, three_digits),
        Column("Of the best", of_best, percent, "%"),
        Column("Of nominal", lambda row: row.point.share, percent, "%"),
        Column("Of practical", lambda row: row.point.practical_share, percent, "%"),
    )
    if rows:
        notes = (ends_in_words(row.point.kind for row in rows), _COMMON_SIZE, *of_what)
        yield table("More threads", columns, rows, *notes, row_headers=2)


def _named(key: SeriesKey, varying: frozenset[str]) -> str:
    more = curve_label(key, varying)
    return key.op if more == key.label else f"{key.op} · {more}"


def _library(curves: Sequence[MemoryCurve]) -> Iterator[Block]:
    """The library's copy compared with the plain loop."""
    compared = compared_at_largest(curves, "memory_copy", "stream_copy")
    if not compared:
        return
    several = len({curve.key.dtype for curve, _, _ in compared}) > 1
    ratios = [
        f"{three_digits(copied.rate / plain.rate)} on {_threads(curve)} at {format_size(copied.size_bytes)}"
        + (f" of {curve.key.dtype}" if several else "")
        for curve, copied, plain in compared
    ]
    faster = any(copied.rate > _ALIKE * plain.rate for curve, copied, plain in compared if curve.key.device == "cpu")
    why = _PAST_CACHES if faster else ""
    text = f"Rate of memory_copy, the library's copy, over stream_copy, a plain loop: {listed(ratios)}. {why}"
    yield Paragraph(text.rstrip())


def _threads(curve: MemoryCurve) -> str:
    if curve.threads is None:
        return "a thread of its own" if curve.key.device == "cpu" else "a GPU"
    return f"{counted(curve.threads, 'thread')}{curve.where}"


def _touch(curves: Sequence[MemoryCurve], huge_pages: Collection[str]) -> Iterator[Block]:
    """The cost of the first touch of a page, compared with a warm write."""
    compared = compared_at_largest(curves, FIRST_TOUCH, "memory_write")
    if not compared:
        return
    pages = ", ".join(sorted(huge_pages))
    note = f"Transparent huge pages: {pages}. Medians over launches; no interval of the difference."
    yield Paragraph(_TOUCHED)
    yield table("First touch beside a warm write", _TOUCH_COLUMNS, compared, note, row_headers=2)


_TOUCH_COLUMNS: Final[tuple[Column[tuple[MemoryCurve, MemoryPoint, MemoryPoint]], ...]] = (
    Column("Threads", lambda row: None if row[0].threads is None else f"{row[0].threads}{row[0].where}", str),
    Column("Size S", lambda row: row[1].size_bytes, format_size),
    Column("First touch", lambda row: row[1].time_ns, format_time),
    Column("Warm write", lambda row: row[2].time_ns, format_time),
    Column("Times as long", lambda row: row[1].time_ns / row[2].time_ns, three_digits),
    Column(
        "More for 4 KiB",
        lambda row: max(0.0, row[1].time_ns - row[2].time_ns) * _PAGE_BYTES / row[1].size_bytes,
        three_digits,
        "ns",
    ),
)


# --- one kernel ------------------------------------------------------------------------------------------------------


def _kernel(anchor: str, heading: str, curves: Sequence[MemoryCurve], cases: Sequence[CaseSummary]) -> Section:
    varying = varying_fields(curve.key for curve in curves)
    named = [(_label(curve, varying), curve) for curve in curves]
    figures = [
        _figure(f"{anchor}-{number}", heading, named[start : start + SLOTS], cases)
        for number, start in enumerate(range(0, len(named), SLOTS), start=1)
    ]
    return Section(anchor, heading, (*figures, *_plateaus(named)))


def _label(curve: MemoryCurve, varying: frozenset[str]) -> str:
    if curve.threads is None:
        return curve_label(curve.key, varying)
    rest = varying - {"threads", "numa_node"}
    return " · ".join([_threads(curve), *([curve_label(curve.key, rest)] if rest else [])])


def _figure(
    identity: str, name: str, curves: Sequence[tuple[str, MemoryCurve]], cases: Sequence[CaseSummary]
) -> Figure:
    finding = sentences(*(_finding(curve, label) for label, curve in curves))
    panel = _panel([curve for _, curve in curves])
    pictures: tuple[Picture, ...] = ()
    if plots.drawable(panel.series, sizes=3):
        pictures = (partial(plots.draw, panel, identity, f"{name}: traffic over working set", finding),)
    numbers = _numbers(name, curves, cases, folded=bool(pictures))
    return Figure(finding, pictures, tuple(_legend(curves)), numbers)


def _finding(curve: MemoryCurve, label: str) -> str:
    """The curve's plateaus and its last rate, in one sentence."""
    last = curve.points[-1]
    end = f"{format_rate(last.rate)} at {format_size(last.size_bytes)}"
    if last.share is not None:
        end += f", {percent(last.share)} % of nominal"
    plateaus = curve.plateaus
    if isinstance(plateaus, Plateaus) and len(plateaus.plateaus) > 1:
        levels = ", ".join(
            f"{format_rate(plateau.rate)} up to {about_size(plateau.last_bytes)}" for plateau in plateaus.plateaus[:-1]
        )
        return f"{label}: {levels}, then {format_rate(plateaus.plateaus[-1].rate)} ({end})."
    return f"{label}: {end}."


def _panel(curves: Sequence[MemoryCurve]) -> plots.Panel:
    series: list[plots.Series] = []
    lines: list[plots.Line] = []
    for slot, curve in enumerate(curves):
        points = tuple(
            plots.Point(point.working_set_bytes, point.rate, point.low, point.high) for point in curve.points
        )
        series.append(plots.Series(slot, points))
        if isinstance(curve.plateaus, Plateaus):
            lines += [
                plots.Line(
                    "fit", tuple((float(end), plateau.rate) for end in (plateau.first_bytes, plateau.last_bytes)), slot
                )
                for plateau in curve.plateaus.plateaus
            ]
    lines += [peak_line(series, rate, number, name="nominal") for number, rate in enumerate(_nominal(curves))]
    return plots.Panel("rate", "Traffic over working set", tuple(series), tuple(lines))


def _nominal(curves: Sequence[MemoryCurve]) -> list[float]:
    """The nominal rates of the curves' memories in B/s, each once."""
    return list(dict.fromkeys(curve.nominal for curve in curves if curve.nominal is not None))


def _legend(curves: Sequence[tuple[str, MemoryCurve]]) -> Iterator[LegendEntry]:
    for slot, (label, _) in enumerate(curves):
        yield LegendEntry(plots.swatch(slot, "points"), label)
    if any(isinstance(curve.plateaus, Plateaus) for _, curve in curves):
        yield LegendEntry(plots.swatch(0 if len(curves) == 1 else None, "fit"), "plateau")
    nominal = _nominal([curve for _, curve in curves])
    for number, rate in enumerate(nominal):
        which = f", {format_rate(rate)}" if len(nominal) > 1 else ""
        yield LegendEntry(plots.swatch(None, "peak", number), f"nominal rate of the memory{which}")


def _numbers(
    name: str, curves: Sequence[tuple[str, MemoryCurve]], cases: Sequence[CaseSummary], *, folded: bool
) -> Table:
    columns: tuple[Column[tuple[str, MemoryCurve, MemoryPoint]], ...] = (
        Column("Curve", lambda row: row[0]),
        Column("Size S", lambda row: row[2].size_bytes, format_size),
        Column("Working set", lambda row: row[2].working_set_bytes, about_size),
        Column("Time", lambda row: row[2].time_ns, format_time),
        Column("Traffic", lambda row: row[2].rate, format_rate, ends=lambda row: (row[2].low, row[2].high)),
        Column("Of nominal", lambda row: row[2].share, percent, "%"),
        Column("Of practical", lambda row: row[2].practical_share, percent, "%"),
        Column("Launches", lambda row: len(row[2].launch_rates), str),
        Column(
            "Samples",
            lambda row: sum(group.samples for group in cases[row[2].case].groups if group.ranks == row[1].key.ranks),
            str,
        ),
        Column("Data", lambda row: checked(cases[row[2].case].check)),
        Column("Flags", lambda row: flagged(cases[row[2].case].flags)),
    )
    rows = [(label, curve, point) for label, curve in curves for point in curve.points]
    notes = [ends_in_words(point.kind for _, _, point in rows)]
    together = sorted({curve.together for _, curve in curves})
    if together[-1] > 1:
        notes.append(
            f"Rates are those of {' or '.join(map(str, together))} ranks of a host together, from the first entry to "
            "the last exit if the clocks are synchronised."
        )
    return table(name, columns, rows, *notes, row_headers=2, folded=folded)


@dataclass(frozen=True, slots=True)
class _Level:
    """A plateau of a curve with the curve's label, its number from the core, and the memory that it may be."""

    label: str
    curve: MemoryCurve
    number: int
    plateau: Plateau
    what: str


_PLATEAU_COLUMNS: Final[tuple[Column[_Level], ...]] = (
    Column("Curve", lambda level: level.label),
    Column("Plateau", lambda level: f"plateau {level.number}"),
    Column(
        "Working sets",
        lambda level: f"{about_size(level.plateau.first_bytes)} … {about_size(level.plateau.last_bytes)}",
    ),
    Column("Sizes", lambda level: level.plateau.sizes, str),
    Column(
        "Traffic",
        lambda level: level.plateau.rate,
        format_rate,
        ends=lambda level: (level.plateau.low, level.plateau.high),
    ),
    Column(
        "Of nominal",
        lambda level: level.plateau.rate / level.curve.nominal if level.curve.nominal else None,
        percent,
        "%",
    ),
    Column("Probably", lambda level: Cell(level.what, tone="quiet")),
)


def _plateaus(curves: Sequence[tuple[str, MemoryCurve]]) -> Iterator[Block]:
    rows: list[_Level] = []
    refused: list[tuple[str, str]] = []
    for label, curve in curves:
        plateaus = curve.plateaus
        if isinstance(plateaus, Unavailable):
            refused.append((f"{plateaus.reason}.", label))
            continue
        kinds = [*["a cache, or caches"] * (len(plateaus.plateaus) - 1), plateaus.outermost]
        levels = enumerate(zip(plateaus.plateaus, kinds, strict=True), 1)
        rows += [_Level(label, curve, number, plateau, what) for number, (plateau, what) in levels]
    if rows:
        launches = max(len(point.launch_rates) for _, curve in curves for point in curve.points)
        begun = any(isinstance(curve.plateaus, Plateaus) and curve.plateaus.call_bytes > 0 for _, curve in curves)
        without = ", without the start-up time of a call from the same curve" if begun else ""
        ends = ends_in_words(level.plateau.kind for level in rows)
        if all(level.plateau.kind == "none" for level in rows):
            ends = f"No interval: {'only one launch' if launches == 1 else 'the launches measured different sizes'}."
        note = f"The rate is the median over the plateau's sizes{without}. {ends}"
        yield table("Plateaus", _PLATEAU_COLUMNS, rows, note, row_headers=2)
    yield from refusals("plateaus", refused, several=len(curves) > 1)
