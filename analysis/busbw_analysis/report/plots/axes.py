"""Canvas, ticks, points and legend samples shared by all figures of a report."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from busbw.errors import UsageError
from busbw.units import format_size
from busbw_analysis.report.plots.svg import MARKERS, SERIES

SLOTS: Final = len(SERIES)
"""Number of distinguishable series in one figure; more series need a second figure."""

WIDTH, HEIGHT, POINTS_PER_INCH = 460, 300, 72
INK, MUTED, HAIRLINE, PAGE = "#010101", "#020202", "#030303", "#040404"
DASHES: Final = ((0, ()), (0, (5, 2)), (0, (1.2, 1.8)), (0, (6, 2, 1, 2)))
"""Dashes of lines through points: when the colours of a figure repeat, the next dashes are used."""
BOX: Final = (0.148, 0.085, 0.838, 0.82)
_MOST_TICKS = 8
FORMATS: Final[dict[str, dict[str, None]]] = {".svg": {"Date": None}, ".png": {}, ".pdf": {"CreationDate": None}}
"""File formats of stand-alone figures → metadata to omit, so that the same figure gives the same file."""
_DPI: Final = 150


@contextmanager
def canvas(
    box: tuple[float, float, float, float] = BOX, *, width: float = WIDTH, height: float = HEIGHT
) -> Iterator[tuple[Figure, Axes]]:
    """A figure of ``width`` by ``height`` points with axes in ``box`` (as shares of it): a bottom line, a grid and no
    frame.
    """
    with mpl.rc_context({"font.size": 11, "axes.linewidth": 0.8, "path.simplify": False}):
        figure = Figure(figsize=(width / POINTS_PER_INCH, height / POINTS_PER_INCH))
        figure.patch.set_visible(False)
        axes = figure.add_axes(box)
        axes.patch.set_visible(False)
        dress(axes)
        yield figure, axes


def save(figure: Figure, path: Path) -> None:
    """Write ``figure`` in the format given by the file's suffix; the same figure gives the same file.

    Raises UsageError for a suffix that is not in ``FORMATS``, or if the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {path}: the name must end in {' or '.join(FORMATS)}")
    try:
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "plot"}):
            figure.savefig(path, dpi=_DPI, metadata=FORMATS[path.suffix.lower()])
    except OSError as error:
        raise UsageError(f"--plot {path}: cannot write the file: {error.strerror}") from error


def dress(axes: Axes, *, pad: float = 6, muted: str = MUTED, hairline: str = HAIRLINE, linewidth: float = 0.8) -> None:
    """A bottom line, a grid behind the drawing, and tick labels without tick marks."""
    axes.tick_params(axis="both", length=0, pad=pad, labelcolor=muted)
    axes.grid(visible=True, color=hairline, linewidth=linewidth)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(muted)


def head(axes: Axes, heading: str, left: float = -0.172) -> None:
    """The heading of a figure, aligned with the tick labels on the left."""
    axes.set_title(heading, loc="left", x=left, fontsize=12, fontweight="bold", color=INK, pad=10)


def dashes_of(slot: int) -> tuple[float, tuple[float, ...]]:
    """The dashes of a line through the points of ``slot``, in matplotlib's format."""
    return DASHES[slot // SLOTS % len(DASHES)]


def write(axes: Axes, text: str, x: float, y: float, offset: tuple[int, int], side: str = "left") -> None:
    """Text beside a point, ``offset`` points away from it."""
    axes.annotate(
        text,
        (x, y),
        xytext=offset,
        textcoords="offset points",
        color=INK,
        fontsize=10,
        ha=side,
        parse_math=False,
        zorder=5,
    )


def name_ticks(axis: Axis, ticks: Sequence[float], labels: Sequence[str]) -> None:
    """Labels at ``ticks``, and no minor ticks."""
    axis.set_ticks(ticks, labels)
    axis.minorticks_off()


def size_axis(axes: Axes, sizes: Sequence[float], margin: float = 1.6) -> None:
    """A horizontal axis of sizes in bytes, by powers of two."""
    left, right = widen(min(sizes), max(sizes), margin, 4.0)
    axes.set_xscale("log", base=2)
    axes.set_xlim(left, right)
    ticks = binary_ticks(left, right)
    name_ticks(axes.xaxis, ticks, [format_size(round(value)) for value in ticks])


def row_axis(axes: Axes, labels: Sequence[str]) -> None:
    """One row for each of ``labels``, from top to bottom."""
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks(range(len(labels)), labels, parse_math=False)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.grid(visible=False, axis="y")


def log_height(axes: Axes, bottom: float, top: float, name: Callable[[float], str]) -> None:
    """A logarithmic vertical axis with round ticks, labelled by ``name``."""
    axes.set_yscale("log")
    axes.set_ylim(bottom, top)
    ticks = decade_ticks(bottom, top)
    name_ticks(axes.yaxis, ticks, list(map(name, ticks)))


def draw_points(
    axes: Axes, slot: int, points: Sequence[tuple[float, float]], linewidth: float = 0.0, gid: str | None = None
) -> None:
    """Points in the colour and marker of ``slot``, joined by a line if it has a width; ``gid`` is their id in the
    drawing.
    """
    colour = SERIES[slot % SLOTS]
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=colour,
        linestyle=dashes_of(slot) if linewidth else "none",
        linewidth=linewidth,
        marker=marker_of(slot),
        markersize=5.6,
        # Only the first is filled, so that all remain visible if curves coincide.
        markerfacecolor=colour if slot == 0 else "none",
        markeredgecolor=PAGE if slot == 0 else colour,
        markeredgewidth=0.8 if slot == 0 else 1.3,
        zorder=4,
        gid=gid,
    )


def marker_of(slot: int) -> str:
    """The marker of a series. After ``SLOTS`` series, colours repeat with other markers and dashes."""
    return MARKERS[(slot + slot // SLOTS * (SLOTS // 2)) % SLOTS]


def sample(shape: str) -> str:
    """A legend sample as a small SVG, hidden from screen readers."""
    return f'<svg class="swatch" viewBox="0 0 28 14" width="28" height="14" aria-hidden="true">{shape}</svg>'


def widen(low: float, high: float, margin: float, least: float) -> tuple[float, float]:
    """Limits with a margin, spanning at least the factor ``least``, so that noise does not fill the picture."""
    low, high = low / margin, high * margin
    if high / low < least:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(least), middle * math.sqrt(least)
    return low, high


def decade_ticks(low: float, high: float) -> list[float]:
    """Round numbers between the limits: 1-2-5 or 1-3 steps if there are few decades."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    candidates = [
        [tick for decade in decades for digit in digits if low <= (tick := digit * 10.0**decade) <= high]
        for digits in ((1, 2, 5), (1, 3), (1,))
    ]
    fitting = (ticks for ticks in candidates if len(ticks) <= _MOST_TICKS)
    decades_only = candidates[-1]
    return next(fitting, decades_only[:: 1 + len(decades_only) // _MOST_TICKS])


def binary_ticks(low: float, high: float) -> list[float]:
    """Powers of two between the limits, few enough that their labels do not touch."""
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    stride = next(step for step in (1, 2, 3, 4, 5, 10, 20) if (last - first) // step <= 6)
    start = next(exponent for exponent in range(first, last + 1) if exponent % stride == 0)
    return [2.0**exponent for exponent in range(start, last + 1, stride)]
