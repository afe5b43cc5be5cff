"""MPI over GPU memory with a CUDA-aware library: calls block the host and are timed by its clock.

Not yet run on a GPU.
"""

import torch

from busbw.backends.base import World, explained
from busbw.backends.cuda import uuid_at
from busbw.backends.mpi.backend import MpiBackend
from busbw.backends.mpi.info import cuda_aware, library, short_name, unaware
from busbw.backends.side_channel import first_line
from busbw.errors import LaunchError
from busbw.ops.algorithms.settings import AlgorithmSettings
from busbw.ops.base import Op, first_reason
from busbw.runs.records import Case
from busbw.system.device import DeviceConditions
from busbw.system.nvml import nvml_of


class MpiCudaBackend(MpiBackend):
    """CUDA tensors over MPI. Raises LaunchError if this rank has no GPU or the library is not CUDA-aware.

    Calls block the host as they do with host memory, so the host's clock times them, without device marks. ``barrier``
    also waits for pending GPU work, mainly the filling of buffers.
    """

    def __init__(self, world: World) -> None:
        count = torch.cuda.device_count()
        if not count:
            raise LaunchError(f"rank {world.rank} cannot use a GPU: torch sees no CUDA device")
        # If the launcher shows each rank only its own GPU, every rank calls it number 0.
        number = 0 if count == 1 else world.local_rank % count
        where = f"cuda:{number}"
        try:
            # Before MPI_Init, for libraries that use the GPU that is current there. Under mpirun the ranks may already
            # have initialised MPI for their rendezvous, unless MASTER_ADDR and MASTER_PORT are set.
            torch.cuda.set_device(where)
            torch.cuda.synchronize()
            self._nvml = nvml_of(uuid_at(number), number)
        except RuntimeError as error:
            raise LaunchError(f"rank {world.rank} cannot use its GPU: {first_line(error)}") from error
        super().__init__(world)
        self._where = where
        problem = unaware(short_name(library()), aware=cuda_aware())
        if problem is not None:
            raise LaunchError(problem)

    def refuse(self, op: Op, case: Case) -> str | None:
        """Reason why MPI cannot run ``case`` on GPUs, or None."""
        return why_not(op, case) or super().refuse(op, case)

    def conditions(self) -> DeviceConditions | None:
        """State of the GPU by NVML. Its index is that of the host, so it reveals ranks that share a GPU."""
        return None if self._nvml is None else self._nvml.conditions()

    def barrier(self) -> None:
        """Barrier after this rank's GPU is idle, because MPI ignores its streams."""
        with explained(self):
            torch.cuda.synchronize()
        super().barrier()


def why_not(op: Op, case: Case) -> str | None:
    """Reason why a call that blocks the host does not support ``case``, or None."""
    return first_reason(
        (case.mode == "graph", "MPI's calls block the host, so they cannot be captured in a graph"),
        (case.pre_enqueue, "MPI's calls block the host, so they cannot be enqueued on a held stream"),
        (case.mode == "overlap", "mode overlap computes on the host, which does not disturb data on a GPU"),
        (case.cache != "warm", f"cache {case.cache} uses the host's cache size, but the data are on a GPU"),
        (
            isinstance(case.settings, AlgorithmSettings),
            "explicit algorithms reduce on GPU streams, for which MPI's calls do not wait",
        ),
        (op.local, f"{op.name} on a GPU does not block the host as MPI's calls do; use backend nccl"),
    )
