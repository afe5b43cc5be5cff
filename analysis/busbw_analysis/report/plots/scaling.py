"""Draw one call over the number of ranks, as a file: the prediction of every algorithm, the measurements, and the
extrapolated range.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from busbw.ops import bus_factor
from busbw.units import about_size, format_rate, format_time
from busbw_analysis.predict import Line, Prediction, Scaling, Ways, scaling
from busbw_analysis.report.plots.axes import dress, log_height, name_ticks, save, widen
from busbw_analysis.report.plots.svg import SERIES

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


def draw(shown: Scaling, what: str) -> Figure:
    """Time over ranks, and busbw below if the op has one."""
    panels: list[tuple[str, Scale, Callable[[float], str]]] = [
        ("Time of one call", lambda _ranks, seconds: seconds * 1e9, format_time)
    ]
    if shown.size_bytes and bus_factor(shown.query.op, 2) is not None:
        panels.append(("busbw", lambda ranks, seconds: _busbw(shown, ranks, seconds), format_rate))
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


def _draw_panel(axes: Axes, shown: Scaling, scale: Scale, name: Callable[[float], str]) -> None:
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


def _draw_band(axes: Axes, line: Line, scale: Scale, colour: str) -> None:
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


def _measured(axes: Axes, shown: Scaling, scale: Scale) -> list[float]:
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
