"""The cases of a run: rows in base units for JSON, and tables for people."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, TypeAlias

import msgspec
import numpy as np

from busbw.ops import MEMORY_TRAFFIC, PAIRED
from busbw.runs.records import JSON, SETTINGS, case_in_words
from busbw.units import format_rate, format_size, format_time
from busbw_analysis.data.grouped import grouped
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.load import rank_list
from busbw_analysis.data.pair_groups import of_groups, times_of
from busbw_analysis.data.summary import FLAGS, CaseSummary
from busbw_analysis.diagnosis.distances import PairClass, PairSplit
from busbw_analysis.diagnosis.judge import Curve, Judgement
from busbw_analysis.diagnosis.verdicts import NEAR_PEAK
from busbw_analysis.peaks.peaks import Peak
from busbw_analysis.report.document import Cell, Column, Paragraph, Table, percent, table

Row: TypeAlias = dict[str, JSON]
"""A row by column name, in base units."""

_BAR: Final = 12
"""Length of the longest bar, in characters."""
_EIGHTHS: Final = ("", *"▏▎▍▌▋▊▉")

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
"""Fields of a row that derive from its group of ranks and other data."""
_IN_COLUMNS: Final = frozenset({"op", "dtype", "redop", "in_place", "group", "device", "root"})
"""Fields of a case that are not repeated among its settings."""


def show_rows(judgement: Judgement) -> list[Row]:
    """One row per case and group of ranks, in the order of the plan: bytes, ns per call, B/s; None for missing values.

    ``row`` is ``group``, ``total`` (all groups of a split), ``median pair`` and ``slowest pair`` (of a pair matrix),
    ``pairs within a host``, ``pairs between hosts`` and so on (medians of a pair op on several hosts), or ``none`` for
    a case without numbers; ``reason`` says why.
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
    """The group's rate over the peak: busbw, or algbw if nothing crosses a wire, as in copies."""
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
    """The flags of more than half of several rows: they are printed once, with their count."""
    counts = Counter(flag for flags in every for flag in flags)
    return [flag for flag, count in counts.items() if len(every) > 1 and 2 * count > len(every)]


def flags_note(every: Sequence[Sequence[str]], common: Sequence[str]) -> str:
    """The flags left out of the rows, with their counts; "" if there are none."""
    counts = Counter(flag for flags in every for flag in flags)
    named = ", ".join(f"{flag} ({counts[flag]})" for flag in common)
    return f"flags of most of the {len(every)} rows, not repeated there: {named}" if named else ""


def _title(row: Row, common: Collection[str]) -> str:
    """The operation, and settings that are unusual or not the same in the whole run."""
    names = [name for name in ("dtype", "redop") if name not in common]
    parts = [row["op"], *(str(row[name]) for name in names if row[name] is not None), *row["in_words"]]
    parts += ["in place"] if row["in_place"] else []
    parts += [f"root {row['root']}"] if row["root"] else []
    parts += [f"groups {row['groups']}"] if row["groups"] != "all" else []
    parts += [] if row["loop"] in {None, "python"} else [f"{row['loop']} loop"]
    return " · ".join(parts)


def _which(row: Row) -> str | None:
    """Which row of a case this is, if there are several."""
    if row["row"] == "slowest pair":
        return "slowest pair {}→{}".format(*row["ranks"])
    if row["row"] == "group":
        return None if row["groups"] == "all" else rank_list(row["ranks"])
    return None if row["row"] == "none" else f"{row['pairs'] or ''} {row['row']}".strip()


def _scatter(row: Row) -> float | None:
    """The larger distance of the interval's ends from the time, as a share of the time."""
    if row["low_ns"] is None or row["high_ns"] is None:
        return None
    return float(max(row["time_ns"] - row["low_ns"], row["high_ns"] - row["time_ns"]) / row["time_ns"])


def _percent(share: float) -> str:
    return "<1%" if 0 < share < 0.005 else f"{100 * share:.0f}%"


def _of_peak(row: Row) -> Cell | None:
    share = row["peak_share"]
    return (
        None
        if share is None
        else Cell("<0.1%" if share < 0.001 else f"{percent(share)}%", "good" if share >= NEAR_PEAK else "plain")
    )


def _state(row: Row) -> Cell:
    """State of a row that is not a verified measurement; empty otherwise."""
    if row["state"] != "measured":
        return Cell(row["state"].upper(), "bad" if row["state"] == "failed" else "caution")
    return Cell("") if row["check"].startswith("verified") or not row["size_bytes"] else Cell("not checked", "caution")


def _hidden(row: Row) -> str | None:
    if row["overlap"] is None:
        return None
    ends = "" if row["overlap_low"] is None else f" ({row['overlap_low']:.0%} to {row['overlap_high']:.0%})"
    return f"{row['overlap']:.0%}{ends}"


def _bars(rows: Sequence[Row], rate: str) -> Callable[[Row], Cell]:
    """Each row's rate relative to the highest of ``rows``, as a bar."""
    most = max((row[rate] for row in rows if row[rate] is not None), default=0.0)

    def bar(row: Row) -> Cell:
        if not row[rate] or row["row"] not in {"group", "total"}:
            return Cell("")
        eighths = max(1, round(8 * _BAR * row[rate] / most))
        return Cell("█" * (eighths // 8) + _EIGHTHS[eighths % 8], "bar")

    return bar


def _columns(rows: Sequence[Row], launches: Collection[int]) -> list[Column[Row]]:
    """The columns of a section; empty ones are dropped later."""
    rate = "busbw" if any(row["busbw"] is not None for row in rows) else "algbw"
    return [
        Column("size", lambda row: row["size_bytes"] or None, format_size),
        Column("ranks", _which),
        Column("time", lambda row: row["time_ns"], format_time),
        Column("±", _scatter, _percent),
        Column(rate, lambda row: row[rate], format_rate),
        Column("traffic", lambda row: row["traffic"], format_rate),
        Column("of peak", _of_peak, str),
        Column("skew", lambda row: row["skew_share"], _percent),
        Column("launches", lambda row: row["launches"] if len(launches) > 1 else None, str),
        Column("hidden", _hidden, str),
        Column("× within", lambda row: row["times_within"], "{:.3g}".format),
        *([Column("", _bars(rows, rate))] if any(row["row"] == "group" and row[rate] for row in rows) else []),
        *([Column("", _state)] if any(_state(row).text for row in rows) else []),
    ]


def _peaks(rows: Sequence[Row]) -> str:
    """The peak that the percentages of a section refer to; the report has the whole sentence."""
    found = {
        f"{format_rate((row['algbw'] if row['busbw'] is None else row['busbw']) / row['peak_share'])}, "
        f"{row['denominator'].partition(',')[0]}": None
        for row in rows
        if row["peak_share"] and row["denominator"]
    }
    return "" if not found else f"100 % of the peak: {'; '.join(found)}"


def _by_size(rows: Sequence[Row], words: Callable[[Row], Iterable[str]]) -> Iterator[str]:
    """Each text of a section's rows once, with its sizes unless it applies to all."""
    sizes = {size: place for place, size in enumerate(dict.fromkeys(row["size_bytes"] for row in rows))}
    found: dict[str, set[int]] = {}
    for row in rows:
        for word in words(row):
            found.setdefault(word, set()).add(sizes[row["size_bytes"]])
    names = [format_size(size) for size in sizes]
    for word, places in found.items():
        yield word if len(places) == len(names) else f"{word}: {', '.join(_ranges(sorted(places), names))}"


def _ranges(places: Sequence[int], names: Sequence[str]) -> Iterator[str]:
    """The names at ascending ``places``; three or more in a row as the first and the last."""
    for _, members in groupby(enumerate(places), key=lambda pair: pair[1] - pair[0]):
        row = [names[place] for _, place in members]
        yield from (row if len(row) < 3 else [f"{row[0]} to {row[-1]}"])


def _reason(row: Row) -> Iterable[str]:
    """Why a row is not a verified measurement."""
    if not (state := _state(row)).text:
        return ()
    return (row["check"],) if row["state"] == "measured" else (f"{state.text}, {row['reason']}",)


def about(judgement: Judgement) -> tuple[str, ...]:
    """What was run and where, in a few words each."""
    run = judgement.dataset.runs[0].run
    ranks = len(run.hosts)
    of_hosts = f"{ranks} rank{'s' if ranks != 1 else ''} on {judgement.dataset.hosts_in_words}"
    backends = dict.fromkeys(row.case.backend for row in judgement.dataset.cases)
    return str(run.plan.get("name", run.id)), f"{len(judgement.cases)} cases", of_hosts, *backends


def show_blocks(rows: Sequence[Row], *about: str) -> list[Paragraph | Table]:
    """``rows`` of ``show_rows`` as one table per operation and setting, in the order of the plan.

    Facts that hold for all rows follow ``about`` once.
    """
    measured = [row for row in rows if row["row"] != "none"]
    dtypes, redops = {row["dtype"] for row in rows} - {None}, {row["redop"] for row in rows}
    same = {name: value for name, value in (("dtype", dtypes), ("redop", redops)) if len(value) == 1}
    launches = {row["launches"] for row in measured} - {None}
    flags = common_flags([row["flags"] for row in rows])
    head = [*about, *(value for values in same.values() for value in values if value)]
    head += [f"{number} launch{'es' if number != 1 else ''}" for number in launches if len(launches) == 1]
    blocks: list[Paragraph | Table] = [Paragraph(" · ".join(head))] if head else []
    for title, members in grouped(rows, lambda row: _title(row, same)).items():
        flagged = " · ".join(_by_size(members, lambda row: (flag for flag in row["flags"] if flag not in flags)))
        notes = (*_by_size(members, _reason), _peaks(members), flagged)
        blocks.append(table(title, _columns(members, launches), members, *notes, without_empty=True))
    return [*blocks, Paragraph("\n".join(_notes(rows, flags)))]


def _notes(rows: Sequence[Row], flags: Sequence[str]) -> Iterator[str]:
    """The meaning of flags and columns, and facts that hold for most rows."""
    every = [row["flags"] for row in rows]
    if flags:
        yield flags_note(every, flags)
    raised = {flag for row in every for flag in row}
    yield from (f"{flag}: {meaning}" for flag, meaning in FLAGS.items() if flag in raised)
    kinds = dict.fromkeys(row["interval"] for row in rows if row["interval"] not in {None, "none"})
    yield (
        "time: median over launches of the slowest rank's median; "
        + (f"±: {', '.join(kinds)}; " if kinds else "")
        + "skew: spread of arrival over time"
    )
    if any(row["statistic"] for row in rows):
        yield "from another tool's log: time is the number that it prints, or the median of several tables"
    if any(row["interval"] == "none" and not row["statistic"] for row in rows):
        yield "no ±: an interval of one launch needs at least 6 independent samples"
    if any(row["traffic"] is not None for row in rows):
        yield "traffic: bytes read and written by one rank, each counted once, as in STREAM"
    if any(row["overlap"] is not None for row in rows):
        yield "overlap: time is that of call and computation together; hidden: share of the call, with its interval"
