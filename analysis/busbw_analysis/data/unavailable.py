"""The record that replaces a result that cannot be given, with the reason."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Why there is no model, peak, fit, plateau or library choice.

    code: short stable word for scripts and tests
    reason: explanation for a reader; its wording may change
    """

    code: str
    reason: str


UNKNOWN_OP: Final = Unavailable("op-not-known", "this version of busbw does not know the operation")
"""For an op that another version of busbw measured."""
