"""Optimal breakpoints of many curves together, with segments T = α + β·S.

Curves are rows of an array (folds of a cross-validation, resamples of a bootstrap), so that a few matrix products
replace tens of thousands of small least-squares problems. Errors are relative and coefficients non-negative.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cuts:
    """The best division of each of R curves into k segments.

    ``starts`` (R × k): index of the first size of each segment.
    ``breaks_bytes`` (R × k−1): the breakpoints, each at the geometric mean of the two sizes next to it.
    ``alpha``, ``beta`` (R × k): in seconds and seconds per byte.
    ``residual`` (R): sum of squared relative errors.
    """

    starts: Integers
    breaks_bytes: Floats
    alpha: Floats
    beta: Floats
    residual: Floats

    def predict(self, targets: Floats, waiting: float = 1.0, moving: float = 1.0) -> Floats:
        """Seconds at ``targets`` (R × M bytes): M sizes for each curve.

        ``waiting``, ``moving``: factors of α and β.
        """
        segment = (targets[:, :, None] >= self.breaks_bytes[:, None, :]).sum(axis=2)
        alpha, beta = (np.take_along_axis(values, segment, axis=1) for values in (self.alpha, self.beta))
        return np.asarray(waiting * alpha + moving * beta * targets)


def best_cuts(sizes: Floats, times: Floats, segments: int, least: int) -> Cuts:
    """Divide each curve into ``segments`` segments of at least ``least`` sizes with the least squared relative
    error.

    ``sizes`` (bytes) and ``times`` (seconds) are R × N, sizes ascending. The error of a division is the sum over its
    segments, so dynamic programming (Bellman 1961) gives the exact optimum.
    """
    curves, count = times.shape
    intervals = [(low, high) for low in range(count) for high in range(low + least, count + 1)]
    column = np.zeros((count + 1, count + 1), dtype=np.int64)
    column[tuple(zip(*intervals, strict=True))] = np.arange(len(intervals))
    alpha, beta, cost = _every_interval(sizes, times, intervals)
    rows = np.arange(curves)
    best = np.full((segments + 1, count + 1, curves), np.inf)
    cut = np.zeros((segments + 1, count + 1, curves), dtype=np.int64)
    best[0, 0] = 0.0
    for used in range(1, segments + 1):
        for high in range(used * least, count + 1):
            lows = np.arange((used - 1) * least, high - least + 1)
            options = best[used - 1, lows] + cost[:, column[lows, high]].T
            choice = np.argmin(options, axis=0)
            best[used, high] = options[choice, rows]
            cut[used, high] = lows[choice]
    starts = np.zeros((curves, segments), dtype=np.int64)
    number = np.zeros((curves, segments), dtype=np.int64)
    end = np.full(curves, count)
    for used in range(segments, 0, -1):
        start = cut[used, end, rows]
        starts[:, used - 1] = start
        number[:, used - 1] = column[start, end]
        end = start
    rows, inner = rows[:, None], starts[:, 1:]
    breaks = np.sqrt(sizes[rows, inner - 1] * sizes[rows, inner])
    return Cuts(starts, breaks, alpha[rows, number], beta[rows, number], best[segments, count])


def _every_interval(sizes: Floats, times: Floats, intervals: list[tuple[int, int]]) -> tuple[Floats, Floats, Floats]:
    """Coefficients and squared relative error (R × intervals) of the best non-negative line over each interval.

    With two columns, non-negative least squares have a closed form: the unconstrained solution if it is non-negative,
    else the better of the two single-column solutions. Sums are products with a 0/1 matrix, because differences of
    running sums would cancel over eight decades of size.
    """
    inside = np.zeros((len(intervals), times.shape[1]))
    for number, (low, high) in enumerate(intervals):
        inside[number, low:high] = 1.0
    constant, slope = 1 / times, sizes / times
    constant_scale, slope_scale = constant.max(axis=1, keepdims=True), slope.max(axis=1, keepdims=True)
    constant, slope = constant / constant_scale, slope / slope_scale
    oo, os, ss = (constant * constant) @ inside.T, (constant * slope) @ inside.T, (slope * slope) @ inside.T
    o1, s1 = constant @ inside.T, slope @ inside.T
    determinant = oo * ss - os * os
    solvable = determinant > 1e-12 * oo * ss
    safe = np.where(solvable, determinant, 1.0)
    alpha, beta = (ss * o1 - os * s1) / safe, (oo * s1 - os * o1) / safe
    free = solvable & (alpha >= 0) & (beta >= 0)
    # A single column explains o1²/oo (a constant) or s1²/ss (a line through zero) of the target.
    flat = o1**2 / oo >= s1**2 / ss
    alpha = np.where(free, alpha, np.where(flat, o1 / oo, 0.0))
    beta = np.where(free, beta, np.where(flat, 0.0, s1 / ss))
    cost = oo * alpha**2 + 2 * os * alpha * beta + ss * beta**2 - 2 * o1 * alpha - 2 * s1 * beta + inside.sum(axis=1)
    return alpha / constant_scale, beta / slope_scale, np.maximum(cost, 0.0)
