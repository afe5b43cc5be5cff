"""Common base of library backends: buffers, and operations that the library itself does not provide."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from busbw.backends import scheduled, sockets
from busbw.backends.base import Backend, Bound, Operation, World, explained, of_every_rank
from busbw.backends.local import LOCAL
from busbw.backends.patterns import TORCH_DTYPES
from busbw.backends.scheduled import Exchange
from busbw.backends.side_channel import first_line
from busbw.errors import BackendError
from busbw.ops import OPS
from busbw.ops.base import Op, first_reason
from busbw.ops.groups import Ranks
from busbw.ops.settings import AlgorithmSettings
from busbw.runs.records import FLOAT8, Case
from busbw.system.device import Device, DeviceConditions


class LibraryBackend(Backend):
    """One rank over a library, on the CPU or on ``device``."""

    # torch raises RuntimeError in its operations, for example when memory runs out.
    raises: tuple[type[Exception], ...] = (RuntimeError, BackendError)
    calls: Mapping[str, Callable[[Bound], Operation]]
    """The library's own call for each op."""

    def __init__(self, world: World, device: Device | None = None) -> None:
        self.rank, self.size = world.rank, world.size
        self.device = device
        self._world = world
        self._where = "cpu" if device is None else device.name

    def explain(self, error: Exception) -> str:
        """torch's message in one line."""
        return first_line(error)

    def refuse(self, op: Op, case: Case) -> str | None:
        """Reason why ``case`` cannot run, with or without the library's calls, or None."""
        reason = first_reason(
            (case.dtype in FLOAT8 and not op.communicates, f"{case.dtype} is a type of collectives and messages only"),
            (case.registered, self.no_registration() if case.registered else None),
        )
        if reason is not None:
            return reason
        if op.local:
            return LOCAL[op.name].refuse(case)
        if op.plain_sockets:
            return sockets.refuse(case)
        if isinstance(case.settings, AlgorithmSettings):
            return scheduled.refuse(op, case)
        if case.mode == "overlap" and op.sequential:
            return f"{op.name} consists of several blocking steps, so it has no nonblocking form for mode overlap"
        return self.refuse_call(op, case)

    def no_registration(self) -> str | None:
        """Reason why this backend cannot register buffers, or None."""
        return "only backend nccl registers buffers"

    @abstractmethod
    def refuse_call(self, op: Op, case: Case) -> str | None:
        """Reason why the library has no call for ``op`` in this ``case``, or None."""

    def allocate(self, count: int, dtype: str) -> torch.Tensor:
        """Allocate a zeroed tensor; writing the zeros is this rank's first touch of its pages."""
        with explained(self):
            return torch.empty(count, dtype=TORCH_DTYPES[dtype], device=self._where).zero_()

    def bind(self, bound: Bound) -> Operation:
        """Bind ``op`` to its buffers (see Backend.bind)."""
        world, case, op = self._world, bound.case, OPS[bound.case.op]
        bound = replace(
            bound,
            device=self.device,
            folder=world.folder,
            peers=self.peers_in(bound.group),
            local_rank=world.local_rank,
        )
        if case.dtype in FLOAT8 and not op.reduces:
            bound = replace(bound, send=bound.send.view(torch.uint8), receive=bound.receive.view(torch.uint8))
        if op.local:
            return LOCAL[op.name].bind(bound)
        if op.plain_sockets:
            return sockets.bind(op, bound, self.share, world.timeout_seconds)
        if isinstance(case.settings, AlgorithmSettings):
            return scheduled.bind(op, bound, self.exchange(case))
        return self.calls[op.name](replace(bound, comm=self.comm(op, bound.group)))

    @abstractmethod
    def exchange(self, case: Case) -> Exchange:
        """Concurrent messages in both directions, for collectives over send/recv."""

    @abstractmethod
    def comm(self, op: Op, group: Ranks) -> Any:  # noqa: ANN401 - of the library
        """The library's handle on the ranks with which ``op`` communicates in ``group``."""

    def share(self, text: str) -> list[str]:
        """Gather texts as 8-byte integers. Zero bytes pad a text; JSON and messages contain none."""
        mine = text.encode()
        longest = int(self.reduce(np.asarray([len(mine)], dtype=np.int64), "max")[0])
        padded = mine.ljust(8 * (longest // 8 + 1), b"\0")
        rows = of_every_rank(self, np.frombuffer(padded, dtype=np.int64).tolist())
        return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rows]

    def peers_in(self, group: Ranks) -> tuple[str | None, ...]:
        """This process's name of the device of each rank; None where it cannot allocate memory."""
        return (None,) * len(group)

    def conditions(self) -> DeviceConditions | None:
        """State of the device; None without a device."""
        return None if self.device is None else self.device.conditions()

    def traffic_factor(self, op: Op) -> float:  # noqa: ARG002 - the same for every operation
        """1: no excess traffic is known."""
        return 1.0
