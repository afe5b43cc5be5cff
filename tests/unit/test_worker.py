"""What a rank does when its backend is lost or its device fails, and what is told of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from testing.devices import DeviceScript
from testing.fakes import FakeWorld, Script
from testing.narrow import require_type

from busbw.backends import BACKENDS
from busbw.backends.base import Backend, World
from busbw.backends.faults import WrappingBackend
from busbw.errors import BackendError, LaunchError, RankFailure
from busbw.launch import local, worker
from busbw.launch.run_session import Listener
from busbw.launch.worker import Job, run
from busbw.runs.causes import cause_of
from busbw.runs.plan import Plan, Sweep


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
        run(job, World(1, 2, 1, "local", 5.0, lost=heard.append), Listener())
    assert [(type(error), str(error)) for error in heard] == [(LaunchError, "rank 1: nothing came back")]


class Overheated(WrappingBackend):
    """Its library raises errors of its own."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.raises: tuple[type[Exception], ...] = (BackendError, RuntimeError)

    def explain(self, error: Exception) -> str:
        return f"in words: {error}"


@pytest.mark.parametrize("step", ["compute", "synchronise"])
def test_an_error_of_the_device_in_the_warm_up_is_one_of_the_backend_which_the_others_are_told(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_given: object) -> None:
        message = "CUDA error: uncorrectable ECC error encountered"
        raise RuntimeError(message)

    (backend,) = FakeWorld(1, Script(device=DeviceScript())).backends
    monkeypatch.setattr(backend.stream, step, fails)
    with pytest.raises(BackendError, match="ECC"):
        worker._warm_up(Overheated(backend), backend.clock, 1.0)


def test_a_rank_that_reports_too_late_is_still_named_as_lost() -> None:
    failures = (RankFailure("it failed on every rank"), RankFailure("rank 0 did not answer", (0,), "closed"))
    exited: Any = SimpleNamespace(exitcode=1)
    ranks = [local._Rank(number, exited, exited, failure=failure) for number, failure in enumerate(failures)]
    error = require_type(RankFailure, local._error_of(local.Watch(ranks)))
    assert (error.lost, error.said) == ((0,), "closed")
    assert cause_of(error) == "timeout"
