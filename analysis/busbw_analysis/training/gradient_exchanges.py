"""Methods of gradient exchange compared with the exact one: what each gains in steps per second, and loses in progress
per step.

Gaps are f(W) − f(W*), relative to that of the initial weights 0. The gap over time is the gap over steps, with the
measured time of a step.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from busbw.ops.training import METHODS, workload_in_words
from busbw.units import format_size, format_time
from busbw_analysis.data.grouped import grouped
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
from busbw_analysis.report.plots import SLOTS, canvas, dashes_of, head, log_height, name_ticks, sample, widen
from busbw_analysis.report.svg import SERIES, inline
from busbw_analysis.training.steps import Trained

EXACT: Final = next(iter(METHODS))
TARGET: Final = 0.01
"""The relative gap that counts as converged."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """A training compared with ``exact``, the same training by the exact method.

    budget_ns: time for which all compared trainings ran at least.
    """

    step: Trained
    exact: Trained
    budget_ns: float

    @property
    def name(self) -> str:
        """The exchange method."""
        return self.step.workload.exchange or EXACT

    @property
    def gap(self) -> float:
        """After all steps."""
        return gaps(self.step)[-1]

    @property
    def gap_in_budget(self) -> float:
        """After the same time as the others."""
        return gaps(self.step)[int(self.budget_ns / self.step.time_ns * _NEARLY)]

    @property
    def needed(self) -> int | None:
        """Steps to the target; None if it was not reached."""
        return next((step for step, gap in enumerate(gaps(self.step)) if gap <= TARGET), None)

    @property
    def needed_ns(self) -> float | None:
        """Time to the target."""
        return None if self.needed is None else self.needed * self.step.time_ns

    @property
    def gained(self) -> float:
        """Steps per second over those of the exact method."""
        return self.exact.time_ns / self.step.time_ns

    @property
    def certain(self) -> bool:
        """Whether the intervals of the two step times are disjoint."""
        ours, theirs = (self.step.low_ns, self.step.high_ns), (self.exact.low_ns, self.exact.high_ns)
        if ours[0] is None or ours[1] is None or theirs[0] is None or theirs[1] is None:
            return False
        return ours[1] < theirs[0] or theirs[1] < ours[0]

    @property
    def lost(self) -> float | None:
        """Steps to the target over those of the exact method."""
        exact = Exchanged(self.exact, self.exact, self.budget_ns).needed
        return None if self.needed is None or not exact else self.needed / exact

    @property
    def slower(self) -> float | None:
        """Time to the target over that of the exact method."""
        return None if self.lost is None else self.lost / self.gained


_NEARLY: Final = 1 + 1e-9
"""Rounding allowance, so that a budget of exactly all steps includes the last one."""


def gaps(step: Trained) -> Sequence[float]:
    """Relative gaps: before the first step and after each step."""
    return [gap / step.gaps[0] for gap in step.gaps]


def exchanged(steps: Iterable[Trained]) -> tuple[tuple[Exchanged, ...], ...]:
    """Trainings of the same problem on the same number of ranks with the same waits, the exact one first. Groups
    without an exact one, or with nothing else, are left out.
    """
    trained = (step for step in steps if step.gaps and step.workload.exchange is not None)
    alike = grouped(trained, lambda step: (step.ranks, msgspec.structs.replace(step.workload, exchange=EXACT)))
    groups = []
    for group in alike.values():
        exact = next((step for step in group if step.workload.exchange == EXACT), None)
        if exact is None or len(group) == 1:
            continue
        budget = min(step.steps * step.time_ns for step in group)
        ordered = sorted(group, key=lambda step: step is not exact)
        groups.append(tuple(Exchanged(step, exact, budget) for step in ordered))
    return tuple(groups)


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
        partial(
            _draw,
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
    legend = tuple(LegendEntry(_swatch(slot), row.name) for slot, row in enumerate(group))
    return Paragraph(in_words(group)), Figure(what, pictures, legend, rows)


def in_words(group: Sequence[Exchanged]) -> str:
    """The exchange that reaches the target first."""
    target = f"{percent(TARGET)} % of the first gap"
    reached = [(row.needed_ns, row.name) for row in group if row.needed_ns is not None]
    if not reached:
        return f"No exchange reaches {target}."
    needed_ns, name = min(reached)
    return f"{name} reaches {target} first, after {format_time(needed_ns)}."


Lines = Mapping[str, Sequence[tuple[float, float]]]
"""Name → points; the same names in every drawing."""


def _swatch(slot: int) -> str:
    """A legend sample of a line."""
    dashes = " ".join(f"{length:g}" for length in dashes_of(slot)[1])
    return sample(
        f'<path d="M1 7h26" stroke="var(--series-{slot % SLOTS})" stroke-width="2" stroke-dasharray="{dashes}"/>'
    )


def _draw(lines: Lines, ticks: Sequence[tuple[float, str]], identity: str, heading: str, description: str) -> str:
    """Shares on a logarithmic axis over ``ticks`` as an inline SVG. ``identity`` is unique on the page."""
    shares = [share for points in lines.values() for _, share in points if share > 0]
    low, high = widen(min(shares), max(shares), 1.3, 10.0)
    with canvas() as (figure, axes):
        log_height(axes, low, high, lambda mark: f"{100 * mark:.3g} %")
        axes.set_xlim(0, ticks[-1][0])
        name_ticks(axes.xaxis, [place for place, _ in ticks], [name for _, name in ticks])
        for slot, points in enumerate(lines.values()):
            axes.plot(
                [x for x, _ in points],
                [share if share > 0 else math.nan for _, share in points],
                color=SERIES[slot % SLOTS],
                linestyle=dashes_of(slot),
                linewidth=1.6,
                zorder=4,
            )
        head(axes, heading)
        return inline(figure, identity, heading, description)
