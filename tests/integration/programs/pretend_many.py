"""A launch of a thousand ranks of which only rank 0 is there: torch's fake process group answers at once, for all.

Plan, groups, store and report see a world of that size; the data that "arrive" are wrong, and the check has to say so.
Run as: python pretend_many.py RESULTS RANKS PLAN
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from busbw.backends import BACKENDS
from busbw.backends.base import Vector, World
from busbw.backends.pytorch.backend import TorchBackend
from busbw.launch.run_session import Listener, RunSession
from busbw.launch.worker import Job, run
from busbw.ops.groups import Ranks
from busbw.runs import store
from busbw.runs.plan import read_plan


class FakeGroupBackend(TorchBackend):
    """Torch's fake process group in the place of a library, for the control traffic as well."""

    def __init__(self, world: World) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("fake", store=FakeStore(), rank=world.rank, world_size=world.size)
        self.rank, self.size, self.device = world.rank, world.size, None
        self._where = "cpu"
        self._world = world
        self._control = dist.group.WORLD
        self._here = torch.zeros(2, dtype=torch.uint8)
        self._groups = {tuple(range(world.size)): None}

    _doubled = TorchBackend._by_gloo
    """Its messages would leave what they receive as it was; its all-reduce leaves this rank's values."""

    def share(self, text: str) -> list[str]:
        """Theirs are as this rank's."""
        return [text] * self.size

    def use_groups(self, groups: tuple[Ranks, ...]) -> None:
        """Fake ones, too."""
        for group in groups:
            if group not in self._groups:
                self._groups[group] = dist.new_group(list(group), backend="fake")

    def reduce(self, values: Vector, how: Literal["max", "sum"], *, wary: bool = False) -> Vector:
        """What the ranks that are not there would say of themselves: what rank 0 says."""
        reduced = super().reduce(values, how, wary=wary)
        if len(reduced) % self.size == 0:
            of_ranks = reduced.reshape(self.size, -1)
            reduced = np.where(of_ranks == np.iinfo(np.int64).min, of_ranks[0], of_ranks).reshape(-1)
        return reduced


def main() -> None:
    """Measure, as if."""
    results, ranks, plan = Path(sys.argv[1]), int(sys.argv[2]), read_plan(Path(sys.argv[3]))
    row = replace(BACKENDS["gloo"], open=FakeGroupBackend)
    folder = store.create(results, "pretended")
    outcome = run(Job(plan, folder, 0, "local", row), World(0, ranks, 0, "local", 60.0), Listener())
    RunSession(folder, ()).complete(outcome.failed)


if __name__ == "__main__":
    main()
