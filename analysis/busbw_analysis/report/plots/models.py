"""Draw how models compare with measurements: parts of the time, and times relative to the fastest algorithm."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal

import numpy as np
from matplotlib.ticker import PercentFormatter

from busbw_analysis.diagnosis.algorithms import Crossing
from busbw_analysis.report.plots.axes import (
    HAIRLINE,
    INK,
    PAGE,
    canvas,
    draw_points,
    head,
    log_height,
    sample,
    size_axis,
)
from busbw_analysis.report.plots.curves import LINE_STYLES, Point, draw_bars
from busbw_analysis.report.plots.svg import SERIES, VARIABLES, inline

Part = Literal["latency", "bandwidth", "reduction", "unexplained"]

COLOURS: Final[dict[Part, str]] = {
    "latency": SERIES[0],
    "bandwidth": SERIES[1],
    "reduction": SERIES[2],
    "unexplained": HAIRLINE,
}
"""In the order of the stack, from the bottom up."""

_LEAST_SPAN = 2.0
_HIGHEST_STACK = 2.0
"""A column is cut off at twice the measured time; the table has its numbers."""


Stack = Mapping[int, Mapping[Part, float]]
"""Shares of the measured time, by size (bytes). A sum above 1 means that the model is too slow."""


def draw_stack(stack: Stack, identity: str, title: str, description: str) -> str:
    """Shares of the measured time as an inline SVG: one column per size, and a line at 100 %."""
    with canvas() as (figure, axes):
        top = max(1.0, *(sum(shares.values()) for shares in stack.values()))
        axes.set_ylim(0, min(top, _HIGHEST_STACK) * 1.04)
        sizes = sorted(stack)
        nearest = min(larger / smaller for smaller, larger in pairwise(sizes))
        half = min(math.sqrt(nearest), 2.0) ** 0.84
        size_axis(axes, sizes, 1.15 * half)
        head(axes, "Where the time goes")
        axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
        lefts, widths = [size / half for size in sizes], [size * half - size / half for size in sizes]
        floors = np.zeros(len(sizes))
        for part, colour in COLOURS.items():
            shares = np.asarray([stack[size].get(part, 0.0) for size in sizes])
            axes.bar(
                lefts,
                shares,
                widths,
                floors,
                align="edge",
                facecolor=colour,
                edgecolor=PAGE,
                linewidth=0.6,
                zorder=3,
            )
            floors += shares
        axes.axhline(1.0, color=INK, linewidth=0.9, zorder=4)
        return inline(figure, identity, title, description)


def draw_relative(
    algorithms: Sequence[tuple[Sequence[Point], Sequence[tuple[float, float]]]],
    turns: Sequence[tuple[Crossing, float | None]],
    identity: str,
    title: str,
    description: str,
) -> str:
    """Times relative to the fastest over size as an inline SVG, with a line at every crossover and its S*.

    algorithms: for each its points, and the vertices (bytes, ratio) of the line between them.
    """
    with canvas() as (figure, axes):
        every = [point for points, _ in algorithms for point in points]
        reach = max(_LEAST_SPAN, 1.15 * max(point.value for point in every))
        log_height(axes, 1 / reach**0.06, reach, "{:g} ×".format)
        size_axis(axes, [point.size_bytes for point in every])
        head(axes, "Time / that of the fastest")
        left, right = axes.get_xlim()
        for turn, expected in turns:
            if turn.low_bytes is not None and turn.high_bytes is not None:
                axes.axvspan(turn.low_bytes, turn.high_bytes, facecolor=HAIRLINE, alpha=0.45, linewidth=0, zorder=1)
            for size, (style, width) in ((turn.at_bytes, LINE_STYLES["bound"]), (expected, LINE_STYLES["model"])):
                if size is not None and left < size < right:
                    axes.axvline(size, color=INK, linewidth=width, linestyle=style, zorder=2)
        for slot, (points, line) in enumerate(algorithms):
            draw_bars(axes, slot, points)
            axes.plot(*zip(*line, strict=True), color=SERIES[slot], linewidth=0.8, zorder=3)
            draw_points(axes, slot, [(point.size_bytes, point.value) for point in points])
        return inline(figure, identity, title, description)


def swatch(part: Part) -> str:
    """A legend sample of a part."""
    return sample(f'<path d="M7 1h14v12h-14z" fill="{VARIABLES[COLOURS[part]]}"/>')
