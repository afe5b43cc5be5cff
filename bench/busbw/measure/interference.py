"""What else went on while a block was measured: load, foreign and stolen CPU time, lost cores, frequencies, and GPUs
that were held back.

Read before and after, never in between, and stored with the samples: nothing is left out because of it, but a reader
can see which numbers were taken on a machine that was busy with something else.
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
"""The kernel counts CPU time in ticks of 10 ms: shares of less CPU time than this would be made of ticks."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at this host and this process; seconds since whenever, MHz (0: not told), runnable processes.

    ``counted`` is the CPU time that the kernel accounts for at all, idle included; ``busy`` and ``stolen`` are of it.
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
    """What this host and this process look like now."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "steal", 0.0)
    # guest time is counted in user time already, and must not count twice
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
    """Mean frequency of the cores; 0 where the kernel does not tell."""
    try:
        told = psutil.cpu_freq()
    except (OSError, NotImplementedError, RuntimeError):
        return 0.0
    return float(getattr(told, "current", 0.0))  # None on machines that do not tell, whatever the stubs say


class InterferenceMonitor:
    """Looks when it is made and again at ``ended``; one sum-reduction brings all ranks' looks together."""

    def __init__(self, backend: Backend, hosts: Sequence[str], take_look: Callable[[], Reading] = look) -> None:
        self._backend = backend
        self._hosts = hosts
        self._look = take_look
        self._before = take_look()
        self._gpu_before = backend.conditions()

    def ended(self) -> tuple[HostConditions, ...]:
        """What every host was doing, the same on every rank. Every rank calls it. Raises BackendError."""
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
    """A rank's GPU in numbers: its index + 1 (0: nothing is told of one), MHz (0: not told) and why it was held back,
    before or after.
    """
    names = ("gpu_number", "gpu_mhz_before", "gpu_mhz_after", "gpu_reasons")
    if before is None or after is None:
        return dict.fromkeys(names, 0.0)
    told = (after.index + 1, before.mhz or 0, after.mhz or 0, before.reasons | after.reasons)
    return dict(zip(names, told, strict=True))


def _gpu(rank: dict[str, float]) -> GpuConditions:
    return GpuConditions(
        index=int(rank["gpu_number"]) - 1,
        mhz_before=rank["gpu_mhz_before"] or None,
        mhz_after=rank["gpu_mhz_after"] or None,
        throttled=reasons_in_words(int(rank["gpu_reasons"])),
    )


def _host(host: str, ranks: Sequence[dict[str, float]]) -> HostConditions:
    """A host by what its ranks saw: the first one's look at the machine, and what each did itself."""
    first = ranks[0]
    capacity = first["at"] * first["cores"]

    def share(seconds: float) -> float | None:
        # Where the kernel counts nothing at all (some sandboxes), nobody can tell. Ticks may be short of our own time.
        told = capacity >= _LEAST_CPU_SECONDS and first["counted"] > 0
        return round(max(seconds, 0.0) / capacity, 4) if told else None

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
