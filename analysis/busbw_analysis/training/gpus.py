"""The GPU of a plan: the one of the runs, and its memory."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from busbw.errors import UsageError
from busbw.system.catalog import Gpu, catalogue
from busbw.system.detect import row_of
from busbw_analysis.models.results import Results


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of a GPU in bytes, what it is of, and whether its driver or its datasheet says so."""

    bytes: float
    what: str
    source: str

    @property
    def in_words(self) -> str:
        """``H100 SXM5, by its driver``."""
        return f"{self.what}, {self.source}"


def memory_of_gpu(gpu: Gpu) -> Room:
    """What its driver reports, part of which it reserves, else the datasheet's decimal GB.

    Raises UsageError for a row without memory_bytes.
    """
    if gpu.memory_bytes is None:
        raise UsageError(f"the row of {gpu.name} has no memory_bytes; add it, or give --gpu-memory", code="gpu")
    return Room(gpu.memory_bytes, gpu.name, "by its datasheet" if gpu.memory_source is None else "by its driver")


def least_memory(gpus: Iterable[Gpu]) -> Gpu | None:
    """The one with least memory; None without GPUs."""
    return min(gpus, key=lambda gpu: inf if gpu.memory_bytes is None else gpu.memory_bytes, default=None)


def gpu_of_runs(results: Iterable[Results]) -> Gpu | None:
    """The GPU of the runs' ranks; with several kinds, the one with least memory.

    None if the ranks ran on CPUs, or if no row of the catalogue matches.
    """
    rows = catalogue()
    gpus: list[Gpu] = []
    for of_run in results:
        if all(row.case.device == "cpu" for row in of_run.cases):
            continue
        for host in {host for stored in of_run.runs for host in stored.run.hosts}:
            gpus += [row for gpu in of_run.facts.environment(host).pci.gpus if (row := row_of(gpu, rows)) is not None]
    return least_memory(gpus)
