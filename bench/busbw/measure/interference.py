"""System interference during a block: load, foreign and stolen CPU time, preemptions, frequencies, GPU throttling,
counters of errors.

The values are read before and after a block, never during it, and stored with the samples. No sample is dropped
because of them; they show which numbers were taken on a busy machine.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from busbw.backends.base import Backend, records_of_every_rank
from busbw.measure.loops import switches
from busbw.runs.records import CounterDelta, GpuConditions, HostConditions
from busbw.system.counters import CounterWatch, deltas
from busbw.system.device import DeviceConditions, reasons_in_words

_LEAST_LIMITED = 0.01
"""Least part of a block's time for which a reduced clock of a GPU counts."""
_LEAST_CPU_SECONDS = 0.5
"""Least CPU time for which shares are computed: the kernel counts in ticks of 10 ms."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters of this host and this process at one moment; times in seconds since an arbitrary origin.

    at: when it was read.
    counted: CPU time that the kernel accounts for, including idle time.
    busy, stolen: parts of ``counted`` that were used, and that a hypervisor took.
    own: CPU time of this process.
    switches: involuntary context switches of this thread.
    load: runnable processes, averaged over one minute.
    mhz: mean core frequency, MHz (0: unknown).
    """

    at: float
    counted: float
    busy: float
    stolen: float
    own: float
    switches: int
    load: float
    mhz: float


def look() -> Reading:
    """Read the counters of this host and this process."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "steal", 0.0)
    # guest time is already included in user time
    everything = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return Reading(
        at=time.monotonic(),
        counted=everything,
        busy=everything - idle,
        stolen=getattr(times, "steal", 0.0),
        own=time.process_time(),
        switches=switches(),
        load=os.getloadavg()[0],
        mhz=_mhz(),
    )


def _mhz() -> float:
    """Mean core frequency, MHz; 0 if the kernel does not report it."""
    with suppress(OSError, NotImplementedError, RuntimeError):
        return float(getattr(psutil.cpu_freq(), "current", 0.0))  # None on some machines, whatever the stubs say
    return 0.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one rank saw: its readings, the cores of its host, its GPU (None: no GPU, or unknown), and the counters that
    moved: those of its GPU, and on the first rank of a host those of the host.
    """

    before: Reading
    after: Reading
    cores: int
    gpu: GpuConditions | None
    counters: tuple[CounterDelta, ...]


class InterferenceMonitor:
    """Reads the counters on creation and again in ``ended``, where the ranks share what they saw.

    counters: those of the host since they were last read (None: not read).
    """

    def __init__(
        self,
        backend: Backend,
        hosts: Sequence[str],
        take_look: Callable[[], Reading] = look,
        counters: CounterWatch | None = None,
    ) -> None:
        self._backend = backend
        self._hosts = hosts
        self._counters = counters if backend.rank in map(hosts.index, hosts) else None
        self._look = take_look
        self._before = take_look()
        self._gpu_before = backend.conditions()

    def ended(self) -> tuple[HostConditions, ...]:
        """Conditions on every host since creation, identical on every rank. Collective. Raises BackendError."""
        after = self._look()
        gpu_after = self._backend.conditions()
        gpu = _gpu(self._gpu_before, gpu_after, after.at - self._before.at)
        counters = () if self._counters is None else self._counters.moved()
        counters += _counted(self._gpu_before, gpu_after)
        mine = _Seen(self._before, after, psutil.cpu_count() or 1, gpu, counters)
        seen = records_of_every_rank(self._backend, mine, _Seen)
        return tuple(
            _host(host, [rank for rank, where in zip(seen, self._hosts, strict=True) if where == host])
            for host in dict.fromkeys(self._hosts)
        )


def _gpu(before: DeviceConditions | None, after: DeviceConditions | None, seconds: float) -> GpuConditions | None:
    if before is None or after is None:
        return None
    reasons = before.reasons | after.reasons
    for bit, until in before.limited_ns.items():
        if after.limited_ns.get(bit, until) - until > _LEAST_LIMITED * seconds * 1e9:
            reasons |= bit
    known = before.joules is not None and after.joules is not None
    return GpuConditions(
        index=after.index,
        mhz_before=before.mhz or None,
        mhz_after=after.mhz or None,
        throttled=reasons_in_words(reasons),
        memory_mhz=after.memory_mhz,
        celsius=after.celsius,
        joules=(after.joules or 0.0) - (before.joules or 0.0) if known else None,
    )


def _counted(before: DeviceConditions | None, after: DeviceConditions | None) -> tuple[CounterDelta, ...]:
    """The counters of a GPU that moved. An XID that was not seen before has moved."""
    if before is None or after is None:
        return ()
    name = f"GPU {after.index}"
    first = {key: before.counts.get(key, 0) for key in after.counts if key in before.counts or key[0] == "xid"}
    return deltas(*({(key[0], name, key[1]): count for key, count in of.items()} for of in (first, after.counts)))


def _host(host: str, ranks: Sequence[_Seen]) -> HostConditions:
    """Conditions of one host: system counters from its first rank, process counters from every rank."""
    before, after = ranks[0].before, ranks[0].after
    capacity = (after.at - before.at) * ranks[0].cores
    busy, own = after.busy - before.busy, sum(rank.after.own - rank.before.own for rank in ranks)

    def share(seconds: float) -> float | None:
        # Some sandboxes count no CPU time: unknown. Ticks may add up to less than our own CPU time, hence the max.
        is_known = capacity >= _LEAST_CPU_SECONDS and after.counted > before.counted
        return round(max(seconds, 0.0) / capacity, 4) if is_known else None

    return HostConditions(
        host=host,
        load_before=before.load,
        load_after=after.load,
        busy_share=share(busy),
        foreign_share=share(busy - own),
        steal_share=share(after.stolen - before.stolen),
        switches=tuple(rank.after.switches - rank.before.switches for rank in ranks),
        mhz_before=before.mhz or None,
        mhz_after=after.mhz or None,
        gpus=tuple(rank.gpu for rank in ranks if rank.gpu is not None),
        counters=tuple(dict.fromkeys(counter for rank in ranks for counter in rank.counters)),
    )
