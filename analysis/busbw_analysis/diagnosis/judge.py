"""The judgement on a run: findings first, then verdicts and all derived records with their evidence."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from busbw.ops import ON_SOCKETS, PAIRED
from busbw.runs.store import StoredRun
from busbw.system.catalog import Catalogue, catalogue
from busbw_analysis.data.facts import Facts
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.imported import LogFacts
from busbw_analysis.data.lateness import GroupLateness
from busbw_analysis.data.load import Dataset, pool
from busbw_analysis.data.samples import Samples
from busbw_analysis.data.series import key_of
from busbw_analysis.data.sources import read_all
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.algorithms import AlgorithmComparison, algorithm_comparisons
from busbw_analysis.diagnosis.composition import Composition, compositions_of
from busbw_analysis.diagnosis.curves import Curve, curves_of
from busbw_analysis.diagnosis.distances import PairSplit, splits_of
from busbw_analysis.diagnosis.findings import Finding, findings_on
from busbw_analysis.diagnosis.pairs import PairMatrix, matrices_of
from busbw_analysis.diagnosis.selftest import SelfTest, selftest_for
from busbw_analysis.diagnosis.single_calls import SingleCall, single_calls
from busbw_analysis.diagnosis.verdicts import Verdict, verdicts_on
from busbw_analysis.models.results import Results, results_of
from busbw_analysis.node.hierarchy import HierarchyLevel, hierarchy
from busbw_analysis.node.memory import MemoryCurve, memory_curves
from busbw_analysis.node.network_roofline import NetworkRoofline, network_rooflines
from busbw_analysis.node.peer_peaks import PairShares, shares_of
from busbw_analysis.node.roofline import Roofline, rooflines_of
from busbw_analysis.node.storage import Stored, stored
from busbw_analysis.peaks.peaks import Peak, PeakLevel
from busbw_analysis.predict import Questions
from busbw_analysis.training.gradient_exchanges import Exchanged, exchanged
from busbw_analysis.training.held import Held, held
from busbw_analysis.training.step_verdicts import StepVerdict, step_verdicts
from busbw_analysis.training.steps import Trained, steps_of

__all__ = ["Best", "Curve", "Finding", "Judgement", "PairMatrix", "Verdict", "judge"]


@dataclass(frozen=True, slots=True)
class Best:
    """The highest busbw (B/s) of some measured cases and groups of ranks, judged or not; pairs of a matrix are groups.

    case: its index.
    peak: the busbw that is 100 %, B/s.
    level, what, denominator: of that peak, as of ``Peak``; None if no peak is known, as ``peak`` is.
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

    @property
    def share(self) -> float | None:
        """The share of the peak; None if no peak is known."""
        return None if self.peak is None else self.busbw / self.peak


def _fastest(summary: CaseSummary) -> Sequence[GroupSummary]:
    """Candidates for the highest busbw: all groups, or the fastest pair of a matrix, whose pairs move equal bytes."""
    groups = summary.groups
    return (groups[int(np.argmin(groups.time_ns))],) if summary.case.op in PAIRED and groups else groups


@dataclass(frozen=True, slots=True)
class Judgement:
    """All data for a report, and everything derived from them.

    samples: for sections that show them.
    findings: ``ranked``.
    memory, files, steps: results of kernels in memory, operations on storage and training steps.
    held, step_verdicts: training steps beside their predictions, and the verdicts on all of them.
    exchanges: groups of steps that differ only in the exchange of gradients.
    compositions, single_calls: all-reduce beside its two halves, and cases that were also measured as scripts do.
    levels: the hierarchy of the machine.
    pair_shares: for each matrix, what its pairs reached of their peaks.
    comparisons: algorithms of the same op compared.
    """

    results: Results
    samples: Samples
    findings: tuple[Finding, ...]
    verdicts: tuple[Verdict, ...]
    curves: tuple[Curve, ...]
    matrices: tuple[PairMatrix, ...]
    splits: tuple[PairSplit, ...]
    lateness: tuple[GroupLateness, ...]
    selftest: SelfTest | None
    rooflines: tuple[Roofline, ...] = ()
    networks: tuple[NetworkRoofline, ...] = ()
    memory: tuple[MemoryCurve, ...] = ()
    files: tuple[Stored, ...] = ()
    steps: tuple[Trained, ...] = ()
    held: tuple[Held, ...] = ()
    step_verdicts: tuple[StepVerdict, ...] = ()
    exchanges: tuple[tuple[Exchanged, ...], ...] = ()
    compositions: tuple[Composition, ...] = ()
    single_calls: tuple[SingleCall, ...] = ()
    levels: tuple[HierarchyLevel, ...] = ()
    pair_shares: tuple[PairShares | Unavailable | None, ...] = ()
    comparisons: tuple[AlgorithmComparison, ...] = ()

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
        return frozenset().union(*({case.op for case in run.cases} - run.baseline_ops for run in runs))

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
        key = key_of(case.case, group.ranks, self.facts.hosts, self.facts.backend.cost_models)
        peak = next((curve.peak for curve in self.curves if curve.series.key == key), None)
        known = peak if isinstance(peak, Peak) else None
        pair = " · rank {} → {}".format(*group.ranks) if case.case.op in PAIRED else ""
        return Best(
            busbw=busbw,
            label=f"{key.label}{pair}",
            size_bytes=case.case.size_bytes,
            case=case.index,
            ranks=group.ranks,
            peak=None if known is None else known.busbw,
            level=None if known is None else known.level,
            what=None if known is None else known.what,
            denominator=None if known is None else known.denominator,
        )


def judge(dataset: Dataset, selftest: SelfTest | None = None, rows: Catalogue | None = None) -> Judgement:
    """Judge ``dataset``. Bad measurements never raise an error: they become findings or refused fits.

    selftest: the self-test of this machine for this run, if there is one.
    rows: the catalogue of peaks; by default the shipped one with the user's own.
    """
    rows = catalogue() if rows is None else rows
    results = results_of(dataset)
    facts, summaries, curves = results.facts, results.cases, curves_of(results, rows)
    matrices = matrices_of(summaries, facts.placements)
    memory, files = memory_curves(dataset, curves), stored(dataset, curves)
    rooflines = rooflines_of(dataset, memory, rows)
    shares, steps = tuple(shares_of(facts, matrix, rows) for matrix in matrices), steps_of(dataset)
    predicted = held(Questions([results])) if steps else ()
    return Judgement(
        results=results,
        samples=dataset.samples,
        findings=findings_on(results, matrices, selftest, rows),
        verdicts=tuple(verdict for curve in curves for verdict in verdicts_on(curve)),
        curves=curves,
        matrices=matrices,
        splits=splits_of(summaries, facts.placements),
        lateness=results.lateness,
        selftest=selftest,
        rooflines=rooflines,
        networks=network_rooflines(dataset, rooflines, rows),
        memory=memory,
        files=files,
        steps=steps,
        held=predicted,
        step_verdicts=step_verdicts(steps, predicted),
        exchanges=exchanged(steps),
        compositions=compositions_of(curves),
        single_calls=single_calls(summaries, dataset.samples),
        pair_shares=shares,
        comparisons=algorithm_comparisons(curves, results.library),
        levels=hierarchy(dataset, curves, memory, files, list(zip(matrices, shares, strict=True)), rows),
    )


def judgement_of(
    runs: Sequence[str], results_dir: Path, peaks_file: Path | None, *, force: bool, facts: LogFacts | None = None
) -> Judgement:
    """The judgement on the runs named by ``runs`` (paths, names, or ``latest``), pooled; ``facts`` apply to logs.

    Raises StoreError for anything that is not a run, and UnlikeRuns for runs that may not be pooled unless ``force``.
    """
    rows = catalogue(peaks_file)
    return judge_with_selftest(pool(read_all(results_dir, runs, facts), force=force), rows)


def judge_with_selftest(dataset: Dataset, rows: Catalogue) -> Judgement:
    """The judgement on ``dataset``, with the self-test stored beside its first run."""
    first = dataset.runs[0]
    if first.run.imported is not None:
        return judge(dataset, None, rows)
    backend = first.run.cases[0].backend if first.run.cases else ""
    began = max(stored.run.started for stored in dataset.runs)
    return judge(dataset, selftest_for(first.path.parent, backend, len(first.run.hosts), began), rows)
