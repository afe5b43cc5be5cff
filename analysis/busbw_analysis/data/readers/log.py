"""What a log of another tool tells: the records that every reader yields.

Base units throughout: bytes, seconds, bytes per second. What a log does not tell is None or empty, never guessed.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from busbw.runs.records import CheckState, LogNote

SizeMeaning = Literal["S", "block"]
"""What the size of a tool is: busbw's S, or the block of one rank or peer, of which S holds as many as there are
ranks."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank, or a GPU of a tool without ranks, was. ``name`` is the processor's, ``bus_id`` its PCI address."""

    rank: int | None = None
    group: int | None = None
    pid: int | None = None
    host: str | None = None
    device: int | None = None
    bus_id: str | None = None
    name: str | None = None


class Aggregate(msgspec.Struct, frozen=True, kw_only=True):
    """One result: a number that the tool printed for one case, and what belongs to it.

    line: where it stands in the log, from 1
    op, tool_op: operation in busbw's names (``busbw.ops``; None: busbw has none like it), and as the tool calls it
    dtype, redop, root: None where the op has none, too; names in busbw's words where it has one
    in_place: whether the result replaced the input
    ranks: of one group
    size_bytes: S as busbw defines it
    tool_size_bytes, tool_size_is: the tool's own size, and what that is
    time_seconds, rate: time of one call; bytes per second where the tool's own number is a rate
    messages: how many S the rate counts in the time of one call, such as 2 for both directions of a pair
    statistic: of the calls or samples, as the tool states it: mean, median, min, max, p99, sum, sample
    spread: the same by other statistics, in seconds (B/s without a time): min, max, p50, stdev; ``cv`` is a fraction
    algbw, busbw, bandwidth_unit: as the tool printed them, times the unit that it claims
    check, wrong_elements: what the tool's verification said
    pairs, window: pairs of ranks at once; messages in flight of each
    source, target, part: the cell of a matrix by its labels, and which of several matrices
    samples_seconds, process_samples_seconds: one per iteration; for every process, its own
    others: the tool's other columns by their headings, in its own units
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
    spread: Mapping[str, float] = {}
    algbw: float | None = None
    busbw: float | None = None
    bandwidth_unit: str | None = None
    check: CheckState | None = None
    wrong_elements: int | None = None
    pairs: int | None = None
    window: int | None = None
    source: str | None = None
    target: str | None = None
    part: str | None = None
    samples_seconds: tuple[float, ...] = ()
    process_samples_seconds: tuple[tuple[float, ...], ...] = ()
    others: Mapping[str, float | str] = {}


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """The results below one heading, and what the log says about how they were measured.

    line: of the heading
    ranks: of one group; ``groups`` ran at the same time
    places: the ranks that the log lists, in its order
    library_version, driver_version: of NCCL, RCCL or MPI; of the GPU's driver
    command, parameters: the command line, and settings by the tool's names for them
    average_busbw, out_of_bounds: the tool's own summary: B/s, and results that its verification refused
    complete: whether the tool said that it had ended (None: it never says so)
    """

    line: int
    rows: tuple[Aggregate, ...]
    tool_version: str | None = None
    ranks: int | None = None
    groups: int | None = None
    places: tuple[Place, ...] = ()
    library_version: str | None = None
    driver_version: str | None = None
    command: str | None = None
    parameters: Mapping[str, str] = {}
    average_busbw: float | None = None
    out_of_bounds: int | None = None
    complete: bool | None = None


class ForeignLog(msgspec.Struct, frozen=True, kw_only=True):
    """The log of another tool.

    source: name of the file
    recognised_by: the words by which the tool was recognised
    tables: in the order of the log, none without rows
    last_error: the last failure that the log quotes, NCCL's before others
    """

    tool: str
    source: str
    tables: tuple[Table, ...]
    notes: tuple[LogNote, ...] = ()
    last_error: str | None = None
    recognised_by: str = ""

    @property
    def rows(self) -> tuple[Aggregate, ...]:
        """The results of all tables."""
        return tuple(row for table in self.tables for row in table.rows)
