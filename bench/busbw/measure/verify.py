"""One checked call: data verification agreed by all ranks, and the duration of the first call."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np

from busbw.backends.base import Call, Operation, do_nothing, explained, of_every_rank, records_of_every_rank
from busbw.backends.compiled_loop import row_of
from busbw.backends.patterns import Unverifiable, count_wrong, fill, pattern, poison
from busbw.errors import BackendError
from busbw.measure.bench import Bench, BufferSet, CaseFailed, Part, WrongData, fail_together
from busbw.ops.base import Op
from busbw.ops.groups import Round
from busbw.runs.records import Case, Check


def check_case(
    bench: Bench, op: Op, case: Case, groups: Round, part: Part | None, sets: int, when: str
) -> tuple[Check, int]:
    """Make one untimed call per buffer set on fresh data and check it. Also returns the first call's duration, ns.

    Raises CaseFailed, on all ranks, when the op raised on every rank, and WrongData when data are wrong (the message
    names ``when``). In mode overlap the call is posted and then waited for, as in the samples.
    """
    reason = _unverifiable(op, case, groups)
    wrong = wrong_here = first_ns = 0
    for number in range(sets):
        error, call_ns, unchecked, own_wrong = "", 0, "", 0
        buffer_set = None if part is None else part.sets[number]
        _prepare(bench, op, case, part, buffer_set)
        if part is not None and buffer_set is not None:
            error, call_ns = _attempt(bench, case, buffer_set.operation, compiled=part.row is not None)
            if not error:
                try:
                    own_wrong = _wrong_here(part, buffer_set, checkable=reason is None)
                except bench.backend.raises as raised:
                    unchecked = bench.backend.explain(raised)
        first_ns = first_ns or call_ns
        wrong_here += own_wrong
        wrong += _wrong_everywhere(
            bench, error, unchecked, own_wrong, took_part=part is not None, together=not op.local
        )
    if reason is not None:
        return Check(state="not checked", reason=reason), first_ns
    if wrong:
        counts = of_every_rank(bench.backend, [wrong_here])[:, 0]
        raise WrongData(bench, f"wrong data {when}: {wrong} elements differ", np.flatnonzero(counts).tolist())
    if op.repeatable:
        _compare(bench, part, when)
    return Check(state="verified"), first_ns


def _prepare(bench: Bench, op: Op, case: Case, part: Part | None, buffer_set: BufferSet | None) -> None:
    """Fresh data on every rank, and then all ranks at the same place. Raises CaseFailed on all ranks."""
    # All ranks agree after each preparation: the second may be a barrier, which every rank must reach.
    steps: list[Call] = [partial(_refresh, case, part, buffer_set)]
    if op.stores or op.fresh or op.splits:
        prepare = None if buffer_set is None else buffer_set.operation.prepare
        steps.append(prepare or do_nothing)
    for step in steps:
        fail_together(bench, _error_of(bench, step), "cannot be prepared")
    with explained(bench.backend):
        if bench.backend.device is not None:
            bench.backend.device.synchronise()
        bench.backend.barrier()


def _compare(bench: Bench, part: Part | None, when: str) -> None:
    """Compare the results of ranks that have to be equal. Raises WrongData on all ranks."""
    make = None if part is None else part.sets[0].operation.signature
    with explained(bench.backend):
        own = ("", "") if make is None else make()
    signatures = records_of_every_rank(bench.backend, own, tuple[str, str])
    if ranks := unlike(signatures):
        raise WrongData(bench, f"wrong data {when}: other results than most ranks of the same kind", ranks)


def unlike(signatures: Sequence[tuple[str, str]]) -> tuple[int, ...]:
    """The ranks whose results differ from those of more than half of the ranks of their kind; all of the kind if no
    result has such a majority.

    signatures: kind and hash of the result of each rank.
    """
    kinds: dict[str, Counter[str]] = {}
    for kind, digest in signatures:
        kinds.setdefault(kind, Counter())[digest] += 1
    usual = {kind: digest for kind, of in kinds.items() for digest, ranks in of.items() if 2 * ranks > of.total()}
    return tuple(rank for rank, (kind, digest) in enumerate(signatures) if usual.get(kind) != digest)


def _error_of(bench: Bench, do: Call) -> str:
    """Message of the backend error that ``do`` raises; empty if it raises none."""
    try:
        do()
    except bench.backend.raises as raised:
        return bench.backend.explain(raised)
    return ""


def _refresh(case: Case, part: Part | None, buffer_set: BufferSet | None) -> None:
    """Put fresh data into the buffers."""
    if part is not None and buffer_set is not None:
        poison(buffer_set.receive, case.redop)
        if part.made_of is not None:
            fill(buffer_set.send, part.layout.send, part.made_of)


def _wrong_here(part: Part, buffer_set: BufferSet, *, checkable: bool) -> int:
    """Number of wrong elements on this rank, counted by the operation itself or else from its layout."""
    if buffer_set.operation.wrong is not None:
        return buffer_set.operation.wrong()
    if part.made_of is None or not checkable:
        return 0
    return count_wrong(buffer_set.receive, part.layout.expect, part.made_of)


def _attempt(bench: Bench, case: Case, operation: Operation, *, compiled: bool) -> tuple[str, int]:
    """Call once, with the loop that samples will use, and wait for the device.

    Returns the backend's error message (empty: none) and the duration, ns.
    """
    row = row_of([operation.native]) if compiled else None
    try:
        operation.connect()
    except bench.backend.raises as raised:
        return bench.backend.explain(raised), 0
    before = bench.clock.now_ns()
    try:
        if case.mode == "overlap" and operation.post is not None:
            wait = operation.post()
            wait()
        elif row is None:
            operation.call()
        elif code := row.of(1)():
            raise row.error(code)
        if bench.backend.device is not None:
            bench.backend.device.synchronise()
    except bench.backend.raises as raised:
        return bench.backend.explain(raised), bench.clock.now_ns() - before
    return "", bench.clock.now_ns() - before


def _wrong_everywhere(bench: Bench, error: str, unchecked: str, wrong: int, *, took_part: bool, together: bool) -> int:
    """Number of wrong elements over all ranks.

    error, unchecked: what this rank raised in the operation, and in the check of its data (empty: nothing).
    together: the operation communicates, so ranks that did not raise may still be waiting in it.
    Raises CaseFailed when every participating rank raised, or any rank raised in its check. Raises BackendError when
    only some raised and the operation is ``together``.
    """
    counts = np.asarray([bool(error), took_part, bool(unchecked), wrong], dtype=np.int64)
    try:
        raised_on, taking_part, unchecked_on, everywhere = bench.backend.reduce(counts, "sum", wary=bool(error))
    except BackendError as broken:
        if not error:
            raise
        # The others still wait in the operation that failed here; this rank's error is the cause to report.
        raise BackendError(f"{error}; after that: {broken}") from broken
    if 0 < raised_on < taking_part and together:
        raise BackendError(f"the operation raised on {raised_on} of {taking_part} ranks{f': {error}' if error else ''}")
    if not raised_on and not unchecked_on:
        return int(everywhere)
    # An operation may defer the error of a call until its data are checked.
    what, count = ("the operation", raised_on) if raised_on else ("the operation or its check", unchecked_on)
    errors = bench.backend.share(error if raised_on else unchecked)
    first = next(rank for rank, text in enumerate(errors) if text)
    if count == taking_part:
        raise CaseFailed(f"{what} raised on every rank: {errors[first]}")
    raise CaseFailed(f"{what} raised on {count} of {taking_part} ranks: rank {first} says: {errors[first]}")


def _unverifiable(op: Op, case: Case, groups: Round) -> str | None:
    if op.splits:
        return None
    if not op.sized or case.dtype is None:
        return "there are no data"
    try:
        for group in set(map(len, groups)):
            pattern(group, case.dtype, case.redop, 0)
    except Unverifiable as reason:
        return str(reason)
    return None
