"""One training step on one rank: building it, running it, checking it against one process, and timing its parts."""

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from busbw.backends.base import Bound, Limits, Operation
from busbw.backends.parts import Interval, Parts
from busbw.backends.pytorch.training.network import Network, batch_of, loss_of
from busbw.backends.pytorch.training.observer import Alive, Observer, Waits, counted, record, replay
from busbw.errors import BackendError
from busbw.ops import OPS
from busbw.ops.base import Split, first_reason
from busbw.ops.training import Workload, parse_exchange
from busbw.runs.records import Case
from busbw.system.device import Device
from busbw.workloads.model_rows import parameters
from busbw.workloads.shapes import StepShape

LEARNING_RATE: Final = 1.0
"""Large, so that a gradient that was not applied is visible in the weights."""
SEED: Final = 1
"""Seed of weights and data."""


_HOST: Final = torch.device("cpu")


@cache
def grid_of(device: str, dimensions: tuple[tuple[str, int], ...]) -> Any:  # noqa: ANN401 - torch's device mesh
    """Mesh of all ranks; cached, so that its groups are created once."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415

    names, degrees = zip(*dimensions, strict=True)
    return init_device_mesh(device, degrees, mesh_dim_names=names)


Whole = Callable[[str], torch.Tensor]
"""Name of a parameter → its gradient, or its weights, in one process."""


class Step:
    """A training step on one rank. ``__init__`` builds this rank's part of the model.

    shape: shape of the step.
    rank, ranks: this rank and the number of ranks.
    group: torch's process group (None: all ranks).
    device: device of weights and data.
    """

    def __init__(self, shape: StepShape, rank: int, ranks: int, group: Any, device: torch.device = _HOST) -> None:  # noqa: ANN401
        self.shape, self.rank, self.ranks, self.group, self.device = shape, rank, ranks, group, device
        self.loss = torch.zeros(())
        self.given, self.wanted = (self.slice_of(tensor).to(device) for tensor in batch_of(shape.model, SEED))
        self.network: nn.Module = self.make()
        self._initial = [parameter.detach().clone() for parameter in self.network.parameters()]

    @cached_property
    def degrees(self) -> dict[str, int]:
        """All ranks as a grid, outermost dimension first, so that ranks that communicate most are neighbours.

        Here ``dp`` is the number of copies of the groups that ``shard`` and ``ep`` divide.
        """
        workload = self.shape.workload
        degrees = {name: getattr(workload, name) for name in ("dp", "shard", "ep", "pp", "cp", "tp")}
        return degrees | {"dp": workload.dp // (workload.shard * workload.ep)}

    def place(self, name: Split) -> int:
        """Index of this rank in dimension ``name``."""
        names = list(self.degrees)
        inner = math.prod(self.degrees[dimension] for dimension in names[names.index(name) + 1 :])
        return self.rank // inner % self.degrees[name]

    def slice_of(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of the data: sequences of its replica."""
        replicas = self.shape.workload.dp
        return whole.chunk(replicas)[self.rank * replicas // self.ranks].clone()

    def build(self, layers: range | None = None, experts: range | None = None) -> Network:
        """The model, or its part with these layers and experts, on this rank's device."""
        shape = self.shape
        return Network(shape.model, SEED, layers, choice=shape.choice, experts=experts).to(self.device)

    def mesh(self, *names: Split) -> Any:  # noqa: ANN401 - torch's device mesh
        """Mesh of the ranks that differ from this one in dimensions ``names``, without dimensions of size 1."""
        grid = {name: number for name, number in self.degrees.items() if number > 1}
        if len(grid) < 2:
            from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415 - takes half a second

            group: Any = dist.group.WORLD if self.group is None else self.group
            return DeviceMesh.from_group(group, self.device.type)
        return grid_of(self.device.type, tuple(grid.items()))[tuple(name for name in names if name in grid)]

    def messages(self, name: Split) -> Any:  # noqa: ANN401 - torch's process group
        """Process group of the ranks that differ from this one in dimension ``name``, for messages.

        On a GPU with its communicator: a batch of messages makes one only if all ranks of the group take part in it
        (torch.distributed.batch_isend_irecv), and a pipeline of known shapes begins without any.
        """
        group = self.mesh(name).get_group()
        if self.device.type == "cuda":
            dist.all_reduce(torch.zeros(1, device=self.device), group=group)
        return group

    @cached_property
    def replicas(self) -> Any:  # noqa: ANN401 - torch's process group
        """Ranks with the same part of the model and different data; None if there are no others."""
        names: list[Split] = [name for name in ("dp", "shard", "ep", "cp") if self.degrees[name] > 1]
        if not names:
            return None
        mesh = self.mesh(*names)
        return (mesh if mesh.ndim == 1 else mesh._flatten()).get_group()  # noqa: SLF001 - torch names it so

    @property
    def flop(self) -> int:
        """FLOP of the matrix products of all ranks together."""
        return self.shape.flop

    def make(self) -> nn.Module:
        """Build this rank's part of the model, ready for training; here the whole model."""
        return self.build()

    def run(self) -> None:
        """Run the step: new gradients, synchronisation, update."""
        self.network.zero_grad(set_to_none=True)
        self.backward()
        self.synchronise()
        self.update()

    def backward(self) -> None:
        """Forward and backward pass of all micro-batches, with accumulated gradients."""
        pieces = self.shape.workload.micro_batches
        losses: list[torch.Tensor] = []
        for given, target in zip(self.given.chunk(pieces), self.wanted.chunk(pieces), strict=True):
            losses.append(self.pass_of(given, target, pieces, last=len(losses) == pieces - 1))
        self.loss = torch.stack(losses).sum()

    def pass_of(self, given: torch.Tensor, target: torch.Tensor, pieces: int, *, last: bool) -> torch.Tensor:  # noqa: ARG002
        """Forward and backward pass of one micro-batch; returns its share of the mean loss."""
        # The input has a gradient, as if other layers preceded the first one; tokens have none.
        given = given.detach().requires_grad_(given.is_floating_point())
        loss = loss_of(self.network(given), target) / pieces
        torch.autograd.backward(loss)
        return loss.detach()

    def synchronise(self) -> None:
        """Communication after the backward pass: average the gradients over replicas in one call."""
        if self.replicas is not None:
            average([_local(parameter.grad) for parameter in self.network.parameters()], self.replicas)

    def update(self) -> None:
        """Gradient descent."""
        with torch.no_grad():
            for parameter in self.network.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=LEARNING_RATE)

    def reset(self) -> None:
        """Restore the initial weights, with which every step starts."""
        with torch.no_grad():
            for parameter, initial in zip(self.network.parameters(), self._initial, strict=True):
                parameter.copy_(initial)

    @property
    def copied_bytes(self) -> int:
        """Bytes of the copy of the initial weights."""
        return _bytes(map(_local, self._initial))

    def silence(self) -> AbstractContextManager[Any]:
        """Context, used with a silent observer, in which a step does not communicate."""
        return nullcontext()

    def values(self, gradient: Whole, weight: Whole) -> Iterator[tuple[torch.Tensor | None, torch.Tensor]]:
        """This rank's part of each gradient and updated weight, and the expected part."""
        for name, parameter in self.named():
            yield _local(parameter.grad), cut(gradient(name), parameter)
            yield _local(parameter.detach()), cut(weight(name), parameter)

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters by their names in the whole model."""
        yield from self.network.named_parameters()

    @property
    def knows_loss(self) -> bool:
        """Whether this rank computes the loss."""
        return True


def average(tensors: Sequence[torch.Tensor], group: Any) -> None:  # noqa: ANN401 - torch's process group
    """Average ``tensors`` over the ranks of ``group`` in one all_reduce, as libraries do in buckets."""
    if tensors:
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat, dist.ReduceOp.AVG, group=group)
        for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


MakeStep = Callable[..., Step]
"""Builds a step from its shape, this rank, the number of ranks, their process group and device."""


def _local(tensor: Any) -> Any:  # noqa: ANN401 - a tensor, a DTensor or None
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def cut(whole: torch.Tensor, like: Any) -> torch.Tensor:  # noqa: ANN401 - a tensor or DTensor
    """The part of ``whole`` that corresponds to ``like`` on this rank: all of it, or its DTensor shard."""
    for dimension, placement in enumerate(getattr(like, "placements", ())):
        if placement.is_shard():
            mesh = like.device_mesh
            pieces = whole.chunk(mesh.size(dimension), dim=placement.dim)
            place = mesh.get_local_rank(dimension)
            whole = pieces[place] if place < len(pieces) else whole.narrow(placement.dim, 0, 0)
    return whole


# --- check against one process ---------------------------------------------------------------------------------------


class Reference:
    """``step`` in one process on the whole batch, computed on the step's device and kept on the host."""

    def __init__(self, step: Step) -> None:
        self._step, model = step, step.shape.model
        network = step.build()
        given, self._wanted = batch_of(model, SEED)
        out = network(given.to(step.device))
        torch.autograd.backward(loss_of(out, self._wanted.to(step.device)))
        self._out = out.detach().cpu()
        self._network = dict(network.cpu().named_parameters())
        inner = max(model.ffn, model.expert_ffn, model.heads * model.key_dim)
        longest = max(step.shape.tokens, model.hidden, inner, model.vocabulary)
        # A value passes through every product of a layer once in the forward and once in the backward pass. Each sums
        # up to ``longest`` numbers, whose rounding errors accumulate like a random walk.
        chain = 2 * (model.layers * ((8 if model.kv_rank else 6) if model.heads else 2) + 1)
        self._share = torch.finfo(torch.float32).eps * chain * math.sqrt(longest)
        # For gradients that consist only of rounding errors, such as that of a key's bias, which shifts all scores
        # equally.
        gradients = (parameter.grad.abs().max() for parameter in self._network.values() if parameter.grad is not None)
        self._least = torch.finfo(torch.float32).eps * float(max(gradients))

    def gradient(self, name: str) -> torch.Tensor:
        """Gradient of all sequences."""
        gradient = self._network[name].grad
        return torch.zeros_like(self._network[name]) if gradient is None else gradient

    def weight(self, name: str) -> torch.Tensor:
        """Weights after the update."""
        return self._network[name].detach() - LEARNING_RATE * self.gradient(name)

    def wrong(self) -> int:
        """Number of values of the step whose difference from one process exceeds rounding errors."""
        step, count = self._step, 0
        for actual, expected in step.values(self.gradient, self.weight):
            count += expected.numel() if actual is None else self._differ(actual, expected)
        loss = loss_of(step.slice_of(self._out), step.slice_of(self._wanted))
        return count + (self._differ(step.loss, loss) if step.knows_loss else 0)

    def _differ(self, actual: torch.Tensor, expected: torch.Tensor) -> int:
        if actual.shape != expected.shape:
            return expected.numel()
        if not expected.numel():
            return 0
        allowed = max(self._least, self._share * float(expected.abs().max()))
        near = (actual.cpu() - expected).abs() <= allowed  # false for NaN too
        return int(near.numel() - near.count_nonzero())


# --- interface to the instrument -------------------------------------------------------------------------------------


class BoundStep:
    """A step behind the interface of the instrument.

    step: the step.
    waits: replaces products by waits, with zeros as results (None: compute them).
    late_seconds: delay of this rank's start.
    device: device that computes (None: the CPU).
    others_bytes: memory of the device that tensors used before the step was built.
    """

    def __init__(
        self,
        step: Step,
        waits: Waits | None = None,
        late_seconds: float = 0.0,
        device: Device | None = None,
        others_bytes: int = 0,
    ) -> None:
        self.step, self.waits, self._late_seconds, self._device = step, waits, late_seconds, device
        self._others_bytes = others_bytes
        self._reference = Reference(step)

    def call(self) -> None:
        """Run the step (the timed call)."""
        time.sleep(self._late_seconds)
        if self.waits is None:
            self.step.run()
            return
        with Observer(waits=self.waits):
            self.step.run()
            self.waits.settle()

    def wrong(self) -> int:
        """Number of values that differ from one process; with ``waits``, of another step that computes products."""
        if self.waits is not None:
            self.step.reset()
            self.step.run()
        return self._reference.wrong()

    def memory(self) -> tuple[int, int, int]:
        """Peak bytes of a step, bytes of weights and of gradients, without the instrument's own copies."""
        self.step.reset()
        network = self.step.network
        network.zero_grad(set_to_none=True)
        weights = [_local(parameter.detach()) for parameter in network.parameters()]
        if self._device is None:
            with Alive(weights) as seen:
                self.step.run()
            peak = seen.peak_bytes
        else:
            peak = self._device.peak_bytes(self.step.run) - self.step.copied_bytes - self._others_bytes
        gradients = [_local(parameter.grad) for parameter in network.parameters() if parameter.grad is not None]
        return peak, _bytes(weights), _bytes(gradients)

    def parts(self) -> Parts:
        """Separate runs of the parts of a step."""
        step, shape, memory = self.step, self.step.shape, self.memory()
        step.reset()
        with Observer(keep=True) as seen:
            step.run()
        return Parts(
            prepare=step.reset,
            step=self._watched,
            compute=self._compute,
            communicate=lambda: replay(seen.calls),
            timeline=self._timeline,
            profile=lambda: profiled(self.call, self._device),
            sent=counted(seen.calls),
            memory=memory,
            parameters=parameters(shape.model),
            flop=step.flop,
            tokens=shape.tokens,
            dropped=shape.dropped,
        )

    def _watched(self) -> None:
        """Run the step under an observer, so that its overhead is the same as without communication."""
        with Observer():
            self.call()

    def _compute(self) -> None:
        """Run the step without its collectives."""
        with Observer(silent=True), self.step.silence():
            self.call()

    def _timeline(self, now: Callable[[], int]) -> list[Interval]:
        time.sleep(self._late_seconds)
        return record(self.step.run, now, self.waits, self._device)


def profiled(call: Callable[[], object], device: Device | None) -> str:
    """Chrome trace of ``call`` on ``device`` by torch's profiler."""
    # Otherwise it writes two lines per trace to stderr that are not errors.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device is not None:
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds, record_shapes=True) as seen:
        call()
        if device is not None:
            device.synchronise()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(file))
        return file.read_text(encoding="utf-8")


_LIMITS: Final = Limits(modes=("isolated",), caches=("warm",), groups=("all",))


def refuse(case: Case) -> str | None:
    """Reason why ``case`` cannot run, or None; the same on every rank."""
    workload = case.settings
    if not isinstance(workload, Workload):
        return f"{case.op} needs a workload in its case"
    exchange = None if workload.exchange is None else parse_exchange(workload.exchange)[0]
    # A split of degree 1 leaves a whole replica on one rank.
    undivided = any(workload.degrees[split] == 1 for split in OPS[case.op].splits if split != "dp")
    reason = first_reason(
        (undivided, f"{case.op} needs at least 2 ranks per replica of the model; here one rank has all of it"),
        (
            case.device != "cpu" and workload.wait_ns is not None,
            "waits in place of products are for CPU ranks that share cores; a GPU computes products",
        ),
        (
            exchange == "server" and case.backend == "nccl",
            "exchange server receives from any rank, which NCCL does not support; use gloo",
        ),
        # torch refuses fewer.
        (
            case.op == "train_1f1b" and workload.micro_batches < workload.pp,
            f"{case.op} needs as many micro-batches as stages or more: {workload.pp}, not {workload.micro_batches}",
        ),
    )
    return reason or _LIMITS.refuse(case) or StepShape(workload).refuse(case.op)


def workload_of(case: Case) -> Workload:
    """The workload of a training step. Raises BackendError if there is none."""
    if not isinstance(case.settings, Workload):
        raise BackendError(f"{case.op} needs a workload in its case")
    return case.settings


def bind(bound: Bound, make: MakeStep) -> Operation:
    """Bind a training step."""
    workload, ranks = workload_of(bound.case), len(bound.group)
    where = _HOST if bound.device is None else torch.device(bound.device.name)
    others_bytes = 0 if bound.device is None else bound.device.used_bytes()
    step = make(StepShape(workload), bound.me, ranks, bound.comm, where)
    waits = None if workload.wait_ns is None else Waits(workload.wait_ns * 1e-9 * ranks / step.flop)
    late_ns = (workload.slow_ns or 0) * (workload.slow_rank == bound.me)
    training = BoundStep(step, waits, late_ns * 1e-9, bound.device, others_bytes)
    return Operation(training.call, prepare=step.reset, wrong=training.wrong, parts=training.parts)
