"""Tensor parallel: every rank has a part of each layer, and the whole batch."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import nn

from busbw.backends.pytorch.training.network import Network
from busbw.backends.pytorch.training.step import Made, Step

Form = Literal["rows", "columns", "sequence"]
"""How the last matrix of attention and feed-forward network is split, whose first ones are split by columns.

rows: an all_reduce behind each in the forward pass, and one before it in the backward pass (Shoeybi et al. 2019,
https://arxiv.org/abs/1909.08053, section 3). sequence: the same, and between them every rank has some of the tokens: an
all_gather and a reduce_scatter in place of each (Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198, section
4.2.2). columns: what goes into it and comes out is gathered, as lecture 8 of CS336 has it.
"""


class TensorParallel(Step):
    """Layers split by DTensor. Embedding, head and loss are split over the vocabulary."""

    def __init__(self, made: Made, form: Form) -> None:
        self._form = form
        super().__init__(made)

    def make(self) -> nn.Module:
        """The whole model, its matrices split."""
        network = self.made.network()
        split(network, self.made.mesh("tp"), self._form)
        return network

    def synchronise(self) -> None:
        """The rest of the gradients, and the mean over replicas."""
        settle(self.network)
        super().synchronise()

    def pass_of(self, given: torch.Tensor, wanted: torch.Tensor, pieces: int, *, last: bool) -> torch.Tensor:
        """With the loss split over the vocabulary."""
        with loss_by_vocabulary(self.made):
            return whole(super().pass_of(given, wanted, pieces, last=last))


def split(network: Network, mesh: Any, form: Form) -> None:  # noqa: ANN401 - torch's device mesh
    """Split the matrices of what ``network`` has of the model."""
    from torch.distributed.tensor import Replicate, Shard  # noqa: PLC0415
    from torch.distributed.tensor.parallel import (  # noqa: PLC0415
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    between = Shard(1) if form == "sequence" else Replicate()
    # The input becomes a DTensor once, so that its gradients from several matrices are added before they are reduced.
    whole = PrepareModuleInput(input_layouts=between, desired_input_layouts=Replicate())
    last: Any = RowwiseParallel(output_layouts=between)
    if form == "columns":
        last = ColwiseParallel(input_layouts=Shard(-1), output_layouts=Replicate())
    # Of tokens, or of heads: both are the second dimension of what is normed.
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
        known = {name for name, module in layer.named_modules() if not isinstance(module, nn.Identity)}
        parallelize_module(layer, mesh, {name: how for name, how in plan.items() if name in known})
    if network.embedding is not None:
        rows = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
        parallelize_module(network.embedding, mesh, {"tokens": rows})
    if network.head is not None:
        columns = ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False)
        parallelize_module(network.head, mesh, {"out": columns} | ({"norm": norm} if form == "sequence" else {}))
    network.tie()  # each was split on its own, both alike


def loss_by_vocabulary(made: Made) -> AbstractContextManager[None]:
    """Within it, the loss of what is split over the vocabulary is computed by all tensor ranks."""
    if made.shape.workload.tp == 1 or not made.shape.model.vocabulary:
        return nullcontext()
    from torch.distributed.tensor.parallel import loss_parallel  # noqa: PLC0415

    within: AbstractContextManager[None] = loss_parallel()
    return within


def whole(loss: Any) -> torch.Tensor:  # noqa: ANN401 - a tensor or a DTensor
    """As a plain tensor."""
    plain: torch.Tensor = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
    return plain


def settle(network: nn.Module) -> None:
    """What DTensor leaves of gradients: all of the embedding's on every rank, which is responsible for its rows alone;
    and of a norm's, whose tokens are divided, the part of each rank.
    """
    for parameter in network.parameters():
        gradient: Any = parameter.grad
        if gradient is not None and hasattr(parameter, "placements"):
            parameter.grad = gradient.redistribute(placements=parameter.placements)
