"""The report section on the hierarchy of memories and links: the measured and nominal rate of every level."""

from collections.abc import Sequence
from typing import Final

from busbw.units import format_rate
from busbw_analysis.data.sentences import sentences
from busbw_analysis.node.hierarchy import HierarchyLevel
from busbw_analysis.node.plots import hierarchy as hierarchy_plot
from busbw_analysis.report.document import Column, Figure, LegendEntry, Section, percent, table

_NAMED = frozenset({"cache", "GPU cache", "storage", "PCIe", "C2C"})
_NAMED_BY_KIND: Final = frozenset({"pairs of GPUs", "ranks of a host", "links of GPUs", "network"})
_NOTE: Final = (
    "Measured: the best rate of this run at that level; low and high are its interval or range of launches. Nominal: "
    "from the datasheet or the system. In practice: the rate that others reach or, between ranks of one host, the "
    "limit set by memory copies. Rates: traffic for kernels in memory, busbw for ranks, bytes for copies and files."
)
_ORDER: Final = "Every level of this machine that the run used, from the core outwards, on a logarithmic axis."
_DRAWN: Final = {"measured": "measured", "nominal": "nominal", "practical": "in practice"}


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
    picture = hierarchy_plot.draw(levels, list(map(_label, levels)), "hierarchy-plot", title, f"{gist}.")
    legend = tuple(
        LegendEntry(hierarchy_plot.SWATCHES[name], label)
        for name, label in _DRAWN.items()
        if any(getattr(level, name) for level in levels)
    )
    figure = Figure(_ORDER, (picture,), legend, table("Levels", _COLUMNS, levels, _NOTE))
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
    Column("Of nominal", lambda level: level.share, percent, "%"),
    Column("Measured by", lambda level: level.how),
    Column("Nominal and practical rates", lambda level: sentences(level.denominator)),
)
