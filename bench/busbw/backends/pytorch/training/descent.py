"""Least squares by distributed gradient descent, with different methods to exchange gradients or weights.

A call is a whole training of ``STEPS`` steps starting from zero weights, because a step depends on earlier ones.
"""

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from busbw.backends.base import Operation
from busbw.backends.pytorch.bound import ALL_GATHER, Bound
from busbw.backends.pytorch.training.descent_rules import LEVELS, SMALLEST, Expected, expected_result
from busbw.backends.pytorch.training.least_squares import LEARNING_RATE, LeastSquares
from busbw.backends.pytorch.training.observer import Observer, counted
from busbw.backends.pytorch.training.step import broken_call, profiled
from busbw.backends.pytorch.training.timeline import record
from busbw.backends.side_channel import first_line
from busbw.backends.supplements import Parts, StepSupplement
from busbw.errors import BackendError
from busbw.ops.exchanges import STEPS, parse_exchange
from busbw.ops.training import Workload, problem_width
from busbw.system.device import Device

_SHOWN: Final = 4
"""Steps shown in a timeline."""


@dataclass
class Share:
    """A rank's samples.

    samples, targets: inputs and targets of the regression.
    factor: factor of the gradient, see ``LeastSquares.factor``.
    wait_seconds: least duration of a gradient.
    late_seconds: delay before each gradient.
    given: gradient that is returned in place of a computed one (None: compute it).
    """

    samples: torch.Tensor
    targets: torch.Tensor
    factor: float
    wait_seconds: float = 0.0
    late_seconds: float = 0.0
    given: torch.Tensor | None = None

    def gradient(self, weights: torch.Tensor) -> torch.Tensor:
        """Gradient of this rank's samples."""
        if self.given is not None:
            return self.given.clone()
        time.sleep(self.late_seconds)
        began = time.perf_counter()
        gradient = self.samples.T @ (self.samples @ weights - self.targets) * self.factor
        time.sleep(max(0.0, began + self.wait_seconds - time.perf_counter()))
        return gradient


class _Loss(torch.autograd.Function):
    """A dummy loss whose backward pass returns a share's gradient, for libraries that hook into autograd."""

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
    """Training on one rank.

    share: samples of this rank.
    weights: W, updated by training.
    me, ranks: this rank and the number of ranks.
    group: torch's process group (None: all ranks).
    number: parameter of the method.
    """

    share: Share
    weights: nn.Parameter
    me: int
    ranks: int
    group: Any
    number: int
    order: list[int] = field(default_factory=list)
    """On a server: ranks whose gradients it received, in order."""

    def __post_init__(self) -> None:
        self.prepare()

    def prepare(self) -> None:  # noqa: B027 - most methods need no preparation
        """One-time preparation."""

    def begin(self) -> None:
        """Reset the training to its start."""
        self.order.clear()
        with torch.no_grad():
            self.weights.zero_()

    def take(self, steps: int) -> None:
        """Take ``steps`` steps."""
        for _ in range(steps):
            self.step()

    @abstractmethod
    def step(self) -> None:
        """Take one step."""

    def compute(self, steps: int) -> None:
        """The computation of ``steps`` steps without communication."""
        for _ in range(steps):
            self.apply(self.share.gradient(self.weights.detach()))

    def apply(self, gradient: torch.Tensor, share: float = 1.0) -> None:
        """Update the weights by ``share`` of a gradient step."""
        with torch.no_grad():
            self.weights.sub_(gradient, alpha=LEARNING_RATE * share)


class Reduced(Descent):
    """DistributedDataParallel with an all_reduce of gradients in every step, or with a subclass's hook."""

    def prepare(self) -> None:
        """Make the library's wrapper, with the hook of the method."""
        self._wrapped: Any = nn.parallel.DistributedDataParallel(
            _Network(self.weights, self.share), process_group=self.group, gradient_as_bucket_view=True
        )
        if type(self).hook is not Reduced.hook:
            self._wrapped.register_comm_hook(None, self._hooked)

    # torch checks these annotations. It also checks the name of one hook, and refuses it over Gloo, where it works.
    def _hooked(self, _state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return self.hook(bucket)

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Exchange the gradients of a bucket."""
        raise NotImplementedError

    def step(self) -> None:
        """Backward pass, which exchanges gradients, and update."""
        self._wrapped.zero_grad(set_to_none=True)
        torch.autograd.backward(self._wrapped())
        assert self.weights.grad is not None  # noqa: S101 - the backward pass has made it
        self.apply(self.weights.grad)


class Int8(Reduced):
    """Gradients in int8 with error feedback; each rank sends its quantisation step in the first four bytes."""

    def begin(self) -> None:
        """Reset, including the error feedback."""
        super().begin()
        self._left = torch.zeros_like(self.weights.detach()).flatten()

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """All_gather and average; torch's own hooks need a GPU and have no error feedback."""
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


class LocalSgd(Descent):
    """Local SGD: each rank steps on its own, and weights are averaged every ``number`` steps."""

    def begin(self) -> None:
        """Reset, including torch's averager, so that it averages after every ``number`` steps, not after the first."""
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager  # noqa: PLC0415

        super().begin()
        self._averager = PeriodicModelAverager(self.number, self.number - 1, self.group)

    def step(self) -> None:
        """Take a step with this rank's gradient, and average the weights if that is due."""
        gradient = self.share.gradient(self.weights.detach())
        self.apply(gradient)
        self.weights.grad = gradient  # the averager skips parameters without a gradient
        self._averager.average_parameters([self.weights])


class Server(Descent):
    """Parameter server on rank 0 with bounded staleness.

    Workers send gradients. A worker gets new weights once it is at most ``number`` steps ahead of the slowest.
    """

    def take(self, steps: int) -> None:
        """Take ``steps`` steps per worker; at the end all ranks have the last weights."""
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
            for rank in sorted(waiting):
                if done[rank] <= least + (self.number if done[rank] < steps else 0):
                    dist.send(self.weights.detach(), rank, group=self.group)
                    waiting.remove(rank)

    def step(self) -> None:
        """A worker's step: send its gradient, receive new weights."""
        dist.send(self.share.gradient(self.weights.detach()), 0, group=self.group)
        dist.recv(self.weights.data, 0, group=self.group)

    def compute(self, steps: int) -> None:
        """As in the base class, for workers; the server has no samples."""
        if self.me:
            super().compute(steps)


METHODS: Final[dict[str, type[Descent]]] = {
    "exact": Reduced,
    "local_sgd": LocalSgd,
    "server": Server,
    "int8": Int8,
}


def shares_of(name: str, ranks: int) -> int:
    """Number of ranks that have samples."""
    return ranks - 1 if name == "server" else ranks


class BoundDescent:
    """A training behind the interface of the instrument."""

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
        self._expected: dict[tuple[int, ...], Expected | None] = {}
        self._last: Expected | None = None

    def call(self) -> None:
        """Train (the timed call). Raises BackendError with the name of the failed torch call."""
        try:
            self.descent.take(STEPS)
        except RuntimeError as error:
            raise BackendError(f"{broken_call(error)}: {first_line(error)}") from error

    def wrong(self) -> int:
        """Number of weights that differ from those of the same method in one process."""
        descent = self.descent
        order = tuple(self._order())
        if order not in self._expected:
            self._expected = {
                order: expected_result(self.problem, self.name, descent.number, descent.ranks, STEPS, order)
            }
        self._last = expected = self._expected[order]
        weights = descent.weights.detach().cpu()
        if expected is None:
            return weights.numel()
        return weights.numel() - int(((weights - expected.weights[descent.me]).abs() <= expected.off).sum())

    def _order(self) -> list[int]:
        """The order in which the server received gradients, on every rank; empty for other methods."""
        descent = self.descent
        if self.name != "server":
            return []
        order = torch.zeros(STEPS * (descent.ranks - 1), dtype=torch.int64, device=descent.weights.device)
        if descent.me == 0:
            order.copy_(torch.tensor(descent.order))
        dist.broadcast(order, 0, group=descent.group)
        numbers: list[int] = order.tolist()
        return numbers

    def communicate(self) -> None:
        """Train with a given gradient, so that only the method's own work and communication remain."""
        share = self.descent.share
        share.given = share.samples[: self.problem.width].clone()
        try:
            self.descent.take(STEPS)
        finally:
            share.given = None

    def parts(self) -> Parts:
        """Separate runs of the parts of a training."""
        descent = self.descent
        descent.begin()
        with Observer(keep=True) as seen:
            descent.take(STEPS)
        return Parts(
            prepare=descent.begin,
            step=self.call,
            compute=lambda: descent.compute(STEPS),
            communicate=self.communicate,
            timeline=lambda now: record(lambda: descent.take(_SHOWN), now, device=self._device),
            profile=lambda: profiled(lambda: descent.take(_SHOWN), self._device),
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
    """Bind a training by one exchange method."""
    workload = bound.case.settings
    if not isinstance(workload, Workload) or workload.exchange is None:
        raise BackendError(f"{bound.case.op} needs an exchange method in its case")
    training = BoundDescent(workload, bound.me, len(bound.group), bound.process_group, bound.device)
    return Operation(
        training.call, prepare=training.descent.begin, wrong=training.wrong, supplement=StepSupplement(training.parts)
    )
