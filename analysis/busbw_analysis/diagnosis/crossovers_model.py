"""What the formulas of two algorithms say of each other: what each should take, and S*, where both cost the same.

With α and β (γ, R) of messages of the same run, or else of a joint fit.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final

import numpy as np
from scipy.optimize import brentq

from busbw.errors import AnalysisError
from busbw.units import format_time
from busbw_analysis.data.series import Point, Series
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.crossovers import Crossing
from busbw_analysis.diagnosis.verdicts import Curve
from busbw_analysis.fitting.identify import A_CALL, written
from busbw_analysis.fitting.joint import Joint, OneRegime, Parameter
from busbw_analysis.models.bounds import gamma_of
from busbw_analysis.models.choices import Library
from busbw_analysis.models.gloo import Parameters
from busbw_analysis.models.select import model_of
from busbw_analysis.models.textbook import crossover_bytes, textbook
from busbw_analysis.predict.selection import LIBRARY, shape_of

Cost = Callable[[float], float]
"""S in bytes → seconds; NaN where no cost is known."""

_BEYOND: Final = 16
"""S* of costs that are no straight lines is looked for up to so many times what was measured, and down to as little."""
_STEPS: Final = 8
"""For each factor of two."""
_ALIKE: Final = 1e-9
"""Costs that differ by less are the same, but for what floating point makes of them."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the formulas of two algorithms say: their crossings S*, and which is the ``faster`` at each size that was
    measured (None: they cost the same; sizes at which no cost of one is known are not in it). ``origin`` says where
    α, β, γ and R are from.
    """

    crossings: tuple[Crossing, ...]
    faster: Mapping[int, str | None]
    origin: str


def sized(series: Series) -> dict[int, Point]:
    """The points of ``series`` by their size, for S* without those of no bytes."""
    return {point.size_bytes: point for point in series.points if point.size_bytes}


@dataclass(frozen=True, slots=True)
class Costs:
    """What every algorithm should take, by name. ``crossover`` is S* in closed form, for two of the textbook."""

    of: Mapping[str, Cost | Unavailable]
    origin: str
    crossover: Callable[[str, str], float | None] | None = None


def expected_of(
    names: tuple[str, str], sizes: Sequence[int], costs: Sequence[Costs | Unavailable]
) -> Expected | Unavailable:
    """By the first of ``costs`` that has both, else what the last one lacks."""
    told = [one if isinstance(one, Unavailable) else _by(one, names, sizes) for one in costs]
    return next((one for one in told if isinstance(one, Expected)), told[-1])


def _by(costs: Costs, names: tuple[str, str], sizes: Sequence[int]) -> Expected | Unavailable:
    one, other = (costs.of[name] for name in names)
    if isinstance(one, Unavailable):
        return one
    if isinstance(other, Unavailable):
        return other
    difference = functools.partial(_difference, one, other)
    at_sizes = {size: value for size in sizes if not math.isnan(value := difference(size))}
    if not at_sizes:
        return Unavailable(
            "no-common-size", f"at no size that was measured a cost of both {names[0]} and {names[1]} is known"
        )
    if costs.crossover is not None and LIBRARY not in names:
        at = costs.crossover(*names)
        places = [] if at is None else [(at, difference(at / 2))]
    else:
        places = list(_places(difference, sizes[0] / _BEYOND, sizes[-1] * _BEYOND))
    return Expected(
        crossings=tuple(Crossing(*(names if before < 0 else names[::-1]), at) for at, before in places),
        faster={
            size: None if abs(value) <= _ALIKE else names[0] if value < 0 else names[1]
            for size, value in at_sizes.items()
        },
        origin=costs.origin,
    )


def _difference(one: Cost, other: Cost, size_bytes: float) -> float:
    """Of the logarithms: below 0 where ``one`` costs less."""
    return math.log(one(size_bytes) / other(size_bytes))


def _places(
    difference: Callable[[float], float], first_bytes: float, last_bytes: float
) -> Iterator[tuple[float, float]]:
    """The sizes at which ``difference`` changes its sign, each with what it is before."""
    grid = np.geomspace(first_bytes, last_bytes, round(_STEPS * math.log2(last_bytes / first_bytes)) + 1)
    differences = [(float(size), difference(float(size))) for size in grid]
    apart = [(size, value) for size, value in differences if math.isnan(value) or abs(value) > _ALIKE]
    for (size, before), (next_size, after) in pairwise(apart):
        if before < 0 < after or after < 0 < before:
            yield float(brentq(difference, size, next_size)), before


def costs_of(
    members: Mapping[str, Curve],
    everything: Sequence[Series],
    library: Library | Unavailable | None,
    joint: Sequence[OneRegime],
) -> Iterator[Costs | Unavailable]:
    """By messages, where the models of these curves have their parameters from there, and then by a joint fit."""
    parameters = next(curve.parameters for curve in members.values())
    if isinstance(parameters, Parameters):
        yield _by_messages(members, everything, library, parameters)
    else:
        yield parameters
    series = {name: curve.series for name, curve in members.items()}
    fitted = (one.joint for one in joint if one.joint is not None)
    yield from islice((_by_joint(series, one) for one in fitted if _has(one, series)), 1)


def _by_messages(
    members: Mapping[str, Curve],
    everything: Sequence[Series],
    library: Library | Unavailable | None,
    parameters: Parameters,
) -> Costs:
    key = next(iter(members.values())).series.key
    ranks = len(key.ranks)
    gamma, words = gamma_of(key, everything)

    def cost(name: str, curve: Curve) -> Cost | Unavailable:
        if isinstance(curve.model, Unavailable):
            return curve.model
        row = textbook(key.op, name)
        if row is not None and row.inner_sent(ranks, key.hosts) > 0:
            return _ONE_LEVEL

        @functools.cache
        def seconds(size_bytes: float) -> float:
            model = model_of(curve.series.key, round(size_bytes), library)
            if isinstance(model, Unavailable):
                return math.nan
            return model.seconds(ranks, size_bytes, parameters) + (gamma or 0.0) * model.added_bytes(ranks, size_bytes)

        return seconds

    def crossover(one: str, other: str) -> float | None:
        rows = [textbook(key.op, name) for name in (one, other)]
        if rows[0] is None or rows[1] is None:
            return None
        return crossover_bytes(
            rows[0],
            rows[1],
            ranks,
            key.hosts,
            parameters.alpha_seconds,
            parameters.beta_seconds_per_byte,
            gamma or 0.0,
            parameters.host_bytes_per_second,
        )

    origin = parameters.origin if gamma is None else f"{parameters.origin}; {words}"
    return Costs({name: cost(name, curve) for name, curve in members.items()}, origin, crossover)


_ONE_LEVEL: Final = Unavailable(
    "one-level",
    "α and β of messages between hosts say nothing of what stays inside a host, for which an algorithm in two levels "
    "needs others: busbw fit finds both from runs on several numbers of hosts and of ranks on each",
)


def _has(joint: Joint, curves: Mapping[str, Series]) -> bool:
    """Whether all of ``curves`` are among the data of ``joint``, with the times that they have here."""
    seen = {(one.op, one.algorithm, one.ranks, one.hosts, one.size_bytes, one.seconds) for one in joint.observations}
    return all(
        (series.key.op, None if name == LIBRARY else name, *shape_of(series), size, point.time_ns / 1e9) in seen
        for name, series in curves.items()
        for size, point in sized(series).items()
    )


def _by_joint(curves: Mapping[str, Series], joint: Joint) -> Costs:
    def cost(name: str, series: Series) -> Cost | Unavailable:
        term = joint.curves[series.key.op, None if name == LIBRARY else name]
        try:
            joint.seconds(term, *shape_of(series), series.points[-1].size_bytes)
        except AnalysisError as error:
            return Unavailable(error.code, str(error))

        def seconds(size_bytes: float) -> float:
            try:
                return joint.seconds(term, *shape_of(series), size_bytes)
            except AnalysisError:
                # The library takes an algorithm there of which no cost is known.
                return math.nan

        return seconds

    return Costs({name: cost(name, series) for name, series in curves.items()}, _origin(joint))


def _origin(joint: Joint) -> str:
    """What of the parameters is known: each by itself, or sums of those that the data do not tell apart."""
    known = [written(name, estimate.value) for name, estimate in joint.parameters.items() if estimate.value > 0]
    sums = [
        f"{mixed.sum} = {_in_units(mixed.parameters[0], mixed.estimate.value)}"
        for mixed in joint.together
        if mixed.estimate is not None and mixed.estimate.value > 0
    ]
    told = f"{', '.join([*known, *sums])}, from a joint fit" if known or sums else "a joint fit"
    return f"{told} that has these very curves among its data"


def _in_units(parameter: Parameter, value: float) -> str:
    return format_time(1e9 * value) if parameter in A_CALL else f"{1e9 * value:.3g} ns/B"
