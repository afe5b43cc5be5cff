"""torch.distributed calls: every operation bound to its buffers, for any of its backends.

As much as possible is prepared before the timed function is returned. On a CPU, that function returns when this rank
has finished. On a GPU it enqueues the work, and waits block the stream, not the host.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from busbw.backends.base import Bound, Operation, Post, Wait, do_nothing
from busbw.backends.pytorch import checkpoint
from busbw.backends.pytorch.names import ALL_GATHER, REDUCE_SCATTER, REDUCTIONS
from busbw.backends.pytorch.training import WORKLOADS, descent, step
from busbw.backends.scheduled import Messages, Messaging, in_both_directions
from busbw.ops.training import EXCHANGE


def _split(function: Callable[..., Any], *arguments: Any, **options: Any) -> Operation:  # noqa: ANN401 - torch's own
    """Bind a collective of torch.distributed, blocking and nonblocking, with all arguments bound in advance."""
    # Options that are None are left out, because torch's wrappers need a fraction of a µs for each keyword.
    options = {name: value for name, value in options.items() if value is not None}
    start = partial(function, *arguments, **options, async_op=True)

    def post() -> Wait:
        work = start()
        return do_nothing if work is None else work.wait  # None if this rank is not in the group

    return Operation(partial(function, *arguments, **options), post)


def _all_to_all_v(bound: Bound) -> Operation:
    incoming = [row[bound.me] for row in bound.traffic]
    outgoing = list(bound.traffic[bound.me])
    return _split(dist.all_to_all_single, bound.receive, bound.send, incoming, outgoing, group=bound.comm)


def _gather(bound: Bound) -> Operation:
    blocks = _blocks(bound.receive, bound) if bound.me == bound.root else None
    return _split(dist.gather, bound.send, blocks, dst=bound.group[bound.root], group=bound.comm)


def _scatter(bound: Bound) -> Operation:
    blocks = _blocks(bound.send, bound) if bound.me == bound.root else None
    return _split(dist.scatter, bound.receive, blocks, src=bound.group[bound.root], group=bound.comm)


def _blocks(buffer: torch.Tensor, bound: Bound) -> list[torch.Tensor]:
    return list(buffer.chunk(len(bound.group)))


def _barrier(bound: Bound) -> Operation:
    devices = [bound.send.device.index] if bound.send.is_cuda else None
    return _split(dist.barrier, group=bound.comm, device_ids=devices)


def _send_recv(bound: Bound) -> Operation:
    """Bind a send to the next rank of the group and a receive from the previous one (of two, the same rank)."""
    send, to = bound.send, bound.group[(bound.me + 1) % len(bound.group)]
    receive, source = bound.receive, bound.group[(bound.me - 1) % len(bound.group)]
    if send.is_cuda:
        # As one NCCL group; in separate calls, all ranks would receive first and none would send.
        both = [dist.P2POp(dist.irecv, receive, source), dist.P2POp(dist.isend, send, to)]
        return _at_once(lambda: partial(_wait_for, dist.batch_isend_irecv(both)))
    # The receive is posted first, because Gloo's sender waits for it.
    return _at_once(lambda: partial(_wait_for, (dist.irecv(receive, source), dist.isend(send, to))))


def _at_once(post: Post) -> Operation:
    """Bind an operation from its nonblocking form."""

    def call() -> None:
        post()()

    return Operation(call, post)


def exchange_all(sends: Messages, receives: Messages) -> Messaging:
    """Concurrent messages in both directions, for collectives over send/recv; on a GPU as one NCCL group."""
    if any(buffer.is_cuda for _, buffer in (*sends, *receives)):
        every = [dist.P2POp(dist.irecv, buffer, source) for source, buffer in receives]
        every += [dist.P2POp(dist.isend, buffer, to) for to, buffer in sends]
        return Messaging(do_nothing, lambda: _wait_for(dist.batch_isend_irecv(every)))
    coming = [partial(dist.irecv, buffer, source) for source, buffer in receives]
    going = [partial(dist.isend, buffer, to) for to, buffer in sends]
    return in_both_directions(coming, going, _wait_for)


def _wait_for(works: Sequence[dist.Work | None]) -> None:
    for work in works:
        if work is not None:
            work.wait()


def _pair_uni(bound: Bound) -> Operation:
    answer = torch.zeros(1, dtype=bound.send.dtype, device=bound.send.device)
    return _there_and_back(bound, answer if bound.me else bound.send, bound.receive if bound.me else answer)


def _there_and_back(bound: Bound, outgoing: torch.Tensor, incoming: torch.Tensor) -> Operation:
    """Bind a round trip: the first rank sends and then receives, the second receives and then sends."""
    other = bound.group[1 - bound.me]
    send = _message(dist.send, dist.isend, outgoing, other)
    receive = _message(dist.recv, dist.irecv, incoming, other)

    def there() -> None:
        send()
        receive()

    def back() -> None:
        receive()
        send()

    return Operation(back if bound.me else there)


def _message(
    call: Callable[..., object], start: Callable[..., object], buffer: torch.Tensor, other: int
) -> Callable[[], object]:
    """A message to or from rank ``other`` that is waited for: ``call``, or on a GPU a batch of one ``start``.

    A batch uses the communicator of all ranks; NCCL would make one more for each pair that sends or receives alone.
    """
    if buffer.is_cuda:
        batch = [dist.P2POp(start, buffer, other)]
        return lambda: _wait_for(dist.batch_isend_irecv(batch))
    return partial(call, buffer, other)


CALLS: dict[str, Callable[[Bound], Operation]] = {
    "all_reduce": lambda bound: _split(dist.all_reduce, bound.receive, REDUCTIONS[bound.redop], group=bound.comm),
    "all_gather": lambda bound: _split(ALL_GATHER, bound.receive, bound.send, group=bound.comm),
    "reduce_scatter": lambda bound: _split(
        REDUCE_SCATTER, bound.receive, bound.send, REDUCTIONS[bound.redop], group=bound.comm
    ),
    "all_to_all": lambda bound: _split(dist.all_to_all_single, bound.receive, bound.send, group=bound.comm),
    "all_to_all_v": _all_to_all_v,
    "broadcast": lambda bound: _split(dist.broadcast, bound.receive, bound.group[bound.root], group=bound.comm),
    # torch reduces into the send buffer, on the root too: receive is a view of it.
    "reduce": lambda bound: _split(
        dist.reduce, bound.send, bound.group[bound.root], REDUCTIONS[bound.redop], group=bound.comm
    ),
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
