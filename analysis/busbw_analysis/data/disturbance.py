"""Whether something else disturbed a case: missed windows, other programs, a hypervisor, slow clocks.

Everything is kept; a case is flagged so that its number is not believed for what it is not. Limits: foreign CPU time
6 % and stolen time 0.5 %, above which launches were seen to differ (docs/method.md). That a rank loses its core is no
sign of it: the threads of its own library take it, in most samples of a quiet machine.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from busbw.runs.records import Measurement
from busbw_analysis.data.load import Block
from busbw_analysis.data.pair_columns import PairBlock

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
        return bool(self.in_words())

    def in_words(self) -> str:
        """What there is to be said, worst first; empty when there is nothing."""
        what = "a GPU began before it had all of its calls" if self.pre_enqueue else "a rank missed its window"
        found = [
            f"other programs used {self.foreign:.0%} of the CPUs" if (self.foreign or 0.0) > FOREIGN_SHARE else "",
            f"the hypervisor took {self.stolen:.1%} of the CPU time" if (self.stolen or 0.0) > STEAL_SHARE else "",
            f"{what} in {self.missed:.0%} of the samples" if self.missed > MISSED_SHARE else "",
            f"GPUs were slowed down ({', '.join(self.throttled)})" if self.throttled else "",
        ]
        return ", ".join(one for one in found if one)


def disturbance_of(blocks: Sequence[Block], pair_blocks: Sequence[PairBlock] = ()) -> Disturbance:
    """What disturbed the blocks of a case (one entry a group: what is of the whole block counts once)."""
    groups, pairs = [block.samples for block in blocks], [block.columns for block in pair_blocks]
    samples = sum(len(one.slowest_ns) for one in groups) + sum(len(one.slowest) for one in pairs) or 1
    counts = ((len(one.disturbed), len(one.missed)) for one in groups)
    switched, missed = map(sum, zip((0, 0), *counts, *(one.disturbed.tolist() for one in pairs), strict=True))
    measured = {id(one): one for one in (*(block.measurement for block in blocks), *pair_blocks)}.values()
    reasons = {reason for one in measured for host in one.conditions for gpu in host.gpus for reason in gpu.throttled}
    return Disturbance(
        switched=switched / samples,
        missed=missed / samples,
        pre_enqueue=any(one.case.pre_enqueue for one in measured),
        foreign=_of_the_worst_host(measured, "foreign_share"),
        stolen=_of_the_worst_host(measured, "steal_share"),
        throttled=tuple(sorted(reasons)),
    )


def _of_the_worst_host(measured: Iterable[Measurement], name: str) -> float | None:
    """The median over blocks of what is highest on any host; None where none could tell."""
    told = ([getattr(host, name) for host in one.conditions if getattr(host, name) is not None] for one in measured)
    found = [max(shares) for shares in told if shares]
    return median(found) if found else None
