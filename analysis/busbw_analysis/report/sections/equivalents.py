"""The parts of a report about the same work in two ways: a call by itself and between barriers, and in halves."""

from typing import Final

from busbw.units import format_rate, format_size, format_time
from busbw_analysis.diagnosis.composition import Composition, compositions_of
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.diagnosis.single_calls import UNIT, SingleCall, single_calls
from busbw_analysis.report.document import Column, Paragraph, Section, table, three_digits

_ONE_CALL: Final = (
    "Many scripts warm up once, time one call and the barrier behind it, and print GiB/s as GB/s. That is done here, "
    "beside calls that are timed on their own, many times. What is printed is busbw × unit × barrier × one call: the "
    f"unit is 10⁹/2³⁰ = {UNIT:.3f}, or 1/1.074; barrier and one call are the method."
)


_CALL_COLUMNS: Final[tuple[Column[SingleCall], ...]] = (
    Column("Operation", lambda one: one.op),
    Column("Ranks", lambda one: one.ranks, str),
    Column("Size S", lambda one: one.size_bytes, format_size),
    Column("Time", lambda one: one.time_ns, format_time, group="Proper"),
    Column("busbw", lambda one: one.busbw, format_rate, group="Proper"),
    Column("Time", lambda one: one.one_ns, format_time, group="One call"),
    Column("printed", lambda one: one.printed, three_digits, '"GB/s"', group="One call"),
    Column("any one", lambda one: " to ".join(map(three_digits, one.printed_range)), group="One call"),
    Column("all", lambda one: one.whole, three_digits, "×", group="Difference"),
    Column("barrier", lambda one: one.barrier, three_digits, "×", group="Difference"),
    Column("one call", lambda one: one.one_call, three_digits, "×", group="Difference"),
)


def one_call(judgement: Judgement) -> Section | None:
    """Every case of mode barriers that was measured in mode isolated, too; None where none was."""
    rows = single_calls(judgement.dataset)
    if not rows:
        return None
    note = "Any one: what would have been printed by the slowest and by the fastest of all samples."
    parts = (Paragraph(_ONE_CALL), table("One call between barriers", _CALL_COLUMNS, rows, note))
    return Section("one-call", "One call between barriers", parts)


_HALVES: Final[tuple[Column[Composition], ...]] = (
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
    halves = table("A reduce-scatter and an all-gather one after the other", _HALVES, rows, *_NOTES, row_headers=2)
    ratios = sorted(one.ratio for one in rows)
    gist = f"Reduce-scatter and all-gather take {three_digits(ratios[0])} to {three_digits(ratios[-1])} times as long."
    return Section("composition", "All-reduce and its two halves", (halves,), gist=gist)
