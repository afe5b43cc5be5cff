"""Virtual hosts on this machine, a network between them whose truth is set by us, and a real Slurm on top.

    with Bed(hosts=4, slurm=True) as bed:
        bed.set_network(Network(rate_mbit=1000, delay_ms=1))
        bed.run_on("n1", ["ping", "-c1", "n2"])
        job = bed.sbatch(["--nodes=2", "--wrap=srun hostname"])

README.md in the folder above says more.
"""

from bed.hosts import BedError
from bed.network import Cable, Network, Path, Trunk, both_ways
from bed.prerequisites import missing
from bed.ranks import Fault, RankEnd, Ranks
from bed.whole import HEAD, Bed, Job

__all__ = [
    "HEAD",
    "Bed",
    "BedError",
    "Cable",
    "Fault",
    "Job",
    "Network",
    "Path",
    "RankEnd",
    "Ranks",
    "Trunk",
    "both_ways",
    "missing",
]
