"""Memory of a step: what is alive at once, counted tensor by tensor, and held against the formulas."""

import pytest
import torch

from busbw.backends.pytorch.training.alive import Alive
from busbw.backends.pytorch.training.data_parallel import AllReduced
from busbw.backends.pytorch.training.step import BoundStep, Made, Reference
from busbw.ops.training import Workload
from busbw.workloads.shapes import StepShape


def test_what_is_alive_at_once_is_counted() -> None:
    known = torch.zeros(100)  # 400 B
    with Alive([known]) as seen:
        assert seen.peak_bytes == 400
        one = known + 1
        assert seen.peak_bytes == 800
        one.view(10, 10).add_(1)
        assert seen.peak_bytes == 800, "a view and what is done in place have no memory of their own"
        del one
        kept = torch.zeros(50)
        assert seen.peak_bytes == 800
        both = torch.cat((known, kept))
        assert seen.peak_bytes == 400 + 200 + 600
        both.untyped_storage().resize_(0)
        more = torch.zeros(100)
        assert seen.peak_bytes == 1200, "what was given up counts no more"
        del both, more


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_step_of_the_lecture_keeps_what_can_be_counted(micro_batches: int) -> None:
    """Four layers without bias, 64 wide, 8 rows of float32: inputs of both products and of gelu are kept."""
    one = Workload(model="MLP 1024", scale=1 / 16, dp=1, tp=1, pp=1, micro_batches=micro_batches, interleave=1)
    made = Made(StepShape(one), 0, 1, None)
    peak, weights, gradients = BoundStep(AllReduced(made), None, Reference(made)).memory()
    assert weights == gradients == 4 * 8 * 64 * 64
    activations = 8 // micro_batches * 64 * 4
    assert peak - weights - gradients >= 3 * activations
    added = 64 * 64 * 4 * (micro_batches > 1)  # to the gradient of the micro-batch before
    assert peak - weights - gradients <= 4 * 4 * activations + 8 * 64 * 4 * 4 + added
