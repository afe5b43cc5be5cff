"""Output of ``busbw predict``: predictions in base units as JSON, as a table, and as a figure over ranks."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from busbw.ops import bus_factor
from busbw.runs.records import JSON, settings_in_words
from busbw.units import about_size, counted, format_rate, format_seconds, format_size, format_time
from busbw_analysis.data.as_json import plain, values_of
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.series import LIBRARY
from busbw_analysis.predict import Forecast, Line, Prediction, Scaling, Ways, scaling, sized
from busbw_analysis.report.document import Column, Table, table
from busbw_analysis.report.plots import dress, log_height, name_ticks, save, widen
from busbw_analysis.report.svg import SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


_INK, _MUTED, _HAIRLINE, _SHADE = "#1a1a1a", "#5a5a5a", "#d9d9d9", "#f1efe6"
_STYLES: Final = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
_WIDTH, _HEIGHT = 7.6, 4.0
_MOST_LINES = len(SERIES)
_MOST_AT_ONCE: Final = 8
"""Most messages per round for which a formula is drawn.

Formulas charge one α for all messages of a round. They omit the overhead o of LogP for each message, which for this
many may be as large as α; for n − 1 messages on thousands of ranks it would be nearly all of the time.
"""

Scale = Callable[[int, float], float | None]
"""Ranks and seconds → drawn value."""


def write(prediction: Prediction, path: Path) -> None:
    """Draw the question of ``prediction`` over ranks into ``path``. Raises UsageError as ``save`` does, AnalysisError
    if there is nothing to draw.
    """
    data, asked = prediction.data, prediction.query
    save(draw(scaling(Ways(data), asked), f"{asked.op} over {data.key.backend}"), path)


def draw(shown: Scaling, what: str) -> "Figure":
    """Time over ranks, and busbw below if the op has one."""
    panels: list[tuple[str, Scale, Callable[[float], str]]] = [
        ("Time of one call", lambda _ranks, seconds: seconds * 1e9, format_time)
    ]
    if shown.size_bytes and bus_factor(shown.query.op, 2) is not None:
        panels.append(("busbw", lambda ranks, seconds: _busbw(shown, ranks, seconds), format_rate))
    import matplotlib as mpl  # noqa: PLC0415 - heavy
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context({"font.size": 10, "axes.linewidth": 0.8, "path.simplify": False}):
        figure = Figure(figsize=(_WIDTH, _HEIGHT * len(panels)), layout="constrained")
        size = f", {about_size(shown.size_bytes)}" if shown.size_bytes else ""
        hosts = "on one host" if shown.query.hosts == 1 else f"as {shown.query.ranks} on {shown.query.hosts} hosts"
        figure.suptitle(f"{what}{size}, ranks {hosts}", parse_math=False, color=_INK)
        for place, (heading, scale, name) in enumerate(panels):
            axes = figure.add_subplot(len(panels), 1, place + 1)
            _draw_panel(axes, shown, scale, name)
            axes.set_title(heading, loc="left", color=_INK, fontsize=10, fontweight="bold")
        figure.axes[-1].set_xlabel("ranks", color=_MUTED)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
        return figure


def _busbw(shown: Scaling, ranks: int, seconds: float) -> float | None:
    factor = bus_factor(shown.query.op, ranks)
    return None if factor is None else factor * shown.size_bytes / seconds


def _draw_panel(axes: "Axes", shown: Scaling, scale: Scale, name: Callable[[float], str]) -> None:
    drawn: list[float] = []
    kept = [line for line in shown.lines if line.chosen or not _all_at_once(line)]
    for slot, line in enumerate(kept[:_MOST_LINES]):
        points = _scale_points(scale, ((ranks, time.value) for ranks, time in line.points))
        drawn += [value for _, value in points]
        role = ", used for the prediction" if line.chosen else ""
        role += f", {_AS_IF_FREE}" if _all_at_once(line) else ""
        axes.plot(
            *zip(*points, strict=True),
            color=SERIES[slot],
            linestyle=_STYLES[slot],
            linewidth=2.0 if line.chosen else 1.1,
            label=f"{line.algorithm}{role}",
            zorder=3,
        )
        if line.chosen:
            _draw_band(axes, line, scale, SERIES[slot])
    left_out = [line.algorithm for line in shown.lines if line not in kept]
    if left_out:
        axes.plot([], [], linestyle="none", label=f"not drawn: {', '.join(left_out)}\n({_AS_IF_FREE})")
    left = len(kept) - _MOST_LINES
    if left > 0:
        axes.plot([], [], linestyle="none", label=f"and {left} slower ones on {shown.query.ranks} ranks")
    drawn += _measured(axes, shown, scale)
    counts = [ranks for ranks, _ in (*shown.measured, *shown.fitted)]
    last = max(counts, default=2)
    right = max(1 << 16, shown.query.ranks)
    axes.axvspan(last, right * 1.25, color=_SHADE, linewidth=0, zorder=0, label=f"extrapolated beyond {last} ranks")
    axes.axvline(shown.query.ranks, color=_MUTED, linewidth=0.9, linestyle=(0, (2, 3)), zorder=1)
    axes.set_xscale("log", base=2)
    axes.set_xlim(1.7, right * 1.25)
    bottom, top = widen(min(drawn), max(drawn), 1.4, 6.0)
    log_height(axes, bottom, top, name)
    ticks = [2.0**power for power in range(1, right.bit_length(), 2)]
    name_ticks(axes.xaxis, ticks, [f"{tick:,.0f}" for tick in ticks])
    dress(axes, pad=5, muted=_MUTED, hairline=_HAIRLINE, linewidth=0.7)


_AS_IF_FREE: Final = "as if concurrent messages cost one α together"


def _all_at_once(line: Line) -> bool:
    """Whether a rank sends too many messages in a round somewhere along ``line`` for its formula to hold."""
    return line.at_once > _MOST_AT_ONCE


def _scale_points(scale: Scale, points: Iterable[tuple[int, float | None]]) -> list[tuple[int, float]]:
    """Ranks and drawn values of ``points`` (ranks, seconds); those without a value are left out."""
    scaled = ((ranks, scale(ranks, seconds)) for ranks, seconds in points if seconds is not None)
    return [(ranks, value) for ranks, value in scaled if value is not None]


def _draw_band(axes: "Axes", line: Line, scale: Scale, colour: str) -> None:
    lows = dict(_scale_points(scale, ((ranks, time.low) for ranks, time in line.points)))
    highs = dict(_scale_points(scale, ((ranks, time.high) for ranks, time in line.points)))
    if ranks := [count for count in lows if count in highs]:
        axes.fill_between(
            ranks,
            [lows[count] for count in ranks],
            [highs[count] for count in ranks],
            color=colour,
            alpha=0.2,
            linewidth=0,
            zorder=2,
            label="its 95 % interval",
        )


def _measured(axes: "Axes", shown: Scaling, scale: Scale) -> list[float]:
    """Draw measured points with their range, and values from fits of curves without this size (hollow); return all
    values.
    """
    drawn: list[float] = []
    for ranks, point in shown.measured:
        ends_ns = point.interval.low_ns, point.interval.high_ns
        ends = [value for _, value in _scale_points(scale, ((ranks, ns and ns / 1e9) for ns in ends_ns))]
        if len(ends) == 2:
            axes.vlines(ranks, ends[0], ends[1], color=_INK, linewidth=1.3, zorder=4)
            drawn += ends
    for face, label, points in (
        (_INK, "measured", [(ranks, point.time_ns / 1e9) for ranks, point in shown.measured]),
        ("white", "by the fit of the measured curve", [(ranks, time.value) for ranks, time in shown.fitted]),
    ):
        if placed := _scale_points(scale, points):
            axes.plot(
                *zip(*placed, strict=True),
                linestyle="none",
                marker="o",
                markersize=6,
                markerfacecolor=face,
                markeredgecolor=_INK,
                label=label,
                zorder=5,
            )
            drawn += [value for _, value in placed]
    return drawn
