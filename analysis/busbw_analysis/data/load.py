"""From run folders to one data set: read, and refuse to pool what is unlike.

Everything that judges starts from a ``Dataset``. The launch is the experimental unit, so a sample always carries
the run and the launch that it comes from; runs that are pooled contribute launches, never anonymous samples.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, Literal, TypeVar

from busbw.errors import AnalysisError, UnlikeRuns
from busbw.escape import plain_text, with_texts
from busbw.ops import PAIRED
from busbw.runs import store
from busbw.runs.facts import SAME_FACTS, SAME_VARIABLES, fact
from busbw.runs.placement import (
    RankPlacement,
    binding,
    oversubscribed_hosts,
    rank_placements,
    ranks_and_cores,
    variables_of,
)
from busbw.runs.progress import progress_of
from busbw.runs.records import JSON, BackendTraits, Case, GroupSamples, Imported, Measurement, Run
from busbw.units import format_size
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.pair_columns import PairBlock, packed

_Made = TypeVar("_Made")
CaseState = Literal["measured", "failed", "skipped", "not reached"]

_SHOWN_VALUE = 120
"""Characters of a value that fit into an error message."""

_WARM_UP_RULES = ("launch_warmup_seconds", "warmup_seconds", "warmup_calls", "warmup_calls_cap")


@dataclass(frozen=True, slots=True)
class Block:
    """One block of one group of ranks: the number of its run, its launch, its number there, the index of its case, and
    what was recorded of the block and of the group.
    """

    run: int
    launch: int
    number: int
    case: int
    measurement: Measurement
    samples: GroupSamples


@dataclass(frozen=True, slots=True)
class CaseRow:
    """One case of the plan and what became of it, over all the runs that were pooled.

    ``lost`` says of a case which of its launches failed by no doing of the case, and have not been measured again.
    """

    index: int
    case: Case
    state: CaseState
    reasons: tuple[str, ...]
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dataset:
    """Any number of like runs as one.

    ``blocks`` are those of every group of ranks. The blocks of pair matrices are in ``pair_blocks`` alone: run (index
    into ``runs``), case (index into ``cases``) and the block with its samples as columns. Numbers of other tools, which
    have no samples, are in ``imported`` alone, with the same two indices.

    ``notices`` is what the reader has to say: torn lines, facts that only some of the runs recorded, differences that
    were overruled. ``kept`` is what ``once`` has made of it.
    """

    runs: tuple[store.StoredRun, ...]
    cases: tuple[CaseRow, ...]
    blocks: tuple[Block, ...]
    notices: tuple[str, ...]
    pair_blocks: tuple[tuple[int, int, PairBlock], ...] = ()
    imported: tuple[tuple[int, int, Imported], ...] = ()
    kept: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def measured(self) -> Iterator[tuple[int, Measurement, int]]:
        """Every block of every group of ranks, blocks of pairs together: run, what was recorded, how many groups."""
        yield from ((block.run, block.measurement, 1) for block in self.blocks)
        yield from ((run, block, len(block.columns)) for run, _, block in self.pair_blocks)

    @property
    def largest(self) -> Run:
        """The run with the most ranks, the first of several: like runs are placed alike, those pooled by force need not
        be.
        """
        return max((stored.run for stored in self.runs), key=lambda run: len(run.hosts))

    @property
    def hosts(self) -> Sequence[str]:
        """The host of every rank, in the largest run."""
        return self.largest.hosts

    def hosts_of(self, ranks: Iterable[int]) -> tuple[str, ...]:
        """The distinct hosts that ``ranks`` ran on, in rank order."""
        hosts = self.hosts
        return tuple(dict.fromkeys(hosts[rank] for rank in ranks if rank < len(hosts)))

    def host_count(self, ranks: Iterable[int]) -> int | None:
        """How many hosts ``ranks`` ran on; None where the log of another tool does not tell."""
        return None if _unknown(self.runs[0].run, "hosts") else len(self.hosts_of(ranks))

    @property
    def hosts_in_words(self) -> str:
        """How many hosts all runs had: ``1 host``, ``2 hosts`` or ``unknown hosts``."""
        if any(_unknown(stored.run, "hosts") for stored in self.runs):
            return "unknown hosts"
        hosts = len({host for stored in self.runs for host in stored.run.hosts})
        return f"{hosts} host{'' if hosts == 1 else 's'}"

    @property
    def placements(self) -> tuple[RankPlacement, ...]:
        """Where every rank sits, in the largest run."""
        run = self.largest
        return rank_placements(run.hosts, run.environments)

    @property
    def backend(self) -> BackendTraits:
        """What is to be known of the backend; of one that no version knew, that nothing is."""
        run = self.runs[0].run
        return run.backend or BackendTraits(cost_models=run.cases[0].backend if run.cases else "")

    @property
    def oversubscribed_hosts(self) -> dict[str, tuple[int, int]]:
        """The hosts with more ranks than cores that they may use, as (ranks, cores)."""
        run = self.largest
        return oversubscribed_hosts(run.hosts, run.environments)

    @property
    def full_hosts(self) -> tuple[str, ...]:
        """The hosts that have a rank for each core that they may use, and no core besides."""
        run = self.largest
        found = ranks_and_cores(run.hosts, run.environments)
        return tuple(host for host, (ranks, cores) in found.items() if ranks == cores)

    def environment(self, host: str) -> Mapping[str, JSON]:
        """The recorded facts of ``host``; empty when there are none."""
        return self.largest.environments.get(host, {})


def once(made_of: Callable[[Dataset], _Made]) -> Callable[[Dataset], _Made]:
    """``made_of`` a dataset, made when it is first asked for and kept with it."""

    @wraps(made_of)
    def made(dataset: Dataset) -> _Made:
        if made_of not in dataset.kept:
            dataset.kept[made_of] = made_of(dataset)
        found: _Made = dataset.kept[made_of]
        return found

    return made


def _listed(values: Iterable[object]) -> JSON:
    """Different ones of ``values``, in words; None where there are none."""
    return ", ".join(sorted({str(value) for value in values})) or None


def _over_hosts(path: str) -> Callable[[Run], JSON]:
    """The distinct values of one environment fact over the hosts of a run; None when no host recorded it, or nothing
    in it.
    """
    return lambda run: _listed(value for value in _facts(run, path) if value not in (None, {}))


def _facts(run: Run, path: str) -> Iterator[JSON]:
    yield from (fact(environment, path) for environment in run.environments.values())


def _memory(run: Run) -> JSON:
    """Memory of the hosts in whole GiB: what a kernel keeps for itself differs by some pages from boot to boot."""
    sizes = _facts(run, "memory.total_bytes")
    return _listed(f"{round(size / 2**30)} GiB" for size in sizes if isinstance(size, int | float))


def _variables(run: Run) -> JSON:
    told = (item for environment in run.environments.values() for item in variables_of(environment).items())
    found = _listed(f"{name}={value}" for name, value in told if name.startswith(SAME_VARIABLES))
    return None if run.imported is not None else found or ""


def _placement(run: Run) -> JSON:
    """Which ranks share a host, by the order in which hosts appear: their names are another day's business."""
    if _unknown(run, "hosts"):
        return None
    seen = {host: str(number) for number, host in enumerate(dict.fromkeys(run.hosts))}
    return " ".join(seen[host] for host in run.hosts)


def _binding(run: Run) -> JSON:
    """How ranks are bound to cores, in words: not to which, for another job may get others of the same kind."""
    by_host = grouped(rank_placements(run.hosts, run.environments), lambda placement: placement.host)
    return _listed(words for here in by_host.values() if (words := binding(here)) is not None)


def _unknown(run: Run, what: str) -> bool:
    """Whether neither the log that a run is from nor who imported it told ``what``."""
    return run.imported is not None and what in run.imported.unknown


def _of_cases(field: str) -> Callable[[Run], JSON]:
    return lambda run: _listed(getattr(case, field) for case in run.cases)


def _warm_up(run: Run) -> JSON:
    timing = run.plan.get("timing")
    if not isinstance(timing, Mapping):
        return None
    return ", ".join(f"{name}={timing[name]}" for name in _WARM_UP_RULES if name in timing) or None


_FACTS = tuple((path, _over_hosts(path)) for path in SAME_FACTS)

CHECKED: tuple[tuple[str, Callable[[Run], JSON]], ...] = (
    ("machine", lambda run: None if _unknown(run, "machine") else run.machine),
    ("ranks", lambda run: len(run.hosts)),
    ("hosts", lambda run: None if _unknown(run, "hosts") else len(set(run.hosts))),
    ("placement of ranks on hosts", _placement),
    ("backend", _of_cases("backend")),
    ("device", _of_cases("device")),
    *_FACTS[:4],
    ("binding of ranks to cores", _binding),
    ("memory", _memory),
    *_FACTS[4:],
    ("variables", _variables),
    ("warm-up", _warm_up),
    ("busbw", lambda run: None if run.imported is not None else run.busbw),
)
"""What has to be equal for runs to be pooled: a name that the error message can use, and where it stands in a run.

A fact that one run did not record proves no difference; it becomes a notice instead.
"""


def load(paths: Sequence[Path], *, force: bool = False) -> Dataset:
    """Read the run folders ``paths`` and pool them.

    Raises UnlikeRuns, naming the key and both values, when two runs differ in one of ``CHECKED`` (``force`` pools them
    all the same and leaves a notice), AnalysisError when no run or one run twice is given, StoreError for a folder
    that cannot be read.
    """
    return pool([read(path) for path in paths], force=force)


def read(path: Path) -> store.StoredRun:
    """``store.read`` for what ``pool`` takes: the samples of pair matrices become columns while they are read."""
    return store.read(path, keep=packed)


def pool(stored_runs: Iterable[store.StoredRun], *, force: bool = False) -> Dataset:
    """As ``load``, for runs that have been read already. Their text is made harmless here, for all that follows."""
    runs = tuple(_plain(_packed(stored)) for stored in stored_runs)
    if not runs:
        message = "no run was given; give at least one run folder"
        raise AnalysisError(message)
    notices = [warning for stored in runs for warning in stored.warnings]
    identifiers = [stored.run.id for stored in runs]
    twice = sorted({identifier for identifier in identifiers if identifiers.count(identifier) > 1})
    if twice:
        message = f"run {twice[0]} was given more than once; pooled with itself its launches would count twice"
        raise AnalysisError(message)
    for stored in runs[1:]:
        notices += _refuse(differences(runs[0], stored), force=force)
    fates = by_key((case, (what, why)) for stored in runs for case, what, why in _fates(stored))
    cases = tuple(_case_row(index, case, fate) for index, (case, fate) in enumerate(fates.items()))
    indices = {row.case: row.index for row in cases}
    rows = [
        (run, indices[row.case], row)
        for run, stored in enumerate(runs)
        for row in stored.rows
        if isinstance(row, Measurement | Imported)
    ]
    return Dataset(
        runs=runs,
        cases=cases,
        blocks=tuple(
            Block(run, row.launch, row.block, case, row, samples)
            for run, case, row in rows
            if isinstance(row, Measurement)
            for samples in row.groups
        ),
        notices=tuple(notices),
        pair_blocks=tuple((run, case, row) for run, case, row in rows if isinstance(row, PairBlock)),
        imported=tuple((run, case, row) for run, case, row in rows if isinstance(row, Imported)),
    )


def _plain(stored: store.StoredRun) -> store.StoredRun:
    """``stored`` with all its strings as ``plain_text``; the numbers are not touched."""
    run, rows, warnings = with_texts([stored.run, stored.rows, stored.warnings], plain_text)
    return replace(stored, run=run, rows=rows, warnings=warnings)


def pool_alike(stored_runs: Sequence[store.StoredRun]) -> tuple[Dataset, ...]:
    """``stored_runs`` pooled where they may be, those that differ in one of ``CHECKED`` each on their own side, in the
    order in which they are given. Raises as ``pool``.
    """
    sides: list[list[store.StoredRun]] = []
    for stored in stored_runs:
        alike = (side for side in sides if all(one.unknown_in is not None for one in differences(side[0], stored)))
        if (side := next(alike, None)) is None:
            sides.append(side := [])
        side.append(stored)
    return tuple(pool(side) for side in sides) or (pool(()),)


def _packed(stored: store.StoredRun) -> store.StoredRun:
    """``stored`` as ``read`` gives it, where it is from somewhere else."""
    rows = (
        packed(row, row.groups)
        if isinstance(row, Measurement) and row.case.op in PAIRED and not isinstance(row, PairBlock)
        else row
        for row in stored.rows
    )
    return replace(stored, rows=tuple(rows))


@dataclass(frozen=True, slots=True)
class Difference:
    """One of ``CHECKED`` in which two runs differ, in words; ``unknown_in`` is the run that did not record it."""

    key: str
    text: str
    unknown_in: str | None = None


def differences(first: store.StoredRun, second: store.StoredRun) -> tuple[Difference, ...]:
    """Everything in ``CHECKED`` in which ``second`` is not like ``first``, with both values, and the cases that another
    loop has timed.
    """
    found: list[Difference] = []
    for key, value_of in CHECKED:
        one, two = value_of(first.run), value_of(second.run)
        if one == two:
            continue
        if one is None or two is None:
            without = first.run.id if one is None else second.run.id
            text = f"run {without} did not record {key!r}, so it could not be compared with the other runs"
            found.append(Difference(key, text, without))
        else:
            text = f"{key!r} is {_short(one)} in run {first.run.id} and {_short(two)} in run {second.run.id}"
            found.append(Difference(key, text))
    return (*found, *_other_loops(first, second))


def _other_loops(first: store.StoredRun, second: store.StoredRun) -> Iterator[Difference]:
    """A row of short calls takes Python two or three times as long, so that is no matter of the machine."""
    one, two = (by_key((row.case, row.loop) for row in stored.measurements) for stored in (first, second))
    unlike = [case for case, loops in one.items() if case in two and {*two[case]} != {*loops}]
    if unlike:
        case = unlike[0]
        said = [
            f"{' and '.join(sorted({*loops[case]}))} in run {run.run.id}"
            for loops, run in ((one, first), (two, second))
        ]
        where = f"{case.op} at {format_size(case.size_bytes)} and {len(unlike) - 1} more of the cases of both"
        yield Difference("loop", f"'loop', which made the calls, is {said[0]} and {said[1]}, for {where}")


def _refuse(found: Sequence[Difference], *, force: bool) -> list[str]:
    told = next((difference.text for difference in found if difference.unknown_in is None), None)
    if told is not None and not force:
        message = f"these runs may not be pooled: {told}; judge them one by one, or overrule it with --force"
        raise UnlikeRuns(message)
    return [one.text if one.unknown_in is not None else f"pooled although {one.text}" for one in found]


def _short(value: JSON) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_VALUE else f"{text[:_SHOWN_VALUE]}…"


def _fates(stored: store.StoredRun) -> Iterator[tuple[Case, str, str]]:
    """What a run says of its cases: that one is planned, measured, skipped, failed by its own doing, or has lost a
    launch by none; and why.
    """
    yield from ((case, "planned", "") for case in stored.run.cases)
    yield from ((case, "measured", "") for case, _ in stored.checks)
    yield from ((row.case, "skipped", row.reason) for row in stored.skipped)
    progress = progress_of(stored)
    for row in stored.failed:
        if not row.transient:
            yield row.case, "failed", row.error
        elif (row.case, row.block) in progress.lacking(progress.planned_as(row.launch)):
            yield row.case, "lost", f"launch {row.launch + 1} of run {stored.run.id}: {row.error}"
        else:
            yield row.case, "planned", ""
    for case, check in stored.checks:
        if check.state == "wrong":
            yield case, "failed", f"wrong data: {check.reason or f'{check.wrong_elements} elements differ'}"


def _case_row(index: int, case: Case, fate: Iterable[tuple[str, str]]) -> CaseRow:
    why = {what: tuple(dict.fromkeys(reasons)) for what, reasons in by_key(fate).items()}
    # A failure outweighs the launches in which the case went well: a result that came out wrong once is not a result.
    # A rank that died says nothing of the launches before.
    if "failed" in why:
        return CaseRow(index, case, "failed", why["failed"])
    if "measured" in why:
        return CaseRow(index, case, "measured", why.get("skipped", ()), why.get("lost", ()))
    if "lost" in why:
        return CaseRow(index, case, "failed", why["lost"])
    if "skipped" in why:
        return CaseRow(index, case, "skipped", why["skipped"])
    return CaseRow(index, case, "not reached", ("the run ended before this case had its turn",))


def rank_list(ranks: Sequence[int]) -> str:
    """The ranks of a group as text: ``0-3`` for three or more in a row, else ``0,2``."""
    ordered = list(ranks)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[0] + len(ordered))):
        return f"{ordered[0]}-{ordered[-1]}"
    return ",".join(str(rank) for rank in ordered)
