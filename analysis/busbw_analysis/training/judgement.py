"""The judgement on training steps: what was measured, how it compares with predictions, and what the answer says."""

from collections.abc import Sequence
from dataclasses import dataclass

from busbw_analysis.diagnosis.contributions import CaseNumber, Cause
from busbw_analysis.diagnosis.judge import Evidence, Finding, Judgement
from busbw_analysis.predict import Questions
from busbw_analysis.training.gradient_exchanges import Exchanged, exchanged
from busbw_analysis.training.held import Held, held
from busbw_analysis.training.step_answer import StepAnswer, answer_steps
from busbw_analysis.training.step_verdicts import StepVerdict, step_verdicts
from busbw_analysis.training.steps import Trained, steps_of


@dataclass(frozen=True, slots=True)
class Training:
    """The training steps of a run.

    held: steps beside their predictions.
    verdicts: one for each of ``steps``.
    exchanges: groups of steps that differ only in the exchange of gradients.
    """

    steps: tuple[Trained, ...]
    held: tuple[Held, ...]
    verdicts: tuple[StepVerdict, ...]
    exchanges: tuple[tuple[Exchanged, ...], ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """None: the answer has a line on the steps."""
        return ()

    @property
    def numbers(self) -> tuple[CaseNumber, ...]:
        """The parts of each step, and its prediction."""
        by_case = {verdict.case: verdict for verdict in self.verdicts}
        return (
            CaseNumber(
                "computed",
                "computed",
                "fraction",
                {case: verdict.computed for case, verdict in by_case.items()},
                "computed, exposed, waiting: shares of a step: computation, communication that it does not hide, and "
                "waiting for other ranks",
            ),
            CaseNumber(
                "exposed",
                "exposed",
                "fraction",
                {case: verdict.communicating for case, verdict in by_case.items()},
            ),
            CaseNumber("waiting", "waiting", "fraction", {case: verdict.waiting for case, verdict in by_case.items()}),
            CaseNumber(
                "predicted_ns",
                "predicted",
                "ns",
                {case: verdict.predicted_ns for case, verdict in by_case.items()},
                "predicted: time of a step by single calls of this run",
            ),
            CaseNumber("of_predicted", "", "fraction", {case: verdict.ratio for case, verdict in by_case.items()}),
        )

    def answer(self, judgement: Judgement, causes: Sequence[Cause]) -> StepAnswer:
        """What the answer says of the steps."""
        return answer_steps(self.verdicts, judgement, causes)


def judge_training(evidence: Evidence) -> Training:
    """The judgement on all measured steps."""
    steps = steps_of(evidence.dataset)
    predicted = held(Questions([evidence.dataset])) if steps else ()
    return Training(steps, predicted, step_verdicts(steps, predicted), exchanged(steps))
