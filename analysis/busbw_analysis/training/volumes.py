"""Output of ``busbw training volumes``: the traffic of a rank, and loose statements about it with the exact ones."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from busbw.units import about_size
from busbw.workloads.model_rows import parameters
from busbw_analysis.report.document import Column, Table, table
from busbw_analysis.training.layout import Step, assumed_notes, gigabytes, percent_of, step_words
from busbw_analysis.training.traffic import DIMENSIONS, Traffic, sent


@dataclass(frozen=True, slots=True)
class Statement:
    """A common statement and what is exact.

    said, holds: the statement as it circulates, and the exact one.
    said_value: the statement's number for this step, taken literally; in elements if it names no data type.
    sent_bytes: the exact number. Both are None for a statement without a number.
    """

    dimension: str
    said: str
    holds: str
    said_value: float | None
    sent_bytes: float | None


def statements(step: Step, rows: tuple[Traffic, ...]) -> tuple[Statement, ...]:
    """All statements, for the rows of one stage of a step."""
    layout, model = step.layout, step.model
    whole = 2.0 * parameters(model)
    tokens = step.batch // layout.dp * step.sequence
    again = 2 if layout.recompute == "full" else 1
    sums = (1 + (model.heads > 0)) * (2 * (1 + again) + layout.sequence_parallel)
    used = [dimension for dimension in DIMENSIONS if sent(rows, dimension)]
    calls = {dimension: sum(row.messages for row in rows if row.dimension == dimension) for dimension in used}
    by_calls, by_bytes = (
        " > ".join(dimension.upper() for dimension in sorted(used, key=lambda dimension: -measure(dimension)))
        for measure in (calls.__getitem__, lambda dimension: sent(rows, dimension))
    )
    claims = (
        Statement(
            "dp",
            "2θ",
            "2(n−1)/n Ψ w_g: bytes, not elements; θ/(t p) of a rank, not of the model; once a step, or with zero 3 "
            "three times (n−1)/n Ψ w in every micro-batch",
            whole,
            sent(rows, "dp"),
        ),
        Statement(
            "tp",
            "TP communicates parameters, 2θ forward and backward",
            f"activations: {sums} b s h (t−1)/t w per {'dense ' if model.experts else ''}layer and micro-batch; "
            "parameters are not sent",
            2 * whole,
            sent(rows, "tp"),
        ),
        Statement(
            "pp",
            "b s h / M",
            "b s h w in each direction for every micro-batch, v times when interleaved; /t if ranks send parts",
            tokens * model.hidden / layout.micro_batches,
            sent(rows, "pp"),
        ),
        Statement(
            "cp",
            "b s h / CP",
            f"{2 + again} (c−1) b s/c (h_k + h_v)/t w per layer: every hop, forward and backward, of keys and values "
            "only"
            if layout.context == "ring"
            else f"{1 + again} (c−1)/c b s/c (h_q + h_k + h_v + h_r)/t w per layer: queries, keys, values and results, "
            "forward and backward",
            step.tokens * model.hidden,
            sent(rows, "cp"),
        ),
        Statement(
            "",
            "TP > CP > PP > DP",
            f"by calls here: {by_calls}; by bytes: {by_bytes}",
            None,
            None,
        ),
    )
    return tuple(statement for statement in claims if statement.sent_bytes is None or statement.sent_bytes)


def traffic_headline(step: Step, rows: tuple[Traffic, ...]) -> str:
    """Bytes that a rank sends in a step, the dimension with most of them, and the bytes that computation waits for."""
    whole = sent(rows)
    if not whole:
        return "A rank sends nothing."
    most = max(DIMENSIONS, key=lambda dimension: sent(rows, dimension))
    idle = f"; the pipeline is idle for {percent_of(step.bubble_share)} % of a step" if step.bubble_share else ""
    return (
        f"A rank sends {gigabytes(whole)} per step, {percent_of(sent(rows, most) / whole)} % of it for {most}; "
        f"computation waits for {gigabytes(sent(rows, hideable=False))}{idle}"
    )


_TRAFFIC: Final[tuple[Column[Traffic], ...]] = (
    Column("group", lambda row: row.dimension),
    Column("what", lambda row: row.what),
    Column("op", lambda row: row.op),
    Column("ranks", lambda row: row.ranks, str),
    Column("S", lambda row: row.size_bytes, about_size),
    Column("calls", lambda row: row.messages, str),
    Column("sent", lambda row: row.sent_bytes, gigabytes),
    Column("phase", lambda row: row.phase),
    Column("waits", lambda row: "no" if row.hideable else "yes"),
    Column("of a call", lambda row: row.formula),
)
_BUBBLES: Final = ("(p−1)/(m v + p−1)", "1 − m Σ L_r/(p T), T = m max L_r + (Σ L_r − max L_r)/v")
_STATEMENTS: Final[tuple[Column[Statement], ...]] = (
    Column("group", lambda row: row.dimension or "all"),
    Column("often said", lambda row: row.said),
    Column("gives", lambda row: row.said_value, "{:.4g}".format),
    Column("sent", lambda row: row.sent_bytes, gigabytes),
    Column("exact", lambda row: row.holds),
)


def traffic_tables(
    step: Step, stage: int, rows: tuple[Traffic, ...], explained: Sequence[Statement], assumed: Mapping[str, str]
) -> Iterator[Table]:
    """One row per kind of call, with sums by group. ``explained``: common statements and what is exact; ``assumed``:
    defaults that were taken.
    """
    sums = [
        f"{name}: {gigabytes(sent(rows, name))} a step, waits for {gigabytes(sent(rows, name, hideable=False))}"
        for name in DIMENSIONS
        if sent(rows, name)
    ]
    bubble = step.bubble_share
    yield table(
        step_words(step),
        _TRAFFIC,
        rows,
        f"sent: by one rank of pipeline stage {stage} in a step, in one direction; S as in nccl-tests",
        "waits: yes if computation waits for the call, no if it can overlap",
        f"pipeline: idle for {percent_of(bubble)} % of the step, {_BUBBLES[step.layout.uneven]}" if bubble else "",
        *(sums or ["nothing is sent"]),
        *dict.fromkeys(f"{row.dimension}: {row.source}" for row in rows),
        *assumed_notes(assumed),
    )
    if explained:
        yield table("", _STATEMENTS, explained, "gives: taken literally, in elements if it names no data type")
