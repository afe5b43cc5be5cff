"""On which NUMA node the memory of a case lies: which ops have any, and how many there may be."""

from busbw.ops.base import Op

MOST_NODES = 1024
"""A Linux kernel can be built for as many (CONFIG_NODES_SHIFT ≤ 10)."""


def takes_nodes(op: Op) -> bool:
    """Whether the buffers of ``op`` are memory of the host for its own sake: kernels in it, and copies of a GPU."""
    return op.host_memory or op.memory_traffic is not None
