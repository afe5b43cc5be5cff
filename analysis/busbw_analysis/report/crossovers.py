"""Several algorithms of one op: their distance from the fastest, and crossovers, for ``busbw fit`` and the report."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Final

from busbw.units import about_size, counted, format_size, listed
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.sentences import sentences
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.algorithms import AlgorithmComparison, Crossing, Gain, Pair
from busbw_analysis.report.document import MISSING, Column, Table, table

UNDECIDED: Final = "undecided"
_PAIRS: Final = 6
"""Up to this many pairs (those of four algorithms), all are shown."""
_NAMED: Final = 3

_NOTES: Final = (
    "faster: the intervals do not overlap; in brackets the range of the crossover; S*: crossover of the formulas",
    "not observed: the formulas cross among these sizes, but only one algorithm was measured to be faster",
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
    """S* of the pair and the algorithm that is faster above it; if S* was not measured, the nearest one."""
    expected = pair.expected
    if isinstance(expected, Unavailable):
        return MISSING
    if not expected.crossings:
        count = counted(len(pair.sizes_bytes), "size")
        cheaper = Counter(name for name in expected.faster.values() if name is not None)
        places = ", ".join(f"{name} at {number} of {count}" for name, number in cheaper.items())
        return f"none: {places or 'they cost the same'}"
    inside = [crossing for crossing in expected.crossings if _inside(pair, crossing)]
    if inside:
        return ", ".join(f"{about_size(crossing.at_bytes)}, then {crossing.above}" for crossing in inside[:_NAMED])
    middle = math.sqrt(pair.sizes_bytes[0] * pair.sizes_bytes[-1])
    nearest = min(expected.crossings, key=lambda crossing: abs(math.log(crossing.at_bytes / middle)))
    return f"{about_size(nearest.at_bytes)} (not measured), then {nearest.above}"


def agreement_words(pair: Pair) -> str:
    """The measured crossovers over S* as ratios, or in words if there is not one of each."""
    expected = pair.expected
    if isinstance(expected, Unavailable):
        return MISSING
    if pair.measured:
        ratios = [pair.ratio(crossing) for crossing in pair.measured]
        words = ["not predicted" if ratio is None else f"{ratio:#.2g}".rstrip(".") for ratio in ratios]
        return ", ".join(words if any(ratios) else words[:1])
    certain = {size: name for size, name in zip(pair.sizes_bytes, pair.faster, strict=True) if name is not None}
    if not certain:
        return UNDECIDED
    held = [
        name == by_formula for size, name in certain.items() if (by_formula := expected.faster.get(size)) is not None
    ]
    if any(_inside(pair, crossing) for crossing in expected.crossings):
        return UNDECIDED if all(held) else "not observed"
    if held:
        return "as predicted" if all(held) else "contradicts the model"
    return UNDECIDED if certain.keys().isdisjoint(expected.faster) else "predicted alike"


def _inside(pair: Pair, crossing: Crossing) -> bool:
    return pair.sizes_bytes[0] < crossing.at_bytes < pair.sizes_bytes[-1]


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
        *_NOTES,
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
