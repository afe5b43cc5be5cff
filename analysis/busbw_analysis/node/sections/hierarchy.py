"""The report section on the hierarchy of memories and links: the measured and nominal rate of every level."""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from busbw.units import format_rate, format_time
from busbw_analysis.data.sentences import sentences
from busbw_analysis.node.hierarchy import HierarchyLevel
from busbw_analysis.report.document import Column, Figure, LegendEntry, Section, percent, table
from busbw_analysis.report.plots import INK, MUTED, canvas, name_ticks, row_axis, sample
from busbw_analysis.report.svg import SERIES, inline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMED = frozenset({"cache", "GPU cache", "storage", "PCIe", "C2C"})
_NAMED_BY_KIND: Final = frozenset({"pairs of GPUs", "ranks of a host", "links of GPUs", "network"})
_NOTE: Final = (
    "Measured: the best rate of this run at that level; low and high are its interval or range of launches. Nominal: "
    "from the datasheet or the system. In practice: the rate that others reach or, between ranks of one host, the "
    "limit set by memory copies. Rates: traffic for kernels in memory, busbw for ranks, bytes for copies and files."
)
_LATENCY: Final = "Latency: of a load of memory_latency, which waits for the one before; median over the level."
_ORDER: Final = "Every level of this machine that the run used, from the core outwards, on a logarithmic axis."


def hierarchy(levels: Sequence[HierarchyLevel]) -> Section | None:
    """A figure of all levels and its numbers; None if no level is known."""
    if not levels:
        return None
    gist = "; ".join(
        f"{_label(level)} {format_rate(level.measured)}"
        + ("" if level.share is None else f" ({percent(level.share)} % of nominal)")
        for level in levels
        if level.measured is not None
    )
    title = "The hierarchy of memories and links"
    picture = partial(draw, levels, list(map(_label, levels)), "hierarchy-plot", title, f"{gist}.")
    legend = tuple(
        LegendEntry(swatch, label)
        for name, (label, swatch) in _DRAWN.items()
        if any(getattr(level, name) for level in levels)
    )
    latency = _LATENCY if any(level.latency_ns for level in levels) else ""
    figure = Figure(_ORDER, (picture,), legend, table("Levels", _COLUMNS, levels, _NOTE, latency))
    return Section("hierarchy", "Hierarchy of memories and links", (figure,), gist=f"{gist}.")


def _label(level: HierarchyLevel) -> str:
    """The label of a level in the drawing: its kind, or a name that busbw itself chose."""
    return level.name if level.measured is not None and level.kind in _NAMED else level.kind


def _level(level: HierarchyLevel) -> str:
    """The kind of a level and its name, unless the name is the label or contains the kind."""
    named = _label(level) == level.name or (level.measured is not None and level.kind in _NAMED_BY_KIND)
    return _label(level) if named else f"{level.kind}: {level.name}"


_COLUMNS: Final[tuple[Column[HierarchyLevel], ...]] = (
    Column("Level", _level),
    Column("Measured", lambda level: level.measured, format_rate, ends=lambda level: (level.low, level.high)),
    Column("Nominal", lambda level: level.nominal, format_rate),
    Column("In practice", lambda level: level.practical, format_rate),
    Column("Latency", lambda level: level.latency_ns, format_time),
    Column("Of nominal", lambda level: level.share, percent, "%"),
    Column("Measured by", lambda level: level.how),
    Column("Nominal and practical rates", lambda level: sentences(level.denominator)),
)


_WIDTH, _ROW, _MARGIN = 620, 30, 56
_BAR, _OUTLINE = 0.46, 0.74
_AXIS = 0.715
"""Width of the axis as a share of the drawing."""
_ROOM: Final = 0.25
"""Length of the axis right of all bars, where the rates are written, over that of the longest bar."""


_DRAWN: Final = {
    "measured": ("measured", sample('<path d="M1 3h26v8h-26z" fill="var(--series-0)"/>')),
    "nominal": ("nominal", sample('<path d="M1 2h26v10h-26z" fill="none" stroke="var(--ink)" stroke-width="1.3"/>')),
    "practical": ("in practice", sample('<path d="M14 1v12" stroke="var(--series-1)" stroke-width="2.4"/>')),
}
"""Rates of a level → label and sample of the legend."""


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


def _draw_row(axes: "Axes", place: int, row: HierarchyLevel, low: float) -> None:
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
