"""The roofline of a host or a GPU: the limits by memory and arithmetic, and the rates that kernels reached.

attainable = min(π, β · I) with π in FLOP/s, β in bytes/s and the kernel's intensity I in FLOP/byte (Williams, Waterman,
Patterson 2009, https://doi.org/10.1145/1498765.1498785). π / β is the balance of the machine, in FLOP/byte; kernels
below it are memory-bound. I counts every operand and result of an operation once (of each one, if a kernel consists of
several), so it is known without hardware counters. Cache misses beyond that make a kernel slower than attainable, and
cache reuse makes it faster.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from busbw.ops import FLOP, LEAST_TRAFFIC, MEMORY_TRAFFIC
from busbw.ops.local import TOKEN
from busbw.ops.settings import host_settings
from busbw.runs.records import DTYPE_BYTES, Case, settings_in_words
from busbw.system.catalog import Catalogue, HardwarePeak
from busbw.system.detect import dram_of
from busbw.units import format_flop, format_size
from busbw_analysis.data.facts import Facts
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.results import Results
from busbw_analysis.node.memory import MemoryCurve, shown, who
from busbw_analysis.peaks.paths import gpu_links, gpu_memory, gpu_model, host_network
from busbw_analysis.peaks.peaks import LEAST_COPY_BYTES

_STREAMS = ("stream_triad", "stream_add", "stream_copy", "stream_scale", "memory_copy")
"""Kernels that define the peak rate of memory."""


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """β, in bytes/s read and written; ``what`` describes its source, ``op`` is the kernel that measured it."""

    name: str
    bytes_per_second: float
    measured: bool
    what: str
    op: str | None = None


@dataclass(frozen=True, slots=True)
class ComputePeak:
    """π of a data type, in FLOP/s; ``what`` describes its source, ``device`` is the model that it is stated of."""

    dtype: str
    flop_per_second: float
    measured: bool
    what: str
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Balance:
    """π / β in FLOP/byte: a kernel of lower intensity is bound by this memory."""

    memory: str
    dtype: str
    measured: bool
    flop_per_byte: float


@dataclass(frozen=True, slots=True)
class Kernel:
    """A measured point.

    intensity: I in FLOP/byte.
    flop_per_second: of all ranks of the host together, or of one GPU.
    low, high: by the interval of the time.
    attainable: by the measured peaks; None if there are none.
    bound: the limiting peak.
    nominal_share: of the rate attainable by datasheet.
    """

    case: int
    op: str
    dtype: str
    size_bytes: int
    threads: int | None
    numa_node: int | None
    mode: str
    intensity: float
    flop_per_second: float
    low: float | None
    high: float | None
    attainable: float | None
    bound: str | None
    nominal_share: float | None

    @property
    def share(self) -> float | None:
        """Share of ``attainable``. Above 1, caches kept data that memory would have had to move."""
        return None if self.attainable is None else self.flop_per_second / self.attainable


@dataclass(frozen=True, slots=True)
class Roofline:
    """The roofline of one kind of device.

    holder: what it describes.
    workers: number of ranks that worked on it together.
    unknown: nominal peaks that are unknown, and why.
    """

    holder: str
    device: str
    workers: int
    memory: tuple[MemoryPeak, ...]
    compute: tuple[ComputePeak, ...]
    balances: tuple[Balance, ...]
    kernels: tuple[Kernel, ...]
    unknown: tuple[str, ...]


def reached_in_words(roofline: Roofline, above: ComputePeak) -> str:
    """The highest rate of a data type, how it was reached, and its share of the nominal peak if known."""
    together = "" if roofline.workers == 1 else f", {roofline.workers} ranks together"
    text = f"Arithmetic in {above.dtype} reaches {format_flop(above.flop_per_second)} ({above.what}{together})"
    peak = next((peak for peak in roofline.compute if not peak.measured and peak.dtype == above.dtype), None)
    if peak is None:
        return text
    share = 100 * above.flop_per_second / peak.flop_per_second
    return f"{text}, {share:.3g} % of the nominal {format_flop(peak.flop_per_second)} of {peak.device}, dense"


def best_arithmetic(rooflines: Iterable[Roofline]) -> list[str]:
    """The fastest measured arithmetic as a sentence; empty if none was measured."""
    pairs = [(above, roofline) for roofline in rooflines for above in roofline.compute if above.measured]
    if not pairs:
        return []
    above, roofline = max(pairs, key=lambda pair: pair[0].flop_per_second)
    return [f"{reached_in_words(roofline, above)}."]


def rooflines_of(results: Results, curves: Sequence[MemoryCurve], rows: Catalogue) -> tuple[Roofline, ...]:
    """One per kind of device and number of ranks per host; none if no arithmetic was measured or known."""
    return tuple(
        roofline
        for device in dict.fromkeys(summary.case.device for summary in results.cases)
        for hosts, workers in _holders(results.facts, device)
        if (roofline := _roofline(results, curves, rows, device, hosts, workers)) is not None
    )


def _holders(facts: Facts, device: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """Hosts, and the number of ranks that share a memory: all of a host, or one per GPU."""
    placed = Counter(facts.hosts)
    if device != "cpu":
        yield tuple(placed), 1
        return
    for count in sorted(set(placed.values())):
        yield tuple(host for host in placed if placed[host] == count), count


@dataclass(frozen=True, slots=True)
class _Done:
    """One measured case: calls per second of all ``workers`` together (one call each), with the ends of its
    interval.
    """

    index: int
    case: Case
    calls_per_second: float
    low: float | None
    high: float | None


def _roofline(
    results: Results,
    curves: Sequence[MemoryCurve],
    rows: Catalogue,
    device: str,
    hosts: Sequence[str],
    workers: int,
) -> Roofline | None:
    done = [
        _done(summary, group, workers)
        for summary in results.cases
        if summary.case.device == device
        and summary.case.op in {*FLOP, *MEMORY_TRAFFIC}
        and summary.case.mode != "overlap"
        and summary.state == "measured"
        and (group := summary.only) is not None
        and (device != "cpu" or _all_at_work(results.facts, group, hosts, workers))
    ]
    if not any(work.case.op in FLOP for work in done):
        return None
    dtypes = tuple(dict.fromkeys(work.case.dtype or "" for work in done if work.case.op in FLOP))
    nominal_memory, nominal_compute, unknown = _nominal(results.facts, rows, device, hosts, dtypes)
    compute = (*_compute_peaks(done, dtypes), *nominal_compute)
    if not compute and all(work.case.op in MEMORY_TRAFFIC for work in done):
        return None  # memory alone is not a roofline: arithmetic is unknown and was not measured
    largest = _largest(done)
    mine = [curve for curve in curves if curve.key.device == device]
    memory = (*_memory_peaks(largest, mine, workers), *nominal_memory)
    return Roofline(
        holder=_holder(results.facts, device, hosts),
        device=device,
        workers=workers,
        memory=memory,
        compute=compute,
        balances=tuple(
            Balance(below.name, above.dtype, below.measured, above.flop_per_second / below.bytes_per_second)
            for above in compute
            for below in memory
            if above.measured == below.measured
        ),
        # Streaming kernels have a point at their largest size only, other kernels at every size.
        kernels=tuple(
            _kernel(work, memory, compute)
            for work in done
            if work.case.op in FLOP and (work.case.op not in MEMORY_TRAFFIC or work in largest)
        ),
        unknown=unknown,
    )


def _all_at_work(facts: Facts, group: GroupSummary, hosts: Sequence[str], workers: int) -> bool:
    """Whether all ranks of each of these hosts took part, so that their rates can be added."""
    placed = Counter(facts.hosts[rank] for rank in group.ranks)
    return all(placed[host] == workers for host in hosts)


def _holder(facts: Facts, device: str, hosts: Sequence[str]) -> str:
    if device == "cpu":
        return hosts[0] if len(hosts) == 1 else f"each of {len(hosts)} hosts, the slowest of {', '.join(hosts[:4])} …"
    count = len(facts.hosts)
    return f"the GPU of {hosts[0]}" if count == 1 else f"one GPU, the slowest of {count}"


def _done(summary: CaseSummary, group: GroupSummary, workers: int) -> _Done:
    """From the first entry to the last exit if several ranks share a host, because ranks that ran one after the other
    would seem to have worked together.
    """
    whole = group.time_ns if group.span_ns is None or workers == 1 else max(group.span_ns, group.time_ns)
    ends = [
        None if end is None else workers * 1e9 / (end * whole / group.time_ns)
        for end in (group.interval.high_ns, group.interval.low_ns)
    ]
    return _Done(summary.index, summary.case, workers * 1e9 / whole, *ends)


def _largest(done: Iterable[_Done]) -> list[_Done]:
    """Every streaming kernel at its largest size."""
    streams = [work for work in done if work.case.op in _STREAMS]
    sizes = by_key((work.case.op, work.case.size_bytes) for work in streams)
    return [work for work in streams if work.case.size_bytes == max(sizes[work.case.op])]


# --- the peaks ---------------------------------------------------------------------------------------------------


def _memory_peaks(largest: Sequence[_Done], curves: Iterable[MemoryCurve], workers: int) -> Iterator[MemoryPeak]:
    """Caches that a sweep by the same ranks shows as plateaus, then memory by the fastest kernel at the largest size of
    all. Kernels that end at smaller sizes may end in a cache.
    """
    size = max((kernel.case.size_bytes for kernel in largest), default=0)
    candidates = (kernel for kernel in largest if kernel.case.size_bytes == size >= LEAST_COPY_BYTES)
    best, chosen = max(candidates, key=_traffic_rate, default=None), shown(curves)
    if best is None:
        return
    outer, case = _traffic_rate(best), best.case
    if chosen is not None and chosen.together == workers:
        what = f"plateau of {who(chosen)}, working sets of a rank, bytes read and written"
        for name, plateau in chosen.caches:
            if plateau.rate > outer:
                yield MemoryPeak(name, plateau.rate, measured=True, what=what)
    arrays = round(MEMORY_TRAFFIC[case.op] * case.size_bytes * workers)
    what = f"{case.op}{_team(case)} of {case.dtype}, {format_size(arrays)} of arrays in all, bytes read and written"
    yield MemoryPeak("memory", outer, measured=True, what=what, op=case.op)


def _team(case: Case) -> str:
    words = ", ".join(settings_in_words(case))
    return f" ({words})" if words else ""


def _traffic_rate(work: _Done) -> float:
    return MEMORY_TRAFFIC[work.case.op] * work.case.size_bytes * work.calls_per_second


def _compute_peaks(done: Sequence[_Done], dtypes: Sequence[str]) -> Iterator[ComputePeak]:
    """The best matrix product of every data type: nothing else comes as near to the peak of the processor."""
    for dtype in dtypes:
        products = [work for work in done if (work.case.op, work.case.dtype) == ("matmul", dtype)]
        if products:
            best = max(products, key=_flop_rate)
            side = math.isqrt(best.case.count)
            what = f"the best matmul of this run, {side} × {side}{_team(best.case)}"
            yield ComputePeak(dtype, _flop_rate(best), measured=True, what=what)


def _flop_rate(work: _Done) -> float:
    return FLOP[work.case.op](work.case.count) * work.calls_per_second


def _nominal(
    facts: Facts, rows: Catalogue, device: str, hosts: Sequence[str], dtypes: Sequence[str]
) -> tuple[list[MemoryPeak], list[ComputePeak], tuple[str, ...]]:
    """The peaks by datasheet, and which are unknown and why."""
    if device == "cpu":
        peaks = {host: dram_of(facts.environment(host), rows) for host in hosts}
        of_hosts = [peak for peak in peaks.values() if isinstance(peak, HardwarePeak)]
        reasons = [
            f"nominal memory of {host}: {peak}" for host, peak in peaks.items() if not isinstance(peak, HardwarePeak)
        ]
        memory = [] if reasons else [_nominal_memory("DRAM", min(of_hosts, key=lambda peak: peak.nominal))]
        arithmetic = "nominal FLOP/s of the processor: no reliable source, so the best matmul is used as the peak"
        return memory, [], (*reasons[:1], arithmetic)
    gpus = facts.gpus_of(range(len(facts.hosts)))
    of_gpus = gpu_memory(gpus, rows)
    model = gpu_model(gpus, rows)
    reasons = [f"nominal memory: {of_gpus.reason}"] if isinstance(of_gpus, Unavailable) else []
    memory = [] if isinstance(of_gpus, Unavailable) else [_nominal_memory("HBM", of_gpus.peak)]
    if isinstance(model, Unavailable):
        return memory, [], (*reasons, f"nominal FLOP/s: {model.reason}")
    what = f"{model.name}, dense (source: {model.source})"
    compute = [
        ComputePeak(dtype, model.flops[dtype], measured=False, what=what, device=model.name)
        for dtype in dtypes
        if dtype in model.flops
    ]
    missing = [dtype for dtype in dtypes if dtype not in model.flops]
    if missing:
        reasons.append(f"nominal FLOP/s in {', '.join(missing)}: no value with a source for {model.name}")
    return memory, compute, tuple(reasons)


def _nominal_memory(name: str, peak: HardwarePeak) -> MemoryPeak:
    return MemoryPeak(name, peak.nominal, measured=False, what=f"{peak.what} (source: {peak.source})")


# --- the points --------------------------------------------------------------------------------------------------


def _kernel(work: _Done, memory: Iterable[MemoryPeak], compute: Iterable[ComputePeak]) -> Kernel:
    case, dtype = work.case, work.case.dtype or ""
    flop = FLOP[case.op](case.count)
    intensity = intensity_of(case.op, case.count, dtype)
    attainable, bound = _attainable(case, intensity, memory, compute, measured=True)
    nominal, _ = _attainable(case, intensity, memory, compute, measured=False)
    return Kernel(
        case=work.index,
        op=case.op,
        dtype=dtype,
        size_bytes=case.size_bytes,
        threads=host_settings(case.settings).threads,
        numa_node=host_settings(case.settings).numa_node,
        mode=case.mode,
        intensity=intensity,
        flop_per_second=flop * work.calls_per_second,
        low=None if work.low is None else flop * work.low,
        high=None if work.high is None else flop * work.high,
        attainable=attainable,
        bound=bound,
        nominal_share=None if nominal is None else flop * work.calls_per_second / nominal,
    )


def intensity_of(op: str, count: int, dtype: str) -> float:
    """FLOP per byte, counting every operand and result of each of its operations once."""
    return FLOP[op](count) / (LEAST_TRAFFIC[op](count) * count * DTYPE_BYTES[dtype])


def _attainable(
    case: Case, intensity: float, memory: Iterable[MemoryPeak], compute: Iterable[ComputePeak], *, measured: bool
) -> tuple[float | None, str | None]:
    """min(π, β · I) by the outermost memory, and which of the two limits. If π is unknown, memory alone limits kernels
    that only stream, and other kernels have no limit.
    """
    outer = next(reversed([peak for peak in memory if peak.measured == measured]), None)
    above = next((peak for peak in compute if peak.measured == measured and peak.dtype == case.dtype), None)
    if outer is None or (above is None and case.op not in MEMORY_TRAFFIC):
        return None, None
    slope = outer.bytes_per_second * intensity
    if above is None or slope < above.flop_per_second:
        return slope, outer.name
    return above.flop_per_second, "arithmetic"


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


def fusions_of(roofline: Roofline) -> Iterator[Fusion]:
    """Every setting of attention that ``roofline`` has both ways, in its order."""
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


_LEAST_BYTES = 1 << 20
"""Smaller all-reduces are latency-bound."""

_BACKWARD_FLOP = 4
"""FLOP per parameter and token: two products in the backward pass of a dense layer (Kaplan et al. 2020,
https://arxiv.org/abs/2001.08361, section 2.1).
"""

_Network = tuple[float, str, bool]
"""The rate of one rank (B/s), its source, and whether it was measured."""


@dataclass(frozen=True, slots=True)
class NetworkRoofline:
    """The roofline of communication: the FLOP per byte sent that a rank needs so that it does not wait for the network.

    A step takes at least max(FLOP / π, bytes / W) if computation and communication overlap. Above π / W FLOP per byte
    on the wire, arithmetic limits; below it, the network does (Austin et al. 2025, How to Scale Your Model, chapter
    "All About Rooflines", https://jax-ml.github.io/scaling-book/roofline/).

    flop_per_second, bytes_per_second: π and W.
    flop_per_byte: π / W.
    tokens: tokens per rank and step from which on the all-reduce of a dense layer's gradients, in the same type, takes
        no longer than its backward pass.
    """

    holder: str
    dtype: str
    ranks: int
    flop_per_second: float
    compute: str
    compute_measured: bool
    bytes_per_second: float
    network: str
    network_measured: bool
    flop_per_byte: float
    tokens: float


def network_roofline(results: Results, roofline: Roofline, rows: Catalogue) -> Iterator[NetworkRoofline]:
    """One per known arithmetic peak; none for a single rank, which sends nothing.

    Tokens are those of a data-parallel step: gradients of P parameters are 2 (n − 1) / n · w · P bytes on the wire of
    each rank, and their backward pass takes 4 · P FLOP per token.
    """
    ranks = len(results.facts.hosts)
    network = _network(results, roofline, rows) if ranks > 1 else None
    if network is None:
        return
    rate, what, measured = network
    for compute in roofline.compute:
        flop_per_second = compute.flop_per_second / roofline.workers
        sent = 2 * (ranks - 1) / ranks * DTYPE_BYTES[compute.dtype]
        yield NetworkRoofline(
            holder=roofline.holder,
            dtype=compute.dtype,
            ranks=ranks,
            flop_per_second=flop_per_second,
            compute=compute.what,
            compute_measured=compute.measured,
            bytes_per_second=rate,
            network=what,
            network_measured=measured,
            flop_per_byte=flop_per_second / rate,
            tokens=flop_per_second / rate * sent / _BACKWARD_FLOP,
        )


def _network(results: Results, roofline: Roofline, rows: Catalogue) -> _Network | None:
    """The rate of a rank: by the best large all-reduce of this run, else by the link that the system or a datasheet
    states.
    """
    reductions = [
        (group.busbw, summary.case)
        for summary in results.cases
        if summary.case.op == "all_reduce"
        and summary.case.device == roofline.device
        and summary.case.size_bytes >= _LEAST_BYTES
        and (group := summary.only) is not None
        and len(group.ranks) == len(results.facts.hosts)
        and group.busbw is not None
    ]
    if reductions:
        rate, case = max(reductions, key=lambda entry: entry[0])
        what = f"busbw of the best all_reduce of this run ({format_size(case.size_bytes)} of {case.dtype})"
        return rate, what, True
    return _nominal_network(results.facts, roofline, rows)


def _nominal_network(facts: Facts, roofline: Roofline, rows: Catalogue) -> _Network | None:
    """The share of one rank in the link that the system or a datasheet states; None if unknown."""
    host_of_rank = facts.hosts
    hosts = list(dict.fromkeys(host_of_rank))
    if len(hosts) == 1:
        links = None if roofline.device == "cpu" else gpu_links(facts.gpus_of(range(len(host_of_rank))), rows)
        if links is None or isinstance(links, Unavailable):
            return None
        return links.peak.nominal, links.in_words, False
    shares: list[_Network] = []
    for host in hosts:
        network = host_network(facts.environment(host), facts.backend.transport, rows)
        if isinstance(network, Unavailable):
            return None
        sharing = host_of_rank.count(host)
        shared = f", shared by its {sharing} ranks" if sharing > 1 else ""
        shares.append((network.peak.nominal / sharing, f"{network.name} of {host}, nominal{shared}", False))
    return min(shares, key=lambda share: share[0])
