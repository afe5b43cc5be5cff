"""The distribution of all samples of a run with a duration, from windows that only have quantiles."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from busbw.runs.records import QUANTILES, Window
from busbw.statistics import autocorrelation_times, median_interval

_PROBABILITIES: Final = (0.0, *QUANTILES, 1.0)
_GRID: Final = 2001


def statistics_of(windows: Sequence[Window]) -> dict[str, float]:
    """Columns of ``LaunchTable`` over all samples of ``windows``, in ns per call; the interval has the relative
    width of that of the windows' medians.

    Between the quantiles of a window its samples count as evenly spread.
    """
    counts = np.asarray([window.count for window in windows], dtype=np.float64)
    spreads = np.asarray([(window.min_ns, *window.quantiles_ns, window.max_ns) for window in windows])
    # A grid that is as fine as the samples are dense.
    values = np.unique(np.quantile(spreads, np.linspace(0, 1, _GRID)))
    below = sum(
        count * np.interp(values, spread, _PROBABILITIES) for count, spread in zip(counts, spreads, strict=True)
    )
    median, p5, p95, p99 = np.interp((0.5, 0.05, 0.95, 0.99), below / counts.sum(), values).tolist()
    medians = spreads[:, _PROBABILITIES.index(0.5)]
    interval = median_interval(medians, tau=float(autocorrelation_times(medians[np.newaxis])[0]))
    return {
        "median_ns": median,
        "mean_ns": float(counts @ [window.mean_ns for window in windows] / counts.sum()),
        "p5_ns": p5,
        "p95_ns": p95,
        "p99_ns": p99,
        "low_ns": np.nan if interval.low is None else median * interval.low / interval.median,
        "high_ns": np.nan if interval.high is None else median * interval.high / interval.median,
    }
