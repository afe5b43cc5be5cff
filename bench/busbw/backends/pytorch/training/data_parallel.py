"""Data parallelism: every rank has the whole model and a part of the batch."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from busbw.backends.pytorch.names import ALL_GATHER, REDUCE_SCATTER
from busbw.backends.pytorch.training.network import Experts
from busbw.backends.pytorch.training.step import LEARNING_RATE, Step, Whole, average


class AllReduced(Step):
    """Without a library: after the backward pass, an all_reduce of each gradient to the mean."""

    def synchronise(self) -> None:
        """Average each gradient by itself."""
        for parameter in self.network.parameters() if self.replicas is not None else ():
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG, group=self.replicas)


class Bucketed(Step):
    """DistributedDataParallel: gradients are reduced in buckets during the backward pass."""

    def make(self) -> nn.Module:
        """The whole model within DistributedDataParallel."""
        self._wrapped: Any = nn.parallel.DistributedDataParallel(
            self.build(), process_group=self.group, gradient_as_bucket_view=True
        )
        wrapped: nn.Module = self._wrapped
        return wrapped

    def pass_of(self, given: torch.Tensor, target: torch.Tensor, pieces: int, *, last: bool) -> torch.Tensor:
        """Forward and backward pass; only the last micro-batch reduces gradients."""
        with nullcontext() if last else self.silence():
            return super().pass_of(given, target, pieces, last=last)

    def synchronise(self) -> None:
        """Do nothing: the library has already reduced the gradients."""

    def silence(self) -> AbstractContextManager[Any]:
        """Use the library's ``no_sync``, because the library treats an omitted collective as an error."""
        quiet: AbstractContextManager[Any] = self._wrapped.no_sync()
        return quiet

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters without the wrapper's prefix."""
        yield from self._wrapped.module.named_parameters()


class Zero1(Step):
    """ZeRO-1 (Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054): a rank updates its share of all weights.

    Weights and gradients are views of two vectors, padded so that all ranks' shares are equal.
    """

    def make(self) -> nn.Module:
        """The whole model, its weights in one vector."""
        network = self.build()
        flat = parameters_to_vector(network.parameters()).detach()
        self._weights = functional.pad(flat, (0, -len(flat) % self.ranks))
        self._gradients = torch.zeros_like(self._weights)
        self._share = self._gradients.chunk(self.ranks)[self.rank].clone()
        vector_to_parameters(self._weights, network.parameters())
        return network

    def backward(self) -> None:
        """Backward pass into one vector of gradients."""
        self._gradients.zero_()
        start = 0
        for parameter in self.network.parameters():
            parameter.grad = self._gradients[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        super().backward()

    def synchronise(self) -> None:
        """Average this rank's share of the gradients by reduce_scatter."""
        REDUCE_SCATTER(self._share, self._gradients, dist.ReduceOp.AVG, group=self.group)

    def update(self) -> None:
        """Update this rank's share of the weights and all_gather the result."""
        own = self._weights.chunk(self.ranks)[self.rank].sub(self._share, alpha=LEARNING_RATE)
        ALL_GATHER(self._weights, own, group=self.group)

    def values(self, gradient: Whole, weight: Whole) -> Iterator[tuple[torch.Tensor | None, torch.Tensor]]:
        """This rank's share of all gradients, all weights, and the expected ones."""
        yield from ((parameter.detach(), weight(name)) for name, parameter in self.named())
        flat = torch.cat([gradient(name).flatten() for name, _ in self.named()])
        yield self._share, functional.pad(flat, (0, -len(flat) % self.ranks)).chunk(self.ranks)[self.rank]


class Sharded(Step):
    """FSDP2 (Zhao et al. 2023, https://arxiv.org/abs/2304.11277): layers, embedding and head are gathered separately.

    reshard: gathered weights are freed after the forward pass and gathered again for the backward pass.
    prefetch: the next unit is gathered during computation in the forward pass too, as the library does in the backward
        pass.
    """

    def __init__(self, *given: Any, reshard: bool = True, prefetch: bool = False) -> None:  # noqa: ANN401 - as in the base class
        self._reshard, self._prefetch = reshard, prefetch
        super().__init__(*given)

    def make(self) -> nn.Module:
        """The whole model within ``fully_shard``."""
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - takes half a second

        network, mesh = self.build(), self.mesh("dp", "shard")
        units: list[Any] = [network.embedding, *network.layers.values(), network.head]
        units = [unit for unit in units if unit is not None]
        for unit in units:
            fully_shard(unit, mesh=mesh, reshard_after_forward=self._reshard)
        for unit, following in pairwise(units) if self._prefetch else ():
            unit.set_modules_to_forward_prefetch([following])
        self._wrapped: Any = fully_shard(network, mesh=mesh, reshard_after_forward=self._reshard)
        return network

    def pass_of(self, given: torch.Tensor, target: torch.Tensor, pieces: int, *, last: bool) -> torch.Tensor:
        """Forward and backward pass; without reshard, weights are kept until the last micro-batch."""
        self._wrapped.set_reshard_after_backward(last or self._reshard)
        return super().pass_of(given, target, pieces, last=last)

    def synchronise(self) -> None:
        """Do nothing: the library has already reduced the gradients."""


class ExpertParallel(Step):
    """Tokens are sent to the ranks of their experts and back by all_to_all.

    Lepikhin et al. 2020, https://arxiv.org/abs/2006.16668, section 3.2.
    """

    def make(self) -> nn.Module:
        """The model with this rank's experts."""
        shape, mesh = self.shape, self.mesh("ep")
        each = shape.model.experts // shape.workload.ep
        first = self.place("ep") * each
        network = self.build(experts=range(first, first + each))
        for layer in network.layers.values():
            mixture: Any = layer.ffn
            if isinstance(mixture, Experts):
                mixture.group = mesh.get_group()
        return network

    def synchronise(self) -> None:
        """Average each gradient over replicas.

        An expert's gradient already contains the tokens of all ranks of its ep group, so only copies of that group
        remain to be averaged.
        """
        gradients = {True: list[torch.Tensor](), False: list[torch.Tensor]()}
        for name, parameter in self.network.named_parameters():
            if parameter.grad is not None:
                gradients[".experts." in name].append(parameter.grad)
        for gradient in gradients[True]:
            gradient.div_(self.shape.workload.ep)
        if self.degrees["dp"] > 1:
            average(gradients[True], self.mesh("dp").get_group())
        if self.replicas is not None:
            average(gradients[False], self.replicas)
