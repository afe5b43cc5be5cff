"""What ``busbw compare`` prints: bands and beneath them their cases, as aligned columns and as JSON."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from busbw.records import JSON, Case
from busbw.units import format_size, significant
from busbw_analysis.columns import MISSING, aligned
from busbw_analysis.compare import BANDS, NO_SIZE, ComparedBand, ComparedCase, Comparison, blind, too_few
from busbw_analysis.comparison import (
    CONFIDENCE,
    LAUNCHES_FOR_A_TEST,
    PAIRS_FOR_A_VERDICT,
    POWER,
    Estimate,
    Verdict,
)

LAYOUT: Final = 1
"""Version of the JSON layout: raised when a key changes its meaning or goes."""

_COLUMNS: Final = (
    ("case", ""),
    ("launches", "A/B"),
    ("A", "(µs)"),
    ("B", "(µs)"),
    ("B/A", ""),
    ("low", ""),
    ("high", ""),
    ("p", ""),
    ("p adj", ""),
    ("verdict", ""),
)
_TIME_WIDTH: Final = 12
_USUAL: Final = Case(op="", backend="", device="cpu", dtype=None, redop=None, size_bytes=0, ranks=1, nodes=1)
"""What need not be said of a case: everything that is as here, its op, ranks and backend apart."""


def document(comparison: Comparison) -> dict[str, JSON]:
    """The comparison as plain values: times in ns per call, shares as fractions, ``ratio`` time of B over time of A."""
    return {
        "compare": LAYOUT,
        "a": {"runs": list(comparison.first), "launches": comparison.launches[0]},
        "b": {"runs": list(comparison.second), "launches": comparison.launches[1]},
        "test": _test(comparison),
        "correction": "Holm",
        "confidence": CONFIDENCE,
        "power": POWER,
        "within": comparison.within,
        "words": dict(comparison.words()),
        "bands": [_band(band) for band in comparison.bands],
        "left_out": msgspec.to_builtins(comparison.left_out),
        "notices": list(comparison.notices),
    }


def _test(comparison: Comparison) -> str:
    return "signed-rank on pairs of launches" if comparison.paired else "rank-sum on launches"


def _band(band: ComparedBand) -> JSON:
    shared: dict[str, JSON] = msgspec.to_builtins(band.case)
    del shared["size_bytes"]
    return {
        **shared,
        "band": band.band,
        "sizes": list(band.sizes),
        **_numbers(band.estimate, band.verdict),
        "cases": [
            {
                "size_bytes": one.case.size_bytes,
                "statistic": one.statistic,
                "a_ns": one.first_ns,
                "b_ns": one.second_ns,
                **_numbers(one.estimate, one.verdict),
            }
            for one in band.cases
        ],
    }


def _numbers(estimate: Estimate, verdict: Verdict) -> dict[str, JSON]:
    return {
        "verdict": verdict.word,
        "ratio": estimate.ratio,
        "low": estimate.low,
        "high": estimate.high,
        "p_value": estimate.p_value,
        "adjusted_p": verdict.adjusted_p,
        "launches": list(estimate.launches),
        "scatter": estimate.scatter,
        "launches_needed": verdict.needed,
    }


def text(comparison: Comparison) -> str:
    """The same for people: a line a band, its cases indented below it, and what the columns mean."""
    body = [line for band in comparison.bands for line in _lines(band, comparison.within)]
    return aligned(_COLUMNS, body, list(_notes(comparison)))


def _lines(band: ComparedBand, within: float) -> Iterator[list[str]]:
    sizes = [format_size(size) for size in band.sizes]
    shown = "" if band.band == NO_SIZE else f", {sizes[0] if len(sizes) == 1 else f'{sizes[0]} … {sizes[-1]}'}"
    alone = band.cases[0] if len(band.cases) == 1 else None
    times = (MISSING, MISSING) if alone is None else _times(alone)
    yield [f"{label(band.case)}: {band.band}{shown}", *_cells(band.estimate, band.verdict, times, within)]
    if alone is None:
        for one in band.cases:
            name = f"  {format_size(one.case.size_bytes)}{'' if one.statistic == 'median' else ' (means)'}"
            yield [name, *_cells(one.estimate, one.verdict, _times(one), within)]


def label(case: Case) -> str:
    """A case without its size: the op, and what is not the usual."""
    parts = [case.op, case.dtype, case.redop, "in place" if case.in_place else None, case.variant]
    parts += [None if case.group == "all" else f"groups {case.group}", None if case.device == "cpu" else case.device]
    parts += [
        str(getattr(case, name)) for name in ("mode", "sync", "cache") if getattr(case, name) != getattr(_USUAL, name)
    ]
    parts += [None if not case.held else "held", None if not case.root else f"root {case.root}"]
    return " ".join(part for part in parts if part)


def _times(one: ComparedCase) -> tuple[str, str]:
    return significant(one.first_ns / 1e3, 1, _TIME_WIDTH), significant(one.second_ns / 1e3, 1, _TIME_WIDTH)


def _cells(estimate: Estimate, verdict: Verdict, times: tuple[str, str], within: float) -> list[str]:
    return [
        "/".join(map(str, estimate.launches)),
        *times,
        f"{estimate.ratio:.3f}",
        *(MISSING if end is None else f"{end:.3f}" for end in (estimate.low, estimate.high)),
        *(MISSING if p is None else _p(p) for p in (estimate.p_value, verdict.adjusted_p)),
        words(verdict, estimate, within),
    ]


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "<0.001"


def words(verdict: Verdict, estimate: Estimate, within: float) -> str:
    """The verdict for a narrow column."""
    if verdict.word == "equal":
        return f"equal within {within:.3g}".replace(f"{within:.3g}", f"{within * 100:.3g} %")
    if verdict.word != "cannot tell":
        return verdict.word
    if verdict.needed is not None:
        return f"cannot tell; {verdict.needed} launches a side would"
    if estimate.scatter is None:
        fewest = PAIRS_FOR_A_VERDICT if estimate.paired else LAUNCHES_FOR_A_TEST
        return f"cannot tell; from {fewest} launches a side on"
    return "cannot tell; more than 1000 launches a side would"


def _notes(comparison: Comparison) -> Iterator[str]:
    bands = "; ".join(
        f"{name}: {'below ' + format_size(high) if high else 'from ' + format_size(low) + ' on'}"
        for name, low, high in BANDS
    )
    within = f"{comparison.within * 100:.3g} %"
    over = "neighbouring launches" if comparison.paired else "launches"
    yield f"A: {_side(comparison.first, comparison.launches[0])}"
    yield f"B: {_side(comparison.second, comparison.launches[1])}"
    yield "A, B: median over launches of the launch medians; means: of the launch means, where the times have two modes"
    yield f"B/A: ratio of times over {over} (Hodges-Lehmann), B is slower above 1; low, high: exact 95 % interval"
    yield f"a band counts a launch with the geometric mean over its sizes; {bands}"
    yield f"p: exact {_test(comparison)}; p adj: after Holm, bands among bands and sizes among sizes; 5 % decides"
    yield (
        f"equal: the interval lies within ± {within}, however small p is; launches that would tell {within} from none: "
        f"with {POWER:.0%} power, from the scatter between these launches"
    )
    few = too_few(comparison)
    if few is not None:
        yield few
    yield from blind(comparison)


def _side(runs: Sequence[str], launches: int) -> str:
    return f"{', '.join(runs)} ({launches} launch{'es' if launches != 1 else ''})"


def left_out_lines(comparison: Comparison) -> Iterator[str]:
    """A sentence for every case that could not be compared; like ones together."""
    by_reason: dict[str, list[str]] = {}
    several = len({(one.case.backend, one.case.ranks) for one in comparison.left_out}) > 1
    for one in comparison.left_out:
        size = f" {format_size(one.case.size_bytes)}" if one.case.size_bytes else ""
        where = f" on {one.case.ranks} {one.case.backend} ranks" if several else ""
        by_reason.setdefault(one.why, []).append(f"{label(one.case)}{size}{where}")
    for why, names in by_reason.items():
        yield f"not compared, {why}: {', '.join(names)}"
