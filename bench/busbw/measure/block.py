"""Measuring one block of one case on one rank: allocate buffers, check, sample, check again.

A block has its own buffers (``buffers``), data checks before and after (``verify``) and samples (``sampling``). It
gives a result only if both checks pass. Protocol: docs/method.md.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from busbw.backends.base import Call, Parts, Span, do_nothing, explained, records_of_every_rank
from busbw.backends.patterns import settle
from busbw.measure.bench import Bench, CaseFailed, Part, agreed, rounds_of
from busbw.measure.buffers import part_in
from busbw.measure.interference import InterferenceMonitor
from busbw.measure.sampling import RoundResult, RoundSettings, sample
from busbw.measure.stopping import Budget, budget_of, more_tries
from busbw.measure.verify import check_case
from busbw.ops import OPS
from busbw.ops.base import Matrix, Op
from busbw.ops.groups import Round
from busbw.runs import files
from busbw.runs.causes import failed
from busbw.runs.records import (
    Case,
    Check,
    CrossCheck,
    Failed,
    Measurement,
    RankMemory,
    RankTimeline,
    Sent,
    StepParts,
    case_in_words,
    least_good,
)
from busbw.runs.store import utc_now
from busbw.system.environment import last_level_cache_bytes

_MOST_SETS = 64
_MOST_TIMELINES = 32
"""Most ranks for which timelines are recorded."""
_MOST_SPANS = 400
"""Most spans of one name in the timeline of a rank, approximately."""
_SHORT_BREAK_NS = 1000
_CACHES_TO_SWEEP = 2
"""Size of rotating buffers, or of memory written between samples, as a multiple of the last-level cache."""


def measure(bench: Bench, case: Case, matrix: Matrix, launch: int, block: int) -> Measurement | Failed:
    """Measure one block of ``case``. Collective; every rank gets the same record.

    matrix: traffic of an uneven op, elements.
    Returns ``Failed`` for wrong data, or an op that raises on every rank. Raises BackendError when ranks no longer
    agree (one died, hung or raised alone) and ClockError when the clock went backwards.
    """
    op = OPS[case.op]
    rounds = rounds_of(case)
    started, began = utc_now(), bench.clock.now_ns()
    if op.members == "all":
        bench.backend.use_groups(rounds[0])
    bench.common.renew()
    watch = InterferenceMonitor(bench.backend, bench.hosts)
    sets = _sets(bench, case)
    settings = RoundSettings(budget_of(bench.timing, len(rounds), case.mode), _flush(bench, case), sets)
    done: list[_Round] = []
    cross_check: CrossCheck | None = None
    step_parts: StepParts | None = None
    for groups in rounds:
        try:
            with part_in(bench, op, case, groups, matrix, sets) as part:
                done.append(_round(bench, op, case, groups, part, matrix, settings))
                cross_check = _cross_check(bench, op, part)
                step_parts = _step_parts(bench, case, part, launch, settings.budget)
        except CaseFailed as reason:
            return failed(case, launch, block, str(reason), reason.cause)
        settings = dataclasses.replace(settings, calls=done[0].result.calls)
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
        cross_check=cross_check,
        step=step_parts,
        groups=tuple(group for result in results for group in result.groups),
    )


@dataclass(frozen=True, slots=True)
class _Round:
    """Result of one round: samples, the check before them, and the duration of this rank's first call, ns."""

    result: RoundResult
    check: Check
    first_call_ns: int


def _round(
    bench: Bench, op: Op, case: Case, groups: Round, part: Part | None, matrix: Matrix, settings: RoundSettings
) -> _Round:
    """Check, sample, and check again. Raises CaseFailed, on every rank."""
    check, call_ns = check_case(bench, op, case, part, settings.sets, "before timing")
    if part is not None and op.reduces and case.in_place:
        with explained(bench.backend):
            for one in part.sets:
                settle(one.send, case.redop or "sum")
    result = sample(bench, op, case, groups, part, matrix, settings)
    check_case(bench, op, case, part, settings.sets, "after timing")
    return _Round(result, check, call_ns)


def _cross_check(bench: Bench, op: Op, part: Part | None) -> CrossCheck | None:
    """Rates that another tool measures for the same operation, on all ranks concurrently.

    Returns the rates of all ranks, or the first error; None if no rank has such a tool.
    """
    if not (op.local and op.stores):
        return None
    check = None if part is None else part.sets[0].operation.cross_check
    bench.backend.barrier()
    # Half the timeout: the other ranks wait for this one, and would otherwise consider it lost.
    mine = None if check is None else check(bench.timing.timeout_seconds / 2)
    everywhere = records_of_every_rank(bench.backend, () if mine is None else (mine,), tuple[CrossCheck, ...])
    found = [one for records in everywhere for one in records]
    if not found:
        return None
    if failed := next((one for one in found if one.error is not None), None):
        return failed
    rates = tuple(rate for one in found for rate in one.bytes_per_second)
    return msgspec.structs.replace(found[0], bytes_per_second=rates)


def _step_parts(bench: Bench, case: Case, part: Part | None, launch: int, budget: Budget) -> StepParts | None:
    """Times and traffic of the parts of a training step; None for every other op."""
    taken = None if part is None else part.sets[0].operation.parts
    if not OPS[case.op].splits or taken is None:
        return None
    with explained(bench.backend):
        parts = taken()
        # Interleaved, so that changes of the machine affect all parts alike.
        calls = (parts.step, parts.compute, parts.communicate)
        tries: list[tuple[int, ...]] = []
        while more_tries(budget, len(tries), sum(map(sum, tries))):
            tries.append(tuple(_once(bench, parts.prepare, call) for call in calls))
        timeline = _timeline(bench, parts)
        if bench.traces is not None:
            name = re.sub(r"[^A-Za-z0-9_.]+", "-", " ".join(case_in_words(case)))
            write_profiles(bench, parts, bench.traces, f"profile-{name}-launch-{launch + 1}")
    step, compute, communication = zip(*tries, strict=True)
    sent = [(*kind, calls) for kind, calls in parts.sent.items()]
    ranks: dict[tuple[str, int, int, int], list[int]] = {}
    for rank, kinds in enumerate(records_of_every_rank(bench.backend, sent, list[tuple[str, int, int, int]])):
        for kind in kinds:
            ranks.setdefault(kind, []).append(rank)
    memory = records_of_every_rank(bench.backend, parts.memory or (), tuple[int, ...])
    return StepParts(
        step_ns=step,
        compute_ns=compute,
        communication_ns=communication,
        sent=tuple(
            Sent(op=name, group=group, size_bytes=size, calls=calls, ranks=tuple(found))
            for (name, group, size, calls), found in ranks.items()
        ),
        memory=tuple(
            RankMemory(rank=rank, peak_bytes=peak, weights_bytes=weights, gradients_bytes=gradients)
            for rank, (peak, weights, gradients) in enumerate(memory if parts.memory else ())
        ),
        timeline=timeline,
        parameters=parts.parameters,
        flop=parts.flop,
        tokens=parts.tokens,
        dropped=parts.dropped,
        steps=parts.steps,
        gaps=parts.gaps,
    )


def _timeline(bench: Bench, parts: Parts) -> tuple[RankTimeline, ...]:
    """Timelines of one more step on all ranks, by the common clock."""
    if not bench.common.comparable or bench.backend.size > _MOST_TIMELINES:
        return ()
    parts.prepare()
    bench.backend.barrier()
    spans = shortened(parts.timeline(bench.clock.now_ns), _MOST_SPANS)
    moments = bench.common.common(np.asarray([one[1:] for one in spans], dtype=np.int64).reshape(-1))
    origin = -int(agreed(bench, [-int(moments.min(initial=np.iinfo(np.int64).max))])[0])
    since = (moments - origin).reshape(-1, 2).tolist()
    mine = [(one[0], *at) for one, at in zip(spans, since, strict=True)]
    records = records_of_every_rank(bench.backend, mine, tuple[tuple[str, int, int], ...])
    return tuple(RankTimeline(rank=rank, spans=seen) for rank, seen in enumerate(records))


def write_profiles(bench: Bench, parts: Parts, folder: Path, name: str) -> None:
    """Profile one more step with the library's profiler; rank 0 writes the trace of every rank. Raises StoreError."""
    parts.prepare()
    bench.backend.barrier()
    traces = bench.backend.share(parts.profile())
    if bench.backend.rank:
        return
    for rank, text in enumerate(traces):
        path = folder / f"{name}-rank-{rank}.json"
        with files.store_errors("write", path):
            path.write_text(text, encoding="utf-8")


def shortened(spans: Sequence[Span], most: int) -> list[Span]:
    """Reduce ``spans`` (sorted by start, as the result) to about ``most`` per name.

    Adjacent spans are merged when the gap between them is short; the allowed gap doubles until few enough remain.
    """
    kept: list[Span] = []
    for name in dict.fromkeys(one[0] for one in spans):
        same, apart_ns = [one for one in spans if one[0] == name], _SHORT_BREAK_NS
        while len(same) > most:
            joined: list[Span] = []
            for _, begin, end in same:
                if joined and begin - joined[-1][2] <= apart_ns:
                    joined[-1] = (name, joined[-1][1], max(end, joined[-1][2]))
                else:
                    joined.append((name, begin, end))
            same, apart_ns = joined, 2 * apart_ns
        kept += same
    return sorted(kept, key=lambda one: one[1])


def _once(bench: Bench, prepare: Call, call: Call) -> int:
    """Duration of ``call`` on the slowest rank after a barrier, ns."""
    finish = do_nothing if bench.backend.device is None else bench.backend.device.synchronise
    prepare()
    finish()
    bench.backend.barrier()
    before = bench.clock.now_ns()
    call()
    finish()
    return int(agreed(bench, [bench.clock.now_ns() - before])[0])


def _clock_error(bench: Bench) -> int | None:
    """Error bound between any two clocks: twice the worst bound to rank 0, ns. None: clocks are not comparable."""
    error = bench.common.error_ns()
    return None if error is None else 2 * int(agreed(bench, [error])[0])


def _flush(bench: Bench, case: Case) -> Call | None:
    """Call that evicts the data from the caches (of the device, if there is one) before each sample."""
    if case.cache != "flushed":
        return None
    if bench.backend.device is not None:
        return bench.backend.device.flush
    return cache_sweep(_CACHES_TO_SWEEP * last_level_cache_bytes())


def cache_sweep(size_bytes: int) -> Call:
    """Call that evicts the caches by writing ``size_bytes`` of its own memory."""
    memory = np.zeros(size_bytes, dtype=np.uint8)
    return partial(np.add, memory, 1, out=memory)


def _sets(bench: Bench, case: Case) -> int:
    """Number of buffer sets used in turn: one, or enough to exceed the caches, up to 64."""
    if case.cache != "rotating" or not case.size_bytes:
        return 1
    device = bench.backend.device
    cache_bytes = last_level_cache_bytes() if device is None else device.cache_bytes
    wanted = math.ceil(_CACHES_TO_SWEEP * cache_bytes / case.size_bytes)
    return int(agreed(bench, [min(max(wanted, 2), _MOST_SETS)])[0])
