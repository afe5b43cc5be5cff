"""What the hardware allows: the roof over a curve, and what exactly 100 % means."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Roof:
    """The most that this hardware allows, in B/s at any size; ``busbw`` is None where the op has none.

    ``denominator`` is the sentence behind every percentage: what, which direction, measured or nominal, from where.
    ``measured`` tells a rate of this run from one on a datasheet.
    """

    algbw: float
    busbw: float | None
    denominator: str
    measured: bool


@dataclass(frozen=True, slots=True)
class NoRoof:
    """No roof is known, and why. A percentage of nothing is not printed."""

    reason: str
