"""The error of a fit or prediction on held-out data, and whether it is small enough."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

VALID_SIZES, VALID_RANKS, VALID_LAUNCHES = 0.10, 0.20, 0.10
"""Largest median relative error on held-out data with which a fit or prediction counts as validated."""


@dataclass(frozen=True, slots=True)
class Validation:
    """Relative errors on held-out data.

    held_out: the held-out data; or, for a prediction without errors, why there are none.
    median_error, worst_error, count: None and 0 if nothing could be held out.
    passed: whether the errors are small enough; None if there are none.
    note: why nothing was held out, or what the numbers mean.
    no_test_of: parts of the question that the held-out data do not cover; then ``passed`` is false.
    """

    held_out: str
    median_error: float | None
    worst_error: float | None
    count: int
    passed: bool | None
    note: str
    no_test_of: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The result as one line."""
        if self.median_error is None or self.worst_error is None:
            return self.test
        return f"{self.test}; off by {self.median_error:.1%} (median) and {self.worst_error:.1%} (worst)"

    @property
    def test(self) -> str:
        """What was held out, without the errors."""
        verdict, tested = "validated" if self.passed else "not validated", "tested on " if self.count else ""
        beyond = f"; this does not test {' or '.join(self.no_test_of)}" if self.no_test_of and self.count else ""
        return f"{verdict}: {tested}{self.held_out}{beyond}"

    def asked_for(self, *beyond: str) -> "Validation":
        """The same result for a question that goes ``beyond`` the held-out data."""
        return replace(self, no_test_of=(*self.no_test_of, *beyond), passed=self.passed and not beyond)


def validation(
    held_out: str, errors: npt.NDArray[np.float64] | Sequence[float] | None, limit: float, why_not: str = ""
) -> Validation:
    """The validation from ``errors`` on held-out data, passed if their median is at most ``limit``; ``why_not`` is the
    reason if there are none.
    """
    if errors is None or not len(errors):
        return Validation(held_out, None, None, 0, None, f"not validated: {why_not}")
    middle = float(np.median(errors))
    note = "validated" if middle <= limit else "not validated"
    return Validation(held_out, middle, float(max(errors)), len(errors), middle <= limit, note)
