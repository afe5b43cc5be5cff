"""The report section on rooflines: limits by memory, arithmetic and network."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from busbw.ops import LEAST_TRAFFIC
from busbw.ops.settings import HostSettings
from busbw.runs.records import DTYPE_BYTES
from busbw.units import about_size, format_flop, format_rate, format_size, format_time, signed_time
from busbw_analysis.node.roofline import (
    Balance,
    ComputePeak,
    Fusion,
    Kernel,
    MemoryPeak,
    NetworkRoofline,
    Roofline,
    best_arithmetic,
    fusions_of,
)
from busbw_analysis.report.document import (
    Block,
    Cell,
    Column,
    Figure,
    LegendEntry,
    Paragraph,
    Section,
    Table,
    percent,
    table,
    three_digits,
)
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
    swatch,
    widen,
    write,
)
from busbw_analysis.report.svg import inline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SLOTS = {"matmul": 0, "attention": 1, "attention_unfused": 2, "stream_triad": 3, "stream_add": 4, "stream_scale": 5}
_HOW: Final = (
    "A kernel with I FLOP for each byte that it must read or write can reach min(π, β · I), where π is the compute "
    "peak and β the memory peak (Williams, Waterman, Patterson 2009). Memory limits kernels left of the ridge, "
    "arithmetic those right of it. I counts every operand and result of an operation once: kernels with cache misses "
    "stay below the roofline, and kernels with data in a cache may exceed it."
)
_COUNTED: Final = (
    "FLOP: 2 n³ for a matmul of n × n matrices, 4 h T² d for attention with h heads of d elements over T tokens (two "
    "products), 1 per element of scale and add, 2 of triad. Copies compute nothing and are left out. The best matmul "
    "is the measured compute peak of its data type, so it is at 100 % by definition."
)
_NETWORK: Final = (
    "A step takes at least the longer of its arithmetic, FLOP / π, and its messages, bytes / W. A layer is bound by "
    "arithmetic and not by the network if it does at least π / W FLOP for each byte that a rank sends."
)

_PAST_CACHES: Final = "memory_copy"
"""The library's copy, which may bypass the caches."""
_LOOPS: Final = (
    "The memory peak is that of the library's copy, which may bypass the caches; a plain loop can then reach only two "
    "thirds (scale) or three quarters (add, triad) of it."
)


def rooflines(
    measured: Sequence[Roofline], networks: Sequence[NetworkRoofline], *, several_ranks: bool
) -> Section | None:
    """Peaks, balance and kernels of every host and GPU, and of the network; None if nothing was computed."""
    if not measured:
        return None
    blocks: list[Block] = [Paragraph(_HOW), Paragraph(_COUNTED)]
    parts = [
        Section(f"roofline-{number}", f"Roofline of {roofline.holder}", tuple(_blocks(roofline, number)))
        for number, roofline in enumerate(measured)
    ]
    if len(parts) == 1:
        blocks += parts.pop().blocks
    if networks:
        of_wire = table("FLOP for each byte on the wire", _NETWORK_COLUMNS, networks, _TOKENS, row_headers=2)
        parts.append(Section("roofline-network", "Roofline of the network", (Paragraph(_NETWORK), of_wire)))
    elif not several_ranks:
        blocks.append(Paragraph("A single rank sends nothing, so there is no network roofline.", tone="quiet"))
    gist = "; ".join(best_arithmetic(measured))
    return Section("roofline", "Roofline", tuple(blocks), tuple(parts), gist=gist)


def _blocks(roofline: Roofline, number: int) -> Iterator[Block]:
    yield _figure(roofline, number)
    yield from (Paragraph(f"Not known: {reason}.", "caution") for reason in roofline.unknown)
    outer = next((peak for peak in reversed(roofline.memory) if peak.measured), None)
    copied = roofline.device == "cpu" and outer is not None and outer.op == _PAST_CACHES
    yield table("Peaks", _PEAK_COLUMNS, _peaks(roofline), _LOOPS if copied else "")
    if fusions := list(fusions_of(roofline)):
        yield table("What fusing attention saves", _FUSION_COLUMNS, fusions, _FUSED, row_headers=2)
    yield table("Balance of the machine", _BALANCE_COLUMNS, roofline.balances, _BALANCE, row_headers=2)


def _figure(roofline: Roofline, number: int) -> Figure:
    caption = f"FLOP/s over FLOP/byte on {roofline.holder}"
    if sum(peak.measured for peak in roofline.memory) > 1:
        caption += "; thin lines are caches found by a sweep of a kernel in memory"
    pictures = tuple(
        partial(
            draw,
            roofline,
            dtype,
            _SLOTS,
            f"roofline-{number}-{dtype}",
            f"Roofline of {roofline.holder} in {dtype}",
            caption,
        )
        for dtype in dict.fromkeys(kernel.dtype for kernel in roofline.kernels)
    )
    ops = [op for op in _SLOTS if any(kernel.op == op for kernel in roofline.kernels)]
    legend = [LegendEntry(swatch(_SLOTS[op], "points"), op) for op in ops]
    legend.append(LegendEntry(swatch(None, "fit"), "measured peak"))
    if not all(peak.measured for peak in roofline.memory) or not all(peak.measured for peak in roofline.compute):
        legend.append(LegendEntry(swatch(None, "peak"), "nominal peak"))
    return Figure(caption, pictures, tuple(legend), _kernels(roofline))


def _kernels(roofline: Roofline) -> Table:
    order, modes = list(_SLOTS), {kernel.mode for kernel in roofline.kernels}
    kernels = sorted(roofline.kernels, key=lambda kernel: (order.index(kernel.op), kernel.dtype, kernel.size_bytes))

    def setting(kernel: Kernel) -> str:
        return " · ".join(
            [
                kernel.op,
                *HostSettings(threads=kernel.threads, numa_node=kernel.numa_node).words.values(),
                *([kernel.mode] if len(modes) > 1 else []),
            ]
        )

    columns: tuple[Column[Kernel], ...] = (
        Column("Kernel", setting),
        Column("Type", lambda row: row.dtype),
        Column("Size", lambda row: row.size_bytes, format_size),
        Column("FLOP/byte", lambda row: row.intensity, three_digits),
        Column("Reached", lambda row: row.flop_per_second, format_flop, ends=lambda row: (row.low, row.high)),
        Column("Attainable", lambda row: row.attainable, format_flop),
        Column("Share", lambda row: row.share and Cell(percent(row.share), bar=min(row.share, 1.0)), percent, "%"),
        Column("Limited by", lambda row: row.bound or None),
        Column("Of nominal", lambda row: row.nominal_share, percent, "%"),
    )
    timed = f" All were timed in mode {modes.pop()}." if len(modes) == 1 else ""
    note = (
        "Reached: all ranks of a host together, or one GPU. Low and high: interval or range of the launches. "
        "Attainable: under the measured peaks of the data type and of main memory; share is of that. Nominal: under "
        "the datasheet peaks, if both are known. Streaming kernels are shown at their largest size."
    )
    return table("Kernels below the roofline", columns, kernels, note + timed, row_headers=2)


_FUSION_COLUMNS: Final[tuple[Column[Fusion], ...]] = (
    Column(
        "Type",
        lambda row: " · ".join([row.dtype, *HostSettings(threads=row.threads, numa_node=row.numa_node).words.values()]),
    ),
    Column("Size", lambda row: row.size_bytes, format_size),
    Column("Tokens", lambda row: row.tokens, str),
    Column("Fused", lambda row: row.fused_bytes, about_size, group="Moved"),
    Column("Unfused", lambda row: row.unfused_bytes, about_size, group="Moved"),
    Column("Fused", lambda row: row.fused_ns, format_time, group="Time"),
    Column("Unfused", lambda row: row.unfused_ns, format_time, group="Time"),
    Column("Saved", lambda row: row.saved_ns, signed_time, group="Time"),
    Column("At the memory peak", lambda row: row.moving_ns, format_time, group="Time"),
    Column("Times as fast", lambda row: row.faster, three_digits, ends=lambda row: (row.low, row.high)),
)
_FUSED: Final = (
    "Both do the same FLOP. Moved: bytes of one rank and call, 4 S, and unfused 6 h T² elements more: the scores are "
    "written, divided by √d, put through the softmax, and read (Dao et al. 2022). At the memory peak: time that these "
    "additional bytes of all ranks would take; caches that hold the scores save it, too."
)

_PEAK_COLUMNS: Final[tuple[Column[tuple[str, str, bool, str]], ...]] = (
    Column("Peak", lambda row: row[0]),
    Column("Rate", lambda row: row[1], str),
    Column("Origin", lambda row: "measured in this run" if row[2] else "nominal"),
    Column("From", lambda row: row[3]),
)


def _peaks(roofline: Roofline) -> Iterator[tuple[str, str, bool, str]]:
    for slope in roofline.memory:
        yield slope.name, format_rate(slope.bytes_per_second), slope.measured, slope.what
    for peak in roofline.compute:
        yield f"{peak.dtype} arithmetic", format_flop(peak.flop_per_second), peak.measured, peak.what


_BALANCE_COLUMNS: Final[tuple[Column[Balance], ...]] = (
    Column("Memory", lambda row: row.memory),
    Column("Arithmetic", lambda row: row.dtype),
    Column("Origin", lambda row: "measured" if row.measured else "nominal"),
    Column("Balance", lambda row: row.flop_per_byte, three_digits, "FLOP/byte"),
    Column("matmul reaches it at n =", lambda row: _side(row.flop_per_byte, row.dtype), "{:.0f}".format),
)


_BALANCE: Final = (
    "Balance is π / β, the ridge of the roofline. Last column: the side n from which a product of square matrices is "
    "bound by arithmetic, if each is read or written once: FLOP/byte of a matmul is n / (1.5 × bytes of an element)."
)


def _side(balance: float, dtype: str) -> float:
    """The n for which 2 n³ / (3 n² · bytes of an element) is ``balance``."""
    return balance * LEAST_TRAFFIC["matmul"](1) / 2 * DTYPE_BYTES[dtype]


_NETWORK_COLUMNS: Final[tuple[Column[NetworkRoofline], ...]] = (
    Column("Of", lambda row: row.holder),
    Column("Type", lambda row: row.dtype),
    Column("π of a rank", lambda row: row.flop_per_second, format_flop),
    Column("W of a rank", lambda row: row.bytes_per_second, format_rate),
    Column("At least", lambda row: row.flop_per_byte, three_digits, "FLOP/B"),
    Column("Tokens per rank", lambda row: row.tokens, three_digits),
    Column("Origin of π and W", lambda row: f"{row.compute}; {row.network}"),
)


_TOKENS: Final = (
    "At least: π / W (Austin et al. 2025, How to Scale Your Model, rooflines). Tokens: tokens per rank and step of "
    "data-parallel training from which the all_reduce of a dense layer's gradients, 2(n−1)/n × bytes of an element per "
    "parameter, takes no longer than its backward pass, 4 FLOP per parameter and token (Kaplan et al. 2020)."
)


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
    axes: "Axes",
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
    axes: "Axes", slope: MemoryPeak, ceilings: Sequence[ComputePeak], left: float, right: float, *, inner: bool
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


def _draw_ceiling(axes: "Axes", ceiling: ComputePeak, slopes: Sequence[MemoryPeak], left: float, right: float) -> None:
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
