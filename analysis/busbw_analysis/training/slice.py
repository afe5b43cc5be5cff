"""Training as a slice: measured steps and gradient exchanges, their sections, JSON, and the export of timelines."""

from collections.abc import Iterator, Sequence
from typing import Final

from busbw.runs.records import JSON
from busbw.workloads.model_rows import Model
from busbw_analysis.data.as_json import plain, values_of, with_values
from busbw_analysis.diagnosis.answer import Answer
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.report.slices import Placed, Slice
from busbw_analysis.training.gradient_exchanges import TARGET, Exchanged, exchanges
from busbw_analysis.training.judgement import StepAnswer, Training, judge_training
from busbw_analysis.training.plan_report import training
from busbw_analysis.training.step_verdicts import StepVerdict
from busbw_analysis.training.steps_report import steps
from busbw_analysis.training.timeline_report import timelines, trace


def _sections(judgement: Judgement, models: Sequence[Model]) -> Iterator[Placed]:
    judged = judgement.of(Training)
    planned = training(judgement.results, judged.verdicts, models)
    yield Placed("asked" if models or judged.verdicts else "last", "always" if models else "never", planned)
    yield Placed("results", "always", steps(judged.verdicts))
    yield Placed("results", "always", exchanges(judged.exchanges))
    yield Placed("results", "never", timelines(judged.steps))


_FOLLOWS: Final = (
    *("exposed_ns", "exposed_share", "hidden", "bubble", "bubble_ns"),
    *("tokens_per_second", "flop_per_second", "product_share", "sent_bytes"),
    "computed_memory",
)
_TRADED: Final = ("budget_ns", "gap", "gap_in_budget", "needed", "needed_ns", "gained", "certain", "lost", "slower")
_OF_RANK: Final = ("rank", "compute_ns", "waiting_ns", "waiting_for_last_ns")
_OF_VERDICT: Final = (
    *("status", "computed", "communicating", "waiting", "of_matmul", "predicted_ns", "ratio", "low", "high"),
    *("longest", "extrapolated", "refused", "lacks", "explained_by"),
)


def _as_json(judgement: Judgement, answer: Answer) -> dict[str, JSON]:
    return {
        "steps": [_step(verdict) for verdict in answer.of(StepAnswer).verdicts],
        "exchanges": [_exchanged(row) for group in judgement.of(Training).exchanges for row in group],
    }


def _step(verdict: StepVerdict) -> dict[str, JSON]:
    step = verdict.step
    what, ns = step.waits_for
    return {
        **with_values(step, *_FOLLOWS),
        **step.check.document,
        "waits_for": what,
        "waits_for_ns": ns,
        "timeline": [
            values_of(time, "rank", "compute_ns", "waiting_ns", "waiting_for_last_ns") for time in step.timeline
        ],
        "verdict": {**values_of(verdict, *_OF_VERDICT), "changes": plain(dict(verdict.changes))},
    }


def _exchanged(row: Exchanged) -> dict[str, JSON]:
    of = {"exchange": row.name, "case": row.step.case, "exact": row.exact.case, "target": TARGET}
    return of | values_of(row, *_TRADED)


SLICE: Final = Slice("training", judge_training, _sections, _as_json, {"trace": trace})
