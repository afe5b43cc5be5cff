"""Change points of a series of values: where its level steps, how sure that is, and within which runs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

_FEWEST: Final = 3
_LEAST_P: Final = 1e-4


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
    cuts = [0, *(at for at, _ in _cuts(logs, 0)), len(logs)]
    p_values = dict(_cuts(logs, 0))
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
    places = range(_FEWEST, len(logs) - _FEWEST + 1)
    if not places:
        return
    scores = [abs(logs[:at].mean() - logs[at:].mean()) * math.sqrt(at * (len(logs) - at) / len(logs)) for at in places]
    at = places[int(np.argmax(scores))]
    spread = math.sqrt((logs[:at].var() * at + logs[at:].var() * (len(logs) - at)) / max(1, len(logs) - 2))
    p_value = min(1.0, len(logs) * math.erfc(max(scores) / max(spread, 1e-9) / math.sqrt(2)))
    if p_value < _LEAST_P:
        yield from _cuts(logs[:at], offset)
        yield offset + at, p_value
        yield from _cuts(logs[at:], offset + at)
