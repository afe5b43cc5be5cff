"""What command lines of launchers say of ranks and hosts."""

import pytest

from busbw_analysis.data.readers.launched import launched


@pytest.mark.parametrize(
    ("command", "ranks", "hosts"),
    [
        ("srun -N2 --ntasks-per-node=4", 8, 2),
        ("srun -n4 -N2", 4, 2),
        ("srun -n2 -N1", 2, 1),
        ("mpirun -np 16 -N 8", 16, 2),
        ("mpirun -np 16 --map-by ppr:8:node", 16, 2),
        ("mpirun -np 16 --map-by ppr:8:numa", 16, None),
        ("mpirun -np 8 -H a:4,b:4", 8, 2),
        ("mpirun -np 2 -H a:4,b:4", 2, None),  # both may be on the first
        ("mpirun -np 2 -N 1 -H a:4,b:4", 2, 2),
        ("mpirun -np 2 -H a,b", 2, 2),
        ("mpirun -H a:4,b:4", 8, 2),
        ("mpirun -np 8", 8, None),
        ("srun", None, None),
    ],
)
def test_ranks_and_hosts_of_a_command(command: str, ranks: int | None, hosts: int | None) -> None:
    launch = launched(f"{command} ")
    assert (launch.ranks, launch.even_hosts) == (ranks, hosts)
