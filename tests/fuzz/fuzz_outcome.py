"""What a campaign of hostile inputs found."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Outcome:
    """tried: inputs; failures: one line each (how to repeat it, what happened); slowest_seconds: of one input;
    of_each: inputs by what was attacked, where there are kinds.
    """

    tried: int
    failures: tuple[str, ...]
    slowest_seconds: float
    of_each: Mapping[str, int] = field(default_factory=dict)
