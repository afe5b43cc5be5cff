"""Output of ``busbw training plan``: layouts by step time, sensitivity, rules of thumb, and scaling."""

from collections.abc import Iterator, Mapping, Sequence

from busbw.units import format_seconds
from busbw_analysis.report.document import Column, Table, table
from busbw_analysis.training.layout import Layout
from busbw_analysis.training.plan import SAID, Order, Plan, Planned, Scaled, Wanted, dimensions_used
from busbw_analysis.training.step_time import Machine, StepTime
from busbw_analysis.training.tables.formulas import gigabytes, layout_text, percent_of

_MOST_NOTES = 6


def short_words(layout: Layout, micro_batch: int) -> str:
    """``dp 64, tp 8, pp 4, in 2 parts, zero 1; 16 × 1``: degrees above 1, then micro-batches × sequences in each."""
    degrees = [f"{name} {value}" for name in ("dp", "tp", "pp", "cp", "ep") if (value := getattr(layout, name)) > 1]
    parts = [f"in {layout.interleave} parts"] if layout.interleave > 1 else []
    zero = [f"zero {layout.zero}"] if layout.zero else []
    again = [f"recompute {layout.recompute}"] if layout.recompute != "none" else []
    return f"{', '.join([*(degrees or ['dp 1']), *parts, *zero, *again])}; {layout.micro_batches} × {micro_batch}"


def plan_headline(plan: Plan, machine: Machine, peak: float) -> str:
    """The fastest layout, its step time with the interval, its limit, and whether to trust it."""
    best = plan.layouts[0]
    ends, calls = best.ends(machine), len(best.time.prices)
    interval = "no interval" if ends is None else f"{format_seconds(ends[0])} to {format_seconds(ends[1])}, 95 %"
    share = percent_of(best.share_of_peak(peak, causal=machine.causal))
    of_peak = f"{share} % of the peak, " if peak != machine.flop_per_second else ""
    layout = short_words(best.step.layout, best.step.micro_batch)
    trust = []
    if best.not_validated:
        trust.append(f"{best.not_validated} of {calls} kinds of calls NOT VALIDATED")
    if best.extrapolated:
        trust.append("EXTRAPOLATED")
    step = f"{layout}: {format_seconds(best.time.total)} a step ({interval}), {of_peak}bound by {best.time.binds}"
    return f"Fastest: {'; '.join([step, *trust])}"


def plan_tables(
    request: Wanted, plan: Plan, kept: Sequence[Planned], machine: Machine, peak: float, assumed: Mapping[str, str]
) -> Iterator[Table]:
    """The fastest layouts with the parts of their steps."""

    def interval(planned: Planned) -> str | None:
        ends = planned.ends(machine)
        return None if ends is None else f"{format_seconds(ends[0])} to {format_seconds(ends[1])}"

    def exposed(name: str) -> Column[Planned]:
        return Column(name, lambda planned: planned.time.parts[name] or None, format_seconds)

    columns: tuple[Column[Planned], ...] = (
        Column("layout; micro-batches", lambda planned: short_words(planned.step.layout, planned.step.micro_batch)),
        Column("step", lambda planned: planned.time.total, format_seconds),
        *([Column("95 %", interval, str)] if any(map(interval, kept)) else []),
        Column("compute", lambda planned: planned.time.compute, format_seconds),
        exposed("bubble"),
        *map(exposed, dimensions_used(kept)),
        Column("binds", lambda planned: planned.time.binds),
        Column("of peak", lambda planned: planned.share_of_peak(peak, causal=machine.causal), percent_of, "%"),
        Column("a rank", lambda planned: planned.memory.total, gigabytes),
    )
    best = kept[0]
    origins = ", ".join(sorted({price.origin for price in best.time.prices}))
    extrapolated = best.extrapolated
    by_what = "the datasheet" if peak != machine.flop_per_second else "the rate below"
    notes = [
        f"{plan.tried} steps were timed, {plan.too_large} do not fit; one layout is shown per choice of degrees",
        *(f"left out, {count} times: {why}" for why, count in list(plan.refused.items())[:_MOST_NOTES]),
        f"first layout in other commands: --layout {layout_text(best.step)}",
        f"dp to ep: exposed communication; of peak: model FLOP over those possible on all GPUs by {by_what}",
        *(f"{name}: {words}" for name, words in assumed.items()),
        f"first layout: {best.not_validated} of {len(best.time.prices)} kinds of calls not validated; by {origins}"
        if origins
        else "the first layout sends nothing",
        *(f"extrapolated: {words}" for words in extrapolated[:_MOST_NOTES]),
        f"extrapolated: and {len(extrapolated) - _MOST_NOTES} more" if len(extrapolated) > _MOST_NOTES else "",
    ]
    title = f"{request.model.name} on {request.gpus} GPUs; batch {request.batch}, sequence {request.sequence}"
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
        f"{words}, with other dp, if it fits in memory",
        "weak: the batch grows with the GPUs; strong: it is fixed, and cp grows once every replica has one micro-batch",
        *takes,
    )


def rules_tables(compared: Planned, orders: Sequence[Order]) -> Iterator[Table]:
    """For which measures TP > CP > PP > DP holds."""
    columns: tuple[Column[Order], ...] = (
        Column("by", lambda order: order.by),
        Column("order", lambda order: " > ".join(name.upper() for name in order.dimensions) or "unknown"),
        Column(SAID, lambda order: {None: "–", True: "holds", False: "no"}[order.holds]),
        Column(
            "values", lambda order: ", ".join(f"{name} {value:.3g}" for name, value in order.values.items()) or None
        ),
    )
    yield table(
        "",
        columns,
        orders,
        f"for {compared.step.layout.gpus} GPUs, {layout_text(compared.step)}: the fastest layout with most dimensions",
        "bytes and messages: of a rank in a step; times: exposed seconds, and seconds added by twice the latency",
        ""
        if all(order.values for order in orders)
        else "unknown: the network is described without a delay of these calls",
    )
