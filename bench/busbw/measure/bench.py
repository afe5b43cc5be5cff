"""A rank's measuring context, its part in a round of groups, and agreement between ranks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from busbw.backends.base import Backend, Bound, Operation, Vector, explained
from busbw.backends.compiled_loop import Row, row_of
from busbw.backends.patterns import Pattern, Unverifiable, pattern
from busbw.errors import BackendError
from busbw.measure.clock import Clock, CommonClock
from busbw.measure.loops import ComputeLoad
from busbw.ops import OPS
from busbw.ops.base import Layout, Matrix, Op, Share
from busbw.ops.groups import Ranks, Round, pair_rounds, split_world
from busbw.ops.settings import run_together
from busbw.runs.plan import Timing
from busbw.runs.records import Case, FailureCause
from busbw.system.counters import CounterWatch
from busbw.units import listed

if TYPE_CHECKING:
    import torch

_MOST_RANKS = 4
"""Most ranks that a message names; the record has all."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What a round has to know before its samples, the same on every rank but for ``origin``.

    estimate_ns: duration of a call on the slowest rank.
    each_ns: duration of a sample of one call with its start.
    calls: calls per sample.
    compiled: whether the compiled loop makes the calls.
    origin: moment from which entries count, on the common clock; if clocks are not comparable, each rank's own.
    """

    estimate_ns: int
    each_ns: int
    calls: int
    compiled: bool
    origin: int


@dataclass(frozen=True, slots=True)
class Bench:
    """A rank's measuring context.

    backend: handle on the communication library.
    clock, common: this rank's clock, and the clock that all ranks share.
    timing: sampling rules of the plan.
    seed: seed of the test data.
    timer_ns: cost of reading the clock on the slowest rank, ns.
    hosts: host of each rank.
    work: computation that runs concurrently with a communication.
    traces: folder into which rank 0 writes profiler traces of training steps (None: no traces).
    counters: counters of this host since the start of the launch.
    paces: what the rounds that a controller asks for need not find again, by case and ranks of the largest group.
    """

    backend: Backend
    clock: Clock
    timing: Timing
    common: CommonClock
    seed: int
    timer_ns: int = 0
    hosts: tuple[str, ...] = ()
    work: ComputeLoad = field(default_factory=ComputeLoad)
    traces: Path | None = None
    counters: CounterWatch = field(default_factory=CounterWatch)
    paces: dict[tuple[Case, int], Pace] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BufferSet:
    """One pair of buffers with the operation bound to them."""

    send: "torch.Tensor"
    receive: "torch.Tensor"
    operation: Operation


@dataclass(frozen=True, slots=True)
class Part:
    """This rank's part in one round.

    group: ranks of its group.
    layout: how data lie in its buffers.
    sets: its buffers with their operations.
    made_of: test pattern of the data (None: the op has no data).
    row: calls the operations in turn from compiled code (None: Python does).
    """

    group: Ranks
    layout: Layout
    sets: tuple[BufferSet, ...]
    made_of: Pattern | None
    row: Row | None = None


def rounds_of(case: Case) -> tuple[Round, ...]:
    """Groups of ranks that call concurrently, for each round of a case whose groups are not asked for. Only the pair
    matrix has more than one round.
    """
    op = OPS[case.op]
    groups = split_world(case.group, case.ranks)
    if op.members == "all":
        return (groups,)
    if op.members == "ends":
        return (tuple((group[0], group[-1]) for group in groups),)
    together = run_together(case.settings)
    by_group = [pair_rounds(group, together=together) for group in groups]
    if not together:
        return tuple(chain.from_iterable(by_group))
    return tuple(tuple(chain.from_iterable(concurrent)) for concurrent in zip_longest(*by_group, fillvalue=()))


def agreed(bench: Bench, values: Sequence[int]) -> Vector:
    """The maximum over all ranks, at all ranks."""
    return bench.backend.reduce(np.asarray(values, dtype=np.int64), "max")


class CaseFailed(Exception):
    """A case has no result; raised on all ranks, with the reason. ``cause``: its code, if it is known; ``ranks``: with
    wrong data.
    """

    cause: FailureCause | None = None
    ranks: tuple[int, ...] = ()


class WrongData(CaseFailed):
    """The check of a case's data failed on ``ranks``."""

    cause = "wrong_data"

    def __init__(self, bench: Bench, what: str, ranks: Sequence[int]) -> None:
        hosts = bench.hosts
        names = [f"rank {rank}{f' (host {hosts[rank]})' if hosts else ''}" for rank in ranks]
        super().__init__(f"{what} on {listed(names, _MOST_RANKS)}")
        self.ranks = tuple(ranks)


def fail_together(bench: Bench, error: str, what: str) -> None:
    """Raise CaseFailed on all ranks if any has an ``error``: ``what``, and the error of the first such rank.

    Raises BackendError instead if the rank's device does not answer any more, as every later case would fail too.
    """
    if error and bench.backend.device is not None:
        with explained(bench.backend):
            bench.backend.device.synchronise()
    if agreed(bench, [bool(error)])[0]:
        errors = bench.backend.share(error)
        first = next(rank for rank, text in enumerate(errors) if text)
        raise CaseFailed(f"{what}: rank {first} says: {errors[first]}")


@contextmanager
def part_in(bench: Bench, op: Op, case: Case, groups: Round, matrix: Matrix, sets: int) -> Iterator[Part | None]:
    """Provide this rank's part and release it after the round, unless the backend failed.

    Raises CaseFailed, on every rank, with the error of the first rank that could not allocate or bind. The ranks agree
    before any call, because a rank without a part would leave the others waiting in the operation.
    """
    error = ""
    part: Part | None = None
    try:
        part = part_of(bench, op, case, groups, matrix, sets)
    except bench.backend.raises as refused:
        error = bench.backend.explain(refused)
    try:
        fail_together(bench, error, "cannot be prepared")
        yield part
    except CaseFailed:
        _give_back(bench, part)
        raise
    _give_back(bench, part)


def part_of(bench: Bench, op: Op, case: Case, groups: Round, matrix: Matrix, sets: int = 1) -> Part | None:
    """This rank's group and ``sets`` buffer sets with their calls in one round; None if it is idle.

    Raises the backend's errors when the buffers cannot be allocated or the operation does not support the mode; sets
    that were already bound are released.
    """
    group = next((group for group in groups if bench.backend.rank in group), None)
    if group is None:
        return None
    share = Share(group.index(bench.backend.rank), len(group), case.count, case.in_place, case.root or 0, matrix)
    layout = op.layout(share)
    dtype = case.dtype or "uint8"
    made_of: Pattern | None = None
    if case.dtype is not None:
        # One seed per group, so that data of a neighbouring group count as wrong.
        seed = bench.seed + group[0]
        try:
            made_of = pattern(len(group), case.dtype, case.redop, seed)
        except Unverifiable:
            made_of = pattern(len(group), case.dtype, None, seed)
    bound: list[BufferSet] = []
    try:
        for _ in range(sets):
            send, receive = _buffers(bench.backend, layout, dtype)
            operation = bench.backend.bind(Bound(case, send, receive, group=group, me=share.rank, traffic=matrix))
            bound.append(BufferSet(*(operation.buffers or (send, receive)), operation))
            if case.mode == "overlap" and operation.post is None:
                raise BackendError(f"{op.name} has no nonblocking form, which mode overlap needs")
    except bench.backend.raises:
        for buffer_set in bound:
            buffer_set.operation.free()
        raise
    # Posts, barriers and device marks are made by Python, so those calls cannot use the compiled loop.
    hosts = case.mode not in {"overlap", "barriers"} and bench.backend.device is None
    row = row_of([buffer_set.operation.native for buffer_set in bound]) if hosts else None
    return Part(group, layout, tuple(bound), made_of, row)


def _buffers(backend: Backend, layout: Layout, dtype: str) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Allocate new buffers; a block never reuses old ones, so that page placement is sampled too."""
    if layout.receives_into_send is not None:
        send = backend.allocate(layout.send_count, dtype)
        start = layout.receives_into_send
        if (start, layout.receive_count) == (0, layout.send_count):
            return send, send  # a view of the whole costs 1 % of a Gloo call more than the tensor itself
        return send, send[start : start + layout.receive_count]
    receive = backend.allocate(layout.receive_count, dtype)
    if layout.sends_from_receive is not None:
        start = layout.sends_from_receive
        return receive[start : start + layout.send_count], receive
    return backend.allocate(layout.send_count, dtype), receive


def _give_back(bench: Bench, part: Part | None) -> None:
    """Release the library's resources for the operations of ``part``. Raises BackendError."""
    with explained(bench.backend):
        for buffer_set in part.sets if part is not None else ():
            buffer_set.operation.free()
