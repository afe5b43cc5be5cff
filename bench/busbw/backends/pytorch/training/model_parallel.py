"""Tensor parallelism: every rank has a part of each layer, and the whole batch."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import nn

from busbw.backends.pytorch.training.network import Network, loss_of
from busbw.backends.pytorch.training.step import Step
from busbw.workloads.shapes import StepShape

Form = Literal["rows", "columns", "sequence"]
"""How the last matrix of attention and of the feed-forward network is split; the first ones are split by columns.

rows: one all_reduce after each block in the forward pass and one before it in the backward pass (Shoeybi et al. 2019,
https://arxiv.org/abs/1909.08053, section 3).
sequence: as rows, but between blocks every rank has a part of the tokens, with an all_gather and a reduce_scatter in
place of each all_reduce (Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198, section 4.2.2).
columns: its input and output are gathered, as in lecture 8 of CS336.
"""


class TensorParallel(Step):
    """Layers split by DTensor. Embedding, head and loss are split over the vocabulary."""

    def __init__(self, *given: Any, form: Form) -> None:  # noqa: ANN401 - as in the base class
        self._form = form
        super().__init__(*given)

    def make(self) -> nn.Module:
        """The whole model with split matrices."""
        network = self.build()
        split(network, self.mesh("tp"), self._form)
        return network

    def synchronise(self) -> None:
        """Complete the gradients, and average over replicas."""
        settle(self.network)
        super().synchronise()

    def pass_of(self, given: torch.Tensor, target: torch.Tensor, pieces: int, *, last: bool) -> torch.Tensor:
        """Forward and backward pass with the loss split over the vocabulary."""
        with loss_by_vocabulary(self.shape):
            return whole(super().pass_of(given, target, pieces, last=last))


def split(network: Network, mesh: Any, form: Form) -> None:  # noqa: ANN401 - torch's device mesh
    """Split the matrices of ``network``."""
    from torch.distributed.tensor import Replicate, Shard  # noqa: PLC0415
    from torch.distributed.tensor.parallel import (  # noqa: PLC0415
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    between = Shard(1) if form == "sequence" else Replicate()
    # The input becomes a DTensor once, so that gradients from several matrices are added before they are reduced.
    whole = PrepareModuleInput(input_layouts=between, desired_input_layouts=Replicate())
    last: Any = RowwiseParallel(output_layouts=between)
    if form == "columns":
        last = ColwiseParallel(input_layouts=Shard(-1), output_layouts=Replicate())
    # Norms act on tokens or heads, both of which are the second dimension of their input.
    norm = SequenceParallel(use_local_output=True)
    plan = {
        **dict.fromkeys(("attention_norm", "ffn_norm") if form == "sequence" else (), norm),
        **dict.fromkeys(("attention.query_norm", "attention.key_norm"), norm),
        **dict.fromkeys(("attention", "ffn"), whole),
        **dict.fromkeys(("attention.query", "attention.key", "attention.value"), ColwiseParallel()),
        **dict.fromkeys(("ffn.up", "ffn.gate"), ColwiseParallel()),
        **dict.fromkeys(("attention.out", "ffn.down"), last),
    }
    for layer in network.layers.values():
        names = {name for name, module in layer.named_modules() if not isinstance(module, nn.Identity)}
        parallelize_module(layer, mesh, {name: how for name, how in plan.items() if name in names})
    if network.embedding is not None:
        rows = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
        parallelize_module(network.embedding, mesh, {"tokens": rows})
    if network.head is not None:
        columns = ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False)
        parallelize_module(network.head, mesh, {"out": columns} | ({"norm": norm} if form == "sequence" else {}))
    network.tie()  # again, because both matrices were split separately


def loss_by_vocabulary(shape: StepShape) -> AbstractContextManager[None]:
    """Context in which the tensor-parallel ranks compute the loss together, split over the vocabulary."""
    if shape.workload.tp == 1 or not shape.model.vocabulary:
        return nullcontext()
    from torch.distributed.tensor.parallel import loss_parallel  # noqa: PLC0415

    within: AbstractContextManager[None] = loss_parallel()
    return within


def whole(loss: Any) -> torch.Tensor:  # noqa: ANN401 - a tensor or a DTensor
    """``loss`` as a plain tensor."""
    plain: torch.Tensor = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
    return plain


def settle(network: nn.Module) -> None:
    """Bring gradients into the layout of their parameters, which DTensor leaves undone.

    It leaves the whole embedding gradient on every rank, although each needs only its rows, and unreduced partial
    gradients of norms whose tokens are split.
    """
    for parameter in network.parameters():
        gradient: Any = parameter.grad
        if gradient is not None and hasattr(parameter, "placements"):
            parameter.grad = gradient.redistribute(placements=parameter.placements)


class Pipelined(Step):
    """A pipeline of p ranks with a ``schedule`` of torch.distributed.pipelining.

    A rank has ``interleave`` parts of the layers: part j of rank r is stage number j p + r.
    """

    def __init__(self, *given: Any, schedule: str) -> None:  # noqa: ANN401 - as in the base class
        self._schedule_name = schedule
        super().__init__(*given)

    def make(self) -> nn.Module:
        """The layers of this rank, one network per part."""
        from torch.distributed import pipelining  # noqa: PLC0415 - takes half a second

        model, workload = self.shape.model, self.shape.workload
        count = workload.pp * workload.interleave
        length = model.layers // count
        numbers = [part * workload.pp + self.place("pp") for part in range(workload.interleave)]
        parts = [self.build(range(number * length, (number + 1) * length)) for number in numbers]
        if workload.tp > 1:
            for part in parts:
                split(part, self.mesh("tp"), "rows")
        group = self.messages("pp")
        stages = [
            pipelining.PipelineStage(part, number, count, self.device, group=group, **self._ends(number, count))
            for part, number in zip(parts, numbers, strict=True)
        ]
        self._first, self._last = 0 in numbers, count - 1 in numbers
        kind: Any = getattr(pipelining, self._schedule_name)
        self._schedule = kind(stages if workload.interleave > 1 else stages[0], workload.micro_batches, loss_fn=loss_of)
        return nn.ModuleList(parts)

    def _ends(self, number: int, count: int) -> dict[str, Any]:
        """Example input and output of a stage, so that ranks need not exchange their shapes."""
        model, workload = self.shape.model, self.shape.workload
        shape = (model.batch // workload.dp // workload.micro_batches, model.sequence)
        between = torch.zeros(*shape, model.hidden, device=self.device).requires_grad_()
        given = self.given[: shape[0]] if number == 0 else between
        out = between
        if number == count - 1 and model.vocabulary:
            out = torch.zeros(*shape, model.vocabulary, device=self.device).requires_grad_()
        return {"input_args": given, "output_args": out}

    def backward(self) -> None:
        """Forward and backward pass by the schedule, which averages gradients over micro-batches."""
        losses: list[torch.Tensor] = []
        last = {"target": self.wanted, "losses": losses} if self._last else {}
        given = (self.given.detach().requires_grad_(self.given.is_floating_point()),) if self._first else ()
        with loss_by_vocabulary(self.shape):
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
