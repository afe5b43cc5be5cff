"""``busbw training plan``: the layouts of a model on a network, ordered by the time of a step."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from busbw.errors import UsageError
from busbw.escape import echo
from busbw.ops.base import Context, Schedule
from busbw.runs.records import DTYPE_BYTES, JSON
from busbw.system.catalog import Gpu, catalogue
from busbw.system.named import card_named, gpu_named, links_named
from busbw.units import format_flop, format_rate, parse_size
from busbw.workloads import model_rows
from busbw_analysis.cli import options
from busbw_analysis.cli.training_models import model_options, named_one
from busbw_analysis.data.as_json import values_of, with_values
from busbw_analysis.data.sources import find
from busbw_analysis.predict import Questions, read_results
from busbw_analysis.report.document import Block, Paragraph
from busbw_analysis.report.to_terminal import render
from busbw_analysis.training import plan as plans
from busbw_analysis.training.gpus import gpu_of_runs, memory_of_gpu
from busbw_analysis.training.layout import (
    AS_FRAMEWORKS,
    MOST_GPUS,
    Layout,
    Recompute,
    default_gradients,
)
from busbw_analysis.training.memory import Kernels
from busbw_analysis.training.plan import Order, Planned, Scaled, Wanted
from busbw_analysis.training.prices import Described, Measured, Prices, slowdown_of
from busbw_analysis.training.rates import Rates, rates_of
from busbw_analysis.training.step_time import Machine
from busbw_analysis.training.tables import plan as tables

_FIXED: Final = ("dp", "tp", "pp", "cp", "ep", "zero", "interleave", "micro_batch")
DELAYS: Final = 2e-6, 5e-6
"""Assumed latency in seconds inside a host and between hosts, for catalogue rows that have only a rate."""
OF_DATASHEET, _OVERLAP = 0.6, 0.8
"""Assumed if not measured: the fraction of the datasheet's FLOP/s that matrix products reach, and the fraction of a
call that concurrent computation hides."""
_PER_HOST: Final = 8


def _degree_options(command: options.Command) -> options.Command:
    made = []
    for name in _FIXED:
        words = "Sequences per micro-batch." if name == "micro_batch" else f"Only layouts with this {name}."
        least = click.IntRange(0 if name == "zero" else 1)
        made.append(click.option(f"--{name.replace('_', '-')}", type=least, help=words))
    return options.with_options(command, made)


many = click.IntRange(1, MOST_GPUS)
batch_option = click.option("--batch", type=many, help="Sequences per step.  [default: the model's]")
sequence_option = click.option("--seq", type=many, help="Tokens per sequence.  [default: the model's]")
gradients_option = click.option(
    "--gradients",
    type=click.Choice(list(DTYPE_BYTES)),
    help="Type in which gradients are kept and sent.  [default: float32, or as wider weights]",
)
kernels_option = options.choice_option(
    "--kernels", Kernels, None, "Attention that stores its scores, or not (flash); eager: unfused operations."
)
causal_option = click.option(
    "--causal/--full", default=True, show_default=True, help="Attention to earlier tokens only, or to all."
)
plot_option = click.option("--plot", type=options.FILE, help="Plot to this file (.svg, .png or .pdf).")


@click.command("plan")
@model_options
@click.option("--gpus", type=many, required=True, help="Number of GPUs.")
@options.run_option("--from", "Measured run; repeat with runs on other numbers of ranks.", "runs", multiple=True)
@click.option("--network", metavar="KIND:KEY=VALUE,…", help="As in busbw simulate; with --from, if the run lacks it.")
@click.option("--nic", help="Instead of --network: card of each GPU (busbw peaks), such as '4X NDR', or its rate.")
@click.option("--gpu", help="GPU (busbw peaks lists them).  [default: the run's; without --from, H100 SXM5]")
@click.option("--gpu-memory", help="GPU memory, such as 80GiB.  [default: that of the GPU]")
@click.option("--achieved", type=float, help="Achieved FLOP/s of a GPU in matrix products, such as 600e12.")
@click.option("--efficiency", type=float, help="Fraction of measured or of datasheet FLOP/s.  [default: 1 or 0.6]")
@click.option("--overlap", type=float, help="Fraction of a call that is hidden.  [default: as measured, else 0.8]")
@click.option(
    "--cards", type=click.Choice(["shared", "own"]), help="Network cards on a host.  [default: shared on CPUs]"
)
@click.option("--ranks-per-host", type=many, help="GPUs per node.  [default: the run's, else 8]")
@batch_option
@sequence_option
@_degree_options
@options.choice_option("--recompute", Recompute, "none", "Activation recomputation; none means full where required.")
@options.choice_option("--schedule", Schedule, "1f1b", "Pipeline schedule.")
@options.choice_option("--context", Context, "ring", "Attention algorithm across cp.")
@click.option("--sequence-parallel/--no-sequence-parallel", default=True, help="Split norms over tp.  [default: yes]")
@kernels_option
@gradients_option
@causal_option
@click.option("--top", type=many, default=10, show_default=True, help="Number of layouts to show.")
@click.option("--compare-rules", "rules", is_flag=True, help="Check whether the order TP > CP > PP > DP holds here.")
@plot_option
@options.results_dir_option
@click.option("--force", is_flag=True, help="Combine runs even if their machines or settings differ.")
@options.as_json_option
def plan_(  # noqa: PLR0913 - click hands every option over by name
    *,
    model: model_rows.Model | None,
    gpus: int,
    runs: tuple[str, ...],
    rules: bool,
    top: int,
    plot: Path | None,
    results_dir: Path,
    force: bool,
    as_json: bool,
    **given: Any,  # noqa: ANN401 - click hands every option over by name
) -> None:
    """Find the fastest layouts of a model on a network, what limits each, and what would change that."""
    row = named_one(model)
    measured = Questions(read_results([find(results_dir, run).read() for run in runs], force=force)) if runs else None
    machine, room, peak, assumed = _machine(row, gpus, measured, given)
    wanted = Wanted(
        model=row,
        gpus=gpus,
        batch=given["batch"] or row.batch,
        sequence=given["seq"] or row.sequence,
        like=Layout(recompute=given["recompute"], schedule=given["schedule"], context=given["context"]),
        fixed={name: given[name] for name in _FIXED if given[name] is not None},
        sequence_parallel=given["sequence_parallel"],
        room=room,
        kernels=given["kernels"],
        gradients=given["gradients"] or default_gradients(row),
    )
    if given["gradients"] is None:
        assumed["gradients"] = f"{wanted.gradients}, {AS_FRAMEWORKS}"
    found = plans.plan(wanted, machine)
    best, kept = found.layouts[0], found.layouts[:top]
    grown = plans.scaling(best, machine, room, given["kernels"])
    orders = plans.compare_rules(compared := plans.with_most_dimensions(found), machine) if rules else ()
    changes = plans.sensitivity(best, machine)
    if plot is not None:
        from busbw_analysis.training.plots.plan import save_plan  # noqa: PLC0415 - matplotlib, for --plot alone

        save_plan(plot, kept, grown)
        echo(f"plot: {plot}", err=True)
    peaks = peak or machine.flop_per_second
    document: dict[str, JSON] = {
        "model": row.name,
        **values_of(wanted, "gpus", "batch", "sequence"),
        "assumed": assumed,
        "flop_per_second": machine.flop_per_second,
        "peak_flop_per_second": peak,
        **values_of(machine, "overlap", "slowdown"),
        "gpu_memory_bytes": room,
        **values_of(found, "tried", "too_large", "refused"),
        "layouts": [_document(one, machine, peak) for one in kept],
        "sensitivity": changes,
        "rules": {"layout": compared.step.layout, "orders": [_order(one) for one in orders]} if rules else None,
        "scaling": {one.kind: _scaled(one) for one in grown},
    }
    shown = [
        *tables.plan_tables(wanted, found, kept, machine, peaks, assumed),
        *tables.change_tables(changes, grown, best),
    ]
    shown += tables.rules_tables(compared, orders) if rules else []
    print_answer(tables.plan_headline(found, machine, peaks), document, shown, as_json=as_json)


def print_answer(headline: str, document: dict[str, JSON], shown: Iterable[Block], *, as_json: bool) -> None:
    """Print the headline and then the data, as JSON or as tables."""
    if as_json:
        options.print_json({"headline": headline, **document})
    else:
        echo(render([Paragraph(headline), *shown]))


def _document(one: Planned, machine: Machine, peak: float | None) -> dict[str, JSON]:
    ends = one.ends(machine)
    return {
        "layout": with_values(one.step.layout, "gpus"),
        "micro_batch": one.step.micro_batch,
        "seconds": one.time.total,
        "low_seconds": ends and ends[0],
        "high_seconds": ends and ends[1],
        **values_of(one.time, "parts", "hidden", "binds"),
        "tokens_per_second": one.step.batch * one.step.sequence / one.time.total,
        "share_of_peak": None if peak is None else one.share_of_peak(peak, causal=machine.causal),
        "memory_bytes": one.memory.total,
        "calls": len(one.time.prices),
        **values_of(one, "not_validated", "extrapolated"),
        "origins": sorted({price.origin for price in one.time.prices}),
    }


def _order(one: Order) -> dict[str, JSON]:
    return {"by": one.by, "order": one.dimensions, "values": one.values, "holds": one.holds}


def _scaled(one: Scaled) -> dict[str, JSON]:
    points = [{"gpus": gpus, "seconds": time.total, "parts": time.parts} for gpus, time in one.points]
    return {"points": points, "takes_over": one.takes_over}


def _machine(
    model: model_rows.Model, gpus: int, measured: Questions | None, given: Mapping[str, Any]
) -> tuple[Machine, float | None, float | None, dict[str, str]]:
    """The machine from the options, the memory of a GPU (bytes), its datasheet FLOP/s, and what was assumed."""
    assumed: dict[str, str] = {}
    if given["network"] is not None and given["nic"] is not None:
        raise UsageError("--network and --nic both describe the network; give only one of them", code="network")
    if given["gpu"] is None and measured is not None:
        gpu = gpu_of_runs(measured.results)
    else:
        gpu = gpu_named(catalogue(), given["gpu"] or "H100 SXM5")
    run, per_host = None, given["ranks_per_host"] or _PER_HOST
    if measured is not None:
        run = Measured(measured, shared=None if given["cards"] is None else given["cards"] == "shared")
        per_host = given["ranks_per_host"] or run.per_host
        share = "concurrent groups share a host's card and memory" if run.shared else "each rank has its own card"
        assumed["cards"] = share
    per_host = min(per_host, gpus)
    if (described := _described(given, gpu, gpus, per_host)) is not None:
        assumed["network"] = described.origin
    if run is not None:
        run.otherwise = described
    prices: Prices | None = run or described
    if prices is None:
        raise UsageError("give --from RUN, --network (rail:nic=50GB/s,inner=450GB/s) or --nic '4X NDR'", code="network")
    rate, peak, assumed["compute"] = _rate(model, gpu, run, given)
    overlap, assumed["overlap"] = _overlap(run, given["overlap"])
    slowdown, assumed["slowdown"] = slowdown_of(run)
    room, assumed["memory"] = None, "not checked: give --gpu or --gpu-memory"
    if given["gpu_memory"]:
        room = float(parse_size(given["gpu_memory"]))
        assumed["memory"] = f"{room / 1e9:.4g} GB, as given"
    elif gpu is not None:
        of_gpu = memory_of_gpu(gpu)
        room, assumed["memory"] = of_gpu.bytes, f"{of_gpu.bytes / 1e9:.4g} GB of {of_gpu.in_words}"
    memory_rate = None if gpu is None else gpu.practical_memory_bytes_per_second or gpu.memory_bytes_per_second
    machine = Machine(rate, per_host, prices, overlap, memory_rate, given["causal"], slowdown)
    return machine, room, peak, assumed


def _described(given: Mapping[str, Any], gpu: Gpu | None, gpus: int, per_host: int) -> Described | None:
    if given["network"] is not None:
        nodes = max(2, -(-gpus // per_host))
        return Described(rates_of(given["network"], nodes * per_host, per_host), given["network"])
    if given["nic"] is None:
        return None
    rows = catalogue()
    card = card_named(rows, given["nic"])
    if gpu is None:
        raise UsageError("--nic needs a --gpu with links to other GPUs in busbw peaks", code="gpu")
    links = links_named(rows, gpu.name, "--gpu")
    outer, inner = (peak.practical or peak.nominal for peak in (card, links))
    words = (
        f"{card.what}, {format_rate(outer)} per GPU; {links.what}, {format_rate(inner)}; assumed delays: "
        f"{DELAYS[0] * 1e6:g} and {DELAYS[1] * 1e6:g} µs"
    )
    return Described(Rates(inner, outer, *DELAYS, per_host), words)


def _rate(
    model: model_rows.Model, gpu: Gpu | None, run: Measured | None, given: Mapping[str, Any]
) -> tuple[float, float | None, str]:
    """FLOP/s of a rank, FLOP/s of the datasheet (None if unknown), and a description of the first."""
    peak = None if gpu is None else gpu.flops.get(model.dtype)
    if given["achieved"] is not None:
        _positive("--achieved", given["achieved"], 1e30)
        return given["achieved"], peak, f"{format_flop(given['achieved'])} per rank, as given"
    if given["efficiency"] is not None:
        _positive("--efficiency", given["efficiency"], 1.0)
    found = None if run is None else run.flop_per_second(model.dtype)
    if found is not None:
        share = given["efficiency"] or 1.0
        return share * found[0], peak, f"{share:.0%} of {found[1]}"
    if gpu is None:
        how = f"measure one and add it with another --from (busbw {' '.join(matmul_command(run, model.dtype))})"
        raise UsageError(
            f"the run has no {model.dtype} matmul, whose rate is that of a layer: {how}; or give --achieved, or --gpu "
            "and --efficiency",
            code="compute",
        )
    if peak is None:
        raise UsageError(f"{gpu.name} has no rate for {model.dtype}; it has {', '.join(gpu.flops)}", code="gpu")
    share = given["efficiency"] or OF_DATASHEET
    how = "given" if given["efficiency"] else "assumed"
    return share * peak, peak, f"{share:.0%} ({how}) of {format_flop(peak)} of {gpu.name} ({model.dtype})"


def matmul_command(run: Measured | None, dtype: str) -> list[str]:
    """The arguments of busbw that measure the matmul that ``run`` lacks, on the same ranks."""
    measured = ["run", "--op", "matmul", "--dtype", dtype]
    if run is None:
        return measured
    case = run.questions.results[0].cases[0].case
    return [*measured, "--backend", case.backend, "--ranks", str(len(run.questions.results[0].facts.hosts))]


def _overlap(run: Measured | None, given: float | None) -> tuple[float, str]:
    if given is not None and not 0 <= given <= 1:
        raise UsageError(f"--overlap {given:g}: must be between 0 and 1", code="overlap")
    share, words = (given, "as given") if given is not None else (run and run.overlap()) or (_OVERLAP, "assumed")
    return share, f"{share:.0%} of a call, {words}"


def _positive(name: str, value: float, most: float) -> None:
    if not 0 < value <= most:
        raise UsageError(f"{name} {value:g}: must be above 0 and at most {most:g}", code="compute")
