"""Change points of a series of values: where its level steps, how sure that is, and within which runs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

_FEWEST: Final = 3
_LEAST_P: Final = 1e-4
_LEAST_STEP: Final = 0.01


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the level.

    at: index of the first value after the step
    before, after: medians of the segments beside it
    low, high: indices between which the step lies with 95 %
    p_value: of the step
    """

    at: int
    before: float
    after: float
    low: int
    high: int
    p_value: float


def steps_of(values: Sequence[float]) -> tuple[Step, ...]:
    """The steps of positive ``values``, ordered in time, one per run."""
    logs = np.log(np.asarray(values, dtype=np.float64))
    p_values = dict(_cuts(logs, 0))
    cuts = [0, *p_values, len(logs)]
    return tuple(
        Step(
            at=at,
            before=float(np.median(np.exp(logs[first:at]))),
            after=float(np.median(np.exp(logs[at:end]))),
            low=at,
            high=at,
            p_value=p_values[at],
        )
        for first, at, end in zip(cuts, cuts[1:], cuts[2:], strict=False)
    )


def _cuts(logs: npt.NDArray[np.float64], offset: int) -> Iterator[tuple[int, float]]:
    """Binary segmentation by the t statistic of the best cut."""
    count = len(logs)
    places = np.arange(_FEWEST, count - _FEWEST + 1)
    if not len(places):
        return
    sums = np.cumsum(logs)[places - 1]
    means = sums / places, (logs.sum() - sums) / (count - places)
    scores = np.abs(means[0] - means[1]) * np.sqrt(places * (count - places) / count)
    at = int(places[np.argmax(scores)])
    spread = math.sqrt((logs[:at].var() * at + logs[at:].var() * (count - at)) / max(1, count - 2))
    p_value = min(1.0, count * math.erfc(float(scores.max()) / max(spread, 1e-9) / math.sqrt(2)))
    if p_value < _LEAST_P and abs(logs[:at].mean() - logs[at:].mean()) > _LEAST_STEP:
        yield from _cuts(logs[:at], offset)
        yield offset + at, p_value
        yield from _cuts(logs[at:], offset + at)
