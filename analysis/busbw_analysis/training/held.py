"""Measured training steps compared with predictions from the run's other measurements.

A measured step has three parts (docs/formats.md#step): its computation without communication; the pipeline's bubble,
(p−1)/(m v) of that; and the rest, which is exposed communication.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from busbw.errors import AnalysisError, UsageError
from busbw.ops import STRATEGIES
from busbw.ops.training import Workload, workload_in_words
from busbw.runs.records import Case, StepParts
from busbw.workloads.shapes import StepShape
from busbw_analysis.data.grouped import by_key
from busbw_analysis.predict import Questions
from busbw_analysis.training.layout import Layout, Step
from busbw_analysis.training.plan import SCENARIOS
from busbw_analysis.training.prices import Group, Measured, group_of
from busbw_analysis.training.step_time import AS_IT_IS, Machine, Scenario, StepTime, step_time
from busbw_analysis.training.traffic import Traffic, traffic

_BUCKET_BYTES: Final = 25 << 20
"""Default bucket of DistributedDataParallel; the last bucket cannot overlap."""
_OF_WORKLOAD: Final = ("dp", "tp", "pp", "cp", "ep", "micro_batches", "interleave")
_OF_STRATEGY: Final = ("zero", "reshard", "columns", "sequence_parallel", "keep_inputs", "context", "schedule")
"""Fields of a layout that a workload and a step's row of the table of operations have, too."""


@dataclass(frozen=True, slots=True)
class Held:
    """A measured step and its prediction.

    seconds: of the step, timed in turns with its computation alone, so that other load affects both alike.
    compute: measured seconds of computation alone.
    predicted: None if there is a reason in ``refused``.
    lacks: operations of the step whose time the run does not give, so that it cannot be predicted.
    largest_bytes: of the calls that the step makes, with those of other groups at the same time; 0 if no plan describes
        them.
    changes: scenario of a plan → relative change of the predicted time.
    Errors are predicted minus measured, as shares of the measured step.
    """

    case: int
    op: str
    workload: Workload
    seconds: float
    compute: float
    predicted: StepTime | None = None
    refused: str = ""
    lacks: tuple[str, ...] = ()
    largest_bytes: int = 0
    changes: Mapping[str, float] = field(default_factory=dict)

    @property
    def what(self) -> str:
        """The operation and its workload."""
        return f"{self.op}: {workload_in_words(self.workload)}"

    @property
    def bubble(self) -> float:
        """Time that a stage waits for others, from the measured computation; at most the rest of the step."""
        workload = self.workload
        formula = self.compute * (workload.pp - 1) / (workload.micro_batches * workload.interleave)
        return max(0.0, min(formula, self.seconds - self.compute))

    @property
    def error(self) -> float | None:
        """(predicted − measured) / measured."""
        return None if self.predicted is None else self.predicted.total / self.seconds - 1

    def _off(self, predicted: Callable[[StepTime], float], measured: float) -> float | None:
        """``predicted`` minus ``measured`` seconds, as a share of the measured step."""
        return None if self.predicted is None else (predicted(self.predicted) - measured) / self.seconds

    @property
    def compute_error(self) -> float | None:
        """Error of computation."""
        return self._off(lambda time: time.compute, self.compute)

    @property
    def bubble_error(self) -> float | None:
        """Error of the bubble; None without a pipeline."""
        return None if self.workload.pp == 1 else self._off(lambda time: time.bubble, self.bubble)

    @property
    def exposed_error(self) -> float | None:
        """Error of exposed communication, which is the rest: all three add up to the total error."""
        rest = self.seconds - self.compute - self.bubble
        return self._off(lambda time: time.total - time.compute - time.bubble, rest)


def step_of(op: str, workload: Workload) -> Step:
    """A measured step as the plan describes it."""
    model = StepShape(workload).model
    layout = Layout(
        **{name: getattr(workload, name) for name in _OF_WORKLOAD},
        **{name: getattr(STRATEGIES[op], name) for name in _OF_STRATEGY},
        shard=None if workload.shard == 1 else workload.shard,
    )
    # Tokens beyond an expert's capacity are not sent.
    busiest = (
        workload.expert_imbalance if workload.capacity is None else min(workload.expert_imbalance, workload.capacity)
    )
    return Step(model, layout, model.batch, model.sequence, imbalance=busiest)


def held(questions: Questions, scenario: Scenario = AS_IT_IS) -> tuple[Held, ...]:
    """Every measured step with its prediction for a machine with the measured speeds, except steps without computation
    alone.
    """
    prices, steps = Measured(questions), []
    for results in questions.results:
        parts = by_key(
            (row.case, row.supplement)
            for stored in results.runs
            for row in stored.measurements
            if isinstance(row.supplement, StepParts)
        )
        for summary in results.cases:
            case = summary.case
            if not isinstance(case.settings, Workload) or case.settings.slow_ns or summary.state != "measured":
                continue
            if case not in parts or case.op not in STRATEGIES:
                continue
            seconds, compute = (
                median(time for part in parts[case] for time in getattr(part, name)) / (parts[case][0].steps * 1e9)
                for name in ("step_ns", "compute_ns")
            )
            measured = Held(summary.index, case.op, case.settings, seconds, compute)
            if reason := STRATEGIES[case.op].unplanned:
                steps.append(replace(measured, refused=f"{case.op}: {reason}"))
                continue
            try:
                steps.append(_predict(measured, case, prices, scenario))
            except UsageError as error:  # the layout does not fit the model
                steps.append(replace(measured, refused=str(error)))
    return tuple(steps)


def _predict(measured: Held, case: Case, prices: Measured, scenario: Scenario) -> Held:
    """``measured`` with its prediction, or with what it lacks.

    With wait, products take the given time; otherwise as long as in the step without communication.
    """
    step = step_of(case.op, measured.workload)
    each = measured.compute if measured.workload.wait_ns is None else measured.workload.wait_ns / 1e9
    rate = StepShape(measured.workload).flop / case.ranks / each
    machine = Machine(rate, prices.per_host, prices, _overlap(case, step), causal=False)
    rows = [row for stage in step.kinds for row in traffic(step, stage)]
    groups = [(row, group_of(step.layout, row, prices.per_host)) for row in rows]
    measured = replace(
        measured, largest_bytes=max((prices.together(row.size_bytes, group) for row, group in groups), default=0)
    )
    try:
        predicted = step_time(step, machine, scenario)
    except AnalysisError as error:
        return replace(measured, refused=str(error), lacks=_lacking(groups, prices))
    changes = {other.name: step_time(step, machine, other).total / predicted.total - 1 for other in SCENARIOS}
    return replace(measured, predicted=predicted, changes=changes)


def _lacking(calls: Iterable[tuple[Traffic, Group]], prices: Measured) -> tuple[str, ...]:
    """Operations of ``calls`` that ``prices`` do not have."""
    lacking: dict[str, None] = {}
    for row, group in calls:
        try:
            prices.price(row.op, row.size_bytes, group)
        except (AnalysisError, UsageError):
            lacking.setdefault(row.op)
    return tuple(lacking)


def _overlap(case: Case, step: Step) -> float:
    """Share of calls that overlap on CPUs: all gradient buckets but the last, and nothing else."""
    gradients = sum(row.size_bytes for row in traffic(step) if row.dimension == "dp")
    return max(0.0, 1 - _BUCKET_BYTES / gradients) if STRATEGIES[case.op].bucketed and gradients else 0.0


def order_kept(steps: Sequence[Held]) -> float:
    """Kendall's τ-b of predicted and measured times."""
    from scipy.stats import kendalltau  # noqa: PLC0415 - most commands do without

    times = [(step.seconds, step.predicted.total) for step in steps if step.predicted is not None]
    return float(kendalltau(*zip(*times, strict=True)).statistic)
