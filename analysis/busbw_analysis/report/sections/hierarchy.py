"""The part of a report that shows the hierarchy as one picture: every level, measured beside nominal."""

from typing import Final

from busbw.units import format_rate
from busbw_analysis.diagnosis.hierarchy import HierarchyLevel
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.report.document import (
    Column,
    Figure,
    LegendEntry,
    Paragraph,
    Section,
    letter,
    percent,
    sentence,
    table,
)
from busbw_analysis.report.plots import hierarchy as hierarchy_plot

_LEAST_TO_DRAW = 2
_NAMED = frozenset({"cache", "GPU cache", "storage", "PCIe", "C2C"})
_NOTE: Final = (
    "Measured: the best of this run at that level, whose interval or range of launches is low … high. Nominal is of "
    "the datasheet or what the system states, in practice what others reach there or, between ranks of one host, what "
    "its memory copy leaves. Kernels in memory have traffic, ranks busbw, copies and files the bytes that they carry."
)


def hierarchy(judgement: Judgement) -> Section | None:
    """The picture of all levels with its numbers; None where nothing has a level."""
    levels = judgement.levels
    if not levels:
        return None
    letters = {text: letter(number) for number, text in enumerate(dict.fromkeys(map(_source, levels)))}
    told = [
        f"{_label(level)} {format_rate(level.measured)}"
        + ("" if level.share is None else f" ({percent(level.share)} % of nominal)")
        for level in levels
        if level.measured is not None
    ]
    caption = f"{'; '.join(told)}."
    pictures: tuple[str, ...] = ()
    if len(levels) >= _LEAST_TO_DRAW:
        title = "The hierarchy of memories and links"
        pictures = (hierarchy_plot.draw(levels, list(map(_label, levels)), "hierarchy-plot", title, caption),)
    legend = tuple(
        LegendEntry(hierarchy_plot.swatch(name), label)
        for name, label, there in (
            ("measured", "measured", True),
            ("nominal", "nominal", any(level.nominal for level in levels)),
            ("practical", "in practice", any(level.practical for level in levels)),
        )
        if there
    )
    sources: tuple[Column[str], ...] = (
        Column("By", lambda text: letters[text]),
        Column("What nominal and practice are", lambda text: text),
    )
    columns: tuple[Column[HierarchyLevel], ...] = (
        Column("Level", lambda one: _label(one) if one.name.startswith(_label(one)) else f"{one.kind}: {one.name}"),
        Column("Measured", lambda one: one.measured, format_rate, ends=lambda one: (one.low, one.high)),
        Column("Nominal", lambda one: one.nominal, format_rate),
        Column("In practice", lambda one: one.practical, format_rate),
        Column("Of nominal", lambda one: one.share, percent, "%"),
        Column("By", lambda one: letters[_source(one)]),
        Column("Measured by", lambda one: one.how),
    )
    blocks = (
        Paragraph("From the core outwards, on a logarithmic axis: every level of this machine that the run touched."),
        Figure("", pictures, legend, table("Levels", columns, levels, _NOTE)),
        table("Where nominal rates are from", sources, letters),
    )
    return Section("hierarchy", "Hierarchy of memories and links", blocks, gist=caption)


def _label(level: HierarchyLevel) -> str:
    """What may be drawn: kinds, and the names of plateaus and of our own operations."""
    return level.name if level.measured is not None and level.kind in _NAMED else level.kind


def _source(level: HierarchyLevel) -> str:
    return sentence(level.denominator)
