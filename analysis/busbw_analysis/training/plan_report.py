"""A plan as its answer, tables and a figure."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from busbw.errors import AnalysisError, UsageError
from busbw.units import counted, format_seconds, format_size
from busbw.workloads.model_rows import Model
from busbw_analysis.predict import Questions
from busbw_analysis.report.document import Block, Column, Paragraph, Table, table
from busbw_analysis.report.plots import save
from busbw_analysis.training.held import MOST_GPUS, MOST_MEMORY
from busbw_analysis.training.layout import AS_FRAMEWORKS, Layout, default_gradients, gigabytes, layout_text, percent_of
from busbw_analysis.training.machine import machine_of
from busbw_analysis.training.plan import (
    MOST_SCALED,
    SAID,
    Closing,
    Order,
    Plan,
    Planned,
    Scaled,
    TimedSteps,
    Wanted,
    assumed_settings,
    closing,
    dimensions_used,
    measured_seconds,
    plan,
    scaling,
    sensitivity,
    with_reserve,
)
from busbw_analysis.training.prices import Measured
from busbw_analysis.training.step_time import Machine, StepTime

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_NOTES: Final = 6
_LARGEST: Final = 1 << 24, 1 << 30
"""Bytes that calls are measured up to: at least, so that rates can be fitted, and at most, beyond which time is linear.
"""
_GAINS: Final = {"network": "network bandwidth at half the latency", "memory": "memory rate", "GPU": "FLOP/s"}
_BY_THE_GPU: Final = 0.25
"""A step of which products and memory take less is bound by how fast the host launches kernels, if by computation."""
_NARROWER: Final = 0.95
"""An interval is narrower if it is at most this share of the other."""
_TOP: Final = 5
"""Layouts of a plan in a report."""


def short_words(layout: Layout, micro_batch: int) -> str:
    """``dp 64, tp 8, pp 4, 2 parts a stage, ZeRO 1; 16 micro-batches of 1 sequence``: degrees above 1, and what a
    replica computes.
    """
    degrees = [f"{name} {value}" for name in ("dp", "tp", "pp", "cp", "ep") if (value := getattr(layout, name)) > 1]
    parts = [f"{layout.vpp} parts a stage"] if layout.vpp > 1 else []
    zero = [f"ZeRO {layout.zero}"] if layout.zero else []
    of_layers = "" if layout.recompute_layers is None else f" of {layout.recompute_layers} layers a stage"
    again = [f"recompute {layout.recompute}{of_layers}"] if layout.recompute != "none" else []
    sequences = counted(micro_batch, "sequence")
    computed = f"{counted(layout.micro_batches, 'micro-batch', 'micro-batches')} of {sequences}"
    return f"{', '.join([*(degrees or ['dp 1']), *parts, *zero, *again])}; {computed}"


def plan_answer(best: Planned, summary: Closing, machine: Machine, peak: float) -> str:
    """The fastest layout, its step time with the interval, its limit, and what would change that."""
    now, low, high = summary.measured_seconds or best.time.total, summary.low_seconds, summary.high_seconds
    within = "" if low is None or high is None else f" ({format_seconds(low)} to {format_seconds(high)}, 95 %)"
    within = within if summary.measured_seconds is None else " (measured)"
    share = best.share_of_peak(peak, causal=machine.causal) * best.time.total
    of_peak = f"MFU {percent_of(share / now)} %"
    if summary.measured_seconds is None and low is not None and high is not None:
        of_peak += f" ({percent_of(share / high)} to {percent_of(share / low)} %)"
    of_peak = f"{of_peak}, " if peak != machine.speed.flop_per_second else ""
    filled = f"; a rank fills {percent_of(summary.memory_share or 0.0)} % of its memory" if summary.tight else ""
    faster = 2 * sum(summary.gains.get(name, 0.0) for name in ("memory", "GPU"))  # -1 if the GPU does all of the step
    mostly = ", mostly launches of kernels" if best.time.binds == "compute" and faster > -_BY_THE_GPU else ""
    known = any(price.latency for price in best.time.prices)
    words = _GAINS if known else {**_GAINS, "network": "network bandwidth"}
    gains = ", ".join(f"twice the {words[name]} {gain(now, change)}" for name, change in summary.gains.items())
    return (
        f"Fastest: {short_words(best.step.layout, best.step.micro_batch)}. A step takes {format_seconds(now)}{within}, "
        f"{of_peak}bound by {best.time.binds}{mostly}{filled}. {gains[0].upper()}{gains[1:]}{_next(best, summary)}"
    )


def gain(now: float, change: float) -> str:
    """What a relative change makes of a time, as far as its digits show it."""
    then, share = format_seconds(now * (1 + change)), f"{100 * change:+.0f} %"
    if round(100 * change) == 0:
        return "changes nothing"
    return f"gives {share}" if then == format_seconds(now) else f"gives {then} ({share})"


def _next(best: Planned, summary: Closing) -> str:
    """What a measured step of this layout would add to what is known; empty if it would add nothing."""
    now, low, high = best.time.total, summary.low_seconds, summary.high_seconds
    if low is None or high is None or summary.measured_seconds is not None:
        return ""
    narrowed = (
        f", and makes the interval of other layouts ± {100 * summary.narrowed_seconds / now:.0f} %, not "
        f"{100 * (low / now - 1):+.0f} to {100 * (high / now - 1):+.0f} %"
        if summary.narrowed_seconds < _NARROWER * (high - low) / 2
        else ""
    )
    option = f"--measured '{layout_text(best.step)}: TIME'"
    return f". Next: run one step and add {option}, which replaces this prediction{narrowed}"


def plan_trust(best: Planned, summary: Closing, machine: Machine, reserved: Planned | None) -> Iterator[Paragraph]:
    """What the answer does not rest on, and the command that would measure it. reserved: with memory to spare."""
    if summary.tight:
        instead = "no layout has that much to spare"
        if reserved is not None:
            more = 100 * (reserved.time.total / best.time.total - 1)
            instead = f"the fastest that has it to spare takes {more:.0f} % longer: {layout_text(reserved.step)}"
        yield Paragraph(
            f"Measured steps needed up to {100 * MOST_MEMORY - 100:.0f} % more memory than computed; {instead}",
            tone="caution",
        )
    if summary.never_held:
        never = " or ".join(summary.never_held)
        yield Paragraph(f"No step {never} was ever held against a measurement.", tone="caution")
    if summary.not_validated:
        largest = min(max(_LARGEST[0], summary.largest_bytes), _LARGEST[1])
        top = format_size(1 << (largest - 1).bit_length()).replace(" ", "")
        backend = "" if machine.gpu is None else " --backend nccl"
        prices = best.time.prices
        doubt = (
            "No time of a call has an interval: they are of the network as given, of datasheets, or of too few launches"
            if all(price.low is None for price in prices)
            else f"{best.not_validated} of {counted(len(prices), 'kind')} of calls are NOT VALIDATED: their times are "
            "assumed or badly fitted"
        )
        where, run = "on two numbers of hosts, such as 2 and 4, and add each run", "srun busbw run"
        if not any(price.far for price in prices):
            where, run = "on one host, and add the run", f"busbw run --ranks {best.step.layout.gpus}"
        yield Paragraph(
            f"{doubt}; measure them {where} by --from: {run}{backend} --op {','.join(summary.not_validated)} --sizes "
            f"'1KiB..{top}*8,{top}'",
            tone="caution",
        )
    if best.extrapolated:
        yield Paragraph(f"EXTRAPOLATED: {best.extrapolated[0]}", tone="caution")


def plan_tables(
    request: Wanted,
    plan: Plan,
    kept: Sequence[Planned],
    machine: Machine,
    peak: float,
    assumed: Mapping[str, str],
    measured: TimedSteps = (),
) -> Iterator[Table]:
    """The fastest layouts with the parts of their steps."""

    def seconds(planned: Planned) -> float:
        return measured_seconds(planned.step, measured) or planned.time.total

    def interval(planned: Planned) -> str | None:
        if measured_seconds(planned.step, measured) is not None:
            return f"measured, {format_seconds(planned.time.total)} predicted"
        ends = planned.ends(machine)
        return None if ends is None else f"{format_seconds(ends[0])} to {format_seconds(ends[1])}"

    def share(planned: Planned, seconds: float) -> float:
        return planned.share_of_peak(peak, causal=machine.causal, seconds=seconds)

    def exposed(name: str) -> Column[Planned]:
        return Column(name, lambda planned: planned.time.parts[name] or None, format_seconds)

    columns: tuple[Column[Planned], ...] = (
        Column("layout", lambda planned: short_words(planned.step.layout, planned.step.micro_batch)),
        Column("step", seconds, format_seconds),
        *([Column("95 %", interval, str)] if any(map(interval, kept)) else []),
        Column("compute", lambda planned: planned.time.compute, format_seconds),
        exposed("bubble"),
        *map(exposed, dimensions_used(kept)),
        Column("bound by", lambda planned: planned.time.binds),
        Column("of peak", lambda planned: share(planned, seconds(planned)), percent_of, "%"),
        Column("memory of a rank", lambda planned: planned.memory.total, gigabytes),
    )
    best = kept[0]
    divided = any(planned.step.layout.zero == 2 for planned in kept)
    origins = ", ".join(sorted({price.origin for price in best.time.prices}))
    extrapolated = best.extrapolated
    by_what = "the datasheet" if peak != machine.speed.flop_per_second else "the rate below"
    notes = [
        f"{counted(plan.tried, 'layout')} predicted, {plan.too_large} too large",
        "rows: the fastest of each choice of dp, tp, pp, cp and ep",
        f"not tried: cp that leaves a rank less than {request.of_sequence} tokens of a sequence; --layout cp=… takes it"
        if plan.short
        else "",
        *(f"left out, {count} times: {why}" for why, count in list(plan.refused.items())[:_MOST_NOTES]),
        f"first layout in other commands: --layout={layout_text(best.step)}",
        "others: layout_option of each in --json" if len(kept) > 1 else "",
        "dp, tp, pp, cp, ep: communication that is not hidden; bound by: what takes half of the step or more",
        f"of peak (MFU): model FLOP over those possible on all GPUs by {by_what}",
        "fp8: products of layers take the rate of float8, which MFU is not of" if best.step.layout.fp8 else "",
        *(f"{name}: {words}" for name, words in assumed.items() if name != "sync" or divided),
        f"calls of the first layout: {origins}" if origins not in {"", assumed.get("network")} else "",
        "" if origins else "the first layout sends nothing",
        *(f"extrapolated: {words}" for words in extrapolated[:_MOST_NOTES]),
        f"extrapolated: and {len(extrapolated) - _MOST_NOTES} more" if len(extrapolated) > _MOST_NOTES else "",
    ]
    title = (
        f"{request.model.name} on {counted(request.gpus, 'GPU')}; batch {request.batch}, sequence {request.sequence}"
    )
    yield table(title, columns, kept, *notes)


def change_tables(changes: Mapping[str, float], grown: Sequence[Scaled], best: Planned) -> Iterator[Table]:
    """The sensitivity of the first layout, and its scaling."""
    columns: tuple[Column[tuple[str, float]], ...] = (
        Column("first layout with", lambda row: row[0]),
        Column("step", lambda row: row[1], "{:+.1%}".format),
    )
    yield table("", columns, list(changes.items()))
    points: tuple[Column[tuple[str, int, StepTime]], ...] = (
        Column("scaling", lambda row: row[0]),
        Column("GPUs", lambda row: row[1], str),
        Column("step", lambda row: row[2].total, format_seconds),
        Column("compute", lambda row: row[2].compute, format_seconds),
        Column("bubble", lambda row: row[2].bubble or None, format_seconds),
        Column("exposed", lambda row: row[2].communication, format_seconds),
    )
    rows = [(scaled.kind, gpus, time) for scaled in grown for gpus, time in scaled.points]
    takes = [
        f"{scaled.kind}: communication takes longer than computation "
        + (f"from {scaled.takes_over} GPUs on" if scaled.takes_over else f"nowhere up to {scaled.points[-1][0]} GPUs")
        for scaled in grown
        if scaled.points
    ]
    words = short_words(best.step.layout, best.step.micro_batch)
    yield table(
        "",
        points,
        rows,
        f"{words}, with other dp, and without parts where pp does not divide the micro-batches; if it fits in memory",
        "weak: the batch grows with the GPUs; strong: it is fixed, and cp grows once every replica has one micro-batch",
        *takes,
        f"no step on more than {MOST_GPUS} GPUs was ever held against a measurement"
        if any(gpus > MOST_GPUS for _, gpus, _ in rows)
        else "",
    )


def rules_tables(compared: Planned, orders: Sequence[Order]) -> Iterator[Table]:
    """For which measures TP > CP > PP > DP holds."""
    columns: tuple[Column[Order], ...] = (
        Column("measure", lambda order: order.by),
        Column("order here", lambda order: " > ".join(name.upper() for name in order.dimensions) or "unknown"),
        Column(SAID, lambda order: {None: "–", True: "holds", False: "no"}[order.holds]),
        Column(
            "values", lambda order: ", ".join(f"{name} {value:.3g}" for name, value in order.values.items()) or None
        ),
    )
    yield table(
        "",
        columns,
        orders,
        f"for {compared.step.layout.gpus} GPUs, {layout_text(compared.step)}: the fastest of the layouts that "
        "use the most of tp, cp, pp and dp",
        "bytes and messages: of a rank in a step; times: exposed seconds, and seconds added by twice the latency",
        ""
        if all(order.values for order in orders)
        else "unknown: the network is described without delay, or without inner_delay",
    )


def save_plan(path: Path, planned: Sequence[Planned], grown: Sequence[Scaled]) -> None:
    """Write the figure in the format given by the suffix. Raises UsageError if it cannot be written."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - heavy

    figure = Figure(figsize=(10, 3 + 0.3 * len(planned) + 3.5), layout="constrained")
    rows = figure.add_gridspec(2, 2, height_ratios=(2 + 0.3 * len(planned), 3.5))
    _layouts(figure.add_subplot(rows[0, :]), planned)
    for place, scaled in enumerate(grown):
        _over_gpus(figure.add_subplot(rows[1, place]), scaled)
    save(figure, path)


def _colours(times: Sequence[StepTime]) -> dict[str, str]:
    """A colour for each part with time, the same in all panels."""
    names = times[0].parts if times else ()
    return {name: f"C{number}" for number, name in enumerate(names) if any(time.parts[name] for time in times)}


def _layouts(axes: "Axes", planned: Sequence[Planned]) -> None:
    """A bar for each layout, the fastest at the top: compute, bubble, and exposed communication by dimension."""
    names = [short_words(entry.step.layout, entry.step.micro_batch) for entry in planned][::-1]
    left = [0.0] * len(planned)
    for name, colour in _colours([entry.time for entry in planned]).items():
        wide = [entry.time.parts[name] for entry in planned][::-1]
        axes.barh(range(len(names)), wide, left=left, label=name, color=colour)
        left = [start + more for start, more in zip(left, wide, strict=True)]
    axes.set_yticks(range(len(names)), names, fontsize="x-small")
    axes.set(xlabel="time of a step (s)")
    axes.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=8, frameon=False)


def _over_gpus(axes: "Axes", scaled: Scaled) -> None:
    """Shares of the step over GPUs, and the number of GPUs from which communication dominates."""
    gpus = [count for count, _ in scaled.points]
    times = [time for _, time in scaled.points]
    colours = _colours(times)
    shares = [[100 * time.parts[name] / time.total for time in times] for name in colours]
    if gpus:
        axes.stackplot(gpus, shares, colors=list(colours.values()))
    if scaled.takes_over is not None:
        axes.axvline(scaled.takes_over, color="white", linewidth=1.0, linestyle=":")
        words = f"{scaled.takes_over:,} GPUs: communication takes over"
        axes.text(scaled.takes_over, 50, words, rotation=90, ha="right", va="center", color="white", fontsize="small")
    axes.set(xscale="log", xlim=(gpus[0] if gpus else 1, MOST_SCALED), ylim=(0, 100))
    axes.set(xlabel=f"GPUs, {scaled.kind} scaling", ylabel="share of a step (%)")


def planned_model(questions: Questions, model: Model) -> Iterator[Block]:
    """The fastest layouts of a model on the run's number of ranks."""
    ranks = max(len(results.facts.hosts) for results in questions.results)
    dtype = next((name for name in (model.dtype, "float32") if Measured(questions).flop_per_second(name)), model.dtype)
    gradients = default_gradients(model)
    try:
        on = machine_of(dtype, ranks, questions)
        request = Wanted(model, ranks, model.batch, model.sequence, {}, room=on.room, gradients=gradients)
        planned = plan(request, on.machine)
    except (AnalysisError, UsageError) as error:
        yield Paragraph(f"{model.name}: {error}. See busbw training plan --from RUN.")
        return
    assumed = {**on.assumed, "gradients": f"{gradients}, {AS_FRAMEWORKS}", **assumed_settings(request)}
    best, peak = planned.layouts[0], on.peak or on.machine.speed.flop_per_second
    summary = closing(best, on.machine, room=on.room)
    yield Paragraph(plan_answer(best, summary, on.machine, peak))
    yield from plan_trust(best, summary, on.machine, with_reserve(request, on.machine) if summary.tight else None)
    yield from plan_tables(request, planned, planned.layouts[:_TOP], on.machine, peak, assumed)
    yield from change_tables(sensitivity(best, on.machine), scaling(best, on.machine, on.room), best)
