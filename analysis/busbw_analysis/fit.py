"""How time grows with size: the segmented α–β fit of one curve, its error, and what it predicts."""

from dataclasses import dataclass
from typing import Literal

from busbw.errors import AnalysisError


@dataclass(frozen=True, slots=True)
class Segment:
    """T(S) = ``alpha_seconds`` + ``beta_seconds_per_byte`` · S for the sizes from ``first_bytes`` to ``last_bytes``.

    ``at_bound`` names the coefficients that the fit would have liked to be negative: ``alpha``, ``beta``.
    """

    alpha_seconds: float
    beta_seconds_per_byte: float
    first_bytes: int
    last_bytes: int
    at_bound: tuple[Literal["alpha", "beta"], ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One number of segments that was tried: its leave-one-size-out log error, the error of that, and its BIC."""

    segments: int
    held_out_error: float
    standard_error: float
    bic: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """Both ends of a 95 % interval from resampling launches."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class FitIntervals:
    """How sure the fit is, from the cluster bootstrap over launches; ``resamples`` refits."""

    alpha_seconds: Bounds
    algbw: Bounds | None
    resamples: int


@dataclass(frozen=True, slots=True)
class Validation:
    """Relative errors on the sizes that were left out when every second one was; ``passed``: median ≤ 10 %."""

    median_error: float
    worst_error: float
    sizes: int
    passed: bool


@dataclass(frozen=True, slots=True)
class Predicted:
    """Time of one size in ns: by a segment, by interpolation, or beyond the largest size (``extrapolated``)."""

    time_ns: float
    how: Literal["segment", "interpolated", "extrapolated"]


@dataclass(frozen=True, slots=True)
class Fit:
    """A curve in a few numbers. ``alpha_seconds`` is the intercept of the first segment; ``algbw`` and ``busbw`` (B/s)
    the rates that the last segment tends to (None where it has no slope or there is no wire); ``half_size_bytes`` the
    size at which half of that rate is reached. Residuals are |T̂ − T| / T. ``intervals`` is None unless there are
    launches enough; ``interval_note`` says so. ``validation`` is None when too few sizes are left.
    """

    sizes_bytes: tuple[int, ...]
    times_ns: tuple[float, ...]
    segments: tuple[Segment, ...]
    breaks_bytes: tuple[float, ...]
    alpha_seconds: float
    algbw: float | None
    busbw: float | None
    half_size_bytes: float | None
    mean_residual: float
    max_residual: float
    candidates: tuple[Candidate, ...]
    interpolates: bool
    intervals: FitIntervals | None
    interval_note: str
    validation: Validation | None
    validation_note: str

    def predict(self, size_bytes: float) -> Predicted:
        """The time of ``size_bytes``."""
        raise NotImplementedError(size_bytes)


@dataclass(frozen=True, slots=True)
class Refused:
    """No fit, and why."""

    reason: str


__all__ = ["AnalysisError"]
