"""Real ranks for a benchmark: forked, joined into one world, and gone when the work is done."""

import multiprocessing
import os
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.connection import Connection

import torch.distributed as dist

from busbw.backends import backend_named
from busbw.backends.base import World
from busbw.launch.mpiexec import RankStub, close_descriptors, rank_stubs
from busbw.measure.bench import Bench
from busbw.measure.clock import CommonClock, HostClock, read_cost_ns
from busbw.runs.plan import Timing

TIMEOUT_SECONDS = 60.0

Work = Callable[[Bench, Callable[[str], None]], None]
"""What a rank does, with its bench; what it says is printed on the first rank alone."""


def in_world(ranks: int, work: Work, timing: Timing | None = None, library: str = "gloo") -> None:
    """Let ``ranks`` ranks of ``library`` do ``work`` at once. Raises RuntimeError when one does not end well."""
    with ExitStack() as stack:
        mpiexec = backend_named(library).started_by == "mpiexec"
        opened = stack.enter_context(rank_stubs(ranks)) if mpiexec else ()
        context = multiprocessing.get_context("fork")
        meeting = []
        for number in range(ranks):
            stub = opened[number] if opened else None
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_be_rank, args=(number, ranks, theirs, work, timing, library, stub), daemon=True
            )
            process.start()
            theirs.close()
            meeting.append((ours, process))
        close_descriptors(opened)
        # The store has threads, so it comes after the forks.
        keeper = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=TIMEOUT_SECONDS)
        )
        for pipe, _ in meeting:
            pipe.send(keeper.port)
        for number, (_, process) in enumerate(meeting):
            process.join()
            if process.exitcode != 0:
                message = f"rank {number} ended with {process.exitcode}"
                raise RuntimeError(message)


def _be_rank(
    number: int, ranks: int, pipe: Connection, work: Work, timing: Timing | None, library: str, stub: RankStub | None
) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if stub is not None:
        stub.enter()
    world = World(number, ranks, number, "local", TIMEOUT_SECONDS, store=("127.0.0.1", pipe.recv()), local_size=ranks)
    backend = backend_named(library).open(world)
    clock = HostClock()
    bench = Bench(
        backend,
        clock,
        timing or Timing(timeout_seconds=TIMEOUT_SECONDS),
        CommonClock(backend, clock, ("this kernel",) * ranks),
        seed=1,
        timer_ns=read_cost_ns(clock),
    )
    work(bench, _print if number == 0 else _nothing)
    backend.close()


def _print(text: str) -> None:
    print(text, flush=True)


def _nothing(_text: str) -> None:
    pass
