"""What a campaign of hostile inputs found."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """tried: inputs; failures: one line each (how to repeat it, what happened); slowest_seconds: of one input."""

    tried: int
    failures: tuple[str, ...]
    slowest_seconds: float
