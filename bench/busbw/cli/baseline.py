"""What a run of a few operations measures beside them, so that their results can be judged."""

from collections.abc import Sequence
from typing import Final

from busbw.backends.base import BackendRow
from busbw.ops import OPS
from busbw.ops.base import Op
from busbw.runs.plan import Sweep

_LATENCY: Final = ("ping_pong", "8,4MiB")
"""α and β, and between hosts nothing else: what a network carries is its nominal rate."""
_RATE: Final = ("send_recv", "4MiB")
"""What the ranks of one host carry together."""
_SOCKETS: Final = (("tcp_stream", "4MiB,64MiB"), ("tcp_ping_pong", "4MiB"))
"""The peaks of a backend that sends over sockets, on one host."""
_MEMORY: Final = ("memory_copy", "64MiB")
"""The peak of ranks that share the memory of one host."""
_PRODUCTS: Final = ("matmul", "4MiB")
"""The rate of matrix products, which steps of training are held against."""


def baseline(ops: Sequence[str], backend: BackendRow, ranks: int, *, one_host: bool) -> tuple[Sweep, ...]:
    """Sweeps beside ``ops`` on ``ranks`` ranks that cost models and peaks are taken from. Empty where nothing is sent;
    what is among ``ops`` is left out.
    """
    sending = [OPS[name] for name in ops if _is_judged(OPS[name])]
    rows = [_PRODUCTS] if any(OPS[name].splits for name in ops) else []
    if ranks < 2:
        sending = []
    rows += [_LATENCY] if sending else []
    if one_host and any(op.sized for op in sending):
        rows.append(_RATE)
        rows += _SOCKETS if backend.traits.transport == "gloo-tcp" else ()
        rows += [_MEMORY] if backend.device == "cpu" else []
    return tuple(Sweep(ops=(name,), sizes=sizes) for name, sizes in rows if name not in ops)


def _is_judged(op: Op) -> bool:
    """Whether ``op`` is held against a model or a peak of messages; pairs are held against each other."""
    return not (op.local or op.stores or op.plain_sockets or op.splits or op.members == "pairs")
