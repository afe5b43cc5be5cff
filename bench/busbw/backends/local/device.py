"""Copies between a GPU and the host, and between GPUs: through torch, on the stream that the marks are put in.

torch hands a copy between buffers of one type to ``cudaMemcpyAsync`` on the source's current stream (the target's, from
the host; ATen/native/cuda/Copy.cu, torch 2.13). ``non_blocking``: the host need not wait. With pinned memory it does
not; pageable memory it has to stage itself and is busy as long as that takes (CUDA Runtime API, "API synchronization
behavior"): the marks then time that, too, as it is in the way of everybody who copies so.
"""

import mmap
from contextlib import ExitStack
from functools import partial

import torch

from busbw.backends.base import Operation, do_nothing
from busbw.backends.local.base import Bound, Local
from busbw.backends.patterns import count_wrong, fill, pattern, poison
from busbw.errors import BackendError
from busbw.ops.base import Span, first_reason
from busbw.runs.records import Case
from busbw.system import numa
from busbw.system.device import Device

_SEED = 2
"""Of the data that go against those of the case: any seed of their own."""


def host_memory(like: torch.Tensor, *, pinned: bool) -> torch.Tensor:
    """A zeroed buffer of the host, as long as ``like``; its pages are touched first by this process, so they are where
    it runs. Raises BackendError when it cannot be had.
    """
    try:
        return torch.empty(len(like), dtype=like.dtype, pin_memory=pinned).zero_()
    except RuntimeError as error:
        kind = "pinned" if pinned else "pageable"
        raise BackendError(
            f"{len(like) * like.itemsize} B of {kind} memory of the host cannot be had: {error}"
        ) from error


def _pinned(case: Case) -> bool:
    return case.op == "host_and_device" or case.pinning == "pinned"


def _of_the_host(case: Case, like: torch.Tensor, held: ExitStack) -> torch.Tensor:
    """A zeroed buffer of the host as the case wants it. torch keeps pinned memory for whoever wants some next, wherever
    it lies: what has to be on a node is fresh pages, which are pinned here; what unpins them is left with ``held``.
    Raises BackendError.
    """
    node = case.numa_node
    if node is None:
        return host_memory(like, pinned=_pinned(case))
    size = max(1, len(like) * like.itemsize)
    try:
        region = mmap.mmap(-1, size)
        buffer = torch.frombuffer(region, dtype=like.dtype, count=len(like))
        numa.bind(buffer.data_ptr(), size, node)
        buffer.zero_()
        if _pinned(case):
            cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            torch.cuda.check_error(cudart.cudaHostRegister(buffer.data_ptr(), size, 0))
            held.callback(_unpin, buffer)
    except (OSError, ValueError, RuntimeError) as error:
        raise BackendError(f"{size} B of memory of the host on NUMA node {node} cannot be had: {error}") from error
    return buffer


def _unpin(buffer: torch.Tensor) -> None:
    """Pages that were pinned here go back to the system only after that."""
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(cudart.cudaHostUnregister(buffer.data_ptr()))


def _device_of(bound: Bound) -> Device:
    if bound.device is None:
        raise BackendError(f"{bound.case.op} needs a device, and the backend drives none")
    return bound.device


def _copies(target: torch.Tensor, source: torch.Tensor) -> partial[torch.Tensor]:
    return partial(target.copy_, source, non_blocking=True)


def _one_way(bound: Bound, *, to_host: bool) -> Operation:
    like = bound.receive if to_host else bound.send
    with ExitStack() as held:
        host = _of_the_host(bound.case, like, held)
        source, target = (bound.send, host) if to_host else (host, bound.receive)
        return Operation(_copies(target, source), buffers=(source, target), free=held.pop_all().close)


def _host_and_device(bound: Bound) -> Operation:
    """The buffers of the case go to the host; against them go data of their own, which are checked here."""
    with ExitStack() as held:
        source, target = (_of_the_host(bound.case, like, held) for like in (bound.send, bound.receive))
        arriving, dtype = torch.empty_like(bound.receive), bound.case.dtype or "uint8"
        made_of, spans = pattern(1, dtype, None, _SEED), (Span(len(source), 0),)
        fill(source, spans, made_of)
        poison(arriving, None)
        both = _device_of(bound).together(_copies(arriving, source), _copies(target, bound.send))

        def wrong() -> int:
            found = count_wrong(arriving, spans, made_of) + int((target != bound.send.cpu()).sum())
            poison(arriving, None)  # so that the next count is of what was copied since
            return found

        return Operation(both, buffers=(bound.send, target), wrong=wrong, free=held.pop_all().close)


def _refuse_parts(case: Case) -> str | None:
    return first_reason(
        (case.mode == "persistent", f"{case.op} is nothing that could be prepared"),
        (case.mode == "overlap", f"{case.op} is one step, which cannot be posted first and waited for later"),
    )


def _refuse(case: Case) -> str | None:
    pageable = case.pinning != "pinned"
    return _refuse_parts(case) or first_reason(
        (
            pageable and case.op == "host_and_device",
            "the host stages a copy of pageable memory itself, so it cannot have both directions under way",
        ),
        (
            pageable and (case.pre_enqueue or case.mode == "graph"),
            "the host stages a copy of pageable memory itself, so it can be neither captured nor handed over ahead",
        ),
    )


# --- from GPU to GPU ---------------------------------------------------------------------------------------------


def _on_peer(bound: Bound) -> torch.Tensor:
    """The memory of the other GPU that is copied to, by this process. Raises BackendError when it cannot be had."""
    if bound.peer is None:
        raise BackendError(f"{bound.case.op}: this process does not see the GPU that it is to copy to")
    try:
        return torch.empty_like(bound.receive, device=bound.peer).zero_()
    except RuntimeError as error:
        raise BackendError(f"memory of {bound.peer} cannot be had: {error}") from error


def _peer_copy(bound: Bound, *, staged: bool = False) -> Operation:
    if not len(bound.send):
        return Operation(do_nothing)  # the other rank of the pair copies
    target = _on_peer(bound)
    if not staged:
        return Operation(_copies(target, bound.send), buffers=(bound.send, target))
    between = host_memory(bound.send, pinned=True)
    down = _copies(between, bound.send)
    # The second half is on a stream of the other GPU, which has to wait for the first, and the marks for the second.
    up = _device_of(bound).on_other(str(target.device), _copies(target, between))

    def both() -> None:
        down()
        up()

    return Operation(both, buffers=(bound.send, target))


def _refuse_peer(case: Case) -> str | None:
    """Besides what any copy is refused for: the other rank's own stream, and its GPU, are not this process's."""
    return _refuse_parts(case) or first_reason(
        (case.mode == "graph", "a copy to another GPU waits for a stream there, which is not part of the capture"),
        (
            case.pre_enqueue,
            "the GPU that is copied to would be blocked by the rank that lends it: the copy would wait",
        ),
        (case.cache != "warm", "the buffers are on two GPUs, of whose caches only one would be treated so"),
    )


OPERATIONS: dict[str, Local] = {
    "host_to_device": Local(partial(_one_way, to_host=False), _refuse),
    "device_to_host": Local(partial(_one_way, to_host=True), _refuse),
    "host_and_device": Local(_host_and_device, _refuse),
    "peer_copy": Local(_peer_copy, _refuse_peer),
    "peer_copy_both": Local(_peer_copy, _refuse_peer),
    "peer_copy_driver": Local(_peer_copy, _refuse_peer),  # the same call; without access the driver finds a way
    "peer_copy_staged": Local(partial(_peer_copy, staged=True), _refuse_peer),
}
