"""Steps of training that a run has measured, held against what a plan says of them from all else that it has measured.

A step that was measured is taken apart (docs/formats.md#step): what it computes, with nothing sent; the bubble of a
pipeline, (p−1)/(m v) of that; and the rest, which is exposed communication.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from busbw.errors import AnalysisError, UsageError
from busbw.ops.training import Workload, workload_in_words
from busbw.runs.records import Case
from busbw.workloads.shapes import StepShape
from busbw_analysis.data.grouped import by_key
from busbw_analysis.predict import Questions
from busbw_analysis.training.layout import Layout, Step
from busbw_analysis.training.prices import Measured
from busbw_analysis.training.step_time import AS_IT_IS, Machine, Scenario, StepTime, step_time
from busbw_analysis.training.traffic import traffic

_BUCKET_BYTES: Final = 25 << 20
"""Of DistributedDataParallel by default; the last one has nothing beside it."""
_LAYOUTS: Final[dict[str, dict[str, Any]]] = {
    "train_ddp": {},
    "train_zero1": {"zero": 1},
    "train_fsdp": {"zero": 3},
    "train_fsdp_kept": {"zero": 3, "reshard": False},
    "train_fsdp_prefetch": {"zero": 3},
    "train_hsdp": {"zero": 3},
    "train_tensor": {},
    "train_columns": {"columns": True},
    "train_sequence": {"sequence_parallel": True, "keep_inputs": True},
    "train_ring": {},
    "train_ulysses": {"context": "ulysses"},
    "train_experts": {},
    "train_gpipe": {"schedule": "gpipe"},
    "train_1f1b": {},
    "train_3d": {},
    "train_interleaved": {},
}
"""Operation → how its layout differs from the plain one. An all_reduce of each gradient by hand is none of a plan's."""


@dataclass(frozen=True, slots=True)
class Held:
    """A measured step beside the predicted one. ``seconds`` and ``compute`` were measured; ``predicted`` is None where
    there is a reason in ``refused``. Errors are predicted less measured, as shares of the measured step.
    """

    case: int
    op: str
    workload: Workload
    seconds: float
    compute: float
    predicted: StepTime | None = None
    refused: str = ""

    @property
    def what(self) -> str:
        """The operation and what it is of."""
        return f"{self.op}: {workload_in_words(self.workload)}"

    @property
    def bubble(self) -> float:
        """What a stage waits for others beside the computation that was measured, and no more than all the rest."""
        one = self.workload
        formula = self.compute * (one.pp - 1) / (one.micro_batches * one.interleave)
        return max(0.0, min(formula, self.seconds - self.compute))

    @property
    def error(self) -> float | None:
        """(predicted − measured) / measured."""
        return None if self.predicted is None else self.predicted.total / self.seconds - 1

    def _off(self, predicted: Callable[[StepTime], float], measured: float) -> float | None:
        """``predicted`` less ``measured`` seconds, as a share of the measured step."""
        return None if self.predicted is None else (predicted(self.predicted) - measured) / self.seconds

    @property
    def compute_error(self) -> float | None:
        """That of computation."""
        return self._off(lambda time: time.compute, self.compute)

    @property
    def bubble_error(self) -> float | None:
        """That of the bubble; None without a pipeline."""
        return None if self.workload.pp == 1 else self._off(lambda time: time.bubble, self.bubble)

    @property
    def exposed_error(self) -> float | None:
        """That of exposed communication, which is the rest: all three add up to the error."""
        rest = self.seconds - self.compute - self.bubble
        return self._off(lambda time: time.total - time.compute - time.bubble, rest)


def step_of(op: str, one: Workload) -> Step:
    """A step of training in the plan's terms."""
    model = StepShape(one).model
    layout = Layout(
        **{name: getattr(one, name) for name in ("dp", "tp", "pp", "cp", "ep", "micro_batches", "interleave")},
        shard=None if one.shard == 1 else one.shard,
        **_LAYOUTS.get(op, {}),
    )
    # What an expert has no room for is not sent.
    busiest = one.expert_imbalance if one.capacity is None else min(one.expert_imbalance, one.capacity)
    return Step(model, layout, model.batch, model.sequence, imbalance=busiest)


def held(questions: Questions, scenario: Scenario = AS_IT_IS) -> tuple[Held, ...]:
    """Every step that was measured, beside the plan's for a machine with these speeds; those whose computation alone
    was not are left out.
    """
    prices, found = Measured(questions), []
    for dataset, summaries in zip(questions.datasets, questions.summaries, strict=True):
        apart = by_key(
            (block.case, time)
            for block in dataset.blocks
            if block.measurement.step is not None
            for time in block.measurement.step.compute_ns
        )
        for summary in summaries:
            case = summary.case
            if case.workload is None or case.workload.slow_ns or case.op not in _LAYOUTS or summary.state != "measured":
                continue
            if not (alone := apart.get(summary.index)):
                continue
            compute = median(alone) / 1e9
            one = Held(summary.index, case.op, case.workload, summary.groups[0].time_ns / 1e9, compute)
            try:
                found.append(replace(one, predicted=_predicted(case, prices, compute, scenario)))
            except (AnalysisError, UsageError) as error:
                found.append(replace(one, refused=str(error)))
    return tuple(found)


def _predicted(case: Case, prices: Measured, compute: float, scenario: Scenario) -> StepTime:
    """Products that were waited for have the rate that they were given; others that of the step without sending."""
    assert case.workload is not None  # noqa: S101 - others are left out
    step = step_of(case.op, case.workload)
    shape = StepShape(case.workload)
    wait = case.workload.wait_ns
    each = compute if wait is None else wait / 1e9
    machine = Machine(shape.flop / case.ranks / each, prices.per_host, prices, _overlap(case, step), causal=False)
    return step_time(step, machine, scenario)


def _overlap(case: Case, step: Step) -> float:
    """What goes on beside computation on processors: of gradients in buckets all but the last, else nothing."""
    gradients = sum(row.size_bytes for row in traffic(step) if row.dimension == "dp")
    return max(0.0, 1 - _BUCKET_BYTES / gradients) if case.op == "train_ddp" and gradients else 0.0


def order_kept(found: Sequence[Held]) -> float:
    """Kendall's τ of predicted and measured times, ties counted as such (τ-b)."""
    from scipy.stats import kendalltau  # noqa: PLC0415 - most commands do without

    told = [(one.seconds, one.predicted.total) for one in found if one.predicted is not None]
    return float(kendalltau(*zip(*told, strict=True)).statistic)
