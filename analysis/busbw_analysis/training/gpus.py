"""The GPU of a plan: the one of the runs, and its memory."""

import re
from collections.abc import Iterable

from busbw.system.catalog import Gpu, catalogue
from busbw.system.detect import row_of
from busbw_analysis.data.load import Dataset


def memory_of_gpu(gpu: Gpu) -> float:
    """Usable bytes: the smallest number in its label, in decimal GB. This never overestimates, because most vendors
    mean GiB.
    """
    usable = re.search(r"\((\d+) usable\)", gpu.memory)
    numbers = [usable[1]] if usable else re.findall(r"(\d+)(?= or | GB)", gpu.memory)
    return min(map(float, numbers)) * 1e9


def gpu_of_runs(datasets: Iterable[Dataset]) -> Gpu | None:
    """The GPU of the runs' ranks; with several kinds, the one with least memory.

    None if the ranks ran on CPUs, or if no row of the catalogue matches.
    """
    rows = catalogue()
    found: list[Gpu] = []
    for one in datasets:
        if all(row.case.device == "cpu" for row in one.cases):
            continue
        for host in {host for stored in one.runs for host in stored.run.hosts}:
            found += [row for gpu in one.environment(host).pci.gpus if (row := row_of(gpu, rows)) is not None]
    return min(found, key=memory_of_gpu, default=None)
