"""System interference during a case: missed windows, other programs, a hypervisor, throttled GPUs.

No sample is removed; an affected case is flagged, so that its result is read with caution. Limits: 6 % foreign CPU
time and 0.5 % stolen time; above these, launches were observed to differ (docs/method.md). A rank that loses its core
is not counted: its library's own threads take the core, in most samples of a quiet machine.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from busbw.runs.records import Measurement

FOREIGN_SHARE = 0.06
STEAL_SHARE = 0.005
MISSED_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Interference with one case, over all its blocks. Shares are fractions from 0 to 1.

    missed: share of samples in which a rank missed its window or, with ``pre_enqueue``, the GPU started too early
    pre_enqueue: whether the calls were enqueued before the GPU was allowed to start
    foreign, stolen: CPU time used by other programs, or taken by the hypervisor, on the worst host: median over the
        blocks that recorded it (None: no block did)
    throttled: reasons why GPUs ran below their full clock
    """

    missed: float
    pre_enqueue: bool
    foreign: float | None
    stolen: float | None
    throttled: tuple[str, ...]

    @property
    def high(self) -> bool:
        """Whether any limit is exceeded."""
        return bool(self.in_words())

    def in_words(self) -> str:
        """The exceeded limits as text, worst first; empty when there are none."""
        what = "a GPU started before all calls were enqueued" if self.pre_enqueue else "a rank missed its window"
        phrases = [
            f"other programs used {self.foreign:.0%} of the CPUs" if (self.foreign or 0.0) > FOREIGN_SHARE else "",
            f"the hypervisor took {self.stolen:.1%} of the CPU time" if (self.stolen or 0.0) > STEAL_SHARE else "",
            f"{what} in {self.missed:.0%} of the samples" if self.missed > MISSED_SHARE else "",
            f"GPUs were throttled ({', '.join(self.throttled)})" if self.throttled else "",
        ]
        return ", ".join(text for text in phrases if text)


def disturbance_of(measured: Sequence[Measurement], samples: int, missed: int) -> Disturbance:
    """The interference with the blocks of a case, of whose ``samples`` ``missed`` lack a start window."""
    reasons = {reason for row in measured for host in row.conditions for gpu in host.gpus for reason in gpu.throttled}
    return Disturbance(
        missed=missed / (samples or 1),
        pre_enqueue=any(row.case.pre_enqueue for row in measured),
        foreign=_on_worst_host(measured, "foreign_share"),
        stolen=_on_worst_host(measured, "steal_share"),
        throttled=tuple(sorted(reasons)),
    )


def _on_worst_host(measured: Iterable[Measurement], name: str) -> float | None:
    """The median over blocks of the highest share on any host; None if no block recorded one."""
    recorded = ([getattr(host, name) for host in row.conditions if getattr(host, name) is not None] for row in measured)
    highest = [max(shares) for shares in recorded if shares]
    return median(highest) if highest else None
