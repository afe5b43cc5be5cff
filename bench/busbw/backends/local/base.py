"""Inputs of a local operation, and rows of the table of local operations."""

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
    """Inputs from which a call is bound.

    send, receive: buffers of this rank.
    device: device of the buffers (None: host memory).
    folder: where files are created (None: the plan has no path).
    peer: this process's name of the device of a pair's other rank (None: it cannot allocate memory there).
    local_rank: index of this rank on its host.
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
    """How a local operation is bound.

    bind: prepares the operation, or raises BackendError. The operation raises BackendError or torch's RuntimeError.
    refuse: reason why a case cannot run, or None; the same on every rank.
    """

    bind: Callable[[Bound], Operation]
    refuse: Callable[[Case], str | None] = lambda _case: None
