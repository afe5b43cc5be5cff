"""What is said of messages between two ranks, by ``busbw fit`` and by the report: which model predicts them, where a
handshake begins, and what of LogGP and of the max-rate model this run can tell.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from busbw.errors import AnalysisError
from busbw.units import format_rate, format_size, format_time
from busbw_analysis.data.series import Series
from busbw_analysis.data.summary import ranks_in, times_of
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.fitting.point_to_point import Contest, contest, fit_loggp, fit_max_rate
from busbw_analysis.models.point_to_point import EagerRendezvous, Hockney
from busbw_analysis.report.tables.layout import MISSING, Row, aligned

_ONE_MESSAGE: Final = "ping_pong"
_MESSAGES_OF_A_PAIR: Final = 2
"""In a call of ``pair_matrix``: the bytes one way, and an element in answer."""

_AT_MOST: Final = "that is the most it can be, for every rank received as many messages as it sent"

COLUMNS: Final = (
    ("curve", ""),
    ("model", ""),
    ("α", ""),
    ("1/β", ""),
    ("threshold", ""),
    ("jump", ""),
    ("held-out", "median/worst"),
    ("note", ""),
)
NOTES: Final = (
    "one message, T = α + m β; * predicts held-out sizes best, or is simpler and no worse; α of LogGP: L + 2o",
    "threshold: a handshake begins between these sizes, and time jumps up; α is that of short messages, β of long",
)


def message_rows(judgement: Judgement) -> list[Row]:
    """One row for every model of every curve of single messages, one for LogGP, one for the pairs of a host: seconds,
    bytes, B/s; ``refused`` says why there is none.
    """
    curves = [curve.series for curve in judgement.curves if curve.series.key.op == _ONE_MESSAGE]
    rows: list[Row] = []
    for series in curves:
        rows += _contest_rows(series)
        rows.append(_loggp_row(series, [curve.series for curve in judgement.curves]))
    rows += _max_rate_rows(judgement)
    return rows


def _contest_rows(series: Series) -> Iterator[Row]:
    label = series.key.label
    try:
        found = contest(*_points(series))
    except AnalysisError as error:
        yield {"curve": label, "model": "one message", "refused": str(error)}
        return
    yield from _entrant_rows(label, found)


def _entrant_rows(label: str, found: Contest) -> Iterator[Row]:
    for entrant in found.entrants:
        wins = entrant.name == found.winner
        row: Row = {"curve": label, "model": entrant.name, "refused": entrant.reason or None, "wins": wins}
        row |= {"held_out_median_error": entrant.median_error, "held_out_worst_error": entrant.worst_error}
        row |= {"held_out_sizes": found.held_out, "note": found.words if wins else None}
        match entrant.model:
            case Hockney(alpha, beta):
                row |= {"alpha_seconds": alpha, "beta_seconds_per_byte": beta}
            case EagerRendezvous() as model:
                row |= {
                    "alpha_seconds": model.eager.alpha_seconds,
                    "beta_seconds_per_byte": model.rendezvous.beta_seconds_per_byte,
                    "last_eager_bytes": model.last_eager_bytes,
                    "first_rendezvous_bytes": model.first_rendezvous_bytes,
                    "jump_seconds": model.jump_seconds,
                }
        yield row


def _loggp_row(series: Series, everything: Sequence[Series]) -> Row:
    """From single messages, and from rows of them where an all_to_all by hand sent one to every other rank at once: the
    library's own may do more than that, as Gloo's, which waits for another delay.
    """
    points = [(1, size, seconds) for size, seconds in zip(*_points(series), strict=True)]
    for other in everything:
        ranks = len(other.key.ranks)
        rows_of_messages = (other.key.op, other.key.algorithm) == ("all_to_all", "spread") and ranks > 2
        if rows_of_messages and _circumstances(other) == _circumstances(series):
            points += [
                (ranks - 1, point.size_bytes // ranks, point.time_ns / 1e9)
                for point in other.points
                if point.size_bytes >= ranks
            ]
    row: Row = {"curve": series.key.label, "model": "LogGP", "refused": None}
    try:
        found = fit_loggp(points)
    except AnalysisError as error:
        return {**row, "refused": str(error)}
    return {
        **row,
        "alpha_seconds": found.single_seconds,
        "gap_seconds": found.between_seconds,
        "beta_seconds_per_byte": found.per_byte_seconds,
        "note": found.untold if found.between_seconds is None else f"{found.untold}; {_AT_MOST}",
    }


def _circumstances(series: Series) -> tuple[object, ...]:
    key = series.key
    return key.backend, key.device, key.dtype, key.mode, key.sync, key.cache, key.held, key.hosts


def _max_rate_rows(judgement: Judgement) -> Iterator[Row]:
    """Pairs inside one host that ran alone and that ran together share its memory; what shares a network card in which
    round of a pair matrix is not recorded.
    """
    dataset = judgement.dataset
    points: list[tuple[int, int, float]] = []
    for summary in judgement.cases:
        case = summary.case
        if case.op != "pair_matrix" or summary.state != "measured" or not case.size_bytes:
            continue
        ranks = ranks_in(summary.groups)
        hosts = dataset.hosts_of(ranks)
        if len(hosts) != 1:
            reason = "pairs between hosts: how many of them share a network card in a round is not recorded"
            yield {"curve": "pair_matrix", "model": "max-rate", "refused": reason}
            return
        at_once = 1 if case.pairs == "alone" else len(ranks) // 2
        points.append((at_once, case.size_bytes, float(np.median(times_of(summary.groups))) / 1e9))
    if not points:
        return
    row: Row = {"curve": "pair_matrix", "model": "max-rate", "refused": None}
    try:
        found = fit_max_rate(points)
    except AnalysisError as error:
        yield {**row, "refused": str(error)}
        return
    reached = found.at_least is None
    yield {
        **row,
        "alpha_seconds": found.model.alpha_seconds / _MESSAGES_OF_A_PAIR,
        "beta_seconds_per_byte": 1 / found.model.pair_rate,
        "shared_rate": found.model.shared_rate if math.isfinite(found.model.shared_rate) else None,
        "shared_rate_at_least": found.at_least,
        "mean_error": found.mean_error,
        "note": f"R_N {format_rate(found.model.shared_rate)} for all pairs of the host"
        if reached
        else f"R_N was not reached: at least {format_rate(found.at_least)}",
    }


def _points(series: Series) -> tuple[list[int], list[float]]:
    points = [point for point in series.points if point.size_bytes]
    return [point.size_bytes for point in points], [point.time_ns / 1e9 for point in points]


def message_text(rows: Sequence[Row]) -> str:
    """``rows`` as aligned columns; "" where there are none."""
    if not rows:
        return ""
    return aligned(COLUMNS, [cells(row) for row in rows], NOTES)


def cells(row: Row) -> list[str]:
    """The cells of COLUMNS."""

    def shown(key: str, word: str) -> str:
        return MISSING if row.get(key) is None else word

    alpha, beta = row.get("alpha_seconds"), row.get("beta_seconds_per_byte")
    error, worst = row.get("held_out_median_error"), row.get("held_out_worst_error")
    gap = row.get("gap_seconds")
    note = f"none: {row['refused']}" if row["refused"] else row.get("note") or ""
    if gap is not None:
        note = f"max(g, o) {format_time(gap * 1e9)}; {note}"
    return [
        row["curve"],
        f"{row['model']}{' *' if row.get('wins') else ''}",
        shown("alpha_seconds", format_time((alpha or 0) * 1e9)),
        format_rate(1 / beta) if beta else MISSING,
        shown(
            "last_eager_bytes",
            f"{format_size(row.get('last_eager_bytes') or 0)} … {format_size(row.get('first_rendezvous_bytes') or 0)}",
        ),
        shown("jump_seconds", format_time((row.get("jump_seconds") or 0) * 1e9)),
        shown("held_out_median_error", f"{error or 0:.1%}/{worst or 0:.1%}"),
        note,
    ]
