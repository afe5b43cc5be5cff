"""A differentiable all_to_all for context and expert parallelism."""

from typing import Any

import torch
import torch.distributed as dist


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, sent: list[int], received: list[int], group: Any) -> torch.Tensor:  # noqa: ANN401
        ctx.rows, ctx.group = (received, sent), group
        return _sent(tensor, sent, received, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        received, sent = ctx.rows
        return _sent(gradient, received, sent, ctx.group), None, None, None


def _sent(tensor: torch.Tensor, sent: list[int], received: list[int], group: Any) -> torch.Tensor:  # noqa: ANN401
    out = tensor.new_empty((sum(received), *tensor.shape[1:]))
    dist.all_to_all_single(out, tensor.contiguous(), received, sent, group=group)
    return out


def exchanged(tensor: torch.Tensor, sent: list[int], received: list[int], group: Any) -> torch.Tensor:  # noqa: ANN401
    """All_to_all of rows: ``sent`` and ``received`` are the numbers of rows to and from each rank of the group."""
    out: torch.Tensor = _Exchange.apply(tensor, sent, received, group)  # type: ignore[no-untyped-call]
    return out
