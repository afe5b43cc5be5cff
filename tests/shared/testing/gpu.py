"""Tests on a GPU: a real one, or the simulated one where there is none."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import torch
import torch.distributed as dist

from busbw.backends.base import World
from testing.covered import recording

REAL: Final = torch.cuda.is_available()
GPUS: Final = torch.cuda.device_count() if REAL else 2
"""GPUs of this machine, or of the simulated one."""
FEWER: Final = 1 if REAL else 32
"""On a simulated GPU, whose kernels the host executes, sizes are divided by this."""
ON_GPU: Final = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # what torch and NCCL think of a world of one is not ours to mend
    *([pytest.mark.alone] if REAL else []),
]


@contextmanager
def world_of_one(**changes: Any) -> Iterator[World]:  # noqa: ANN401 - fields of a World
    """A world of one rank; ``lost`` raises."""

    def lost(error: Exception) -> None:
        raise error

    meeting = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    try:
        yield replace(World(0, 1, 0, "local", 60.0, store=("127.0.0.1", meeting.port), lost=lost), **changes)
    finally:
        if dist.is_initialized():  # a test has failed
            dist.destroy_process_group()


def heavy(test: Any) -> Any:  # noqa: ANN401 - a test
    """Mark a test that takes the host half a minute on a simulated GPU."""
    return test if REAL else pytest.mark.slow(test)


def run_on_gpus(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``busbw run`` over NCCL, with its results in ``folder`` and further variables of the environment."""
    seconds = "0.05" if REAL else "0.002"
    return busbw_on_gpus(folder, "run", "--backend", "nccl", "--max-seconds", seconds, *arguments, **variables)


def busbw_on_gpus(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command of busbw on the GPUs, with its results in ``folder``."""
    program = ["-m", "busbw"] if REAL else [*recording(), "-m", "simulated"]
    shared = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "BUSBW_RESULTS_DIR": str(folder), "PYTHONPATH": shared, **variables}
    command = [sys.executable, *program, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=170)
