"""The timed loops: between two reads of the clock there is nothing but the calls.

A loop takes samples on one rank. ``start`` synchronises the ranks before each sample. Everything else is prepared
before the first clock read.

On a device, marks in its stream are around the calls, and the host's clock around the whole sample. As in nccl-tests,
all calls are enqueued first and then waited for once. The host's time of a sample runs from its start to the end of
that wait, the device's from the first mark to the last. Both are stored; ``reduction.timed_by`` selects the
one that is reported.
"""

import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice, repeat

import numpy as np

from busbw.backends.base import Backend, Call, Post, Vector, do_nothing, explained
from busbw.backends.compiled_loop import Row
from busbw.errors import ClockError
from busbw.measure.clock import Clock
from busbw.system.device import Device

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


def idle(start: Call, prepare: Call | None, count: int, *, overlaps: bool, on_device: bool) -> Samples:
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
    columns: tuple[list[int], ...] = [0] * count, [0] * count, [0] * count
    entries, exits, switched = columns
    now, start, prepare, calls, row = loop.clock.now_ns, loop.start, loop.prepare, loop.calls, loop.calls_per_sample
    compiled = loop.row
    go = None if compiled is None else compiled.of(row)
    with explained(loop.backend):
        for index in range(count):
            if prepare is not None:
                prepare()
            earlier = switches()
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
            switched[index] = switches() > earlier
    return Samples(*np.asarray(columns, dtype=np.int64))


def take_overlapped(loop: Loop, posts: Iterator[Post], compute: Callable[[], None], count: int) -> Samples:
    """Take ``count`` samples of a call that is posted, overlapped with computation, and waited for.

    Each is preceded by the same call without computation. A post returns its wait, so an operation cannot be timed
    without being completed. Raises as ``take``.
    """
    columns = np.zeros((6, count), dtype=np.int64)
    now, start, prepare = loop.clock.now_ns, loop.start, loop.prepare
    with explained(loop.backend):
        for index in range(count):
            post = next(posts)
            if prepare is not None:
                prepare()
            earlier = switches()
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
            columns[:, index] = pure, entered, posted, computed, left, switches() > earlier
    alone, entries, posted_at, computed_at, exits, switched = columns
    return Samples(
        entries,
        exits,
        switched,
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


# --- on a device ---------------------------------------------------------------------------------------------------


_FIRST_HOLD_NS = 1_000_000
_LEAST_HOLD_NS = 50_000
_MOST_HOLD_NS = 50_000_000
"""Longer than filling a stream's queue of about 1024 launches takes. The enqueueing of a longer sequence blocks until
the hold ends, so no hold is long enough for it.
"""

_SHORTEST_NS = 1
"""Duration recorded for a sample that is too short for the device's clock, which ticks every 0.5 µs on CUDA."""

_SLACK = 2.0
"""Length of a hold over the longest time that enqueueing the calls took in the previous batch."""


class Hold:
    """How long the stream is blocked before a sample, so that the device has all calls when it starts.

    All ranks must hold equally long; otherwise ranks released first would wait for the others within their timed
    region. ``wanted_ns`` is the time that this rank needs, ``ns`` the time that all ranks agreed on.
    """

    def __init__(self) -> None:
        self.ns = _FIRST_HOLD_NS
        self._handed_over_ns = 0.0

    def wanted_ns(self, calls: int) -> int:
        """Hold for samples of ``calls`` calls, at most 50 ms; a default until calls have been enqueued once."""
        if not self._handed_over_ns:
            return _FIRST_HOLD_NS
        return min(_LEAST_HOLD_NS + round(_SLACK * calls * self._handed_over_ns), _MOST_HOLD_NS)

    def learn(self, handed_over_ns: int, calls: int) -> None:
        """Record that enqueueing ``calls`` calls took at most ``handed_over_ns`` in the last batch."""
        self._handed_over_ns = max(1.0, handed_over_ns / calls)


class DeviceWork(ComputeLoad):
    """Computation on a device, timed by the device's own clock."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device

    def do(self, units: int) -> None:
        """Enqueue ``units`` of computation."""
        self._device.compute(units)

    def timed_ns(self, clock: Clock, action: Callable[[], None]) -> int:  # noqa: ARG002 - timed by the device's clock
        """Time ``action`` on the device, ns, without the time to enqueue it."""
        before, after = self._device.mark(), self._device.mark()
        self._device.synchronise()
        self._device.hold(_FIRST_HOLD_NS)
        before.record()
        action()
        after.record()
        self._device.synchronise()
        return after.ns_since(before)


def captured(device: Device, calls: Sequence[Call], calls_per_sample: int) -> Iterator[Call]:
    """Capture ``calls`` in turn as graphs of ``calls_per_sample`` calls, enough graphs to use every call."""
    turns = cycle(calls)
    rows = -(-len(calls) // calls_per_sample)
    replays = [device.capture(list(islice(turns, calls_per_sample))) for _ in range(rows)]
    return repeat(replays[0]) if rows == 1 else cycle(replays)


def take_on_device(loop: Loop, device: Device, count: int, hold: Hold | None = None) -> Samples:
    """Take ``count`` samples: enqueue all calls of a sample between two marks, then wait for the last mark.

    A sample may be one call, a sequence of calls, or the replay of a captured sequence.
    hold: blocks the stream for ``hold.ns`` before the first mark of each sample (None: no hold).
    Raises BackendError when a call or the device fails.
    """
    columns = np.zeros((6, count), dtype=np.int64)
    now, start, prepare, calls, row = loop.clock.now_ns, loop.start, loop.prepare, loop.calls, loop.calls_per_sample
    with explained(loop.backend):
        first, last = device.mark(), device.mark()
        for index in range(count):
            turn = list(islice(calls, row))
            if prepare is not None:
                prepare()
            device.synchronise()
            earlier = switches()
            start()
            if hold is None:
                first.record()  # before the host's clock: what the host needs for it belongs to no call
                entered = now()
            else:
                entered = now()
                device.hold(hold.ns)
                first.record()
            for call in turn:
                call()
            last.record()
            # Only with a hold, because the query costs host time, and then the device's time is reported.
            early = hold is not None and first.passed()
            handed_over = now() if hold is not None else entered
            last.wait()
            left = now()
            columns[:, index] = entered, left, switches() > earlier, last.ns_since(first), early, handed_over - entered
    entries, exits, switched, device_ns, unheld, handed_over_ns = columns
    if hold is not None:
        hold.learn(int(handed_over_ns.max()), row)
    return Samples(entries, exits, switched, device_ns=np.maximum(device_ns, _SHORTEST_NS), unheld=unheld)


def take_overlapped_on_device(
    loop: Loop, device: Device, posts: Iterator[Post], compute: Callable[[], None], count: int, hold: Hold | None
) -> Samples:
    """Take ``count`` samples of a nonblocking call overlapped with computation on the current stream.

    Each is preceded by the same call without computation. The wait blocks the stream, not the host, which synchronises
    once at the end. As in ``take_overlapped``, post and wait are both inside the timed region.
    Raises as ``take_on_device``.
    """
    columns = np.zeros((10, count), dtype=np.int64)
    now, start, prepare = loop.clock.now_ns, loop.start, loop.prepare
    with explained(loop.backend):
        first, posted, computed, last = (device.mark() for _ in range(4))
        for index in range(count):
            post = next(posts)
            if prepare is not None:
                prepare()
            device.synchronise()
            earlier = switches()
            start()
            if hold is not None:
                device.hold(hold.ns)
            first.record()
            wait = post()
            wait()
            last.record()
            device.synchronise()
            pure = last.ns_since(first)
            if prepare is not None:
                prepare()
            device.synchronise()
            start()
            entered = now()
            if hold is not None:
                device.hold(hold.ns)
            first.record()
            begun = now()
            wait = post()
            returned = now()
            posted.record()
            compute()
            computed.record()
            wait()
            last.record()
            early = hold is not None and first.passed()
            handed_over = now() if hold is not None else entered
            device.synchronise()
            left = now()
            parts = posted.ns_since(first), computed.ns_since(posted), last.ns_since(computed), returned - begun
            columns[:, index] = entered, left, switches() > earlier, early, handed_over - entered, pure, *parts
    entries, exits, switched, unheld, handed_over_ns, alone, post_ns, compute_ns, wait_ns, host_post_ns = columns
    if hold is not None:
        hold.learn(int(handed_over_ns.max()), 1)
    return Samples(
        entries,
        exits,
        switched,
        device_ns=np.maximum(post_ns + compute_ns + wait_ns, _SHORTEST_NS),
        overlapped=Overlapped(alone, post_ns, compute_ns, wait_ns, host_post_ns),
        unheld=unheld,
    )


def empty_call_ns(
    backend: Backend, clock: Clock, *, row: int = 1, samples: int = 1000, compiled: Row | None = None
) -> int:
    """Loop overhead per call on this backend, ns: the median over ``samples`` samples of ``row`` empty calls.

    compiled: compiled sequence of the calls (None: Python makes them).
    With a device it is host time and includes the last mark and the wait for it. The overhead is part of every sample;
    it is stored with them and never subtracted.
    """
    loop = Loop(backend, clock, repeat(do_nothing), do_nothing, calls_per_sample=row, row=compiled)
    taken = take(loop, samples) if backend.device is None else take_on_device(loop, backend.device, samples)
    return round(float(np.median(taken.exits - taken.entries)) / row)
