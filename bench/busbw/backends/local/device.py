"""Copies between a GPU and the host, and between GPUs: through torch, on the stream that has the marks.

torch copies buffers of one type with ``cudaMemcpyAsync`` on the source's current stream (from the host: the target's;
ATen/native/cuda/Copy.cu, torch 2.13). With ``non_blocking`` the host does not wait if its memory is pinned. Pageable
memory is staged by the host, which is busy meanwhile (CUDA Runtime API, "API synchronization behavior"). The marks
include that time, because every such copy costs it.

Copies between GPUs are made by copy engines too, unless the two tensors differ in the bit by which torch remembers a
negation (``_neg_view``): then a kernel on the source's GPU reads its memory, negates it, and writes that of its peer.
"""

import mmap
from contextlib import ExitStack
from functools import partial

import torch

from busbw.backends.base import ALONE, Bound, Limits, Local, Operation, do_nothing, in_order
from busbw.backends.patterns import count_wrong, fill, pattern, poison
from busbw.errors import BackendError
from busbw.ops.base import Span, first_reason
from busbw.ops.settings import host_settings
from busbw.runs.records import Case
from busbw.system import numa
from busbw.system.device import Device

_SEED = 2
"""Seed of the data in the opposite direction; different from that of the case."""


def host_memory(like: torch.Tensor, *, pinned: bool) -> torch.Tensor:
    """Allocate a zeroed host buffer of the size of ``like``, with first touch by this process.

    Raises BackendError if that fails.
    """
    if pinned:
        # torch keeps pinned memory of earlier blocks, rounded up to powers of two, for ever.
        getattr(torch._C, "_host_emptyCache", do_nothing)()  # noqa: SLF001 - as torch.cuda.graph does; older versions lack it
    try:
        return torch.empty(len(like), dtype=like.dtype, pin_memory=pinned).zero_()
    except RuntimeError as error:
        kind = "pinned" if pinned else "pageable"
        raise BackendError(f"cannot allocate {len(like) * like.itemsize} B of {kind} host memory: {error}") from error


def _pinned(case: Case) -> bool:
    return case.op == "host_and_device" or host_settings(case.settings).pinning == "pinned"


def _host_buffer(case: Case, like: torch.Tensor, held: ExitStack) -> torch.Tensor:
    """Allocate a zeroed host buffer with the pinning and NUMA node of the case. Raises BackendError.

    torch reuses pinned memory on any node, so memory for a particular node is allocated and pinned here; ``held`` gets
    the call that unpins it.
    """
    node = host_settings(case.settings).numa_node
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
            held.callback(lambda: torch.cuda.check_error(cudart.cudaHostUnregister(buffer.data_ptr())))
    except (OSError, ValueError, RuntimeError) as error:
        raise BackendError(f"cannot allocate {size} B of host memory on NUMA node {node}: {error}") from error
    return buffer


def _device_of(bound: Bound) -> Device:
    if bound.device is None:
        raise BackendError(f"{bound.case.op} needs a device, but the backend has none")
    return bound.device


def _copies(target: torch.Tensor, source: torch.Tensor) -> partial[torch.Tensor]:
    return partial(target.copy_, source, non_blocking=True)


def _one_way(bound: Bound, *, to_host: bool) -> Operation:
    like = bound.receive if to_host else bound.send
    with ExitStack() as held:
        host = _host_buffer(bound.case, like, held)
        source, target = (bound.send, host) if to_host else (host, bound.receive)
        return Operation(_copies(target, source), buffers=(source, target), free=held.pop_all().close)


def _host_and_device(bound: Bound) -> Operation:
    """Bind concurrent copies: the case's buffers to the host, and separate data, checked here, to the device."""
    with ExitStack() as held:
        source, target = (_host_buffer(bound.case, like, held) for like in (bound.send, bound.receive))
        arriving, dtype = torch.empty_like(bound.receive), bound.case.dtype or "uint8"
        made_of, spans = pattern(1, dtype, None, _SEED), (Span(len(source), 0),)
        fill(source, spans, made_of)
        poison(arriving, None)
        both = _device_of(bound).together(_copies(arriving, source), _copies(target, bound.send))

        def wrong() -> int:
            count = count_wrong(arriving, spans, made_of) + int((target != bound.send.cpu()).sum())
            poison(arriving, None)  # so that the next check covers only later copies
            return count

        return Operation(both, buffers=(bound.send, target), wrong=wrong, free=held.pop_all().close)


def _why_not(case: Case) -> str | None:
    pageable = host_settings(case.settings).pinning != "pinned"
    return first_reason(
        (
            pageable and case.op == "host_and_device",
            "the host stages copies of pageable memory, so it cannot copy in both directions concurrently",
        ),
        (
            pageable and (case.pre_enqueue or case.mode == "graph"),
            "the host stages copies of pageable memory, so they can be neither captured nor pre-enqueued",
        ),
    )


# --- from GPU to GPU ---------------------------------------------------------------------------------------------


def _memory_of(bound: Bound, rank: int) -> torch.Tensor:
    """A zeroed buffer like the case's on the GPU of ``rank`` of the group. Raises BackendError."""
    peer = bound.peers[rank] if bound.peers else None
    if peer is None:
        raise BackendError(f"{bound.case.op}: this process does not see the target GPU")
    return torch.empty_like(bound.receive, device=peer).zero_()


def _one_to_all(bound: Bound) -> Operation:
    if not len(bound.send):
        return Operation(do_nothing)  # the root copies
    targets = [_memory_of(bound, rank) for rank in range(len(bound.peers)) if rank != bound.me]
    call = _device_of(bound).together(*(_copies(target, bound.send) for target in targets))

    def wrong() -> int:
        source = bound.send.cpu()
        count = sum(int((target.cpu() != source).sum()) for target in targets)
        for target in targets:
            poison(target, None)  # so that the next check covers only later copies
        return count

    return Operation(call, buffers=(bound.send, targets[0]), wrong=wrong)


def _peer_copy(bound: Bound, *, kernel: bool = False, staged: bool = False) -> Operation:
    if not len(bound.send):
        return Operation(do_nothing)  # another rank copies
    target = _memory_of(bound, 1 - bound.me if bound.case.root is None else bound.root)
    if kernel:
        target = torch._neg_view(target)  # noqa: SLF001 - it holds the negative, and reads as what was copied
    if not staged:
        return Operation(_copies(target, bound.send), buffers=(bound.send, target))
    between = host_memory(bound.send, pinned=True)
    down = _copies(between, bound.send)
    # The second copy is on a stream of the other GPU; it must wait for the first, and the last mark for the second.
    up = _device_of(bound).on_other(str(target.device), _copies(target, between))
    return Operation(in_order(down, up), buffers=(bound.send, target))


_HOST = Limits(modes=ALONE, pre_enqueue=True)
_PEER = Limits(modes=("isolated", "barriers", "pipelined"), caches=("warm",))
"""A copy to another GPU waits for a stream there, which is not under this rank's control, nor are its caches."""

OPERATIONS: dict[str, Local] = {
    "host_to_device": Local(partial(_one_way, to_host=False), _HOST, _why_not),
    "device_to_host": Local(partial(_one_way, to_host=True), _HOST, _why_not),
    "host_and_device": Local(_host_and_device, _HOST, _why_not),
    "peer_copy": Local(_peer_copy, _PEER),
    "peer_copy_both": Local(_peer_copy, _PEER),
    "peer_copy_sm": Local(partial(_peer_copy, kernel=True), _PEER),
    "peer_copy_driver": Local(_peer_copy, _PEER),  # the same call; without peer access the driver stages it
    "peer_copy_staged": Local(partial(_peer_copy, staged=True), _PEER),
    "peer_all_to_one": Local(_peer_copy, _PEER),
    "peer_one_to_all": Local(_one_to_all, _PEER),
}
