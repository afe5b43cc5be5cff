"""The self-test: an A/A comparison, a rank that is delayed on purpose, and data that are corrupted on purpose.

These are normal runs with the same launcher, backend and store; in two of them the backend is wrapped to inject a
fault. The analysis evaluates them.
"""

import importlib
import json
import os
from pathlib import Path

import click
import msgspec

from busbw import launch
from busbw.backends import backend_named
from busbw.backends.base import Backend
from busbw.backends.faults import CorruptingBackend, DelayingBackend, wrapped
from busbw.errors import UsageError
from busbw.escape import as_argument, echo, say
from busbw.launch.launchers import launcher_here
from busbw.launch.run_session import Settings
from busbw.runs import store
from busbw.runs.plan import Plan, Sweep, Timing
from busbw.runs.selftest import FOLDER, TRUTH_FILE, RunFolders, Truth
from busbw.shared_options import as_json_option, results_dir_option
from busbw.system import environment

DELAY_SECONDS = 0.002
DELAY_SHARE = 0.3
"""The last rank is delayed by this time in this share of the samples."""

LAUNCHES_A_SIDE = 10
"""Launches per side of the A/A comparison; the order of sides is A B B A."""

_TIMING = Timing(
    blocks=1, max_seconds=0.2, min_seconds=0.05, launch_warmup_seconds=0.5, warmup_seconds=0.02, timeout_seconds=60.0
)
_SAME = (Sweep(ops=("all_reduce",), sizes="8,1MiB"), Sweep(ops=("barrier",)))
_STRAGGLER = (Sweep(ops=("all_reduce", "all_gather"), sizes="8,64KiB"), Sweep(ops=("barrier",)))
_WRONG = (Sweep(ops=("all_reduce", "all_gather", "broadcast"), sizes="1KiB"),)


def _measured(results_dir: Path, backend: str, ranks: int | None, launches: int) -> Path:
    """Measure the three runs on this machine, print the progress, and return their folder.

    ``launches``: launches per side of the A/A comparison; with fewer than 6 it cannot find a difference in three cases.

    Raises UsageError below another launcher, because the comparison needs new launches, and BusbwError when a run
    fails.
    """
    launcher = launcher_here(os.environ)
    if not launcher.local:
        raise UsageError(
            f"the self-test starts its own ranks, several times, on one host; run it outside of {launcher.name}, or "
            "in a Slurm step of one task (srun --ntasks=1 busbw selftest)"
        )
    row = backend_named(backend)
    if ranks is None:
        ranks = launch.ranks_of(Plan(backend=backend, sweep=_SAME), os.environ)
    if ranks < 2:
        raise UsageError(f"--ranks {ranks}: the self-test needs at least 2 ranks")
    plan = Plan(name="selftest", backend=backend, ranks=ranks, timing=_TIMING, sweep=_SAME)
    last = ranks - 1
    stamp = store.create(results_dir / environment.machine_name(), FOLDER)
    settings = Settings(stamp, quiet=True)

    def delayed(inner: Backend) -> Backend:
        return DelayingBackend(inner, last, DELAY_SECONDS, DELAY_SHARE, seed=plan.seed)

    def corrupted(inner: Backend) -> Backend:
        return CorruptingBackend(inner) if inner.rank == last else inner

    delay = f"{1e3 * DELAY_SECONDS:g} ms late in {DELAY_SHARE:.0%} of the samples"
    runs = {}
    for name, text, sweep, count, faulty in (
        ("same", f"A/A comparison: 2 × {launches} launches of {ranks} ranks", _SAME, 2 * launches, row),
        ("straggler", f"straggler detection: rank {last} is {delay}", _STRAGGLER, 2, wrapped(row, delayed)),
        ("wrong", f"data verification: rank {last} receives wrong data", _WRONG, 1, wrapped(row, corrupted)),
    ):
        say(text)
        variant = msgspec.structs.replace(plan, name=f"selftest {name}", sweep=sweep, launches=count)
        runs[name] = str(launch.execute(variant, settings, faulty).folder.relative_to(stamp))
    truth = Truth(
        runs=RunFolders(**runs),
        backend=backend,
        ranks=ranks,
        usable_cores=environment.usable_cores(),
        straggler_rank=last,
        straggler_delay_ns=round(DELAY_SECONDS * 1e9),
        straggler_share=DELAY_SHARE,
    )
    (stamp / TRUTH_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(truth), indent=2) + b"\n")
    return stamp


@click.command()
@click.option("--ranks", type=int, help="Number of local ranks.  [default: one per usable core, at least 2]")
@click.option("--backend", default="gloo", show_default=True, help="Communication library (busbw list backends).")
@click.option(
    "--launches",
    # With 4 per side, no p-value of three cases can be below 0.086 after Holm: the check could never fail.
    type=click.IntRange(6, 1000),
    default=LAUNCHES_A_SIDE,
    show_default=True,
    help="Launches per side of the A/A comparison; more launches resolve smaller differences.",
)
@results_dir_option
@as_json_option
def selftest(*, ranks: int | None, backend: str, launches: int, results_dir: Path, as_json: bool) -> None:
    """Test in about a minute whether measurements on this machine can be trusted.

    Checks the timer, clock synchronisation, an A/A comparison, straggler detection and data verification. Exits with 1
    if results are not valid. Reports of this machine include the outcome.
    """
    folder = _measured(results_dir, backend, ranks, launches)
    judge = importlib.import_module("busbw_analysis.diagnosis.selftest")
    judged = judge.judge_selftest(folder)
    kept = judge.write_selftest(folder, judged)
    echo(json.dumps(judge.as_json(judged), indent=2, ensure_ascii=False) if as_json else judge.as_text(judged))
    echo(f"stored in {as_argument(kept)}", err=True)
    if judged.failures:
        click.get_current_context().exit(1)
