"""System interference during a block: load, foreign and stolen CPU time, preemptions, frequencies, GPU throttling.

The values are read before and after a block, never during it, and stored with the samples. No sample is dropped
because of them; they show which numbers were taken on a busy machine.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from busbw.backends.base import Backend, of_every_rank
from busbw.measure.loops import switches
from busbw.runs.records import GpuConditions, HostConditions
from busbw.system.device import DeviceConditions, reasons_in_words

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
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError, RuntimeError):
        return 0.0
    return float(getattr(frequency, "current", 0.0))  # None on machines that report nothing, whatever the stubs say


class InterferenceMonitor:
    """Reads the counters on creation and again in ``ended``; one sum-reduction combines the readings of all ranks."""

    def __init__(self, backend: Backend, hosts: Sequence[str], take_look: Callable[[], Reading] = look) -> None:
        self._backend = backend
        self._hosts = hosts
        self._look = take_look
        self._before = take_look()
        self._gpu_before = backend.conditions()

    def ended(self) -> tuple[HostConditions, ...]:
        """Conditions on every host since creation, identical on every rank. Collective. Raises BackendError."""
        before, after = self._before, self._look()
        looked = {
            **{name: getattr(after, name) - getattr(before, name) for name in _COUNTED},
            "load_before": before.load,
            "load_after": after.load,
            "mhz_before": before.mhz,
            "mhz_after": after.mhz,
            "cores": psutil.cpu_count() or 1,
            **_gpu_columns(self._gpu_before, self._backend.conditions()),
        }
        table = of_every_rank(self._backend, [round(value * _SCALE) for value in looked.values()])
        seen = [dict(zip(looked, (row / _SCALE).tolist(), strict=True)) for row in table]
        return tuple(
            _host(host, [one for one, where in zip(seen, self._hosts, strict=True) if where == host])
            for host in dict.fromkeys(self._hosts)
        )


_COUNTED = ("at", "counted", "busy", "stolen", "own", "switches")
_SCALE = 1_000_000


def _gpu_columns(before: DeviceConditions | None, after: DeviceConditions | None) -> dict[str, float]:
    """A rank's GPU as numbers: index + 1 (0: no data), MHz (0: unknown), and throttle reasons before or after."""
    names = ("gpu_number", "gpu_mhz_before", "gpu_mhz_after", "gpu_reasons")
    if before is None or after is None:
        return dict.fromkeys(names, 0.0)
    values = (after.index + 1, before.mhz or 0, after.mhz or 0, before.reasons | after.reasons)
    return dict(zip(names, values, strict=True))


def _gpu(rank: dict[str, float]) -> GpuConditions:
    return GpuConditions(
        index=int(rank["gpu_number"]) - 1,
        mhz_before=rank["gpu_mhz_before"] or None,
        mhz_after=rank["gpu_mhz_after"] or None,
        throttled=reasons_in_words(int(rank["gpu_reasons"])),
    )


def _host(host: str, ranks: Sequence[dict[str, float]]) -> HostConditions:
    """Conditions of one host: system counters from its first rank, process counters from every rank."""
    first = ranks[0]
    capacity = first["at"] * first["cores"]

    def share(seconds: float) -> float | None:
        # Some sandboxes count no CPU time: unknown. Ticks may add up to less than our own CPU time, hence the max.
        known = capacity >= _LEAST_CPU_SECONDS and first["counted"] > 0
        return round(max(seconds, 0.0) / capacity, 4) if known else None

    return HostConditions(
        host=host,
        load_before=first["load_before"],
        load_after=first["load_after"],
        busy_share=share(first["busy"]),
        foreign_share=share(first["busy"] - sum(rank["own"] for rank in ranks)),
        steal_share=share(first["stolen"]),
        switches=tuple(int(rank["switches"]) for rank in ranks),
        mhz_before=first["mhz_before"] or None,
        mhz_after=first["mhz_after"] or None,
        gpus=tuple(_gpu(rank) for rank in ranks if rank["gpu_number"]),
    )
