"""Consistency checks of a run: ranks that do not exist, vectors that do not fit together, duplicate rows.

The types of ``records`` define the range of each field; this module checks fields against each other, as far as later
code relies on it: not whether the samples of the ranks give the numbers of their group. Only the first flaw is
reported.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from busbw.ops import OPS, bus_factor, limits
from busbw.runs.plan import LogPlan, Plan
from busbw.runs.records import (
    QUANTILES,
    Case,
    Ended,
    Failed,
    GroupSamples,
    Imported,
    LaunchStarted,
    Measurement,
    RankClock,
    Row,
    Skipped,
    StepParts,
    Window,
)
from busbw.runs.run import Run

_MOST = 2**31 - 1
_MOST_BYTES = 2**60
_MOST_FLOP = 10**30


class Unsound(Exception):
    """A group of ranks is inconsistent; the message says why."""


class Rows:
    """Checks the rows of ``run`` in order, including that each occurs only once."""

    def __init__(self, run: Run) -> None:
        self._cases = frozenset(run.cases)
        self._ranks = len(run.hosts)
        self._blocks: dict[tuple[Case, int, int, tuple[int, ...]], int] = {}
        self._launches: dict[int, int] = {}
        self._windows: dict[Case, int] = {}

    def flaws(self, row: Row, line: int) -> Iterator[str]:
        """Flaws of ``row``, line ``line``, except those of its groups."""
        if isinstance(row, Ended):
            yield from _time("ended", row.ended)
        elif isinstance(row, LaunchStarted):
            yield from _time("started", row.started)
            yield from _of_launch(row, self._ranks)
            if (before := self._launches.setdefault(row.launch, line)) != line:
                yield f"launch {row.launch} began in line {before} already"
        elif isinstance(row, Measurement | Window | Imported | Skipped | Failed):
            if row.case not in self._cases:
                yield f"its case ({row.case.op}, {row.case.size_bytes} B) is not one of the cases in run.json"
            if isinstance(row, Window):
                yield from _of_window(row, self._windows.get(row.case, 0))
                self._windows[row.case] = row.end_ns
            if isinstance(row, Measurement | Imported):
                block = row.case, row.launch, row.block, row.ranks if isinstance(row, Imported) else ()
                if (before := self._blocks.setdefault(block, line)) != line:
                    yield f"line {before} has the same block (launch {row.launch}, block {row.block}) of the same case"
                yield from _of_measurement(row) if isinstance(row, Measurement) else _of_imported(row)


def flaws_of_run(run: Run) -> Iterator[str]:
    """Flaws of ``run.json``."""
    yield from _time("started", run.started)
    if not run.hosts:
        yield "hosts is empty; want the host of every rank"
    for case in run.cases:
        op = OPS.get(case.op)
        yield from _out_of(int(op is not None and op.sized), _MOST_BYTES, size_bytes=case.size_bytes)
        if case.ranks > len(run.hosts) or case.nodes > len(run.hosts):
            yield f"a case has {case.ranks} ranks on {case.nodes} hosts, but hosts has only {len(run.hosts)} ranks"
        if case.root is not None and not 0 <= case.root < case.ranks:
            yield f"a case has root {case.root}, but only {case.ranks} ranks"
        if case.settings is not None:
            yield from case.settings.flaws(case.ranks)
    if len(set(run.cases)) != len(run.cases):
        yield "cases has the same case twice"
    yield from flaws_of_plan(run.plan, len(run.cases))


def flaws_of_plan(plan: Plan | LogPlan, cases: int) -> Iterator[str]:
    """Flaws of the executed ``plan`` of a run with ``cases`` cases."""
    most = max(limits.MOST_LAUNCH_BLOCKS // max(cases, 1), 1)
    if isinstance(plan, Plan) and plan.timing.blocks > most:
        yield f"plan.timing.blocks is {plan.timing.blocks}; want at most {most}"


def _of_launch(row: LaunchStarted, ranks: int) -> Iterator[str]:
    if row.resumes is not None and not 0 <= row.resumes < row.launch:
        yield f"resumes is {row.resumes}; want a launch before {row.launch}"
    costs = ("empty_call_ns", "empty_loop_ns", "compiled_call_ns", "compiled_loop_ns")
    for name in ("hosts", "pids", "timer_ns", *costs):
        if (count := len(getattr(row, name))) != ranks and (count or name not in costs):
            yield f"{name} has {count} entries; the run has {ranks} ranks"
    yield from _of_clocks(row.clocks, ranks)


def _of_clocks(clocks: Sequence[RankClock], ranks: int) -> Iterator[str]:
    for clock in clocks:
        yield from _out_of(0, ranks - 1, **{"rank of a clock": clock.rank})


def _of_measurement(row: Measurement) -> Iterator[str]:
    yield from _time("started", row.started)
    yield from _of_clocks(row.clocks or (), row.case.ranks)
    if isinstance(row.supplement, StepParts):
        yield from _of_step(row.supplement, row.case.ranks)


def _of_window(row: Window, earliest_ns: int) -> Iterator[str]:
    yield from _time("started", row.started)
    if not earliest_ns <= row.begin_ns <= row.end_ns:
        yield f"the window is from {row.begin_ns} to {row.end_ns} ns; the one before it ended at {earliest_ns} ns"
    spread = [row.min_ns, *row.quantiles_ns, row.max_ns]
    if len(row.quantiles_ns) != len(QUANTILES) or spread != sorted(spread):
        yield f"min_ns, quantiles_ns and max_ns are not {len(QUANTILES) + 2} ascending numbers"


def _of_step(step: StepParts, ranks: int) -> Iterator[str]:
    if not len(step.step_ns) == len(step.compute_ns) == len(step.communication_ns) > 0:
        yield "step_ns, compute_ns and communication_ns must have one time per try, and at least one try"
    if step.gaps and (len(step.gaps) != step.steps + 1 or not step.gaps[0] > 0):
        yield f"gaps has {len(step.gaps)} entries from {step.gaps[0]:g} on; want one above 0, then one per step"
    yield from _out_of(0, _MOST_FLOP, flop=step.flop)  # beyond 64 bits, for which msgspec has no ranges
    for sent in step.sent:
        yield from _out_of(1, ranks, **{"group of calls": sent.group})
        if not set(sent.ranks) <= set(range(ranks)):
            yield f"calls of {sent.op!r:.40} name the ranks {sent.ranks!s:.60}; there are {ranks}"
    for name, rows in (("timeline", step.timeline), ("memory", step.memory)):
        numbers = [row.rank for row in rows]
        if len(set(numbers)) != len(numbers) or not set(numbers) <= set(range(ranks)):
            yield f"{name} is of the ranks {numbers!s:.60}; want different ranks out of {ranks}"


def _of_imported(row: Imported) -> Iterator[str]:
    ranks = frozenset(row.ranks)
    if not ranks or len(ranks) != len(row.ranks) or min(ranks) < 0 or max(ranks) >= row.case.ranks:
        yield f"its ranks are {row.ranks!s:.60}; want different ranks out of {row.case.ranks}"
        return
    yield from of_factors(row.bus_factor, row.wire_bytes, 1.0, row.case.op, len(ranks))


def sound_groups(groups: Iterable[GroupSamples], case: Case) -> Iterator[GroupSamples]:
    """The ``groups`` of a block, one by one. Raises Unsound for the first flaw."""
    seen: set[tuple[int, ...]] = set()
    for group in groups:
        if group.ranks in seen:
            raise Unsound("groups has the same ranks twice")
        seen.add(group.ranks)
        for flaw in _of_group(group, case):
            raise Unsound(flaw)
        yield group
    if not seen:
        raise Unsound("groups is empty; want one entry per group of ranks")


def _of_group(group: GroupSamples, case: Case) -> Iterator[str]:
    ranks, samples = frozenset(group.ranks), len(group.slowest_ns)
    if not ranks or len(ranks) != len(group.ranks) or min(ranks) < 0 or max(ranks) >= case.ranks:
        yield f"a group has the ranks {group.ranks!s:.60}; want different ranks out of {case.ranks}"
        return
    if not samples:
        yield "a group has no samples"
    yield from of_factors(group.bus_factor, group.wire_bytes, group.traffic_factor, case.op, len(ranks))
    if any(map(int.__gt__, group.fastest_ns, group.slowest_ns)):
        yield "fastest_ns is above slowest_ns of the same sample"
    for name in ("fastest_rank", "last_rank"):
        if not ranks.issuperset(getattr(group, name) or ()):
            yield f"{name} names a rank that is not in the group"
    for name in ("disturbed", "missed"):
        if not numbers_samples(getattr(group, name), samples):
            yield f"{name} is not an ascending list of sample numbers"
    yield from _of_ranks(group)


def numbers_samples(numbers: Sequence[int], samples: int) -> bool:
    """Whether ``numbers`` are distinct, ascending sample numbers below ``samples``."""
    return list(numbers) == sorted(set(numbers)) and set(numbers) <= set(range(samples))


def of_factors(stored: float | None, wire_bytes: float, traffic_factor: float, op: str, ranks: int) -> Iterator[str]:
    """Flaws of the three numbers of ``op`` on a group of ``ranks`` ranks. Only an op that this version knows has a bus
    factor that can be compared; of another version's op, the stored one has to be in range.
    """
    expected = bus_factor(op, ranks)
    if op not in OPS:
        if stored is not None and not 0 < stored <= float(_MOST):
            yield f"bus_factor is {stored:g}; want > 0"
    elif (stored is None) != (expected is None) or not math.isclose(stored or 0, expected or 0, rel_tol=1e-9):
        yield f"bus_factor is {stored}, but {op} over {ranks} ranks has {expected}"
    if not 0 <= wire_bytes <= float(_MOST_BYTES) or not 0 < traffic_factor <= float(_MOST):
        yield f"wire_bytes is {wire_bytes:g}, traffic_factor {traffic_factor:g}; want ≥ 0 and > 0"


def _of_ranks(group: GroupSamples) -> Iterator[str]:
    if tuple(rank.rank for rank in group.per_rank) != group.ranks:
        yield "per_rank does not list the ranks of the group in their order"
    for rank in group.per_rank:
        if len(rank.quantiles_ns) != len(QUANTILES) or list(rank.quantiles_ns) != sorted(rank.quantiles_ns):
            yield f"quantiles_ns of rank {rank.rank} are not {len(QUANTILES)} ascending numbers"
        for name in ("samples_ns", "entries_ns"):
            vector = getattr(rank, name)
            if vector is not None and len(vector) != len(group.slowest_ns):
                yield f"{name} of rank {rank.rank} has another length than slowest_ns"


def _time(name: str, text: str) -> Iterator[str]:
    try:
        has_zone = datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        has_zone = False
    if not has_zone:
        yield f"{name} is {text!r:.40}; want a time such as 2026-01-02T03:04:05.000Z"


def _out_of(least: int, most: int, **numbers: int) -> Iterator[str]:
    for name, number in numbers.items():
        if not least <= number <= most:
            yield f"{name} is {number}; want a whole number from {least} to {most}"
