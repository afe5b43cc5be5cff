"""The runs by which the instrument is judged: the same thing twice, a rank that is late on purpose, and wrong data.

They are runs like any others, over the same launcher, backend and store; only what the backend does is spoilt in two of
them. What they show is for the analysis to say.
"""

import importlib
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from busbw import launch
from busbw.backends import backend_named
from busbw.backends.base import Backend, BackendRow
from busbw.backends.faults import CorruptingBackend, DelayingBackend, wrapped
from busbw.cli.options import json_option, results_dir_option
from busbw.errors import UsageError
from busbw.escape import echo
from busbw.launch.base import Settings
from busbw.launch.launchers import launcher_here
from busbw.runs import store
from busbw.runs.plan import Plan, Sweep, Timing
from busbw.system import environment

DELAY_SECONDS = 0.002
DELAY_SHARE = 0.3
"""The rank with the highest number is so much late in so many samples."""

LAUNCHES_A_SIDE = 10
"""The same case is measured by two times so many launches, in the order A B B A, and compared with itself."""

FOLDER = "selftests"
"""Where self-tests are kept below a machine's results: apart from its runs, so that none is taken for one."""

_TIMING = Timing(
    blocks=1, max_seconds=0.2, min_seconds=0.05, launch_warmup_seconds=0.5, warmup_seconds=0.02, timeout_seconds=60.0
)
_SAME = (Sweep(ops=("all_reduce",), sizes="8,1MiB"), Sweep(ops=("barrier",)))
_LATE = (Sweep(ops=("all_reduce", "all_gather"), sizes="8,64KiB"), Sweep(ops=("barrier",)))
_WRONG = (Sweep(ops=("all_reduce", "all_gather", "broadcast"), sizes="1KiB"),)


TRUTH_FILE = "truth.json"
"""What was done on purpose, beside the runs: the analysis has to find it."""


def run_selftest(
    results_dir: Path,
    *,
    backend: str,
    ranks: int | None,
    launches: int = LAUNCHES_A_SIDE,
    say: Callable[[str], None],
) -> Path:
    """Take the three runs on this machine and return the folder that holds them; ``say`` hears what is being done.

    The comparison with itself has ``launches`` launches a side; below 6 it could not find a difference in three cases.

    Raises UsageError inside another launcher's world (the comparison needs fresh launches), BusbwError when a run
    breaks: an instrument that cannot even run has failed, too.
    """
    around = launcher_here(os.environ).name
    if around != "local":
        raise UsageError(
            f"a self-test starts its own ranks again and again, on one host; run it outside of {around}, or in a step "
            "of one task (srun --ntasks=1 busbw selftest)"
        )
    row = backend_named(backend)
    if ranks is None:
        ranks = launch.ranks_of(Plan(backend=backend, sweep=_SAME), os.environ)
    if ranks < 2:
        raise UsageError(f"a self-test needs ranks that talk to each other: at least 2; given {ranks}")
    plan = Plan(name="selftest", backend=backend, ranks=ranks, timing=_TIMING, sweep=_SAME)
    last = ranks - 1
    stamp = store.create(results_dir / environment.machine_name(), FOLDER)
    settings = Settings(stamp, quiet=True)

    def take(name: str, sweep: tuple[Sweep, ...], launches: int, spoilt: BackendRow) -> Path:
        wanted = msgspec.structs.replace(plan, name=f"selftest {name}", sweep=sweep, launches=launches)
        return launch.execute(wanted, settings, spoilt).folder

    def late(inner: Backend) -> Backend:
        return DelayingBackend(inner, last, DELAY_SECONDS, DELAY_SHARE, seed=plan.seed)

    def wrong(inner: Backend) -> Backend:
        return CorruptingBackend(inner) if inner.rank == last else inner

    say(f"the same thing twice: 2 × {launches} launches of {ranks} ranks")
    same = take("same", _SAME, 2 * launches, row)
    say(f"rank {last} comes {1e3 * DELAY_SECONDS:g} ms late in {DELAY_SHARE:.0%} of the samples")
    delayed = take("late", _LATE, 2, wrapped(row, late))
    say(f"rank {last} gets wrong data")
    spoilt = take("wrong", _WRONG, 1, wrapped(row, wrong))
    truth = {
        "runs": {
            name: str(run.relative_to(stamp)) for name, run in (("same", same), ("late", delayed), ("wrong", spoilt))
        },
        "backend": backend,
        "ranks": ranks,
        "usable_cores": environment.usable_cores(),
        "late_rank": last,
        "late_ns": round(DELAY_SECONDS * 1e9),
        "late_share": DELAY_SHARE,
    }
    (stamp / TRUTH_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(truth), indent=2) + b"\n")
    return stamp


@click.command()
@click.option("--ranks", type=int, help="Ranks to start here.  [default: one a usable core, at least 2]")
@click.option("--backend", default="gloo", show_default=True, help="Communication library (busbw list backends).")
@click.option(
    "--launches",
    # With 4 a side no p-value of three cases can be below 0.086 after Holm: the check could not fail.
    type=click.IntRange(6, 1000),
    default=10,
    show_default=True,
    help="Launches on either side of the comparison of a thing with itself; more resolve finer differences.",
)
@results_dir_option
@json_option
def selftest(*, ranks: int | None, backend: str, launches: int, results_dir: Path, as_json: bool) -> None:
    """Test the instrument on this machine, in about a minute, and say how far its numbers can be trusted.

    Exit status 1 when they cannot. Reports of this machine say what was found.
    """
    folder = run_selftest(
        results_dir,
        backend=backend,
        ranks=ranks,
        launches=launches,
        say=lambda text: echo(f"busbw: {text}", err=True),
    )
    judge = importlib.import_module("busbw_analysis.diagnosis.selftest")
    judged = judge.judge_selftest(folder)
    kept = judge.write_selftest(folder, judged)
    echo(json.dumps(judge.as_json(judged), indent=2, ensure_ascii=False) if as_json else judge.as_text(judged))
    echo(f"kept in {shlex.quote(str(kept))}", err=True)
    if judged.failures:
        click.get_current_context().exit(1)
