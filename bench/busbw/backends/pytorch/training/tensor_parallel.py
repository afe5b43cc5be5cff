"""Tensor parallel: every rank has a part of each layer, and the whole batch."""

from typing import Any

import torch
from torch import nn

from busbw.backends.pytorch.training.network import Network, loss_of
from busbw.backends.pytorch.training.step import SEED, Step


class TensorParallel(Step):
    """Columns of the first matrices and rows of the last of attention and feed-forward network, by DTensor: an
    all_reduce behind each in the forward pass, and one before it in the backward pass (Shoeybi et al. 2019,
    https://arxiv.org/abs/1909.08053, section 3). Embedding, head and loss are split over the vocabulary.
    """

    def make(self) -> nn.Module:
        """The whole model, its matrices split."""
        from torch.distributed.tensor import Replicate, Shard  # noqa: PLC0415 - takes half a second
        from torch.distributed.tensor.parallel import (  # noqa: PLC0415
            ColwiseParallel,
            PrepareModuleInput,
            RowwiseParallel,
            parallelize_module,
        )

        network = Network(self.made.shape.model, SEED)
        # The input becomes a DTensor once, so that its gradients from several matrices are added before the all_reduce.
        whole = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
        for layer in network.layers.values():
            plan = {
                **dict.fromkeys(("attention", "ffn"), whole),
                **dict.fromkeys(("attention.query", "attention.key", "attention.value"), ColwiseParallel()),
                **dict.fromkeys(("ffn.up", "ffn.gate"), ColwiseParallel()),
                **dict.fromkeys(("attention.out", "ffn.down"), RowwiseParallel()),
            }
            known = dict(layer.named_modules())
            parallelize_module(layer, self.made.mesh, {name: how for name, how in plan.items() if name in known})
        if network.embedding is not None and network.head is not None:
            rows = RowwiseParallel(input_layouts=Replicate())
            columns = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
            parallelize_module(network.embedding, self.made.mesh, {"tokens": rows})
            parallelize_module(network.head, self.made.mesh, {"out": columns})
        return network

    def synchronise(self) -> None:
        """DTensor leaves all of the embedding's gradient on every rank, which is responsible for its rows alone."""
        for parameter in self.network.parameters():
            gradient: Any = parameter.grad
            if gradient is not None and hasattr(parameter, "placements"):
                parameter.grad = gradient.redistribute(placements=parameter.placements)
        super().synchronise()

    def pass_of(self, given: torch.Tensor, wanted: torch.Tensor, pieces: int, *, last: bool) -> torch.Tensor:
        """With the loss split over the vocabulary."""
        if self.wanted.is_floating_point():
            return super().pass_of(given, wanted, pieces, last=last)
        from torch.distributed.tensor.parallel import loss_parallel  # noqa: PLC0415

        with loss_parallel():
            loss = loss_of(self.network(given), wanted) / pieces
            torch.autograd.backward(loss)
        mean: torch.Tensor = loss.detach()
        return mean.full_tensor() if hasattr(mean, "full_tensor") else mean
