"""From runs of one or several numbers of ranks to joint fits over all of their ops."""

from collections import Counter
from collections.abc import Sequence

from busbw.errors import AnalysisError
from busbw_analysis.data.load import Dataset
from busbw_analysis.data.summary import CaseSummary, summarise
from busbw_analysis.fitting.joint import Observation, OneRegime, fit_regimes
from busbw_analysis.models.gloo import UNMODELLED
from busbw_analysis.predict.selection import evidence_from


def joint_fits_of(
    datasets: Sequence[Dataset], summaries: Sequence[Sequence[CaseSummary]] | None = None
) -> tuple[OneRegime, ...]:
    """A joint fit for every regime that ``datasets`` (one for each shape of world) have messages in; none for runs in
    which nothing was sent. ``summaries`` are those of each of them, where they are known already.
    """
    return fit_regimes(_observations(datasets, summaries or [summarise(dataset) for dataset in datasets]))


def _observations(datasets: Sequence[Dataset], summaries: Sequence[Sequence[CaseSummary]]) -> list[Observation]:
    """All that was timed as the op is that was measured on most numbers of ranks."""
    ops = Counter(
        op
        for dataset in datasets
        for op in dict.fromkeys(row.case.op for row in dataset.cases if row.state == "measured")
        if op not in UNMODELLED
    )
    for op, _ in ops.most_common():
        try:
            evidence = evidence_from(datasets, summaries, op)
        except AnalysisError:
            continue  # it was measured by several groups at once alone, which are no evidence
        return [one for one in evidence.observations() if one.op not in UNMODELLED]
    return []
