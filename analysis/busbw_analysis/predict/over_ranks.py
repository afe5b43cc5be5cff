"""The time of one call over the number of ranks, by every algorithm."""

from collections.abc import Sequence
from dataclasses import dataclass

from busbw.errors import AnalysisError, UsageError
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.costs import CostModel
from busbw_analysis.predict.carried import Carry
from busbw_analysis.predict.forecast import FittedCurve, Value
from busbw_analysis.predict.held_out import Shape, on_a_host
from busbw_analysis.predict.query import PredictionQuery
from busbw_analysis.predict.ways import Ways


@dataclass(frozen=True, slots=True)
class Line:
    """The time of one algorithm over the number of ranks.

    ``points``: (ranks, time).
    ``chosen``: whether predictions use it; it is then carried if possible, while others are by messages.
    ``at_once``: the most concurrent messages of a rank in a round, over all points.
    """

    algorithm: str
    chosen: bool
    points: tuple[tuple[int, Value], ...]
    at_once: float = 1.0


@dataclass(frozen=True, slots=True)
class Scaling:
    """The time of one call of ``size_bytes`` over the number of ranks.

    ``lines``: one per algorithm, the fastest at the requested number of ranks first.
    ``measured``: measured points of this size, by ranks.
    ``fitted``: times of this size from the fits of curves that did not measure it, by ranks.
    """

    query: PredictionQuery
    size_bytes: int
    lines: tuple[Line, ...]
    measured: tuple[tuple[int, GroupSummary], ...]
    fitted: tuple[tuple[int, Value], ...]


def scaling(ways: Ways, asked: PredictionQuery) -> Scaling:
    """One size over 2 to 65,536 ranks, for every algorithm with known parameters.

    Each host has as many ranks as in the question. Raises UsageError for several sizes, AnalysisError if there is no
    algorithm.
    """
    if len(asked.sizes_bytes) != 1:
        raise UsageError("--plot needs exactly one size, such as --size 1MiB", code="several-sizes")
    (size,), far = asked.sizes_bytes, asked.hosts > 1
    each = on_a_host((asked.ranks, asked.hosts))
    curves = [curve for curve in ways.data.curves if (curve.key.hosts > 1) == far]
    counts = sorted({*(2**power for power in range(1, 17)), asked.ranks, *(len(curve.key.ranks) for curve in curves)})
    shapes = [(count, -(-count // each) if far else 1) for count in counts]
    costs, unknown = ways.candidates(asked.ranks, asked.hosts)
    lines = [
        line
        for place, cost in enumerate(costs)
        if len((line := _along(ways, cost, shapes, size, chosen=place == 0 and unknown is None)).points) > 1
    ]
    if not lines:
        why = unknown or ways.forecast(asked, size)
        reason = why.reason if isinstance(why, Unavailable) else "no algorithm is known on several numbers of ranks"
        raise AnalysisError(f"no model of {asked.op} can be plotted over ranks: {reason}", code="nothing-to-draw")
    measured, fitted = [], []
    for curve in curves:
        ranks = len(curve.key.ranks)
        if (at := curve.at(size)) is not None:
            measured.append((ranks, at))
        elif isinstance(fit := ways.fitted(curve), FittedCurve) and fit.no_slope(size) is None:
            fitted.append((ranks, fit.seconds(size)))

    def taken(line: Line) -> tuple[bool, float]:
        nearest = min(line.points, key=lambda point: abs(point[0] - asked.ranks))
        return not line.chosen, nearest[1].value

    return Scaling(asked, size, tuple(sorted(lines, key=taken)), tuple(measured), tuple(fitted))


def _along(ways: Ways, cost: CostModel, shapes: Sequence[Shape], size_bytes: int, *, chosen: bool) -> Line:
    """The times of ``cost`` for every shape that it exists for; if ``chosen``, all carried or all by messages."""
    carried = {shape: ways.carry(shape, size_bytes) for shape in shapes} if chosen else {}
    values = {shape: carry.seconds(size_bytes) for shape, carry in carried.items() if isinstance(carry, Carry)}
    possible = [shape for shape in shapes if cost.possible(*shape, size_bytes)]
    if not values:
        by_messages = {shape: ways.by_messages(cost, shape, size_bytes) for shape in possible}
        values = {shape: value for shape, value in by_messages.items() if isinstance(value, Value)}
    at_once = max((cost.at_once(*shape, size_bytes) for shape in values), default=1.0)
    return Line(cost.algorithm, chosen, tuple((ranks, value) for (ranks, _), value in values.items()), at_once)
