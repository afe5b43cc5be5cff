"""What is not known, and why: one record for every answer that cannot be given."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unavailable:
    """No model, no peak, no fit, no plateaus, no choice of a library. ``code`` is a short stable word for scripts and
    tests, ``reason`` says why in words, which may change.
    """

    code: str
    reason: str
