"""What a joint fit does not take: each in words, with what is needed instead."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import Final

import numpy as np

from busbw.errors import AnalysisError
from busbw.units import format_size, format_time
from busbw_analysis.theory.design import Observation
from busbw_analysis.theory.terms import candidates

LEAST_SIZES: Final = 5
"""Sizes of every curve on every number of ranks."""

_FALL: Final = 0.10
"""A line that falls by more than this share from the smallest to the largest size has a negative slope, not noise."""


def refuse(observations: Sequence[Observation]) -> None:
    """Raise AnalysisError unless ``observations`` can carry one fit together."""
    if not observations:
        message = "nothing was measured that a joint fit could take; it needs ops between ranks, over 5 or more sizes"
        raise AnalysisError(message)
    for one in observations:
        _refuse_time(one)
    _refuse_mixed(observations)
    for _, members in groupby(sorted(observations, key=_curve), key=_curve):
        refuse_curve(list(members))


def usable(observations: Sequence[Observation]) -> tuple[tuple[Observation, ...], tuple[str, ...]]:
    """Those of ``observations`` whose curve can take part in a fit, and why the others cannot."""
    kept: list[Observation] = []
    why: dict[str, None] = {}
    for _, members in groupby(sorted(observations, key=_curve), key=_curve):
        curve = list(members)
        try:
            candidates(curve[0].op, curve[0].backend, curve[0].algorithm)
            for one in curve:
                _refuse_time(one)
            refuse_curve(curve)
        except AnalysisError as error:
            why[str(error)] = None
        else:
            kept += curve
    return tuple(kept), tuple(why)


def _curve(one: Observation) -> tuple[str, str, int, int]:
    return one.op, one.algorithm or "", one.ranks, one.hosts


def _name(one: Observation) -> str:
    by = f" by {one.algorithm}" if one.algorithm else ""
    return f"{one.op}{by} on {one.ranks} ranks"


def _refuse_time(one: Observation) -> None:
    if one.ranks < 2:
        message = (
            f"{one.op} on {one.ranks} rank sends nothing, so there is no α and no β in it; measure on 2 or more ranks"
        )
        raise AnalysisError(message)
    broken = [time for time in (one.seconds, *one.launches) if not (math.isfinite(time) and time > 0)]
    if broken:
        message = (
            f"{_name(one)} at {format_size(one.size_bytes)} has a time of {broken[0]:g} s, which is impossible; times "
            "are positive and finite: measure it again"
        )
        raise AnalysisError(message)
    if not one.launches:
        message = f"{_name(one)} at {format_size(one.size_bytes)} has no launch behind it; it needs at least one"
        raise AnalysisError(message)


def _refuse_mixed(observations: Sequence[Observation]) -> None:
    backends = dict.fromkeys(one.backend for one in observations)
    if len(backends) > 1:
        message = f"one set of parameters cannot hold for {_listed(backends)}; fit each backend by itself"
        raise AnalysisError(message)
    regimes = dict.fromkeys(str(one.regime) for one in observations)
    if len(regimes) > 1:
        message = (
            f"one set of parameters cannot hold for {_listed(regimes)}: the bytes go other ways, or ranks wait for "
            "cores; fit each placement by itself"
        )
        raise AnalysisError(message)


def _listed(names: Iterable[str]) -> str:
    return " and for ".join(repr(name) for name in names)


def refuse_curve(members: Sequence[Observation]) -> None:
    """Raise AnalysisError unless one op on one number of ranks, of any sizes, can take part in a fit."""
    members = sorted(members, key=lambda one: one.size_bytes)
    sizes = [one.size_bytes for one in members]
    first, last = members[0], members[-1]
    twice = next((one for one, two in pairwise(sizes) if one == two), None)
    if twice is not None:
        message = f"{_name(first)} has {format_size(twice)} twice; a joint fit needs each size once"
        raise AnalysisError(message)
    if sizes == [0]:
        return
    if sizes[0] <= 0 or len(sizes) < LEAST_SIZES:
        counted = "1 size" if len(sizes) == 1 else f"{len(sizes)} sizes"
        message = f"{_name(first)} has {counted}; a joint fit needs at least {LEAST_SIZES} different ones above 0"
        raise AnalysisError(message)
    alpha, beta = _free_line(members)
    if beta * (sizes[-1] - sizes[0]) < -_FALL * (alpha + beta * sizes[0]):
        message = (
            f"the time of {_name(first)} falls with size, from {format_time(first.seconds * 1e9)} at "
            f"{format_size(sizes[0])} to {format_time(last.seconds * 1e9)} at {format_size(sizes[-1])}: a negative "
            "slope is no cost of bytes; measure larger sizes, and look for a slow mode or a disturbance at the smaller"
        )
        raise AnalysisError(message)


def _free_line(members: Sequence[Observation]) -> tuple[float, float]:
    """α and β of the line of least squared relative error, of any sign."""
    sizes = np.asarray([one.size_bytes for one in members], dtype=np.float64)
    times = np.asarray([one.seconds for one in members])
    system = np.stack([np.ones_like(sizes), sizes / sizes[-1]], axis=1) / times[:, None]
    alpha, beta = np.linalg.lstsq(system, np.ones_like(times), rcond=None)[0]
    return float(alpha), float(beta / sizes[-1])
