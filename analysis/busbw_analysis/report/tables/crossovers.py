"""Crossovers of algorithms in words, for ``busbw fit`` and for the report."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from busbw.units import about_size, format_size
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.algorithms import AlgorithmComparison, Crossing, Expected, Gain, Pair
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
    """Which of two algorithms was faster, by size."""
    count = len(pair.sizes_bytes)
    undecided = pair.undecided
    if len(undecided) == count:
        return f"{UNDECIDED} at any of {count} sizes" if count > 1 else f"{UNDECIDED} at the one size"
    if pair.measured:
        text = crossing_words(pair.measured)
    else:
        name = next(name for name in pair.faster if name is not None)
        certain = [size for size in pair.sizes_bytes if size not in undecided]
        if undecided and len(certain) <= _NAMED:
            return f"{name} at {_sizes(certain)}; {UNDECIDED} elsewhere"
        text = f"{name} at {len(certain)} of {count} sizes" if undecided else f"{name} at all {count} sizes"
    if not undecided:
        return text
    return f"{text}; {UNDECIDED} at {_sizes(undecided) if len(undecided) <= _NAMED else f'{len(undecided)} of {count}'}"


def _sizes(sizes_bytes: Iterable[int]) -> str:
    return ", ".join(map(format_size, sizes_bytes))


def crossing_words(crossings: Sequence[Crossing]) -> str:
    """``tree up to 23 KiB (20 KiB … 27 KiB), then ring``."""
    parts = [f"{crossing.below} up to {about_size(crossing.at_bytes)}{_range(crossing)}" for crossing in crossings]
    return f"{', '.join(parts)}, then {crossings[-1].above}"


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
        return f"none: {_at_sizes(expected, len(pair.sizes_bytes))}"
    inside = [crossing for crossing in expected.crossings if _inside(pair, crossing)]
    if inside:
        return ", ".join(f"{about_size(crossing.at_bytes)}, then {crossing.above}" for crossing in inside[:_NAMED])
    middle = math.sqrt(pair.sizes_bytes[0] * pair.sizes_bytes[-1])
    nearest = min(expected.crossings, key=lambda crossing: abs(math.log(crossing.at_bytes / middle)))
    return f"{about_size(nearest.at_bytes)} (not measured), then {nearest.above}"


def _at_sizes(expected: Expected, count: int) -> str:
    """Which formula is cheaper at how many of ``count`` sizes, if the formulas do not cross."""
    places = Counter(name for name in expected.faster.values() if name is not None)
    if not places:
        return "they cost the same"
    return ", ".join(
        f"{name} at all sizes" if number == count else f"{name} at {number} of {count} sizes"
        for name, number in places.items()
    )


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


def intervals_words(comparison: AlgorithmComparison) -> str:
    """The kinds of the times' intervals, and how sizes without one are decided."""
    kinds = dict.fromkeys(point.interval.kind for series in comparison.curves.values() for point in series.points)
    interval_kinds = [kind for kind in kinds if kind != "none"]
    lacking = "none at some sizes, decided by medians alone" if interval_kinds else "none, decided by medians alone"
    return ", ".join([*interval_kinds, *([lacking] if "none" in kinds else [])])


def origin_words(pair: Pair) -> str:
    """The origin of the parameters of S*, or why there is no S*."""
    expected = pair.expected
    return f"no S*: {expected.reason}" if isinstance(expected, Unavailable) else f"S* by {expected.origin}"


def origins(origins_of: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Each text of the pairs (names, text) once, with its names if there are several texts."""
    by_words = by_key((words, names) for names, words in origins_of)
    several = len(by_words) > 1
    return tuple(f"{words} ({'; '.join(names)})" if several else words for words, names in by_words.items())


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
    notes = [
        f"intervals: {intervals_words(comparison)}",
        *origins((" and ".join(pair.names), origin_words(pair)) for pair in pairs),
        *_NOTES,
        *([f"{more} more pairs are in the JSON"] if more else []),
    ]
    return table(f"{name or comparison.key.label}: every two algorithms", columns[: 4 + len(set(ends))], pairs, *notes)
