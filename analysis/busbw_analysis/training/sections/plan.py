"""The report section on training: measured steps compared with predictions, and plans for models."""

from collections.abc import Iterator, Sequence
from typing import Final

from busbw.errors import AnalysisError, UsageError
from busbw.units import format_seconds
from busbw.workloads.model_rows import Model
from busbw_analysis.models.results import Results
from busbw_analysis.predict import Questions
from busbw_analysis.report.document import Block, Column, Paragraph, Section, table
from busbw_analysis.training.gpus import gpu_of_runs, memory_of_gpu
from busbw_analysis.training.held import Held, order_kept
from busbw_analysis.training.layout import AS_FRAMEWORKS, Layout, default_gradients
from busbw_analysis.training.plan import Wanted, assumed_settings, plan, scaling, sensitivity
from busbw_analysis.training.prices import OVERLAP, Measured, slowdown_of
from busbw_analysis.training.step_time import Machine
from busbw_analysis.training.tables.plan import change_tables, plan_headline, plan_tables

_TOP: Final = 5


def training(results: Results, held: Sequence[Held], models: Sequence[Model]) -> Section:
    """Plans for the requested ``models``, and measured steps; folded if no model was requested."""
    questions = Questions([results])
    blocks = [*_measured(held), *(block for model in models for block in _planned(questions, model))]
    gist = "The time of a training step from this run's measurements, its parts, and its sensitivity."
    if not blocks:
        gist = "Training plans for models on these ranks (needs --model)."
    if not models:
        blocks.append(Paragraph("To plan a model on these ranks: busbw report RUN --model 'Llama 3 8B'."))
    return Section("training", "What this means for training", tuple(blocks), folded=not models, gist=gist)


def _measured(steps: Sequence[Held]) -> Iterator[Block]:
    """Measured steps, with the prediction's error by part."""
    predicted = [step for step in steps if step.predicted is not None]
    columns: tuple[Column[Held], ...] = (
        Column("Step", lambda row: row.what),
        Column("Measured", lambda row: row.seconds, format_seconds),
        Column("Predicted", lambda row: None if row.predicted is None else row.predicted.total, format_seconds),
        Column("Error", lambda row: row.error, "{:+.1%}".format),
        Column("of compute", lambda row: row.compute_error, "{:+.1%}".format),
        Column("of the bubble", lambda row: row.bubble_error, "{:+.1%}".format),
        Column("of exposed communication", lambda row: row.exposed_error, "{:+.1%}".format),
    )
    order = f"Kendall's τ of both orders: {order_kept(predicted):.2f}." if len(predicted) > 2 else ""
    note = (
        "Predicted from this run's curves of single calls. Errors are shares of the measured step. Its bubble is "
        "(p−1)/(m v) of its computation; the rest is exposed communication."
    )
    reasons = dict.fromkeys(step.refused for step in steps if step.refused)
    if steps:
        fastest_first = sorted(steps, key=lambda step: step.seconds)
        yield table(
            "Steps of training, measured and predicted", columns, fastest_first, note, order, *reasons, row_headers=1
        )


def _planned(questions: Questions, model: Model) -> Iterator[Block]:
    """The fastest layouts of a model on the run's number of ranks."""
    prices = Measured(questions)
    ranks = max(len(results.facts.hosts) for results in questions.results)
    rate = prices.flop_per_second(model.dtype) or prices.flop_per_second("float32")
    if rate is None:
        yield Paragraph(
            f"{model.name}: the run measured no matmul, so the time of computation is unknown. Add matmul to the run, "
            "or give a rate with busbw training plan --achieved."
        )
        return
    overlap, how = prices.overlap() or (OVERLAP, "assumed")
    slowdown, slower = slowdown_of(prices)
    gpu = gpu_of_runs(questions.results)
    of_gpu = None if gpu is None or gpu.memory_bytes is None else memory_of_gpu(gpu)
    room = None if of_gpu is None else of_gpu.bytes
    memory_rate = None if gpu is None else gpu.practical_memory_bytes_per_second or gpu.memory_bytes_per_second
    machine = Machine(rate[0], prices.per_host, prices, overlap, memory_rate, slowdown=slowdown)
    gradients = default_gradients(model)
    request = Wanted(model, ranks, model.batch, model.sequence, Layout(), {}, room=room, gradients=gradients)
    try:
        planned = plan(request, machine)
    except (AnalysisError, UsageError) as error:
        yield Paragraph(f"{model.name}: {error}.")
        return
    kept, best = planned.layouts[:_TOP], planned.layouts[0]
    hidden = f"{overlap:.0%} of a call, {how}"
    capacity = "not checked" if of_gpu is None else f"{of_gpu.bytes / 1e9:.4g} GB of the run's {of_gpu.in_words}"
    assumed = {"compute": rate[1], "overlap": hidden, "slowdown": slower, "memory": capacity}
    assumed |= {"gradients": f"{gradients}, {AS_FRAMEWORKS}", **assumed_settings(request)}
    yield Paragraph(plan_headline(planned, machine, rate[0]))
    yield from plan_tables(request, planned, kept, machine, rate[0], assumed)
    yield from change_tables(sensitivity(best, machine), scaling(best, machine, room), best)
