"""Output of ``busbw predict``: predictions in base units as JSON, as a table, and as a figure over ranks."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from busbw.ops import bus_factor
from busbw.runs.records import JSON, settings_in_words
from busbw.units import about_size, counted, format_rate, format_seconds, format_size, format_time
from busbw_analysis.data.as_json import plain, values_of
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.series import LIBRARY
from busbw_analysis.predict import Forecast, Prediction, Scaling, Ways, scaling, sized
from busbw_analysis.report.document import Column, Table, table
from busbw_analysis.report.plots import dress, log_height, name_ticks, save, widen
from busbw_analysis.report.svg import SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
        "low_seconds": forecast.ends and forecast.ends[0],
        "high_seconds": forecast.ends and forecast.ends[1],
        "interval_note": forecast.origin_of_ends,
        **values_of(forecast, "algbw", "busbw", "basis", "rests_on", "carried_from"),
        **values_of(forecast, "algorithm", "formula", "parameters", "error"),
        "extrapolated": [reach.in_words for reach in forecast.extrapolated],
        "extrapolated_in": [reach.respect for reach in forecast.extrapolated],
        "validated": bool(forecast.held_out.passed),
        "held_out_median_error": forecast.held_out.median_error,
        "held_out_worst_error": forecast.held_out.worst_error,
        "held_out_note": forecast.held_out.words,
        "measured_seconds": None if forecast.measured is None else forecast.measured.time_ns / 1e9,
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
    measured = f"measured on {counts} ranks" if counts else f"not measured so; measured: {_elsewhere(prediction)}"
    by = "" if evidence.algorithm is None else f" by {evidence.algorithm}"
    caption = f"{asked.op}{by} over {evidence.key.backend}, {asked.ranks} ranks on {hosts}; {measured}"
    beyond = [(forecast.size_bytes, reach.in_words) for forecast in forecasts for reach in forecast.extrapolated]
    tested = [forecast for forecast in forecasts if forecast.measured is not None]
    notes = [
        *_notes("from", forecasts, lambda forecast: forecast.rests_on),
        *_notes("model", forecasts, lambda forecast: ": ".join(filter(None, (forecast.algorithm, forecast.formula)))),
        *_notes("parameters", forecasts, lambda forecast: forecast.parameters),
        *_notes("interval", forecasts, lambda forecast: forecast.origin_of_ends if forecast.ends else ""),
        *_notes("", forecasts, lambda forecast: "" if forecast.ends else forecast.origin_of_ends),
        *sized("EXTRAPOLATED", beyond, [forecast.size_bytes for forecast in forecasts]),
        *_notes("", forecasts, lambda forecast: forecast.held_out.test),
        *_notes("measured", tested, lambda forecast: _USED[forecast.basis == "curve"]),
    ]
    notes += sized("no answer", ((size, why.reason) for size, why in prediction.unanswered.items()), asked.sizes_bytes)
    rows: dict[int, Forecast | None] = dict.fromkeys(prediction.unanswered)
    rows |= {forecast.size_bytes: forecast for forecast in forecasts}
    # The headline has the errors that all share.
    errors = _ERRORS if len({_held_out(forecast) for forecast in forecasts}) > 1 else ()
    return table(caption, (*_COLUMNS, *errors, _VALIDATED), sorted(rows.items()), *notes)


def _elsewhere(prediction: Prediction) -> str:
    """The other algorithms and numbers of ranks with which the op was measured."""
    counts = by_key(
        (", ".join(settings_in_words(curve.key)) or "the library's own algorithm", str(len(curve.key.ranks)))
        for curve in prediction.data.of_op
    )
    return "; ".join(f"{how} on {', '.join(dict.fromkeys(ranks))} ranks" for how, ranks in counts.items())


def _held_out(forecast: Forecast) -> str | None:
    median, worst = forecast.held_out.median_error, forecast.held_out.worst_error
    return None if median is None or worst is None else f"{median:.1%}/{worst:.1%}"


_USED: Final = {True: "used for the prediction, so its error is that of a fit", False: "not used for the prediction"}
_Row: TypeAlias = tuple[int, Forecast | None]

_COLUMNS: Final[tuple[Column[_Row], ...]] = (
    Column("size", lambda row: row[0] or None, format_size),
    Column("predicted", lambda row: row[1] and row[1].seconds.value, format_seconds),
    Column("low", lambda row: row[1] and row[1].ends and row[1].ends[0], format_seconds),
    Column("high", lambda row: row[1] and row[1].ends and row[1].ends[1], format_seconds),
    Column("busbw", lambda row: row[1] and row[1].busbw, format_rate),
    Column("measured", lambda row: row[1] and row[1].measured and row[1].measured.time_ns, format_time),
    Column("error", lambda row: row[1] and row[1].error, "{:+.1%}".format),
)
_ERRORS: Final[tuple[Column[_Row], ...]] = (
    Column("held-out", lambda row: row[1] and row[1].held_out.median_error, "{:.1%}".format),
    Column("worst", lambda row: row[1] and row[1].held_out.worst_error, "{:.1%}".format),
)
_VALIDATED: Final[Column[_Row]] = Column(
    "validated", lambda row: "no answer" if row[1] is None else "yes" if row[1].held_out.passed else "no"
)


def _notes(label: str, forecasts: Iterable[Forecast], text: Callable[[Forecast], str]) -> list[str]:
    """Each text of ``forecasts`` once, with its sizes unless it applies to all."""
    texts = [(forecast.size_bytes, text(forecast)) for forecast in forecasts]
    return sized(label, [(size, words) for size, words in texts if words], [size for size, _ in texts])


_INK, _MUTED, _HAIRLINE, _SHADE = "#1a1a1a", "#5a5a5a", "#d9d9d9", "#f1efe6"
_STYLES: Final = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
_WIDTH, _HEIGHT = 7.6, 4.0
_MOST_LINES = len(SERIES)
_MOST_AT_ONCE: Final = 8
"""Most messages per round for which a formula is drawn.

Formulas charge one α for all messages of a round. They omit the overhead o of LogP for each message, which for this
many may be as large as α; for n − 1 messages on thousands of ranks it would be nearly all of the time.
"""

_AS_IF_FREE: Final = "as if concurrent messages cost one α together"

Scale = Callable[[int, float], float]
"""Ranks and seconds → drawn value."""


def write(prediction: Prediction, path: Path) -> None:
    """Draw the question of ``prediction`` over ranks into ``path``. Raises UsageError as ``save`` does, AnalysisError
    if there is nothing to draw.
    """
    data, asked = prediction.data, prediction.query
    save(draw(scaling(Ways(data), asked), f"{asked.op} over {data.key.backend}"), path)


def draw(shown: Scaling, what: str) -> "Figure":
    """Time over ranks, and busbw below if the op has one."""
    import matplotlib as mpl  # noqa: PLC0415 - heavy
    from matplotlib.figure import Figure  # noqa: PLC0415

    def busbw(ranks: int, seconds: float) -> float:
        return (bus_factor(shown.query.op, ranks) or 1.0) * shown.size_bytes / seconds

    panels: list[tuple[str, Scale, Callable[[float], str]]] = [
        ("Time of one call", lambda _ranks, seconds: seconds * 1e9, format_time)
    ]
    if shown.size_bytes and bus_factor(shown.query.op, 2) is not None:
        panels.append(("busbw", busbw, format_rate))
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


def _draw_panel(axes: "Axes", shown: Scaling, scale: Scale, name: Callable[[float], str]) -> None:
    drawn: list[float] = []

    def values(points: Iterable[tuple[int, float]]) -> list[float]:
        scaled = [scale(ranks, seconds) for ranks, seconds in points]
        drawn.extend(scaled)
        return scaled

    kept = [line for line in shown.lines if line.chosen or line.at_once <= _MOST_AT_ONCE]
    for slot, line in enumerate(kept[:_MOST_LINES]):
        role = ", used for the prediction" if line.chosen else ""
        role += f", {_AS_IF_FREE}" if line.at_once > _MOST_AT_ONCE else ""
        axes.plot(
            [ranks for ranks, _ in line.points],
            values((ranks, time.value) for ranks, time in line.points),
            color=SERIES[slot],
            linestyle=_STYLES[slot],
            linewidth=2.0 if line.chosen else 1.1,
            label=f"{line.algorithm}{role}",
            zorder=3,
        )
        band = [(ranks, time.low, time.high) for ranks, time in line.points if time.low and time.high]
        if line.chosen and band:
            axes.fill_between(
                [ranks for ranks, _, _ in band],
                [scale(ranks, low) for ranks, low, _ in band],
                [scale(ranks, high) for ranks, _, high in band],
                color=SERIES[slot],
                alpha=0.2,
                linewidth=0,
                zorder=2,
                label="95 % of its launches' scatter",
            )
    if left_out := [line.algorithm for line in shown.lines if line not in kept]:
        axes.plot([], [], linestyle="none", label=f"not drawn: {', '.join(left_out)}\n({_AS_IF_FREE})")
    if len(kept) > _MOST_LINES:
        slower = len(kept) - _MOST_LINES
        axes.plot([], [], linestyle="none", label=f"and {slower} slower ones on {shown.query.ranks} ranks")
    for ranks, point in shown.measured:
        if point.interval.low_ns and point.interval.high_ns:
            low, high = values((ranks, end_ns / 1e9) for end_ns in (point.interval.low_ns, point.interval.high_ns))
            axes.vlines(ranks, low, high, color=_INK, linewidth=1.3, zorder=4)
    for face, label, points in (
        (_INK, "measured", [(ranks, point.time_ns / 1e9) for ranks, point in shown.measured]),
        ("white", "by the fit of the measured curve", [(ranks, time.value) for ranks, time in shown.fitted]),
    ):
        if points:
            axes.plot(
                [ranks for ranks, _ in points],
                values(points),
                linestyle="none",
                marker="o",
                markersize=6,
                markerfacecolor=face,
                markeredgecolor=_INK,
                label=label,
                zorder=5,
            )
    last = max((ranks for ranks, _ in (*shown.measured, *shown.fitted)), default=2)
    right = max(1 << 16, shown.query.ranks)
    axes.axvspan(last, right * 1.25, color=_SHADE, linewidth=0, zorder=0, label=f"extrapolated beyond {last} ranks")
    axes.axvline(shown.query.ranks, color=_MUTED, linewidth=0.9, linestyle=(0, (2, 3)), zorder=1)
    axes.set_xscale("log", base=2)
    axes.set_xlim(1.7, right * 1.25)
    log_height(axes, *widen(min(drawn), max(drawn), 1.4, 6.0), name)
    ticks = [2.0**power for power in range(1, right.bit_length(), 2)]
    name_ticks(axes.xaxis, ticks, [f"{tick:,.0f}" for tick in ticks])
    dress(axes, pad=5, muted=_MUTED, hairline=_HAIRLINE, linewidth=0.7)
