"""The instrument: one block of one case on one rank: buffers, check, warm-up, samples until enough, check again.

Every decision (how many warm-up calls, how many samples, when to stop) is a pure function of numbers that an
all-reduce made the same on every rank, so all ranks decide alike without being told. Control traffic costs a fixed
number of reductions per round of samples, whatever the number of samples. Protocol: docs/method.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from busbw.backends.base import Backend, Call, Vector
from busbw.clock import Clock
from busbw.errors import BackendError, ClockError
from busbw.ops import OPS, traffic
from busbw.ops.base import Layout, Matrix, Op, Share
from busbw.ops.data import Pattern, Unverifiable, count_wrong, fill, pattern, poison, settle
from busbw.ops.groups import Ranks, Round, pair_rounds, split_world
from busbw.plan import Timing
from busbw.records import QUANTILES, Case, Check, Failed, GroupSamples, Measurement, RankSamples, StopReason, least_good
from busbw.statistics import autocorrelation_time, median_interval
from busbw.store import utc_now

if TYPE_CHECKING:
    import torch

_SECOND_NS = 1_000_000_000
_KEPT_VALUES = 4096
"""All ranks' samples of a group are kept while a block has no more of them than this; above it, quantiles only."""

_ABSENT = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Bench:
    """What a rank measures with: its backend and clock, the timing rules, and whether all ranks read one clock."""

    backend: Backend
    clock: Clock
    timing: Timing
    shared_clock: bool
    seed: int


@dataclass(frozen=True, slots=True)
class _Part:
    """This rank's part in one round: its group, its buffers and its call; None of them when it sits the round out."""

    group: Ranks
    layout: Layout
    send: "torch.Tensor"
    receive: "torch.Tensor"
    made_of: Pattern | None
    call: Call


@dataclass(frozen=True, slots=True)
class _Samples:
    """What this rank saw: entry and exit of every sample, ns on its own clock."""

    entries: Vector
    exits: Vector


@dataclass(frozen=True, slots=True)
class _Budget:
    """A block's and a round's share of the case's budget in this launch."""

    min_samples: int
    least_samples: int
    max_samples: int
    min_ns: float
    max_ns: float


@dataclass(frozen=True, slots=True)
class _RoundResult:
    groups: tuple[GroupSamples, ...]
    first_call_ns: int
    warmup_calls: int
    stop_reason: StopReason


def refusal(case: Case, backend: Backend) -> str | None:
    """Why ``case`` cannot run on this world; None when it can. The same on every rank."""
    op = OPS[case.op]
    wanted = "in" if case.in_place else "out"
    if op.sized and wanted not in op.placements:
        return f"{op.name} through torch.distributed exists {_placement_words(op)} only"
    groups = split_world(case.group, case.ranks)
    smallest = min(len(group) for group in groups)
    if smallest < op.least_ranks():
        return f"{op.name} needs {op.least_ranks()} ranks in every group; the smallest here has {smallest}"
    if case.root is not None and case.root >= smallest:
        return f"root {case.root} is not a rank of every group; the smallest has {smallest} ranks"
    if op.uneven and len({len(group) for group in groups}) > 1:
        return f"{op.name} needs groups of one size; these have {sorted({len(group) for group in groups})} ranks"
    return backend.refuse(op, case)


def _placement_words(op: Op) -> str:
    return " and ".join({"in": "in place", "out": "out of place"}[placement] for placement in op.placements)


def rounds_of(case: Case) -> tuple[Round, ...]:
    """Which groups of ranks call together, round by round: one round, but for the pair matrix."""
    op = OPS[case.op]
    groups = split_world(case.group, case.ranks)
    if op.members == "all":
        return (groups,)
    if op.members == "ends":
        return (tuple((group[0], group[-1]) for group in groups),)
    by_group = [pair_rounds(group, together=case.variant != "alone") for group in groups]
    if case.variant == "alone":
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
    budget = _budget(bench.timing, len(rounds))
    results: list[_RoundResult] = []
    checks: list[Check] = []
    for groups in rounds:
        part = _take_part(bench, op, case, groups, matrix)
        if isinstance(part, str):
            return Failed(case=case, launch=launch, block=block, error=part)
        check = _check(bench, op, case, part)
        if isinstance(check, str) or check.state == "wrong":
            return Failed(case=case, launch=launch, block=block, error=_wrong(check, "before timing"))
        if part is not None and op.reduces and case.in_place:
            settle(part.send, case.redop or "sum")
        results.append(_sample(bench, op, case, groups, part, matrix, budget))
        after = _check(bench, op, case, part)
        if isinstance(after, str) or after.state == "wrong":
            return Failed(case=case, launch=launch, block=block, error=_wrong(after, "after timing"))
        checks.append(check)
    return Measurement(
        case=case,
        launch=launch,
        block=block,
        calls=op.trips,
        first_call_ns=max(result.first_call_ns for result in results),
        warmup_calls=max(result.warmup_calls for result in results),
        stop_reason=least_good([result.stop_reason for result in results]),
        check=checks[0],
        started=started,
        elapsed_ns=int(_agreed(bench, [bench.clock.now_ns() - began])[0]),
        groups=tuple(group for result in results for group in result.groups),
    )


def _wrong(check: Check | str, when: str) -> str:
    return check if isinstance(check, str) else f"wrong data {when}: {check.wrong_elements} elements differ"


def _budget(timing: Timing, rounds: int) -> _Budget:
    parts = timing.blocks * rounds
    return _Budget(
        min_samples=max(timing.least_samples // timing.blocks, math.ceil(timing.min_samples / timing.blocks), 2),
        least_samples=max(math.ceil(timing.least_samples / timing.blocks), 2),
        max_samples=max(timing.max_samples // timing.blocks, 2),
        min_ns=timing.min_seconds * _SECOND_NS / parts,
        max_ns=timing.max_seconds * _SECOND_NS / parts,
    )


def _agreed(bench: Bench, values: Sequence[int]) -> Vector:
    """The maximum over all ranks, at all ranks."""
    return bench.backend.reduce(np.asarray(values, dtype=np.int64), "max")


# --- buffers and data ------------------------------------------------------------------------------------------


def _take_part(bench: Bench, op: Op, case: Case, groups: Round, matrix: Matrix) -> _Part | str | None:
    """This rank's part, or on every rank the error of the first one that could not make its buffers.

    The ranks agree before anybody calls: one without buffers would leave the others waiting in the operation.
    """
    error = ""
    part: _Part | None = None
    try:
        part = _part(bench, op, case, groups, matrix)
    except BackendError as refused:
        error = str(refused)
    if not _agreed(bench, [bool(error)])[0]:
        return part
    told = bench.backend.share(error)
    first = next(rank for rank, text in enumerate(told) if text)
    return f"no buffers: rank {first} says: {told[first]}"


def _part(bench: Bench, op: Op, case: Case, groups: Round, matrix: Matrix) -> _Part | None:
    group = next((group for group in groups if bench.backend.rank in group), None)
    if group is None:
        return None
    share = Share(group.index(bench.backend.rank), len(group), case.count, case.in_place, case.root or 0, matrix)
    layout = op.layout(share)
    dtype = case.dtype or "uint8"
    send, receive = _buffers(bench.backend, layout, dtype)
    made_of: Pattern | None = None
    if case.dtype is not None:
        # Another seed for every group, so that data of a neighbouring group are seen as wrong, too.
        seed = bench.seed + group[0]
        try:
            made_of = pattern(len(group), case.dtype, case.redop, seed)
        except Unverifiable:
            made_of = pattern(len(group), case.dtype, None, seed)
    return _Part(group, layout, send, receive, made_of, bench.backend.bind(op, case, group, send, receive, matrix))


def _buffers(backend: Backend, layout: Layout, dtype: str) -> tuple["torch.Tensor", "torch.Tensor"]:
    """New buffers for every block, so that where the pages happened to land is sampled too."""
    if layout.receives_into_send is not None:
        send = backend.allocate(layout.send_count, dtype)
        start = layout.receives_into_send
        return send, send[start : start + layout.receive_count]
    receive = backend.allocate(layout.receive_count, dtype)
    if layout.sends_from_receive is not None:
        start = layout.sends_from_receive
        return receive[start : start + layout.send_count], receive
    return backend.allocate(layout.send_count, dtype), receive


def _check(bench: Bench, op: Op, case: Case, part: _Part | None) -> Check | str:
    """One untimed call on fresh data. Returns what was found, or the error when the op raised on every rank."""
    reason = _unverifiable(op, case)
    error = ""
    wrong = 0
    if part is not None:
        poison(part.receive, case.redop)
        if part.made_of is not None:
            fill(part.send, part.layout.send, part.made_of)
        try:
            part.call()
        except BackendError as raised:
            error = str(raised)
        if not error and reason is None and part.made_of is not None:
            wrong = count_wrong(part.receive, part.layout.expect, part.made_of)
    counts = np.asarray([bool(error), part is not None, wrong], dtype=np.int64)
    try:
        raised_on, taking_part, wrong_everywhere = bench.backend.reduce(counts, "sum")
    except BackendError as broken:
        if not error:
            raise
        # The others still wait in the operation that this rank could not do: what stopped it is the reason to tell.
        message = f"{error}; after that: {broken}"
        raise BackendError(message) from broken
    if 0 < raised_on < taking_part:
        message = f"the operation raised on {raised_on} of {taking_part} ranks{f': {error}' if error else ''}"
        raise BackendError(message)
    if raised_on:
        first = next(text for text in bench.backend.share(error) if text)
        return f"the operation raised on every rank: {first}"
    if reason is not None:
        return Check(state="not checked", reason=reason)
    return Check(state="wrong", wrong_elements=int(wrong_everywhere)) if wrong_everywhere else Check(state="verified")


def _unverifiable(op: Op, case: Case) -> str | None:
    if not op.sized or case.dtype is None:
        return "there are no data"
    try:
        for group in {len(group) for groups in rounds_of(case) for group in groups}:
            pattern(group, case.dtype, case.redop, 0)
    except Unverifiable as reason:
        return str(reason)
    return None


# --- sampling --------------------------------------------------------------------------------------------------


def _sample(
    bench: Bench, op: Op, case: Case, groups: Round, part: _Part | None, matrix: Matrix, budget: _Budget
) -> _RoundResult:
    first = _run(bench, part, 1)
    first_call_ns = int(_agreed(bench, [int((first.exits - first.entries)[0])])[0])
    second = _run(bench, part, 1)
    estimate = int(_agreed(bench, [int((second.exits - second.entries)[0])])[0])
    warmup = warmup_calls(bench.timing, estimate)
    began = bench.clock.now_ns()
    warm = _run(bench, part, warmup)
    spent = bench.clock.now_ns() - began
    estimate, pace = map(int, _agreed(bench, [int(np.median(warm.exits - warm.entries)), spent // warmup]))
    entries: list[Vector] = []
    exits: list[Vector] = []
    began = bench.clock.now_ns()
    count = 0
    more = first_batch(budget, estimate, pace)
    while True:
        batch = _run(bench, part, more)
        entries.append(batch.entries)
        exits.append(batch.exits)
        count += more
        samples = _Samples(np.concatenate(entries), np.concatenate(exits))
        reduced = _reduce(bench, groups, samples)
        elapsed = int(_agreed(bench, [bench.clock.now_ns() - began])[0])
        reason = stop_reason(budget, [slowest for slowest, *_ in reduced], elapsed, bench.timing.precision)
        if reason is not None:
            break
        affordable = int((budget.max_ns - elapsed) / (elapsed / count))
        more = min(count, budget.max_samples - count, max(affordable, budget.least_samples - count, 1))
    quantiles = _per_rank(bench, samples, took_part=part is not None)
    recorded = tuple(
        _group(bench, op, case, matrix, group, row, quantiles) for group, row in zip(groups, reduced, strict=True)
    )
    return _RoundResult(recorded, first_call_ns, warmup, reason)


def _run(bench: Bench, part: _Part | None, count: int) -> _Samples:
    """``count`` samples of one call each, a barrier of the whole world before each."""
    entries = np.zeros(count, dtype=np.int64)
    exits = np.zeros(count, dtype=np.int64)
    now, barrier = bench.clock.now_ns, bench.backend.barrier
    if part is None:
        for _ in range(count):
            barrier()
        return _Samples(entries, exits)
    call = part.call
    for index in range(count):
        barrier()
        before = now()
        call()
        exits[index] = now()
        entries[index] = before
    if bool((exits <= entries).any()):
        index = int(np.flatnonzero(exits <= entries)[0])
        message = (
            f"rank {bench.backend.rank}: a sample began at {entries[index]} ns and ended at {exits[index]} ns; "
            "the clock is broken"
        )
        raise ClockError(message)
    return _Samples(entries, exits)


def warmup_calls(timing: Timing, estimate_ns: int) -> int:
    """Calls that fill the warm-up time at ``estimate_ns`` each, within the plan's limits."""
    wanted = math.ceil(timing.warmup_seconds * _SECOND_NS / max(estimate_ns, 1))
    return min(max(wanted, timing.warmup_calls), timing.warmup_calls_cap)


def first_batch(budget: _Budget, estimate_ns: int, pace_ns: int) -> int:
    """Samples of the first batch: enough for the minimum in count and time, as far as the maximum time allows.

    A sample measures ``estimate_ns`` and takes ``pace_ns`` of the budget: the barrier before it is paid for, too.
    """
    wanted = max(budget.min_samples, math.ceil(budget.min_ns / max(estimate_ns, 1)))
    affordable = max(budget.least_samples, int(budget.max_ns / max(pace_ns, estimate_ns, 1)))
    return max(1, min(wanted, affordable, budget.max_samples))


def stop_reason(budget: _Budget, slowest: Sequence[Vector], elapsed_ns: int, precision: float) -> StopReason | None:
    """Whether these samples are enough; None to go on. All groups of a round must have converged.

    The interval of the median is that of as many free samples as the autocorrelation leaves.
    """
    count = len(slowest[0])
    spent = min(int(vector.sum()) for vector in slowest)
    if (
        count >= budget.min_samples
        and spent >= budget.min_ns
        and all(_half_width(vector) <= precision for vector in slowest)
    ):
        return "converged"
    if count >= budget.max_samples:
        return "cap_samples"
    return "cap_time" if elapsed_ns >= budget.max_ns and count >= budget.least_samples else None


def _half_width(vector: Vector) -> float:
    return median_interval(vector, tau=autocorrelation_time(vector)).relative_half_width


# --- over the ranks --------------------------------------------------------------------------------------------

_Reduced = tuple[Vector, Vector, Vector, Vector, Vector]


def _reduce(bench: Bench, groups: Round, samples: _Samples) -> list[_Reduced]:
    """Per group: slowest, fastest, late rank, arrival skew and exit span of every sample, the same on all ranks.

    One max-reduction: durations; negated durations with the rank packed below them (so that the minimum comes with
    its owner); entries, exits and negated entries for what only a shared clock can tell.
    """
    count = len(samples.entries)
    size = bench.backend.size
    mine = np.full((5, len(groups), count), _ABSENT, dtype=np.int64)
    for number, group in enumerate(groups):
        if bench.backend.rank in group:
            durations = samples.exits - samples.entries
            mine[0, number] = durations
            mine[1, number] = -(durations * size + bench.backend.rank)
            mine[2, number] = samples.entries
            mine[3, number] = samples.exits
            mine[4, number] = -samples.entries
    slowest, packed, last_in, last_out, first_in = bench.backend.reduce(mine.reshape(-1), "max").reshape(mine.shape)
    fastest, late = -packed // size, -packed % size
    return [
        (slowest[g], fastest[g], late[g], last_in[g] + first_in[g], last_out[g] - last_in[g])
        for g in range(len(groups))
    ]


def _per_rank(bench: Bench, samples: _Samples, *, took_part: bool) -> tuple[Vector, Vector | None]:
    """Quantiles of every rank (ranks × quantiles), and every rank's samples (ranks × samples) when they are few."""
    durations = samples.exits - samples.entries
    size, rank, count = bench.backend.size, bench.backend.rank, len(durations)
    own = np.quantile(durations, QUANTILES) if took_part else np.zeros(len(QUANTILES))
    keep = size * count <= _KEPT_VALUES
    width = len(QUANTILES) + (count if keep else 0)
    table = np.zeros((size, width), dtype=np.int64)
    table[rank, : len(QUANTILES)] = np.rint(own)
    if keep and took_part:
        table[rank, len(QUANTILES) :] = durations
    table = bench.backend.reduce(table.reshape(-1), "max").reshape(size, width)
    return table[:, : len(QUANTILES)], table[:, len(QUANTILES) :] if keep else None


def _group(
    bench: Bench,
    op: Op,
    case: Case,
    matrix: Matrix,
    group: Ranks,
    reduced: _Reduced,
    per_rank: tuple[Vector, Vector | None],
) -> GroupSamples:
    slowest, fastest, late, skew, span = reduced
    quantiles, kept = per_rank
    wire = (
        float(traffic.crossing(matrix) * case.size_bytes / max(case.count, 1))
        if op.uneven
        else op.wire_bytes(len(group), case.size_bytes)
    )
    return GroupSamples(
        ranks=group,
        bus_factor=op.factor(len(group)),
        wire_bytes=float(wire),
        moved_factor=bench.backend.moved_factor(op),
        slowest_ns=_integers(slowest),
        fastest_ns=_integers(fastest),
        late_rank=_integers(late),
        arrival_skew_ns=_integers(skew) if bench.shared_clock else None,
        exit_span_ns=_integers(span) if bench.shared_clock else None,
        per_rank=tuple(
            RankSamples(
                rank=rank,
                quantiles_ns=_integers(quantiles[rank]),
                samples_ns=_integers(kept[rank]) if kept is not None else None,
            )
            for rank in group
        ),
    )


def _integers(vector: Vector) -> tuple[int, ...]:
    return tuple(vector.tolist())
