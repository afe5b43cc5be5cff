"""A bed to try things on by hand, in an interactive Python: ``python tests/cluster/bed 4 --rate 1000 --delay 0.1``."""

import argparse
import code
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import bed as package  # noqa: E402 - the folder above has to be on the path first

parser = argparse.ArgumentParser(prog="tests/cluster/bed", description="virtual hosts, their network, and a Slurm")
parser.add_argument("hosts", type=int, nargs="?", default=4)
parser.add_argument("--no-slurm", action="store_true", help="hosts and network only")
parser.add_argument("--rate", type=float, default=0.0, help="Mbit/s of every cable (default: unlimited)")
parser.add_argument("--delay", type=float, default=0.0, help="ms from host to host, one way (default: 0)")
options = parser.parse_args()
if reasons := package.missing(slurm=not options.no_slurm):
    sys.exit("; ".join(reasons))
with package.Bed(options.hosts, package.Network(options.rate, options.delay), slurm=not options.no_slurm) as there:
    names = {name: getattr(package, name) for name in package.__all__}
    code.interact(f"bed: {', '.join(there.names)} and head; its folder is {there.place}", local={**names, "bed": there})
