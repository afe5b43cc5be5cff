"""Pipeline parallelism: every rank has some layers (or a part of each), and micro-batches pass from rank to rank."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from busbw.backends.pytorch.training.network import loss_of
from busbw.backends.pytorch.training.step import Made, Step
from busbw.backends.pytorch.training.tensor_parallel import loss_by_vocabulary, settle, split, whole


class Pipelined(Step):
    """A pipeline of p ranks with a ``schedule`` of torch.distributed.pipelining.

    A rank has ``interleave`` parts of the layers: part j of rank r is stage number j p + r.
    """

    def __init__(self, setup: Made, schedule: str) -> None:
        self._schedule_name = schedule
        super().__init__(setup)

    def make(self) -> nn.Module:
        """The layers of this rank, one network per part."""
        from torch.distributed import pipelining  # noqa: PLC0415 - takes half a second

        setup, shape = self.made, self.made.shape
        model, workload = shape.model, shape.workload
        count = workload.pp * workload.interleave
        length = model.layers // count
        numbers = [part * workload.pp + setup.place("pp") for part in range(workload.interleave)]
        parts = [setup.network(range(number * length, (number + 1) * length)) for number in numbers]
        if workload.tp > 1:
            for part in parts:
                split(part, setup.mesh("tp"), "rows")
        stages = [
            pipelining.PipelineStage(
                part, number, count, setup.device, group=setup.mesh("pp").get_group(), **self._ends(number, count)
            )
            for part, number in zip(parts, numbers, strict=True)
        ]
        self._first, self._last = 0 in numbers, count - 1 in numbers
        kind: Any = getattr(pipelining, self._schedule_name)
        self._schedule = kind(stages if workload.interleave > 1 else stages[0], workload.micro_batches, loss_fn=loss_of)
        return nn.ModuleList(parts)

    def _ends(self, number: int, count: int) -> dict[str, Any]:
        """Example input and output of a stage, so that ranks need not exchange their shapes."""
        model, workload = self.made.shape.model, self.made.shape.workload
        shape = (model.batch // workload.dp // workload.micro_batches, model.sequence)
        between = torch.zeros(*shape, model.hidden, device=self.made.device).requires_grad_()
        given = self.given[: shape[0]] if number == 0 else between
        out = between
        if number == count - 1 and model.vocabulary:
            out = torch.zeros(*shape, model.vocabulary, device=self.made.device).requires_grad_()
        return {"input_args": given, "output_args": out}

    def backward(self) -> None:
        """Forward and backward pass by the schedule, which averages gradients over micro-batches."""
        losses: list[torch.Tensor] = []
        last = {"target": self.wanted, "losses": losses} if self._last else {}
        given = (self.given.detach().requires_grad_(self.given.is_floating_point()),) if self._first else ()
        with loss_by_vocabulary(self.made):
            self._schedule.step(*given, **last)
        if losses:
            self.loss = torch.stack([whole(loss.detach()) for loss in losses]).mean()

    def synchronise(self) -> None:
        """Complete the gradients of tensor-parallel stages, and average over replicas."""
        settle(self.network)
        super().synchronise()

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters without the prefix of the part."""
        for part in self.network.children():
            yield from part.named_parameters()

    @property
    def knows_loss(self) -> bool:
        """Whether this rank has the last stage."""
        return self._last
