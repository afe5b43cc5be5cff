"""Names of torch.distributed that differ between its versions, and its reductions."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from busbw.runs.records import REDOPS

# torch 2.13 renamed these and warns about the old names; torch 2.4 has only the old names.
ALL_GATHER: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
REDUCE_SCATTER: Callable[..., Any] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

REDUCTIONS = {name: getattr(dist.ReduceOp, name.upper()) for name in REDOPS}
