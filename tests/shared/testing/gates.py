"""Gates on launches whose truth is known: resampled from real launches, or drawn."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from busbw_analysis.diagnosis.hypothesis_tests import estimate
from busbw_analysis.gate.launch_tests import BaselineTest, LimitTest, scatter_between
from busbw_analysis.gate.metrics import Measured
from busbw_analysis.gate.rules import Rule
from busbw_analysis.gate.verdicts import Gate, judged

Floats = npt.NDArray[np.float64]

REAL: Final = Path(__file__).parents[2] / "data/launches.json"
"""Medians of real launches: of each run and launch, the time (ns) of every size of all_reduce."""

BY_BASELINE: Final = Rule(metric="ratio_to_baseline", at_most="1.05", detect="0.1")
BY_TIME: Final = Rule(metric="time", at_most="1s")


def real_launches(path: Path = REAL) -> Floats:
    """Logarithms of the times of real launches: runs × launches × sizes."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return np.log(np.asarray(document["times_ns"], dtype=np.float64))


def bands(logs: Floats, sizes: Sequence[Sequence[int]]) -> Floats:
    """The logarithms (… × sizes) by band, each the mean over its sizes."""
    return np.stack([logs[..., list(members)].mean(axis=-1) for members in sizes], axis=-1)


def against_baseline(before: Floats, after: Floats) -> Gate:
    """A gate on logarithms of launches × bands against a baseline of the same shape, or of runs × launches × bands."""
    runs = before if before.ndim == 3 else before[np.newaxis]
    tests = []
    for band in range(after.shape[-1]):
        of_runs = [_launches(f"before {run}", logs[:, band]) for run, logs in enumerate(runs)]
        first = {launch: time for launches in of_runs for launch, time in launches.items()}
        row = estimate(first, _launches("after", after[:, band]))
        tests.append(BaselineTest(f"band {band}", row, BY_BASELINE.limit, len(runs), scatter_between(of_runs)))
    return judged([(BY_BASELINE, Measured(tuple(tests)))])


def _launches(run: str, logs: Floats) -> dict[tuple[str, int], float]:
    return {(run, launch): float(time) for launch, time in enumerate(np.exp(logs))}


def against_limits(logs: Floats, limits: Floats) -> Gate:
    """A gate on logarithms of launches × cases against the logarithm of a limit for each case."""
    tests = [
        LimitTest(f"case {case}", tuple(np.exp(column).tolist()), float(np.exp(limit)), 1)
        for case, (column, limit) in enumerate(zip(logs.T, limits, strict=True))
    ]
    return judged([(BY_TIME, Measured(tuple(tests)))])


def failed(gates: int, draw: Callable[[np.random.Generator], Gate], seed: int = 1) -> int:
    """How many of so many gates fail."""
    generator = np.random.default_rng(seed)
    return sum(draw(generator).state == "fail" for _ in range(gates))


def resampled(logs: Floats, launches: int, generator: np.random.Generator) -> Floats:
    """Launches (× the rest) drawn from all real ones, with all their numbers."""
    whole = logs.reshape(-1, logs.shape[-1])
    return whole[generator.integers(len(whole), size=launches)]


def scaled(logs: Floats, scatter: float) -> Floats:
    """The launches with this standard deviation of every column, and the correlations that they have."""
    whole = logs.reshape(-1, logs.shape[-1])
    return np.asarray((whole - whole.mean(axis=0)) / whole.std(axis=0) * scatter)
