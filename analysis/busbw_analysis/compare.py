"""Two datasets brought together: what both measured, band by band of sizes and case by case, and what only one did."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
import numpy as np

from busbw.errors import AnalysisError, UnlikeRuns, UsageError
from busbw.records import Case
from busbw_analysis.comparison import (
    LAUNCHES_FOR_A_TEST,
    PAIRS_FOR_A_VERDICT,
    Estimate,
    Launches,
    LaunchKey,
    Pairs,
    Verdict,
    Word,
    can_tell,
    estimate,
    fewest_launches,
    least_p,
    verdicts,
)
from busbw_analysis.load import Dataset, differences
from busbw_analysis.summary import PAIRED, CaseSummary, GroupSummary, summarise

Statistic = Literal["median", "mean"]

BANDS: Final = (("small", 0, 16 << 10), ("medium", 16 << 10, 1 << 20), ("large", 1 << 20, None))
"""Name of a band, its first size, and the first size of the next one."""

FAILURES: Final = ("slower", "cannot-tell", "missing")
"""What a comparison can be made to fail on; ``missing``: a case that A has a result of and B has not."""

_APART: Final = "measured on both sides, but by no launches that belong together"

_PART_COMPUTATION: Final = (
    "because a sample of mode overlap is computation in part, whose amount every block sets anew (the report of each "
    "side tells its overlap; another mode tells the time of the call)"
)

NO_SIZE: Final = "no size"
"""The band of an op that moves nothing."""


@dataclass(frozen=True, slots=True)
class ComparedCase:
    """One case on both sides. ``first_ns`` and ``second_ns`` are the medians over launches of its ``statistic`` within
    a launch, ns per call; that is the mean where either side has two modes, whose median may jump between them.
    """

    case: Case
    statistic: Statistic
    first_ns: float
    second_ns: float
    estimate: Estimate
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class ComparedBand:
    """The sizes of one curve in one band, as one: each launch counts with the geometric mean over ``sizes`` of its
    times. ``case`` is what they share; its ``size_bytes`` is the smallest. A launch that lacks one of the sizes does
    not count; when none has them all, each size is a band of its own.
    """

    case: Case
    band: str
    sizes: tuple[int, ...]
    estimate: Estimate
    verdict: Verdict
    cases: tuple[ComparedCase, ...]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A case that could not be compared, and why; ``missing`` is the side without what a comparison needs."""

    case: Case
    missing: Literal["A", "B", "both"]
    why: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """B held against A. ``within`` is the difference that is called equal, as a share; ``notices`` is what to know."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    launches: tuple[int, int]
    within: float
    paired: bool
    bands: tuple[ComparedBand, ...]
    left_out: tuple[LeftOut, ...]
    notices: tuple[str, ...]

    def fails(self, reasons: Iterable[str]) -> bool:
        """Whether one of ``reasons`` (of ``FAILURES``) holds: what a gate in CI asks."""
        words = self.words()
        held = {
            "slower": "slower" in words,
            "cannot-tell": "cannot tell" in words,
            "missing": any(one.missing == "B" for one in self.left_out),
        }
        return any(held[reason] for reason in reasons)

    def words(self) -> Mapping[Word, int]:
        """How many bands got each verdict."""
        found = [band.verdict.word for band in self.bands]
        return {word: found.count(word) for word in dict.fromkeys(found)}


def compare(
    first: Dataset, second: Dataset, *, within: float = 0.05, paired: bool = False, force: bool = False
) -> Comparison:
    """Hold ``second`` (B) against ``first`` (A), over launches and nothing else.

    ``paired``: the launches were taken in turns, and neighbours are compared. Raises UsageError when a run is on both
    sides or launches to be paired were not taken in turns, UnlikeRuns with all differences when the sides were not
    measured on like machines and settings (``force`` makes notices of them), AnalysisError when no case has a result on
    both.
    """
    ours, theirs = ({stored.run.id for stored in side.runs} for side in (first, second))
    if ours & theirs:
        message = (
            f"run {', '.join(sorted(ours & theirs))} is on both sides; a run compared with itself is equal by "
            "construction and says nothing. Give two runs; to see what this machine tells apart, measure twice"
        )
        raise UsageError(message)
    notices = [*_unlike(first, second, force=force)]
    pairs = _pairs(first, second) if paired else None
    notices += [] if paired else _order(first, second)
    notices += [f"side {name}: {notice}" for name, side in (("A", first), ("B", second)) for notice in side.notices]
    one = {summary.case: summary for summary in summarise(first)}
    two = {summary.case: summary for summary in summarise(second)}
    both = [case for case, summary in one.items() if summary.groups and case in two and two[case].groups]
    timed = [case for case in both if case.mode != "overlap"]
    material = [_Material.of(first, one[case], second, two[case]) for case in timed]
    usable = [found for found in material if _comparable(found, pairs)]
    left_out = [
        *_left_out(one, two),
        *(LeftOut(case, "both", _PART_COMPUTATION) for case in both if case not in timed),
        *(LeftOut(found.case, "both", _APART) for found in material if not _comparable(found, pairs)),
    ]
    if not usable:
        why = "; ".join(f"{reason} ({count})" for reason, count in Counter(left.why for left in left_out).items())
        message = f"nothing can be compared, no case has times for it on both sides: {why or 'there is no case at all'}"
        raise AnalysisError(message)
    return Comparison(
        first=tuple(stored.run.id for stored in first.runs),
        second=tuple(stored.run.id for stored in second.runs),
        launches=(len(_starts(first)), len(_starts(second))),
        within=within,
        paired=paired,
        bands=_bands(usable, pairs, within),
        left_out=tuple(left_out),
        notices=tuple(dict.fromkeys(notices)),
    )


def _unlike(first: Dataset, second: Dataset, *, force: bool) -> Iterator[str]:
    base = first.runs[0]
    found = [one for side in (first, second) for stored in side.runs for one in differences(base, stored)]
    for one in found:
        if one.unknown_in is not None:
            yield f"run {one.unknown_in} did not record {one.key!r}, so it could not be compared"
    unlike = list(dict.fromkeys(one.text for one in found if one.unknown_in is None))
    if unlike and not force:
        message = f"these runs may not be compared: {'; '.join(unlike)}. Overrule it with --force"
        raise UnlikeRuns(message)
    yield from (f"compared although {text}" for text in unlike)


def _starts(dataset: Dataset) -> dict[LaunchKey, str]:
    """When each launch that measured something began."""
    measured = {(block.run, block.launch) for block in dataset.blocks}
    return {
        (stored.run.id, row.launch): row.started
        for number, stored in enumerate(dataset.runs)
        for row in stored.launches
        if (number, row.launch) in measured
    }


def _pairs(first: Dataset, second: Dataset) -> Pairs:
    """Neighbours in time, one of each side: A B B A A B makes (A B) (B A) (A B)."""
    one, two = _starts(first), _starts(second)
    both = sorted([(began, "A", key) for key, began in one.items()] + [(began, "B", key) for key, began in two.items()])
    pairs: list[tuple[LaunchKey, LaunchKey]] = []
    for left, right in zip(both[::2], both[1::2], strict=False):
        sides = {left[1]: left[2], right[1]: right[2]}
        if len(sides) == 2:
            pairs.append((sides["A"], sides["B"]))
    if len(pairs) * 2 != len(both):
        order = "".join(side for _, side, _ in both)
        message = (
            f"--paired needs launches that were taken in turns (A B B A …), each pair one of A and one of B; these "
            f"began in the order {order}. Compare them without --paired, or take them in turns: runs of busbw run "
            "--launches 1, first one of A, then two of B, one of A and so on (README.md has a loop for it, at Compare "
            "two runs), and give those of each side with commas between"
        )
        raise UsageError(message)
    return pairs


def _order(first: Dataset, second: Dataset) -> Iterator[str]:
    one, two = _starts(first).values(), _starts(second).values()
    if one and two and (max(one) < min(two) or max(two) < min(one)):
        yield (
            "all launches of one side were taken before those of the other: a machine that changed in between looks "
            "like a difference. Take them in turns (A B B A …) and use --paired to be safe from that"
        )


@dataclass(frozen=True, slots=True)
class _Material:
    """One case with one number a launch on each side."""

    case: Case
    statistic: Statistic
    first: Launches
    second: Launches

    @classmethod
    def of(cls, first: Dataset, one: CaseSummary, second: Dataset, two: CaseSummary) -> "_Material":
        bimodal = any(group.modes is not None for group in (*one.groups, *two.groups))
        statistic: Statistic = "mean" if bimodal else "median"
        return cls(one.case, statistic, _launch_values(first, one, statistic), _launch_values(second, two, statistic))


def _launch_values(dataset: Dataset, summary: CaseSummary, statistic: Statistic) -> Launches:
    """One number of every launch, ns per call: of the one group, of the slowest of groups that run at once, or the
    geometric mean of pairs that take turns. A launch in which a group is missing has none.
    """
    by_group = [_of_group(group, statistic) for group in summary.groups]
    bring: Callable[[Sequence[float]], float] = _geometric_mean if summary.case.op in PAIRED else max
    return {
        (dataset.runs[run].run.id, launch): bring([values[run, launch] for values in by_group])
        for run, launch in by_group[0]
        if all((run, launch) in values for values in by_group)
    }


def _of_group(group: GroupSummary, statistic: Statistic) -> dict[tuple[int, int], float]:
    values = group.launch_means_ns if statistic == "mean" else group.launch_medians_ns
    return dict(zip(group.launch_keys, values, strict=True))


def _geometric_mean(values: Iterable[float]) -> float:
    return float(np.exp(np.log(list(values)).mean()))


def _bands(usable: Sequence[_Material], pairs: Pairs | None, within: float) -> tuple[ComparedBand, ...]:
    found = [estimate(one.first, one.second, pairs) for one in usable]
    cases = {
        one.case: ComparedCase(one.case, one.statistic, _middle(one.first), _middle(one.second), estimated, verdict)
        for one, estimated, verdict in zip(usable, found, verdicts(found, within), strict=True)
    }
    groups: dict[tuple[Case, str], list[_Material]] = {}
    for one in sorted(usable, key=lambda one: one.case.size_bytes):
        key = msgspec.structs.replace(one.case, size_bytes=0)
        groups.setdefault((key, band_of(one.case)), []).append(one)
    # In the order of the plan, in which the ops were asked for; the sizes of one curve ascend.
    place = {msgspec.structs.replace(one.case, size_bytes=0): number for number, one in reversed([*enumerate(usable)])}
    ordered = sorted(groups.items(), key=lambda item: (place[item[0][0]], item[1][0].case.size_bytes))
    whole = [
        (band, members, _together(members))
        for (_, band), sizes in ordered
        for members in ([sizes] if _comparable(_together(sizes), pairs) else [[one] for one in sizes])
    ]
    estimates = [estimate(one.first, one.second, pairs) for _, _, one in whole]
    return tuple(
        ComparedBand(
            case=members[0].case,
            band=band,
            sizes=tuple(one.case.size_bytes for one in members),
            estimate=estimated,
            verdict=verdict,
            cases=tuple(cases[one.case] for one in members),
        )
        for (band, members, _), estimated, verdict in zip(whole, estimates, verdicts(estimates, within), strict=True)
    )


def band_of(case: Case) -> str:
    """The band of sizes that a case belongs to."""
    if not case.size_bytes:
        return NO_SIZE
    return next(
        name for name, low, high in BANDS if low <= case.size_bytes and (high is None or case.size_bytes < high)
    )


def _comparable(one: _Material, pairs: Pairs | None) -> bool:
    if pairs is None:
        return bool(one.first and one.second)
    return any(left in one.first and right in one.second for left, right in pairs)


def _together(members: Sequence[_Material]) -> _Material:
    """All sizes of a band as one: the launches that have every size."""

    def side(of: Callable[[_Material], Launches]) -> Launches:
        common = [launch for launch in of(members[0]) if all(launch in of(one) for one in members)]
        return {launch: _geometric_mean(of(one)[launch] for one in members) for launch in common}

    return _Material(members[0].case, "median", side(lambda one: one.first), side(lambda one: one.second))


def _middle(side: Launches) -> float:
    return float(np.median(list(side.values())))


def _left_out(one: Mapping[Case, CaseSummary], two: Mapping[Case, CaseSummary]) -> Iterator[LeftOut]:
    for case in dict.fromkeys([*one, *two]):
        states = {name: _why_not(side.get(case)) for name, side in (("A", one), ("B", two))}
        wanting = {name: why for name, why in states.items() if why is not None}
        if wanting:
            missing: Literal["A", "B", "both"] = "both" if len(wanting) == 2 else ("A" if "A" in wanting else "B")
            yield LeftOut(case, missing, "; ".join(f"{why} in {name}" for name, why in wanting.items()))


def _why_not(summary: CaseSummary | None) -> str | None:
    if summary is None:
        return "not asked for"
    if summary.groups:
        return None
    reasons = f" ({'; '.join(summary.reasons)})" if summary.reasons else ""
    return f"{summary.state}{reasons}"


def blind(comparison: Comparison) -> Iterator[str]:
    """What to say where there are launches enough for one test, and too few for as many as are made: after Holm not
    even the clearest difference would be told.
    """
    bands = [band.estimate for band in comparison.bands]
    sizes = [one.estimate for band in comparison.bands for one in band.cases]
    paired = comparison.paired
    unit = "pairs of launches" if paired else "launches a side"
    for name, family in (("bands", bands), *([("sizes", sizes)] if len(sizes) > len(bands) else [])):
        tested = [one.launches for one in family if one.p_value is not None]
        if not tested or any(can_tell(launches, len(tested), paired=paired) for launches in tested):
            continue
        most = max(tested, key=min)
        least = min(1.0, len(tested) * min(least_p(launches, paired=paired) for launches in tested))
        yield (
            f"with {min(most)} {unit} and {len(tested)} {name} no difference can be told: the smallest p after Holm is "
            f"{least:.2g}; {fewest_launches(len(tested), paired=paired)} would do"
        )


def too_few(comparison: Comparison) -> str | None:
    """What to say when no verdict was possible because a side has fewer launches than any exact test needs."""
    one, two = comparison.launches
    if comparison.paired and one < PAIRS_FOR_A_VERDICT:
        return (
            f"{one} pair{'s' if one != 1 else ''} of launches: nothing is told from fewer than {PAIRS_FOR_A_VERDICT}, "
            "and there is no interval: with 5, the smallest p of an exact test is 0.06"
        )
    if comparison.paired or min(one, two) >= LAUNCHES_FOR_A_TEST:
        return None
    return (
        f"A has {one} and B {two} launches; nothing is told from fewer than {LAUNCHES_FOR_A_TEST} a side, and there is "
        "no interval: with 3, the smallest p of an exact test is 0.1"
    )
