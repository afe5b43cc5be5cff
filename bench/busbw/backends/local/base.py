"""What an operation without other ranks is bound to, and what a row of the table of them has."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from busbw.backends.base import Operation
from busbw.runs.records import Case
from busbw.system.device import Device

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Bound:
    """What a call is made of: the buffers of this rank, and the device that they are on (None: host memory).

    ``local_rank`` is the number of this rank on its host.
    ``peer`` is what this process calls the device of the other rank of a pair (None: it cannot have memory there).
    ``folder`` is for files (None: the plan has no path).
    """

    case: Case
    send: "torch.Tensor"
    receive: "torch.Tensor"
    device: Device | None
    folder: Path | None = None
    peer: str | None = None
    local_rank: int = 0


@dataclass(frozen=True, slots=True)
class Local:
    """How an operation is called. ``bind`` does all preparation, and raises BackendError when it cannot; what it
    returns raises BackendError, or RuntimeError as torch does. ``refuse`` says why ``case`` cannot run, the same on
    every rank.
    """

    bind: Callable[[Bound], Operation]
    refuse: Callable[[Case], str | None] = lambda _case: None
