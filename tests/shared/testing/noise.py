"""Simulated launches with the noise of real ones: for asking how often statistics are right when the truth is known.

What is simulated was measured on collectives of Gloo and MPI ranks: one tail, towards longer times; samples that know
of their neighbours; launches that differ by more than their samples tell; and a second mode one kernel tick above
the first, which comes in spells.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Noise:
    """How samples scatter around ``level_ns``.

    ``launch_cv`` is the standard deviation of the logarithm from launch to launch, of which ``shared`` (a share of the
    variance) is the same for all cases of a launch. ``tail`` is the mean of the exponential excess of a sample over the
    level, as a share of it. ``persistence`` is the correlation of a sample with the next one; 0.87 makes an
    autocorrelation time of about 10 samples. ``slow_share`` of the samples take ``slow_ns`` more.
    """

    level_ns: float = 300e3
    launch_cv: float = 0.03
    shared: float = 0.0
    tail: float = 0.1
    persistence: float = 0.87
    slow_share: float = 0.0
    slow_ns: float = 4e6


def simulated(
    noise: Noise, generator: np.random.Generator, *, launches: int, cases: int = 1, samples: int = 400
) -> Floats:
    """Times in ns per call, as cases × launches × samples."""
    common = generator.normal(0, noise.launch_cv, (1, launches, 1)) * noise.shared**0.5
    own = generator.normal(0, noise.launch_cv, (cases, launches, 1)) * (1 - noise.shared) ** 0.5
    shape = (cases, launches, samples)
    # −log of a uniform number is exponential, and order is kept: neighbours stay as close as they were.
    excess = -np.log(1 - _uniform(_persistent(noise, generator, shape)))
    times = noise.level_ns * np.exp(common + own) * (1 + noise.tail * excess)
    if noise.slow_share:
        spells = _persistent(noise, generator, shape) < NormalDist().inv_cdf(noise.slow_share)
        times = times + noise.slow_ns * spells
    return np.asarray(times)


def _persistent(noise: Noise, generator: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Standard normal numbers of which each remembers the one before, along the last axis."""
    values = generator.normal(size=shape)
    fresh = (1 - noise.persistence**2) ** 0.5
    for index in range(1, shape[-1]):
        values[..., index] = noise.persistence * values[..., index - 1] + fresh * values[..., index]
    return values


def _uniform(normal: Floats) -> Floats:
    """The share of a normal distribution below each number (a logistic curve that is within 0.0002 of it)."""
    return np.asarray(1 / (1 + np.exp(-1.5976 * normal - 0.07056 * normal**3)))
