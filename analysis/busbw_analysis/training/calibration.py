"""The speed of kernels and calls of one machine, from measured steps.

Two numbers may be wrong for a machine: by what factor its kernels take longer than assumed, and its calls. Both start
at 1, uncertain as in steps that others have measured, and each measured step narrows what it depends on: means of the
posterior on a grid, errors of logarithms by Student's t (Gelman et al. 2013, Bayesian Data Analysis, section 10.1).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from busbw.units import counted, format_seconds
from busbw_analysis.training.held import interval
from busbw_analysis.training.layout import Step, gigabytes, layout_text
from busbw_analysis.training.memory import Kernels, memory
from busbw_analysis.training.prices import Group, Price, Prices
from busbw_analysis.training.step_time import Machine, step_time

_UNCERTAIN: Final = {"kernels": 0.06, "calls": 0.06}
"""Standard deviations of the logarithms of both factors before a step is measured: those under which the part of
``tests/data/training/truth`` that parameters may be fitted on, and published steps, are likeliest (empirical Bayes:
0.055 and 0.060, of 24 models and clusters).
"""
_STEP: Final = 0.05
"""Scale of the logarithm of a step's time that both factors leave: between 0.02, of steps on B200 and of reports, and
0.08, of vTrain's.
"""
_LEFT: Final = 0.08
"""Standard deviation of what they leave, for intervals: that of vTrain's steps, in which 97 % are within theirs."""
_DETERMINED: Final = 0.9
"""A factor is determined if its standard deviation falls below this share of what it was."""
_FREEDOM: Final = 2
"""Degrees of freedom of Student's t. By it, a typed step far from the prior is likelier a mistake, and moves little; of
a log that states its own layout, the program is likelier slow, so its step has normal errors and the factors are by t
(O'Hagan and Pericchi 2012, https://doi.org/10.1214/11-BJPS164: what has the lighter tails wins a conflict).
"""
_TURNS: Final = 4
_MANY, _OF_MEDIAN = 5, 1.4826
"""From so many steps on, what the factors leave is their own scatter, by the median of its size."""
_WIDE, _NARROW, _POINTS = 0.8, 6.0, 121
"""The first grid reaches so far, each next so many standard deviations; points of a side."""
_SMALL: Final = 0.01
"""Difference of a logarithm, for slopes."""
_Array = NDArray[np.float64]
_Truth = NDArray[np.bool_] | np.bool_
_95: Final = 1.96
_TAILS: Final = 4.303 / _95
"""By how much wider the 95 % interval of Student's t is than that of the normal distribution of the same scale."""


@dataclass(frozen=True, slots=True)
class Factor:
    """By how much longer something takes than assumed, its 95 % interval, and whether the steps determine it."""

    name: str
    value: float
    low: float
    high: float
    determined: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """A measured step beside the prediction for the machine of a calibration; ``near``: it is calibrated with."""

    step: Step
    seconds: float
    predicted_seconds: float
    near: bool


@dataclass(frozen=True, slots=True)
class Calibration:
    """A machine as measured steps say it is. ``factors`` are empty if no step is near: the machine is as assumed."""

    machine: Machine
    factors: tuple[Factor, ...]
    steps: tuple[Compared, ...]


@dataclass(frozen=True, slots=True)
class _Slower:
    """Prices of calls that take ``factor`` times as long."""

    prices: Prices
    factor: float

    def price(self, op: str, size_bytes: int, group: Group) -> Price:
        """The price of one call."""
        return self.prices.price(op, size_bytes, group).times(self.factor)


def slower(machine: Machine, kernels: float, calls: float) -> Machine:
    """The machine with kernels and calls that take this many times as long."""
    speed = machine.speed
    attention = None if speed.attention is None else (speed.attention[0] / kernels, speed.attention[1] / kernels)
    slow = replace(
        speed,
        flop_per_second=speed.flop_per_second / kernels,
        memory=None if speed.memory is None else speed.memory / kernels,
        attention=attention,
        launch=speed.launch * kernels,
        started=speed.started * kernels,
    )
    return replace(machine, speed=slow, prices=_Slower(machine.prices, calls))


def calibrate(machine: Machine, measured: Sequence[tuple[Step, float]], logged: int = 0) -> Calibration:
    """The machine on which ``measured`` steps take the given seconds, as far as its uncertainty allows: all steps but
    those outside the 95 % interval of what it then predicts.

    logged: how many of the first steps are of logs that state their layout
    """
    near, sure = list(measured), list(measured)[:logged]
    calibrated, factors = _fitted(machine, near, sure)
    while (within := [each for each in near if _is_near(*each, calibrated)]) != near:
        near = within
        calibrated, factors = _fitted(machine, near, sure)
    steps = (Compared(*each, step_time(each[0], calibrated).total, near=each in near) for each in measured)
    return Calibration(calibrated, factors, tuple(steps))


def _is_near(step: Step, seconds: float, machine: Machine) -> bool:
    ends = interval(step, machine, step_time(step, machine).total)
    return ends is not None and ends[0] <= seconds <= ends[1]


def _fitted(
    machine: Machine, measured: Sequence[tuple[Step, float]], sure: Sequence[tuple[Step, float]]
) -> tuple[Machine, tuple[Factor, ...]]:
    """The machine by all ``measured`` steps, and its factors. Without steps as it is."""
    if not measured:
        return machine, ()
    uncertain = np.array(list(_UNCERTAIN.values()))
    normal = np.array([each in sure for each in measured])
    at, deviations = np.zeros(len(uncertain)), np.full(len(uncertain), _WIDE / _NARROW)
    scale = _LEFT
    for _ in range(_TURNS):
        ends = zip(at - _NARROW * deviations, at + _NARROW * deviations, strict=True)
        sides = [np.linspace(low, high, _POINTS) for low, high in ends]
        grid = np.stack(np.meshgrid(*sides), -1).reshape(-1, len(at))
        slopes, left = _linear(machine, measured, at)
        if normal.sum() >= _MANY:
            apart = left[normal] - np.median(left[normal])
            scale = max(_LEFT, _OF_MEDIAN * float(np.median(abs(apart))))
        off = (left - (grid - at) @ slopes.T) / np.where(normal, scale, _STEP)
        logs = _log_density(grid / uncertain, ~normal.any()).sum(1) + _log_density(off, normal).sum(1)
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        at = weights @ grid
        deviations = np.sqrt(weights @ (grid - at) ** 2)
    least = _DETERMINED * uncertain * (_TAILS if normal.any() else 1)
    factors = tuple(
        Factor(name, exp(value), exp(value - _95 * spread), exp(value + _95 * spread), bool(spread < most))
        for name, value, spread, most in zip(_UNCERTAIN, at, deviations, least, strict=True)
    )
    calibrated = slower(machine, *(exp(value) for value in at))
    deviation = float(np.hypot(scale, deviations[0]))
    return replace(calibrated, deviation=deviation), factors


def _log_density(off: _Array, normal: _Truth) -> _Array:
    """Of the normal distribution or of Student's t, but for a constant."""
    return np.where(normal, -(off**2) / 2, -(_FREEDOM + 1) / 2 * np.log1p(off**2 / _FREEDOM))


def _linear(machine: Machine, measured: Sequence[tuple[Step, float]], at: _Array) -> tuple[_Array, _Array]:
    """The slopes of the logarithms of the steps' times by those of both factors, and what the times still lack."""

    def logs(where: _Array) -> _Array:
        on = slower(machine, *(exp(value) for value in where))
        return np.array([log(step_time(step, on).total) for step, _ in measured], np.float64)

    now = logs(at)
    slopes = [(logs(at + _SMALL * unit) - now) / _SMALL for unit in np.eye(len(at))]
    return np.array(slopes).T, np.array([log(seconds) for _, seconds in measured], np.float64) - now


def steps_in_words(
    steps: Sequence[Compared], room: float | None, kernels: Kernels | None, own: int, logged: int
) -> Iterator[str]:
    """Each measured step as it was read, what is predicted for it now, and whether ``room`` bytes of a GPU hold it.

    own: how many steps are of runs, behind the ``logged`` ones, and told together
    """
    if of_runs := steps[logged : logged + own]:
        off = median(abs(each.predicted_seconds / each.seconds - 1) for each in of_runs)
        yield f"{counted(own, 'step')} of the run calibrate; they are now predicted to {off:.0%} in the median"
    for each in (*steps[:logged], *steps[logged + own :]):
        needed = memory(each.step, kernels=kernels).total
        layout = layout_text(each.step)
        zero = "" if each.step.layout.zero else ",zero=0"
        recompute = ",recompute=none" if each.step.layout.recompute == "none" else ""
        text = f"{layout}{zero}{recompute}: measured {format_seconds(each.seconds)}, predicted "
        text += f"{format_seconds(each.predicted_seconds)}: "
        text += (
            "near; measured steps move a prediction only part of the way"
            if each.near
            else "too far apart to calibrate with; check layout, batch and seconds"
        )
        lacks = room is not None and needed > room
        yield text + (f"; this layout does not fit: a rank needs {gigabytes(needed)}" if lacks else "")


def factors_in_words(factors: Sequence[Factor]) -> Mapping[str, str]:
    """Each factor as a note of a plan."""
    return {
        f"calibrated {factor.name}": f"{factor.value:.2f} ({factor.low:.2f} to {factor.high:.2f}) × the assumed time"
        + ("" if factor.determined else "; the measured steps hardly determine it")
        for factor in factors
    }
