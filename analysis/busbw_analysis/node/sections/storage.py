"""The report section on storage: rates by block size and depth, and the cost of a checkpoint for training."""

from collections.abc import Iterator, Sequence
from typing import Final

from busbw.units import format_rate, format_size, format_time
from busbw_analysis.data.sentences import sentences
from busbw_analysis.node.storage import WAYS, Stored
from busbw_analysis.peaks.peaks import Peak
from busbw_analysis.report.document import (
    Block,
    Column,
    Paragraph,
    Section,
    Table,
    checked,
    ends_in_words,
    flagged,
    percent,
    table,
    three_digits,
)

_CHECKPOINT: Final = "checkpoint_save"
_HOW: Final = (
    "S is the file or shard of one rank. Rates are those of all ranks together, from the first entry to the last exit "
    "if the clocks are synchronised. A write ends when its data are on the device (fsync); reads bypass the page "
    "cache. The result of another tool on the same files is shown beside busbw's own, if one is installed. Folders "
    "and file systems are listed under Machine and software."
)
_BLOCKED: Final = (
    "Blocked: time until training may change its state again. Durable: time until all data are on the device. Without "
    "computation beside the save, training waits for all of it."
)


def storage(measured: Sequence[Stored]) -> Section | None:
    """All storage measurements; None if there are none."""
    if not measured:
        return None
    files = [result for result in measured if result.op != _CHECKPOINT]
    saves = [result for result in measured if result.op == _CHECKPOINT]
    peaks = dict.fromkeys(sentences(_denominator(result)) for result in measured)
    blocks: list[Block] = [Paragraph(_HOW), *map(Paragraph, peaks)]
    if files:
        blocks.append(_files(files))
    if saves:
        checkpoints = table("Checkpoints", _SAVE_COLUMNS, saves, *_notes(saves))
        blocks += [Paragraph(_BLOCKED), checkpoints]
    gist = f"{', '.join(dict.fromkeys(result.op for result in measured))}."
    return Section("storage", "Storage", tuple(blocks), gist=gist)


def _denominator(stored: Stored) -> str:
    if isinstance(stored.peak, Peak):
        return f"100 % of nominal: {stored.peak.basis}"
    return f"no percentages: {stored.peak.reason}"


_COLUMNS: Final[tuple[Column[Stored], ...]] = (
    Column("Operation", lambda row: row.op),
    Column("Ranks", lambda row: row.ranks, str),
    Column("Size S", lambda row: row.size_bytes, format_size),
    Column("Block", lambda row: row.access and row.access.block_bytes, format_size),
    Column("Depth", lambda row: row.access and row.access.depth, str),
    Column("Page cache", lambda row: row.access and row.access.way),
    Column("Time of a file", lambda row: row.time_ns, format_time),
    Column("All ranks", lambda row: row.rate, format_rate, ends=lambda row: (row.low, row.high)),
    Column("Of nominal", lambda row: row.rate / row.nominal if row.nominal else None, percent, "%"),
    Column("Of practical", lambda row: row.rate / row.practical if row.practical else None, percent, "%"),
    Column("Other tool", lambda row: row.cross_check and row.cross_check.rate, format_rate),
    Column(
        "Over it",
        lambda row: row.rate / rate if row.cross_check and (rate := row.cross_check.rate) else None,
        three_digits,
    ),
    Column("Data", lambda row: checked(row.check)),
    Column("Flags", lambda row: flagged(row.flags)),
)


def _files(files: Sequence[Stored]) -> Table:
    ways = dict.fromkeys(file.access.way for file in files if file.access is not None)
    depth = "Depth: blocks in flight at any time."
    notes = (depth, *(f"{way}: {WAYS[way]}." for way in ways), *_other_tools(files), *_notes(files))
    return table("Files", _COLUMNS, files, *notes)


def _other_tools(files: Sequence[Stored]) -> Iterator[str]:
    checks = [file.cross_check for file in files if file.cross_check is not None]
    for tool in dict.fromkeys(check.tool for check in checks if check.rate):
        yield (
            f"Other tool: {tool}, one job per rank on the same file after the samples, by its own time in whole "
            "milliseconds, without an interval. Over it: busbw's rate divided by that rate."
        )
    compared = [file for file in files if file.cross_check is not None and file.cross_check.rate]
    sizes = [(file.size_bytes, file.access.block_bytes) for file in compared if file.access]
    if any(size > block and size % block for size, block in sizes):
        yield "It uses whole blocks only, and skips the rest of a file whose size is not a multiple of the block."
    for reason in dict.fromkeys(check.reason for check in checks if check.reason):
        yield sentences(f"the other tool gave no rate: {reason}")


_SAVE_COLUMNS: Final[tuple[Column[Stored], ...]] = (
    Column("Operation", lambda row: row.op if row.blocked_ns is None else f"{row.op}, beside computation"),
    *_COLUMNS[1:3],
    Column("Blocked", lambda row: row.time_ns if row.blocked_ns is None else row.blocked_ns, format_time),
    Column("Durable after", lambda row: row.time_ns, format_time),
    *_COLUMNS[7:9],
    *_COLUMNS[-2:],
)


def _notes(files: Sequence[Stored]) -> Iterator[str]:
    ends = [file.kind for file in files if file.blocked_ns is None]
    if ends:
        yield ends_in_words(ends)
    if len(ends) < len(files):
        yield "Saves beside computation have no interval."
    if any(file.ranks > 1 and not file.whole for file in files):
        yield "Without a common clock, or for a save beside computation, the time is that of the slowest rank."
    for reason in dict.fromkeys(file.peak.practical_left_out for file in files if isinstance(file.peak, Peak)):
        if reason is not None:
            yield f"No practical rate for writes: {reason}."
