"""Reference measurements that ``busbw run --op`` adds, so that its results can be compared with models and peaks."""

from collections.abc import Sequence
from typing import Final

from busbw.backends.base import BackendRow
from busbw.ops import OPS
from busbw.ops.base import Op
from busbw.runs.plan import Sweep

_LATENCY: Final = ("ping_pong", "8,4MiB")
"""Latency α and cost per byte β. Between hosts nothing else is measured: the network's nominal rate is its peak."""
_RATE: Final = ("send_recv", "4MiB")
"""The rate that the ranks of one host reach together."""
_SOCKETS: Final = (("tcp_stream", "4MiB,64MiB"), ("tcp_ping_pong", "4MiB"))
"""Peaks for a backend that sends over sockets, on one host."""
_MEMORY: Final = ("memory_copy", "64MiB")
"""Peak for ranks that share the memory of one host."""
_PRODUCTS: Final = ("matmul", "4MiB")
"""Rate of matrix products, which training steps are compared with."""


def baseline(ops: Sequence[str], backend: BackendRow, ranks: int, *, one_host: bool) -> tuple[Sweep, ...]:
    """Sweeps that cost models and peaks for ``ops`` on ``ranks`` ranks are derived from, without those in ``ops``.

    Empty when ``ops`` send nothing.
    """
    sending = [OPS[name] for name in ops if ranks > 1 and _is_judged(OPS[name])]
    rows = [_PRODUCTS] if any(OPS[name].splits for name in ops) else []
    rows += [_LATENCY] if sending else []
    if one_host and any(op.sized for op in sending):
        rows.append(_RATE)
        rows += _SOCKETS if backend.traits.transport == "gloo-tcp" else ()
        rows += [_MEMORY] if backend.device == "cpu" else []
    return tuple(Sweep(ops=(name,), sizes=sizes, baseline=True) for name, sizes in rows if name not in ops)


def _is_judged(op: Op) -> bool:
    """Whether ``op`` is compared with a model or peak of messages (pairs are only compared with each other)."""
    return not (op.local or op.stores or op.plain_sockets or op.splits or op.members == "pairs")
