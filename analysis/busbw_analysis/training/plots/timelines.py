"""Draw one training step: for every rank a lane of computation and a lane of calls, over time."""

from collections.abc import Sequence
from typing import Final

from matplotlib.ticker import MaxNLocator

from busbw.units import format_time
from busbw_analysis.report.plots import MUTED, canvas, name_ticks, row_axis, sample
from busbw_analysis.report.svg import SERIES, inline
from busbw_analysis.training.timelines import COMPUTE, RankTime

_WIDTH, _ROW, _MARGIN = 860, 34, 40
_LANE: Final = 0.32
_TICKS: Final = 5
WAITING: Final = "waiting"


def colours(names: Sequence[str]) -> dict[str, int]:
    """What is drawn → its colour on the page."""
    return {name: place % len(SERIES) for place, name in enumerate(dict.fromkeys((COMPUTE, *names)))}


def swatch(slot: int | None) -> str:
    """A legend sample; None: waiting."""
    shape = "M1 3h26v8h-26z" if slot is not None else "M1 6h26v2h-26z"
    return sample(f'<path d="{shape}" fill="var(--{f"series-{slot}" if slot is not None else "ink"})"/>')


def draw(timeline: Sequence[RankTime], identity: str, title: str, description: str) -> str:
    """The step as an inline SVG. ``identity`` is unique on the page; title and description are its alternative text."""
    longest = max(end for row in timeline for _, _, end in row.spans)
    slots = colours([name for row in timeline for name, _, _ in row.spans])
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
