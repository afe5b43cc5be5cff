"""A rank's part in a round: allocating its buffers, binding the calls to them, and releasing both."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from busbw.backends.base import Backend, explained
from busbw.backends.compiled_loop import row_of
from busbw.backends.patterns import Pattern, Unverifiable, pattern
from busbw.errors import BackendError
from busbw.measure.bench import Bench, BufferSet, CaseFailed, Part, fail_together
from busbw.ops.base import Layout, Matrix, Op, Share
from busbw.ops.groups import Round
from busbw.runs.records import Case

if TYPE_CHECKING:
    import torch


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
            operation = bench.backend.bind(op, case, group, send, receive, matrix)
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
