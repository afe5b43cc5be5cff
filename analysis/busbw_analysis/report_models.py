"""The part of a report about theory: each modelled curve beside its model, its lower bound and other algorithms."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from busbw.units import about_size, format_size
from busbw_analysis import model_plots, plots
from busbw_analysis.judge import Curve, Judgement
from busbw_analysis.load import Dataset
from busbw_analysis.model_plots import Part, Ratios
from busbw_analysis.page import (
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
    three_digits,
)
from busbw_analysis.plots import Line, Panel
from busbw_analysis.races import Race
from busbw_analysis.remarks import oversubscribed_hosts
from busbw_analysis.report_crossings import beside_each_other
from busbw_analysis.report_curves import curve_label, ends_in_words, varying_fields
from busbw_analysis.series import Point
from busbw_analysis.summary import CaseSummary, Flag
from busbw_analysis.theory.bounds import Explanation, Fastest, Spent
from busbw_analysis.theory.curve_models import Prediction
from busbw_analysis.theory.fit import Fit
from busbw_analysis.theory.models import NoModel
from busbw_analysis.verdicts import MODEL_TOLERANCE

_OPEN: Final = 6
"""So many curves are shown unfolded; where there are more, a table says what each comes to, and each can be opened."""
_MOST_DRAWN: Final = 30
"""Drawing is most of the work of a report; beyond so many curves there are the tables alone."""
_MOST_OTHERS: Final = 6
_SIZES_IN_TABLE: Final = 4
_NAMED: Final = 3

_HOW: Final = (
    "A model is a formula whose α and β come from messages between two ranks of the same run, and never from the curve "
    "that it is held against. Predicted / measured − 1 is 0 where it is right, below 0 where the call takes longer "
    "than it says. The columns show what share of the measured time the model gives to messages (α) and to bytes "
    "under way (β, or R where all ranks of a host share less); what is left is unexplained. Columns above the line of "
    "100 %: the model says more than was measured."
)
_LEAST: Final = (
    "The lower bound is what no algorithm can do without (Chan et al. 2007), with the same α, β and R; the bound over "
    "the measured time is the efficiency. ⌈lg n⌉ α in it is for messages one at a time: algorithms that send to "
    "several ranks at once (direct, spread, linear, a server) may need less."
)
_KNOWN: Final[dict[Flag, str]] = {
    "bimodal": "its samples have two modes",
    "slow mode": "a slow mode takes more than a tenth of the time",
    "skew>10%": "its ranks come more than a tenth of the time apart",
    "drift": "its times drift",
    "outliers": "it has outliers",
    "disturbed": "something else disturbed the machine meanwhile",
}
"""Flags that say something of the time of a call, as a clause."""


@dataclass(frozen=True, slots=True)
class _Modelled:
    """A curve with its model and what follows from it."""

    curve: Curve
    model: tuple[Prediction, ...]
    explanation: Explanation

    @property
    def rows(self) -> Iterator[tuple[Point, Prediction, Spent]]:
        """Measured, predicted and where the time goes, size by size."""
        yield from zip(self.curve.series.points, self.model, self.explanation.spent, strict=True)

    @property
    def ratios(self) -> list[float]:
        """Measured over predicted."""
        return [point.time_ns / prediction.time_ns for point, prediction, _ in self.rows]


def theory(judgement: Judgement) -> Section | None:
    """A part for every op of which a curve has a model, or of which several algorithms were measured; None where there
    is none. Why a curve has no model stands with the op.
    """
    cases = {case.index: case for case in judgement.cases}
    by_op: dict[str, list[_Modelled]] = {}
    for curve in judgement.curves:
        if (modelled := _modelled(curve)) is not None:
            by_op.setdefault(curve.series.key.op, []).append(modelled)
    races: dict[str, list[Race]] = {}
    for race in judgement.races:
        races.setdefault(race.key.op, []).append(race)
        by_op.setdefault(race.key.op, [])
    if not by_op:
        return None
    count = sum(len(members) for members in by_op.values())
    blocks: list[Block] = [Paragraph(_HOW), Paragraph(_LEAST)] if count else []
    if count > _MOST_DRAWN:
        blocks.append(Paragraph(f"{count} curves have a model; the first {_MOST_DRAWN} are drawn.", tone="quiet"))
    parts: list[Section] = []
    before = 0
    for number, (op, members) in enumerate(by_op.items(), start=1):
        parts.append(
            _operation(
                f"theory-{number}",
                op,
                members,
                [in_words(one.curve, judgement.dataset, cases) for one in members],
                races.get(op, ()),
                drawn=_MOST_DRAWN - before,
                folded=count > _OPEN,
            )
        )
        before += len(members)
    return Section("theory", "Measured against theory", tuple(blocks), tuple(parts))


def _modelled(curve: Curve) -> _Modelled | None:
    if isinstance(curve.model, NoModel) or isinstance(curve.explanation, NoModel):
        return None
    return _Modelled(curve, curve.model, curve.explanation)


def in_words(curve: Curve, dataset: Dataset, cases: Mapping[int, CaseSummary]) -> str:
    """Whether the times of ``curve`` are normal by its model, in one sentence, with what the run itself knows of it;
    "" without a model. No cause is given: what is known is named, and where nothing is, that is said.
    """
    modelled = _modelled(curve)
    if modelled is None:
        return ""
    points, ratios = curve.series.points, modelled.ratios
    outside = [index for index, ratio in enumerate(ratios) if not _inside(ratio)]
    if not outside:
        some = (
            f"From {format_size(points[0].size_bytes)} to {format_size(points[-1].size_bytes)} a" if points[1:] else "A"
        )
        low, high = _times(min(ratios)), _times(max(ratios))
        span = low if low == high else f"{low} to {high}"
        return f"{some} call takes {span} times what the model says, which is normal."
    sure = [index for index in outside if _on_one_side(_ends(modelled, index))]
    place = max(sure or outside, key=lambda index: max(ratios[index], 1 / ratios[index]))
    point, ratio, ends = points[place], ratios[place], _ends(modelled, place)
    text = f"{f'At {format_size(point.size_bytes)} a' if point.size_bytes else 'A'} call takes {_times(ratio)} times"
    text += f" ({_times(ends[0])} to {_times(ends[1])}) what the model says" if ends else " what the model says"
    if not sure:
        text += f", which is undecided: its ends lie on both sides of a factor of {MODEL_TOLERANCE:g}"
    elif ratio < 1:
        text += ": the model is too slow here"
    else:
        known = _known(curve, point, dataset, cases)
        text += f": {', '.join(known)}" if known else ", and nothing that the run recorded says why"
    if points[1:]:
        inside = len(points) - len(outside)
        text += f"; {inside or 'none'} of {len(points)} sizes {'is' if inside == 1 else 'are'} within a factor of "
        text += f"{MODEL_TOLERANCE:g}"
    return f"{text}."


def _inside(ratio: float) -> bool:
    return 1 / MODEL_TOLERANCE <= ratio <= MODEL_TOLERANCE


def _on_one_side(ends: Sequence[float]) -> bool:
    """Whether both ends say the same: slower than the model's tolerance, or faster. Nothing speaks against no ends."""
    return not ends or ends[0] > MODEL_TOLERANCE or ends[1] < 1 / MODEL_TOLERANCE


def _ends(one: _Modelled, place: int) -> tuple[float, ...]:
    """Both ends of what was measured over what was predicted; none where there is no interval."""
    interval, predicted = one.curve.series.points[place].interval, one.model[place].time_ns
    if interval.low_ns is None or interval.high_ns is None:
        return ()
    return interval.low_ns / predicted, interval.high_ns / predicted


def _times(ratio: float) -> str:
    """A ratio with two digits: ``0.35``, ``1.0``, ``2.6``, ``140``."""
    return f"{ratio:#.2g}" if ratio < 9.95 else f"{float(f'{ratio:.2g}'):,.0f}".replace(",", "\u202f")


def _known(curve: Curve, point: Point, dataset: Dataset, cases: Mapping[int, CaseSummary]) -> list[str]:
    """What the run knows that bears on the time of this point, each as a clause."""
    hosts = dataset.hosts_of(curve.series.key.ranks)
    known = [
        f"{ranks} ranks share {cores} core{'s' if cores != 1 else ''}{f' of {host}' if len(hosts) > 1 else ''}"
        for host, (ranks, cores) in oversubscribed_hosts(dataset).items()
        if host in hosts
    ]
    case = cases.get(point.case)
    return known + [words for flag, words in _KNOWN.items() if case is not None and flag in case.flags]


def _operation(
    anchor: str,
    op: str,
    members: Sequence[_Modelled],
    told: Sequence[str],
    races: Sequence[Race],
    *,
    drawn: int,
    folded: bool,
) -> Section:
    varying = varying_fields(one.curve.series.key for one in members)
    several = len(members) > 1
    labels = [curve_label(one.curve.series.key, varying if several else None) for one in members]
    figures = [
        _figure(f"{anchor}-{number}", one, f"{words} {_efficiency(one)}".rstrip(), draw=number <= drawn)
        for number, (one, words) in enumerate(zip(members, told, strict=True), start=1)
    ]
    blocks: list[Block] = [Paragraph(text) for text in _fastest(op, members, labels)]
    notes = dict.fromkeys(one.explanation.sums for one in members if one.explanation.sums)
    blocks += [Paragraph(f"Sums: {note}.", tone="quiet") for note in notes]
    for number, race in enumerate(races, start=1):
        blocks += beside_each_other(race, f"{anchor}-{number}", draw=drawn > 0)
    if not several:
        return Section(anchor, op, (*figures, *blocks))
    parts = tuple(
        Section(f"{anchor}-curve-{number}", label, (figure,), folded=folded)
        for number, (label, figure) in enumerate(zip(labels, figures, strict=True), start=1)
    )
    return Section(anchor, op, (_overview(op, members, labels), *blocks), parts)


def _overview(op: str, members: Sequence[_Modelled], labels: Sequence[str]) -> Table:
    """What each of several curves comes to, so that one can see which to open."""
    rows: list[tuple[Cell, ...]] = []
    for one, label in zip(members, labels, strict=True):
        sizes = [point.size_bytes for point in one.curve.series.points]
        ratios, shares = one.ratios, [spent.bound_share for spent in one.explanation.spent]
        worst = max(range(len(ratios)), key=lambda index: max(ratios[index], 1 / ratios[index]))
        best = max(range(len(shares)), key=lambda index: shares[index] or 0.0)
        share = shares[best]
        rows.append(
            (
                Cell(label),
                Cell(_times(ratios[worst])),
                Cell(_size(sizes[worst])),
                Cell(_times(ratios[-1])),
                Cell(_size(sizes[-1])),
                Cell(MISSING if share is None else percent(share)),
                Cell(MISSING if share is None else _size(sizes[best])),
            )
        )
    columns = (
        Column("Curve", numeric=False),
        Column("farthest", group="Time / model"),
        Column("at", group="Time / model"),
        Column("largest size", group="Time / model"),
        Column("at ", group="Time / model"),
        Column("best", "%", group="Bound / time"),
        Column("at", group="Bound / time"),
    )
    note = "As unsure as the times, whose ends stand with each curve."
    return Table(f"{op}: what each curve comes to", columns, tuple(rows), note=note)


def _size(size_bytes: int) -> str:
    return format_size(size_bytes) if size_bytes else MISSING


def _efficiency(one: _Modelled) -> str:
    """How near the curve comes to the least that any algorithm needs."""
    shares = [(spent.bound_share, spent.size_bytes) for spent in one.explanation.spent if spent.bound_share is not None]
    if not shares:
        return ""
    best, size = max(shares)
    at = f" at {format_size(size)}" if size else ""
    if best > 1:
        return (
            f"It takes less than the lower bound {one.explanation.bound}{at}, which would be {percent(best)} % of its "
            "time: what messages of this run cost does not hold for it."
        )
    return f"It comes nearest to the lower bound {one.explanation.bound}{at}, with an efficiency of {percent(best)} %."


def _fastest(op: str, members: Sequence[_Modelled], labels: Sequence[str]) -> Iterator[str]:
    """Which of the textbook's algorithms should win where, once for all curves that it is the same for."""
    told: dict[str, list[str]] = {}
    for one, label in zip(members, labels, strict=True):
        found = one.explanation.fastest
        if not found or not one.curve.series.points[-1].size_bytes:
            continue
        text = _tied(found[0])
        if len(found) == 1:
            text = f"{text} at every size that was measured"
        else:
            text += "".join(f" up to S* = {about_size(two.from_bytes)}, then {_tied(two)}" for two in found[1:])
        told.setdefault(f"{text}.{_at_once(one)}", []).append(label)
    for text, whose in told.items():
        which = "" if len(told) == 1 else f" for {', '.join(whose)}"
        yield f"By their formulas with the same α, β and R the fastest {op} of the textbooks{which} is {text}"


def _at_once(one: _Modelled) -> str:
    """Which algorithms were not compared, for their formulas know no price of messages that are sent at once."""
    names = [other.algorithm for other in one.explanation.others if other.at_once > 1]
    if not names:
        return ""
    first, last = ", ".join(names[:-1]), names[-1]
    return (
        f" Not compared: {f'{first} and {last}' if first else last}, which send several messages at once; their "
        "formulas take those to cost one α together."
    )


def _tied(found: Fastest) -> str:
    names = found.algorithms
    if len(names) == 1:
        return names[0]
    last = names[-1] if len(names) <= _NAMED else f"{len(names) - _NAMED + 1} more"
    return f"{', '.join(names[: _NAMED - 1 if len(names) > _NAMED else -1])} or {last} (a tie)"


def _figure(identity: str, one: _Modelled, words: str, *, draw: bool) -> Figure:
    curve = one.curve
    points = tuple(
        plots.Point(point.size_bytes, point.time_ns, point.interval.low_ns, point.interval.high_ns)
        for point in curve.series.points
    )
    series = (plots.Series(0, points),)
    if not draw or not plots.drawable(series):
        return Figure(words, (), (), _numbers(one))
    others = _distinct(one)
    lines = [Line("other", vertices, None) for _, vertices in others]
    bound = [(float(spent.size_bytes), spent.bound_ns) for spent in one.explanation.spent if spent.bound_ns is not None]
    lines += [Line("bound", tuple(bound), None)] if bound else []
    lines.append(Line("model", tuple((float(p.size_bytes), p.time_ns) for p in one.model), 0))
    panel = Panel("time", "Measured, predicted and bound", series, tuple(lines))
    ratios = list(_ratios(one))
    columns = list(_columns(one))
    name = curve.series.key.label
    pictures = (
        plots.draw(panel, f"{identity}-time", f"{name}: measured and predicted time over size", words),
        model_plots.draw_ratios(ratios, f"{identity}-ratio", f"{name}: predicted over measured time", words),
        model_plots.draw_stack(columns, f"{identity}-parts", f"{name}: where the time goes", words),
    )
    return Figure(words, pictures, tuple(_legend(one, [label for label, _ in others], ratios, columns)), _numbers(one))


def _distinct(one: _Modelled) -> list[tuple[str, tuple[tuple[float, float], ...]]]:
    """The other algorithms as lines, those with the same times as one line under all their names: the fastest, and of
    those that send several messages for one α only what there is room for.
    """
    lines: dict[tuple[tuple[float, ...], bool], list[str]] = {}
    sizes = [float(spent.size_bytes) for spent in one.explanation.spent]
    own = tuple(float(f"{p.time_ns:.6g}") for p in one.model)
    for other in one.explanation.others:
        times = tuple(float(f"{time_ns:.6g}") for time_ns in other.times_ns)
        if times != own:
            lines.setdefault((times, other.at_once > 1), []).append(other.algorithm)

    def rank(line: tuple[tuple[tuple[float, ...], bool], list[str]]) -> tuple[bool, float]:
        (times, at_once), _ = line
        return at_once, math.prod(time_ns ** (1 / len(sizes)) for time_ns in times)

    return [
        (
            " = ".join(names) + (" (several messages for one α)" if at_once else ""),
            tuple(zip(sizes, times, strict=True)),
        )
        for (times, at_once), names in sorted(lines.items(), key=rank)[:_MOST_OTHERS]
    ]


def _ratios(one: _Modelled) -> Iterator[Ratios]:
    measured = [(point.size_bytes, point.time_ns) for point in one.curve.series.points if point.size_bytes]
    fit = one.curve.fit
    if isinstance(fit, Fit):
        of_fit = []
        for size, time_ns in measured:
            segment = next(
                part for part in reversed(fit.segments) if size >= part.first_bytes or part is fit.segments[0]
            )
            predicted = 1e9 * (segment.alpha_seconds + segment.beta_seconds_per_byte * size)
            of_fit.append((size, predicted / time_ns))
        yield Ratios("fit", tuple(of_fit))
    yield Ratios(
        "model",
        tuple((p.size_bytes, p.time_ns / point.time_ns) for point, p, _ in one.rows if p.size_bytes),
    )


def _parts(spent: Spent) -> Iterator[tuple[Part, float]]:
    """The shares of the measured time, from the floor up; what is unexplained only where there is some."""
    yield "messages", spent.messages_ns / spent.measured_ns
    yield "bytes", spent.bytes_ns / spent.measured_ns
    if spent.sums_ns is not None:
        yield "sums", spent.sums_ns / spent.measured_ns
    if spent.unexplained_ns > 0:
        yield "unexplained", spent.unexplained_ns / spent.measured_ns


def _columns(one: _Modelled) -> Iterator[model_plots.Column]:
    for spent in one.explanation.spent:
        if spent.size_bytes:
            yield model_plots.Column(spent.size_bytes, tuple(_parts(spent)))


_NAMES: Final[dict[Part, str]] = {
    "messages": "messages (α)",
    "bytes": "bytes (β or R)",
    "sums": "sums (γ)",
    "unexplained": "unexplained",
}


def _legend(
    one: _Modelled, others: Iterable[str], ratios: Iterable[Ratios], columns: Iterable[model_plots.Column]
) -> Iterator[LegendEntry]:
    yield LegendEntry(plots.swatch(0, "points"), "measured; in the second picture: the model")
    if any(ratio.kind == "fit" for ratio in ratios):
        yield LegendEntry(plots.swatch(1, "points"), "in the second picture: the fit of this curve")
    yield LegendEntry(plots.swatch(0, "model"), f"model: {', '.join(dict.fromkeys(p.algorithm for p in one.model))}")
    if one.explanation.bound:
        yield LegendEntry(plots.swatch(None, "bound"), f"lower bound: {one.explanation.bound}")
    names = list(others)
    if names:
        yield LegendEntry(plots.swatch(None, "other"), f"other algorithms: {', '.join(names)}")
    shown = {part for column in columns for part, _ in column.shares}
    yield from (LegendEntry(model_plots.swatch(part), name) for part, name in _NAMES.items() if part in shown)


def _numbers(one: _Modelled) -> Table:
    """Where the time goes at a few sizes, from the smallest to the largest."""
    rows = list(one.rows)
    last = len(rows) - 1
    kept = sorted({round(last * step / (_SIZES_IN_TABLE - 1)) for step in range(_SIZES_IN_TABLE)})
    chosen = [rows[place] for place in kept]
    sums = any(spent.sums_ns is not None for _, _, spent in chosen)
    bounded = bool(one.explanation.bound)
    columns = [
        Column("Size S"),
        Column("Time", "µs"),
        Column("low", "µs"),
        Column("high", "µs"),
        Column("Model", "µs"),
        Column("messages (α)", "%", group="Of the time"),
        Column("bytes (β, R)", "%", group="Of the time"),
        *((Column("sums (γ)", "%", group="Of the time"),) if sums else ()),
        Column("unexplained", "%", group="Of the time"),
        *((Column("Lower bound", "µs"), Column("Bound / time", "%")) if bounded else ()),
    ]
    cells = tuple(_row(point, prediction, spent, sums=sums, bounded=bounded) for point, prediction, spent in chosen)
    fewer = f" {len(chosen)} of {len(rows)} sizes." if len(chosen) < len(rows) else ""
    note = f"{ends_in_words(point.interval for point, _, _ in chosen)} Shares are as unsure as the time.{fewer}"
    return Table("Where the time goes", tuple(columns), cells, note=note)


def _share(share: float) -> str:
    """Per cent, of which a thousandth of the whole is the least that is worth a digit."""
    return "< 0.1" if 0 < share < 0.001 else percent(share)


def _row(point: Point, prediction: Prediction, spent: Spent, *, sums: bool, bounded: bool) -> tuple[Cell, ...]:
    low, high = point.interval.low_ns, point.interval.high_ns
    left = spent.unexplained_ns / spent.measured_ns
    cells = [
        Cell(_size(point.size_bytes)),
        *(
            Cell(MISSING if ns is None else three_digits(ns / 1e3))
            for ns in (point.time_ns, low, high, prediction.time_ns)
        ),
        Cell(_share(spent.messages_ns / spent.measured_ns)),
        Cell(_share(spent.bytes_ns / spent.measured_ns)),
    ]
    if sums:
        cells.append(Cell(MISSING if spent.sums_ns is None else _share(spent.sums_ns / spent.measured_ns)))
    cells.append(Cell(_share(left)) if left >= 0 else Cell(f"none: model too slow by {_share(-left)}", tone="quiet"))
    if bounded:
        share = spent.bound_share
        cells.append(Cell(MISSING if spent.bound_ns is None else three_digits(spent.bound_ns / 1e3)))
        cells.append(Cell(MISSING if share is None else percent(share)))
    return tuple(cells)
