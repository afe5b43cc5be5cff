"""The judgement as JSON with stable keys, for scripts and for comparing reports. docs/json.md explains the keys.

Times are in ns, rates in B/s, sizes in B, shares are fractions. A number that does not exist is null; there is no NaN
or Infinity. ``{"none": reason, "code": code}`` replaces a value that is not available: reason in words, code a stable
word.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Final, get_args

import msgspec
import numpy as np

from busbw.ops import PAIRED
from busbw.runs.records import JSON
from busbw.runs.store import StoredRun
from busbw_analysis.assembly.slices import SLICES
from busbw_analysis.data.as_json import plain, values_of, with_values
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.series import SeriesKey
from busbw_analysis.data.summary import CaseState, CaseSummary
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.algorithms import AlgorithmComparison
from busbw_analysis.diagnosis.answer import Answer
from busbw_analysis.diagnosis.equivalents import UNIT, compositions_of, single_calls
from busbw_analysis.diagnosis.judge import Curve, Judgement, PairMatrix, Verdict
from busbw_analysis.diagnosis.verdicts import against_model, in_words
from busbw_analysis.peaks.peaks import peak_as_json

LAYOUT: Final = 1
"""Raised when a key is removed or changes its meaning; new keys do not raise it."""

_ANSWER: Final = ("status", "answer", "cause", "action", "trust", "measured", "confidence", "pooled", "causes")
_MOST_PAIRS: Final = 240
"""Pairs of one case that are listed with all their numbers."""

_OF_RUN: Final = ("machine", "started", "busbw", "launcher")


def document(judgement: Judgement, answer: Answer) -> dict[str, JSON]:
    """The judgement and its answer as plain dictionaries, lists, strings and finite numbers."""
    states = Counter(row.state for row in judgement.cases)
    return {
        "report": LAYOUT,
        "answer": answer_fields(answer),
        "warnings": [plain(finding.as_json()) for finding in judgement.findings],
        "counters": plain(judgement.results.counters),
        "runs": _runs(judgement.runs),
        "counts": {state: states[state] for state in get_args(CaseState)},
        "best": plain(judgement.best),
        "verdicts": [
            # The settings of the curve are among ``curves``.
            {**values_of(verdict, *_OF_VERDICT), "explained_by": code, **values_of(verdict, "label", "op", "text")}
            for verdict, code in answer.verdicts.items()
        ],
        "curves": [_curve(curve, judgement) for curve in judgement.curves],
        "crossings": crossing_rows(judgement.comparisons),
        "compositions": [
            with_values(composition, "sum_ns", "ratio") for composition in compositions_of(judgement.curves)
        ],
        "pair_matrices": [values_of(matrix, *_OF_MATRIX) for matrix in judgement.matrices],
        "pair_shares": [plain(matrix.shares) for matrix in judgement.matrices],
        "pair_splits": plain(judgement.splits),
        "lateness": plain(judgement.results.lateness),
        "single_calls": [
            {**with_values(call, "printed", "barrier", "one_call"), "unit": UNIT}
            for call in single_calls(judgement.cases, judgement.samples)
        ],
        **{key: value for row in SLICES for key, value in row.as_json(judgement, answer).items()},
        "cases": [_case(summary) for summary in judgement.cases],
    }


def answer_fields(answer: Answer) -> JSON:
    """The answer without its verdicts and findings, which have keys of their own."""
    return values_of(answer, *_ANSWER)


def render(judgement: Judgement, answer: Answer) -> str:
    """``document`` as strict JSON."""
    return _text(document(judgement, answer))


def render_beside(judgements: Sequence[Judgement], answers: Sequence[tuple[str, Answer, object]]) -> str:
    """The ``document`` of every judgement under ``sides``, with its name and answer."""
    answered = zip(judgements, answers, strict=True)
    sides: list[JSON] = [{"name": name, **document(judgement, answer)} for judgement, (name, answer, _) in answered]
    return _text({"report": LAYOUT, "sides": sides})


def _text(content: Mapping[str, JSON]) -> str:
    # Python's json takes seconds and GB to indent a matrix of a million pairs.
    return msgspec.json.format(msgspec.json.encode(content), indent=1).decode() + "\n"


_OF_VERDICT: Final = tuple(field.name for field in fields(Verdict) if field.name != "key")
_OF_MATRIX: Final = tuple(field.name for field in fields(PairMatrix) if field.name != "shares")
_OF_SUMMARY: Final = tuple(field.name for field in fields(CaseSummary) if field.name not in {"groups", "wrong"})
_OF_GROUP: Final = (
    *(field.name for field in fields(GroupSummary) if field.name not in {"case", "size_bytes", "place"}),
    *("label", "views", "mean", "p99"),
)


def _case(summary: CaseSummary) -> JSON:
    listed: Sequence[GroupSummary] = summary.groups
    if summary.case.op in PAIRED and len(listed) > _MOST_PAIRS:
        slowest = np.argsort(-summary.groups.time_ns, kind="stable")[:_MOST_PAIRS].tolist()
        listed = [summary.groups[place] for place in slowest]
    return {
        **values_of(summary, *_OF_SUMMARY),
        **summary.check.document,
        "groups": [values_of(group, *_OF_GROUP) for group in listed],
        "groups_left_out": len(summary.groups) - len(listed),
    }


_OF_POINT: Final = (
    *("size_bytes", "case", "time_ns", "interval", "fastest_ns", "algbw", "busbw", "wire_bytes", "samples"),
    *("launch_medians_ns", "launch_keys"),
)


def _curve(curve: Curve, judgement: Judgement) -> dict[str, JSON]:
    explanation = plain(curve.explanation)
    if not isinstance(curve.explanation, Unavailable):
        parts = curve.explanation.spent
        doubt = judgement.doubts[curve.series.key].model
        explanation |= {
            "spent": [with_values(part, "predicted_ns", "unexplained_ns", "bound_share") for part in parts],
            "in_words": in_words(curve, doubt, judgement.facts, judgement.cases),
        }
    return {
        "label": curve.series.key.label,
        **values_of(curve.series, "key", "bus_factor", "traffic_factor"),
        "points": [values_of(point, *_OF_POINT) for point in curve.series.points],
        **values_of(curve, "fit", "model", "alternatives"),
        "peak": peak_as_json(curve.peak),
        "explanation": explanation,
    }


def fit_row(curve: Curve) -> dict[str, JSON]:
    """The fit of a curve (seconds, bytes, B/s) and its comparison with the model."""
    return {
        **_curve_named(curve.series.key),
        "launches": curve.series.launches,
        "model": against_model(curve),
        "fit": plain(curve.fit),
    }


def _curve_named(key: SeriesKey) -> dict[str, JSON]:
    return {"curve": key.label, "op": key.op, "ranks": list(key.ranks)}


def crossing_rows(comparisons: Sequence[AlgorithmComparison]) -> list[JSON]:
    """One row for every two algorithms of a curve: bytes, and ratios of times; ``faster`` at each size."""
    return [
        {
            **_curve_named(comparison.key),
            "algorithms": list(pair.names),
            **values_of(pair, "sizes_bytes", "faster", "smallest", "largest"),
            "crossings": [
                {**plain(crossing), "expected_bytes": pair.expected_bytes(crossing), "ratio": pair.ratio(crossing)}
                for crossing in pair.measured
            ],
            "expected": plain(pair.expected)
            if isinstance(pair.expected, Unavailable)
            else {**plain(pair.expected), "faster": [pair.expected.faster.get(size) for size in pair.sizes_bytes]},
        }
        for comparison in comparisons
        for pair in comparison.pairs
    ]


def _runs(runs: Sequence[StoredRun]) -> list[JSON]:
    return [
        {
            "id": stored.run.id,
            "label": stored.run.plan.label,
            **values_of(stored.run, *_OF_RUN),
            "ranks": len(stored.run.hosts),
            "hosts": list(dict.fromkeys(stored.run.hosts)),
            "launches": len(stored.launches),
            **{name: getattr(stored.end, name, None) for name in ("status", "reason")},
        }
        for stored in runs
    ]
