"""The machine of a plan: its GPU and network by name or description, or as a run has measured them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from busbw.errors import AnalysisError, UsageError
from busbw.system.catalog import Gpu, HardwarePeak, catalogue
from busbw.system.named import gpu_named, links_named
from busbw.system.nvml import gpus_by_address
from busbw.units import format_flop, format_rate
from busbw_analysis.data.sources import find
from busbw_analysis.models.networks import Specification
from busbw_analysis.predict import Questions, read_results
from busbw_analysis.training.kernels import Speed, memory_of, speed_of
from busbw_analysis.training.memory import Room, gpu_of_runs, least_memory, memory_of_gpu
from busbw_analysis.training.prices import OVERLAP, Described, Measured, Prices, Rates, rates_of, slowdown_of
from busbw_analysis.training.step_time import Machine

PER_HOST: Final = 8
DEFAULT_GPU: Final = "H100 SXM5"
DELAYS: Final = 15e-6, 15e-6
"""Latency in seconds inside a host and between hosts, for catalogue rows that have only a rate. Inside: all_reduce of 1
MB takes 44, 51 and 93 µs on 2, 4 and 8 A100 with NVLink, one delay for each of 2 log2 n messages
(https://github.com/VIA-Research/vTrain/tree/f8dda8473a48b373b1d25f51f52d685bff5150c5/trace/a100); between: assumed.
"""
HOPS: Final = 1.9e-6, 4e-6
"""Seconds of a hop of a ring inside a host and between hosts, by NCCL's own model (LL128; ``hwLat`` in
https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc).
"""
Cards = Literal["shared", "own"]
GivenNetwork = Specification | HardwarePeak
"""A network: described, or by the card of each GPU, whose links inside a node are those of the GPU."""


class Share(float):
    """A share of the measured or datasheet rate of a GPU."""


@dataclass(frozen=True, slots=True)
class PlannedMachine:
    """The machine of a plan.

    room: memory of a GPU for tensors in bytes. peak: its datasheet FLOP/s. Both are None if unknown.
    assumed: where each speed is from, in words.
    """

    machine: Machine
    room: float | None
    peak: float | None
    assumed: dict[str, str]


def machine_of(  # noqa: PLR0913 - one argument for each option
    dtype: str,
    gpus: int,
    measured: Questions | None,
    *,
    network: GivenNetwork | None = None,
    gpu: Gpu | None = None,
    gpu_memory: int | None = None,
    achieved: float | None = None,
    overlap: float | None = None,
    cards: Cards | None = None,
    ranks_per_host: int | None = None,
    causal: bool = True,
) -> PlannedMachine:
    """The machine that options describe or that was ``measured``.

    Raises UsageError if neither says how fast the network or the products of ``dtype`` are.
    """
    assumed: dict[str, str] = {}
    if gpu is None:
        gpu = gpu_named(catalogue(), DEFAULT_GPU) if measured is None else gpu_of_runs(measured.results)
    run, per_host = None, ranks_per_host or PER_HOST
    if measured is not None:
        run = Measured(measured, shared=None if cards is None else cards == "shared")
        per_host = ranks_per_host or run.per_host
        share = "concurrent groups share a host's card and memory" if run.shared else "each rank has its own card"
        assumed["cards"] = share
    per_host = min(per_host, gpus)
    described = None if network is None else _describe(network, gpu, gpus, per_host)
    if described is not None:
        assumed["network"] = described.origin
    if run is not None:
        run.otherwise = described
    prices: Prices | None = run or described
    if prices is None:
        raise UsageError(
            "give --from RUN or --network, such as rail:nic=50GB/s,inner=450GB/s or '4X NDR'", code="network"
        )
    speed, peak, assumed["compute"] = _speed(dtype, gpu, run, achieved)
    hidden, assumed["overlap"] = _overlap(run, overlap)
    slowdown, assumed["slowdown"] = slowdown_of(run)
    room = room_of(gpu, gpu_memory)
    capacity = (
        "not checked: give --gpu or --gpu-memory"
        if room is None
        else f"{room.usable / 1e9:.4g} of {room.bytes / 1e9:.4g} GB of {room.in_words}"
    )
    assumed["memory"] = capacity
    machine = Machine(speed, per_host, prices, hidden, causal, slowdown, gpu.name if gpu and speed.launch else None)
    return PlannedMachine(machine, None if room is None else room.usable, peak, assumed)


def room_of(gpu: Gpu | None, gpu_memory: int | None) -> Room | None:
    """The given memory, else that of the GPU; None without both."""
    if gpu_memory is not None:
        return Room(float(gpu_memory), "the GPU" if gpu is None else gpu.name, "as given")
    return None if gpu is None else memory_of_gpu(gpu)


def room_in(run: str | None, results_dir: Path) -> Room | None:
    """Memory of the GPU of a run, or of this machine (None if it has none).

    Raises UsageError for a run without a known GPU.
    """
    if run is None:
        # If NVML lists several kinds, take the one with the least memory.
        rows = catalogue()
        gpu_rows = [row for gpu in gpus_by_address().values() if (row := rows.gpu(gpu.name)) is not None]
        row = least_memory(gpu_rows)
        return None if row is None else replace(memory_of_gpu(row), what=f"{row.name} of this machine")
    row = gpu_of_runs(read_results([find(results_dir, run).read()]))
    if row is None:
        raise UsageError(f"{run} has no GPU that busbw peaks lists; give --gpu or --gpu-memory", code="gpu")
    return replace(memory_of_gpu(row), what=f"{row.name} of the run")


def rates_given(
    network: GivenNetwork | None, run: str | None, results_dir: Path, gpus: int, per_host: int, gpu: Gpu | None
) -> Rates | None:
    """Rates of the described ``network`` or of the messages measured in ``run``; None if neither is given.

    Raises UsageError if both are given, AnalysisError for a run without messages.
    """
    if run is None:
        return None if network is None else _describe(network, gpu, gpus, per_host).rates
    if network is not None:
        raise UsageError("--network and --from both describe the network; give only one of them", code="network")
    measured = Measured(Questions(read_results([find(results_dir, run).read()])))
    rates = measured.rates(max(len(set(results.facts.hosts)) for results in measured.questions.results))
    if rates is None:
        raise AnalysisError(
            f"{run} has neither latency nor rate of messages; use a run with ping_pong or all_reduce at many sizes",
            code="no-price",
        )
    return rates


def _describe(network: GivenNetwork, gpu: Gpu | None, gpus: int, per_host: int) -> Described:
    """Prices on a described network for ``gpus`` GPUs, or on two nodes if they are fewer."""
    if isinstance(network, Specification):
        nodes = max(2, -(-gpus // per_host))
        return Described(rates_of(network, nodes * per_host, per_host), network.text)
    if gpu is None:
        raise UsageError(
            f"--network {network.what} is a card: the rate inside a node is unknown; write "
            f"--network 'rail:nic={network.what},inner=H100 SXM5'",
            code="gpu",
        )
    links = links_named(catalogue(), gpu.name, "--gpu")
    outer, inner = (peak.practical or peak.nominal for peak in (network, links))
    in_practice = " in practice" if links.practical else ""
    reached = (
        f"{network.what}, {format_rate(outer)} per GPU{' in practice' if network.practical else ''}"
        if network.kind is not None
        else f"{format_rate(outer)} per GPU, all of it for data; a card by name, such as '4X NDR', has what is reached"
    )
    words = (
        f"{reached}; {links.what}, {format_rate(inner)}{in_practice}; latency of a "
        f"call as in published measurements: {DELAYS[0] * 1e6:g} µs inside a host, {DELAYS[1] * 1e6:g} µs between "
        f"hosts; of a ring by NCCL: {HOPS[0] * 1e6:g} and {HOPS[1] * 1e6:g} µs a hop"
    )
    return Described(Rates(inner, outer, *DELAYS, per_host), words, HOPS)


def _speed(
    dtype: str, gpu: Gpu | None, run: Measured | None, achieved: float | None
) -> tuple[Speed, float | None, str]:
    """The speed of a rank, FLOP/s of the datasheet (None if unknown), and a description of the first."""
    peak = None if gpu is None else gpu.flops.get(dtype)
    memory = None if run is None else run.memory_per_second("cpu" if gpu is None else "cuda")
    if memory is None and gpu is not None:
        memory = memory_of(gpu)
    if achieved is not None and not isinstance(achieved, Share):
        if gpu is not None and achieved > max(gpu.flops.values(), default=achieved):
            most = max(gpu.flops.values())
            raise UsageError(
                f"--achieved {format_flop(achieved)}: {gpu.name} has at most {format_flop(most)}; give the rate of "
                "one GPU",
                code="compute",
            )
        return Speed(achieved, memory), peak, f"{format_flop(achieved)} per rank, as given"
    measured = None if run is None else run.flop_per_second(dtype)
    if measured is not None:
        share = achieved or 1.0
        return Speed(share * measured[0], memory), peak, f"{share:.0%} of {measured[1]}"
    if gpu is None:
        measure = " ".join(matmul_command(run, dtype))
        raise UsageError(
            f"the run has no {dtype} matmul, whose rate is that of a layer: measure one and add it with another "
            f"--from (busbw {measure}); or give --achieved, such as 600e12, or --gpu",
            code="compute",
        )
    if peak is None:
        raise UsageError(f"{gpu.name} has no rate for {dtype}; it has {', '.join(gpu.flops)}", code="gpu")
    speed = speed_of(gpu, dtype, achieved)
    of = f"{speed.flop_per_second / peak:.1%} of {format_flop(peak)} of {gpu.name} ({dtype})"
    how = "as given" if achieved else "less in small products" + ("" if gpu.products else "; assumed")
    return speed, peak, f"{of}, {how}"


def matmul_command(run: Measured | None, dtype: str) -> Sequence[str]:
    """The arguments of busbw that measure the matmul that ``run`` lacks, on the same ranks."""
    measured = ["run", "--op", "matmul", "--dtype", dtype]
    if run is None:
        return measured
    case = run.questions.results[0].cases[0].case
    return [*measured, "--backend", case.backend, "--ranks", str(len(run.questions.results[0].facts.hosts))]


def _overlap(run: Measured | None, given: float | None) -> tuple[float, str]:
    share, words = (given, "as given") if given is not None else (run and run.overlap()) or (OVERLAP, "assumed")
    return share, f"{share:.0%} of a call, {words}"
