"""What ``busbw compare`` prints: bands and beneath them their cases, as aligned columns and as JSON."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from busbw.runs.records import JSON, Case, case_in_words
from busbw.units import format_size, significant
from busbw_analysis.data.bands import SIZES_OF_BANDS
from busbw_analysis.diagnosis.compare import (
    ComparedBand,
    ComparedCase,
    Comparison,
    Gate,
    Reason,
    too_few,
)
from busbw_analysis.diagnosis.hypothesis_tests import CONFIDENCE, POWER, Estimate, Label, Verdict
from busbw_analysis.report.document import Cell, Column, Table, Tone, table

LAYOUT: Final = 1
"""Version of the JSON layout: raised when a key changes its meaning or goes."""

_TIME_WIDTH: Final = 12
_TONES: Final[dict[Label, Tone]] = {"faster": "good", "slower": "caution", "equal": "good", "cannot tell": "quiet"}
_DIFFERENT: Final[tuple[Label, ...]] = ("slower", "faster")
_NAMED: Final = 3
"""So many cases of a kind are named; JSON has all of them."""
_OVER_SIZES: Final = "geometric mean"
"""The statistic of a band of several sizes: over them, of what each size has."""


def document(comparison: Comparison, gate: Gate | None = None) -> dict[str, JSON]:
    """The comparison as plain values: times in ns per call, shares as fractions, ``ratio`` time of B over time of A."""
    broken = {
        side: [msgspec.to_builtins(one) for one in comparison.incomplete if one.side == side] for side in ("A", "B")
    }
    return {
        "compare": LAYOUT,
        "a": {"runs": list(comparison.first), "launches": comparison.launches[0], "incomplete": broken["A"]},
        "b": {"runs": list(comparison.second), "launches": comparison.launches[1], "incomplete": broken["B"]},
        "test": _test(comparison),
        "correction": "Holm",
        "confidence": CONFIDENCE,
        "power": POWER,
        "within": comparison.within,
        "answer": gist(comparison),
        "words": dict(comparison.words()),
        "bands": [_band(band) for band in comparison.bands],
        "left_out": msgspec.to_builtins(comparison.left_out),
        "notices": list(comparison.notices),
        "gate": _gate(gate or comparison.gate(())),
    }


def _gate(gate: Gate) -> JSON:
    return {
        "fail_on": list(gate.fail_on),
        "exit_code": gate.code,
        "reasons": [
            {
                "exit_code": one.code,
                "finding": one.finding,
                "bands": [_band_name(band) for band in one.bands],
                "cases": [_case_name(left.case) for left in one.cases],
                "launches_needed": one.needed,
            }
            for one in gate.reasons
        ],
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
        "statistic": _statistic(band),
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
        "launches_needed": None if verdict.needed is None else verdict.needed.launches,
        "needed_to_detect": None if verdict.needed is None else verdict.needed.detects,
        "fewest_launches": verdict.fewest,
    }


def _statistic(band: ComparedBand) -> str:
    return band.cases[0].statistic if len(band.cases) == 1 else _OVER_SIZES


@dataclass(frozen=True, slots=True)
class _Line:
    """A band, or one of its cases below it: ``one`` is the only case of a band of one size, or that case."""

    name: str
    statistic: str
    one: ComparedCase | None
    estimate: Estimate
    verdict: Verdict


def gist(comparison: Comparison) -> str:
    """What the comparison says in one sentence: bands by verdict, with the strongest of those that differ."""
    found: dict[Label, list[ComparedBand]] = {word: [] for word in _TONES}
    for band in sorted(comparison.bands, key=lambda band: abs(math.log(band.estimate.ratio))):
        found[band.verdict.word].append(band)
    parts = [
        f"{word} in {len(bands)}, most {_band_name(bands[-1])} ({bands[-1].estimate.ratio:.3g} × the time)"
        for word in _DIFFERENT
        if (bands := found[word])
    ]
    if found["equal"]:
        parts.append(f"equal in {len(found['equal'])}")
    if found["cannot tell"]:
        needs = {words(band.verdict, band.estimate, comparison) for band in found["cannot tell"]}
        why = needs.pop().removeprefix("cannot tell; ") if len(needs) == 1 else "each verdict says what it would take"
        parts.append(f"cannot be told in {len(found['cannot tell'])} ({why})")
    return f"B against A, of {len(comparison.bands)} bands of sizes: {'; '.join(parts)}"


def bands_table(comparison: Comparison) -> Table:
    """A line a band in few columns, the verdict first."""
    columns: tuple[Column[ComparedBand], ...] = (
        Column("Case", _band_name),
        Column(
            "Verdict",
            lambda band: Cell(words(band.verdict, band.estimate, comparison), _TONES[band.verdict.word]),
        ),
        Column("B/A", lambda band: band.estimate.ratio, "{:.3f}".format),
        Column("low", lambda band: band.estimate.low, "{:.3f}".format),
        Column("high", lambda band: band.estimate.high, "{:.3f}".format),
    )
    note = "B/A: ratio of times, B is slower above 1; low, high: exact 95 % interval"
    return table("B against A by band of sizes", columns, comparison.bands, note)


def compare_table(comparison: Comparison) -> Table:
    """A line a band, its cases indented below it, and what the columns mean."""
    columns: tuple[Column[_Line], ...] = (
        Column("case", lambda line: line.name),
        Column("launches", lambda line: "/".join(map(str, line.estimate.launches)), str, "A/B"),
        Column("statistic", lambda line: line.statistic, str),
        Column("A", lambda line: line.one and line.one.first_ns, _time, "µs"),
        Column("B", lambda line: line.one and line.one.second_ns, _time, "µs"),
        Column("B/A", lambda line: line.estimate.ratio, "{:.3f}".format),
        Column("low", lambda line: line.estimate.low, "{:.3f}".format),
        Column("high", lambda line: line.estimate.high, "{:.3f}".format),
        Column("p", lambda line: line.estimate.p_value, _p),
        Column("p adj", lambda line: line.verdict.adjusted_p, _p),
        Column("verdict", lambda line: words(line.verdict, line.estimate, comparison)),
    )
    return table(
        "",
        columns,
        [line for band in comparison.bands for line in _lines(band)],
        *_notes(comparison),
    )


def _lines(band: ComparedBand) -> Iterator[_Line]:
    alone = band.cases[0] if len(band.cases) == 1 else None
    yield _Line(_band_name(band), _statistic(band), alone, band.estimate, band.verdict)
    for one in () if alone else band.cases:
        yield _Line(f"  {format_size(one.case.size_bytes)}", one.statistic, one, one.estimate, one.verdict)


def _band_name(band: ComparedBand) -> str:
    sizes = [format_size(size) for size in band.sizes]
    shown = "" if band.band == "no size" else f", {sizes[0] if len(sizes) == 1 else f'{sizes[0]} … {sizes[-1]}'}"
    return f"{label(band.case)}: {band.band}{shown}"


def _case_name(case: Case) -> str:
    return f"{label(case)}{f' {format_size(case.size_bytes)}' if case.size_bytes else ''}"


def label(case: Case) -> str:
    """A case without its size: the op, and what is not the usual."""
    return " ".join(case_in_words(case))


def _time(ns: float) -> str:
    return significant(ns / 1e3, 1, _TIME_WIDTH)


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "<0.001"


def words(verdict: Verdict, estimate: Estimate, comparison: Comparison) -> str:
    """The verdict for a narrow column."""
    within = comparison.within
    if verdict.word != "cannot tell":
        return f"equal within {within * 100:.3g} %" if verdict.word == "equal" else verdict.word
    if comparison.imported and 1 in estimate.launches:
        return "one number a side: no test"
    unit = "tables of logs" if comparison.imported else "pairs" if estimate.paired else "launches a side"
    if verdict.fewest is not None:
        return f"cannot tell; {verdict.fewest} {unit} are the least"
    if verdict.needed is None:
        return f"cannot tell; more than 1000 {unit} would detect {within * 100:.3g} %"
    if verdict.needed.detects is None:
        return f"cannot tell; {verdict.needed.launches} {unit} would show it equal"
    return f"cannot tell; {verdict.needed.launches} {unit} would detect {verdict.needed.detects * 100:.3g} %"


def _notes(comparison: Comparison) -> Iterator[str]:
    within = f"{comparison.within * 100:.3g} %"
    over = "neighbouring launches" if comparison.paired else "launches"
    yield f"A: {_side(comparison.first, comparison.launches[0])}"
    yield f"B: {_side(comparison.second, comparison.launches[1])}"
    of_launches = (
        "median over launches of the statistic of a launch's samples: their median, or their mean where they have two "
        "modes"
    )
    told = "of logs what the tool prints" if comparison.imported else of_launches
    yield f"A, B: {told}; of groups at once the slowest, of pairs the geometric mean"
    means = sum(one.statistic == "mean" for band in comparison.bands for one in band.cases)
    if means and not comparison.imported:
        yield f"sizes compared by their mean: {means}; busbw show prints the medians of all"
    yield f"B/A: ratio of times over {over} (Hodges-Lehmann), B is slower above 1; low, high: exact 95 % interval"
    yield f"a band counts a launch with the geometric mean over its sizes; {SIZES_OF_BANDS}"
    yield f"p: exact {_test(comparison)}; p adj: after Holm, bands among bands and sizes among sizes; 5 % decides"
    yield f"equal: the interval lies within ± {within}, however small p is"
    yield (
        f"launches that would detect x %: of comparisons with so many at least {POWER:.0%} would call B slower were it "
        f"slower by x %, by the scatter between these launches; a smaller difference needs more"
    )
    yield from too_few(comparison)


def _side(runs: Sequence[str], launches: int) -> str:
    told = f" ({launches} launch{'es' if launches != 1 else ''})" if launches else ""
    return f"{', '.join(runs)}{told}"


def left_out_lines(comparison: Comparison) -> Iterator[str]:
    """A sentence for every case that could not be compared; like ones together."""
    by_reason: dict[str, list[str]] = {}
    several = len({(one.case.backend, one.case.ranks) for one in comparison.left_out}) > 1
    for one in comparison.left_out:
        where = f" on {one.case.ranks} {one.case.backend} ranks" if several else ""
        by_reason.setdefault(one.why, []).append(f"{_case_name(one.case)}{where}")
    for why, names in by_reason.items():
        yield f"not compared, {why}: {', '.join(names)}"


def incomplete_lines(comparison: Comparison) -> Iterator[str]:
    """A sentence or two for every run that has less than its plan: of which side, and what it lacks."""
    for one in comparison.incomplete:
        lacks = [
            f"{len(cases)} {state} ({_some([_case_name(case) for case in cases])})"
            for state, cases in (("failed", one.failed), ("not reached", one.not_reached), ("skipped", one.skipped))
            if cases
        ]
        short = one.launches < one.planned and one.ended is None  # how a run ended says how many are complete
        lacks += [f"{one.planned - one.launches} of {one.planned} launches not complete"] if short else []
        ended = f"{one.ended} " if one.ended else ""
        yield f"side {one.side} is incomplete. {ended}Run {one.run}: {'; '.join(lacks) or 'it lacks no case'}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def gate_lines(comparison: Comparison, gate: Gate) -> Iterator[str]:
    """A sentence for every reason why the gate does not pass."""
    for one in gate.reasons:
        yield _reason(comparison, one)


def _reason(comparison: Comparison, reason: Reason) -> str:
    names = ", ".join([*map(_band_name, reason.bands), *(_case_name(one.case) for one in reason.cases)])
    if reason.finding == "too few launches":
        have = ", ".join(dict.fromkeys("/".join(map(str, band.estimate.launches)) for band in reason.bands))
        unit = "pairs" if comparison.paired else "launches a side"
        more = "more turns" if comparison.paired else f"busbw run --launches {reason.needed}, or several runs by commas"
        return (
            f"{len(reason.bands)} of {len(comparison.bands)} bands cannot be judged, however slow B is: {have} "
            f"launches (A/B) are too few, {reason.needed} {unit} are the least ({more}): {names}"
        )
    if reason.finding == "no result":
        return f"{len(reason.cases)} cases that A has cannot be judged, B has no result to compare: {names}"
    return f"{reason.finding}: {names}"
