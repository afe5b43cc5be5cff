"""How far to trust a run: how many launches it has, how much they scatter, and what more of them would show.

Confidence has ``MOST_CONFIDENCE`` points, one each if all was measured and verified, the machine was quiet, launches
scatter little and are enough for a test.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final

import numpy as np
from msgspec import structs

from busbw.ops import PAIRED
from busbw.units import counted, listed
from busbw_analysis.data.bands import band_of
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.diagnosis.hypothesis_tests import (
    fewest_launches,
    launches_needed,
    percent,
    scatter_in_words,
    shown_from,
    smallest_difference,
)
from busbw_analysis.diagnosis.judge import Judgement, Verdict
from busbw_analysis.diagnosis.selftest import taken_in_words

MOST_CONFIDENCE: Final = 4
SCATTERED: Final = 0.1
"""Launches that scatter by more than this (± of the median case) cost a point of confidence."""
_TARGETS: Final = (0.1, 0.25, 0.5)
"""Differences for which the number of launches is given: the smallest that needs at most ``_MOST_LAUNCHES``."""
_MOST_LAUNCHES: Final = 20
_MOST_NAMED: Final = 3
"""Number of pooled runs, and of operations, that are named."""


def all_wrong(judgement: Judgement) -> bool:
    """Whether every case failed because its data are wrong."""
    return all(row.cause == "wrong_data" for row in judgement.cases)


def dots(confidence: int) -> str:
    """Points of confidence as filled circles among all, as every output shows them: ``●●○○``."""
    return "●" * confidence + "○" * (MOST_CONFIDENCE - confidence)


def trust_in(judgement: Judgement, *, advise: bool) -> tuple[int, tuple[str, ...]]:
    """Points of confidence and the clauses that explain them; ``advise``: with what more launches would detect."""
    launches, scatter = fewest_made(judgement.cases), scatter_of(judgement)
    pooled = _pooled(judgement)
    if not launches:
        return 0, ("all data are wrong" if all_wrong(judgement) else "nothing was measured", pooled)
    if judgement.from_logs:
        return 0, ("one number per case from the log of another tool: the scatter between runs is unknown", pooled)
    codes = {finding.code for finding in judgement.findings}
    busy = codes & {"disturbed", "throttled", "launches-differ"}
    doubts = codes & {"not-checked", "store"} or any(finding.severity == "bad" for finding in judgement.findings)
    whole = not doubts and all(row.state in {"measured", "skipped"} for row in judgement.cases)
    tests = count_tests(judgement.cases)
    enough = launches >= fewest_launches(tests, paired=False)
    points = (whole, enough, not busy, scatter is not None and scatter <= SCATTERED)
    most = max(_launch_counts(judgement.cases))
    many = counted(launches, "launch", "launches") if most == launches else f"{launches} to {most} launches a case"
    where = " on a busy machine" if "disturbed" in busy else ""
    if scatter is None:
        text = f"{many}{where}: another may differ by more than ±, which covers only this launch"
    elif not enough:
        among = f"{counted(tests, 'band')} of sizes" if tests > 1 else "them"
        few = f"are too few to compare {among} with another run"
        text = f"{many}{where}, whose times scatter by {scatter_in_words(scatter)}, {few}"
    else:
        text = f"{many}{where} {shown_from(smallest_difference(math.log1p(scatter), launches, tests))}"
    asked = [verdict for verdict in judgement.verdicts if verdict.op in judgement.asked]
    undecided = [verdict for verdict in asked if verdict.status == "undecided"]
    left = f"; no verdict: {_bands_of(undecided)}" if 0 < len(undecided) < len(asked) else ""
    advice = more_launches(judgement) if advise else ""
    return sum(points), (f"{text}{left}", advice, pooled, _tested(judgement))


def _bands_of(verdicts: Sequence[Verdict]) -> str:
    """The bands of each op."""
    bands = by_key((verdict.name_among(verdicts), verdict.band) for verdict in verdicts)
    return listed((f"{name} {listed(of)}" for name, of in bands.items()), _MOST_NAMED)


def count_tests(summaries: Iterable[CaseSummary]) -> int:
    """The number of tests of a comparison with a run like this: one for each band of sizes of each curve."""
    cases = (row.case for row in summaries if row.state != "skipped" and row.case.mode != "overlap")
    return len({(structs.replace(case, size_bytes=0), band_of(case.size_bytes)) for case in cases})


def _pooled(judgement: Judgement) -> str:
    """The runs whose launches are pooled, if there are several."""
    names = judgement.pooled
    if not names:
        return ""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    alike = len({frozenset(stored.run.cases) for stored in judgement.runs}) == 1
    advice = "; busbw compare shows two of them beside each other" if alike else ""
    return f"pooled from {len(names)} runs: {', '.join(names[:_MOST_NAMED])}{more}{advice}"


def _tested(judgement: Judgement) -> str:
    """The smallest difference that the newest self-test could detect in its worst case."""
    tested = judgement.selftest
    if tested is None or tested.coarsest is None or tested.failures:
        return ""
    which = taken_in_words(tested, [stored.run.started for stored in judgement.runs])
    return f"{which} {shown_from(tested.coarsest)}"


def scatter_of(judgement: Judgement) -> float | None:
    """Scatter of the launches of a case, as a share; None for a single launch.

    It is the standard deviation of the logarithms of launch medians, median over cases. Pair matrices count only if
    nothing else was measured.
    """
    scatters = [
        float(np.log(group.launch_medians_ns).std(ddof=1))
        for summary in judgement.cases
        if summary.case.op not in PAIRED
        for group in summary.groups
        if group.launches > 1
    ]
    for summary in () if scatters else judgement.cases:
        if summary.case.op in PAIRED and summary.groups:
            medians = summary.groups.launch_medians_ns[summary.groups.launches > 1]
            scatters += np.nanstd(np.log(medians), axis=1, ddof=1).tolist()
    return math.expm1(median(scatters)) if scatters else None


def fewest_made(summaries: Iterable[CaseSummary]) -> int:
    """The number of launches that every case has at least; 0 if nothing was measured."""
    return min(_launch_counts(summaries), default=0)


def _launch_counts(summaries: Iterable[CaseSummary]) -> list[int]:
    """The number of launches of every case that was measured."""
    return [len(group.launch_medians_ns) for summary in summaries for group in summary.groups[:1]]


def lacks_launches(judgement: Judgement, verdicts: Mapping[Verdict, str | None]) -> bool:
    """Whether any of ``verdicts`` is undecided without a cause; False for logs of other tools."""
    undecided = (
        verdict.status == "undecided" and verdict.doubt is None and code is None for verdict, code in verdicts.items()
    )
    return not judgement.from_logs and any(undecided)


def decide_more(judgement: Judgement) -> str:
    """What to do about verdicts that are undecided without a cause."""
    advice = more_launches(judgement)
    return f"to decide more, {advice}" if advice else "rerun on a quieter machine, because more launches help little"


def more_launches(judgement: Judgement) -> str:
    """The difference that more launches could detect; "" if no affordable number of launches helps, or if a run has a
    duration or a controller, which is one launch.
    """
    plans = [stored.run.plan for stored in judgement.runs]
    if any(plan.duration is not None or plan.controller is not None for plan in plans):
        return ""
    scatter = scatter_of(judgement)
    if scatter is None:
        return "--launches 6 would give an interval over launches"
    for target in _TARGETS:
        needed = launches_needed(math.log1p(scatter), target, count_tests(judgement.cases))
        if needed is not None and needed <= _MOST_LAUNCHES:
            more = needed > fewest_made(judgement.cases)
            return f"--launches {needed} would detect differences of {percent(target)}" if more else ""
    return ""
