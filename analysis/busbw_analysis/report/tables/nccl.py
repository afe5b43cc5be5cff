"""What ``busbw fit`` says of curves over NCCL: which algorithm and protocol its own model takes at which sizes, what it
expects of them, and what was measured.

NCCL's model has to order its choices and not to tell times: it is shown beside the measurement and judges nothing.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from busbw.system.catalog import Catalogue
from busbw.units import format_rate, format_size, format_time
from busbw_analysis.data.series import Series
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.models.nccl import SOURCE, Chosen
from busbw_analysis.models.nccl_runs import choices_of
from busbw_analysis.report.tables.layout import MISSING, Row, aligned

_COLUMNS: Final = (
    ("curve", ""),
    ("algorithm", ""),
    ("protocol", ""),
    ("from", ""),
    ("to", ""),
    ("expected", "at to"),
    ("measured", "at to"),
    ("note", ""),
)


def nccl_rows(judgement: Judgement, rows: Catalogue) -> list[Row]:
    """One row for every choice of every curve over NCCL: bytes and seconds; ``refused`` says why there is none."""
    curves = [curve.series for curve in judgement.curves if curve.series.key.backend == "nccl"]
    return [row for series in curves for row in _rows_of(judgement, series, rows)]


def _rows_of(judgement: Judgement, series: Series, rows: Catalogue) -> Iterator[Row]:
    points = [point for point in series.points if point.size_bytes or series.key.op == "barrier"]
    common: Row = {"curve": series.key.label, "refused": None}
    found = choices_of(judgement.dataset, series.key, [point.size_bytes for point in points], rows)
    if isinstance(found, Unavailable):
        yield {**common, "refused": found.reason}
        return
    machine, chosen = found
    pairs = list(zip(chosen, points, strict=True))
    for (algorithm, protocol), members in groupby(pairs, key=lambda pair: _name(pair[0])):
        inside = list(members)
        last, point = inside[-1]
        yield {
            **common,
            "algorithm": algorithm,
            "protocol": protocol,
            "first_bytes": inside[0][0].size_bytes,
            "last_bytes": last.size_bytes,
            "expected_seconds": last.seconds,
            "measured_seconds": point.time_ns / 1e9,
            "bus_rate": machine.bus_rate,
            "source": SOURCE,
        }


def _name(chosen: Chosen) -> tuple[str, str]:
    return chosen.expectation.algorithm, chosen.expectation.protocol


def nccl_text(rows: Sequence[Row]) -> str:
    """``rows`` as aligned columns; "" where there are none."""
    if not rows:
        return ""
    notes = (
        f"{SOURCE}: it orders NCCL's choices, and its times are no promise; a plugin may choose otherwise",
        "rates: links up × what NCCL takes one to carry; rings and trees are assumed to have 16 channels",
    )
    return aligned(_COLUMNS, [_cells(row) for row in rows], notes)


def _cells(row: Row) -> list[str]:
    if row["refused"] is not None:
        return [row["curve"], *[MISSING] * (len(_COLUMNS) - 2), f"no model of NCCL: {row['refused']}"]
    return [
        row["curve"],
        row["algorithm"],
        row["protocol"],
        format_size(row["first_bytes"]),
        format_size(row["last_bytes"]),
        format_time(row["expected_seconds"] * 1e9),
        format_time(row["measured_seconds"] * 1e9),
        f"{format_rate(row['bus_rate'])} a GPU",
    ]
