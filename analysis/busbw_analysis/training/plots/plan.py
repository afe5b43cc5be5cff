"""Training steps as stacked bars, by layout and over numbers of GPUs, as a figure in a file."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from busbw_analysis.report.plots import save
from busbw_analysis.training.plan import MOST_SCALED, Planned, Scaled
from busbw_analysis.training.step_time import StepTime
from busbw_analysis.training.tables.plan import short_words


def save_plan(path: Path, planned: Sequence[Planned], grown: Sequence[Scaled]) -> None:
    """Write the figure in the format given by the suffix. Raises UsageError if it cannot be written."""
    figure = Figure(figsize=(10, 3 + 0.3 * len(planned) + 3.5), layout="constrained")
    rows = figure.add_gridspec(2, 2, height_ratios=(2 + 0.3 * len(planned), 3.5))
    _layouts(figure.add_subplot(rows[0, :]), planned)
    for place, scaled in enumerate(grown):
        _over_gpus(figure.add_subplot(rows[1, place]), scaled)
    save(figure, path)


def _colours(times: Sequence[StepTime]) -> dict[str, str]:
    """A colour for each part with time, the same in all panels."""
    names = times[0].parts if times else ()
    return {name: f"C{number}" for number, name in enumerate(names) if any(time.parts[name] for time in times)}


def _layouts(axes: Axes, planned: Sequence[Planned]) -> None:
    """A bar for each layout, the fastest at the top: compute, bubble, and exposed communication by dimension."""
    names = [short_words(entry.step.layout, entry.step.micro_batch) for entry in planned][::-1]
    left = [0.0] * len(planned)
    for name, colour in _colours([entry.time for entry in planned]).items():
        wide = [entry.time.parts[name] for entry in planned][::-1]
        axes.barh(range(len(names)), wide, left=left, label=name, color=colour)
        left = [start + more for start, more in zip(left, wide, strict=True)]
    axes.set_yticks(range(len(names)), names, fontsize="x-small")
    axes.set(xlabel="time of a step (s)")
    axes.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=8, frameon=False)


def _over_gpus(axes: Axes, scaled: Scaled) -> None:
    """Shares of the step over GPUs, and the number of GPUs from which communication dominates."""
    gpus = [count for count, _ in scaled.points]
    times = [time for _, time in scaled.points]
    colours = _colours(times)
    shares = [[100 * time.parts[name] / time.total for time in times] for name in colours]
    if gpus:
        axes.stackplot(gpus, shares, colors=list(colours.values()))
    if scaled.takes_over is not None:
        axes.axvline(scaled.takes_over, color="white", linewidth=1.0, linestyle=":")
        words = f"{scaled.takes_over:,} GPUs: communication takes over"
        axes.text(scaled.takes_over, 50, words, rotation=90, ha="right", va="center", color="white", fontsize="small")
    axes.set(xscale="log", xlim=(gpus[0] if gpus else 1, MOST_SCALED), ylim=(0, 100))
    axes.set(xlabel=f"GPUs, {scaled.kind} scaling", ylabel="share of a step (%)")
