"""What a rank does when its backend is lost or its device fails, and what is told of it."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from testing.devices import DeviceScript
from testing.fakes import FakeWorld, Script
from testing.narrow import require_type

from busbw.backends import BACKENDS
from busbw.backends.base import Backend, World
from busbw.backends.faults import WrappingBackend
from busbw.errors import BackendError, LaunchError, RankFailure
from busbw.launch import local, worker
from busbw.launch.run_session import Listener, RunSession, Settings
from busbw.launch.signals import raise_interrupt
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


@pytest.mark.parametrize(("before", "after"), [(signal.SIG_IGN, signal.SIG_IGN), (signal.SIG_DFL, raise_interrupt)])
def test_a_signal_that_whoever_started_the_run_ignores_does_not_end_it(
    tmp_path: Path, before: signal.Handlers, after: object
) -> None:
    plan = Plan(sweep=(Sweep(ops=("barrier",)),))
    handlers = {number: signal.signal(number, before) for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1)}
    try:
        local._run_launches(plan, BACKENDS["gloo"], Settings(tmp_path), RunSession(tmp_path, ()), 2)
        assert [signal.getsignal(number) for number in handlers] == [after] * 3
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("port", [0, 45678])
def test_another_port_is_advised_only_to_whoever_gave_one(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("busbw.backends.side_channel.serve_store", Mock(side_effect=OSError(24, "Too many open files")))
    job = Job(Plan(sweep=(Sweep(ops=("barrier",)),)), tmp_path, 0, "local", BACKENDS["gloo"])
    with pytest.raises(LaunchError, match="Too many open files") as caught:
        local.launch_ranks(job, local.Watch(), 0, 0.0, port, quiet=True)
    assert ("--port" in str(caught.value)) == bool(port)


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
