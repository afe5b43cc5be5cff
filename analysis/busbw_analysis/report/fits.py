"""What ``busbw fit`` and the report show: fits of single curves, crossovers of algorithms, what NCCL's model expects.

NCCL's model is made to rank its choices, not to predict times: it is shown for comparison and judges nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final

from busbw.system.catalog import Catalogue
from busbw.units import about_size, counted, format_rate, format_seconds, format_size, listed, significant
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.sentences import sentences
from busbw_analysis.data.series import Series, SeriesKey
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.algorithms import AlgorithmComparison, Crossing, Gain, Pair
from busbw_analysis.diagnosis.judge import Curve, Judgement
from busbw_analysis.diagnosis.verdicts import against_model
from busbw_analysis.fitting.curve import Bounds, Fit, Segment
from busbw_analysis.models.costs import NCCL
from busbw_analysis.models.nccl import ONE_ELEMENT_BYTES, SOURCE, choices_of, seconds
from busbw_analysis.report.document import MISSING, Cell, Column, Table, Tone, percent, table

TONES: Final[dict[bool | None, Tone]] = {True: "good", False: "caution", None: "quiet"}
"""Validated, not validated, nothing to validate with."""

_NOTES: Final = (
    "T = α + S β in each segment; rates, 1/β, are the limits of the last segment; n½: size with half of that rate",
    "held-out: errors on every second size and on each launch in turn, predicted by a fit without them",
    "validated: the medians of both held-out errors and the mean residual are at most 10 %; +: a further segment",
)
_DIGITS: Final = 8


@dataclass(frozen=True, slots=True)
class _Line:
    """A segment of a fitted curve, or a curve without a fit.

    name: the name of the curve.
    number: index of the segment, from 0.
    """

    name: str
    curve: Curve
    fit: Fit | None
    segment: Segment | None
    number: int

    @property
    def breakpoint(self) -> float | None:
        """The size at which the fit changes to this segment."""
        return self.fit.breaks_bytes[self.number - 1] if self.fit and self.number else None


def _first(value: Callable[[Fit], object]) -> Callable[[_Line], object]:
    """A value of the whole fit, shown in the row of its first segment."""
    return lambda line: None if line.fit is None or line.number else value(line.fit)


def _last(value: Callable[[Fit], object]) -> Callable[[_Line], object]:
    """A limit of the last segment, shown in its row."""
    return lambda line: None if line.fit is None or line.segment is not line.fit.segments[-1] else value(line.fit)


def _verdict(fit: Fit) -> Cell:
    return Cell("validated" if fit.validated else fit.validation_note, tone=TONES[fit.validated])


def _algbw(fit: Fit) -> Bounds | None:
    return None if fit.intervals is None else fit.intervals.algbw


_COLUMNS: Final[tuple[Column[_Line], ...]] = (
    Column("Curve", lambda line: "  +" if line.number else line.name),
    Column("α", lambda line: line.segment and line.segment.alpha_seconds, format_seconds),
    Column("algbw", _last(lambda fit: fit.algbw), format_rate),
    Column("n½", _last(lambda fit: fit.half_size_bytes), about_size),
    Column("Verdict", _first(_verdict)),
    Column("Sizes", _first(lambda fit: len(fit.sizes_bytes)), str),
    Column("From", lambda line: line.segment and line.segment.first_bytes, format_size),
    Column("To", lambda line: line.segment and line.segment.last_bytes, format_size),
    Column("Breakpoint", lambda line: line.breakpoint, about_size),
    Column("α low", _first(lambda fit: fit.intervals and fit.intervals.alpha_seconds.low), format_seconds),
    Column("α high", _first(lambda fit: fit.intervals and fit.intervals.alpha_seconds.high), format_seconds),
    Column("algbw low", _last(lambda fit: (ends := _algbw(fit)) and ends.low), format_rate),
    Column("algbw high", _last(lambda fit: (ends := _algbw(fit)) and ends.high), format_rate),
    Column("busbw", _last(lambda fit: fit.busbw), format_rate),
    Column("mean", _first(lambda fit: fit.mean_residual), percent, "%", "Residual"),
    Column("worst", _first(lambda fit: fit.max_residual), percent, "%", "Residual"),
    Column("median", _first(lambda fit: fit.held_out_sizes.median_error), percent, "%", "Held-out sizes"),
    Column("worst", _first(lambda fit: fit.held_out_sizes.worst_error), percent, "%", "Held-out sizes"),
    Column("median", _first(lambda fit: fit.held_out_launches.median_error), percent, "%", "Held-out launches"),
    Column("worst", _first(lambda fit: fit.held_out_launches.worst_error), percent, "%", "Held-out launches"),
    Column("Note", lambda line: "; ".join(_notes(line)) or None),
)


def fits_table(named: Iterable[tuple[str, Curve]]) -> Table:
    """One row for each segment of each named curve, and one for each curve without a fit."""
    lines = [
        _Line(name, curve, fit, segment, number)
        for name, curve in named
        for fit in [curve.fit if isinstance(curve.fit, Fit) else None]
        for number, segment in enumerate(fit.segments if fit else [None])
    ]
    fits = [line.fit for line in lines if line.fit and line.fit.interval_note]
    ends = dict.fromkeys(f"{'low, high: ' * (fit.intervals is not None)}{fit.interval_note}" for fit in fits)
    notes = (*_NOTES, *ends)
    return table("Fits of single curves", _COLUMNS, lines, *notes)


def _notes(line: _Line) -> Iterable[str]:
    if isinstance(line.curve.fit, Unavailable):
        yield f"no fit: {line.curve.fit.reason}"
    if line.segment is None:
        return
    if not line.number and (model := against_model(line.curve)) is not None:
        low, high = (significant(model[name], 2, _DIGITS) for name in ("least_ratio", "largest_ratio"))
        share = model["best_bound_share"]
        beaten = share is not None and share > _BEATEN
        least = "" if share is None or beaten else f", at least {1 / share:.3g} × the lower bound"
        yield f"{low}–{high} × the model's time ({model['algorithm']}){least}"
        if beaten:
            yield (
                f"CAUTION: {share:.3g} times as fast as the lower bound, so the model's α and β are too slow for this "
                "curve; they are of ping_pong, the fit is not"
            )
    if line.segment.at_bound:
        yield f"{' and '.join(line.segment.at_bound)} at 0"


def names_apart(
    judgements: Sequence[Judgement], keys_of: Callable[[Judgement], Iterable[SeriesKey]]
) -> list[tuple[Judgement, Mapping[SeriesKey, str]]]:
    """The names of all curves of several ``judgements``, which differ in ranks or hosts.

    A name that several have, such as messages between two ranks, is followed by the number of ranks of the run.
    """
    names = [{key: key.label for key in keys_of(judgement)} for judgement in judgements]
    counts = Counter(name for labels in names for name in set(labels.values()))
    named: list[tuple[Judgement, Mapping[SeriesKey, str]]] = []
    for judgement, labels in zip(judgements, names, strict=True):
        ranks, hosts = len(judgement.facts.hosts), len(set(judgement.facts.hosts))
        world = f" of a run of {ranks}{f' on {hosts} hosts' if hosts > 1 else ''}"
        named.append((judgement, {key: f"{name}{world * (counts[name] > 1)}" for key, name in labels.items()}))
    return named


_BEATEN: Final = 1.05
"""Share of the lower bound's speed that scatter does not explain: no algorithm is faster than its bound."""

_NCCL_NOTES: Final = (
    f"{SOURCE}: it ranks NCCL's choices and does not predict times; a plugin may choose otherwise",
    "rates: active links × the rate that NCCL assumes for one; rings and trees are assumed to have 16 channels",
)


@dataclass(frozen=True, slots=True)
class NcclChoice:
    """NCCL's choice for a range of sizes of a curve, and its expected time at the last one; or why it is unknown.

    bus_rate: rate that NCCL assumes for the links of a GPU, in B/s.
    """

    curve: str
    refused: str | None
    algorithm: str | None = None
    protocol: str | None = None
    first_bytes: int | None = None
    last_bytes: int | None = None
    expected_seconds: float | None = None
    measured_seconds: float | None = None
    bus_rate: float | None = None


_NCCL_COLUMNS: Final[tuple[Column[NcclChoice], ...]] = (
    Column("curve", lambda choice: choice.curve),
    Column("algorithm", lambda choice: choice.algorithm),
    Column("protocol", lambda choice: choice.protocol),
    Column("from", lambda choice: choice.first_bytes, format_size),
    Column("to", lambda choice: choice.last_bytes, format_size),
    Column("expected", lambda choice: choice.expected_seconds, format_seconds, "at to"),
    Column("measured", lambda choice: choice.measured_seconds, format_seconds, "at to"),
    Column("rate a GPU", lambda choice: choice.bus_rate, format_rate),
    Column("note", lambda choice: choice.refused and f"no model of NCCL: {choice.refused}"),
)


def nccl_table(choices: Sequence[NcclChoice]) -> Table:
    """``choices`` as a table."""
    return table("", _NCCL_COLUMNS, choices, *_NCCL_NOTES)


def nccl_choices(judgement: Judgement, names: Mapping[SeriesKey, str], rows: Catalogue) -> Iterator[NcclChoice]:
    """Every choice for every curve over NCCL."""
    for curve in judgement.curves:
        if curve.series.key.cost_models == NCCL:
            yield from _choices(judgement, curve.series, names[curve.series.key], rows)


def _choices(judgement: Judgement, series: Series, name: str, rows: Catalogue) -> Iterator[NcclChoice]:
    points = [point for point in series.points if point.size_bytes or series.key.op == "barrier"]
    tuned = choices_of(judgement.facts, series.key, [point.size_bytes or ONE_ELEMENT_BYTES for point in points], rows)
    if isinstance(tuned, Unavailable):
        yield NcclChoice(name, tuned.reason)
        return
    machine, chosen = tuned
    for expectation, members in groupby(zip(chosen, points, strict=True), key=itemgetter(0)):
        ends = [point for _, point in members]
        first, last = (point.size_bytes or ONE_ELEMENT_BYTES for point in (ends[0], ends[-1]))
        yield NcclChoice(
            name,
            None,
            expectation.algorithm,
            expectation.protocol,
            first,
            last,
            seconds(expectation, last),
            ends[-1].time_ns / 1e9,
            machine.bus_rate,
        )


UNDECIDED: Final = "undecided"
_PAIRS: Final = 6
"""Up to this many pairs (those of four algorithms), all are shown."""
_NAMED: Final = 3

_CROSSING_NOTES: Final = (
    "faster: the intervals do not overlap; in brackets the range of the crossover; S*: crossover of the formulas",
    "undecided: the intervals overlap at every size; contradicts the model: the formulas favour the other one",
)


def shown(comparison: AlgorithmComparison) -> tuple[Pair, ...]:
    """The pairs to show: of many pairs, those with an algorithm that is the fastest somewhere.

    All pairs if no size is common to all algorithms, so that none is known to be the fastest.
    """
    leaders = comparison.leaders
    if len(comparison.pairs) <= _PAIRS or not leaders:
        return comparison.pairs
    return tuple(pair for pair in comparison.pairs if not set(leaders).isdisjoint(pair.names))


def measured_words(pair: Pair) -> str:
    """Which of two algorithms was faster, by size: ``tree up to 23 KiB (20 KiB … 27 KiB), then ring``."""
    count, undecided = len(pair.sizes_bytes), pair.undecided
    if len(undecided) == count:
        return f"{UNDECIDED} at all {counted(count, 'size')}"
    if pair.measured:
        turns = ", ".join(f"{turn.below} up to {about_size(turn.at_bytes)}{_range(turn)}" for turn in pair.measured)
        text = f"{turns}, then {pair.measured[-1].above}"
    else:
        name = next(name for name in pair.faster if name is not None)
        text = f"{name} at {count - len(undecided)} of {counted(count, 'size')}"
    return f"{text}; {UNDECIDED} at {listed(map(format_size, undecided), _NAMED)}" if undecided else text


def _range(crossing: Crossing) -> str:
    if crossing.low_bytes is None or crossing.high_bytes is None:
        return " (no interval)"
    return f" ({about_size(crossing.low_bytes)} … {about_size(crossing.high_bytes)})"


def formula_words(pair: Pair) -> str:
    """S* of the pair, also beyond the measured sizes, and the algorithm that is faster above it."""
    if isinstance(pair.expected, Unavailable):
        return MISSING
    if pair.expected.crossings:
        turns = pair.expected.crossings[:_NAMED]
        return ", ".join(f"{about_size(crossing.at_bytes)}, then {crossing.above}" for crossing in turns)
    cheaper = dict.fromkeys(name for name in pair.expected.faster.values() if name is not None)
    return f"none: {listed(cheaper) or 'they cost the same'}"


def agreement_words(pair: Pair) -> str:
    """The measured crossovers over S* as ratios, or in words if there is not one of each."""
    expected = pair.expected
    if isinstance(expected, Unavailable):
        return MISSING
    if pair.measured:
        ratios = [pair.ratio(crossing) for crossing in pair.measured]
        words = ["not predicted" if ratio is None else f"{ratio:#.2g}".rstrip(".") for ratio in ratios]
        return ", ".join(words if any(ratios) else words[:1])
    certain = [(size, name) for size, name in zip(pair.sizes_bytes, pair.faster, strict=True) if name is not None]
    held = [name == by_formula for size, name in certain if (by_formula := expected.faster.get(size)) is not None]
    return UNDECIDED if not held else "as predicted" if all(held) else "contradicts the model"


def gain_words(gain: Gain) -> str:
    """``ring 2.1 ×``."""
    return f"{gain.faster} {gain.times:.3g} ×" if gain.sure else UNDECIDED


def origin_words(pair: Pair) -> str:
    """The origin of the parameters of S*, or why there is no S*."""
    expected = pair.expected
    return f"no S*: {expected.reason}" if isinstance(expected, Unavailable) else f"S* by {expected.origin}"


def crossing_table(comparison: AlgorithmComparison, name: str | None = None) -> Table:
    """A row for every two algorithms that are shown; ``name`` is the name of the curve."""
    pairs = shown(comparison)
    ends = (min(pair.sizes_bytes[0] for pair in pairs), max(pair.sizes_bytes[-1] for pair in pairs))
    columns: list[Column[Pair]] = [
        Column("Algorithms", lambda pair: " and ".join(pair.names)),
        Column("Faster, as measured", measured_words),
        Column("S*", formula_words),
        Column("Measured / S*", agreement_words),
        Column(f"At {format_size(ends[0])}", lambda pair: gain_words(pair.smallest)),
        Column(f"At {format_size(ends[1])}", lambda pair: gain_words(pair.largest)),
    ]
    more = len(comparison.pairs) - len(pairs)
    kinds = dict.fromkeys(point.interval.kind for series in comparison.curves.values() for point in series.points)
    origins = by_key((origin_words(pair), " and ".join(pair.names)) for pair in pairs)
    notes = [
        f"intervals: {', '.join(kinds)}{'; sizes without one are decided by medians alone' if 'none' in kinds else ''}",
        *(f"{words} ({'; '.join(names)})" if len(origins) > 1 else words for words, names in origins.items()),
        *_CROSSING_NOTES,
        *([f"{more} more pairs are in the JSON"] if more else []),
    ]
    return table(f"{name or comparison.key.label}: every two algorithms", columns[: 4 + len(set(ends))], pairs, *notes)


def fastest_in_turn(comparison: AlgorithmComparison) -> Iterator[str]:
    """The fastest algorithm, or the certain crossovers; nothing if no size is common to all algorithms."""
    turns = sorted(comparison.turns, key=lambda turn: turn[0].at_bytes)
    changes = [
        f"{crossing.below} gives way to {crossing.above} at {about_size(crossing.at_bytes)}"
        + ("" if expected is None else f", where S* is {about_size(expected)}")
        for crossing, expected in turns
    ]
    if changes:
        yield sentences("; ".join(changes))
    elif comparison.leaders:
        yield f"By the medians, the fastest is {', then '.join(comparison.leaders)}; no crossover is certain."
