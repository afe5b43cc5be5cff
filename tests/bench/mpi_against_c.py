"""Rows of MPI calls through busbw against the same rows in C, as ratios within one run. Nothing is asserted.

The C is compiled on the spot with the library's own compiler and loaded into the very ranks that busbw measures in: the
same library, world, communicator and buffers. All loops take turns, a few samples each, and are held against the C of
their own turn, so that a machine that changes its pace moves their ratio least. A second C loop shows what is noise.
"""

import ctypes
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from worlds import in_world

from busbw.backends import backend_named
from busbw.backends.base import Vector
from busbw.errors import LaunchError
from busbw.launch.mpiexec import chosen
from busbw.measure import loops
from busbw.measure.bench import Bench, Part, part_of
from busbw.ops import OPS
from busbw.runs.cases import expand
from busbw.runs.facts import UNKNOWN_HOST, MpiFacts
from busbw.runs.plan import Plan, Sweep
from busbw.runs.records import Case
from busbw.system import environment
from busbw.units import format_size

OPS_TIMED = ("all_reduce", "all_gather", "ping_pong")
SIZES = (8, 1 << 10, 64 << 10, 1 << 20, 16 << 20)
WANTED = {8: 1.15}
WANTED_OTHERWISE = 1.05
RANKS = 2
SECONDS_A_CASE = 8.0
LEAST_ROUNDS, MOST_ROUNDS = 12, 200
BATCH = 6
"""Samples of one loop in a row."""

ESTIMATES = 20
ROW_NS, LEAST_CALLS = 1_000_000, 10
"""How many calls a row has: as many as fill 1 ms, and at least 10, as in busbw."""


Take = Callable[[int], Vector]
"""So many samples, ns."""


def main() -> None:
    """Compile the loops in C, and time all of them at every size."""
    load = environment.load_average()
    print(f"# {environment.usable_cores()} usable cores, load average {load:.1f} before the start")
    missing = backend_named("mpi").missing()
    with tempfile.TemporaryDirectory() as folder:
        library = missing or compiled_in(Path(folder))
        if isinstance(library, str):
            print(f"# mpi: {library}")
        else:
            in_world(RANKS, partial(ask, library), library="mpi")


def compiled_in(folder: Path) -> Path | str:
    """The loops in C, or why they cannot be made."""
    try:
        compiler = Path(chosen()[1]).with_name("mpicc")
    except LaunchError as error:
        return str(error)
    if shutil.which(compiler) is None:
        return f"there is no {compiler}"
    source, library = Path(__file__).with_suffix(".c"), folder / "loops.so"
    made = subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", library, source], check=False, capture_output=True, text=True
    )
    return library if made.returncode == 0 else f"{compiler} says: {made.stderr.strip()}"


def ask(library: Path, bench: Bench, say: Callable[[str], None]) -> None:
    """Every op and size, on one of the ranks."""
    from busbw.backends.mpi.info import with_facts  # noqa: PLC0415 - in the rank, once the backend has initialised MPI

    about = with_facts(UNKNOWN_HOST).mpi or MpiFacts()
    say(f"# {RANKS} ranks of {about.library}, threads {about.threads}, busbw's loop: {about.loop}")
    say("# rows of calls, a barrier before each, slowest rank. Ratio to the C loop of the same turn: the middle of all")
    say("# turns with its 95 % bootstrap interval; wanted of compiled: 1.15 at 8 B, 1.05 from 1 KiB (OUT: more)")
    kinds = ("C again", "busbw compiled", "busbw Python", "plain mpi4py")
    say(f"{'op':>10} {'size':>8} {'turns':>5} {'calls':>6} {'C µs':>10}   " + "  ".join(f"{kind:22}" for kind in kinds))
    for op in OPS_TIMED:
        sweep = Sweep(ops=(op,), sizes=",".join(map(str, SIZES)), modes=("pipelined",))
        for case in expand(Plan(sweep=(sweep,)), RANKS, 1).cases:
            compare(bench, case, ctypes.CDLL(str(library)), say)


def compare(bench: Bench, case: Case, library: ctypes.CDLL, say: Callable[[str], None]) -> None:
    """One op and size: all loops in turns."""
    part = part_of(bench, OPS[case.op], case, (tuple(range(RANKS)),), ())
    if part is None:
        return
    row = LEAST_CALLS
    for _ in range(2):  # the first row has everything that comes once
        row = max(LEAST_CALLS, round(ROW_NS * row / estimate_ns(bench, in_c(bench, case, part, library, row))))
    takes = (
        in_c(bench, case, part, library, row),
        in_c(bench, case, part, library, row),
        by_busbw(bench, part, row),
        by_busbw(bench, replace(part, row=None), row),
        by_mpi4py(bench, case, part, row),
    )
    affordable = SECONDS_A_CASE * 1e9 / (len(takes) * BATCH * estimate_ns(bench, takes[0]))
    rounds = int(min(MOST_ROUNDS, max(LEAST_ROUNDS, affordable)))
    samples = np.zeros((len(takes), rounds, BATCH), dtype=np.int64)
    orders = itertools.cycle(itertools.permutations(range(len(takes))))
    for number, order in zip(range(rounds), itertools.islice(orders, 0, None, 7), strict=False):
        for kind in order:
            samples[kind, number] = takes[kind](BATCH)
    slowest = bench.backend.reduce(samples.reshape(-1), "max").reshape(samples.shape) / row
    turns = np.median(slowest, axis=2)
    generator = np.random.default_rng(1)
    drawn = generator.integers(rounds, size=(1000, rounds))
    wanted = WANTED.get(case.size_bytes, WANTED_OTHERWISE)
    texts = []
    for kind in range(1, len(takes)):
        ratios = turns[kind] / turns[0]
        low, high = np.quantile(np.median(ratios[drawn], axis=1), (0.025, 0.975))
        ratio = float(np.median(ratios))
        mark = " OUT" if kind == 2 and ratio > wanted else ""
        texts.append(f"{f'{ratio:.3f} ({low:.3f} to {high:.3f}){mark}':22}")
    micros = float(np.median(turns[0])) / 1e3
    say(f"{case.op:>10} {format_size(case.size_bytes):>8} {rounds:5d} {row:6d} {micros:10.3f}   " + "  ".join(texts))


def estimate_ns(bench: Bench, take: Take) -> int:
    """What a sample takes, ns of the slowest rank, when the machine lets it."""
    return max(1, int(np.quantile(bench.backend.reduce(take(ESTIMATES), "max"), 0.2)))


def in_c(bench: Bench, case: Case, part: Part, library: ctypes.CDLL, row: int) -> Take:
    """Samples of the loop in C."""
    from mpi4py import MPI  # noqa: PLC0415 - in the rank, once the backend has settled how it is initialised

    buffers = part.sets[0]
    sample = getattr(library, case.op)
    sample.restype = ctypes.c_longlong
    sample.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int] * 3 + [ctypes.c_longlong, ctypes.c_int]
    rank = bench.backend.rank
    arguments = (buffers.send.data_ptr(), buffers.receive.data_ptr(), len(buffers.send), 1 - rank, rank == 0, row)
    call = partial(sample, *arguments, MPI.COMM_WORLD.py2f())
    return lambda count: np.asarray([call() for _ in range(count)], dtype=np.int64)


def by_busbw(bench: Bench, part: Part, row: int) -> Take:
    """Samples of busbw's own loop, the one that ``part`` has."""
    calls = itertools.repeat(part.sets[0].operation.call)
    loop = loops.Loop(bench.backend, bench.clock, calls, bench.backend.barrier, None, row, part.row)

    def take(count: int) -> Vector:
        taken = loops.take(loop, count)
        return taken.exits - taken.entries

    return take


def by_mpi4py(bench: Bench, case: Case, part: Part, row: int) -> Take:
    """Samples as mpi4py's own demonstrations write them."""
    from mpi4py import MPI  # noqa: PLC0415 - as above

    comm, other, clock = MPI.COMM_WORLD, 1 - bench.backend.rank, bench.clock.now_ns
    send, receive = part.sets[0].send.numpy(), part.sets[0].receive.numpy()

    def there_and_back() -> None:
        if other:
            comm.Send(send, other)
            comm.Recv(receive, other)
        else:
            comm.Recv(receive, other)
            comm.Send(send, other)

    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: comm.Allreduce(MPI.IN_PLACE, receive),
        "all_gather": lambda: comm.Allgather(send, receive),
        "ping_pong": there_and_back,
    }
    call = calls[case.op]

    def sample() -> int:
        comm.Barrier()
        before = clock()
        for _ in range(row):
            call()
        return clock() - before

    return lambda count: np.asarray([sample() for _ in range(count)], dtype=np.int64)


if __name__ == "__main__":
    main()
