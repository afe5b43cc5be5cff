"""The judgement on a run: findings first, then verdicts and all derived records with their evidence."""

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import numpy as np

from busbw.ops import ON_SOCKETS, PAIRED
from busbw.runs.store import StoredRun
from busbw.system.catalog import Catalogue, catalogue
from busbw.system.detect import Picture, picture
from busbw_analysis.data.facts import Facts
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.load import Dataset, Samples
from busbw_analysis.data.series import SeriesKey, key_of
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.diagnosis.algorithms import AlgorithmComparison, algorithm_comparisons
from busbw_analysis.diagnosis.curves import Curve, curves_of
from busbw_analysis.diagnosis.distances import PairSplit, splits_of
from busbw_analysis.diagnosis.doubts import Doubts, doubts_of
from busbw_analysis.diagnosis.findings import Finding, findings_on, ranked
from busbw_analysis.diagnosis.pairs import PairMatrix, matrices_of
from busbw_analysis.diagnosis.selftest import SelfTest
from busbw_analysis.diagnosis.siblings import contrasts_in
from busbw_analysis.diagnosis.verdicts import Verdict, verdicts_on, why_above
from busbw_analysis.models.results import Results, results_of
from busbw_analysis.peaks.peaks import Peak, PeakLevel

__all__ = ["Best", "Curve", "Evidence", "Finding", "Judgement", "PairMatrix", "SliceJudgement", "Verdict", "judge"]

_Slice = TypeVar("_Slice", bound="SliceJudgement")

Status = Literal["as expected", "explained", "slower", "undecided", "not judged", "failed"]
"""Status of a whole run. ``explained``: slower than expected, and the causes say why. ``slower``: slower, and no cause
was found.
"""


@dataclass(frozen=True, slots=True)
class Best:
    """The highest busbw (B/s) of some measured cases and groups of ranks, judged or not; pairs of a matrix are groups.

    case: its index.
    peak: the busbw that is 100 %, B/s.
    level, what, denominator: ``level``, ``source`` and ``denominator`` of that ``Peak``; None if ``peak`` is.
    why_above: why the rate is above the peak; None if it is not.
    """

    busbw: float
    label: str
    size_bytes: int
    case: int
    ranks: tuple[int, ...]
    peak: float | None
    level: PeakLevel | None
    what: str | None
    denominator: str | None
    why_above: str | None

    @property
    def share(self) -> float | None:
        """The share of the peak; None if no peak is known."""
        return None if self.peak is None else self.busbw / self.peak


def _fastest(summary: CaseSummary) -> Sequence[GroupSummary]:
    """Candidates for the highest busbw: all groups, or the fastest pair of a matrix, whose pairs move equal bytes."""
    groups = summary.groups
    return (groups[int(np.argmin(groups.time_ns))],) if summary.case.op in PAIRED and groups else groups


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a slice judges by: the results, and what the core made of them.

    pictures: the hardware of every host.
    rows: the catalogue of peaks.
    """

    results: Results
    pictures: Mapping[str, Picture]
    curves: tuple[Curve, ...]
    matrices: tuple[PairMatrix, ...]
    rows: Catalogue


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that explains verdicts, or makes every number unreliable.

    code: a stable word; usually the code of the finding that is its evidence.
    text: what was found, without a full stop.
    action: what to do about it, without a full stop.
    compares: whether the action is a comparison with another run.
    fault: what is at fault, in a few words; "" if not a part of the machine.
    """

    code: str
    text: str
    action: str
    compares: bool = False
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPart:
    """The part of a slice in the answer. Texts are clauses without a full stop; "" says nothing.

    label, text: a line of its own below the bands of sizes.
    statuses: what its verdicts mean for the whole run; empty if none was possible.
    causes: those that the core does not name.
    action: what to do, after what the causes say.
    unjudged: why its verdicts are missing.
    shown_instead: what the report shows if nothing at all was judged.
    rates: its highest rates, named before the highest busbw.
    rates_without_busbw: those that are named only if no busbw was measured.
    """

    label: str = ""
    text: str = ""
    statuses: frozenset[Status] = frozenset()
    causes: tuple[Cause, ...] = ()
    action: str = ""
    unjudged: str = ""
    shown_instead: str = ""
    rates: tuple[str, ...] = ()
    rates_without_busbw: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CaseNumber:
    """A number that a slice knows of some cases, for the rows of ``busbw show``.

    key: in JSON, null for other cases.
    heading: of its column; "" if only JSON has it.
    unit: fractions are shown as percentages.
    values: by the index of the case.
    note: what the column means, shown below tables that have it; "" if another column's note says so.
    """

    key: str
    heading: str
    unit: Literal["fraction", "ns"]
    values: Mapping[int, float | None]
    note: str

    @property
    def known(self) -> bool:
        """Whether some case has it."""
        return any(value is not None for value in self.values.values())


class SliceJudgement(Protocol):
    """What a slice found in a data set: a frozen record of its own results with these views."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Its warnings."""

    @property
    def numbers(self) -> tuple[CaseNumber, ...]:
        """Its numbers of cases, in the order of their columns."""

    def answer(self, judgement: "Judgement", causes: Sequence[Cause]) -> AnswerPart:
        """Its part of the answer to ``judgement``; ``causes`` are those that the core names."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """All data for a report, and everything derived from them.

    samples: for sections that show them.
    findings: ``ranked``.
    doubts: why the model or the peak of a curve cannot be trusted.
    comparisons: algorithms of the same op compared.
    slices: what each slice found.
    """

    results: Results
    samples: Samples
    findings: tuple[Finding, ...]
    verdicts: tuple[Verdict, ...]
    curves: tuple[Curve, ...]
    doubts: Mapping[SeriesKey, Doubts]
    matrices: tuple[PairMatrix, ...]
    splits: tuple[PairSplit, ...]
    selftest: SelfTest | None
    comparisons: tuple[AlgorithmComparison, ...]
    slices: tuple[SliceJudgement, ...]

    def of(self, kind: type[_Slice]) -> _Slice:
        """The judgement of a slice. Raises ValueError if it was not judged."""
        (judgement,) = (judgement for judgement in self.slices if isinstance(judgement, kind))
        return judgement

    @property
    def runs(self) -> tuple[StoredRun, ...]:
        """The runs as recorded, without their samples."""
        return self.results.runs

    @property
    def facts(self) -> Facts:
        """The recorded facts of hosts, ranks and backend."""
        return self.results.facts

    @property
    def cases(self) -> tuple[CaseSummary, ...]:
        """The summaries of all cases, by index."""
        return self.results.cases

    @property
    def from_logs(self) -> bool:
        """Whether all runs are logs of other tools."""
        return all(stored.run.imported is not None for stored in self.runs)

    @property
    def pooled(self) -> tuple[str, ...]:
        """The ids of the runs whose launches are pooled; empty for a single run."""
        return tuple(stored.run.id for stored in self.runs) if len(self.runs) > 1 else ()

    @property
    def best(self) -> Best | None:
        """The highest busbw of the operations that were asked for; None if there is none."""
        return self.best_of(self.asked)

    @property
    def asked(self) -> frozenset[str]:
        """The operations that some run measured not only as references."""
        runs = (stored.run for stored in self.runs)
        return frozenset().union(*({case.op for case in run.cases} - run.plan.baseline_ops for run in runs))

    def best_of(self, ops: Container[str]) -> Best | None:
        """The highest busbw of these ops; None if there is none.

        Totals over groups do not count, nor do plain sockets, which serve as a peak.
        """
        cases = [case for case in self.cases if case.case.op in ops and case.case.op not in ON_SOCKETS]
        groups = [(case, group) for case in cases for group in _fastest(case)]
        rated = [(group.busbw, case, group) for case, group in groups if group.busbw is not None]
        if not rated:
            return None
        busbw, case, group = max(rated, key=lambda entry: entry[0])
        key = key_of(case.case, group.ranks, self.facts)
        stated = next((curve.peak for curve in self.curves if curve.series.key == key), None)
        peak = stated if isinstance(stated, Peak) else None
        pair = " · rank {} → {}".format(*group.ranks) if case.case.op in PAIRED else ""
        return Best(
            busbw=busbw,
            label=f"{key.label}{pair}",
            size_bytes=case.case.size_bytes,
            case=case.index,
            ranks=group.ranks,
            peak=None if peak is None else peak.busbw,
            level=None if peak is None else peak.level,
            what=None if peak is None else peak.source,
            denominator=None if peak is None else peak.denominator,
            why_above=why_above(key.op, peak) if peak is not None and busbw > (peak.busbw or math.inf) else None,
        )


def judge(
    dataset: Dataset,
    selftest: SelfTest | None = None,
    rows: Catalogue | None = None,
    slices: Sequence[Callable[[Evidence], SliceJudgement]] = (),
) -> Judgement:
    """Judge ``dataset``. Bad measurements never raise an error: they become findings or refused fits.

    selftest: the self-test of this machine for this run, if there is one.
    rows: the catalogue of peaks; by default the shipped one with the user's own.
    slices: how each slice judges; ``assembly.judge`` has all of them.
    """
    rows = catalogue() if rows is None else rows
    results = results_of(dataset)
    facts = results.facts
    pictures = {host: picture(facts.environment(host), rows) for host in dict.fromkeys(facts.hosts)}
    curves = curves_of(results, rows)
    doubts = doubts_of(curves, results.cases)
    verdicts = tuple(verdict for curve in curves for verdict in verdicts_on(curve, doubts[curve.series.key]))
    matrices, splits = matrices_of(results.cases, facts, rows), splits_of(results.cases, facts.placements)
    evidence = Evidence(results, pictures, curves, matrices, rows)
    of_slices = tuple(judge_slice(evidence) for judge_slice in slices)
    contrasts = contrasts_in(results.series, matrices, facts, rows)
    findings = findings_on(results, matrices, contrasts, pictures, selftest)
    return Judgement(
        results=results,
        samples=dataset.samples,
        findings=ranked([*findings, *(finding for judgement in of_slices for finding in judgement.findings)]),
        verdicts=verdicts,
        curves=curves,
        doubts=doubts,
        matrices=matrices,
        splits=splits,
        selftest=selftest,
        comparisons=algorithm_comparisons(curves, results.library),
        slices=of_slices,
    )
