"""What goes wrong on a GPU is named, and what comes after it is measured: of a real one as of a simulated one."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from testing.gpu import ON_GPU, REAL, run_on_gpus
from testing.synthetic import case

from busbw.backends.base import Backend, Bound, Operation, in_order
from busbw.backends.faults import CorruptingBackend, WrappingBackend
from busbw.measure.bench import Bench
from busbw.measure.block import measure
from busbw.runs import store
from busbw.runs.records import Case, Failed, Measurement, Mode

pytestmark = ON_GPU


class GreedyBackend(WrappingBackend):
    """Every call asks for more memory than there is."""

    def bind(self, bound: Bound) -> Operation:
        """Bind the call of ``inner``, followed by the allocation."""
        inner = self.inner.bind(bound)
        assert bound.send.is_cuda
        free, _ = torch.cuda.mem_get_info()

        def ask() -> None:
            torch.empty(2 * free + (1 << 40), dtype=torch.uint8, device=bound.send.device)

        return replace(inner, call=in_order(inner.call, ask), post=None)


@pytest.mark.parametrize("op", ["memory_copy", "all_gather"])
@pytest.mark.parametrize("mode", ["isolated", "pipelined"])
@pytest.mark.parametrize(("wrong", "cause"), [(CorruptingBackend, "wrong_data"), (GreedyBackend, "backend")])
def test_a_fault_fails_its_case_and_no_other(
    bench: Bench,
    measured: Callable[[Case], Measurement],
    op: str,
    mode: Mode,
    wrong: Callable[[Backend], Backend],
    cause: str,
) -> None:
    setting = case(op, 1 << 12, 1, backend="nccl", device="cuda", mode=mode)
    made = measure(replace(bench, backend=wrong(bench.backend)), setting, (), launch=0, block=0)
    assert isinstance(made, Failed)
    assert made.cause == cause
    assert measured(setting).check.state == "verified"


FAILING = """
import sys
import torch
from busbw.backends import BACKENDS
from busbw.backends.base import in_order
from busbw.backends.faults import WrappingBackend, wrapped
from busbw.cli.main import main
from dataclasses import replace

class FailingBackend(WrappingBackend):
    def bind(self, bound):
        inner, place = self.inner.bind(bound), bound.send.device
        numbers, beyond = torch.zeros(1, device=place), torch.tensor([7], device=place)
        return replace(inner, call=in_order(inner.call, lambda: numbers[beyond]), post=None)

BACKENDS["nccl"] = wrapped(BACKENDS["nccl"], FailingBackend)
sys.exit(main())
"""
"""busbw, whose calls launch a kernel that reads beyond an array: CUDA then refuses all that this process asks for."""


@pytest.mark.skipif(not REAL, reason="the host of a simulated GPU checks indices itself; test_command.py loses a GPU")
def test_a_kernel_that_fails_ends_the_launch_with_cudas_words(tmp_path: Path) -> None:
    options = ["run", "--backend", "nccl", "--ranks", "1", "--op", "memory_copy", "--sizes", "1KiB"]
    command = [sys.executable, "-c", FAILING, *options, "--results-dir", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "rank 0" in ran.stderr
    assert "CUDA error" in ran.stderr


def test_what_the_memory_does_not_hold_is_refused_before(tmp_path: Path) -> None:
    ran = run_on_gpus(tmp_path, "--op", "memory_copy", "--sizes", "1KiB,1TiB", "--ranks", "1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (folder,) = store.folders(tmp_path)
    run = store.read(folder)
    assert {row.case.size_bytes for row in run.measurements} == {1 << 10}
    assert {row.case.size_bytes for row in run.skipped} == {1 << 40}
