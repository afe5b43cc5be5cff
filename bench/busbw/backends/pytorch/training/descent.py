"""Least squares by gradient descent on all ranks, by each way to exchange gradients or weights.

A call is a training of ``STEPS`` steps from weights of 0 on, since what a method does in a step hangs on those before.
"""

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from busbw.backends.base import Operation, Parts
from busbw.backends.pytorch.bound import ALL_GATHER, Bound
from busbw.backends.pytorch.training.descent_rules import LEVELS, SMALLEST, Told, retell
from busbw.backends.pytorch.training.least_squares import LEARNING_RATE, LeastSquares
from busbw.backends.pytorch.training.observer import Observer, counted
from busbw.backends.pytorch.training.step import broken_call, profiled
from busbw.backends.pytorch.training.timeline import record
from busbw.backends.side_channel import first_line
from busbw.errors import BackendError
from busbw.ops.exchanges import STEPS, parse_exchange
from busbw.ops.training import Workload, problem_width
from busbw.system.device import Device

_SHOWN: Final = 4
"""Steps in a timeline."""


@dataclass
class Share:
    """A rank's samples. A gradient takes ``wait_seconds`` at least and begins ``late_seconds`` late; where one is
    ``given``, nothing is computed.
    """

    samples: torch.Tensor
    wanted: torch.Tensor
    factor: float
    wait_seconds: float = 0.0
    late_seconds: float = 0.0
    given: torch.Tensor | None = None

    def gradient(self, weights: torch.Tensor) -> torch.Tensor:
        """Of this rank's samples."""
        if self.given is not None:
            return self.given.clone()
        time.sleep(self.late_seconds)
        began = time.perf_counter()
        found = self.samples.T @ (self.samples @ weights - self.wanted) * self.factor
        time.sleep(max(0.0, began + self.wait_seconds - time.perf_counter()))
        return found


class _Loss(torch.autograd.Function):
    """A loss whose gradient is that of a share: what a library does with gradients goes on from there."""

    @staticmethod
    def forward(ctx: Any, weights: torch.Tensor, share: Share) -> torch.Tensor:  # noqa: ANN401
        ctx.weights, ctx.share = weights.detach(), share
        return weights.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _one: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        return ctx.share.gradient(ctx.weights), None


class _Network(nn.Module):
    def __init__(self, weights: nn.Parameter, share: Share) -> None:
        super().__init__()
        self.weights, self._share = weights, share

    def forward(self) -> torch.Tensor:
        loss: torch.Tensor = _Loss.apply(self.weights, self._share)  # type: ignore[no-untyped-call]
        return loss


@dataclass
class Descent(ABC):
    """Training on one rank. ``group``: torch's process group (None: all ranks). ``number``: what the method is told."""

    share: Share
    weights: nn.Parameter
    me: int
    ranks: int
    group: Any
    number: int
    order: list[int] = field(default_factory=list)
    """Of a server: the ranks whose gradients it has got."""

    def __post_init__(self) -> None:
        self.prepare()

    def prepare(self) -> None:  # noqa: B027 - most make nothing
        """What is made once."""

    def begin(self) -> None:
        """From the start."""
        self.order.clear()
        with torch.no_grad():
            self.weights.zero_()

    def take(self, steps: int) -> None:
        """So many steps."""
        for _ in range(steps):
            self.step()

    @abstractmethod
    def step(self) -> None:
        """One step."""

    def compute(self, steps: int) -> None:
        """What is computed in as many, with nothing sent."""
        for _ in range(steps):
            self.apply(self.share.gradient(self.weights.detach()))

    def apply(self, gradient: torch.Tensor, share: float = 1.0) -> None:
        """Go down by it."""
        with torch.no_grad():
            self.weights.sub_(gradient, alpha=LEARNING_RATE * share)


class Reduced(Descent):
    """DistributedDataParallel, which makes an all_reduce of gradients in every step."""

    def prepare(self) -> None:
        """The library's wrapper, with the hook of the method."""
        self._wrapped: Any = nn.parallel.DistributedDataParallel(
            _Network(self.weights, self.share), process_group=self.group, gradient_as_bucket_view=True
        )
        if type(self).hook is not Reduced.hook:
            self._wrapped.register_comm_hook(None, self._hooked)

    # torch looks at these annotations, and at the name of one hook, which it refuses over Gloo, where it works.
    def _hooked(self, _state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return self.hook(bucket)

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """What becomes of the gradients of a bucket."""
        raise NotImplementedError

    def step(self) -> None:
        """Backward pass, in which gradients are exchanged, and update."""
        self._wrapped.zero_grad(set_to_none=True)
        torch.autograd.backward(self._wrapped())
        assert self.weights.grad is not None  # noqa: S101 - the backward pass has made it
        self.apply(self.weights.grad)


class Halved(Reduced):
    """In float16."""

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The library's own."""
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: PLC0415 - takes long

        return default_hooks.fp16_compress_hook(self.group, bucket)


class HalvedRange(Reduced):
    """In bfloat16."""

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The library's own."""
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: PLC0415

        return default_hooks.bf16_compress_hook(self.group, bucket)


class Int8(Reduced):
    """In int8, each rank with its own level, which the first four bytes tell."""

    def begin(self) -> None:
        """Nothing is left of any rounding."""
        super().begin()
        self._left = torch.zeros_like(self.weights.detach()).flatten()

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Gather all and add up; torch's own hooks for this want a GPU, and forget what rounding left."""
        whole = bucket.buffer() + self._left
        level = (whole.abs().max() / LEVELS).clamp_min(SMALLEST)
        sent = torch.round(whole / level).to(torch.int8)
        self._left = whole - sent * level
        packed = torch.cat((level.view(1).view(torch.int8), sent))
        rows = packed.new_empty(self.ranks * len(packed))
        work = ALL_GATHER(rows, packed, group=self.group, async_op=True)

        def mean(_: object) -> torch.Tensor:
            each = rows.view(self.ranks, -1)
            levels = each[:, : level.itemsize].contiguous().view(torch.float32)
            return (each[:, level.itemsize :] * levels).mean(0)

        return work.get_future().then(mean)  # type: ignore[no-any-return]


class PowerSgd(Reduced):
    """Matrices of low rank in place of gradients."""

    def begin(self) -> None:
        """The hook's memory is empty; compressed is from the first step on."""
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState  # noqa: PLC0415

        super().begin()
        self._state = PowerSGDState(self.group, matrix_approximation_rank=self.number, start_powerSGD_iter=2)
        self._state.iter = self._state.start_powerSGD_iter

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The library's own."""
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook  # noqa: PLC0415

        return powerSGD_hook(self._state, bucket)


class LocalSgd(Descent):
    """Each rank for itself, and the mean of weights every so many steps."""

    def begin(self) -> None:
        """The library's counter, which is to average behind ``number`` steps and not behind the first."""
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager  # noqa: PLC0415

        super().begin()
        self._averager = PeriodicModelAverager(self.number, self.number - 1, self.group)

    def step(self) -> None:
        """Of this rank's own samples."""
        gradient = self.share.gradient(self.weights.detach())
        self.apply(gradient)
        self.weights.grad = gradient  # of parameters without one the library thinks that nobody trains them
        self._averager.average_parameters([self.weights])


class Late(Descent):
    """The gradients of a step are added up during the next one."""

    def take(self, steps: int) -> None:
        """The last gradients are waited for and not applied."""
        before: tuple[Any, torch.Tensor] | None = None
        for _ in range(steps):
            gradient = self.share.gradient(self.weights.detach())
            if before is not None:
                before[0].wait()
                self.apply(before[1])
            before = dist.all_reduce(gradient, dist.ReduceOp.AVG, group=self.group, async_op=True), gradient
        if before is not None:
            before[0].wait()

    def step(self) -> None:
        """There is none alone."""
        self.take(1)


class Server(Descent):
    """Rank 0 has the weights. The others send gradients, and get weights once none is too far behind them."""

    def take(self, steps: int) -> None:
        """All of them in the end have the last weights."""
        if self.me:
            super().take(steps)
            return
        workers = range(1, self.ranks)
        done, waiting = dict.fromkeys(workers, 0), set[int]()
        arrived = torch.empty_like(self.weights)
        for _ in range(steps * len(workers)):
            worker = dist.recv(arrived, group=self.group)
            self.order.append(worker)
            self.apply(arrived, 1 / len(workers))
            done[worker] += 1
            waiting.add(worker)
            least = min(done.values())
            for one in sorted(waiting):
                if done[one] <= least + (self.number if done[one] < steps else 0):
                    dist.send(self.weights.detach(), one, group=self.group)
                    waiting.remove(one)

    def step(self) -> None:
        """Of a worker."""
        dist.send(self.share.gradient(self.weights.detach()), 0, group=self.group)
        dist.recv(self.weights.data, 0, group=self.group)

    def compute(self, steps: int) -> None:
        """The server has no samples."""
        if self.me:
            super().compute(steps)


METHODS: Final[dict[str, type[Descent]]] = {
    "exact": Reduced,
    "local_sgd": LocalSgd,
    "late": Late,
    "server": Server,
    "fp16": Halved,
    "bf16": HalvedRange,
    "int8": Int8,
    "powersgd": PowerSgd,
}


def shares_of(name: str, ranks: int) -> int:
    """How many ranks have samples."""
    return ranks - 1 if name == "server" else ranks


class BoundDescent:
    """A training as the instrument calls it."""

    def __init__(self, workload: Workload, me: int, ranks: int, group: Any, device: Device | None) -> None:  # noqa: ANN401
        self._device, where = device, "cpu" if device is None else device.name
        self.name, number = parse_exchange(workload.exchange or "")
        shares = shares_of(self.name, ranks)
        self.problem = LeastSquares(problem_width(workload.scale), ranks, shares)
        mine = max(0, me - (ranks - shares))
        share = Share(
            self.problem.given[mine].to(where),
            self.problem.wanted[mine].to(where),
            self.problem.factor,
            (workload.wait_ns or 0) * 1e-9 * ranks / shares,
            (workload.slow_ns or 0) * 1e-9 * (workload.slow_rank == me),
        )
        weights = nn.Parameter(torch.zeros(self.problem.width, self.problem.width, device=where))
        self.descent = METHODS[self.name](share, weights, me, ranks, group, number)
        self._told: dict[tuple[int, ...], Told | None] = {}
        self._last: Told | None = None

    def call(self) -> None:
        """The training that is timed. Raises BackendError that names the call which broke."""
        try:
            self.descent.take(STEPS)
        except RuntimeError as error:
            raise BackendError(f"{broken_call(error)}: {first_line(error)}") from error

    def wrong(self) -> int:
        """Weights that are not those of the same rule in one process."""
        one = self.descent
        order = tuple(self._order())
        if order not in self._told:
            self._told = {order: retell(self.problem, self.name, one.number, one.ranks, STEPS, order)}
        self._last = told = self._told[order]
        weights = one.weights.detach().cpu()
        if told is None:
            return weights.numel()
        return weights.numel() - int(((weights - told.weights[one.me]).abs() <= told.off).sum())

    def _order(self) -> list[int]:
        """What the server has seen, on every rank."""
        one = self.descent
        if self.name != "server":
            return []
        order = torch.zeros(STEPS * (one.ranks - 1), dtype=torch.int64, device=one.weights.device)
        if one.me == 0:
            order.copy_(torch.tensor(one.order))
        dist.broadcast(order, 0, group=one.group)
        found: list[int] = order.tolist()
        return found

    def communicate(self) -> None:
        """Nothing is computed but what the method makes of gradients."""
        share = self.descent.share
        share.given = share.samples[: self.problem.width].clone()
        try:
            self.descent.take(STEPS)
        finally:
            share.given = None

    def parts(self) -> Parts:
        """A training taken apart."""
        one = self.descent
        one.begin()
        with Observer(keep=True) as seen, seen.in_threads():
            one.take(STEPS)
        return Parts(
            prepare=one.begin,
            step=self.call,
            compute=lambda: one.compute(STEPS),
            communicate=self.communicate,
            timeline=lambda now: record(lambda: one.take(_SHOWN), now, device=self._device),
            profile=lambda: profiled(lambda: one.take(_SHOWN), self._device),
            sent={kind: calls for kind, calls in counted(seen.calls).items() if kind[2]},
            memory=None,
            parameters=self.problem.width**2,
            flop=self.problem.flop,
            tokens=self.problem.samples,
            dropped=0,
            steps=STEPS,
            gaps=() if self._last is None else self._last.gaps,
        )


def bind(bound: Bound) -> Operation:
    """Training by one method of all ranks."""
    if bound.case.workload is None or bound.case.workload.exchange is None:
        raise BackendError(f"{bound.case.op} does not say how ranks exchange")
    one = BoundDescent(bound.case.workload, bound.me, len(bound.group), bound.process_group, bound.device)
    return Operation(one.call, prepare=one.descent.begin, wrong=one.wrong, parts=one.parts)
