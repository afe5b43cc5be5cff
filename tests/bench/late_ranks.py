"""How often the right rank is called late, and how often a healthy one: over many short launches of real Gloo ranks.

A trial is one launch of fresh processes with three small cases, or one, judged by the analysis as any other run. In a
faulty trial one rank leaves 30 % of the barriers, drawn at random, 2 ms after the others. Nothing is asserted.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from busbw.backends import backend_named
from busbw.backends.base import Backend
from busbw.backends.faults import DelayingBackend, wrapped
from busbw.launch.local import run_local
from busbw.launch.run_session import Settings
from busbw.runs import store
from busbw.runs.plan import Plan, Sweep, Timing
from busbw_analysis.data.lateness import RankLateness
from busbw_analysis.data.load import load

TRIALS = 100
SECONDS = 2e-3
SHARE = 0.3
SWEEPS = (Sweep(ops=("all_reduce",), sizes="8,64KiB"), Sweep(ops=("all_gather",), sizes="1KiB"))
ONE_CASE = (Sweep(ops=("all_reduce",), sizes="8"),)
"""A single short case: the order in which a barrier releases ranks is a large part of its time."""
PACE = Timing(launch_warmup_seconds=0.2)


@dataclass(frozen=True, slots=True)
class Setting:
    """How many ranks there are, which of them is made late, if any, and what they run."""

    ranks: int
    late: int | None
    sweeps: tuple[Sweep, ...] = SWEEPS

    @property
    def words(self) -> str:
        """For the table."""
        few = "one case, " if self.sweeps is ONE_CASE else ""
        return f"{few}{self.ranks} ranks, " + ("all healthy" if self.late is None else f"rank {self.late} late")


SETTINGS = (
    *(Setting(ranks, late) for ranks, late in ((2, None), (4, None), (2, 1), (4, 2), (2, 0), (4, 0))),
    *(Setting(ranks, late, ONE_CASE) for ranks, late in ((2, None), (4, None), (2, 1))),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many of ``trials`` named whom they should and nobody else; ``shares`` and ``costs`` are the numbers of the
    rank that cost most in each trial, the least first.
    """

    setting: Setting
    right: int
    trials: int
    shares: tuple[float, ...]
    costs: tuple[float, ...]

    @property
    def words(self) -> str:
        """Setting and ranges in one line."""
        return (
            f"{self.setting.words}: late share {self.shares[0]:.1%} to {self.shares[-1]:.1%}, "
            f"cost {self.costs[0]:.1%} to {self.costs[-1]:.1%} of the time"
        )


def outcomes(trials: int = TRIALS, settings: Sequence[Setting] = SETTINGS) -> Iterator[Outcome]:
    """Run ``trials`` trials of each setting, some seconds each, and tell how they went."""
    for setting in settings:
        judged = [trial(setting, seed) for seed in range(trials)]
        wanted = () if setting.late is None else (setting.late,)
        dearest = [max(members, key=lambda member: member.cost) for members in judged]
        yield Outcome(
            setting=setting,
            right=sum(tuple(member.rank for member in members if member.flagged) == wanted for members in judged),
            trials=trials,
            shares=tuple(sorted(member.share for member in dearest)),
            costs=tuple(sorted(member.cost for member in dearest)),
        )


def trial(setting: Setting, seed: int) -> tuple[RankLateness, ...]:
    """One launch, and what the analysis makes of each of its ranks."""
    row = backend_named("gloo")
    if setting.late is not None:
        late = setting.late

        def delayed(inner: Backend) -> Backend:
            return DelayingBackend(inner, late, SECONDS, SHARE, seed=seed)

        row = wrapped(row, delayed)
    plan = Plan(name="late", ranks=setting.ranks, launches=1, seed=seed, timing=PACE, sweep=setting.sweeps)
    with tempfile.TemporaryDirectory() as folder:
        run_local(plan, row, Settings(results_dir=Path(folder), quiet=True))
        dataset = load(tuple(store.folders(Path(folder))))
    (group,) = dataset.lateness
    return group.members
