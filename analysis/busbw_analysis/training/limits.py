"""How large training can be: where data movement costs utilisation, and where latency ends it.

A reconstruction of Erdil and Schneider-Joseph 2024, "Data movement limits to frontier model training"
(https://arxiv.org/abs/2411.01137), from its abstract, the predecessor of its simulator
(https://github.com/davidsj/ml_par_sim) and the constants quoted by Sevilla et al. 2024
(https://epoch.ai/blog/can-ai-scaling-continue-through-2030, appendix E and notes 91 to 102). Its results agree within a
factor of 2, which does not prove that the paper computes them this way.

Of the example that ml_par_sim prints, a step takes 0.07 % longer there: calls of the bubble (1.2 ms) and the reduction
of gradients (5 ms of 9.547 s) are added, and here overlap with products. It also has experts, interleaved stages and
activations in memory traffic, but one network without nodes and without latency. Its optimizer takes 0.8 of the peak,
L = 120 (C/1e25)^(1/6) layers and an inner width of 5.

Models are multi-layer perceptrons, dense and trained with 20 tokens per parameter: C = 6 N D = 120 N² FLOP.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from busbw.errors import UsageError
from busbw_analysis.report.document import Column, Table, table
from busbw_analysis.report.plots import save
from busbw_analysis.training.layout import percent_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Real = npt.NDArray[np.float64]

HEADLINES: Final[dict[str, float]] = {"cliff": 2e28, "cliff with another network": 1e30, "wall": 2e31}
"""FLOP stated by the authors for three months: abstract and
https://epoch.ai/blog/data-movement-bottlenecks-scaling-past-1e28-flop.
"""

CLIFF: Final = 0.8
"""Share of the best utilisation."""
_DAY: Final = 86400.0
_LOWEST, _HIGHEST, _STEP = 25.0, 36.0, 0.5
"""Searched decades of FLOP."""
_MOST_DOUBLINGS: Final = 8
"""At most 2^8 times the GPUs that would suffice at peak are tried."""
_LEAST: Final = 1e-20
"""Lower limit of a constant; the upper limit is 1e30, except for ``_MOST``. A node of 1024 GPUs has 66 ways to place
groups.
"""
_MOST: Final = {"per_host": 1024, "batch_power": 4.0, "layers_power": 4.0}


@dataclass(frozen=True, slots=True)
class Constants:
    """All inputs of the limits; rates are of one GPU in one direction.

    flop_per_second, memory: of an H100 in 8 bits, 2e15 as rounded by the paper, and 3.35e12 B/s.
    element_bytes: 1.
    inner, outer, per_host: rate within a node of ``per_host`` GPUs (450e9 B/s), and between nodes (50e9 B/s).
    passes: times that a byte of an all_reduce crosses a link: 2 with a ring, 1 if switches reduce.
    kernel_seconds: start of a product (4.5 µs, A100).
    reduce_seconds: latency of an all_reduce (6.8 + 2·2·0.6 = 9.2 µs, NCCL's low-latency tree).
    hop_seconds: added twice for each doubling of nodes (0: none, as in the wall).
    days: duration of training.
    batch_tokens, batch_power: B = 4e6 (C/1e25)^(1/6) tokens in a step.
    layers, layers_power: L = 0.088 N^0.27.
    tokens: per parameter, 20.
    widening: inner width of a layer over its outer width, 4.
    """

    flop_per_second: float = 2e15
    memory: float = 3.35e12
    element_bytes: float = 1.0
    inner: float = 450e9
    outer: float = 50e9
    per_host: int = 8
    passes: float = 2.0
    kernel_seconds: float = 4.5e-6
    reduce_seconds: float = 9.2e-6
    hop_seconds: float = 0.0
    days: float = 90.0
    batch_tokens: float = 4e6
    batch_power: float = 1 / 6
    layers: float = 0.088
    layers_power: float = 0.27
    tokens: float = 20.0
    widening: float = 4.0

    def __post_init__(self) -> None:
        may_be_zero = {"kernel_seconds", "reduce_seconds", "hop_seconds", "batch_power", "layers_power"}
        for name in self.__slots__:
            value = getattr(self, name)
            least, most = 0.0 if name in may_be_zero else _LEAST, _MOST.get(name, 1e30)
            if not least <= value <= most:
                raise UsageError(f"{name} {value!s:.30}: expected a number from {least:g} to {most:g}", code="limits")

    @property
    def layer_seconds(self) -> float:
        """Latency of a layer: two products forward and two backward, each with its all_reduce (4 · 13.7 µs)."""
        return 4 * (self.kernel_seconds + self.reduce_seconds)

    @property
    def least_tokens(self) -> float:
        """Tokens of a rank's micro-batch below which reading weights takes longer than products: H w/(2 W).

        333 tokens with 2e15 and 3e12; the paper's section on memory by Sevilla et al., note 94.
        """
        return self.flop_per_second * self.element_bytes / (2 * self.memory)

    def shape(self, flop: float) -> tuple[float, float, float, float]:
        """Parameters N, tokens D, tokens of a step B and layers L of a training of ``flop``."""
        parameters = (flop / (6 * self.tokens)) ** 0.5
        batch = self.batch_tokens * (flop / 1e25) ** self.batch_power
        return parameters, self.tokens * parameters, batch, self.layers * parameters**self.layers_power


def wall(constants: Constants) -> float:
    """FLOP above which latency alone exceeds the available time: T = t_L L D/B, solved for N, with C = 120 N²."""
    c = constants
    per_flop = 6 * c.tokens
    steps = c.tokens / (c.batch_tokens * (per_flop / 1e25) ** c.batch_power)  # D/B over N^(1 − 2 power)
    power = 1 - 2 * c.batch_power + c.layers_power
    if power <= 0 or c.layer_seconds == 0:
        return float("inf")
    parameters = (c.days * _DAY / (c.layer_seconds * c.layers * steps)) ** (1 / power)
    return float(per_flop * parameters**2)


@dataclass(frozen=True, slots=True)
class Utilisation:
    """The best way to train ``flop`` in time: its share of peak, and its layout. All 0 if there is none."""

    flop: float
    share: float
    gpus: float = 0.0
    pp: float = 0.0
    tp: float = 0.0
    dp: float = 0.0
    micro_batches: float = 0.0


def step_seconds(shape: Sequence[float], layouts: Sequence[Real], constants: Constants) -> Real:
    """Seconds of a step in each of ``layouts``, columns as of ``_grid``, with the best placement of groups in nodes.

    shape: parameters, layers, and tokens of a step.

    A step takes (m L/p + p − 1) · max(products, memory, network) + L t_L. For a layer and a micro-batch of q tokens, a
    rank with N' parameters computes 6 N' q FLOP and moves 4 N' elements of memory (weights read twice, gradients read
    and written). It takes part in all_reduces of (f d/t_h) q over t_r and (d/t_r) q over t_h, forward and again
    backward, and of N' over dp once a step. A group within a node has the inner rate; one that leaves it, the outer
    rate.
    """
    c, (parameters, layers, batch) = constants, shape
    gpus, pp, outer_degree, inner_degree, dp, m = layouts
    wide = (parameters / (2 * c.widening * layers)) ** 0.5
    q, own, tp = batch / (dp * m), parameters / (layers * outer_degree * inner_degree), outer_degree * inner_degree
    doublings = np.log2(np.maximum(1.0, tp / c.per_host))
    rounds = 4 * (c.kernel_seconds + (tp > 1) * (c.reduce_seconds + 2 * c.hop_seconds * doublings))
    busy = np.maximum(6 * own * q / c.flop_per_second, 4 * own * c.element_bytes / c.memory)
    words = (
        (c.widening * wide / inner_degree * q, outer_degree, 2.0),
        (wide / outer_degree * q, inner_degree, 2.0),
        (own, dp, 1 / m),
    )
    sent = [
        (c.passes * (degree - 1) / degree * count * times * c.element_bytes, degree) for count, degree, times in words
    ]
    every = sum((bytes_ for bytes_, _ in sent), np.zeros(len(gpus)))
    network = np.full(len(gpus), np.inf)
    for places in _placements(c.per_host, outer_degree, inner_degree, dp):
        between = np.zeros(len(gpus))
        for (bytes_, degree), place in zip(sent, places, strict=True):
            between += np.where(degree > place, bytes_, 0)
        network = np.minimum(network, np.maximum((every - between) / c.inner, between / c.outer))
    seconds: Real = (m * layers / pp + pp - 1) * np.maximum(busy, network) + layers * rounds
    return seconds


@lru_cache(maxsize=1024)
def utilisation(flop: float, constants: Constants) -> Utilisation:
    """The best of all powers of two for pp, both tensor degrees, dp and micro-batches, in which all is done in time."""
    c = constants
    parameters, tokens, batch, layers = c.shape(flop)
    layers = max(1.0, layers)
    fewest = flop / (c.flop_per_second * c.days * _DAY)
    grid = _grid(fewest, batch, layers)
    if not len(grid[0]):
        return Utilisation(flop, 0.0)
    gpus, pp, outer_degree, inner_degree, dp, m = grid
    seconds = step_seconds((parameters, layers, batch), grid, c)
    in_time = seconds * tokens / batch <= c.days * _DAY
    share = np.where(in_time, 6 * parameters * batch / (gpus * c.flop_per_second * seconds), 0.0)
    best = int(share.argmax())
    if share[best] == 0:
        return Utilisation(flop, 0.0)
    chosen = (float(column[best]) for column in (share, gpus, pp, outer_degree * inner_degree, dp, m))
    return Utilisation(flop, *chosen)


def _grid(fewest: float, batch: float, layers: float) -> tuple[Real, ...]:
    """GPUs, pp, both tensor degrees, dp and micro-batches: all consistent powers of two.

    pp is at most m and L, a micro-batch has at least one token, and inner tensor degrees are 1/2 to 16 times the outer
    ones (the optimum is 4).
    """

    def powers(count: int) -> Real:
        return np.exp2(np.arange(max(1, count), dtype=np.float64))

    lowest = max(0, math.ceil(math.log2(fewest)))
    of_layers, of_batch = (powers(int(np.log2(max(1.0, most))) + 1)[:17] for most in (layers, batch))
    axes = (2.0**lowest * powers(_MOST_DOUBLINGS + 1), of_layers, powers(14), powers(6) / 2, of_batch)
    gpus, pp, outer, ratio, m = np.meshgrid(*axes, indexing="ij", sparse=True)
    inner = outer * ratio
    dp = gpus / (pp * outer * inner)
    keep = ((inner >= 1) & (dp >= 1)) & (dp * m <= batch) & (m >= pp)
    return tuple(np.broadcast_to(values, keep.shape)[keep] for values in (gpus, pp, outer, inner, dp, m))


def _placements(per_host: int, outer: Real, inner: Real, dp: Real) -> Iterator[tuple[Real, Real, Real]]:
    """Ranks of each group on one node: tensor groups in all powers of two, data groups fill the rest."""
    doublings = max(0, int(np.log2(per_host)))
    for first in range(doublings + 1):
        for second in range(doublings + 1 - first):
            outer_ranks, inner_ranks = np.minimum(outer, 2.0**first), np.minimum(inner, 2.0**second)
            yield outer_ranks, inner_ranks, np.maximum(1.0, np.minimum(dp, per_host / (outer_ranks * inner_ranks)))


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for a network or change called ``name``, in FLOP; None: beyond the searched range.

    best: the best utilisation.
    cliff: utilisation falls below 80 % of ``best``.
    infeasible: no layout finishes in time.
    wall: latency alone takes too long.
    """

    name: str
    best: float
    cliff: float | None
    infeasible: float | None
    wall: float


def curve(constants: Constants) -> tuple[Utilisation, ...]:
    """The best utilisation every half decade, from the first that needs at least one GPU until nothing finishes in
    time.
    """
    points: list[Utilisation] = []
    for decade in np.arange(_LOWEST, _HIGHEST + _STEP, _STEP):
        points.append(utilisation(float(10**decade), constants))
        if points[-1].share == 0 and any(point.share for point in points):
            break
    return tuple(points)


def limits(name: str, constants: Constants) -> Limits:
    """All limits; the last crossing is searched between its two points, to 1/16 of their distance."""
    points = curve(constants)
    best = max(point.share for point in points)
    crossings = [_last(points, least, constants) for least in (CLIFF * best, 0.0)]
    return Limits(name, best, crossings[0], crossings[1], wall(constants))


def _last(points: tuple[Utilisation, ...], least: float, constants: Constants) -> float | None:
    """The FLOP above which the share stays at or below ``least``."""
    above = [number for number, point in enumerate(points) if point.share > least]
    if not above or above[-1] == len(points) - 1:
        return None
    low, high = (float(np.log10(points[above[-1] + more].flop)) for more in (0, 1))
    for _ in range(4):
        middle = (low + high) / 2
        if utilisation(10**middle, constants).share > least:
            low = middle
        else:
            high = middle
    return float(10 ** ((low + high) / 2))


_ANOTHER_NETWORK: Final = "the same, infinite memory rate"
"""The change that the authors' cliff with another network is of."""


def variants(constants: Constants) -> dict[str, Constants]:
    """Changes that move the limits: one at a time, and bounds for any network."""
    c = constants
    free = replace(c, inner=1e30, outer=1e30)
    return {
        "as described": c,
        "rate between nodes × 4": replace(c, outer=4 * c.outer),
        "nodes of 64 GPUs": replace(c, per_host=64),
        "switches that reduce": replace(c, passes=1.0),
        "another network: infinite rates": free,
        _ANOTHER_NETWORK: replace(free, memory=1e30),
        "latency / 4": replace(
            c, kernel_seconds=c.kernel_seconds / 4, reduce_seconds=c.reduce_seconds / 4, hop_seconds=c.hop_seconds / 4
        ),
        "layers / 2": replace(c, layers=c.layers / 2),
        "batch × 4": replace(c, batch_tokens=4 * c.batch_tokens),
        "5 µs more for each doubling of nodes": replace(c, hop_seconds=c.hop_seconds + 5e-6),
        f"a year instead of {c.days:g} days": replace(c, days=365.0),
    }


def limits_headline(rows: Sequence[Limits], days: float) -> str:
    """The limits of the first row, and the change that moves the wall most."""
    first = rows[0]
    most = "any searched FLOP" if first.cliff is None else f"{first.cliff:.1e} FLOP"
    over = (
        f"Training of more than {most} in {days:g} days reaches under {CLIFF:.0%} of the utilisation of small "
        "training, whatever the layout (the cliff)"
    )
    if first.wall == float("inf"):
        return f"{over}; without latency there is no wall (reconstructed from a paper's abstract)"
    best = max(rows[1:], key=lambda other: other.wall)
    return (
        f"{over}; more than {first.wall:.1e} FLOP take longer than that by latency alone (the wall). Of the changes "
        f"below, '{best.name}' moves the wall most, {best.wall / first.wall:.3g} times (reconstructed from a paper's "
        "abstract)"
    )


_LIMITS: Final[tuple[Column[Limits], ...]] = (
    Column("what", lambda row: row.name),
    Column("best", lambda row: row.best, percent_of, "%"),
    Column("cliff", lambda row: row.cliff, "{:.2e}".format, "FLOP"),
    Column("never in time", lambda row: row.infeasible, "{:.2e}".format, "FLOP"),
    Column("wall", lambda row: row.wall if row.wall < float("inf") else None, "{:.2e}".format, "FLOP"),
)


def _times_here(here: float | None, stated: float) -> str:
    """`` (here 1.4 times that)``; empty if there is no such limit here."""
    return "" if here is None or not math.isfinite(here) else f" (here {here / stated:.2g} times that)"


def limits_table(rows: Sequence[Limits], notes: Sequence[str]) -> Table:
    """One row per network or change."""
    another = next((row.cliff for row in rows if row.name == _ANOTHER_NETWORK), None)
    here = dict(zip(HEADLINES, (rows[0].cliff, another, rows[0].wall), strict=True))
    stated = ", ".join(f"{name} {value:.0e}{_times_here(here[name], value)}" for name, value in HEADLINES.items())
    return table(
        "",
        _LIMITS,
        rows,
        "best: the highest utilisation that any layout reaches, in small training",
        "cliff: beyond it, the best utilisation is below 80 % of that of small training",
        "never in time: beyond it, no layout finishes in time",
        "wall: beyond it, the layers' latency alone, without hops between nodes, takes too long (closed form)",
        f"a reconstruction of arXiv:2411.01137 without its full text; it states: {stated}",
        *notes,
    )


_DASHES = ("-", "--", ":")
"""Dashes of neighbours differ, so that overlapping lines remain distinguishable."""


def save_limits(path: Path, networks: Mapping[str, Constants], limits: Sequence[Limits]) -> None:
    """Write the figure in the format given by the suffix. Raises UsageError if it cannot be written."""
    import matplotlib as mpl  # noqa: PLC0415 - heavy
    from matplotlib.figure import Figure  # noqa: PLC0415

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
    above.legend(fontsize="small", loc="lower left")
    _draw_limits(below, limits)
    save(figure, path)


def _draw_limits(axes: "Axes", limits: Sequence[Limits]) -> None:
    """The cliff and the wall of each row; those of the first row as lines across all rows."""
    rows = range(len(limits))
    for label, marker, values in (
        ("cliff: 80 % of the best", "o", [limit.cliff for limit in limits]),
        ("never in time", "x", [limit.infeasible for limit in limits]),
        ("wall of latency", "|", [limit.wall for limit in limits]),
    ):
        there = [(value, row) for value, row in zip(values, rows, strict=True) if value and value < float("inf")]
        drawn = axes.plot(*zip(*there, strict=True), marker, label=label, markersize=9) if there else []
        if values[0] in {value for value, _ in there}:
            axes.axvline(values[0], color=drawn[0].get_color(), linewidth=0.6, linestyle=":")
    axes.set_yticks(list(rows), [limit.name for limit in limits])
    axes.invert_yaxis()
    axes.set(xlabel="training compute (FLOP)")
    axes.legend(fontsize="small", loc="lower left")
