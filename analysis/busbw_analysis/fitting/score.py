"""How wrong a fit or a prediction is on data that were kept from it, and whether that is little enough."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

VALID_SIZES, VALID_RANKS, VALID_LAUNCHES = 0.10, 0.20, 0.10
"""Median relative errors of held-out data up to which a fit, or a prediction, counts as validated."""


@dataclass(frozen=True, slots=True)
class Validation:
    """Relative errors on data that were kept from a fit or a prediction.

    held_out: which data; where there are no errors of a prediction, why there are none.
    median_error, worst_error, count: None and 0 where nothing could be held out.
    passed: whether the errors are small enough; None where there are none.
    note: why nothing was held out, or what the numbers mean.
    no_test_of: what was asked for and these data say nothing of: then it has not passed, however small the errors.
    """

    held_out: str
    median_error: float | None
    worst_error: float | None
    count: int
    passed: bool | None
    note: str = ""
    no_test_of: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The whole as a line."""
        verdict = "validated" if self.passed else "not validated"
        if self.median_error is None or self.worst_error is None:
            return f"{verdict}: {self.held_out}"
        errors = f"were off by {self.median_error:.1%} (median) and {self.worst_error:.1%} (worst)"
        beyond = f"; that is no test of {', nor of '.join(self.no_test_of)}" if self.no_test_of else ""
        return f"{verdict}: {self.held_out} {errors}{beyond}"

    def asked_for(self, *beyond: str) -> "Validation":
        """The same for a question that goes ``beyond`` what was tested."""
        return replace(self, no_test_of=(*self.no_test_of, *beyond), passed=self.passed and not beyond)


def validation(
    held_out: str,
    errors: npt.NDArray[np.float64] | Sequence[float] | None,
    limit: float,
    note: str = "",
    why_not: str = "",
) -> Validation:
    """What ``errors`` on held-out data amount to, of which the median may be ``limit``; ``why_not`` is said where there
    are none.
    """
    if errors is None or not len(errors):
        return Validation(held_out, None, None, 0, None, f"not validated: {why_not}")
    middle = float(np.median(errors))
    passed = middle <= limit
    words = "validated" if passed else "not validated"
    return Validation(held_out, middle, float(max(errors)), len(errors), passed, f"{words}{': ' * bool(note)}{note}")
