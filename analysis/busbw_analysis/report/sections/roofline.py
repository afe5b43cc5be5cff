"""The part of a report about rooflines: what waits for memory, for arithmetic, for the wire."""

from collections.abc import Iterator
from typing import Final

from busbw.ops import LEAST_TRAFFIC
from busbw.runs.records import DTYPE_BYTES, settings_in_words
from busbw.units import format_flop, format_rate, format_size
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.diagnosis.network_roofline import NetworkRoofline
from busbw_analysis.diagnosis.roofline import Balance, Kernel, Roofline, best_arithmetic
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
from busbw_analysis.report.plots.curves import swatch
from busbw_analysis.report.plots.roofline import draw

_SLOTS = {"matmul": 0, "attention": 1, "attention_unfused": 2, "stream_triad": 3, "stream_add": 4, "stream_scale": 5}
_HOW: Final = (
    "A kernel that does I FLOP for each byte that it must read or write can reach min(π, β · I): π is what the "
    "processor computes, β what its memory moves (Williams, Waterman, Patterson 2009). Left of the ridge, where the "
    "two meet, memory decides, right of it arithmetic. I counts every operand and result once: a kernel whose caches "
    "keep less than that stays below its roof, one whose data are in a cache already may be above the memory's."
)
_COUNTED: Final = (
    "FLOP are counted as usual: 2 n³ for a matmul of n × n matrices, 4 h T² d for attention of h heads of d elements "
    "over T tokens (its two products), 1 for each element of scale and add, 2 of triad. A copy computes nothing and "
    "has no place here. The best matmul is the measured roof of its data type, so it is at 100 % by definition."
)
_NETWORK: Final = (
    "A step takes at least as long as the longer of its arithmetic, FLOP / π, and its messages, bytes / W. So a layer "
    "must do at least π / W FLOP for each byte that a rank sends to be bound by arithmetic here and not by the network."
)

_PAST_CACHES: Final = "memory_copy"
_LOOPS: Final = (
    "The memory peak is that of the library's copy, which may bypass the caches; a plain loop can then reach only two "
    "thirds (scale) or three quarters (add, triad) of it."
)


def rooflines(judgement: Judgement) -> Section | None:
    """Roofs, balance and kernels of every host and GPU, and of the network; None where nothing was computed."""
    if not judgement.rooflines:
        return None
    blocks: list[Block] = [Paragraph(_HOW), Paragraph(_COUNTED)]
    parts = [
        Section(f"roofline-{number}", f"Roofline of {roofline.holder}", tuple(_blocks(roofline, number)))
        for number, roofline in enumerate(judgement.rooflines)
    ]
    if len(parts) == 1:
        blocks += parts.pop().blocks
    if judgement.networks:
        of_wire = table("FLOP for each byte on the wire", _NETWORK_COLUMNS, judgement.networks, _TOKENS, row_headers=2)
        parts.append(Section("roofline-network", "Roofline of the network", (Paragraph(_NETWORK), of_wire)))
    elif len(judgement.dataset.hosts) < 2:
        blocks.append(Paragraph("A single rank sends nothing, so there is no roofline of the network.", tone="quiet"))
    gist = "; ".join(best_arithmetic(judgement.rooflines))
    return Section("roofline", "Roofline", tuple(blocks), tuple(parts), gist=gist)


def _blocks(roofline: Roofline, number: int) -> Iterator[Block]:
    yield _figure(roofline, number)
    yield from (Paragraph(f"Not known: {reason}.", "caution") for reason in roofline.unknown)
    outer = next((roof for roof in reversed(roofline.memory) if roof.measured), None)
    copied = roofline.device == "cpu" and outer is not None and outer.what.startswith(_PAST_CACHES)
    yield table("Peaks", _PEAK_COLUMNS, _peaks(roofline), _LOOPS if copied else "")
    yield table("Balance of the machine", _BALANCE_COLUMNS, roofline.balances, _BALANCE, row_headers=2)


def _figure(roofline: Roofline, number: int) -> Figure:
    dtypes = list(dict.fromkeys(kernel.dtype for kernel in roofline.kernels))
    pictures = tuple(
        draw(
            roofline,
            dtype,
            _SLOTS,
            f"roofline-{number}-{dtype}",
            f"Roofline of {roofline.holder} in {dtype}",
            _description(roofline, dtype),
        )
        for dtype in dtypes
    )
    ops = [op for op in _SLOTS if any(kernel.op == op for kernel in roofline.kernels)]
    legend = [LegendEntry(swatch(_SLOTS[op], "points"), op) for op in ops]
    legend.append(LegendEntry(swatch(None, "fit"), "measured roof"))
    if not all(roof.measured for roof in roofline.memory) or not all(roof.measured for roof in roofline.compute):
        legend.append(LegendEntry(swatch(None, "peak"), "nominal roof"))
    caption = f"FLOP/s over FLOP/byte on {roofline.holder}"
    if sum(roof.measured for roof in roofline.memory) > 1:
        caption += "; thin lines are caches that a sweep of a kernel in memory showed"
    return Figure(caption, pictures, tuple(legend), _kernels(roofline))


def _description(roofline: Roofline, dtype: str) -> str:
    shown = [kernel for kernel in roofline.kernels if kernel.dtype == dtype]
    best = max(shown, key=lambda kernel: kernel.flop_per_second)
    return (
        f"{len(shown)} kernels in {dtype}, log–log. The fastest is {best.op} of {format_size(best.size_bytes)} with "
        f"{format_flop(best.flop_per_second)} at {three_digits(best.intensity)} FLOP/byte."
    )


def _kernels(roofline: Roofline) -> Table:
    order, modes = list(_SLOTS), {kernel.mode for kernel in roofline.kernels}
    kernels = sorted(roofline.kernels, key=lambda kernel: (order.index(kernel.op), kernel.dtype, kernel.size_bytes))

    def setting(one: Kernel) -> str:
        return " · ".join([one.op, *settings_in_words(one), *([one.mode] if len(modes) > 1 else [])])

    columns: tuple[Column[Kernel], ...] = (
        Column("Kernel", setting),
        Column("Type", lambda one: one.dtype),
        Column("Size", lambda one: one.size_bytes, format_size),
        Column("FLOP/byte", lambda one: one.intensity, three_digits),
        Column("Reached", lambda one: one.flop_per_second, format_flop, ends=lambda one: (one.low, one.high)),
        Column("Attainable", lambda one: one.attainable, format_flop),
        Column("Share", lambda one: one.share and Cell(percent(one.share), bar=min(one.share, 1.0)), percent, "%"),
        Column("Lower roof", lambda one: one.bound or None),
        Column("Of nominal", lambda one: one.nominal_share, percent, "%"),
    )
    timed = f" All were timed in mode {modes.pop()}." if len(modes) == 1 else ""
    note = (
        "Reached: all ranks of a host together, or one GPU. Low and high: the ends of the interval or range of the "
        "launches. Attainable: under the measured roofs, of the kernel's data type and of the memory behind all "
        "caches; share is of that. Nominal: under the roofs of the datasheets, where both are known. Kernels that "
        "stream are shown at their largest size."
    )
    return table("Kernels below the roofline", columns, kernels, note + timed, row_headers=2, without_empty=True)


_PEAK_COLUMNS: Final[tuple[Column[tuple[str, str, bool, str]], ...]] = (
    Column("Peak", lambda one: one[0]),
    Column("Rate", lambda one: one[1], str),
    Column("How it is known", lambda one: "measured in this run" if one[2] else "nominal"),
    Column("By what", lambda one: one[3]),
)


def _peaks(roofline: Roofline) -> Iterator[tuple[str, str, bool, str]]:
    for slope in roofline.memory:
        yield slope.name, format_rate(slope.bytes_per_second), slope.measured, slope.what
    for roof in roofline.compute:
        yield f"{roof.dtype} arithmetic", format_flop(roof.flop_per_second), roof.measured, roof.what


_BALANCE_COLUMNS: Final[tuple[Column[Balance], ...]] = (
    Column("Memory", lambda one: one.memory),
    Column("Arithmetic", lambda one: one.dtype),
    Column("How it is known", lambda one: "measured" if one.measured else "nominal"),
    Column("Balance", lambda one: one.flop_per_byte, three_digits, "FLOP/byte"),
    Column("matmul above it from n =", lambda one: _side(one.flop_per_byte, one.dtype), "{:.0f}".format),
)


_BALANCE: Final = (
    "Balance is π / β, the ridge of the roofline. The last column is the side of square matrices whose product is "
    "bound by arithmetic, were each read or written once: FLOP/byte of a matmul is n / (1.5 × bytes of one "
    "element)."
)


def _side(balance: float, dtype: str) -> float:
    """The n at which 2 n³ / (3 n² · bytes of an element) is ``balance``."""
    return balance * LEAST_TRAFFIC["matmul"] / 2 * DTYPE_BYTES[dtype]


_NETWORK_COLUMNS: Final[tuple[Column[NetworkRoofline], ...]] = (
    Column("Of", lambda one: one.holder),
    Column("Type", lambda one: one.dtype),
    Column("π of a rank", lambda one: one.flop_per_second, format_flop),
    Column("W of a rank", lambda one: one.bytes_per_second, format_rate),
    Column("At least", lambda one: one.flop_per_byte, three_digits, "FLOP/B"),
    Column("Tokens of a rank", lambda one: one.tokens, three_digits),
    Column("π and W are of", lambda one: f"{one.compute}; {one.network}"),
)


_TOKENS: Final = (
    "At least: π / W (Austin et al. 2025, How to Scale Your Model, rooflines). Tokens: so many a rank must have in "
    "a step of data-parallel training for the all_reduce of a dense layer's gradients, 2(n−1)/n × bytes of an "
    "element for each parameter, to take no longer than its backward pass, 4 FLOP for each parameter and token "
    "(Kaplan et al. 2020)."
)
