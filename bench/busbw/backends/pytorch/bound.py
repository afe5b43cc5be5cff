"""Inputs from which every call over torch is bound."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from busbw.ops.base import Matrix
from busbw.ops.groups import Ranks
from busbw.runs.records import REDOPS, Case
from busbw.system.device import Device

# torch 2.13 renamed these and warns about the old names; torch 2.4 has only the old names.
ALL_GATHER: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
REDUCE_SCATTER: Callable[..., Any] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

REDUCTIONS = {name: getattr(dist.ReduceOp, name.upper()) for name in REDOPS}


@dataclass(frozen=True, slots=True)
class Bound:
    """Inputs from which a call is bound.

    group: global ranks of the group.
    me: index of this rank in the group.
    process_group: torch's process group (None: all ranks).
    send, receive: buffers.
    traffic: traffic of an uneven op, elements.
    folder: where files are created (None: the plan has no path).
    device: device of the tensors (None: the CPU).
    """

    case: Case
    group: Ranks
    me: int
    process_group: dist.ProcessGroup | None
    send: torch.Tensor
    receive: torch.Tensor
    traffic: Matrix
    folder: Path | None = None
    device: Device | None = None

    @property
    def root(self) -> int:
        """Global rank of the root."""
        return self.group[self.case.root or 0]

    @property
    def redop(self) -> Any:  # noqa: ANN401 - torch.distributed's ReduceOp has no usable type
        """torch.distributed's reduction operator."""
        return REDUCTIONS[self.case.redop or "sum"]
