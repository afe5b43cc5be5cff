"""The shipped batch files as they are on a real Slurm, and MPI by both ways of srun."""

from __future__ import annotations

import re

import pytest
from exhaustive import thinned
from slurm_site import PMI2_GARBLED, Site, assert_whole

# --- the files in slurm/ ---------------------------------------------------------------------------------------


class TestShippedFiles:
    def test_processors_over_gloo(self, site: Site) -> None:
        number = site.shipped("cpu", ("--ntasks-per-node=1",))
        assert (site.ended(number).state, site.ended(number).exit_code) == ("COMPLETED", 0), site.log(number)
        assert_whole(site.run(number), launches=1, nodes=2, ranks=2, backend="gloo")

    def test_processors_over_the_mpi_of_the_environment(self, site: Site) -> None:
        # Ranks of MPICH that wait do not let go of their core, and here are few.
        number = site.shipped("mpi", ("--ntasks-per-node=1",))
        if site.ended(number).state == "FAILED" and PMI2_GARBLED in site.log(number):
            number = site.shipped("mpi", ("--ntasks-per-node=1",))
        assert site.ended(number).state == "COMPLETED", site.log(number)
        run = site.run(number)
        assert_whole(run, launches=1, nodes=2, ranks=2, backend="mpi")
        for facts in run.run.environments.values():
            assert facts.mpi is not None
            assert "MPICH" in str(facts.mpi.library)
            assert facts.mpi.transport["netmod"] == "ucx"

    def test_processors_over_open_mpi(self, site: Site, openmpi: dict[str, str]) -> None:
        number = site.shipped("mpi", ("--ntasks-per-node=1",), MPI="pmix", **openmpi)
        if site.ended(number).state == "FAILED" and re.search(r"Segmentation fault[^$]*MPI_Init", site.log(number)):
            # Open MPI 5.0 crashes at times, when a rank comes so late to MPI_Init that others speak to it already.
            number = site.shipped("mpi", ("--ntasks-per-node=1",), MPI="pmix", **openmpi)
        assert site.ended(number).state == "COMPLETED", site.log(number)
        run = site.run(number)
        assert_whole(run, launches=1, nodes=2, ranks=2, backend="mpi")
        for facts in run.run.environments.values():
            assert facts.mpi is not None
            assert "Open MPI" in str(facts.mpi.library)
            assert facts.mpi.transport["pml"] == "ob1", "which is what sends over TCP"

    def test_every_pair_of_nodes(self, site: Site) -> None:
        number = site.shipped("pairs", more=("--max-seconds", "0.02"), SIZES="8,64KiB")
        assert site.ended(number).state == "COMPLETED", site.log(number)
        run = site.run(number)
        assert_whole(run, launches=1, nodes=4, ranks=4, backend="gloo")
        (first, *_) = run.measurements
        assert {group.ranks for group in first.groups} == {(a, b) for a in range(4) for b in range(4) if a != b}

    def test_ranks_without_a_container(self, site: Site) -> None:
        number = site.shipped("container")
        assert site.ended(number).state == "COMPLETED", site.log(number)
        assert_whole(site.run(number), launches=1, nodes=2, ranks=4, backend="gloo")


# --- MPI that srun was not told of -----------------------------------------------------------------------------


class TestWrongMpi:
    @pytest.mark.parametrize("given", thinned(["none", "pmix"], 2))
    def test_singletons_are_an_error_that_names_the_flag(self, site: Site, given: str) -> None:
        number = site.shipped("mpi", ("--ntasks-per-node=1",), MPI=given)
        job = site.ended(number)
        assert (job.state, job.exit_code) == ("FAILED", 1)
        assert "--mpi=pmi2" in site.log(number)
        assert site.runs(number) == []

    def test_so_they_are_of_open_mpi(self, site: Site, openmpi: dict[str, str]) -> None:
        number = site.shipped("mpi", ("--ntasks-per-node=1",), MPI="pmi2", **openmpi)
        job = site.ended(number)
        assert (job.state, job.exit_code) == ("FAILED", 1)
        assert "--mpi=pmix" in site.log(number)
        assert site.runs(number) == []
