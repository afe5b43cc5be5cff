"""The answer to a run, as shown in every output: is it as expected, why not, what to do, and how far to trust it.

``answer_of`` builds it from a judgement; ``causes`` finds the causes, ``trust`` the confidence.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from busbw.ops import LOCAL, STORING
from busbw.ops.communication import COLLECTIVES
from busbw.runs.progress import progress_of
from busbw.runs.store import StoredRun
from busbw.units import counted, format_rate, format_size, format_time
from busbw_analysis.data.apart import SEVERAL_GPUS
from busbw_analysis.data.bands import Band, band_of
from busbw_analysis.data.likeness import to_be_given
from busbw_analysis.data.names import statistic_in_words
from busbw_analysis.data.sentences import sentences
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.causes import CONTRASTS, FOUND_WITH, causes_of
from busbw_analysis.diagnosis.doubts import DOUBTS
from busbw_analysis.diagnosis.findings import Finding
from busbw_analysis.diagnosis.judge import AnswerPart, Best, Cause, Judgement, Status, Verdict
from busbw_analysis.diagnosis.trust import all_wrong, decide_more, dots, lacks_launches, trust_in
from busbw_analysis.diagnosis.verdicts import in_flight, share_of_peak, times_of_model
from busbw_analysis.peaks.peaks import Peak, noun_of

OPEN_FINDINGS: Final = 3
"""Number of findings that are shown; the others are folded behind their number."""

_BANDS: Final[dict[Band, str]] = {"large": "Large", "middle": "Middle", "small": "Small", "no size": "Barrier"}
"""The bands of the verdicts in the order in which the answer names them, with their labels."""
_HEADLINES: Final[dict[Status, str]] = {
    "failed": "Results are missing or wrong.",
    "slower": "Slower than expected.",
    "explained": "Slower than expected, for a known reason.",
    "undecided": "Undecided.",
    "as expected": "As expected.",
    "not judged": "Not judged.",
}
"""By status; of several, the first one is that of the whole run."""
_NO_REFERENCE: Final = "there is neither a peak nor a model to compare with"
_UNFINISHED: Final = frozenset({"interrupted", "no-end"})
"""Codes of findings on runs that did not reach their end."""
_COLLECTIVE: Final = frozenset(op.name for op in COLLECTIVES)
_MOST_SHOWN: Final = 3
"""Number of operations per band that are named with their numbers."""
_PLACEMENT_CAUSES: Final = frozenset({"oversubscribed", "no-spare-core", "library-copies"})
"""Causes that come from the placement of the ranks. Healthy machines have them, too."""
_SYMPTOMS: Final = frozenset({"collapse"})
"""Causes that say how results are slow, and no reason for it."""
_MOST_BY_PLACEMENT: Final = 15.0
"""Largest slowdown (times the model's time) that these causes can explain: up to 12 was seen on healthy machines."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a run in a few lines, and the records behind them. Texts are whole sentences, or "".

    status: of the whole run; a stable word.
    headline: whether the run is as expected.
    bands: the verdicts per band of sizes, as direction and ratio.
    cause: the causes, one sentence each.
    action: what to do.
    trust: number of launches, their scatter, and the smallest difference that they can show.
    measured: what ran, how much of it was measured and verified, and the highest busbw.
    confidence: 0 to 4; one point each if everything was measured and verified, launches are enough for a test in
        ``busbw compare``, the machine was quiet, and launches scatter by at most ± 10 %. Shown as dots before
        ``trust``.
    pooled: ids of the runs whose launches are pooled; empty for a single run.
    causes: the causes that ``cause`` names.
    verdicts: the verdicts of the judgement, each with the code of the cause that explains it; None if there is none.
    findings: the other findings, those that change a decision most first.
    evidence: the findings behind ``causes``, with their numbers.
    parts: those of the slices.
    """

    status: Status
    headline: str
    bands: tuple[tuple[Band, str], ...]
    cause: str
    action: str
    trust: str
    measured: str
    confidence: int
    pooled: tuple[str, ...]
    causes: tuple[Cause, ...]
    verdicts: Mapping[Verdict, str | None]
    findings: tuple[Finding, ...]
    evidence: tuple[Finding, ...]
    parts: tuple[AnswerPart, ...]

    @property
    def answer(self) -> str:
        """Headline, bands and the lines of the slices as one text."""
        return " ".join([self.headline, *(f"{label}: {text}" for label, text in self._judged)])

    @property
    def _judged(self) -> Iterator[tuple[str, str]]:
        yield from ((_BANDS[band], text) for band, text in self.bands)
        yield from ((part.label, sentences(part.text)) for part in self.parts if part.text)

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """Label and text of every line that is not empty, in reading order."""
        every = (
            ("Answer", self.headline),
            *self._judged,
            ("Why", self.cause),
            ("Do", self.action),
            ("Trust", f"{dots(self.confidence)} {self.trust}"),
            ("Measured", self.measured),
        )
        return tuple((label, text) for label, text in every if text)

    @property
    def brief(self) -> tuple[tuple[str, str], ...]:
        """The same in at most four lines, for the end of a run."""
        every = dict(self.lines)
        lines = {"Answer": self.answer, **{label: every.get(label, "") for label in ("Why", "Do", "Trust")}}
        return tuple((label, text) for label, text in lines.items() if text)

    @property
    def opened(self) -> tuple[Finding, ...]:
        """The findings to show."""
        return self.findings[:OPEN_FINDINGS]

    @property
    def folded(self) -> tuple[Finding, ...]:
        """The findings to fold behind their number, then the evidence for the causes."""
        return (*self.findings[OPEN_FINDINGS:], *self.evidence)


def answer_of(judgement: Judgement) -> Answer:
    """Build the answer from ``judgement``."""
    causes, verdicts = causes_of(judgement)
    parts = tuple(part.answer(judgement, causes) for part in judgement.slices)
    causes += tuple(dict.fromkeys(cause for part in parts for cause in part.causes))
    statuses = {_status(judgement, verdicts), *(status for part in parts for status in part.statuses)}
    status = next(status for status in _HEADLINES if status in statuses)
    unexplained, compare = _unexplained(judgement, verdicts)
    actions = dict.fromkeys(cause.action for cause in causes)
    if any(cause.compares for cause in causes):
        compare = ""
    undecided = lacks_launches(judgement, verdicts)
    more = decide_more(judgement) if undecided else ""
    confidence, trust = trust_in(judgement, advise=not undecided)
    bands = tuple(_by_band([row for row in verdicts if row.op in judgement.asked or row.status == "slower"]))
    named = {code for cause in causes for code in (cause.code, *FOUND_WITH.get(cause.code, ()))}
    contrast = any(cause.code in {"slow-link", *CONTRASTS} for cause in causes)
    status = "explained" if contrast and status == "not judged" else status
    return Answer(
        status=status,
        headline=_unfinished(judgement)
        or (
            _headline(judgement, status, causes, verdicts)
            if bands or any(part.statuses for part in parts)
            else _unjudged(
                judgement, status, parts, causes, "slower than other results of the same run" if contrast else ""
            )
        ),
        bands=bands,
        cause=sentences(*(cause.text for cause in causes), unexplained),
        action=sentences(*actions, compare, more, *(part.action for part in parts)),
        trust=sentences(*trust),
        measured=_measured(judgement, parts),
        confidence=confidence,
        pooled=judgement.pooled,
        causes=causes,
        verdicts=verdicts,
        findings=tuple(finding for finding in judgement.findings if finding.code not in named),
        evidence=tuple(finding for finding in judgement.findings if finding.code in named),
        parts=parts,
    )


def _status(judgement: Judgement, verdicts: Mapping[Verdict, str | None]) -> Status:
    states = [row.state for row in judgement.cases]
    if "failed" in states or any(finding.severity == "bad" for finding in judgement.findings):
        return "failed"
    statuses = {verdict.status for verdict in verdicts}
    slower = [verdict for verdict in verdicts if verdict.status == "slower"]
    if slower:
        known = all(verdicts[verdict] not in {None, *_SYMPTOMS} for verdict in slower)
        return "explained" if known else "slower"
    if "undecided" in statuses:
        return "undecided"
    return "as expected" if statuses & {"as expected", "faster"} else "not judged"


def _unfinished(judgement: Judgement) -> str:
    """The headline of runs that measured something, are incomplete and have no other fault."""
    bad = {finding.code for finding in judgement.findings if finding.severity == "bad"}
    runs = [stored for stored in judgement.runs if stored.end is None or stored.end.status == "interrupted"]
    states = {row.state for row in judgement.cases}
    if not runs or not bad <= _UNFINISHED or "failed" in states or "measured" not in states:
        return ""
    many = len(judgement.runs) > 1
    return sentences(*(_unfinished_in_words(stored, f" (run {stored.run.id})" if many else "") for stored in runs))


def _unfinished_in_words(stored: StoredRun, which: str) -> str:
    if stored.run.imported is not None:
        return f"the log ends early{which}"
    return (
        f"{'killed or still running' if stored.end is None else 'interrupted'}{which}: {progress_of(stored).in_words()}"
    )


def _headline(judgement: Judgement, status: Status, causes: Sequence[Cause], verdicts: Collection[Verdict]) -> str:
    """Whether the run is as expected. It follows from ``verdicts``, the rows of the table.

    No fault is suspected if the placement of the ranks explains all that is slower, and healthy machines lose as much.
    """
    undecided = [verdict.doubt for verdict in verdicts if verdict.status == "undecided"]
    doubts = [doubt for doubt in undecided if doubt is not None]
    if status == "undecided" and doubts and len(doubts) == len(undecided):
        faults = [cause.fault for cause in causes if cause.fault]
        why = f"rates: cannot tell, {DOUBTS[doubts[0]]}" if faults else f"cannot tell: {DOUBTS[doubts[0]]}"
        return sentences(*faults, why)
    codes = {cause.code for cause in causes}
    if status == "as expected" and codes:
        apart = any(cause.code in CONTRASTS for cause in causes)
        return "As expected, but not everywhere." if apart else "As expected, with a caution."
    others = {finding.code for finding in judgement.findings if finding.severity != "note"} - codes
    ratios = [verdict.model_ratio for verdict in judgement.verdicts if verdict.model_ratio is not None]
    placed = status == "explained" and codes <= _PLACEMENT_CAUSES
    if placed and others <= {"disturbed", "self-test"} and max(ratios, default=1.0) <= _MOST_BY_PLACEMENT:
        return "No sign of a faulty machine."
    statuses = {verdict.status for verdict in verdicts}
    if status == "as expected" and "faster" in statuses:
        return "As expected or faster." if "as expected" in statuses else "Faster than expected."
    return _HEADLINES[status]


def _unexplained(judgement: Judgement, verdicts: Mapping[Verdict, str | None]) -> tuple[str, str]:
    """That no cause was found for slower results, and what to do about them."""
    slower = [verdict for verdict in verdicts if verdict.status == "slower"]
    rest = sum(verdicts[verdict] is None for verdict in slower)
    if not rest:
        return "", ""
    if judgement.from_logs:
        of_nics = all(verdict.key.backend == "verbs" for verdict in slower)
        measure = "measure with busbw run on these hosts to see stragglers and other load"
        return "the log does not record the cause", CONTRASTS["slow-nic"] if of_nics else measure
    which = "" if rest == len(slower) else f" for {rest} of {len(slower)} slower results"
    text = f"no straggler, slow link, shared core or other load was found{which}"
    return text, "compare with an earlier run, or with one on a healthy host of this kind (busbw compare)"


def _by_band(verdicts: Collection[Verdict]) -> Iterator[tuple[Band, str]]:
    """One sentence per judged band of sizes. If every reference of the first one is doubted, it gives measured numbers,
    not ratios; of others, the table has the numbers.
    """
    first = True
    for band in _BANDS:
        every = [verdict for verdict in verdicts if verdict.band == band]
        judged = [verdict for verdict in every if verdict.status != "not judged"]
        doubted = all(verdict.doubt for verdict in judged)
        if judged and (first or not doubted):
            yield band, f"{_measured_in_band(judged) if doubted else _in_band(every)}."
        first = first and not judged


def _measured_in_band(judged: Sequence[Verdict]) -> str:
    """The rate of each operation; without a rate, its time."""
    ordered = sorted(judged, key=lambda verdict: -(verdict.busbw or 0.0))
    shown = [
        f"{verdict.name_among(judged)} {_rate_or_time(verdict)}"
        f"{f' at {format_size(verdict.size_bytes)}' if verdict.size_bytes else ''}"
        for verdict in ordered
    ]
    more = [f"{len(shown) - _MOST_SHOWN} more"] if len(shown) > _MOST_SHOWN else []
    return ", ".join([*shown[:_MOST_SHOWN], *more])


def _rate_or_time(verdict: Verdict) -> str:
    return format_time(verdict.time_ns) if verdict.busbw is None else format_rate(verdict.busbw)


def _unjudged(
    judgement: Judgement, status: Status, parts: Sequence[AnswerPart], causes: Sequence[Cause], contrast: str
) -> str:
    """Why nothing was judged, and what would change that; ``contrast``: that a cause names what is slower, or ""."""
    if all(row.state != "measured" for row in judgement.cases):
        reasons = list(dict.fromkeys(row.reasons[0] for row in judgement.cases if row.reasons))
        more = f"; {counted(len(reasons) - 1, 'more reason')} below" if len(reasons) > 1 else ""
        nothing = "" if all_wrong(judgement) else "nothing was measured: "
        return sentences(f"{nothing}{reasons[0]}{more}" if reasons else "nothing was measured")
    if status == "failed":
        return _HEADLINES[status]
    pair = _slowest_pair(judgement)
    explanations = (
        sentences(*(part.unjudged for part in parts)),
        sentences(contrast, pair, "pairs are compared with each other, not with a peak" if pair else ""),
        _latency_only(judgement),
        sentences(*(part.shown_instead for part in parts)),
    )
    if reason := next(filter(None, explanations), ""):
        return reason
    faults = [cause.fault for cause in causes]
    logs = [stored.run.imported for stored in judgement.runs if stored.run.imported is not None]
    if several := [note.text for log in logs for note in log.notes if note.code == SEVERAL_GPUS]:
        return sentences(f"not judged: {several[0]}")
    options = [
        f"--{name}" for name in dict.fromkeys(name for stored in judgement.runs for name in to_be_given(stored.run))
    ]
    if options:
        if options == ["--hosts"] and {row.case.device for row in judgement.cases} == {"cpu"}:
            options[:] = ["--hosts and --nics if its ranks are on several hosts"]
        example = " COUNTxRATE of one host (8x400Gb/s: eight ports of 400 Gb/s)" if "--nics" in options else ""
        example = example or (", across hosts also --nics" if "--hosts" in options else "")
        missing = f"give the facts that the log lacks with {', '.join(options)}{example}"
        return sentences(*faults, f"not judged: {_NO_REFERENCE}", missing)
    return sentences(*faults, f"not judged: {_lacks(judgement)}")


def _latency_only(judgement: Judgement) -> str:
    """That all sizes of logs show the latency only, which no model of logs judges, whatever the peak is; "" if not."""
    series = [curve.series for curve in judgement.curves if curve.series.key.op not in LOCAL | STORING]
    largest = max((point.size_bytes for of_op in series for point in of_op.points), default=0)
    streams = any(in_flight(of_op.key) for of_op in series)
    if not judgement.from_logs or streams or band_of(largest) != "small":
        return ""
    return sentences(f"not judged: sizes up to {format_size(largest)} show the latency only; measure 1 MiB and more")


def _lacks(judgement: Judgement) -> str:
    """What the first curve lacks that could be judged by a peak."""
    curves = [curve for curve in judgement.curves if curve.series.key.op not in LOCAL]
    peaks = [curve.peak for curve in curves]
    lacking = [peak.reason for peak in peaks if isinstance(peak, Unavailable) and peak.code != "no-wire"]
    if lacking:
        return lacking[0]
    if any(isinstance(curve.peak, Peak) and in_flight(curve.series.key) for curve in curves):
        return "a peak alone does not judge messages of these sizes"
    if any(isinstance(peak, Peak) for peak in peaks):
        return "these sizes show the latency only; measure 1 MiB and more"
    return _NO_REFERENCE


def _in_band(every: Sequence[Verdict]) -> str:
    """How many curves are slower, undecided, as expected, faster and not judged, each with its number."""
    judged = [verdict for verdict in every if verdict.status != "not judged"]
    at = _at(every)
    if len(every) == 1:
        return f"{judged[0].word}{at}: {judged[0].reached}"
    slower = [verdict for verdict in judged if verdict.status == "slower"]
    doubted = [verdict for verdict in judged if verdict.doubt is not None]
    unsure = [verdict for verdict in judged if verdict.status == "undecided" and verdict not in doubted]
    faster = [verdict for verdict in judged if verdict.status == "faster"]
    fine = [verdict for verdict in judged if verdict not in (*slower, *doubted, *unsure, *faster)]
    if len(fine) == len(every):
        # One if the curves differ only in place or out of place: the fastest, which is the highest busbw, too.
        kinds = {(verdict.op, verdict.status) for verdict in judged}
        fastest = min(judged, key=lambda verdict: verdict.time_ns)
        return f"as expected{at}{f': {fastest.reached}' if len(kinds) == 1 else _range(fine)}"
    parts = []
    for word, members in (("slower", slower), ("undecided", unsure)):
        if members:
            worst = max(members, key=lambda verdict: (verdict.model_ratio or 0.0, -(verdict.peak_share or 0.0)))
            which = "worst " if len(members) > 1 else ""
            parts.append((len(members), f"{word}, {which}{worst.name_among(judged)} ({worst.reached})"))
    if doubted:
        parts.append((len(doubted), f"without a verdict, {doubted[0].name_among(judged)} ({doubted[0].reached})"))
    if fine:
        parts.append((len(fine), f"as expected{'' if slower or unsure or doubted else _range(fine)}"))
    if faster:
        most = min(faster, key=lambda verdict: (verdict.model_ratio or 1.0, -(verdict.peak_share or 0.0)))
        which = "most " if len(faster) > 1 else ""
        parts.append((len(faster), f"faster, {which}{most.name_among(judged)} ({most.reached})"))
    if len(every) > len(judged):
        parts.append((len(every) - len(judged), "not judged"))
    kind = "operations" if len({verdict.op for verdict in every}) == len(every) else "curves"
    of = f" of {len(every)} {kind}"
    counts = ", ".join(f"{count}{'' if place else of} {text}" for place, (count, text) in enumerate(parts))
    return f"{at.strip()}, {counts}" if at else counts


def _at(judged: Sequence[Verdict]) -> str:
    """The size that all are judged at; "" if there is none."""
    sizes = {verdict.size_bytes for verdict in judged}
    return f" at {format_size(max(sizes))}" if len(sizes) == 1 and max(sizes) else ""


def _range(verdicts: Sequence[Verdict]) -> str:
    """The medians of several verdicts, from the lowest to the highest, by what decided them."""
    ratios = [verdict.model_ratio for verdict in verdicts if verdict.by == "model" and verdict.model_ratio is not None]
    shares = [verdict.peak_share for verdict in verdicts if verdict.by == "peak" and verdict.peak_share is not None]
    peaks = list(dict.fromkeys(verdict.peak or "" for verdict in verdicts if verdict.by == "peak"))
    ranges = []
    if ratios:
        ranges.append(times_of_model(min(ratios), max(ratios)))
    if shares:
        ranges.append(share_of_peak(peaks[0] if len(peaks) == 1 else "their peaks", min(shares), max(shares)))
    return f" ({', '.join(ranges)})" if ranges else ""


def _measured(judgement: Judgement, parts: Sequence[AnswerPart]) -> str:
    runs, cases = judgement.runs, judgement.cases
    measured = sum(row.state == "measured" for row in cases)
    ranks = sorted({len(stored.run.hosts) for stored in runs})
    backends = list(dict.fromkeys(row.case.backend for row in cases))
    progress = [progress_of(stored) for stored in runs]
    complete, planned = sum(run.complete for run in progress), sum(run.planned for run in progress)
    done = f"{measured} of {counted(len(cases), 'case')}"
    ends = {stored.end.status for stored in runs if stored.end is not None}
    if judgement.from_logs and ends != {"complete"}:  # the log does not list the others
        done = f"{counted(measured, 'case')}, until {'the job failed' if 'failed' in ends else 'the log ends'}"
    wrong = any(finding.code == "wrong-data" for finding in judgement.findings)
    checked = [summary for summary in cases if summary.state == "measured" and summary.case.size_bytes]
    checks = {summary.check.state for summary in checked}
    world = f"{' and '.join(map(str, ranks))} {' and '.join(backends)} rank{'' if ranks == [1] else 's'}"
    clauses = [
        done,
        f"{world} on {judgement.facts.hosts_in_words}",
        f"{complete} of {planned} launches complete" if complete < planned and not judgement.from_logs else "",
        "data verified" if checks == {"verified"} and not wrong else "",
    ]
    pair = _slowest_pair(judgement) if judgement.verdicts else ""
    return sentences(", ".join(filter(None, clauses)), *_best(judgement, parts), pair)


def _best(judgement: Judgement, parts: Sequence[AnswerPart]) -> Iterator[str]:
    """The highest measured rates: those of the slices, then busbw."""
    yield from (rate for part in parts for rate in part.rates)
    best = judgement.best
    if best is None:
        yield from (rate for part in parts for rate in part.rates_without_busbw)
        return
    yield f"highest busbw {_rate_of(judgement, best, best.label)}"
    collective = judgement.best_of(_COLLECTIVE & judgement.asked)
    if collective is not None and collective.case != best.case:
        op = judgement.cases[collective.case].case.op
        yield f"highest of a collective: {_rate_of(judgement, collective, op)}"


def _rate_of(judgement: Judgement, best: Best, name: str) -> str:
    """The rate with its statistic, ``name`` of the curve, size and share of the peak."""
    statistic = statistic_in_words(judgement.cases[best.case].groups[0].statistic or "median")
    text = f"{format_rate(best.busbw)} ({statistic}), {name} at {format_size(best.size_bytes)}"
    if best.peak is not None:
        share = f"{100 * best.busbw / best.peak:.3g} % of the {noun_of(best.level)} of {format_rate(best.peak)}"
        above = "" if best.why_above is None else f"; above 100 %: {best.why_above}"
        text += f", {share} (from {best.what}{above})"
    return text


def _slowest_pair(judgement: Judgement) -> str:
    """The slowest pair of ranks compared with the median pair; "" for fewer than three ranks. The matrix is the largest
    one with outliers, or the largest one if none has any.
    """
    matrix = max(judgement.matrices, key=lambda matrix: (bool(matrix.outliers), matrix.size_bytes), default=None)
    if matrix is None or len(matrix.ranks) < 3 or np.isnan(matrix.rate).all():
        return ""
    source, target = np.unravel_index(np.nanargmin(matrix.rate), matrix.rate.shape)
    rate = float(matrix.rate[source, target])
    share = rate / float(matrix.rate.flat[matrix.middle])
    shown, compared = format_rate(rate), f"{100 * share:.3g} % of the median pair"
    if band_of(matrix.size_bytes) == "small":
        shown, compared = format_time(float(matrix.time_ns[source, target])), f"{1 / share:.3g} × the median pair"
    size = format_size(matrix.size_bytes)
    slowest = f"slowest pair {matrix.ranks[source]} → {matrix.ranks[target]}: {shown} at {size}, {compared}"
    if matrix.outliers:
        return slowest
    return f"{slowest}; {matrix.unknown}" if matrix.unknown else f"no pair of ranks is significantly slow; {slowest}"
