"""GPUs and networks of the training commands: given by name, or found in a run or on this machine."""

from dataclasses import replace
from pathlib import Path

from busbw.errors import AnalysisError, UsageError
from busbw.system.catalog import catalogue
from busbw.system.named import gpu_named
from busbw.system.nvml import gpus_by_address
from busbw.units import parse_size
from busbw_analysis.data.sources import find
from busbw_analysis.predict import Questions, read_results
from busbw_analysis.training.gpus import Room, gpu_of_runs, least_memory, memory_of_gpu
from busbw_analysis.training.prices import Measured
from busbw_analysis.training.rates import Rates, rates_of


def gpu_memory_of(gpu: str | None, gpu_memory: str | None, run: str | None, results_dir: Path) -> Room | None:
    """Memory of the given GPU, else of that of a run, else of that of this machine (None if it has none).

    Raises UsageError for a run without a known GPU.
    """
    if gpu_memory is not None:
        return Room(float(parse_size(gpu_memory)), gpu or "the GPU", "as given")
    if gpu is not None:
        return memory_of_gpu(gpu_named(catalogue(), gpu))
    if run is None:
        # If NVML lists several kinds, take the one with the least memory.
        rows = catalogue()
        here = [row for one in gpus_by_address().values() if (row := rows.gpu(one.name)) is not None]
        row = least_memory(here)
        return None if row is None else replace(memory_of_gpu(row), what=f"{row.name} of this machine")
    row = gpu_of_runs(read_results([find(results_dir, run).read()]))
    if row is None:
        raise UsageError(f"{run} has no GPU that busbw peaks lists; give --gpu or --gpu-memory", code="gpu")
    return replace(memory_of_gpu(row), what=f"{row.name} of the run")


def rates_given(network: str | None, run: str | None, results_dir: Path, nodes: int, per_node: int) -> Rates | None:
    """Rates of the described ``network`` or of the messages measured in ``run``; None if neither is given.

    Raises UsageError if both are given, AnalysisError for a run without messages.
    """
    if run is None:
        return None if network is None else rates_of(network, nodes * per_node, per_node)
    if network is not None:
        raise UsageError("--network and --from both describe the network; give only one of them", code="network")
    measured = Measured(Questions(read_results([find(results_dir, run).read()])))
    rates = measured.rates(max(len(set(one.facts.hosts)) for one in measured.questions.results))
    if rates is None:
        raise AnalysisError(
            f"{run} has neither latency nor rate of messages; use a run with ping_pong or all_reduce at many sizes",
            code="no-price",
        )
    return rates
