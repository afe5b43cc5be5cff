"""Checks that times over sizes can be fitted; each error says what is needed instead."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from busbw.errors import AnalysisError
from busbw.units import counted, format_size, format_time

LEAST_SIZES: Final = 5
"""Sizes that a curve needs; a segment may have fewer."""

_FALL: Final = 0.10
"""A line that falls by at most this fraction from the smallest to the largest size counts as flat."""

_BY_CHANCE: Final = 0.01
"""Allowed probability that a flat noisy curve counts as falling."""

_LARGEST_FALL: Final = 3.0


def refuse_alone(op: str, ranks: int) -> None:
    """Raise AnalysisError for an op between ranks that ran on one."""
    if ranks < 2:
        message = f"{op} on {ranks} rank sends nothing, so it has no α and β; measure on 2 or more ranks"
        raise AnalysisError(message, code="one-rank")


def refuse_times(name: str, size_bytes: int, seconds: Iterable[float]) -> None:
    """Raise AnalysisError unless all times of ``name`` at a size are positive and finite."""
    broken = [time for time in seconds if not (math.isfinite(time) and time > 0)]
    if broken:
        raise AnalysisError(
            f"{name} at {format_size(size_bytes)} has a time of {broken[0]:g} s; times must be positive and finite, "
            "so measure it again",
            code="impossible-time",
        )


def refuse_curve(name: str, sizes_bytes: Sequence[int], seconds: Sequence[float]) -> None:
    """Raise AnalysisError unless the times of ``name`` over ascending sizes can be α + β·S, in one or more segments.

    Time may fall at a jump, for example when a library changes its protocol, and by noise, but not over the whole
    curve. A curve is refused if its line falls by more than 10 % and the order of sizes and times is as opposed
    (Kendall 1938) as in 1 of 100 flat curves. Of simulated flat curves of 5 to 24 sizes with 5 to 20 % noise, this
    refused 0 to 2 in 100; with 5 % noise, it refused all curves that fell to 38 % and 60 to 100 in 100 that fell to
    70 %.
    """
    twice = next((size for size, following in pairwise(sizes_bytes) if size == following), None)
    if twice is not None:
        raise AnalysisError(f"{name} has {format_size(twice)} twice; a fit needs each size once", code="size-twice")
    if sizes_bytes and sizes_bytes[0] <= 0:
        message = f"{name} has the size {format_size(sizes_bytes[0])}; a fit needs sizes above 0"
        raise AnalysisError(message, code="no-size")
    if len(sizes_bytes) < LEAST_SIZES:
        sizes = counted(len(sizes_bytes), "size")
        message = f"{name} has {sizes}; a fit needs at least {LEAST_SIZES} different sizes above 0"
        raise AnalysisError(message, code="few-sizes")
    for size, time in zip(sizes_bytes, seconds, strict=True):
        refuse_times(name, size, [time])
    if _falls(np.asarray(sizes_bytes, dtype=np.float64), np.asarray(seconds)):
        raise AnalysisError(
            f"the time of {name} falls with size, from {_at(sizes_bytes, seconds, 0)} to "
            f"{_at(sizes_bytes, seconds, -1)}, so it has no cost per byte; measure larger sizes, and check the smaller "
            "sizes for outliers or interference",
            code="negative-slope",
        )
    high = 0
    for index, time in enumerate(seconds):
        if seconds[high] > _LARGEST_FALL * time:
            raise AnalysisError(
                f"the time of {name} falls from {_at(sizes_bytes, seconds, high)} to {_at(sizes_bytes, seconds, index)}"
                f", to less than 1/{_LARGEST_FALL:g}, which α + β·S cannot explain; check the smaller size for "
                "outliers or interference, and measure it again",
                code="falls",
            )
        high = index if time > seconds[high] else high


def _at(sizes_bytes: Sequence[int], seconds: Sequence[float], index: int) -> str:
    return f"{format_time(seconds[index] * 1e9)} at {format_size(sizes_bytes[index])}"


def _falls(sizes: np.ndarray, times: np.ndarray) -> bool:
    """Whether the unconstrained line of least squared relative error falls, and not by chance."""
    system = np.stack([np.ones_like(sizes), sizes / sizes[-1]], axis=1) / times[:, None]
    alpha, beta = np.linalg.lstsq(system, np.ones_like(times), rcond=None)[0]
    first = sizes[0] / sizes[-1]
    if beta * (1 - first) >= -_FALL * (alpha + beta * first):
        return False
    from scipy.stats import kendalltau  # noqa: PLC0415 - takes long to load, and hardly any curve falls

    return bool(kendalltau(sizes, times, alternative="less").pvalue < _BY_CHANCE)
