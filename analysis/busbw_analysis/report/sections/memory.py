"""The part of a report about memory: traffic over the working set with its plateaus, threads, peaks and first touch."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from busbw.units import about_size, format_rate, format_size, format_time
from busbw_analysis.data.series import SeriesKey
from busbw_analysis.data.summary import CaseSummary, Interval
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.diagnosis.memory import FIRST_TOUCH, MemoryCurve, MemoryPoint, beside, most_of_memory, scaling, who
from busbw_analysis.diagnosis.plateaus import Plateaus
from busbw_analysis.peaks.peaks import Peak
from busbw_analysis.report.document import (
    MISSING,
    Block,
    Cell,
    Column,
    Figure,
    LegendEntry,
    Paragraph,
    Section,
    Table,
    percent,
    sentence,
    three_digits,
    without_empty,
    words,
)
from busbw_analysis.report.plots import curves as plots
from busbw_analysis.report.plots.curves import Line, Panel
from busbw_analysis.report.sections.curves import curve_label, ends_in_words, varying_fields

_COUNTED: Final = (
    "Traffic is what a kernel reads and writes, each byte once, as STREAM counts it: with S the bytes of one array, "
    "copy and scale move 2 × S, add and triad 3 × S, reading and writing S. The working set of a rank is as large: all "
    "arrays of one call."
)
_FETCHED: Final = (
    "What is not counted: on the host a plain store first fetches the line that it writes, so behind the "
    "caches memory carries up to 1.5 times the traffic of copy and scale, 1.33 times that of add and triad, twice "
    "that of writing."
)
_FOUND: Final = (
    "Plateaus are found from the curve alone: levels with ramps between them, as many as the noise allows to tell "
    "apart, each at least three sizes and an octave long. What the system states of its caches places "
    "none; it is only held against the last one before that is called the memory behind them."
)
_PAST_CACHES: Final = (
    "The library's copy writes large blocks past the caches (non-temporal stores) where it sees fit; the plain loop "
    "fetches every line before it writes it, so memory carries three bytes for each two that are counted, and the loop "
    "can reach two thirds of the other's rate where memory is the limit."
)
_NOT_PAST_CACHES: Final = (
    "A copy that writes past the caches (non-temporal stores) can reach 1.5 times the rate of a loop that fetches "
    "every line before it writes it; that does not show here."
)
_TOUCHED: Final = (
    "The first write to a page makes the kernel find one and clear it. Buffers of all other operations were touched "
    "before they were timed."
)
_PAGE_BYTES = 4096
_ALIKE = 1.1


def memory(judgement: Judgement) -> Section | None:
    """Everything that was measured of kernels in memory; None where nothing was."""
    if not judgement.memory:
        return None
    cases = {case.index: case for case in judgement.cases}
    by_op: dict[tuple[str, str], list[MemoryCurve]] = {}
    for curve in judgement.memory:
        by_op.setdefault((curve.key.op, curve.key.device), []).append(curve)
    several = len({device for _, device in by_op}) > 1
    parts = tuple(
        _kernel(f"memory-{number}", f"{op} ({device})" if several else op, members, cases)
        for number, ((op, device), members) in enumerate(by_op.items(), start=1)
    )
    of_hosts = any(curve.key.device == "cpu" for curve in judgement.memory)
    counted = f"{_COUNTED} {_FETCHED}" if of_hosts else _COUNTED
    blocks: list[Block] = [Paragraph(counted), Paragraph(_FOUND), *_peaks(judgement.memory)]
    blocks += [*_scaling(judgement.memory), *_library(judgement.memory), *_touch(judgement)]
    return Section("memory", "Memory", tuple(blocks), parts)


def _peaks(curves: Sequence[MemoryCurve]) -> Iterator[Block]:
    """What 100 % is, once for all kernels that have it in common."""
    for text in dict.fromkeys(_denominator(curve) for curve in curves):
        yield Paragraph(sentence(text))


def _denominator(curve: MemoryCurve) -> str:
    if not isinstance(curve.peak, Peak):
        return f"no percentages of nominal: {curve.peak.reason}"
    # What is S of an operation is not the same for all of them; the memory itself is.
    whole = f"100 % of nominal is {format_rate(curve.nominal)} of traffic: {curve.peak.denominator.partition('; ')[0]}"
    inside = "a rate above it is one inside the caches"
    return f"{whole}; {inside}"


_SCALING_COLUMNS: Final = (
    Column("Kernel", numeric=False),
    Column("Threads"),
    Column("Size S"),
    Column("Traffic", "GB/s"),
    Column("low", "GB/s"),
    Column("high", "GB/s"),
    Column("Times one thread"),
    Column("Of the best", "%"),
    Column("Of nominal", "%"),
    Column("Of practical", "%"),
)


def _scaling(curves: Sequence[MemoryCurve]) -> Iterator[Table]:
    found = [one for one in scaling(curves) if one.curve.key.op != FIRST_TOUCH]
    varying = varying_fields(one.curve.key for one in found) - {"threads", "numa_node", "ranks"}
    most: dict[str, float] = {}
    told = ""
    for device in dict.fromkeys(one.curve.key.device for one in found):
        best = most_of_memory(curve for curve in curves if curve.key.device == device)
        if best is not None:
            most[device] = best.rate
            told += (
                f" Of the best: 100 % is {format_rate(best.rate)}, the traffic of {who(best.curve)} behind the "
                f"caches{'' if device == 'cpu' else f' ({device})'}, measured in this run: its median over working "
                f"sets from {about_size(best.first_bytes)} on, and no other kernel's median is higher. Far above 100 % "
                "is a smaller working set, of which caches hold a part."
            )
    rows = tuple(
        (
            Cell(_named(one.curve.key, varying)),
            Cell(f"{one.curve.threads}{one.curve.where}"),
            Cell(format_size(one.point.size_bytes)),
            *map(_giga, (one.point.rate, one.point.low, one.point.high)),
            Cell(MISSING if one.times_one is None else three_digits(one.times_one)),
            _percent(one.point.rate / most[one.curve.key.device] if one.curve.key.device in most else None),
            _percent(one.point.share),
            _percent(one.point.practical_share),
        )
        for one in found
    )
    if rows:
        note = f"{_ends(one.point for one in found)} At the largest size that all thread counts of a kernel have.{told}"
        yield Table("More threads", *without_empty(_SCALING_COLUMNS, rows), row_headers=2, note=note)


def _named(key: SeriesKey, varying: frozenset[str]) -> str:
    more = curve_label(key, varying) if varying else ""
    return key.op if not more or more == key.label else f"{key.op} · {more}"


def _library(curves: Sequence[MemoryCurve]) -> Iterator[Block]:
    """The library's copy beside the plain loop."""
    found = beside(curves, "memory_copy", "stream_copy")
    if not found:
        return
    several = len({curve.key.dtype for curve, _, _ in found}) > 1
    told = [
        f"{three_digits(copied.rate / plain.rate)} times on {_threads(curve)} at {format_size(copied.size_bytes)}"
        + (f" of {curve.key.dtype}" if several else "")
        for curve, copied, plain in found
    ]
    on_hosts = [copied.rate > _ALIKE * plain.rate for curve, copied, plain in found if curve.key.device == "cpu"]
    why = "" if not on_hosts else _PAST_CACHES if any(on_hosts) else _NOT_PAST_CACHES
    said = f"memory_copy, the copy of the library, moves {_and(told)} what the plain loop of stream_copy does. {why}"
    yield Paragraph(said.rstrip())


def _threads(curve: MemoryCurve) -> str:
    if curve.threads is None:
        return "a thread of its own" if curve.key.device == "cpu" else "a GPU"
    return f"{curve.threads} thread{'s' if curve.threads > 1 else ''}{curve.where}"


def _and(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _touch(judgement: Judgement) -> Iterator[Block]:
    """What the first touch of a page costs, beside writing one that is there."""
    found = beside(judgement.memory, FIRST_TOUCH, "memory_write")
    if not found:
        return
    columns = (
        Column("Threads"),
        Column("Size S"),
        Column("First touch"),
        Column("Warm write"),
        Column("Times as long"),
        Column("More for 4 KiB", "ns"),
    )
    rows = tuple(
        words(
            (
                MISSING if curve.threads is None else f"{curve.threads}{curve.where}",
                format_size(touched.size_bytes),
                format_time(touched.time_ns),
                format_time(written.time_ns),
                three_digits(touched.time_ns / written.time_ns),
                three_digits(max(0.0, touched.time_ns - written.time_ns) * _PAGE_BYTES / touched.size_bytes),
            )
        )
        for curve, touched, written in found
    )
    yield Paragraph(_TOUCHED)
    yield Table("First touch beside a warm write", columns, rows, row_headers=2, note=_pages(judgement))


def _pages(judgement: Judgement) -> str:
    told = {str(facts.get("thp")) for stored in judgement.dataset.runs for facts in stored.run.environments.values()}
    return f"Transparent huge pages: {', '.join(sorted(told))}. Medians over launches; no interval of the difference."


# --- one kernel ------------------------------------------------------------------------------------------------------


def _kernel(anchor: str, heading: str, curves: Sequence[MemoryCurve], cases: dict[int, CaseSummary]) -> Section:
    varying = varying_fields(curve.key for curve in curves)
    blocks: list[Block] = []
    for start in range(0, len(curves), plots.SLOTS):
        chunk = curves[start : start + plots.SLOTS]
        labels = [_label(curve, varying) for curve in chunk]
        blocks.append(_figure(f"{anchor}-{len(blocks) + 1}", heading, chunk, labels, cases))
    blocks += _plateaus(curves, [_label(curve, varying) for curve in curves])
    return Section(anchor, heading, tuple(blocks))


def _label(curve: MemoryCurve, varying: frozenset[str]) -> str:
    if curve.threads is None:
        return curve_label(curve.key, varying)
    rest = varying - {"threads", "numa_node"}
    more = f" · {curve_label(curve.key, rest)}" if rest else ""
    return f"{curve.threads} thread{'s' if curve.threads > 1 else ''}{curve.where}{more}"


def _figure(
    identity: str, name: str, curves: Sequence[MemoryCurve], labels: Sequence[str], cases: dict[int, CaseSummary]
) -> Figure:
    finding = " ".join(_finding(curve, label) for curve, label in zip(curves, labels, strict=True))
    panel = _panel(curves)
    pictures: tuple[str, ...] = ()
    if plots.drawable(panel.series):
        pictures = (plots.draw(panel, identity, f"{name}: traffic over working set", finding),)
    return Figure(finding, pictures, tuple(_legend(curves, labels)), _numbers(name, curves, labels, cases, pictures))


def _finding(curve: MemoryCurve, label: str) -> str:
    """What a curve shows, in a sentence."""
    last = curve.points[-1]
    end = f"{format_rate(last.rate)} at {format_size(last.size_bytes)}"
    if last.share is not None:
        end += f", {percent(last.share)} % of nominal"
    found = curve.plateaus
    if isinstance(found, Plateaus) and len(found.plateaus) > 1:
        levels = ", ".join(
            f"{format_rate(plateau.rate)} up to {about_size(plateau.last_bytes)}" for plateau in found.plateaus[:-1]
        )
        return f"{label}: {levels}, then {format_rate(found.plateaus[-1].rate)} ({end})."
    return f"{label}: {end}."


def _panel(curves: Sequence[MemoryCurve]) -> Panel:
    series: list[plots.Series] = []
    lines: list[Line] = []
    for slot, curve in enumerate(curves):
        points = tuple(
            plots.Point(point.working_set_bytes, point.rate, point.low, point.high) for point in curve.points
        )
        series.append(plots.Series(slot, points))
        if isinstance(curve.plateaus, Plateaus):
            lines += [
                Line("fit", tuple((float(end), one.rate) for end in (one.first_bytes, one.last_bytes)), slot)
                for one in curve.plateaus.plateaus
            ]
    sizes = [float(point.working_set_bytes) for curve in curves for point in curve.points]
    for nominal in dict.fromkeys(curve.nominal for curve in curves if curve.nominal is not None):
        ends = ((min(sizes), nominal), (max(sizes), nominal))
        lines.append(Line("peak", ends, None, f"nominal {format_rate(nominal)}"))
    return Panel("rate", "Traffic over working set", tuple(series), tuple(lines))


def _legend(curves: Sequence[MemoryCurve], labels: Sequence[str]) -> Iterator[LegendEntry]:
    for slot, label in enumerate(labels):
        yield LegendEntry(plots.swatch(slot, "points"), label)
    if any(isinstance(curve.plateaus, Plateaus) for curve in curves):
        yield LegendEntry(plots.swatch(0 if len(curves) == 1 else None, "fit"), "plateau")
    if any(curve.nominal is not None for curve in curves):
        yield LegendEntry(plots.swatch(None, "peak"), "nominal rate of the memory")


_COLUMNS: Final = (
    Column("Curve", numeric=False),
    Column("Size S"),
    Column("Working set"),
    Column("Time", "µs"),
    Column("Traffic", "GB/s"),
    Column("low", "GB/s"),
    Column("high", "GB/s"),
    Column("Of nominal", "%"),
    Column("Of practical", "%"),
    Column("Launches"),
    Column("Samples"),
    Column("Data", numeric=False),
    Column("Flags", numeric=False),
)


def _numbers(
    name: str,
    curves: Sequence[MemoryCurve],
    labels: Sequence[str],
    cases: dict[int, CaseSummary],
    pictures: Sequence[str],
) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for curve, label in zip(curves, labels, strict=True):
        for point in curve.points:
            case = cases[point.case]
            rows.append(
                (
                    Cell(label),
                    Cell(format_size(point.size_bytes)),
                    Cell(about_size(point.working_set_bytes)),
                    Cell(three_digits(point.time_ns / 1e3)),
                    *map(_giga, (point.rate, point.low, point.high)),
                    _percent(point.share),
                    _percent(point.practical_share),
                    Cell(str(len(point.launch_rates))),
                    Cell(str(sum(group.samples for group in case.groups if group.ranks == curve.key.ranks))),
                    Cell(case.check, tone="plain" if case.check == "verified" else "quiet"),
                    Cell(", ".join(case.flags) or MISSING),
                )
            )
    columns, cells = without_empty(_COLUMNS, rows)
    notes = [_ends(point for curve in curves for point in curve.points)]
    together = sorted({curve.together for curve in curves})
    if together[-1] > 1:
        notes.append(
            f"Of {' or '.join(map(str, together))} ranks of a host together, all that worked at once, over the time "
            "from the first entry to the last exit where the clocks tell."
        )
    return Table(name, columns, cells, row_headers=2, folded=bool(pictures), note=" ".join(notes))


def _ends(points: Iterable[MemoryPoint]) -> str:
    return ends_in_words(Interval(point.low, point.high, point.kind) for point in points)


_PLATEAU_COLUMNS: Final = (
    Column("Curve", numeric=False),
    Column("Plateau", numeric=False),
    Column("Working sets", numeric=False),
    Column("Sizes"),
    Column("Traffic", "GB/s"),
    Column("low", "GB/s"),
    Column("high", "GB/s"),
    Column("Of nominal", "%"),
    Column("What it may be", numeric=False),
)


def _plateaus(curves: Sequence[MemoryCurve], labels: Sequence[str]) -> Iterator[Block]:
    rows: list[tuple[Cell, ...]] = []
    refused: dict[str, list[str]] = {}
    intervals: list[Interval] = []
    for curve, label in zip(curves, labels, strict=True):
        if not isinstance(curve.plateaus, Plateaus):
            refused.setdefault(curve.plateaus.reason, []).append(label)
            continue
        found = curve.plateaus
        for number, (plateau, name) in enumerate(zip(found.plateaus, found.names, strict=True), start=1):
            last = number == len(found.plateaus)
            intervals.append(Interval(plateau.low, plateau.high, plateau.kind))
            rows.append(
                (
                    Cell(label),
                    Cell(name.partition(" (")[0]),
                    Cell(f"{about_size(plateau.first_bytes)} … {about_size(plateau.last_bytes)}"),
                    Cell(str(plateau.sizes)),
                    *map(_giga, (plateau.rate, plateau.low, plateau.high)),
                    _percent(None if curve.nominal is None else plateau.rate / curve.nominal),
                    Cell(found.outermost if last else "a cache, or caches", tone="quiet"),
                )
            )
    if rows:
        columns, cells = without_empty(_PLATEAU_COLUMNS, rows)
        launches = {len(point.launch_rates) for curve in curves for point in curve.points}
        begun = any(isinstance(curve.plateaus, Plateaus) and curve.plateaus.call_bytes > 0 for curve in curves)
        without = ", without the time that a call takes to start by the same curve" if begun else ""
        note = f"The rate is the median over the sizes on it{without}. {_kinds(intervals, launches)}"
        yield Table("Plateaus", columns, cells, row_headers=2, note=note)
    for reason, names in refused.items():
        which = f" for {', '.join(names)}" if len(curves) > 1 else ""
        yield Paragraph(f"No plateaus{which}: {reason}.", tone="quiet")


def _kinds(intervals: Sequence[Interval], launches: Iterable[int]) -> str:
    if all(interval.kind == "none" for interval in intervals):
        return "No interval: " + ("one launch." if max(launches) == 1 else "launches did not measure the same sizes.")
    return ends_in_words(intervals)


def _giga(rate: float | None) -> Cell:
    return Cell(MISSING, tone="quiet") if rate is None else Cell(three_digits(rate / 1e9))


def _percent(share: float | None) -> Cell:
    return Cell(MISSING, tone="quiet") if share is None else Cell(percent(share))
