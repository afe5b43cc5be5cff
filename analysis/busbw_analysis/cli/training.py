"""``busbw training``: what a model that is spread over GPUs moves, keeps and waits for, by formula."""

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from functools import wraps
from pathlib import Path
from typing import Any, get_args

import click

from busbw.errors import UsageError
from busbw.escape import echo
from busbw.runs.records import JSON
from busbw.units import format_rate, parse_rate, parse_size
from busbw.workloads import model_rows
from busbw_analysis.cli import options
from busbw_analysis.cli import training_plan as planning
from busbw_analysis.cli.training_machines import gpu_found, gpu_row, rates_given
from busbw_analysis.cli.training_models import model_options, named_one
from busbw_analysis.diagnosis.judge import judgement_of
from busbw_analysis.diagnosis.storage import Stored, fastest
from busbw_analysis.report.tables import training as tables
from busbw_analysis.training import limits as walls
from busbw_analysis.training import storage as disks
from busbw_analysis.training.gpus import memory_of_gpu
from busbw_analysis.training.layout import MOST_GPUS, Context, Layout, Recompute, Schedule, Step, Sync
from busbw_analysis.training.memory import CHECKPOINT_BYTES, Kernels, Optimizer, per_parameter, what_fits
from busbw_analysis.training.memory import memory as memory_of
from busbw_analysis.training.roofline import least_tokens, phases, rate_of, rate_of_node
from busbw_analysis.training.statements import statements
from busbw_analysis.training.traffic import DIMENSIONS, sent, traffic

_from_run = options.run_option("--from", "In place of --network: messages as measured.")
_FLAGS = ("sequence_parallel", "scatter_gather", "uneven")
_DEGREES = {
    "dp": "Replicas.",
    "tp": "Ranks that share a layer.",
    "pp": "Stages of the pipeline.",
    "cp": "Ranks that share a sequence.",
    "ep": "Ranks that share experts, of dp · cp.",
    "micro_batches": "Of a step and replica.",
    "interleave": "Parts of a stage.",
}


def _step_options(command: options.Command) -> options.Command:
    """The model, its layout and its batch; the command is given a Step."""

    @wraps(command)
    def wrapped(**given: Any) -> None:  # noqa: ANN401 - click hands every option over by name
        named = {name: given.pop(name) for name in (*_DEGREES, *_FLAGS, "schedule", "recompute", "context", "sync")}
        zero, shard, reshard = given.pop("zero"), given.pop("shard"), not given.pop("no_reshard")
        if (zero == "hsdp") != (shard is not None):
            message = "--zero hsdp and --shard (ranks of a group that divides weights) belong together"
            raise UsageError(message, code="layout")
        layout = Layout(**named, zero=3 if zero == "hsdp" else int(zero), shard=shard, reshard=reshard)
        model = named_one(given.pop("model"))
        del given["own"]
        batch, sequence = given.pop("batch") or model.batch, given.pop("seq") or model.sequence
        of_step = {name: given.pop(name) for name in ("gradients", "imbalance", "ranks_per_host", "nodes_per_token")}
        if of_step["nodes_per_token"] is None:
            of_step["nodes_per_token"] = model.nodes_per_token
        command(step=Step(model, layout, batch, sequence, **of_step), **given)

    degrees = [
        click.option(f"--{name.replace('_', '-')}", type=int, default=1, show_default=True, help=words)
        for name, words in _DEGREES.items()
    ]
    reduced = "Micro-batches that reduce gradients.  [default: every with zero 3, else last]"
    made: list[options.Option] = [
        *degrees,
        click.option("--zero", type=click.Choice(["0", "1", "2", "3", "hsdp"]), default="0", show_default=True),
        click.option("--shard", type=int, help="Of hsdp: ranks of a group that divides weights."),
        planning.batch_option,
        planning.sequence_option,
        options.choice_option("--schedule", Schedule, "1f1b", "Of the pipeline."),
        options.choice_option("--recompute", Recompute, "none", "Activations computed again in the backward pass."),
        options.choice_option("--context", Context, "ring", "Attention over cp."),
        options.choice_option("--sync", Sync, None, reduced),
        click.option("--uneven", is_flag=True, help="Stages may differ by a layer; the ends are the shorter ones."),
        click.option("--sequence-parallel", is_flag=True, help="Norms and dropout split over tp, too."),
        click.option("--scatter-gather", is_flag=True, help="Boundaries of the pipeline crossed in tp parts."),
        click.option("--no-reshard", is_flag=True, help="Zero 3 gathers weights once a step."),
        planning.gradients_option,
        click.option("--imbalance", type=float, default=1.0, show_default=True, help="Busiest experts over mean."),
        click.option("--ranks-per-host", type=int, help="GPUs of a node; splits expert traffic that is limited."),
        click.option(
            "--nodes-per-token", type=click.IntRange(0), help="Limit on nodes of a token.  [default: the row's]"
        ),
    ]
    return model_options(options.with_options(wrapped, made))


@click.group()
def training() -> None:
    """Say by formula what training a model in a layout moves, keeps, reads and waits for."""


training.add_command(planning.plan_)


def _with(row: Any, *names: str) -> dict[str, JSON]:  # noqa: ANN401 - any of the records of the analysis
    """Its fields, and these of its properties."""
    return {**asdict(row), **{name: getattr(row, name) for name in names}}


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


def _head(step: Step) -> dict[str, JSON]:
    return {
        **_model_row(step.model, step.sequence),
        "layout": {**_with(step.layout, "gpus", "bubble"), "bubble_share": step.bubble_share},
        "batch": step.batch,
        "micro_batch": step.micro_batch,
    }


@training.command()
@model_options
@options.as_json_option
def models(*, model: model_rows.Model | None, own: Path | None, as_json: bool) -> None:
    """List the models that there are, or one, with parameters and FLOP that follow from their rows."""
    listed = model_rows.models(own).values() if model is None else [model]
    rows = [_model_row(row, row.sequence) for row in listed]
    headline = f"{len(rows)} models; --layers and --hidden make one of your own"
    planning.tell(headline, {"models": rows}, [tables.models_table(rows)], as_json=as_json)


@training.command()
@_step_options
@click.option("--stage", type=int, help="Of the pipeline.  [default: one inside, with experts if any, else the first]")
@click.option("--explain", is_flag=True, help="Put what is often said beside what holds.")
@options.as_json_option
def volumes(*, step: Step, stage: int | None, explain: bool, as_json: bool) -> None:
    """Say what each rank sends in a step: collective, size, calls, bytes, and whether computation waits."""
    shown = step.middle if stage is None else step.check_stage(stage)
    rows = traffic(step, shown)
    said = statements(step, rows) if explain else ()
    document = {
        **_head(step),
        "stage": shown,
        "traffic": [_with(row, "sent_bytes") for row in rows],
        "sent_bytes": {one: sent(rows, one) for one in DIMENSIONS},
        "waited_bytes": {one: sent(rows, one, hideable=False) for one in DIMENSIONS},
        "statements": said,
    }
    headline = tables.traffic_headline(step, rows)
    planning.tell(headline, document, tables.traffic_tables(step, shown, rows, said), as_json=as_json)


@training.command()
@_step_options
@click.option("--optimizer", type=click.Choice(get_args(Optimizer)), default="adam", show_default=True)
@planning.kernels_option
@click.option(
    "--gpu", help="A row of busbw peaks, such as 'H100 SXM5', that it is to fit.  [default: this machine's, if any]"
)
@click.option("--gpu-memory", help="In place of --gpu: its memory, such as 80GiB.")
@options.run_option("--from", "In place of --gpu: that of a run.")
@options.results_dir_option
@options.as_json_option
def memory(
    *,
    step: Step,
    optimizer: Optimizer,
    kernels: Kernels | None,
    gpu: str | None,
    gpu_memory: str | None,
    run: str | None,
    results_dir: Path,
    as_json: bool,
) -> None:
    """Say what a rank keeps: weights, gradients, optimizer, activations, buffers; whether it fits; checkpoints."""
    found = memory_of(step, optimizer, kernels)
    room, what = _room(gpu, gpu_memory, run, results_dir)
    fits = None if room is None else found.total <= room
    other = None if fits is not False or room is None else what_fits(step, room, optimizer, kernels)
    group, gradient = step.layout.shard or step.layout.replicas, step.gradient_bytes
    by_zero = [per_parameter(step.model.width_bytes, gradient, optimizer, zero, group).total for zero in range(4)]
    saved = {per: per * model_rows.parameters(step.model) for per in CHECKPOINT_BYTES}
    headline = tables.memory_headline(found, room, what, None if other is None else other.layout)
    document = {
        **_head(step),
        "memory": _with(found, "total"),
        "bytes_per_parameter": by_zero,
        "gpu_memory_bytes": room,
        "fits": fits,
        "would_fit": other and other.layout,
        "checkpoint_bytes": saved,
    }
    planning.tell(headline, document, [tables.memory_table(step, found, by_zero, saved)], as_json=as_json)


def _room(gpu: str | None, gpu_memory: str | None, run: str | None, results_dir: Path) -> tuple[float | None, str]:
    """Bytes of a GPU, and of which."""
    if gpu_memory is not None:
        return float(parse_size(gpu_memory)), gpu or "the GPU"
    if gpu is not None:
        return memory_of_gpu(gpu_row(gpu)), gpu
    found = gpu_found(run, results_dir)
    return (None, "") if found is None else (memory_of_gpu(found[0]), found[1])


@training.command()
@_step_options
@click.option("--gpu", default="H100 SXM5", show_default=True, help="A row of busbw peaks.")
@click.option("--network", metavar="KIND:KEY=VALUE,…", help="As of busbw simulate; the rate between nodes counts.")
@_from_run
@click.option("--causal/--full", default=True, show_default=True, help="Attention to what is before, or to all.")
@options.results_dir_option
@options.as_json_option
def roofline(
    *, step: Step, gpu: str, network: str | None, run: str | None, causal: bool, results_dir: Path, as_json: bool
) -> None:
    """Say of each phase of a step what it computes for every byte, and what decides its time."""
    row, dtype = gpu_row(gpu), step.model.dtype
    if dtype not in row.flops:
        raise UsageError(f"{row.name} has no rate of {dtype}; it has {', '.join(row.flops)}", code="gpu")
    per_node = step.ranks_per_host or 8
    nodes = max(2, -(-step.layout.gpus // per_node))
    rates = rates_given(network, run, results_dir, nodes, per_node)
    found, peak, memory_rate = phases(step, causal=causal), row.flops[dtype], row.memory_bytes_per_second
    timed = [(one, one.seconds(peak, memory_rate, rates, step.layout)) for one in found]
    notes = [f"of one rank in a step; balance of memory: {peak / memory_rate:.4g} FLOP/B"]
    tokens = by_node = None
    own = step.tokens * (1 if step.layout.zero == 3 else step.layout.micro_batches)
    if rates is not None:
        wires = dict.fromkeys((rates.inner, rates.outer))
        notes += [f"balance of the network: {peak / wire:.4g} FLOP/B at {format_rate(wire)}" for wire in wires]
        if step.layout.replicas > 1:
            wire = rate_of(rates, step.layout, "dp")
            tokens = least_tokens(peak, wire, step.layout.replicas, step.gradient_bytes)
            notes.append(f"dp is hidden by the backward pass from {tokens:.0f} tokens a GPU on; here {own}")
            if wire == rates.outer < (together := rate_of_node(rates, step.layout)):
                by_node = least_tokens(peak, together, step.layout.replicas, step.gradient_bytes)
                notes.append(f"from {by_node:.0f} on where ranks of a node reduce first, and all of their cards send")
    document = {
        **_head(step),
        "gpu": row.name,
        "flop_per_second": peak,
        "memory_bytes_per_second": memory_rate,
        "rates": rates,
        "least_tokens": tokens,
        "least_tokens_by_node": by_node,
        "phases": [{**_with(one, "memory_intensity", "network_intensity"), "seconds": least} for one, least in timed],
    }
    headline = tables.roofline_headline(timed, tokens, own)
    planning.tell(headline, document, [tables.roofline_table(step, timed, notes)], as_json=as_json)


_MEANING = {
    "flop_per_second": "of one GPU; H100 in 8 bits, rounded as by the authors",
    "memory": "B/s; H100",
    "element_bytes": "of a weight and an activation",
    "inner": "B/s of a GPU within a node, one direction; NVLink 4",
    "outer": "B/s of a GPU between nodes; 400 Gb/s",
    "per_host": "GPUs of a node",
    "passes": "of a byte in an all_reduce: 2 by rings, 1 where switches add (ml_par_sim)",
    "kernel_seconds": "start of a product; A100 (Sevilla et al. 2024, note 99)",
    "reduce_seconds": "of an all_reduce: 6.8 + 2·2·0.6 µs, NCCL (Sevilla et al. 2024, note 97)",
    "hop_seconds": "more of it for each doubling of nodes, there and back; InfiniBand in NCCL: 5e-6",
    "days": "of training",
    "batch_tokens": "of a step at 1e25 FLOP (ml_par_sim)",
    "batch_power": "of FLOP in the batch: 1 over the reducible loss (Sevilla et al. 2024, appendix E)",
    "layers": "of a model of one parameter (Sevilla et al. 2024, note 96)",
    "layers_power": "of parameters in the layers",
    "tokens": "a parameter (Hoffmann et al. 2022, arXiv:2203.15556)",
    "widening": "inside a layer",
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
@click.option("--network", metavar="KIND:KEY=VALUE,…", help="As of busbw simulate: rates and delays of a GPU.")
@_from_run
@click.option("--plot", type=options.FILE, help="A picture: .svg, .png, .pdf.")
@_constants
@options.results_dir_option
@options.as_json_option
def limits_(
    *, network: str | None, run: str | None, plot: Path | None, results_dir: Path, as_json: bool, **given: float | None
) -> None:
    """Say from which size of training on data movement costs utilisation, and latency ends it (arXiv:2411.01137)."""
    constants = walls.Constants()
    chosen = {name: value for name, value in given.items() if value is not None}
    per_host = int(chosen.get("per_host", constants.per_host))
    if (rates := rates_given(network, run, results_dir, 2, per_host)) is not None:
        constants = replace(
            constants,
            inner=rates.inner,
            outer=rates.outer,
            per_host=rates.per_host,
            reduce_seconds=constants.reduce_seconds + 2 * rates.inner_delay,
            hop_seconds=rates.outer_delay,
        )
    constants = replace(constants, **chosen)  # type: ignore[arg-type] # click has made each of its field's type
    networks = walls.variants(constants)
    found = [walls.limits(name, one) for name, one in networks.items()]
    if plot is not None:
        from busbw_analysis.report.plots.limits import save_limits  # noqa: PLC0415 - matplotlib, for --plot alone

        save_limits(plot, networks, found)
        echo(f"plot: {plot}", err=True)
    document = {
        "constants": constants,
        "least_tokens": constants.least_tokens,
        "stated": walls.HEADLINES,
        "limits": found,
        "utilisation": walls.curve(constants),
    }
    planning.tell(tables.limits_headline(found), document, [tables.limits_table(found)], as_json=as_json)


@training.command()
@model_options
@click.option("--sample", help="A row of busbw/workloads/samples.toml: what is read in place of tokens.")
@click.option("--gpus", type=click.IntRange(1, MOST_GPUS), required=True, help="How many read, and save.")
@click.option("--achieved", type=float, required=True, help="FLOP/s that a GPU achieves, such as 400e12.")
@planning.sequence_option
@options.run_option("--from", "What was measured on this storage.")
@click.option("--read-rate", help="Of the storage, such as 1TB/s.  [default: as measured]")
@click.option("--write-rate", help="Of the storage: checkpoints are described.  [default: as measured]")
@click.option("--writer-rate", help="Of one GPU's writer.  [default: the storage decides]")
@click.option("--bytes-per-parameter", type=planning.many, default=14, show_default=True, help="Of a checkpoint.")
@click.option("--mtbf", type=float, help="Hours between failures of the whole job: how often to save.")
@click.option("--restart", type=float, default=0.0, show_default=True, help="Seconds until it goes on after one.")
@options.results_dir_option
@options.as_json_option
def storage(  # noqa: PLR0913 - click hands every option over by name
    *,
    model: model_rows.Model | None,
    sample: str | None,
    own: Path | None,
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
    """Say at what rate training reads, how long checkpoints take, how often to save, and what time is lost."""
    if model is None and (sample is None or write_rate is not None):
        message = "want --model, whose tokens are read and which is saved, or without --write-rate --sample"
        raise UsageError(message, code="storage")
    if not (0 < achieved < 1e30 and 0 <= restart < 1e30 and (mtbf is None or 0 < mtbf < 1e30)):
        message = "want --achieved above 0 FLOP/s, --restart of 0 s or more and --mtbf above 0 hours, all finite"
        raise UsageError(message, code="storage")
    if mtbf is not None and write_rate is None and (run is None or model is None):
        raise UsageError("--mtbf says how often to save: it wants --model, and --write-rate or --from", code="storage")
    if sample is not None:
        reading = disks.reading_samples(model_rows.named(model_rows.samples(own), sample), achieved, gpus)
    else:
        read_of = named_one(model)
        reading = disks.reading_tokens(read_of, seq or read_of.sequence, achieved, gpus)
    files = () if run is None else judgement_of([run], results_dir, None, force=False).files
    read = _rate(read_rate, files, "storage_read")
    write = _rate(write_rate, files, "checkpoint_save") or _rate(None, files, "storage_write")
    if run is not None and read is None and write is None:
        message = f"{run} has measured no storage but memory; want one of storage_read, storage_write, checkpoint_save"
        raise UsageError(message, code="storage")
    found: list[disks.Checkpoints] = []
    bytes_ = 0 if model is None else bytes_per_parameter * model_rows.parameters(model)
    unknown = "" if run is None else f"share: not told, {run} has measured no storage_read"
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
        "reading": _with(reading, "per_gpu", "bytes_per_second"),
        "read_rate": read,
        "write_rate": write,
        "share_of_read_rate": None if read is None else reading.share_of(read.bytes_per_second),
        "checkpoint_bytes": bytes_ or None,
        "checkpoints": found,
    }
    planning.tell(tables.storage_headline(reading, read, found), document, shown, as_json=as_json)


def _rate(given: str | None, files: Sequence[Stored], op: str) -> disks.Rate | None:
    """What is given, else what was measured."""
    if given is not None:
        return disks.Rate(parse_rate(given), "as given")
    best = fastest(files, op)
    return None if best is None else disks.Rate(best.rate, f"the best {op} of the run, {best.ranks} ranks together")
