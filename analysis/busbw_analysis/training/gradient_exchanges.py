"""Methods of gradient exchange compared with the exact one: what each gains in steps per second, and loses in progress
per step.

Gaps are f(W) − f(W*), relative to that of the initial weights 0. The gap over time is the gap over steps, with the
measured time of a step.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from busbw.ops.exchanges import METHODS
from busbw_analysis.data.grouped import grouped
from busbw_analysis.training.steps import Trained

EXACT: Final = next(iter(METHODS))
TARGET: Final = 0.01
"""The relative gap that counts as converged."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """A training compared with ``exact``, the same training by the exact method.

    budget_ns: time for which all compared trainings ran at least.
    """

    step: Trained
    exact: Trained
    budget_ns: float

    @property
    def name(self) -> str:
        """The exchange method."""
        return self.step.workload.exchange or EXACT

    @property
    def gap(self) -> float:
        """After all steps."""
        return gaps(self.step)[-1]

    @property
    def gap_in_budget(self) -> float:
        """After the same time as the others."""
        return gaps(self.step)[int(self.budget_ns / self.step.time_ns * _NEARLY)]

    @property
    def needed(self) -> int | None:
        """Steps to the target; None if it was not reached."""
        return next((step for step, gap in enumerate(gaps(self.step)) if gap <= TARGET), None)

    @property
    def needed_ns(self) -> float | None:
        """Time to the target."""
        return None if self.needed is None else self.needed * self.step.time_ns

    @property
    def gained(self) -> float:
        """Steps per second over those of the exact method."""
        return self.exact.time_ns / self.step.time_ns

    @property
    def certain(self) -> bool:
        """Whether the intervals of the two step times are disjoint."""
        ours, theirs = (self.step.low_ns, self.step.high_ns), (self.exact.low_ns, self.exact.high_ns)
        if ours[0] is None or ours[1] is None or theirs[0] is None or theirs[1] is None:
            return False
        return ours[1] < theirs[0] or theirs[1] < ours[0]

    @property
    def lost(self) -> float | None:
        """Steps to the target over those of the exact method."""
        exact = Exchanged(self.exact, self.exact, self.budget_ns).needed
        return None if self.needed is None or not exact else self.needed / exact

    @property
    def slower(self) -> float | None:
        """Time to the target over that of the exact method."""
        return None if self.lost is None else self.lost / self.gained


_NEARLY: Final = 1 + 1e-9
"""Rounding allowance, so that a budget of exactly all steps includes the last one."""


def gaps(step: Trained) -> Sequence[float]:
    """Relative gaps: before the first step and after each step."""
    return [gap / step.gaps[0] for gap in step.gaps]


def exchanged(steps: Iterable[Trained]) -> tuple[tuple[Exchanged, ...], ...]:
    """Trainings of the same problem on the same number of ranks with the same waits, the exact one first. Groups
    without an exact one, or with nothing else, are left out.
    """
    trained = (step for step in steps if step.gaps and step.workload.exchange is not None)
    alike = grouped(trained, lambda step: (step.ranks, msgspec.structs.replace(step.workload, exchange=EXACT)))
    groups = []
    for group in alike.values():
        exact = next((step for step in group if step.workload.exchange == EXACT), None)
        if exact is None or len(group) == 1:
            continue
        budget = min(step.steps * step.time_ns for step in group)
        ordered = sorted(group, key=lambda step: step is not exact)
        groups.append(tuple(Exchanged(step, exact, budget) for step in ordered))
    return tuple(groups)
