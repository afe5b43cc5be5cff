"""GPUs that the commands of training are given by name."""

import re

from busbw.errors import UsageError
from busbw.system.catalog import Gpu, catalogue


def gpu_row(name: str) -> Gpu:
    """The row of this name, or of one that drivers use. Raises UsageError with all of them."""
    rows = catalogue().gpus
    wanted = name.casefold()
    found = next((row for row in rows if wanted in {one.casefold() for one in (row.name, *row.names)}), None)
    if found is None:
        message = f"GPU {name!r} is none of the rows; want one of {', '.join(row.name for row in rows)}"
        raise UsageError(message, code="gpu")
    return found


def memory_of_gpu(gpu: Gpu) -> float:
    """Bytes: the smallest number that its label has, or what is usable of it, in decimal GB: never more than is there,
    because most vendors mean GiB.
    """
    usable = re.search(r"\((\d+) usable\)", gpu.memory)
    numbers = [usable[1]] if usable else re.findall(r"(\d+)(?= or | GB)", gpu.memory)
    return min(map(float, numbers)) * 1e9
