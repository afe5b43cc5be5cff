"""The report section that draws one training step of each kind: computation, calls and waiting of every rank."""

from collections.abc import Iterator, Sequence
from typing import Final

from busbw.ops.training import workload_in_words
from busbw.units import format_time
from busbw_analysis.report.document import Column, Figure, LegendEntry, Paragraph, Section, percent, table
from busbw_analysis.training.plots import timelines as plots
from busbw_analysis.training.steps import Trained
from busbw_analysis.training.timelines import CallTime, RankTime

_HOW: Final = (
    "One additional step of each kind after its samples, by the common clock; recording slows it down a little. A "
    "rank's upper lane is computation, its lower lane calls from start to completion; a sent message ends when it is "
    "handed over. The line between the lanes is waiting: a call is in progress without computation. "
    "busbw export RUN --to trace writes the same for Perfetto."
)

_COLUMNS: Final[tuple[Column[RankTime], ...]] = (
    Column("Rank", lambda row: row.rank, str),
    Column("Step", lambda row: row.span_ns, format_time),
    Column("Computes", lambda row: _share(row, row.compute_ns), percent, "%"),
    Column("Waits", lambda row: _share(row, row.waiting_ns), percent, "%"),
    Column("for the last rank", lambda row: _share(row, row.waiting_for_last_ns), percent, "%"),
)


_CALLS: Final[tuple[Column[tuple[Trained, CallTime]], ...]] = (
    Column("Step", lambda row: row[0].op),
    Column("Of", lambda row: workload_in_words(row[0].workload)),
    Column("Call", lambda row: row[1].name),
    Column("In progress", lambda row: row[1].under_way_ns / len(row[0].timeline), format_time),
    Column("Hidden", lambda row: row[1].hidden, percent, "%"),
)
_HIDDEN: Final = (
    "In progress: time with at least one such call in progress, mean over ranks. Hidden: share with computation."
)


def _share(row: RankTime, part_ns: int | None) -> float | None:
    """Share of the rank's recorded time; None if nothing was recorded."""
    return None if part_ns is None or not row.span_ns else part_ns / row.span_ns


def timelines(steps: Sequence[Trained]) -> Section | None:
    """All ``steps`` with a recorded timeline; None if there are none."""
    figures = tuple(_figures(steps))
    gist = "Computation, calls and waiting of every rank in one step of each kind."
    if not figures:
        return None
    calls = [(step, call) for step in steps for call in step.calls]
    tables = [table("How much of each call is hidden", _CALLS, calls, _HIDDEN)] if calls else []
    return Section("timelines", "Timelines of steps", (Paragraph(_HOW), *figures, *tables), gist=gist)


def _figures(steps: Sequence[Trained]) -> Iterator[Figure]:
    for number, step in enumerate(steps):
        if not any(time.span_ns for time in step.timeline):
            continue
        what = f"{step.op} · {workload_in_words(step.workload)}"
        slots = plots.colours([name for row in step.timeline for name, _, _ in row.spans])
        legend = [LegendEntry(plots.swatch(slot), name) for name, slot in slots.items()]
        yield Figure(
            what,
            (plots.draw(step.timeline, f"timeline-{number}", what, f"One step of {step.ranks} ranks over time"),),
            (*legend, LegendEntry(plots.swatch(None), plots.WAITING)),
            table(what, _COLUMNS, step.timeline, folded=True),
        )
