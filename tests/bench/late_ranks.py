"""How often the right rank is called late, and how often a healthy one: over many short launches of real Gloo ranks.

A trial is one launch of fresh processes with three small cases, judged by the analysis as any other run. In a faulty
trial one rank leaves 30 % of the barriers, drawn at random, 2 ms after the others. Nothing is asserted.
"""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from busbw import environment, store
from busbw.backends import backend_named
from busbw.backends.base import Backend
from busbw.launch.base import Settings
from busbw.launch.local import run_local
from busbw.plan import Plan, Sweep, Timing
from busbw.testing.faults import DelayingBackend, wrapped
from busbw_analysis.lateness import RankLateness, lateness_of
from busbw_analysis.load import load
from busbw_analysis.summary import summarise

TRIALS = 100
SECONDS = 2e-3
SHARE = 0.3
SWEEPS = (
    Sweep(ops=("all_reduce",), sizes="8,64KiB"),
    Sweep(ops=("all_gather",), sizes="1KiB"),
)
PACE = Timing(launch_warmup_seconds=0.2)


@dataclass(frozen=True, slots=True)
class Setting:
    """How many ranks there are and which of them is made late, if any."""

    ranks: int
    late: int | None

    @property
    def words(self) -> str:
        """For the table."""
        return f"{self.ranks} ranks, " + ("all healthy" if self.late is None else f"rank {self.late} late")


SETTINGS = (Setting(2, None), Setting(4, None), Setting(2, 1), Setting(4, 2), Setting(2, 0), Setting(4, 0))


def late_ranks(trials: int = TRIALS, settings: Sequence[Setting] = SETTINGS) -> None:
    """Run ``trials`` trials of each setting and print how many went as they should."""
    print(
        f"# late ranks: {SECONDS * 1e3:g} ms in {SHARE:.0%} of the samples, {trials} launches of real Gloo ranks each"
    )
    print(
        f"# {environment.usable_cores()} usable cores, load average {environment.load_average():.1f} before the start"
    )
    print("setting                    right  wrong  share of late samples  cost        of the dearest rank: range")
    for setting in settings:
        judged = [trial(setting, seed) for seed in range(trials)]
        wanted = () if setting.late is None else (setting.late,)
        right = sum(tuple(one.rank for one in members if one.accused) == wanted for members in judged)
        dearest = [max(members, key=lambda member: member.cost) for members in judged]
        shares, costs = sorted(one.share for one in dearest), sorted(one.cost for one in dearest)
        print(
            f"{setting.words:25s} {right:6d} {trials - right:6d}  {shares[0]:9.1%} to {shares[-1]:5.1%}"
            f"  {costs[0]:8.1%} to {costs[-1]:5.1%}",
            flush=True,
        )


def trial(setting: Setting, seed: int) -> tuple[RankLateness, ...]:
    """One launch, and what the analysis makes of each of its ranks."""
    row = backend_named("gloo")
    if setting.late is not None:
        late = setting.late

        def delayed(inner: Backend) -> Backend:
            return DelayingBackend(inner, late, SECONDS, SHARE, seed=seed)

        row = wrapped(row, delayed)
    plan = Plan(name="late", ranks=setting.ranks, launches=1, seed=seed, timing=PACE, sweep=SWEEPS)
    with tempfile.TemporaryDirectory() as folder:
        run_local(plan, row, Settings(results_dir=Path(folder), quiet=True))
        dataset = load(tuple(store.folders(Path(folder))))
    (group,) = lateness_of(dataset, summarise(dataset))
    return group.members


if __name__ == "__main__":
    torch.set_num_threads(1)
    late_ranks(int(sys.argv[1]) if len(sys.argv) > 1 else TRIALS)
