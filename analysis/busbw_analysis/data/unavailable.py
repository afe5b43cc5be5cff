"""The record that replaces a result that cannot be given, with the reason."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Why there is no model, peak, fit, plateau or library choice.

    code: short stable word for scripts and tests
    reason: explanation for a reader; its wording may change
    """

    code: str
    reason: str
