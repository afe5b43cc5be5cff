"""What the hardware allows: the peak over a curve, and what exactly 100 % means.

CPU ranks on one host talk through sockets or its memory, so their peak is what plain sockets carry or the rate at which
that host copies memory, measured in the same run. GPUs of one host are under their links, ranks on several hosts under
the network, and where they drive GPUs under links and network together. Kernels in memory are under that of the host or
of the GPU, copies between the two under the GPU's link to the host: nominal peaks, from what the system states and the
catalogue. Where none is known there is no peak: a percentage of a guess is worse than none.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, Literal

from busbw.ops import (
    ARITHMETIC,
    LEAST_CROSSING,
    MEMORY_TRAFFIC,
    MESSAGES,
    OF_TWO_RANKS,
    ON_SOCKETS,
    OPS,
    STORING,
    TO_THE_HOST,
)
from busbw.ops.bounds import Crossing
from busbw.runs.facts import fact
from busbw.system.catalog import Catalogue, HardwarePeak
from busbw.system.detect import dram_of, drive_of
from busbw.units import format_rate, format_size
from busbw_analysis.data.load import Dataset, once, rank_list
from busbw_analysis.data.series import Series
from busbw_analysis.data.summary import summarise
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.peaks.paths import Narrowest, Network, gpu_links, gpu_memory, host_links, host_network

_COPY = "memory_copy"
_TCP_STREAM = "tcp_stream"
_TCP_PING_PONG = "tcp_ping_pong"
_HOST_MEMORY = "cpu"

LEAST_COPY_BYTES = 1 << 20
"""A smaller copy ends in microseconds and measures how far apart the ranks arrived; it is no peak."""

PeakLevel = Literal[
    "DRAM",
    "HBM",
    "PCIe",
    "NVLink-C2C",
    "links of GPUs",
    "network",
    "storage",
    "memory copy of a host",
    "sockets of a host",
]


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that this hardware allows, in B/s at any size; ``busbw`` is None where the op has none.

    ``level`` is which part of the machine allows no more, ``holder`` whose it is. ``denominator`` is the sentence
    behind every percentage: what, which direction, measured or nominal, from where; ``what`` is the first of these
    alone. ``measured`` tells a rate of this
    run from one that the system states. ``practical`` is the algbw that others reach on such hardware (None: not
    known); ``practical_left_out`` says why one that the catalogue has is not of this op. ``widest``: it is the
    widest link that such hardware has, and nothing tells what it has here.
    """

    algbw: float
    busbw: float | None
    level: PeakLevel
    holder: str
    what: str
    denominator: str
    measured: bool
    practical: float | None = None
    practical_left_out: str | None = None
    widest: bool = False

    @property
    def practical_busbw(self) -> float | None:
        """The busbw that others reach on such hardware; None where it is not known, or the op has none."""
        if self.practical is None or self.busbw is None:
            return None
        return self.busbw * self.practical / self.algbw


@dataclass(frozen=True, slots=True)
class HostCopy:
    """What one host copies in all: B/s of source bytes, by ``ranks`` ranks at once, each with ``size_bytes``.

    ``whole``: over the time from the first entry to the last exit; otherwise the ranks share no clock and it is over
    the time of the slowest one, which is too much when they did not really copy at the same time.
    """

    host: str
    bytes_per_second: float
    ranks: int
    size_bytes: int
    whole: bool


@once
def host_copies(dataset: Dataset) -> dict[str, HostCopy]:
    """The copy rate of every host from the largest ``memory_copy`` of the run; empty when it was not measured.

    The rate is ranks · S over the time from the first entry to the last exit. With more ranks than cores, some copy
    only after others have finished; over the time of the slowest rank alone they would seem to copy twice as fast.
    """
    larger = attrgetter("ranks", "size_bytes", "bytes_per_second")
    found: dict[str, HostCopy] = {}
    for summary in summarise(dataset):
        group, case = summary.only, summary.case
        # A GPU copies in its own memory, which is no peak over what ranks send each other.
        if (case.op, case.device, case.cache, summary.state) != (_COPY, _HOST_MEMORY, "warm", "measured"):
            continue
        if group is None or case.size_bytes < LEAST_COPY_BYTES:
            continue
        time_ns = group.time_ns if group.span_ns is None else group.span_ns
        for host, ranks in Counter(dataset.hosts[rank] for rank in group.ranks).items():
            rate = ranks * case.size_bytes / time_ns * 1e9
            copied = HostCopy(host, rate, ranks, case.size_bytes, whole=group.span_ns is not None)
            found[host] = max(found.get(host, copied), copied, key=larger)
    return found


@dataclass(frozen=True, slots=True)
class SocketStream:
    """What ``ranks`` ranks of one host sent through plain TCP sockets.

    ``op``: ``tcp_stream``, each to the next, all at once; or ``tcp_ping_pong``, the first and the last one in turn.
    ``bytes_per_second``: of each rank that sends.
    """

    op: str
    bytes_per_second: float
    ranks: tuple[int, ...]
    size_bytes: int


@once
def socket_streams(dataset: Dataset) -> dict[tuple[str, str], SocketStream]:
    """The best rate by op and host, of at least ``LEAST_COPY_BYTES``; empty when none was measured."""
    found: dict[tuple[str, str], SocketStream] = {}
    for summary in summarise(dataset):
        group, size = summary.only, summary.case.size_bytes
        if summary.case.op in ON_SOCKETS and group is not None and size >= LEAST_COPY_BYTES:
            where = (summary.case.op, dataset.hosts_of(group.ranks)[0])
            stream = SocketStream(summary.case.op, size / group.time_ns * 1e9, group.ranks, size)
            found[where] = max(found.get(where, stream), stream, key=attrgetter("bytes_per_second"))
    return found


def peak_of(dataset: Dataset, series: Series, rows: Catalogue, sharing: float = 1.0) -> Peak | Unavailable:
    """The peak over one curve; ``rows`` is the catalogue of peaks.

    ``sharing`` is how many times the curve's own wire bytes all groups that ran at the same moment moved together (1
    for an op on all ranks): they share the host.
    """
    key, point = series.key, series.points[-1]
    if key.op in ARITHMETIC:
        return Unavailable("see-roofline", "what it can reach depends on its intensity: see the roofline")
    by_op = ((STORING, _drive_peak), (TO_THE_HOST, _host_link_peak), (MEMORY_TRAFFIC, _memory_peak))
    within = next((peak for ops, peak in by_op if key.op in ops), None)
    if within is not None:
        return within(dataset, series, rows)
    if series.bus_factor is None or point.wire_bytes <= 0:
        crosses = len(key.ranks) >= 2 and point.size_bytes > 0
        why = ("no-bus-factor", "the op has no bus factor") if crosses else ("no-wire", "nothing crosses a wire")
        return Unavailable(*why)
    if key.hosts == 1 and key.device == _HOST_MEMORY:
        return _peak_in_host(dataset, series, sharing)
    crossing = LEAST_CROSSING.get(key.op)
    if crossing is None:
        ends = "GPUs" if key.hosts == 1 else "hosts"
        return Unavailable(
            "traffic-not-kept",
            f"how much {key.op} sends between {ends} depends on a traffic matrix that the run does not keep",
        )
    return (_link_peak if key.hosts == 1 else _network_peak)(dataset, series, rows, crossing)


def at_once(dataset: Dataset, series: Series) -> dict[str, int]:
    """The hosts of a curve, and how many ranks work there at the same moment: those of other groups, too."""
    placement, case = dataset.hosts, series.points[-1].case
    groups = [group.ranks for block in dataset.blocks if block.case == case for group in block.measurement.groups]
    groups += [row.ranks for _, index, row in dataset.imported if index == case]
    working = Counter(placement[rank] for group in dict.fromkeys(groups) for rank in group)
    return {host: working[host] for host in dict.fromkeys(placement[rank] for rank in series.key.ranks)}


def _drive_peak(dataset: Dataset, series: Series, rows: Catalogue) -> Peak | Unavailable:
    """The link of the drive that the files are on, which the ranks of a host share."""
    found: list[tuple[HardwarePeak, str, str, int]] = []
    for host, ranks in at_once(dataset, series).items():
        told = fact(dataset.environment(host), "storage") or {}
        device = told.get("device")
        if not device:
            return Unavailable("storage-not-told", f"what the files of {host} are on was not told")
        drive = drive_of(dataset.environment(host), device, rows)
        if isinstance(drive, str):
            return Unavailable(
                "drive-not-known",
                f"the files of {host} are in {told.get('path')} ({told.get('type')} on {device}): {drive}",
            )
        words = f"drive of {host} ({drive.what}), {format_rate(drive.nominal)} in one direction"
        found.append((drive, host, words, ranks))
    peak, host, words, ranks = min(found, key=lambda one: one[0].nominal / one[3])
    left_out = None
    if peak.practical_of == "reads" and series.key.op != "storage_read":
        peak = replace(peak, practical=None, practical_source=None, practical_of=None)
        left_out = "the catalogue knows what drives read in practice, no more"
    each = format_rate(peak.nominal / ranks)
    shared = "" if ranks == 1 else f", shared by {ranks} ranks: ÷ {ranks} = {each} for each"
    each_has = _part(
        series, peak, ranks, "storage", (host, f"drive of {host} ({peak.what})"), f"{words}, {peak.in_words}{shared}"
    )
    return replace(each_has, practical_left_out=left_out)


def _memory_peak(dataset: Dataset, series: Series, rows: Catalogue) -> Peak | Unavailable:
    """The memory of the slowest host, which its ranks share, or of the slowest GPU, of which a copy reads and writes
    every byte.
    """
    if series.key.device != _HOST_MEMORY:
        memory = gpu_memory(dataset, series.key.ranks, rows)
        if isinstance(memory, str):
            return Unavailable("memory-not-known", memory)
        return _under_memory(series, memory.peak, "HBM", (memory.holder, memory.what), memory.in_words("GPUs"), 1)
    found: list[tuple[HardwarePeak, str, str, int]] = []
    for host, ranks in at_once(dataset, series).items():
        peak = dram_of(dataset.environment(host), rows)
        if isinstance(peak, str):
            return Unavailable("memory-not-known", f"the nominal rate of the memory of {host} is not known: {peak}")
        words = f"memory of {host} ({peak.what}), {format_rate(peak.nominal)} of {peak.direction}, {peak.in_words}"
        found.append((peak, host, words, ranks))
    peak, host, words, ranks = min(found, key=lambda one: one[0].nominal / one[3])
    return _under_memory(series, peak, "DRAM", (host, f"memory of {host} ({peak.what})"), words, ranks)


def _under_memory(
    series: Series, peak: HardwarePeak, level: PeakLevel, whose: tuple[str, str], words: str, ranks: int
) -> Peak:
    """What is left of a memory for S of an op that ``ranks`` ranks share it in."""
    op = series.key.op
    moved = MEMORY_TRAFFIC[op] * ranks
    by = "reads and writes" if MEMORY_TRAFFIC[op] > 1 else "moves"
    together = "" if ranks == 1 else f" on each of {ranks} ranks that share it"
    left = format_rate(peak.nominal / moved)
    denominator = f"{words}; {op} {by} {MEMORY_TRAFFIC[op]:g} × S{together}, so 100 % is {left} of S"
    return _part(series, peak, moved, level, whose, denominator)


def _host_link_peak(dataset: Dataset, series: Series, rows: Catalogue) -> Peak | Unavailable:
    """The slowest link of a GPU to the host; each GPU has its own, whatever they share further up is not counted."""
    link = host_links(dataset, series.key.ranks, rows)
    if isinstance(link, str):
        return Unavailable("link-not-known", link)
    both = "; each direction has it to itself" if series.key.op == "host_and_device" else ""
    denominator = f"{link.in_words('GPUs')}; {series.key.op} carries S through it{both}"
    return _part(series, link.peak, 1, _level(link.peak), (link.holder, link.what), denominator)


def _level(link: HardwarePeak) -> PeakLevel:
    """Which part of a machine a link of a GPU is."""
    return "PCIe" if link.kind == "pcie" else "NVLink-C2C" if link.kind == "c2c" else "links of GPUs"


def _link_peak(dataset: Dataset, series: Series, rows: Catalogue, crossing: Crossing) -> Peak | Unavailable:
    """GPUs of one host: each is a host of its own for the least that must come out of it or go in."""
    key = series.key
    links = gpu_links(dataset, key.ranks, rows)
    if isinstance(links, str):
        return Unavailable("links-not-known", links)
    multiple = crossing([str(rank) for rank in key.ranks], key.root or 0)
    denominator = (
        f"{links.in_words('GPUs')}; {key.op} on ranks {rank_list(key.ranks)} must carry {multiple:.3g} × S through it, "
        "unless a switch does the sums (NVLS): then more than 100 % is possible"
    )
    peak = _part(series, links.peak, multiple, _level(links.peak), (links.holder, links.what), denominator)
    return replace(peak, widest=_is_widest(dataset, peak))


def _is_widest(dataset: Dataset, peak: Peak) -> bool:
    """Logs name a GPU at most: its slot may be narrower, and others may share what is between it and them."""
    return peak.level == "PCIe" and dataset.runs[0].run.imported is not None


def _part(
    series: Series, whole: HardwarePeak, times: float, level: PeakLevel, whose: tuple[str, str], denominator: str
) -> Peak:
    """What is left of ``whole`` for S of an op that has ``times`` as many bytes go through it. ``whose``: the holder,
    and what of it.
    """
    algbw = whole.nominal / times
    busbw = None if series.bus_factor is None else algbw * series.bus_factor
    practical = None if whole.practical is None else whole.practical / times
    denominator += _division(whole.nominal, series, times, "sent")
    return Peak(algbw, busbw, level, *whose, denominator, measured=False, practical=practical)


def _division(rate: float, series: Series, bytes_per_byte: float, verb: str) -> str:
    """By what ``rate`` is divided to be a busbw: ops that have as many bytes behind each byte of busbw are alike."""
    if series.bus_factor is None:
        return ""
    times = bytes_per_byte / series.bus_factor
    return f"; {format_rate(rate)} ÷ {times:.3g} bytes {verb} for each byte of busbw = {format_rate(rate / times)}"


def _peak_in_host(dataset: Dataset, series: Series, sharing: float) -> Peak | Unavailable:
    stream = _comparable(dataset, series, sharing)
    if isinstance(stream, SocketStream):
        return _socket_peak(dataset, series, stream)
    return stream or _copying_peak(dataset, series, sharing)


def _comparable(dataset: Dataset, series: Series, sharing: float) -> SocketStream | Unavailable | None:
    """The stream that is a peak of ``series``, on one host: over sockets, too, and fewer ranks had no more cores. None
    where no stream tells of it. Messages of the first and the last rank alone have one of their own.
    """
    host = dataset.hosts_of(series.key.ranks)[0]
    if dataset.backend.transport != "gloo-tcp" or series.key.op in ON_SOCKETS:
        return None
    streams = socket_streams(dataset)
    in_turn = streams.get((_TCP_PING_PONG, host))
    one_way = series.key.op in OF_TWO_RANKS and series.points[-1].wire_bytes == series.points[-1].size_bytes
    if in_turn is not None and sharing == 1 and one_way and series.key.ranks == (in_turn.ranks[0], in_turn.ranks[-1]):
        return in_turn
    stream, cores = streams.get((_TCP_STREAM, host)), fact(dataset.environment(host), "cpu.usable_cores")
    if stream is None:
        return None
    enough = isinstance(cores, int) and len(stream.ranks) <= cores
    if series.key.ranks == stream.ranks or enough:
        return stream
    return Unavailable(
        "stream-shared-cores",
        f"plain TCP was measured on {len(stream.ranks)} ranks at once, which shared cores: fewer ranks may send faster",
    )


def _socket_peak(dataset: Dataset, series: Series, stream: SocketStream) -> Peak:
    """t ≥ wire bytes / (k r): k ranks send no more than k streams did, of which each sent and received at once. A
    message of two ranks has its own peak, where it was measured: one at a time, too.
    """
    host, ranks, point = dataset.hosts_of(series.key.ranks)[0], len(series.key.ranks), series.points[-1]
    if stream.op == _TCP_PING_PONG:
        rate = stream.bytes_per_second
        denominator = (
            f"plain TCP of {host}, one message at a time from the first to the last of {len(stream.ranks)} ranks and "
            f"back, measured in this run ({stream.op}, {format_size(stream.size_bytes)})"
        )
        return Peak(rate, rate, "sockets of a host", host, f"plain TCP of {host}", denominator, measured=True)
    together, moved = ranks * stream.bytes_per_second, point.wire_bytes / point.size_bytes
    copied = host_copies(dataset).get(host)
    beside = "" if copied is None else f"; the memory of {host} copies {format_rate(copied.bytes_per_second)} in all"
    denominator = (
        f"plain TCP of {host}, {format_rate(stream.bytes_per_second)} from each of {len(stream.ranks)} ranks to the "
        f"next, all at once, measured in this run ({stream.op}, {format_size(stream.size_bytes)}), "
        f"{format_rate(together)} of {ranks} ranks{_division(together, series, moved, 'sent')}{beside}"
    )
    algbw = together / moved
    busbw = None if series.bus_factor is None else algbw * series.bus_factor
    return Peak(algbw, busbw, "sockets of a host", host, f"plain TCP of {host}", denominator, measured=True)


def _copying_peak(dataset: Dataset, series: Series, sharing: float) -> Peak | Unavailable:
    """t ≥ wire bytes / R_host: every byte that must move is copied at least once."""
    host = dataset.hosts_of(series.key.ranks)[0]
    copied = host_copies(dataset).get(host)
    if copied is None:
        least = format_size(LEAST_COPY_BYTES)
        return Unavailable(
            "no-memory-copy",
            f"no memory_copy of {least} or more was measured on {host}; add it to the plan to have a peak",
        )
    point = series.points[-1]
    moved = point.wire_bytes * sharing / point.size_bytes
    algbw = copied.bytes_per_second / moved
    shared = "" if sharing == 1 else "; the groups that run at the same time share it by the bytes they move"
    timed = "from the first entry to the last exit" if copied.whole else "by the time of the slowest rank"
    ranks = f"{copied.ranks} rank{'s' if copied.ranks > 1 else ''}"
    denominator = (
        f"memory copy of {host}, {format_rate(copied.bytes_per_second)} of source bytes in all, measured in this run "
        f"({ranks}, {format_size(copied.size_bytes)} each, {timed}), every byte that must reach another "
        f"rank copied once{_division(copied.bytes_per_second, series, moved, 'copied')}{shared}"
    )
    busbw = None if series.bus_factor is None else algbw * series.bus_factor
    return Peak(algbw, busbw, "memory copy of a host", host, f"memory copy of {host}", denominator, measured=True)


def _network_peak(dataset: Dataset, series: Series, rows: Catalogue, crossing: Crossing) -> Peak | Unavailable:
    """The busiest host, and where ranks drive GPUs the slowest of those, too."""
    key = series.key
    networks: dict[str, Network] = {}
    for host in dataset.hosts_of(key.ranks):
        found = host_network(dataset.environment(host), dataset.backend.transport, rows)
        if isinstance(found, str):
            return Unavailable("network-not-known", f"the speed of the network is unknown: {host} {found}")
        networks[host] = _shared(dataset, series, host, found)
    slowest = min(networks, key=lambda host: networks[host].peak.nominal)
    network = networks[slowest]
    placement = [dataset.hosts[rank] for rank in key.ranks]
    multiple = crossing(placement, key.root or 0)
    denominator = (
        f"{network.name} of {slowest}, {format_rate(network.peak.nominal)} in one direction, {network.peak.in_words}, "
        f"the slowest of {len(networks)} hosts; {key.op} on ranks {rank_list(key.ranks)} must carry "
        f"{multiple:.3g} × S through the busiest one"
    )
    peak = _part(series, network.peak, multiple, "network", (f"{network.name} of {slowest}",) * 2, denominator)
    if key.device == _HOST_MEMORY:
        return peak
    of_a_rank = crossing([str(rank) for rank in key.ranks], key.root or 0)
    ways = _ways_out(dataset, key.ranks, networks, rows)
    if isinstance(ways, str):
        peak = replace(peak, denominator=f"{peak.denominator}; links between GPUs, which may allow less: {ways}")
    else:
        narrowest = min(ways, key=lambda way: way.peak.nominal)
        denominator = f"{narrowest.in_words('GPUs')}; {key.op} must carry {of_a_rank:.3g} × S through it"
        level = _level(narrowest.peak)
        links = _part(series, narrowest.peak, of_a_rank, level, (narrowest.holder, narrowest.what), denominator)
        links = replace(links, widest=_is_widest(dataset, links))
        known = [one.practical for one in (peak, links) if one.practical is not None]
        beside = f"; {peak.holder} allows {format_rate(peak.busbw)}"
        peak = peak if peak.algbw <= links.algbw else replace(links, denominator=f"{links.denominator}{beside}")
        peak = replace(peak, practical=min(known) if len(known) == 2 else peak.practical)
    return _as_sent_by_gpus(peak, network, (multiple, of_a_rank), placement.count(slowest), key.op)


def _shared(dataset: Dataset, series: Series, host: str, network: Network) -> Network:
    """The part of a host's network that a group of a log has, whose other groups ran at the same time."""
    if dataset.runs[0].run.imported is None or series.key.group == "all":
        return network
    placement = dataset.hosts
    part = sum(placement[rank] == host for rank in series.key.ranks) / placement.count(host)
    return replace(network, peak=network.peak.times(part, f"{part:.3g} of {network.peak.what}"))


def _ways_out(
    dataset: Dataset, ranks: Sequence[int], networks: Mapping[str, Network], rows: Catalogue
) -> list[Narrowest] | str:
    """The slowest way out of a GPU on every host: its links to the others there and, unless it shares these with them,
    its part of the network. A GPU without others has its link to the host.
    """
    placement = dataset.hosts
    seated, of_group = Counter(placement), Counter(placement[rank] for rank in ranks)
    found: list[Narrowest] = []
    for host, network in networks.items():
        here = [rank for rank in ranks if placement[rank] == host]
        links = (host_links if seated[host] == 1 else gpu_links)(dataset, here, rows)
        if isinstance(links, str):
            return f"{host}: {links}"
        if seated[host] > 1 and links.peak.kind != "pcie":
            links = replace(links, peak=_with(links.peak, network, of_group[host]))
        found.append(replace(links, holder=f"{links.holder.partition(' on ')[0]} of {host}", count=len(ranks)))
    return found


def _with(links: HardwarePeak, network: Network, sharing: int) -> HardwarePeak:
    """``links`` of a GPU, and its part of a network that ``sharing`` of them share."""
    both = links.practical is not None
    return replace(
        links,
        nominal=links.nominal + network.peak.nominal / sharing,
        practical=(links.practical or 0.0) + network.practical / sharing if both else None,
        what=f"1/{sharing} of {network.name} and {links.what}",
    )


_OF_ONE_CARD: Final = MESSAGES | {name for name, op in OPS.items() if op.rooted and op.in_blocks}
"""Messages from or to one GPU, which NCCL sends by the cards that are nearest to it."""


def _as_sent_by_gpus(peak: Peak, network: Network, multiples: tuple[float, float], on_host: int, op: str) -> Peak:
    """What is reached in practice is no more than a ring carries, which passes every host once; a message goes by the
    cards of one GPU. ``multiples``: how many S must go through a host, and through a rank.
    """
    of_a_host, of_a_rank = multiples
    one_card = op in _OF_ONE_CARD
    share = max(1 / network.ports, 1 / on_host) / of_a_host if one_card else 1 / of_a_rank
    carried = network.practical * share
    practical = carried if peak.practical is None else min(peak.practical, carried)
    busbw = format_rate(practical * (peak.busbw or 0.0) / peak.algbw)
    how = "the cards of one GPU" if one_card else "a ring, which passes every host once,"
    words = f"; {how} would reach {busbw}" if practical == carried else ""
    return replace(peak, practical=practical, denominator=f"{peak.denominator}{words}")
