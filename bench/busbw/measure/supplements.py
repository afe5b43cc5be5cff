"""Measurements after the samples of a block, which only some operations have: one row for each kind."""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from busbw.backends.base import Call, do_nothing, explained, records_of_every_rank
from busbw.backends.parts import Interval, Parts
from busbw.measure.bench import Bench, Part, agreed
from busbw.measure.stopping import Budget, more_tries
from busbw.ops import OPS
from busbw.runs import files
from busbw.runs.records import (
    Case,
    CrossCheck,
    NcclChoice,
    RankMemory,
    RankTimeline,
    Sent,
    StepParts,
    Supplement,
    case_in_words,
)

_MOST_TIMELINES = 32
"""Most ranks for which timelines are recorded."""
_MOST_INTERVALS = 400
"""Most intervals of one name in the timeline of a rank, approximately."""
_SHORT_BREAK_NS = 1000


def measure_step_parts(bench: Bench, case: Case, part: Part | None, launch: int, budget: Budget) -> StepParts | None:
    """Times and traffic of the parts of a training step; None if the backend cannot take it apart."""
    prepare = None if part is None else part.sets[0].operation.parts
    if prepare is None:
        return None
    with explained(bench.backend):
        parts = prepare()
        # Interleaved, so that changes of the machine affect all parts alike.
        calls = (parts.step, parts.compute, parts.communicate)
        tries: list[tuple[int, ...]] = []
        while more_tries(budget, len(tries), sum(map(sum, tries))):
            tries.append(tuple(_time_once(bench, parts.prepare, call) for call in calls))
        timeline = _record_timeline(bench, parts)
        if bench.traces is not None:
            name = re.sub(r"[^A-Za-z0-9_.]+", "-", " ".join(case_in_words(case)))
            write_profiles(bench, parts, bench.traces, f"profile-{name}-launch-{launch + 1}")
    step, compute, communication = zip(*tries, strict=True)
    memory = records_of_every_rank(bench.backend, parts.memory or (), tuple[int, ...])
    return StepParts(
        step_ns=step,
        compute_ns=compute,
        communication_ns=communication,
        sent=_sent_by_every_rank(bench, parts),
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


def _sent_by_every_rank(bench: Bench, parts: Parts) -> tuple[Sent, ...]:
    """Identical calls of a step, with the ranks that make them."""
    own = [(*kind, calls) for kind, calls in parts.sent.items()]
    ranks: dict[tuple[str, int, int, int], list[int]] = {}
    for rank, kinds in enumerate(records_of_every_rank(bench.backend, own, list[tuple[str, int, int, int]])):
        for kind in kinds:
            ranks.setdefault(kind, []).append(rank)
    return tuple(
        Sent(op=name, group=group, size_bytes=size, calls=calls, ranks=tuple(senders))
        for (name, group, size, calls), senders in ranks.items()
    )


def _record_timeline(bench: Bench, parts: Parts) -> tuple[RankTimeline, ...]:
    """Timelines of one more step on all ranks, by the common clock."""
    if not bench.common.comparable or bench.backend.size > _MOST_TIMELINES:
        return ()
    parts.prepare()
    bench.backend.barrier()
    intervals = shortened(parts.timeline(bench.clock.now_ns), _MOST_INTERVALS)
    ends = [(begin, end) for _, begin, end in intervals]
    moments = bench.common.common(np.asarray(ends, dtype=np.int64).reshape(-1))
    origin = -int(agreed(bench, [-int(moments.min(initial=np.iinfo(np.int64).max))])[0])
    since = (moments - origin).reshape(-1, 2).tolist()
    own = [(name, *at) for (name, _, _), at in zip(intervals, since, strict=True)]
    records = records_of_every_rank(bench.backend, own, tuple[tuple[str, int, int], ...])
    return tuple(RankTimeline(rank=rank, spans=spans) for rank, spans in enumerate(records))


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


def shortened(intervals: Sequence[Interval], most: int) -> list[Interval]:
    """Reduce ``intervals`` (sorted by start, as the result) to about ``most`` per name.

    Adjacent intervals are merged when the gap between them is short; the allowed gap doubles until few enough remain.
    """
    kept: list[Interval] = []
    for name in dict.fromkeys(interval[0] for interval in intervals):
        same, apart_ns = [interval for interval in intervals if interval[0] == name], _SHORT_BREAK_NS
        while len(same) > most:
            joined: list[Interval] = []
            for _, begin, end in same:
                if joined and begin - joined[-1][2] <= apart_ns:
                    joined[-1] = (name, joined[-1][1], max(end, joined[-1][2]))
                else:
                    joined.append((name, begin, end))
            same, apart_ns = joined, 2 * apart_ns
        kept += same
    return sorted(kept, key=lambda interval: interval[1])


def _time_once(bench: Bench, prepare: Call, call: Call) -> int:
    """Duration of ``call`` on the slowest rank after a barrier, ns."""
    finish = do_nothing if bench.backend.device is None else bench.backend.device.synchronise
    prepare()
    finish()
    bench.backend.barrier()
    before = bench.clock.now_ns()
    call()
    finish()
    return int(agreed(bench, [bench.clock.now_ns() - before])[0])


def measure_cross_check(bench: Bench, part: Part | None) -> CrossCheck | None:
    """Rates that another tool measures on all ranks concurrently.

    Returns the rates of all ranks, or the first error; None if no rank has such a tool.
    """
    run = None if part is None else part.sets[0].operation.other_tool
    with explained(bench.backend):
        bench.backend.barrier()
    # Half the timeout: the other ranks wait for this one, and would otherwise consider it lost.
    own = None if run is None else run(bench.timing.timeout_seconds / 2)
    gathered = records_of_every_rank(bench.backend, () if own is None else (own,), tuple[CrossCheck, ...])
    checks = [check for of_rank in gathered for check in of_rank]
    if not checks:
        return None
    if failure := next((check for check in checks if check.error is not None), None):
        return failure
    rates = tuple(rate for check in checks for rate in check.bytes_per_second)
    return msgspec.structs.replace(checks[0], bytes_per_second=rates)


def ask_choice(bench: Bench, part: Part | None) -> NcclChoice | None:
    """What the library chose for the call, in the first group whose library can tell; None if none can."""
    choice = None if part is None else part.sets[0].operation.choice
    with explained(bench.backend):
        own = None if choice is None else choice()
        if choice is not None and bench.backend.device is not None:
            bench.backend.device.synchronise()
    gathered = records_of_every_rank(bench.backend, () if own is None else (own,), tuple[NcclChoice, ...])
    return next((made for of_rank in gathered for made in of_rank), None)


def measure_supplement(bench: Bench, case: Case, part: Part | None, launch: int, budget: Budget) -> Supplement | None:
    """The further measurement of the op of ``case``; None if it has none. Collective, also for ranks without a part.

    Raises BackendError and StoreError.
    """
    op = OPS[case.op]
    if op.splits:
        return measure_step_parts(bench, case, part, launch, budget)
    if op.local:
        return measure_cross_check(bench, part) if op.stores else None
    return ask_choice(bench, part) if bench.backend.device is not None and op.members == "all" else None
