"""Expert parallelism: each rank has a part of the batch, some experts of each layer, and all other weights."""

from typing import Any

import torch.distributed as dist
from torch import nn

from busbw.backends.pytorch.training.network import Experts
from busbw.backends.pytorch.training.step import Step


class ExpertParallel(Step):
    """Tokens are sent to the ranks of their experts and back by all_to_all.

    Lepikhin et al. 2020, https://arxiv.org/abs/2006.16668, section 3.2.
    """

    def make(self) -> nn.Module:
        """The model with this rank's experts."""
        shape, mesh = self.made.shape, self.made.mesh("ep")
        each = shape.model.experts // shape.workload.ep
        first = self.made.place("ep") * each
        network = self.made.network(experts=range(first, first + each))
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
        copies = self.made.mesh("dp").get_group() if self.made.degrees["dp"] > 1 else None
        for name, parameter in self.network.named_parameters():
            expert = ".experts." in name
            if expert and parameter.grad is not None:
                parameter.grad.div_(self.made.shape.workload.ep)
            group = copies if expert else self.made.replicas
            if group is not None:
                dist.all_reduce(parameter.grad, dist.ReduceOp.AVG, group=group)
