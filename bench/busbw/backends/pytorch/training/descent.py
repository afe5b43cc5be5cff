"""Least squares by distributed gradient descent, with different methods to exchange gradients or weights.

A call is a whole training of ``STEPS`` steps starting from zero weights, because a step depends on earlier ones.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count, islice
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from busbw.backends.base import Bound, Operation
from busbw.backends.parts import Parts
from busbw.backends.pytorch.names import ALL_GATHER
from busbw.backends.pytorch.training.observer import Observer, counted, record
from busbw.backends.pytorch.training.step import profiled, workload_of
from busbw.ops.training import SAMPLES, STEPS, Workload, parse_exchange, problem_width
from busbw.system.device import Device

SEED: Final = 1
CONDITION: Final = 8.0
"""Ratio of the largest eigenvalue, 1, to the smallest."""
NOISE: Final = 0.05
"""Standard deviation of the noise over that of the noise-free targets."""
DECAY: Final = 0.6
"""Ratio of each singular value of the weights to the previous one."""
LEARNING_RATE: Final = 0.4
"""Below 1, where descent with gradients that are one step late would diverge."""


Gram = tuple[torch.Tensor, torch.Tensor]
"""A and B of each share: its gradient is A W − B, which is Xᵀ (X W − Y) in another order of summation."""


class LeastSquares:
    """The problem with ``width`` × ``width`` weights; its samples are divided into ``shares`` parts."""

    def __init__(self, width: int, ranks: int, shares: int) -> None:
        generator = torch.Generator().manual_seed(SEED)

        def random(rows: int) -> torch.Tensor:
            return torch.randn(rows, width, generator=generator, dtype=torch.float64)

        self.width, self.samples = width, SAMPLES * width * ranks
        self._eigenvalues = CONDITION ** -torch.linspace(0, 1, width, dtype=torch.float64)
        given = torch.linalg.qr(random(self.samples)).Q * (self.samples * self._eigenvalues).sqrt()
        singular = width * DECAY ** torch.arange(width, dtype=torch.float64)
        explained = given @ (torch.linalg.qr(random(width)).Q * singular @ torch.linalg.qr(random(width)).Q)
        targets = explained + NOISE * explained.std() * random(self.samples)
        self._optimum = given.T @ targets / self.samples / self._eigenvalues[:, None]
        self.given = given.float().contiguous().tensor_split(shares)
        self.wanted = targets.float().contiguous().tensor_split(shares)
        self.factor = shares / self.samples
        """Factor of each share's gradient, so that their mean is the gradient of all samples."""

    @property
    def flop(self) -> int:
        """FLOP of the gradient of all samples: two products."""
        return 4 * self.samples * self.width**2

    def gap(self, weights: torch.Tensor) -> float:
        """f(W) − f(W*), the distance of ``weights`` from the optimum."""
        difference = weights.to("cpu", torch.float64) - self._optimum
        return float((self._eigenvalues[:, None] * difference.square()).sum() / 2)

    def grams(self, dtype: torch.dtype) -> Gram:
        """A and B of every share."""
        shares = [(given.to(dtype), wanted.to(dtype)) for given, wanted in zip(self.given, self.wanted, strict=True)]
        return (
            torch.stack([self.factor * given.T @ given for given, _ in shares]),
            torch.stack([self.factor * given.T @ wanted for given, wanted in shares]),
        )


LEVELS: Final = 127
"""Quantisation levels of int8 on either side of 0."""
SMALLEST: Final = torch.finfo(torch.float32).tiny
"""Least quantisation step, so that it is never 0."""

_TOLERANCE: Final = 4
"""Allowed difference as a multiple of the effect of rounding."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected result of a training.

    weights: final weights of every rank.
    gaps: f(W) − f(W*) before the first and after every step, for the mean W of the ranks.
    off: allowed difference of a measured weight.
    """

    weights: torch.Tensor
    gaps: tuple[float, ...]
    off: float


def expected_result(
    problem: LeastSquares, name: str, number: int, ranks: int, steps: int, order: Sequence[int]
) -> Expected | None:
    """Repeat the training by method ``name`` with parameter ``number`` in one process.

    order: ranks whose gradients the server received, in order (other methods: empty).
    Returns None if that order violates the server's staleness bound.
    """
    if name == "server" and Counter(order) != dict.fromkeys(range(1, ranks), steps):
        return None
    results = []
    for dtype in (torch.float32, torch.float64):
        grams = problem.grams(dtype)
        after = _by_server(grams, number, order) if name == "server" else _trained(grams, name, number)
        results.append([torch.zeros_like(grams[1]), *islice(after, steps)])
    trained, exact = results
    if len(trained) <= steps:
        return None
    # Rounding matters: a value on the other side of a quantisation boundary changes the weights by a whole step.
    off = _TOLERANCE * float((trained[-1] - exact[-1]).abs().max())
    return Expected(trained[-1], tuple(problem.gap(weights.mean(0)) for weights in trained), off)


def _trained(grams: Gram, name: str, number: int) -> Iterator[torch.Tensor]:
    """Weights of all ranks after every step, by any method without a server."""
    weights = left = torch.zeros_like(grams[1])
    for step in count(1):
        gradients = grams[0] @ weights - grams[1]
        if name == "int8":
            whole = gradients + left
            levels = (whole.abs().amax((1, 2), keepdim=True) / LEVELS).clamp_min(SMALLEST)
            gradients = torch.round(whole / levels) * levels
            left = whole - gradients
        weights = weights - LEARNING_RATE * (gradients if name == "local_sgd" else gradients.mean(0))
        if name == "local_sgd" and step % number == 0:
            weights = weights.mean(0).expand_as(weights)
        yield weights


def _by_server(grams: Gram, bound: int, order: Sequence[int]) -> Iterator[torch.Tensor]:
    """Weights of the server after every round of gradients (one per worker); at the end all ranks have them.

    Ends early when a worker is more than ``bound`` steps ahead of the slowest, in spite of which it goes on.
    """
    workers, weights = len(grams[0]), torch.zeros_like(grams[1][0])
    done, copies, waiting = [0] * workers, [weights] * workers, set[int]()
    for number, worker in enumerate((rank - 1 for rank in order), 1):
        if worker in waiting:
            return
        weights = weights - LEARNING_RATE / workers * (grams[0][worker] @ copies[worker] - grams[1][worker])
        done[worker] += 1
        waiting.add(worker)
        for waiter in [waiter for waiter in waiting if done[waiter] <= min(done) + bound]:
            copies[waiter] = weights
            waiting.remove(waiter)
        if number % workers == 0:
            yield weights.expand(workers + 1, -1, -1)


_SHOWN: Final = 4
"""Steps shown in a timeline."""


class Regression(nn.Module):
    """Half the squared error of a rank's samples with the weights W, scaled as ``LeastSquares.factor``.

    wait_seconds: least duration of a gradient.
    late_seconds: delay before each gradient.
    given: gradient that is returned in place of a computed one (None: compute it).
    """

    def __init__(
        self, samples: torch.Tensor, targets: torch.Tensor, factor: float, wait_seconds: float, late_seconds: float
    ) -> None:
        super().__init__()
        self.samples, self._targets, self.factor = samples, targets, factor
        self._wait_seconds, self.late_seconds = wait_seconds, late_seconds
        self.given: torch.Tensor | None = None
        self.weights = nn.Parameter(samples.new_zeros(samples.shape[1], targets.shape[1]))
        self._until = 0.0
        self.weights.register_hook(self._wait)  # type: ignore[no-untyped-call]

    def forward(self) -> torch.Tensor:
        """The loss."""
        if self.given is not None:
            return (self.weights * self.given).sum()
        time.sleep(self.late_seconds)
        self._until = time.perf_counter() + self._wait_seconds
        return self.loss(self.weights)

    def loss(self, weights: torch.Tensor) -> torch.Tensor:
        """The loss of ``weights``."""
        return (self.samples @ weights - self._targets).square().sum() * (self.factor / 2)

    def _wait(self, _gradient: torch.Tensor) -> None:
        time.sleep(max(0.0, self._until - time.perf_counter()))


class Descent:
    """Training on one rank, without communication.

    model: its samples and weights.
    me, ranks: this rank and the number of ranks.
    group: torch's process group (None: all ranks).
    number: parameter of the method.
    order: on a server, ranks whose gradients it received, in order.
    """

    def __init__(self, model: Regression, me: int, ranks: int, group: Any, number: int) -> None:  # noqa: ANN401
        self.model, self.me, self.ranks, self.group, self.number = model, me, ranks, group, number
        self.weights = model.weights
        self.module: Any = model
        self.order: list[int] = []

    def begin(self) -> None:
        """Reset the training to its start."""
        self.order.clear()
        with torch.no_grad():
            self.weights.zero_()

    def take(self, steps: int) -> None:
        """Take ``steps`` steps."""
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        """Take one step."""
        self.apply(self.gradient())

    def compute(self, steps: int) -> None:
        """The computation of ``steps`` steps without communication."""
        for _ in range(steps):
            self.apply(self.gradient())

    def gradient(self) -> torch.Tensor:
        """Gradient of this rank's samples; what a library exchanges in its backward pass included."""
        self.module.zero_grad(set_to_none=True)
        torch.autograd.backward(self.module())
        gradient: Any = self.weights.grad
        return gradient  # type: ignore[no-any-return]

    def apply(self, gradient: torch.Tensor, share: float = 1.0) -> None:
        """Update the weights by ``share`` of a gradient step."""
        with torch.no_grad():
            self.weights.sub_(gradient, alpha=LEARNING_RATE * share)


class Reduced(Descent):
    """DistributedDataParallel with an all_reduce of gradients in every step."""

    def __init__(self, *given: Any) -> None:  # noqa: ANN401 - as in the base class
        super().__init__(*given)
        self.module = nn.parallel.DistributedDataParallel(
            self.model, process_group=self.group, gradient_as_bucket_view=True
        )

    def compute(self, steps: int) -> None:
        """As in the base class, by the library's ``no_sync``."""
        with self.module.no_sync():
            super().compute(steps)


class Int8(Reduced):
    """Gradients in int8 with error feedback; each rank sends its quantisation step in the first four bytes."""

    def __init__(self, *given: Any) -> None:  # noqa: ANN401 - as in the base class
        super().__init__(*given)
        self.module.register_comm_hook(None, self._exchanged)

    def begin(self) -> None:
        """Reset, including the error feedback."""
        super().begin()
        self._left = torch.zeros_like(self.weights.detach()).flatten()

    # torch checks these annotations.
    def _exchanged(self, _state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
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
        super().step()
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
        dist.send(self.gradient(), 0, group=self.group)
        dist.recv(self.weights.data, 0, group=self.group)

    def compute(self, steps: int) -> None:
        """As in the base class, for workers; the server has no samples."""
        if self.me:
            super().compute(steps)


METHODS: Final[dict[str, type[Descent]]] = {"exact": Reduced, "local_sgd": LocalSgd, "server": Server, "int8": Int8}


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
        model = Regression(
            self.problem.given[mine].to(where),
            self.problem.wanted[mine].to(where),
            self.problem.factor,
            (workload.wait_ns or 0) * 1e-9 * ranks / shares,
            (workload.slow_ns or 0) * 1e-9 * (workload.slow_rank == me),
        )
        self.descent = METHODS[self.name](model, me, ranks, group, number)
        self.expected = lru_cache(1)(
            partial(expected_result, self.problem, self.name, self.descent.number, ranks, STEPS)
        )

    def call(self) -> None:
        """Train (the timed call)."""
        self.descent.take(STEPS)

    def wrong(self) -> int:
        """Number of weights that differ from those of the same method in one process."""
        descent, expected = self.descent, self.expected(self.order())
        weights = descent.weights.detach().cpu()
        if expected is None:
            return weights.numel()
        return weights.numel() - int(((weights - expected.weights[descent.me]).abs() <= expected.off).sum())

    def order(self) -> tuple[int, ...]:
        """The order in which the server received gradients, on every rank; empty for other methods. Collective."""
        descent = self.descent
        if self.name != "server":
            return ()
        order = torch.zeros(STEPS * (descent.ranks - 1), dtype=torch.int64, device=descent.weights.device)
        if descent.me == 0:
            order.copy_(torch.tensor(descent.order))
        dist.broadcast(order, 0, group=descent.group)
        return tuple(order.tolist())

    def communicate(self) -> None:
        """Train with a given gradient, so that only the method's own work and communication remain."""
        model = self.descent.model
        model.given = model.samples[: self.problem.width].clone()
        try:
            self.descent.take(STEPS)
        finally:
            model.given = None

    def parts(self) -> Parts:
        """Separate runs of the parts of a training."""
        descent, expected = self.descent, self.expected(self.order())  # of the last checked training
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
            gaps=() if expected is None else expected.gaps,
        )


def bind(bound: Bound) -> Operation:
    """Bind a training by one exchange method."""
    training = BoundDescent(workload_of(bound.case), bound.me, len(bound.group), bound.comm, bound.device)
    return Operation(training.call, prepare=training.descent.begin, wrong=training.wrong, parts=training.parts)
