"""How far runs are, read without their samples: what a list of thousands of them needs.

Of a row its kind, case, launch and block are decoded, and the rest is passed over: that it is JSON is all that is known
of it. ``store.read`` holds every number against the others; what it would refuse may be listed here.
"""

from collections.abc import Mapping
from contextlib import suppress
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
    if not 1 <= schema <= SCHEMA or any(soundness.flaws_of_plan(head.plan, len(head.cases))):
        return outline_of(store.read(folder))
    seen = _Seen(schema)
    for name in store.PLACES:
        with suppress(FileNotFoundError):
            seen.take_all(folder / name)
            break
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

    def take_all(self, path: Path) -> None:
        """Take all rows of ``path``. Raises as ``store.decoded_lines``, and DamagedRun for an end that miscounts."""

        def damaged(number: int, _: bytes, error: Exception) -> DamagedRun:
            return DamagedRun(f"{path}, line {number}: {error}")

        rows = sum(row is not None for _, _, row in store.decoded_lines(path, self._take, damaged))
        if self.end is not None and self.end.rows not in {None, rows - 1}:
            raise DamagedRun(f"{path}, line {rows}: the run ended with {self.end.rows} rows, and {rows - 1} are there")

    def _take(self, line: bytes) -> _Row:
        row = _ROW.decode(line)
        self.end = _END.decode(line) if row.kind == "end" else None
        if row.kind == "launch":
            self.launches[row.launch] = row.resumes
        elif row.kind in {"measurement", "imported"}:
            self.blocks.append((row.launch, self._case(row.case), row.block))
        elif row.kind != "end" and row.cause not in TRANSIENT:
            self.out.add(self._case(row.case))
        return row

    def _case(self, raw: msgspec.Raw) -> Case:
        written = bytes(raw)
        if written not in self._cases:
            self._cases[written] = _CASE.decode(upgrades.case_as_now(written, self._schema))
        return self._cases[written]
