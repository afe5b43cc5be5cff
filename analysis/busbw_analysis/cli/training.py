"""``busbw training``: traffic, memory and time of a model that is distributed over GPUs, from formulas."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import wraps
from pathlib import Path
from typing import Any, Literal

import click

from busbw.errors import UsageError
from busbw.escape import echo
from busbw.ops.base import Context, Schedule
from busbw.runs.records import JSON
from busbw.system.catalog import catalogue
from busbw.system.named import gpu_named
from busbw.units import format_rate, parse_rate
from busbw.workloads import model_rows
from busbw_analysis.assembly.judge import judgement_of
from busbw_analysis.cli import options
from busbw_analysis.cli import training_plan as planning
from busbw_analysis.cli.training_machines import gpu_memory_of, rates_given
from busbw_analysis.cli.training_models import model_options, named_one
from busbw_analysis.data.as_json import with_values
from busbw_analysis.node.judgement import Node
from busbw_analysis.node.storage import Stored, fastest
from busbw_analysis.training import limits as walls
from busbw_analysis.training import storage as disks
from busbw_analysis.training.layout import (
    AS_FRAMEWORKS,
    MOST_GPUS,
    Layout,
    Recompute,
    Step,
    Sync,
    default_gradients,
)
from busbw_analysis.training.memory import CHECKPOINT_BYTES, Kernels, Optimizer, per_parameter, what_fits
from busbw_analysis.training.memory import memory as memory_of
from busbw_analysis.training.roofline import least_tokens, phases, wires_of_step
from busbw_analysis.training.statements import statements
from busbw_analysis.training.tables import formulas as tables
from busbw_analysis.training.traffic import DIMENSIONS, sent, traffic

_from_run = options.run_option("--from", "Instead of --network: use this run's measured messages.")
_Zero = Literal["0", "1", "2", "3", "hsdp"]
_FLAGS = ("sequence_parallel", "scatter_gather", "uneven")
_DEGREES = {
    "dp": "Data parallelism: number of replicas.",
    "tp": "Tensor parallelism: ranks that split a layer.",
    "pp": "Pipeline stages.",
    "cp": "Context parallelism: ranks that split a sequence.",
    "ep": "Expert parallelism: ranks of dp · cp that split the experts.",
    "micro_batches": "Micro-batches per step and replica.  [default: of one sequence each]",
    "interleave": "Model chunks per pipeline stage.",
}


def _step_options(command: options.Command) -> options.Command:
    """Options of the model, its layout and its batch.

    The command receives them as one Step, and as ``assumed`` the defaults that it took, by option.
    """

    @wraps(command)
    def wrapped(**given: Any) -> None:  # noqa: ANN401 - click hands every option over by name
        named = {name: given.pop(name) for name in (*_DEGREES, *_FLAGS, "schedule", "recompute", "context", "sync")}
        zero, shard, reshard = given.pop("zero"), given.pop("shard"), not given.pop("no_reshard")
        if (zero == "hsdp") != (shard is not None):
            message = "--zero hsdp and --shard (ranks of a group that shards the weights) need each other; give both"
            raise UsageError(message, code="layout")
        model = named_one(given.pop("model"))
        del given["own"]
        batch, sequence = given.pop("batch") or model.batch, given.pop("seq") or model.sequence
        assumed: dict[str, str] = {}
        if named["micro_batches"] is None:
            each, left = divmod(batch, max(1, named["dp"]))
            named["micro_batches"] = 1 if left else max(1, each)
            assumed["micro_batches"] = f"{named['micro_batches']} of one sequence, {AS_FRAMEWORKS}"
        if given["gradients"] is None:
            given["gradients"] = default_gradients(model)
            assumed["gradients"] = f"{given['gradients']}, {AS_FRAMEWORKS}"
        layout = Layout(**named, zero=3 if zero == "hsdp" else int(zero), shard=shard, reshard=reshard)
        of_step = {name: given.pop(name) for name in ("gradients", "imbalance", "ranks_per_host", "nodes_per_token")}
        if of_step["nodes_per_token"] is None:
            of_step["nodes_per_token"] = model.nodes_per_token
        command(step=Step(model, layout, batch, sequence, **of_step), assumed=assumed, **given)

    degrees = [
        click.option(
            f"--{name.replace('_', '-')}",
            type=int,
            default=None if name == "micro_batches" else 1,
            show_default=name != "micro_batches",
            help=words,
        )
        for name, words in _DEGREES.items()
    ]
    reduced = "Micro-batches after which gradients are reduced.  [default: every with zero 3, else last]"
    made: list[options.Option] = [
        *degrees,
        options.choice_option("--zero", _Zero, "0", "ZeRO stage; hsdp: stage 3 within groups of --shard ranks."),
        click.option("--shard", type=int, help="With hsdp: ranks of a group that shards the weights."),
        planning.batch_option,
        planning.sequence_option,
        options.choice_option("--schedule", Schedule, "1f1b", "Pipeline schedule."),
        options.choice_option("--recompute", Recompute, "none", "Activations recomputed in the backward pass."),
        options.choice_option("--context", Context, "ring", "Attention algorithm across cp."),
        options.choice_option("--sync", Sync, None, reduced),
        click.option("--uneven", is_flag=True, help="Allow first and last stage to be one layer shorter."),
        click.option("--sequence-parallel", is_flag=True, help="Split norms and dropout over tp, too."),
        click.option("--scatter-gather", is_flag=True, help="Send pipeline boundaries in tp parts."),
        click.option("--no-reshard", is_flag=True, help="With ZeRO 3, gather the weights once per step."),
        planning.gradients_option,
        click.option(
            "--imbalance", type=float, default=1.0, show_default=True, help="Load of the busiest experts over the mean."
        ),
        click.option("--ranks-per-host", type=int, help="GPUs per node; for expert traffic with --nodes-per-token."),
        click.option("--nodes-per-token", type=click.IntRange(0), help="Most nodes per token.  [default: the model's]"),
    ]
    return model_options(options.with_options(wrapped, made))


@click.group()
def training() -> None:
    """Compute traffic, memory, reads and time of training a model in a given layout, from formulas."""


training.add_command(planning.plan_)


def _model_row(model: model_rows.Model, sequence: int) -> dict[str, JSON]:
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


@training.command()
@model_options
@options.as_json_option
def models(*, model: model_rows.Model | None, own: Path | None, as_json: bool) -> None:
    """List the known models, or one, with their parameters and FLOP."""
    listed = model_rows.models(own).values() if model is None else [model]
    rows = [_model_row(row, row.sequence) for row in listed]
    headline = f"{len(rows)} models; describe your own with --layers and --hidden"
    planning.print_answer(headline, {"models": rows}, [tables.models_table(rows)], as_json=as_json)


@training.command()
@_step_options
@click.option("--stage", type=int, help="Pipeline stage.  [default: an inner one, with experts if any; else the first]")
@click.option("--explain", is_flag=True, help="Compare common statements about this traffic with the computed numbers.")
@options.as_json_option
def volumes(*, step: Step, assumed: Mapping[str, str], stage: int | None, explain: bool, as_json: bool) -> None:
    """List what each rank sends per step: collective, size, calls, bytes, and whether computation waits for it."""
    shown = step.middle if stage is None else step.check_stage(stage)
    rows = traffic(step, shown)
    explained = statements(step, rows) if explain else ()
    document = {
        **_head(step, assumed),
        "stage": shown,
        "traffic": [with_values(row, "sent_bytes") for row in rows],
        "sent_bytes": {one: sent(rows, one) for one in DIMENSIONS},
        "waited_bytes": {one: sent(rows, one, hideable=False) for one in DIMENSIONS},
        "statements": explained,
    }
    headline = tables.traffic_headline(step, rows)
    shown_tables = tables.traffic_tables(step, shown, rows, explained, assumed)
    planning.print_answer(headline, document, shown_tables, as_json=as_json)


@training.command()
@_step_options
@options.choice_option("--optimizer", Optimizer, "adam", "Optimizer.")
@planning.kernels_option
@click.option("--gpu", help="GPU it must fit on (busbw peaks), such as 'H100 SXM5'.  [default: this machine's, if any]")
@click.option("--gpu-memory", help="Instead of --gpu: GPU memory, such as 80GiB.")
@options.run_option("--from", "Instead of --gpu: use this run's GPU.")
@options.results_dir_option
@options.as_json_option
def memory(  # noqa: PLR0913 - click hands every option over by name
    *,
    step: Step,
    assumed: Mapping[str, str],
    optimizer: Optimizer,
    kernels: Kernels | None,
    gpu: str | None,
    gpu_memory: str | None,
    run: str | None,
    results_dir: Path,
    as_json: bool,
) -> None:
    """Compute the memory of a rank (weights, gradients, optimizer, activations, buffers), whether it fits, and the
    size of a checkpoint.
    """
    found = memory_of(step, optimizer, kernels)
    room = gpu_memory_of(gpu, gpu_memory, run, results_dir)
    fits = None if room is None else found.total <= room.bytes
    other = None if fits is not False or room is None else what_fits(step, room.bytes, optimizer, kernels)
    group, gradient = step.layout.shard or step.layout.replicas, step.gradient_bytes
    by_zero = [per_parameter(step.model.width_bytes, gradient, optimizer, zero, group).total for zero in range(4)]
    saved = {per: per * model_rows.parameters(step.model) for per in CHECKPOINT_BYTES}
    headline = tables.memory_headline(found, room, None if other is None else other.layout)
    document = {
        **_head(step, assumed),
        "memory": with_values(found, "total"),
        "bytes_per_parameter": by_zero,
        "gpu_memory": room,
        "fits": fits,
        "would_fit": other and other.layout,
        "checkpoint_bytes": saved,
    }
    planning.print_answer(
        headline, document, [tables.memory_table(step, found, by_zero, saved, assumed)], as_json=as_json
    )


@training.command()
@_step_options
@click.option("--gpu", default="H100 SXM5", show_default=True, help="GPU (busbw peaks lists them).")
@click.option("--network", metavar="KIND:KEY=VALUE,…", help="As in busbw simulate; the rate between nodes is used.")
@_from_run
@planning.causal_option
@options.results_dir_option
@options.as_json_option
def roofline(
    *,
    step: Step,
    assumed: Mapping[str, str],
    gpu: str,
    network: str | None,
    run: str | None,
    causal: bool,
    results_dir: Path,
    as_json: bool,
) -> None:
    """Compute the arithmetic intensity of each phase of a step, and what limits its time."""
    row, dtype = gpu_named(catalogue(), gpu), step.model.dtype
    if dtype not in row.flops:
        raise UsageError(f"{row.name} has no rate for {dtype}; it has {', '.join(row.flops)}", code="gpu")
    per_node = step.ranks_per_host or 8
    nodes = max(2, -(-step.layout.gpus // per_node))
    rates = rates_given(network, run, results_dir, nodes, per_node)
    if rates is not None and step.ranks_per_host is None:
        with suppress(UsageError):  # a node would have a part of a group of experts: they are not limited to nodes
            step = replace(step, ranks_per_host=rates.per_host)
    found, peak, memory_rate = phases(step, causal=causal), row.flops[dtype], row.memory_bytes_per_second
    wires = {} if rates is None else wires_of_step(step, rates)
    timed = [
        (one, one.seconds(peak, memory_rate, wires.get(one.dimension) if one.dimension else None)) for one in found
    ]
    notes = [f"per rank and step; machine balance of memory: {peak / memory_rate:.4g} FLOP/B"]
    tokens = None
    if rates is not None:
        each = dict.fromkeys((rates.inner, rates.outer))
        notes += [f"machine balance of the network: {peak / rate:.4g} FLOP/B at {format_rate(rate)}" for rate in each]
        if step.layout.replicas > 1:
            tokens = least_tokens(step, peak, rates)
    document = {
        **_head(step, assumed),
        "gpu": row.name,
        "flop_per_second": peak,
        "memory_bytes_per_second": memory_rate,
        "rates": rates,
        "least_tokens": tokens,
        "phases": [
            {**with_values(one, "memory_intensity", "network_intensity"), "seconds": least} for one, least in timed
        ],
    }
    headline = tables.roofline_headline(timed, tokens, step.tokens)
    planning.print_answer(headline, document, [tables.roofline_table(step, timed, notes, assumed)], as_json=as_json)


_MEANING = {
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
    "batch_power": "exponent of FLOP in the batch size: 1 over the reducible loss (Sevilla et al. 2024, appendix E)",
    "layers": "layers of a model with one parameter (Sevilla et al. 2024, note 96)",
    "layers_power": "exponent of parameters in the number of layers",
    "tokens": "tokens per parameter (Hoffmann et al. 2022, arXiv:2203.15556)",
    "widening": "ratio of the inner width of a layer to the hidden size",
}


def _constants(command: options.Command) -> options.Command:
    made: list[options.Option] = [
        click.option(
            f"--{field.name.replace('_', '-')}",
            type=int if field.name == "per_host" else float,
            help=_MEANING[field.name] + f"  [default: {field.default:g}]",
        )
        for field in fields(walls.Constants)
    ]
    return options.with_options(command, made)


@training.command("limits")
@click.option("--network", metavar="KIND:KEY=VALUE,…", help="As in busbw simulate: rates and delays of a GPU.")
@_from_run
@planning.plot_option
@_constants
@options.results_dir_option
@options.as_json_option
def limits_(
    *, network: str | None, run: str | None, plot: Path | None, results_dir: Path, as_json: bool, **given: float | None
) -> None:
    """Compute the training size at which data movement lowers utilisation, and at which latency is the limit
    (arXiv:2411.01137).
    """
    constants = walls.Constants()
    chosen = {name: value for name, value in given.items() if value is not None}
    per_host = int(chosen.get("per_host", constants.per_host))
    notes: list[str] = []
    if (rates := rates_given(network, run, results_dir, 2, per_host)) is not None:
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
    constants = replace(constants, **chosen)  # type: ignore[arg-type] # click converted each to its field's type
    networks = walls.variants(constants)
    found = [walls.limits(name, one) for name, one in networks.items()]
    if plot is not None:
        from busbw_analysis.training.plots.limits import save_limits  # noqa: PLC0415 - matplotlib, for --plot alone

        save_limits(plot, networks, found)
        echo(f"plot: {plot}", err=True)
    document = {
        "constants": constants,
        "least_tokens": constants.least_tokens,
        "stated": walls.HEADLINES,
        "limits": found,
        "utilisation": walls.curve(constants),
    }
    planning.print_answer(tables.limits_headline(found), document, [tables.limits_table(found, notes)], as_json=as_json)


def _named_sample(context: click.Context, _parameter: click.Parameter, name: str | None) -> model_rows.Sample | None:
    """As for ``--model``: checked before click asks for options that are missing."""
    samples = model_rows.samples(context.params.get("own"))
    return None if name is None else model_rows.named(samples, name, "sample")


@training.command()
@model_options
@click.option(
    "--sample",
    callback=_named_sample,
    help="Kind of samples read instead of tokens (a row of busbw/workloads/samples.toml).",
)
@click.option("--gpus", type=click.IntRange(1, MOST_GPUS), required=True, help="Number of GPUs that read and save.")
@click.option("--achieved", type=float, required=True, help="Achieved FLOP/s per GPU, such as 400e12.")
@planning.sequence_option
@options.run_option("--from", "Run with measurements of this storage.")
@click.option("--read-rate", help="Read rate of the storage, such as 1TB/s.  [default: as measured]")
@click.option("--write-rate", help="Write rate of the storage, for checkpoints.  [default: as measured]")
@click.option("--writer-rate", help="Write rate of one GPU.  [default: limited by the storage only]")
@click.option("--bytes-per-parameter", type=planning.many, default=14, show_default=True, help="In a checkpoint.")
@click.option("--mtbf", type=float, help="Hours between failures of the whole job; computes how often to save.")
@click.option("--restart", type=float, default=0.0, show_default=True, help="Seconds to restart after a failure.")
@options.results_dir_option
@options.as_json_option
def storage(  # noqa: PLR0913 - click hands every option over by name
    *,
    model: model_rows.Model | None,
    sample: model_rows.Sample | None,
    own: Path | None,  # noqa: ARG001 - the callbacks of --model and --sample have read it
    gpus: int,
    achieved: float,
    seq: int | None,
    run: str | None,
    read_rate: str | None,
    write_rate: str | None,
    writer_rate: str | None,
    bytes_per_parameter: int,
    mtbf: float | None,
    restart: float,
    results_dir: Path,
    as_json: bool,
) -> None:
    """Compute the read rate of training, the duration of checkpoints, how often to save, and the time lost."""
    if model is None and (sample is None or write_rate is not None):
        raise UsageError("give --model, which is read for and saved, or --sample without --write-rate", code="storage")
    if not (0 < achieved < 1e30 and 0 <= restart < 1e30 and (mtbf is None or 0 < mtbf < 1e30)):
        message = "--achieved must be above 0 FLOP/s, --restart at least 0 s and --mtbf above 0 hours, all finite"
        raise UsageError(message, code="storage")
    if mtbf is not None and write_rate is None and (run is None or model is None):
        raise UsageError("--mtbf needs --model, and --write-rate or --from", code="storage")
    if sample is not None:
        reading = disks.reading_samples(sample, achieved, gpus)
    else:
        read_of = named_one(model)
        reading = disks.reading_tokens(read_of, seq or read_of.sequence, achieved, gpus)
    files = () if run is None else judgement_of([run], results_dir, None, force=False).of(Node).files
    read = _rate(read_rate, files, "storage_read")
    write = _rate(write_rate, files, "checkpoint_save") or _rate(None, files, "storage_write")
    if run is not None and read is None and write is None:
        message = f"{run} measured memory but no storage; measure storage_read, storage_write or checkpoint_save"
        raise UsageError(message, code="storage")
    found: list[disks.Checkpoints] = []
    bytes_ = 0 if model is None else bytes_per_parameter * model_rows.parameters(model)
    unknown = "" if run is None else f"share: unknown, {run} has no storage_read"
    shown = [tables.reading_table(reading, read, unknown)]
    if write is not None and model is not None:
        writer = None if writer_rate is None else parse_rate(writer_rate)
        copied = disks.copy_seconds(bytes_, gpus)
        written = disks.write_seconds(bytes_, gpus, writer, write.bytes_per_second)
        between = None if mtbf is None else 3600 * mtbf
        found = [
            disks.checkpoints(copied + written, copied + written, between, restart, how="synchronous"),
            disks.checkpoints(copied, copied + written, between, restart, how="asynchronous"),
        ]
        shown.append(tables.checkpoints_table(found, bytes_, write))
    document = {
        "reading": with_values(reading, "per_gpu", "bytes_per_second"),
        "read_rate": read,
        "write_rate": write,
        "share_of_read_rate": None if read is None else reading.share_of(read.bytes_per_second),
        "checkpoint_bytes": bytes_ or None,
        "checkpoints": found,
    }
    planning.print_answer(tables.storage_headline(reading, read, found), document, shown, as_json=as_json)


def _rate(given: str | None, files: Sequence[Stored], op: str) -> disks.Rate | None:
    """The ``given`` rate, else the best one that was measured for ``op``."""
    if given is not None:
        return disks.Rate(parse_rate(given), "as given")
    best = fastest(files, op)
    return None if best is None else disks.Rate(best.rate, f"the best {op} of the run, {best.ranks} ranks together")
