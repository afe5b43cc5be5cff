"""Progress of a run: which launches of its plan are complete or partial, counted in blocks that have a row.

``outline`` reads it without the samples, for lists of thousands of runs: of a row, only kind, case, launch and block
are decoded. ``store.read`` checks all numbers for consistency, so it may refuse a run that is listed here.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import msgspec

from busbw.errors import DamagedRun
from busbw.runs import soundness, store
from busbw.runs.described import facts_in_words, settings_in_words, variables_in_words
from busbw.runs.facts import HostFacts
from busbw.runs.plan import LogPlan, Plan, plan_of_json
from busbw.runs.records import SCHEMA, TRANSIENT, Case, Ended, Imported, LaunchStarted, Measurement
from busbw.runs.store import StoredRun
from busbw.units import counted

CaseBlock = tuple[Case, int]
"""A case and the number of one of its blocks."""


class Head(msgspec.Struct, frozen=True):
    """What an outline has of ``run.json``; named as in ``Run``."""

    schema: int
    machine: str
    started: str
    busbw: str
    plan: Plan | LogPlan
    cases: tuple[Case, ...]
    hosts: tuple[str, ...]
    environments: dict[str, HostFacts]


@dataclass(frozen=True, slots=True)
class Outline:
    """A run without its samples.

    launches: number of a launch → the launch that it resumes, or None
    blocks: (launch, case, number) of every measured block
    out: cases that were skipped, or failed through their own fault
    """

    run: Head
    launches: Mapping[int, int | None]
    blocks: tuple[tuple[int, Case, int], ...]
    out: frozenset[Case]
    end: Ended | None


class _Row(msgspec.Struct, frozen=True):
    """Decoded part of a row."""

    kind: str
    case: msgspec.Raw = msgspec.Raw()
    launch: int = 0
    block: int = 0
    resumes: int | None = None
    cause: str | None = None


class _HeadDocument(Head, frozen=True):
    """A head as it is stored."""

    plan: msgspec.Raw  # type: ignore[assignment]  # a plan only in ``Head``


_HEAD = msgspec.json.Decoder(_HeadDocument)
_ROW = msgspec.json.Decoder(_Row)
_CASE = msgspec.json.Decoder(Case)
_END = msgspec.json.Decoder(Ended)


def outline_of(stored: StoredRun) -> Outline:
    """The outline of a run that is already in memory."""
    return Outline(
        run=Head(*(getattr(stored.run, name) for name in Head.__struct_fields__)),
        launches={row.launch: row.resumes for row in stored.rows if isinstance(row, LaunchStarted)},
        blocks=tuple(
            (row.launch, row.case, row.block) for row in stored.rows if isinstance(row, Measurement | Imported)
        ),
        out=frozenset({row.case for row in stored.skipped} | {row.case for row in stored.failed if not row.transient}),
        end=stored.end,
    )


def outline(folder: Path) -> Outline:
    """The outline of the run in ``folder``; raises like ``store.read``."""
    with suppress(*store.NOT_A_RECORD):
        document = _HEAD.decode(store.run_document(folder / store.RUN_FILE))
        fields = {name: getattr(document, name) for name in Head.__struct_fields__}
        head = Head(**{**fields, "plan": _plan_of(bytes(document.plan))})
        if head.schema == SCHEMA and head.hosts and not any(soundness.flaws_of_plan(head.plan, len(head.cases))):
            return _outline(head, folder)
    return outline_of(store.read(folder))  # gives the right error message


@lru_cache(maxsize=64)
def _plan_of(content: bytes) -> Plan | LogPlan:
    """The plan of a run. Cached, because the runs of a series share one."""
    return plan_of_json(msgspec.json.decode(content))


def _outline(head: Head, folder: Path) -> Outline:
    launches: dict[int, int | None] = {}
    blocks: list[tuple[int, Case, int]] = []
    out: set[Case] = set()
    end: Ended | None = None
    case_of = cache(_CASE.decode)  # a run repeats the same cases

    def take(line: bytes) -> bool:
        nonlocal end
        row = _ROW.decode(line)
        end = _END.decode(line) if row.kind == "end" else None
        if row.kind == "launch":
            launches[row.launch] = row.resumes
        elif row.kind in {"measurement", "imported"}:
            blocks.append((row.launch, case_of(bytes(row.case)), row.block))
        elif row.kind not in {"end", "window"} and row.cause not in TRANSIENT:
            out.add(case_of(bytes(row.case)))
        return True

    for name in store.PLACES:
        with suppress(FileNotFoundError):
            rows = sum(bool(taken) for _, _, taken in store.decoded_lines(folder / name, take))
            if end is not None and end.rows not in {None, rows - 1}:
                before = f"the run ended with {end.rows} rows, but has {rows - 1}"
                raise DamagedRun(f"{folder / name}, line {rows}: {before}")
            break
    return Outline(
        run=head,
        launches=launches,
        blocks=tuple(blocks),
        out=frozenset(out),
        end=end,
    )


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run. A launch that resumes another one counts as that one.

    planned: number of launches in the plan
    whole: blocks of a complete launch; cases that were skipped, or failed through their own fault, are excluded
    there: launch → its measured blocks, for every launch that began
    origin: launch → the launch of the plan whose blocks it measures
    end: how the run ended; None: it is running, or was killed
    """

    planned: int
    whole: frozenset[CaseBlock]
    there: Mapping[int, frozenset[CaseBlock]]
    origin: Mapping[int, int]
    end: Ended | None

    def planned_as(self, launch: int) -> int:
        """The launch of the plan whose blocks ``launch`` measures: itself, or the launch that it resumes."""
        return self.origin.get(launch, launch)

    def lacking(self, launch: int) -> frozenset[CaseBlock]:
        """The blocks that ``launch`` has not measured; all of them if it never began."""
        return self.whole - self.there.get(launch, frozenset())

    @property
    def complete(self) -> int:
        """Number of launches that have all their blocks."""
        return sum(not self.lacking(launch) for launch in self.there)

    @property
    def partial(self) -> dict[int, int]:
        """Launch that began but lacks blocks → number of its measured blocks."""
        return {launch: len(self.whole) - len(lacking) for launch in self.there if (lacking := self.lacking(launch))}

    @property
    def measured(self) -> int:
        """Number of measured blocks."""
        return sum(len(blocks & self.whole) for blocks in self.there.values())

    @property
    def wanted(self) -> int:
        """Number of blocks of all planned launches."""
        return self.planned * len(self.whole)

    def in_words(self) -> str:
        """A sentence that counts launches from 1: "1 of 4 launches is complete, launch 2 in part (40 of 80 blocks)"."""
        launches = counted(self.planned, "launch", "launches")
        verb = "is" if 1 in {self.complete, self.planned} else "are"
        whole = len(self.whole)
        parts = [f"launch {launch + 1} in part ({blocks} of {whole} blocks)" for launch, blocks in self.partial.items()]
        return ", ".join([f"{self.complete} of {launches} {verb} complete", *parts])

    def with_blocks_and_end(self) -> str:
        """Blocks, launches, and how the run ended."""
        end = f"; {self.end.in_words()}" if self.end else ""
        return f"{self.measured} of {self.wanted} blocks, {self.in_words()}{end}"


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """What a list of runs shows of one.

    started: UTC, ISO 8601
    ops: the operations, without those that are measured only as references
    host, hosts: the first host, and the number of hosts
    settings: of the cases of ``ops``, by name
    variables: those of the environment that change results
    facts: of the hosts and their libraries, by name
    measured: number of cases with a result
    state: how it ended
    """

    machine: str
    plan: str | None
    label: str | None
    started: str
    ops: tuple[str, ...]
    backends: tuple[str, ...]
    host: str
    hosts: int
    settings: dict[str, str]
    variables: dict[str, str]
    facts: dict[str, str]
    ranks: int
    measured: int
    cases: int
    complete: int
    planned: int
    state: str


def line_of(outlined: Outline) -> RunLine:
    """The line of a run in a list."""
    run, progress = outlined.run, progress_of(outlined)
    asked = [case for case in run.cases if case.op not in run.plan.baseline_ops]
    return RunLine(
        machine=run.machine,
        plan=run.plan.name,
        label=run.plan.label,
        started=run.started,
        ops=tuple(dict.fromkeys(case.op for case in asked)),
        backends=tuple(dict.fromkeys(case.backend for case in asked)),
        host=run.hosts[0],
        hosts=len(set(run.hosts)),
        settings=settings_in_words(asked),
        variables=variables_in_words(run.environments),
        facts={"busbw": run.busbw} | facts_in_words(run.environments),
        ranks=len(run.hosts),
        measured=len({case for _, case, _ in outlined.blocks}),
        cases=len(run.cases),
        complete=progress.complete,
        planned=progress.planned,
        state=outlined.end.status if outlined.end else "not ended: killed or still running",
    )


def progress_of(stored: StoredRun | Outline) -> Progress:
    """The progress of a run. One from a log is assumed to have all blocks and launches, as is one whose controller
    chose its blocks.
    """
    outlined = outline_of(stored) if isinstance(stored, StoredRun) else stored
    run = outlined.run
    plan = run.plan if isinstance(run.plan, Plan) else None
    blocks = plan.timing.blocks if plan else 1 + max((block for _, _, block in outlined.blocks), default=0)
    origin: dict[int, int] = {}
    for launch, resumes in outlined.launches.items():
        origin[launch] = launch if resumes is None else origin.get(resumes, resumes)
    there: dict[int, set[CaseBlock]] = {launch: set() for launch in sorted(set(origin.values()))}
    for launch, case, block in outlined.blocks:
        there.setdefault(origin.get(launch, launch), set()).add((case, block))
    whole = {(case, block) for case in run.cases if case not in outlined.out for block in range(blocks)}
    return Progress(
        planned=plan.launches if plan else len(there),
        whole=frozenset(whole if run.plan.controller is None else set().union(*there.values())),
        there={launch: frozenset(measured) for launch, measured in there.items()},
        origin=origin,
        end=outlined.end,
    )
