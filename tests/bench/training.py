"""How far predicted training steps are from measured ones: ``make bench-training``.

Without arguments, those that others have measured, beside other simulators. With ``--own RUN``, those of a run of the
suite ``training``, by the rates of its matmul, triad and calls.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from training_truth import ANCHORS, FITTED, by_layer, places, scores

from busbw_analysis.data.sources import find
from busbw_analysis.predict import Questions, read_results
from busbw_analysis.training.calibration import slower
from busbw_analysis.training.machine import machine_of
from busbw_analysis.training.prices import Measured
from busbw_analysis.training.step_time import step_time
from busbw_analysis.training.step_verdicts import StepVerdict, overlap_on_cpus, step_verdicts
from busbw_analysis.training.steps import step_of, steps_of


def _number(value: float | None, form: str = "6.1f") -> str:
    return "     –" if value is None else format(value, form)


def main() -> None:
    """Print a line for each set and part, in percent but for τ."""
    print(f"{len(FITTED)} free parameters, fitted to the part 'fit' of vTrain's rows: {FITTED}")
    print("set            part   rows   mean median   bias before  after      τ  apart regret within memory  anchor")
    for row in scores():
        anchor, tau = ANCHORS[row.of], " ".join(_number(order, "6.2f") for order in (row.order, row.order_apart))
        errors = " ".join(map(_number, (row.mean, row.median, row.bias, row.before, row.after)))
        rest = " ".join(map(_number, (row.regret, row.covered, row.memory)))
        print(f"{row.of:14} {row.part:6} {row.count:4} {errors} {tau} {rest}  {anchor.name} {anchor.seconds}")
    published = list(places())
    gains = [place.gain for place in published if place.gain is not None]
    first = f"{sum(place.in_first_tenth for place in published)} of {len(published)} published layouts"
    saves = f"{100 * median(gains):.1f} % less time (median; most {100 * max(gains):.0f} %)"
    print(f"{first} are among the first tenth of a plan, whose fastest takes {saves}")
    count, error, order, spread = by_layer()
    print(
        f"vtrain-single, check, {count} layer times fitted: mean {error:.2f} τ {order:.2f}; their scatter {spread:.3f}"
    )


def own(run: Path) -> None:
    """Print a line for each step of a run that its calls predict, in percent: half of the range of its tries, and
    errors with the computation that the step has alone, with that of the run's matmul and triad, and with that as often
    as in the model's first step.
    """
    questions = Questions(read_results([find(run.parent, str(run)).read()]))
    prices = Measured(questions)
    measured = [step for results in questions.results for step in steps_of(results)]
    verdicts = [verdict for verdict in step_verdicts(measured, prices) if verdict.predicted is not None]
    print("step                                                                  ms  tries  calls    all  after")
    errors = [_errors(verdict, verdicts, questions) for verdict in verdicts]
    print(
        f"{f'median of {len(verdicts)} steps':73} "
        + " ".join(_number(_middle(column)) for column in zip(*errors, strict=True))
    )


def _middle(errors: Sequence[float | None]) -> float | None:
    known = [abs(error) for error in errors if error is not None]
    return median(known) if known else None


def _errors(verdict: StepVerdict, verdicts: Sequence[StepVerdict], questions: Questions) -> tuple[float | None, ...]:
    """Errors of one step, printed. Steps that wait instead of computing have only the first one."""
    all_, after, step = None, None, verdict.step
    calls = None if verdict.error is None else 100 * verdict.error
    if step.workload.wait_ns is None:
        like = (row.step for row in verdicts if row.step.workload.wait_ns is None)
        first = next(row for row in like if row.workload.model == step.workload.model)
        planned, seconds = step_of(step.op, step.workload), step.step_ns / 1e9
        on = machine_of("float32", step.ranks, questions, causal=False).machine
        on = replace(on, overlap=overlap_on_cpus(step.op, planned, Measured(questions)))
        all_ = 100 * (step_time(planned, on).total / seconds - 1)
        if first is not step:
            alone = step_time(step_of(first.op, first.workload), on)
            longer = first.compute_ns / 1e9 / (alone.compute + alone.optimizer)
            after = 100 * (step_time(planned, slower(on, longer, 1.0)).total / seconds - 1)
    tries = 50 * (max(step.tries_ns) - min(step.tries_ns)) / step.step_ns
    row = " ".join(map(_number, (tries, calls, all_, after)))
    print(f"{verdict.name[:66]:66} {step.step_ns / 1e6:6.0f} {row}")
    return tries, calls, all_, after


if __name__ == "__main__":
    if sys.argv[1:2] == ["--own"]:
        own(Path(sys.argv[2]))
    else:
        main()
