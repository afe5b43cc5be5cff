"""The part of a report about storage: rates by block and depth, and what a checkpoint costs the trainer."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from busbw.units import format_size, format_time
from busbw_analysis.data.load import fact
from busbw_analysis.data.summary import Interval
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.diagnosis.storage import WAYS, Stored
from busbw_analysis.peaks.peaks import Peak
from busbw_analysis.report.document import (
    MISSING,
    Block,
    Cell,
    Column,
    Paragraph,
    Section,
    Table,
    percent,
    sentence,
    three_digits,
    without_empty,
    words,
)
from busbw_analysis.report.sections.curves import ends_in_words

_CHECKPOINT: Final = "checkpoint_save"
_HOW: Final = (
    "S is the file, or the shard, of one rank; rates are of all ranks together, over the time from the first entry to "
    "the last exit where the clocks tell. A write ends when its data are on the device (fsync); a read does not come "
    "out of the page cache. All of these are busbw's own samples; what another tool says of the same files stands "
    "beside them, where one is installed."
)
_BLOCKED: Final = (
    "Blocked is the time until a trainer may change its state again, durable the time until all of it is on the "
    "device. Where nothing ran beside the save, the trainer waits for all of it."
)


def storage(judgement: Judgement) -> Section | None:
    """Everything that was measured on storage; None where nothing was."""
    if not judgement.files:
        return None
    files = [one for one in judgement.files if one.op != _CHECKPOINT]
    saves = [one for one in judgement.files if one.op == _CHECKPOINT]
    blocks: list[Block] = [Paragraph(_HOW), *_places(judgement), *_peaks(judgement.files)]
    if files:
        blocks.append(_files(files))
    if saves:
        blocks += [Paragraph(_BLOCKED), _saves(saves)]
    return Section("storage", "Storage", tuple(blocks))


def _places(judgement: Judgement) -> Iterator[Table]:
    """What the files were on, host by host, as far as it was told."""
    rows: dict[tuple[str, ...], None] = {}
    for stored in judgement.dataset.runs:
        for host, facts in stored.run.environments.items():
            if isinstance(fact(facts, "storage"), Mapping):
                told = [fact(facts, f"storage.{name}") for name in ("path", "type", "device")]
                rows[host, *(str(one) if one else MISSING for one in told), _tools(fact(facts, "storage.tools"))] = None
    if rows:
        names = ("Host", "Folder", "File system", "On", "Other tools there")
        columns = tuple(Column(name, numeric=False) for name in names)
        yield Table("Where the files were", columns, tuple(words(row) for row in rows))


def _tools(told: object) -> str:
    found = [f"{name} {version}" for name, version in told.items() if version] if isinstance(told, Mapping) else []
    return ", ".join(found) or MISSING


def _peaks(files: Sequence[Stored]) -> Iterator[Block]:
    for one in {_denominator(one): one for one in files}:
        yield Paragraph(sentence(one))


def _denominator(one: Stored) -> str:
    if isinstance(one.peak, Peak):
        return f"100 % of nominal: {one.peak.denominator.partition('; ')[0]}"
    return f"no percentages: {one.peak.reason}"


_COLUMNS: Final = (
    Column("Operation", numeric=False),
    Column("Ranks"),
    Column("Size S"),
    Column("Block"),
    Column("Depth"),
    Column("Page cache", numeric=False),
    Column("Time of a file"),
    Column("All ranks", "GB/s"),
    Column("low", "GB/s"),
    Column("high", "GB/s"),
    Column("Of nominal", "%"),
    Column("Of practical", "%"),
    Column("Other tool", "GB/s"),
    Column("Over it"),
    Column("Data", numeric=False),
    Column("Flags", numeric=False),
)


def _files(files: Sequence[Stored]) -> Table:
    rows = tuple(
        (
            Cell(one.op),
            Cell(str(one.ranks)),
            Cell(format_size(one.size_bytes)),
            Cell(format_size(one.access.block_bytes) if one.access else MISSING),
            Cell(str(one.access.depth) if one.access else MISSING),
            Cell(one.access.way if one.access else MISSING),
            Cell(format_time(one.time_ns)),
            *map(_giga, (one.rate, one.low, one.high)),
            _percent(one.rate, one.nominal),
            _percent(one.rate, one.practical),
            _giga(_told(one)),
            Cell(three_digits(one.rate / told) if (told := _told(one)) else MISSING),
            Cell(one.check, tone="plain" if one.check == "verified" else "quiet"),
            Cell(", ".join(one.flags) or MISSING),
        )
        for one in files
    )
    ways = dict.fromkeys(one.access.way for one in files if one.access is not None)
    notes = [_ends(files), *(f"{way}: {WAYS[way]}." for way in ways)]
    notes += ["Depth: blocks under way at any time.", *_slowest(files), *_other_tools(files)]
    columns, cells = without_empty(_COLUMNS, rows)
    return Table("Files", columns, cells, row_headers=1, note=" ".join([*notes, *_no_practical(files)]))


def _told(one: Stored) -> float | None:
    return None if one.beside is None else one.beside.rate


def _other_tools(files: Sequence[Stored]) -> Iterator[str]:
    for tool in dict.fromkeys(one.beside.tool for one in files if one.beside is not None and one.beside.rate):
        yield (
            f"Other tool: {tool}, one job a rank on the same file after the samples, by its own time, which is in "
            "whole milliseconds and has no interval; over it: busbw's rate over that one."
        )
    told = [(one.size_bytes, one.access.block_bytes) for one in files if one.beside and one.beside.rate and one.access]
    if any(size > block and size % block for size, block in told):
        yield "It goes through whole blocks alone, and leaves out the rest of a file that is no multiple of its block."
    for reason in dict.fromkeys(one.beside.reason for one in files if one.beside is not None and one.beside.reason):
        yield sentence(f"it had no rate: {reason}")


_SAVE_COLUMNS: Final = (
    Column("Operation", numeric=False),
    Column("Ranks"),
    Column("Size S"),
    Column("Blocked"),
    Column("Durable after"),
    Column("All ranks", "GB/s"),
    Column("low", "GB/s"),
    Column("high", "GB/s"),
    Column("Of nominal", "%"),
    Column("Data", numeric=False),
    Column("Flags", numeric=False),
)


def _saves(saves: Sequence[Stored]) -> Table:
    rows = tuple(
        (
            Cell(one.op if one.blocked_ns is None else f"{one.op}, beside computation"),
            Cell(str(one.ranks)),
            Cell(format_size(one.size_bytes)),
            Cell(format_time(one.time_ns if one.blocked_ns is None else one.blocked_ns)),
            Cell(format_time(one.time_ns)),
            *map(_giga, (one.rate, one.low, one.high)),
            _percent(one.rate, one.nominal),
            Cell(one.check, tone="plain" if one.check == "verified" else "quiet"),
            Cell(", ".join(one.flags) or MISSING),
        )
        for one in saves
    )
    columns, cells = without_empty(_SAVE_COLUMNS, rows)
    notes = [_ends(saves), *_slowest(saves), *_no_practical(saves)]
    return Table("Checkpoints", columns, cells, note=" ".join(notes))


def _ends(files: Sequence[Stored]) -> str:
    ends = [Interval(one.low, one.high, one.kind) for one in files if one.blocked_ns is None]
    beside = " Saves beside computation have no interval." if len(ends) < len(files) else ""
    return f"{ends_in_words(ends) if ends else ''}{beside}".strip()


def _slowest(files: Sequence[Stored]) -> Iterator[str]:
    if any(one.ranks > 1 and not one.whole for one in files):
        yield "Where no common clock was told, or a save ran beside computation, over the time of the slowest rank."


def _no_practical(files: Sequence[Stored]) -> Iterator[str]:
    for reason in dict.fromkeys(one.peak.practical_left_out for one in files if isinstance(one.peak, Peak)):
        if reason is not None:
            yield f"No share of practical for what is written: {reason}."


def _giga(rate: float | None) -> Cell:
    return Cell(MISSING, tone="quiet") if rate is None else Cell(three_digits(rate / 1e9))


def _percent(rate: float, nominal: float | None) -> Cell:
    return Cell(MISSING, tone="quiet") if not nominal else Cell(percent(rate / nominal))
