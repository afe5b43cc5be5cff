"""The report section on training steps: their times, and the share of communication."""

from collections.abc import Sequence
from typing import Final

from busbw.ops.training import workload_in_words
from busbw.runs.records import RankMemory
from busbw.units import about_size, format_flop, format_size, format_time, signed_time
from busbw_analysis.diagnosis.doubts import MODEL_TOLERANCE
from busbw_analysis.report.document import (
    TONES,
    Cell,
    Column,
    Paragraph,
    Section,
    checked,
    percent,
    table,
    three_digits,
)
from busbw_analysis.training.memory import Memory
from busbw_analysis.training.step_verdicts import StepVerdict
from busbw_analysis.training.steps import Ranked, Slowed, Trained, ranked, slowed

_HOW: Final = (
    "A step is a forward pass, a backward pass and an update. Loss, gradients and weights are checked against one "
    "process, before and after timing. Computation alone: the same step without communication. Communication alone: "
    "the same collectives in sequence. Exposed: the step minus its computation alone. Hidden: the share of "
    "communication alone that is not exposed."
)
_WAITED: Final = (
    "With wait, ranks sleep instead of computing matrix products: they then communicate as if they did not share "
    "cores, and FLOP/s mean nothing."
)
_WAITS: Final = (
    "Steps of the same model, scale, wait and number of ranks are compared. Bubble: (p−1)/(m v) of computation alone; "
    "dp to ep: the rest of the exposed communication, by dimension."
)

_COLUMNS: Final[tuple[Column[Trained], ...]] = (
    Column("Step", lambda row: row.op),
    Column("Of", lambda row: workload_in_words(row.workload)),
    Column("Ranks", lambda row: row.ranks, str),
    Column("Time", lambda row: row.time_ns, format_time, ends=lambda row: (row.low_ns, row.high_ns)),
    Column("Alone", lambda row: _bar(row, row.compute_ns), format_time, group="Computation"),
    Column("Alone", lambda row: _bar(row, row.communication_ns), format_time, group="Communication"),
    Column("Exposed", lambda row: _bar(row, row.exposed_ns), format_time, group="Communication"),
    Column("Hidden", lambda row: row.hidden, percent, "%", group="Communication"),
    Column("Idle", lambda row: row.exposed_share if row.bubble is not None else None, percent, "%", group="Pipeline"),
    Column("Bubble", lambda row: row.bubble, percent, "%", group="Pipeline"),
    Column("Sent", lambda row: row.sent_bytes, lambda sent: format_size(round(sent))),
    Column("Dropped", lambda row: row.dropped or None, str),
    Column("Tokens/s", lambda row: row.tokens_per_second, three_digits),
    Column("FLOP/s", lambda row: row.flop_per_second, format_flop),
    Column("Of matmul", lambda row: row.product_share, percent, "%"),
    Column("Data", lambda row: checked(row.check)),
)

_JUDGED: Final[tuple[Column[StepVerdict], ...]] = (
    Column("Step", lambda row: row.step.op),
    Column("Of", lambda row: workload_in_words(row.step.workload)),
    Column("Computed", lambda row: row.computed, percent, "%"),
    Column("Exposed", lambda row: row.communicating, percent, "%"),
    Column("Waiting", lambda row: row.waiting, percent, "%"),
    Column("Products of matmul", lambda row: row.of_matmul, percent, "%"),
    Column("Predicted", lambda row: row.predicted_ns, format_time),
    Column("Measured / predicted", lambda row: row.ratio, three_digits, ends=lambda row: (row.low, row.high)),
    Column("Verdict", lambda row: Cell(row.status, TONES[row.status])),
    Column("Longer most by", lambda row: row.longest if row.status == "slower" else None),
    Column(
        "Shortened most by",
        lambda row: f"{row.changes[0][0]}, {-100 * row.changes[0][1]:.0f} %" if row.changes else None,
    ),
)
_SHARES: Final = (
    "Computed, exposed, waiting: shares of the step. Computed: of the slowest rank. Waiting: the bubble of a pipeline, "
    "otherwise the part of the exposed time before the last rank arrived. Products of matmul: in computation alone. "
    "Predicted: from single calls of this run; low and high from the shortest and the longest try. A prediction that "
    f"extrapolates decides nothing. As expected: up to {MODEL_TOLERANCE:g} times the predicted time."
)

_RANKED: Final[tuple[Column[Ranked], ...]] = (
    Column("Step", lambda row: row.step.op),
    Column("Of", lambda row: workload_in_words(row.step.workload)),
    Column("Ranks", lambda row: row.step.ranks, str),
    Column("Time", lambda row: row.step.time_ns, format_time),
    Column("Over the fastest", lambda row: row.times, three_digits),
    Column("Waits most for", lambda row: row.step.waits_for[0]),
    Column("Of the step", lambda row: row.step.waits_for[1] / row.step.step_ns, percent, "%"),
)


_SLOWED: Final[tuple[Column[Slowed], ...]] = (
    Column("Step", lambda row: row.step.op),
    Column("Of", lambda row: workload_in_words(row.step.workload)),
    Column("Time", lambda row: row.step.time_ns, format_time),
    Column("without", lambda row: row.usual.time_ns, format_time),
    Column(
        "Longer by", lambda row: row.longer_ns, signed_time, ends=lambda row: (row.longer_low_ns, row.longer_high_ns)
    ),
    Column("Expected", lambda row: row.expected_ns, format_time),
    Column("Of the delay", lambda row: row.longer_ns / (row.step.workload.slow_ns or 1), percent, "%"),
)
_LATE: Final = (
    "Expected: the whole delay; in a pipeline, minus the forward passes before that stage, which starts later anyway. "
    "Low and high: from the ends of both intervals."
)


_MEMORY: Final[tuple[Column[tuple[Trained, RankMemory, Memory]], ...]] = (
    Column("Step", lambda row: row[0].op),
    Column("Of", lambda row: workload_in_words(row[0].workload)),
    Column("Rank", lambda row: row[1].rank, str),
    Column("Measured", lambda row: row[1].peak_bytes, about_size, group="Peak"),
    Column("Computed", lambda row: round(row[2].total), about_size, group="Peak"),
    Column("Over it", lambda row: row[1].peak_bytes / row[2].total, three_digits, group="Peak"),
    Column("Measured", lambda row: row[1].weights_bytes, about_size, group="Weights"),
    Column("Computed", lambda row: round(row[2].weights), about_size, group="Weights"),
    Column("Measured", lambda row: row[1].gradients_bytes, about_size, group="Gradients"),
    Column("Computed", lambda row: round(row[2].gradients), about_size, group="Gradients"),
    Column("Computed", lambda row: round(row[2].activations), about_size, group="Activations"),
    Column("Computed", lambda row: round(row[2].buffers), about_size, group="Buffers"),
)
_REMEMBERED: Final = (
    "The rank that needs most. Measured: tensors alive at the same time; on CPUs, without temporary memory inside an "
    "operation. Computed: busbw training memory, with plain gradient descent, which keeps no state."
)


def _bar(step: Trained, part_ns: float) -> Cell:
    return Cell(format_time(part_ns), bar=min(1.0, part_ns / step.step_ns))


def steps(verdicts: Sequence[StepVerdict]) -> Section | None:
    """All measured steps with their ``verdicts``; None if there are none."""
    if not verdicts:
        return None
    measured = [verdict.step for verdict in verdicts]
    notes = ["Bars are shares of the step. Sent: S × bus factor of each call, for the rank that sends most."]
    if any(step.bubble is not None for step in measured):
        notes.append("Idle: exposed share of the step, with messages. Bubble: (p−1)/(m v + p−1), without messages.")
    if any(step.product_share is not None for step in measured):
        notes.append("Of matmul: FLOP/s over those of the largest matmul in this run.")
    if any(step.dropped for step in measured):
        notes.append("Dropped: tokens dropped because an expert was full.")
    if any(step.workload.wait_ns is not None for step in measured):
        notes.append(_WAITED)
    rows = table("Steps", _COLUMNS, measured, *notes)
    judged = table("Parts and predictions", _JUDGED, verdicts, _SHARES)
    places = [table("The fastest first", _RANKED, order, _WAITS)] if (order := ranked(measured)) else []
    lates = [table("One delayed rank", _SLOWED, late, _LATE)] if (late := slowed(measured)) else []
    full = [(step, step.fullest, step.computed_memory) for step in measured if step.workload.slow_ns is None]
    held = [(step, rank, computed) for step, rank, computed in full if rank is not None and computed is not None]
    memories = [table("Memory", _MEMORY, held, _REMEMBERED)] if held else []
    return Section("steps", "Training steps", (Paragraph(_HOW), rows, judged, *places, *lates, *memories))
