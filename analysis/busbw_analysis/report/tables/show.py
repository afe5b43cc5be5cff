"""The cases of a run: rows in base units for machines, and the same in a table."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import msgspec
import numpy as np

from busbw.ops import MEMORY_TRAFFIC, PAIRED
from busbw.runs.records import JSON, SETTINGS, case_in_words
from busbw.units import format_rate, significant
from busbw_analysis.data.summary import CaseSummary, GroupSummary, of_groups, times_of
from busbw_analysis.diagnosis.distances import PairClass, PairSplit
from busbw_analysis.diagnosis.judge import Curve, Judgement
from busbw_analysis.peaks.peaks import Peak
from busbw_analysis.report.document import Cell, Column, Table, table

Row: TypeAlias = dict[str, JSON]
"""A line of the table by name, in base units."""

_RATE_WIDTH = 8
_TIME_WIDTH = 12
_IN_PLACE: Final = "*"

_OF_CASE: Final = (
    *("op", "size_bytes", "count", "dtype", "redop", "in_place"),
    *("mode", "sync", "cache", "pre_enqueue", "root"),
)
_OF_GROUP: Final = (
    *("ranks", "launches", "samples", "time_ns", "fastest_ns", "algbw", "busbw", "spread", "skew_share"),
    "statistic",
)
_OF_BOTH: Final = (
    *("low_ns", "high_ns", "interval", "peak_share", "denominator"),
    *("overlap", "overlap_low", "overlap_high", "pairs", "times_within", "traffic"),
)
"""What a row has of its case, of its group of ranks, and what is made of a group and more."""
_IN_COLUMNS: Final = frozenset({"op", "dtype", "redop", "in_place", "group", "device", "root"})
"""What is not said of a case among its flags."""
_CHECKS: Final = {"verified": "ok", "wrong": "WRONG", "failed": "FAILED"}
"""The first word of a check, and what a narrow column says for it."""

_SHOW_NOTES: Final = (
    "time: median of the launch medians of the slowest rank; *: in place",
    "spread: half of p95 − p5 over the median of a launch's samples, median over launches",
    "skew: arrival skew over time; peak: busbw (of copies algbw) over the peak; – : there is none, or it is not known",
    "spread and skew tell how samples scatter and have no interval; rates are as unsure as the time they are made of",
)


def show_rows(judgement: Judgement) -> list[Row]:
    """One row per case and group of ranks, in the order of the plan: bytes, ns per call, B/s; None where there is none.

    ``row`` is ``group``, ``total`` (all groups of a split), ``median pair`` and ``slowest pair`` (of a pair matrix),
    ``pairs within a host``, ``pairs between hosts`` and so on (of a pair op on several hosts: medians over them), or
    ``none`` for a case that has no numbers; its ``reason`` says why.
    """
    curves = {
        (point.case, curve.series.key.ranks): curve for curve in judgement.curves for point in curve.series.points
    }
    splits = {split.case: split for split in judgement.splits}
    return [row for summary in judgement.cases for row in _case_rows(summary, curves, splits.get(summary.index))]


def _case_rows(
    summary: CaseSummary, curves: dict[tuple[int, tuple[int, ...]], Curve], split: PairSplit | None
) -> Iterator[Row]:
    case = summary.case
    common: Row = {
        **{name: getattr(case, name) for name in _OF_CASE},
        "groups": case.group,
        "settings": {name: msgspec.to_builtins(one) for name in SETTINGS if (one := getattr(case, name)) is not None},
        "in_words": case_in_words(case, _IN_COLUMNS),
        "state": summary.state,
        "reason": "; ".join(summary.reasons) or None,
        "loop": " and ".join(summary.loops) or None,
        "check": summary.check,
        "flags": list(summary.flags),
    }
    if not summary.groups:
        yield {**common, "row": "none", **_numbers(None, None)}
        return
    if case.op in PAIRED:
        ordered = np.argsort(times_of(summary.groups), kind="stable").tolist()
        for name, place in (("median pair", ordered[len(ordered) // 2]), ("slowest pair", ordered[-1])):
            yield {**common, "row": name, **_numbers(summary.groups[place], None)}
        yield from ({**common, **_pairs(kind, summary)} for kind in (split.classes if split else ()))
        return
    factor = MEMORY_TRAFFIC.get(case.op)
    peaks: list[float | None] = []
    for group in summary.groups:
        curve = curves.get((summary.index, group.ranks))
        peak = curve.peak if curve is not None and isinstance(curve.peak, Peak) else None
        peaks.append(None if peak is None else peak.busbw)
        moved = None if factor is None or group.algbw is None else factor * group.algbw
        yield {**common, "row": "group", **_numbers(group, peak), "traffic": moved}
    if summary.total is not None:
        known = [peak for peak in peaks if peak is not None]
        busbw = summary.total.busbw
        yield {
            **common,
            "row": "total",
            **_numbers(None, None),
            "time_ns": summary.total.time_ns,
            "algbw": summary.total.algbw,
            "busbw": busbw,
            "peak_share": busbw / sum(known) if busbw is not None and len(known) == len(peaks) else None,
        }


def _numbers(group: GroupSummary | None, peak: Peak | None) -> Row:
    numbers: Row = dict.fromkeys((*_OF_GROUP, *_OF_BOTH))
    if group is None:
        return numbers
    share = share_of(group, peak)
    overlap = group.overlap
    return {
        **numbers,
        **{name: getattr(group, name) for name in _OF_GROUP},
        "ranks": list(group.ranks),
        "low_ns": group.interval.low_ns,
        "high_ns": group.interval.high_ns,
        "interval": group.interval.kind,
        "peak_share": share,
        "denominator": None if peak is None or share is None else peak.denominator,
        "overlap": None if overlap is None else overlap.share,
        "overlap_low": None if overlap is None else overlap.low,
        "overlap_high": None if overlap is None else overlap.high,
    }


def share_of(group: GroupSummary, peak: Peak | None) -> float | None:
    """The group's rate over the peak: busbw, or algbw where nothing crosses a wire, as in copies."""
    if peak is None:
        return None
    rate, most = (group.algbw, peak.algbw) if group.bus_factor is None else (group.busbw, peak.busbw)
    return None if rate is None or most is None else rate / most


def _pairs(kind: PairClass, summary: CaseSummary) -> Row:
    return {
        **_numbers(None, None),
        "row": f"pairs {kind.name}",
        "pairs": kind.pairs,
        "launches": int(of_groups(summary.groups, "launches").max()),
        "time_ns": kind.time_ns,
        "low_ns": kind.interval.low_ns,
        "high_ns": kind.interval.high_ns,
        "interval": kind.interval.kind,
        "algbw": kind.rate,
        "busbw": kind.rate,
        "times_within": kind.times_within,
    }


def common_flags(every: Sequence[Sequence[str]]) -> list[str]:
    """The flags that more than half of several rows have: they are said once, with their number."""
    counts = Counter(flag for flags in every for flag in flags)
    return [flag for flag, count in counts.items() if len(every) > 1 and 2 * count > len(every)]


def flags_note(every: Sequence[Sequence[str]], common: Sequence[str]) -> str:
    """The flags that stand in no row, each with how many rows have it; "" where there is none."""
    counts = Counter(flag for flags in every for flag in flags)
    named = ", ".join(f"{flag} ({counts[flag]})" for flag in common)
    return f"flags of most of the {len(every)} rows, left out there: {named}" if named else ""


def _flag_words(row: Row, common: Sequence[str]) -> str:
    parts: list[str] = []
    if row["state"] != "measured":
        parts.append(f"{row['state'].upper()}: {row['reason']}")
    parts += row["in_words"]
    parts += [] if row["loop"] in {None, "python"} else [f"{row['loop']} loop"]
    parts += [] if row["overlap"] is None else [_hidden(row)]
    parts += [] if row["traffic"] is None else [f"traffic {format_rate(row['traffic'])}"]
    if row["row"] in {"total", "median pair", "slowest pair"}:
        parts.append(row["row"])
    if row["pairs"]:
        times = row["times_within"]
        ratio = "" if times is None else f", {significant(times, 0, _RATE_WIDTH)} × as long as within a host"
        parts.append(f"{row['pairs']} {row['row']}{ratio}")
    if row["row"] == "slowest pair" or (row["row"] == "group" and row["groups"] != "all"):
        parts.append("ranks " + ("→" if row["row"] == "slowest pair" else ",").join(map(str, row["ranks"])))
    return " · ".join([*parts, *(flag for flag in row["flags"] if flag not in common)])


def _hidden(row: Row) -> str:
    ends = "" if row["overlap_low"] is None else f" ({row['overlap_low']:.0%} to {row['overlap_high']:.0%})"
    return f"hidden {row['overlap']:.0%}{ends}"


def _time(ns: float) -> str:
    return significant(ns / 1e3, 1, _TIME_WIDTH)


def _rate(bytes_per_second: float) -> str:
    return significant(bytes_per_second / 1e9, 3, _RATE_WIDTH)


def _percent(share: float) -> str:
    return significant(share * 100, 1, _RATE_WIDTH)


_COLUMNS: Final[tuple[Column[Row], ...]] = (
    Column("op", lambda row: f"{row['op']}{_IN_PLACE if row['in_place'] else ''}"),
    Column("size", lambda row: row["size_bytes"], str, "B"),
    Column("count", lambda row: row["count"], str, "elem"),
    Column("type", lambda row: row["dtype"], str),
    Column("redop", lambda row: row["redop"], str),
    Column("launches", lambda row: row["launches"], str),
    Column("time", lambda row: row["time_ns"], _time, "µs"),
    Column("algbw", lambda row: row["algbw"], _rate, "GB/s"),
    Column("busbw", lambda row: row["busbw"], _rate, "GB/s"),
    Column("check", lambda row: _CHECKS.get(row["check"].partition(" ")[0]), str),
    Column("low", lambda row: row["low_ns"], _time, "µs"),
    Column("high", lambda row: row["high_ns"], _time, "µs"),
    Column("spread", lambda row: row["spread"], lambda share: f"{share * 100:.1f}", "±%"),
    Column("skew", lambda row: row["skew_share"], _percent, "%"),
    Column("peak", lambda row: row["peak_share"], _percent, "%"),
)


def show_table(rows: Sequence[Row]) -> Table:
    """``rows`` of ``show_rows`` in a table, with what the columns and the percentages mean below."""
    every = [row["flags"] for row in rows]
    common = common_flags(every)
    notes = [flags_note(every, common), *_SHOW_NOTES]
    kinds = dict.fromkeys(row["interval"] for row in rows if row["interval"] not in {None, "none"})
    notes += [f"low, high: {', '.join(kinds)}"] if kinds else []
    if any(row["statistic"] for row in rows):
        notes.append("of another tool's log: time is the one number that it prints, or the median of several tables")
    if any(row["interval"] == "none" and not row["statistic"] for row in rows):
        notes.append("no low and high: one launch with fewer than 6 free samples has no interval")
    if any(row["traffic"] is not None for row in rows):
        notes.append("traffic: what one rank's memory reads and writes, each byte once, as STREAM counts it")
    if any(row["overlap"] is not None for row in rows):
        notes.append(
            "overlap: time is that of call and computation; hidden: share of the call, (from to) as low and high"
        )
    notes += [f"100 % of the peak: {text}" for text in dict.fromkeys(row["denominator"] for row in rows) if text]
    flags: Column[Row] = Column("flags", lambda row: Cell(_flag_words(row, common)))
    return table("", (*_COLUMNS, flags), rows, *notes)
