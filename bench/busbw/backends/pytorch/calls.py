"""The calls of torch.distributed: every operation bound to its buffers, for any of its backends.

Whatever can be prepared is prepared before the function that is timed is returned. On a CPU that function returns when
this rank has finished; on a GPU it hands the work over, and the stream waits for what was posted, not the host.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from busbw.backends.base import Operation, Post, Wait, do_nothing
from busbw.backends.pytorch import checkpoint
from busbw.backends.pytorch.bound import ALL_GATHER, REDUCE_SCATTER, Bound
from busbw.backends.pytorch.training import WORKLOADS, descent, step
from busbw.backends.scheduled import Messages, Messaging
from busbw.ops.training import EXCHANGE


def _split(function: Callable[..., Any], *arguments: Any, **options: Any) -> Operation:  # noqa: ANN401 - torch's own
    """A collective of torch.distributed, at once or posted; whatever can be bound is bound before the first call."""
    # An option that is None is left out: torch's wrappers take a share of a µs for each keyword that they pass on.
    options = {name: value for name, value in options.items() if value is not None}
    start = partial(function, *arguments, **options, async_op=True)

    def post() -> Wait:
        work = start()
        return do_nothing if work is None else work.wait  # None: this rank is not in the group

    return Operation(partial(function, *arguments, **options), post)


def _all_to_all_v(bound: Bound) -> Operation:
    incoming = [row[bound.me] for row in bound.traffic]
    outgoing = list(bound.traffic[bound.me])
    return _split(dist.all_to_all_single, bound.receive, bound.send, incoming, outgoing, group=bound.process_group)


def _gather(bound: Bound) -> Operation:
    blocks = _blocks(bound.receive, bound) if bound.group[bound.me] == bound.root else None
    return _split(dist.gather, bound.send, blocks, dst=bound.root, group=bound.process_group)


def _scatter(bound: Bound) -> Operation:
    blocks = _blocks(bound.send, bound) if bound.group[bound.me] == bound.root else None
    return _split(dist.scatter, bound.receive, blocks, src=bound.root, group=bound.process_group)


def _blocks(buffer: torch.Tensor, bound: Bound) -> list[torch.Tensor]:
    return list(buffer.chunk(len(bound.group)))


def _barrier(bound: Bound) -> Operation:
    devices = [bound.send.device.index] if bound.send.is_cuda else None
    return _split(dist.barrier, group=bound.process_group, device_ids=devices)


def _send_recv(bound: Bound) -> Operation:
    """To the next rank of the group from the one before, which of two is the same one."""
    send, to = bound.send, bound.group[(bound.me + 1) % len(bound.group)]
    receive, source = bound.receive, bound.group[(bound.me - 1) % len(bound.group)]
    if send.is_cuda:
        return _exchange_in_one(send, to, receive, source)
    # The receive is posted first: Gloo's sender waits for the note that it is there.
    return _at_once(lambda: partial(_wait_for, (dist.irecv(receive, source), dist.isend(send, to))))


def _exchange_in_one(send: torch.Tensor, to: int, receive: torch.Tensor, source: int) -> Operation:
    """NCCL works off its calls one after the other: all ranks would receive first, and none would ever send."""
    both = [dist.P2POp(dist.irecv, receive, source), dist.P2POp(dist.isend, send, to)]
    return _at_once(lambda: partial(_wait_for, dist.batch_isend_irecv(both)))


def _at_once(post: Post) -> Operation:
    """What is posted and waited for."""

    def call() -> None:
        post()()

    return Operation(call, post)


def exchange_all(sends: Messages, receives: Messages) -> Messaging:
    """Several messages each way at once, for collectives over send/recv; on a GPU as ``_exchange_in_one`` says."""
    if any(buffer.is_cuda for _, buffer in (*sends, *receives)):
        every = [dist.P2POp(dist.irecv, buffer, source) for source, buffer in receives]
        every += [dist.P2POp(dist.isend, buffer, to) for to, buffer in sends]
        return Messaging(do_nothing, lambda: _wait_for(dist.batch_isend_irecv(every)))
    coming = [partial(dist.irecv, buffer, source) for source, buffer in receives]
    going = [partial(dist.isend, buffer, to) for to, buffer in sends]
    under_way: list[dist.Work | None] = []

    def expect() -> None:
        under_way[:] = [start() for start in coming]

    def finish() -> None:
        _wait_for([*under_way, *[start() for start in going]])

    return Messaging(expect, finish)


def _wait_for(works: Sequence[dist.Work | None]) -> None:
    for work in works:
        if work is not None:
            work.wait()


def _pair_uni(bound: Bound) -> Operation:
    answer = torch.zeros(1, dtype=bound.send.dtype, device=bound.send.device)
    return _there_and_back(bound, answer if bound.me else bound.send, bound.receive if bound.me else answer)


def _there_and_back(bound: Bound, outgoing: torch.Tensor, incoming: torch.Tensor) -> Operation:
    """The first of the two sends and then receives, the other one the other way round."""
    other = bound.group[1 - bound.me]

    def there() -> None:
        dist.send(outgoing, other)
        dist.recv(incoming, other)

    def back() -> None:
        dist.recv(incoming, other)
        dist.send(outgoing, other)

    return Operation(back if bound.me else there)


CALLS: dict[str, Callable[[Bound], Operation]] = {
    "all_reduce": lambda bound: _split(dist.all_reduce, bound.receive, bound.redop, group=bound.process_group),
    "all_gather": lambda bound: _split(ALL_GATHER, bound.receive, bound.send, group=bound.process_group),
    "reduce_scatter": lambda bound: _split(
        REDUCE_SCATTER, bound.receive, bound.send, bound.redop, group=bound.process_group
    ),
    "all_to_all": lambda bound: _split(dist.all_to_all_single, bound.receive, bound.send, group=bound.process_group),
    "all_to_all_v": _all_to_all_v,
    "broadcast": lambda bound: _split(dist.broadcast, bound.receive, bound.root, group=bound.process_group),
    # Also on the root the send buffer is the one that is reduced into: receive is a view of it.
    "reduce": lambda bound: _split(dist.reduce, bound.send, bound.root, bound.redop, group=bound.process_group),
    "gather": _gather,
    "scatter": _scatter,
    "barrier": _barrier,
    "send_recv": _send_recv,
    "ping_pong": lambda bound: _there_and_back(bound, bound.send, bound.receive),
    "pair_uni": _pair_uni,
    "pair_bidir": _send_recv,
    "pair_matrix": _pair_uni,
    "checkpoint_save": checkpoint.bind,
    EXCHANGE: descent.bind,
    **{name: partial(step.bind, make=make) for name, make in WORKLOADS.items()},
}
