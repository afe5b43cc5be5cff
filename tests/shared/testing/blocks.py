"""One block over fake ranks: how it is measured on all of them, and held to be the same on each."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from busbw.backends.base import Backend
from busbw.errors import BusbwError
from busbw.measure.bench import Bench
from busbw.measure.block import measure
from busbw.measure.clock import CommonClock
from busbw.measure.loops import ComputeLoad
from busbw.ops import OPS, traffic
from busbw.runs.plan import Timing
from busbw.runs.records import Case, Failed, FailureCause, Measurement
from testing.fakes import QUICK, Durations, FakeBackend, FakeClock, FakeWork, FakeWorld

_IMBALANCE = 0.5


def quick(**changes: float) -> Timing:
    """Timing rules that are done after a few samples, with some of them changed."""
    return msgspec.structs.replace(QUICK, **changes)


def noisy(seed: int, spread: float = 1.0, typical_ns: int = 100_000) -> Durations:
    """Durations that are log-normal around ``typical_ns``, other ones on every rank, the same for one ``seed``."""

    def durations(rank: int, index: int, _case: Case) -> int:
        generator = np.random.default_rng((seed, rank, index))
        return max(1, int(typical_ns * np.exp(generator.normal(0, spread))))

    return durations


def measure_everywhere(
    world: FakeWorld,
    case: Case,
    timing: Timing = QUICK,
    *,
    shared_clock: bool = True,
    domains: Sequence[str | None] | None = None,
    timer_ns: int = 0,
    wrap: Callable[[FakeBackend], Backend] = lambda backend: backend,
    computing: Callable[[FakeClock], ComputeLoad] = FakeWork,
) -> list[Measurement | Failed | BusbwError]:
    """Measure one block of ``case`` on every rank of ``world``; what each rank got, or what it raised.

    ``domains[r]`` names the clock of rank r; without them all ranks share one, or nobody knows. ``wrap`` puts something
    around the backend of each rank, a fault for example; ``computing`` makes what is computed beside calls. An uneven
    op gets the traffic of imbalance 0.5.
    """
    clocks = tuple(domains or ("one clock" if shared_clock else None,) * world.size)
    hosts = ("here",) * world.size
    matrix = traffic.split(traffic.imbalanced(world.size, _IMBALANCE), case.count) if OPS[case.op].uneven else ()

    def work(backend: FakeBackend) -> Measurement | Failed:
        wrapped, beside = wrap(backend), computing(backend.clock)
        common = CommonClock(wrapped, backend.clock, clocks)
        bench = Bench(wrapped, backend.clock, timing, common, 1, timer_ns=timer_ns, hosts=hosts, work=beside)
        return measure(bench, case, matrix, launch=0, block=0)

    return world.run(work)


def measured(world: FakeWorld, case: Case, timing: Timing = QUICK, **options: Any) -> Measurement:  # noqa: ANN401 - those of measure_everywhere
    """The record that all ranks got: the same on each, but for the moment at which it began.

    Raises AssertionError when it is not, or when a rank has none.
    """
    rows = []
    for rank, outcome in enumerate(measure_everywhere(world, case, timing, **options)):
        if not isinstance(outcome, Measurement):
            message = f"rank {rank} has no measurement: {outcome!r}"
            raise AssertionError(message)  # noqa: TRY004 - it is the test that failed, whatever the type
        rows.append(msgspec.structs.replace(outcome, started="then"))
    if any(row != rows[0] for row in rows):
        message = "ranks have got different records of one block"
        raise AssertionError(message)
    return rows[0]


def failures(world: FakeWorld, case: Case, **more: Any) -> set[FailureCause | None]:  # noqa: ANN401 - as there
    """Why a block of ``case`` has failed, over all ranks; none has a result. ``more``: as of ``measure_everywhere``."""
    outcomes = measure_everywhere(world, case, **more)
    failed = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
    assert len(failed) == len(outcomes), outcomes
    return {outcome.cause for outcome in failed}
