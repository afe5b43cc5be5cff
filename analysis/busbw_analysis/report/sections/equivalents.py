"""Two report sections that compare two ways to do the same work: a timed single call, and all-reduce in two halves."""

from typing import Final

from busbw.units import format_rate, format_size, format_time
from busbw_analysis.diagnosis.composition import Composition
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.diagnosis.single_calls import UNIT, SingleCall
from busbw_analysis.report.document import Column, Paragraph, Section, table, three_digits

_ONE_CALL: Final = (
    "Many scripts warm up once, time one call and its barrier, and print GiB/s labelled GB/s. This section compares "
    "their result with calls that are timed alone, many times. Such a script prints busbw × unit × barrier × one call. "
    f"The unit factor is 10⁹/2³⁰ = {UNIT:.3f}; the other two factors come from the method."
)


_CALL_COLUMNS: Final[tuple[Column[SingleCall], ...]] = (
    Column("Operation", lambda call: call.op),
    Column("Ranks", lambda call: call.ranks, str),
    Column("Size S", lambda call: call.size_bytes, format_size),
    Column("Time", lambda call: call.time_ns, format_time, group="Proper"),
    Column("busbw", lambda call: call.busbw, format_rate, group="Proper"),
    Column("Time", lambda call: call.one_ns, format_time, group="One call"),
    Column("printed", lambda call: call.printed, three_digits, '"GB/s"', group="One call"),
    Column("any one", lambda call: " to ".join(map(three_digits, call.printed_range)), group="One call"),
    Column("all", lambda call: call.whole, three_digits, "×", group="Difference"),
    Column("barrier", lambda call: call.barrier, three_digits, "×", group="Difference"),
    Column("one call", lambda call: call.one_call, three_digits, "×", group="Difference"),
)


def one_call(judgement: Judgement) -> Section | None:
    """Every case measured in both modes, barriers and isolated; None if there is none."""
    rows = judgement.single_calls
    if not rows:
        return None
    note = "Any one: the numbers that the slowest and the fastest sample would have printed."
    parts = (Paragraph(_ONE_CALL), table("One call between barriers", _CALL_COLUMNS, rows, note))
    return Section("one-call", "One call between barriers", parts)


_HALVES: Final[tuple[Column[Composition], ...]] = (
    Column("All-reduce", lambda row: row.label),
    Column("Size", lambda row: row.size_bytes, format_size),
    Column("all_reduce", lambda row: row.all_reduce_ns, format_time),
    Column("reduce_scatter", lambda row: row.reduce_scatter_ns, format_time),
    Column("all_gather", lambda row: row.all_gather_ns, format_time),
    Column("Sum of the two", lambda row: row.sum_ns, format_time),
    Column("Sum / all_reduce", lambda row: row.ratio, three_digits),
)
_NOTES: Final = (
    "A ring all-reduce is a reduce-scatter and an all-gather, so large sizes should have a ratio of 1",
    "above 1 the all-reduce is faster; below 1 sharding (ZeRO, FSDP) costs less than the all-reduce that it replaces",
    "medians over launches; the ratio is as uncertain as its three times",
)


def composition(judgement: Judgement) -> Section | None:
    """The sizes measured for all three operations; None if there are none."""
    rows = judgement.compositions
    if not rows:
        return None
    halves = table("A reduce-scatter followed by an all-gather", _HALVES, rows, *_NOTES, row_headers=2)
    ratios = sorted(row.ratio for row in rows)
    gist = f"The two halves take {three_digits(ratios[0])} to {three_digits(ratios[-1])} times as long as all-reduce."
    return Section("composition", "All-reduce and its two halves", (halves,), gist=gist)
