"""What it costs to agree: messages and bytes of control traffic of one block, by the number of its samples."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import msgspec
from worlds import in_world

from busbw.backends.base import Backend, Vector
from busbw.backends.faults import WrappingBackend
from busbw.measure.bench import Bench
from busbw.measure.block import measure
from busbw.runs.cases import expand
from busbw.runs.plan import Plan, Sweep, Timing
from busbw.runs.records import Measurement

RANKS = 2
SAMPLES = (30, 300, 3000)


class CountingBackend(WrappingBackend):
    """Counts the reductions and their bytes."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.reductions = 0
        self.reduced_bytes = 0

    def reduce(self, values: Vector, how: Literal["max", "sum"], *, wary: bool = False) -> Vector:
        """That of ``inner``, counted."""
        self.reductions += 1
        self.reduced_bytes += values.nbytes
        return self.inner.reduce(values, how, wary=wary)


def control() -> None:
    """Print reductions and bytes of one block of all_reduce at 8 B, for three numbers of samples."""
    print(f"# one block of all_reduce 8 B over {RANKS} Gloo ranks; control reductions and their bytes, on a rank")
    print("samples  reductions     bytes  bytes a sample")
    in_world(RANKS, _ask)


def _ask(bench: Bench, say: Callable[[str], None]) -> None:
    (case,) = expand(Plan(sweep=(Sweep(ops=("all_reduce",), sizes="8"),)), RANKS, 1).cases
    for samples in SAMPLES:
        counting = CountingBackend(bench.backend)
        timing = msgspec.structs.replace(
            Timing(blocks=1), min_samples=samples, max_samples=samples, max_seconds=60.0, precision=0.999
        )
        common = replace(bench.common, backend=counting)
        made = measure(replace(bench, backend=counting, timing=timing, common=common), case, (), 0, 0)
        if isinstance(made, Measurement):
            count = len(made.groups[0].slowest_ns)
            say(
                f"{count:7d} {counting.reductions:11d} {counting.reduced_bytes:9d}"
                f" {counting.reduced_bytes / count:12.0f}"
            )
