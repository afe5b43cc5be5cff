"""Joint fits and predictions over MPI, whose libraries choose algorithms by tables of their own."""

from collections.abc import Sequence

import pytest

from busbw.errors import UnlikeRuns
from busbw.records import JSON
from busbw.store import StoredRun
from busbw.testing.synthetic import Machine, World, case, synthetic_run
from busbw_analysis.evidence import read_groups
from busbw_analysis.load import pool

SIZES = tuple(64 * 4**step for step in range(8))
OPEN_MPI, MPICH = "Open MPI v5.0.8", "MPICH Version: 5.0.2"


def run(
    ranks: int,
    world: World | None = None,
    ops: Sequence[str] = ("all_reduce",),
    *,
    library: str = MPICH,
    threads: str = "multiple",
    cores: int = 64,
    seed: int | None = None,
) -> StoredRun:
    facts: dict[str, JSON] = {"mpi": {"library": library, "threads": threads, "device": "ch4:ucx ofi"}}
    cases = [case(op, size, ranks, backend="mpi") for op in ops for size in SIZES]
    machine = Machine(usable_cores=cores, facts=facts)
    return synthetic_run(cases, world or World(), machine=machine, samples=7, seed=seed or ranks)


def test_the_level_of_threads_that_follows_from_shared_cores_keeps_no_runs_apart() -> None:
    """Two ranks on two cores ask for ``funneled``, three for ``multiple``, and nobody chose that."""
    alone, crowded = run(2, threads="funneled", cores=2), run(3, cores=2)
    assert len(read_groups([alone, crowded])) == 2
    assert len(read_groups([crowded, alone, run(4, cores=2)])) == 3


def test_a_level_of_threads_that_somebody_chose_still_keeps_runs_apart() -> None:
    with pytest.raises(UnlikeRuns, match=r"'mpi.threads' is 'funneled' in run synthetic-2 and 'multiple'"):
        read_groups([run(2, threads="funneled"), run(3)])
    # The first is of another kind; the two that share cores are not alike.
    with pytest.raises(UnlikeRuns, match=r"'mpi.threads' is 'multiple' in run synthetic-3 and 'funneled'"):
        read_groups([run(2, threads="funneled", cores=2), run(3, cores=2), run(4, threads="funneled", cores=2)])
    with pytest.raises(UnlikeRuns, match=r"may not be pooled: 'mpi.threads'"):
        pool((run(2, threads="funneled"), run(2, seed=9)))
