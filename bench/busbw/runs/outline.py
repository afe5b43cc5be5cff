"""Outlines: the progress of runs, read without their samples, for lists of thousands of runs.

Of a row, only kind, case, launch and block are decoded; the rest is only parsed as JSON. ``store.read`` checks all
numbers for consistency, so it may refuse a run that is listed here.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from busbw.errors import DamagedRun
from busbw.runs import soundness, store
from busbw.runs.records import JSON, SCHEMA, TRANSIENT, Case, Ended, LaunchStarted


@dataclass(frozen=True, slots=True)
class Outline:
    """A run without its samples.

    launches: number of a launch → the launch that it resumes, or None
    blocks: (launch, case, number) of every measured block
    out: cases that were skipped, or failed through their own fault
    """

    machine: str
    plan: Mapping[str, JSON]
    cases: tuple[Case, ...]
    ranks: int
    launches: Mapping[int, int | None]
    blocks: tuple[tuple[int, Case, int], ...]
    out: frozenset[Case]
    end: Ended | None


class _Head(msgspec.Struct, frozen=True):
    """Decoded part of a ``run.json``; its environments, which are skipped, make up most of the file."""

    schema: int
    machine: str
    plan: dict[str, JSON]
    cases: tuple[Case, ...]
    hosts: tuple[str, ...]


class _Row(msgspec.Struct, frozen=True):
    """Decoded part of a row."""

    kind: str
    case: msgspec.Raw = msgspec.Raw()
    launch: int = 0
    block: int = 0
    resumes: int | None = None
    cause: str | None = None


_HEAD = msgspec.json.Decoder(_Head)
_ROW = msgspec.json.Decoder(_Row)
_CASE = msgspec.json.Decoder(Case)
_END = msgspec.json.Decoder(Ended)


def outline_of(stored: store.StoredRun) -> Outline:
    """The outline of a run that is already in memory."""
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
    """The outline of the run in ``folder``; raises like ``store.read``."""
    try:
        head = _HEAD.decode(store.run_document(folder / store.RUN_FILE))
    except store.NOT_A_RECORD:
        return outline_of(store.read(folder))
    # Read other runs completely: that upgrades them, or gives the right error message.
    if head.schema != SCHEMA or any(soundness.flaws_of_plan(head.plan, len(head.cases))):
        return outline_of(store.read(folder))
    seen = _Seen()
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


class _Seen:
    """Collects the rows of a run. Each distinct case is decoded once, because a run repeats the same cases."""

    def __init__(self) -> None:
        self.launches: dict[int, int | None] = {}
        self.blocks: list[tuple[int, Case, int]] = []
        self.out: set[Case] = set()
        self.end: Ended | None = None
        self._cases: dict[bytes, Case] = {}

    def take_all(self, path: Path) -> None:
        """Read all rows of ``path``. Raises like ``store.decoded_lines``, and DamagedRun for a wrong count."""
        rows = sum(row is not None for _, _, row in store.decoded_lines(path, self._take))
        if self.end is not None and self.end.rows not in {None, rows - 1}:
            raise DamagedRun(f"{path}, line {rows}: the run ended with {self.end.rows} rows, but has {rows - 1}")

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
            self._cases[written] = _CASE.decode(written)
        return self._cases[written]
