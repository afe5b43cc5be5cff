"""The part of a report that shows the hierarchy as one picture: every level, measured beside nominal."""

from collections.abc import Mapping, Sequence
from typing import Final

from busbw.units import format_rate
from busbw_analysis.diagnosis.hierarchy import Rung
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.report.document import (
    MISSING,
    Cell,
    Column,
    Figure,
    LegendEntry,
    Paragraph,
    Section,
    Table,
    letter,
    percent,
    sentence,
    words,
)
from busbw_analysis.report.plots import hierarchy as hierarchy_plot

_LEAST_TO_DRAW = 2
_NAMED = frozenset({"cache", "GPU cache", "storage", "PCIe", "C2C"})
_NOTE: Final = (
    "Measured: the best of this run at that level, whose interval or range of launches is low … high. Nominal is of "
    "the datasheet or what the system states, in practice what others reach there or, between ranks of one host, what "
    "its memory copy leaves. Kernels in memory have traffic, ranks busbw, copies and files the bytes that they carry."
)
_COLUMNS: Final = (
    Column("Level", numeric=False),
    Column("Measured"),
    Column("low"),
    Column("high"),
    Column("Nominal"),
    Column("In practice"),
    Column("Of nominal", "%"),
    Column("By", numeric=False),
    Column("Measured by", numeric=False),
)
_SOURCES: Final = (Column("By", numeric=False), Column("What nominal and practice are", numeric=False))


def hierarchy(judgement: Judgement) -> Section | None:
    """The picture of all levels with its numbers; None where nothing has a level."""
    rungs = judgement.rungs
    if not rungs:
        return None
    letters = {text: letter(number) for number, text in enumerate(dict.fromkeys(map(_source, rungs)))}
    caption = _caption(rungs)
    pictures: tuple[str, ...] = ()
    if len(rungs) >= _LEAST_TO_DRAW:
        rows = [hierarchy_plot.Row(_label(rung), rung.measured, rung.nominal, rung.practical) for rung in rungs]
        pictures = (hierarchy_plot.draw(rows, "hierarchy-plot", "The hierarchy of memories and links", caption),)
    legend = tuple(
        LegendEntry(hierarchy_plot.swatch(name), label)
        for name, label, there in (
            ("measured", "measured", True),
            ("nominal", "nominal", any(rung.nominal for rung in rungs)),
            ("practical", "in practice", any(rung.practical for rung in rungs)),
        )
        if there
    )
    blocks = (
        Paragraph("From the core outwards, on a logarithmic axis: every level of this machine that the run touched."),
        Figure(caption, pictures, legend, _table(rungs, letters)),
        Table("Where nominal rates are from", _SOURCES, tuple(words((letters[text], text)) for text in letters)),
    )
    return Section("hierarchy", "Hierarchy", blocks)


def _label(rung: Rung) -> str:
    """What may be drawn: kinds, and the names of plateaus and of our own operations."""
    return rung.name if rung.measured is not None and rung.kind in _NAMED else rung.kind


def _source(rung: Rung) -> str:
    return sentence(rung.denominator)


def _caption(rungs: Sequence[Rung]) -> str:
    told = [
        f"{_label(rung)} {format_rate(rung.measured)}"
        + ("" if rung.share is None else f" ({percent(rung.share)} % of nominal)")
        for rung in rungs
        if rung.measured is not None
    ]
    return f"{'; '.join(told)}."


def _table(rungs: Sequence[Rung], letters: Mapping[str, str]) -> Table:
    rows = tuple(
        (
            Cell(_label(rung) if rung.name.startswith(_label(rung)) else f"{rung.kind}: {rung.name}"),
            *(
                Cell(format_rate(rate), tone="plain" if rate is not None else "quiet")
                for rate in (rung.measured, rung.low, rung.high, rung.nominal, rung.practical)
            ),
            Cell(MISSING if rung.share is None else percent(rung.share)),
            Cell(letters[_source(rung)]),
            Cell(rung.how),
        )
        for rung in rungs
    )
    return Table("Levels", _COLUMNS, rows, note=_NOTE)
