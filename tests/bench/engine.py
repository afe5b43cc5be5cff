"""How much faster two workers of a Dask cluster summarise runs than one: at least 1.4 times is wanted.

``make bench``, or ``PYTHONPATH=tests/shared python tests/bench/engine.py``.
"""

import tempfile
import time
from pathlib import Path

from distributed import LocalCluster
from testing.synthetic import World, case, synthetic_run, write_synthetic

from busbw.runs import store
from busbw_analysis.history.engine import engine_of
from busbw_analysis.history.index import summarise

RUNS = 60
WANTED = 1.4


def seconds(folders: list[Path], workers: int) -> float:
    """How long that many workers take to summarise all runs, after they have started and loaded what they need."""
    with (
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=workers, threads_per_worker=1, dashboard_address=None, silence_logs=50
        ) as cluster,
        engine_of(f"dask:{cluster.scheduler_address}") as engine,
    ):
        list(engine.map(summarise, folders[: 4 * workers]))
        for folder in folders:
            (folder / store.SUMMARY_FILE).unlink(missing_ok=True)
        began = time.perf_counter()
        failed = [outcome.error for outcome in engine.map(summarise, folders) if outcome.error]
        assert not failed, failed
        return time.perf_counter() - began


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="busbw-engine-") as place:
        cases = [case("all_reduce", 1 << step) for step in range(3, 23)]
        stored = synthetic_run(cases, World(launch_noise=0.01), launches=5, samples=100)
        folders = [write_synthetic(Path(place), stored) for _ in range(RUNS)]
        alone, together = seconds(folders, 1), seconds(folders, 2)
    met = "met" if alone / together >= WANTED else "MISSED"
    print(
        f"{RUNS} runs: {alone:.2f} s with one worker, {together:.2f} s with two: "
        f"{alone / together:.2f} times, wanted {WANTED}: {met}"
    )


if __name__ == "__main__":
    main()
