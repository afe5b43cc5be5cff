"""The cases of a run: rows in base units for JSON, and tables for people."""

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Final

import msgspec
import numpy as np

from busbw.ops import FLOP, LOCAL, MEMORY_TRAFFIC, OPS, PAIRED
from busbw.ops.groups import groups_in_words
from busbw.runs.records import JSON, Case, Detail, case_in_words
from busbw.units import counted, format_flop, format_rate, format_size, format_time
from busbw_analysis.data.as_json import plain, values_of
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.groups import GroupSummary, Overlap
from busbw_analysis.data.summary import FLAGS, CaseSummary, Total
from busbw_analysis.diagnosis.judge import CaseNumber, Judgement
from busbw_analysis.diagnosis.verdicts import ABOVE_PEAK, NEAR_PEAK
from busbw_analysis.peaks.peaks import Peak, of_peak
from busbw_analysis.report.document import Cell, Column, Paragraph, Table, percent, table

_BAR: Final = 12
"""Length of the longest bar, in characters."""
_SMALL_BYTES: Final = 4096
"""Up to this size, the time of a reference is shown, because it is the latency."""
_EIGHTHS: Final = ("", *"▏▎▍▌▋▊▉")

_OF_CASE: Final = (
    *("op", "size_bytes", "count", "dtype", "redop", "in_place"),
    *("mode", "sync", "cache", "pre_enqueue", "registered", "root", "tool_op"),
)
_IN_COLUMNS: Final[frozenset[Detail]] = frozenset({"op", "dtype", "redop", "in_place", "group", "device", "root"})
"""Fields of a case that are not repeated among its settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRow:
    """A case on some of its ranks, in ns per call and B/s; None for missing values.

    row: ``group``, ``total`` (all groups of a split), ``median pair`` and ``slowest pair`` (of a pair matrix),
        or ``none`` for a case without numbers
    group: the ranks and their numbers; None for a total
    peak, peak_share: the rate that is 100 %, and the rate over it; of a total, over the sum of its groups
    empty_call_ns: part of ``time_ns`` that an empty call takes, where a GPU's launch and the wait for it are timed
    numbers: those that the slices know of cases
    """

    summary: CaseSummary
    row: str
    group: GroupSummary | None = None
    peak: Peak | None = None
    peak_share: float | None = None
    empty_call_ns: float | None = None
    numbers: tuple[CaseNumber, ...] = ()

    @property
    def case(self) -> Case:
        """The case."""
        return self.summary.case

    @property
    def in_words(self) -> tuple[str, ...]:
        """The settings of the case that have no column."""
        return tuple(case_in_words(self.case, _IN_COLUMNS))

    @property
    def loop(self) -> str | None:
        """The loops that made the calls."""
        return " and ".join(self.summary.loops) or None

    @property
    def reason(self) -> str | None:
        """Why the case has no numbers."""
        return "; ".join(self.summary.reasons) or None

    @property
    def _rated(self) -> GroupSummary | Total | None:
        return self.summary.total if self.row == "total" else self.group

    @property
    def time_ns(self) -> float | None:
        """The time of a call."""
        return None if self._rated is None else self._rated.time_ns

    @property
    def algbw(self) -> float | None:
        """Its size over its time."""
        return None if self._rated is None else self._rated.algbw

    @property
    def busbw(self) -> float | None:
        """``algbw`` times the bus factor."""
        return None if self._rated is None else self._rated.busbw

    @property
    def overlap(self) -> Overlap | None:
        """Of a call beside computation."""
        return None if self.group is None else self.group.overlap

    @property
    def traffic(self) -> float | None:
        """Bytes that one rank reads and writes."""
        factor, rate = MEMORY_TRAFFIC.get(self.case.op), None if self.group is None else self.group.algbw
        return None if factor is None or rate is None else factor * rate

    @property
    def document(self) -> dict[str, JSON]:
        """The row as JSON."""
        case, group, overlap = self.case, self.group, self.overlap
        return {
            **values_of(case, *_OF_CASE),
            "groups": case.group,
            "settings": None if case.settings is None else msgspec.to_builtins(case.settings),
            "in_words": self.in_words,
            "state": self.summary.state,
            "reason": self.reason,
            "loop": self.loop,
            "choices": plain(self.summary.choices),
            **self.summary.check.document,
            "flags": self.summary.flags,
            "row": self.row,
            **_values(group, "ranks", "launches", "samples"),
            **values_of(self, "time_ns"),
            **_values(group, "fastest_ns"),
            **_values(group and group.interval, "low_ns", "high_ns"),
            "interval": None if group is None else group.interval.kind,
            **values_of(self, "algbw", "busbw"),
            **_values(group, "spread", "skew_share", "statistic"),
            **values_of(self, "peak_share"),
            "peak": None if self.peak is None else self.peak.source,
            **_values(self.peak, "denominator"),
            "overlap": None if overlap is None else overlap.share,
            **values_of(self, "traffic", "empty_call_ns"),
            "overlap_low": None if overlap is None else overlap.low,
            "overlap_high": None if overlap is None else overlap.high,
            **{number.key: _number(number, self) for number in self.numbers},
        }


def _values(record: object | None, *names: str) -> dict[str, JSON]:
    """``values_of`` a record; all None without one."""
    return dict.fromkeys(names) if record is None else values_of(record, *names)


def show_rows(judgement: Judgement) -> list[ShownRow]:
    """The rows of all cases and groups of ranks, in the order of the plan."""
    peaks = peaks_of(judgement)
    numbers = tuple(number for part in judgement.slices for number in part.numbers)
    rows = (row for summary in judgement.cases for row in _rows_of(summary, peaks))
    empty_ns = max(
        (max(launch.empty_call_ns, default=0) for run in judgement.runs for launch in run.launches), default=0
    )
    return [replace(row, numbers=numbers, empty_call_ns=_empty_call(row, empty_ns)) for row in rows]


def _empty_call(row: ShownRow, empty_ns: float) -> float | None:
    """What an empty call adds to the time of the row, which is that of one of the call's trips."""
    op = OPS.get(row.case.op)
    by_host = row.case.mode in {"isolated", "barriers"} and not row.case.pre_enqueue
    added_ns = empty_ns / (op.trips if op else 1)
    return added_ns or None if by_host and row.case.device != "cpu" and row.time_ns is not None else None


def peaks_of(judgement: Judgement) -> dict[tuple[int, tuple[int, ...]], Peak]:
    """The known peaks, by case and ranks."""
    return {
        (point.case, curve.series.key.ranks): curve.peak
        for curve in judgement.curves
        for point in curve.series.points
        if isinstance(curve.peak, Peak)
    }


def _rows_of(summary: CaseSummary, peaks: Mapping[tuple[int, tuple[int, ...]], Peak]) -> Iterator[ShownRow]:
    if not summary.groups:
        yield ShownRow(summary=summary, row="none")
        return
    if summary.case.op in PAIRED:
        times = summary.groups.time_ns
        ordered = np.argsort(times, kind="stable").tolist()
        for name, place in (("median pair", ordered[(len(ordered) - 1) // 2]), ("slowest pair", int(np.argmax(times)))):
            yield ShownRow(summary=summary, row=name, group=summary.groups[place])
        return
    group_peaks = [peaks.get((summary.index, group.ranks)) for group in summary.groups]
    for group, peak in zip(summary.groups, group_peaks, strict=True):
        share = share_of(group, peak)
        known = None if share is None else peak
        yield ShownRow(summary=summary, row="group", group=group, peak=known, peak_share=share)
    if (total := summary.total) is not None:
        rates = [peak.busbw for peak in group_peaks if peak is not None and peak.busbw is not None]
        share = total.busbw / sum(rates) if total.busbw is not None and len(rates) == len(group_peaks) else None
        yield ShownRow(summary=summary, row="total", peak_share=share)


def share_of(group: GroupSummary, peak: Peak | None) -> float | None:
    """The group's rate over the peak: busbw, or algbw if nothing crosses a wire, as in copies."""
    if peak is None:
        return None
    rate, most = (group.algbw, peak.algbw) if group.bus_factor is None else (group.busbw, peak.busbw)
    return None if rate is None or most is None else rate / most


def common_flags(every: Sequence[Sequence[str]], noun: str = "row") -> tuple[tuple[str, ...], str]:
    """The flags of three quarters of several rows or cases, and a note with their counts instead of them in each."""
    counts = Counter(flag for flags in every for flag in flags)
    common = {flag: count for flag, count in counts.items() if len(every) > 1 and 4 * count >= 3 * len(every)}
    named = ", ".join(f"{flag} ({count})" for flag, count in common.items())
    note = f"also on most of the {counted(len(every), noun)}, not repeated above: {named}" if named else ""
    return tuple(common), note


def _title(row: ShownRow, common: Collection[str]) -> str:
    """The operation, and settings that are unusual or not the same in the whole run."""
    case = row.case
    parts = [case.op, *(value for name, value in (("dtype", case.dtype), ("redop", case.redop)) if name not in common)]
    parts += [*row.in_words, "in place" if case.in_place else "", f"root {case.root}" if case.root else ""]
    # A single rank is in the column of ranks: such cases are the cells of one table.
    parts += ["" if case.group.isdecimal() else groups_in_words(case.group)]
    parts += ["" if row.loop in {None, "python"} else f"{row.loop} loop"]
    return " · ".join(filter(None, parts))


def _by_title(rows: Sequence[ShownRow], common: Collection[str]) -> Iterator[tuple[str, list[ShownRow]]]:
    """The rows of each table by its title, which has the ranks where only their number tells tables apart."""
    tables = grouped(rows, lambda row: (_title(row, common), row.case.ranks))
    alike = Counter(title for title, _ in tables)
    for (title, ranks), members in tables.items():
        yield title if alike[title] == 1 else f"{title} · {counted(ranks, 'rank')}", members


def _which(row: ShownRow) -> str | None:
    """Which row of a case this is, if there are several."""
    if row.row == "slowest pair" and row.group is not None:
        return "slowest pair {}→{}".format(*row.group.ranks)
    if row.row != "group":
        return None if row.row == "none" else row.row
    return None if row.case.group == "all" or row.group is None else row.group.label


def _scatter(row: ShownRow) -> float | None:
    """The larger distance of the interval's ends from the time, as a share of the time."""
    if row.group is None or row.group.interval.low_ns is None:
        return None
    time_ns, (low_ns, high_ns) = row.group.time_ns, row.group.ends
    return max(time_ns - low_ns, high_ns - time_ns) / time_ns


def _percent(share: float) -> str:
    return "<1%" if 0 < share < 0.005 else f"{100 * share:.0f}%"


def _of_peak(row: ShownRow) -> Cell | None:
    share = row.peak_share
    if share is None:
        return None
    near = NEAR_PEAK <= share <= ABOVE_PEAK
    return Cell("<0.1%" if share < 0.001 else f"{percent(share)}%", "good" if near else "plain")


def _state(row: ShownRow) -> Cell:
    """State of a row that is not a verified measurement; empty otherwise."""
    summary = row.summary
    if summary.state != "measured":
        return Cell(summary.state.upper(), "bad" if summary.state == "failed" else "caution")
    checked = summary.check.state == "verified" or not row.case.size_bytes
    return Cell("") if checked else Cell("not checked", "caution")


def _hidden(overlap: Overlap) -> str:
    return f"{overlap.share:.0%}" + ("" if overlap.low is None else f" ({overlap.low:.0%} to {overlap.high:.0%})")


def _bars(rows: Sequence[ShownRow], rate_of: Callable[[ShownRow], float | None]) -> Callable[[ShownRow], Cell]:
    """Each row's rate relative to the highest of ``rows``, as a bar."""
    most = max((rate_of(row) or 0.0 for row in rows), default=0.0)

    def bar(row: ShownRow) -> Cell:
        rate = rate_of(row)
        if not rate or row.row not in {"group", "total"}:
            return Cell("")
        eighths = max(1, round(8 * _BAR * rate / most))
        return Cell("█" * (eighths // 8) + _EIGHTHS[eighths % 8], "bar")

    return bar


def _columns(rows: Sequence[ShownRow], launches: Collection[int], unchecked: str) -> list[Column[ShownRow]]:
    """The columns of a section; empty ones are dropped later. ``unchecked``: as of ``_unchecked``."""
    name = "busbw" if any(row.busbw is not None for row in rows) else "algbw"
    rate = attrgetter(name)
    return [
        Column("size", lambda row: row.case.size_bytes or None, format_size),
        Column("ranks", _which),
        Column("time", lambda row: row.time_ns, format_time),
        Column("±", _scatter, lambda share: ">100%" if share > 1 else _percent(share)),
        Column(name, rate, format_rate),
        Column("traffic", lambda row: row.traffic, format_rate),
        Column(of_peak(row.peak.level for row in rows if row.peak).lower(), _of_peak, str),
        *(
            Column(number.heading, partial(_number, number), _percent if number.unit == "fraction" else format_time)
            for number in rows[0].numbers
            if number.heading
        ),
        Column("NCCL", lambda row: row.summary.choice),
        # No rank waits for another one in a local op.
        Column("skew", lambda row: row.group.skew_share if row.group and row.case.op not in LOCAL else None, _percent),
        Column("launches", lambda row: row.group.launches if row.group and len(launches) > 1 else None, str),
        Column("hidden", lambda row: row.overlap, _hidden),
        Column("", _bars(rows, rate)),
        Column("", lambda row: None if unchecked and row.summary.state == "measured" else _state(row)),
    ]


def _number(number: CaseNumber, row: ShownRow) -> float | None:
    return number.values.get(row.summary.index)


def _peaks(rows: Sequence[ShownRow]) -> str:
    """The peak that the percentages of a section refer to; the report has the whole sentence."""
    sources = by_key(
        (f"{format_rate(rate / row.peak_share)}{' of traffic' if row.traffic else ''}", row.peak.source)
        for row in rows
        if row.peak_share and row.peak and (rate := row.busbw or row.traffic or row.algbw)
    )
    peaks = []
    for amount, names in sources.items():
        more = len(set(names)) - 1
        peaks.append(f"{amount}, from {names[0]}" + (f", and {counted(more, 'other')} alike" if more else ""))
    return "" if not peaks else f"100 %: {'; '.join(peaks)}"


def _by_size(rows: Sequence[ShownRow], words: Callable[[ShownRow], Iterable[str]]) -> Iterator[str]:
    """Each text of a section's rows once, with its sizes unless it applies to all."""
    sizes = list(dict.fromkeys(row.case.size_bytes for row in rows))
    by_word = by_key((word, sizes.index(row.case.size_bytes)) for row in rows for word in words(row))
    for word, members in by_word.items():
        places = sorted(set(members))
        yield word if len(places) == len(sizes) else f"{word}: {', '.join(_ranges(places, sizes))}"


def _ranges(places: Sequence[int], sizes: Sequence[int]) -> Iterator[str]:
    """The sizes at ascending ``places``; three or more in a row as the first and the last."""
    for _, members in groupby(enumerate(places), key=lambda pair: pair[1] - pair[0]):
        names = [format_size(sizes[place]) for _, place in members]
        yield from (names if len(names) < 3 else [f"{names[0]} to {names[-1]}"])


def _reason(row: ShownRow, unchecked: str) -> Iterator[str]:
    """Why a row is not a verified measurement, unless it is ``unchecked`` as all rows are."""
    if state := _state(row).text:
        measured = row.summary.state == "measured"
        yield from ([] if unchecked else [row.summary.check.in_words]) if measured else [f"{state}, {row.reason}"]


def _unchecked(rows: Iterable[ShownRow]) -> str:
    """Why none of several measured cases was checked, with their number; "" if some were, or if reasons differ."""
    measured = {row.summary.index: row for row in rows if row.summary.state == "measured"}
    reasons = {row.summary.check.in_words if _state(row).text else "" for row in measured.values()}
    reason = reasons.pop() if len(reasons) == 1 and len(measured) > 1 else ""
    return reason and f"data of all {len(measured)} cases {reason}"


def about(judgement: Judgement) -> tuple[str, ...]:
    """What was run and where, in a few words each."""
    run = judgement.runs[0].run
    of_hosts = f"{counted(len(run.hosts), 'rank')} on {judgement.facts.hosts_in_words}"
    backends = dict.fromkeys(row.case.backend for row in judgement.cases)
    labels = dict.fromkeys(label for stored in judgement.runs if (label := stored.run.plan.label) is not None)
    return (
        run.plan.name,
        *map(repr, labels),
        counted(len(judgement.cases), "case"),
        of_hosts,
        *backends,
    )


def show_blocks(
    rows: Sequence[ShownRow], *introduction: str, references: Container[str] = (), explain: bool = True
) -> list[Paragraph | Table]:
    """``rows`` of ``show_rows`` as one table per operation and setting, in the order of the plan.

    Facts that hold for all rows follow ``introduction`` once. ``references`` are ops that are one line together;
    ``explain``: with the meaning of flags and columns.
    """
    beside = [row for row in rows if row.case.op in references]
    rows = [row for row in rows if row.case.op not in references]
    dtypes, redops = {row.case.dtype for row in rows} - {None}, {row.case.redop for row in rows}
    same = {name: value for name, value in (("dtype", dtypes), ("redop", redops)) if len(value) == 1}
    launches = {row.group.launches for row in rows if row.group is not None}
    # A case may have several rows.
    measured = {row.summary.index: row.summary.flags for row in rows if row.time_ns is not None}
    flags, flags_note = common_flags([*measured.values()], "case")
    unchecked = _unchecked(rows)
    head = [*introduction, *(value for values in same.values() for value in values if value)]
    head += [counted(number, "launch", "launches") for number in launches if len(launches) == 1]
    blocks: list[Paragraph | Table] = [Paragraph(" · ".join(head))] if head else []
    for title, members in _by_title(rows, same):
        flagged = " · ".join(_by_size(members, lambda row: (flag for flag in row.summary.flags if flag not in flags)))
        empty = [
            f"an empty call takes {format_time(ns)} of each" for ns in {row.empty_call_ns for row in members} if ns
        ]
        notes = (*_by_size(members, partial(_reason, unchecked=unchecked)), _peaks(members), *empty, flagged)
        blocks.append(table(title, _columns(members, launches, unchecked), members, *notes))
    meaning = _notes(rows) if explain else ("busbw explain WORD explains flags and headings",)
    notes = (_in_one_line(beside), unchecked, flags_note, *meaning)
    return [*blocks, Paragraph(text)] if (text := "\n".join(filter(None, notes))) else blocks


def _in_one_line(rows: Sequence[ShownRow]) -> str:
    """The time of the smallest messages and the best rate, by op; empty without ``rows``."""
    shown = []
    for op, members in grouped([row for row in rows if row.row != "total"], lambda row: row.case.op).items():
        ordered = sorted(members, key=lambda row: row.case.size_bytes)
        small = ordered[0]
        rates = [(_rate(row), row.case.size_bytes) for row in ordered]
        best, size = max(((rate, size) for rate, size in rates if rate and size), default=(0.0, 0))
        at = f" at {format_size(small.case.size_bytes)}" if small.case.size_bytes else ""
        texts = [
            format_time(small.time_ns) + at if small.time_ns and small.case.size_bytes <= _SMALL_BYTES else "",
            f"{(format_flop if op in FLOP else format_rate)(best)} at {format_size(size)}" if best else "",
            *dict.fromkeys(filter(None, (_state(row).text for row in members))),
        ]
        shown.append(f"{op} {', '.join(filter(None, texts))}")
    return f"reference (--all): {'; '.join(shown)}" if shown else ""


def _rate(row: ShownRow) -> float | None:
    """B/s, or FLOP/s of an operation whose bytes mean nothing."""
    if row.case.op in FLOP:
        return None if row.time_ns is None else FLOP[row.case.op](row.case.count) / row.time_ns * 1e9
    return row.algbw if row.busbw is None else row.busbw


def _notes(rows: Sequence[ShownRow]) -> Iterator[str]:
    """The meaning of flags and columns, and facts that hold for most rows."""
    raised = {flag for row in rows for flag in row.summary.flags}
    yield from (f"{flag}: {meaning}" for flag, meaning in FLAGS.items() if flag in raised)
    groups = [row.group for row in rows if row.group is not None]
    kinds = [kind for kind in dict.fromkeys(group.interval.kind for group in groups) if kind != "none"]
    printed = {row.group is not None and row.group.statistic is not None for row in rows}
    times = ["median over launches of the slowest rank's median"] if False in printed else []
    times += ["of a log as printed, or from a rate; of several samples or tables the median"] if True in printed else []
    skew = ["skew: first to last arrival, % of the time"] if False in printed else []
    yield "; ".join([f"time: {', '.join(times)}", *([f"±: {', '.join(kinds)}"] if kinds else []), *skew])
    if any(group.interval.kind == "none" and group.statistic is None for group in groups):
        yield "no ±: an interval of one launch needs at least 6 independent samples"
    if any(row.traffic is not None for row in rows):
        yield "traffic: bytes read and written by one rank, each counted once, as in STREAM"
    yield from (number.note for number in (rows[0].numbers if rows else ()) if number.note and number.known)
    if any(row.case.mode == "graph" and row.case.backend == "nccl" and row.busbw is not None for row in rows):
        yield "graph: NCCL may register the buffers (NCCL_GRAPH_REGISTER) and then take another protocol than pipelined"
    if any(row.summary.choice for row in rows):
        yield "NCCL: the algorithm, protocol and number of channels that it chose for one more call"
    if any(row.overlap is not None for row in rows):
        yield "overlap: time is that of call and computation together; hidden: share of the call, with its interval"
