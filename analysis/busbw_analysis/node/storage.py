"""Storage: the rate of all ranks together by block size and queue depth, and the cost of a checkpoint for the trainer.

Rates are the bytes of all ranks over the time from the first entry to the last exit. Without a common clock they are
over the time of the slowest rank, which is too short if ranks took turns; ``whole`` says which one it was.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from busbw.ops import STORING
from busbw.ops.settings import Access
from busbw.runs.records import CrossCheck
from busbw.units import format_rate, format_size, format_time
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.intervals import Interval, IntervalKind
from busbw_analysis.data.sentences import sentences
from busbw_analysis.data.summary import CaseSummary, DataCheck
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.curves import Curve
from busbw_analysis.models.results import Results
from busbw_analysis.node.memory import at_peak
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

WAYS = {
    "direct": "past the page cache (O_DIRECT)",
    "dropped": "through the page cache, after dropping the file from it",
    "memory": "the file system is in memory, so this is not the rate of a drive",
}
"""How the page cache is avoided: code in a case, and text."""
_NO_PEAK = Unavailable("only-overlapped", "it was only measured while overlapping with computation")


@dataclass(frozen=True, slots=True)
class CrossCheckRate:
    """The result of another tool (name and version) for the same case.

    rate: B/s of all ranks together, median over its jobs; None if it has none, for the ``reason``.
    """

    tool: str
    rate: float | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Stored:
    """One case on storage. Times are ns per call; rates are B/s of all ``ranks`` together.

    access: how the file was accessed; None for a checkpoint.
    time_ns: for a save that overlaps with computation, the time until all data are on the device without computation.
    whole: the rate is over the time from the first entry to the last exit.
    blocked_ns: for such a save, the time until the trainer may continue.
    cross_check: result of another tool.
    """

    op: str
    case: int
    size_bytes: int
    ranks: int
    access: Access | None
    time_ns: float
    rate: float
    low: float | None
    high: float | None
    kind: IntervalKind
    whole: bool
    blocked_ns: float | None
    check: DataCheck
    flags: tuple[str, ...]
    peak: Peak | Unavailable
    cross_check: CrossCheckRate | None

    @property
    def nominal(self) -> float | None:
        """The rate of all ranks together that is 100 %, in B/s; None without a peak."""
        return at_peak(self.peak, self.ranks)[0]

    @property
    def practical(self) -> float | None:
        """The rate of all ranks together that is reached in practice on such hardware, in B/s; None if unknown."""
        return at_peak(self.peak, self.ranks)[1]


def stored(results: Results, curves: Iterable[Curve]) -> tuple[Stored, ...]:
    """Every measured case on storage, in the order of the plan; ``curves`` provide the peaks."""
    rows = (row for stored_run in results.runs for row in stored_run.measurements)
    checks = by_key((row.case, row.supplement) for row in rows if isinstance(row.supplement, CrossCheck))
    peaks = {(curve.series.key.op, curve.series.key.ranks): curve.peak for curve in curves}
    return tuple(
        _stored(summary, group, peaks.get((summary.case.op, group.ranks), _NO_PEAK), checks.get(summary.case, []))
        for summary in results.cases
        if summary.case.op in STORING and summary.state == "measured"
        for group in summary.groups
    )


def fastest(files: Iterable[Stored], op: str) -> Stored | None:
    """The case of an operation with the highest rate; None if it was not measured, or only on files in memory."""
    on_drives = (file for file in files if file.op == op and (file.access is None or file.access.way != "memory"))
    return max(on_drives, key=lambda file: file.rate, default=None)


def _cross_check(checks: Sequence[CrossCheck], summary: CaseSummary, group: GroupSummary) -> CrossCheckRate | None:
    if not checks:
        return None
    # Results have one entry per rank that ran the case, in rank order.
    everyone = sorted(rank for other in summary.groups for rank in other.ranks)
    places = [everyone.index(rank) for rank in group.ranks]
    reported = [check.bytes_per_second for check in checks if check.error is None]
    rates = [sum(by_rank[place] for place in places) for by_rank in reported if len(by_rank) > max(places)]
    return CrossCheckRate(
        tool=f"{checks[0].tool} {checks[0].version}",
        rate=median(rates) if rates else None,
        reason=next((check.error for check in checks if check.error is not None), None),
    )


def _stored(
    summary: CaseSummary, group: GroupSummary, peak: Peak | Unavailable, checks: Sequence[CrossCheck]
) -> Stored:
    case = summary.case
    posted = group.overlap
    time_ns = group.time_ns if posted is None else posted.pure_ns
    span_ns = group.span_ns if posted is None else None
    moved = case.size_bytes * len(group.ranks) * 1e9 * time_ns / (time_ns if span_ns is None else span_ns)
    ends = group.interval if posted is None else Interval(None, None, "none")
    return Stored(
        op=case.op,
        case=summary.index,
        size_bytes=case.size_bytes,
        ranks=len(group.ranks),
        access=case.settings if isinstance(case.settings, Access) else None,
        time_ns=time_ns,
        rate=moved / time_ns,
        low=None if ends.high_ns is None else moved / ends.high_ns,
        high=None if ends.low_ns is None else moved / ends.low_ns,
        kind=ends.kind,
        whole=span_ns is not None,
        blocked_ns=None if posted is None else posted.post_ns,
        check=summary.check,
        flags=tuple(summary.flags),
        peak=peak,
        cross_check=_cross_check(checks, summary, group),
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
