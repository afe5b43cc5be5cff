"""The answer to a run, as shown in every output: is it as expected, why not, what to do, and how far to trust it.

``answer_of`` builds it from a judgement; ``causes`` finds the causes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from busbw.ops.collectives import COLLECTIVES
from busbw.runs.progress import progress_of
from busbw.units import format_rate, format_size, format_time
from busbw_analysis.data.bands import Band
from busbw_analysis.diagnosis.causes import BEATEN, FOUND_WITH, Cause, causes_of, slow_model
from busbw_analysis.diagnosis.findings import Finding
from busbw_analysis.diagnosis.judge import Best, Judgement, Verdict
from busbw_analysis.diagnosis.roofline import best_arithmetic
from busbw_analysis.diagnosis.trust import dots, trust_in

Status = Literal["as expected", "explained", "slower", "undecided", "not judged", "failed"]
"""Status of a whole run. ``explained``: slower than expected, and the causes say why. ``slower``: slower, and no cause
was found.
"""

OPEN_FINDINGS: Final = 3
"""Number of findings that are shown; the others are folded behind their number."""

_BANDS: Final[dict[Band, tuple[str, str]]] = {
    "large": ("Large", "Large messages"),
    "middle": ("Middle", "Middle sizes"),
    "small": ("Small", "Small messages"),
    "no size": ("No data", "Without data"),
}
"""The bands of the verdicts in the order in which the answer names them: label of a line, and name in a sentence."""
_HEADLINES: Final[dict[Status, str]] = {
    "as expected": "As expected.",
    "explained": "Slower than expected, and the cause was found.",
    "slower": "Slower than expected.",
    "undecided": "Undecided.",
    "not judged": "Not judged.",
    "failed": "Results are missing or wrong.",
}
_COLLECTIVE: Final = frozenset(op.name for op in COLLECTIVES)
_MOST_SHOWN: Final = 3
"""Number of operations per band that are named with their numbers."""
_PLACEMENT_CAUSES: Final = frozenset({"oversubscribed", "no-spare-core", "library-copies"})
"""Causes that come from the placement of the ranks. Healthy machines have them, too."""
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
    confidence: 0 to 4; one point each if everything was measured and verified, there are at least 4 launches, the
        machine was quiet, and launches scatter by at most ± 10 %. Shown as dots before ``trust``.
    pooled: ids of the runs whose launches are pooled; empty for a single run.
    causes: the causes that ``cause`` names; ``Verdict.explained_by`` refers to them by code.
    verdicts: the verdicts of the judgement, with the cause that explains each.
    findings: the other findings, those that change a decision most first.
    evidence: the findings behind ``causes``, with their numbers.
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
    verdicts: tuple[Verdict, ...]
    findings: tuple[Finding, ...]
    evidence: tuple[Finding, ...]

    @property
    def answer(self) -> str:
        """Headline and bands as one text."""
        return " ".join([self.headline, *(f"{_BANDS[band][1]}: {text}" for band, text in self.bands)])

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """Label and text of every line that is not empty, in reading order."""
        every = (
            ("Answer", self.headline),
            *((_BANDS[band][0], text) for band, text in self.bands),
            ("Why", self.cause),
            ("Do", self.action),
            ("Trust", f"{dots(self.confidence)} {self.trust}"),
            ("Measured", self.measured),
        )
        return tuple((label, text) for label, text in every if text)

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
    status = _status(judgement, verdicts)
    action = _sentence(*dict.fromkeys(cause.action for cause in causes))
    confidence, trust = trust_in(judgement, action)
    doubted = any(cause.code == "slow-model" for cause in causes)
    bands = tuple(_by_band(verdicts, doubted=doubted))
    known = {code for cause in causes for code in (cause.code, *FOUND_WITH.get(cause.code, ()))}
    return Answer(
        status=status,
        headline=(_healthy(judgement, status, causes) or _HEADLINES[status]) if bands else _unjudged(judgement),
        bands=bands,
        cause=_sentence(*(cause.text for cause in causes), _unexplained(verdicts, causes)),
        action=action,
        trust=_sentence(*trust),
        measured=_measured(judgement),
        confidence=confidence,
        pooled=judgement.dataset.pooled,
        causes=causes,
        verdicts=verdicts,
        findings=tuple(finding for finding in judgement.findings if finding.code not in known),
        evidence=tuple(finding for finding in judgement.findings if finding.code in known),
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


def _healthy(judgement: Judgement, status: Status, causes: Sequence[Cause]) -> str:
    """The headline if nothing but the placement of ranks slows them down, and by no more than on healthy
    machines.
    """
    found = {cause.code for cause in causes}
    doubts = {finding.code for finding in judgement.findings if finding.severity != "note"} - found
    ratios = [verdict.model_ratio for verdict in judgement.verdicts if verdict.model_ratio is not None]
    alone = status == "explained" and found <= _PLACEMENT_CAUSES and doubts <= {"disturbed", "self-test"}
    return "No sign of a faulty machine." if alone and max(ratios, default=1.0) <= _MOST_BY_PLACEMENT else ""


def _unexplained(verdicts: Sequence[Verdict], causes: Sequence[Cause]) -> str:
    slower = [verdict for verdict in verdicts if verdict.status == "slower"]
    rest = sum(verdict.explained_by is None for verdict in slower)
    if causes and rest:
        return f"no cause was found for {rest} of {len(slower)} slower results"
    return "no cause was found: no straggler, slow link, shared core or other load explains it" if rest else ""


def _by_band(verdicts: Sequence[Verdict], *, doubted: bool) -> Iterator[tuple[Band, str]]:
    """One sentence per judged band of sizes. If the model is ``doubted``, they give measured numbers, not ratios."""
    for band in _BANDS:
        judged = [verdict for verdict in verdicts if verdict.band == band and verdict.status != "not judged"]
        if judged:
            yield band, f"{_measured_in_band(judged) if doubted else _in_band(judged)}."


def _measured_in_band(judged: Sequence[Verdict]) -> str:
    """The rate of each operation with its share of the peak if known; without a rate, its time."""
    ordered = sorted(judged, key=lambda verdict: -(verdict.busbw or 0.0))
    shown = [f"{_name(one, judged)} {_rate_or_time(one)} at {format_size(one.size_bytes)}" for one in ordered]
    more = [f"{len(shown) - _MOST_SHOWN} more"] if len(shown) > _MOST_SHOWN else []
    return ", ".join([*shown[:_MOST_SHOWN], *more])


def _rate_or_time(verdict: Verdict) -> str:
    if verdict.busbw is None:
        return format_time(verdict.time_ns)
    share = "" if verdict.peak_share is None else f" ({100 * verdict.peak_share:.3g} % of peak)"
    return f"{format_rate(verdict.busbw)}{share}"


def _unjudged(judgement: Judgement) -> str:
    if all(row.state != "measured" for row in judgement.dataset.cases):
        return "Nothing was measured, so there is nothing to judge."
    if pair := _slowest_pair(judgement):
        return _sentence(pair, "pairs are compared with each other, not with a peak")
    if any(level.share is not None for level in judgement.levels):
        return "Not judged: the rates are listed beside the nominal rates of the hardware."
    logs = [stored.run.imported for stored in judgement.dataset.runs if stored.run.imported is not None]
    options = [f"--{name}" for name in dict.fromkeys(name for log in logs for name in log.unknown) if name != "machine"]
    rest = f" The log lacks facts; give them with {', '.join(options)}." if options else ""
    return f"Not judged: there is neither a peak nor a model to compare with.{rest}"


def _in_band(judged: Sequence[Verdict]) -> str:
    if len(judged) == 1:
        return judged[0].text if judged[0].status != "as expected" else f"as expected ({judged[0].text})"
    slower = [verdict for verdict in judged if verdict.status == "slower"]
    unsure = [verdict for verdict in judged if verdict.status == "undecided"]
    faster = [verdict for verdict in judged if verdict.status == "faster" and (verdict.model_ratio or 1.0) < BEATEN]
    fine = len(judged) - len(slower) - len(unsure) - len(faster)
    if fine == len(judged):
        alike = {(verdict.op, verdict.status) for verdict in judged}  # differing only in place or out of place
        return f"as expected ({judged[0].text})" if len(alike) == 1 else "as expected"
    parts = []
    if slower:
        worst = max(slower, key=lambda verdict: (verdict.model_ratio or 0.0, -(verdict.peak_share or 0.0)))
        parts.append(f"{len(slower)} slower, worst {_name(worst, judged)} ({worst.text})")
    if unsure:
        parts.append(f"{len(unsure)} undecided{_between(unsure)}")
    if faster:
        most = min(faster, key=lambda verdict: (verdict.model_ratio or 1.0, -(verdict.peak_share or 0.0)))
        parts.append(f"{len(faster)} faster, most {_name(most, judged)} ({most.text})")
    if fine:
        parts.append(f"{fine} as expected")
    number, _, rest = ", ".join(parts).partition(" ")
    kind = "operations" if len({verdict.op for verdict in judged}) == len(judged) else "curves"
    return f"{number} of {len(judged)} {kind} {rest}"


def _between(unsure: Sequence[Verdict]) -> str:
    """The range of undecided verdicts: lowest and highest median over the model's time or the peak."""
    ratios = sorted(verdict.model_ratio for verdict in unsure if verdict.model_ratio is not None)
    shares = sorted(100 * verdict.peak_share for verdict in unsure if verdict.peak_share is not None)
    known, words, unit = (ratios, "{:.2g}×", "the model's time") if ratios else (shares, "{:.3g} %", "of peak")
    ends = dict.fromkeys(words.format(end) for end in (*known[:1], *known[-1:]))
    return f" ({' to '.join(ends)} {unit})" if ends else ""


def _name(named: Verdict, among: Sequence[Verdict]) -> str:
    """The op of a verdict, with the parts of its label that distinguish it from other curves of the same op."""
    others = [verdict.label.split(" · ") for verdict in among if verdict.op == named.op and verdict is not named]
    return " ".join(
        part for part in named.label.split(" · ") if part == named.op or any(part not in other for other in others)
    )


def _measured(judgement: Judgement) -> str:
    dataset = judgement.dataset
    measured = sum(row.state == "measured" for row in dataset.cases)
    ranks = sorted({len(stored.run.hosts) for stored in dataset.runs})
    backends = list(dict.fromkeys(row.case.backend for row in dataset.cases))
    progress = [progress_of(stored) for stored in dataset.runs]
    complete, planned = sum(run.complete for run in progress), sum(run.planned for run in progress)
    wrong = any(finding.code == "wrong-data" for finding in judgement.findings)
    checks = {summary.check for summary in judgement.cases if summary.state == "measured" and summary.case.size_bytes}
    world = f"{' and '.join(map(str, ranks))} {' and '.join(backends)} rank{'' if ranks == [1] else 's'}"
    parts = [
        f"{measured} of {len(dataset.cases)} cases",
        f"{world} on {dataset.hosts_in_words}",
        f"{complete} of {planned} launches complete" if complete < planned else "",
        "all data verified" if checks == {"verified"} and not wrong else "",
    ]
    pair = _slowest_pair(judgement) if judgement.verdicts else ""
    return _sentence(", ".join(filter(None, parts)), *_best(judgement), pair)


def _best(judgement: Judgement) -> Iterator[str]:
    """The highest measured rates: arithmetic, then busbw, or memory or storage if no busbw was measured."""
    yield from best_arithmetic(judgement.rooflines)
    best = judgement.best
    if best is None:
        yield from _best_memory(judgement)
        return
    yield f"highest busbw {_rate_of(judgement, best, best.label)}"
    collective = judgement.best_of(_COLLECTIVE)
    if collective is not None and collective.case != best.case:
        op = judgement.cases[collective.case].case.op
        yield f"highest of a collective: {_rate_of(judgement, collective, op)}"


def _rate_of(judgement: Judgement, best: Best, name: str) -> str:
    """The rate with its statistic, ``name`` of the curve, size and share of the peak."""
    statistic = judgement.cases[best.case].groups[0].statistic or "median"
    text = f"{format_rate(best.busbw)} ({statistic}), {name} at {format_size(best.size_bytes)}"
    if best.peak is not None:
        share = f"{100 * best.busbw / best.peak:.3g} % of the peak of {format_rate(best.peak)}"
        text += f", {share} ({best.what})"
        if best.busbw > best.peak and best.level == "memory copy of a host":
            text += " (above 100 % because parts of a message stay in a cache)"
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
    share = rate / float(np.nanmedian(matrix.rate))
    chance = "" if matrix.outliers else "no pair of ranks is significantly slow; "
    return (
        f"{chance}slowest pair {matrix.ranks[source]} → {matrix.ranks[target]}: {format_rate(rate)} at "
        f"{format_size(matrix.size_bytes)}, {100 * share:.3g} % of the median over pairs"
    )


def _best_memory(judgement: Judgement) -> Iterator[str]:
    found = next((level for level in judgement.levels if level.kind in {"DRAM", "HBM"} and level.measured), None)
    files = [level for level in judgement.levels if level.kind == "storage" and level.measured]
    if found is not None:
        share = "" if found.share is None else f", {100 * found.share:.3g} % of nominal"
        yield f"{found.kind} ({found.name}): {format_rate(found.measured)}{share} ({found.how})"
    elif files:
        rates = ", ".join(f"{level.name} {format_rate(level.measured)}" for level in files)
        yield f"highest rates of all ranks together: {rates}"


def _sentence(*clauses: str) -> str:
    """Join ``clauses`` as sentences; empty clauses are left out."""
    return " ".join(f"{clause[:1].upper()}{clause[1:].rstrip('.')}." for clause in clauses if clause)
