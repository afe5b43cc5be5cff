"""How wrong a fit is on what was kept from it, and whether that is little enough: the same words for every kind."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

HeldOut = Literal["every second size", "the largest number of ranks", "each launch in turn"]

VALID_SIZES, VALID_RANKS, VALID_LAUNCHES = 0.10, 0.20, 0.10
"""Median relative errors of held-out data up to which a fit, or a prediction, counts as validated."""

_VALID: Final[Mapping[HeldOut, float]] = {
    "every second size": VALID_SIZES,
    "the largest number of ranks": VALID_RANKS,
    "each launch in turn": VALID_LAUNCHES,
}


@dataclass(frozen=True, slots=True)
class Validation:
    """Relative errors on data that were left out of the fit. ``passed`` is None where nothing could be held out;
    ``note`` says why, or what the numbers mean.
    """

    held_out: HeldOut
    median_error: float | None
    worst_error: float | None
    count: int
    passed: bool | None
    note: str


def validation(held_out: HeldOut, errors: npt.NDArray[np.float64] | None, note: str, why_not: str) -> Validation:
    """What ``errors`` on held-out data amount to; ``why_not`` is said where there are none."""
    if errors is None or not len(errors):
        return Validation(held_out, None, None, 0, None, f"not validated: {why_not}")
    middle = float(np.median(errors))
    passed = middle <= _VALID[held_out]
    words = "validated" if passed else "not validated"
    return Validation(held_out, middle, float(errors.max()), len(errors), passed, f"{words}{': ' * bool(note)}{note}")
