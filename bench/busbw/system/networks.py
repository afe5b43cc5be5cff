"""Rates of RDMA ports and network interfaces: as stated by the system, named after the catalogue row of that rate."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from busbw.runs.facts import Nic, RdmaPort
from busbw.system.catalog import Catalogue, HardwarePeak, Kind, Over, Rate
from busbw.units import format_rate

EFA = "EFA"
"""Name of ports of the Elastic Fabric Adapter."""
_SYSTEM = "stated by the system"


def interface_of(nic: Nic, rows: Catalogue, over: Over | None = None) -> HardwarePeak | str:
    """Rate of a network interface in one direction. The practical rate is ``over`` TCP, except on Slingshot."""
    speed = nic.speed_bytes_per_second
    if not speed:
        return "the system does not report its speed"
    row = _ethernet(speed, rows)
    if is_slingshot(nic):
        row = next((rate for rate in rows.rates if rate.kind == "slingshot" and _same(rate, speed)), row)
    return _stated(speed, row, over or ("rdma" if is_slingshot(nic) else "tcp"))


def is_slingshot(nic: Nic) -> bool:
    """Whether an interface belongs to a Cassini NIC of Slingshot (driver cxi_ss1, cxi_eth), which bypasses TCP like
    RDMA NICs.
    """
    return (nic.driver or "").startswith("cxi")


def efa_together(peaks: Sequence[HardwarePeak], rows: Catalogue) -> HardwarePeak | None:
    """Total rate of an instance with exactly these EFA ports; None unless exactly one kind of instance matches."""
    if not peaks or any(peak.what != EFA for peak in peaks):
        return None
    total = sum(peak.nominal for peak in peaks)
    alike = [row for row in rows.rates if row.kind == "efa" and row.ports in {None, len(peaks)} and _same(row, total)]
    return _stated(total, alike[0], "rdma") if len(alike) == 1 else None


def port_of(port: RdmaPort, rows: Catalogue) -> HardwarePeak | str:
    """Rate of an RDMA port in one direction."""
    rate = port.bytes_per_second
    if not rate:
        return "the kernel does not report its rate"
    if port.given:  # nobody knows more than its name and rate
        named = rows.rate(cast("Kind", port.kind), str(port.name)) if port.kind else None
        return HardwarePeak(rate, None, format_rate(rate), "one direction", "as given") if named is None else named.peak
    if port.driver == "efa":
        # The driver reports rates under InfiniBand names; the rows describe whole instances.
        return HardwarePeak(rate, None, EFA, "one direction", _SYSTEM)
    if port.layer != "InfiniBand":
        return _stated(rate, _ethernet(rate, rows), "rdma")
    row = rows.rate("infiniband", str(port.rate))
    # Up to FDR the kernel reports the signalling rate including the encoding; the row has the data rate.
    return _stated(rate, row, "rdma") if row is None or _same(row, rate) else row.peak


def _ethernet(bytes_per_second: float, rows: Catalogue) -> Rate | None:
    return rows.rate("ethernet", f"{bytes_per_second * 8 / 1e9:g}G Ethernet")


def _stated(rate: float, row: Rate | None, over: Over) -> HardwarePeak:
    """The rate that the system states. The row of the same rate only adds its name, and its practical rate if that was
    measured ``over`` the same protocol: sockets are slower than RDMA.
    """
    if row is None or not _same(row, rate):
        return HardwarePeak(rate, None, format_rate(rate), "one direction", _SYSTEM)
    peak = replace(row.peak, nominal=rate, source=_SYSTEM)
    return peak if (row.over or "rdma") == over else replace(peak, practical=None, practical_source=None)


def _same(row: Rate, rate: float) -> bool:
    return abs(row.bytes_per_second - rate) <= 0.02 * rate
