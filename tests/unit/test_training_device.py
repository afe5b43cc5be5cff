"""Steps of training on a device that only knows shapes: they compute where they were made, and read no data back."""

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch
import torch.distributed as dist
from testing.devices import DeviceScript, FakeDevice
from torch._C._distributed_c10d import FakeProcessGroup
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from training_ranks import MODELS, PAIRED, formula, workload

from busbw.backends.pytorch.training import WORKLOADS, observer
from busbw.backends.pytorch.training.observer import Call, Observer, counted, record, replay
from busbw.backends.pytorch.training.step import grid_of
from busbw.ops.training import Workload
from busbw.workloads.shapes import StepShape

SHAPES_ONLY: Final = torch.device("meta")
LIBRARIES: Final = {"train_ddp", "train_fsdp", "train_fsdp_kept", "train_fsdp_prefetch", "train_hsdp"}
"""Steps whose library has a list of the devices that it knows."""
MOVES: Final = {"aten::_to_copy", "aten::copy_"}


class OnOneDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations on tensors of the host and of the device together, but for single numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """One operation."""
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented
        if func.name() == "aten::_local_scalar_dense" and args[0].device.type == "meta":
            return 1  # ranks of a pipeline vote, at its first step
        tensors = [
            tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor) and tensor.dim()
        ]
        where = {tensor.device.type for tensor in tensors}
        assert len(where) < 2 or func.name() in MOVES, func.name()
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def rank(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """A rank of so many, whose process groups send nothing."""

    def silent(common: Any, options: Any) -> Any:  # noqa: ANN401
        made: Any = FakeProcessGroup._create_internal
        return made(common.group_rank, common.group_size, options)

    this, ranks = request.param
    dist.Backend.register_backend("shapes", silent, extended_api=True, devices=["cpu", "meta"])
    dist.init_process_group("shapes", rank=this, world_size=ranks, store=FakeStore())
    handle = SimpleNamespace(device_count=lambda: 1, is_initialized=lambda: True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "meta", handle, raising=False)
        yield this, ranks
    dist.destroy_process_group()
    grid_of.cache_clear()


@pytest.mark.parametrize("rank", [(1, 2)], indirect=True, ids=str)
@pytest.mark.parametrize("op", [op for op in PAIRED if op not in LIBRARIES])
def test_a_step_computes_where_it_was_made(rank: tuple[int, int], op: str) -> None:
    step = WORKLOADS[op](StepShape(workload(op, MODELS[op][-1])), *rank, None, SHAPES_ONLY)
    with Observer(silent=True), OnOneDevice():  # type: ignore[no-untyped-call]
        step.run()
    assert {parameter.device.type for parameter in step.network.parameters()} == {"meta"}


@pytest.mark.parametrize("rank", [(6, 8)], indirect=True, ids=str)
def test_a_grid_of_three_dimensions_sends_what_the_formulas_say(rank: tuple[int, int]) -> None:
    settings = Workload(model="Llama 3 8B", scale=1 / 128, dp=2, tp=2, pp=2, micro_batches=4, interleave=1)
    step = WORKLOADS["train_3d"](StepShape(settings), *rank, None, SHAPES_ONLY)
    with Observer(silent=True), OnOneDevice():  # type: ignore[no-untyped-call]
        step.run()  # a pipeline settles in its first step
    with Observer(silent=True, keep=True) as seen:
        step.run()
    sent: dict[str, int] = {}
    for (op, _, size), calls in counted(seen.calls).items():
        sent[op] = sent.get(op, 0) + size * calls
    assert sent == formula("train_3d", settings, rank[0])
    groups = {call.op: call.group for call in seen.calls if call.op}
    assert groups == {"all_reduce": 2, "send_recv": 2}


@pytest.mark.parametrize(("kind", "rest"), [("flash", ()), ("efficient", (None, True)), ("cudnn", (None, True))])
def test_fused_attention_of_gpus_has_the_flop_that_torch_counts(kind: str, rest: tuple[object, ...]) -> None:
    query, key, value = (torch.empty(2, 4, length, 64, dtype=torch.float16, device="meta") for length in (32, 96, 96))
    attention = getattr(torch.ops.aten, f"_scaled_dot_product_{kind}_attention")
    with FlopCounterMode(display=False) as counter, Observer() as seen:
        attention(query, key, value, *rest)
    assert seen.flop == counter.get_total_flops() == 4 * query.numel() * 96
    out = torch.empty_like(query)
    backward = observer._PRODUCTS[f"aten::_scaled_dot_product_{kind}_attention_backward"]
    assert backward((out, query, key, value)) == 2 * seen.flop


def test_a_timeline_of_a_device_is_by_its_own_marks() -> None:
    now = [1000]

    def set_now(ns: int) -> None:
        now[0] = ns

    device = FakeDevice(DeviceScript(launch_ns=10, unit_ns=100), lambda: now[0], set_now)

    class Work(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:  # noqa: ANN401, ARG004
            device.compute(5)
            return given + 1

    def step() -> None:
        for _ in range(2):
            Work.apply(torch.zeros(3))  # type: ignore[no-untyped-call]

    spans = record(step, lambda: now[0], device=device)
    assert device.log == ["wait", "compute", "compute", "wait"]
    assert [name for name, _, _ in spans] == ["compute"] * len(spans)
    begins = [begin for _, begin, _ in spans]
    assert begins == sorted(begins)
    assert begins[0] >= 1000
    assert spans[-1][2] == 2010


class Coalesced:
    """A process group that takes messages of a moment in one call."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def _start_coalescing(self, device: torch.device) -> None:
        self.log.append(f"begin on {device.type}")

    def _end_coalescing(self, device: torch.device) -> Any:  # noqa: ANN401
        self.log.append(f"end on {device.type}")
        return SimpleNamespace(wait=lambda: self.log.append("wait"))


def test_messages_of_a_device_go_in_one_call() -> None:
    """Each alone would wait on its stream for what the other rank has not begun."""
    log: list[str] = []
    among = Coalesced(log), SHAPES_ONLY
    send, receive = (Call(op, 8, 2, partial(log.append, op or "receive"), among) for op in ("send_recv", ""))
    replay(
        [send, receive, Call("all_reduce", 8, 2, lambda: SimpleNamespace(wait=lambda: log.append("all_reduce"))), send]
    )
    together = ["begin on meta", "send_recv", "receive", "end on meta"]
    assert log == [*together, "all_reduce", "begin on meta", "send_recv", "end on meta", "wait", "wait"]
