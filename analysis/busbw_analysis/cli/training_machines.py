"""GPUs and networks that the commands of training are given by name, or find in a run or in this machine."""

from pathlib import Path

from busbw.errors import AnalysisError, UsageError, refuse_unknown
from busbw.system.catalog import Gpu, catalogue
from busbw.system.nvml import gpus_by_address
from busbw_analysis.data.sources import find
from busbw_analysis.predict import Questions, read_groups
from busbw_analysis.training.gpus import gpu_of_runs, memory_of_gpu
from busbw_analysis.training.prices import Measured
from busbw_analysis.training.rates import Rates, rates_of


def gpu_row(name: str) -> Gpu:
    """The row of this name, or of one that drivers use. Raises UsageError with all of them."""
    rows = catalogue().gpus
    wanted = name.casefold()
    found = next((row for row in rows if wanted in {one.casefold() for one in (row.name, *row.names)}), None)
    if found is None:
        names = [row.name for row in rows]
        refuse_unknown("GPU", name, [one for one in names if wanted in one.casefold()] or names, code="gpu")
    return found


def gpu_found(run: str | None, results_dir: Path) -> tuple[Gpu, str] | None:
    """That of a run, else that of this machine, and in words where it was found; None where this machine has none.
    Raises UsageError for a run without one.
    """
    if run is None:
        # Of several kinds by NVML the one with least memory.
        rows = catalogue()
        here = [row for gpu in gpus_by_address().values() if (row := rows.gpu(gpu.name)) is not None]
        row = min(here, key=memory_of_gpu, default=None)
        return None if row is None else (row, f"{row.name}, found here")
    row = gpu_of_runs(read_groups([find(results_dir, run).read()]))
    if row is None:
        raise UsageError(f"{run} has no GPU that a row of busbw peaks names; want --gpu or --gpu-memory", code="gpu")
    return row, f"{row.name}, that of the run"


def rates_given(network: str | None, run: str | None, results_dir: Path, nodes: int, per_node: int) -> Rates | None:
    """Of a network that is described, or of messages that a run has measured; None where nobody names one. Raises
    UsageError for both at once, AnalysisError for a run that has no messages.
    """
    if run is None:
        return None if network is None else rates_of(network, nodes * per_node, per_node)
    if network is not None:
        raise UsageError("--network and --from say the same twice; give one of them", code="network")
    measured = Measured(Questions(read_groups([find(results_dir, run).read()])))
    rates = measured.rates(max(len(set(one.hosts)) for one in measured.questions.datasets))
    if rates is None:
        raise AnalysisError(
            f"{run} tells neither latency nor rate of messages; want one with ping_pong or all_reduce of many sizes",
            code="no-price",
        )
    return rates
