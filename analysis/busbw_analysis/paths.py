"""The path that the bytes of a group take: the memory of its GPUs, the links between them, the network of a host.

Each is the slowest of its kind among the ranks, with its nominal peak from the recorded facts and the catalogue; or the
reason, in words, why none is known.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from busbw.catalogue import Catalogue, Gpu, Peak
from busbw.levels import called, gpus_of, host_link_of, memory_of, no_row, nvlink_of, nvlinks, row_of
from busbw.networks import efa_together, interface_of, is_slingshot, port_of, rdma_ports
from busbw.records import JSON
from busbw.units import format_rate
from busbw_analysis.load import Dataset, fact

_LOOPBACK = "loopback"
_OVER_RDMA = {"nccl", "mpi", "mpi-cuda"}
_CHOSEN_INTERFACE = {"nccl": "NCCL_SOCKET_IFNAME"}
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True, slots=True)
class Narrowest:
    """The slowest of ``count`` alike: whose it is (``holder``), and what it carries."""

    holder: str
    peak: Peak
    count: int

    def in_words(self, kind: str) -> str:
        """What 100 % is: what, whose, how much in which direction, nominal and practical, by whom."""
        direction = "in one direction" if self.peak.direction == "one direction" else f"of {self.peak.direction}"
        among = "" if self.count == 1 else f", the slowest of {self.count} {kind}"
        return (
            f"{self.peak.what} of {self.holder}, {format_rate(self.peak.nominal)} {direction}, "
            f"{self.peak.in_words}{among}"
        )


def gpu_memory(dataset: Dataset, ranks: Sequence[int], rows: Catalogue) -> Narrowest | str:
    """The slowest memory among the GPUs of ``ranks``, which each have one of their own."""
    return _slowest_gpu(dataset, ranks, lambda gpu: memory_of(gpu, rows))


def host_links(dataset: Dataset, ranks: Sequence[int], rows: Catalogue) -> Narrowest | str:
    """The slowest link to the host among the GPUs of ``ranks``, which each have one of their own."""
    return _slowest_gpu(dataset, ranks, lambda gpu: host_link_of(gpu, rows))


def _slowest_gpu(
    dataset: Dataset, ranks: Sequence[int], peak_of: Callable[[Mapping[str, JSON]], Peak | str]
) -> Narrowest | str:
    found: dict[str, Peak] = {}
    used: list[str] = []
    for rank in ranks:
        gpu = _gpu(dataset, rank)
        peak = gpu if isinstance(gpu, str) else peak_of(gpu)
        if isinstance(gpu, str) or isinstance(peak, str):
            return str(peak)
        name = f"{called(gpu)} on {_host(dataset, rank)}"
        found[name] = peak
        used.append(name)
    if len(found) < len(used):
        return "several ranks share a GPU"
    return _slowest(found)


def gpu_model(dataset: Dataset, ranks: Sequence[int], rows: Catalogue) -> Gpu | str:
    """The row of the GPU that all of ``ranks`` drive one of."""
    found: dict[str, Gpu] = {}
    for rank in ranks:
        gpu = _gpu(dataset, rank)
        if isinstance(gpu, str):
            return gpu
        row = row_of(gpu, rows)
        if row is None:
            return no_row(gpu, rows)
        found[row.name] = row
    return next(iter(found.values())) if len(found) == 1 else f"the ranks drive unlike GPUs: {', '.join(found)}"


def gpu_links(dataset: Dataset, ranks: Sequence[int], rows: Catalogue) -> Narrowest | str:
    """The slowest way out of a GPU to those of the other ``ranks`` on the same host: its NVLinks that lead there, or
    where NVML tells of none its link to the host.
    """
    gpus: dict[int, dict[str, JSON]] = {}
    for rank in ranks:
        gpu = _gpu(dataset, rank)
        if isinstance(gpu, str):
            return gpu
        gpus[rank] = gpu
    addresses = {rank: str(gpu.get("address")) for rank, gpu in gpus.items()}
    if len(set(addresses.values())) < len(addresses):
        return "several ranks share a GPU"
    found: dict[str, Peak] = {}
    for rank, gpu in gpus.items():
        peak = _way_out(gpu, [address for other, address in addresses.items() if other != rank], rows)
        if isinstance(peak, str):
            return f"{called(gpu)}: {peak}"
        found[called(gpu)] = peak
    return _slowest(found)


def _way_out(gpu: Mapping[str, JSON], peers: Sequence[str], rows: Catalogue) -> Peak | str:
    count = nvlinks(gpu, peers)
    row = row_of(gpu, rows)
    linked = row is not None and row.links is not None
    if count or (count is None and (linked or gpu.get("index") is None)):
        return nvlink_of(gpu, rows, peers)  # a reason, too, where it may have links of which nothing was told
    return host_link_of(gpu, rows)


def host_network(environment: Mapping[str, JSON], backend: str, rows: Catalogue) -> tuple[str, Peak] | str:
    """What connects a host to the others, in one direction: all RDMA ports that the backend may use together, else the
    slowest interface that the ranks may have used; or what is missing.
    """
    if backend in _OVER_RDMA and fact(environment, "variables.NCCL_IB_DISABLE") != "1":
        ports = list(_rdma(environment, backend, rows))
        if ports:
            names = ", ".join(name for name, _ in ports)
            peaks = [peak for _, peak in ports]
            together = efa_together(peaks, rows) or _together(peaks)
            noun = "RDMA port" if len(ports) == 1 else f"{len(ports)} RDMA ports together:"
            return f"{noun} {names} ({together.what})", together
    return _interface(environment, backend, rows)


def _together(peaks: Sequence[Peak]) -> Peak:
    known = [peak.practical for peak in peaks if peak.practical is not None]
    sources = dict.fromkeys(peak.practical_source for peak in peaks if peak.practical_source is not None)
    whole = len(known) == len(peaks)
    return replace(
        peaks[0],
        nominal=sum(peak.nominal for peak in peaks),
        practical=sum(known) if whole else None,
        practical_source=" and ".join(sources) if whole and sources else None,
        what=" + ".join(dict.fromkeys(peak.what for peak in peaks)),
    )


def _rdma(environment: Mapping[str, JSON], backend: str, rows: Catalogue) -> Iterator[tuple[str, Peak]]:
    chosen = str(fact(environment, "variables.NCCL_IB_HCA") or "") if backend == "nccl" else ""
    for port in rdma_ports(environment):
        device = str(port.get("device"))
        peak = port_of(port, rows)
        if port.get("up") and isinstance(peak, Peak) and _is_chosen(device, port.get("port"), chosen):
            yield device, peak
    for nic in fact(environment, "nics") or ():
        if is_slingshot(nic) and nic.get("up") and isinstance(peak := interface_of(nic, rows), Peak):
            yield str(nic.get("name")), peak


def _is_chosen(device: str, port: JSON, chosen: str) -> bool:
    """Whether NCCL_IB_HCA leaves this port: a list of prefixes, of whole names after ``=``, of what not after ``^``;
    each may name a port (``mlx5_0:1``). Format: NCCL user guide, NCCL_IB_HCA.
    """
    unwanted, rest = chosen.startswith("^"), chosen.removeprefix("^")
    whole, rest = rest.startswith("="), rest.removeprefix("=")
    if not rest:
        return True
    named = False
    for entry in rest.split(","):
        name, colon, number = entry.strip().partition(":")
        here = device == name if whole else device.startswith(name)
        named = named or (here and (not colon or number == str(port)))
    return named != unwanted


def _interface(environment: Mapping[str, JSON], backend: str, rows: Catalogue) -> tuple[str, Peak] | str:
    """The slowest interface that the ranks may have used, over sockets, or what is missing."""
    interfaces = fact(environment, "nics")
    if not isinstance(interfaces, Sequence) or not interfaces:
        return "recorded no network interface"
    chosen = fact(environment, f"variables.{_CHOSEN_INTERFACE.get(backend, _GLOO_INTERFACE)}")
    names = set(str(chosen).split(",")) if chosen else None
    usable: list[tuple[str, Peak]] = []
    for interface in interfaces:
        name = str(fact(interface, "name"))
        if (
            not fact(interface, "up")
            or fact(interface, "kind") == _LOOPBACK
            or (names is not None and name not in names)
        ):
            continue
        known = interface_of(interface, rows, "tcp")
        if isinstance(known, Peak):
            usable.append((name, known))
        elif names is not None:
            return f"does not know the speed of {name}"
    if not usable:
        return "does not know the speed of any interface that is up"
    name, slowest = min(usable, key=lambda found: found[1].nominal)
    return f"network interface {name}", replace(slowest, what=name)


def _slowest(peaks: Mapping[str, Peak]) -> Narrowest:
    holder = min(peaks, key=lambda name: peaks[name].nominal)
    return Narrowest(holder, peaks[holder], len(peaks))


def _host(dataset: Dataset, rank: int) -> str:
    return dataset.runs[0].run.hosts[rank]


def _gpu(dataset: Dataset, rank: int) -> dict[str, JSON] | str:
    """The recorded facts of the GPU that ``rank`` drives, or what is missing."""
    host = _host(dataset, rank)
    number, address = dataset.seats[rank].gpu, dataset.seats[rank].gpu_address
    if number is None and address is None:
        return (
            f"the run does not say which GPU rank {rank} drove: NVML was not there or does not know it, and torch does "
            "not tell its place on PCI"
        )
    key, value = ("address", address) if number is None else ("index", number)
    found = next((gpu for gpu in gpus_of(dataset.environment(host)) if gpu.get(key) == value), None)
    return found if found is not None else f"the run has no facts of GPU {value} on {host}"
