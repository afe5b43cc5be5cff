"""The answer to a run: is it as expected, why not, what to do, and how far to trust it. Every output says it from here.

``answer_of`` makes it once from a judgement; the causes are in ``causes``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from busbw.ops.collectives import COLLECTIVES
from busbw.runs.progress import progress_of
from busbw.units import format_rate, format_size, format_time
from busbw_analysis.diagnosis.causes import BEATEN, FOUND_WITH, Cause, causes_of, slow_model
from busbw_analysis.diagnosis.findings import Finding
from busbw_analysis.diagnosis.judge import Judgement, Verdict
from busbw_analysis.diagnosis.roofline import best_arithmetic
from busbw_analysis.diagnosis.trust import trust_in
from busbw_analysis.peaks.peaks import Peak

Status = Literal["as expected", "explained", "slower", "undecided", "not judged", "failed"]
"""Of a whole run. ``explained``: slower than expected, and the causes say why; ``slower``: for no cause that was found.
"""

OPEN_FINDINGS: Final = 3
"""So many findings are shown; more are folded behind their number."""

_BANDS: Final = {
    "large": "large messages",
    "middle": "middle sizes",
    "small": "small messages",
    "no size": "without data",
}
"""The bands of the verdicts, in the order in which the answer says them."""
_COLLECTIVE: Final = frozenset(op.name for op in COLLECTIVES)
_MOST_SHOWN: Final = 3
"""So many operations of a band are named with their numbers."""
_OF_SOUND: Final = frozenset({"oversubscribed", "no-spare-core", "library-copies"})
"""Causes that come from where the ranks run, and that a sound machine has, too."""
_MOST_OF_SOUND: Final = 15.0
"""So many times the model's time they may take: sound machines were seen at up to 12."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a run says, in four lines, and what they are made of. Sentences are whole; "" where there is none.

    status: of the whole run; a stable word.
    answer: the verdicts by band of sizes, as direction and ratio.
    cause: the causes in one sentence.
    action: what to do.
    trust: launches, their scatter, and what difference they show.
    measured: what ran, how much of it was measured and verified, and the highest busbw.
    confidence: 0 to 4, a point each for: all measured and verified, at least 4 launches, a quiet machine, launches
        that scatter by at most ± 10 %.
    causes: those of ``cause``; ``Verdict.explained_by`` has their codes.
    verdicts: those of the judgement, with what explains them.
    findings: what else there is to know, what changes a decision most first.
    evidence: the findings that the causes were found by, with their numbers.
    """

    status: Status
    answer: str
    cause: str
    action: str
    trust: str
    measured: str
    confidence: int
    causes: tuple[Cause, ...]
    verdicts: tuple[Verdict, ...]
    findings: tuple[Finding, ...]
    evidence: tuple[Finding, ...]

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """Label and sentence of every line that has one, in the order in which they are read."""
        labels = ("Answer", "Why", "Do", "Trust", "Measured")
        texts = (self.answer, self.cause, self.action, self.trust, self.measured)
        return tuple((label, text) for label, text in zip(labels, texts, strict=True) if text)

    @property
    def opened(self) -> tuple[Finding, ...]:
        """The findings to show."""
        return self.findings[:OPEN_FINDINGS]

    @property
    def folded(self) -> tuple[Finding, ...]:
        """The findings behind their number, with those that are causes."""
        return (*self.findings[OPEN_FINDINGS:], *self.evidence)


def answer_of(judgement: Judgement) -> Answer:
    """The answer to ``judgement``."""
    causes, verdicts = causes_of(judgement)
    status = _status(judgement, verdicts)
    action = _sentence(*dict.fromkeys(cause.action for cause in causes))
    confidence, trust = trust_in(judgement, action)
    doubted = any(cause.code == "slow-model" for cause in causes)
    known = {code for cause in causes for code in (cause.code, *FOUND_WITH.get(cause.code, ()))}
    return Answer(
        status=status,
        answer=_sentence(*_acquitted(judgement, status, causes), *_by_band(verdicts, doubted=doubted))
        or _unjudged(judgement),
        cause=_sentence(*(cause.text for cause in causes), _unexplained(verdicts, causes)),
        action=action,
        trust=_sentence(*trust),
        measured=_measured(judgement),
        confidence=confidence,
        causes=causes,
        verdicts=verdicts,
        findings=tuple(one for one in judgement.findings if one.code not in known),
        evidence=tuple(one for one in judgement.findings if one.code in known),
    )


def _status(judgement: Judgement, verdicts: Sequence[Verdict]) -> Status:
    states = [row.state for row in judgement.dataset.cases]
    if "failed" in states or any(finding.severity == "bad" for finding in judgement.findings):
        return "failed"
    found = {verdict.status for verdict in verdicts}
    slower = [verdict for verdict in verdicts if verdict.status == "slower"]
    if slower:
        return "explained" if all(verdict.explained_by for verdict in slower) else "slower"
    if "undecided" in found or slow_model(judgement):
        return "undecided"
    return "as expected" if found & {"as expected", "faster"} else "not judged"


def _acquitted(judgement: Judgement, status: Status, causes: Sequence[Cause]) -> tuple[str, ...]:
    """The clause that comes first where nothing but the place of the ranks makes anything slower, nor by more than it
    does on sound machines.
    """
    found = {cause.code for cause in causes}
    doubts = {one.code for one in judgement.findings if one.severity != "note"} - found - {"disturbed", "self-test"}
    ratios = [one.model_ratio for one in judgement.verdicts if one.model_ratio is not None]
    alone = status == "explained" and found <= _OF_SOUND and not doubts
    return ("no sign of a faulty machine",) if alone and max(ratios, default=1.0) <= _MOST_OF_SOUND else ()


def _unexplained(verdicts: Sequence[Verdict], causes: Sequence[Cause]) -> str:
    slower = [verdict for verdict in verdicts if verdict.status == "slower"]
    rest = sum(verdict.explained_by is None for verdict in slower)
    if causes and rest:
        return f"for {rest} of {len(slower)} that are slower no cause was found"
    return "no straggler, slow link, shared core or busy machine was found that explains what is slower" if rest else ""


def _by_band(verdicts: Sequence[Verdict], *, doubted: bool) -> Iterator[str]:
    """One clause per band of sizes that was judged: of a model that is ``doubted`` the measured numbers instead."""
    for band, name in _BANDS.items():
        judged = [one for one in verdicts if one.band == band and one.status != "not judged"]
        if judged:
            yield f"{name}: {_measured_in_band(judged) if doubted else _in_band(judged)}"


def _measured_in_band(judged: Sequence[Verdict]) -> str:
    """The rate of each operation with its share of the peak, where it has one, else its time."""
    shown = [
        f"{_name(one, judged)} {format_time(one.time_ns)} at {format_size(one.size_bytes)}"
        if one.busbw is None
        else f"{_name(one, judged)} {format_rate(one.busbw)}{_of_peak(one)} at {format_size(one.size_bytes)}"
        for one in sorted(judged, key=lambda one: -(one.busbw or 0.0))
    ]
    more = [f"{len(shown) - _MOST_SHOWN} more"] if len(shown) > _MOST_SHOWN else []
    return ", ".join([*shown[:_MOST_SHOWN], *more])


def _of_peak(one: Verdict) -> str:
    return "" if one.peak_share is None else f" ({100 * one.peak_share:.3g} % of peak)"


def _unjudged(judgement: Judgement) -> str:
    if all(row.state != "measured" for row in judgement.dataset.cases):
        return "Nothing was measured, so nothing can be said about this machine."
    if pair := _slowest_pair(judgement):
        return _sentence(pair, "pairs are compared with each other, not with a peak")
    if any(level.share is not None for level in judgement.levels):
        return "The rates stand beside the nominal ones of the hardware, and are not judged."
    logs = [stored.run.imported for stored in judgement.dataset.runs if stored.run.imported is not None]
    options = [f"--{name}" for name in dict.fromkeys(name for log in logs for name in log.unknown) if name != "machine"]
    rest = f", unless you say what the log does not: {', '.join(options)}" if options else ""
    return f"There is nothing to compare the numbers with: they are shown and not judged{rest}."


def _in_band(judged: Sequence[Verdict]) -> str:
    if len(judged) == 1:
        return judged[0].text if judged[0].status != "as expected" else f"as expected ({judged[0].text})"
    slower = [one for one in judged if one.status == "slower"]
    unsure = [one for one in judged if one.status == "undecided"]
    faster = [one for one in judged if one.status == "faster" and (one.model_ratio or 1.0) < BEATEN]
    fine = len(judged) - len(slower) - len(unsure) - len(faster)
    if fine == len(judged):
        alike = {(one.op, one.status) for one in judged}  # in place and out of place
        return f"as expected ({judged[0].text})" if len(alike) == 1 else "as expected"
    parts = []
    if slower:
        worst = max(slower, key=lambda one: (one.model_ratio or 0.0, -(one.peak_share or 0.0)))
        parts.append(f"{len(slower)} slower, worst {_name(worst, judged)} ({worst.text})")
    if unsure:
        parts.append(f"{len(unsure)} undecided{_between(unsure)}")
    if faster:
        most = min(faster, key=lambda one: (one.model_ratio or 1.0, -(one.peak_share or 0.0)))
        parts.append(f"{len(faster)} faster, most {_name(most, judged)} ({most.text})")
    if fine:
        parts.append(f"{fine} as expected")
    number, _, rest = ", ".join(parts).partition(" ")
    kind = "operations" if len({one.op for one in judged}) == len(judged) else "curves"
    return f"{number} of {len(judged)} {kind} {rest}"


def _between(unsure: Sequence[Verdict]) -> str:
    """What is known of undecided verdicts: between what their medians lie."""
    ratios = sorted(one.model_ratio for one in unsure if one.model_ratio is not None)
    shares = sorted(100 * one.peak_share for one in unsure if one.peak_share is not None)
    known, words, unit = (ratios, "{:.2g}×", "the model's time") if ratios else (shares, "{:.3g} %", "of peak")
    ends = dict.fromkeys(words.format(end) for end in (*known[:1], *known[-1:]))
    return f" ({' to '.join(ends)} {unit})" if ends else ""


def _name(of: Verdict, among: Sequence[Verdict]) -> str:
    """The op of a verdict, with what tells its curve from others of the same op."""
    others = [one.label.split(" · ") for one in among if one.op == of.op and one is not of]
    return " ".join(
        part for part in of.label.split(" · ") if part == of.op or any(part not in other for other in others)
    )


def _measured(judgement: Judgement) -> str:
    dataset = judgement.dataset
    measured = sum(row.state == "measured" for row in dataset.cases)
    ranks = sorted({len(stored.run.hosts) for stored in dataset.runs})
    backends = list(dict.fromkeys(row.case.backend for row in dataset.cases))
    whole = [progress_of(stored) for stored in dataset.runs]
    complete, planned = sum(one.complete for one in whole), sum(one.planned for one in whole)
    checks = {one.check for one in judgement.cases if one.state == "measured" and one.case.size_bytes}
    world = f"{' and '.join(map(str, ranks))} {' and '.join(backends)} rank{'' if ranks == [1] else 's'}"
    parts = [
        f"{measured} of {len(dataset.cases)} cases",
        f"{world} on {dataset.hosts_in_words}",
        f"{complete} of {planned} launches" if complete < planned else "",
        "all data verified" if checks == {"verified"} else "",
    ]
    pair = _slowest_pair(judgement) if judgement.verdicts else ""
    return _sentence(", ".join(filter(None, parts)), *_best(judgement), pair)


def _best(judgement: Judgement) -> Iterator[str]:
    """The best of what was measured: busbw, else what memory or storage carries; and arithmetic."""
    yield from best_arithmetic(judgement.rooflines)
    best = judgement.best
    if best is None:
        yield from _best_memory(judgement)
        return
    told = judgement.cases[best.case].groups[0].statistic or "median"
    text = f"highest busbw {format_rate(best.busbw)} ({told}), {best.label} at {format_size(best.size_bytes)}"
    if best.peak is not None:
        share = f"{100 * best.busbw / best.peak:.3g} % of the peak of {format_rate(best.peak)}"
        text += f", {share} ({best.what})"
        if best.busbw > best.peak and best.level == "memory copy of a host":
            text += ", above it because parts of a message stay in a cache"
    yield text
    if judgement.cases[best.case].case.op not in _COLLECTIVE:
        yield _best_collective(judgement)


def _best_collective(judgement: Judgement) -> str:
    """The highest busbw of a collective, for runs whose messages between two ranks are faster; "" without one."""
    points = [
        (point.busbw, point.size_bytes, curve)
        for curve in judgement.curves
        if curve.series.key.op in _COLLECTIVE
        for point in curve.series.points
        if point.busbw is not None
    ]
    if not points:
        return ""
    busbw, size, curve = max(points, key=lambda one: one[0])
    share = ""
    if isinstance(curve.peak, Peak) and curve.peak.busbw:
        share = f", {100 * busbw / curve.peak.busbw:.3g} % of its peak of {format_rate(curve.peak.busbw)}"
    return f"of a collective {format_rate(busbw)}, {curve.series.key.op} at {format_size(size)}{share}"


def _slowest_pair(judgement: Judgement) -> str:
    """The slowest pair of ranks at the largest size at which one is slow in most launches, else at the largest, beside
    the median pair; "" of fewer than three ranks.
    """
    matrix = max(judgement.matrices, key=lambda one: (bool(one.outliers), one.size_bytes), default=None)
    if matrix is None or len(matrix.ranks) < 3 or np.isnan(matrix.rate).all():
        return ""
    source, target = np.unravel_index(np.nanargmin(matrix.rate), matrix.rate.shape)
    rate = float(matrix.rate[source, target])
    share = rate / float(np.nanmedian(matrix.rate))
    chance = "" if matrix.outliers else "no pair of ranks stands out from chance; the "
    return (
        f"{chance}slowest pair of ranks {matrix.ranks[source]} → {matrix.ranks[target]}: {format_rate(rate)} at "
        f"{format_size(matrix.size_bytes)}, {100 * share:.3g} % of the median over pairs"
    )


def _best_memory(judgement: Judgement) -> Iterator[str]:
    found = next((level for level in judgement.levels if level.kind in {"DRAM", "HBM"} and level.measured), None)
    files = [level for level in judgement.levels if level.kind == "storage" and level.measured]
    if found is not None:
        share = "" if found.share is None else f", {100 * found.share:.3g} % of nominal"
        yield f"{found.kind} ({found.name}) carries {format_rate(found.measured)}{share} ({found.how})"
    elif files:
        rates = ", ".join(f"{level.name} {format_rate(level.measured)}" for level in files)
        yield f"the best rates of all ranks together: {rates}"


def _sentence(*clauses: str) -> str:
    """``clauses`` as sentences, one after another."""
    return " ".join(f"{clause[:1].upper()}{clause[1:].rstrip('.')}." for clause in clauses if clause)
