"""One clock for all ranks: how each rank's clock stands to rank 0's, by exchanges of time stamps, with a bound.

Ranks of one running kernel read one clock and need no exchange. Between kernels, the first rank of each goes up a
binomial tree to rank 0, O(log hosts) rounds, and brings the offset to the ranks beside it (HCA, Hunold & Carpen-Amarie
2015). A pair is compared by the envelope of its exchanges (SKaMPI): rank 0's stamp t₂ was taken between this rank's
stamps t₁ and t₃, so the offset lies in [max(t₂ − t₃), min(t₂ − t₁)]. That is a bound and no estimate: the error that is
stored with an offset is half of that width, those of the ranks in between on top, and what clocks that nobody watches
may have drifted apart by while it was found out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from busbw.backends.base import Backend, Vector, of_every_rank
from busbw.measure.clock import Clock
from busbw.runs.records import RankClock

EXCHANGES = 100
"""Round trips of a comparison: from 10 up the envelope is the best known estimate, 100 make it five times better."""

_FIT_NS = 5_000_000_000
_FIT_POINTS = 20
"""A drift is fitted over time, not over points: over 2 ms it is wrong by millionths, over 5 s by billionths."""

_UNWATCHED_PPM = 100.0
"""What two crystals may drift apart by as long as nobody has watched them: their usual tolerance."""

_WANDER_PPM = 1.0
"""A crystal follows its temperature, so a drift that was fitted over minutes may be off by as much by now."""


@dataclass(frozen=True, slots=True)
class _Point:
    """At ``at_ns`` of this rank's clock, rank 0's was ``offset_ns`` ahead, give or take ``error_ns``."""

    at_ns: int
    offset_ns: int
    error_ns: int
    rtt_ns: int


@dataclass(frozen=True, slots=True)
class _Drift:
    """By how many millionths rank 0's clock runs faster (None: not known), and by how many more or less it may."""

    ppm: float | None = None
    unnoticed_ppm: float = _UNWATCHED_PPM


@dataclass(slots=True)
class CommonClock:
    """This rank's view of the clock that all ranks can name moments by, which is rank 0's.

    ``domains[r]`` names the clock that rank r reads; ranks with one name read one clock. None for a rank whose clock
    is not known makes nothing comparable.
    """

    backend: Backend
    clock: Clock
    domains: tuple[str | None, ...]
    _points: list[_Point] = field(default_factory=list)
    _drift: _Drift = field(default_factory=_Drift)
    _known: tuple[RankClock, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether all ranks read one clock."""
        return None not in self.domains and len(set(self.domains)) == 1

    @property
    def comparable(self) -> bool:
        """Whether entries of different ranks can be compared at all."""
        return self.shared or bool(self._points)

    @property
    def ranks(self) -> tuple[RankClock, ...] | None:
        """How every rank's clock stood at the last comparison; None where there is but one clock."""
        return None if self.shared or not self._known else self._known

    def renew(self, exchanges: int = EXCHANGES) -> None:
        """Compare the clocks again, where there is more than one; every rank calls it. Raises BackendError."""
        if self.shared or None in self.domains:
            return
        self._points.append(_compare(self.backend, self.clock, self.domains, exchanges))
        self._drift = _fit(self._points)
        self._known = _everyone(self.backend, self._points[-1], self._drift.ppm)

    def common(self, local_ns: Vector) -> Vector:
        """Moments of this rank's clock as moments of rank 0's."""
        if self.shared or not self._points:
            return local_ns
        last, drift = self._points[-1], (self._drift.ppm or 0.0) * 1e-6
        moved: Vector = local_ns + last.offset_ns + np.rint((local_ns - last.at_ns) * drift).astype(np.int64)
        return moved

    def local(self, common_ns: int) -> int:
        """A moment of rank 0's clock as one of this rank's."""
        if self.shared or not self._points:
            return common_ns
        last, drift = self._points[-1], (self._drift.ppm or 0.0) * 1e-6
        away = common_ns - last.offset_ns - last.at_ns
        return last.at_ns + away - round(away * drift / (1 + drift))

    def error_ns(self) -> int | None:
        """The bound now, on this rank: 0 on one clock, None where clocks cannot be compared.

        It grows from the last comparison on, by the drift that may have gone unnoticed.
        """
        if self.shared:
            return 0
        if not self._points:
            return None
        last = self._points[-1]
        return last.error_ns + _apart_ns(self.clock.now_ns() - last.at_ns, self._drift.unnoticed_ppm)


def _fit(points: Sequence[_Point]) -> _Drift:
    """The drift of rank 0's clock against this one, by least squares; nothing before there is enough to fit.

    The slope is a weighted sum of the offsets, so it is off by no more than the same sum of their bounds, as far
    as it is one drift.
    """
    at = np.asarray([point.at_ns - points[0].at_ns for point in points], dtype=np.float64)
    if len(points) < _FIT_POINTS or at[-1] < _FIT_NS:
        return _Drift()
    away = at - at.mean()
    weights = away / (away @ away)
    slope = float(weights @ np.asarray([point.offset_ns - points[0].offset_ns for point in points], dtype=np.float64))
    bound = float(np.abs(weights) @ np.asarray([point.error_ns for point in points], dtype=np.float64))
    unnoticed_ppm = bound * 1e6 + _WANDER_PPM
    return _Drift(slope * 1e6, unnoticed_ppm) if unnoticed_ppm < _UNWATCHED_PPM else _Drift()


def _apart_ns(elapsed_ns: int, ppm: float = _UNWATCHED_PPM) -> int:
    """By how much clocks may be apart after ``elapsed_ns`` that were together, in whole ns."""
    return math.ceil(abs(elapsed_ns) * ppm * 1e-6)


def compare_all(backend: Backend, clock: Clock, exchanges: int = EXCHANGES) -> tuple[RankClock, ...]:
    """How all clocks stand to rank 0's, each compared by exchange, also where they are known to be one.

    On one host the truth is 0, so this tells how good the method is here.
    """
    apart = tuple(str(rank) for rank in range(backend.size))
    return _everyone(backend, _compare(backend, clock, apart, exchanges), None)


def _everyone(backend: Backend, mine: _Point, drift_ppm: float | None) -> tuple[RankClock, ...]:
    """Every rank's clock, at every rank; the drift travels in thousandths of a ppm, where there is one."""
    drift = drift_ppm is not None, round((drift_ppm or 0.0) * 1000)
    table = of_every_rank(backend, (mine.offset_ns, mine.error_ns, mine.rtt_ns, *drift))
    return tuple(
        RankClock(
            rank=rank,
            offset_ns=offset,
            error_ns=error,
            rtt_ns=rtt,
            drift_ppm=thousandths / 1000 if fitted else None,
        )
        for rank, (offset, error, rtt, fitted, thousandths) in enumerate(table.tolist())
    )


def _compare(backend: Backend, clock: Clock, domains: Sequence[str | None], exchanges: int) -> _Point:
    """This rank's offset to rank 0 through the tree; every rank of the world calls it."""
    leaders = [rank for rank in range(backend.size) if domains[rank] not in domains[:rank]]
    mine = _Point(clock.now_ns(), 0, 0, 0)
    if backend.rank in leaders:
        me = leaders.index(backend.rank)
        step = 1 << max(0, (len(leaders) - 1).bit_length() - 1)
        while step:
            if me % (2 * step) == 0 and me + step < len(leaders):
                _answer(backend, clock, leaders[me + step], exchanges)
                # What the child needs to know of this rank: where it stands itself, by now.
                aged = _apart_ns(clock.now_ns() - mine.at_ns) if me else 0
                backend.send(leaders[me + step], [mine.offset_ns, mine.error_ns + aged])
            elif me % (2 * step) == step:
                here = _ask(backend, clock, leaders[me - step], exchanges)
                above, bound = map(int, backend.receive(leaders[me - step], 2))
                mine = _Point(here.at_ns, here.offset_ns + above, here.error_ns + bound, here.rtt_ns)
            step //= 2
    # The ranks beside a leader read its clock.
    table = of_every_rank(backend, (mine.at_ns, mine.offset_ns, mine.error_ns, mine.rtt_ns))
    return _Point(*map(int, table[domains.index(domains[backend.rank])]))


def _answer(backend: Backend, clock: Clock, child: int, exchanges: int) -> None:
    for _ in range(exchanges):
        backend.receive(child, 1)
        backend.send(child, [clock.now_ns()])


def _ask(backend: Backend, clock: Clock, parent: int, exchanges: int) -> _Point:
    """Where the clock of ``parent`` stands to this one, in the middle of the exchanges."""
    stamps: list[tuple[int, int, int]] = []
    for _ in range(exchanges):
        asked = clock.now_ns()
        backend.send(parent, [0])
        stamp = int(backend.receive(parent, 1)[0])
        stamps.append((asked, stamp, clock.now_ns()))
    middle = (stamps[0][0] + stamps[-1][2]) // 2
    # What bounds the offset at another moment may have moved on until the middle.
    moved = [_apart_ns(max(abs(asked - middle), abs(heard - middle))) for asked, _, heard in stamps]
    low = max(stamp - heard - by for (_, stamp, heard), by in zip(stamps, moved, strict=True))
    high = min(stamp - asked + by for (asked, stamp, _), by in zip(stamps, moved, strict=True))
    offset = (low + high) // 2
    return _Point(middle, offset, max(high - offset, 0), min(heard - asked for asked, _, heard in stamps))
