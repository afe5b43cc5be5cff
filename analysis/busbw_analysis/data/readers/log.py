"""The records that all readers of logs return.

Base units throughout: bytes, seconds, bytes per second. Facts that a log does not contain are None or empty, never
guessed.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from busbw.ops.settings import Pairs
from busbw.runs.facts import RdmaPort
from busbw.runs.records import CheckState, Mode, Sync
from busbw.runs.run import LogNote

SizeMeaning = Literal["S", "block"]
"""Meaning of a tool's size: busbw's S, or the block of one rank or peer; S is as many blocks as there are ranks."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank ran, or a GPU of a tool without ranks is. ``name`` and ``bus_id`` (PCI address) are the GPU's."""

    rank: int | None = None
    group: int | None = None
    pid: int | None = None
    host: str | None = None
    device: int | None = None
    bus_id: str | None = None
    name: str | None = None


class Aggregate(msgspec.Struct, frozen=True, kw_only=True):
    """One result: the numbers that the tool printed for one case.

    line: line number in the log, from 1
    op, tool_op: the operation by busbw's name (``busbw.ops``; None: busbw does not have it) and by the tool's name
    dtype, redop, root: busbw's names if it has them, else the tool's; None also if the op has none
    in_place: whether the result replaced the input
    ranks: number of ranks in one group
    size_bytes: S as busbw defines it
    tool_size_bytes, tool_size_is: the tool's size and its meaning
    count: the tool's number of elements
    time_seconds: time of one call
    rate: bytes per second, if the tool measures a rate
    messages: how many S the rate counts per call, such as 2 for both directions of a pair; without a rate, algbw
    statistic: statistic of the time or rate: mean, median, min, max, p99, sum, sample
    iterations: number of calls
    algbw, busbw: printed bandwidths in B/s, by the unit that the tool claims; algbw also size over time
    check, wrong_elements: result of the tool's verification
    source, target, part: labels of a cell of a matrix, and which of several matrices
    samples_seconds: one time per iteration
    process_seconds: the same of every process, each time that of the slowest of its GPUs; empty if not printed
    mode, sync, pairs, backend, device: how busbw itself measured it, as in ``Case``, with its other settings in words
    one_host: whether all its ranks were on one host
    others: the tool's other columns by their headings, in the tool's units
    """

    line: int
    op: str | None = None
    tool_op: str | None = None
    dtype: str | None = None
    redop: str | None = None
    root: int | None = None
    in_place: bool | None = None
    ranks: int | None = None
    size_bytes: int | None = None
    tool_size_bytes: int | None = None
    tool_size_is: SizeMeaning | None = None
    count: int | None = None
    time_seconds: float | None = None
    rate: float | None = None
    messages: int | None = None
    statistic: str | None = None
    iterations: int | None = None
    algbw: float | None = None
    busbw: float | None = None
    check: CheckState | None = None
    wrong_elements: int | None = None
    source: str | None = None
    target: str | None = None
    part: str | None = None
    samples_seconds: tuple[float, ...] = ()
    process_seconds: tuple[tuple[float, ...], ...] = ()
    mode: Mode | None = None
    sync: Sync | None = None
    pairs: Pairs | None = None
    backend: str | None = None
    device: str | None = None
    settings: str | None = None
    one_host: bool | None = None
    others: Mapping[str, float | str] = {}


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What people write above a table of its measurement; None: nothing that leaves no doubt."""

    op: str | None = None
    ranks: int | None = None
    hosts: int | None = None


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """The results below one heading, with the facts about their measurement.

    line: line number of the heading
    ranks, groups: number of ranks in one group, and number of concurrent groups
    hosts: number of hosts, if the command line states it
    places: the ranks that the log lists, in its order
    library_version: of NCCL, RCCL or MPI
    command: the command line
    caption: the line of the text around a paste that stands above
    said: operation, ranks and hosts that the text above names (None: it does not)
    nic: the NIC that the tool used, by name
    copy_bytes: size of a copy that the tool states once for all results
    out_of_bounds: number of results that failed the tool's verification, from its summary
    complete: whether the log has the tool's final message (None: the tool prints none)
    """

    line: int
    rows: tuple[Aggregate, ...]
    tool_version: str | None = None
    ranks: int | None = None
    groups: int | None = None
    hosts: int | None = None
    places: tuple[Place, ...] = ()
    library_version: str | None = None
    command: str | None = None
    caption: str | None = None
    said: "Said | None" = None
    nic: str | None = None
    copy_bytes: int | None = None
    out_of_bounds: int | None = None
    complete: bool | None = None


class ForeignLog(msgspec.Struct, frozen=True, kw_only=True):
    """The log of another tool.

    tool: name of the tool
    source: name of the file
    tables: in the order of the log; every table has rows
    notes: findings of the reader
    last_error: the last error in the log; errors of the tool or NCCL take precedence
    ports: those of the NICs of a host, with their rates
    """

    tool: str
    source: str
    tables: tuple[Table, ...]
    notes: tuple[LogNote, ...] = ()
    last_error: str | None = None
    ports: tuple[RdmaPort, ...] = ()

    @property
    def rows(self) -> tuple[Aggregate, ...]:
        """The results of all tables."""
        return tuple(row for table in self.tables for row in table.rows)
