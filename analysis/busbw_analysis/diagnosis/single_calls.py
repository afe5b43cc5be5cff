"""One call between two barriers, as many scripts time it, beside the same call timed properly.

Such a script takes one sample in mode ``barriers`` and prints its busbw in GiB/s as GB/s.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from busbw_analysis.data.load import Dataset
from busbw_analysis.data.summary import summarise

UNIT: Final = 1e9 / 2**30
"""What a rate in GiB/s is of the same in GB/s, as a number."""


@dataclass(frozen=True, slots=True)
class SingleCall:
    """One op at one size. Times are ns of the slowest rank.

    time_ns: of a call, the median in mode isolated. busbw: of that, B/s.
    enclosed_ns: the same with the barrier behind it.
    one_ns: the first sample with a barrier; least_ns and most_ns: the shortest and longest of all of them.
    """

    op: str
    ranks: int
    size_bytes: int
    time_ns: float
    busbw: float
    enclosed_ns: float
    one_ns: int
    least_ns: int
    most_ns: int

    @property
    def printed(self) -> float:
        """What the script calls GB/s."""
        return self._printed(self.one_ns)

    @property
    def printed_range(self) -> tuple[float, float]:
        """What it could have printed, had it met another sample."""
        return self._printed(self.most_ns), self._printed(self.least_ns)

    @property
    def barrier(self) -> float:
        """The factor on the rate that is the barrier's."""
        return self.time_ns / self.enclosed_ns

    @property
    def one_call(self) -> float:
        """The factor that is due to one call in place of the median of many."""
        return self.enclosed_ns / self.one_ns

    @property
    def whole(self) -> float:
        """What is printed over busbw in GB/s: unit × barrier × one call."""
        return self.printed / (self.busbw / 1e9)

    def _printed(self, time_ns: float) -> float:
        return self.busbw * self.time_ns / time_ns / 2**30


def single_calls(dataset: Dataset) -> tuple[SingleCall, ...]:
    """Every case that was measured in both modes, in the order of the plan."""
    known = [one for one in summarise(dataset) if one.state == "measured"]
    proper = {one.case: one.groups[0] for one in known}
    found = []
    for one in known:
        beside = proper.get(msgspec.structs.replace(one.case, mode="isolated"))
        if one.case.mode != "barriers" or beside is None or beside.busbw is None:
            continue
        samples = [ns for block in dataset.blocks if block.case == one.index for ns in block.samples.slowest_ns]
        found.append(
            SingleCall(
                op=one.case.op,
                ranks=one.case.ranks,
                size_bytes=one.case.size_bytes,
                time_ns=beside.time_ns,
                busbw=beside.busbw,
                enclosed_ns=one.groups[0].time_ns,
                one_ns=samples[0],
                least_ns=min(samples),
                most_ns=max(samples),
            )
        )
    return tuple(found)
