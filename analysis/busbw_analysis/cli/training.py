"""``busbw training``: traffic, memory and time of a model that is distributed over GPUs, from formulas."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from busbw.errors import UsageError
from busbw.escape import echo
from busbw.key_values import Key, number, read_key_values, whole
from busbw.runs.records import JSON
from busbw.shared_options import as_json_option, results_dir_option
from busbw.system.catalog import DTYPES, Gpu, HardwarePeak, catalogue
from busbw.system.named import gpu_named
from busbw.units import format_rate, parse_rate, parse_seconds
from busbw.workloads import model_rows
from busbw.workloads.model_rows import Model, Sample
from busbw_analysis.assembly.judge import judgement_of
from busbw_analysis.cli import options
from busbw_analysis.cli import training_options as inputs
from busbw_analysis.cli.options import print_answer
from busbw_analysis.cli.steps import print_steps
from busbw_analysis.data.as_json import values_of, with_values
from busbw_analysis.data.readers.logs import read_steps
from busbw_analysis.data.readers.training import PROGRAMS
from busbw_analysis.data.sources import opened_log
from busbw_analysis.node.slice import Node
from busbw_analysis.node.storage import Stored, fastest
from busbw_analysis.predict import Questions, read_results
from busbw_analysis.report.document import Block, Column, Paragraph, Table, table
from busbw_analysis.training import limits as walls
from busbw_analysis.training import plan as plans
from busbw_analysis.training import plan_report as pages
from busbw_analysis.training import storage as disks
from busbw_analysis.training.calibration import calibrate, factors_in_words, steps_in_words
from busbw_analysis.training.layout import Step, layout_text
from busbw_analysis.training.machine import (
    DEFAULT_GPU,
    PER_HOST,
    GivenNetwork,
    machine_of,
    rates_given,
    room_in,
    room_of,
)
from busbw_analysis.training.memory import (
    CHECKPOINT_BYTES,
    Kernels,
    memory_headline,
    memory_table,
    per_parameter,
    what_fits,
)
from busbw_analysis.training.memory import memory as memory_of
from busbw_analysis.training.plan import Order, Planned, Scaled, Wanted
from busbw_analysis.training.roofline import least_tokens, phases, roofline_headline, roofline_table, wires_of_step
from busbw_analysis.training.step_time import Machine
from busbw_analysis.training.steps import steps_like, steps_of
from busbw_analysis.training.traffic import DIMENSIONS, sent, statements, traffic, traffic_headline, traffic_tables


@click.group(context_settings={"help_option_names": ["-h", "--help"]})  # as busbw has it, for calls without it
def training() -> None:
    """Compute traffic, memory, reads and time of training a model in a given layout, from formulas."""


def _with_layout() -> Callable[[options.Command], click.Command]:
    return training.command(cls=options.WithKeys, keys={"--layout": inputs.LAYOUT_KEYS})


_from_run = options.run_option("--from", "Instead of --network: use this run's measured messages.")


def _model_row(model: Model, sequence: int) -> dict[str, JSON]:
    return {
        "model": model.name,
        "source": model.source,
        "sequence": sequence,
        "parameters": model_rows.parameters(model),
        "active_parameters": model_rows.parameters(model, active=True),
        "parameters_in_products": model_rows.products(model),
        "flop_per_token": model_rows.flop_per_token(model, sequence, causal=False),
        "causal_flop_per_token": model_rows.flop_per_token(model, sequence, causal=True),
    }


def _head(step: Step, assumed: Mapping[str, str]) -> dict[str, JSON]:
    return {
        **_model_row(step.model, step.sequence),
        "layout": {**with_values(step.layout, "gpus", "bubble"), "bubble_share": step.bubble_share},
        "batch": step.batch,
        "micro_batch": step.micro_batch,
        "gradients": step.gradients,
        "assumed": dict(assumed),
    }


_MODELS: Final[tuple[Column[dict[str, Any]], ...]] = (
    Column("what", lambda row: row["model"]),
    Column("parameters", lambda row: row["parameters"], "{:.5g}".format),
    Column("active", lambda row: row["active_parameters"], "{:.5g}".format),
    Column("in matmuls", lambda row: row["parameters_in_products"], "{:.5g}".format),
    Column("causal", lambda row: row["causal_flop_per_token"], "{:.5g}".format, "FLOP"),
    Column("full", lambda row: row["flop_per_token"], "{:.5g}".format, "FLOP"),
)


def _models_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The models and numbers derived from them."""
    note = "causal, full: per token, 6 FLOP per parameter in matmuls, and attention in the model's own sequence"
    return table("", _MODELS, rows, note)


@training.command(cls=options.WithKeys, keys={"--model": inputs.MODEL_KEYS})
@inputs.model_option(inputs.models_of)
@as_json_option
def models(*, model: list[Model] | None, as_json: bool) -> None:
    """List the known models, or those of --model, with their parameters and FLOP."""
    listed = model_rows.models().values() if model is None else model
    rows = [_model_row(row, row.sequence) for row in listed]
    headline = f"{len(rows)} models; describe your own, such as --model layers=24,hidden=2048"
    print_answer(headline, {"models": rows}, [_models_table(rows)], as_json=as_json)


@_with_layout()
@inputs.step_option
@inputs.per_host_option(", to divide the traffic of experts by nodes.")
@click.option(
    "--stage",
    type=int,
    help="Pipeline stage.  [default: the first inner one with experts, else 1; with fewer than three, 0]",
)
@click.option("--explain", is_flag=True, help="Also compare common statements with the computed numbers.")
@as_json_option
def volumes(
    *,
    step: Step,
    assumed: Mapping[str, str],
    ranks_per_host: int | None,
    stage: int | None,
    explain: bool,
    as_json: bool,
) -> None:
    """List what each rank sends per step: collective, size, calls, bytes, and whether computation waits for it."""
    step = replace(step, ranks_per_host=ranks_per_host)
    shown = step.middle if stage is None else step.check_stage(stage)
    rows = traffic(step, shown)
    explained = statements(step, rows) if explain else ()
    document = {
        **_head(step, assumed),
        "stage": shown,
        "traffic": [with_values(row, "sent_bytes") for row in rows],
        "sent_bytes": {dimension: sent(rows, dimension) for dimension in DIMENSIONS},
        "waited_bytes": {dimension: sent(rows, dimension, hideable=False) for dimension in DIMENSIONS},
        "statements": explained,
    }
    shown_tables = traffic_tables(step, shown, rows, explained, assumed)
    print_answer(traffic_headline(step, rows), document, shown_tables, as_json=as_json)


@_with_layout()
@inputs.step_option
@inputs.kernels_option
@inputs.gpu_option(None, "  [default: that of --from, else of this machine, if any]")
@inputs.gpu_memory_option
@options.run_option("--from", "Instead of --gpu: use this run's GPU.")
@results_dir_option
@as_json_option
def memory(
    *,
    step: Step,
    assumed: Mapping[str, str],
    kernels: Kernels | None,
    gpu: Gpu | None,
    gpu_memory: int | None,
    run: str | None,
    results_dir: Path,
    as_json: bool,
) -> None:
    """Compute the memory of a rank (weights, gradients, optimizer, activations, buffers), whether it fits, and the
    size of a checkpoint.

    Exit status: 0, or 1 if it does not fit.
    """
    needed = memory_of(step, kernels=kernels)
    room = room_of(gpu, gpu_memory) or room_in(run, results_dir)
    fits = None if room is None else needed.total <= room.usable
    other = None if fits is not False or room is None else what_fits(step, room.usable, kernels)
    group, gradient = step.layout.shard or step.layout.replicas, step.gradient_bytes
    by_zero = [per_parameter(step.model.width_bytes, gradient, "adam", zero, group).total for zero in range(4)]
    saved = {per: per * model_rows.parameters(step.model) for per in CHECKPOINT_BYTES}
    document = {
        **_head(step, assumed),
        "memory": with_values(needed, "total"),
        "bytes_per_parameter": by_zero,
        "gpu_memory": room,
        "fits": fits,
        "would_fit": other and other.layout,
        "checkpoint_bytes": saved,
    }
    headline = memory_headline(step, needed, room, other, kernels)
    print_answer(headline, document, [memory_table(step, needed, by_zero, saved, assumed)], as_json=as_json)
    if fits is False:
        click.get_current_context().exit(1)


@_with_layout()
@inputs.step_option
@inputs.per_host_option(f".  [default: the run's, else {PER_HOST}]")
@inputs.gpu_option("H100 SXM5")
@inputs.network_option()
@_from_run
@inputs.causal_option
@results_dir_option
@as_json_option
def roofline(  # noqa: PLR0913 - click hands every option over by name
    *,
    step: Step,
    assumed: Mapping[str, str],
    ranks_per_host: int | None,
    gpu: Gpu,
    network: GivenNetwork | None,
    run: str | None,
    causal: bool,
    results_dir: Path,
    as_json: bool,
) -> None:
    """Compute the arithmetic intensity of each phase of a step, and what limits its time."""
    dtype = step.model.dtype
    if dtype not in gpu.flops:
        raise UsageError(f"{gpu.name} has no rate for {dtype}; it has {', '.join(gpu.flops)}", code="gpu")
    step = replace(step, ranks_per_host=ranks_per_host)
    rates = rates_given(network, run, results_dir, step.layout.gpus, ranks_per_host or PER_HOST, gpu)
    if rates is not None and ranks_per_host is None:
        with suppress(UsageError):  # a node would have a part of a group of experts: they are not limited to nodes
            step = replace(step, ranks_per_host=rates.per_host)
    peak, memory_rate = gpu.flops[dtype], gpu.memory_bytes_per_second
    wires = {} if rates is None else wires_of_step(step, rates)
    timed = [
        (phase, phase.seconds(peak, memory_rate, wires.get(phase.dimension) if phase.dimension else None))
        for phase in phases(step, causal=causal)
    ]
    notes = [f"per rank and step; machine balance of memory: {peak / memory_rate:.4g} FLOP/B"]
    tokens = None
    if rates is not None:
        each = dict.fromkeys((rates.inner, rates.outer))
        notes += [
            f"machine balance of the network, all bytes over it: {peak / rate:.4g} FLOP/B at {format_rate(rate)}"
            for rate in each
        ]
        if step.layout.replicas > 1:
            tokens = least_tokens(step, peak, rates)
    document = {
        **_head(step, assumed),
        "gpu": gpu.name,
        "flop_per_second": peak,
        "memory_bytes_per_second": memory_rate,
        "rates": rates,
        "least_tokens": tokens,
        "phases": [
            {**with_values(phase, "memory_intensity", "network_intensity"), "seconds": least} for phase, least in timed
        ],
    }
    headline = roofline_headline(timed, tokens, step.tokens)
    print_answer(headline, document, [roofline_table(step, timed, notes, assumed)], as_json=as_json)


CONSTANTS: Final[dict[str, Key]] = {
    name: Key(whole(1) if name == "per_host" else number, words, f"{getattr(walls.Constants(), name):g}")
    for name, words in {
        "flop_per_second": "FLOP/s of one GPU; H100 in 8 bits, rounded as in the paper",
        "memory": "memory bandwidth in B/s; H100",
        "element_bytes": "bytes of a weight and of an activation",
        "inner": "B/s of a GPU within a node, one direction; NVLink 4",
        "outer": "B/s of a GPU between nodes; 400 Gb/s",
        "per_host": "GPUs per node",
        "passes": "times a byte is sent in an all_reduce: 2 with rings, 1 if switches reduce (ml_par_sim)",
        "kernel_seconds": "launch latency of a matrix product; A100 (Sevilla et al. 2024, note 99)",
        "reduce_seconds": "latency of an all_reduce: 6.8 + 2·2·0.6 µs, NCCL (Sevilla et al. 2024, note 97)",
        "hop_seconds": "added latency per doubling of the nodes, both ways; InfiniBand in NCCL: 5e-6",
        "days": "training time in days",
        "batch_tokens": "tokens per step at 1e25 FLOP (ml_par_sim)",
        "batch_power": "exponent of FLOP in the batch size: 1 over the reducible loss (Sevilla et al. 2024, "
        "appendix E)",
        "layers": "layers of a model with one parameter (Sevilla et al. 2024, note 96)",
        "layers_power": "exponent of parameters in the number of layers",
        "tokens": "tokens per parameter (Hoffmann et al. 2022, arXiv:2203.15556)",
        "widening": "ratio of the inner width of a layer to the hidden size",
    }.items()
}


def _constants(text: str) -> dict[str, float]:
    return read_key_values("constants", text, CONSTANTS, code="limits")


@training.command("limits", cls=options.WithKeys, keys={"--constants": CONSTANTS})
@inputs.network_option()
@_from_run
@click.option(
    "--constants",
    "changed",
    metavar="KEY=VALUE,…",
    default="",
    callback=options.parsed(_constants),
    help="Other constants, such as days=365,passes=1 (keys below).",
)
@options.plot_option
@results_dir_option
@as_json_option
def limits_(
    *,
    network: GivenNetwork | None,
    run: str | None,
    changed: dict[str, Any],
    plot: Path | None,
    results_dir: Path,
    as_json: bool,
) -> None:
    """Compute the training size at which data movement lowers utilisation, and at which latency is the limit
    (arXiv:2411.01137).
    """
    constants = walls.Constants()
    per_host = changed.get("per_host", constants.per_host)
    notes: list[str] = []
    gpu = gpu_named(catalogue(), "H100 SXM5")  # that of the constants
    if (rates := rates_given(network, run, results_dir, per_host, per_host, gpu)) is not None:
        if isinstance(network, HardwarePeak):  # it has a rate alone
            rates = replace(rates, inner_delay=0.0, outer_delay=0.0)
        if rates.inner_delay == rates.outer_delay == 0:
            notes = ["latency: of the constants alone, because the network is described without delay"]
        constants = replace(
            constants,
            inner=rates.inner,
            outer=rates.outer,
            per_host=rates.per_host,
            reduce_seconds=constants.reduce_seconds + 2 * rates.inner_delay,
            hop_seconds=rates.outer_delay,
        )
    constants = replace(constants, **changed)
    networks = walls.variants(constants)
    limits = [walls.limits(name, variant) for name, variant in networks.items()]
    if plot is not None:
        walls.save_limits(plot, networks, limits)
        echo(f"plot: {plot}", err=True)
    document = {
        "constants": constants,
        "least_tokens": constants.least_tokens,
        "stated": walls.HEADLINES,
        "limits": limits,
        "utilisation": walls.curve(constants),
    }
    headline = walls.limits_headline(limits, constants.days)
    print_answer(headline, document, [walls.limits_table(limits, notes)], as_json=as_json)


def _rate_option(flag: str, words: str) -> options.Option:
    return click.option(flag, callback=options.parsed(parse_rate), help=words)


@training.command()
@inputs.model_option()
@click.option(
    "--sample",
    metavar="NAME",
    callback=options.parsed(inputs.sample_of),
    help="Samples that are read instead of tokens: a row of busbw/workloads/samples.toml, or FILE.toml:NAME.",
)
@click.option("--gpus", type=inputs.MANY, required=True, help="Number of GPUs that read and save.")
@click.option("--achieved", type=float, required=True, help="Achieved FLOP/s per GPU, such as 400e12.")
@inputs.sequence_option
@options.run_option("--from", "Run with measurements of this storage.")
@_rate_option("--read-rate", "Read rate of the storage, such as 1TB/s.  [default: as measured]")
@_rate_option("--write-rate", "Write rate of the storage, for checkpoints.  [default: as measured]")
@click.option("--mtbf", type=float, help="Hours between failures of the whole job; computes how often to save.")
@click.option(
    "--restart", type=parse_seconds, default="0", metavar="TIME", show_default=True, help="Time to restart: 90, 5min."
)
@results_dir_option
@as_json_option
def storage(  # noqa: PLR0913 - click hands every option over by name
    *,
    model: Model | None,
    sample: Sample | None,
    gpus: int,
    achieved: float,
    seq: int | None,
    run: str | None,
    read_rate: float | None,
    write_rate: float | None,
    mtbf: float | None,
    restart: float,
    results_dir: Path,
    as_json: bool,
) -> None:
    """Compute the read rate of training, the duration of checkpoints, how often to save, and the time lost."""
    if model is None and (sample is None or write_rate is not None):
        raise UsageError("give --model (to read for and to save), or --sample without --write-rate", code="storage")
    if not (0 < achieved < 1e30 and 0 <= restart < 1e30 and (mtbf is None or 1e-3 <= mtbf < 1e30)):
        message = "--achieved must be above 0 FLOP/s, --restart at least 0 s and --mtbf from 0.001 h on, all finite"
        raise UsageError(message, code="storage")
    if mtbf is not None and write_rate is None and (run is None or model is None):
        raise UsageError("--mtbf needs --model, and --write-rate or --from", code="storage")
    if sample is not None:
        reading = disks.reading_samples(sample, achieved, gpus)
    else:
        read_of = inputs.given_model(model)
        reading = disks.reading_tokens(read_of, seq or read_of.sequence, achieved, gpus)
    files = () if run is None else judgement_of([run], results_dir, None, force=False).of(Node).files
    read = _rate(read_rate, files, "storage_read")
    write = _rate(write_rate, files, "checkpoint_save") or _rate(None, files, "storage_write")
    if run is not None and read is None and write is None:
        message = f"{run} measured memory but no storage; measure storage_read, storage_write or checkpoint_save"
        raise UsageError(message, code="storage")
    schedules: list[disks.Checkpoints] = []
    bytes_ = 0 if model is None else max(CHECKPOINT_BYTES) * model_rows.parameters(model)
    unknown = "" if run is None else f"share: unknown, {run} has no storage_read"
    shown = [disks.reading_table(reading, read, unknown)]
    if write is not None and model is not None:
        copied = disks.copy_seconds(bytes_, gpus)
        written = bytes_ / write.bytes_per_second
        between = None if mtbf is None else 3600 * mtbf
        schedules = [
            disks.checkpoints(copied + written, copied + written, between, restart, how="synchronous"),
            disks.checkpoints(copied, copied + written, between, restart, how="asynchronous"),
        ]
        shown.append(disks.checkpoints_table(schedules, bytes_, write, between))
    document = {
        "reading": with_values(reading, "per_gpu", "bytes_per_second"),
        "read_rate": read,
        "write_rate": write,
        "share_of_read_rate": None if read is None else reading.share_of(read.bytes_per_second),
        "checkpoint_bytes": bytes_ or None,
        "checkpoints": schedules,
    }
    print_answer(disks.storage_headline(reading, read, schedules, restart), document, shown, as_json=as_json)


def _rate(given: float | None, files: Sequence[Stored], op: str) -> disks.Rate | None:
    """The ``given`` rate, else the best one that was measured for ``op``."""
    if given is not None:
        return disks.Rate(given, "as given")
    best = fastest(files, op)
    return None if best is None else disks.Rate(best.rate, f"the best {op} of the run, {best.ranks} ranks together")


@training.command("plan", cls=options.WithKeys, keys={"--layout": inputs.PLAN_KEYS})
@inputs.model_option()
@click.option("--gpus", type=inputs.MANY, help="Number of GPUs.  [default: as in the log of --from]")
@inputs.layout_option(
    inputs.PLAN_KEYS,
    "Only layouts with these settings, such as tp=8,zero=1",
    "keys below; those not given are searched or chosen",
)
@inputs.batch_option
@inputs.sequence_option
@inputs.machine_options
@inputs.kernels_option
@click.option("--top", type=inputs.MANY, default=10, show_default=True, help="Number of layouts to show.")
@click.option(
    "--measured",
    "timed",
    metavar="LAYOUT:TIME",
    multiple=True,
    help="A step that was measured, such as 'tp=8,pp=8,dp=16: 31.5s', or a training log in place of the time; repeat "
    "for more. They calibrate the machine.",
)
@click.option("--what-if", is_flag=True, help="Also print what one change would save, and weak and strong scaling.")
@click.option("--compare-rules", "rules", is_flag=True, help="Check whether the order TP > CP > PP > DP holds here.")
@options.plot_option
@results_dir_option
@click.option("--force", is_flag=True, help="Combine runs even if their machines or settings differ.")
@as_json_option
def plan_(  # noqa: PLR0913 - click hands every option over by name
    *,
    model: Model | None,
    gpus: int | None,
    settings: Mapping[str, Any],
    batch: int | None,
    seq: int | None,
    runs: tuple[str, ...],
    kernels: Kernels | None,
    top: int,
    what_if: bool,
    rules: bool,
    timed: tuple[str, ...],
    plot: Path | None,
    results_dir: Path,
    force: bool,
    as_json: bool,
    **given: Any,  # noqa: ANN401 - the options of a machine
) -> None:
    """Find the fastest layouts of a model on a network, what limits each, and what would change that."""
    read, trained = inputs.runs_and_logs(runs, results_dir)
    measured = Questions(read_results(read, force=force)) if read else None
    steps = [inputs.logged_step(log, {}, model, (gpus, batch, seq)) for log in trained]
    row = inputs.given_model(model or (steps[0][0].model if steps else None))
    gpus = inputs.given_gpus(gpus or (steps[0][0].layout.gpus if steps else None))
    doubts = list(inputs.machine_of_logs(trained, given, measured)) if trained else []
    on = machine_of(row.dtype, gpus, measured, **given)
    gradients, assumed = inputs.gradients_of(row, settings)
    taken = {} if measured is not None or given["gpu"] is not None else {"gpu": f"{DEFAULT_GPU} (--gpu)"}
    if not steps and (batch is None or seq is None):
        options_of = {"--batch": batch, "--seq": seq}
        left_out = ", ".join(option for option, value in options_of.items() if value is None)
        taken["batch"] = f"{batch or row.batch} sequences of {seq or row.sequence} tokens ({left_out})"
    request = Wanted(
        model=row,
        gpus=gpus,
        batch=batch or (steps[0][0].batch if steps else row.batch),
        sequence=seq or (steps[0][0].sequence if steps else row.sequence),
        settings=settings,
        room=on.room,
        kernels=kernels,
        gradients=gradients,
    )
    assumed = {**on.assumed, **assumed, **plans.assumed_settings(request)}
    calibration = None
    of_runs = [step for results in ([] if measured is None else measured.results) for step in steps_of(results)]
    own = list(steps_like(row, of_runs))
    steps += [*own, *(inputs.measured_step(text, row, request.batch, request.sequence) for text in timed)]
    if steps:
        origins = [*(log.source for log in trained), *("--from" for _ in own), *timed]
        inputs.refuse_impossible(steps, origins, on.peak, causal=on.machine.causal)
        calibration = calibrate(on.machine, steps, len(trained) + len(own))
        assumed |= factors_in_words(calibration.factors)
    held = () if calibration is None else calibration.steps
    machine = on.machine if calibration is None else calibration.machine
    plan = plans.plan(request, machine)
    best, kept = plan.layouts[0], plan.layouts[:top]
    grown = plans.scaling(best, machine, on.room, kernels)
    orders = plans.compare_rules(compared := plans.with_most_dimensions(plan), machine) if rules else ()
    changes = plans.sensitivity(best, machine)
    near = [(each.step, each.seconds) for each in held if each.near]
    summary = plans.closing(best, machine, near, on.room)
    reserved = plans.with_reserve(request, machine) if summary.tight else None
    if plot is not None:
        pages.save_plan(plot, kept, grown)
        echo(f"plot: {plot}", err=True)
    peak = on.peak or machine.speed.flop_per_second
    document: dict[str, JSON] = {
        "model": row.name,
        **values_of(request, "gpus", "batch", "sequence"),
        "assumed": {**taken, **assumed},
        "flop_per_second": machine.speed.flop_per_second,
        "peak_flop_per_second": on.peak,
        **values_of(machine, "overlap", "slowdown"),
        "gpu_memory_bytes": on.room,
        **values_of(plan, "tried", "too_large", "refused"),
        "layouts": [_document(planned, machine, on.peak) for planned in kept],
        "sensitivity": changes,
        "closing": summary,
        "with_reserve": reserved and _document(reserved, machine, on.peak),
        "calibration": (calibration and calibration.factors) or None,
        "measured": calibration and [values_of(each, "seconds", "predicted_seconds", "near") for each in held],
        "rules": {"layout": compared.step.layout, "orders": [_order(order) for order in orders]} if rules else None,
        "scaling": {scaled.kind: _scaled(scaled) for scaled in grown},
    }
    shown: list[Block] = [
        *(Paragraph(text, tone="caution") for text in doubts),
        *(Paragraph(text, tone="caution") for text in steps_in_words(held, on.room, kernels, len(own), len(trained))),
        *pages.plan_trust(best, summary, machine, reserved),
        *([Paragraph(f"Assumed: {'; '.join(f'{name} {words}' for name, words in taken.items())}")] if taken else []),
        *pages.plan_tables(request, plan, kept, machine, peak, assumed, near),
        *(pages.change_tables(changes, grown, best) if what_if else ()),
        *(pages.rules_tables(compared, orders) if rules else ()),
    ]
    print_answer(pages.plan_answer(best, summary, machine, peak), document, shown, as_json=as_json)


def _document(planned: Planned, machine: Machine, peak: float | None) -> dict[str, JSON]:
    ends, step, time = planned.ends(machine), planned.step, planned.time
    return {
        "layout": with_values(step.layout, "gpus"),
        "layout_option": layout_text(step),
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


_READ: Final = f"""Read the steps in a training program's log: their time, slow ones, drift, and share of the peak.

FILE is a log of {", ".join(PROGRAMS)} or a script, or - for standard input.
"""


@training.command(help=_READ)
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True, dir_okay=False))
@inputs.gpu_option(None, "  [default: the peak that the log states]")
@click.option("--dtype", type=click.Choice(DTYPES), default="bfloat16", show_default=True, help="Type of the products.")
@as_json_option
def log(*, file: Path, gpu: Gpu | None, dtype: str, as_json: bool) -> None:
    """Read the steps in a training program's log."""
    print_steps(opened_log(file, lambda name, source, _: read_steps(name, source)), gpu, dtype, as_json=as_json)
