"""Why verdicts are what they are: the causes that are looked for, as a table, in the order in which they are named."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from busbw.ops import SYNCHRONISING
from busbw_analysis.diagnosis.judge import Judgement, Verdict
from busbw_analysis.diagnosis.trust import more_launches, percent, scatter_of
from busbw_analysis.diagnosis.verdicts import NOT_ITS_PEAK
from busbw_analysis.models.families import GLOO, MPI

BEATEN: Final = 0.5
"""A model of which an operation takes less than that share of the time is beaten by far."""
FOUND_WITH: Final = {"slow-link": ("slow-host", "slow-rank", "slow-pair"), "no-end": ("interrupted",)}
"""Codes of the findings that a cause of another code is made of."""
_MOST_CAUSES: Final = 2
"""So many causes are named; further ones stay findings."""
_LEAST_RATIOS: Final = 3
_MOST_BY_COPIES: Final = 3.0
"""Times the model's time, or the inverse share of the peak: MPICH on sound machines was seen at up to 2.3."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that explains verdicts, or without which no number can be believed.

    code: a stable word; mostly that of the finding that it was found by.
    text: what it is, without a full stop.
    action: what to do about it, without a full stop.
    """

    code: str
    text: str
    action: str


def causes_of(judgement: Judgement) -> tuple[tuple[Cause, ...], tuple[Verdict, ...]]:
    """The causes that are named, and every verdict with the first of them that explains it."""
    verdicts = list(judgement.verdicts)
    slower = any(verdict.status == "slower" for verdict in verdicts)
    causes: list[Cause] = []
    for rule in (*_RULES, _NOISE):
        text = rule.text(judgement) if rule.text else _said(judgement, rule.code)
        if not text or len(causes) == _MOST_CAUSES or (rule is _NOISE and causes):
            continue
        explained = [
            place
            for place, verdict in enumerate(verdicts)
            if verdict.status in {"slower", "undecided"}
            and verdict.explained_by is None
            and rule.explains(judgement, verdict)
        ]
        # What explains undecided verdicts alone is no answer to why others are slower.
        answers = not slower or rule is _NOISE or any(verdicts[place].status == "slower" for place in explained)
        if (explained and answers) or rule.always:
            action = rule.action if isinstance(rule.action, str) else rule.action(judgement)
            causes.append(Cause(rule.code, text, action))
            for place in explained:
                verdicts[place] = replace(verdicts[place], explained_by=rule.code)
    return tuple(causes), tuple(verdicts)


def slow_model(judgement: Judgement) -> str:
    """Where most operations beat their model by far, it is the model that is wrong; "" where they do not."""
    ratios = [one.model_ratio for one in judgement.verdicts if one.model_ratio is not None]
    if len(ratios) < _LEAST_RATIOS or median(ratios) >= BEATEN:
        return ""
    return (
        f"the model is too slow: half of the operations take less than {median(ratios):.2g} of its time, so its α and "
        "β were measured while the machine was busy"
    )


# --- the table -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rule:
    """One cause: what to do about it, which verdicts it explains, and what it is ("": it is not there), else the first
    sentence of the finding that it was found by. ``always``: it is named even if it explains no verdict.
    """

    code: str
    action: str | Callable[[Judgement], str]
    explains: Callable[[Judgement, Verdict], bool] = lambda *_: False
    text: Callable[[Judgement], str] | None = None
    always: bool = True


def _said(judgement: Judgement, code: str) -> str:
    codes = (code, *FOUND_WITH.get(code, ()))
    texts = (one.text for known in codes for one in judgement.findings if one.code == known)
    return next(texts, "").partition(". ")[0].rstrip(".")


def _again(judgement: Judgement, what: str) -> str:
    """How to measure what is missing: another tool's run cannot be resumed."""
    imported = all(stored.run.imported is not None for stored in judgement.dataset.runs)
    return "run the tool again" if imported else f"{what} with busbw run --resume"


def _fewer_ranks(judgement: Judgement) -> str:
    ranks, cores = max(judgement.dataset.oversubscribed_hosts.values(), key=lambda found: found[0] / found[1])
    where = "" if len(judgement.dataset.oversubscribed_hosts) == 1 else " a host"
    return f"--ranks {cores}{where}, or a host with {ranks} cores" if cores > 1 else f"a host with {ranks} cores"


def _disturbed(judgement: Judgement, verdict: Verdict) -> bool:
    """Whether something else disturbed a point of a curve that ``verdict`` is on."""
    return any(
        judgement.cases[point.case].disturbance.high
        for curve in judgement.curves
        if curve.series.key.label == verdict.label
        for point in curve.series.points
        if point.size_bytes == verdict.size_bytes
    )


def _no_spare_core(judgement: Judgement) -> str:
    hosts = judgement.dataset.full_hosts
    if not hosts or judgement.dataset.backend.cost_models != GLOO:
        return ""
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    return f"every core of {where} has a rank, and Gloo's own threads need one too"


def _library_copies(judgement: Judgement) -> str:
    dataset = judgement.dataset
    on_cpu = all(row.case.device == "cpu" for row in dataset.cases)
    if dataset.backend.cost_models != MPI or not on_cpu or dataset.host_count(range(len(dataset.placements))) != 1:
        return ""
    return "on one host the MPI library copies messages through buffers of its own, which no model counts"


def _by_copies(_judgement: Judgement, verdict: Verdict) -> bool:
    """Whether ``verdict`` is slower by no more than copies on sound machines make it."""
    ratio = verdict.model_ratio or (1 / verdict.peak_share if verdict.peak_share else 1.0)
    return verdict.status == "slower" and ratio <= _MOST_BY_COPIES


def _moved(judgement: Judgement) -> str:
    factors = {curve.series.key.op: factor for curve in judgement.curves if (factor := curve.series.moved_factor) > 1}
    return ", ".join(f"{op} moves {factor:g} times the bytes it needs" for op, factor in factors.items())


def _above_peak(judgement: Judgement) -> str:
    ops = dict.fromkeys(one.op for one in judgement.verdicts if one.text.endswith(NOT_ITS_PEAK))
    return f"{', '.join(ops)} above the nominal peak: {NOT_ITS_PEAK}" if ops else ""


def _scatter_words(judgement: Judgement) -> str:
    scatter = scatter_of(judgement)
    return "" if scatter is None else f"launches of one case differ by ± {percent(scatter)}"


def _measure_again(judgement: Judgement) -> str:
    advice = more_launches(judgement)
    return f"measure again: {advice}" if advice else "measure when the machine is quieter: launches show little more"


_ALONE: Final = "measure again when nothing else runs on the machine (Slurm: --exclusive)"
_RULES: Final = (
    _Rule("wrong-data", "do not use this library or machine before the data are right"),
    _Rule(
        "failed",
        lambda judgement: f"read the error of each case (busbw show), and {_again(judgement, 'measure it again')}",
    ),
    _Rule("no-end", lambda judgement: _again(judgement, "measure the rest")),
    _Rule("oversubscribed", _fewer_ranks, lambda *_: True),
    _Rule(
        "late-rank",
        "look at the host of that rank: load, clock frequency, binding",
        lambda _, verdict: verdict.op in SYNCHRONISING,
    ),
    _Rule("slow-link", "look at that link: cable, interface, switch port", lambda *_: True),
    _Rule("disturbed", _ALONE, _disturbed, always=False),
    _Rule("slow-model", _ALONE, text=slow_model),
    _Rule(
        "no-spare-core",
        "measure with a core to spare, or compare with a run of a healthy host like this one (busbw compare)",
        lambda _, verdict: verdict.status == "slower",
        _no_spare_core,
        always=False,
    ),
    _Rule(
        "library-copies",
        "compare with a run of a healthy host like this one (busbw compare)",
        _by_copies,
        _library_copies,
        always=False,
    ),
    _Rule(
        "moved-factor",
        "compare its busbw with its own earlier runs, not with the peak",
        lambda judgement, verdict: (
            verdict.model_ratio is None
            and any(one.series.key.op == verdict.op and one.series.moved_factor > 1 for one in judgement.curves)
        ),
        _moved,
        always=False,
    ),
    _Rule(
        "above-peak",
        "give the right peak with --peaks (busbw peaks shows what is known)",
        lambda _, verdict: verdict.text.endswith(NOT_ITS_PEAK),
        _above_peak,
        always=False,
    ),
    _Rule("throttled", "look at power limit and cooling of the GPUs", lambda *_: True),
    _Rule(
        "hardware",
        "look at the slot and the link of that card (busbw peaks --here)",
        lambda judgement, _: all(row.case.device != "cpu" for row in judgement.dataset.cases),
        always=False,
    ),
)
"""The causes that are looked for, in the order in which they are named.

Shared cores come before stragglers: a rank that waits for a core is late, too.
"""

_NOISE: Final = _Rule(
    "noise", _measure_again, lambda _, verdict: verdict.status == "undecided", _scatter_words, always=False
)
"""Named where there is no other cause."""
