"""The GPU that a plan is for: that of runs, and how much it holds."""

import re
from collections.abc import Iterable

from busbw.system.catalog import Gpu, catalogue
from busbw.system.detect import gpus_of, row_of
from busbw_analysis.data.load import Dataset


def memory_of_gpu(gpu: Gpu) -> float:
    """Bytes: the smallest number that its label has, or what is usable of it, in decimal GB: never more than is there,
    because most vendors mean GiB.
    """
    usable = re.search(r"\((\d+) usable\)", gpu.memory)
    numbers = [usable[1]] if usable else re.findall(r"(\d+)(?= or | GB)", gpu.memory)
    return min(map(float, numbers)) * 1e9


def gpu_of_runs(datasets: Iterable[Dataset]) -> Gpu | None:
    """That on which the ranks of runs were, of several kinds the one with least memory; None where ranks were on
    processors, and where no row has its name.
    """
    rows = catalogue()
    found: list[Gpu] = []
    for one in datasets:
        if all(row.case.device == "cpu" for row in one.cases):
            continue
        for host in {host for stored in one.runs for host in stored.run.hosts}:
            found += [row for gpu in gpus_of(one.environment(host)) if (row := row_of(gpu, rows)) is not None]
    return min(found, key=memory_of_gpu, default=None)
