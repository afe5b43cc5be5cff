"""What every call over torch is made of."""

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

# torch 2.13 renamed these and warns about the old names; torch 2.4 knows only the old ones.
ALL_GATHER: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
REDUCE_SCATTER: Callable[..., Any] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

REDUCTIONS = {name: getattr(dist.ReduceOp, name.upper()) for name in REDOPS}


@dataclass(frozen=True, slots=True)
class Bound:
    """What a call is made of: ``group`` in global ranks, ``me`` this rank's place in it. ``folder`` is for files;
    ``device`` is what tensors are on (None: the processor).
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
        """The global rank of the root."""
        return self.group[self.case.root or 0]

    @property
    def redop(self) -> Any:  # noqa: ANN401 - torch.distributed's ReduceOp has no usable type
        """The reduction as torch.distributed names it."""
        return REDUCTIONS[self.case.redop or "sum"]
