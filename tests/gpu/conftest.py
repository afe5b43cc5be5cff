"""A rank on a GPU of this machine, over NCCL in a world of one; and what it measures."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import torch.distributed as dist

from busbw.backends import BACKENDS
from busbw.backends.base import Backend, World
from busbw.clock import HostClock
from busbw.measure import measure
from busbw.ops import OPS, traffic
from busbw.plan import Timing
from busbw.records import Case, Measurement
from busbw.sampling import Bench
from busbw.synchronise import CommonClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from busbw.devices import Device

TIMING = Timing(
    blocks=1,
    min_samples=10,
    least_samples=5,
    max_samples=50,
    min_seconds=0.0,
    max_seconds=1.0,
    launch_warmup_seconds=0.0,
    warmup_seconds=0.0,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where operations on storage make their files."""
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def backend(folder: Path) -> Iterator[Backend]:
    """One rank over NCCL."""
    meeting = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    world = World(0, 1, 0, "local", 60.0, store=("127.0.0.1", meeting.port), folder=folder)
    opened = BACKENDS["nccl"].open(world)
    yield opened
    opened.close()


@pytest.fixture
def device(backend: Backend) -> Device:
    """Its GPU."""
    assert backend.device is not None
    return backend.device


@pytest.fixture
def measured(backend: Backend) -> Callable[[Case], Measurement]:
    """Measures one block of a case."""

    def measure_one(one: Case) -> Measurement:
        clock = HostClock()
        common = CommonClock(backend, clock, ("here",))
        bench = Bench(backend, clock, TIMING, common, seed=1, timer_ns=50, hosts=("here",))
        weights = traffic.split(traffic.skewed(1, 0.5), one.count) if OPS[one.op].uneven else ()
        made = measure(bench, one, weights, launch=0, block=0)
        assert isinstance(made, Measurement), made
        return made

    return measure_one
