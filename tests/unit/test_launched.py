"""What command lines of launchers say of ranks and hosts."""

import pytest

from busbw_analysis.data.readers.launched import Launched, launched, launched_any


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
        ("srun -n 16 --nodes=2-4", 16, None),
        ("jsrun -n 4 -a 4 -g 4", None, None),  # -n counts sets of resources
        ("srun", None, None),
    ],
)
def test_ranks_and_hosts_of_a_command(command: str, ranks: int | None, hosts: int | None) -> None:
    launch = launched(f"{command} ")
    assert (launch.ranks, launch.even_hosts) == (ranks, hosts)


@pytest.mark.parametrize(
    ("command", "ranks", "hosts"),
    [
        ("srun -n 4 -N 2 ./bench -N 8 out.csv", 4, 2),
        ("srun -n 4 -l ./bench -N 2 out.csv", 4, None),
        ("srun -n 2 ./bench --gpus 8", None, None),  # each may drive several
        ("srun -n 2 ./bench --gpus 1", 2, None),
        ("mpirun -np 4 -host a ./bench : -np 4 -host b ./bench", None, None),
        ("mpirun --hostfile ./hosts -np 4 ./bench", 4, None),
    ],
)
def test_the_options_of_a_program_are_none_of_its_launcher(command: str, ranks: int | None, hosts: int | None) -> None:
    assert launched_any(command) == Launched(ranks, hosts)
