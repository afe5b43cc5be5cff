"""How far runs are, read without their samples: what a list of thousands of them needs.

Of a row its kind, case, launch and block are decoded, and the rest is passed over: that it is JSON is all that is known
of it. ``store.read`` holds every number against the others; what it would refuse may be listed here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from busbw.errors import DamagedRun
from busbw.runs import soundness, store, upgrades
from busbw.runs.records import JSON, SCHEMA, TRANSIENT, Case, Ended, LaunchStarted


@dataclass(frozen=True, slots=True)
class Outline:
    """A run without its samples. ``launches`` maps the number of each to the one it resumes, ``blocks`` are (launch,
    case, number) of those that were measured, ``out`` are the cases that were skipped or failed by their own doing.
    """

    machine: str
    plan: Mapping[str, JSON]
    cases: tuple[Case, ...]
    ranks: int
    launches: Mapping[int, int | None]
    blocks: tuple[tuple[int, Case, int], ...]
    out: frozenset[Case]
    end: Ended | None


class _Schema(msgspec.Struct, frozen=True):
    schema: int


class _Head(msgspec.Struct, frozen=True):
    """What is read of ``run.json`` of this schema or of an older one; its environments are most of it."""

    schema: int
    machine: str
    plan: dict[str, JSON]
    cases: tuple[Case, ...]
    hosts: tuple[str, ...]


class _OldHead(_Head, frozen=True):
    cases: list[JSON]  # type: ignore[assignment]  # they are lifted first


class _Row(msgspec.Struct, frozen=True):
    """What is read of a row."""

    kind: str
    case: msgspec.Raw = msgspec.Raw()
    launch: int = 0
    block: int = 0
    resumes: int | None = None
    cause: str = "unknown"


_SCHEMA_OF = msgspec.json.Decoder(_Schema)
_HEAD = msgspec.json.Decoder(_Head)
_OLD_HEAD = msgspec.json.Decoder(_OldHead)
_ROW = msgspec.json.Decoder(_Row)
_CASE = msgspec.json.Decoder(Case)
_END = msgspec.json.Decoder(Ended)


def outline_of(stored: store.StoredRun) -> Outline:
    """The outline of a run that was read."""
    run = stored.run
    return Outline(
        machine=run.machine,
        plan=run.plan,
        cases=run.cases,
        ranks=len(run.hosts),
        launches={row.launch: row.resumes for row in stored.rows if isinstance(row, LaunchStarted)},
        blocks=(
            *((row.launch, row.case, row.block) for row in stored.measurements),
            *((row.launch, row.case, row.block) for row in stored.imported),
        ),
        out=frozenset({row.case for row in stored.skipped} | {row.case for row in stored.failed if not row.transient}),
        end=stored.end,
    )


def outline(folder: Path) -> Outline:
    """The outline of the run in ``folder``; raises as ``store.read`` does."""
    try:
        head, schema = _head(store.run_document(folder / store.RUN_FILE))
    except store.NOT_A_RECORD:
        return outline_of(store.read(folder))
    # Anything else is read whole, which says what is wrong with it.
    if not 1 <= schema <= SCHEMA or soundness.flaw_of_plan(head.plan, len(head.cases)) is not None:
        return outline_of(store.read(folder))
    for name in (store.PACKED_FILE, store.SAMPLES_FILE, store.PACKED_FILE):
        try:
            return _with_rows(head, schema, folder, name)
        except FileNotFoundError:
            continue
    return _outline(head, _Seen(schema))


def _head(content: bytes) -> tuple[_Head, int]:
    """The head as of now, and the schema that it was written in."""
    schema = _SCHEMA_OF.decode(content).schema
    if not 1 <= schema < SCHEMA:
        return _HEAD.decode(content), schema
    old = msgspec.structs.asdict(_OLD_HEAD.decode(content))
    return msgspec.convert(upgrades.run_as_now(old, schema), _Head), schema


class _Seen:
    """What the rows have told so far. Cases are decoded once: a run has the same ones again and again."""

    def __init__(self, schema: int) -> None:
        self._schema = schema
        self.launches: dict[int, int | None] = {}
        self.blocks: list[tuple[int, Case, int]] = []
        self.out: set[Case] = set()
        self.end: Ended | None = None
        self._cases: dict[bytes, Case] = {}

    def take(self, line: bytes) -> None:
        row = _ROW.decode(line)
        self.end = _END.decode(line) if row.kind == "end" else None
        if row.kind == "launch":
            self.launches[row.launch] = row.resumes
        elif row.kind in {"measurement", "imported"}:
            self.blocks.append((row.launch, self._case(row.case), row.block))
        elif row.kind != "end" and row.cause not in TRANSIENT:
            self.out.add(self._case(row.case))

    def _case(self, raw: msgspec.Raw) -> Case:
        written = bytes(raw)
        if written not in self._cases:
            self._cases[written] = _CASE.decode(upgrades.case_as_now(written, self._schema))
        return self._cases[written]


def _with_rows(head: _Head, schema: int, folder: Path, name: str) -> Outline:
    seen = _Seen(schema)
    bad: Exception | None = None
    number = 0
    with store.sample_lines(folder, name) as lines:
        for number, line in enumerate(lines, start=1):
            if bad is not None:
                raise DamagedRun(f"{folder / name}, line {number - 1}: {bad}") from bad
            if not line.endswith(b"\n"):
                break
            try:
                seen.take(line)
            except store.NOT_A_RECORD as error:
                bad = error  # of the last line it is no damage
    if seen.end is not None and bad is None and seen.end.rows not in {None, number - 1}:
        raise DamagedRun(
            f"{folder / name}, line {number}: the run ended with {seen.end.rows} rows, and {number - 1} are there"
        )
    return _outline(head, seen)


def _outline(head: _Head, seen: _Seen) -> Outline:
    return Outline(
        machine=head.machine,
        plan=head.plan,
        cases=head.cases,
        ranks=len(head.hosts),
        launches=seen.launches,
        blocks=tuple(seen.blocks),
        out=frozenset(seen.out),
        end=seen.end,
    )
