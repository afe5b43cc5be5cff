"""Draws how near trainings come to the optimum, over steps or over time."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from busbw_analysis.report.plots.axes import (
    DASHES,
    SLOTS,
    canvas,
    decade_ticks,
    head,
    name_ticks,
    sample,
    widen,
)
from busbw_analysis.report.plots.svg import SERIES, inline

_TICKS: Final = 4
Lines = Mapping[str, Sequence[tuple[float, float]]]
"""Name → points; the same names in every picture."""


def _dash(slot: int) -> tuple[int, tuple[float, ...]]:
    return DASHES[slot // SLOTS % len(DASHES)]


def swatch(slot: int) -> str:
    """A legend's sample of a line."""
    dashes = " ".join(f"{length:g}" for length in _dash(slot)[1])
    return sample(
        f'<path d="M1 7h26" stroke="var(--series-{slot % SLOTS})" stroke-width="2" stroke-dasharray="{dashes}"/>'
    )


def draw(lines: Lines, ticks: Sequence[tuple[float, str]], identity: str, heading: str, description: str) -> str:
    """Shares on a logarithmic axis over what ``ticks`` name, as an inline SVG. ``identity`` is unique on the page."""
    shares = [share for points in lines.values() for _, share in points if share > 0]
    low, high = widen(min(shares), max(shares), 1.3, 10.0)
    with canvas() as (figure, axes):
        axes.set_yscale("log")
        axes.set_ylim(low, high)
        axes.set_xlim(0, ticks[-1][0])
        name_ticks(axes.xaxis, [place for place, _ in ticks], [name for _, name in ticks])
        marks = decade_ticks(low, high)
        name_ticks(axes.yaxis, marks, [f"{100 * mark:.3g} %" for mark in marks])
        for slot, points in enumerate(lines.values()):
            axes.plot(
                [x for x, _ in points],
                [share if share > 0 else math.nan for _, share in points],
                color=SERIES[slot % SLOTS],
                linestyle=_dash(slot),
                linewidth=1.6,
                zorder=4,
            )
        head(axes, heading)
        return inline(figure, identity, heading, description)
