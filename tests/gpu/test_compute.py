"""Kernels that compute, on one real GPU: verified in every type and mode. Skipped, with the reason, without one."""

from collections.abc import Callable

import pytest
import torch

from busbw.backends import BACKENDS
from busbw.records import DTYPE_BYTES, Case, Measurement, Mode
from busbw.testing.synthetic import case

MISSING = BACKENDS["nccl"].missing() or (None if torch.cuda.is_available() else "torch.cuda is not available")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(MISSING is not None, reason=f"needs a GPU: {MISSING}"),
    pytest.mark.filterwarnings("default"),  # what torch and NCCL think of a world of one is not ours to mend
]

Measure = Callable[[Case], Measurement]

_ELEMENTS = {"matmul": 1024 * 1024, "attention": 512 * 1024, "attention_unfused": 512 * 1024}


@pytest.mark.parametrize("name", _ELEMENTS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_every_type_is_verified(measured: Measure, name: str, dtype: str) -> None:
    size = _ELEMENTS[name] * DTYPE_BYTES[dtype]
    made = measured(case(name, size, 1, backend="nccl", device="cuda", dtype=dtype))
    assert made.check.state == "verified"


@pytest.mark.parametrize("name", _ELEMENTS)
@pytest.mark.parametrize("mode", ["pipelined", "graph"])
def test_rows_and_graphs_are_verified_and_timed_by_the_device(measured: Measure, name: str, mode: Mode) -> None:
    made = measured(case(name, 2 * _ELEMENTS[name], 1, backend="nccl", device="cuda", dtype="bfloat16", mode=mode))
    assert made.check.state == "verified"
    assert made.groups[0].timed_by == "device"
