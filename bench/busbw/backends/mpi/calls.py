"""MPI calls: every operation bound to its buffers, with mpi4py's uppercase methods.

Buffer specifications (memory, count, type) are made once. The timed call is one bound method of a communicator, without
pickling, lookups or Python wrappers; for the compiled loop it is the same C function. Blocking calls are timed as
such, not as a post and a wait. In mode persistent the library prepares the call once.
"""

from collections.abc import Callable
from functools import partial
from itertools import accumulate

import torch

from busbw.backends.base import Bound, Operation, Wait
from busbw.backends.mpi.native import MPI, Spec, Steps
from busbw.backends.scheduled import Messages, Messaging

REDUCTIONS: dict[str, MPI.Op] = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX, "product": MPI.PROD}

TYPES: dict[str, MPI.Datatype] = {
    "float32": MPI.FLOAT,
    "float64": MPI.DOUBLE,
    "int8": MPI.INT8_T,
    "uint8": MPI.UINT8_T,
    "int32": MPI.INT32_T,
    "int64": MPI.INT64_T,
    # The standard has no 16-bit floats (MPI 4.1, 3.2.2): they are moved as integers of the same size.
    "float16": MPI.UINT16_T,
    "bfloat16": MPI.UINT16_T,
}

MOVED_ONLY = {"float16", "bfloat16"}
"""Types that MPI can move but not reduce."""

PREPARED = {
    "all_reduce": "MPI_Allreduce_init",
    "all_gather": "MPI_Allgather_init",
    "reduce_scatter": "MPI_Reduce_scatter_block_init",
    "all_to_all": "MPI_Alltoall_init",
    "all_to_all_v": "MPI_Alltoallv_init",
    "broadcast": "MPI_Bcast_init",
    "reduce": "MPI_Reduce_init",
    "gather": "MPI_Gather_init",
    "scatter": "MPI_Scatter_init",
    "barrier": "MPI_Barrier_init",
}
"""Functions that create persistent collectives, since MPI 4. Every version has persistent point-to-point messages."""

_TAG = 0


def specification(buffer: torch.Tensor, dtype: str | None, blocks: int = 1) -> Spec:
    """mpi4py's specification of ``buffer``; its count is the size of one of ``blocks`` equal blocks."""
    memory = (
        MPI.buffer.fromaddress(buffer.data_ptr(), buffer.nbytes)
        if buffer.is_cuda
        else MPI.buffer.frombuffer(buffer.view(torch.uint8).numpy())  # as bytes: numpy has no bfloat16
    )
    return memory, len(buffer) // blocks, TYPES[dtype or "uint8"]


def _sending(bound: Bound) -> Spec:
    return specification(bound.send, bound.case.dtype)


def _receiving(bound: Bound) -> Spec:
    return specification(bound.receive, bound.case.dtype)


def _blocks(bound: Bound, buffer: torch.Tensor) -> Spec:
    """``buffer`` with one block per rank."""
    return specification(buffer, bound.case.dtype, len(bound.group))


def _source(bound: Bound) -> "Spec | MPI.InPlaceType":
    """The send buffer of a collective, or MPI.IN_PLACE if the case is in place."""
    return MPI.IN_PLACE if bound.case.in_place else _sending(bound)


def _spread(bound: Bound, buffer: torch.Tensor, counts: list[int]) -> Spec:
    """``buffer`` as consecutive blocks of ``counts`` elements."""
    memory, _, datatype = specification(buffer, bound.case.dtype)
    return memory, (counts, list(accumulate(counts[:-1], initial=0))), datatype


def _collective(bound: Bound, name: str, *arguments: object) -> Operation:
    """Bind the collective of mpi4py's method ``name``: blocking and nonblocking, or persistent."""
    comm = bound.comm
    if bound.case.mode == "persistent":
        return _prepared([getattr(comm, f"{name}_init")(*arguments)])
    start = partial(getattr(comm, f"I{name.lower()}"), *arguments)

    def post() -> Wait:
        wait: Wait = start().Wait
        return wait

    steps = Steps()
    steps.collective(name, comm, arguments)
    return Operation(partial(getattr(comm, name), *arguments), post, steps.native())


def _prepared(*turns: list[MPI.Prequest]) -> Operation:
    """Bind persistent requests: for each turn in order, start all its requests and wait for them."""
    steps = Steps()
    for requests in turns:
        steps.turn(requests)

    def call() -> None:
        for requests in turns:
            MPI.Prequest.Startall(requests)
            MPI.Request.Waitall(requests)

    def call_one() -> None:
        start()
        wait()

    def free() -> None:
        for requests in turns:
            for request in requests:
                request.Free()

    start, wait = turns[0][0].Start, turns[0][0].Wait
    alone = len(turns) == len(turns[0]) == 1
    return Operation(call_one if alone else call, None, steps.native(), free)


def _all_to_all_v(bound: Bound) -> Operation:
    outgoing = _spread(bound, bound.send, list(bound.traffic[bound.me]))
    incoming = _spread(bound, bound.receive, [row[bound.me] for row in bound.traffic])
    return _collective(bound, "Alltoallv", outgoing, incoming)


def _reduce(bound: Bound) -> Operation:
    buffers = (MPI.IN_PLACE, _receiving(bound)) if bound.me == bound.root else (_sending(bound), None)
    return _collective(bound, "Reduce", *buffers, REDUCTIONS[bound.redop], bound.root)


def _gather(bound: Bound) -> Operation:
    buffers = (_source(bound), _blocks(bound, bound.receive)) if bound.me == bound.root else (_sending(bound), None)
    return _collective(bound, "Gather", *buffers, bound.root)


def _scatter(bound: Bound) -> Operation:
    source = _blocks(bound, bound.send) if bound.me == bound.root else None
    target = MPI.IN_PLACE if bound.me == bound.root and bound.case.in_place else _receiving(bound)
    return _collective(bound, "Scatter", source, target, bound.root)


def _send_recv(bound: Bound) -> Operation:
    """Bind a send to the next rank of the group and a receive from the previous one (of two, the same rank)."""
    to, source = (bound.group[(bound.me + step) % len(bound.group)] for step in (1, -1))
    world, outgoing, incoming = bound.comm, _sending(bound), _receiving(bound)
    if bound.case.mode == "persistent":
        return _prepared([world.Recv_init(incoming, source, _TAG), world.Send_init(outgoing, to, _TAG)])
    receive = partial(world.Irecv, incoming, source, _TAG)
    send = partial(world.Isend, outgoing, to, _TAG)

    def post() -> Wait:
        return partial(MPI.Request.Waitall, [receive(), send()])

    steps = Steps()
    steps.exchange(world, outgoing, to, incoming, source, _TAG)
    call = partial(world.Sendrecv, outgoing, to, _TAG, incoming, source, _TAG)
    return Operation(call, post, steps.native())


def exchange_all(world: MPI.Intracomm, dtype: str | None, sends: Messages, receives: Messages) -> Messaging:
    """Concurrent messages in both directions, for collectives over send/recv."""
    coming = [partial(world.Irecv, specification(buffer, dtype), source, _TAG) for source, buffer in receives]
    going = [partial(world.Isend, specification(buffer, dtype), to, _TAG) for to, buffer in sends]
    under_way: list[MPI.Request] = []

    def expect() -> None:
        under_way[:] = [start() for start in coming]

    def finish() -> None:
        MPI.Request.Waitall([*under_way, *[start() for start in going]])

    return Messaging(expect, finish)


def _pair_uni(bound: Bound) -> Operation:
    answer: Spec = (MPI.buffer.allocate(1), 1, MPI.BYTE)
    return _there_and_back(bound, answer if bound.me else _sending(bound), _receiving(bound) if bound.me else answer)


def _there_and_back(bound: Bound, outgoing: Spec, incoming: Spec) -> Operation:
    """Bind a round trip: the first rank sends and then receives, the second receives and then sends."""
    world, other = bound.comm, bound.group[1 - bound.me]
    messages = [("Recv", incoming), ("Send", outgoing)] if bound.me else [("Send", outgoing), ("Recv", incoming)]
    if bound.case.mode == "persistent":
        return _prepared(*([getattr(world, f"{name}_init")(buffer, other, _TAG)] for name, buffer in messages))
    steps = Steps()
    for name, buffer in messages:
        steps.message(name, world, buffer, other, _TAG)
    first, second = (partial(getattr(world, name), buffer, other, _TAG) for name, buffer in messages)

    def both() -> None:
        first()
        second()

    return Operation(both, native=steps.native())


CALLS: dict[str, Callable[[Bound], Operation]] = {
    "all_reduce": lambda bound: _collective(
        bound, "Allreduce", MPI.IN_PLACE, _receiving(bound), REDUCTIONS[bound.redop]
    ),
    "all_gather": lambda bound: _collective(bound, "Allgather", _source(bound), _blocks(bound, bound.receive)),
    "reduce_scatter": lambda bound: _collective(
        bound, "Reduce_scatter_block", _blocks(bound, bound.send), _receiving(bound), REDUCTIONS[bound.redop]
    ),
    "all_to_all": lambda bound: _collective(
        bound, "Alltoall", _blocks(bound, bound.send), _blocks(bound, bound.receive)
    ),
    "all_to_all_v": _all_to_all_v,
    "broadcast": lambda bound: _collective(bound, "Bcast", _receiving(bound), bound.root),
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "barrier": lambda bound: _collective(bound, "Barrier"),
    "send_recv": _send_recv,
    "ping_pong": lambda bound: _there_and_back(bound, _sending(bound), _receiving(bound)),
    "pair_uni": _pair_uni,
    "pair_bidir": _send_recv,
    "pair_matrix": _pair_uni,
}
