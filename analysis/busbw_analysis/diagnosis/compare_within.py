"""One setting compared within runs: each of its values with the first, in the same launches."""

from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Final

from msgspec import structs

from busbw.errors import UsageError, refuse_unknown
from busbw.ops.settings import CaseSettings
from busbw.runs.described import setting_names, setting_of, value_in_words
from busbw.runs.records import Case
from busbw_analysis.data.grouped import grouped
from busbw_analysis.data.load import Dataset
from busbw_analysis.diagnosis.compare import (
    By,
    Comparison,
    LeftOut,
    Material,
    bands_of,
    fewest_launches,
    incomplete_runs,
    labels_of,
    matched,
    starts_of,
)
from busbw_analysis.diagnosis.findings import Finding, disturbances

_MEASURED: Final = ("mode", "group", "root", "op", "size_bytes", "ranks", "nodes")
"""What is measured: cases that differ in it are never compared."""
COMPARABLE: Final = ("backend", *(name for name in setting_names() if name not in _MEASURED))
"""The settings that cases may be compared by."""


def settings_varied(cases: Iterable[Case]) -> tuple[str, ...]:
    """The settings in which some cases differ that have all others in common."""
    every = tuple(cases)
    return tuple(name for name in COMPARABLE if _ops_varied(every, name))


def _ops_varied(cases: Iterable[Case], setting: str) -> frozenset[str]:
    """The operations of which some cases differ in ``setting`` alone."""
    alike = grouped(cases, lambda case: _without(case, setting))
    return frozenset(members[0].op for members in alike.values() if len(members) > 1)


def _without(case: Case, setting: str) -> Hashable:
    """Everything about ``case`` but one setting; settings of a family that are not given are left out."""
    own = structs.asdict(case.settings) if isinstance(case.settings, CaseSettings) else {}
    fields = {**structs.asdict(case), **own, "settings": None, setting: None}
    return frozenset((name, value) for name, value in fields.items() if value is not None)


def compare_within(dataset: Dataset, setting: str, base: str | None = None, *, within: float = 0.05) -> Comparison:
    """Compare each value of ``setting`` (B) with ``base``, or with the first one (A). Launches are paired: both values
    were measured in each.

    Raises UsageError for a setting that is unknown or has one value, for an unknown ``base``, and if no launch has a
    result with both values.
    """
    name = setting.strip().replace("-", "_")
    ops = _ops_varied(_known(dataset, name), name)
    summaries = {summary.case: summary for summary in dataset.summaries if summary.case.op in ops}
    by_value = grouped(summaries, lambda case: value_in_words(name, setting_of(case, name)))
    base = next(iter(by_value)) if base is None else base
    if base not in by_value:
        refuse_unknown("--base", base, by_value)
    by = By(name, base, tuple(value for value in by_value if value != base))
    cases_a = {case: summaries[case] for case in by_value[base]}
    partners = {_without(case, name): case for case in cases_a}
    pairs = [(launch, launch) for launch in starts_of(dataset)]
    usable: list[Material] = []
    left_out: list[LeftOut] = []
    for value in by.values:
        cases_b = {partners.get(_without(case, name), case): summaries[case] for case in by_value[value]}
        side_a, side_b = (dataset, cases_a, f"with {base}"), (dataset, cases_b, f"with {value}")
        timed, out = matched(side_a, side_b, pairs)
        usable += [replace(material, case=cases_b[material.case].case) for material in timed]
        left_out += out
    if not usable:
        why = "; ".join(dict.fromkeys(left.why for left in left_out))
        raise UsageError(f"nothing can be compared, because no launch has times with two values of {name}: {why}")
    runs = tuple(stored.run.id for stored in dataset.runs)
    sides_a, sides_b = zip(*(material.sides for material in usable), strict=True)
    notices = [Finding("caution", "store", (notice,)) for notice in dataset.notices]
    return Comparison(
        first=runs,
        second=runs,
        labels=(labels_of(dataset), labels_of(dataset)),
        launches=(fewest_launches(dataset, sides_a), fewest_launches(dataset, sides_b)),
        within=within,
        paired=True,
        in_turns=True,
        bands=bands_of(usable, pairs, within),
        left_out=tuple(left_out),
        notices=(*notices, *disturbances([summary for summary in summaries.values() if summary.state == "measured"])),
        incomplete=tuple(incomplete_runs(None, dataset)),
        by=by,
    )


def _known(dataset: Dataset, setting: str) -> tuple[Case, ...]:
    """The cases of ``dataset``. Raises UsageError for a setting that is unknown or has one value."""
    cases = tuple(summary.case for summary in dataset.summaries)
    if setting in _MEASURED:
        raise UsageError(f"--by {setting}: cases that differ in it are not compared; allowed: {', '.join(COMPARABLE)}")
    if setting not in COMPARABLE:
        refuse_unknown("--by", setting, COMPARABLE)
    varied = settings_varied(cases)
    if setting not in varied:
        has = f"compare by {' or '.join(varied)}, or measure both" if varied else "measure both"
        none = f"--by {setting}: no operation of these runs was measured with two values of it"
        raise UsageError(f"{none}; {has} in one run")
    return cases
