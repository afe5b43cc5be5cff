"""The verdict on a training step: how its time divides, and whether it is as long as the run's own calls predict.

A measured step has three parts (docs/formats.md#step): its computation without communication; the pipeline's bubble,
(p−1)/(m v) of that; and the rest, which is exposed communication.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from busbw.errors import AnalysisError, UsageError
from busbw.ops import STRATEGIES
from busbw.ops.training import workload_in_words
from busbw.workloads.shapes import StepShape
from busbw_analysis.diagnosis.verdicts import Status, by_tolerance, over_interval
from busbw_analysis.training.layout import Step
from busbw_analysis.training.plan import SCENARIOS
from busbw_analysis.training.prices import Group, Measured, group_of
from busbw_analysis.training.step_time import AS_IT_IS, Machine, Scenario, StepTime, step_time
from busbw_analysis.training.steps import Trained, step_of
from busbw_analysis.training.traffic import Traffic, traffic

Part = Literal["computation", "exposed communication", "waiting"]
MATMUL: Final = "matmul"
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
    explained_by: str | None = None

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

    With wait, products take the given time; otherwise as long as in the step without communication.
    """
    measured = verdict.step
    step, wait_ns = step_of(measured.op, measured.workload), measured.workload.wait_ns
    seconds = (measured.compute_ns if wait_ns is None else wait_ns) / 1e9
    rate = StepShape(measured.workload).flop / measured.ranks / seconds
    machine = Machine(rate, prices.per_host, prices, _overlap(measured.op, step), causal=False)
    rows = [row for stage in step.kinds for row in traffic(step, stage)]
    groups = [(row, group_of(step.layout, row, prices.per_host)) for row in rows]
    largest_bytes = max((prices.together(row.size_bytes, group) for row, group in groups), default=0)
    verdict = replace(verdict, largest_bytes=largest_bytes)
    try:
        predicted = step_time(step, machine, scenario)
    except AnalysisError as error:
        return replace(verdict, refused=str(error), lacks=(*_lacking(groups, prices), *verdict.lacks))
    changes = ((other.name, step_time(step, machine, other).total / predicted.total - 1) for other in SCENARIOS)
    gains = sorted((change for change in changes if change[1] <= -_WITHIN), key=lambda change: change[1])
    return replace(verdict, predicted=predicted, changes=tuple(gains))


def _lacking(calls: Iterable[tuple[Traffic, Group]], prices: Measured) -> tuple[str, ...]:
    """Operations of ``calls`` that ``prices`` do not have."""
    lacking: dict[str, None] = {}
    for row, group in calls:
        try:
            prices.price(row.op, row.size_bytes, group)
        except (AnalysisError, UsageError):
            lacking.setdefault(row.op)
    return tuple(lacking)


def _overlap(op: str, step: Step) -> float:
    """Share of calls that overlap on CPUs: all gradient buckets but the last, and nothing else."""
    gradients = sum(row.size_bytes for row in traffic(step) if row.dimension == "dp")
    return max(0.0, 1 - _BUCKET_BYTES / gradients) if STRATEGIES[op].bucketed and gradients else 0.0


def order_kept(verdicts: Sequence[StepVerdict]) -> float:
    """Kendall's τ-b of predicted and measured times."""
    from scipy.stats import kendalltau  # noqa: PLC0415 - most commands do without

    times = [(verdict.step.step_ns, verdict.predicted_ns) for verdict in verdicts if verdict.predicted_ns is not None]
    return float(kendalltau(*zip(*times, strict=True)).statistic)
