"""Simulated histories, one value per run: how often steps are found, and found where there is none."""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from busbw_analysis.history.steps import SOON, steps_of

Floats = npt.NDArray[np.float64]
Generator = np.random.Generator

SCATTER: Final = 0.02
_WEEK: Final = 7
_NEAR: Final = 5


def _normal(generator: Generator, runs: int) -> Floats:
    return SCATTER * generator.normal(size=runs)


def correlated(generator: Generator, runs: int, correlation: float) -> Floats:
    """Logarithms of an autoregressive history with a scatter of 2 %."""
    values = generator.normal(size=runs)
    for index in range(1, runs):
        values[index] = correlation * values[index - 1] + (1 - correlation**2) ** 0.5 * values[index]
    return SCATTER * values


def _with_outliers(generator: Generator, runs: int) -> Floats:
    return 5 * _normal(generator, runs) + (generator.random(runs) < 0.05) * generator.exponential(1, runs)


def _with_spikes(generator: Generator, runs: int) -> Floats:
    return _normal(generator, runs) + 0.5 * (generator.random(runs) < 0.05)


def _weekly(generator: Generator, runs: int) -> Floats:
    day = (np.arange(runs) + generator.integers(_WEEK)) % _WEEK
    return _normal(generator, runs) + 2 * SCATTER * (day >= _WEEK - 2)


STATIONARY: Final[dict[str, Callable[[Generator, int], Floats]]] = {
    "normal": _normal,
    "lognormal of 10 %, 5 % outliers": _with_outliers,
    "heavy tails (Student's t, 3)": lambda generator, runs: SCATTER * generator.standard_t(3, size=runs),
    "one tail (1 + 5 % exponential)": lambda generator, runs: np.log1p(0.05 * generator.exponential(1, runs)),
    "spikes of 65 % in 5 % of the runs": _with_spikes,
    "slower by 4 % on two days of seven": _weekly,
    "autocorrelation 0.3": lambda generator, runs: correlated(generator, runs, 0.3),
    "autocorrelation 0.6": lambda generator, runs: correlated(generator, runs, 0.6),
    "whole numbers near 100": lambda generator, runs: np.log(np.round(100 * np.exp(_normal(generator, runs) / 2))),
}
"""Logarithms of histories without a step."""


def false_steps(kind: str, runs: int, histories: int, seed: int = 1) -> int:
    """Number of steps in ``histories`` stationary histories of ``runs`` runs."""
    generator = np.random.default_rng(seed)
    return sum(len(steps_of(np.exp(STATIONARY[kind](generator, runs)).tolist())) for _ in range(histories))


def steps_found(size: float, scatter: float, before: int, histories: int, after: int = SOON, seed: int = 1) -> int:
    """In how many histories a step by ``size`` after ``before`` runs is found, at most 5 runs off, ``after`` runs
    later.
    """
    generator = np.random.default_rng(seed)
    count = 0
    for _ in range(histories):
        logs = scatter * generator.normal(size=before + after)
        logs[before:] += np.log1p(size)
        count += any(abs(step.at - before) <= _NEAR for step in steps_of(np.exp(logs).tolist()))
    return count
