"""The timed loops: what happens between two reads of the clock, and nothing else.

A loop takes samples on one rank. It knows no other rank but through ``start``, which brings all of them to the same
moment before a sample. Everything that can be prepared is prepared before the first clock read.
"""

import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from busbw.backends.base import Backend, Call, Post, Vector, explained
from busbw.backends.compiled_loop import Row
from busbw.errors import ClockError
from busbw.measure.clock import Clock

STARTS_OVERLAPPED = 2
"""Starts of an overlapped sample: of the call alone, and of the one with computation beside it."""

_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


@dataclass(frozen=True, slots=True)
class Loop:
    """How one rank takes samples: ``calls_per_sample`` of ``calls`` in turns, after ``start`` and, before that,
    ``prepare`` (both outside of the timed region). ``row`` makes the same calls in compiled code (None: Python does).
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
    """The parts of the samples of a communication beside a computation, ns: see ``records.OverlapSamples``.

    ``host_post`` is what posting took the host, where the parts are by a device's clock.
    """

    pure: Vector
    post: Vector
    compute: Vector
    wait: Vector
    host_post: Vector | None = None


@dataclass(frozen=True, slots=True)
class Samples:
    """What this rank saw: entry and exit of every sample, ns on its own host clock, and in which ones the kernel took
    its core away between coming to the start and leaving (1). ``device_ns``: the durations by the device's own clock,
    where there is a device; ``unheld``: the samples that the device began before it had all of their calls, although
    its stream was to be held.
    """

    entries: Vector
    exits: Vector
    switched: Vector
    device_ns: Vector | None = None
    overlapped: Overlapped | None = None
    unheld: Vector | None = None


def switches() -> int:
    """How often the kernel has taken the core away from this thread since it began."""
    return resource.getrusage(_THREAD).ru_nivcsw


def idle(start: Call, prepare: Call | None, count: int, *, overlaps: bool = False, on_device: bool = False) -> Samples:
    """``count`` samples of a rank that sits out: it only comes to the start of each, twice if it ``overlaps``. They are
    in the same columns as those of the others.
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
    """``count`` samples. Raises BackendError when a call fails."""
    entries, exits, known, taken = [0] * count, [0] * count, [0] * count, [0] * count
    now, start, prepare, calls, row = loop.clock.now_ns, loop.start, loop.prepare, loop.calls, loop.calls_per_sample
    compiled = loop.row
    go = None if compiled is None else compiled.of(row)
    with explained(loop.backend):
        for index in range(count):
            if prepare is not None:
                prepare()
            known[index] = switches()
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
            taken[index] = switches()
    return Samples(
        np.asarray(entries, dtype=np.int64),
        np.asarray(exits, dtype=np.int64),
        np.greater(taken, known).astype(np.int64),
    )


def take_overlapped(loop: Loop, posts: Iterator[Post], compute: Callable[[], None], count: int) -> Samples:
    """``count`` samples of a call that is posted, computed beside, and waited for; each after one without computation.

    This is the only place where an operation is started and not finished at once, and what starts it returns what
    waits for it: there is no way to time one that nobody waits for. Raises as ``take``.
    """
    columns = np.zeros((5, count), dtype=np.int64)
    known, taken = [0] * count, [0] * count
    now, start, prepare = loop.clock.now_ns, loop.start, loop.prepare
    with explained(loop.backend):
        for index in range(count):
            post = next(posts)
            if prepare is not None:
                prepare()
            known[index] = switches()
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
    alone, entries, posted_at, computed_at, exits = columns
    return Samples(
        entries,
        exits,
        np.greater(taken, known).astype(np.int64),
        overlapped=Overlapped(alone, posted_at - entries, computed_at - posted_at, exits - computed_at),
    )


def require_time(samples: Samples, rank: int) -> None:
    """Raise ClockError when a sample did not take time."""
    bad = np.flatnonzero(samples.exits <= samples.entries)
    if len(bad):
        index = int(bad[0])
        raise ClockError(
            f"rank {rank}: a sample began at {samples.entries[index]} ns and ended at {samples.exits[index]} ns; "
            "the clock is broken"
        )
