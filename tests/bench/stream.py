"""busbw's kernels in host memory against those of STREAM in C, as ratios within one run. Nothing is asserted.

The C is compiled on the spot, ``cc -O3 -march=native -fopenmp``, and loaded into this process: the same arrays, in the
same pages, and as many threads on the same cores. ``-fno-tree-loop-distribute-patterns`` keeps GCC from making memcpy
of STREAM's copy, which is a loop; memcpy has a row of its own. Both take turns and are held against the C of their own
turn; a second C shows what is noise.
"""

import ctypes
import itertools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from busbw.backends.base import Bound
from busbw.backends.compiled_loop import row_of
from busbw.backends.local import LOCAL, kernels
from busbw.backends.local.threads import cores_in_order
from busbw.backends.patterns import TORCH_DTYPES, fill, pattern
from busbw.ops import OPS
from busbw.ops.base import Share
from busbw.ops.settings import HostSettings, parse_threads
from busbw.runs.records import Case
from busbw.system import environment
from busbw.system.environment import allowed_cores
from busbw.units import format_size

OPS_TIMED = ("stream_copy", "stream_scale", "stream_add", "stream_triad", "memory_copy")
SIZES = (16 << 10, 1 << 20, 128 << 20)
"""Bytes of one array: in the first level of cache, in the last, and STREAM's own rule, four times the last or more."""

WANTED = 0.95
ROUNDS = 15
ROW_NS, LEAST_CALLS = 5_000_000, 2
PAUSE_SECONDS = 0.01
"""Between turns: threads that wait for work spin for a while, and would have the cores of those whose turn it is."""


_HOME = allowed_cores()
"""The cores of this process, before anything binds its first thread."""

Take = Callable[[], float]
"""One row of calls, ns a call."""


def main() -> None:
    """Compile the C, and time both at every size with every number of threads."""
    load = environment.load_average()
    print(f"# {environment.usable_cores()} usable cores, load average {load:.1f} before the start")
    with tempfile.TemporaryDirectory() as folder:
        library = kernels.missing() or compiled_in(Path(folder))
        if isinstance(library, str):
            print(f"# STREAM: {library}")
            return
        print("# rows of calls in turns, float64. Rate over that of the C in the same turn: the middle of all turns")
        print(f"# with its 95 % bootstrap interval; wanted of busbw: {WANTED} (OUT: less). GB/s: traffic, best turn")
        print(f"{'op':>12} {'array':>8} {'threads':>7} {'C GB/s':>8} {'busbw':>8}   {'C again':22}  busbw")
        for size, threads in itertools.product(SIZES, parse_threads("1..cores*2,cores", environment.usable_cores())):
            for op in OPS_TIMED:
                compare(op, size, threads, ctypes.CDLL(str(library)))


def compiled_in(folder: Path) -> Path | str:
    """STREAM's kernels in C, or why they cannot be made."""
    compiler = shutil.which("cc")
    if compiler is None:
        return "there is no cc"
    source, library = Path(__file__).with_suffix(".c"), folder / "stream.so"
    flags = ("-O3", "-march=native", "-fopenmp", "-fno-tree-loop-distribute-patterns", "-shared", "-fPIC")
    made = subprocess.run([compiler, *flags, "-o", library, source], check=False, capture_output=True, text=True)
    return library if made.returncode == 0 else f"{compiler} says: {made.stderr.strip()}"


def compare(op: str, size: int, threads: int, library: ctypes.CDLL) -> None:
    """One kernel, size and number of threads: both in turns."""
    case = Case(
        op=op,
        backend="gloo",
        device="cpu",
        dtype="float64",
        redop=None,
        size_bytes=size,
        ranks=1,
        nodes=1,
        mode="pipelined",
        settings=HostSettings(threads=threads),
    )
    layout = OPS[op].layout(Share(0, 1, case.count))
    send, receive = (
        torch.zeros(count, dtype=TORCH_DTYPES["float64"]) for count in (layout.send_count, layout.receive_count)
    )
    operation = LOCAL[op].bind(Bound(case, send, receive, None))
    fill(send, layout.send, pattern(1, "float64", None, 1))
    row = row_of([operation.native])
    if row is None or operation.prepare is None:
        print(f"# {op}: there is no compiled loop here")
        return
    prepare = operation.prepare
    cores = (ctypes.c_int * threads)(*cores_in_order(_HOME)[:threads])
    in_c = getattr(library, op)
    in_c.restype = ctypes.c_longlong
    in_c.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long, ctypes.c_int, ctypes.c_long]
    left = send.data_ptr()
    right = left + size if len(send) > case.count else left
    calls = 1

    def by_c() -> float:
        time.sleep(PAUSE_SECONDS)
        library.pin(cores, threads)
        return float(in_c(receive.data_ptr(), left, right, case.count, threads, calls)) / calls

    def by_busbw() -> float:
        time.sleep(PAUSE_SECONDS)
        prepare()
        operation.call()
        go = row.of(calls)
        before = time.perf_counter_ns()
        go()
        return (time.perf_counter_ns() - before) / calls

    for _ in range(3):
        calls = max(LEAST_CALLS, round(ROW_NS / by_c()))
    report(op, size, threads, (by_c, by_c, by_busbw))
    operation.free()


def report(op: str, size: int, threads: int, takes: tuple[Take, ...]) -> None:
    """Take turns, and print a line."""
    durations = np.zeros((len(takes), ROUNDS))
    orders = itertools.cycle(itertools.permutations(range(len(takes))))
    for number, order in zip(range(ROUNDS), orders, strict=False):
        for kind in order:
            durations[kind, number] = takes[kind]()
    generator = np.random.default_rng(1)
    drawn = generator.integers(ROUNDS, size=(1000, ROUNDS))
    texts = []
    for kind in range(1, len(takes)):
        ratios = durations[0] / durations[kind]
        low, high = np.quantile(np.median(ratios[drawn], axis=1), (0.025, 0.975))
        mark = " OUT" if kind == len(takes) - 1 and np.median(ratios) < WANTED else ""
        texts.append(f"{f'{np.median(ratios):.3f} ({low:.3f} to {high:.3f}){mark}':22}")
    moved = (OPS[op].memory_traffic or 0.0) * size
    best = moved / durations.min(axis=1)
    print(
        f"{op:>12} {format_size(size):>8} {threads:>7} {max(best[0], best[1]):8.1f} {best[2]:8.1f}   {'  '.join(texts)}"
    )


if __name__ == "__main__":
    main()
