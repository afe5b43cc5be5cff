"""NCCL through torch.distributed: CUDA tensors, one GPU per rank, and all control traffic over Gloo on the hosts."""

import socket
from collections.abc import Sequence

import msgspec
import torch
import torch.distributed as dist

from busbw.backends.base import World, records_of_every_rank
from busbw.backends.cuda import CudaDevice
from busbw.backends.patterns import TORCH_DTYPES
from busbw.backends.pytorch import peer_access
from busbw.backends.pytorch.backend import TorchBackend
from busbw.backends.side_channel import first_line
from busbw.errors import BackendError, LaunchError
from busbw.ops.base import Op
from busbw.ops.groups import Ranks, split_world
from busbw.runs.facts import HostFacts, NcclFacts
from busbw.runs.records import Case


class NcclBackend(TorchBackend):
    """CUDA tensors over NCCL. Raises LaunchError if this rank does not have its own GPU."""

    def __init__(self, world: World) -> None:
        count = torch.cuda.device_count()
        if not dist.is_nccl_available() or not count:
            lacks = "torch was built without NCCL" if count else "torch sees no CUDA device"
            raise LaunchError(f"rank {world.rank} cannot use NCCL: {lacks}")
        try:
            # If the launcher shows each rank only its own GPU, every rank calls it number 0.
            self._gpu = CudaDevice(0 if count == 1 else world.local_rank % count)
        except RuntimeError as error:
            raise LaunchError(f"rank {world.rank} cannot use its GPU: {first_line(error)}") from error
        super().__init__(world, "nccl", self._gpu)
        try:
            problem = shared_gpu(self.share(socket.gethostname()), self.share(identity_of(self._gpu)))
            if problem is not None:
                raise LaunchError(problem)
            seen = peer_access.view(socket.gethostname(), self._gpu)
            self._views = tuple(records_of_every_rank(self, seen, peer_access.View))
            # A collective of all ranks first: the first call must not be point-to-point (batch_isend_irecv).
            dist.all_reduce(torch.zeros(1, device=self._gpu.name))
            self._gpu.synchronise()
        except (RuntimeError, BackendError) as error:
            raise LaunchError(
                f"rank {world.rank} of {world.size} could not connect over NCCL: {first_line(error)}"
            ) from error

    def refuse(self, op: Op, case: Case) -> str | None:
        """Reason why NCCL cannot run ``case``, or None."""
        no_pairs = peer_access.why_no_pairs(op, case, self._views) if op.local and op.members == "pairs" else None
        return no_pairs or why_not(op, case) or super().refuse(op, case)

    def peer_in(self, group: Ranks) -> str | None:
        """Name of the GPU of a pair's other rank in this process."""
        others = [rank for rank in group if rank != self.rank]
        return peer_access.name_of(self._views, self.rank, others[0]) if len(others) == 1 else None


def with_facts(host: HostFacts) -> HostFacts:
    """``host`` with the facts of NCCL; reading them creates no CUDA context."""
    version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call] # as torch has it
    return msgspec.structs.replace(host, nccl=NcclFacts(version=version))


def why_not(op: Op, case: Case) -> str | None:
    """Reason why NCCL cannot run ``case``, or its data could not be verified; None otherwise."""
    # ProcessGroupNCCL's barrier blocks the host.
    if op.name == "barrier" and (case.pre_enqueue or case.mode == "graph"):
        how = "pre-enqueued" if case.pre_enqueue else "captured in a graph"
        return f"torch's NCCL {op.name} blocks the host, so it cannot be {how}"
    if case.redop == "avg" and case.dtype is not None and TORCH_DTYPES[case.dtype].is_floating_point:
        uneven = sorted({len(group) for group in split_world(case.group, case.ranks) if len(group).bit_count() != 1})
        if uneven:
            return (
                f"NCCL averages {case.dtype} by multiplying with 1/n first, which is exact only for powers of two; "
                f"groups here have {', '.join(map(str, uneven))} ranks"
            )
    return None


def identity_of(gpu: CudaDevice) -> str:
    """A unique name of ``gpu`` on its host; not its index, which is 0 in every process that sees only one."""
    return gpu.uuid or gpu.address or ""


def shared_gpu(hosts: Sequence[str], gpus_of_ranks: Sequence[str]) -> str | None:
    """Error message if two ranks share a GPU, or None; host and ``identity_of`` the GPU of every rank.

    GPUs without a unique name are left to NCCL, which itself refuses duplicates.
    """
    places = list(zip(hosts, gpus_of_ranks, strict=True))
    for rank, (host, gpu) in enumerate(places):
        first = places.index((host, gpu))
        if gpu and first != rank:
            gpus = len({place for place in places if place[0] == host})
            return (
                f"ranks {first} and {rank} share one GPU ({gpu} on host {host}), but NCCL needs one GPU per rank; the "
                f"ranks of this host use {gpus}: start at most that many"
            )
    return None
