"""Counters of errors, repairs and congestion on a host: InfiniBand, RoCE, EFA, network devices, TCP, memory and GPUs.

The names and meanings of files are the kernel's: Documentation/ABI/stable/sysfs-class-infiniband, class-net-statistics,
edac and networking/snmp_counter; of ``hw_counters`` those of its drivers mlx5 and efa. Those of GPUs are NVML's.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from busbw.runs.records import CounterDelta
from busbw.system.sysfs import text_of

Kind = Literal["error", "repair", "congestion"]
"""error: data or a link were lost, which a healthy node never shows; repair: sent again or corrected, which costs time
and happens now and then; congestion: a queue was full or a sender was slowed down."""
Unit = Literal["events", "packets", "ticks"]


@dataclass(frozen=True, slots=True)
class Counter:
    """One row. ``path``: folder of the file named as the counter, or a file with lines of names and of values; a star
    is the device, a second one its port. None: NVML.
    """

    path: str | None
    unit: Unit
    kind: Kind
    meaning: str


_PORT: Final = "sys/class/infiniband/*/ports/*/counters"
_HARDWARE: Final = "sys/class/infiniband/*/ports/*/hw_counters"
_INTERFACE: Final = "sys/class/net/*"
_DEVICE: Final = f"{_INTERFACE}/statistics"
_EDAC: Final = "sys/devices/system/edac/mc/mc*"
_SNMP: Final = "proc/net/snmp"
_NETSTAT: Final = "proc/net/netstat"

COUNTERS: Final[Mapping[str, Counter]] = {
    "symbol_error": Counter(_PORT, "events", "error", "minor errors on a lane of the link"),
    "link_error_recovery": Counter(_PORT, "events", "error", "the link was retrained"),
    "link_downed": Counter(_PORT, "events", "error", "the link went down"),
    "port_rcv_errors": Counter(_PORT, "packets", "error", "packets with an error arrived"),
    "port_rcv_remote_physical_errors": Counter(_PORT, "packets", "error", "packets arrived that a switch marked bad"),
    "local_link_integrity_errors": Counter(_PORT, "events", "error", "physical errors of the link above its limit"),
    "excessive_buffer_overrun_errors": Counter(_PORT, "events", "error", "an input buffer overran"),
    "port_xmit_discards": Counter(_PORT, "packets", "congestion", "the port dropped outgoing packets"),
    "port_xmit_wait": Counter(_PORT, "ticks", "congestion", "the port had data and could not send"),
    "out_of_sequence": Counter(_HARDWARE, "packets", "repair", "packets arrived out of order"),
    "packet_seq_err": Counter(_HARDWARE, "packets", "repair", "the receiver asked for lost packets again"),
    "implied_nak_seq_err": Counter(_HARDWARE, "events", "repair", "an acknowledgement showed that packets were lost"),
    "local_ack_timeout_err": Counter(_HARDWARE, "events", "repair", "no acknowledgement arrived in time"),
    "duplicate_request": Counter(_HARDWARE, "packets", "repair", "requests arrived twice"),
    "rnr_nak_retry_err": Counter(_HARDWARE, "events", "congestion", "the receiver was not ready"),
    "out_of_buffer": Counter(_HARDWARE, "packets", "congestion", "packets were dropped without a receive buffer"),
    "req_transport_retries_exceeded": Counter(_HARDWARE, "events", "error", "a request failed after all retries"),
    "rx_icrc_encapsulated": Counter(_HARDWARE, "packets", "error", "RoCE packets arrived with a wrong checksum"),
    "roce_adp_retrans": Counter(_HARDWARE, "events", "repair", "RoCE sent packets again"),
    "roce_adp_retrans_to": Counter(_HARDWARE, "events", "repair", "RoCE sent packets again after a timeout"),
    "roce_slow_restart": Counter(_HARDWARE, "events", "congestion", "RoCE started slowly again"),
    "np_cnp_sent": Counter(_HARDWARE, "packets", "congestion", "congestion notifications were sent"),
    "np_ecn_marked_roce_packets": Counter(_HARDWARE, "packets", "congestion", "a switch marked packets as congested"),
    "rp_cnp_handled": Counter(_HARDWARE, "packets", "congestion", "congestion notifications slowed the sender down"),
    "rx_drops": Counter(_HARDWARE, "packets", "congestion", "EFA dropped incoming packets"),
    "retrans_pkts": Counter(_HARDWARE, "packets", "repair", "EFA sent packets again"),
    "retrans_timeout_events": Counter(_HARDWARE, "events", "repair", "EFA sent packets again after a timeout"),
    "impaired_remote_conn_events": Counter(_HARDWARE, "events", "error", "the path to a peer of EFA became impaired"),
    "unresponsive_remote_events": Counter(_HARDWARE, "events", "error", "a peer of EFA did not answer"),
    "rx_crc_errors": Counter(_DEVICE, "packets", "error", "packets arrived with a wrong checksum"),
    "rx_frame_errors": Counter(_DEVICE, "packets", "error", "misaligned frames arrived"),
    "tx_carrier_errors": Counter(_DEVICE, "packets", "error", "the carrier was lost while sending"),
    "rx_missed_errors": Counter(_DEVICE, "packets", "congestion", "packets were dropped before the host took them"),
    "rx_dropped": Counter(_DEVICE, "packets", "congestion", "the kernel dropped incoming packets"),
    "tx_dropped": Counter(_DEVICE, "packets", "congestion", "the kernel dropped outgoing packets"),
    "carrier_down_count": Counter(_INTERFACE, "events", "error", "the link went down"),
    "RetransSegs": Counter(_SNMP, "packets", "repair", "TCP sent segments again"),
    "InErrs": Counter(_SNMP, "packets", "repair", "TCP dropped bad segments"),
    "TCPTimeouts": Counter(_NETSTAT, "events", "repair", "TCP's retransmission timer expired"),
    "TCPSynRetrans": Counter(_NETSTAT, "packets", "repair", "TCP repeated the start of a connection"),
    "ce_count": Counter(_EDAC, "events", "repair", "host memory was corrected (ECC)"),
    "ue_count": Counter(_EDAC, "events", "error", "host memory had an error that cannot be corrected (ECC)"),
    "xid": Counter(None, "events", "error", "the driver reported an error of this number (XID)"),
    "ecc_corrected": Counter(None, "events", "repair", "GPU memory was corrected (ECC)"),
    "ecc_uncorrected": Counter(None, "events", "error", "GPU memory had an error that cannot be corrected (ECC)"),
    "nvlink_replay": Counter(None, "events", "repair", "an NVLink sent packets again"),
    "nvlink_recovery": Counter(None, "events", "error", "an NVLink was retrained"),
    "nvlink_crc_flit": Counter(None, "events", "repair", "flits with a wrong checksum arrived over NVLink"),
    "nvlink_crc_data": Counter(None, "events", "repair", "data with a wrong checksum arrived over NVLink"),
    "pcie_replay": Counter(None, "events", "repair", "PCI Express sent packets again"),
}
"""Name, which is that of its file or NVML's in short → its row. Other counters are not read."""

Place: TypeAlias = tuple[str, str, int | None]
"""Name of a counter, device, and port."""

_MOST_TIME: Final = 0.05
"""Largest share of the time that reading may take. A file of mlx5 makes the card answer a command (lifespan 10 ms)."""


class CounterWatch:
    """The counters of a host that moved since they were last read, below ``root``.

    A reading of 32 counters took 1 ms, and a host with eight cards has many more. Therefore ``moved``
    reads again only when enough time has passed since the last time; what moved meanwhile is not lost.
    """

    def __init__(self, root: Path = Path("/"), now: Callable[[], float] = time.perf_counter) -> None:
        self._root, self._now = root, now
        self._files = tuple(_files_below(root))
        self._begin, self._end, self._last = self._read()

    def moved(self) -> tuple[CounterDelta, ...]:
        """What moved since the last reading; nothing if that was too recent for what a reading takes."""
        if self._now() - self._end < (self._end - self._begin) / _MOST_TIME:
            return ()
        before = self._last
        self._begin, self._end, self._last = self._read()
        return deltas(before, self._last)

    def _read(self) -> tuple[float, float, dict[Place, int]]:
        """When the reading began and ended, and what it found."""
        began = self._now()
        values = {place: value for place, path in self._files if (value := _number(path)) is not None}
        for file in (_SNMP, _NETSTAT):
            values |= {
                (name, "tcp", None): value for name, value in _columns(self._root / file) if COUNTERS[name].path == file
            }
        return began, self._now(), values


def deltas(before: Mapping[Place, int], after: Mapping[Place, int]) -> tuple[CounterDelta, ...]:
    """The counters of both readings that rose; one that fell was reset."""
    return tuple(
        CounterDelta(name=name, device=device, port=port, delta=value - before[name, device, port])
        for (name, device, port), value in after.items()
        if value > before.get((name, device, port), value)
    )


def _files_below(root: Path) -> Iterator[tuple[Place, Path]]:
    """The files of counters that this host has, in the order of ``COUNTERS``. Bridges and other interfaces without a
    device are left out: they go up and down with containers.
    """
    patterns = dict.fromkeys(row.path for row in COUNTERS.values() if row.path not in {_SNMP, _NETSTAT, None})
    folders = {pattern: sorted(root.glob(pattern)) for pattern in patterns}
    for pattern, device in ((_INTERFACE, "device"), (_DEVICE, "../device")):
        folders[pattern] = [folder for folder in folders[pattern] if (folder / device).exists()]
    for name, row in COUNTERS.items():
        for folder in folders.get(row.path or "", ()):
            if (folder / name).is_file():
                parts = zip(Path(row.path or "").parts, folder.relative_to(root).parts, strict=True)
                device, *port = (part for star, part in parts if "*" in star)
                yield (name, device, int(port[0]) if port else None), folder / name


def _number(path: Path) -> int | None:
    with suppress(ValueError):
        return int(text_of(path) or "")
    return None


def _columns(path: Path) -> Iterator[tuple[str, int]]:
    """The counters in a file with a line of names, then a line of their values."""
    lines = [line.split() for line in (text_of(path) or "").splitlines()]
    for names, values in zip(lines[::2], lines[1::2], strict=False):
        with suppress(ValueError):
            yield from ((name, int(value)) for name, value in zip(names, values, strict=False) if name in COUNTERS)
