"""Limits of training for several networks, and the best utilisation over compute, as a figure in a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from busbw_analysis.report.plots import save
from busbw_analysis.training.limits import CLIFF, Constants, Limits, curve

_DASHES = ("-", "--", ":")
"""Dashes of neighbours differ, so that overlapping lines remain distinguishable."""


def save_limits(path: Path, networks: Mapping[str, Constants], limits: Sequence[Limits]) -> None:
    """Write the figure in the format given by the suffix. Raises UsageError if it cannot be written."""
    figure = Figure(figsize=(9, 9), layout="constrained")
    above, below = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    colours = mpl.colormaps["tab20"]
    for number, (name, constants) in enumerate(networks.items()):
        points = [point for point in curve(constants) if point.share]
        above.plot(
            [point.flop for point in points],
            [point.share * 100 for point in points],
            label=name,
            marker=".",
            color=colours(number),
            linestyle=_DASHES[number % len(_DASHES)],
        )
    above.axhline(CLIFF * 100, color="grey", linewidth=0.8, linestyle=":")
    above.set(xscale="log", ylim=(0, 105), ylabel="best utilisation (%)")
    above.legend(fontsize="small")
    _limits(below, limits)
    save(figure, path)


def _limits(axes: Axes, limits: Sequence[Limits]) -> None:
    """The cliff and the wall of each row; those of the first row as lines across all rows."""
    rows = range(len(limits))
    for label, marker, values in (
        ("cliff: 80 % of the best", "o", [limit.cliff for limit in limits]),
        ("none in time", "x", [limit.infeasible for limit in limits]),
        ("wall of latency", "|", [limit.wall for limit in limits]),
    ):
        there = [(value, row) for value, row in zip(values, rows, strict=True) if value and value < float("inf")]
        drawn = axes.plot(*zip(*there, strict=True), marker, label=label, markersize=9) if there else []
        if values[0] in {value for value, _ in there}:
            axes.axvline(values[0], color=drawn[0].get_color(), linewidth=0.6, linestyle=":")
    axes.set_yticks(list(rows), [limit.name for limit in limits])
    axes.invert_yaxis()
    axes.set(xlabel="training compute (FLOP)")
    axes.legend(fontsize="small")
