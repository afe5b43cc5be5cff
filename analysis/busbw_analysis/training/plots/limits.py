"""Limits of training for several networks, and the best utilisation over compute, as a figure in a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from busbw_analysis.report.plots.axes import save
from busbw_analysis.training.limits import CLIFF, Constants, Limits, curve

_DASHES = ("-", "--", ":")
"""Dashes of neighbours differ, so that overlapping lines remain distinguishable."""


def save_limits(path: Path, networks: Mapping[str, Constants], found: Sequence[Limits]) -> None:
    """Write the figure in the format given by the suffix. Raises UsageError if it cannot be written."""
    figure = Figure(figsize=(9, 9), layout="constrained")
    above, below = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    colours = mpl.colormaps["tab20"]
    for number, (name, constants) in enumerate(networks.items()):
        points = [one for one in curve(constants) if one.share]
        above.plot(
            [one.flop for one in points],
            [one.share * 100 for one in points],
            label=name,
            marker=".",
            color=colours(number),
            linestyle=_DASHES[number % len(_DASHES)],
        )
    above.axhline(CLIFF * 100, color="grey", linewidth=0.8, linestyle=":")
    above.set(xscale="log", ylim=(0, 105), ylabel="best utilisation (%)")
    above.legend(fontsize="small")
    _limits(below, found)
    save(figure, path)


def _limits(axes: Axes, found: Sequence[Limits]) -> None:
    """The cliff and the wall of each row; those of the first row as lines across all rows."""
    rows = range(len(found))
    for label, marker, values in (
        ("cliff: 80 % of the best", "o", [one.cliff for one in found]),
        ("none in time", "x", [one.infeasible for one in found]),
        ("wall of latency", "|", [one.wall for one in found]),
    ):
        there = [(value, row) for value, row in zip(values, rows, strict=True) if value and value < float("inf")]
        drawn = axes.plot(*zip(*there, strict=True), marker, label=label, markersize=9) if there else []
        if values[0] in {value for value, _ in there}:
            axes.axvline(values[0], color=drawn[0].get_color(), linewidth=0.6, linestyle=":")
    axes.set_yticks(list(rows), [one.name for one in found])
    axes.invert_yaxis()
    axes.set(xlabel="training compute (FLOP)")
    axes.legend(fontsize="small")
