"""The metrics that a rule may limit: a row of ``METRICS`` each, with its unit, its bound, and what measures it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

from busbw.errors import UnlikeRuns
from busbw.ops import PAIRED
from busbw.ops.groups import ASKED
from busbw.runs.records import Case
from busbw.units import format_rate, format_time, listed
from busbw_analysis.data.counters import hosts_watched
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.likeness import SOFTWARE, Difference, differences
from busbw_analysis.data.load import Dataset
from busbw_analysis.data.series import key_of
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.compare import Compared, compare, geometric_mean, launch_values
from busbw_analysis.diagnosis.compare_answer import label
from busbw_analysis.diagnosis.curves import Curve
from busbw_analysis.diagnosis.doubts import DOUBTS
from busbw_analysis.diagnosis.findings import case_name
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.fitting.published import published_of
from busbw_analysis.gate.launch_tests import (
    LAUNCH_SCATTER,
    BaselineTest,
    CountTest,
    LimitTest,
    Test,
    scatter_between,
)
from busbw_analysis.peaks.peaks import Peak

Unit = Literal["rate", "time", "share", "ratio", "count", "devices"]
Bound = Literal["at_least", "at_most"]

WORDS: Final[Mapping[Unit, Callable[[float], str]]] = {
    "rate": format_rate,
    "time": format_time,
    "share": lambda share: f"{100 * share:.3g} %",
    "ratio": lambda ratio: f"{ratio:.3g}×",
    "count": lambda count: f"{count:.0f}",
    "devices": lambda count: f"{count:.0f}",
}
"""How a value is written; times are in ns, rates in B/s."""

_SKEW_SCATTER: Final = 1.0
"""Like ``LAUNCH_SCATTER``, of a skew: small differences between ranks differ much more than times."""
_LEAST_SKEW: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a gate judges by.

    judgement: on the runs, as the report has it.
    measured: the runs, pooled.
    baseline: the runs of the baseline, pooled; None: none was given.
    """

    judgement: Judgement
    measured: Dataset
    baseline: Dataset | None = None


class Limited(Protocol):
    """What a metric must know of a rule."""

    @property
    def limit(self) -> float:
        """The limit in the unit of the metric."""

    def matches(self, case: Case) -> bool:
        """Whether the rule is about this case."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Why some cases of a rule could not be tested.

    code: a stable word; reason: without a full stop; cases: their names, if it concerns cases.
    """

    code: str
    reason: str
    cases: tuple[str, ...] = ()


NO_COMMON_CASE: Final = Gap(
    "no-common-case", "no case has a result in the baseline and in the run; give runs of the same plan"
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The tests of a rule, its gaps, and the software that changed since the baseline."""

    tests: tuple[Test, ...] = ()
    gaps: tuple[Gap, ...] = ()
    changed: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """One row.

    bound: the key that holds its limit.
    help: its meaning, for documents.
    measure: makes the tests of a rule.
    """

    unit: Unit
    bound: Bound
    help: str
    measure: Callable[[Evidence, Limited], Measured]

    @property
    def sign(self) -> Literal["≥", "≤"]:
        """The bound as a sign."""
        return "≥" if self.bound == "at_least" else "≤"


_OfCase = Callable[[Evidence, CaseSummary], "tuple[float, ...] | Unavailable"]
"""One number per launch of a measured case."""

UNDEFINED: Final = Unavailable("not-defined", "the metric is not defined for these cases")


def _per_launch(
    of_case: _OfCase, worse: Literal[-1, 1], assumed: float = LAUNCH_SCATTER
) -> Callable[[Evidence, Limited], Measured]:
    """A metric with one number per case and launch. Cases that lack the metric by nature, or cannot run here, are left
    out.
    """

    def measure(evidence: Evidence, rule: Limited) -> Measured:
        tests, why = list[Test](), list[tuple[Unavailable, str]]()
        summaries = [summary for summary in evidence.judgement.cases if rule.matches(summary.case)]
        for summary in summaries:
            name = case_name(summary.case)
            if summary.state == "measured":
                values = of_case(evidence, summary)
                if isinstance(values, Unavailable):
                    why.append((values, name))
                else:
                    usual = None if summary.disturbance.loaded else assumed
                    tests.append(LimitTest(name, values, rule.limit, worse, usual))
            elif summary.state != "skipped":
                why.append((Unavailable(summary.state, f"{summary.state}: {'; '.join(summary.reasons)}"), name))
        left_out = by_key(why)
        if tests:
            left_out.pop(UNDEFINED, None)
        gaps = [Gap(reason.code, reason.reason, tuple(names)) for reason, names in left_out.items()]
        return Measured(tuple(tests), tuple(gaps))

    return measure


def _times(evidence: Evidence, summary: CaseSummary) -> tuple[float, ...]:
    """Time of a call in ns: of the slowest group, the geometric mean over pairs."""
    return tuple(launch_values(evidence.measured, summary, "median").values())


def _algbw(evidence: Evidence, summary: CaseSummary) -> tuple[float, ...] | Unavailable:
    if summary.groups[0].algbw is None:
        return UNDEFINED
    return tuple(summary.case.size_bytes / time_ns * 1e9 for time_ns in _times(evidence, summary))


def _busbw(evidence: Evidence, summary: CaseSummary) -> tuple[float, ...] | Unavailable:
    rates, factor = _algbw(evidence, summary), summary.groups[0].bus_factor
    if isinstance(rates, Unavailable) or factor is None:
        return UNDEFINED
    return tuple(factor * rate for rate in rates)


def _curve(evidence: Evidence, summary: CaseSummary) -> tuple[Curve, int] | Unavailable:
    """The curve of the first group of a case, and the index of its point."""
    judgement, group = evidence.judgement, summary.groups[0]
    key = key_of(summary.case, group.ranks, judgement.facts)
    if summary.case.op in PAIRED:
        return UNDEFINED
    for curve in judgement.curves:
        if curve.series.key == key:
            sizes = [point.size_bytes for point in curve.series.points]
            return curve, sizes.index(summary.case.size_bytes)
    return UNDEFINED


def _share_of_peak(evidence: Evidence, summary: CaseSummary) -> tuple[float, ...] | Unavailable:
    at, rates = _curve(evidence, summary), _busbw(evidence, summary)
    if isinstance(at, Unavailable) or isinstance(rates, Unavailable):
        return UNDEFINED
    peak = at[0].peak
    if not isinstance(peak, Peak):
        return Unavailable("no-peak", f"no peak is known: {peak.reason}")
    doubt = evidence.judgement.doubts[at[0].series.key].peak
    if doubt is not None or peak.busbw is None:
        return Unavailable("peak-doubted", DOUBTS[doubt]) if doubt else UNDEFINED
    return tuple(rate / peak.busbw for rate in rates)


def _ratio_to_model(evidence: Evidence, summary: CaseSummary) -> tuple[float, ...] | Unavailable:
    at = _curve(evidence, summary)
    if isinstance(at, Unavailable):
        return UNDEFINED
    curve, index = at
    if isinstance(curve.model, Unavailable):
        return Unavailable("no-model", f"there is no model: {curve.model.reason}")
    doubt = evidence.judgement.doubts[curve.series.key].model
    if doubt is not None:
        return Unavailable("model-doubted", DOUBTS[doubt])
    return tuple(time_ns / curve.model[index].time_ns for time_ns in _times(evidence, summary))


def _ratio_to_reference(evidence: Evidence, summary: CaseSummary) -> tuple[float, ...] | Unavailable:
    at = _curve(evidence, summary)
    if isinstance(at, Unavailable):
        return UNDEFINED
    point = at[0].series.points[at[1]]
    published = published_of(at[0].published, point)
    if published is None:
        return Unavailable("no-reference", "nobody has published this size of this operation on such a machine")
    return tuple(published.ratio * time_ns / point.time_ns for time_ns in _times(evidence, summary))


def _skew(_evidence: Evidence, summary: CaseSummary) -> tuple[float, ...] | Unavailable:
    groups = summary.groups
    shares = by_key(zip(groups.keys, (groups.rows.skew_ns / groups.rows.median_ns).tolist(), strict=True))
    values = [max(of_launch) for of_launch in shares.values()]
    if groups[0].skew_share is None or any(share != share for share in values):  # noqa: PLR0124 - NaN
        return Unavailable("no-skew", "the ranks share no clock that is good enough")
    return tuple(max(share, _LEAST_SKEW) for share in values)


def _ratio_to_baseline(evidence: Evidence, rule: Limited) -> Measured:
    """A test per band of sizes."""
    if evidence.baseline is None:
        return Measured(gaps=(Gap("no-baseline", "no baseline was given: add --baseline NAME, or a run"),))
    sides = [
        replace(side, summaries=tuple(summary for summary in side.summaries if rule.matches(summary.case)))
        for side in (evidence.baseline, evidence.measured)
    ]
    common = {summary.case for summary in sides[0].summaries if summary.groups} & {
        summary.case for summary in sides[1].summaries if summary.groups and summary.case.mode != "overlap"
    }
    if not common:
        return Measured(gaps=_unlike(*sides) or (NO_COMMON_CASE,))
    changed = tuple(each for each in _differences(*sides) if each.key in SOFTWARE)
    try:
        comparison = compare(*sides, within=rule.limit - 1, allow={each.name for each in changed})
    except UnlikeRuns:
        return Measured(gaps=_unlike(*sides))
    by_case = {summary.case: summary for summary in sides[0].summaries}
    tests = tuple(
        BaselineTest(_band_name(band), band.estimate, rule.limit, *_between_runs(sides[0], band, by_case))
        for band in comparison.bands
    )
    lost = tuple(case_name(left.case) for left in comparison.left_out if left.unjudged)
    gaps = (Gap("no-result", "the baseline has a result, the run has none", lost),) if lost else ()
    return Measured(tests, gaps, changed)


def _between_runs(baseline: Dataset, band: Compared, by_case: Mapping[Case, CaseSummary]) -> tuple[int, float]:
    """The number of runs of the baseline, and their scatter if some two of them differ significantly, else 0."""
    times = [launch_values(baseline, by_case[size.case], "median") for size in band.cases]
    shared = [launch for launch in times[0] if all(launch in of_size for of_size in times)]
    runs = by_key((run, ((run, launch), geometric_mean(of[run, launch] for of in times))) for run, launch in shared)
    return len(runs), scatter_between([dict(launches) for launches in runs.values()])


def _band_name(band: Compared) -> str:
    return label(band.case) if band.band == "no size" else f"{label(band.case)}, {band.band} sizes"


def _differences(baseline: Dataset, measured: Dataset) -> tuple[Difference, ...]:
    """What both sides recorded and differs, once for each pair of values."""
    every = [each for run in measured.runs for each in differences(baseline.runs[0], run) if each.unknown_in is None]
    return tuple({(each.name, each.values): each for each in every}.values())


def _unlike(baseline: Dataset, measured: Dataset) -> tuple[Gap, ...]:
    """What makes the runs another kind of machine, or other settings, than the baseline."""
    unlike = [each for each in _differences(baseline, measured) if each.key not in SOFTWARE]
    return tuple(Gap("unlike-runs", difference.text) for difference in unlike)


def _missing(evidence: Evidence, rule: Limited) -> Measured:
    """Cases of the plan or of the baseline without a result. A case that cannot run here is missing if the baseline has
    it; cases of a baseline that is unlike, or has no case in common with the run, are not counted.
    """
    baseline, measured = evidence.baseline, evidence.measured
    gaps = () if baseline is None else _unlike(baseline, measured)
    before = [] if baseline is None or gaps else baseline.summaries
    wanted = {summary.case for summary in before if summary.groups}
    own = {summary.case: summary.state for summary in measured.summaries}
    if wanted and not wanted & own.keys():
        wanted, gaps = set(), (NO_COMMON_CASE,)
    # What the controller of a whole fleet run did not ask for is not missing.
    whole = all(stored.end is not None and stored.end.status == "complete" for stored in measured.runs)
    unasked = {case for case, state in own.items() if whole and (state, case.group) == ("not reached", ASKED)}
    wanted = (wanted | {case for case, state in own.items() if state != "skipped"}) - unasked
    ordered = [case for case in dict.fromkeys([*own, *wanted]) if case in wanted and rule.matches(case)]
    missing = tuple(case_name(case) for case in ordered if own.get(case) != "measured")
    return replace(_counted(missing, len(ordered), rule), gaps=gaps)


def _wrong_data(evidence: Evidence, rule: Limited) -> Measured:
    """Cases with wrong data, among those whose data were checked."""
    summaries = [summary for summary in evidence.measured.summaries if rule.matches(summary.case)]
    checked = [summary for summary in summaries if summary.check.state in {"verified", "wrong"}]
    if summaries and not checked:
        return Measured(gaps=(Gap("not-checked", "the data of no case were checked"),))
    wrong = tuple(case_name(summary.case) for summary in checked if summary.check.state == "wrong")
    return _counted(wrong, len(checked), rule)


def _counters(evidence: Evidence, rule: Limited) -> Measured:
    """Counters of errors that moved on any host, whatever case was measured then."""
    if any(stored.run.imported is not None for stored in evidence.measured.runs):
        return Measured(gaps=(Gap("no-counters", "a log has no counters of its hosts"),))
    watched = hosts_watched(evidence.measured.runs)
    unwatched = [host for host in dict.fromkeys(evidence.measured.facts.hosts) if host not in watched]
    gaps = (Gap("no-counters", f"no counter was read on {listed(unwatched, 3)}"),) if unwatched else ()
    errors = [moved for moved in evidence.measured.counters if moved.kind == "error"]
    names = tuple(f"{moved.host} {moved.in_words}" for moved in errors)
    return Measured((CountTest(names, None, rule.limit, "counter"),), gaps)


def _gpus(evidence: Evidence, rule: Limited) -> Measured:
    """GPUs that work on each host: those that the kernel lists, without those that NVML calls broken."""
    facts = evidence.measured.facts
    working = {
        host: sum(not gpu.broken for gpu in facts.environment(host).pci.gpus) for host in dict.fromkeys(facts.hosts)
    }
    logs = any(stored.run.imported is not None for stored in evidence.measured.runs)
    if logs and not all(working.values()):
        return Measured(gaps=(Gap("no-gpus", "the log does not name the GPUs of every host"),))
    names = tuple(f"{host} has {count}" for host, count in working.items() if count < rule.limit)
    return Measured((CountTest(names, None, rule.limit, "GPU", fewest=min(working.values())),))


def _counted(names: Sequence[str], looked_at: int, rule: Limited) -> Measured:
    return Measured((CountTest(tuple(names), looked_at, rule.limit),) if looked_at else ())


METRICS: Final[Mapping[str, Metric]] = {
    "busbw": Metric("rate", "at_least", "bus bandwidth of the slowest group of ranks", _per_launch(_busbw, -1)),
    "algbw": Metric("rate", "at_least", "size over time, of the slowest group of ranks", _per_launch(_algbw, -1)),
    "time": Metric("time", "at_most", "time of a call", _per_launch(_times, 1)),
    "share_of_peak": Metric("share", "at_least", "busbw over the peak", _per_launch(_share_of_peak, -1)),
    "ratio_to_model": Metric("ratio", "at_most", "time over the cost model's", _per_launch(_ratio_to_model, 1)),
    "ratio_to_reference": Metric(
        "ratio", "at_most", "time over the published time of this kind of machine", _per_launch(_ratio_to_reference, 1)
    ),
    "ratio_to_baseline": Metric("ratio", "at_most", "time over the baseline's, by band of sizes", _ratio_to_baseline),
    "skew": Metric(
        "share", "at_most", "how far apart ranks enter a call, over its time", _per_launch(_skew, 1, _SKEW_SCATTER)
    ),
    "wrong_data": Metric("count", "at_most", "cases with wrong data", _wrong_data),
    "counters": Metric("count", "at_most", "counters of errors that moved on the hosts", _counters),
    "gpus": Metric("devices", "at_least", "GPUs that work on the host with the fewest", _gpus),
    "missing_cases": Metric("count", "at_most", "cases of the plan or the baseline without a result", _missing),
}
"""Name in a rule → its row."""
