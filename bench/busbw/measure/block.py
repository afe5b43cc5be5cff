"""The instrument: one block of one case on one rank: buffers, check, samples until enough, check again.

What is sampled and when it is enough is ``sampling``'s; here stands what makes a sample worth having: buffers of its
own, data that are checked before and after, and a result only when both checks hold. Protocol: docs/method.md.
"""

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from busbw.backends.base import Backend, Call, Operation
from busbw.backends.compiled_loop import row_of
from busbw.backends.patterns import Pattern, Unverifiable, count_wrong, fill, pattern, poison, settle
from busbw.errors import BackendError
from busbw.measure.interference import InterferenceMonitor
from busbw.measure.sampling import (
    Bench,
    BufferSet,
    Part,
    RoundResult,
    Sweep,
    Terms,
    Uncapturable,
    agreed,
    first_error,
    sample,
)
from busbw.measure.stopping import budget_of
from busbw.ops import OPS
from busbw.ops.base import Layout, Matrix, Op, Share
from busbw.ops.groups import Round, pair_rounds, split_world
from busbw.runs.causes import WRONG_DATA, cause_of
from busbw.runs.records import Case, Check, CrossCheck, Failed, Measurement, Sent, StepParts, least_good
from busbw.runs.store import utc_now
from busbw.system.environment import last_level_cache_bytes

if TYPE_CHECKING:
    import torch

_MOST_SETS = 64
_TRIES = 5
"""How often each part of a step of training is taken."""
_CACHES_TO_SWEEP = 2
"""Buffers in turns, or the memory that is written between samples, are so many times the last level of cache."""


def rounds_of(case: Case) -> tuple[Round, ...]:
    """Which groups of ranks call together, round by round: one round, but for the pair matrix."""
    op = OPS[case.op]
    groups = split_world(case.group, case.ranks)
    if op.members == "all":
        return (groups,)
    if op.members == "ends":
        return (tuple((group[0], group[-1]) for group in groups),)
    by_group = [pair_rounds(group, together=case.pairs != "alone") for group in groups]
    if case.pairs == "alone":
        return tuple(one for rounds in by_group for one in rounds)
    longest = max(len(rounds) for rounds in by_group)
    merged = (
        tuple(pair for rounds in by_group if number < len(rounds) for pair in rounds[number])
        for number in range(longest)
    )
    return tuple(merged)


def measure(bench: Bench, case: Case, matrix: Matrix, launch: int, block: int) -> Measurement | Failed:
    """Measure one block of ``case``; every rank of the world calls it together and gets the same record.

    ``matrix`` is the traffic of an uneven op in elements. Wrong data, or an op that raises on every rank, give
    ``Failed``. Raises BackendError when ranks no longer agree (one died, hung or raised alone) and ClockError when
    the clock went backwards.
    """
    op = OPS[case.op]
    rounds = rounds_of(case)
    started, began = utc_now(), bench.clock.now_ns()
    if op.members == "all":
        bench.backend.use_groups(rounds[0])
    bench.common.renew()
    watch = InterferenceMonitor(bench.backend, bench.hosts)
    sets = _sets(bench, case)
    terms = Terms(budget_of(bench.timing, len(rounds), case.mode), _flush(bench, case), sets)
    done: list[_Round] = []
    beside: CrossCheck | None = None
    apart: StepParts | None = None
    for groups in rounds:
        part = _take_part(bench, op, case, groups, matrix, sets)
        if isinstance(part, str):
            return Failed(case=case, launch=launch, block=block, error=part, cause=cause_of(part))
        one = _round(bench, op, case, groups, part, matrix, terms)
        beside = _cross_check(bench, op, part) if not isinstance(one, str) else None
        apart = _taken_apart(bench, op, part) if not isinstance(one, str) else None
        _give_back(bench, part)
        if isinstance(one, str):
            return Failed(case=case, launch=launch, block=block, error=one, cause=cause_of(one))
        done.append(one)
        terms = dataclasses.replace(terms, calls=done[0].result.calls)
    results = [one.result for one in done]
    return Measurement(
        case=case,
        launch=launch,
        block=block,
        calls=op.trips * results[0].calls,
        first_call_ns=int(agreed(bench, [max(one.first_call_ns for one in done)])[0]),
        warmup_calls=max(result.warmup_calls for result in results),
        stop_reason=least_good([result.stop_reason for result in results]),
        check=done[0].check,
        started=started,
        elapsed_ns=int(agreed(bench, [bench.clock.now_ns() - began])[0]),
        buffer_sets=sets,
        loop=results[0].loop,
        clock_error_ns=_clock_error(bench),
        clocks=bench.common.ranks,
        conditions=watch.ended(),
        cross_check=beside,
        step=apart,
        groups=tuple(group for result in results for group in result.groups),
    )


@dataclass(frozen=True, slots=True)
class _Round:
    """What came of one round: samples, the check before them, and the first call of this rank, ns."""

    result: RoundResult
    check: Check
    first_call_ns: int


def _round(
    bench: Bench, op: Op, case: Case, groups: Round, part: Part | None, matrix: Matrix, terms: Terms
) -> _Round | str:
    """Check, sample, check again; or, on every rank, why the case has failed."""
    check, call_ns = _check(bench, op, case, part, terms.sets)
    if isinstance(check, str) or check.state == "wrong":
        return _wrong(check, "before timing")
    if part is not None and op.reduces and case.in_place:
        with _in_words(bench):
            for one in part.sets:
                settle(one.send, case.redop or "sum")
    try:
        result = sample(bench, op, case, groups, part, matrix, terms)
    except Uncapturable as reason:
        return f"cannot be captured: {reason}"
    after, _ = _check(bench, op, case, part, terms.sets)
    if isinstance(after, str) or after.state == "wrong":
        return _wrong(after, "after timing")
    return _Round(result, check, call_ns)


def _cross_check(bench: Bench, op: Op, part: Part | None) -> CrossCheck | None:
    """What another tool says of the same, run on all ranks at once: the rates of all, or the first error; None where
    nobody has one.
    """
    if not (op.local and op.stores):
        return None
    check = None if part is None else part.sets[0].operation.cross_check
    bench.backend.barrier()
    # The others wait for its word no longer than for anything else: it has to give up in time to be heard.
    mine = None if check is None else check(bench.timing.timeout_seconds / 2)
    told = bench.backend.share("" if mine is None else msgspec.json.encode(mine).decode())
    found = [msgspec.json.decode(text, type=CrossCheck) for text in told if text]
    if not found:
        return None
    if failed := next((one for one in found if one.error is not None), None):
        return failed
    rates = tuple(rate for one in found for rate in one.bytes_per_second)
    return msgspec.structs.replace(found[0], bytes_per_second=rates)


def _taken_apart(bench: Bench, op: Op, part: Part | None) -> StepParts | None:
    """What a step of training is made of; None for every other op."""
    taken = None if part is None else part.sets[0].operation.parts
    if not op.splits or taken is None:
        return None
    with _in_words(bench):
        parts = taken()
        # In turns, so that what changes on the machine changes both.
        calls = (parts.step, parts.compute, parts.communicate)
        tries = [tuple(_once(bench, parts.prepare, call) for call in calls) for _ in range(_TRIES)]
    step, compute, communication = zip(*tries, strict=True)
    told = bench.backend.share(msgspec.json.encode([(*kind, calls) for kind, calls in parts.sent.items()]).decode())
    ranks: dict[tuple[str, int, int, int], list[int]] = {}
    for rank, text in enumerate(told):
        for kind in msgspec.json.decode(text, type=list[tuple[str, int, int, int]]):
            ranks.setdefault(kind, []).append(rank)
    return StepParts(
        step_ns=step,
        compute_ns=compute,
        communication_ns=communication,
        sent=tuple(
            Sent(op=name, group=group, size_bytes=size, calls=calls, ranks=tuple(found))
            for (name, group, size, calls), found in ranks.items()
        ),
        parameters=parts.parameters,
        flop=parts.flop,
        tokens=parts.tokens,
    )


def _once(bench: Bench, prepare: Call, call: Call) -> int:
    """How long ``call`` takes on the slowest rank when all begin together, ns."""
    prepare()
    bench.backend.barrier()
    before = bench.clock.now_ns()
    call()
    return int(agreed(bench, [bench.clock.now_ns() - before])[0])


def _give_back(bench: Bench, part: Part | None) -> None:
    """What the library holds for the operations of ``part``. Raises BackendError when it does not take it."""
    with _in_words(bench):
        for one in part.sets if part is not None else ():
            one.operation.free()


@contextmanager
def _in_words(bench: Bench) -> Iterator[None]:
    """What the backend raises as it is becomes BackendError."""
    try:
        yield
    except bench.backend.raises as error:
        raise BackendError(bench.backend.explain(error)) from error


def _clock_error(bench: Bench) -> int | None:
    """The bound on the clock that is known worst; of two ranks each may be off by as much. None: cannot be compared."""
    error = bench.common.error_ns()
    return None if error is None else 2 * int(agreed(bench, [error])[0])


def _flush(bench: Bench, case: Case) -> Call | None:
    """What drives the data out of the caches before each sample, those of the device where there is one."""
    if case.cache != "flushed":
        return None
    if bench.backend.device is not None:
        return bench.backend.device.flush
    return Sweep(_CACHES_TO_SWEEP * last_level_cache_bytes()).sweep


def _sets(bench: Bench, case: Case) -> int:
    """How many sets of buffers take turns: one, or as many as do not fit into the caches together, up to 64."""
    if case.cache != "rotating" or not case.size_bytes:
        return 1
    device = bench.backend.device
    cache_bytes = last_level_cache_bytes() if device is None else device.cache_bytes
    wanted = math.ceil(_CACHES_TO_SWEEP * cache_bytes / max(case.size_bytes, 1))
    return int(agreed(bench, [min(max(wanted, 2), _MOST_SETS)])[0])


def _wrong(check: Check | str, when: str) -> str:
    return check if isinstance(check, str) else f"{WRONG_DATA} {when}: {check.wrong_elements} elements differ"


# --- buffers and data ------------------------------------------------------------------------------------------


def _take_part(bench: Bench, op: Op, case: Case, groups: Round, matrix: Matrix, sets: int) -> Part | str | None:
    """This rank's part, or on every rank the error of the first one that could not make its buffers and bind to them.

    The ranks agree before anybody calls: one that has no part would leave the others waiting in the operation.
    """
    error = ""
    part: Part | None = None
    try:
        part = part_of(bench, op, case, groups, matrix, sets)
    except bench.backend.raises as refused:
        error = bench.backend.explain(refused)
    told = first_error(bench, error)
    if told is None:
        return part
    _give_back(bench, part)
    return f"cannot be prepared: {told}"


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
                message = f"{op.name} cannot be posted first and waited for later, which mode overlap needs"
                raise BackendError(message)
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


def _check(bench: Bench, op: Op, case: Case, part: Part | None, sets: int) -> tuple[Check | str, int]:
    """One call a set of buffers, on fresh data, that no sample is taken of; how long the first took here, in ns.

    Returns what was found, or the error when the op raised on every rank. A case that is to overlap is checked the way
    it will run: posted, then waited for.
    """
    reason = _unverifiable(op, case)
    wrong = first_ns = 0
    for number in range(sets):
        error, call_ns, unchecked, here = "", 0, "", 0
        one = None if part is None else part.sets[number]
        # All ranks agree after each of the two: the second may be a barrier, and nobody may miss it.
        for make in (_filled, _made_ready):
            unready = "" if part is None or one is None else make(bench, case, part, one)
            if (told := first_error(bench, unready)) is not None:
                return f"cannot be prepared: {told}", first_ns
        if bench.backend.device is not None:
            with _in_words(bench):
                bench.backend.device.synchronise()
        bench.backend.barrier()
        if part is not None and one is not None:
            error, call_ns = _attempt(bench, case, one.operation, compiled=part.row is not None)
            if not error:
                unchecked, here = _wrong_here(bench, part, one, checkable=reason is None)
        first_ns = first_ns or call_ns
        found = _found_everywhere(bench, error, unchecked, here, took_part=part is not None, together=not op.local)
        if isinstance(found, str):
            return found, first_ns
        wrong += found
    if reason is not None:
        return Check(state="not checked", reason=reason), first_ns
    return (Check(state="wrong", wrong_elements=wrong) if wrong else Check(state="verified")), first_ns


def _filled(bench: Bench, case: Case, part: Part, one: BufferSet) -> str:
    """Fresh data in the buffers: what went wrong in it, or nothing."""
    try:
        poison(one.receive, case.redop)
        if part.made_of is not None:
            fill(one.send, part.layout.send, part.made_of)
    except bench.backend.raises as raised:
        return bench.backend.explain(raised)
    return ""


def _made_ready(bench: Bench, _case: Case, _part: Part, one: BufferSet) -> str:
    """What has to be done before a call: what went wrong in it, or nothing."""
    try:
        if one.operation.prepare is not None:
            one.operation.prepare()
    except bench.backend.raises as raised:
        return bench.backend.explain(raised)
    return ""


def _wrong_here(bench: Bench, part: Part, one: BufferSet, *, checkable: bool) -> tuple[str, int]:
    """What went wrong in the check, or nothing; and how many elements the call left wrong on this rank: as the
    operation itself tells them, else by its layout.
    """
    try:
        if one.operation.wrong is not None:
            return "", one.operation.wrong()
        if part.made_of is None or not checkable:
            return "", 0
        return "", count_wrong(one.receive, part.layout.expect, part.made_of)
    except bench.backend.raises as raised:
        return bench.backend.explain(raised), 0


def _attempt(bench: Bench, case: Case, operation: Operation, *, compiled: bool) -> tuple[str, int]:
    """Call once, by the loop that will, and wait for the device: the error of the backend, or nothing, and how long it
    took, ns.
    """
    row = row_of([operation.native]) if compiled else None
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


def _found_everywhere(
    bench: Bench, error: str, unchecked: str, wrong: int, *, took_part: bool, together: bool
) -> str | int:
    """Wrong elements over all ranks; or what was raised when every rank that took part raised (``error``), or by any
    rank in the check of its data (``unchecked``), when the operation is over everywhere.

    Raises BackendError when only some raised and they are in it ``together``: the others may still be in the operation.
    """
    counts = np.asarray([bool(error), took_part, bool(unchecked), wrong], dtype=np.int64)
    try:
        raised_on, taking_part, unchecked_on, everywhere = bench.backend.reduce(counts, "sum", wary=bool(error))
    except BackendError as broken:
        if not error:
            raise
        # The others still wait in the operation that this rank could not do: what stopped it is the reason to tell.
        message = f"{error}; after that: {broken}"
        raise BackendError(message) from broken
    if 0 < raised_on < taking_part and together:
        message = f"the operation raised on {raised_on} of {taking_part} ranks{f': {error}' if error else ''}"
        raise BackendError(message)
    if not raised_on and not unchecked_on:
        return int(everywhere)
    # What an operation keeps to tell when it is checked is an error of a call.
    what, count = ("the operation", raised_on) if raised_on else ("the operation or its check", unchecked_on)
    told = bench.backend.share(error if raised_on else unchecked)
    who = next(rank for rank, text in enumerate(told) if text)
    if count == taking_part:
        return f"{what} raised on every rank: {told[who]}"
    return f"{what} raised on {count} of {taking_part} ranks: rank {who} says: {told[who]}"


def _unverifiable(op: Op, case: Case) -> str | None:
    if op.splits:
        return None
    if not op.sized or case.dtype is None:
        return "there are no data"
    try:
        for group in {len(group) for groups in rounds_of(case) for group in groups}:
            pattern(group, case.dtype, case.redop, 0)
    except Unverifiable as reason:
        return str(reason)
    return None
