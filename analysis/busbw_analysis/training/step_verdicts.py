"""The verdict on a training step: how its time divides, and whether it is as long as the run's own calls predict."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from busbw.ops.training import Workload, workload_in_words
from busbw_analysis.diagnosis.verdicts import Status, by_tolerance, over_interval
from busbw_analysis.training.held import Held
from busbw_analysis.training.steps import Trained

Part = Literal["computation", "exposed communication", "waiting"]
MATMUL: Final = "matmul"
_WITHIN: Final = 0.01
"""A change of the machine that shortens a step by less is not worth naming."""


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """One measured step. Its parts are shares of the step that was timed in turns with them, and add up to 1.

    time_ns: of the step's samples.
    apart_ns: of the step that was timed in turns with its parts; median.
    computed: of the slowest rank.
    communicating: exposed communication.
    waiting: for other ranks: the bubble of a pipeline; otherwise, of the exposed time, the part in which the recorded
        step waited for the last rank to arrive. None if it was not recorded; ``communicating`` then includes it.
    of_matmul: rate of the products in computation alone over that of this run's matmul; None if either is unknown.
    predicted_ns: from this run's curves of single calls; None if there is a reason in ``refused``.
    ratio, low, high: the step of ``apart_ns`` over ``predicted_ns``, by the median, the shortest and the longest try.
    longest: the part that takes longer than predicted by most; None if none does, or without a prediction.
    extrapolated: in which respects the prediction lies outside what was measured. It is then never a verdict of slower.
    lacks: operations to measure in the same run, so that it can be predicted and its products be compared.
    largest_bytes: of the calls that the step makes; 0 if unknown.
    changes: change of the machine → relative change of the predicted time, the largest gain first.
    """

    case: int
    op: str
    workload: Workload
    ranks: int
    time_ns: float
    apart_ns: float
    computed: float
    communicating: float
    waiting: float | None
    of_matmul: float | None
    predicted_ns: float | None
    ratio: float | None
    low: float | None
    high: float | None
    status: Status
    longest: Part | None
    extrapolated: tuple[str, ...]
    refused: str
    lacks: tuple[str, ...]
    largest_bytes: int
    changes: tuple[tuple[str, float], ...]
    explained_by: str | None = None

    @property
    def name(self) -> str:
        """The operation with its workload."""
        return f"{self.op} ({workload_in_words(self.workload)})"

    @property
    def parts(self) -> dict[Part, float]:
        """Every known part, as a share of the step."""
        shares: dict[Part, float] = {"computation": self.computed, "exposed communication": self.communicating}
        return shares if self.waiting is None else {**shares, "waiting": self.waiting}


def step_verdicts(steps: Iterable[Trained], held: Sequence[Held]) -> tuple[StepVerdict, ...]:
    """The verdict on every measured step, in their order."""
    by_case = {prediction.case: prediction for prediction in held}
    return tuple(_verdict(step, by_case.get(step.case)) for step in steps)


def _verdict(step: Trained, held: Held | None) -> StepVerdict:
    predicted = None if held is None else held.predicted
    ratio, low, high = (
        None if predicted is None else ns / 1e9 / predicted.total
        for ns in (step.step_ns, min(step.tries_ns), max(step.tries_ns))
    )
    extrapolated = (
        ()
        if predicted is None
        else tuple(dict.fromkeys(words for price in predicted.prices for words in price.extrapolated))
    )
    waiting = step.waiting_share
    lacks = () if held is None else held.lacks
    return StepVerdict(
        case=step.case,
        op=step.op,
        workload=step.workload,
        ranks=step.ranks,
        time_ns=step.time_ns,
        apart_ns=step.step_ns,
        computed=1 - step.exposed_share,
        communicating=step.exposed_share - (waiting or 0.0),
        waiting=waiting,
        of_matmul=step.of_matmul,
        predicted_ns=None if predicted is None else predicted.total * 1e9,
        ratio=ratio,
        low=low,
        high=high,
        status=_status(ratio, low, high, doubted=bool(extrapolated)),
        longest=None if held is None else _longest(held),
        extrapolated=extrapolated,
        refused=_refused(step, held),
        lacks=(*lacks, *([MATMUL] if step.product_rate is None and step.workload.wait_ns is None else [])),
        largest_bytes=0 if held is None else held.largest_bytes,
        changes=()
        if held is None
        else tuple(
            sorted(((name, by) for name, by in held.changes.items() if by <= -_WITHIN), key=lambda change: change[1])
        ),
    )


def _status(ratio: float | None, low: float | None, high: float | None, *, doubted: bool) -> Status:
    if ratio is None or low is None or high is None:
        return "not judged"
    status = over_interval(by_tolerance(low), by_tolerance(ratio), by_tolerance(high))
    return "undecided" if doubted and status in {"slower", "faster"} else status


def _longest(held: Held) -> Part | None:
    """Errors are predicted minus measured, so that the most negative one belongs to the part that took longer."""
    errors: dict[Part, float | None] = {
        "computation": held.compute_error,
        "exposed communication": held.exposed_error,
        "waiting": held.bubble_error,
    }
    longer = [(error, part) for part, error in errors.items() if error is not None and error < -_WITHIN]
    return min(longer)[1] if longer else None


def _refused(step: Trained, held: Held | None) -> str:
    if held is not None:
        return held.refused
    if step.workload.slow_ns is not None:
        return "one rank is delayed on purpose"
    return "its parts were not measured"
