"""The command that measures: options become a plan, which is measured, resumed or only printed."""

import importlib
import json
import os
import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from busbw.cli.options import Sectioned, all_ops, backends, completed_by, json_option, results_dir_option, suites
from busbw.errors import BusbwError, Interrupted, UsageError, nearest
from busbw.escape import echo, plain_text

_SECTIONS = {
    "What is measured": (
        "busbw run --op all_reduce,all_gather --sizes 8..64MiB*2",
        (
            *("ops", "sizes", "dtype", "redop", "suite", "plan_file", "algorithm", "in_place", "groups", "root"),
            *("no_baseline", "imbalance", "traffic", "threads", "numa_nodes", "pairs", "path"),
        ),
    ),
    "Steps of training": (
        "busbw run --op train_ddp,train_fsdp --model 'Llama 3 8B' --scale 0.03",
        (
            *("models", "scale", "micro_batches", "replicas", "expert_imbalance", "capacity", "compute"),
            *("slow_ranks", "exchanges", "record_trace"),
        ),
    ),
    "How it is timed": (
        "busbw run --suite quick --mode isolated,pipelined --cache flushed",
        ("mode", "sync", "cache", "pre_enqueue"),
    ),
    "Where": ("busbw run --suite quick --backend mpi --ranks 4", ("ranks", "backend", "port")),
    "How long": (
        "busbw run --suite quick --launches 10 --precision 0.02",
        ("launches", "max_seconds", "precision", "seed", "timeout_seconds"),
    ),
    "Output": (
        "busbw run --resume latest --quiet",
        ("resume", "dry_run", "quiet", "results_dir", "as_json"),
    ),
}
"""The options of ``run`` by what they are for."""


class _Run(Sectioned):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; who gives an operation without ``--op``, or an option of nccl-tests, is told."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in _OF_NCCL_TESTS:
                raise
            raise click.UsageError(
                f"{error.message} In place of nccl-tests' {_OF_NCCL_TESTS[error.option_name]}", ctx
            ) from None
        except click.UsageError as error:
            likely = next(filter(None, map(_op_of, given)), None) if "unexpected extra" in error.message else None
            if likely is not None:
                raise click.UsageError(f"{error.message}. Did you mean --op {likely}?", ctx) from None
            raise


_OF_NCCL_TESTS = {
    **dict.fromkeys(("-b", "-e", "-f"), "-b 8 -e 64M -f 2 write --sizes 8..64MiB*2"),
    **dict.fromkeys(("-g", "-t"), "-t and -g write --ranks"),
    "-o": "-o write --redop",
    "-d": "-d write --dtype",
}
"""What takes the place of options that people know."""


def _op_of(given: str) -> str | None:
    return None if given.startswith("-") else nearest(given, all_ops())


@click.command(cls=_Run, sections=_SECTIONS)
@click.option(
    "--op", "ops", shell_complete=completed_by(all_ops), help="Operations, separated by commas (busbw list ops)."
)
@click.option("--sizes", help="Sizes S: a list (8,1KiB), a range (8..64MiB*2, 1MiB..4MiB+1MiB), or both.")
@click.option("--dtype", help="Data types, separated by commas.  [default: float32]")
@click.option("--redop", help="Reductions, separated by commas: sum, avg, min, max, product.  [default: sum]")
@click.option(
    "--mode",
    help="How calls are timed, by commas: isolated, barriers, pipelined, persistent, graph, overlap.  "
    "[default: isolated]",
)
@click.option(
    "--algorithm",
    help="By commas: library (its own), or over send/recv all, ring, rabenseifner … (busbw list algorithms).  "
    "[default: library]",
)
@click.option("--sync", help="Start of a sample: none, barrier, dissemination or window.  [default: barrier]")
@click.option("--cache", help="Data before a call: warm, rotating (buffers in turns) or flushed.  [default: warm]")
@click.option(
    "--pre-enqueue",
    is_flag=True,
    default=None,
    help="GPUs: block the stream until all calls are enqueued, so that launch overhead is not timed.",
)
@click.option("--in-place", help="Receive into the send buffer: yes, no, both, native.  [default: native]")
@click.option(
    "--groups", help="all, each (alone, in turn), div:N, mod:N, and:MASK, or:MASK, or a list: 0,1;2,3.  [default: all]"
)
@click.option("--root", type=int, help="Root rank in every group, for rooted ops.  [default: 0]")
@click.option(
    "--no-baseline",
    is_flag=True,
    help="Without what --op measures beside its operations to judge them: ping_pong, send_recv, and the host's peak.",
)
@click.option("--imbalance", type=float, help="all_to_all_v: how uneven, 0 to 1.  [default: 0.5]")
@click.option(
    "--traffic",
    type=click.Path(path_type=Path),
    help="all_to_all_v: CSV of what each rank (row) sends to each (column).",
)
@click.option(
    "--threads", help="Threads of a rank that share a kernel in memory: 1,4 or 1..cores*2.  [default: its own]"
)
@click.option(
    "--numa-node",
    "numa_nodes",
    help="NUMA nodes that memory of the host is put on: 0,1.  [default: where it is touched first]",
)
@click.option("--pairs", help="Matrices of pairs: disjoint pairs together, or every pair alone.  [default: together]")
@click.option(
    "--path",
    type=click.Path(),
    help="storage_*, checkpoint_save: folder on the storage that is to be measured, on every host.",
)
@click.option(
    "--model", "models", help="By commas: rows of busbw training models.  [default: what the step is shown with]"
)
@click.option(
    "--scale", type=float, help="Widths, layers, sequence and batch times this one.  [default: 0.01; MLP 1024: 1]"
)
@click.option("--micro-batches", help="Of a step and replica, by commas.  [default: 1; pipelines: 2 a stage]")
@click.option(
    "--replicas",
    help="Of the model, not data parallel, by commas: 1,2.  [default: 1, of train_hsdp 2 where ranks are even]",
)
@click.option("--expert-imbalance", type=float, help="Load of the busiest rank's experts over the mean.  [default: 1]")
@click.option("--capacity", type=float, help="Of an expert over its even share; more is dropped.  [default: no limit]")
@click.option(
    "--compute", help="Matrix products: real, or wait=20ms, slept a step on every rank instead.  [default: real]"
)
@click.option(
    "--slow-rank",
    "slow_ranks",
    help="By commas, ranks that are late in every step: 1=20ms; each beside the same step without.",
)
@click.option(
    "--exchange",
    "exchanges",
    help="train_exchange: how ranks exchange, by commas: exact,local_sgd:4,int8.  [default: every way]",
)
@click.option(
    "--record-trace",
    is_flag=True,
    default=None,
    help="Write the trace of torch's profiler of one step, rank by rank, into the run's folder.",
)
@click.option(
    "--suite",
    shell_complete=completed_by(suites),
    help="A shipped suite (busbw list suites); options narrow or change it.",
)
@click.option(
    "--plan", "plan_file", type=click.Path(path_type=Path), help="A plan in TOML; options narrow or change it."
)
@click.option("--ranks", type=int, help="Ranks to start here.  [default: one a usable core, at least 2; one a GPU]")
@click.option(
    "--backend",
    shell_complete=completed_by(backends),
    help="Communication library (busbw list backends).  [default: gloo]",
)
@click.option("--launches", type=int, help="Repeat everything in this many fresh sets of processes.  [default: 1]")
@click.option("--seed", type=int, help="Seed of the order and of the data.  [default: 1]")
@click.option("--max-seconds", type=float, help="Time budget of a case in one launch.  [default: 0.5]")
@click.option(
    "--precision", type=float, help="Stop when the median's interval is within ± this share.  [default: 0.05]"
)
@click.option(
    "--timeout", "timeout_seconds", type=float, help="Seconds after which a silent rank is lost.  [default: 60]"
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Rendezvous port of local ranks.  [default: a free one]"
)
@click.option(
    "--resume",
    metavar="RUN",
    help="Measure what a run that was broken off still lacks: its folder, its name, or latest. It keeps its plan.",
)
@click.option("--dry-run", is_flag=True, help="Print the cases and the estimated time, and measure nothing.")
@click.option("--quiet", is_flag=True, help="No progress and no table.")
@results_dir_option
@json_option
def run(  # noqa: PLR0913 - click hands every option over by name
    *,
    ops: str | None,
    dtype: str | None,
    redop: str | None,
    mode: str | None,
    algorithm: str | None,
    traffic: Path | None,
    path: str | None,
    numa_nodes: str | None,
    models: str | None,
    micro_batches: str | None,
    replicas: str | None,
    slow_ranks: str | None,
    exchanges: str | None,
    suite: str | None,
    plan_file: Path | None,
    port: int,
    resume: str | None,
    results_dir: Path,
    no_baseline: bool,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    **settings: Any,  # noqa: ANN401 - each goes to the plan's field of that name, which checks it
) -> None:
    """Measure: start ranks here, or join the world that torchrun, mpirun or srun has started."""
    from busbw import launch  # noqa: PLC0415 - numpy comes with it
    from busbw.launch.base import Settings  # noqa: PLC0415
    from busbw.runs.plan import Timing, given_path  # noqa: PLC0415

    timeout = settings["timeout_seconds"]
    timeout = Timing().timeout_seconds if timeout is None else timeout
    with _broken_off_in_words(), launch.session(Settings(results_dir, port, quiet or as_json), timeout) as world:
        if not world.leads:
            result = launch.follow(world)
        elif resume is not None:
            changes = {name: settings[name] for name in ("launches", "timeout_seconds")}
            result = _resume(resume, changes, world, dry_run, as_json)
        else:
            listed = {"dtypes": dtype, "redops": redop, "modes": mode, "algorithms": algorithm, "models": models}
            listed |= {"slow_ranks": slow_ranks, "exchanges": exchanges}
            asked = {**{key: _names(given) for key, given in listed.items()}, "traffic": None, **settings}
            asked["numa_nodes"] = _numbers("numa-node", numa_nodes)
            asked["micro_batches"] = _numbers("micro-batches", micro_batches)
            asked["replicas"] = _numbers("replicas", replicas)
            if path is not None:
                asked["path"] = given_path(path)
            if traffic is not None:
                from busbw.ops.traffic import read_weights  # noqa: PLC0415

                asked["traffic"] = read_weights(traffic)
            wanted = _plan(suite, plan_file, _names(ops), asked)
            alone = no_baseline or ops is None
            wanted, beside = _completed(wanted, settings["sizes"], alone=alone)
            if dry_run:
                _print_dry_run(wanted, beside, as_json=as_json)
            result = None if dry_run else launch.execute(wanted, world)
    if result is None:
        return
    if result.speaks:
        _conclude(result, quiet=quiet, as_json=as_json)
    if not result.whole and (result.failed or not result.measured):
        click.get_current_context().exit(result.status)


_KEPT_WITH_RESUME = {"resume", "launches", "timeout_seconds", "port", "quiet", "as_json", "results_dir", "dry_run"}
"""Options of ``run`` that leave a stored plan as it is; ``--launches`` may ask for more of the same."""


def _resume(selector: str, changes: Mapping[str, Any], settings: Any, dry_run: bool, as_json: bool) -> Any:  # noqa: ANN401, FBT001
    from busbw import launch  # noqa: PLC0415
    from busbw.runs import resume, store  # noqa: PLC0415

    context = click.get_current_context()
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in _KEPT_WITH_RESUME
        and context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    ]
    resume.refuse_options(given)
    folder = store.find(settings.results_dir, selector)
    if dry_run:
        stored = store.read(folder)
        _print_lack(resume.lack_of(stored, resume.plan_of(stored.run, **changes)), as_json=as_json)
        return None
    return launch.resume(folder, changes["launches"], settings, changes["timeout_seconds"])


def _print_lack(lack: Any, *, as_json: bool) -> None:  # noqa: ANN401
    import msgspec  # noqa: PLC0415

    from busbw.launch.observers import in_words  # noqa: PLC0415

    missing = [
        {"launch": lack.first + one.number, "resumes": one.resumes, "case": case, "blocks": blocks}
        for one in lack.launches
        for case, blocks in lack.by_case(one).items()
    ]
    if as_json:
        document = {"run": lack.stored.run.id, "missing": missing, "not_tried_again": lack.void}
        echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
        return
    for row in missing:
        why = "" if row["resumes"] is None else f" for launch {row['resumes'] + 1}"
        blocks = ", ".join(str(block + 1) for block in row["blocks"])
        echo(plain_text(f"launch {row['launch'] + 1}{why}  {in_words(row['case'])}  block {blocks}"))
    for case in lack.void:
        echo(f"not tried again: {plain_text(in_words(case))} failed", err=True)
    echo(f"{plain_text(lack.in_words())}; nothing was measured", err=True)


@contextmanager
def _broken_off_in_words() -> Iterator[None]:
    """Say of a run that was broken off where it is and what goes on with it, and exit with 1."""
    try:
        yield
    except (BusbwError, Interrupted) as broken:
        if broken.folder is None:
            raise
        from busbw.launch.launchers import launcher_here  # noqa: PLC0415 - numpy comes with it; it is there by now

        folder = plain_text(shlex.quote(str(broken.folder)))
        # A step of Slurm is read where another world would form: on the node that submits.
        command = "submit" if launcher_here(os.environ).name == "srun" else "run"
        echo(
            f"busbw: {plain_text(str(broken))}\nresults: {folder}\nnext:    busbw {command} --resume {folder}", err=True
        )
        click.get_current_context().exit(1)


def _numbers(option: str, text: str | None) -> tuple[int, ...] | None:
    names = _names(text)
    if names is None or all(name.isdecimal() and name.isascii() and len(name) < 10 for name in names):
        return None if names is None else tuple(map(int, names))
    raise UsageError(f"--{option}: {text!r} is no list of numbers; want some by commas, as in 0,1")


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(","))


def _plan(suite: str | None, plan_file: Path | None, ops: tuple[str, ...] | None, asked: Mapping[str, Any]) -> Any:  # noqa: ANN401
    from busbw.runs import plan  # noqa: PLC0415

    if suite is not None and plan_file is not None:
        raise UsageError("--suite and --plan exclude each other; give one")
    if suite is None and plan_file is None and ops is None:
        raise UsageError(f"nothing to measure: give --op, --suite ({', '.join(plan.suites())}) or --plan FILE")
    base = plan.read_suite(suite) if suite is not None else plan.read_plan(plan_file) if plan_file is not None else None
    with plan.told_as_options():
        if base is None:
            return plan.override(plan.Plan(sweep=(plan.Sweep(ops=ops or ()),)), **asked)
        return plan.override(base, ops=ops or (), **asked)


def _completed(wanted: Any, sizes: str | None, *, alone: bool) -> Any:  # noqa: ANN401
    """``wanted`` with what it lacks to be judged unless it is to stay ``alone``, and the operations of that. A range of
    the ``sizes`` that were asked for which ends below its end is said.
    """
    from msgspec import structs  # noqa: PLC0415

    from busbw import launch  # noqa: PLC0415
    from busbw.backends import backend_named  # noqa: PLC0415
    from busbw.cli.baseline import baseline  # noqa: PLC0415
    from busbw.launch.launchers import launcher_here  # noqa: PLC0415
    from busbw.units import short_ranges  # noqa: PLC0415

    for note in short_ranges(sizes or ""):
        echo(f"busbw: {note}", err=True)
    if alone:
        return wanted, []
    launcher, ranks = launcher_here(os.environ), launch.ranks_of(wanted, os.environ)
    one_host = launcher.rendezvous is None or launcher.rank_info(os.environ).local_size == ranks
    asked = [op for sweep in wanted.sweep for op in sweep.ops]
    beside = baseline(asked, backend_named(wanted.backend), ranks, one_host=one_host)
    return structs.replace(wanted, sweep=(*wanted.sweep, *beside)), [name for sweep in beside for name in sweep.ops]


def _print_dry_run(wanted: Any, beside: Collection[str], *, as_json: bool) -> None:  # noqa: ANN401
    import msgspec  # noqa: PLC0415

    from busbw import launch, units  # noqa: PLC0415
    from busbw.backends import backend_named  # noqa: PLC0415
    from busbw.launch.launchers import launcher_here  # noqa: PLC0415
    from busbw.launch.observers import timing_in_words  # noqa: PLC0415
    from busbw.launch.run_session import place_here, refuse_crowd, refuse_impossible, way_here  # noqa: PLC0415
    from busbw.measure.unsupported import anywhere, unsuited  # noqa: PLC0415
    from busbw.runs import cases  # noqa: PLC0415
    from busbw.runs.plan import told_as_options  # noqa: PLC0415
    from busbw.runs.records import settings_in_words  # noqa: PLC0415
    from busbw.system import environment  # noqa: PLC0415

    ranks = launch.ranks_of(wanted, os.environ)
    cores = max(1, environment.cores_of_launcher() // ranks)
    # Of a world of several hosts, which of its ranks make files here is not known before they are there.
    here = launcher_here(os.environ).name == "local"
    way = way_here(wanted, ranks) if here else "direct"
    with told_as_options():
        if here:
            refuse_crowd(ranks)
        refuse_impossible(wanted, ranks, on_one_host=here)
    planned = cases.expand(wanted, ranks, 1, backend_named(wanted.backend).device, way, cores)
    place = place_here(ranks) if here else anywhere()
    skipped = {case: reason for case in planned.cases if (reason := unsuited(case, place)) is not None}
    to_come = [case for case in planned.cases if case not in skipped]
    seconds = cases.estimated_seconds(wanted, to_come)
    asked = [case for case in to_come if case.op not in beside]
    of_baseline = seconds - cases.estimated_seconds(wanted, asked) if beside else 0.0
    if as_json:
        document = {
            "plan": wanted.as_json(),
            "cases": msgspec.to_builtins(planned.cases),
            "adjusted": list(planned.adjusted),
            "skipped": [{"case": msgspec.to_builtins(case), "reason": reason} for case, reason in skipped.items()],
            "estimated_seconds": seconds,
            "baseline": {"ops": list(beside), "estimated_seconds": of_baseline},
        }
        echo(json.dumps(document, indent=2))
        return
    for case in planned.cases:
        why = f"  would be skipped: {skipped[case]}" if case in skipped else ""
        details = " ".join(part for part in (case.dtype, case.redop, *settings_in_words(case)) if part)
        way_of_call = "in place" if case.in_place else "out of place"
        echo(
            f"{case.op:15} {units.format_size(case.size_bytes):>10}  {details:24} "
            + ", ".join([f"{case.ranks} ranks", f"groups {case.group}", way_of_call, *timing_in_words(case)])
            + why
        )
    for note in planned.adjusted:
        echo(f"size rounded: {note}", err=True)
    if beside:
        echo(
            f"baseline: {', '.join(beside)}, which the results are judged by: "
            f"{units.format_span(of_baseline)} of the time ({of_baseline / seconds:.0%}); --no-baseline leaves it out",
            err=True,
        )
    echo(
        f"{len(planned.cases) - len(skipped)} cases × {wanted.launches} launch(es): about "
        f"{units.format_span(seconds)}, more where one call takes seconds; {len(skipped)} of {len(planned.cases)} "
        "cases would be skipped, and those that the backend refuses; nothing was measured",
        err=True,
    )


_JUDGED_BYTES = 100 << 20
"""Runs that take longer to judge than some seconds, such as pairs of 256 ranks, are judged when they are asked for."""


def _judged(folder: Path, function: str) -> Any:  # noqa: ANN401
    """What ``function`` of the analysis returns for the run in ``folder``. None where the analysis is not installed, or
    cannot judge the run, which is said, or would take long: the run ends as well.
    """
    try:
        if sum(file.stat().st_size for file in folder.glob("samples.jsonl*")) > _JUDGED_BYTES:
            return None
        return getattr(importlib.import_module("busbw_analysis.cli.main"), function)(folder)
    except ImportError:
        return None
    except BusbwError as error:
        echo(f"no answer: {plain_text(str(error))}", err=True)
        return None


def _conclude(result: Any, *, quiet: bool, as_json: bool) -> None:  # noqa: ANN401
    folder = plain_text(shlex.quote(str(result.folder)))
    try:
        if as_json:
            counted = {"run": str(result.folder), "measured": result.measured, "failed": result.failed}
            found = _judged(result.folder, "shown") or {}
            echo(json.dumps({**counted, **found}, indent=2, ensure_ascii=False))
            return
        if not quiet:
            _judged(result.folder, "tell")
    except OSError:
        echo(f"results: {folder}", err=True)
        raise
    echo(f"results: {folder}", err=True)
    echo(f"next:    busbw report {folder}", err=True)
    if result.whole:
        return
    if result.failed:
        echo(f"busbw: {result.failed} case(s) failed; busbw show {folder} says which and why", err=True)
    elif not result.measured:
        echo(f"busbw: nothing was measured, every case was skipped; busbw show {folder} says why", err=True)
