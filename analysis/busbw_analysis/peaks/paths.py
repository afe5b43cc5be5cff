"""The parts of the hardware that the bytes of a group pass: GPU memory, links between GPUs, network of a host.

Each function returns the slowest part among the ranks, with its nominal peak from the recorded facts and the
catalogue, or why it is unknown.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from busbw.runs.facts import HostFacts
from busbw.runs.records import TransportRules
from busbw.system.catalog import Catalogue, Gpu, HardwarePeak, KnownGpu
from busbw.system.detect import (
    SPLIT,
    efa_together,
    interface_of,
    is_slingshot,
    memory_of,
    nvlink_of,
    nvlinks,
    port_of,
)
from busbw.units import format_rate
from busbw_analysis.data.facts import RankGpu
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.peaks.transports import NETWORK_NOT_KNOWN, Choice, Transport, transport_of


@dataclass(frozen=True, slots=True)
class Narrowest:
    """The slowest part among ``count`` GPUs or hosts.

    holder: the GPU or host that it belongs to
    what: the part and its holder in words
    gpu: the GPU without its host; None if the holder is a host
    sharing: number of ranks that share it
    """

    holder: str
    what: str
    peak: HardwarePeak
    count: int
    owners: Literal["GPUs", "hosts"] = "GPUs"
    gpu: str | None = None
    sharing: int = 1

    @property
    def in_words(self) -> str:
        """The rate as text: part, owner, rate and direction, source, and how many it is the slowest of."""
        direction = "in one direction" if self.peak.direction == "one direction" else f"of {self.peak.direction}"
        among = "" if self.count == 1 else f", the slowest of {self.count} {self.owners}"
        return f"{self.what}, {format_rate(self.peak.nominal)} {direction}, {self.peak.in_words}{among}"


def gpu_memory(gpus: Sequence[RankGpu], rows: Catalogue) -> Narrowest | Unavailable:
    """The slowest memory among ``gpus``; every rank must have its own GPU."""
    return _slowest_gpu(gpus, rows, "memory-not-known", lambda gpu, _: memory_of(gpu))


def host_links(gpus: Sequence[RankGpu], rows: Catalogue) -> Narrowest | Unavailable:
    """The slowest link to the host among ``gpus``; every rank must have its own GPU."""
    return _slowest_gpu(gpus, rows, "link-not-known", lambda gpu, _: gpu.to_host)


def gpu_links(gpus: Sequence[RankGpu], rows: Catalogue) -> Narrowest | Unavailable:
    """The slowest connection of one of ``gpus`` to the others on the same host: its NVLinks to them, or its
    link to the host if it has none.
    """
    return _slowest_gpu(gpus, rows, "links-not-known", _way_out)


def _slowest_gpu(
    gpus: Sequence[RankGpu],
    rows: Catalogue,
    code: str,
    peak_of: Callable[[KnownGpu, Sequence[str]], HardwarePeak | str],
) -> Narrowest | Unavailable:
    """The slowest of the peaks of ``gpus``, each from its facts and rows and the addresses of the other GPUs."""
    known = _known(gpus, rows, code)
    if isinstance(known, Unavailable):
        return known
    addresses = dict.fromkeys(gpu.facts.address for gpu in known)
    peaks: dict[tuple[str, str], HardwarePeak] = {}
    for of_rank, gpu in zip(gpus, known, strict=True):
        peak = peak_of(gpu, [other for other in addresses if other != gpu.facts.address])
        if not isinstance(peak, HardwarePeak):
            return Unavailable(code, f"{gpu.facts.label}: {peak}")
        peaks[gpu.facts.label, of_rank.host] = peak
    if len(peaks) < len(gpus):
        return Unavailable(code, "several ranks share a GPU")
    (label, host), slowest = min(peaks.items(), key=lambda item: item[1].nominal)
    holder = f"{label} on {host}"
    return Narrowest(holder, f"{slowest.what} of {holder}", slowest, len(peaks), gpu=label)


def gpu_model(gpus: Sequence[RankGpu], rows: Catalogue) -> Gpu | Unavailable:
    """The catalogue row of the model of all ``gpus``."""
    code = "gpu-not-known"
    known = _known(gpus, rows, code)
    if isinstance(known, Unavailable):
        return known
    models: dict[str, Gpu] = {}
    for gpu in known:
        if gpu.facts.mig:
            return Unavailable(code, f"{gpu.facts.label}: {SPLIT}")
        if gpu.row is None:
            return Unavailable(code, gpu.no_row)
        models[gpu.row.name] = gpu.row
    if len(models) != 1:
        return Unavailable(code, f"the ranks drive different GPUs: {', '.join(models)}")
    return next(iter(models.values()))


def _known(gpus: Sequence[RankGpu], rows: Catalogue, code: str) -> list[KnownGpu] | Unavailable:
    """All ``gpus`` with their rows, or, with ``code``, why the facts of one are unknown."""
    known: list[KnownGpu] = []
    for of_rank in gpus:
        if isinstance(of_rank.gpu, str):
            return Unavailable(code, of_rank.gpu)
        known.append(rows.known(of_rank.gpu))
    return known


def _way_out(gpu: KnownGpu, peers: Sequence[str]) -> HardwarePeak | str:
    count, row = nvlinks(gpu.facts, peers), gpu.row
    if row is not None and not row.links_known:
        return f"no source gives the rate of the links between GPUs of {row.name}"
    linked = row is not None and row.links is not None
    if count or (count is None and (linked or gpu.facts.index is None)):
        return nvlink_of(gpu, peers)  # returns a reason if it may have links that were not recorded
    return gpu.to_host


@dataclass(frozen=True, slots=True)
class Network:
    """The connection of a host to other hosts: its ``name``, its rate in one direction, its number of ``ports``."""

    name: str
    peak: HardwarePeak
    ports: int = 1

    @property
    def practical(self) -> float:
        """The rate reached in practice if known, else the nominal rate."""
        return self.peak.practical or self.peak.nominal


_MOST_NAMED: Final = 2
"""Ports of a host that are named one by one; of more, the first and the last."""


def host_network(host: HostFacts, by: TransportRules, rows: Catalogue) -> Network | Unavailable:
    """The connection of a host to others: all RDMA ports that the backend may use, else the interface of its sockets,
    or which fact is missing, as the rest of a sentence about the host.
    """
    transport = transport_of(host, by)
    ports = [] if transport.rdma is False else list(_rdma(host, transport, rows))
    if not ports:
        return _interface(host, transport, rows)
    if isinstance(transport.rdma, Unavailable):
        return transport.rdma
    names = [name for name, _ in ports]
    listed = ", ".join(names) if len(names) <= _MOST_NAMED else f"{names[0]} … {names[-1]}"
    peaks = [peak for _, peak in ports]
    together = efa_together(peaks, rows) or _together(peaks)
    noun = "RDMA port" if len(ports) == 1 else f"{len(ports)} RDMA ports"
    return Network(f"{noun} {listed} ({together.what})", together, len(ports))


def _together(peaks: Sequence[HardwarePeak]) -> HardwarePeak:
    rates = [peak.practical for peak in peaks if peak.practical is not None]
    sources = dict.fromkeys(peak.practical_source for peak in peaks if peak.practical_source is not None)
    whole = len(rates) == len(peaks)
    return replace(
        peaks[0],
        nominal=sum(peak.nominal for peak in peaks),
        practical=sum(rates) if whole else None,
        practical_source=" and ".join(sources) if whole and sources else None,
        what=" + ".join(dict.fromkeys(peak.what for peak in peaks)),
    )


def _rdma(host: HostFacts, transport: Transport, rows: Catalogue) -> Iterator[tuple[str, HardwarePeak]]:
    for port in host.rdma:
        peak = port_of(port, rows)
        if port.up and isinstance(peak, HardwarePeak) and transport.ports.allows(port.device, port.port):
            yield port.device, peak
    for nic in host.nics:
        if is_slingshot(nic) and nic.up and isinstance(peak := interface_of(nic, rows), HardwarePeak):
            yield nic.name, peak


def _interface(host: HostFacts, transport: Transport, rows: Catalogue) -> Network | Unavailable:
    """The interface that sockets use, or why it is unknown."""
    if not host.nics:
        return Unavailable(NETWORK_NOT_KNOWN, "recorded no network interface")
    chosen = transport.interfaces
    named = chosen.named and not chosen.by_subnet
    peaks: dict[str, HardwarePeak] = {}
    unknown: list[str] = []
    for nic in host.nics:
        if not nic.up or nic.kind == "loopback" or not chosen.allows(nic.name):
            continue
        peak = interface_of(nic, rows, "tcp")
        if isinstance(peak, HardwarePeak):
            peaks[nic.name] = peak
        elif named or nic.kind != "virtual":  # virtual interfaces such as bridges have no speed
            unknown.append(nic.name)
    if unknown and (peaks or named):
        missing = f"did not record the speed of {', '.join(unknown)}{_or_name_one(chosen)}"
    elif peaks:
        return _alike(peaks, transport)
    elif named:
        missing = f"has no interface that is up and that {chosen.variable}={chosen.value} allows"
    else:
        missing = "did not record the speed of any interface that is up"
    return Unavailable(NETWORK_NOT_KNOWN, missing)


def _alike(peaks: Mapping[str, HardwarePeak], transport: Transport) -> Network | Unavailable:
    """The rate of the used interface when it is unknown which of ``peaks`` was used.

    All must have the same speed. If the backend may use several together, a variable must name them.
    """
    name, first = next(iter(peaks.items()))
    chosen = transport.interfaces
    alike = len({peak.nominal for peak in peaks.values()}) == 1
    if len(peaks) == 1 or (alike and not transport.together):
        return Network(f"network interface {name}", replace(first, what=name))
    if alike and chosen.named and not chosen.by_subnet:
        together = replace(_together(list(peaks.values())), what=" + ".join(peaks))
        return Network(f"{len(peaks)} network interfaces together: {', '.join(peaks)}", together)
    listed = ", ".join(f"{name} {format_rate(peak.nominal)}" for name, peak in peaks.items())
    which = "did not record which of them was used"
    if chosen.by_subnet:
        which = f"recorded no addresses, so those that {chosen.variable}={chosen.value} allows are unknown"
    missing = f"has several interfaces that are up ({listed}) and {which}{_or_name_one(chosen)}"
    return Unavailable(NETWORK_NOT_KNOWN, missing)


def _or_name_one(chosen: Choice) -> str:
    return f"; name the interface that leads to the other hosts with {chosen.variable}"
