"""Drawing primitives of all figures, and the figure of a quantity over size, log–log, with bars, fits and peaks.

Figures are drawn from plain data. No external text (host, plan, error) is drawn: the only words are the units of the
axes. The legend, which is part of the page and escaped there, names the series. matplotlib is loaded to draw.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from busbw.errors import UsageError
from busbw.units import format_rate, format_size, format_time
from busbw_analysis.data.grouped import grouped
from busbw_analysis.report.document import LegendEntry
from busbw_analysis.report.svg import MARKERS, SERIES, inline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

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
) -> Iterator[tuple["Figure", "Axes"]]:
    """A figure of ``width`` by ``height`` points with axes in ``box`` (as shares of it): a bottom line, a grid and no
    frame.
    """
    import matplotlib as mpl  # noqa: PLC0415 - heavy
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context({"font.size": 11, "axes.linewidth": 0.8, "path.simplify": False}):
        figure = Figure(figsize=(width / POINTS_PER_INCH, height / POINTS_PER_INCH))
        figure.patch.set_visible(False)
        axes = figure.add_axes(box)
        axes.patch.set_visible(False)
        dress(axes)
        yield figure, axes


def save(figure: "Figure", path: Path) -> None:
    """Write ``figure`` in the format given by the file's suffix; the same figure gives the same file.

    Raises UsageError for a suffix that is not in ``FORMATS``, or if the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {path}: the name must end in {' or '.join(FORMATS)}")
    import matplotlib as mpl  # noqa: PLC0415 - heavy

    try:
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "plot"}):
            figure.savefig(path, dpi=_DPI, metadata=FORMATS[path.suffix.lower()])
    except OSError as error:
        raise UsageError(f"--plot {path}: cannot write the file: {error.strerror}") from error


def dress(
    axes: "Axes", *, pad: float = 6, muted: str = MUTED, hairline: str = HAIRLINE, linewidth: float = 0.8
) -> None:
    """A bottom line, a grid behind the drawing, and tick labels without tick marks."""
    axes.tick_params(axis="both", length=0, pad=pad, labelcolor=muted)
    axes.grid(visible=True, color=hairline, linewidth=linewidth)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(muted)


def head(axes: "Axes", heading: str, left: float = -0.172) -> None:
    """The heading of a figure, aligned with the tick labels on the left."""
    axes.set_title(heading, loc="left", x=left, fontsize=12, fontweight="bold", color=INK, pad=10)


def dashes_of(slot: int) -> tuple[float, tuple[float, ...]]:
    """The dashes of a line through the points of ``slot``, in matplotlib's format."""
    return DASHES[slot // SLOTS % len(DASHES)]


def write(axes: "Axes", text: str, x: float, y: float, offset: tuple[int, int], side: str = "left") -> None:
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


def name_ticks(axis: "Axis", ticks: Sequence[float], labels: Sequence[str]) -> None:
    """Labels at ``ticks``, and no minor ticks."""
    axis.set_ticks(ticks, labels)
    axis.minorticks_off()


def size_axis(axes: "Axes", sizes: Sequence[float]) -> None:
    """A horizontal axis of sizes in bytes, by powers of two."""
    left, right = widen(min(sizes), max(sizes), 1.6, 4.0)
    axes.set_xscale("log", base=2)
    axes.set_xlim(left, right)
    ticks = binary_ticks(left, right)
    name_ticks(axes.xaxis, ticks, [format_size(round(value)) for value in ticks])


def row_axis(axes: "Axes", labels: Sequence[str]) -> None:
    """One row for each of ``labels``, from top to bottom."""
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks(range(len(labels)), labels, parse_math=False)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.grid(visible=False, axis="y")


def log_height(axes: "Axes", bottom: float, top: float, name: Callable[[float], str]) -> None:
    """A logarithmic vertical axis with round ticks, labelled by ``name``."""
    axes.set_yscale("log")
    axes.set_ylim(bottom, top)
    ticks = decade_ticks(bottom, top)
    name_ticks(axes.yaxis, ticks, list(map(name, ticks)))


def draw_points(
    axes: "Axes",
    slot: int,
    points: Sequence[tuple[float, float]],
    linewidth: float = 0.0,
    gid: str | None = None,
    label: str = "",
) -> None:
    """Points in the colour and marker of ``slot``, joined by a line if it has a width; ``gid`` is their id in the
    drawing, ``label`` their name in a legend of matplotlib.
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
        label=label,
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


Quantity = Literal["time", "rate"]
LineKind = Literal["fit", "model", "peak", "bound", "reference"]

_Dashes: TypeAlias = Literal["-"] | tuple[int, tuple[float, ...]]

LINE_STYLES: Final[dict[LineKind, tuple[_Dashes, float]]] = {
    "fit": ("-", 1.1),
    "model": ((0, (1.2, 1.8)), 1.5),
    "peak": ((0, (7, 2.5, 1.5, 2.5)), 1.3),
    "bound": ((0, (6, 2)), 1.2),
    "reference": ("-", 0.7),
}
"""Kind of a line → its dashes in matplotlib's format, and its width in points."""
_PEAK_DASHES: Final[tuple[_Dashes, ...]] = (
    LINE_STYLES["peak"][0],
    (0, (3, 3)),
    (0, (12, 3)),
    (0, (8, 2, 1.5, 2, 1.5, 2)),
)
"""Dashes of the peaks of one drawing."""
_USUAL: Final = (BOX, WIDTH, HEIGHT)
_WIDE: Final = ((0.13, 0.085, 0.855, 0.83), 720, 340)
"""Box of the axes as shares of the drawing; width and height in points."""
_FAR = 8.0
"""A line that leaves the measured range by more than this factor is cut off, to leave room for the points."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measured size.

    value: ns or B/s.
    low, high: ends of the bar; None for no bar.
    tip: the tooltip.
    """

    size_bytes: int
    value: float
    low: float | None = None
    high: float | None = None
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one series, in the colour and marker of ``slot``.

    joined: by a line, for lack of a fit.
    label, link: its entry in the legend, and the anchor of the section that it stands for.
    """

    slot: int
    points: tuple[Point, ...]
    joined: bool = False
    label: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A curve that was not measured.

    vertices: (size in bytes, ns or B/s).
    slot: colour; None draws it in ink.
    note: text written beside a peak, if it is the only one of the drawing.
    label: its entry in the legend.
    number: of a peak among those of the drawing, which have different dashes.
    """

    kind: LineKind
    vertices: tuple[tuple[float, float], ...]
    slot: int | None = None
    note: str = ""
    number: int = 0
    label: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One log–log drawing and its alternative text. A ``wide`` one spans the page and joins its points."""

    quantity: Quantity
    heading: str
    series: tuple[Series, ...]
    lines: tuple[Line, ...]
    breaks: tuple[float, ...] = ()
    wide: bool = False


def legend(*panels: Panel) -> tuple[LegendEntry, ...]:
    """An entry for each label of the series and lines of ``panels``. Lines of several slots share an entry in ink."""
    entries: dict[str, LegendEntry] = {}
    for panel in panels:
        for series in panel.series:
            sample_of = swatch(series.slot, "joined" if series.joined or panel.wide else "points")
            entries.setdefault(series.label, LegendEntry(sample_of, series.label, series_id(series.slot), series.link))
        for label, lines in grouped((line for line in panel.lines if line.label), lambda line: line.label).items():
            slots = {line.slot for line in lines}
            slot = slots.pop() if len(slots) == 1 else None
            entries.setdefault(label, LegendEntry(swatch(slot, lines[0].kind, lines[0].number), label))
    return tuple(entries.values())


def drawable(series: Iterable[Series], sizes: int = 2) -> bool:
    """Whether a drawing is worthwhile: at least so many ``sizes`` above 0."""
    return len({point.size_bytes for curve in series for point in curve.points if point.size_bytes > 0}) >= sizes


def draw(panel: Panel, identity: str, title: str, description: str) -> str:
    """The panel as an inline SVG. ``identity`` is unique on the page; title and description are its alt text."""
    shape = _WIDE if panel.wide else _USUAL
    with canvas(shape[0], width=shape[1], height=shape[2]) as (figure, axes):
        paint(axes, panel)
        tips = {series_id(series.slot): [point.tip for point in _shown(series)] for series in panel.series}
        return inline(figure, identity, title, description, tips)


def paint(axes: "Axes", panel: Panel) -> None:
    """The panel on ``axes``."""
    _set_scales(axes, panel)
    for line in panel.lines:
        _draw_line(axes, line)
    notes = {line.note: line.vertices[0] for line in panel.lines if line.note}
    if len(notes) == 1:  # The legend names several peaks.
        for note, start in notes.items():
            write(axes, note, *start, (2, -11))
    for position, size in enumerate(panel.breaks):
        axes.axvline(size, color=MUTED, linewidth=0.9, linestyle=(0, (2, 3)), zorder=1, gid=f"break-{position}")
    for series in panel.series:
        points = _shown(series)
        draw_bars(axes, series.slot, points, _THIN if panel.wide else _BAR)
        places = [(point.size_bytes, point.value) for point in points]
        draw_points(
            axes, series.slot, places, 1.3 if panel.wide or series.joined else 0.0, series_id(series.slot), series.label
        )


def swatch(slot: int | None, kind: LineKind | Literal["points", "joined"], number: int = 0) -> str:
    """A legend sample of a series or line; ``number`` as in ``Line``."""
    colour = "var(--ink)" if slot is None else f"var(--series-{slot % SLOTS})"
    if kind == "points" or kind == "joined":  # noqa: PLR1714 - mypy follows this
        slot = slot or 0
        fill = f'fill="none" stroke="{colour}" stroke-width="1.6"' if slot else f'fill="{colour}"'
        dashes = " ".join(map(str, dashes_of(slot)[1]))
        line = f'<path d="M1 7H27" stroke="{colour}" stroke-width="1.3" stroke-dasharray="{dashes}"/>'
        shape = (line if kind == "joined" else "") + _SHAPES[marker_of(slot)].format(paint=fill)
    else:
        style, width = _style(kind, number)
        broken = "" if style == "-" else f' stroke-dasharray="{" ".join(map(str, style[1]))}"'
        shape = f'<path d="M1 7H27" fill="none" stroke="{colour}" stroke-width="{width}"{broken}/>'
    return sample(shape)


_SHAPES: Final = {
    "o": '<circle cx="14" cy="7" r="4.2" {paint}/>',
    "s": '<path d="M10 3h8v8h-8z" {paint}/>',
    "^": '<path d="M14 2l5 9h-10z" {paint}/>',
    "D": '<path d="M14 1.5l5.5 5.5-5.5 5.5-5.5-5.5z" {paint}/>',
    "v": '<path d="M14 12l5-9h-10z" {paint}/>',
    "P": '<path d="M12 2h4v3h3v4h-3v3h-4v-3h-3v-4h3z" {paint}/>',
}


def _set_scales(axes: "Axes", panel: Panel) -> None:
    """Scales, limits, ticks and the heading."""
    points = [point for series in panel.series for point in series.points]
    sizes = [point.size_bytes for point in points]
    values = [value for point in points for value in (point.low, point.value, point.high) if value]
    bottom, top = min(values), max(values)
    for line in panel.lines:
        reach = [y for _, y in line.vertices if y > 0]
        if line.kind == "peak":
            bottom, top = min(bottom, *reach), max(top, *reach)
        else:
            inside = [y for y in reach if bottom / _FAR <= y <= top * _FAR]
            bottom, top = min([bottom, *inside]), max([top, *inside])
    bottom, top = widen(bottom, top, 1.25, 6.0)
    log_height(axes, bottom, top, format_time if panel.quantity == "time" else format_rate)
    size_axis(axes, sizes)
    head(axes, panel.heading, -0.152 if panel.wide else -0.172)


_BAR: Final = (1.4, 0.6)
_THIN: Final = (1.1, 0.45)
"""Width in points and opacity of bars, and of those of a drawing with many series."""


def draw_bars(axes: "Axes", slot: int, points: Iterable[Point], style: tuple[float, float]) -> None:
    """The interval or range of each point that has one."""
    barred = [(point.size_bytes, point.low, point.high) for point in points if point.low and point.high]
    if barred:
        sizes, lows, highs = zip(*barred, strict=True)
        width, alpha = style
        bars = axes.vlines(sizes, lows, highs, color=SERIES[slot % SLOTS], linewidth=width, alpha=alpha, zorder=3)
        bars.set_gid(f"bars {series_id(slot)}")


def series_id(slot: int) -> str:
    """The class of a series in its drawing."""
    return f"series-{slot}"


def _shown(series: Series) -> list[Point]:
    return [point for point in series.points if point.size_bytes > 0 and point.value > 0]


def _style(kind: LineKind, number: int) -> tuple[_Dashes, float]:
    style, width = LINE_STYLES[kind]
    return (_PEAK_DASHES[number % len(_PEAK_DASHES)] if kind == "peak" else style), width


def _draw_line(axes: "Axes", line: Line) -> None:
    style, width = _style(line.kind, line.number)
    colour = INK if line.slot is None else SERIES[line.slot % SLOTS]
    sizes, values = zip(*((x, y) for x, y in line.vertices if x > 0 and y > 0), strict=True)
    axes.plot(sizes, values, color=colour, linewidth=width, linestyle=style, zorder=2, label=line.kind)
