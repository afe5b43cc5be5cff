"""On which NUMA node the memory of a case lies: as a plan says it, and as a case carries it."""

from busbw.ops.base import Op

MOST_NODES = 1024
"""A Linux kernel can be built for as many (CONFIG_NODES_SHIFT ≤ 10)."""

_PREFIX = "node:"


def takes_nodes(op: Op) -> bool:
    """Whether the buffers of ``op`` are memory of the host for its own sake: kernels in it, and copies of a GPU."""
    return op.host_memory or op.memory_traffic is not None


def on_node(variant: str | None, node: int) -> str:
    """The variant of a case whose memory lies on ``node``."""
    return " ".join([*([variant] if variant else []), f"{_PREFIX}{node}"])


def node_of(variant: str | None) -> int | None:
    """The node that the memory of a case lies on; None: where it is touched first."""
    words = (variant or "").split()
    return next((int(word.removeprefix(_PREFIX)) for word in words if word.startswith(_PREFIX)), None)
