"""The verdict on a training step: how its time divides, and whether it is as long as the run's own calls predict.

A measured step (``runs.records.StepParts``) has three parts: its computation without communication; the pipeline's
bubble, (p−1)/(m v) of that; and the rest, which is exposed communication.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from busbw.errors import AnalysisError, UsageError
from busbw.ops import STRATEGIES
from busbw.ops.training import workload_in_words
from busbw.runs.records import RankMemory
from busbw.units import about_size, format_flop, format_seconds, format_size, format_time, signed_time
from busbw_analysis.data.rank_statistics import kendall
from busbw_analysis.diagnosis.doubts import MODEL_TOLERANCE
from busbw_analysis.diagnosis.verdicts import Status, by_tolerance, over_interval
from busbw_analysis.report.document import (
    TONES,
    Block,
    Cell,
    Column,
    Paragraph,
    Section,
    checked,
    percent,
    table,
    three_digits,
)
from busbw_analysis.training.calibration import slower
from busbw_analysis.training.kernels import Speed
from busbw_analysis.training.layout import Step
from busbw_analysis.training.memory import Memory
from busbw_analysis.training.plan import SCENARIOS
from busbw_analysis.training.prices import Group, Measured, group_of, slowdown_of
from busbw_analysis.training.step_time import AS_IT_IS, Machine, Scenario, StepTime, step_time
from busbw_analysis.training.steps import Ranked, Slowed, Trained, ranked, slowed, step_of
from busbw_analysis.training.traffic import Traffic, traffic

Part = Literal["computation", "exposed communication", "waiting"]
MATMUL: Final = "matmul"
MESSAGE: Final = "send_recv"
_WITHIN: Final = 0.01
"""A change of the machine that shortens a step by less is not worth naming."""
_BUCKET_BYTES: Final = 25 << 20
"""Default bucket of DistributedDataParallel; the last bucket cannot overlap."""


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """A measured step and its prediction. Parts are shares of the step that was timed in turns with them, and add up
    to 1.

    predicted: from this run's curves of single calls; None if there is a reason in ``refused``.
    lacks: operations to measure in the same run, so that it can be predicted and its products be compared.
    largest_bytes: of the calls that the step makes, with those of other groups at the same time; 0 if unknown.
    changes: change of the machine → relative change of the predicted time, the largest gain first.
    """

    step: Trained
    predicted: StepTime | None = None
    refused: str = ""
    lacks: tuple[str, ...] = ()
    largest_bytes: int = 0
    changes: tuple[tuple[str, float], ...] = ()

    @property
    def name(self) -> str:
        """The operation with its workload."""
        return f"{self.step.op} ({workload_in_words(self.step.workload)})"

    @property
    def computed(self) -> float:
        """Share of computation, of the slowest rank."""
        return 1 - self.step.exposed_share

    @property
    def communicating(self) -> float:
        """Share of exposed communication, with the waiting if that is unknown."""
        return self.step.exposed_share - (self.waiting or 0.0)

    @property
    def waiting(self) -> float | None:
        """Share of waiting for other ranks: the bubble of a pipeline; otherwise, of the exposed time, the part in which
        the recorded step waited for the last rank to arrive. None if it was not recorded.
        """
        return self.step.waiting_share

    @property
    def parts(self) -> dict[Part, float]:
        """Every known part, as a share of the step."""
        shares: dict[Part, float] = {"computation": self.computed, "exposed communication": self.communicating}
        return shares if self.waiting is None else {**shares, "waiting": self.waiting}

    @property
    def of_matmul(self) -> float | None:
        """Rate of the products in computation alone over that of this run's matmul; None if either is unknown."""
        return self.step.of_matmul

    @property
    def predicted_ns(self) -> float | None:
        """The predicted time."""
        return None if self.predicted is None else self.predicted.total * 1e9

    @property
    def ratio(self) -> float | None:
        """The step over its prediction, by the median try."""
        return self._over(self.step.step_ns)

    @property
    def low(self) -> float | None:
        """By the shortest try."""
        return self._over(min(self.step.tries_ns))

    @property
    def high(self) -> float | None:
        """By the longest try."""
        return self._over(max(self.step.tries_ns))

    def _over(self, ns: float) -> float | None:
        return None if self.predicted is None else ns / 1e9 / self.predicted.total

    @property
    def extrapolated(self) -> tuple[str, ...]:
        """In which respects the prediction lies outside what was measured. It is then never a verdict of slower."""
        prices = () if self.predicted is None else self.predicted.prices
        return tuple(dict.fromkeys(words for price in prices for words in price.extrapolated))

    @property
    def status(self) -> Status:
        """Whether the step is as long as predicted."""
        if self.ratio is None or self.low is None or self.high is None:
            return "not judged"
        status = over_interval(by_tolerance(self.low), by_tolerance(self.ratio), by_tolerance(self.high))
        return "undecided" if self.extrapolated and status in {"slower", "faster"} else status

    @property
    def error(self) -> float | None:
        """(predicted − measured) / measured."""
        return None if self.predicted is None else self.predicted.total * 1e9 / self.step.step_ns - 1

    @property
    def errors(self) -> dict[Part, float]:
        """Predicted minus measured time of each part, as shares of the measured step: they add up to ``error``.

        Waiting is the bubble, of a pipeline only. Empty without a prediction.
        """
        if self.predicted is None:
            return {}
        step, time = self.step, self.predicted
        exposed, rest_ns = time.total - time.compute - time.bubble, step.step_ns - step.compute_ns - step.bubble_ns
        errors: dict[Part, float] = {
            "computation": (time.compute * 1e9 - step.compute_ns) / step.step_ns,
            "exposed communication": (exposed * 1e9 - rest_ns) / step.step_ns,
        }
        if step.workload.pp > 1:
            errors["waiting"] = (time.bubble * 1e9 - step.bubble_ns) / step.step_ns
        return errors

    @property
    def longest(self) -> Part | None:
        """The part that takes longer than predicted by most; None if none does, or without a prediction."""
        longer = [(error, part) for part, error in self.errors.items() if error < -_WITHIN]
        return min(longer)[1] if longer else None


def step_verdicts(steps: Iterable[Trained], prices: Measured, scenario: Scenario = AS_IT_IS) -> tuple[StepVerdict, ...]:
    """The verdict on every measured step, in their order, for a machine with the measured ``prices``."""
    return tuple(_verdict(step, prices, scenario) for step in steps)


def _verdict(step: Trained, prices: Measured, scenario: Scenario) -> StepVerdict:
    without_matmul = step.product_rate is None and step.workload.wait_ns is None
    verdict = StepVerdict(step, lacks=(MATMUL,) if without_matmul else ())
    if step.workload.slow_ns is not None:
        return replace(verdict, refused="one rank is delayed on purpose")
    if step.op not in STRATEGIES:
        return replace(verdict, refused=f"{step.op}: this version does not know it")
    if reason := STRATEGIES[step.op].unplanned:
        return replace(verdict, refused=f"{step.op}: {reason}")
    try:
        return _predict(verdict, prices, scenario)
    except UsageError as error:  # the layout does not fit the model
        return replace(verdict, refused=str(error))


def _predict(verdict: StepVerdict, prices: Measured, scenario: Scenario) -> StepVerdict:
    """``verdict`` with its prediction, or with what it lacks.

    Products take as long as in the step without communication (with wait, too, where a rank still copies and updates),
    and calls as many times as long as single ones as those of the step do that are repeated in turns with it.
    """
    measured = verdict.step
    step = step_of(measured.op, measured.workload)
    overlap, slowdown = overlap_on_cpus(measured.op, step, prices), slowdown_of(prices)[0]
    machine = Machine(Speed(1.0), prices.per_host, prices, 0.0, causal=False)
    rows = [row for stage in step.kinds for row in traffic(step, stage)]
    groups = [(row, group_of(step.layout, row, prices.per_host)) for row in rows]
    largest_bytes = max((prices.together(row.size_bytes, group) for row, group in groups), default=0)
    verdict = replace(verdict, largest_bytes=largest_bytes)
    try:
        # Computation alone is that of the slowest stage.
        seconds_of_flop = measured.compute_ns / 1e9 / step_time(step, machine).compute
        machine = slower(machine, seconds_of_flop, _in_turns(measured, prices, groups))
        machine = replace(machine, overlap=overlap, slowdown=slowdown)
        predicted = step_time(step, machine, scenario)
    except AnalysisError as error:
        return replace(verdict, refused=str(error), lacks=(*_lacking(groups, prices), *verdict.lacks))
    changes = ((other.name, step_time(step, machine, other).total / predicted.total - 1) for other in SCENARIOS)
    gains = sorted((change for change in changes if change[1] <= -_WITHIN), key=lambda change: change[1])
    return replace(verdict, predicted=predicted, changes=tuple(gains))


def _in_turns(step: Trained, prices: Measured, calls: Iterable[tuple[Traffic, Group]]) -> float:
    """How many times as long as single calls those of a step take, repeated in turns with it; 1 with messages, all of
    which are repeated at once.
    """
    if any(call.op == MESSAGE for call in step.sent):
        return 1.0
    known = {(row.op, group.ranks): group for row, group in calls}
    alone: dict[int, float] = {}
    for call in step.sent:
        group = known.get((call.op, call.group), Group(call.group, 1, max(1, prices.per_host // call.group)))
        seconds = call.calls / step.steps * prices.price(call.op, call.size_bytes, group).seconds
        for rank in call.ranks:
            alone[rank] = alone.get(rank, 0.0) + seconds
    return step.communication_ns / 1e9 / max(alone.values()) if alone else 1.0


def _lacking(calls: Iterable[tuple[Traffic, Group]], prices: Measured) -> tuple[str, ...]:
    """Operations of ``calls`` that ``prices`` do not have."""
    lacking: dict[str, None] = {}
    for row, group in calls:
        try:
            prices.price(row.op, row.size_bytes, group)
        except (AnalysisError, UsageError):
            lacking.setdefault(row.op)
    return tuple(lacking)


def overlap_on_cpus(op: str, step: Step, prices: Measured) -> float:
    """Share of calls that overlap on CPUs: as much as calls of the run did, of all gradient buckets but the last."""
    gradients = sum(row.size_bytes for row in traffic(step) if row.dimension == "dp")
    if not STRATEGIES[op].bucketed or not gradients:
        return 0.0
    measured = prices.overlap()
    return max(0.0, 1 - _BUCKET_BYTES / gradients) * (1.0 if measured is None else measured[0])


def order_kept(verdicts: Sequence[StepVerdict]) -> float:
    """Kendall's τ-b of predicted and measured times."""
    times = [(verdict.step.step_ns, verdict.predicted_ns) for verdict in verdicts if verdict.predicted_ns is not None]
    return kendall(*zip(*times, strict=True)).tau


_HOW: Final = (
    "A step is a forward pass, a backward pass and an update. Loss, gradients and weights are checked against one "
    "process, before and after timing. Computation alone: the same step without communication. Communication alone: "
    "the same collectives in sequence. In turns: the step, timed in turns with both. Not computation: that step "
    "minus computation alone, exposed communication and waiting together. Hidden: the share of communication alone "
    "that is neither."
)
_WAITED: Final = (
    "With wait, ranks sleep instead of computing matrix products: they then communicate as if they did not share "
    "cores, and FLOP/s mean nothing."
)
_WAITS: Final = (
    "Steps of the same model, scale, wait and number of ranks are compared. Bubble: (p−1)/(m v) of computation alone; "
    "dp to ep: the rest of the exposed communication, by dimension."
)

_STEP: Final[tuple[Column[Trained], ...]] = (
    Column("Step", lambda row: row.op),
    Column("Of", lambda row: workload_in_words(row.workload)),
    Column("Ranks", lambda row: row.ranks, str),
)
_RATES: Final[tuple[Column[Trained], ...]] = (
    *_STEP,
    Column("Time", lambda row: row.time_ns, format_time, ends=lambda row: (row.low_ns, row.high_ns)),
    Column("Sent", lambda row: row.sent_bytes, lambda sent: format_size(round(sent))),
    Column("Dropped", lambda row: row.dropped or None, str),
    Column("Tokens/s", lambda row: row.tokens_per_second, three_digits),
    Column("FLOP/s", lambda row: row.flop_per_second, format_flop),
    Column("Of matmul", lambda row: row.product_share, percent, "%"),
    Column("Data", lambda row: checked(row.check)),
)
_PARTS: Final[tuple[Column[Trained], ...]] = (
    *_STEP,
    Column("In turns", lambda row: row.step_ns, format_time),
    Column("Alone", lambda row: _bar(row, row.compute_ns), format_time, group="Computation"),
    Column("Alone", lambda row: _bar(row, row.communication_ns), format_time, group="Communication"),
    Column("Hidden", lambda row: row.hidden, percent, "%", group="Communication"),
    Column("Not computation", lambda row: _bar(row, row.exposed_ns), format_time),
    Column("Idle", lambda row: row.exposed_share if row.bubble is not None else None, percent, "%", group="Pipeline"),
    Column("Bubble", lambda row: row.bubble, percent, "%", group="Pipeline"),
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
    "Computed, exposed, waiting: shares of the step in turns. Computed: of the slowest rank. Waiting: the bubble of a "
    "pipeline, otherwise the part of the exposed time before the last rank arrived. Products of matmul: in computation "
    "alone. "
    "Predicted: from computation alone and single calls of this run, as fast as those in turns; low and high from the "
    "shortest and the longest try. A prediction that "
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
    sent = ["Sent: S × bus factor of each call, for the rank that sends most."]
    if any(step.product_share is not None for step in measured):
        sent.append("Of matmul: FLOP/s over those of the largest matmul in this run.")
    if any(step.dropped for step in measured):
        sent.append("Dropped: tokens dropped because an expert was full.")
    if any(step.workload.wait_ns is not None for step in measured):
        sent.append(_WAITED)
    notes = ["Bars are shares of the step."]
    if any(step.bubble is not None for step in measured):
        notes.append("Idle: exposed share of the step, with messages. Bubble: (p−1)/(m v + p−1), without messages.")
    rates = table("Steps", _RATES, measured, *sent)
    parts = table("Parts of the steps", _PARTS, measured, *notes)
    judged = table("Parts and predictions", _JUDGED, verdicts, _SHARES)
    places = [table("The fastest first", _RANKED, order, _WAITS)] if (order := ranked(measured)) else []
    lates = [table("One delayed rank", _SLOWED, late, _LATE)] if (late := slowed(measured)) else []
    full = [(step, step.fullest, step.computed_memory) for step in measured if step.workload.slow_ns is None]
    held = [(step, rank, computed) for step, rank, computed in full if rank is not None and computed is not None]
    memories = [table("Memory", _MEMORY, held, _REMEMBERED)] if held else []
    return Section("steps", "Training steps", (Paragraph(_HOW), rates, parts, judged, *places, *lates, *memories))


_MEASURED: Final[tuple[Column[StepVerdict], ...]] = (
    Column("Step", lambda row: f"{row.step.op}: {workload_in_words(row.step.workload)}"),
    Column("Measured", lambda row: row.step.step_ns / 1e9, format_seconds),
    Column("Predicted", lambda row: None if row.predicted is None else row.predicted.total, format_seconds),
    Column("Error", lambda row: row.error, "{:+.1%}".format),
    Column("of compute", lambda row: row.errors.get("computation"), "{:+.1%}".format),
    Column("of the bubble", lambda row: row.errors.get("waiting"), "{:+.1%}".format),
    Column("of exposed communication", lambda row: row.errors.get("exposed communication"), "{:+.1%}".format),
)


def measured_steps(verdicts: Sequence[StepVerdict]) -> Iterator[Block]:
    """Measured steps without a delayed rank, with the prediction's error by part."""
    steps = [verdict for verdict in verdicts if verdict.step.workload.slow_ns is None]
    predicted = [verdict for verdict in steps if verdict.predicted is not None]
    order = f"Kendall's τ of both orders: {order_kept(predicted):.2f}." if len(predicted) > 2 else ""
    note = (
        "Predicted from this run's curves of single calls. Errors are shares of the measured step. Its bubble is "
        "(p−1)/(m v) of its computation; the rest is exposed communication."
    )
    reasons = dict.fromkeys(verdict.refused for verdict in steps if verdict.refused)
    fastest_first = sorted(steps, key=lambda verdict: verdict.step.step_ns)
    if steps:
        title = "Steps of training, measured and predicted"
        yield table(title, _MEASURED, fastest_first, note, order, *reasons, row_headers=1)
