"""Draw the hierarchy: one row per level, with a bar for the measured rate and an outline for the nominal rate.

No external text is drawn: the only words are kinds of levels and the sizes at which plateaus end.
"""

import math
from collections.abc import Sequence
from typing import Final

from matplotlib.axes import Axes

from busbw.units import format_rate
from busbw_analysis.node.hierarchy import HierarchyLevel
from busbw_analysis.report.plots import INK, MUTED, canvas, name_ticks, row_axis, sample
from busbw_analysis.report.svg import SERIES, inline

_WIDTH, _ROW, _MARGIN = 620, 30, 56
_BAR, _OUTLINE = 0.46, 0.74
_AXIS = 0.715
"""Width of the axis as a share of the drawing."""
_ROOM: Final = 0.25
"""Length of the axis right of all bars, where the rates are written, over that of the longest bar."""


SWATCHES: Final = {
    "measured": sample('<path d="M1 3h26v8h-26z" fill="var(--series-0)"/>'),
    "nominal": sample('<path d="M1 2h26v10h-26z" fill="none" stroke="var(--ink)" stroke-width="1.3"/>'),
    "practical": sample('<path d="M14 1v12" stroke="var(--series-1)" stroke-width="2.4"/>'),
}
"""Legend samples."""


def draw(rows: Sequence[HierarchyLevel], labels: Sequence[str], identity: str, title: str, description: str) -> str:
    """The rows from top to bottom, named by ``labels``, as an inline SVG. ``identity`` is unique on the page."""
    rates = [rate for row in rows for rate in (row.measured, row.nominal, row.practical) if rate]
    low = 10 ** math.floor(math.log10(min(rates)) - 0.3)
    high = max(rates) * (max(rates) / low) ** _ROOM
    height = _MARGIN + _ROW * len(rows)
    box = (0.985 - _AXIS, 28 / height, _AXIS, _ROW * len(rows) / height)
    with canvas(box, width=_WIDTH, height=height) as (figure, axes):
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        ticks = [10.0**exponent for exponent in range(round(math.log10(low)), math.floor(math.log10(max(rates))) + 1)]
        name_ticks(axes.xaxis, ticks, list(map(format_rate, ticks)))
        row_axis(axes, labels)
        axes.spines["bottom"].set_visible(False)
        for place, row in enumerate(rows):
            _draw_row(axes, place, row, low)
        return inline(figure, identity, title, description)


def _draw_row(axes: Axes, place: int, row: HierarchyLevel, low: float) -> None:
    if row.nominal:
        axes.barh(
            place,
            row.nominal - low,
            left=low,
            height=_OUTLINE,
            facecolor="none",
            edgecolor=INK,
            linewidth=1.3,
            zorder=4,
        )
    if row.measured:
        axes.barh(place, row.measured - low, left=low, height=_BAR, color=SERIES[0], linewidth=0, zorder=3)
    if row.practical:
        ends = (place - _OUTLINE / 2, place + _OUTLINE / 2)
        axes.vlines(row.practical, *ends, color=SERIES[1], linewidth=2.4, zorder=5)
    axes.text(
        1.0,
        place,
        format_rate(row.measured) if row.measured else "not measured",
        transform=axes.get_yaxis_transform(),
        ha="right",
        va="center",
        color=INK if row.measured else MUTED,
        fontsize=10.5,
    )
