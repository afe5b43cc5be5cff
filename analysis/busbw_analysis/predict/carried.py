"""The time of a call on other ranks, carried from the fit of the nearest measured curve.

The time of a segment is α + β S. On other ranks, α changes as the rounds of the algorithm and β as its bytes. The
bytes are those that the busiest rank sends, or on one host with a known rate R of all ranks, those that limit the time.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from busbw_analysis.data.series import Series
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.fitting.score import VALID_RANKS, validation
from busbw_analysis.models.costs import CostModel, Parameters
from busbw_analysis.predict.forecast import FittedCurve, Value
from busbw_analysis.predict.held_out import HeldOut, Shape, ValidationRange, on_a_host

LEAST_RANKS: Final = 3
"""Fewest ranks of a curve that is carried: between 2 ranks, most algorithms are the same single exchange."""

Algorithm = Callable[[int, int, int], CostModel | Unavailable]
"""Ranks, hosts and bytes of a call → its algorithm."""


@dataclass(frozen=True, slots=True)
class Carry:
    """A fitted curve with the factors of α (``rounds``) and β (``moved``) that carry it to other ranks."""

    source: FittedCurve
    cost: CostModel
    rounds: float
    moved: float

    def seconds(self, size_bytes: int) -> Value:
        """The time at a size, with the interval of the curve."""
        return self.source.seconds(size_bytes, self.rounds, self.moved)

    @property
    def words(self) -> str:
        """``the curve of 6 ranks, carried by ring: rounds × 1.4, bytes × 1.05``."""
        ranks, hosts = self.source.series.shape
        where = f" on {hosts} hosts" if hosts > 1 else ""
        moved = f", bytes × {self.moved:.3g}" if self.source.fit is not None else ""
        return f"the curve of {ranks} ranks{where}, carried by {self.cost.algorithm}: rounds × {self.rounds:.3g}{moved}"


@dataclass(frozen=True, slots=True)
class Carrier:
    """Carries the fits of ``curves``, all on one host or all on several, to other numbers of ranks.

    ``algorithm``: the one behind each call.
    ``parameters``: those of messages on one host, with the rate R that its ranks share; None if unknown.
    """

    curves: tuple[FittedCurve, ...]
    algorithm: Algorithm
    parameters: Parameters | None

    def carry(self, shape: Shape, size_bytes: int) -> Carry | Unavailable:
        """The nearest curve that ran the same algorithm at this size, and its factors for ``shape``.

        Without one: ``nothing-to-carry``; or ``no-slope`` beyond the largest size of every such curve if its time does
        not grow; or the reason why the algorithm is unknown.
        """
        cost = self.algorithm(*shape, size_bytes)
        if isinstance(cost, Unavailable):
            return cost
        why: Unavailable | None = None
        for curve in sorted(self.curves, key=lambda curve: _distance(curve.series.shape, shape)):
            there = curve.series.shape
            ran = self.algorithm(*there, size_bytes)
            if isinstance(ran, Unavailable) or ran.algorithm != cost.algorithm:
                continue
            if cost.two_levels and there[0] * shape[1] != shape[0] * there[1]:
                continue
            flat = curve.no_slope(size_bytes)
            if flat is not None:
                why = why or flat
                continue
            # α is the time at the segment's start: rounds that become more with size are in its slope.
            start = min(size_bytes, curve.segment(size_bytes).first_bytes)
            rounds = cost.rounds(*shape, start) / ran.rounds(*there, start)
            return Carry(curve, cost, rounds, self._moving(cost, shape, size_bytes, ran, there))
        least = f"fitted curve of {LEAST_RANKS} or more ranks by the same algorithm"
        if cost.two_levels:
            least += f" and {on_a_host(shape)} ranks on a host"
        return why or Unavailable("nothing-to-carry", f"there is no {least}")

    def _moving(self, cost: CostModel, shape: Shape, size_bytes: int, ran: CostModel, there: Shape) -> float:
        """The factor of the time per byte from ``there`` to ``shape``."""

        def moving(model: CostModel, where: Shape) -> float:
            if self.parameters is None or not size_bytes:
                return model.sent(*where, size_bytes)
            alone = model.rounds(*where, size_bytes) * self.parameters.alpha_seconds
            return self.parameters.seconds(model, *where, size_bytes) - alone

        before = moving(ran, there)
        return moving(cost, shape) / before if before else 1.0

    def held_out(self) -> HeldOut:
        """The error on the largest number of ranks, carried from the curves of fewer ranks."""
        largest = max((curve.series.shape[0] for curve in self.curves), default=0)
        tested = [curve for curve in self.curves if curve.series.shape[0] == largest]
        rest = tuple(curve for curve in self.curves if curve.series.shape[0] < largest)
        without = Carrier(rest, self.algorithm, self.parameters)
        errors = [
            (point.size_bytes, abs(carry.seconds(point.size_bytes).value / (point.time_ns / 1e9) - 1))
            for curve in tested
            for point in curve.series.points
            if isinstance(carry := without.carry(curve.series.shape, point.size_bytes), Carry)
        ]
        if not errors:
            why = f"a test needs curves of two numbers of ranks, from {LEAST_RANKS} on, by the same algorithm"
            return HeldOut(validation(why, None, VALID_RANKS))
        how = f"times on {largest} ranks ({len(errors)}), carried from fewer ranks,"
        seen, shapes = ([curve.series.shape for curve in part] for part in (rest, tested))
        result = validation(how, [error for _, error in errors], VALID_RANKS)
        return HeldOut(result, ValidationRange.of(shapes, seen, errors))


def can_be_carried(curves: Sequence[Series]) -> tuple[Series, ...]:
    """The ``curves`` of enough ranks."""
    return tuple(curve for curve in curves if curve.shape[0] >= LEAST_RANKS)


def _distance(shape: Shape, other: Shape) -> float:
    return sum(abs(math.log(amount / other_amount)) for amount, other_amount in zip(shape, other, strict=True))
