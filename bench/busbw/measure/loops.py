"""The timed loops: between two reads of the clock there is nothing but the calls.

A loop takes samples on one rank. ``start`` synchronises the ranks before each sample. Everything else is prepared
before the first clock read.
"""

import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from busbw.backends.base import Backend, Call, Post, Vector, explained
from busbw.backends.compiled_loop import Row
from busbw.errors import ClockError
from busbw.measure.clock import Clock

_SIDE = 48


class ComputeLoad:
    """Multiplications of two matrices of 48 × 48 doubles: some µs per unit, in this thread only."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self._left, self._right = generator.random((2, _SIDE, _SIDE))
        self._product = np.empty((_SIDE, _SIDE))

    def do(self, units: int) -> None:
        """Do ``units`` multiplications."""
        for _ in range(units):
            np.matmul(self._left, self._right, out=self._product)

    def tries_ns(self, clock: Clock, units: int, count: int) -> Vector:
        """Time ``units`` multiplications ``count`` times, ns."""
        return np.asarray([self.timed_ns(clock, partial(self.do, units)) for _ in range(count)], dtype=np.int64)

    def timed_ns(self, clock: Clock, action: Callable[[], None]) -> int:
        """Time one ``action``, ns."""
        before = clock.now_ns()
        action()
        return clock.now_ns() - before


STARTS_OVERLAPPED = 2
"""Starts per overlapped sample: one for the call alone, one for the call with concurrent computation."""

_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


@dataclass(frozen=True, slots=True)
class Loop:
    """Settings of the timed loop on one rank.

    calls: operations to call in turn.
    start: synchronises the ranks before each sample, untimed.
    prepare: untimed work before ``start`` (None: nothing).
    calls_per_sample: calls between two clock reads.
    row: makes the same calls in compiled code (None: Python does).
    """

    backend: Backend
    clock: Clock
    calls: Iterator[Call]
    start: Call
    prepare: Call | None = None
    calls_per_sample: int = 1
    row: Row | None = None


@dataclass(frozen=True, slots=True)
class Overlapped:
    """Parts of samples of a communication overlapped with computation, ns; see ``records.OverlapSamples``.

    host_post: host time to post, if the other parts are by a device's clock (None: they are host times).
    """

    pure: Vector
    post: Vector
    compute: Vector
    wait: Vector
    host_post: Vector | None = None


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of this rank, one element per sample.

    entries, exits: start and end on this rank's host clock, ns.
    switched: 1 if the kernel preempted this thread between its start and its exit.
    device_ns: durations by the device's clock (None: no device).
    overlapped: parts of an overlapped sample (None: no concurrent computation).
    unheld: 1 if the device started before all calls were enqueued although its stream was held (None: no device).
    """

    entries: Vector
    exits: Vector
    switched: Vector
    device_ns: Vector | None = None
    overlapped: Overlapped | None = None
    unheld: Vector | None = None


def switches() -> int:
    """Involuntary context switches of this thread since it started."""
    return resource.getrusage(_THREAD).ru_nivcsw


def idle(start: Call, prepare: Call | None, count: int, *, overlaps: bool = False, on_device: bool = False) -> Samples:
    """Take part in the starts of ``count`` samples as an idle rank (two starts each if it ``overlaps``).

    Returns zeros with the same fields as the samples of other ranks.
    """
    for _ in range(STARTS_OVERLAPPED * count if overlaps else count):
        if prepare is not None:
            prepare()
        start()
    nothing = np.zeros(count, dtype=np.int64)
    by_device = nothing if on_device else None
    parts = Overlapped(nothing, nothing, nothing, nothing, by_device) if overlaps else None
    return Samples(nothing, nothing, nothing, device_ns=by_device, overlapped=parts, unheld=by_device)


def take(loop: Loop, count: int) -> Samples:
    """Take ``count`` samples. Raises BackendError when a call fails."""
    entries, exits, switches_before, switches_after = [0] * count, [0] * count, [0] * count, [0] * count
    now, start, prepare, calls, row = loop.clock.now_ns, loop.start, loop.prepare, loop.calls, loop.calls_per_sample
    compiled = loop.row
    go = None if compiled is None else compiled.of(row)
    with explained(loop.backend):
        for index in range(count):
            if prepare is not None:
                prepare()
            switches_before[index] = switches()
            if compiled is not None and go is not None:
                start()
                before = now()
                code = go()
                exits[index] = now()
                if code:
                    raise compiled.error(code)
            elif row == 1:
                call = next(calls)
                start()
                before = now()
                call()
                exits[index] = now()
            else:
                turn = list(islice(calls, row))
                start()
                before = now()
                for call in turn:
                    call()
                exits[index] = now()
            entries[index] = before
            switches_after[index] = switches()
    return Samples(
        np.asarray(entries, dtype=np.int64),
        np.asarray(exits, dtype=np.int64),
        np.greater(switches_after, switches_before).astype(np.int64),
    )


def take_overlapped(loop: Loop, posts: Iterator[Post], compute: Callable[[], None], count: int) -> Samples:
    """Take ``count`` samples of a call that is posted, overlapped with computation, and waited for.

    Each is preceded by the same call without computation. A post returns its wait, so an operation cannot be timed
    without being completed. Raises as ``take``.
    """
    columns = np.zeros((5, count), dtype=np.int64)
    switches_before, switches_after = [0] * count, [0] * count
    now, start, prepare = loop.clock.now_ns, loop.start, loop.prepare
    with explained(loop.backend):
        for index in range(count):
            post = next(posts)
            if prepare is not None:
                prepare()
            switches_before[index] = switches()
            start()
            before = now()
            wait = post()
            wait()
            pure = now() - before
            if prepare is not None:
                prepare()
            start()
            entered = now()
            wait = post()
            posted = now()
            compute()
            computed = now()
            wait()
            left = now()
            columns[:, index] = pure, entered, posted, computed, left
            switches_after[index] = switches()
    alone, entries, posted_at, computed_at, exits = columns
    return Samples(
        entries,
        exits,
        np.greater(switches_after, switches_before).astype(np.int64),
        overlapped=Overlapped(alone, posted_at - entries, computed_at - posted_at, exits - computed_at),
    )


def require_time(samples: Samples, rank: int) -> None:
    """Raise ClockError if a sample has no positive duration."""
    bad = np.flatnonzero(samples.exits <= samples.entries)
    if len(bad):
        index = int(bad[0])
        raise ClockError(
            f"rank {rank}: a sample started at {samples.entries[index]} ns and ended at {samples.exits[index]} ns; "
            "the clock is faulty"
        )
