"""Stands in for ``busbw``: the same command, but every rank first holds its backend to the Protocol.

``conform.py BACKEND run …``: what is not as ``busbw.backends.base.Backend`` says ends the run with an AssertionError.
"""

import itertools
import json
import sys
import time

import numpy as np
import torch

from busbw import backends
from busbw.backends.base import Backend, Bound
from busbw.backends.faults import wrapped
from busbw.backends.patterns import TORCH_DTYPES
from busbw.cli.main import main as busbw
from busbw.ops import OPS
from busbw.runs.records import DTYPE_BYTES, REDOPS, Case

_LATE_SECONDS = 0.05


def _hold(promise: bool, words: str) -> None:  # noqa: FBT001 - reads like an assertion, which it is, even under -O
    if not promise:
        raise AssertionError(words)


def _everyone_is_heard_in_order(backend: Backend) -> None:
    texts = [f"rank {rank}: ü {'x' * 1000 * rank}" for rank in range(backend.size)]
    _hold(backend.share(texts[backend.rank]) == texts, "share gives every rank's text, by rank, at every rank")
    _hold(backend.share("") == [""] * backend.size, "share passes on empty texts")


def _values_are_reduced_exactly(backend: Backend) -> None:
    for count in (1, 5000, 50_000):
        _vectors_are_reduced_exactly(backend, count)


def _vectors_are_reduced_exactly(backend: Backend, count: int) -> None:
    large = 1 << 60
    mine = np.asarray([backend.rank, -backend.rank, large + backend.rank, *range(count)], dtype=np.int64)
    kept = mine.copy()
    last = backend.size - 1
    greatest = backend.reduce(mine, "max")
    _hold(greatest[:3].tolist() == [last, 0, large + last], "reduce takes the maximum of int64 values exactly")
    _hold(greatest.dtype == np.int64, "reduce keeps int64")
    total = backend.reduce(mine, "sum")
    _hold(int(total[0]) == sum(range(backend.size)), "reduce sums over all ranks")
    _hold(int(total[-1]) == (count - 1) * backend.size, "reduce takes every element")
    _hold(bool((mine == kept).all()), "reduce leaves its input alone")


def _buffers_are_zero(backend: Backend) -> None:
    for name, count in itertools.product(DTYPE_BYTES, (0, 1, 4099)):
        buffer = backend.allocate(count, name)
        _hold(buffer.shape == (count,), "allocate gives a 1-D buffer of the length that was asked for")
        _hold(buffer.dtype == TORCH_DTYPES[name], "allocate gives the dtype that was asked for")
        _hold(not bool(buffer.to(torch.float64).any()), "allocate gives zeros")


def _refusals_are_words_and_the_same_everywhere(backend: Backend) -> None:
    cases = [
        Case(
            op=op.name,
            backend="any",
            device="cpu",
            dtype=dtype,
            redop=redop if op.reduces else None,
            size_bytes=1 << 12,
            ranks=backend.size,
            nodes=1,
            root=0 if op.rooted else None,
        )
        for op, dtype, redop in itertools.product(OPS.values(), DTYPE_BYTES, REDOPS)
        if not op.splits  # a step has a workload, too
    ]
    reasons = [backend.refuse(OPS[case.op], case) for case in cases]
    _hold(all(reason is None or reason.strip() for reason in reasons), "refuse gives a reason or None")
    _hold(len(set(backend.share(json.dumps(reasons)))) == 1, "refuse says the same on every rank")


def _a_call_may_be_repeated_and_groups_made_twice(backend: Backend) -> None:
    half = backend.size // 2
    groups = (tuple(range(half)), tuple(range(half, backend.size)))
    backend.use_groups(groups)
    backend.use_groups(groups)
    mine = next(group for group in groups if backend.rank in group)
    op = OPS["all_reduce"]
    case = Case(
        op=op.name,
        backend="any",
        device="cpu",
        dtype="int64",
        redop="sum",
        size_bytes=8,
        ranks=backend.size,
        nodes=1,
        group=f"div:{half}",
        in_place=True,
    )
    buffer = backend.allocate(1, "int64")
    operation = backend.bind(Bound(case, buffer, buffer, group=mine, me=mine.index(backend.rank)))
    for _ in range(3):
        buffer.fill_(backend.rank)
        operation.call()
        _hold(int(buffer[0]) == sum(mine), "a group reduces over its own ranks, call after call")
        if operation.post is not None:
            buffer.fill_(backend.rank)
            wait = operation.post()
            wait()
            _hold(int(buffer[0]) == sum(mine), "what was posted is finished when it has been waited for")
    for _ in range(100):
        backend.barrier()


def _messages_arrive_in_order_and_apart_from_others(backend: Backend) -> None:
    large = 1 << 60
    if backend.rank == 0:
        for other in range(1, backend.size):
            for number in range(5):
                backend.send(other, [number, large + other, -number])
        for other in range(1, backend.size):
            _hold(backend.receive(other, 1).tolist() == [other], "receive gives what that rank sent")
    else:
        for number in range(5):
            heard = backend.receive(0, 3)
            _hold(heard.dtype == np.int64, "receive gives int64")
            _hold(heard.tolist() == [number, large + backend.rank, -number], "messages arrive in their order")
        backend.send(0, [backend.rank])


def _a_swap_returns_when_the_other_one_has_come(backend: Backend) -> None:
    """Rank by rank, each comes late: nobody may be past the swap that it has part in before it came."""
    after, before = (backend.rank + 1) % backend.size, (backend.rank - 1) % backend.size
    for late in range(backend.size):
        backend.barrier()
        if backend.rank == late:
            time.sleep(_LATE_SECONDS)
        came = time.monotonic_ns()
        backend.swap(after, before)
        left = time.monotonic_ns()
        moments = np.zeros((2, backend.size), dtype=np.int64)
        moments[:, backend.rank] = came, left
        moments = backend.reduce(moments.reshape(-1), "sum").reshape(moments.shape)
        follower = (late + 1) % backend.size
        _hold(bool(moments[1, follower] >= moments[0, late]), "swap waits for the rank that it hears of")


def _no_op_moves_less_than_it_must(backend: Backend) -> None:
    _hold(all(backend.traffic_factor(op) >= 1 for op in OPS.values()), "traffic_factor is at least 1")


def _conform(backend: Backend) -> Backend:
    _everyone_is_heard_in_order(backend)
    _values_are_reduced_exactly(backend)
    _buffers_are_zero(backend)
    _refusals_are_words_and_the_same_everywhere(backend)
    _a_call_may_be_repeated_and_groups_made_twice(backend)
    _messages_arrive_in_order_and_apart_from_others(backend)
    _a_swap_returns_when_the_other_one_has_come(backend)
    _no_op_moves_less_than_it_must(backend)
    return backend


def main() -> None:
    """Hold one backend to its promise and be busbw."""
    name = sys.argv.pop(1)
    backends.BACKENDS[name] = wrapped(backends.BACKENDS[name], _conform)
    busbw(prog_name="busbw")


if __name__ == "__main__":
    main()
