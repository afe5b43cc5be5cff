"""Visibility and peer access between GPUs, shared by all ranks once, so that all refuse the same pairs.

A copy from one GPU to another is made by one process, which must see both. torch enables peer access wherever it is
possible, and cannot disable it (ATen/cuda/PeerToPeerAccess.cpp, torch 2.13).
"""

from collections.abc import Sequence
from itertools import permutations

import torch

from busbw.backends.cuda import CudaDevice, uuid_at
from busbw.ops.base import Op
from busbw.ops.groups import split_world
from busbw.runs.records import Case, Record
from busbw.units import counted

_STAGED_COPY, _DRIVER_COPY = "peer_copy_staged", "peer_copy_driver"


class View(Record, frozen=True, kw_only=True):
    """GPUs that one rank's process sees.

    host: name of its host.
    gpu: UUID of its own GPU (None: unknown).
    names: UUID of each visible GPU → its name in this process, such as ``cuda:1``.
    access: UUIDs of the GPUs to which its own has peer access.
    """

    host: str
    gpu: str | None
    names: dict[str, str]
    access: tuple[str, ...]


def view(host: str, own: CudaDevice) -> View:
    """The view of this process."""
    uuids = {index: uuid for index in range(torch.cuda.device_count()) if (uuid := uuid_at(index)) is not None}
    access = tuple(
        uuid
        for index, uuid in uuids.items()
        if index != own.index and torch.cuda.can_device_access_peer(own.index, index)
    )
    return View(host=host, gpu=own.uuid, names={uuid: f"cuda:{index}" for index, uuid in uuids.items()}, access=access)


def name_of(views: Sequence[View], rank: int, peer: int) -> str | None:
    """Name of the GPU of rank ``peer`` in the process of ``rank``; None if that process does not see it."""
    gpu = views[peer].gpu
    return None if gpu is None or views[rank].host != views[peer].host else views[rank].names.get(gpu)


def why_no_pairs(op: Op, case: Case, views: Sequence[View]) -> str | None:
    """Reason why the GPUs of a group cannot copy to each other, or None; the same on every rank."""
    pairs = (pair for group in split_world(case.group, case.ranks) for pair in permutations(group, 2))
    return next((reason for pair in pairs if (reason := _why_not(op, *pair, views)) is not None), None)


def _why_not(op: Op, source: int, target: int, views: Sequence[View]) -> str | None:
    source_view, target_view = views[source], views[target]
    if source_view.host != target_view.host:
        return (
            f"ranks {source} and {target} are on different hosts, but peer copies are within a host; use one group per "
            "host (groups div:N with N ranks per host)"
        )
    if target_view.gpu is None:
        return f"torch does not report the UUID of the GPU of rank {target}, so rank {source} cannot find it"
    if target_view.gpu not in source_view.names:
        return (
            f"rank {source} sees only {counted(len(source_view.names), 'GPU')} and not that of rank {target}; show all "
            "GPUs to every rank (no --gpus-per-task, no --gpu-bind, no CUDA_VISIBLE_DEVICES per rank)"
        )
    if op.name == _STAGED_COPY or (target_view.gpu in source_view.access) == (op.name != _DRIVER_COPY):
        return None
    if op.name == _DRIVER_COPY:
        return f"the GPU of rank {source} has peer access to that of rank {target}; use peer_copy instead"
    return (
        f"the GPU of rank {source} has no peer access to that of rank {target}; use {_DRIVER_COPY} or "
        f"{_STAGED_COPY} instead"
    )
