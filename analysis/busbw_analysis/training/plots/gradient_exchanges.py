"""Draw the gap of each training to the optimum, over steps or over time."""

import math
from collections.abc import Mapping, Sequence

from busbw_analysis.report.plots import SLOTS, canvas, dashes_of, head, log_height, name_ticks, sample, widen
from busbw_analysis.report.svg import SERIES, inline

Lines = Mapping[str, Sequence[tuple[float, float]]]
"""Name → points; the same names in every drawing."""


def swatch(slot: int) -> str:
    """A legend sample of a line."""
    dashes = " ".join(f"{length:g}" for length in dashes_of(slot)[1])
    return sample(
        f'<path d="M1 7h26" stroke="var(--series-{slot % SLOTS})" stroke-width="2" stroke-dasharray="{dashes}"/>'
    )


def draw(lines: Lines, ticks: Sequence[tuple[float, str]], identity: str, heading: str, description: str) -> str:
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
