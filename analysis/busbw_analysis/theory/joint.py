"""One set of parameters for many curves: c0, α, β (or 1/R) and γ over several ops and rank counts, and how far they
hold.

T = c0 + rounds · α + sent · β + added · γ, or with moved / R in place of sent · β where all ranks share one host.
Relative errors and non-negative coefficients, as in ``fit``; what the data cannot separate is not told apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from busbw.errors import AnalysisError
from busbw_analysis.theory.design import PARAMETERS, Observation, Parameter, Regime, amounts
from busbw_analysis.theory.terms import Term

__all__ = [
    "PARAMETERS",
    "Estimate",
    "Joint",
    "Observation",
    "Parameter",
    "Regime",
    "Rival",
    "Term",
    "Together",
    "Validation",
]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A parameter and both ends of its 95 % interval, which are None below 5 launches. ``at_bound``: the fit would have
    liked it to be negative.
    """

    value: float
    low: float | None
    high: float | None
    at_bound: bool


@dataclass(frozen=True, slots=True)
class Together:
    """Parameters that the data do not tell apart. ``weights`` says what of them is known, their weighted sum: alpha 1
    and per_call 0.5 for α + c0/2; ``estimate`` is that sum, None where nothing is known. ``needs``: what to measure.
    """

    parameters: tuple[Parameter, ...]
    weights: tuple[float, ...]
    estimate: Estimate | None
    reason: str
    needs: str


@dataclass(frozen=True, slots=True)
class Rival:
    """One algorithm that could be behind an op, and its median relative error on the largest number of ranks, of which
    the fit knew nothing.
    """

    algorithm: str
    error: float


@dataclass(frozen=True, slots=True)
class Validation:
    """Relative errors on data that were left out of the fit. ``passed`` is None where nothing could be held out;
    ``note`` says why, or what the numbers mean.
    """

    held_out: Literal["every second size", "the largest number of ranks", "each launch in turn"]
    median_error: float | None
    worst_error: float | None
    count: int
    passed: bool | None
    note: str


@dataclass(frozen=True, slots=True)
class Joint:
    """The outcome. ``parameters`` has only those that the data separate; the others are in ``together``.

    ``algorithms`` says which algorithm explains each op of the library best, ``terms`` the same as a Term, ``ties``
    which others explain it as well, ``rivals`` how all of them did; curves by hand have no choice and are not in it.
    ``draws`` are the coefficients of every resample of launches, in the order of PARAMETERS, for the interval of
    whatever is computed from them; empty below 5 launches. ``unknown`` are the directions in which coefficients may
    be changed and no observation would notice.
    """

    regime: Regime
    backend: str
    parameters: Mapping[Parameter, Estimate]
    together: tuple[Together, ...]
    algorithms: Mapping[str, str]
    ties: Mapping[str, tuple[str, ...]]
    rivals: Mapping[str, tuple[Rival, ...]]
    terms: Mapping[str, Term]
    validations: tuple[Validation, ...]
    notes: tuple[str, ...]
    interval_note: str
    observations: tuple[Observation, ...]
    coefficients: tuple[float, ...]
    draws: tuple[tuple[float, ...], ...]
    unknown: tuple[tuple[float, ...], ...]

    def seconds(self, term: Term, ranks: int, hosts: int, size_bytes: float) -> float:
        """What one call should take by ``term``. Raises AnalysisError when that depends on parameters that the data
        cannot separate.
        """
        row = np.asarray(amounts(term, ranks, hosts, size_bytes))
        parts = row * np.asarray(self.coefficients)
        for direction in self.unknown:
            # How much the prediction would move where the observations stay: it has to be nothing.
            change = row * np.asarray(direction)
            if abs(change.sum()) > 1e-6 * np.abs(change).max():
                reasons = "; ".join(one.reason + ": " + one.needs for one in self.together)
                message = (
                    f"{term.op} by {term.algorithm} on {ranks} ranks cannot be predicted from these data: {reasons}"
                )
                raise AnalysisError(message)
        return float(parts.sum())

    def interval(self, term: Term, ranks: int, hosts: int, size_bytes: float) -> tuple[float, float] | None:
        """Both ends of the 95 % interval of ``seconds``, from the resamples of launches; None without them."""
        if not self.draws:
            return None
        times = np.asarray(self.draws) @ np.asarray(amounts(term, ranks, hosts, size_bytes))
        low, high = np.quantile(times, (0.025, 0.975))
        return float(low), float(high)
