"""How far to trust what a run says: its launches, how far they scatter, and what differences they show."""

import math
from statistics import median
from typing import Final

import numpy as np

from busbw_analysis.data.pair_groups import PairGroups
from busbw_analysis.diagnosis.hypothesis_tests import LAUNCHES_FOR_A_TEST, launches_needed, smallest_difference
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.diagnosis.selftest import taken_in_words

MOST_CONFIDENCE: Final = 4
_SCATTERED: Final = 0.1
"""Launches that differ by more than that (± of the median case) cost confidence."""
_TARGETS: Final = (0.1, 0.25, 0.5)
"""The differences that launches are named for: the smallest of them that takes no more than ``_MOST_LAUNCHES``."""
_MOST_LAUNCHES: Final = 20


def trust_in(judgement: Judgement, action: str) -> tuple[int, tuple[str, ...]]:
    """Points of confidence, and in clauses what is behind them, without what ``action`` says already."""
    dataset, launches, scatter = judgement.dataset, fewest_made(judgement), scatter_of(judgement)
    if not launches:
        return 0, ("nothing was measured",)
    if all(stored.run.imported is not None for stored in dataset.runs):
        return 0, ("one number a case from the log of another tool: how far another run would differ is not known",)
    found = {one.code for one in judgement.findings}
    busy = found & {"disturbed", "throttled", "launches-differ"}
    doubts = found & {"not-checked", "store"} or any(one.severity == "bad" for one in judgement.findings)
    whole = not doubts and all(row.state in {"measured", "skipped"} for row in dataset.cases)
    points = (whole, launches >= LAUNCHES_FOR_A_TEST, not busy, scatter is not None and scatter <= _SCATTERED)
    many = "1 launch" if launches == 1 else f"{launches} launches"
    where = " on a busy machine" if "disturbed" in busy else ""
    if scatter is None:
        text = f"{many}{where}: another one may say something else"
    elif launches < LAUNCHES_FOR_A_TEST:
        text = f"{many}{where} that differ by ± {percent(scatter)}: too few to test any difference"
    else:
        visible = smallest_difference(math.log1p(scatter), launches)
        text = f"{many}{where}: differences below {percent(visible)} are not visible"
    advice = more_launches(judgement)
    return sum(points), (text, advice if advice not in action else "", _tested(judgement))


def _tested(judgement: Judgement) -> str:
    """The smallest difference that the newest self-test of this machine could tell, in its worst case."""
    tested = judgement.selftest
    if tested is None or tested.coarsest is None or tested.failures:
        return ""
    which = taken_in_words(tested, [stored.run.started for stored in judgement.dataset.runs])
    return f"{which}: differences below {percent(tested.coarsest)} are not resolved"


def scatter_of(judgement: Judgement) -> float | None:
    """How far the launches of one case differ, as a share: standard deviation of the logarithm of launch medians,
    median over cases. None for one launch. Pairs of a matrix count where nothing else was measured.
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
    """The launches that every case has at least; 0 where nothing was measured."""
    return min((len(group.launch_medians_ns) for one in judgement.cases for group in one.groups[:1]), default=0)


def more_launches(judgement: Judgement) -> str:
    """What more launches would show; "" where no affordable number of them shows more."""
    scatter = scatter_of(judgement)
    if scatter is None:
        return "--launches 6 gives every time an interval"
    for target in _TARGETS:
        needed = launches_needed(math.log1p(scatter), target)
        if needed is not None and needed <= _MOST_LAUNCHES:
            more = needed > fewest_made(judgement)
            return f"--launches {needed} would show differences of {percent(target)}" if more else ""
    return ""


def percent(share: float) -> str:
    """A share in words, with two digits from 1 % on."""
    return f"{100 * share:.{0 if share >= 0.1 else 1}f} %"
