"""Measuring one block of one case on one rank: allocate buffers, check, sample, check again.

A block has its own buffers (``buffers``), data checks before and after (``verify``) and samples (``sampling``). It
gives a result only if both checks pass. Protocol: docs/method.md.
"""

import dataclasses
import math
from functools import partial

import numpy as np

from busbw.backends.base import Call, explained
from busbw.backends.patterns import settle
from busbw.measure.bench import Bench, CaseFailed, Part, agreed, part_in, rounds_of
from busbw.measure.interference import InterferenceMonitor
from busbw.measure.sampling import RoundResult, RoundSettings, sample
from busbw.measure.stopping import budget_of
from busbw.measure.supplements import measure_supplement
from busbw.measure.verify import check_case
from busbw.ops import OPS
from busbw.ops.base import Matrix, Op
from busbw.ops.groups import Round
from busbw.ops.settings import explicit_algorithm
from busbw.runs.causes import failed
from busbw.runs.records import Case, Check, Failed, Measurement, Supplement, least_good
from busbw.runs.store import utc_now
from busbw.system.environment import last_level_cache_bytes

_MOST_SETS = 64
_CACHES_TO_SWEEP = 2
"""Size of rotating buffers, or of memory written between samples, as a multiple of the last-level cache."""


def measure(
    bench: Bench, case: Case, matrix: Matrix, launch: int, block: int, asked: Round | None = None
) -> Measurement | Failed:
    """Measure one block of ``case``. Collective; every rank gets the same record.

    matrix: traffic of an uneven op, elements.
    asked: the groups that a controller asks for (None: those of the case). Its round is short: data are checked only
        before timing (results that are compared: after it, too), and the first round of a case finds the pace and
        compares clocks for all of them.
    Returns ``Failed`` for wrong data, or an op that raises on every rank. Raises BackendError when ranks no longer
    agree (one died, hung or raised alone) and ClockError when the clock went backwards.
    """
    op = OPS[case.op]
    rounds = rounds_of(case) if asked is None else (asked,)
    started, began = utc_now(), bench.clock.now_ns()
    if op.members == "all" and not op.local and explicit_algorithm(case.settings) is None:
        bench.backend.use_groups(rounds[0])
    like = case, max(map(len, rounds[0]))
    pace = None if asked is None else bench.paces.get(like)
    if pace is None:
        bench.common.renew()
    watch = InterferenceMonitor(bench.backend, bench.hosts, counters=bench.counters)
    sets = _sets(bench, case)
    settings = RoundSettings(budget_of(bench.timing, len(rounds), case.mode), _flush(bench, case), sets, pace=pace)
    done: list[tuple[RoundResult, Check, int]] = []
    supplement: Supplement | None = None
    for groups in rounds:
        try:
            with part_in(bench, op, case, groups, matrix, sets) as part:
                done.append(
                    _round(bench, op, case, groups, part, matrix, settings, again=asked is None or op.repeatable)
                )
                supplement = measure_supplement(bench, case, part, launch, settings.budget)
        except CaseFailed as reason:
            return failed(case, launch, block, str(reason), reason.cause, reason.ranks)
        settings = dataclasses.replace(settings, calls=done[0][0].pace.calls)
    results, checks, first_calls_ns = zip(*done, strict=True)
    if asked is not None:
        bench.paces[like] = results[0].pace
    own_error_ns = bench.common.error_ns()  # to rank 0's clock; None on all ranks or on none
    own = [max(first_calls_ns), bench.clock.now_ns() - began, own_error_ns or 0]
    first_call_ns, elapsed_ns, clock_error_ns = map(int, agreed(bench, own))
    return Measurement(
        case=case,
        launch=launch,
        block=block,
        calls=op.trips * results[0].pace.calls,
        first_call_ns=first_call_ns,
        warmup_calls=max(result.warmup_calls for result in results),
        stop_reason=least_good([result.stop_reason for result in results]),
        check=checks[0],
        started=started,
        elapsed_ns=elapsed_ns,
        buffer_sets=sets,
        loop=results[0].loop,
        clock_error_ns=None if own_error_ns is None else 2 * clock_error_ns,
        clocks=bench.common.ranks,
        conditions=watch.ended(),
        supplement=supplement,
        groups=tuple(group for result in results for group in result.groups),
    )


def _round(
    bench: Bench,
    op: Op,
    case: Case,
    groups: Round,
    part: Part | None,
    matrix: Matrix,
    settings: RoundSettings,
    *,
    again: bool,
) -> tuple[RoundResult, Check, int]:
    """Check, sample, and check ``again``: samples, the first check, and the duration of this rank's first call, ns.

    Raises CaseFailed, on every rank.
    """
    check, call_ns = check_case(bench, op, case, groups, part, settings.sets, "before timing")
    if part is not None and op.reduces and case.in_place:
        with explained(bench.backend):
            for buffers in part.sets:
                settle(buffers.send, case.redop or "sum")
    result = sample(bench, op, case, groups, part, matrix, settings)
    if again:
        check_case(bench, op, case, groups, part, settings.sets, "after timing")
    return result, check, call_ns


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
    needed = math.ceil(_CACHES_TO_SWEEP * cache_bytes / case.size_bytes)
    return int(agreed(bench, [min(max(needed, 2), _MOST_SETS)])[0])
