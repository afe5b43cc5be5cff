"""Output of ``busbw compare``: bands of sizes and their cases, as aligned columns and as JSON."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from busbw.runs.records import JSON, Case
from busbw.units import counted, format_size, format_time, listed
from busbw_analysis.data.as_json import plain, values_of
from busbw_analysis.data.bands import SIZES_OF_BANDS
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.sentences import sentences
from busbw_analysis.diagnosis.compare import UNTESTED, By, Compared, Comparison
from busbw_analysis.diagnosis.compare_answer import (
    decides,
    gist,
    hopeless,
    label,
    shared_words,
    titles_of,
    trust_in_comparison,
    unit,
)
from busbw_analysis.diagnosis.findings import Finding, case_name
from busbw_analysis.diagnosis.hypothesis_tests import CONFIDENCE, POWER, Label, percent, shown_from
from busbw_analysis.report.document import Cell, Column, Paragraph, Table, Tone, table

LAYOUT: Final = 1
"""Version of the JSON layout; raised when a key is removed or changes its meaning."""

_TONES: Final[dict[Label, Tone]] = {"faster": "good", "slower": "caution", "equal": "good", "cannot tell": "plain"}
_NAMED: Final = 3
"""Most cases of a kind that are named; JSON has all of them."""


def document(comparison: Comparison) -> dict[str, JSON]:
    """The comparison as plain values: times in ns per call, shares as fractions, ``ratio`` time of B over time of A."""
    confidence, trust = trust_in_comparison(comparison)
    return {
        "compare": LAYOUT,
        "a": _side_numbers(comparison, 0),
        "b": _side_numbers(comparison, 1),
        "by": plain(comparison.by),
        "test": _test(comparison),
        "correction": "Holm",
        "confidence": CONFIDENCE,
        "power": POWER,
        "within": comparison.within,
        "answer": sentences(*gist(comparison)),
        "action": sentences(decides(comparison)),
        "trust": sentences(*trust),
        "trust_confidence": confidence,
        "verdicts": dict(Counter(band.verdict.word for band in comparison.bands)),
        "bands": [_band(band, comparison.by) for band in comparison.bands],
        "left_out": msgspec.to_builtins(comparison.left_out),
        "in_turns": comparison.in_turns,
        "notices": [notice.text for notice in comparison.notices],
    }


def _side_numbers(comparison: Comparison, side: int) -> JSON:
    incomplete = [
        {**msgspec.to_builtins(run), "ended": sentences(*run.ended) or None}
        for run in comparison.incomplete
        if run.side in {None, "AB"[side]}
    ]
    runs = (comparison.first, comparison.second)[side]
    labels = list(comparison.labels[side])
    return {"runs": list(runs), "labels": labels, "launches": comparison.launches[side], "incomplete": incomplete}


def _test(comparison: Comparison) -> str:
    if comparison.by is not None:
        return "signed-rank on launches"
    return "signed-rank on pairs of launches" if comparison.paired else "rank-sum on launches"


def _band(band: Compared, by: By | None) -> JSON:
    shared: dict[str, JSON] = msgspec.to_builtins(band.case)
    del shared["size_bytes"]
    return {
        **shared,
        **({} if by is None else {"value": by.value(band.case)}),
        "band": band.band,
        "sizes": list(band.sizes),
        "statistic": band.statistic,
        **_numbers(band),
        "cases": [
            {"size_bytes": compared.case.size_bytes, "statistic": compared.statistic, **_numbers(compared)}
            for compared in band.cases
        ],
    }


def _numbers(compared: Compared) -> dict[str, JSON]:
    verdict = compared.verdict
    return {
        "a_ns": compared.first_ns,
        "b_ns": compared.second_ns,
        "verdict": verdict.word,
        **values_of(compared.estimate, "ratio", "low", "high", "p_value", "launches", "scatter"),
        "adjusted_p": verdict.adjusted_p,
        "launches_needed": verdict.needed and verdict.needed.launches,
        "needed_to_detect": verdict.needed and verdict.needed.detects,
        "fewest_launches": verdict.fewest,
        "detectable": verdict.detectable,
    }


@dataclass(frozen=True, slots=True)
class _Line:
    """A row: a band, or one of its cases below it. ``sizes``: "" for a case."""

    name: str
    sizes: str
    of: Compared


_TIMES: Final[tuple[Column[_Line], ...]] = (
    Column("A", lambda line: line.of.first_ns, format_time),
    Column("B", lambda line: line.of.second_ns, format_time),
)
_SIZES: Final[tuple[Column[_Line], ...]] = (Column("sizes", lambda line: line.sizes or None),)
_RATIOS: Final[tuple[Column[_Line], ...]] = (
    Column("B/A", lambda line: line.of.estimate.ratio, "{:.3f}".format),
    Column("low", lambda line: line.of.estimate.low, "{:.3f}".format),
    Column("high", lambda line: line.of.estimate.high, "{:.3f}".format),
    Column("p adj", lambda line: line.of.verdict.adjusted_p, lambda p: f"{p:.3f}" if p >= 0.001 else "<0.001"),
)
_VERDICT: Final[Column[_Line]] = Column(
    "verdict", lambda line: Cell(line.of.verdict.word, _TONES[line.of.verdict.word])
)


def bands_table(comparison: Comparison) -> Table:
    """One row per band, for the top of a page.

    The verdict is next to the case, so that a narrow page shows it without scrolling; words that all cases share are
    in the first note.
    """
    columns: tuple[Column[_Line], ...] = (
        Column("Case", lambda line: line.name),
        _VERDICT,
        Column("Compared", lambda line: listed(dict.fromkeys(case.statistic for case in line.of.cases))),
        *_TIMES,
        *_RATIOS,
    )
    titles = titles_of(comparison)
    lines = [_Line(_band_name(band, " ".join(titles[label(band.case)])), "", band) for band in comparison.bands]
    shared = ", ".join(shared_words(comparison))
    every = f"all cases: {shared}" if shared else ""
    times = (
        "A, B: the compared statistic of a launch (the mean if samples are bimodal), over several sizes the geometric "
        "mean; median over launches"
    )
    ratio = "B/A: ratio of the same numbers over launches (Hodges-Lehmann), B is slower above 1"
    interval = "low, high: exact 95 % interval"
    return table("B against A by band of sizes", columns, lines, every, times, ratio, interval)


def compare_blocks(comparison: Comparison, *, cases: bool) -> Iterator[Paragraph | Table]:
    """A table for every curve with one row per band and, with ``cases``, its sizes; then notes on the columns.

    Words that all curves share are printed once, above the tables.
    """
    curves = grouped(comparison.bands, lambda band: label(band.case))
    head = list(_sides(comparison))
    head.append(" · ".join(shared_words(comparison)))
    yield Paragraph("\n".join(filter(None, head)))
    why = {_why(band, comparison) for band in comparison.bands if band.verdict.word == "cannot tell"}
    for name, title in titles_of(comparison).items():
        yield _curve(" · ".join(title), curves[name], comparison, cases=cases, explain=len(why) > 1)
    alike = [f"cannot tell: {reason}" for reason in why if len(why) == 1]
    yield Paragraph("\n".join([*alike, *_notes(comparison, cases=cases)]))


def _sides(comparison: Comparison) -> Iterator[str]:
    """The runs of each side with their labels; within runs, the runs once."""
    if (by := comparison.by) is not None:
        each = " in its table" if len(by.values) > 1 else ""
        yield f"A: {by.setting} {by.base}\nB: {by.setting} {listed(by.values)}{each}"
    for name, runs, labels, launches in zip(
        "AB", (comparison.first, comparison.second), comparison.labels, comparison.launches, strict=True
    ):
        label = f" {', '.join(map(repr, labels))}" if labels else ""
        count = f" ({counted(launches, 'launch', 'launches')})" if launches else ""
        if comparison.by is None or name == "A":
            yield f"{'run' if comparison.by else name}: {', '.join(runs)}{label}{count}"


def _curve(title: str, bands: Sequence[Compared], comparison: Comparison, *, cases: bool, explain: bool) -> Table:
    """The bands of one curve; ``explain``: note below how many launches would decide each undecided band."""
    columns: tuple[Column[_Line], ...] = (
        Column("size" if cases else "band", lambda line: line.name),
        *(_TIMES if cases else _SIZES),
        *_RATIOS,
        _VERDICT,
    )
    undecided = [band for band in bands if explain and band.verdict.word == "cannot tell"]
    notes: list[tuple[str, str]] = [(f"cannot tell: {_why(band, comparison)}", band.band) for band in undecided]
    if not comparison.imported:
        fewer = [band for band in bands if band.estimate.launches != comparison.launches]
        notes += [("launches of A and B: {} and {}".format(*band.estimate.launches), band.band) for band in fewer]
        means = [compared.case.size_bytes for band in bands for compared in band.cases if compared.statistic == "mean"]
        notes += [("bimodal samples, so means are compared, not medians", format_size(size)) for size in means]
    return table(
        title,
        columns,
        [line for band in bands for line in _lines(band, cases=cases)],
        *(f"{what} ({', '.join(names)})" for what, names in by_key(notes).items()),
    )


def _lines(band: Compared, *, cases: bool) -> Iterator[_Line]:
    alone = len(band.cases) == 1
    # A size on its own has the verdict of its band, not that among sizes.
    yield _Line(_sizes(band) if cases and alone else band.band, _sizes(band), band)
    for compared in () if alone or not cases else band.cases:
        yield _Line(f"  {format_size(compared.case.size_bytes)}", "", compared)


def _sizes(band: Compared) -> str:
    """The sizes of a band; "" if the operation has none."""
    sizes = [format_size(size) for size in band.sizes]
    return "" if band.band == "no size" else sizes[0] if len(sizes) == 1 else f"{sizes[0]} … {sizes[-1]}"


def _band_name(band: Compared, title: str = "") -> str:
    """The case, the band and its sizes; ``title``: the name of the case if it is not to be its full name."""
    shown = "" if band.band == "no size" else f", {_sizes(band)}"
    return f"{title or label(band.case)}: {band.band}{shown}"


def _why(band: Compared, comparison: Comparison) -> str:
    """The number of launches that an undecided band needs, or the differences that are out of reach."""
    verdict, estimate = band.verdict, band.estimate
    if comparison.imported and 1 in estimate.launches:
        return "one number a side, no test"
    of = unit(comparison)
    if verdict.fewest is not None and hopeless(verdict):
        return f"{verdict.fewest} {of} are needed at least"
    if verdict.needed is None or hopeless(verdict):
        detects = "cannot detect differences" if verdict.detectable is None else shown_from(verdict.detectable)
        return f"{min(estimate.launches)} {of} {detects}"
    if verdict.needed.detects is None:
        return f"{verdict.needed.launches} {of} would show it equal"
    return f"{verdict.needed.launches} {of} would detect {percent(verdict.needed.detects)}"


def _notes(comparison: Comparison, *, cases: bool) -> Iterator[str]:
    """The meaning of the columns."""
    over = "the same launches" if comparison.by else "neighbouring launches" if comparison.paired else "launches"
    yield f"B/A: ratio of times over {over} (Hodges-Lehmann), B is slower above 1"
    if cases:
        of_launches = "median over launches of each launch's median (its mean if the samples are bimodal)"
        statistic = "the number that the tool prints" if comparison.imported else of_launches
        yield f"A, B: {statistic}; the slowest of concurrent groups, the geometric mean of pairs"
    between = ", so its B/A need not lie between theirs" if cases else ""
    yield f"a band of a launch: geometric mean over the sizes{between}; {SIZES_OF_BANDS}"
    if any(band.estimate.p_value is None and band.verdict.word in {"slower", "faster"} for band in comparison.bands):
        yield f"slower, faster of logs: one number a side, at least {UNTESTED:g}× apart, no test"
    if any(band.estimate.p_value is not None for band in comparison.bands):
        family = "bands, and among sizes" if cases else "bands"
        yield f"low, high: exact 95 % interval; p adj: exact {_test(comparison)}, after Holm among {family}"
        yield (
            f"equal: the interval lies within ± {comparison.within * 100:.3g} %, even if p is small; faster, slower: "
            "p adj is at most 5 %"
        )
    if any(band.verdict.detectable is not None for band in comparison.bands):
        yield (
            f"to detect x %: {POWER:.0%} of comparisons call B slower if it is x % slower, given the scatter between "
            "these launches"
        )


def left_out_lines(comparison: Comparison) -> Iterator[str]:
    """A sentence for every reason why cases were not compared."""
    several = len({(left.case.backend, left.case.ranks) for left in comparison.left_out}) > 1
    reasons: list[tuple[tuple[str, str], Case]] = []
    for left in comparison.left_out:
        where = f" on {left.case.ranks} {left.case.backend} ranks" if several else ""
        reasons.append(((left.why, f"{label(left.case)}{where}"), left.case))
    names = (
        (why, f"{curve}, {len(cases)} sizes" if len(cases) > 1 else case_name(cases[0]) + curve[len(label(cases[0])) :])
        for (why, curve), cases in by_key(reasons).items()
    )
    for why, curves in by_key(names).items():
        yield f"not compared, {why}: {'; '.join(curves)}"


def findings(comparison: Comparison) -> tuple[Finding, ...]:
    """Notices on the comparison, and one finding for every run that lacks part of its plan."""
    notices = [notice for notice in comparison.notices if notice.code != "across"]  # the answer has it
    for run in comparison.incomplete:
        lacks = [
            f"{len(cases)} {state} ({listed(map(case_name, cases), _NAMED)})"
            for state, cases in (("failed", run.failed), ("not reached", run.not_reached), ("skipped", run.skipped))
            if cases
        ]
        short = run.launches < run.planned and not run.ended  # ``ended`` already counts the complete launches
        lacks += [f"{run.planned - run.launches} of {run.planned} launches not complete"] if short else []
        missing = f"Run {run.run}: {'; '.join(lacks) or 'no case is missing'}"
        notices.append(Finding("caution", "incomplete", (f"{run.where} is incomplete", *run.ended, missing)))
    return tuple(notices)
