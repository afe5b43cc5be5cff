"""The hardware peak of a curve, and the exact meaning of 100 %.

- CPU ranks on one host communicate through sockets or memory. Their peak is the rate of plain sockets, or of memory
  copies of this host, measured in the same run.
- GPUs on one host: their links. Ranks on several hosts: the network; if they drive GPUs, links and network together.
- Kernels in memory: the memory of the host or of the GPU. Copies between the two: the GPU's link to the host.

All but the first are nominal peaks, from facts of the system and the catalogue. If none is known there is no peak: a
percentage of a guess is worse than none.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from msgspec import structs

from busbw.ops import (
    ARITHMETIC,
    LEAST_CROSSING,
    LOCAL,
    MEMORY_TRAFFIC,
    MESSAGES,
    OF_TWO_RANKS,
    ON_SOCKETS,
    OPS,
    STORING,
    TO_THE_HOST,
)
from busbw.ops.base import Crossing
from busbw.runs.facts import HostFacts
from busbw.runs.records import JSON
from busbw.system.catalog import Catalogue, HardwarePeak
from busbw.system.detect import dram_of, drive_of
from busbw.units import counted, format_rate, format_size
from busbw_analysis.data.as_json import plain, with_values
from busbw_analysis.data.facts import Facts
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.names import rank_list
from busbw_analysis.data.series import Series, SeriesKey
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.data.unavailable import UNKNOWN_OP, Unavailable
from busbw_analysis.peaks.paths import Narrowest, Network, gpu_links, gpu_memory, host_links, host_network

COPY: Final = "memory_copy"
_TCP_STREAM = "tcp_stream"
_TCP_PING_PONG = "tcp_ping_pong"
_HOST_MEMORY = "cpu"

LEAST_COPY_BYTES = 1 << 20
"""Smaller copies take microseconds and measure the arrival skew of the ranks, not a peak."""

PeakLevel = Literal[
    "DRAM",
    "HBM",
    "PCIe",
    "NVLink-C2C",
    "links of GPUs",
    "network",
    "storage",
    "memory copy of a host",
    "plain TCP of a host",
]


_ROUNDED: Final = 5e-3
"""Rates that differ by less look the same with three digits."""
_OF_GPUS: Final[dict[PeakLevel, str]] = {"links of GPUs": "all links", "PCIe": "PCIe", "NVLink-C2C": "NVLink-C2C"}


_MEASURED: Final = frozenset[PeakLevel]({"memory copy of a host", "plain TCP of a host"})


def noun_of(level: PeakLevel | None) -> str:
    """What 100 % is called: what a run measured is a reference, which may be exceeded, anything else a peak."""
    return "reference" if level in _MEASURED else "peak"


def of_peak(levels: Iterable[PeakLevel]) -> str:
    """The heading of a column of shares whose 100 % are of these ``levels``."""
    return "Of reference" if {noun_of(level) for level in levels} == {"reference"} else "Of peak"


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest rate that this hardware allows at any size.

    algbw, busbw: B/s; ``busbw`` is None if the op has none
    rate: of the part itself, B/s, which carries ``rate / algbw`` bytes for each byte of S
    level: the part of the machine that limits the rate
    holder: the host, GPU or interface that this part belongs to
    what: the part and its holder in words
    basis: ``what``, its rate and direction, measured or nominal, source
    clauses: how the peak follows from this rate: sharing, traffic for each byte, what else may limit it
    measured: whether the rate was measured in this run; otherwise the system or the catalogue states it
    practical: the algbw that others reach on such hardware, B/s (None: unknown)
    in_practice: who reaches it, for sentences
    practical_left_out: why the catalogue's practical rate does not apply to this op
    widest: the peak assumes the widest link that such hardware can have, because the actual width is unknown
    cases: indices of the cases that the rate was measured with; empty for a nominal peak
    """

    algbw: float
    busbw: float | None
    rate: float
    level: PeakLevel
    holder: str
    what: str
    basis: str
    clauses: tuple[str, ...]
    measured: bool
    practical: float | None = None
    in_practice: str = "reached in practice"
    practical_left_out: str | None = None
    widest: bool = False
    cases: tuple[int, ...] = ()

    @property
    def denominator(self) -> str:
        """What 100 % is: ``basis`` and ``clauses`` as one text."""
        return "; ".join((self.basis, *self.clauses))

    @property
    def name(self) -> str:
        """``what`` without the details of a GPU's links."""
        short = _OF_GPUS.get(self.level)
        return self.what if short is None else f"{short} of {self.holder}"

    @property
    def source(self) -> str:
        """``what``; with its own rate over the bytes for each byte of busbw, if these are not 1."""
        if not self._converted:
            return self.what
        bytes_ = f"{self.rate / (self.busbw or 1):.3g} bytes moved for each byte of busbw"
        return f"{self._with_rate(self.what)}, divided by {bytes_}"

    @property
    def allowance(self) -> str:
        """The rate that is 100 %, and the part that it is of or, with another rate, comes from."""
        if not self._converted:
            return f"{format_rate(self.busbw or self.algbw)} of {self.name}"
        return f"{format_rate(self.busbw)} of busbw from {self._with_rate(self.name)}"

    @property
    def _converted(self) -> bool:
        return self.busbw is not None and not math.isclose(self.busbw, self.rate, rel_tol=_ROUNDED)

    def _with_rate(self, name: str) -> str:
        return f"{format_rate(self.rate)}{' in total' if self.measured else ''} of {name}"

    def with_clause(self, clause: str) -> "Peak":
        """The peak with ``clause`` after the others."""
        return replace(self, clauses=(*self.clauses, clause))

    @property
    def practical_busbw(self) -> float | None:
        """The busbw that others reach on such hardware; None if it is unknown or the op has none."""
        if self.practical is None or self.busbw is None:
            return None
        return self.busbw * self.practical / self.algbw


def peak_as_json(peak: Peak | Unavailable) -> JSON:
    """A peak with its denominator as JSON, or why there is none."""
    return with_values(peak, "denominator") if isinstance(peak, Peak) else plain(peak)


@dataclass(frozen=True, slots=True)
class HostRate:
    """A rate of one host, measured with memory copies or plain TCP sockets.

    op: ``memory_copy``; ``tcp_stream``: each rank sends to the next, all concurrently; ``tcp_ping_pong``: first and
        last rank in turn
    bytes_per_second: B/s; of copies the source bytes of all ranks together, of sockets those of each sending rank
    ranks, size_bytes: the ranks that copied or sent, and bytes of each
    whole: whether the time is from the first entry to the last exit. Otherwise the ranks share no clock, and it is the
        slowest rank's time; the rate of copies is then too high if they did not fully overlap.
    case: index of its case
    """

    op: str
    bytes_per_second: float
    ranks: tuple[int, ...]
    size_bytes: int
    whole: bool
    case: int

    @property
    def rank(self) -> tuple[int, int, float]:
        """The largest copy is the best, and the fastest stream."""
        largest = (len(self.ranks), self.size_bytes) if self.op == COPY else (0, 0)
        return (*largest, self.bytes_per_second)


HostRates = Mapping[tuple[str, str], HostRate]
"""The best rates that a run measured, by op and host."""


def host_rates(summaries: Iterable[CaseSummary], facts: Facts) -> HostRates:
    """The best rates of the hosts of a run from ``LEAST_COPY_BYTES`` on; empty if none was measured.

    The rate of copies is ranks · S over the time from the first entry to the last exit. With more ranks than cores,
    some ranks copy only after others have finished; dividing by the slowest rank's time would then double the rate.
    """
    measured = by_key(((rate.op, host), rate) for host, rate in _rates_of_hosts(summaries, facts))
    return {where: max(rates, key=lambda rate: rate.rank) for where, rates in measured.items()}


def _rates_of_hosts(summaries: Iterable[CaseSummary], facts: Facts) -> Iterator[tuple[str, HostRate]]:
    for summary in summaries:
        case, group = summary.case, summary.only
        if group is None or case.size_bytes < LEAST_COPY_BYTES:
            continue
        whole = group.span_ns is not None
        if case.op in ON_SOCKETS:
            rate = case.size_bytes / group.time_ns * 1e9
            host = facts.hosts[group.ranks[0]]
            yield host, HostRate(case.op, rate, group.ranks, case.size_bytes, whole, summary.index)
        # A GPU copies inside its own memory, which does not limit communication between ranks.
        if (case.op, case.device, case.cache, summary.state) == (COPY, _HOST_MEMORY, "warm", "measured"):
            for host, ranks in by_key((facts.hosts[rank], rank) for rank in group.ranks).items():
                rate = len(ranks) * case.size_bytes / (group.span_ns or group.time_ns) * 1e9
                yield host, HostRate(COPY, rate, tuple(ranks), case.size_bytes, whole, summary.index)


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the peaks of all curves of a run come from: recorded facts, measured rates, and the catalogue of peaks."""

    facts: Facts
    rates: HostRates
    rows: Catalogue


def peak_of(series: Series, hardware: Hardware) -> Peak | Unavailable:
    """The peak of one curve."""
    key, point = series.key, series.points[-1]
    if key.op in ARITHMETIC or key.op not in OPS:
        rooflined = Unavailable("see-roofline", "its peak depends on the arithmetic intensity: see the roofline")
        return rooflined if key.op in ARITHMETIC else UNKNOWN_OP
    by_op = ((STORING, _drive_peak), (TO_THE_HOST, _host_link_peak), (MEMORY_TRAFFIC, _memory_peak))
    within = next((peak for ops, peak in by_op if key.op in ops), None)
    if within is not None:
        return within(series, hardware)
    if series.bus_factor is None or point.wire_bytes <= 0:
        crosses = len(key.ranks) >= 2 and point.size_bytes > 0
        why = ("no-bus-factor", "the op has no bus factor") if crosses else ("no-wire", "nothing crosses a wire")
        return Unavailable(*why)
    if key.hosts == 1 and key.device == _HOST_MEMORY:
        return _peak_in_host(series, hardware)
    crossing = LEAST_CROSSING.get(key.op)
    if crossing is None:
        ends = "GPUs" if key.hosts == 1 else "hosts"
        return Unavailable(
            "traffic-not-kept",
            f"the bytes that {key.op} sends between {ends} depend on a traffic matrix that the run does not record",
        )
    return (_link_peak if key.hosts == 1 else _network_peak)(series, hardware, crossing)


def _slowest_host(
    series: Series, name: str, peak_on: Callable[[str], HardwarePeak | Unavailable]
) -> Narrowest | Unavailable:
    """The part of the host with the least rate for each of the ranks that share it."""
    peaks: dict[str, HardwarePeak] = {}
    for host in series.at_work:
        peak = peak_on(host)
        if isinstance(peak, Unavailable):
            return peak
        peaks[host] = peak
    host = min(peaks, key=lambda host: peaks[host].nominal / series.at_work[host])
    what = f"{name} of {host} ({peaks[host].what})"
    return Narrowest(host, what, peaks[host], len(peaks), "hosts", sharing=series.at_work[host])


def _drive_peak(series: Series, hardware: Hardware) -> Peak | Unavailable:
    """The link of the drive that contains the files; the ranks of a host share it."""

    def drive(host: str) -> HardwarePeak | Unavailable:
        environment = hardware.facts.environment(host)
        storage = environment.storage
        if storage is None or not storage.device:
            return Unavailable(
                "storage-not-recorded", f"the run did not record which drive contains the files of {host}"
            )
        peak_of_drive = drive_of(environment, storage.device, hardware.rows)
        if isinstance(peak_of_drive, HardwarePeak):
            return peak_of_drive
        return Unavailable(
            "drive-not-known",
            f"the files of {host} are in {storage.path} ({storage.type} on {storage.device}): {peak_of_drive}",
        )

    part, left_out = _slowest_host(series, "drive", drive), None
    if isinstance(part, Unavailable):
        return part
    ranks = part.sharing
    if part.peak.practical_of == "reads" and series.key.op != "storage_read":
        part = replace(part, peak=replace(part.peak, practical=None, practical_source=None))
        left_out = "the catalogue has practical rates of drives for reads only"
    each = format_rate(part.peak.nominal / ranks)
    shared = "" if ranks == 1 else f", shared by {ranks} ranks: ÷ {ranks} = {each} for each"
    peak = _part(series, part, ranks, "storage")
    return replace(peak, basis=f"{peak.basis}{shared}", practical_left_out=left_out)


def _memory_peak(series: Series, hardware: Hardware) -> Peak | Unavailable:
    """The memory of the slowest host, which its ranks share, or of the slowest GPU."""

    def dram(host: str) -> HardwarePeak | Unavailable:
        peak = dram_of(hardware.facts.environment(host), hardware.rows)
        if isinstance(peak, HardwarePeak):
            return peak
        return Unavailable("memory-not-known", f"the nominal memory rate of {host} is unknown: {peak}")

    in_host = series.key.device == _HOST_MEMORY
    level: PeakLevel = "DRAM" if in_host else "HBM"
    gpus = hardware.facts.gpus_of(series.key.ranks)
    memory = _slowest_host(series, "memory", dram) if in_host else gpu_memory(gpus, hardware.rows)
    if isinstance(memory, Unavailable):
        return memory
    op, ranks = series.key.op, memory.sharing
    moved = MEMORY_TRAFFIC[op] * ranks
    by = "reads and writes" if MEMORY_TRAFFIC[op] > 1 else "moves"
    together = "" if ranks == 1 else f" on each of {ranks} ranks that share it"
    left = format_rate(memory.peak.nominal / moved)
    traffic = f"{op} {by} {MEMORY_TRAFFIC[op]:g} × S{together}, so 100 % is {left} of S"
    return _part(series, memory, moved, level, traffic)


def _host_link_peak(series: Series, hardware: Hardware) -> Peak | Unavailable:
    """The slowest link of a GPU to the host. Each GPU has its own; shared links further up are not considered."""
    link = host_links(hardware.facts.gpus_of(series.key.ranks), hardware.rows)
    if isinstance(link, Unavailable):
        return link
    both = ("each direction has the full rate",) if series.key.op == "host_and_device" else ()
    return _part(series, link, 1, _level(link.peak), f"{series.key.op} carries S through it", *both)


def _level(link: HardwarePeak) -> PeakLevel:
    """The level of a link of a GPU."""
    return "PCIe" if link.kind == "pcie" else "NVLink-C2C" if link.kind == "c2c" else "links of GPUs"


def _link_peak(series: Series, hardware: Hardware, crossing: Crossing) -> Peak | Unavailable:
    """GPUs on one host: the links of one GPU must carry what ``crossing`` counts for a host with one rank."""
    key = series.key
    links = gpu_links(hardware.facts.gpus_of(key.ranks), hardware.rows)
    if isinstance(links, Unavailable):
        return links
    multiple = crossing([str(rank) for rank in key.ranks], key.root or 0)
    in_switch = "" if key.op in LOCAL else ", unless a switch reduces (NVLS); then more than 100 % is possible"
    traffic = f"{key.op} on ranks {rank_list(key.ranks)} must carry {multiple:.3g} × S through it{in_switch}"
    return _links_part(series, hardware, links, multiple, traffic)


def _links_part(series: Series, hardware: Hardware, links: Narrowest, multiple: float, traffic: str) -> Peak:
    level = _level(links.peak)
    # A log names at most the GPU, not its slot or the links that GPUs share.
    return replace(_part(series, links, multiple, level, traffic), widest=level == "PCIe" and hardware.facts.is_log)


def _part(series: Series, part: Narrowest, times: float, level: PeakLevel, *clauses: str) -> Peak:
    """The peak of an op that moves ``times`` × S bytes through ``part``, as ``clauses`` explain."""
    whole = part.peak
    algbw = whole.nominal / times
    return Peak(
        algbw=algbw,
        busbw=None if series.bus_factor is None else algbw * series.bus_factor,
        rate=whole.nominal,
        level=level,
        holder=part.holder,
        what=part.what,
        basis=part.in_words,
        clauses=(*clauses, *_division(whole.nominal, series, times, "sent")),
        measured=False,
        practical=None if whole.practical is None else whole.practical / times,
    )


def _division(rate: float, series: Series, bytes_per_byte: float, verb: str) -> tuple[str, ...]:
    """The clause that explains how ``rate`` is converted to busbw; none for an op without busbw.

    ``bytes_per_byte`` is the number of bytes moved per byte of S.
    """
    if series.bus_factor is None:
        return ()
    times = bytes_per_byte / series.bus_factor
    return (f"{format_rate(rate)} ÷ {times:.3g} bytes {verb} for each byte of busbw = {format_rate(rate / times)}",)


def _peak_in_host(series: Series, hardware: Hardware) -> Peak | Unavailable:
    """CPU ranks on one host: plain sockets if the backend uses sockets too and they were measured, else copies.

    ``tcp_stream`` also counts for fewer ranks, unless its own ranks shared cores. Messages between the first and the
    last rank alone use ``tcp_ping_pong``.
    """
    key, facts, point = series.key, hardware.facts, series.points[-1]
    host = next(iter(series.at_work))
    in_turn, stream = (hardware.rates.get((op, host)) for op in (_TCP_PING_PONG, _TCP_STREAM))
    if facts.backend.transport == "gloo-tcp" and key.op not in ON_SOCKETS:
        alone = series.sharing == 1 and key.op in OF_TWO_RANKS and point.wire_bytes == point.size_bytes
        if in_turn is not None and alone and key.ranks == (in_turn.ranks[0], in_turn.ranks[-1]):
            basis = (
                f"one message at a time from the first to the last of {len(in_turn.ranks)} ranks and back, measured in "
                f"this run ({in_turn.op}, {format_size(in_turn.size_bytes)})"
            )
            return _measured_peak(series, in_turn, host, 2, in_turn.bytes_per_second, 1.0, basis)
        if stream is not None:
            cores = facts.environment(host).cpu.usable_cores
            if key.ranks == stream.ranks or (cores is not None and len(stream.ranks) <= cores):
                return _stream_peak(series, hardware, host, stream)
            sent = f"plain TCP was measured on {len(stream.ranks)} ranks that shared cores"
            return Unavailable("stream-shared-cores", f"{sent}; fewer ranks may send faster")
    return _copying_peak(series, hardware, host)


def _measured_peak(
    series: Series, measured: HostRate, host: str, ranks: int, rate: float, times: float, basis: str, *clauses: str
) -> Peak:
    """The peak of an op that moves ``times`` × S bytes through a host with the ``measured`` ``rate`` of ``ranks`` ranks
    together, as ``basis`` and ``clauses`` explain.
    """
    algbw = rate / times
    busbw = None if series.bus_factor is None else algbw * series.bus_factor
    level: PeakLevel = "memory copy of a host" if measured.op == COPY else "plain TCP of a host"
    what = f"{measured.op} of {counted(ranks, 'rank')} on {host}"
    basis, cases = f"{what}: {basis}", (measured.case,)
    return Peak(algbw, busbw, rate, level, host, what, basis, clauses, measured=True, cases=cases)


def _stream_peak(series: Series, hardware: Hardware, host: str, stream: HostRate) -> Peak:
    """t ≥ wire bytes / (k r): k ranks send no more than k streams, each sending and receiving concurrently."""
    ranks, point, copied = len(series.key.ranks), series.points[-1], hardware.rates.get((COPY, host))
    together, moved = ranks * stream.bytes_per_second, point.wire_bytes / point.size_bytes
    clauses = _division(together, series, moved, "sent")
    if copied is not None:
        clauses += (f"the memory of {host} copies {format_rate(copied.bytes_per_second)} in total",)
    basis = (
        f"{format_rate(stream.bytes_per_second)} from each of {len(stream.ranks)} ranks to the next concurrently, "
        f"measured in this run ({stream.op}, {format_size(stream.size_bytes)}), {format_rate(together)} for {ranks} "
        "ranks"
    )
    return _measured_peak(series, stream, host, ranks, together, moved, basis, *clauses)


def _copying_peak(series: Series, hardware: Hardware, host: str) -> Peak | Unavailable:
    """t ≥ wire bytes / R_host: every byte that must reach another rank is copied at least once."""
    copied = hardware.rates.get((COPY, host))
    if copied is None:
        tcp = hardware.facts.backend.transport == "gloo-tcp"
        least, ops = format_size(LEAST_COPY_BYTES), "memory_copy, tcp_stream and ping_pong" if tcp else "memory_copy"
        if hardware.facts.is_log:
            measured = "a log has no memory copies, which give the peak of ranks on one host: busbw run measures both"
            return Unavailable("no-memory-copy", measured)
        return Unavailable(
            "no-memory-copy",
            f"no reference was measured: rerun without --no-baseline (in a plan: add {ops} of {least})",
        )
    point = series.points[-1]
    moved = point.wire_bytes * series.sharing / point.size_bytes
    shared = () if series.sharing == 1 else ("concurrent groups share it in proportion to their bytes",)
    timed = "from the first entry to the last exit" if copied.whole else "over the slowest rank's time"
    basis = (
        f"{format_rate(copied.bytes_per_second)} of source bytes in total, measured in this run "
        f"({counted(len(copied.ranks), 'rank')}, {format_size(copied.size_bytes)} each, {timed}), every byte that must "
        "reach another rank copied once"
    )
    clauses = (*_division(copied.bytes_per_second, series, moved, "copied"), *shared)
    return _measured_peak(series, copied, host, len(copied.ranks), copied.bytes_per_second, moved, basis, *clauses)


def _network_peak(series: Series, hardware: Hardware, crossing: Crossing) -> Peak | Unavailable:
    """The network of the slowest host; if ranks drive GPUs, the slower of this network and the GPUs' links."""
    key, facts = series.key, hardware.facts
    networks: dict[str, Network] = {}
    for host in series.at_work:
        connection = host_network(_at_group(facts.environment(host), key), facts.backend.transport, hardware.rows)
        if isinstance(connection, Unavailable):
            return replace(connection, reason=f"the speed of the network is unknown: {host} {connection.reason}")
        networks[host] = _shared(facts, series, host, connection)
    slowest = min(networks, key=lambda host: networks[host].peak.nominal)
    network = networks[slowest]
    placement = [facts.hosts[rank] for rank in key.ranks]
    multiple = crossing(placement, key.root or 0)
    traffic = f"{key.op} on ranks {rank_list(key.ranks)} must carry {multiple:.3g} × S through the busiest one"
    what = f"{network.name} of {slowest}"
    peak = _part(series, Narrowest(what, what, network.peak, len(networks), "hosts"), multiple, "network", traffic)
    if key.device == _HOST_MEMORY:
        return peak
    of_a_rank = crossing([str(rank) for rank in key.ranks], key.root or 0)
    ways = _ways_out(key.ranks, hardware, networks)
    if isinstance(ways, Unavailable):
        peak = peak.with_clause(f"links between GPUs may be slower: {ways.reason}")
    else:
        narrowest = min(ways, key=lambda way: way.peak.nominal)
        traffic = f"{key.op} must carry {of_a_rank:.3g} × S through it"
        links = _links_part(series, hardware, narrowest, of_a_rank, traffic)
        limits = [limit.practical for limit in (peak, links) if limit.practical is not None]
        clause = f"{peak.holder} allows {format_rate(peak.busbw)}"
        peak = peak if peak.algbw <= links.algbw else links.with_clause(clause)
        peak = replace(peak, practical=min(limits) if len(limits) == 2 else peak.practical)
    return _as_sent_by_gpus(peak, network, (multiple, of_a_rank), placement.count(slowest), key.op)


def _at_group(host: HostFacts, key: SeriesKey) -> HostFacts:
    """The host with the port alone that a group of ranks is named after, if it is."""
    own = tuple(port for port in host.rdma if port.device == key.group)
    return structs.replace(host, rdma=own) if own else host


def _shared(facts: Facts, series: Series, host: str, network: Network) -> Network:
    """The share of a host's network that one of several concurrent groups of a log can use."""
    if not facts.is_log or series.key.group == "all":
        return network
    placement = facts.hosts
    part = sum(placement[rank] == host for rank in series.key.ranks) / placement.count(host)
    return replace(network, peak=network.peak.times(part, f"{part:.3g} of {network.peak.what}"))


def _ways_out(
    ranks: Sequence[int], hardware: Hardware, networks: Mapping[str, Network]
) -> list[Narrowest] | Unavailable:
    """The slowest path out of a GPU on every host, or the reason why one is unknown.

    It is the GPU's links to other GPUs of the host plus, unless the link is PCIe, its share of the network. For the
    only GPU of a host it is the link to the host.
    """
    placement = hardware.facts.hosts
    on_host, of_group = Counter(placement), Counter(placement[rank] for rank in ranks)
    ways: list[Narrowest] = []
    for host, network in networks.items():
        local = [rank for rank in ranks if placement[rank] == host]
        links = (host_links if on_host[host] == 1 else gpu_links)(hardware.facts.gpus_of(local), hardware.rows)
        if isinstance(links, Unavailable):
            return replace(links, reason=f"{host}: {links.reason}")
        if on_host[host] > 1 and links.peak.kind != "pcie":
            links = replace(links, peak=_with(links.peak, network, of_group[host]))
        holder = f"{links.gpu} of {host}"
        ways.append(replace(links, holder=holder, what=f"{links.peak.what} of {holder}", count=len(ranks)))
    return ways


def _with(links: HardwarePeak, network: Network, sharing: int) -> HardwarePeak:
    """``links`` of a GPU plus its share of a network that ``sharing`` GPUs share."""
    both = links.practical is not None
    return replace(
        links,
        nominal=links.nominal + network.peak.nominal / sharing,
        practical=(links.practical or 0.0) + network.practical / sharing if both else None,
        what=f"1/{sharing} of {network.name} and {links.what}",
    )


_OF_ONE_NIC: Final = MESSAGES | {name for name, op in OPS.items() if op.rooted and op.in_blocks}
"""Messages from or to one GPU, which NCCL sends through the NICs nearest to it."""


def _as_sent_by_gpus(peak: Peak, network: Network, multiples: tuple[float, float], on_host: int, op: str) -> Peak:
    """Limit the practical rate to that of NCCL's algorithms.

    A collective is limited to a ring, which enters and leaves every host once. A message is limited to the NICs of one
    GPU. ``multiples``: how many S must go through a host, and through a rank.
    """
    of_a_host, of_a_rank = multiples
    one_nic = op in _OF_ONE_NIC
    share = max(1 / network.ports, 1 / on_host) / of_a_host if one_nic else 1 / of_a_rank
    carried = network.practical * share
    practical = carried if peak.practical is None else min(peak.practical, carried)
    busbw = format_rate(practical * (peak.busbw or 0.0) / peak.algbw)
    how = "the NICs of one GPU" if one_nic else "a ring over all hosts"
    would = "would reach" if network.peak.practical else "would reach at line rate"
    if practical != carried:
        return replace(peak, practical=practical)
    limited = replace(peak, practical=practical, in_practice=f"that {how} {would}")
    return limited.with_clause(f"{how} {would} {busbw}")
