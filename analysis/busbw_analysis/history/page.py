"""A history as a page: the answer, a row for each case, and a figure of its trend with what changed beside steps."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from busbw.units import counted, format_rate, format_size, format_time
from busbw_analysis.history.text import answer_lines, case_table, cause, in_words, names_of
from busbw_analysis.history.trends import Change, History, RunFacts, Trend, TrendStep
from busbw_analysis.report import to_html
from busbw_analysis.report.document import (
    Block,
    Column,
    ComparisonSummary,
    Figure,
    LegendEntry,
    Page,
    Paragraph,
    Section,
    Table,
    table,
)
from busbw_analysis.report.plots import (
    HAIRLINE,
    INK,
    MUTED,
    canvas,
    draw_points,
    head,
    sample,
    series_id,
    swatch,
    write,
)
from busbw_analysis.report.svg import SERIES, inline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_POINTS: Final = 500
_MOST_FIGURES: Final = 24
_MOST_FACTS: Final = 5
"""Changes of facts in the tooltip of a run."""
_BOX: Final = (0.105, 0.1, 0.88, 0.78)
_SIZE: Final = (720, 250)


def page_of(history: History) -> str:
    """The page as HTML. Figures are those of the cases that stepped, and then of others, up to some number."""
    names = names_of(history.trends)
    ordered = sorted(history.trends, key=lambda trend: not trend.steps)
    drawn = [trend for trend in ordered if len(trend.runs) > 1][:_MOST_FIGURES]
    sections = [_section(number, trend, names, history) for number, trend in enumerate(drawn)]
    left = len(ordered) - len(drawn)
    rest = f"; {left} without a figure: one run, or too many to draw" if left else ""
    machines = list(dict.fromkeys(trend.machine for trend in history.trends))
    return to_html.render(
        Page(
            title=f"History of {counted(history.runs, 'run')} on {', '.join(machines) or 'no machine'}",
            subtitle=f"{counted(len(history.trends), 'case')}{rest}",
            answers=(),
            figure=None,
            sections=tuple(sections),
            comparison=ComparisonSummary(tuple(answer_lines(history)), (), case_table(history)),
        )
    )


def _section(number: int, trend: Trend, names: dict[str, str], history: History) -> Section:
    steps = [trend_step for trend_step in history.steps if trend_step.trend is trend]
    size = f" at {format_size(trend.case.size_bytes)}" if trend.case.size_bytes else ""
    title = f"{names[trend.series]}{size}"
    blocks: list[Block] = [_figure(f"trend-{number}", title, trend, steps)]
    for place, trend_step in enumerate(steps, 1):
        blocks.append(Paragraph(f"Step {place}, {_step_in_words(trend_step)}"))
        if trend_step.changes:
            blocks.append(_changes(place, trend_step.changes))
    return Section(f"case-{number}", title, tuple(blocks))


def _step_in_words(trend_step: TrendStep) -> str:
    step, runs = trend_step.step, trend_step.trend.runs
    first, last = runs[step.low].run, runs[step.high].run
    where = f"at run {first}" if first == last else f"between run {first} and run {last}"
    p_value = "p < 0.001" if step.p_value < 0.001 else f"p = {step.p_value:.1g}"
    return (
        f"{trend_step.first.date}: {format_time(step.before)} → {format_time(step.after)} "
        f"({100 * (trend_step.ratio - 1):+.1f} %, {p_value}), with 95 % {where}."
    )


def _changes(place: int, changes: Sequence[Change]) -> Block:
    columns: list[Column[Change]] = [
        Column("fact", lambda change: change.key),
        Column("before", lambda change: change.before),
        Column("after", lambda change: change.after),
        Column("last run before", lambda change: change.last),
        Column("first run after", lambda change: change.first),
        Column("within the step's interval", lambda change: "yes" if change.inside else "no"),
        Column("changes elsewhere", lambda change: change.elsewhere, str),
    ]
    return table(f"What changed around step {place}", columns, changes)


def _figure(identity: str, title: str, trend: Trend, steps: Sequence[TrendStep]) -> Figure:
    first = max(0, len(trend.runs) - _MOST_POINTS)
    legend = [LegendEntry(swatch(0, "points"), "a run, with the range of its launches", series_id(0))]
    legend += [
        LegendEntry(
            sample(_LINE),
            f"{place}: {trend_step.first.date}, {100 * (trend_step.ratio - 1):+.0f} %: {cause(trend_step.changes)}",
        )
        for place, trend_step in enumerate(steps, 1)
    ]
    caption = f"The last {_MOST_POINTS} of {len(trend.runs)} runs." if first else ""
    picture = partial(_picture, identity, title, trend, steps, first)
    return Figure(caption, (picture,), tuple(legend), _numbers(title, trend))


def _picture(identity: str, title: str, trend: Trend, steps: Sequence[TrendStep], first: int) -> str:
    with canvas(_BOX, width=_SIZE[0], height=_SIZE[1]) as (figure, axes):
        positions = _positions(axes, trend, first)
        _draw(axes, trend, positions, steps)
        head(axes, "Time of a call, median over launches", -0.118)
        tips = {series_id(0): [_tip(trend, place) for place in positions]}
        description = f"{title}: time of a call over {counted(len(positions), 'run')}, {counted(len(steps), 'step')}."
        return inline(figure, identity, title, description, tips)


_LINE: Final = '<path d="M14 1V13" stroke="var(--ink)" stroke-width="1.2" stroke-dasharray="3 2"/>'


def _positions(axes: "Axes", trend: Trend, first: int) -> dict[int, float]:
    """The places of the runs from ``first`` on → their positions, by their start, or by their number if a start is
    unknown.
    """
    from matplotlib import dates  # noqa: PLC0415 - heavy

    places = range(first, len(trend.runs))
    starts = [trend.runs[place].started for place in places]
    known = [start for start in starts if start is not None]
    if len(known) < len(starts) or len(set(known)) < 2:
        return {place: float(place) for place in places}
    locator = dates.AutoDateLocator(minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    formatter = dates.ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(formatter)
    return dict(zip(places, map(float, dates.date2num(known)), strict=True))  # type: ignore[no-untyped-call]


def _draw(axes: "Axes", trend: Trend, positions: Mapping[int, float], steps: Sequence[TrendStep]) -> None:
    """Points with the range of their launches, the level of each segment, and the steps with their intervals."""
    places, across = np.asarray(list(positions)), list(positions.values())
    low, high = trend.low_ns[places], trend.high_ns[places]
    bars = axes.vlines(across, low, high, color=SERIES[0], linewidth=1.1, alpha=0.45, zorder=3)
    bars.set_gid(f"bars {series_id(0)}")
    margin = 0.08 * max(float(high.max() - low.min()), 0.05 * float(high.max()))
    axes.set_ylim(float(low.min()) - margin, float(high.max()) + 2 * margin)
    axes.yaxis.set_major_formatter(lambda value, _place: format_time(value) if value > 0 else "")
    for number, trend_step in enumerate(steps, 1):
        step = trend_step.step
        if step.at - 1 not in positions:
            continue
        middle = (positions[step.at - 1] + positions[step.at]) / 2
        axes.axvline(middle, color=INK, linewidth=1.0, linestyle=(0, (3, 2)), zorder=2)
        if step.low < step.high:
            axes.axvspan(positions.get(step.low, across[0]), positions[step.high], color=HAIRLINE, zorder=0)
        axes.hlines([step.before], across[0], middle, color=MUTED, linewidth=1.0, zorder=2)
        axes.hlines([step.after], middle, across[-1], color=MUTED, linewidth=1.0, zorder=2)
        write(axes, str(number), middle, float(high.max()) + margin, (3, -3))
    values = trend.time_ns[places].tolist()
    draw_points(axes, 0, list(zip(across, values, strict=True)), gid=series_id(0))


def _tip(trend: Trend, place: int) -> str:
    """What hovering over a run shows: the run, its value, and which facts changed since the run before it."""
    run = trend.runs[place]
    low, high = float(trend.low_ns[place]), float(trend.high_ns[place])
    changed = list(_changed(trend.runs[place - 1], run)) if place else []
    rate = trend.busbw[place]
    launches = counted(int(trend.launches[place]), "launch", "launches")
    return "\n".join(
        [
            run.run,
            *([] if run.started is None else [f"{run.started:%Y-%m-%d %H:%M} UTC"]),
            *([] if run.label is None else [f"label {run.label}"]),
            f"{format_time(float(trend.time_ns[place]))} ({format_time(low)} to {format_time(high)}, {launches})",
            *([] if np.isnan(rate) else [f"busbw {format_rate(float(rate))}"]),
            *(in_words(change) for change in changed[:_MOST_FACTS]),
            *([f"{len(changed) - _MOST_FACTS} more facts changed"] if len(changed) > _MOST_FACTS else []),
        ]
    )


def _changed(before: RunFacts, run: RunFacts) -> Iterator[Change]:
    old, new = before.facts, run.facts
    for key in sorted(old.keys() & new.keys()):
        if old[key] != new[key]:
            yield Change(key, old[key], new[key], before.run, run.run, inside=True, elsewhere=0)


def _numbers(title: str, trend: Trend) -> Table:
    columns: list[Column[int]] = [
        Column("run", lambda place: trend.runs[place].run),
        Column("started", lambda place: _started(trend.runs[place])),
        Column("label", lambda place: trend.runs[place].label),
        Column(
            "time",
            lambda place: float(trend.time_ns[place]),
            format_time,
            ends=lambda place: (float(trend.low_ns[place]), float(trend.high_ns[place])),
        ),
        Column("busbw", lambda place: None if np.isnan(trend.busbw[place]) else float(trend.busbw[place]), format_rate),
        Column("launches", lambda place: int(trend.launches[place]), str),
    ]
    first = max(0, len(trend.runs) - _MOST_POINTS)
    return table(f"{title}, run by run", columns, range(first, len(trend.runs)), folded=True)


def _started(run: RunFacts) -> str | None:
    return None if run.started is None else f"{run.started:%Y-%m-%d %H:%M}"
