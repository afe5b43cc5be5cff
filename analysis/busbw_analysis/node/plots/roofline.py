"""Draw a roofline: FLOP/s over FLOP/byte, both logarithmic; measured peaks are solid, nominal ones dashed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from matplotlib.axes import Axes

from busbw.units import format_flop, format_rate
from busbw_analysis.node.roofline import ComputePeak, Kernel, MemoryPeak, Roofline
from busbw_analysis.report.plots import (
    INK,
    LINE_STYLES,
    MUTED,
    canvas,
    decade_ticks,
    draw_points,
    head,
    log_height,
    name_ticks,
    widen,
    write,
)
from busbw_analysis.report.svg import inline

_LINE_OF: Final = {True: LINE_STYLES["fit"], False: LINE_STYLES["peak"]}


def draw(roofline: Roofline, dtype: str, slots: Mapping[str, int], identity: str, title: str, description: str) -> str:
    """The peaks and kernels of a data type as an inline SVG.

    slots: operation → colour and marker of its kernels. Thin lines are caches. ``identity`` is unique on the page;
    title and description are its alternative text.
    """
    ceilings = [peak for peak in roofline.compute if peak.dtype == dtype]
    kernels = [kernel for kernel in roofline.kernels if kernel.dtype == dtype]
    outermost = {peak.measured: peak for peak in roofline.memory}
    with canvas((0.19, 0.14, 0.79, 0.765)) as (figure, axes):
        left, right = _scale(axes, roofline.memory, ceilings, kernels, outermost.values())
        head(axes, dtype, -0.24)
        for slope in roofline.memory:
            _draw_slope(axes, slope, ceilings, left, right, inner=slope is not outermost[slope.measured])
        for ceiling in ceilings:
            _draw_ceiling(axes, ceiling, roofline.memory, left, right)
        for kernel in kernels:
            draw_points(axes, slots[kernel.op], [(kernel.intensity, kernel.flop_per_second)])
        return inline(figure, identity, title, description)


def _scale(
    axes: Axes,
    slopes: Sequence[MemoryPeak],
    ceilings: Sequence[ComputePeak],
    kernels: Sequence[Kernel],
    outermost: Iterable[MemoryPeak],
) -> tuple[float, float]:
    """Set scales, limits and ticks; return the ends of the horizontal axis."""
    at = [kernel.intensity for kernel in kernels]
    at += [
        ceiling.flop_per_second / slope.bytes_per_second
        for ceiling in ceilings
        for slope in slopes
        if ceiling.measured == slope.measured
    ]
    left, right = widen(min(at), max(at), 2.0, 100.0)
    heights = [kernel.flop_per_second for kernel in kernels]
    heights += [ceiling.flop_per_second for ceiling in ceilings]
    heights += [slope.bytes_per_second * left for slope in outermost]
    bottom, top = widen(min(heights), max(heights), 1.6, 10.0)
    log_height(axes, bottom, top, format_flop)
    axes.set_xscale("log")
    axes.set_xlim(left, right)
    horizontal = decade_ticks(left, right)
    name_ticks(axes.xaxis, horizontal, [f"{value:g}" for value in horizontal])
    axes.set_xlabel("FLOP per byte moved", color=MUTED, fontsize=10)
    return left, right


def _draw_slope(
    axes: Axes, slope: MemoryPeak, ceilings: Sequence[ComputePeak], left: float, right: float, *, inner: bool
) -> None:
    above = [ceiling.flop_per_second for ceiling in ceilings if ceiling.measured == slope.measured]
    end = min(right, max(above) / slope.bytes_per_second) if above else right
    style, width = _LINE_OF[slope.measured]
    if end <= left:
        return
    axes.plot(
        [left, end],
        [slope.bytes_per_second * left, slope.bytes_per_second * end],
        color=MUTED if inner else INK,
        linewidth=0.8 if inner else width,
        linestyle=style,
        zorder=2,
    )
    if slope.measured and not inner:
        # In the middle, below the line: kernels are above the line only if caches help.
        middle = (left * end) ** 0.5
        write(axes, format_rate(slope.bytes_per_second), middle, slope.bytes_per_second * middle, (6, -12))


def _draw_ceiling(axes: Axes, ceiling: ComputePeak, slopes: Sequence[MemoryPeak], left: float, right: float) -> None:
    alike = [slope.bytes_per_second for slope in slopes if slope.measured == ceiling.measured]
    start = max(left, ceiling.flop_per_second / max(alike)) if alike else left
    style, width = _LINE_OF[ceiling.measured]
    axes.plot([start, right], [ceiling.flop_per_second] * 2, color=INK, linewidth=width, linestyle=style, zorder=2)
    words = f"{format_flop(ceiling.flop_per_second)}{'' if ceiling.measured else ' nominal'}"
    if ceiling.measured and start > left:
        # Left of all ridges, where no kernel can be and the nominal peak, maybe close above, is not yet drawn.
        write(axes, words, start, ceiling.flop_per_second, (-6, -4), "right")
    else:
        write(axes, words, right, ceiling.flop_per_second, (-2, 4), "right")
