"""What ``busbw predict`` prints: predictions in base units for machines, and the same aligned for people."""

from collections.abc import Callable, Sequence
from typing import Final

from busbw.runs.records import settings_in_words
from busbw.units import format_rate, format_size, format_time
from busbw_analysis.predict.forecast import Forecast
from busbw_analysis.predict.laws import BY_MESSAGES
from busbw_analysis.predict.prediction import Prediction
from busbw_analysis.predict.query import sized
from busbw_analysis.predict.selection import Evidence
from busbw_analysis.report.tables.layout import MISSING, Row, aligned

_COLUMNS: Final = (
    ("size", ""),
    ("predicted", ""),
    ("low", ""),
    ("high", ""),
    ("algbw", ""),
    ("busbw", ""),
    ("measured", ""),
    ("error", ""),
    ("held-out", "median/worst"),
    ("note", ""),
)


def document(prediction: Prediction) -> Row:
    """The whole prediction in seconds, bytes and B/s."""
    asked, evidence = prediction.question, prediction.evidence
    return {
        "op": asked.op,
        "backend": evidence.backend,
        "algorithm_asked": evidence.algorithm,
        "ranks": asked.ranks,
        "hosts": asked.hosts,
        "measured_ranks": sorted({len(one.key.ranks) for one in evidence.curves}),
        "notes": list(prediction.notes),
        "predictions": [_row(one) for one in prediction.forecasts],
        "unanswered": [{"size_bytes": size, "reason": why} for size, why in prediction.unanswered.items()],
    }


def _row(one: Forecast) -> Row:
    return {
        "size_bytes": one.size_bytes,
        "seconds": one.seconds.value,
        "low_seconds": one.seconds.low,
        "high_seconds": one.seconds.high,
        "interval_note": one.interval_note,
        "algbw": one.algbw,
        "busbw": one.busbw,
        "basis": one.basis,
        "algorithm": one.algorithm,
        "formula": one.formula,
        "parameters": one.parameters,
        "extrapolated": list(one.extrapolated),
        "validated": one.held_out.passed,
        "held_out_median_error": one.held_out.median_error,
        "held_out_worst_error": one.held_out.worst_error,
        "held_out_note": one.held_out.words,
        "measured_seconds": None if one.measured is None else one.measured.time_ns / 1e9,
        "error": one.error,
        "ties": [{"algorithm": name, "seconds": seconds} for name, seconds in one.ties],
    }


def text(prediction: Prediction) -> str:
    """A line for each size, and below what they rest on, what is extrapolated and how wrong the same has been."""
    asked, evidence = prediction.question, prediction.evidence
    forecasts = prediction.forecasts
    hosts = "1 host" if asked.hosts == 1 else f"{asked.hosts} hosts"
    counts = ", ".join(str(count) for count in dict.fromkeys(len(one.key.ranks) for one in evidence.curves))
    measured = f"measured on {counts} ranks" if counts else f"not measured; {_elsewhere(evidence)}"
    by = "" if evidence.algorithm == "library" else f" by {evidence.algorithm}"
    head = f"# {asked.op}{by} over {evidence.backend}, {asked.ranks} ranks on {hosts}; {measured}"
    notes = [
        *_each("rests on", forecasts, lambda one: [one.basis]),
        *_each("model", forecasts, _model),
        *_each("parameters", forecasts, lambda one: [one.parameters]),
        *_each("interval", forecasts, lambda one: [one.interval_note]),
        *_each("EXTRAPOLATED", forecasts, lambda one: one.extrapolated),
        *_each("held out", forecasts, lambda one: [one.held_out.words]),
        *_each("tied", forecasts, _ties),
    ]
    notes += _each("measured", [one for one in forecasts if one.measured is not None], _seen)
    notes += sized("no answer", prediction.unanswered.items(), asked.sizes_bytes)
    lines = {one.size_bytes: _line(one) for one in forecasts}
    nothing = [MISSING] * (len(_COLUMNS) - 2)
    lines |= {size: [format_size(size), *nothing, "no answer"] for size in prediction.unanswered}
    return "\n".join([head, aligned(_COLUMNS, [lines[size] for size in sorted(lines)], notes)])


def _elsewhere(evidence: Evidence) -> str:
    """How and on how many ranks the op was measured by other algorithms than the one that was asked for."""
    counts: dict[str, list[str]] = {}
    for one in evidence.of_op:
        how = ", ".join(settings_in_words(one.key)) or "by the library's own"
        counts.setdefault(how, []).append(str(len(one.key.ranks)))
    return "; ".join(f"{how} on {', '.join(dict.fromkeys(ranks))} ranks" for how, ranks in counts.items())


def _line(one: Forecast) -> list[str]:
    seconds, held_out = one.seconds, one.held_out
    ends = [MISSING if end is None else format_time(end * 1e9) for end in (seconds.low, seconds.high)]
    reached = ", ".join(dict.fromkeys(said.partition(":")[0] for said in one.extrapolated))
    score = MISSING
    if held_out.median_error is not None and held_out.worst_error is not None:
        score = f"{held_out.median_error:.1%}/{held_out.worst_error:.1%}"
    marks = [f"extrapolated: {reached}"] if reached else []
    marks += ["tied"] if one.ties else []
    return [
        format_size(one.size_bytes) if one.size_bytes else MISSING,
        format_time(seconds.value * 1e9),
        *ends,
        format_rate(one.algbw),
        format_rate(one.busbw),
        MISSING if one.measured is None else format_time(one.measured.time_ns),
        MISSING if one.error is None else f"{one.error:+.1%}",
        score,
        "; ".join(["validated" if held_out.passed else "not validated", *marks]),
    ]


def _model(one: Forecast) -> list[str]:
    return [one.formula if one.algorithm is None else f"{one.algorithm}: {one.formula}"]


def _ties(one: Forecast) -> list[str]:
    if not one.ties:
        return []
    told = [(name, taken) for name, taken in one.ties if taken is not None]
    untold = [name for name, taken in one.ties if taken is None]
    said = f"the data cannot tell {one.algorithm} from"
    if not told:
        return [f"{said} {', '.join(untold)}, nor what those would take"]
    ends = (min(told, key=lambda tie: tie[1]), max(told, key=lambda tie: tie[1]))
    named = [f"{format_time(taken * 1e9)} ({name})" for name, taken in dict.fromkeys(ends)]
    others = "another, which takes" if len(told) == 1 else f"{len(told)} others, which take"
    rest = f"; nor from {', '.join(untold)}, of which they do not tell the time" if untold else ""
    return [f"{said} {others} {' to '.join(named)}{rest}"]


def _seen(one: Forecast) -> list[str]:
    if one.basis == BY_MESSAGES:
        return ["the prediction has not seen it"]
    return ["it was among the data that the prediction is from, so its error is that of a fit"]


def _each(label: str, forecasts: Sequence[Forecast], said: Callable[[Forecast], Sequence[str]]) -> list[str]:
    sizes = [one.size_bytes for one in forecasts]
    return sized(label, [(one.size_bytes, words) for one in forecasts for words in said(one)], sizes)
