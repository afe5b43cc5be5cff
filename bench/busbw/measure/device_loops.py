"""Timed loops on a device: marks in its stream around the calls, and the host's clock around the whole sample.

As in nccl-tests, all calls are enqueued first and then synchronised once. The host's time of a sample runs from its
start to the end of that synchronisation, the device's from the first mark to the last. Both are stored;
``reduction.timed_by`` selects the one that is reported.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice, repeat

import numpy as np

from busbw.backends.base import Backend, Call, Post, do_nothing, explained
from busbw.backends.compiled_loop import Row
from busbw.measure import loops
from busbw.measure.clock import Clock
from busbw.measure.loops import ComputeLoad, Loop, Overlapped, Samples, switches
from busbw.system.device import Device

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


def take(loop: Loop, device: Device, count: int, hold: Hold | None = None) -> Samples:
    """Take ``count`` samples: enqueue all calls of a sample between two marks, then synchronise once.

    A sample may be one call, a sequence of calls, or the replay of a captured sequence.
    hold: blocks the stream for ``hold.ns`` before the first mark of each sample (None: no hold).
    Raises BackendError when a call or the device fails.
    """
    columns = np.zeros((5, count), dtype=np.int64)
    switches_before, switches_after = [0] * count, [0] * count
    now, start, prepare, calls, row = loop.clock.now_ns, loop.start, loop.prepare, loop.calls, loop.calls_per_sample
    with explained(loop.backend):
        first, last = device.mark(), device.mark()
        for index in range(count):
            turn = list(islice(calls, row))
            if prepare is not None:
                prepare()
            device.synchronise()
            switches_before[index] = switches()
            start()
            entered = now()
            if hold is not None:
                device.hold(hold.ns)
            first.record()
            for call in turn:
                call()
            last.record()
            # Only with a hold, because the query costs host time, and then the device's time is reported.
            early = hold is not None and first.passed()
            handed_over = now() if hold is not None else entered
            device.synchronise()
            left = now()
            columns[:, index] = entered, left, last.ns_since(first), early, handed_over - entered
            switches_after[index] = switches()
    entries, exits, device_ns, unheld, handed_over_ns = columns
    if hold is not None:
        hold.learn(int(handed_over_ns.max()), row)
    switched = np.greater(switches_after, switches_before).astype(np.int64)
    return Samples(entries, exits, switched, device_ns=np.maximum(device_ns, _SHORTEST_NS), unheld=unheld)


def take_overlapped(
    loop: Loop, device: Device, posts: Iterator[Post], compute: Callable[[], None], count: int, hold: Hold | None = None
) -> Samples:
    """Take ``count`` samples of a nonblocking call overlapped with computation on the current stream.

    Each is preceded by the same call without computation. The wait blocks the stream, not the host, which synchronises
    once at the end. As in ``loops.take_overlapped``, post and wait are both inside the timed region.
    Raises as ``take``.
    """
    columns = np.zeros((9, count), dtype=np.int64)
    switches_before, switches_after = [0] * count, [0] * count
    now, start, prepare = loop.clock.now_ns, loop.start, loop.prepare
    with explained(loop.backend):
        first, posted, computed, last = (device.mark() for _ in range(4))
        for index in range(count):
            post = next(posts)
            if prepare is not None:
                prepare()
            device.synchronise()
            switches_before[index] = switches()
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
            columns[:4, index] = entered, left, early, handed_over - entered
            columns[4:, index] = (
                pure,
                posted.ns_since(first),
                computed.ns_since(posted),
                last.ns_since(computed),
                returned - begun,
            )
            switches_after[index] = switches()
    entries, exits, unheld, handed_over_ns, alone, post_ns, compute_ns, wait_ns, host_post_ns = columns
    if hold is not None:
        hold.learn(int(handed_over_ns.max()), 1)
    return Samples(
        entries,
        exits,
        np.greater(switches_after, switches_before).astype(np.int64),
        device_ns=np.maximum(post_ns + compute_ns + wait_ns, _SHORTEST_NS),
        overlapped=Overlapped(alone, post_ns, compute_ns, wait_ns, host_post_ns),
        unheld=unheld,
    )


def empty_call_ns(
    backend: Backend, clock: Clock, *, row: int = 1, samples: int = 1000, compiled: Row | None = None
) -> int:
    """Loop overhead per call on this backend, ns: the median over ``samples`` samples of ``row`` empty calls.

    compiled: compiled sequence of the calls (None: Python makes them).
    With a device it is host time and includes the two marks and the synchronisation. The overhead is part of every
    sample; it is stored with them and never subtracted.
    """
    loop = Loop(backend, clock, repeat(do_nothing), do_nothing, calls_per_sample=row, row=compiled)
    taken = loops.take(loop, samples) if backend.device is None else take(loop, backend.device, samples)
    return round(float(np.median(taken.exits - taken.entries)) / row)
