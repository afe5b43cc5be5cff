"""Models of a message from measured times: what can be fitted, which model predicts best, and what nobody can tell.

Errors are relative and coefficients not negative, as in ``fit``. Models of one curve compete on sizes that were left
out: every second one. A simpler model that is no worse beyond the scatter of these errors wins.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares, nnls

from busbw.errors import AnalysisError
from busbw.units import format_size, format_time
from busbw_analysis.fitting.segments import Floats, best_cuts
from busbw_analysis.models.point_to_point import EagerRendezvous, Hockney, MaxRate, PLogP

Model = Hockney | EagerRendezvous | PLogP

LEAST_OF_A_PIECE = 3
"""Sizes on either side of a threshold."""

FEWEST_SIZES = 7
"""So that 4 are left of them to fit and 3 can be held out."""

FEWEST_OF_A_HANDSHAKE = 10
"""So that 6 are left to fit, 3 on either side of a threshold. With fewer, to leave out one size at a time would not do,
either: the straight line wins there over a jump that is plain to see.
"""

VALID_MEDIAN_ERROR = 0.10
"""Above it even the winner does not hold, and that is said."""

_MARGIN = 1e-3
_REACHED = 1.05


@dataclass(frozen=True, slots=True)
class Entrant:
    """One model in the contest: its fit to all sizes, and its relative errors on those that were held out. ``model`` is
    None where there was none to be had; ``reason`` says why.
    """

    name: str
    model: Model | None
    median_error: float | None
    worst_error: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Contest:
    """Which model of a message predicts sizes that it has not seen. ``entrants`` are in order of their parameters;
    ``winner`` is one of their names, and ``words`` say by how much, and which model had too few sizes to compete.
    """

    entrants: tuple[Entrant, ...]
    winner: str
    held_out: int
    words: str


def fit_hockney(sizes_bytes: Sequence[int], seconds: Sequence[float]) -> Hockney:
    """The line of least relative error. Raises AnalysisError for points that carry none."""
    sizes, times = _points(sizes_bytes, seconds, 2)
    cuts = best_cuts(sizes[None], times[None], 1, len(sizes))
    return Hockney(float(cuts.alpha[0, 0]), float(cuts.beta[0, 0]))


def fit_eager_rendezvous(sizes_bytes: Sequence[int], seconds: Sequence[float]) -> EagerRendezvous:
    """Two lines with a jump up between them, where the cut of least relative error has one.

    Raises AnalysisError where time does not jump up there: then there is no threshold, or none that can be seen.
    """
    sizes, times = _points(sizes_bytes, seconds, 2 * LEAST_OF_A_PIECE)
    cuts = best_cuts(sizes[None], times[None], 2, LEAST_OF_A_PIECE)
    start = int(cuts.starts[0, 1])
    lines = [Hockney(float(cuts.alpha[0, piece]), float(cuts.beta[0, piece])) for piece in (0, 1)]
    found = EagerRendezvous(lines[0], lines[1], int(sizes[start - 1]), int(sizes[start]))
    if found.jump_seconds <= 0:
        message = (
            f"the best cut is between {format_size(found.last_eager_bytes)} and "
            f"{format_size(found.first_rendezvous_bytes)}, where time falls by "
            f"{format_time(-found.jump_seconds * 1e9)}: no handshake begins there"
        )
        raise AnalysisError(message)
    return found


def fit_plogp(sizes_bytes: Sequence[int], seconds: Sequence[float]) -> PLogP:
    """The table of L + g(m), which single messages cannot separate; overheads are not in it."""
    sizes, times = _points(sizes_bytes, seconds, 2)
    return PLogP(0.0, tuple(int(size) for size in sizes), tuple(float(time) for time in times))


@dataclass(frozen=True, slots=True)
class FittedLogGP:
    """What rows of messages tell of LogGP: ``single_seconds`` is L + 2o, ``between_seconds`` max(g, o) (None where
    every row was one message), ``per_byte_seconds`` G. ``untold`` says what they do not tell.
    """

    single_seconds: float
    between_seconds: float | None
    per_byte_seconds: float
    untold: str


def fit_loggp(points: Sequence[tuple[int, int, float]]) -> FittedLogGP:
    """From (messages in a row to or from one rank, bytes of each, seconds until the last is there).

    T = (L + 2o) + (k−1) max(g, o) + k (m−1) G, by relative non-negative least squares. L, o and g themselves are never
    in such times: o takes the time that a call keeps its processor. Raises AnalysisError for too few points.
    """
    several = len({k for k, _, _ in points}) > 1
    sizes = len({m for _, m, _ in points})
    if sizes < 2 or len(points) < (3 if several else 2):
        message = (
            f"{len(points)} points of {sizes} sizes are too few for LogGP; it needs 2 sizes, and a third point for g"
        )
        raise AnalysisError(message)
    broken = [
        point for point in points if point[0] < 1 or point[1] < 1 or not (math.isfinite(point[2]) and point[2] > 0)
    ]
    if broken:
        k, m, time = broken[0]
        message = (
            f"{k} messages of {m} B in {time} s are impossible; want at least 1 of 1 B, in a positive, finite time"
        )
        raise AnalysisError(message)
    columns = [[1.0, k * (m - 1), *([k - 1.0] if several else [])] for k, m, _ in points]
    times = np.asarray([time for _, _, time in points])
    rows = np.asarray(columns) / times[:, None]
    scale = np.where(rows.max(axis=0) > 0, rows.max(axis=0), 1.0)
    found, _ = nnls(rows / scale, np.ones(len(times)))
    single, per_byte, *between = (float(value) for value in found / scale)
    apart = "L and o only as L + 2o: no op of the suite times the call that posts a message alone"
    gap = (
        "g only as max(g, o)"
        if several
        else "no g: every call waits for its one message; rows of several would tell it"
    )
    return FittedLogGP(single, between[0] if between else None, per_byte, f"{apart}; {gap}")


@dataclass(frozen=True, slots=True)
class FittedMaxRate:
    """``model`` has an infinite R_N where the pairs never filled what they share: then ``at_least`` (B/s) is all that
    is known of it. ``mean_error`` is the mean relative error of the fit.
    """

    model: MaxRate
    at_least: float | None
    mean_error: float


def fit_max_rate(points: Sequence[tuple[int, int, float]]) -> FittedMaxRate:
    """From (pairs at once, bytes, seconds). Raises AnalysisError unless there are several of the first two."""
    numbers, sizes = {k for k, _, _ in points}, {m for _, m, _ in points}
    if len(numbers) < 2 or len(sizes) < 2:
        message = (
            f"pairs at once: {sorted(numbers)}, {len(sizes)} sizes; max-rate needs 2 numbers of pairs and 2 sizes, to "
            "tell the rate of a pair from that of what they share"
        )
        raise AnalysisError(message)
    k, m, times = (np.asarray(column, dtype=np.float64) for column in zip(*points, strict=True))
    if not (np.isfinite(times).all() and (times > 0).all() and (k >= 1).all() and (m > 0).all()):
        message = "max-rate: pairs, sizes and times are positive and finite; at least one point is not"
        raise AnalysisError(message)
    fewest = k == k.min()
    alone = fit_hockney(*_by_size(m[fewest], times[fewest]))
    if alone.beta_seconds_per_byte == 0:
        message = "max-rate: the time of single pairs does not grow with size, so they have no rate"
        raise AnalysisError(message)
    large = m == m.max()
    together = float((k[large] * m[large] / times[large]).max())

    def error(logs: Floats) -> Floats:
        alpha, beta, shared = np.exp(logs)
        relative: Floats = (alpha + m * np.maximum(beta, k * shared)) / times - 1
        return relative

    alpha = max(alone.alpha_seconds, 1e-3 * float(times.min()))
    begin = np.log([alpha, alone.beta_seconds_per_byte, 1 / together])
    best = least_squares(error, begin, x_scale="jac")
    alpha, beta, shared = (float(value) for value in np.exp(best.x))
    mean = float(np.abs(best.fun).mean())
    reached = bool((k * shared > _REACHED * beta).any())
    model = MaxRate(alpha, 1 / beta, 1 / shared if reached else math.inf)
    return FittedMaxRate(model, None if reached else float(k.max()) / beta, mean)


def _by_size(sizes: Floats, times: Floats) -> tuple[list[int], list[float]]:
    found = sorted({int(size) for size in sizes})
    return found, [float(np.median(times[sizes == size])) for size in found]


_HANDSHAKE = "eager/rendezvous"
_ENTRANTS: tuple[tuple[str, Callable[[Sequence[int], Sequence[float]], Model]], ...] = (
    ("Hockney", fit_hockney),
    (_HANDSHAKE, fit_eager_rendezvous),
    ("PLogP table", fit_plogp),
)
"""The fewest parameters first."""


def contest(sizes_bytes: Sequence[int], seconds: Sequence[float]) -> Contest:
    """Let every model predict every second size from the others; a handshake competes from 10 sizes on.

    Raises AnalysisError for fewer than 7 sizes.
    """
    sizes, times = _points(sizes_bytes, seconds, FEWEST_SIZES)
    tested = np.arange(1, len(sizes) - 1, 2)
    kept = np.setdiff1d(np.arange(len(sizes)), tested)
    entrants: list[Entrant] = []
    errors: dict[str, Floats] = {}
    untold = _untold_handshake(len(sizes))
    for name, fitted in _ENTRANTS:
        if name == _HANDSHAKE and untold:
            entrants.append(Entrant(name, None, None, None, untold))
            continue
        try:
            whole = fitted([int(size) for size in sizes], list(times))
            part = fitted([int(size) for size in sizes[kept]], list(times[kept]))
        except AnalysisError as error:
            entrants.append(Entrant(name, None, None, None, str(error)))
            continue
        predicted = np.asarray([part.seconds(float(size)) for size in sizes[tested]])
        errors[name] = np.abs(np.log(predicted / times[tested]))
        off = np.abs(predicted / times[tested] - 1)
        entrants.append(Entrant(name, whole, float(np.median(off)), float(off.max()), ""))
    best = min(errors, key=lambda name: float(errors[name].mean()))
    winner = next(name for name in errors if _no_worse(errors[name], errors[best]))
    words = [_verdict(entrants, winner, best, errors), *([untold] if untold else [])]
    return Contest(tuple(entrants), winner, len(tested), "; ".join(words))


def _untold_handshake(sizes: int) -> str:
    """What is to be said where so many sizes cannot tell of a handshake; "" where they can."""
    if sizes >= FEWEST_OF_A_HANDSHAKE:
        return ""
    return f"a handshake cannot be told from fewer than {FEWEST_OF_A_HANDSHAKE} sizes, and here are {sizes}"


def _no_worse(error: Floats, best: Floats) -> bool:
    """Whether the mean of ``error`` is within one standard error of the differences from ``best``, size by size."""
    extra = error - best
    return float(extra.mean()) <= float(extra.std(ddof=1)) / math.sqrt(len(extra)) + _MARGIN


def _verdict(entrants: Sequence[Entrant], winner: str, best: str, errors: dict[str, Floats]) -> str:
    off = {one.name: one.median_error for one in entrants if one.median_error is not None}
    verdict = "" if off[winner] <= VALID_MEDIAN_ERROR else f" (above {VALID_MEDIAN_ERROR:.0%})"
    told = f"{winner}, {off[winner]:.1%} off{verdict}"
    if len(off) == 1:
        return f"{told}: nothing to compare it with"
    if winner != best:
        return (
            f"{told}: {best} has the smallest mean error, but not beyond the scatter of the errors, and more parameters"
        )
    others = {name: float(errors[name].mean() / max(errors[winner].mean(), _MARGIN)) for name in off if name != winner}
    second = min(others, key=lambda name: others[name])
    return f"{told}: the mean error of {second} is {others[second]:.3g} times as large"


def _points(sizes_bytes: Sequence[int], seconds: Sequence[float], least: int) -> tuple[Floats, Floats]:
    if len(sizes_bytes) != len(seconds):
        message = f"{len(sizes_bytes)} sizes and {len(seconds)} times do not belong together"
        raise AnalysisError(message)
    sizes, times = np.asarray(sizes_bytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    if len(sizes) < least:
        message = f"{len(sizes)} sizes are too few; this takes at least {least}"
        raise AnalysisError(message)
    if not ((np.diff(sizes) > 0).all() and sizes[0] > 0):
        message = "the sizes are not positive and ascending; each is wanted once, in order"
        raise AnalysisError(message)
    if not (np.isfinite(times).all() and (times > 0).all()):
        message = (
            f"a time of {times[~(np.isfinite(times) & (times > 0))][0]} s is impossible; times are positive and finite"
        )
        raise AnalysisError(message)
    return sizes, times
