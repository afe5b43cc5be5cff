"""Memory of a step: what is alive at once, counted tensor by tensor, and held against the formulas."""

import pytest
import torch

from busbw.backends.pytorch.training.data_parallel import AllReduced
from busbw.backends.pytorch.training.observer import Alive
from busbw.backends.pytorch.training.step import BoundStep
from busbw.ops.training import Workload
from busbw.workloads.shapes import StepShape


def test_what_is_alive_at_once_is_counted() -> None:
    known = torch.zeros(100)  # 400 B
    with Alive([known]) as seen:
        assert seen.peak_bytes == 400
        shifted = known + 1
        assert seen.peak_bytes == 800
        shifted.view(10, 10).add_(1)
        assert seen.peak_bytes == 800, "a view and what is done in place have no memory of their own"
        del shifted
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
    workload = Workload(model="MLP 1024", scale=1 / 16, dp=1, tp=1, pp=1, micro_batches=micro_batches, interleave=1)
    peak, weights, gradients = BoundStep(AllReduced(StepShape(workload), 0, 1, None)).memory()
    assert weights == gradients == 4 * 8 * 64 * 64
    activations = 8 // micro_batches * 64 * 4
    assert peak - weights - gradients >= 3 * activations
    added = 64 * 64 * 4 * (micro_batches > 1)  # to the gradient of the micro-batch before
    assert peak - weights - gradients <= 4 * 4 * activations + 8 * 64 * 4 * 4 + added


def test_what_shrinks_and_grows_unseen_counts_as_it_is() -> None:
    with Alive([]) as seen:
        first, second = torch.zeros(100), torch.zeros(60)
        assert seen.peak_bytes == 640
        first.untyped_storage().resize_(0)
        third = torch.zeros(120)
        assert seen.peak_bytes == 240 + 480
        first.untyped_storage().resize_(400)
        first.fill_(1)
        assert seen.peak_bytes == 400 + 240 + 480
        del second, third
        more = [torch.zeros(100) for _ in range(3)]
        assert seen.peak_bytes == 4 * 400
        assert len(more) == 3
