"""Steps of training on one real GPU: verified, taken apart, drawn. Skipped, with the reason, without one."""

from collections.abc import Callable

import msgspec
import pytest
import torch
from exhaustive import thinned
from testing.gpu import ON_GPU, REAL, heavy
from testing.narrow import require
from testing.synthetic import case

from busbw.backends.base import Backend, Bound
from busbw.backends.pytorch.training.context_parallel import attention, attention_backward
from busbw.backends.pytorch.training.network import causal
from busbw.measure.unsupported import Place, skip_reason
from busbw.ops.training import Workload
from busbw.runs.cases import expand
from busbw.runs.plan import read_suite
from busbw.runs.records import Case, Measurement, StepParts

pytestmark = ON_GPU

STEPS = ("train_all_reduce", "train_ddp", "train_zero1", "train_fsdp", "train_fsdp_prefetch")
ALONE = Workload(model="Llama 3 8B", scale=1 / 32 if REAL else 1 / 256, dp=1, tp=1, pp=1, micro_batches=2, interleave=1)


@heavy
@pytest.mark.parametrize("op", thinned(STEPS, 2))
def test_a_step_of_one_rank_is_verified_and_taken_apart(measured: Callable[[Case], Measurement], op: str) -> None:
    step = case(op, 0, 1, backend="nccl", device="cuda", dtype=None)
    made = measured(msgspec.structs.replace(step, redop=None, settings=ALONE))
    assert made.check.state == "verified"
    assert isinstance(made.supplement, StepParts)
    assert min(*made.supplement.step_ns, *made.supplement.compute_ns) > 0
    spans = made.supplement.timeline[0].spans  # without communication, the computation is one
    assert 0 <= spans[0][1] < spans[-1][2]


def test_the_memory_of_a_step_is_its_own(backend: Backend) -> None:
    small = msgspec.structs.replace(ALONE, model="MLP 1024", scale=1 / 16)
    step = case("train_all_reduce", 0, 1, backend="nccl", device="cuda", dtype=None)
    nothing = torch.empty(0, device="cuda")

    def peak() -> int:
        bound = Bound(msgspec.structs.replace(step, redop=None, settings=small), nothing, nothing)
        return require(require(backend.bind(bound).parts)().memory)[0]

    before = peak()
    other = torch.zeros(before, dtype=torch.uint8, device="cuda")
    assert peak() == before == other.nbytes


@pytest.mark.parametrize(("rows", "columns", "masked"), [(64, 64, True), (40, 24, False)])
def test_the_kernels_of_ring_attention_are_those_of_torch(rows: int, columns: int, *, masked: bool) -> None:
    query, key, value = (
        torch.randn(2, 4, length, 16, device="cuda", requires_grad=True) for length in (rows, columns, columns)
    )
    out, sums = attention(query, key, value, causal=masked)
    wanted = causal(query, key, value) if masked else torch.softmax(query @ key.mT / 4, -1) @ value
    assert torch.allclose(out, wanted, atol=1e-5)
    if not masked:
        assert torch.allclose(sums, torch.logsumexp(query @ key.mT / 4, -1), atol=1e-5)
    gradient = torch.randn_like(out)
    wanted.backward(gradient)  # type: ignore[no-untyped-call]
    gradients = attention_backward(gradient, query, key, value, out, sums, causal=masked)
    for computed, tensor in zip(gradients, (query, key, value), strict=True):
        assert torch.allclose(computed, require(tensor.grad), atol=1e-4)


def test_what_the_suite_asks_of_eight_gpus_is_refused_nowhere(backend: Backend) -> None:
    """A dry pass: what it asks for can be run, whatever its steps would take."""
    cases = expand(read_suite("training-gpu"), 8, 1, "cuda").cases
    place = Place(oversubscribed=False, comparable=True)
    refused = {case.op: reason for case in cases if (reason := skip_reason(case, backend, place)) is not None}
    # Four layers on eight stages; a server receives from any rank, which NCCL cannot.
    assert set(refused) <= {"train_interleaved", "train_gpipe", "train_1f1b", "train_exchange"}
