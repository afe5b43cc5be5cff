"""Results folders of many runs whose truth is known: nightly runs, with a change from some night on."""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np

from busbw.runs import store
from busbw.runs.records import JSON, Case
from busbw_analysis.history import index
from testing.synthetic import Machine, Piece, World, case, synthetic_run

FIRST_NIGHT = datetime(2026, 2, 12, 2)  # noqa: DTZ001 - stored as UTC
CASES = (case("all_reduce", 1 << 10, 2), case("all_reduce", 1 << 20, 2), case("all_gather", 1 << 20, 2))


def write_night(
    results_dir: Path,
    night: int,
    cases: Sequence[Case] = CASES,
    *,
    slower: float = 1.0,
    facts: Mapping[str, JSON] | None = None,
    name: str = "",
    launches: int = 2,
) -> Path:
    """Write the run of ``night`` and return its folder. From 1 MiB on a call takes ``slower`` times as long.

    facts: of its host; name: of its folder instead of the one by time
    """
    pace = float(np.exp(np.random.default_rng(night).normal(0, 0.005)))
    pieces = (Piece(20e-6 * pace, 1e-10 * pace), Piece(20e-6 * pace * slower, 1e-10 * pace * slower, 1 << 20))
    machine = Machine(name="cluster", facts=facts or {})
    stored = synthetic_run(
        cases, World(pieces=pieces, launch_noise=0.005), machine=machine, launches=launches, samples=5, seed=night
    )
    started = (FIRST_NIGHT + timedelta(days=night)).isoformat(timespec="milliseconds") + "Z"
    name = name or f"night-{night:03}"
    folder = results_dir / "cluster" / name
    folder.mkdir(parents=True, exist_ok=True)
    write_run(folder, replace(stored, run=msgspec.structs.replace(stored.run, id=name, started=started)))
    return folder


def write_run(folder: Path, stored: store.StoredRun) -> None:
    """Write a run into ``folder``, in place of one that is there."""
    for name in {*store.PLACES, store.SUMMARY_FILE}:
        (folder / name).unlink(missing_ok=True)
    store.write_run(folder, stored.run)
    with store.Appender(folder) as appender:
        for row in stored.rows:
            appender.append(row)


def summarise_or_die(marker: Path, folder: Path) -> index.Outcome:
    """Summarise a run. The first process that comes here without ``marker`` leaves it, and is killed."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return index.summarise(folder)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
