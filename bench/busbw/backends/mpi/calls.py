"""MPI calls: every operation bound to its buffers, with mpi4py's uppercase methods.

Buffer specifications (memory, count, type) are made once. The timed call is one bound method of a communicator, without
pickling, lookups or Python wrappers; for the compiled loop it is the same C function. Blocking calls are timed as
such, not as a post and a wait. In mode persistent the library prepares the call once.
"""

from collections.abc import Callable
from functools import partial
from itertools import accumulate

import torch

from busbw.backends.base import Bound, Operation, Post, Wait
from busbw.backends.mpi.native import MPI, Call, Spec, native_calls, native_turns
from busbw.backends.scheduled import Messages, Messaging, in_both_directions
from busbw.runs.records import FLOAT8

REDUCTIONS: dict[str, MPI.Op] = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX, "product": MPI.PROD}

TYPES: dict[str, MPI.Datatype] = {
    "float32": MPI.FLOAT,
    "float64": MPI.DOUBLE,
    "int8": MPI.INT8_T,
    "uint8": MPI.UINT8_T,
    "int32": MPI.INT32_T,
    "int64": MPI.INT64_T,
    # The standard has no floats below 32 bits (MPI 4.1, 3.2.2): they are moved as integers of the same size.
    "float16": MPI.UINT16_T,
    "bfloat16": MPI.UINT16_T,
    **dict.fromkeys(FLOAT8, MPI.UINT8_T),
}

MOVED_ONLY = {"float16", "bfloat16", *FLOAT8}
"""Types that MPI can move but not reduce."""

_TAG = 0

Arguments = tuple[object, ...]


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


def _operation(bound: Bound, *calls: Call, post: Post | None = None) -> Operation:
    """Bind one or two ``calls`` of mpi4py in order; in mode persistent as prepared requests."""
    comm = bound.comm
    if bound.case.mode == "persistent":
        return _prepared(*([getattr(comm, f"{name}_init")(*arguments)] for name, arguments in calls))
    made: list[Callable[[], object]] = [partial(getattr(comm, name), *arguments) for name, arguments in calls]
    first, second = made[0], made[-1]

    def both() -> None:
        first()
        second()

    return Operation(both if len(calls) > 1 else first, post, native_calls(comm, *calls))


def _collective(name: str, arguments: Callable[[Bound], Arguments], bound: Bound) -> Operation:
    """Bind the collective of mpi4py's method ``name``: blocking and nonblocking, or persistent."""
    given = arguments(bound)
    start = partial(getattr(bound.comm, f"I{name.lower()}"), *given)

    def post() -> Wait:
        wait: Wait = start().Wait
        return wait

    return _operation(bound, (name, given), post=post)


def _prepared(*turns: list[MPI.Prequest]) -> Operation:
    """Bind persistent requests: for each turn in order, start all its requests and wait for them."""

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
    return Operation(call_one if alone else call, None, native_turns(turns), free)


def _all_to_all_v(bound: Bound) -> Arguments:
    outgoing = _spread(bound, bound.send, list(bound.traffic[bound.me]))
    return outgoing, _spread(bound, bound.receive, [row[bound.me] for row in bound.traffic])


def _reduce(bound: Bound) -> Arguments:
    buffers = (_source(bound), _receiving(bound)) if bound.me == bound.root else (_sending(bound), None)
    return *buffers, REDUCTIONS[bound.redop], bound.root


def _gather(bound: Bound) -> Arguments:
    buffers = (_source(bound), _blocks(bound, bound.receive)) if bound.me == bound.root else (_sending(bound), None)
    return *buffers, bound.root


def _scatter(bound: Bound) -> Arguments:
    source = _blocks(bound, bound.send) if bound.me == bound.root else None
    target = MPI.IN_PLACE if bound.me == bound.root and bound.case.in_place else _receiving(bound)
    return source, target, bound.root


COLLECTIVES: dict[str, tuple[str, Callable[[Bound], Arguments]]] = {
    "all_reduce": ("Allreduce", lambda bound: (_source(bound), _receiving(bound), REDUCTIONS[bound.redop])),
    "all_gather": ("Allgather", lambda bound: (_source(bound), _blocks(bound, bound.receive))),
    "reduce_scatter": (
        "Reduce_scatter_block",
        lambda bound: (_blocks(bound, bound.send), _receiving(bound), REDUCTIONS[bound.redop]),
    ),
    "all_to_all": ("Alltoall", lambda bound: (_blocks(bound, bound.send), _blocks(bound, bound.receive))),
    "all_to_all_v": ("Alltoallv", _all_to_all_v),
    "broadcast": ("Bcast", lambda bound: (_receiving(bound), bound.root)),
    "reduce": ("Reduce", _reduce),
    "gather": ("Gather", _gather),
    "scatter": ("Scatter", _scatter),
    "barrier": ("Barrier", lambda _bound: ()),
}
"""Op → mpi4py's method and its arguments. The function that prepares it, ``MPI_…_init``, came with MPI 4; every version
has persistent point-to-point messages.
"""


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

    return _operation(bound, ("Sendrecv", (outgoing, to, _TAG, incoming, source, _TAG)), post=post)


def exchange_all(world: MPI.Intracomm, dtype: str | None, sends: Messages, receives: Messages) -> Messaging:
    """Concurrent messages in both directions, for collectives over send/recv."""
    coming = [partial(world.Irecv, specification(buffer, dtype), source, _TAG) for source, buffer in receives]
    going = [partial(world.Isend, specification(buffer, dtype), to, _TAG) for to, buffer in sends]
    return in_both_directions(coming, going, MPI.Request.Waitall)


def _pair_uni(bound: Bound) -> Operation:
    answer: Spec = (MPI.buffer.allocate(1), 1, MPI.BYTE)
    return _there_and_back(bound, answer if bound.me else _sending(bound), _receiving(bound) if bound.me else answer)


def _there_and_back(bound: Bound, outgoing: Spec, incoming: Spec) -> Operation:
    """Bind a round trip: the first rank sends and then receives, the second receives and then sends."""
    other = bound.group[1 - bound.me]
    messages = [("Send", (outgoing, other, _TAG)), ("Recv", (incoming, other, _TAG))]
    return _operation(bound, *(reversed(messages) if bound.me else messages))


CALLS: dict[str, Callable[[Bound], Operation]] = {
    **{op: partial(_collective, name, arguments) for op, (name, arguments) in COLLECTIVES.items()},
    "send_recv": _send_recv,
    "ping_pong": lambda bound: _there_and_back(bound, _sending(bound), _receiving(bound)),
    "pair_uni": _pair_uni,
    "pair_bidir": _send_recv,
    "pair_matrix": _pair_uni,
}
