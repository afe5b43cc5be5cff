"""What other estimators make of the published curves: why a curve is fitted as it is. Nothing is asserted.

    PYTHONPATH=tests/models .venv/bin/python tests/bench/estimators.py

Ordinary least squares over all sizes, log-log interpolation between sizes, and the pieces of the fit again with a
robust loss.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
from published_tool import fit_of
from scipy.optimize import least_squares

from busbw_analysis.fitting.curve import Fit, Segment
from busbw_analysis.fitting.published import published_curves

Floats = npt.NDArray[np.float64]

SCALE: Final = 0.1
"""From which error of ln T on a size counts in proportion and not by its square."""


def ordinary(sizes: Floats, times: Floats) -> Floats:
    """Relative errors of one line by least squares of the times themselves."""
    columns = np.stack([np.ones_like(sizes), sizes], axis=1)
    line = np.linalg.lstsq(columns, times, rcond=None)[0]
    errors: Floats = np.abs(columns @ line / times - 1)
    return errors


def interpolated(sizes: Floats, times: Floats) -> Floats:
    """Relative errors at every second size, from a straight line between its neighbours in the logarithms."""
    tested = np.arange(1, len(sizes) - 1, 2)
    kept = np.setdiff1d(np.arange(len(sizes)), tested)
    found = np.exp(np.interp(np.log(sizes[tested]), np.log(sizes[kept]), np.log(times[kept])))
    return np.abs(found / times[tested] - 1)


def robust(piece: Segment, sizes: Floats, times: Floats) -> tuple[float, float]:
    """α and β of ``piece`` by the soft-l1 loss of ln T, over those of the fit."""
    inside = (sizes >= piece.first_bytes) & (sizes <= piece.last_bytes)
    start = np.maximum([piece.alpha_seconds, piece.beta_seconds_per_byte], [1e-9, 1e-18])

    def errors(logs: Floats) -> Floats:
        alpha, beta = np.exp(logs)
        return np.asarray(np.log((alpha + beta * sizes[inside]) / times[inside]))

    found = np.exp(least_squares(errors, np.log(start), loss="soft_l1", f_scale=SCALE).x)
    return float(found[0] / start[0]), float(found[1] / start[1])


def of_curve(name: str, fit: Fit) -> str:
    """One line of the table."""
    sizes, times = np.asarray(fit.sizes_bytes, dtype=np.float64), np.asarray(fit.times_ns) / 1e9
    between = interpolated(sizes, times)
    ours = fit.held_out_sizes
    held_out = "–" if ours.median_error is None else f"{ours.median_error:.1%}/{ours.worst_error:.1%}"
    alpha, _ = robust(fit.segments[0], sizes, times)
    _, beta = robust(fit.segments[-1], sizes, times)
    return (
        f"  {name:<18} {ordinary(sizes, times).max():>9.0%} {fit.max_residual:>8.1%} {held_out:>12} "
        f"{float(np.median(between)):>7.1%}/{between.max():<6.1%} {alpha - 1:>+7.1%} {1 / beta - 1:>+6.1%}"
    )


def main() -> None:
    """All published curves."""
    print("# curve              one line      fit       fit,  interpolated,         α,   rate")
    print("#                   worst size             held-out median/worst    soft-l1 : fit")
    for one in published_curves():
        print(of_curve(one.name, fit_of(one)))


if __name__ == "__main__":
    main()
