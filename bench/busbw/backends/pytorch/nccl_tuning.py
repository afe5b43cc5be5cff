"""The algorithm, protocol and channels that NCCL chooses for a call, from the lines that it prints about its tuning.

Since 2.24 the first rank of a communicator prints a line for every collective (``src/enqueue.cc``; of symmetric memory
``src/scheduler/symmetric_sched.cc``, by copy engines ``src/ce_coll.cc``), and ``ncclResetDebugInit`` (``src/debug.cc``)
makes NCCL read its variables again. So they are on for one call that nobody times.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from busbw.backends.pytorch import nccl_calls
from busbw.runs.records import NcclChoice

_LINE: Final = re.compile(
    r"Bytes -> Algo (?P<algorithm>\w+) proto (?P<protocol>\w+) channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\}"
    r"|\[Symmetric\]: \d+ Bytes -> Kernel (?P<kernel>\w+) nchannels (?P<channels>\d+)"
    r"|\[(?P<engine>Copy Engine|Hierarchical CE)\]: \d+ Bytes -> "
)
_FILE: Final = "NCCL_DEBUG_FILE"


def choice_of(call: Callable[[], object], *, leads: bool) -> NcclChoice | None:
    """Make ``call``, and return what NCCL chose for it.

    leads: this rank is the first one of its group, which prints the line
    None on other ranks, if NCCL cannot tell, or if the user's own file of NCCL's messages would be overwritten.
    """
    reset = reset_function() if leads and _FILE not in os.environ else None
    if reset is None:
        call()
        return None
    with TemporaryDirectory() as folder:
        file = Path(folder, "nccl")
        with _printing_to(file, reset):
            call()
        return choice_in(file.read_text(encoding="utf-8", errors="replace")) if file.exists() else None


def choice_in(text: str) -> NcclChoice | None:
    """The choice in the first line of NCCL's messages that has one; None without such a line."""
    line = _LINE.search(text)
    if line is None:
        return None
    if line["algorithm"] is None:
        channels = None if line["channels"] is None else int(line["channels"])
        return NcclChoice(algorithm=line["kernel"] or line["engine"], channels=channels)
    channels = int(line["high"]) - int(line["low"]) + 1
    return NcclChoice(algorithm=line["algorithm"], protocol=line["protocol"], channels=channels)


def reset_function() -> Callable[[], object] | None:
    """NCCL's function that reads the variables again; None before 2.24, or if torch contains NCCL."""
    return getattr(nccl_calls.loaded(), "ncclResetDebugInit", None)


@contextmanager
def _printing_to(file: Path, reset: Callable[[], object]) -> Iterator[None]:
    """Within the block, NCCL prints its tuning to ``file``."""
    settings = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "TUNING", _FILE: str(file)}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    reset()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        reset()
