"""A team of threads: who works where, who sleeps, and that none is left whatever happens."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.backends.compiled_loop import Compiled
from busbw.backends.local import kernels
from busbw.backends.local.kernels import LINE_BYTES
from busbw.backends.local.threads import Words, cores_in_order, lines, pieces, shares, team_of
from busbw.errors import BackendError
from busbw.system.environment import allowed_cores, binds_threads

pytestmark = [pytest.mark.skipif(kernels.missing() is not None, reason=str(kernels.missing())), pytest.mark.alone]


def made() -> Compiled:
    return kernels.kernels()


def written_by(threads: int, array: npt.NDArray[np.float64]) -> Words:
    each = len(array) // threads
    return pieces([(array.ctypes.data + number * each * array.itemsize, 0, 0, each) for number in range(threads)])


def threads_of_process() -> set[int]:
    return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_thread_does_its_piece_of_every_work(threads: int) -> None:
    before = threads_of_process()
    team = team_of(made(), threads, 0)
    array = np.zeros(threads * 1000)
    work = written_by(threads, array)
    for _ in range(20):
        array[:] = 0
        team.do(made().of("memory_write", "float64"), work)
        assert (array == 3).all()
    assert len(threads_of_process() - before) == threads - 1
    team.end()
    until = time.monotonic() + 10
    while threads_of_process() - before and time.monotonic() < until:
        time.sleep(0.01)  # a thread that was joined is in /proc for a moment longer
    assert threads_of_process() <= before


def test_threads_that_have_gone_to_sleep_are_woken() -> None:
    team = team_of(made(), 2, 0)
    array = np.zeros(2000)
    for _ in range(3):
        time.sleep(0.05)
        array[:] = 0
        team.do(made().of("memory_write", "float64"), written_by(2, array))
        assert (array == 3).all()
    team.end()


def test_threads_do_not_burn_a_core_while_nothing_is_measured() -> None:
    team = team_of(made(), 2, 0)
    team.do(made().of("nothing"), written_by(2, np.zeros(2)))
    time.sleep(0.3)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.15
    team.end()


@pytest.mark.skipif(not binds_threads() or len(allowed_cores()) < 2, reason="wants two cores that may be chosen")
def test_threads_are_on_distinct_cores_and_the_first_one_is_free_again_afterwards() -> None:
    home, before = os.sched_getaffinity(0), threads_of_process()
    team = team_of(made(), 2, 0)
    team.do(made().of("nothing"), written_by(2, np.zeros(2)))
    (worker,) = threads_of_process() - before
    mine, others = os.sched_getaffinity(0), os.sched_getaffinity(worker)
    assert team.bound
    assert (len(mine), len(others), len(mine | others)) == (1, 1, 2)
    team.end()
    assert os.sched_getaffinity(0) == home


def test_more_threads_than_cores_are_not_bound() -> None:
    team = team_of(made(), len(allowed_cores()) + 1, 0)
    assert not team.bound
    team.end()


def test_a_team_is_shared_until_it_ends() -> None:
    before = threads_of_process()
    first = team_of(made(), 2, 0)
    assert team_of(made(), 2, 0) is first
    first.end()
    first.end()
    assert threads_of_process() <= before
    second = team_of(made(), 2, 0)
    array = np.zeros(2000)
    second.do(made().of("memory_write", "float64"), written_by(2, array))
    assert (array == 3).all()
    second.end()


def test_threads_that_cannot_be_started_are_an_error_and_those_that_were_end(monkeypatch: pytest.MonkeyPatch) -> None:
    home, before, begin = os.sched_getaffinity(0), threads_of_process(), threading.Thread.start
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        if started:
            message = "can't start new thread"
            raise RuntimeError(message)
        started.append(thread)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(BackendError):
        team_of(made(), 3, 0)
    assert threads_of_process() <= before
    assert os.sched_getaffinity(0) == home


# --- slices ----------------------------------------------------------------------------------------------------


@given(count=st.integers(0, 10_000), threads=st.integers(1, 70), unit=st.sampled_from([1, 8, 16, 512]))
def test_slices_touch_each_other_cover_everything_and_begin_at_lines(count: int, threads: int, unit: int) -> None:
    slices = shares(count, threads, unit)
    assert len(slices) == threads
    assert sum(length for _, length in slices) == count
    place = 0
    for start, length in slices:
        assert start == place
        assert length == 0 or start % unit == 0
        place += length
    lengths = [length for _, length in slices]
    assert max(lengths) - min(lengths) < 2 * unit


def test_lines_begin_where_lines_of_the_cache_do() -> None:
    for count in (1, 3, 8):
        made_lines = lines(count)
        assert made_lines.ctypes.data % LINE_BYTES == 0
        assert made_lines.nbytes == count * LINE_BYTES


def test_siblings_of_a_physical_core_are_taken_last(tmp_path: Path) -> None:
    for core, siblings in {0: "0-1", 1: "0-1", 2: "2,3", 3: "2,3"}.items():
        folder = tmp_path / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n", encoding="utf-8")
    assert cores_in_order([0, 1, 2, 3], tmp_path) == [0, 2, 1, 3]
    assert cores_in_order([1, 2, 3], tmp_path) == [1, 2, 3]
    assert cores_in_order([4, 5], tmp_path) == [4, 5]
