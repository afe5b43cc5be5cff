"""Draws the hierarchy: a row for every level, a bar for what was measured, an outline for what its datasheet has.

Nothing from outside is drawn: the words of the picture are kinds of levels and the sizes at which plateaus end.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from busbw.units import format_rate
from busbw_analysis.report.plots.svg import INK, SERIES, inline

_INK, _MUTED, _HAIRLINE, _PAGE = INK
_WIDTH, _ROW, _MARGIN, _POINTS_PER_INCH = 620, 30, 56, 72
_BAR, _OUTLINE = 0.46, 0.74
_AXIS = 0.715
"""Share of the width that the axis has."""
_WORDS = 84
"""Room for a rate in words, in points."""


@dataclass(frozen=True, slots=True)
class Row:
    """One level: its label and rates in B/s, None where there is none."""

    label: str
    measured: float | None
    nominal: float | None
    practical: float | None


SWATCHES: Final = {
    "measured": '<path d="M1 3h26v8h-26z" fill="var(--series-0)"/>',
    "nominal": '<path d="M1 2h26v10h-26z" fill="none" stroke="var(--ink)" stroke-width="1.3"/>',
    "practical": '<path d="M14 1v12" stroke="var(--series-1)" stroke-width="2.4"/>',
}


def swatch(name: str) -> str:
    """A legend's sample, as a small SVG that readers of the text may skip."""
    return f'<svg class="swatch" viewBox="0 0 28 14" width="28" height="14" aria-hidden="true">{SWATCHES[name]}</svg>'


def draw(rows: Sequence[Row], identity: str, title: str, description: str) -> str:
    """The rows from top to bottom as an inline SVG. ``identity`` is unique on the page."""
    rates = [rate for row in rows for rate in (row.measured, row.nominal, row.practical) if rate]
    low, high = 10 ** math.floor(math.log10(min(rates)) - 0.3), max(rates) * 3.0
    height = _MARGIN + _ROW * len(rows)
    with mpl.rc_context({"font.size": 11, "axes.linewidth": 0.8}):
        figure = Figure(figsize=(_WIDTH / _POINTS_PER_INCH, height / _POINTS_PER_INCH))
        figure.patch.set_visible(False)
        axes = figure.add_axes((0.985 - _AXIS, 28 / height, _AXIS, _ROW * len(rows) / height))
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        ticks = [10.0**exponent for exponent in range(round(math.log10(low)), math.floor(math.log10(high)) + 1)]
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xticklabels([format_rate(tick) for tick in ticks])
        axes.yaxis.set_major_locator(FixedLocator(list(range(len(rows)))))
        axes.set_yticklabels([row.label for row in rows], parse_math=False)
        axes.tick_params(axis="both", length=0, pad=6, labelcolor=_MUTED)
        axes.tick_params(axis="y", labelcolor=_INK)
        axes.grid(visible=True, axis="x", color=_HAIRLINE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.patch.set_visible(False)
        for spine in axes.spines.values():
            spine.set_visible(False)
        room = (high / low) ** (_WORDS / (_AXIS * _WIDTH))
        for place, row in enumerate(rows):
            _draw_row(axes, place, row, low, room)
        return inline(figure, identity, title, description)


def _draw_row(axes: mpl.axes.Axes, place: int, row: Row, low: float, room: float) -> None:
    if row.nominal:
        axes.barh(
            place,
            row.nominal - low,
            left=low,
            height=_OUTLINE,
            facecolor="none",
            edgecolor=_INK,
            linewidth=1.3,
            zorder=4,
        )
    if row.measured:
        axes.barh(place, row.measured - low, left=low, height=_BAR, color=SERIES[0], linewidth=0, zorder=3)
    if row.practical:
        ends = (place - _OUTLINE / 2, place + _OUTLINE / 2)
        axes.vlines(row.practical, *ends, color=SERIES[1], linewidth=2.4, zorder=5)
    axes.annotate(
        format_rate(row.measured) if row.measured else "not measured",
        (words_begin(row, low, room), place),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color=_INK if row.measured else _MUTED,
        fontsize=10.5,
        zorder=6,
    )


def words_begin(row: Row, low: float, room: float) -> float:
    """The rate at which a row's words stand: at the end of what was measured, or behind a mark that would lie in them.

    ``room`` is the ratio of two rates that are as far apart as words are long.
    """
    marks = sorted(rate for rate in (row.nominal, row.practical) if rate)
    if not row.measured:
        return max(marks, default=low)
    begin = row.measured
    for mark in marks:
        if begin < mark < begin * room:
            begin = mark
    return begin
