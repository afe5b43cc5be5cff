"""The part of a report that holds all-reduce against reduce-scatter and all-gather one after the other."""

from typing import Final

from busbw.units import format_size, format_time
from busbw_analysis.diagnosis.composition import Composition, compositions_of
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.report.document import Column, Section, table, three_digits

_COLUMNS: Final[tuple[Column[Composition], ...]] = (
    Column("All-reduce", lambda one: one.label),
    Column("Size", lambda one: one.size_bytes, format_size),
    Column("all_reduce", lambda one: one.all_reduce_ns, format_time),
    Column("reduce_scatter", lambda one: one.reduce_scatter_ns, format_time),
    Column("all_gather", lambda one: one.all_gather_ns, format_time),
    Column("Sum of the two", lambda one: one.sum_ns, format_time),
    Column("Sum / all_reduce", lambda one: one.ratio, three_digits),
)
_NOTES: Final = (
    "A ring all-reduce is a reduce-scatter and an all-gather, so 1 is what to expect of large sizes",
    "above 1 the all-reduce is faster; below 1 sharding (ZeRO, FSDP) costs less than the all-reduce that it replaces",
    "medians over launches; the ratio is as unsure as the three times that it is made of",
)


def composition(judgement: Judgement) -> Section | None:
    """The sizes that all three have in common; None where there are none."""
    rows = compositions_of(judgement.curves)
    if not rows:
        return None
    halves = table("A reduce-scatter and an all-gather one after the other", _COLUMNS, rows, *_NOTES, row_headers=2)
    ratios = sorted(one.ratio for one in rows)
    gist = f"Reduce-scatter and all-gather take {three_digits(ratios[0])} to {three_digits(ratios[-1])} times as long."
    return Section("composition", "All-reduce and its two halves", (halves,), gist=gist)
