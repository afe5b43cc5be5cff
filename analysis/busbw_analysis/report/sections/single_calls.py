"""The part of a report about one call between two barriers, as many scripts time it, beside proper samples."""

from typing import Final

from busbw.units import format_rate, format_size, format_time
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.diagnosis.single_calls import UNIT, SingleCall, single_calls
from busbw_analysis.report.document import Column, Paragraph, Section, table, three_digits

_HOW: Final = (
    "Many scripts warm up once, time one call and the barrier behind it, and print GiB/s as GB/s. That is done here, "
    "beside calls that are timed on their own, many times. What is printed is busbw × unit × barrier × one call: the "
    f"unit is 10⁹/2³⁰ = {UNIT:.3f}, or 1/1.074; barrier and one call are the method."
)


def _range(one: SingleCall) -> str:
    low, high = map(three_digits, one.printed_range)
    return f"{low} to {high}"


_COLUMNS: Final[tuple[Column[SingleCall], ...]] = (
    Column("Operation", lambda one: one.op),
    Column("Ranks", lambda one: one.ranks, str),
    Column("Size S", lambda one: one.size_bytes, format_size),
    Column("Time", lambda one: one.time_ns, format_time, group="Proper"),
    Column("busbw", lambda one: one.busbw, format_rate, group="Proper"),
    Column("Time", lambda one: one.one_ns, format_time, group="One call"),
    Column("printed", lambda one: one.printed, three_digits, '"GB/s"', group="One call"),
    Column("any one", _range, group="One call"),
    Column("all", lambda one: one.whole, three_digits, "×", group="Difference"),
    Column("unit", lambda _one: UNIT, three_digits, "×", group="Difference"),
    Column("barrier", lambda one: one.barrier, three_digits, "×", group="Difference"),
    Column("one call", lambda one: one.one_call, three_digits, "×", group="Difference"),
)


def one_call(judgement: Judgement) -> Section | None:
    """Every case of mode barriers that was measured in mode isolated, too; None where none was."""
    rows = single_calls(judgement.dataset)
    if not rows:
        return None
    note = "Any one: what would have been printed by the slowest and by the fastest of all samples."
    parts = (Paragraph(_HOW), table("One call between barriers", _COLUMNS, rows, note))
    return Section("one-call", "One call between barriers", parts)
