"""Which GPUs a rank's process can copy to: what the ranks tell each other once, so that all refuse a pair alike.

A copy from one GPU to another is made by one process, which must see both. torch enables peer access by itself wherever
it is possible, and has nothing that would switch it off (ATen/cuda/PeerToPeerAccess.cpp, torch 2.13).
"""

from collections.abc import Sequence
from itertools import permutations

import msgspec
import torch

from busbw.backends.cuda import CudaDevice, uuid_at
from busbw.ops.base import Op
from busbw.ops.groups import split_world
from busbw.runs.records import Case, Record

_THROUGH_THE_HOST, _BY_THE_DRIVER = "peer_copy_staged", "peer_copy_driver"


class View(Record, frozen=True, kw_only=True):
    """What one rank's process sees: its ``host``, the UUID of its own ``gpu`` (None: not told), every GPU that it sees
    by its UUID with the name that it has here (``cuda:1``), and the UUIDs of those to which there is peer access.
    """

    host: str
    gpu: str | None
    names: dict[str, str]
    access: tuple[str, ...]

    def told(self) -> str:
        """As text for the other ranks."""
        return msgspec.json.encode(self).decode()


def heard(text: str) -> View:
    """What another rank has told."""
    return msgspec.json.decode(text, type=View)


def view(host: str, own: CudaDevice) -> View:
    """What this process sees."""
    uuids = {index: uuid for index in range(torch.cuda.device_count()) if (uuid := uuid_at(index)) is not None}
    access = tuple(
        uuid
        for index, uuid in uuids.items()
        if index != own.index and torch.cuda.can_device_access_peer(own.index, index)
    )
    return View(host=host, gpu=own.uuid, names={uuid: f"cuda:{index}" for index, uuid in uuids.items()}, access=access)


def name_of(views: Sequence[View], rank: int, peer: int) -> str | None:
    """What the process of ``rank`` calls the GPU of rank ``peer``; None when it does not see it."""
    gpu = views[peer].gpu
    return None if gpu is None or views[rank].host != views[peer].host else views[rank].names.get(gpu)


def why_no_pairs(op: Op, case: Case, views: Sequence[View]) -> str | None:
    """Why the GPUs of a group cannot copy to each other; the same on every rank."""
    pairs = (pair for group in split_world(case.group, case.ranks) for pair in permutations(group, 2))
    return next((reason for pair in pairs if (reason := _why_not(op, *pair, views)) is not None), None)


def _why_not(op: Op, source: int, target: int, views: Sequence[View]) -> str | None:
    one, other = views[source], views[target]
    if one.host != other.host:
        return (
            f"ranks {source} and {target} are on two hosts, and a GPU copies to those of its own: let every host be a "
            "group (div:N with N ranks a host)"
        )
    if other.gpu is None:
        return f"torch does not tell the UUID of the GPU of rank {target}, so that rank {source} cannot find it"
    if other.gpu not in one.names:
        return (
            f"rank {source} does not see the GPU of rank {target}, but only {len(one.names)}: whoever copies must see "
            "both (no --gpus-per-task, --gpu-bind or CUDA_VISIBLE_DEVICES of its own for every rank)"
        )
    if op.name == _THROUGH_THE_HOST or (other.gpu in one.access) == (op.name != _BY_THE_DRIVER):
        return None
    if op.name == _BY_THE_DRIVER:
        return f"the GPU of rank {source} has peer access to that of rank {target}: a copy is peer_copy"
    return (
        f"the GPU of rank {source} has no peer access to that of rank {target}; {_BY_THE_DRIVER} and "
        f"{_THROUGH_THE_HOST} measure the ways that are left"
    )
