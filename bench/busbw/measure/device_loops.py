"""The timed loops of a device: marks in its stream around the calls, and the host's clock around all of it.

As in nccl-tests, everything is handed over first and waited for once. So the host's time of a sample runs from its
start to the moment at which the device has been waited for, and the device's own from one mark to the other. Which of
them a number is made of is ``reduction.timed_by``'s to say; both are kept.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, repeat

import numpy as np

from busbw.backends.base import Backend, Call, Post, do_nothing, explained
from busbw.backends.compiled_loop import Row
from busbw.measure import loops
from busbw.measure.clock import Clock
from busbw.measure.compute import ComputeLoad
from busbw.measure.loops import Loop, Overlapped, Samples, switches
from busbw.system.device import Device

_FIRST_HOLD_NS = 1_000_000
_LEAST_HOLD_NS = 50_000
_MOST_HOLD_NS = 50_000_000
"""More than handing over all that a stream takes ahead needs, about 1024 launches. A longer row waits for the hold to
end, and however long that is, the stream begins before it has all calls.
"""

_SHORTEST_NS = 1
"""What a sample lasts that was too short for the device's clock, whose steps are about 0.5 µs on CUDA."""

_SLACK = 2.0
"""A hold is this many times as long as handing over the calls took at most in the batch before."""


class Hold:
    """How long the stream is held before the calls of a sample, so that the device has all of them when it begins.

    Every rank must hold for as long as every other, or those that are let go first would wait for the others within
    their own time. So ``wanted_ns`` is what this rank would need, and ``ns`` what all of them have agreed on.
    """

    def __init__(self) -> None:
        self.ns = _FIRST_HOLD_NS
        self._handed_over_ns = 0.0

    def wanted_ns(self, calls: int) -> int:
        """For samples of ``calls`` calls, at most 50 ms; a guess until something was handed over."""
        if not self._handed_over_ns:
            return _FIRST_HOLD_NS
        return min(_LEAST_HOLD_NS + round(_SLACK * calls * self._handed_over_ns), _MOST_HOLD_NS)

    def learn(self, handed_over_ns: int, calls: int) -> None:
        """The last batch handed ``calls`` calls over in at most ``handed_over_ns``."""
        self._handed_over_ns = max(1.0, handed_over_ns / calls)


@dataclass(frozen=True, slots=True)
class DeviceLoop:
    """How one rank takes samples on ``device``: ``loop`` as on the host, whose calls hand work over and return.

    ``hold``: the stream is held for ``hold.ns`` before the first mark of each sample.
    """

    loop: Loop
    device: Device
    hold: Hold | None = None


class DeviceWork(ComputeLoad):
    """Computation on a device, and the time that it takes by the device's own clock."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device

    def do(self, units: int) -> None:
        """Hand ``units`` of it over."""
        self._device.compute(units)

    def timed_ns(self, clock: Clock, action: Callable[[], None]) -> int:  # noqa: ARG002 - the host's clock is not asked
        """What ``action`` takes on the device, ns, handing it over left out."""
        before, after = self._device.mark(), self._device.mark()
        self._device.synchronise()
        self._device.hold(_FIRST_HOLD_NS)
        before.record()
        action()
        after.record()
        self._device.synchronise()
        return after.ns_since(before)


def captured(device: Device, calls: Sequence[Call], calls_per_sample: int) -> Iterator[Call]:
    """Rows of ``calls_per_sample`` of ``calls`` in turns as graphs, in turns too: enough of them for every call."""
    turns = cycle(calls)
    rows = -(-len(calls) // calls_per_sample)
    replays = [device.capture(list(islice(turns, calls_per_sample))) for _ in range(rows)]
    return repeat(replays[0]) if rows == 1 else cycle(replays)


def take(timed: DeviceLoop, count: int) -> Samples:
    """``count`` samples: hand all calls of a sample over between two marks, then wait once.

    What a sample is made of makes no difference here: one call, a row of them, or the replay of a captured row.
    Raises BackendError when a call or the device fails.
    """
    loop, device, hold = timed.loop, timed.device, timed.hold
    columns = np.zeros((5, count), dtype=np.int64)
    known, taken = [0] * count, [0] * count
    now, start, prepare, calls, row = loop.clock.now_ns, loop.start, loop.prepare, loop.calls, loop.calls_per_sample
    with explained(loop.backend):
        first, last = device.mark(), device.mark()
        for index in range(count):
            turn = list(islice(calls, row))
            if prepare is not None:
                prepare()
            device.synchronise()
            known[index] = switches()
            start()
            entered = now()
            if hold is not None:
                device.hold(hold.ns)
            first.record()
            for call in turn:
                call()
            last.record()
            # Only where it is held: asking costs time, and then the host's is no headline.
            early = hold is not None and first.passed()
            handed_over = now() if hold is not None else entered
            device.synchronise()
            left = now()
            columns[:, index] = entered, left, last.ns_since(first), early, handed_over - entered
            taken[index] = switches()
    entries, exits, device_ns, unheld, handed_over_ns = columns
    if hold is not None:
        hold.learn(int(handed_over_ns.max()), row)
    switched = np.greater(taken, known).astype(np.int64)
    return Samples(entries, exits, switched, device_ns=np.maximum(device_ns, _SHORTEST_NS), unheld=unheld)


def take_overlapped(timed: DeviceLoop, posts: Iterator[Post], compute: Callable[[], None], count: int) -> Samples:
    """``count`` samples of a call that is posted, computed beside on the current stream, and waited for; each after one
    without computation. Waiting makes the stream wait, not the host, which waits once at the end.

    As in ``loops.take_overlapped``, what starts an operation returns what waits for it, and both stand between the
    marks. Raises as ``take``.
    """
    loop, device, hold = timed.loop, timed.device, timed.hold
    columns = np.zeros((9, count), dtype=np.int64)
    known, taken = [0] * count, [0] * count
    now, start, prepare = loop.clock.now_ns, loop.start, loop.prepare
    with explained(loop.backend):
        first, posted, computed, last = (device.mark() for _ in range(4))
        for index in range(count):
            post = next(posts)
            if prepare is not None:
                prepare()
            device.synchronise()
            known[index] = switches()
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
            taken[index] = switches()
    entries, exits, unheld, handed_over_ns, alone, post_ns, compute_ns, wait_ns, host_post_ns = columns
    if hold is not None:
        hold.learn(int(handed_over_ns.max()), 1)
    return Samples(
        entries,
        exits,
        np.greater(taken, known).astype(np.int64),
        device_ns=np.maximum(post_ns + compute_ns + wait_ns, _SHORTEST_NS),
        overlapped=Overlapped(alone, post_ns, compute_ns, wait_ns, host_post_ns),
        unheld=unheld,
    )


def empty_call_ns(
    backend: Backend, clock: Clock, *, row: int = 1, samples: int = 1000, compiled: Row | None = None
) -> int:
    """What a call that does nothing costs in the loop that takes the samples on this backend, ns a call: the median
    over ``samples`` of ``row`` calls, made by Python, or by ``compiled``; with a device, by the host's clock, the two
    marks and the wait included.

    It is the harness's own share of every sample: stored beside them and never subtracted.
    """
    loop = Loop(backend, clock, repeat(do_nothing), do_nothing, calls_per_sample=row, row=compiled)
    taken = loops.take(loop, samples) if backend.device is None else take(DeviceLoop(loop, backend.device), samples)
    return round(float(np.median(taken.exits - taken.entries)) / row)
