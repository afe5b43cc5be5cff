"""Reading time: the host's monotonic clock behind a small Protocol, so that tests can supply their own."""

import itertools
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from busbw.backends.base import Backend, Vector, explained, of_every_rank, records_of_every_rank
from busbw.errors import ClockError
from busbw.runs.records import RankClock

_CALIBRATION_READS = 10_000


class Clock(Protocol):
    """A monotonic clock in nanoseconds."""

    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary start."""


class HostClock:
    """``time.perf_counter_ns``, which on Linux is CLOCK_MONOTONIC: one clock for all processes of a host.

    Raises ClockError where Python reads another clock, because arrival skew could not be measured with it.
    """

    def __init__(self) -> None:
        facts = time.get_clock_info("perf_counter")
        if not facts.monotonic or "CLOCK_MONOTONIC" not in facts.implementation:
            raise ClockError(f"perf_counter is {facts.implementation}; busbw needs clock_gettime(CLOCK_MONOTONIC)")

    def now_ns(self) -> int:
        """Nanoseconds of CLOCK_MONOTONIC."""
        return time.perf_counter_ns()


def read_cost_ns(clock: Clock) -> int:
    """Cost of one read of ``clock``: the median difference of back-to-back reads, ns. Stored, never subtracted.

    If the clock ticks in steps longer than a read, the result is one step: the clock resolves nothing shorter.
    """
    reads = [clock.now_ns() for _ in range(_CALIBRATION_READS)]
    differences = [after - before for before, after in itertools.pairwise(reads)]
    return max(int(statistics.median(differences)), min((step for step in differences if step > 0), default=0))


EXCHANGES = 100
"""Round trips per comparison: from 10 on the envelope is the best known estimate, with 100 five times better."""

_FIT_NS = 5_000_000_000
_FIT_POINTS = 20
"""Least points and time span for a drift fit: over 2 ms it is wrong by millionths, over 5 s by billionths."""

_UNWATCHED_PPM = 100.0
"""Assumed drift between two crystals before it is fitted: their usual tolerance."""

_WANDER_PPM = 1.0
"""Uncertainty added to a fitted drift, because a crystal's rate follows its temperature."""


@dataclass(frozen=True, slots=True)
class _Point:
    """One comparison: at ``at_ns`` on this rank's clock, rank 0's was ``offset_ns`` ± ``error_ns`` ahead.

    rtt_ns: shortest round trip of the exchanges.
    """

    at_ns: int
    offset_ns: int
    error_ns: int
    rtt_ns: int


@dataclass(slots=True)
class CommonClock:
    """This rank's conversion to and from the common clock, which is rank 0's.

    domains: name of the clock that each rank reads; ranks with the same name share a clock. If any is None (unknown),
    nothing is comparable.
    """

    backend: Backend
    clock: Clock
    domains: tuple[str | None, ...]
    ranks: tuple[RankClock, ...] | None = None
    """Offsets of all ranks' clocks at the last comparison; None if there is only one clock."""
    _points: list[_Point] = field(default_factory=list)
    _drift_ppm: float | None = None
    _unnoticed_ppm: float = _UNWATCHED_PPM

    @property
    def shared(self) -> bool:
        """Whether all ranks read one clock."""
        return None not in self.domains and len(set(self.domains)) == 1

    @property
    def comparable(self) -> bool:
        """Whether times of different ranks can be compared."""
        return self.shared or bool(self._points)

    def renew(self, exchanges: int = EXCHANGES) -> None:
        """Compare the clocks again if there is more than one. Collective. Raises BackendError."""
        if self.shared or None in self.domains:
            return
        with explained(self.backend):
            self._points.append(_compare(self.backend, self.clock, self.domains, exchanges))
        self._drift_ppm, self._unnoticed_ppm = _fit(self._points)
        self.ranks = _everyone(self.backend, self._points[-1], self._drift_ppm)

    def common(self, local_ns: Vector) -> Vector:
        """Convert times of this rank's clock to rank 0's, ns."""
        if not self._points:
            return local_ns
        last, drift = self._points[-1], (self._drift_ppm or 0.0) * 1e-6
        moved: Vector = local_ns + last.offset_ns + np.rint((local_ns - last.at_ns) * drift).astype(np.int64)
        return moved

    def local(self, common_ns: int) -> int:
        """Convert a time of rank 0's clock to this rank's, ns."""
        if not self._points:
            return common_ns
        last, drift = self._points[-1], (self._drift_ppm or 0.0) * 1e-6
        away = common_ns - last.offset_ns - last.at_ns
        return last.at_ns + away - round(away * drift / (1 + drift))

    def error_ns(self) -> int | None:
        """Current error bound of this rank, ns: 0 with a shared clock, None if clocks are not comparable.

        It grows after the last comparison by the uncertainty of the drift.
        """
        if self.shared:
            return 0
        if not self._points:
            return None
        last = self._points[-1]
        return last.error_ns + _apart_ns(self.clock.now_ns() - last.at_ns, self._unnoticed_ppm)


def _fit(points: Sequence[_Point]) -> tuple[float | None, float]:
    """By how many ppm rank 0's clock runs faster, by least squares (None: not enough to fit), and its uncertainty, ppm.

    The slope is a weighted sum of the offsets, so its error is at most the same sum of their bounds, if the drift is
    constant.
    """
    at = np.asarray([point.at_ns - points[0].at_ns for point in points], dtype=np.float64)
    if len(points) < _FIT_POINTS or at[-1] < _FIT_NS:
        return None, _UNWATCHED_PPM
    away = at - at.mean()
    weights = away / (away @ away)
    slope = float(weights @ np.asarray([point.offset_ns - points[0].offset_ns for point in points], dtype=np.float64))
    bound = float(np.abs(weights) @ np.asarray([point.error_ns for point in points], dtype=np.float64))
    unnoticed_ppm = bound * 1e6 + _WANDER_PPM
    return (slope * 1e6, unnoticed_ppm) if unnoticed_ppm < _UNWATCHED_PPM else (None, _UNWATCHED_PPM)


def _apart_ns(elapsed_ns: int, ppm: float = _UNWATCHED_PPM) -> int:
    """Largest difference that two clocks can accumulate in ``elapsed_ns``, in whole ns."""
    return math.ceil(abs(elapsed_ns) * ppm * 1e-6)


def compare_all(backend: Backend, clock: Clock, exchanges: int = EXCHANGES) -> tuple[RankClock, ...]:
    """Offsets of all clocks to rank 0's, each measured by exchange, even between ranks that share a clock.

    On one host the true offset is 0, so this shows the accuracy of the method.
    """
    apart = tuple(str(rank) for rank in range(backend.size))
    with explained(backend):
        return _everyone(backend, _compare(backend, clock, apart, exchanges), None)


def _everyone(backend: Backend, mine: _Point, drift_ppm: float | None) -> tuple[RankClock, ...]:
    """Share every rank's clock with all ranks; a known drift is rounded to thousandths of a ppm."""
    clock = RankClock(
        rank=backend.rank,
        offset_ns=mine.offset_ns,
        error_ns=mine.error_ns,
        rtt_ns=mine.rtt_ns,
        drift_ppm=None if drift_ppm is None else round(drift_ppm, 3),
    )
    return tuple(records_of_every_rank(backend, clock, RankClock))


def _compare(backend: Backend, clock: Clock, domains: Sequence[str | None], exchanges: int) -> _Point:
    """Measure this rank's offset to rank 0 along the tree. Collective."""
    leaders = [rank for rank in range(backend.size) if domains[rank] not in domains[:rank]]
    mine = _Point(clock.now_ns(), 0, 0, 0)
    if backend.rank in leaders:
        me = leaders.index(backend.rank)
        step = 1 << max(0, (len(leaders) - 1).bit_length() - 1)
        while step:
            if me % (2 * step) == 0 and me + step < len(leaders):
                _answer(backend, clock, leaders[me + step], exchanges)
                # The child adds this rank's own offset and its current error.
                aged = _apart_ns(clock.now_ns() - mine.at_ns) if me else 0
                backend.send(leaders[me + step], [mine.offset_ns, mine.error_ns + aged])
            elif me % (2 * step) == step:
                measured = _ask(backend, clock, leaders[me - step], exchanges)
                above, bound = map(int, backend.receive(leaders[me - step], 2))
                mine = _Point(measured.at_ns, measured.offset_ns + above, measured.error_ns + bound, measured.rtt_ns)
            step //= 2
    # The other ranks of a leader's host read its clock.
    table = of_every_rank(backend, (mine.at_ns, mine.offset_ns, mine.error_ns, mine.rtt_ns))
    return _Point(*map(int, table[domains.index(domains[backend.rank])]))


def _answer(backend: Backend, clock: Clock, child: int, exchanges: int) -> None:
    for _ in range(exchanges):
        backend.receive(child, 1)
        backend.send(child, [clock.now_ns()])


def _ask(backend: Backend, clock: Clock, parent: int, exchanges: int) -> _Point:
    """Measure the offset of ``parent``'s clock to this one at the middle of the exchanges."""
    stamps: list[tuple[int, int, int]] = []
    for _ in range(exchanges):
        asked = clock.now_ns()
        backend.send(parent, [0])
        stamp = int(backend.receive(parent, 1)[0])
        stamps.append((asked, stamp, clock.now_ns()))
    middle = (stamps[0][0] + stamps[-1][2]) // 2
    # A bound taken at another time is widened by the possible drift until the middle.
    moved = [_apart_ns(max(abs(asked - middle), abs(answered - middle))) for asked, _, answered in stamps]
    low = max(stamp - answered - by for (_, stamp, answered), by in zip(stamps, moved, strict=True))
    high = min(stamp - asked + by for (asked, stamp, _), by in zip(stamps, moved, strict=True))
    offset = (low + high) // 2
    return _Point(middle, offset, max(high - offset, 0), min(answered - asked for asked, _, answered in stamps))
