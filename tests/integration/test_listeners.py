"""Nothing of a run on this machine takes connections from another one."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from busbw.backends import BACKENDS

if TYPE_CHECKING:
    from tests.integration.conftest import Commands

pytestmark = pytest.mark.integration

_OF_MPIEXEC = ("mpiexec", "hydra_pmi_proxy", "mpi_stub.py")
"""MPICH's own processes, and what inherits its socket: mpiexec listens everywhere, and has no option against it."""


def _of_the_run(command: list[str]) -> bool:
    return not any(name in word for name in _OF_MPIEXEC for word in command)


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_a_local_run_listens_on_the_loopback_alone(commands: Commands, backend: str) -> None:
    missing = BACKENDS[backend].missing()
    if missing is not None:
        pytest.skip(missing)
    started = commands.start("run", "--plan", commands.long(), "--ranks", "2", "--backend", backend, "--quiet")
    started.rows()
    addresses: set[str] = set()
    for pid in commands.alive():
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if _of_the_run(process.cmdline()):
                sockets = process.net_connections("tcp")
                addresses |= {connection.laddr.ip for connection in sockets if connection.status == psutil.CONN_LISTEN}
    commands.clear()
    assert addresses, "the rendezvous, at least"
    assert addresses <= {"127.0.0.1", "::1"}
