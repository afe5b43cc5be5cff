"""Training as a slice: measured steps and gradient exchanges, their sections, JSON, and the export of timelines."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from busbw.errors import AnalysisError
from busbw.ops import OPS
from busbw.ops.training import MODEL, OTHER_MODELS, SCALE, SCALES
from busbw.runs.records import JSON
from busbw.units import counted, format_size, format_time, listed
from busbw.workloads.model_rows import Model
from busbw.workloads.shapes import StepShape
from busbw_analysis.data.as_json import plain, values_of, with_values
from busbw_analysis.data.grouped import grouped
from busbw_analysis.diagnosis.answer import Answer
from busbw_analysis.diagnosis.causes import cause_named
from busbw_analysis.diagnosis.judge import AnswerPart, CaseNumber, Cause, Evidence, Finding, Judgement
from busbw_analysis.diagnosis.judge import Status as RunStatus
from busbw_analysis.diagnosis.verdicts import Status, by_tolerance, times
from busbw_analysis.models.results import Results
from busbw_analysis.predict import Questions
from busbw_analysis.report.document import Paragraph, Section
from busbw_analysis.report.slices import Placed, Slice
from busbw_analysis.training.gradient_exchanges import TARGET, Exchanged, exchanged, exchanges
from busbw_analysis.training.plan_report import planned_model
from busbw_analysis.training.prices import Measured
from busbw_analysis.training.step_verdicts import MATMUL, StepVerdict, measured_steps, step_verdicts, steps
from busbw_analysis.training.steps import Trained, steps_of
from busbw_analysis.training.timeline_report import timelines, trace_events

_STATUSES: Final[dict[Status, str]] = {"undecided": "undecided", "as expected": "as predicted", "faster": "faster"}
_LEAST_LARGEST: Final = 1 << 20
_LEAST_WAITING: Final = 0.05
"""Share of a step from which on its bubble is worth shrinking."""
_UNLIKE: Final = 0.05
"""Steps that were timed in turns with their parts are named if their time differs by more than this share."""
_MOST_CHANGES: Final = 2
_OVERSUBSCRIBED: Final = "oversubscribed"
_DISTURBED: Final = "disturbed"
_MESSAGES: Final = {"send_recv": "ping_pong", "all_to_all_v": "all_to_all"}
"""Calls of a step → the operation to measure for them."""


def answer_steps(verdicts: Sequence[StepVerdict], judgement: Judgement, causes: Sequence[Cause]) -> AnswerPart:
    """The part of the answer on the steps with these ``verdicts``; ``causes`` are those that the core names."""
    codes = {cause.code for cause in causes}
    explained = {verdict.step.case: cause_of(verdict, judgement, codes) for verdict in verdicts}
    disturbed = _DISTURBED in explained.values() and _DISTURBED not in codes
    cause = cause_named(judgement, _DISTURBED) if disturbed else None
    return AnswerPart(
        label="Steps",
        text=_steps_in_words(verdicts),
        statuses=frozenset(_statuses(verdicts, explained)),
        causes=() if cause is None else (cause,),
        action=_action(judgement, verdicts),
        unjudged=_why_unjudged(verdicts),
    )


def cause_of(verdict: StepVerdict, judgement: Judgement, codes: Collection[str]) -> str | None:
    """The code of the cause of a slower step: shared cores, or other load while the step was measured."""
    if verdict.status not in {"slower", "undecided"} or verdict.predicted is None:
        return None
    if _OVERSUBSCRIBED in codes:
        return _OVERSUBSCRIBED
    return _DISTURBED if judgement.cases[verdict.step.case].disturbance.high else None


def _statuses(verdicts: Sequence[StepVerdict], explained: Mapping[int, str | None]) -> Iterator[RunStatus]:
    """What the verdicts mean for the whole run."""
    for verdict in verdicts:
        if verdict.status == "slower":
            yield "explained" if explained[verdict.step.case] else "slower"
        elif verdict.status == "undecided":
            yield "undecided"
        elif verdict.status != "not judged":
            yield "as expected"


def _steps_in_words(verdicts: Sequence[StepVerdict]) -> str:
    """The parts of all steps, and how they compare with their predictions; "" without steps."""
    if not verdicts:
        return ""
    if len(verdicts) == 1:
        (verdict,) = verdicts
        rate = "" if verdict.of_matmul is None else f" at {_percent(verdict.of_matmul)} of the matmul rate"
        parts = ", ".join(
            f"{_percent(share)} {part}{rate if part == 'computation' else ''}" for part, share in verdict.parts.items()
        )
        return f"a step of {verdict.name} takes {format_time(verdict.step.time_ns)}: {parts}; {_compared(verdict)}"
    ranges: dict[str, list[float]] = {}
    for verdict in verdicts:
        for part, share in verdict.parts.items():
            ranges.setdefault(part, []).append(share)
    parts = ", ".join(f"{_range([f'{100 * end:.0f}' for end in _ends(of)])} % {part}" for part, of in ranges.items())
    return f"{counted(len(verdicts), 'kind of step', 'kinds of steps')}: {parts}; {', '.join(_counts(verdicts))}"


def _compared(verdict: StepVerdict) -> str:
    """The verdict on a single step."""
    if verdict.ratio is None or verdict.low is None or verdict.high is None:
        return f"not predicted: {verdict.refused}" if verdict.refused else "not predicted"
    ends = (verdict.low, verdict.high) if verdict.status == "undecided" else (verdict.ratio,)
    doubt = ", which is an extrapolation" if verdict.extrapolated else ""
    more = f", most of it in {verdict.longest}" if verdict.status == "slower" and verdict.longest else ""
    unlike = abs(verdict.step.step_ns / verdict.step.time_ns - 1) > _UNLIKE
    apart = f"; in turns with its parts, a step took {format_time(verdict.step.step_ns)}" if unlike else ""
    return f"{verdict.status}: {_range([times(end) for end in ends])} the predicted time{doubt}{more}{apart}"


def _apart(verdict: StepVerdict) -> tuple[str, ...]:
    step = verdict.step
    took = f"A step of {verdict.name} takes {format_time(step.time_ns)}, but when timed alternately with its parts"
    shares = "The shares of computation, communication and waiting are of the second time"
    return f"{took} {format_time(step.step_ns)} ({times(step.in_turns)})", shares


def _counts(verdicts: Sequence[StepVerdict]) -> Iterator[str]:
    by_status = grouped(verdicts, lambda verdict: verdict.status)
    if slower := by_status.get("slower"):
        worst = max(slower, key=lambda verdict: verdict.ratio or 0.0)
        of = f", most of it in {worst.longest}" if worst.longest else ""
        yield f"{len(slower)} slower than predicted, worst {worst.name} ({times(worst.ratio or 0.0)}{of})"
    for status, words in _STATUSES.items():
        if members := by_status.get(status):
            ends = _ends([verdict.ratio for verdict in members if verdict.ratio is not None])
            yield f"{len(members)} {words} ({_range([times(end) for end in ends])} the predicted time)"
    if missing := by_status.get("not judged"):
        yield f"{len(missing)} not predicted"


def _percent(share: float) -> str:
    return "<1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def _ends(numbers: Sequence[float]) -> tuple[float, float]:
    return min(numbers), max(numbers)


def _range(ends: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys(ends))


def _why_unjudged(verdicts: Sequence[StepVerdict]) -> str:
    """Why none of ``steps`` was predicted, as a headline without a full stop; "" without steps."""
    if not verdicts:
        return ""
    calls = _calls(verdicts)
    if calls:
        return f"not judged: a step is predicted from {listed(calls)} at several sizes, which this run did not measure"
    return f"not judged: {next((verdict.refused for verdict in verdicts if verdict.refused), 'no step was predicted')}"


def _action(judgement: Judgement, verdicts: Sequence[StepVerdict]) -> str:
    """What to measure so that steps can be predicted, or what would shorten the only one, or the worst slower one."""
    slower = [verdict for verdict in verdicts if verdict.status == "slower"]
    worst = max(slower or verdicts[:1], key=lambda verdict: verdict.ratio or 0.0, default=None)
    return _measure(judgement, verdicts) or (_shorten(worst) if worst and (slower or len(verdicts) == 1) else "")


def _calls(verdicts: Sequence[StepVerdict]) -> list[str]:
    """The calls that the steps lack, as operations to measure."""
    return list(dict.fromkeys(_MESSAGES.get(op, op) for verdict in verdicts for op in verdict.lacks if op != MATMUL))


def _measure(judgement: Judgement, verdicts: Sequence[StepVerdict]) -> str:
    """The command that measures what the steps lack."""
    calls = _calls(verdicts)
    if not calls:
        lacks_matmul = any(MATMUL in verdict.lacks for verdict in verdicts)
        return "measure matmul in the same run, without --no-baseline" if lacks_matmul else ""
    without = [verdict for verdict in verdicts if any(op != MATMUL for op in verdict.lacks)]
    largest = max(_LEAST_LARGEST, *(verdict.largest_bytes for verdict in without))
    top = format_size(1 << (largest - 1).bit_length()).replace(" ", "")
    first = without[0]
    started_here = judgement.runs[0].run.launcher == "local"
    ops = ",".join([*dict.fromkeys(verdict.step.op for verdict in without), *calls])
    parts = [
        f"busbw run --op {ops} --sizes '1KiB..{top}*8,{top}'",
        *([f"--ranks {first.step.ranks}"] if started_here else []),
        *_options(first),
    ]
    backend = judgement.cases[first.step.case].case.backend
    parts += [] if backend == "gloo" else [f"--backend {backend}"]
    return f"run {' '.join(parts)} to measure {listed(calls)} beside it"


def _options(verdict: StepVerdict) -> Iterator[str]:
    """Options of a step that differ from the defaults and change the sizes of its calls."""
    workload = verdict.step.workload
    if workload.model != OTHER_MODELS.get(verdict.step.op, MODEL):
        yield f"--model '{workload.model}'"
    if workload.scale != SCALES.get(workload.model, SCALE):
        yield f"--scale {workload.scale:g}"
    if workload.wait_ns is not None:
        yield f"--compute wait={workload.wait_ns / 1e6:g}ms"
    if workload.dp > 1 and "dp" not in OPS[verdict.step.op].splits:
        yield f"--replicas {workload.dp}"


def _shorten(verdict: StepVerdict) -> str:
    """What would shorten a step: fewer waits, and the changes of the machine with the largest gains."""
    workload, waiting, communicating = verdict.step.workload, verdict.waiting, verdict.communicating
    more = msgspec.structs.replace(workload, micro_batches=2 * workload.micro_batches)
    waits = workload.pp > 1 and waiting is not None and waiting >= max(communicating, _LEAST_WAITING)
    shorter = []
    if waits and StepShape(more).refuse(verdict.step.op) is None:
        shorter.append(f"--micro-batches {more.micro_batches} would halve the waiting")
    if verdict.predicted is None and communicating > 0.01:
        most = _percent(communicating)
        shorter.append(f"hiding all exposed communication would shorten the step by at most {most}")
    if gains := ", with ".join(f"{name} by {_percent(-by)}" for name, by in verdict.changes[:_MOST_CHANGES]):
        shorter.append(f"the predicted step of {verdict.name} shortens with {gains}")
    return "; ".join(shorter)


_Value = Callable[[StepVerdict], float | None]


@dataclass(frozen=True, slots=True)
class Training:
    """The training steps of a run.

    exchanges: groups of steps that differ only in the exchange of gradients.
    """

    verdicts: tuple[StepVerdict, ...]
    exchanges: tuple[tuple[Exchanged, ...], ...]

    @property
    def steps(self) -> tuple[Trained, ...]:
        """All measured steps."""
        return tuple(verdict.step for verdict in self.verdicts)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Steps whose parts were measured beside much longer or shorter ones."""
        apart = [verdict for verdict in self.verdicts if by_tolerance(verdict.step.in_turns) != "as expected"]
        return tuple(Finding("caution", "step-parts", _apart(verdict)) for verdict in apart)

    @property
    def numbers(self) -> tuple[CaseNumber, ...]:
        """The parts of each step, and its prediction."""

        def number(
            key: str, heading: str, unit: Literal["fraction", "ns"], value: _Value, note: str = ""
        ) -> CaseNumber:
            return CaseNumber(key, heading, unit, {row.step.case: value(row) for row in self.verdicts}, note)

        parts = (
            "computed, exposed, waiting: shares of a step that was timed in turns with its parts: computation, "
            "communication that it does not hide, and waiting for other ranks"
        )
        predicted = "predicted: time of a step by single calls of this run"
        return (
            number("computed", "computed", "fraction", lambda row: row.computed, parts),
            number("exposed", "exposed", "fraction", lambda row: row.communicating),
            number("waiting", "waiting", "fraction", lambda row: row.waiting),
            number("predicted_ns", "predicted", "ns", lambda row: row.predicted_ns, predicted),
            number("of_predicted", "", "fraction", lambda row: row.ratio),
        )

    def answer(self, judgement: Judgement, causes: Sequence[Cause]) -> AnswerPart:
        """What the answer says of the steps."""
        return answer_steps(self.verdicts, judgement, causes)


def judge_training(evidence: Evidence) -> Training:
    """The judgement on all measured steps."""
    steps = steps_of(evidence.results)
    verdicts = step_verdicts(steps, Measured(Questions([evidence.results]))) if steps else ()
    return Training(verdicts, exchanged(steps))


def training(results: Results, verdicts: Sequence[StepVerdict], models: Sequence[Model]) -> Section:
    """Plans for the requested ``models``, and measured steps; folded if no model was requested."""
    blocks = [
        *measured_steps(verdicts),
        *(block for model in models for block in planned_model(Questions([results]), model)),
    ]
    gist = "The time of a training step from this run's measurements, its parts, and its sensitivity."
    if not blocks:
        gist = "Training plans for models on these ranks (needs --model)."
    if not models:
        blocks.append(Paragraph("To plan a model on these ranks: busbw report RUN --model 'Llama 3 8B'."))
    return Section("training", "What this means for training", tuple(blocks), folded=not models, gist=gist)


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
_OF_VERDICT: Final = (
    *("status", "computed", "communicating", "waiting", "of_matmul", "predicted_ns", "ratio", "low", "high"),
    *("longest", "extrapolated", "refused", "lacks"),
)


def _as_json(judgement: Judgement, answer: Answer) -> dict[str, JSON]:
    codes = {cause.code for cause in answer.causes}
    return {
        "steps": [_step(verdict, cause_of(verdict, judgement, codes)) for verdict in judgement.of(Training).verdicts],
        "exchanges": [_exchanged(row) for group in judgement.of(Training).exchanges for row in group],
    }


def _step(verdict: StepVerdict, explained_by: str | None) -> dict[str, JSON]:
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
        "verdict": {
            **values_of(verdict, *_OF_VERDICT),
            "explained_by": explained_by,
            "changes": plain(dict(verdict.changes)),
        },
    }


def _exchanged(row: Exchanged) -> dict[str, JSON]:
    of = {"exchange": row.name, "case": row.step.case, "exact": row.exact.case, "target": TARGET}
    return of | values_of(row, *_TRADED)


def trace(judgement: Judgement) -> bytes:
    """A process for each kind of step, a thread for each rank. Raises AnalysisError for a run without timelines."""
    events = [
        event for process, step in enumerate(judgement.of(Training).steps) for event in trace_events(process, step)
    ]
    if not events:
        message = "the run has no timeline of a training step; record one with busbw run --op train_…"
        raise AnalysisError(message)
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events}) + b"\n"


SLICE: Final = Slice("training", judge_training, _sections, _as_json, {"trace": trace})
