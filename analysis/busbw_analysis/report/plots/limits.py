"""The best utilisation over the size of training, for several networks: a plain figure for a file."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from busbw.errors import UsageError
from busbw_analysis.training.limits import CLIFF, Constants, curve


def save_limits(path: Path, networks: Mapping[str, Constants]) -> None:
    """Write the picture as what the file's name ends in. Raises UsageError when it cannot be written."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for name, constants in networks.items():
        points = [one for one in curve(constants) if one.share]
        axes.plot([one.flop for one in points], [one.share * 100 for one in points], label=name, marker=".")
    axes.axhline(CLIFF * 100, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xscale="log", ylim=(0, 105), xlabel="training compute (FLOP)", ylabel="best utilisation (%)")
    axes.legend(fontsize="small")
    try:
        with mpl.rc_context({"svg.hashsalt": "limits"}):
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except (OSError, ValueError) as error:
        message = f"--plot {path}: {error}"
        raise UsageError(message) from error
