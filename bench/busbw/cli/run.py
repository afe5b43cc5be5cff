"""The command ``busbw run``: its options define a plan, which is measured, resumed or only printed."""

from pathlib import Path
from typing import Any

import click

from busbw.cli.options import Section, Sectioned, listed, option
from busbw.errors import nearest
from busbw.shared_options import as_json_option, results_dir_option
from busbw.units import parse_seconds

_SECTIONS = (
    Section(
        "Operations and sizes",
        "busbw run --op all_reduce,all_gather --sizes 8..64MiB*2",
        listed(
            "--op ops", "Operations, comma-separated (busbw list ops), or all: collectives and messages of the backend."
        ),
        option(
            "--sizes",
            "Buffer sizes S: a list (8,1KiB), a range (8..64MiB*2, 1MiB..4MiB+1MiB), or both.  [default: 8..16MiB*2]",
        ),
        listed("--dtype dtypes", "Data types, comma-separated.  [default: float32]"),
        listed("--redop redops", "Reduction operations, comma-separated: sum, avg, min, max, product.  [default: sum]"),
        option("--suite", "Shipped suite (busbw list suites); other options restrict or override it."),
        option("--plan plan_file", "TOML plan; other options restrict or override it.", click.Path(path_type=Path)),
        listed(
            "--algorithm algorithms",
            "Algorithms, comma-separated: library (the backend's choice), explicit ones over send/recv such as ring, "
            "or all (busbw list algorithms).  [default: library]",
        ),
        option("--in-place", "Receive into the send buffer: yes, no, both, native (per op).  [default: native]"),
        option(
            "--groups",
            "Groups of ranks: all, each (one rank at a time), div:N, mod:N, and:MASK, or:MASK, or a list: 0,1;2,3.  "
            "[default: all]",
        ),
        option("--root", "Root rank in every group, for rooted operations.  [default: 0]", int),
        option(
            "--no-baseline",
            "Do not add reference cases for models and peaks to --op: ping_pong, send_recv and host peaks.",
            is_flag=True,
        ),
        option("--imbalance", "all_to_all_v: imbalance of the traffic, 0 to 1.  [default: 0.5]", float),
        option(
            "--traffic", "all_to_all_v: CSV of traffic weights; rows send, columns receive.", click.Path(path_type=Path)
        ),
        option("--threads", "Threads per rank for memory kernels: 1,4 or 1..cores*2.  [default: one, not bound]"),
        option("--numa-node numa_nodes", "NUMA nodes on which to place host memory: 0,1.  [default: first touch]"),
        option("--pairs", "pair_matrix: measure disjoint pairs together, or each pair alone.  [default: together]"),
        option("--path", "storage_*, checkpoint_save: folder on the storage to measure, on every host.", click.Path()),
    ),
    Section(
        "Training steps",
        "busbw run --op train_ddp,train_fsdp --model 'Llama 3 8B' --scale 0.03",
        listed("--model models", "Models, comma-separated (busbw training models).  [default: per operation]"),
        option("--scale", "Factor for widths, layers, sequence length and batch.  [default: 0.01; MLP 1024: 1]", float),
        option("--micro-batches", "Micro-batches per step and replica: 1,4.  [default: 1; pipelines: 2 per stage]"),
        option(
            "--replicas",
            "Replicas of a model that ranks split: 1,2.  [default: 1; train_hsdp: 2 for an even number of ranks]",
        ),
        option("--expert-imbalance", "Load of the busiest rank's experts, relative to the mean.  [default: 1]", float),
        option("--capacity", "Expert capacity over its even share; excess is dropped.  [default: unlimited]", float),
        option("--compute", "Matrix products: real, or wait=20ms to sleep instead, per step.  [default: real]"),
        listed(
            "--slow-rank slow_ranks",
            "Delayed ranks: 1=20ms delays rank 1 in every step. Each is measured beside the step without delay.",
        ),
        listed(
            "--exchange exchanges",
            "train_exchange: methods of exchanging gradients, comma-separated: exact,local_sgd:4,int8.  [default: all]",
        ),
        option(
            "--record-trace",
            "Write a torch profiler trace of one step for every rank into the run folder.",
            is_flag=True,
            default=None,
        ),
    ),
    Section(
        "Timing",
        "busbw run --suite quick --mode isolated,pipelined --cache flushed",
        listed(
            "--mode modes",
            "How calls are timed, comma-separated: isolated, barriers, pipelined, persistent, graph, overlap.  "
            "[default: isolated]",
        ),
        option("--sync", "Synchronisation before a sample: none, barrier, dissemination, window.  [default: barrier]"),
        option("--cache", "Cache state before a call: warm, rotating (buffers in turn), flushed.  [default: warm]"),
        option(
            "--pre-enqueue",
            "GPU only: block the stream until all calls are enqueued, so that launch overhead is not timed.",
            is_flag=True,
            default=None,
        ),
        option(
            "--registered",
            "NCCL only: buffers of its own allocator, registered with its communicators.",
            is_flag=True,
            default=None,
        ),
    ),
    Section(
        "Ranks and backend",
        "busbw run --suite quick --backend mpi --ranks 4",
        option("--ranks", "Number of local ranks.  [default: one per GPU, else one per usable core, at least 2]", int),
        option("--backend", "Communication library (busbw list backends).  [default: gloo]"),
        option("--port", "Rendezvous port of local ranks.  [default: a free one]", click.IntRange(0, 65535), default=0),
    ),
    Section(
        "Repetition and limits",
        "busbw run --suite quick --launches 10 --precision 0.02",
        option("--launches", "Launches: repetitions of all cases, each in new processes.  [default: 1]", int),
        option("--duration", "Repeat all cases for this long: 30s, 90min, 8h."),
        option(
            "--max-seconds",
            "Time budget per case and launch: 0.5, 500ms.  [default: 0.5]",
            parse_seconds,
            metavar="TIME",
        ),
        option("--precision", "Stop sampling when the median is known to ± this fraction.  [default: 0.05]", float),
        option("--seed", "Random seed for the order of cases and the data.  [default: 1]", int),
        option(
            "--timeout timeout_seconds",
            "Silence until a rank counts as lost: 30, 2min.  [default: 60]",
            parse_seconds,
            metavar="TIME",
        ),
    ),
    Section(
        "Run and output",
        "busbw run --resume latest --quiet",
        option("--resume", "Complete an interrupted run (folder, name or latest) with its plan.", metavar="RUN"),
        option("--label", "Word that tells this run from others in lists, tables and comparisons, such as before."),
        option("--dry-run", "Print the cases and the estimated time without measuring.", is_flag=True),
        option("--quiet", "Print no progress and no table.", is_flag=True),
    ),
)


class _Run(Sectioned):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, with hints for an operation given without ``--op`` and for options of nccl-tests."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in _OF_NCCL_TESTS:
                raise
            raise click.UsageError(
                f"{error.message} Coming from nccl-tests, use {_OF_NCCL_TESTS[error.option_name]}", ctx
            ) from None
        except click.UsageError as error:
            plain = [word for word in given if not word.startswith("-")] if "unexpected extra" in error.message else []
            likely = next(filter(None, map(_option_for, plain)), None)
            if likely is not None:
                raise click.UsageError(f"{error.message}. Did you mean {likely}?", ctx) from None
            raise


def _option_for(word: str) -> str | None:
    """The option that ``word`` probably belongs to, with its value; None if there is none."""
    if word.endswith(".toml"):
        return f"--plan {word}"
    from busbw.ops import OPS  # noqa: PLC0415 - only for this hint
    from busbw.runs.plan import suites  # noqa: PLC0415 - as above

    options = [(option, name) for option, names in (("--op", OPS), ("--suite", suites())) for name in names]
    likely = nearest(word, [name for _, name in options])
    return next((f"{option} {name}" for option, name in options if name == likely), None)


_OF_NCCL_TESTS = {
    **dict.fromkeys(("-b", "-e", "-f"), "--sizes 8..64MiB*2 for -b 8 -e 64M -f 2"),
    **dict.fromkeys(("-g", "-t"), "--ranks for -t and -g"),
    "-R": "--registered for -R 1; nothing is like -R 2",
    "-o": "--redop for -o",
    "-d": "--dtype for -d",
    "-n": "--precision and --max-seconds for -n: busbw measures until a time is narrow enough",
    "-w": "warmup_calls in [timing] of a plan for -w",
    "-G": "--mode graph for -G",
    "-c": "nothing for -c: data are always checked, before and after timing",
    "-m": "--mode pipelined for -m: calls back to back, but not as one group of NCCL",
    "-J": "--json for -J; the run folder has every sample",
    "-z": "--mode barriers for -z 1",
    "-N": "--launches for -N: each in new processes",
    "-y": "nothing for -y: calls are on torch's default stream, which is the null stream",
    "-S": "nothing for -S: the run folder has the start of every block",
    "-C": "--mode overlap for -C: the report has the time of the host to post a call",
}
"""Options of nccl-tests (2.19.6, src/common.cu) → the corresponding option of busbw."""


@click.command(cls=_Run, sections=_SECTIONS)
@results_dir_option
@as_json_option
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
    **asked: Any,  # noqa: ANN401 - passed to the plan's field of that name, which checks it
) -> None:
    """Measure operations, on local ranks or on those that torchrun, mpirun or srun has started.

    Give --op, --suite or --plan. The results are printed as a table and stored in a run folder.
    """
    from busbw import launch  # noqa: PLC0415 - imports numpy
    from busbw.cli import measuring  # noqa: PLC0415 - as above
    from busbw.launch.run_session import Settings  # noqa: PLC0415 - as above
    from busbw.runs.plan import Timing  # noqa: PLC0415 - as above

    changes = {name: asked[name] for name in ("launches", "timeout_seconds")}
    timeout = Timing().timeout_seconds if asked["timeout_seconds"] is None else asked["timeout_seconds"]
    settings = Settings(results_dir, port, quiet or as_json)
    references: list[str] = []
    with measuring.report_interruption(), launch.session(settings, timeout) as world:
        if world.attached is not None and not world.attached.info.lead:
            from busbw.launch.attach import run_rank  # noqa: PLC0415 - imports torch

            result = run_rank(world.attached)
        elif resume is not None:
            result = measuring.resume_run(resume, changes, world, dry_run=dry_run, as_json=as_json)
        else:
            plan, references = measuring.asked_plan(suite, plan_file, ops, asked, alone=no_baseline)
            if dry_run:
                measuring.print_dry_run(plan, references, as_json=as_json)
            result = None if dry_run else launch.execute(plan, world)
    if result is None:
        return
    empty = not result.whole and measuring.lacks_what_was_asked(result, references)
    if result.speaks:
        measuring.conclude(result, empty=empty, quiet=quiet, as_json=as_json)
    if empty or (result.failed and not result.whole):
        click.get_current_context().exit(result.status)
