"""What a joint fit does not take: each in words, with what is needed instead."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from busbw.errors import AnalysisError
from busbw.units import format_size
from busbw_analysis.fitting.checks import LEAST_SIZES, refuse_alone, refuse_curve, refuse_times
from busbw_analysis.fitting.design import Observation
from busbw_analysis.models.select import candidates


def refuse(observations: Sequence[Observation]) -> None:
    """Raise AnalysisError unless ``observations`` can carry one fit together."""
    if not observations:
        message = (
            "nothing was measured that a joint fit could take; it needs ops between ranks, over "
            f"{LEAST_SIZES} or more sizes"
        )
        raise AnalysisError(message)
    for one in observations:
        _refuse_time(one)
    _refuse_mixed(observations)
    for _, members in groupby(sorted(observations, key=_curve), key=_curve):
        _refuse_curve(list(members))


def usable(observations: Sequence[Observation]) -> tuple[tuple[Observation, ...], tuple[str, ...]]:
    """Those of ``observations`` whose curve can take part in a fit, and why the others cannot."""
    kept: list[Observation] = []
    why: dict[str, None] = {}
    for _, members in groupby(sorted(observations, key=_curve), key=_curve):
        curve = list(members)
        try:
            candidates(curve[0].op, curve[0].cost_models, curve[0].algorithm)
            for one in curve:
                _refuse_time(one)
            _refuse_curve(curve)
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
    refuse_alone(one.op, one.ranks)
    refuse_times(_name(one), one.size_bytes, (one.seconds, *one.launches))
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


def _refuse_curve(members: Sequence[Observation]) -> None:
    """Raise AnalysisError unless one op on one number of ranks, of any sizes or of none, can take part in a fit."""
    members = sorted(members, key=lambda one: one.size_bytes)
    sizes = [one.size_bytes for one in members]
    if sizes != [0]:
        refuse_curve(_name(members[0]), sizes, [one.seconds for one in members])
