"""Shared memory of MPI ranks: what this process has mapped goes, and nobody else's does."""

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from testing.narrow import require

from busbw.backends.mpi.segments import EARLY, LATE, remove_segments

_SHM = Path("/dev/shm")  # noqa: S108 - what is tested is there

pytestmark = pytest.mark.skipif(not _SHM.is_dir(), reason="there is no /dev/shm here")


@contextmanager
def segment(beginning: str) -> Iterator[Path]:
    path = _SHM / f"{beginning}busbw_test_{os.getpid()}_{os.urandom(4).hex()}"
    path.write_bytes(b"\0" * mmap.PAGESIZE)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def test_only_what_is_mapped_here_and_is_named_so_is_removed() -> None:
    with segment(EARLY[0]) as mine, segment(EARLY[0]) as of_others, segment("mine_") as another_name:
        maps = []
        for path in (mine, another_name):
            with path.open("r+b") as file:
                maps.append(mmap.mmap(file.fileno(), 0))
        remove_segments("self", EARLY)
        assert [path.exists() for path in (mine, of_others, another_name)] == [False, True, True]
        maps[0][0] = 1  # memory that is mapped stays
        remove_segments("self", EARLY)


def test_the_launcher_removes_those_of_a_rank_that_it_kills() -> None:
    hold = (
        "import mmap, sys; file = open(sys.argv[1], 'r+b'); held = mmap.mmap(file.fileno(), 0); print(flush=True); "
        "sys.stdin.read()"
    )
    with segment("vader_segment.") as path:
        process = subprocess.Popen(
            [sys.executable, "-c", hold, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        require(process.stdout).readline()
        remove_segments(process.pid, EARLY)
        assert path.exists()
        remove_segments(process.pid, LATE)
        assert not path.exists()
        process.kill()
        process.communicate()
    remove_segments(process.pid, LATE)
