"""One call between two barriers, as many scripts time it, compared with a correct measurement of the same call.

Such a script takes one sample in mode ``barriers`` and prints its busbw in GiB/s, labelled GB/s.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from busbw.runs.records import Measurement
from busbw_analysis.data.load import Samples
from busbw_analysis.data.summary import CaseSummary

UNIT: Final = 1e9 / 2**30
"""A rate in GiB/s over the same rate in GB/s, as numbers."""


@dataclass(frozen=True, slots=True)
class SingleCall:
    """One op at one size. Times are ns of the slowest rank.

    time_ns: time of a call; median in mode isolated.
    busbw: by ``time_ns``, B/s.
    enclosed_ns: time of a call with the barrier after it; median.
    one_ns: first sample with a barrier.
    least_ns, most_ns: shortest and longest of these samples.
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
        """The number that the script prints as "GB/s"."""
        return self._printed(self.one_ns)

    @property
    def printed_range(self) -> tuple[float, float]:
        """The range of numbers that it could have printed, by its other samples."""
        return self._printed(self.most_ns), self._printed(self.least_ns)

    @property
    def barrier(self) -> float:
        """The factor on the rate due to the barrier."""
        return self.time_ns / self.enclosed_ns

    @property
    def one_call(self) -> float:
        """The factor on the rate due to one call instead of the median of many."""
        return self.enclosed_ns / self.one_ns

    @property
    def whole(self) -> float:
        """Printed number over busbw in GB/s: unit × barrier × one call."""
        return self.printed / (self.busbw / 1e9)

    def _printed(self, time_ns: float) -> float:
        return self.busbw * self.time_ns / time_ns / 2**30


def single_calls(cases: Sequence[CaseSummary], samples: Samples) -> tuple[SingleCall, ...]:
    """Every case that was measured in both modes, in the order of the plan."""
    measured = [summary for summary in cases if summary.state == "measured"]
    proper = {summary.case: summary.groups[0] for summary in measured}
    calls = []
    for summary in measured:
        isolated = proper.get(msgspec.structs.replace(summary.case, mode="isolated"))
        if summary.case.mode != "barriers" or isolated is None or isolated.busbw is None:
            continue
        blocks = (row for _, case, row in samples.rows() if case == summary.index and isinstance(row, Measurement))
        times_ns = [time_ns for block in blocks for group in block.groups for time_ns in group.slowest_ns]
        calls.append(
            SingleCall(
                op=summary.case.op,
                ranks=summary.case.ranks,
                size_bytes=summary.case.size_bytes,
                time_ns=isolated.time_ns,
                busbw=isolated.busbw,
                enclosed_ns=summary.groups[0].time_ns,
                one_ns=times_ns[0],
                least_ns=min(times_ns),
                most_ns=max(times_ns),
            )
        )
    return tuple(calls)
