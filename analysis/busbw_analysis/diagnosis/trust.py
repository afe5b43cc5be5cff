"""How far to trust a run: its launches, their scatter, and the differences that they can show."""

import math
from statistics import median
from typing import Final

import numpy as np

from busbw.units import counted
from busbw_analysis.data.pair_groups import PairGroups
from busbw_analysis.diagnosis.hypothesis_tests import LAUNCHES_FOR_A_TEST, launches_needed, smallest_difference
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.diagnosis.selftest import taken_in_words

MOST_CONFIDENCE: Final = 4
_SCATTERED: Final = 0.1
"""Launches that scatter by more than this (± of the median case) cost a point of confidence."""
_TARGETS: Final = (0.1, 0.25, 0.5)
"""Differences for which the number of launches is given: the smallest that needs at most ``_MOST_LAUNCHES``."""
_MOST_LAUNCHES: Final = 20


def trust_in(judgement: Judgement, action: str) -> tuple[int, tuple[str, ...]]:
    """Points of confidence and the clauses that explain them, without advice that ``action`` already contains."""
    dataset, launches, scatter = judgement.dataset, fewest_made(judgement), scatter_of(judgement)
    if not launches:
        return 0, ("nothing was measured",)
    if dataset.from_logs:
        return 0, ("one number per case from the log of another tool: the scatter between runs is unknown",)
    found = {one.code for one in judgement.findings}
    busy = found & {"disturbed", "throttled", "launches-differ"}
    doubts = found & {"not-checked", "store"} or any(one.severity == "bad" for one in judgement.findings)
    whole = not doubts and all(row.state in {"measured", "skipped"} for row in dataset.cases)
    points = (whole, launches >= LAUNCHES_FOR_A_TEST, not busy, scatter is not None and scatter <= _SCATTERED)
    many = counted(launches, "launch", "launches")
    where = " on a busy machine" if "disturbed" in busy else ""
    if scatter is None:
        text = f"{many}{where}: another launch may differ"
    elif launches < LAUNCHES_FOR_A_TEST:
        text = f"{many}{where} with a scatter of ± {percent(scatter)}: too few to test for differences"
    else:
        visible = smallest_difference(math.log1p(scatter), launches)
        text = f"{many}{where}: differences below {percent(visible)} cannot be detected"
    advice = more_launches(judgement)
    return sum(points), (text, advice if advice not in action else "", _tested(judgement))


def _tested(judgement: Judgement) -> str:
    """The smallest difference that the newest self-test could detect in its worst case."""
    tested = judgement.selftest
    if tested is None or tested.coarsest is None or tested.failures:
        return ""
    which = taken_in_words(tested, [stored.run.started for stored in judgement.dataset.runs])
    return f"{which}: differences below {percent(tested.coarsest)} cannot be detected"


def scatter_of(judgement: Judgement) -> float | None:
    """Scatter of the launches of a case, as a share; None for a single launch.

    It is the standard deviation of the logarithms of launch medians, median over cases. Pair matrices count only if
    nothing else was measured.
    """
    found = [
        float(np.log(group.launch_medians_ns).std(ddof=1))
        for summary in judgement.cases
        if not isinstance(summary.groups, PairGroups)
        for group in summary.groups
        if group.launches > 1
    ]
    for summary in () if found else judgement.cases:
        if isinstance(summary.groups, PairGroups):
            medians = summary.groups.numbers.launch_medians_ns[summary.groups.numbers.launches > 1]
            found += np.nanstd(np.log(medians), axis=1, ddof=1).tolist()
    return math.expm1(median(found)) if found else None


def fewest_made(judgement: Judgement) -> int:
    """The number of launches that every case has at least; 0 if nothing was measured."""
    return min((len(group.launch_medians_ns) for one in judgement.cases for group in one.groups[:1]), default=0)


def more_launches(judgement: Judgement) -> str:
    """The difference that more launches could detect; "" if no affordable number of launches helps."""
    scatter = scatter_of(judgement)
    if scatter is None:
        return "--launches 6 would give every time a confidence interval"
    for target in _TARGETS:
        needed = launches_needed(math.log1p(scatter), target)
        if needed is not None and needed <= _MOST_LAUNCHES:
            more = needed > fewest_made(judgement)
            return f"--launches {needed} would detect differences of {percent(target)}" if more else ""
    return ""


def percent(share: float) -> str:
    """A share as a percentage, with two digits from 1 % on."""
    return f"{100 * share:.{0 if share >= 0.1 else 1}f} %"
