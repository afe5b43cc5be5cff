"""A rank's part in a round: buffers of its own, the calls that are bound to them, and giving both back."""

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
    """This rank's part, given back behind the round unless the world has broken. Raises CaseFailed, on every rank, with
    the error of the first one that could not make its buffers and bind to them.

    The ranks agree before anybody calls: one that has no part would leave the others waiting in the operation.
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
    """This rank's group and ``sets`` sets of buffers with their calls in one round; None when it sits the round out.

    Raises what the backend ``raises`` when the buffers cannot be made, or the operation cannot be called as the mode
    needs it; what was bound before is given back then.
    """
    group = next((group for group in groups if bench.backend.rank in group), None)
    if group is None:
        return None
    share = Share(group.index(bench.backend.rank), len(group), case.count, case.in_place, case.root or 0, matrix)
    layout = op.layout(share)
    dtype = case.dtype or "uint8"
    made_of: Pattern | None = None
    if case.dtype is not None:
        # Another seed for every group, so that data of a neighbouring group are seen as wrong, too.
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
                raise BackendError(f"{op.name} cannot be posted first and waited for later, which mode overlap needs")
    except bench.backend.raises:
        for one in bound:
            one.operation.free()
        raise
    # What is posted is posted by Python, a barrier is the backend's, and what is handed to a device is between marks of
    # Python's.
    hosts = case.mode not in {"overlap", "barriers"} and bench.backend.device is None
    row = row_of([one.operation.native for one in bound]) if hosts else None
    return Part(group, layout, tuple(bound), made_of, row)


def _buffers(backend: Backend, layout: Layout, dtype: str) -> tuple["torch.Tensor", "torch.Tensor"]:
    """New buffers for every block, so that where the pages happened to land is sampled too."""
    if layout.receives_into_send is not None:
        send = backend.allocate(layout.send_count, dtype)
        start = layout.receives_into_send
        if (start, layout.receive_count) == (0, layout.send_count):
            return send, send  # a view of the whole is slower to call with than the whole, by 1 % of a Gloo call
        return send, send[start : start + layout.receive_count]
    receive = backend.allocate(layout.receive_count, dtype)
    if layout.sends_from_receive is not None:
        start = layout.sends_from_receive
        return receive[start : start + layout.send_count], receive
    return backend.allocate(layout.send_count, dtype), receive


def _give_back(bench: Bench, part: Part | None) -> None:
    """What the library holds for the operations of ``part``. Raises BackendError when it does not take it."""
    with explained(bench.backend):
        for one in part.sets if part is not None else ():
            one.operation.free()
