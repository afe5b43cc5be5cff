"""Fully sharded data parallelism: ranks divide batch and weights; weights are gathered when needed."""

from itertools import pairwise
from typing import Any

import torch
from torch import nn

from busbw.backends.pytorch.training.step import Made, Step


class Sharded(Step):
    """FSDP2 (Zhao et al. 2023, https://arxiv.org/abs/2304.11277): layers, embedding and head are gathered separately.

    reshard: gathered weights are freed after the forward pass and gathered again for the backward pass.
    prefetch: the next unit is gathered during computation in the forward pass too, as the library does in the backward
        pass.
    """

    def __init__(self, setup: Made, *, reshard: bool = True, prefetch: bool = False) -> None:
        self._reshard, self._prefetch = reshard, prefetch
        super().__init__(setup)

    def make(self) -> nn.Module:
        """The whole model within ``fully_shard``."""
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - takes half a second

        network, mesh = self.made.network(), self.made.mesh("dp", "shard")
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
