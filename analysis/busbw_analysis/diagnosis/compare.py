"""Two datasets compared: what both measured, band by band of sizes and case by case, and what only one measured."""

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import numpy as np
from msgspec import structs

from busbw.errors import UnlikeRuns, UsageError
from busbw.ops import PAIRED
from busbw.ops.settings import AlgorithmSettings, CaseSettings, HostSettings
from busbw.runs.described import setting_of, value_in_words
from busbw.runs.progress import progress_of
from busbw.runs.records import Case, EndStatus
from busbw.runs.store import StoredRun
from busbw.units import listed
from busbw_analysis.data.bands import Band, band_of
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.likeness import OF_LOGS, Difference, differences, refuse_unknown_names
from busbw_analysis.data.load import Dataset
from busbw_analysis.data.summary import CaseState, CaseSummary
from busbw_analysis.diagnosis.findings import Finding, disturbances, ended_in_words
from busbw_analysis.diagnosis.hypothesis_tests import Estimate, Launches, LaunchKey, Pairs, Verdict, estimate, verdicts

SideName = Literal["A", "B"]

UNTESTED: Final = 1.5
"""A ratio of two single numbers from which on they differ: launches of one machine seldom do as much."""
_ACROSS_LOGS: Final = frozenset({"nccl.version", "mpi.library", *OF_LOGS})
"""Differences between logs that a comparison may be about."""
_APART: Final = "measured on both sides, but not in launches that form a pair"

_MEASURED: Final[tuple[CaseState, CaseState]] = ("measured", "measured")

_PART_COMPUTATION: Final = (
    "because a sample in mode overlap contains computation, whose amount every block sets anew (see the overlap in the "
    "report of each side, or measure the call in another mode)"
)


@dataclass(frozen=True, slots=True)
class Compared:
    """One case on both sides, or the sizes of one curve in one band together.

    In a band, each launch counts with the geometric mean of its times over ``sizes``. A launch without one of the sizes
    does not count; if no launch has them all, each size is a band of its own.

    case: what the sizes share; its ``size_bytes`` is the smallest.
    statistic: of the samples within a launch: ``median``, or ``mean`` if either side is bimodal, because a median may
        jump between the modes. For logs, as stated by their tools. ``geometric mean`` over several sizes.
    first_ns, second_ns: median over launches of ``statistic``, ns per call.
    cases: those of a band, one per size.
    """

    case: Case
    statistic: str
    first_ns: float
    second_ns: float
    estimate: Estimate
    verdict: Verdict
    cases: tuple["Compared", ...] = ()

    @property
    def band(self) -> Band:
        """The band of sizes."""
        return band_of(self.case.size_bytes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of a band."""
        return tuple(compared.case.size_bytes for compared in self.cases)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A case that could not be compared, and why.

    missing: the side that lacks something needed for the comparison.
    a, b: state of the case on each side; None if it was not in the plan.
    """

    case: Case
    missing: SideName | Literal["both"]
    why: str
    a: CaseState | None
    b: CaseState | None

    @property
    def unjudged(self) -> bool:
        """Whether A has a result and B planned one, but the two cannot be compared. Mode overlap is never compared."""
        return self.a == "measured" and self.b is not None and self.case.mode != "overlap"


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A run that measured less than its plan.

    side: None: both, of a comparison within runs.
    status: None if the run was killed or is still going on.
    launches: number of complete launches, of ``planned``.
    failed, skipped, not_reached: cases of this run alone, not of other runs of the side.
    """

    side: SideName | None
    run: str
    status: EndStatus | None
    ended: tuple[str, ...]
    launches: int
    planned: int
    failed: tuple[Case, ...]
    skipped: tuple[Case, ...]
    not_reached: tuple[Case, ...]

    @property
    def where(self) -> str:
        """The side, in words."""
        return "each side" if self.side is None else f"side {self.side}"


@dataclass(frozen=True, slots=True)
class By:
    """The setting that is compared within runs: A has the value ``base``, and B each of ``values`` in turn."""

    setting: str
    base: str
    values: tuple[str, ...]

    def value(self, case: Case) -> str:
        """The value of ``case``."""
        return value_in_words(self.setting, setting_of(case, self.setting))


@dataclass(frozen=True, slots=True)
class Comparison:
    """B compared with A.

    labels: of the runs of A and of B, without those that have none.
    launches: of A and B: what every compared case has at least.
    within: the largest difference, as a share, that is called equal.
    in_turns: whether launches of the two sides alternate; False if all of one side were taken before the other's.
    notices: what to know about the comparison.
    imported: a side has logs, which give one number per table and no launches.
    by: what is compared within the same runs, which are on both sides; None: two sides.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    labels: tuple[tuple[str, ...], tuple[str, ...]]
    launches: tuple[int, int]
    within: float
    paired: bool
    in_turns: bool
    bands: tuple[Compared, ...]
    left_out: tuple[LeftOut, ...]
    notices: tuple[Finding, ...]
    incomplete: tuple[Incomplete, ...]
    imported: bool = False
    by: By | None = None


def compare(
    first: Dataset,
    second: Dataset,
    *,
    within: float = 0.05,
    paired: bool = False,
    force: bool = False,
    allow: Collection[str] = (),
) -> Comparison:
    """Compare ``second`` (B) with ``first`` (A), by launches only.

    paired: launches were taken in turns, and neighbours are compared.
    force: turn differences between the sides into notices.
    allow: differences (``Difference.key`` or ``name``) that are meant.

    Raises UsageError if a run is on both sides, launches to be paired were not taken in turns, a name in ``allow`` is
    unknown, or no case has a result on both sides. Raises UnlikeRuns, with all differences and the options that allow
    them, if machines or settings differ, unless ``force``.
    """
    twice = {stored.run.id for stored in first.runs} & {stored.run.id for stored in second.runs}
    if twice:
        raise UsageError(
            f"run {', '.join(sorted(twice))} is on both sides, and a run always equals itself. Give two "
            "different runs; to see which differences this machine can resolve, measure twice"
        )
    refuse_unknown_names(allow, (stored.run for stored in (*first.runs, *second.runs)))
    cases_a, own_b = ({summary.case: summary for summary in side.summaries} for side in (first, second))
    cases_b, across = _match_across(cases_a, own_b)
    notices = [*_unlike(first, second, allow, force=force, comparable=any(_in_both(cases_a, cases_b)))]
    pairs = _pairs(first, second) if paired else None
    for name, side in (("A", first), ("B", second)):
        notices += [_of_side(name, Finding("caution", "store", (notice,))) for notice in side.notices]
    notices += across
    for name, cases in (("A", cases_a), ("B", cases_b)):
        measured = [summary for summary in cases.values() if summary.state == "measured"]
        notices += [_of_side(name, finding) for finding in disturbances(measured)]
    usable, left_out = matched((first, cases_a, "in A"), (second, cases_b, "in B"), pairs)
    if not usable:
        why = "; ".join(f"{reason} ({count})" for reason, count in Counter(left.why for left in left_out).items())
        nothing = (
            f"nothing can be compared, because no case has times on both sides: {why or 'there are no cases'}. Give "
            "runs of the same plan"
        )
        raise UsageError(". ".join([nothing, *_unlike_settings(cases_a, cases_b)]))
    imported = any(stored.run.imported is not None for stored in (*first.runs, *second.runs))
    sides_a, sides_b = zip(*(material.sides for material in usable), strict=True)
    bands = bands_of(usable, pairs, within)
    return Comparison(
        first=tuple(stored.run.id for stored in first.runs),
        second=tuple(stored.run.id for stored in second.runs),
        labels=(labels_of(first), labels_of(second)),
        launches=(fewest_launches(first, sides_a), fewest_launches(second, sides_b)),
        within=within,
        paired=paired,
        in_turns=_in_turns(first, second),
        bands=tuple(map(_without_test, bands) if imported else bands),
        left_out=tuple(left_out),
        notices=tuple(dict.fromkeys(notices)),
        incomplete=(*incomplete_runs("A", first), *incomplete_runs("B", second)),
        imported=imported,
    )


def _of_side(name: str, finding: Finding) -> Finding:
    return replace(finding, sentences=(f"side {name}: {finding.claim}", *finding.sentences[1:]))


def labels_of(dataset: Dataset) -> tuple[str, ...]:
    """The distinct labels of the runs of a side."""
    return tuple(dict.fromkeys(label for stored in dataset.runs if (label := stored.run.plan.label) is not None))


def _ended_well(stored: StoredRun) -> bool:
    return stored.end is not None and stored.end.status == "complete"


def incomplete_runs(side: SideName | None, dataset: Dataset) -> Iterator[Incomplete]:
    """The runs of a side that measured less than their plan."""
    for stored in dataset.runs:
        progress = progress_of(stored)
        wrong = [case for case, check in stored.checks if check.state == "wrong"]
        run = Incomplete(
            side=side,
            run=stored.run.id,
            status=None if stored.end is None else stored.end.status,
            ended=() if _ended_well(stored) else ended_in_words(stored, progress),
            launches=progress.complete,
            planned=progress.planned,
            failed=tuple(dict.fromkeys([*(row.case for row in stored.failed), *wrong])),
            skipped=tuple(dict.fromkeys(row.case for row in stored.skipped)),
            not_reached=stored.not_reached,
        )
        lacks = run.failed or run.skipped or run.not_reached
        if lacks or not _ended_well(stored) or run.launches < run.planned:
            yield run


def _unlike(
    first: Dataset, second: Dataset, allow: Collection[str], *, force: bool, comparable: bool
) -> Iterator[Finding]:
    """Notices of the differences between the runs of both sides; ``comparable``: there are cases to compare.

    Raises UnlikeRuns for differences that are neither forced nor allowed.
    """
    base = first.runs[0]
    differing = [difference for stored in (*first.runs, *second.runs) for difference in differences(base, stored)]
    if any(difference.key == "backend" for difference in differing):
        differing = [difference for difference in differing if not difference.is_of_backend]
    for difference in differing:
        if difference.unknown_in is not None:
            text = f"run {difference.unknown_in} did not record {difference.key!r}, so this could not be checked"
            yield Finding("caution", "not-recorded", (text,))
    known = [difference for difference in differing if difference.unknown_in is None]
    meant = {*allow, *(_ACROSS_LOGS if base.run.imported is not None else ())}
    of_b = {stored.run.id for stored in second.runs}
    across = [each for each in known if each.runs[1] in of_b and meant & {each.key, each.name}]
    # The ops whose cases differ in it are named with it (``_match_across``).
    clauses = dict.fromkeys(_between_sides(each) for each in across if each.key not in _ACROSS)
    if clauses:
        yield Finding("caution", "across", (f"compared across {listed(clauses)}",))
    for name in dict.fromkeys(allow):
        if not any(name in {each.key, each.name} for each in differing):
            yield Finding("note", "not-different", (f"--allow {name}: A and B do not differ in it",))
    refused = [difference for difference in known if difference not in across]
    if refused and not force:
        needed = [name for name in allow if any(name in {each.key, each.name} for each in known)]
        raise UnlikeRuns(_refusal(refused, needed, comparable=comparable))
    texts = dict.fromkeys(difference.text for difference in refused)
    yield from (Finding("caution", "forced", (f"compared by force although {text}",)) for text in texts)


def _between_sides(difference: Difference) -> str:
    """The name of a difference with the values of A and B."""
    name = difference.name if difference.variable is None else difference.variable.in_words
    a, b = ("not set" if value is None else value for value in difference.values)
    return f"{name} {a} in A and {b} in B"


def _refusal(refused: Sequence[Difference], allow: Collection[str], *, comparable: bool) -> str:
    """The message about differences, with the options that allow them if something can be compared then."""
    texts = dict.fromkeys(difference.text for difference in refused)
    options = (f"--allow {shlex.quote(name)}" for name in dict.fromkeys([*allow, *(each.name for each in refused)]))
    meant = f"If that is what you compare, add {' '.join(options)}; --force compares them whatever differs"
    nothing = "They have no case in common, so they cannot be compared"
    return f"these runs differ: {'; '.join(texts)}. {meant if comparable else nothing}; busbw report A B draws both"


def starts_of(dataset: Dataset) -> dict[LaunchKey, str]:
    """When each launch that measured something began."""
    measured = {(run, row.launch) for run, stored in enumerate(dataset.runs) for row in stored.measurements}
    return {
        (stored.run.id, row.launch): row.started
        for number, stored in enumerate(dataset.runs)
        for row in stored.launches
        if (number, row.launch) in measured
    }


def fewest_launches(dataset: Dataset, cases: Iterable[Launches]) -> int:
    """The number of launches that every case has at least, as in the answer of ``busbw show``.

    Not the number of launches that began: one that measures the blocks that another lacks, as in a resumed run, is one
    launch more only of the cases that both measured. 0 for logs, which have none.
    """
    return min(map(len, cases), default=0) if starts_of(dataset) else 0


def _pairs(first: Dataset, second: Dataset) -> Pairs:
    """Neighbours in time, one launch of each side: A B B A A B becomes (A B) (B A) (A B)."""
    sides = (("A", starts_of(first)), ("B", starts_of(second)))
    both = sorted((began, side, key) for side, starts in sides for key, began in starts.items())
    turns = ({side: key for _, side, key in two} for two in zip(both[::2], both[1::2], strict=False))
    pairs = [(turn["A"], turn["B"]) for turn in turns if len(turn) == 2]
    if len(pairs) * 2 != len(both):
        order = "".join(side for _, side, _ in both)
        raise UsageError(
            f"--paired needs launches that were taken in turns (A B B A …); these began in the order {order}. Compare "
            "without --paired, or measure in turns with busbw run --launches 1: one of A, two of B, one of A and so on "
            "(loop in docs/usage.md, Compare two runs). Then give the runs of each side, separated by commas"
        )
    return pairs


def _in_turns(first: Dataset, second: Dataset) -> bool:
    """Whether launches of the sides alternate in time; also if their times are unknown."""
    starts_a, starts_b = starts_of(first).values(), starts_of(second).values()
    return not starts_a or not starts_b or (min(starts_b) <= max(starts_a) and min(starts_a) <= max(starts_b))


Side: TypeAlias = tuple[Dataset, Mapping[Case, CaseSummary], str]
"""The runs of a side, its cases by those that they are compared with, and ``in A``."""


@dataclass(frozen=True, slots=True)
class Material:
    """One case, or the sizes of a band together, with one number per launch on each side."""

    case: Case
    statistic: str
    sides: tuple[Launches, Launches]
    cases: tuple[Compared, ...] = ()


def matched(first: Side, second: Side, pairs: Pairs | None) -> tuple[list[Material], list[LeftOut]]:
    """The cases that can be compared, and those that cannot."""
    (runs_a, cases_a, _), (runs_b, cases_b, _) = first, second
    both = [*_in_both(cases_a, cases_b)]
    timed = [_material(runs_a, cases_a[case], runs_b, cases_b[case]) for case in both if case.mode != "overlap"]
    unlike = [(case, _PART_COMPUTATION) for case in both if case.mode == "overlap"]
    unlike += [(material.case, _APART) for material in timed if not _comparable(material, pairs)]
    left_out = [*_left_out(first, second), *(LeftOut(case, "both", why, *_MEASURED) for case, why in unlike)]
    return [material for material in timed if _comparable(material, pairs)], left_out


def _in_both(cases_a: Mapping[Case, CaseSummary], cases_b: Mapping[Case, CaseSummary]) -> Iterator[Case]:
    """The cases that have a result on both sides."""
    return (case for case, summary in cases_a.items() if summary.groups and case in cases_b and cases_b[case].groups)


def _material(first: Dataset, summary_a: CaseSummary, second: Dataset, summary_b: CaseSummary) -> Material:
    bimodal = any(side.groups.bimodal.any() for side in (summary_a, summary_b))
    statistic = "mean" if bimodal else "median"
    stated = " and ".join(dict.fromkeys((*summary_a.groups.statistics, *summary_b.groups.statistics)))
    sides = (launch_values(first, summary_a, statistic), launch_values(second, summary_b, statistic))
    return Material(summary_a.case, stated or statistic, sides)


def launch_values(dataset: Dataset, summary: CaseSummary, statistic: str) -> Launches:
    """One number per launch, ns per call; a launch without all groups has none.

    It is that of the only group, of the slowest of groups that run together, or the geometric mean over pairs that take
    turns.
    """
    name, groups = f"{statistic}_ns", summary.groups
    columns = by_key(zip(groups.keys, getattr(groups.rows, name).tolist(), strict=True))
    bring: Callable[[Sequence[float]], float] = geometric_mean if summary.case.op in PAIRED else max
    return {
        (dataset.runs[run].run.id, launch): bring(column)
        for (run, launch), column in columns.items()
        if len(column) == len(groups)
    }


def geometric_mean(values: Iterable[float]) -> float:
    """Of positive values."""
    return float(np.exp(np.log(list(values)).mean()))


def bands_of(usable: Sequence[Material], pairs: Pairs | None, within: float) -> tuple[Compared, ...]:
    """The bands of ``usable`` as one family of tests, each with its sizes, which are another one."""
    cases = {compared.case: compared for compared in _compared(usable, pairs, within)}
    # In the order of the plan; the sizes of each curve ascend.
    curves = grouped(usable, lambda material: structs.replace(material.case, size_bytes=0)).values()
    bands = []
    for curve in curves:
        ascending = sorted(curve, key=lambda material: material.case.size_bytes)
        for sizes in grouped(ascending, lambda material: band_of(material.case.size_bytes)).values():
            whole = _combine(sizes, cases)
            bands += [whole] if _comparable(whole, pairs) else [_combine([material], cases) for material in sizes]
    return tuple(_compared(bands, pairs, within))


def _compared(family: Sequence[Material], pairs: Pairs | None, within: float) -> Iterator[Compared]:
    """The members of one family of tests, compared."""
    estimates = [estimate(*material.sides, pairs) for material in family]
    for material, estimated, verdict in zip(family, estimates, verdicts(estimates, within), strict=True):
        first_ns, second_ns = (float(np.median(list(side.values()))) for side in material.sides)
        yield Compared(material.case, material.statistic, first_ns, second_ns, estimated, verdict, material.cases)


def _without_test(band: Compared) -> Compared:
    """The band of two logs with one number a side each: no test, but slower or faster if far beyond usual scatter."""
    ratio = band.estimate.ratio
    if band.estimate.launches != (1, 1) or 1 / UNTESTED < ratio < UNTESTED:
        return band
    verdict = replace(band.verdict, word="slower" if ratio > 1 else "faster", needed=None)
    return replace(band, verdict=verdict, cases=tuple(map(_without_test, band.cases)))


def _comparable(material: Material, pairs: Pairs | None) -> bool:
    first, second = material.sides
    if pairs is None:
        return bool(first and second)
    return any(left in first and right in second for left, right in pairs)


def _combine(members: Sequence[Material], cases: Mapping[Case, Compared]) -> Material:
    """Sizes of a band as one: the launches that have every size."""
    statistic = members[0].statistic if len(members) == 1 else "geometric mean"
    first, second = (
        {
            launch: geometric_mean(side[launch] for side in sides)
            for launch in sides[0]
            if all(launch in side for side in sides)
        }
        for sides in zip(*(material.sides for material in members), strict=True)
    )
    return Material(members[0].case, statistic, (first, second), tuple(cases[material.case] for material in members))


_ACROSS: Final = ("backend", "device", "dtype", "in_place", "cache", "settings")
"""Settings whose effect a comparison may be about. The others are how a call is timed, and on which ranks."""


def _match_across(
    cases_a: Mapping[Case, CaseSummary], cases_b: Mapping[Case, CaseSummary]
) -> tuple[dict[Case, CaseSummary], list[Finding]]:
    """``cases_b``, where an op without a common case has the values of ``cases_a`` for settings that have one value on
    each side; and a note on each such setting.
    """
    renamed, ops = dict(cases_b), list[tuple[str, str]]()
    for op in dict.fromkeys(case.op for case in cases_a):
        sides = [[case for case in side if case.op == op] for side in (cases_a, cases_b)]
        if not sides[1] or set(sides[0]) & set(sides[1]):
            continue
        values = {name: [{getattr(case, name) for case in side} for side in sides] for name in _ACROSS}
        changed = {
            name: (*a, *b)
            for name, (a, b) in values.items()
            if len(a) == len(b) == 1 and a != b and _comparable_values(*a, *b)
        }
        as_in_a = {name: a for name, (a, _) in changed.items()}
        as_first = {structs.replace(case, **as_in_a): case for case in sides[1]}
        if not changed or not set(sides[0]) & as_first.keys():
            continue
        renamed |= {case: renamed.pop(own) for case, own in as_first.items()}
        clauses = (f"{name} {a} in A and {b} in B" for pair in changed.items() for name, a, b in _named_values(*pair))
        ops.append((", ".join(clauses), op))
    texts = (f"compared across {what}: {listed(names)}" for what, names in by_key(ops).items())
    return renamed, [Finding("caution", "across", (text,)) for text in texts]


def _comparable_values(*values: object) -> bool:
    """Whether a comparison may be about these values of a setting: of those that only some ops have, algorithms, and
    threads and memory of the host.
    """
    return all(
        not isinstance(value, CaseSettings) or isinstance(value, AlgorithmSettings | HostSettings) for value in values
    )


def _named_values(name: str, values: tuple[object, object]) -> Iterator[tuple[str, object, object]]:
    """A setting with both its values; of those that only some ops have, each in which the two differ."""
    if name != "settings":
        yield name, _or_default(values[0]), _or_default(values[1])
        return
    a, b = (structs.asdict(value) if isinstance(value, CaseSettings) else {} for value in values)
    for key in dict.fromkeys([*a, *b]):
        if a.get(key) != b.get(key):
            yield key, _or_default(a.get(key)), _or_default(b.get(key))


def _or_default(value: object) -> object:
    return "default" if value is None else value


def _unlike_settings(cases_a: Iterable[Case], cases_b: Iterable[Case]) -> Iterator[str]:
    """A clause for each setting that cases of the same op and size have with other values on the two sides."""
    sizes = by_key(((case.op, case.size_bytes), case) for case in cases_b)
    alike = [(case, other) for case in cases_a for other in sizes.get((case.op, case.size_bytes), ())]
    for name in Case.__struct_fields__:
        values = [(getattr(case, name), getattr(other, name)) for case, other in alike]
        if values and all(a != b for a, b in values):
            yield from (f"{key} is {a} in A and {b} in B" for key, a, b in _named_values(name, values[0]))


def _left_out(first: Side, second: Side) -> Iterator[LeftOut]:
    sides: dict[SideName, Side] = {"A": first, "B": second}
    for case in dict.fromkeys([*first[1], *second[1]]):
        lacking = {name: why for name, (_, cases, _) in sides.items() if (why := _why_not(cases.get(case))) is not None}
        if lacking:
            missing: SideName | Literal["both"] = "both" if len(lacking) == 2 else next(iter(lacking))
            why = "; ".join(f"{why} {sides[name][2]}" for name, why in lacking.items())
            states = (cases[case].state if case in cases else None for _, cases, _ in sides.values())
            yield LeftOut(case, missing, why, *states)


def _why_not(summary: CaseSummary | None) -> str | None:
    if summary is None:
        return "missing"
    if summary.groups:
        return None
    reasons = f" ({'; '.join(summary.reasons)})" if summary.reasons else ""
    return f"{summary.state}{reasons}"
