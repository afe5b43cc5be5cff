"""What fusing attention saves: the same FLOP in one kernel and in separate operations, measured in the same run."""

from collections.abc import Iterator
from dataclasses import dataclass

from busbw.ops import FLOP, LEAST_TRAFFIC
from busbw.ops.compute import TOKEN
from busbw.runs.records import DTYPE_BYTES
from busbw_analysis.node.roofline import Kernel, Roofline

_UNFUSED, _FUSED = "attention_unfused", "attention"


@dataclass(frozen=True, slots=True)
class Fusion:
    """Attention of one size, measured both ways. Bytes and times are those of a call, with all ranks calling at once.

    fused_bytes, unfused_bytes: that one rank must read and write (``LEAST_TRAFFIC``).
    faster: ``unfused_ns`` over ``fused_ns``, with ``low`` and ``high`` by the farthest ends of both intervals.
    moving_ns: time that the additional bytes of all ranks take at the measured peak of memory; None without one.
    """

    dtype: str
    size_bytes: int
    tokens: int
    threads: int | None
    numa_node: int | None
    mode: str
    fused_bytes: int
    unfused_bytes: int
    fused_ns: float
    unfused_ns: float
    faster: float
    low: float | None
    high: float | None
    moving_ns: float | None

    @property
    def saved_ns(self) -> float:
        """Time that the fused kernel saves; negative if it is the slower one."""
        return self.unfused_ns - self.fused_ns

    @property
    def saved_bytes(self) -> int:
        """Bytes that the fused kernel need not move."""
        return self.unfused_bytes - self.fused_bytes


def fusions_of(roofline: Roofline) -> tuple[Fusion, ...]:
    """Every setting of attention that ``roofline`` has both ways, in its order."""
    return tuple(_fusions(roofline))


def _fusions(roofline: Roofline) -> Iterator[Fusion]:
    whole = {_setting(kernel): kernel for kernel in roofline.kernels if kernel.op == _FUSED}
    memory = next((peak for peak in reversed(roofline.memory) if peak.measured), None)
    for parts in roofline.kernels:
        fused = whole.get(_setting(parts))
        if parts.op != _UNFUSED or fused is None:
            continue
        count = parts.size_bytes // DTYPE_BYTES[parts.dtype]
        call = roofline.workers * FLOP[_FUSED](count) * 1e9
        fused_bytes, unfused_bytes = (round(LEAST_TRAFFIC[op](count) * parts.size_bytes) for op in (_FUSED, _UNFUSED))
        more = roofline.workers * (unfused_bytes - fused_bytes)
        yield Fusion(
            dtype=parts.dtype,
            size_bytes=parts.size_bytes,
            tokens=count // TOKEN,
            threads=parts.threads,
            numa_node=parts.numa_node,
            mode=parts.mode,
            fused_bytes=fused_bytes,
            unfused_bytes=unfused_bytes,
            fused_ns=call / fused.flop_per_second,
            unfused_ns=call / parts.flop_per_second,
            faster=fused.flop_per_second / parts.flop_per_second,
            low=None if fused.low is None or parts.high is None else fused.low / parts.high,
            high=None if fused.high is None or parts.low is None else fused.high / parts.low,
            moving_ns=None if memory is None else more / memory.bytes_per_second * 1e9,
        )


def _setting(kernel: Kernel) -> tuple[object, ...]:
    return kernel.dtype, kernel.size_bytes, kernel.threads, kernel.numa_node, kernel.mode
