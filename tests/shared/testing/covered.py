"""Lines of the GPU side that tests execute, for ``make test``: in pytest and in the ranks that it starts."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from coverage import Coverage

FOLDER: Final = os.environ.get("BUSBW_COVERAGE")
"""Where every process writes what it has executed; None: nothing is recorded."""
_ROOT: Final = Path(__file__).parents[3]
GPU_SIDE: Final = tuple(
    _ROOT / "bench/busbw" / name
    for name in (
        "backends/cuda.py",
        "backends/local/compute.py",
        "backends/local/device.py",
        "backends/local/latency.py",
        "backends/local/signature.py",
        "backends/pytorch/calls.py",
        "backends/pytorch/nccl.py",
        "backends/pytorch/nccl_calls.py",
        "backends/pytorch/nccl_tuning.py",
        "backends/watchdog.py",
        "measure/loops.py",
        "measure/sampling.py",
        "system/device.py",
        "system/nvml.py",
    )
)
"""The files that only a GPU needs, and those whose calls go to one. Not those of training and of kernels in memory,
whose lines are the host's, or of any device.
"""


_FILES: Final = list(map(str, GPU_SIDE))


@contextmanager
def recorded() -> Iterator[None]:
    """Record the lines that this process executes in the block."""
    if FOLDER is None:
        yield
        return
    Path(FOLDER).mkdir(parents=True, exist_ok=True)
    lines = Coverage(f"{FOLDER}/lines", data_suffix=True, include=_FILES, config_file=False)
    lines.set_option("run:disable_warnings", ["no-data-collected"])  # by tests that are all skipped
    lines.start()
    try:
        yield
    finally:
        lines.stop()
        lines.save()


def recording() -> list[str]:
    """Arguments of Python that record the program of those that follow, with the processes that it forks."""
    options = [f"--data-file={FOLDER}/lines", f"--include={','.join(_FILES)}"]
    return [] if FOLDER is None else ["-m", "coverage", "run", f"--rcfile={_ROOT}/pyproject.toml", *options]
