"""What the cluster tests share: beds, and the rule for machines that cannot have one.

Without root, TUN devices or the packages of ``make cluster-setup`` these tests are skipped with the reason; with
``BUSBW_CLUSTER=required`` in the environment that is a failure.

Tests marked ``measures`` hold times against the truth. Where the hypervisor takes the processors away meanwhile, the
network itself stands still, and a failure says nothing of busbw: it then counts as skipped, with that reason.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from bed import Bed, Network, missing

MOST_STOLEN = 0.05
"""The share of the processors' time that the hypervisor may take from a test that measures."""

_STEAL = 7
"""Place of the stolen time among the numbers of the first line of /proc/stat (proc(5))."""


def processor_ticks() -> tuple[int, int]:
    """What all processors have counted since the machine began: all of their time, and that which was stolen."""
    numbers = [int(word) for word in Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:9]]
    return sum(numbers), numbers[_STEAL]


_AT_THE_START_OF_ITS_MODULE: dict[str, tuple[int, int]] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What a module's tests share is measured once, so the module is what counts."""
    _AT_THE_START_OF_ITS_MODULE.setdefault(item.nodeid.partition("::")[0], processor_ticks())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A measurement that failed on a machine without its processors proves nothing."""
    report = yield
    if report.failed and item.get_closest_marker("measures"):
        total, stolen = (
            now - then
            for now, then in zip(
                processor_ticks(), _AT_THE_START_OF_ITS_MODULE[item.nodeid.partition("::")[0]], strict=True
            )
        )
        if total and stolen / total > MOST_STOLEN:
            path, line, _ = item.location
            why = f"the hypervisor took {stolen / total:.0%} of the processors meanwhile; it failed: {report.longrepr}"
            report.outcome, report.longrepr = "skipped", (path, (line or 0) + 1, why)
    return report


@pytest.fixture(scope="session", autouse=True)
def bed_is_possible() -> None:
    """Skip, or fail where that is asked for, when this machine cannot have a bed."""
    reasons = missing(slurm=True)
    if reasons:
        told = f"no virtual cluster here: {'; '.join(reasons)}"
        if os.environ.get("BUSBW_CLUSTER") == "required":
            pytest.fail(told)
        pytest.skip(told)


@pytest.fixture(scope="module")
def cluster_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """Four hosts with Slurm; what ``tmp_path`` gives is seen by all of them."""
    with Bed(hosts=4, slurm=True, shared=[tmp_path_factory.getbasetemp()]) as bed:
        yield bed


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
