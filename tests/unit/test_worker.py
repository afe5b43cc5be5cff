"""What a rank does with the word of a backend that it is lost."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from busbw.backends import BACKENDS
from busbw.backends.base import Backend, World
from busbw.errors import BackendError, LaunchError
from busbw.listeners import Silent
from busbw.plan import Plan, Sweep
from busbw.worker import Job, run


class _Broken(Exception):
    """The world did not form."""


def test_a_backend_that_gives_up_before_there_is_a_world_is_heard_once(tmp_path: Path) -> None:
    heard: list[Exception] = []

    def opened(world: World) -> Backend:
        world.lost(BackendError("nothing came back"))
        raise _Broken

    row = dataclasses.replace(BACKENDS["gloo"], open=opened)
    job = Job(Plan(sweep=(Sweep(ops=("barrier",)),)), tmp_path, 0, "local", row)
    with pytest.raises(_Broken):
        run(job, World(1, 2, 1, "local", 5.0, lost=heard.append), Silent())
    assert [(type(error), str(error)) for error in heard] == [(LaunchError, "rank 1: nothing came back")]
