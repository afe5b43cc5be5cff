"""The reducer of DistributedDataParallel, which torch has in C++, where a simulated tensor has no storage.

As torch's: gradients are copied into buckets in the order in which they become ready, a full bucket is reduced while
the backward pass goes on, and the end of the backward pass waits for all buckets.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist


class Bucket:
    """``dist.GradBucket``: the gradients of some parameters as one vector."""

    def __init__(self, index: int, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._index, self._parameters = index, parameters
        self._buffer = torch.cat([torch.zeros_like(parameter.detach()).flatten() for parameter in parameters])
        parts = torch.split(self._buffer, [parameter.numel() for parameter in parameters])
        self._views = [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]
        self.ready: set[int] = set()
        self.done: torch.futures.Future[torch.Tensor] | None = None

    def index(self) -> int:
        """Its number."""
        return self._index

    def buffer(self) -> torch.Tensor:
        """All gradients, one after the other."""
        return self._buffer

    def gradients(self) -> list[torch.Tensor]:
        """Every gradient as a view of the buffer."""
        return self._views

    def take(self, parameter: torch.nn.Parameter) -> bool:
        """Copy the gradient of ``parameter``; returns whether the bucket is full."""
        place = next(at for at, own in enumerate(self._parameters) if own is parameter)
        self._views[place].copy_(cast("torch.Tensor", parameter.grad))
        self.ready.add(place)
        return len(self.ready) == len(self._parameters)

    def give(self) -> None:
        """Wait for the exchange, and give every parameter its gradient."""
        if self.done is None:
            raise RuntimeError("Expected to have finished reduction in the prior iteration before starting a new one.")
        self._buffer.copy_(self.done.wait())
        for parameter, gradient in zip(self._parameters, self._views, strict=True):
            cast("torch.Tensor", parameter.grad).copy_(gradient)
        self.ready.clear()
        self.done = None


class Reducer:
    """``dist.Reducer``."""

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        bucket_indices: Sequence[Sequence[int]],
        _limits: object,
        group: dist.ProcessGroup,
        *_others: object,
    ) -> None:
        self._group = group
        self._buckets = [
            Bucket(number, [parameters[index] for index in indices]) for number, indices in enumerate(bucket_indices)
        ]
        self._of = {index: bucket for bucket, row in zip(self._buckets, bucket_indices, strict=True) for index in row}
        self._expecting, self._waiting = False, False
        self.hook: Callable[[Bucket], torch.futures.Future[torch.Tensor]] = self._mean
        for index, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(self._arrived(self._of[index]))  # type: ignore[no-untyped-call] # torch's

    def _arrived(self, bucket: Bucket) -> Callable[[torch.Tensor], None]:
        def arrived(parameter: torch.Tensor) -> None:
            if not self._expecting:
                return
            if not self._waiting:
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)
                self._waiting = True
            if bucket.take(cast("torch.nn.Parameter", parameter)):
                bucket.done = self.hook(bucket)

        return arrived

    def _mean(self, bucket: Bucket) -> torch.futures.Future[torch.Tensor]:
        """Divide, then add over the ranks, as torch does without a hook."""
        buffer = bucket.buffer().div_(self._group.size())
        work = cast("dist.Work", dist.all_reduce(buffer, group=self._group, async_op=True))
        return cast("torch.futures.Future[torch.Tensor]", work.get_future()).then(lambda _done: buffer)

    def _finish(self) -> None:
        self._expecting = self._waiting = False
        for bucket in self._buckets:
            bucket.give()

    def prepare_for_backward(self, _outputs: object) -> None:
        """The next backward pass exchanges gradients."""
        self._expecting = True

    def prepare_for_forward(self) -> None:
        """Nothing to prepare."""

    def set_logger(self, _logger: object) -> None:
        """Nothing is logged."""

    def _rebuild_buckets(self) -> bool:
        return False

    def _set_forward_pass_work_handle(self, *_handle: object) -> None:
        """Without joined inputs nothing waits for it."""


class Logger:
    """``dist.Logger``, which logs nothing."""

    def __init__(self, _reducer: Reducer) -> None: ...

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_args: None


def register_comm_hook(reducer: Reducer, state: object, hook: Callable[..., Any]) -> None:
    """``dist._register_comm_hook``."""
    reducer.hook = lambda bucket: hook(state, bucket)


def broadcast_coalesced(group: dist.ProcessGroup, tensors: Sequence[torch.Tensor], _size: int, source: int) -> None:
    """``dist._broadcast_coalesced``."""
    for tensor in tensors:
        dist.broadcast(tensor, group=group, group_src=source)
