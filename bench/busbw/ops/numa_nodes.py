"""NUMA node of a case's memory: which ops support one, and how many there may be."""

from busbw.ops.base import Op

MOST_NODES = 1024
"""Largest number that a Linux kernel can be built for (CONFIG_NODES_SHIFT ≤ 10)."""


def takes_nodes(op: Op) -> bool:
    """Whether ``op`` measures host memory itself: memory kernels and copies of a GPU."""
    return op.host_memory or op.memory_traffic is not None
