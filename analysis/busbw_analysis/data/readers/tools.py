"""What is known of another tool whatever its log says: what it drives, and how it takes time."""

import re
from dataclasses import dataclass, replace
from typing import Final

from busbw.runs.records import BackendTraits, Mode

UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool. ``names``: its own names of tests are part of what is measured. ``one_host``: it knows no other.
    ``copies``: all of its tests copy.
    """

    backend: str = UNKNOWN
    device: str = UNKNOWN
    mode: Mode = "pipelined"
    traits: BackendTraits | None = None
    names: re.Pattern[str] | None = None
    one_host: bool = False
    copies: bool = False


UNKNOWN_TOOL: Final = Tool()
NCCL: Final = Tool("nccl", "cuda", traits=BackendTraits(cost_models="nccl", transport="nccl-net"))
_MPI: Final = Tool("mpi", "cpu", traits=BackendTraits(cost_models="mpi", transport="mpi-net"))
_GLOO: Final = Tool("gloo", "cpu", traits=BackendTraits(cost_models="gloo"))
OF_BACKEND: Final = {tool.backend: tool for tool in (NCCL, _MPI, _GLOO)}
"""For logs that name the backend and, unlike runs, store nothing else of it."""
_OTHER_CALLS: Final = re.compile(
    r"(?i)non-blocking|persistent|^I[a-z]+|managed|put|get|source|multi-(?:threaded|process)|partitioned"
    r"|(?:gather|scatter)v|alltoallw"
)
"""Names of tests of MPI that measure their operation by other calls than the plain one."""
OF_MPI: Final = replace(_MPI, names=_OTHER_CALLS)
EVERY_NAME: Final = re.compile("")
