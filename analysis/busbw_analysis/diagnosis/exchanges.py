"""Ways to exchange gradients, held against the exact one: what each gains in a second, and loses in a step.

Gaps are f(W) − f(W*) over that of the weights 0, which all begin with. The gap over time is that over steps with the
step that was timed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from busbw.ops.exchanges import METHODS
from busbw_analysis.data.grouped import grouped
from busbw_analysis.diagnosis.steps import Trained

EXACT: Final = next(iter(METHODS))
TARGET: Final = 0.01
"""Of the first gap: how near to the optimum a training is to come."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """A training beside ``exact``, the same by the exact method. ``budget_ns``: a time for which all that are compared
    were trained.
    """

    step: Trained
    exact: Trained
    budget_ns: float

    @property
    def name(self) -> str:
        """How ranks exchange."""
        return self.step.workload.exchange or EXACT

    @property
    def gap(self) -> float:
        """Behind all steps."""
        return gaps(self.step)[-1]

    @property
    def gap_in_budget(self) -> float:
        """After the same time."""
        return gaps(self.step)[int(self.budget_ns / self.step.time_ns * _NEARLY)]

    @property
    def needed(self) -> int | None:
        """Steps to the target; None: more than there were."""
        return next((step for step, gap in enumerate(gaps(self.step)) if gap <= TARGET), None)

    @property
    def needed_ns(self) -> float | None:
        """The time of these steps."""
        return None if self.needed is None else self.needed * self.step.time_ns

    @property
    def gained(self) -> float:
        """Steps in a second over those of the exact method."""
        return self.exact.time_ns / self.step.time_ns

    @property
    def certain(self) -> bool:
        """Whether the intervals of the two times are apart."""
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
        """The time to the target over that of the exact method."""
        return None if self.lost is None else self.lost / self.gained


_NEARLY: Final = 1 + 1e-9
"""All steps, where the budget is just their time."""


def gaps(step: Trained) -> Sequence[float]:
    """Before the first step and behind every one, of the first."""
    return [gap / step.gaps[0] for gap in step.gaps]


def exchanged(steps: Iterable[Trained]) -> tuple[tuple[Exchanged, ...], ...]:
    """Trainings of the same problem on as many ranks with the same waits, each with the exact one first; none where
    there is no exact one, or nothing else.
    """
    trained = (one for one in steps if one.gaps and one.workload.exchange is not None)
    alike = grouped(trained, lambda one: (one.ranks, msgspec.structs.replace(one.workload, exchange=EXACT)))
    found = []
    for group in alike.values():
        exact = next((one for one in group if one.workload.exchange == EXACT), None)
        if exact is None or len(group) == 1:
            continue
        budget = min(one.steps * one.time_ns for one in group)
        ordered = sorted(group, key=lambda one: one is not exact)
        found.append(tuple(Exchanged(one, exact, budget) for one in ordered))
    return tuple(found)
