"""MPI over the memory of GPUs, where the library takes its addresses: calls that block the host, timed by its clock.

Never run on a GPU yet.
"""

import torch

from busbw.backends.base import World, explained
from busbw.backends.cuda import uuid_at
from busbw.backends.mpi.backend import MpiBackend
from busbw.backends.mpi.info import cuda_aware, first_words, library, unaware
from busbw.backends.side_channel import first_line
from busbw.errors import LaunchError
from busbw.ops.base import Op, first_reason
from busbw.runs.records import Case
from busbw.system.device import DeviceConditions
from busbw.system.nvml import nvml_of


class MpiCudaBackend(MpiBackend):
    """CUDA tensors over MPI. Raises LaunchError when this rank has no GPU, or the library does not take its memory.

    The calls return when the host may go on, as they do over host memory, so the host's clock times them and there are
    no marks of a device; ``barrier`` waits for what the GPU still has to do, filling buffers above all.
    """

    def __init__(self, world: World) -> None:
        count = torch.cuda.device_count()
        if not count:
            raise LaunchError(f"rank {world.rank} cannot use a GPU: torch sees no CUDA device")
        # A launcher may show each rank its own GPU alone: then all of them call it number 0.
        number = 0 if count == 1 else world.local_rank % count
        where = f"cuda:{number}"
        try:
            # Before MPI_Init, for libraries that take the GPU which is current there. Below mpirun the ranks may have
            # met over MPI before they knew what to measure; with MASTER_ADDR and MASTER_PORT they meet without it.
            torch.cuda.set_device(where)
            torch.cuda.synchronize()
            self._nvml = nvml_of(uuid_at(number), number)
        except RuntimeError as error:
            raise LaunchError(f"rank {world.rank} cannot use its GPU: {first_line(error)}") from error
        super().__init__(world)
        self._where = where
        problem = unaware(first_words(library()), aware=cuda_aware())
        if problem is not None:
            raise LaunchError(problem)

    def refuse(self, op: Op, case: Case) -> str | None:
        """Why MPI cannot run ``case`` on GPUs."""
        return why_not(op, case) or super().refuse(op, case)

    def conditions(self) -> DeviceConditions | None:
        """By NVML. The number there is that of the host: it tells of ranks that share a GPU, which MPI lets them."""
        return None if self._nvml is None else self._nvml.conditions()

    def barrier(self) -> None:
        """As on the host, once this rank's GPU has nothing left to do: MPI knows nothing of its streams."""
        with explained(self):
            torch.cuda.synchronize()
        super().barrier()


def why_not(op: Op, case: Case) -> str | None:
    """What a call that blocks the host cannot be timed as."""
    return first_reason(
        (case.mode == "graph", "MPI's calls block the host, so they cannot be captured in a graph"),
        (case.pre_enqueue, "MPI's calls block the host, so no stream can be held while they are handed over"),
        (case.mode == "overlap", "the computation is the host's and the data are on a GPU: neither disturbs the other"),
        (case.cache != "warm", f"{case.cache} buffers are sized by the caches of the host, and the data are on a GPU"),
        (case.algorithm is not None, "over send/recv the sums are a GPU's, for whose streams MPI's calls do not wait"),
        (op.local, f"{op.name} on a GPU does not block the host as MPI's calls do; backend nccl times it"),
    )
