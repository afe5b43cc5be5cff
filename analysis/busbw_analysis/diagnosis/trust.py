"""How far to trust a run or a comparison: its launches, their scatter, and the differences that they can show.

Confidence is 0 to ``MOST_CONFIDENCE`` points, one each if everything was measured and verified, there are enough
launches for a test, the machine was quiet, and launches scatter little.
"""

import math
from collections.abc import Mapping
from statistics import median
from typing import Final

import numpy as np

from busbw.ops import PAIRED
from busbw.units import counted
from busbw_analysis.diagnosis.compare import Comparison
from busbw_analysis.diagnosis.hypothesis_tests import (
    LAUNCHES_FOR_A_TEST,
    launches_needed,
    percent,
    smallest_difference,
    undetected,
)
from busbw_analysis.diagnosis.judge import Judgement, Verdict
from busbw_analysis.diagnosis.selftest import taken_in_words

MOST_CONFIDENCE: Final = 4
_SCATTERED: Final = 0.1
"""Launches that scatter by more than this (± of the median case) cost a point of confidence."""
_TARGETS: Final = (0.1, 0.25, 0.5)
"""Differences for which the number of launches is given: the smallest that needs at most ``_MOST_LAUNCHES``."""
_MOST_LAUNCHES: Final = 20
_DOUBTS: Final = frozenset({"forced", "not-recorded", "store"})
"""Codes of notices that leave open whether the sides of a comparison are alike and whole."""
_MOST_NAMED: Final = 3
"""Number of pooled runs that are named."""


def dots(confidence: int) -> str:
    """Points of confidence as filled circles among all, as every output shows them: ``●●○○``."""
    return "●" * confidence + "○" * (MOST_CONFIDENCE - confidence)


def trust_in(judgement: Judgement, *, advise: bool) -> tuple[int, tuple[str, ...]]:
    """Points of confidence and the clauses that explain them; ``advise``: with what more launches would detect."""
    launches, scatter = fewest_made(judgement), scatter_of(judgement)
    pooled = _pooled(judgement)
    if not launches:
        return 0, ("nothing was measured", pooled)
    if judgement.from_logs:
        return 0, ("one number per case from the log of another tool: the scatter between runs is unknown", pooled)
    codes = {finding.code for finding in judgement.findings}
    busy = codes & {"disturbed", "throttled", "launches-differ"}
    doubts = codes & {"not-checked", "store"} or any(finding.severity == "bad" for finding in judgement.findings)
    whole = not doubts and all(row.state in {"measured", "skipped"} for row in judgement.cases)
    points = (whole, launches >= LAUNCHES_FOR_A_TEST, not busy, scatter is not None and scatter <= _SCATTERED)
    most = max(_launch_counts(judgement))
    many = counted(launches, "launch", "launches") if most == launches else f"{launches} to {most} launches a case"
    where = " on a busy machine" if "disturbed" in busy else ""
    if scatter is None:
        text = f"{many}{where}: another launch may differ"
    elif launches < LAUNCHES_FOR_A_TEST:
        text = f"{many}{where} with a scatter of ± {percent(scatter)}: too few to test for differences"
    else:
        visible = smallest_difference(math.log1p(scatter), launches)
        text = f"{many}{where} {undetected(visible)}"
    undecided = sum(verdict.status == "undecided" for verdict in judgement.verdicts)
    left = f"; {counted(undecided, 'result')} undecided" if undecided else ""
    advice = more_launches(judgement) if advise else ""
    return sum(points), (f"{text}{left}", advice, pooled, _tested(judgement))


def _pooled(judgement: Judgement) -> str:
    """The runs whose launches are pooled, if there are several."""
    names = judgement.pooled
    if not names:
        return ""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    alike = len({frozenset(stored.run.cases) for stored in judgement.runs}) == 1
    advice = "; busbw compare shows two of them beside each other" if alike else ""
    return f"pooled from {len(names)} runs: {', '.join(names[:_MOST_NAMED])}{more}{advice}"


def trust_in_comparison(comparison: Comparison) -> tuple[int, tuple[str, ...]]:
    """Points of confidence, as ``trust_in`` gives them, and the clauses that explain them."""
    if comparison.imported:
        return 0, ("numbers from logs: the scatter between runs is known only if a side has several tables",)
    scatters = [band.estimate.scatter for band in comparison.bands if band.estimate.scatter is not None]
    scatter = math.expm1(median(scatters)) if scatters else None
    codes = {notice.code for notice in comparison.notices}
    turns = comparison.paired or comparison.in_turns
    points = (
        not comparison.incomplete and not codes & _DOUBTS,
        all(band.verdict.fewest is None for band in comparison.bands),
        turns and not codes & {"disturbed", "throttled"},
        scatter is not None and scatter <= _SCATTERED,
    )
    count_a, count_b = comparison.launches
    many = f"{counted(count_a, 'launch', 'launches')} {'a side' if count_a == count_b else f'of A and {count_b} of B'}"
    if comparison.paired and count_a == count_b:
        many = counted(count_a, "pair of launches", "pairs of launches")
    where = " on a busy machine" if "disturbed" in codes else ""
    differ = "" if scatter is None else f"; launches of a side differ by ± {percent(scatter)}"
    order = (
        "all launches of one side were taken before those of the other, so a change of the machine looks like a "
        "difference. To rule that out, take launches in turns (A B B A …) and use --paired"
    )
    return sum(points), (f"{many}{where}{differ}", "" if turns else order)


def _tested(judgement: Judgement) -> str:
    """The smallest difference that the newest self-test could detect in its worst case."""
    tested = judgement.selftest
    if tested is None or tested.coarsest is None or tested.failures:
        return ""
    which = taken_in_words(tested, [stored.run.started for stored in judgement.runs])
    return f"{which} {undetected(tested.coarsest)}"


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


def fewest_made(judgement: Judgement) -> int:
    """The number of launches that every case has at least; 0 if nothing was measured."""
    return min(_launch_counts(judgement), default=0)


def _launch_counts(judgement: Judgement) -> list[int]:
    """The number of launches of every case that was measured."""
    return [len(group.launch_medians_ns) for summary in judgement.cases for group in summary.groups[:1]]


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
