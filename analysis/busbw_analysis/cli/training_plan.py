"""``busbw training plan``: the layouts of a model on a network, ordered by the time of a step."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from busbw.escape import echo
from busbw.runs.records import JSON
from busbw.shared_options import as_json_option, results_dir_option
from busbw.workloads.model_rows import Model
from busbw_analysis.cli import options
from busbw_analysis.cli.answers import print_answer
from busbw_analysis.cli.training_layout import (
    MANY,
    PLAN_KEYS,
    batch_option,
    gradients_of,
    kernels_option,
    layout_option,
    sequence_option,
)
from busbw_analysis.cli.training_machines import machine_of, machine_options
from busbw_analysis.cli.training_models import given_model, model_option
from busbw_analysis.data.as_json import values_of, with_values
from busbw_analysis.data.sources import find
from busbw_analysis.predict import Questions, read_results
from busbw_analysis.training import plan as plans
from busbw_analysis.training import plan_report as tables
from busbw_analysis.training.layout import Layout
from busbw_analysis.training.memory import Kernels
from busbw_analysis.training.plan import Order, Planned, Scaled, Wanted
from busbw_analysis.training.step_time import Machine


@click.command("plan", cls=options.WithKeys, keys={"--layout": PLAN_KEYS})
@model_option()
@click.option("--gpus", type=MANY, required=True, help="Number of GPUs.")
@layout_option(PLAN_KEYS, "Only layouts with these settings, such as tp=8,zero=1")
@batch_option
@sequence_option
@machine_options
@kernels_option
@click.option("--top", type=MANY, default=10, show_default=True, help="Number of layouts to show.")
@click.option("--compare-rules", "rules", is_flag=True, help="Check whether the order TP > CP > PP > DP holds here.")
@options.plot_option
@results_dir_option
@click.option("--force", is_flag=True, help="Combine runs even if their machines or settings differ.")
@as_json_option
def plan_(  # noqa: PLR0913 - click hands every option over by name
    *,
    model: Model | None,
    gpus: int,
    settings: Mapping[str, Any],
    batch: int | None,
    seq: int | None,
    runs: tuple[str, ...],
    kernels: Kernels | None,
    top: int,
    rules: bool,
    plot: Path | None,
    results_dir: Path,
    force: bool,
    as_json: bool,
    **given: Any,  # noqa: ANN401 - the options of a machine
) -> None:
    """Find the fastest layouts of a model on a network, what limits each, and what would change that."""
    row = given_model(model)
    measured = Questions(read_results([find(results_dir, run).read() for run in runs], force=force)) if runs else None
    on = machine_of(row, gpus, measured, **given)
    gradients, assumed = gradients_of(row, settings)
    request = Wanted(
        model=row,
        gpus=gpus,
        batch=batch or row.batch,
        sequence=seq or row.sequence,
        like=Layout(**{name: settings[name] for name in ("recompute", "schedule", "context") if name in settings}),
        fixed={name: settings[name] for name in plans.FIXED if name in settings},
        sequence_parallel=settings.get("sequence_parallel", True),
        room=on.room,
        kernels=kernels,
        gradients=gradients,
    )
    assumed = {**on.assumed, **assumed, **plans.assumed_settings(request)}
    plan, machine = plans.plan(request, on.machine), on.machine
    best, kept = plan.layouts[0], plan.layouts[:top]
    grown = plans.scaling(best, machine, on.room, kernels)
    orders = plans.compare_rules(compared := plans.with_most_dimensions(plan), machine) if rules else ()
    changes = plans.sensitivity(best, machine)
    if plot is not None:
        tables.save_plan(plot, kept, grown)
        echo(f"plot: {plot}", err=True)
    peak = on.peak or machine.flop_per_second
    document: dict[str, JSON] = {
        "model": row.name,
        **values_of(request, "gpus", "batch", "sequence"),
        "assumed": assumed,
        "flop_per_second": machine.flop_per_second,
        "peak_flop_per_second": on.peak,
        **values_of(machine, "overlap", "slowdown"),
        "gpu_memory_bytes": on.room,
        **values_of(plan, "tried", "too_large", "refused"),
        "layouts": [_document(planned, machine, on.peak) for planned in kept],
        "sensitivity": changes,
        "rules": {"layout": compared.step.layout, "orders": [_order(order) for order in orders]} if rules else None,
        "scaling": {scaled.kind: _scaled(scaled) for scaled in grown},
    }
    shown = [
        *tables.plan_tables(request, plan, kept, machine, peak, assumed),
        *tables.change_tables(changes, grown, best),
    ]
    shown += tables.rules_tables(compared, orders) if rules else []
    print_answer(tables.plan_headline(plan, machine, peak), document, shown, as_json=as_json)


def _document(planned: Planned, machine: Machine, peak: float | None) -> dict[str, JSON]:
    ends, step, time = planned.ends(machine), planned.step, planned.time
    return {
        "layout": with_values(step.layout, "gpus"),
        "micro_batch": step.micro_batch,
        "seconds": time.total,
        "low_seconds": ends and ends[0],
        "high_seconds": ends and ends[1],
        **values_of(time, "parts", "hidden", "binds"),
        "tokens_per_second": step.batch * step.sequence / time.total,
        "share_of_peak": None if peak is None else planned.share_of_peak(peak, causal=machine.causal),
        "memory_bytes": planned.memory.total,
        "calls": len(time.prices),
        **values_of(planned, "not_validated", "extrapolated"),
        "origins": sorted({price.origin for price in time.prices}),
    }


def _order(order: Order) -> dict[str, JSON]:
    return {"by": order.by, "order": order.dimensions, "values": order.values, "holds": order.holds}


def _scaled(scaled: Scaled) -> dict[str, JSON]:
    points = [{"gpus": gpus, "seconds": time.total, "parts": time.parts} for gpus, time in scaled.points]
    return {"points": points, "takes_over": scaled.takes_over}
