"""Separate runs of the parts of a training step, which are measured after its samples."""

from collections.abc import Callable
from dataclasses import dataclass

Interval = tuple[str, int, int]
"""One interval of a step: ``compute`` or the name of a call, start and end, ns of a clock."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Separate runs of the parts of a training step. All ranks call each together, after an untimed ``prepare``.

    step, compute, communicate: the whole step, the step without communication, and its communication only.
    timeline: runs the step once more and returns its intervals by the given clock.
    profile: runs the step once more and returns the trace of the library's own profiler.
    sent: (op, ranks of the group, S in bytes) → calls of this rank.
    memory: peak bytes, bytes of weights and of gradients on this rank (None: not measured).
    steps: training steps in each of step, compute and communicate.
    The other fields are as in ``records.StepParts``.
    """

    prepare: Callable[[], object]
    step: Callable[[], object]
    compute: Callable[[], object]
    communicate: Callable[[], object]
    timeline: Callable[[Callable[[], int]], list[Interval]]
    profile: Callable[[], str]
    sent: dict[tuple[str, int, int], int]
    memory: tuple[int, int, int] | None
    parameters: int
    flop: int
    tokens: int
    dropped: int
    steps: int = 1
    gaps: tuple[float, ...] = ()
