"""A rank on a GPU of this machine, over NCCL in a world of one; and what it measures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from simulated.install import seen_by_busbw, simulated
from simulated.machine import EXACT
from testing.covered import recorded
from testing.gpu import REAL, world_of_one

from busbw.backends import BACKENDS
from busbw.backends.base import Backend
from busbw.backends.patterns import count_wrong, fill, poison
from busbw.measure.bench import Bench, part_of
from busbw.measure.block import measure
from busbw.measure.clock import CommonClock, HostClock
from busbw.ops import OPS, traffic
from busbw.runs.plan import Timing
from busbw.runs.records import Case, Measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from simulated.machine import Machine

    from busbw.system.device import Device

TIMING = Timing(
    blocks=1,
    min_samples=10 if REAL else 3,
    least_samples=5 if REAL else 3,
    max_samples=50 if REAL else 3,
    min_seconds=0.0,
    max_seconds=1.0,
    launch_warmup_seconds=0.0,
    warmup_seconds=0.0,
)


@pytest.fixture(scope="package", autouse=True)
def machine() -> Iterator[Machine | None]:
    """Where there is no GPU, the simulated machine on which all these tests run; None on a real one."""
    if REAL:
        yield None
        return
    with simulated(EXACT) as state, seen_by_busbw(), recorded():
        yield state.machine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where operations on storage make their files."""
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def backend(folder: Path) -> Iterator[Backend]:
    """One rank over NCCL."""
    with world_of_one(folder=folder) as world:
        opened = BACKENDS["nccl"].open(world)
        yield opened
        opened.close()


@pytest.fixture
def device(backend: Backend) -> Device:
    """Its GPU."""
    assert backend.device is not None
    return backend.device


@pytest.fixture
def bench(backend: Backend) -> Bench:
    """What a block is measured with."""
    clock = HostClock()
    common = CommonClock(backend, clock, ("here",))
    return Bench(backend, clock, TIMING, common, seed=1, timer_ns=50, hosts=("here",))


@pytest.fixture
def replayed(bench: Bench) -> Callable[[Case], int]:
    """Captures one call of a case, poisons its buffers, and counts what the replay of the graph leaves wrong: a check
    of the case itself makes a call of its own. That poisoned buffers are wrong is asserted first.
    """

    def replay_one(setting: Case) -> int:
        device = bench.backend.device
        assert device is not None
        part = part_of(bench, OPS[setting.op], setting, ((0,),), ())
        assert part is not None
        assert part.made_of is not None
        (buffers,) = part.sets
        operation, pattern, expected = buffers.operation, part.made_of, part.layout.expect

        def afresh() -> None:
            poison(buffers.receive, setting.redop)
            fill(buffers.send, part.layout.send, pattern)
            if operation.prepare is not None:
                operation.prepare()
            device.synchronise()

        def wrong() -> int:
            device.synchronise()
            own_count = operation.wrong
            return count_wrong(buffers.receive, expected, pattern) if own_count is None else own_count()

        try:
            afresh()
            operation.call()
            assert wrong() == 0
            wrong()  # spoils what an operation keeps for itself, whose memory may have had the right numbers before
            replay = device.capture([operation.call])
            afresh()
            assert wrong() > 0, "a capture runs nothing"
            afresh()
            replay()
            return wrong()
        finally:
            operation.free()

    return replay_one


@pytest.fixture
def measured(bench: Bench) -> Callable[[Case], Measurement]:
    """Measures one block of a case."""

    def measure_one(setting: Case) -> Measurement:
        weights = traffic.split(traffic.imbalanced(1, 0.5), setting.count) if OPS[setting.op].uneven else ()
        made = measure(bench, setting, weights, launch=0, block=0)
        assert isinstance(made, Measurement), made
        return made

    return measure_one
