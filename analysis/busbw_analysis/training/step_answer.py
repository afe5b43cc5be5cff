"""What the answer to a run says about its training steps: their parts, whether they are as predicted, what to do."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from busbw.ops import OPS
from busbw.ops.training import MODEL, OTHER_MODELS, SCALE, SCALES
from busbw.units import counted, format_size, format_time
from busbw.workloads.shapes import StepShape
from busbw_analysis.data.grouped import grouped
from busbw_analysis.diagnosis.causes import cause_named
from busbw_analysis.diagnosis.contributions import AnswerPart, Cause
from busbw_analysis.diagnosis.contributions import Status as RunStatus
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.diagnosis.verdicts import Status, times
from busbw_analysis.training.step_verdicts import MATMUL, StepVerdict

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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAnswer(AnswerPart):
    """The part of the answer on training steps. ``verdicts``: on all steps, with the cause that explains each."""

    verdicts: tuple[StepVerdict, ...]


def answer_steps(verdicts: Sequence[StepVerdict], judgement: Judgement, causes: Sequence[Cause]) -> StepAnswer:
    """The part of the answer on the steps with these ``verdicts``; ``causes`` are those that the core names."""
    codes = {cause.code for cause in causes}
    explained = tuple(replace(step, explained_by=_cause_of(step, judgement, codes)) for step in verdicts)
    disturbed = any(step.explained_by == _DISTURBED for step in explained) and _DISTURBED not in codes
    cause = cause_named(judgement, _DISTURBED) if disturbed else None
    return StepAnswer(
        label="Steps",
        text=_steps_in_words(explained),
        statuses=frozenset(_statuses(explained)),
        causes=() if cause is None else (cause,),
        action=_action(judgement, explained),
        unjudged=_why_unjudged(explained),
        verdicts=explained,
    )


def _cause_of(step: StepVerdict, judgement: Judgement, codes: Collection[str]) -> str | None:
    """The code of the cause of a slower step: shared cores, or other load while the step was measured."""
    if step.status not in {"slower", "undecided"} or step.predicted_ns is None:
        return None
    if _OVERSUBSCRIBED in codes:
        return _OVERSUBSCRIBED
    return _DISTURBED if judgement.cases[step.case].disturbance.high else None


def _statuses(steps: Sequence[StepVerdict]) -> Iterator[RunStatus]:
    """What the verdicts mean for the whole run."""
    for step in steps:
        if step.status == "slower":
            yield "explained" if step.explained_by else "slower"
        elif step.status == "undecided":
            yield "undecided"
        elif step.status != "not judged":
            yield "as expected"


def _steps_in_words(steps: Sequence[StepVerdict]) -> str:
    """The parts of all steps, and how they compare with their predictions; "" without steps."""
    if not steps:
        return ""
    if len(steps) == 1:
        (step,) = steps
        rate = "" if step.of_matmul is None else f" at {_percent(step.of_matmul)} of the matmul rate"
        parts = ", ".join(
            f"{_percent(share)} {part}{rate if part == 'computation' else ''}" for part, share in step.parts.items()
        )
        return f"a step of {step.name} takes {format_time(step.time_ns)}: {parts}; {_compared(step)}"
    ranges: dict[str, list[float]] = {}
    for step in steps:
        for part, share in step.parts.items():
            ranges.setdefault(part, []).append(share)
    parts = ", ".join(f"{_range([f'{100 * end:.0f}' for end in _ends(of)])} % {part}" for part, of in ranges.items())
    return f"{counted(len(steps), 'step')}: {parts}; {', '.join(_counts(steps))}"


def _compared(step: StepVerdict) -> str:
    """The verdict on a single step."""
    if step.ratio is None or step.low is None or step.high is None:
        return "not predicted"
    ends = (step.low, step.high) if step.status == "undecided" else (step.ratio,)
    doubt = ", which is an extrapolation" if step.extrapolated else ""
    more = f", most of it in {step.longest}" if step.status == "slower" and step.longest else ""
    unlike = abs(step.apart_ns / step.time_ns - 1) > _UNLIKE
    apart = f"; steps beside which the parts were measured took {format_time(step.apart_ns)}" if unlike else ""
    return f"{step.status}: {_range([times(end) for end in ends])} the predicted time{doubt}{more}{apart}"


def _counts(steps: Sequence[StepVerdict]) -> Iterator[str]:
    by_status = grouped(steps, lambda step: step.status)
    if slower := by_status.get("slower"):
        worst = max(slower, key=lambda step: step.ratio or 0.0)
        of = f", most of it in {worst.longest}" if worst.longest else ""
        yield f"{len(slower)} slower than predicted, worst {worst.name} ({times(worst.ratio or 0.0)}{of})"
    for status, words in _STATUSES.items():
        if members := by_status.get(status):
            ends = _ends([step.ratio for step in members if step.ratio is not None])
            yield f"{len(members)} {words} ({_range([times(end) for end in ends])} the predicted time)"
    if missing := by_status.get("not judged"):
        yield f"{len(missing)} not predicted"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _ends(numbers: Sequence[float]) -> tuple[float, float]:
    return min(numbers), max(numbers)


def _range(ends: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys(ends))


def _why_unjudged(steps: Sequence[StepVerdict]) -> str:
    """Why none of ``steps`` was predicted, as a headline without a full stop; "" without steps."""
    if not steps:
        return ""
    calls = _calls(steps)
    if calls:
        return f"not judged: a step is predicted from {_listed(calls)} at several sizes, which this run did not measure"
    return f"not judged: {next((step.refused for step in steps if step.refused), 'no step was predicted')}"


def _action(judgement: Judgement, steps: Sequence[StepVerdict]) -> str:
    """What to measure so that steps can be predicted, or what would shorten the only one, or the worst slower one."""
    slower = [step for step in steps if step.status == "slower"]
    worst = max(slower or steps[:1], key=lambda step: step.ratio or 0.0, default=None)
    return _measure(judgement, steps) or (_shorten(worst) if worst and (slower or len(steps) == 1) else "")


def _calls(steps: Sequence[StepVerdict]) -> list[str]:
    """The calls that the steps lack, as operations to measure."""
    return list(dict.fromkeys(_MESSAGES.get(op, op) for step in steps for op in step.lacks if op != MATMUL))


def _measure(judgement: Judgement, steps: Sequence[StepVerdict]) -> str:
    """The command that measures what the steps lack."""
    calls = _calls(steps)
    if not calls:
        lacks_matmul = any(MATMUL in step.lacks for step in steps)
        return "measure matmul in the same run, without --no-baseline" if lacks_matmul else ""
    without = [step for step in steps if any(op != MATMUL for op in step.lacks)]
    largest = max(_LEAST_LARGEST, *(step.largest_bytes for step in without))
    top = format_size(1 << (largest - 1).bit_length()).replace(" ", "")
    first = without[0]
    started_here = judgement.runs[0].run.launcher == "local"
    ops = ",".join([*dict.fromkeys(step.op for step in without), *calls])
    parts = [
        f"busbw run --op {ops} --sizes '1KiB..{top}*8,{top}'",
        *([f"--ranks {first.ranks}"] if started_here else []),
        *_options(first),
    ]
    backend = judgement.cases[first.case].case.backend
    parts += [] if backend == "gloo" else [f"--backend {backend}"]
    return f"measure {_listed(calls)} in the same run: {' '.join(parts)}"


def _options(step: StepVerdict) -> Iterator[str]:
    """Options of a step that differ from the defaults and change the sizes of its calls."""
    workload = step.workload
    if workload.model != OTHER_MODELS.get(step.op, MODEL):
        yield f"--model '{workload.model}'"
    if workload.scale != SCALES.get(workload.model, SCALE):
        yield f"--scale {workload.scale:g}"
    if workload.wait_ns is not None:
        yield f"--compute wait={workload.wait_ns / 1e6:g}ms"
    if workload.dp > 1 and "dp" not in OPS[step.op].splits:
        yield f"--replicas {workload.dp}"


def _shorten(step: StepVerdict) -> str:
    """What would shorten a step: fewer waits, and the changes of the machine with the largest gains."""
    more = msgspec.structs.replace(step.workload, micro_batches=2 * step.workload.micro_batches)
    waits = (
        step.workload.pp > 1 and step.waiting is not None and step.waiting >= max(step.communicating, _LEAST_WAITING)
    )
    possible = waits and StepShape(more).refuse(step.op) is None
    micro = f"--micro-batches {more.micro_batches} would halve the waiting" if possible else ""
    if step.predicted_ns is None:
        rest = step.communicating
        hidden = (
            f"hiding all exposed communication would shorten the step by at most {_percent(rest)}"
            if rest > 0.01
            else ""
        )
        return "; ".join(filter(None, (micro, hidden)))
    gains = ", with ".join(f"{name} by {_percent(-by)}" for name, by in step.changes[:_MOST_CHANGES])
    shorter = f"the predicted step of {step.name} shortens with {gains}" if gains else ""
    return "; ".join(filter(None, (micro, shorter)))


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
