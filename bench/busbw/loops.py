"""The timed loops: what happens between two reads of the clock, and nothing else.

A loop takes samples on one rank. It knows no other rank but through ``start``, which brings all of them to the same
moment before a sample. Everything that can be prepared is prepared before the first clock read.
"""

import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, repeat

import numpy as np

from busbw.backends.base import Backend, Call, Post, Vector
from busbw.clock import Clock
from busbw.errors import BackendError, ClockError

_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


@dataclass(frozen=True, slots=True)
class Loop:
    """How one rank takes samples: ``calls_per_sample`` of ``calls`` in turns, after ``start`` and, before that,
    ``prepare`` (both outside of the timed region).
    """

    backend: Backend
    clock: Clock
    calls: Iterator[Call]
    start: Call
    prepare: Call | None = None
    calls_per_sample: int = 1


@dataclass(frozen=True, slots=True)
class Overlapped:
    """The parts of the samples of a communication beside a computation, ns: see ``records.OverlapSamples``."""

    pure: Vector
    post: Vector
    compute: Vector
    wait: Vector


@dataclass(frozen=True, slots=True)
class Samples:
    """What this rank saw: entry and exit of every sample, ns on its own host clock, and in which ones the kernel took
    its core away (True). ``device_ns``: the durations by the device's own clock, where there is a device.
    """

    entries: Vector
    exits: Vector
    switched: Vector
    device_ns: Vector | None = None
    overlapped: Overlapped | None = None


def switches() -> int:
    """How often the kernel has taken the core away from this thread since it began."""
    return resource.getrusage(_THREAD).ru_nivcsw


def idle(start: Call, prepare: Call | None, count: int) -> Samples:
    """``count`` samples of a rank that sits them out: it only comes to the start of each."""
    for _ in range(count):
        if prepare is not None:
            prepare()
        start()
    nothing = np.zeros(count, dtype=np.int64)
    return Samples(nothing, nothing, nothing)


def take(loop: Loop, count: int) -> Samples:
    """``count`` samples. Raises BackendError when a call fails."""
    entries, exits, taken = [0] * count, [0] * count, [0] * count
    now, start, prepare, calls, row = loop.clock.now_ns, loop.start, loop.prepare, loop.calls, loop.calls_per_sample
    known = switches()
    try:
        for index in range(count):
            if prepare is not None:
                prepare()
            if row == 1:
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
            taken[index] = switches()
    except loop.backend.raises as error:
        raise BackendError(loop.backend.explain(error)) from error
    return Samples(
        np.asarray(entries, dtype=np.int64),
        np.asarray(exits, dtype=np.int64),
        (np.diff(np.asarray(taken, dtype=np.int64), prepend=known) > 0).astype(np.int64),
    )


def take_overlapped(loop: Loop, posts: Iterator[Post], compute: Callable[[], None], count: int) -> Samples:
    """``count`` samples of a call that is posted, computed beside, and waited for; each after one without computation.

    This is the only place where an operation is started and not finished at once, and what starts it returns what
    waits for it: there is no way to time one that nobody waits for. Raises as ``take``.
    """
    columns = np.zeros((5, count), dtype=np.int64)
    taken = np.zeros(count, dtype=np.int64)
    now, start, prepare = loop.clock.now_ns, loop.start, loop.prepare
    known = switches()
    try:
        for index in range(count):
            post = next(posts)
            if prepare is not None:
                prepare()
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
            taken[index] = switches()
    except loop.backend.raises as error:
        raise BackendError(loop.backend.explain(error)) from error
    alone, entries, posted_at, computed_at, exits = columns
    return Samples(
        entries,
        exits,
        (np.diff(taken, prepend=known) > 0).astype(np.int64),
        overlapped=Overlapped(alone, posted_at - entries, computed_at - posted_at, exits - computed_at),
    )


def require_time(samples: Samples, rank: int) -> None:
    """Raise ClockError when a sample did not take time."""
    bad = np.flatnonzero(samples.exits <= samples.entries)
    if len(bad):
        index = int(bad[0])
        message = (
            f"rank {rank}: a sample began at {samples.entries[index]} ns and ended at {samples.exits[index]} ns; "
            "the clock is broken"
        )
        raise ClockError(message)


def empty_call_ns(backend: Backend, clock: Clock, *, row: int = 1, samples: int = 1000) -> int:
    """What a call that does nothing costs in this loop, ns a call: the median over ``samples`` of ``row`` calls.

    It is the harness's own share of every sample: stored beside them and never subtracted.
    """

    def nothing() -> None:
        pass

    taken = take(Loop(backend, clock, repeat(nothing), nothing, calls_per_sample=row), samples)
    return round(float(np.median(taken.exits - taken.entries)) / row)
