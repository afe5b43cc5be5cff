"""Output of ``busbw fit`` for curves over NCCL: the algorithm and protocol that NCCL's own model chooses at each size,
its expected time, and the measured time.

NCCL's model is made to rank its choices, not to predict times: it is shown for comparison and judges nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final

from busbw.system.catalog import Catalogue
from busbw.units import format_rate, format_seconds, format_size
from busbw_analysis.data.series import Series, SeriesKey
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.models.families import NCCL
from busbw_analysis.models.nccl import ONE_ELEMENT_BYTES, SOURCE, choices_of, seconds
from busbw_analysis.report.document import Column, Table, table

_NOTES: Final = (
    f"{SOURCE}: it ranks NCCL's choices and does not predict times; a plugin may choose otherwise",
    "rates: active links × the rate that NCCL assumes for one; rings and trees are assumed to have 16 channels",
)


@dataclass(frozen=True, slots=True)
class NcclChoice:
    """NCCL's choice for a range of sizes of a curve, and its expected time at the last one; or why it is unknown.

    bus_rate: rate that NCCL assumes for the links of a GPU, in B/s.
    """

    curve: str
    refused: str | None
    algorithm: str | None = None
    protocol: str | None = None
    first_bytes: int | None = None
    last_bytes: int | None = None
    expected_seconds: float | None = None
    measured_seconds: float | None = None
    bus_rate: float | None = None
    source: str = SOURCE


def _note(choice: NcclChoice) -> str:
    return f"no model of NCCL: {choice.refused}" if choice.bus_rate is None else f"{format_rate(choice.bus_rate)} a GPU"


_COLUMNS: Final[tuple[Column[NcclChoice], ...]] = (
    Column("curve", lambda choice: choice.curve),
    Column("algorithm", lambda choice: choice.algorithm),
    Column("protocol", lambda choice: choice.protocol),
    Column("from", lambda choice: choice.first_bytes, format_size),
    Column("to", lambda choice: choice.last_bytes, format_size),
    Column("expected", lambda choice: choice.expected_seconds, format_seconds, "at to"),
    Column("measured", lambda choice: choice.measured_seconds, format_seconds, "at to"),
    Column("note", _note),
)


def nccl_choices(judgement: Judgement, names: Mapping[SeriesKey, str], rows: Catalogue) -> Iterator[NcclChoice]:
    """Every choice for every curve over NCCL."""
    for curve in judgement.curves:
        if curve.series.key.cost_models == NCCL:
            yield from _choices(judgement, curve.series, names[curve.series.key], rows)


def nccl_table(choices: Sequence[NcclChoice]) -> Table:
    """``choices`` as a table."""
    return table("", _COLUMNS, choices, *_NOTES)


def _choices(judgement: Judgement, series: Series, name: str, rows: Catalogue) -> Iterator[NcclChoice]:
    points = [point for point in series.points if point.size_bytes or series.key.op == "barrier"]
    sizes = [point.size_bytes or ONE_ELEMENT_BYTES for point in points]
    tuned = choices_of(judgement.facts, series.key, sizes, rows)
    if isinstance(tuned, Unavailable):
        yield NcclChoice(name, tuned.reason)
        return
    machine, chosen = tuned
    for expectation, members in groupby(zip(chosen, sizes, points, strict=True), key=itemgetter(0)):
        inside = list(members)
        (_, first, _), (_, last, point) = inside[0], inside[-1]
        yield NcclChoice(
            name,
            None,
            expectation.algorithm,
            expectation.protocol,
            first,
            last,
            seconds(expectation, last),
            point.time_ns / 1e9,
            machine.bus_rate,
        )
