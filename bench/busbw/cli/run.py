"""The command that measures: its options, which become a plan that is measured, resumed or only printed."""

from pathlib import Path
from typing import Any

import click

from busbw.cli.options import (
    Section,
    Sectioned,
    all_ops,
    backends,
    completed_by,
    json_option,
    listed,
    option,
    results_dir_option,
    suites,
)
from busbw.errors import nearest

_SECTIONS = (
    Section(
        "What is measured",
        "busbw run --op all_reduce,all_gather --sizes 8..64MiB*2",
        listed("--op ops", "Operations, separated by commas (busbw list ops).", shell_complete=completed_by(all_ops)),
        option("--sizes", "Sizes S: a list (8,1KiB), a range (8..64MiB*2, 1MiB..4MiB+1MiB), or both."),
        listed("--dtype dtypes", "Data types, separated by commas.  [default: float32]"),
        listed("--redop redops", "Reductions, separated by commas: sum, avg, min, max, product.  [default: sum]"),
        option(
            "--suite",
            "A shipped suite (busbw list suites); options narrow or change it.",
            shell_complete=completed_by(suites),
        ),
        option("--plan plan_file", "A plan in TOML; options narrow or change it.", click.Path(path_type=Path)),
        listed(
            "--algorithm algorithms",
            "By commas: library (its own), or over send/recv all, ring, rabenseifner … (busbw list algorithms).  "
            "[default: library]",
        ),
        option("--in-place", "Receive into the send buffer: yes, no, both, native.  [default: native]"),
        option(
            "--groups",
            "all, each (alone, in turn), div:N, mod:N, and:MASK, or:MASK, or a list: 0,1;2,3.  [default: all]",
        ),
        option("--root", "Root rank in every group, for rooted ops.  [default: 0]", int),
        option(
            "--no-baseline",
            "Without what --op measures beside its operations to judge them: ping_pong, send_recv, and the host's "
            "peak.",
            is_flag=True,
        ),
        option("--imbalance", "all_to_all_v: how uneven, 0 to 1.  [default: 0.5]", float),
        option(
            "--traffic", "all_to_all_v: CSV of what each rank (row) sends to each (column).", click.Path(path_type=Path)
        ),
        option("--threads", "Threads of a rank that share a kernel in memory: 1,4 or 1..cores*2.  [default: its own]"),
        option(
            "--numa-node numa_nodes",
            "NUMA nodes that memory of the host is put on: 0,1.  [default: where it is touched first]",
        ),
        option("--pairs", "Matrices of pairs: disjoint pairs together, or every pair alone.  [default: together]"),
        option(
            "--path",
            "storage_*, checkpoint_save: folder on the storage that is to be measured, on every host.",
            click.Path(),
        ),
    ),
    Section(
        "Steps of training",
        "busbw run --op train_ddp,train_fsdp --model 'Llama 3 8B' --scale 0.03",
        listed("--model models", "By commas: rows of busbw training models.  [default: what the step is shown with]"),
        option("--scale", "Widths, layers, sequence and batch times this one.  [default: 0.01; MLP 1024: 1]", float),
        option("--micro-batches", "Of a step and replica, by commas.  [default: 1; pipelines: 2 a stage]"),
        option(
            "--replicas",
            "Of the model, not data parallel, by commas: 1,2.  [default: 1, of train_hsdp 2 where ranks are even]",
        ),
        option("--expert-imbalance", "Load of the busiest rank's experts over the mean.  [default: 1]", float),
        option("--capacity", "Of an expert over its even share; more is dropped.  [default: no limit]", float),
        option(
            "--compute", "Matrix products: real, or wait=20ms, slept a step on every rank instead.  [default: real]"
        ),
        listed(
            "--slow-rank slow_ranks",
            "By commas, ranks that are late in every step: 1=20ms; each beside the same step without.",
        ),
        listed(
            "--exchange exchanges",
            "train_exchange: how ranks exchange, by commas: exact,local_sgd:4,int8.  [default: every way]",
        ),
        option(
            "--record-trace",
            "Write the trace of torch's profiler of one step, rank by rank, into the run's folder.",
            is_flag=True,
            default=None,
        ),
    ),
    Section(
        "How it is timed",
        "busbw run --suite quick --mode isolated,pipelined --cache flushed",
        listed(
            "--mode modes",
            "How calls are timed, by commas: isolated, barriers, pipelined, persistent, graph, overlap.  "
            "[default: isolated]",
        ),
        option("--sync", "Start of a sample: none, barrier, dissemination or window.  [default: barrier]"),
        option("--cache", "Data before a call: warm, rotating (buffers in turns) or flushed.  [default: warm]"),
        option(
            "--pre-enqueue",
            "GPUs: block the stream until all calls are enqueued, so that launch overhead is not timed.",
            is_flag=True,
            default=None,
        ),
    ),
    Section(
        "Where",
        "busbw run --suite quick --backend mpi --ranks 4",
        option("--ranks", "Ranks to start here.  [default: one a usable core, at least 2; one a GPU]", int),
        option(
            "--backend",
            "Communication library (busbw list backends).  [default: gloo]",
            shell_complete=completed_by(backends),
        ),
        option("--port", "Rendezvous port of local ranks.  [default: a free one]", click.IntRange(0, 65535), default=0),
    ),
    Section(
        "How long",
        "busbw run --suite quick --launches 10 --precision 0.02",
        option("--launches", "Repeat everything in this many fresh sets of processes.  [default: 1]", int),
        option("--max-seconds", "Time budget of a case in one launch.  [default: 0.5]", float),
        option("--precision", "Stop when the median's interval is within ± this share.  [default: 0.05]", float),
        option("--seed", "Seed of the order and of the data.  [default: 1]", int),
        option("--timeout timeout_seconds", "Seconds after which a silent rank is lost.  [default: 60]", float),
    ),
    Section(
        "Output",
        "busbw run --resume latest --quiet",
        option(
            "--resume",
            "Measure what a run that was broken off still lacks: its folder, its name, or latest. It keeps its plan.",
            metavar="RUN",
        ),
        option("--dry-run", "Print the cases and the estimated time, and measure nothing.", is_flag=True),
        option("--quiet", "No progress and no table.", is_flag=True),
    ),
)


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
            plain = [word for word in given if not word.startswith("-")] if "unexpected extra" in error.message else []
            likely = next(filter(None, (nearest(word, all_ops()) for word in plain)), None)
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


@click.command(cls=_Run, sections=_SECTIONS)
@results_dir_option
@json_option
def run(  # noqa: PLR0913 - click hands every option over by name
    *,
    ops: tuple[str, ...] | None,
    suite: str | None,
    plan_file: Path | None,
    port: int,
    resume: str | None,
    results_dir: Path,
    no_baseline: bool,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    **asked: Any,  # noqa: ANN401 - each goes to the plan's field of that name, which checks it
) -> None:
    """Measure: start ranks here, or join the world that torchrun, mpirun or srun has started."""
    from busbw import launch  # noqa: PLC0415 - numpy comes with it
    from busbw.cli import measuring  # noqa: PLC0415 - as above
    from busbw.launch.base import Settings  # noqa: PLC0415 - as above
    from busbw.runs.plan import Timing  # noqa: PLC0415 - as above

    changes = {name: asked[name] for name in ("launches", "timeout_seconds")}
    timeout = Timing().timeout_seconds if asked["timeout_seconds"] is None else asked["timeout_seconds"]
    settings = Settings(results_dir, port, quiet or as_json)
    with measuring.broken_off_in_words(), launch.session(settings, timeout) as world:
        if not world.leads:
            result = launch.follow(world)
        elif resume is not None:
            result = measuring.go_on_with(resume, changes, world, dry_run=dry_run, as_json=as_json)
        else:
            wanted, beside = measuring.asked_plan(suite, plan_file, ops, asked, alone=no_baseline)
            if dry_run:
                measuring.print_dry_run(wanted, beside, as_json=as_json)
            result = None if dry_run else launch.execute(wanted, world)
    if result is None:
        return
    if result.speaks:
        measuring.conclude(result, quiet=quiet, as_json=as_json)
    if not result.whole and (result.failed or not result.measured):
        click.get_current_context().exit(result.status)
