"""What theory promises: the cost of every algorithm that the backends are known to run, as one literal table."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a cost model says for one size: ns per call and B/s, by which algorithm, with parameters from where."""

    size_bytes: int
    time_ns: float
    busbw: float | None
    algorithm: str
    formula: str
    source: str
    parameters: str


@dataclass(frozen=True, slots=True)
class NoModel:
    """No prediction, and why."""

    reason: str
