"""Whether something else disturbed a case: missed windows, other programs, a hypervisor, slow clocks.

Everything is kept; a case is flagged so that its number is not believed for what it is not. Limits: foreign CPU time
6 % and stolen time 0.5 %, above which launches were seen to differ (docs/method.md). That a rank loses its core is no
sign of it: the threads of its own library take it, in most samples of a quiet machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from busbw.runs.records import GroupSamples
from busbw_analysis.data.load import Block
from busbw_analysis.data.pair_columns import PairBlock, PairColumns

FOREIGN_SHARE = 0.06
STEAL_SHARE = 0.005
MISSED_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Of one case, over all its blocks.

    switched: share of samples in which the kernel took a rank's core away, also for the rank's own threads.
    missed: share for which a rank was late at its window or, with ``pre_enqueue``, the GPU began too early.
    foreign, stolen: CPU time of others on the worst host (medians over the blocks that could tell; None: none could).
    throttled: why GPUs ran slower than they can.
    """

    switched: float
    missed: float
    pre_enqueue: bool
    foreign: float | None
    stolen: float | None
    throttled: tuple[str, ...]

    @property
    def high(self) -> bool:
        """Whether that is more than a number can stand."""
        return (
            self.missed > MISSED_SHARE
            or (self.foreign or 0.0) > FOREIGN_SHARE
            or (self.stolen or 0.0) > STEAL_SHARE
            or bool(self.throttled)
        )

    def in_words(self) -> str:
        """What there is to be said, worst first; empty when there is nothing."""
        found = [
            f"other programs used {self.foreign:.0%} of the CPUs" if (self.foreign or 0.0) > FOREIGN_SHARE else "",
            f"the hypervisor took {self.stolen:.1%} of the CPU time" if (self.stolen or 0.0) > STEAL_SHARE else "",
            f"{self._missed_what} in {self.missed:.0%} of the samples" if self.missed > MISSED_SHARE else "",
            f"GPUs were slowed down ({', '.join(self.throttled)})" if self.throttled else "",
        ]
        return ", ".join(one for one in found if one)

    @property
    def _missed_what(self) -> str:
        return "a GPU began before it had all of its calls" if self.pre_enqueue else "a rank missed its window"


def disturbance_of(blocks: Sequence[Block], pair_blocks: Sequence[PairBlock] = ()) -> Disturbance:
    """What disturbed the blocks of a case (one entry a group: what is of the whole block counts once)."""
    counts = [*(_of_group(block.samples) for block in blocks), *(_of_pairs(block.columns) for block in pair_blocks)]
    samples, switched, missed = map(sum, zip(*counts, strict=True)) if counts else (0, 0, 0)
    samples = samples or 1
    measured = {id(one): one for one in (*(block.measurement for block in blocks), *pair_blocks)}.values()
    foreign = [
        max(known)
        for one in measured
        if (known := [host.foreign_share for host in one.conditions if host.foreign_share is not None])
    ]
    stolen = [
        max(known)
        for one in measured
        if (known := [host.steal_share for host in one.conditions if host.steal_share is not None])
    ]
    reasons = {reason for one in measured for host in one.conditions for gpu in host.gpus for reason in gpu.throttled}
    return Disturbance(
        switched=switched / samples,
        missed=missed / samples,
        pre_enqueue=any(one.case.pre_enqueue for one in measured),
        foreign=median(foreign) if foreign else None,
        stolen=median(stolen) if stolen else None,
        throttled=tuple(sorted(reasons)),
    )


def _of_group(group: GroupSamples) -> tuple[int, int, int]:
    """How many samples there are, in how many a core was lost, and a window missed."""
    return len(group.slowest_ns), len(group.disturbed), len(group.missed)


def _of_pairs(columns: PairColumns) -> tuple[int, int, int]:
    return len(columns.slowest), columns.switched, columns.missed
