"""The timelines of training steps: their section, their figure, and their export as Chrome trace events.

Source of the format: "Trace Event Format" (Google, 2016), for Perfetto and chrome://tracing. ``X`` is a span with its
length in µs, ``b`` and ``e`` are the begin and end of a span that others may overlap, ``M`` names a process or thread.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from busbw.ops.training import workload_in_words
from busbw.runs.records import JSON
from busbw.units import format_time
from busbw_analysis.report.document import Column, Figure, LegendEntry, Paragraph, Section, percent, table
from busbw_analysis.report.plots import MUTED, canvas, name_ticks, row_axis, sample
from busbw_analysis.report.svg import SERIES, inline
from busbw_analysis.training.steps import Trained
from busbw_analysis.training.timelines import COMPUTE, CallTime, RankTime

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
        slots = _colours([name for row in step.timeline for name, _, _ in row.spans])
        legend = [LegendEntry(_swatch(slot), name) for name, slot in slots.items()]
        yield Figure(
            what,
            (partial(_draw, step.timeline, f"timeline-{number}", what, f"One step of {step.ranks} ranks over time"),),
            (*legend, LegendEntry(_swatch(None), _WAITING)),
            table(what, _COLUMNS, step.timeline, folded=True),
        )


_WIDTH, _ROW, _MARGIN = 860, 34, 40
_LANE: Final = 0.32
_TICKS: Final = 5
_WAITING: Final = "waiting"


def _colours(names: Sequence[str]) -> dict[str, int]:
    """What is drawn → its colour on the page."""
    return {name: place % len(SERIES) for place, name in enumerate(dict.fromkeys((COMPUTE, *names)))}


def _swatch(slot: int | None) -> str:
    """A legend sample; None: waiting."""
    shape = "M1 3h26v8h-26z" if slot is not None else "M1 6h26v2h-26z"
    return sample(f'<path d="{shape}" fill="var(--{f"series-{slot}" if slot is not None else "ink"})"/>')


def _draw(timeline: Sequence[RankTime], identity: str, title: str, description: str) -> str:
    """The step as an inline SVG. ``identity`` is unique on the page; title and description are its alternative text."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - heavy

    longest = max(end for row in timeline for _, _, end in row.spans)
    slots = _colours([name for row in timeline for name, _, _ in row.spans])
    height = _MARGIN + _ROW * len(timeline)
    box = (0.08, 26 / height, 0.9, _ROW * len(timeline) / height)
    with canvas(box, width=_WIDTH, height=height) as (figure, axes):
        axes.set_xlim(0, longest)
        ticks = [tick for tick in MaxNLocator(_TICKS).tick_values(0, longest) if tick <= longest]
        name_ticks(axes.xaxis, ticks, list(map(format_time, ticks)))
        row_axis(axes, [f"rank {row.rank}" for row in timeline])
        for place, row in enumerate(timeline):
            for name, slot in slots.items():
                wide = [(begin, end - begin) for named, begin, end in row.spans if named == name]
                lane = place - _LANE - 0.04 if name == COMPUTE else place + 0.04
                axes.broken_barh(wide, (lane, _LANE), facecolors=SERIES[slot], linewidth=0, zorder=3)
            waits = [(begin, end - begin) for begin, end in row.waiting]
            axes.broken_barh(waits, (place - 0.03, 0.06), facecolors=MUTED, linewidth=0, zorder=4)
        return inline(figure, identity, title, description)


def trace_events(process: int, step: Trained) -> Iterator[JSON]:
    """The events of a step: a thread for each rank of ``process``."""
    if not step.timeline:
        return
    name = f"{step.op}, {workload_in_words(step.workload)}"
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}
    for row in step.timeline:
        at = {"pid": process, "tid": row.rank}
        yield {"ph": "M", **at, "name": "thread_name", "args": {"name": f"rank {row.rank}"}}
        for number, (name, begin, end) in enumerate(row.spans):
            if name == COMPUTE:
                yield _span(name, at, begin, end)
            else:
                both = {**at, "cat": f"calls of rank {row.rank}", "name": name, "id": f"{process}.{row.rank}.{number}"}
                yield {"ph": "b", **both, "ts": begin / 1e3}
                yield {"ph": "e", **both, "ts": end / 1e3}
        for begin, end in row.waiting:
            yield _span("waiting", at, begin, end)


def _span(name: str, at: dict[str, int], begin_ns: int, end_ns: int) -> JSON:
    return {"ph": "X", **at, "name": name, "ts": begin_ns / 1e3, "dur": (end_ns - begin_ns) / 1e3}
