"""The report section on gradient exchanges: how much faster each one's steps are, and how many more it needs."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from busbw.ops.training import workload_in_words
from busbw.units import format_size, format_time
from busbw_analysis.report.document import (
    Column,
    Figure,
    LegendEntry,
    Paragraph,
    Section,
    checked,
    percent,
    table,
    three_digits,
)
from busbw_analysis.training.gradient_exchanges import EXACT, TARGET, Exchanged, gaps
from busbw_analysis.training.plots import gradient_exchanges as plots

_HOW: Final = (
    "Least squares by gradient descent; all exchanges start from zero weights. The gap is the loss above the known "
    "minimum, as a share of the first gap. The final weights are checked against the same rule in one process, which "
    "also gives the gaps of earlier steps; for a server, it applies gradients in their order of arrival."
)
_TICKS: Final = 4


def _over(row: Exchanged) -> str:
    return f"{'' if row.certain or row.name == EXACT else '≈ '}{three_digits(row.gained)} ×"


_COLUMNS: Final[tuple[Column[Exchanged], ...]] = (
    Column("Exchange", lambda row: row.name),
    Column("Step", lambda row: row.step.time_ns, format_time),
    Column("Sent a rank and step", lambda row: row.step.sent_bytes, lambda sent: format_size(round(sent))),
    Column("all steps", lambda row: row.gap, percent, "%", group="Gap after"),
    Column("the same time", lambda row: row.gap_in_budget, percent, "%", group="Gap after"),
    Column("Steps", lambda row: row.needed, str, group="To the target"),
    Column("Time", lambda row: row.needed_ns, format_time, group="To the target"),
    Column("Steps a second", _over, group="Over exact"),
    Column("Steps needed", lambda row: row.lost, three_digits, "×", group="Over exact"),
    Column("Time needed", lambda row: row.slower, three_digits, "×", group="Over exact"),
    Column("Data", lambda row: checked(row.step.check)),
)


def exchanges(groups: Sequence[Sequence[Exchanged]]) -> Section | None:
    """Every group of trainings that differ only in the exchange; None if there is none."""
    if not groups:
        return None
    blocks = [block for number, group in enumerate(groups) for block in _group(number, group)]
    return Section("exchanges", "Exchange of gradients", (Paragraph(_HOW), *blocks))


def _group(number: int, group: Sequence[Exchanged]) -> tuple[Paragraph, Figure]:
    exact = group[0].step
    what = workload_in_words(msgspec.structs.replace(exact.workload, exchange=None))
    notes = (
        f"The same time: {format_time(group[0].budget_ns)}, in which the fastest did all {exact.steps} steps.",
        f"Target: {percent(TARGET)} % of the first gap.",
        "≈: the intervals of the two times overlap, or there is only one launch. Sent: by the rank that sends most.",
    )
    rows = table(what, _COLUMNS, group, *notes)
    longest = max(exact.steps * row.step.time_ns for row in group)
    axes: tuple[tuple[str, float, Callable[[Exchanged], float], Callable[[float], str]], ...] = (
        ("steps", exact.steps, lambda _: 1, "{:.0f}".format),
        ("time", longest, lambda row: row.step.time_ns, format_time),
    )
    pictures = tuple(
        plots.draw(
            {
                row.name: [(x, gap) for step, gap in enumerate(gaps(row.step)) if (x := step * each(row)) <= end]
                for row in group
            },
            [(end * tick / _TICKS, words(end * tick / _TICKS)) for tick in range(_TICKS + 1)],
            f"exchange-{number}-{over}",
            f"Gap over {over}",
            f"Gap to the optimum over {over} for each exchange: {what}",
        )
        for over, end, each, words in axes
    )
    legend = tuple(LegendEntry(plots.swatch(slot), row.name) for slot, row in enumerate(group))
    return Paragraph(in_words(group)), Figure(what, pictures, legend, rows)


def in_words(group: Sequence[Exchanged]) -> str:
    """The exchange that reaches the target first."""
    target = f"{percent(TARGET)} % of the first gap"
    reached = [(row.needed_ns, row.name) for row in group if row.needed_ns is not None]
    if not reached:
        return f"No exchange reaches {target}."
    needed_ns, name = min(reached)
    return f"{name} reaches {target} first, after {format_time(needed_ns)}."
