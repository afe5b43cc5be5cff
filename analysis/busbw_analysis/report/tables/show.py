"""What ``busbw show`` and ``busbw fit`` print: rows in base units for machines, and the same aligned for people."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

import msgspec
import numpy as np

from busbw.ops import MEMORY_TRAFFIC, PAIRED
from busbw.runs.records import SETTINGS, settings_in_words
from busbw.units import about_size, format_rate, format_size, format_time, significant
from busbw_analysis.data.summary import CaseSummary, GroupSummary, launches_of, times_of
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.distances import PairClass, PairSplit
from busbw_analysis.diagnosis.judge import Best, Curve, Judgement
from busbw_analysis.fitting.curve import Fit
from busbw_analysis.peaks.peaks import Peak
from busbw_analysis.report.tables.layout import MISSING, Row, aligned, validation_row

_RATE_WIDTH = 8
_TIME_WIDTH = 12
_IN_PLACE: Final = "*"

_SHOW_COLUMNS: Final = (
    ("op", ""),
    ("size", "(B)"),
    ("count", "(elem)"),
    ("type", ""),
    ("redop", ""),
    ("launches", ""),
    ("time", "(µs)"),
    ("algbw", "(GB/s)"),
    ("busbw", "(GB/s)"),
    ("check", ""),
    ("low", "(µs)"),
    ("high", "(µs)"),
    ("spread", "(±%)"),
    ("skew", "(%)"),
    ("peak", "(%)"),
    ("flags", ""),
)
_CHECKS: Final = {"verified": "ok", "wrong": "WRONG", "failed": "FAILED"}
"""The first word of a check, and what a narrow column says for it."""

_SHOW_NOTES: Final = (
    "time: median of the launch medians of the slowest rank; *: in place",
    "spread: half of p95 − p5 over the median of a launch's samples, median over launches",
    "skew: arrival skew over time; peak: busbw (of copies algbw) over the peak; – : there is none, or it is not known",
    "spread and skew tell how samples scatter and have no interval; rates are as unsure as the time they are made of",
)
_FIT_NOTES: Final = (
    "T = α + S/B in each segment; rates are those the last segment tends to; S½: half of that rate",
    "held-out: median and worst error on every second size, left out of a fit, and on each launch in turn",
    "validated: both medians and the mean residual are at most 10 %; + marks the pieces after the first",
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
        "op": case.op,
        "size_bytes": case.size_bytes,
        "count": case.count,
        "dtype": case.dtype,
        "redop": case.redop,
        "in_place": case.in_place,
        "mode": case.mode,
        "sync": case.sync,
        "cache": case.cache,
        "held": case.held,
        "groups": case.group,
        "settings": {name: msgspec.to_builtins(one) for name in SETTINGS if (one := getattr(case, name)) is not None},
        "settings_in_words": settings_in_words(case),
        "root": case.root,
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
    if group is None:
        names = ("ranks", "launches", "samples", "time_ns", "low_ns", "high_ns", "interval", "fastest_ns", "algbw")
        more = ("busbw", "spread", "skew_share", "peak_share", "denominator", "overlap", "overlap_low", "overlap_high")
        return dict.fromkeys((*names, *more, "pairs", "times_within", "traffic"))
    share = _share(group, peak)
    return {
        "ranks": list(group.ranks),
        "launches": group.launches,
        "samples": group.samples,
        "time_ns": group.time_ns,
        "low_ns": group.interval.low_ns,
        "high_ns": group.interval.high_ns,
        "interval": group.interval.kind,
        "fastest_ns": group.fastest_ns,
        "algbw": group.algbw,
        "busbw": group.busbw,
        "spread": group.spread,
        "skew_share": group.skew_share,
        "peak_share": share,
        "denominator": None if peak is None or share is None else peak.denominator,
        "overlap": None if group.overlap is None else group.overlap.share,
        "overlap_low": None if group.overlap is None else group.overlap.low,
        "overlap_high": None if group.overlap is None else group.overlap.high,
        "pairs": None,
        "times_within": None,
        "traffic": None,
    }


def _share(group: GroupSummary, peak: Peak | None) -> float | None:
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
        "launches": max(launches_of(summary.groups)),
        "time_ns": kind.time_ns,
        "low_ns": kind.interval.low_ns,
        "high_ns": kind.interval.high_ns,
        "interval": kind.interval.kind,
        "algbw": kind.rate,
        "busbw": kind.rate,
        "times_within": kind.times_within,
    }


def show_text(rows: Sequence[Row], best: Best | None = None) -> str:
    """``rows`` of ``show_rows`` as aligned columns, with what the columns and the percentages mean below."""
    body = [[_show_cell(row, name) for name, _ in _SHOW_COLUMNS] for row in rows]
    found = "" if best is None else f"{format_rate(best.busbw)}, by {best.label} at {format_size(best.size_bytes)}"
    notes = [f"highest busbw: {found}"] if found else []
    notes += _SHOW_NOTES
    kinds = dict.fromkeys(row["interval"] for row in rows if row["interval"] not in {None, "none"})
    notes += [f"low, high: {', '.join(kinds)}"] if kinds else []
    if any(row["interval"] == "none" for row in rows):
        notes.append("no low and high: one launch with fewer than 6 free samples has no interval")
    if any(row["traffic"] is not None for row in rows):
        notes.append("traffic: what one rank's memory reads and writes, each byte once, as STREAM counts it")
    if any(row["overlap"] is not None for row in rows):
        notes.append(
            "overlap: time is that of call and computation; hidden: share of the call, (from to) as low and high"
        )
    notes += [f"100 % of the peak: {text}" for text in dict.fromkeys(row["denominator"] for row in rows) if text]
    return aligned(_SHOW_COLUMNS, body, notes)


def _show_cell(row: Row, name: str) -> str:  # noqa: PLR0911 - one return per kind of column reads best as a list
    if name == "op":
        return f"{row['op']}{_IN_PLACE if row['in_place'] else ''}"
    if name == "size":
        return str(row["size_bytes"])
    if name == "type":
        return row["dtype"] or MISSING
    if name in {"time", "low", "high"}:
        value = row[f"{name}_ns"]
        return MISSING if value is None else significant(value / 1e3, 1, _TIME_WIDTH)
    if name in {"algbw", "busbw"}:
        return MISSING if row[name] is None else significant(row[name] / 1e9, 3, _RATE_WIDTH)
    if name == "spread":
        return MISSING if row["spread"] is None else f"{row['spread'] * 100:.1f}"
    if name in {"skew", "peak"}:
        share = row[f"{name}_share"]
        return MISSING if share is None else significant(share * 100, 1, _RATE_WIDTH)
    if name == "check":
        return _CHECKS.get(row["check"].partition(" ")[0], MISSING)
    if name == "flags":
        return _flag_words(row)
    value = row[name]
    return MISSING if value is None else str(value)


def _flag_words(row: Row) -> str:
    parts: list[str] = []
    if row["state"] != "measured":
        parts.append(f"{row['state'].upper()}: {row['reason']}")
    parts += row["settings_in_words"]
    parts += [] if row["mode"] == "isolated" else [row["mode"]]
    parts += [] if row["sync"] == "barrier" else [f"sync {row['sync']}"]
    parts += [] if row["cache"] == "warm" else [row["cache"]]
    parts += ["held"] if row["held"] else []
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
    return " · ".join([*parts, *row["flags"]])


def _hidden(row: Row) -> str:
    ends = "" if row["overlap_low"] is None else f" ({row['overlap_low']:.0%} to {row['overlap_high']:.0%})"
    return f"hidden {row['overlap']:.0%}{ends}"


_FIT_COLUMNS: Final = (
    ("curve", ""),
    ("sizes", ""),
    ("from", ""),
    ("to", ""),
    ("α", ""),
    ("α low", ""),
    ("α high", ""),
    ("algbw", ""),
    ("busbw", ""),
    ("S½", ""),
    ("residual", "mean/max"),
    ("held-out sizes", "median/worst"),
    ("held-out launches", "median/worst"),
    ("note", ""),
)


def fit_rows(judgement: Judgement) -> list[Row]:
    """One row per curve: the fit (seconds, bytes, B/s), or in ``refused`` why there is none."""
    return [_fit_row(curve) for curve in judgement.curves]


def _fit_row(curve: Curve) -> Row:
    key, fit = curve.series.key, curve.fit
    common: Row = {
        "curve": key.label,
        "op": key.op,
        "ranks": list(key.ranks),
        "launches": curve.series.launches,
        "model": _against_theory(curve),
    }
    if not isinstance(fit, Fit):
        return {**common, "refused": fit.reason}
    bounds = fit.intervals
    return {
        **common,
        "refused": None,
        "sizes": len(fit.sizes_bytes),
        "alpha_seconds": fit.alpha_seconds,
        "alpha_interval_seconds": None if bounds is None else [bounds.alpha_seconds.low, bounds.alpha_seconds.high],
        "algbw": fit.algbw,
        "algbw_interval": None if bounds is None or bounds.algbw is None else [bounds.algbw.low, bounds.algbw.high],
        "busbw": fit.busbw,
        "half_size_bytes": fit.half_size_bytes,
        "segments": [
            {
                "first_bytes": segment.first_bytes,
                "last_bytes": segment.last_bytes,
                "alpha_seconds": segment.alpha_seconds,
                "beta_seconds_per_byte": segment.beta_seconds_per_byte,
                "at_bound": list(segment.at_bound),
            }
            for segment in fit.segments
        ],
        "breaks_bytes": list(fit.breaks_bytes),
        "mean_residual": fit.mean_residual,
        "max_residual": fit.max_residual,
        "candidates": [
            {
                "segments": candidate.segments,
                "held_out_error": candidate.held_out_error,
                "standard_error": candidate.standard_error,
                "bic": candidate.bic,
            }
            for candidate in fit.candidates
        ],
        "held_out_median_error": fit.held_out_sizes.median_error,
        "held_out_worst_error": fit.held_out_sizes.worst_error,
        "validations": [validation_row(one) for one in (fit.held_out_sizes, fit.held_out_launches)],
        "validated": fit.validated,
        "interval_note": fit.interval_note,
        "validation_note": fit.validation_note,
    }


def _against_theory(curve: Curve) -> Row | None:
    """How the curve stands to the model of its algorithm (measured over predicted) and to the lower bound."""
    if isinstance(curve.model, Unavailable) or isinstance(curve.explanation, Unavailable):
        return None
    ratios = [point.time_ns / one.time_ns for point, one in zip(curve.series.points, curve.model, strict=True)]
    shares = [one.bound_share for one in curve.explanation.spent if one.bound_share is not None]
    return {
        "algorithm": curve.model[0].algorithm,
        "least_ratio": min(ratios),
        "median_ratio": median(ratios),
        "largest_ratio": max(ratios),
        "bound": curve.explanation.bound or None,
        "best_bound_share": max(shares, default=None),
    }


def fit_text(rows: Sequence[Row]) -> str:
    """``rows`` of ``fit_rows`` as aligned columns: a line per segment, a line for every curve that was refused."""
    body = [line for row in rows for line in _fit_lines(row)]
    return aligned(_FIT_COLUMNS, body, _FIT_NOTES)


def _theory_words(model: Row) -> str:
    low, high = (significant(model[name], 2, _RATE_WIDTH) for name in ("least_ratio", "largest_ratio"))
    share = model["best_bound_share"]
    least = "" if share is None else f", at best {share:.0%} of the lower bound's speed"
    return f"{low}–{high} × the model ({model['algorithm']}){least}"


def _fit_lines(row: Row) -> Iterator[list[str]]:
    if row["refused"] is not None:
        blanks = [MISSING] * (len(_FIT_COLUMNS) - 2)
        yield [row["curve"], *blanks, f"no fit: {row['refused']}"]
        return
    for number, segment in enumerate(row["segments"]):
        first, last = number == 0, number == len(row["segments"]) - 1
        interval = row["alpha_interval_seconds"] if first else None
        bound = f"{' and '.join(segment['at_bound'])} at 0" if segment["at_bound"] else None
        # What speaks for it stands in the columns, what against it may not.
        verdict = "validated" if row["validated"] else row["validation_note"]
        notes = [row["interval_note"], verdict] if first else []
        notes += [_theory_words(row["model"])] if first and row["model"] is not None else []
        errors = [_off(check) for check in row["validations"]] if first else [MISSING, MISSING]
        yield [
            row["curve"] if first else "  +",
            str(row["sizes"]) if first else "",
            format_size(segment["first_bytes"]),
            format_size(segment["last_bytes"]),
            format_time(segment["alpha_seconds"] * 1e9),
            MISSING if interval is None else format_time(interval[0] * 1e9),
            MISSING if interval is None else format_time(interval[1] * 1e9),
            format_rate(row["algbw"]) if last else MISSING,
            format_rate(row["busbw"]) if last else MISSING,
            about_size(row["half_size_bytes"]) if last and row["half_size_bytes"] is not None else MISSING,
            f"{row['mean_residual']:.1%}/{row['max_residual']:.1%}" if first else "",
            *errors,
            "; ".join([*notes, *([bound] if bound else [])]),
        ]


def _off(check: Row) -> str:
    error = check["median_error"]
    return MISSING if error is None else f"{error:.1%}/{check['worst_error']:.1%}"
