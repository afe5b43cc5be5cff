"""Output of ``busbw predict``: predictions in base units as JSON, and as a table."""

from collections.abc import Callable, Sequence
from typing import Final

from busbw.runs.records import JSON, settings_in_words
from busbw.units import counted, format_rate, format_seconds, format_size, format_time
from busbw_analysis.data.as_json import plain, values_of
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.series import LIBRARY
from busbw_analysis.predict import Forecast, Prediction, sized
from busbw_analysis.report.document import Column, Table, table

_OF_FORECAST: Final = (
    "interval_note",
    "algbw",
    "busbw",
    "basis",
    "rests_on",
    "carried_from",
    "algorithm",
    "formula",
    "parameters",
)


def document(prediction: Prediction) -> dict[str, JSON]:
    """The whole prediction in seconds, bytes and B/s."""
    asked, evidence = prediction.query, prediction.data
    return {
        "headline": headline(prediction),
        "validated": all(forecast.held_out.passed for forecast in prediction.forecasts),
        "op": asked.op,
        "backend": evidence.key.backend,
        "algorithm_asked": evidence.algorithm or LIBRARY,
        "ranks": asked.ranks,
        "hosts": asked.hosts,
        "measured_ranks": sorted({len(curve.key.ranks) for curve in evidence.curves}),
        "notes": list(prediction.notes),
        "predictions": [_row(forecast) for forecast in prediction.forecasts],
        "unanswered": [{"size_bytes": size, **plain(why)} for size, why in prediction.unanswered.items()],
    }


def _row(forecast: Forecast) -> dict[str, JSON]:
    return {
        "size_bytes": forecast.size_bytes,
        "seconds": forecast.seconds.value,
        "low_seconds": forecast.seconds.low,
        "high_seconds": forecast.seconds.high,
        **values_of(forecast, *_OF_FORECAST),
        "extrapolated": [extrapolation.in_words for extrapolation in forecast.extrapolated],
        "extrapolated_in": [extrapolation.respect for extrapolation in forecast.extrapolated],
        "validated": bool(forecast.held_out.passed),
        "held_out_median_error": forecast.held_out.median_error,
        "held_out_worst_error": forecast.held_out.worst_error,
        "held_out_note": forecast.held_out.words,
        "measured_seconds": None if forecast.measured is None else forecast.measured.time_ns / 1e9,
        "error": forecast.error,
    }


def headline(prediction: Prediction) -> str:
    """Whether to trust the prediction: validation, errors on held-out data, and extrapolation.

    With several sizes, those that are not validated are named.
    """
    forecasts = prediction.forecasts
    doubtful = [forecast for forecast in forecasts if not forecast.held_out.passed]
    tested = doubtful or forecasts
    worst = max(tested, key=lambda forecast: forecast.held_out.worst_error or 0.0)
    off = _held_out(worst)
    by = "nothing was held out to test it" if off is None else f"held-out times were off by {off} (median/worst)"
    reached = dict.fromkeys(beyond.respect for forecast in tested for beyond in forecast.extrapolated)
    beyond = f"; extrapolated: {', '.join(reached)}" if reached else ""
    if not doubtful:
        return f"Validated: {by}{beyond}"
    sizes = ", ".join(format_size(forecast.size_bytes) for forecast in doubtful)
    which = "" if len(doubtful) == len(forecasts) else f" at {sizes}"
    return f"NOT VALIDATED{which}, do not rely on it: {by}{beyond}"


def predict_table(prediction: Prediction) -> Table:
    """One row per size; notes on the data, extrapolation and errors below."""
    asked, evidence = prediction.query, prediction.data
    forecasts = prediction.forecasts
    hosts = counted(asked.hosts, "host")
    counts = ", ".join(str(count) for count in dict.fromkeys(len(curve.key.ranks) for curve in evidence.curves))
    measured = f"measured on {counts} ranks" if counts else f"not measured; {_elsewhere(prediction)}"
    by = "" if evidence.algorithm is None else f" by {evidence.algorithm}"
    caption = f"{asked.op}{by} over {evidence.key.backend}, {asked.ranks} ranks on {hosts}; {measured}"
    notes = [
        *_notes("rests on", forecasts, lambda forecast: [forecast.rests_on]),
        *_notes("model", forecasts, lambda forecast: [": ".join(filter(None, (forecast.algorithm, forecast.formula)))]),
        *_notes("parameters", forecasts, lambda forecast: [forecast.parameters]),
        *_notes("interval", forecasts, lambda forecast: [forecast.interval_note] if forecast.has_interval else []),
        *_notes("", forecasts, lambda forecast: [] if forecast.has_interval else [forecast.interval_note]),
        *_notes("EXTRAPOLATED", forecasts, lambda forecast: [beyond.in_words for beyond in forecast.extrapolated]),
        *_notes("", forecasts, lambda forecast: [forecast.held_out.words]),
    ]
    notes += _notes("measured", [forecast for forecast in forecasts if forecast.measured is not None], _seen)
    notes += sized("no answer", ((size, why.reason) for size, why in prediction.unanswered.items()), asked.sizes_bytes)
    rows: dict[int, Forecast | None] = dict.fromkeys(prediction.unanswered)
    rows |= {forecast.size_bytes: forecast for forecast in forecasts}
    return table(caption, _COLUMNS, sorted(rows.items()), *notes)


def _elsewhere(prediction: Prediction) -> str:
    """The other algorithms and numbers of ranks with which the op was measured."""
    counts = by_key(
        (", ".join(settings_in_words(curve.key)) or "by the library's own", str(len(curve.key.ranks)))
        for curve in prediction.data.of_op
    )
    return "; ".join(f"{how} on {', '.join(dict.fromkeys(ranks))} ranks" for how, ranks in counts.items())


def _held_out(forecast: Forecast) -> str | None:
    median, worst = forecast.held_out.median_error, forecast.held_out.worst_error
    return None if median is None or worst is None else f"{median:.1%}/{worst:.1%}"


def _of(value: Callable[[Forecast], object]) -> Callable[[tuple[int, Forecast | None]], object]:
    """A value of the forecast, if there is one."""
    return lambda row: None if row[1] is None else value(row[1])


_COLUMNS: Final[tuple[Column[tuple[int, Forecast | None]], ...]] = (
    Column("size", lambda row: row[0] or None, format_size),
    Column("predicted", _of(lambda forecast: forecast.seconds.value), format_seconds),
    Column("low", _of(lambda forecast: forecast.seconds.low), format_seconds),
    Column("high", _of(lambda forecast: forecast.seconds.high), format_seconds),
    Column("busbw", _of(lambda forecast: forecast.busbw), format_rate),
    Column("measured", _of(lambda forecast: forecast.measured and forecast.measured.time_ns), format_time),
    Column("error", _of(lambda forecast: forecast.error), "{:+.1%}".format),
    Column("held-out", _of(lambda forecast: forecast.held_out.median_error), "{:.1%}".format),
    Column("worst", _of(lambda forecast: forecast.held_out.worst_error), "{:.1%}".format),
    Column("validated", lambda row: "no answer" if row[1] is None else "yes" if row[1].held_out.passed else "no"),
)


def _seen(forecast: Forecast) -> list[str]:
    if forecast.basis != "curve":
        return ["not used for the prediction"]
    return ["used for the prediction, so its error is that of a fit"]


def _notes(label: str, forecasts: Sequence[Forecast], texts: Callable[[Forecast], Sequence[str]]) -> list[str]:
    sizes = [forecast.size_bytes for forecast in forecasts]
    return sized(label, [(forecast.size_bytes, words) for forecast in forecasts for words in texts(forecast)], sizes)
