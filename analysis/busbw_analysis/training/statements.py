"""Common loose statements about the traffic of training, with the exact ones and both numbers for a step."""

from dataclasses import dataclass

from busbw.workloads.model_rows import parameters
from busbw_analysis.training.layout import Step
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
