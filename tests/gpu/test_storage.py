"""Files and checkpoints of what a real GPU holds, over NCCL in a world of one. Skipped, with the reason, elsewhere."""

from collections.abc import Callable
from pathlib import Path

import pytest
from testing.gpu import ON_GPU
from testing.narrow import require
from testing.synthetic import case

from busbw.backends.base import Backend
from busbw.measure.unsupported import Place, skip_reason
from busbw.ops.settings import Access, Way
from busbw.runs.records import Case, Measurement, Mode
from busbw.system.storage import storage_facts

pytestmark = ON_GPU

Measure = Callable[[Case], Measurement]
SIZE = 1 << 20
HERE = Place(oversubscribed=False, comparable=True)


@pytest.fixture
def way(folder: Path) -> Way:
    """How the page cache is kept out of files there."""
    facts = require(storage_facts(str(folder)))
    assert facts.error is None
    assert facts.way is not None
    return facts.way


@pytest.mark.parametrize("op", ["storage_write", "storage_read"])
def test_files_of_a_rank_with_a_gpu_are_verified(backend: Backend, measured: Measure, way: Way, op: str) -> None:
    planned = case(op, SIZE, 1, backend="nccl", device="cuda", access=Access(65536, 2, way))
    assert skip_reason(planned, backend, HERE) is None
    made = measured(planned)
    assert made.check.state == "verified"
    assert min(made.groups[0].slowest_ns) > 0


@pytest.mark.parametrize("mode", ["isolated", "overlap"])
def test_a_checkpoint_of_a_gpus_state_is_verified(backend: Backend, measured: Measure, mode: Mode) -> None:
    """Saved as ``save`` and, posted first and waited for behind a computation, as ``async_save`` does."""
    save = case("checkpoint_save", SIZE, 1, backend="nccl", device="cuda", mode=mode)
    assert skip_reason(save, backend, HERE) is None
    made = measured(save)
    assert made.check.state == "verified"
    (group,) = made.groups
    assert (group.overlap is not None) == (mode == "overlap")


def test_nothing_of_them_is_left(folder: Path, measured: Measure, way: Way) -> None:
    measured(case("storage_write", SIZE, 1, backend="nccl", device="cuda", access=Access(65536, 2, way)))
    measured(case("checkpoint_save", SIZE, 1, backend="nccl", device="cuda"))
    assert [path for path in folder.rglob("*") if path.is_file()] == []
