"""Runs with a duration: cases are measured in rounds until it is over, and most samples are reduced at once.

The blocks of the plan are spread over the duration: one in each of as many equal parts, at a moment that the seed
draws. They keep their samples. All other blocks are only counted in windows, of which a case has at most
``MOST_WINDOWS``, so that neither memory nor disk grow with the duration.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from busbw.runs.plan import Plan
from busbw.runs.progress import CaseBlock
from busbw.runs.records import QUANTILES, Case, CounterDelta, Measurement, Window
from busbw.system.counters import Place

MOST_WINDOWS: Final = 2048
"""Windows of a case: a tenth of them has a slow spell that recurs every 20 of them, 5 minutes of 8 hours."""
_DIGITS: Final = 3


def rounds(
    plan: Plan, cases: Sequence[Case], lacking: Sequence[CaseBlock], void: Collection[Case], now_ns: Callable[[], int]
) -> Iterator[tuple[CaseBlock, bool]]:
    """The blocks to measure, each with whether it is one of the plan: of cases that are not repeated, rounds until the
    duration is over, then what is left of ``lacking``.

    cases: those that are repeated
    void: cases that failed, which the caller adds to
    now_ns: time of the run, the same on all ranks; collective
    """
    count, duration_ns = plan.timing.blocks, plan.duration_ns
    moments = {
        (case, block): (block + random.Random(f"{plan.seed} {place} {block}").random()) / count * duration_ns
        for place, case in enumerate(cases)
        for block in range(count)
    }
    repeated = frozenset(cases)
    yield from ((block, True) for block in lacking if block[0] not in repeated)
    pending = {block: None for block in lacking if block[0] in repeated}
    number = 0
    while (left := [case for case in cases if case not in void]) and now_ns() < duration_ns:
        random.Random(f"{plan.seed} {number}").shuffle(left)
        number += 1
        for case in left:
            now = now_ns()
            waiting = (block for block in range(count) if (case, block) in pending and moments[case, block] <= now)
            due = next(waiting, None)
            if due is not None:
                del pending[case, due]
            yield (case, count if due is None else due), due is not None
    yield from ((block, True) for block in pending)


@dataclass(slots=True)
class _Open:
    """A window that is being filled. ``counters``: how far each counter of a host has moved."""

    begin_ns: int
    started: str
    times: list[npt.NDArray[np.float64]] = field(default_factory=list)
    counters: dict[str, Counter[Place]] = field(default_factory=dict)

    def count(self, block: Measurement) -> None:
        """Add the counters of a block."""
        for host in block.conditions:
            for moved in host.counters:
                self.counters.setdefault(host.host, Counter())[moved.name, moved.device, moved.port] += moved.delta


@dataclass(slots=True)
class Windows:
    """The windows of a launch, on every rank.

    least_ns: time after which a window is written
    write: takes a window
    """

    launch: int
    least_ns: int
    write: Callable[[Window], None]
    _open: dict[Case, _Open] = field(default_factory=dict)

    def add(self, block: Measurement, begin_ns: int, end_ns: int) -> None:
        """Count a block that was measured from ``begin_ns`` to ``end_ns``, and write its window if that is full."""
        opened = self._open.setdefault(block.case, _Open(begin_ns, block.started))
        opened.times.append(np.concatenate([group.slowest_ns for group in block.groups]) / block.calls)
        opened.count(block)
        if end_ns - opened.begin_ns >= self.least_ns:
            self.write(self._closed(block.case, end_ns))

    def close(self, end_ns: int) -> None:
        """Write the windows that are not full."""
        for case in tuple(self._open):
            self.write(self._closed(case, end_ns))

    def _closed(self, case: Case, end_ns: int) -> Window:
        opened = self._open.pop(case)
        times = np.concatenate(opened.times)
        least, mean, most, *quantiles = np.round(
            [times.min(), times.mean(), times.max(), *np.quantile(times, QUANTILES)], _DIGITS
        ).tolist()
        return Window(
            case=case,
            launch=self.launch,
            begin_ns=opened.begin_ns,
            end_ns=end_ns,
            started=opened.started,
            blocks=len(opened.times),
            count=len(times),
            min_ns=least,
            mean_ns=mean,
            max_ns=most,
            quantiles_ns=tuple(quantiles),
            counters={
                host: tuple(
                    CounterDelta(name=name, device=device, port=port, delta=delta)
                    for (name, device, port), delta in moved.items()
                )
                for host, moved in opened.counters.items()
            },
        )
