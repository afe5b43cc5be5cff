"""The bed for people: ``python tests/cluster/bed up 4``, ``… on n1 COMMAND``, ``… down``."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bed.hosts import START_SECONDS, BedError, wait_until
from bed.network import Cable, Network
from bed.network import Path as Way
from bed.prerequisites import missing
from bed.whole import Bed


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit code."""
    options = _parser().parse_args(arguments)
    folder = Path(tempfile.gettempdir()) / f"busbw-bed-{options.name}"
    try:
        return int(options.action(folder, options))
    except (BedError, ValueError) as error:
        sys.stderr.write(f"bed: {error}\n")
        return 1


def _up(folder: Path, options: argparse.Namespace) -> int:
    if reasons := missing(slurm=not options.no_slurm):
        raise BedError("; ".join(reasons))
    _sweep_up(folder)
    with tempfile.TemporaryFile() as told:
        keeper = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent), *sys.argv[1:], "--keep"],
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=told,
            start_new_session=True,
        )
        state = folder / "bed.json"
        wait_until(lambda: state.exists() or keeper.poll() is not None, "the bed did not start", 2 * START_SECONDS)
        if not state.exists():
            told.seek(0)
            raise BedError(told.read().decode(errors="replace").strip())
    bed = Bed.attached(folder)
    sys.stdout.write(f"{', '.join(bed.names)} and head are up; their folder is {folder}\n")
    return 0


def _keep(folder: Path, options: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    network, slurm = _network(options), not options.no_slurm
    with Bed(options.hosts, network, slurm, cpus=options.cpus, shared=options.share, folder=folder):
        while True:
            signal.pause()


def _down(folder: Path, _options: argparse.Namespace) -> int:
    if not _sweep_up(folder):
        bed = Bed.attached(folder)
        os.kill(bed.keeper, signal.SIGTERM)
        wait_until(lambda: not folder.exists(), f"process {bed.keeper} does not take the bed down")
    return 0


def _on(folder: Path, options: argparse.Namespace) -> int:
    bed = Bed.attached(folder)
    argv = bed.command(options.host, options.command, Path.cwd())
    os.execvpe(argv[0], argv, {**bed.environment(), "TERM": os.environ.get("TERM", "dumb")})  # noqa: S606 - its place is taken


def _set(folder: Path, options: argparse.Namespace) -> int:
    Bed.attached(folder).set_network(_network(options))
    return 0


def _cut(folder: Path, options: argparse.Namespace) -> int:
    Bed.attached(folder).cut(options.host)
    return 0


def _mend(folder: Path, options: argparse.Namespace) -> int:
    Bed.attached(folder).mend(options.host)
    return 0


def _sweep_up(folder: Path) -> bool:
    """Remove what a bed left that was killed; whether there was no more than that."""
    if not folder.exists():
        return False
    try:
        Bed.attached(folder)
    except BedError:
        shutil.rmtree(folder)
        return True
    return False


def _network(options: argparse.Namespace) -> Network:
    cables = {host: Cable(float(up), float(down), float(delay)) for host, up, down, delay in options.cable}
    paths = tuple(Way(source, to, float(rate), float(delay)) for source, to, rate, delay in options.path)
    return Network(options.rate, options.delay, cables, paths)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tests/cluster/bed", description="virtual hosts, their network, and a Slurm")
    parser.add_argument("--name", default="mine", help="which bed, where there are several (default: mine)")
    actions = parser.add_subparsers(required=True, metavar="ACTION")

    up = actions.add_parser("up", help="make a bed that stays until `down`")
    up.add_argument("hosts", type=int, nargs="?", default=4)
    up.add_argument("--no-slurm", action="store_true", help="hosts and network only")
    up.add_argument("--cpus", type=int, default=4, help="what Slurm believes that a host has (default: 4)")
    up.add_argument(
        "--share", type=Path, action="append", default=[], metavar="FOLDER", help="below /tmp, for all hosts"
    )
    up.add_argument("--keep", action="store_const", dest="action", const=_keep, help=argparse.SUPPRESS)
    up.set_defaults(action=_up)

    network = actions.add_parser("network", help="make the network so from now on")
    network.set_defaults(action=_set)
    for one in (up, network):
        one.add_argument("--rate", type=float, default=0.0, help="Mbit/s of every cable (default: unlimited)")
        one.add_argument("--delay", type=float, default=0.0, help="ms from host to host, one way (default: 0)")
        one.add_argument(
            "--cable",
            nargs=4,
            action="append",
            default=[],
            metavar=("HOST", "UP", "DOWN", "DELAY"),
            help="one cable that is not so: Mbit/s up and down, and its own part of the delay",
        )
        one.add_argument(
            "--path",
            nargs=4,
            action="append",
            default=[],
            metavar=("FROM", "TO", "RATE", "DELAY"),
            help="a limit (Mbit/s, 0: none) and a delay (ms) on top from one host to another, in this direction",
        )

    on = actions.add_parser("on", help="run a command on a host: n1, n2, …, or head")
    on.add_argument("host")
    on.add_argument("command", nargs=argparse.REMAINDER)
    on.set_defaults(action=_on)
    for name, action, text in (("cut", _cut, "cut the cable of a host"), ("mend", _mend, "mend it")):
        one = actions.add_parser(name, help=text)
        one.add_argument("host")
        one.set_defaults(action=action)
    actions.add_parser("down", help="end everything, leave nothing").set_defaults(action=_down)
    return parser
