"""The words of every command, a file for each invocation: ``make golden`` rewrites tests/golden.

It also rewrites what is read of each log in tests/data/logs.

The files hold what a command was asked, what it prints and its exit status, on runs whose numbers are known; what
depends on the machine is set or left out. To ask more, add a line
``$ busbw …`` to a file, or a file; ``make golden`` writes the rest.
``test_golden.py`` compares them; other tests assert codes and numbers.
"""

import json
import os
import random
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Final
from unittest.mock import patch

import click
import msgspec
from click.testing import CliRunner
from testing import logs
from testing.synthetic import Machine, Piece, SyntheticEnd, World, case, planned, synthetic_run

from busbw import __version__
from busbw.backends.base import BackendRow
from busbw.cli.main import main
from busbw.measure.unsupported import anywhere
from busbw.runs import store
from busbw.runs.records import Case
from busbw.runs.store import StoredRun
from busbw_analysis.data.kept import read_summarised

FOLDER: Final = Path(__file__).parents[1] / "golden"
LIST: Final = FOLDER / "FILES"
"""The files, so that a lost one is noticed: each is also the only place of what it asks."""
_WIDTH = 120
_KIB, _MIB = 1 << 10, 1 << 20
_SIZES = tuple(8 * 4**step for step in range(11))
_CORES = 16
_ASKED: Final = "$ busbw "
"""What an invocation begins with, before its arguments."""


def invocations() -> dict[str, tuple[str, ...]]:
    """Arguments of ``busbw`` by the path of the file of the output, below ``FOLDER`` and without ``.txt``: what each
    file has asked, and the help of each command.
    """
    asked = {}
    for path in sorted(FOLDER.rglob("*.txt")):
        lines = path.read_text(encoding="utf-8").splitlines()
        file = str(path.relative_to(FOLDER).with_suffix(""))
        asked[file] = tuple(line.removeprefix(_ASKED) for line in lines if line.startswith(_ASKED))
    commands = main.list_commands(click.Context(main))
    return {**asked, **{f"{command}/help": (f"{command} --help",) for command in commands}}


def transcript(asked: Sequence[str], inputs: Path) -> str:
    """What invocations print, one after the other, in a copy of the folder of ``write_inputs``, each with its exit
    status.
    """
    with _workplace(inputs) as environment:
        return "".join(_transcript(arguments, environment) for arguments in asked)


def _transcript(arguments: str, environment: Mapping[str, str | None]) -> str:
    command = main.get_command(click.Context(main), arguments.split(maxsplit=1)[0])
    if command is not None:
        command._help_option = None  # click keeps the one of whoever called the command by itself before
    result = CliRunner(env=environment).invoke(main, shlex.split(arguments), prog_name="busbw", terminal_width=_WIDTH)
    output, error = (_without_place(text) for text in (result.stdout, result.stderr))
    if result.exit_code == 0 and "--output page" in arguments:
        output = Path("page/report.md").read_text(encoding="utf-8").replace(__version__, "VERSION")
    lines = [f"{_ASKED}{arguments}", *output.splitlines(), *(f"stderr: {line}" for line in error.splitlines())]
    return "".join(f"{line.rstrip()}\n" for line in [*lines, f"exit status {result.exit_code}"])


def _without_place(text: str) -> str:
    return text.replace(str(Path.cwd()), "HERE").replace(__version__, "VERSION")


def write_inputs(folder: Path) -> None:
    """Write the runs, logs and plans that the invocations name."""
    results = folder / "results/synthetic"
    for name, stored in _runs().items():
        (results / name).mkdir(parents=True)
        store.write_run(results / name, stored.run)
        with store.Appender(results / name) as appender:
            for row in stored.rows:
                appender.append(row)
    shutil.copytree(FOLDER.parent / "data/runs/mpi-modes", results / "stored")
    shutil.copytree(FOLDER.parent / "data/runs/training", results / "trained")
    shutil.copy(FOLDER.parent / "data/logs/nccl-tests-2.19.txt", folder / "all_reduce.log")
    shutil.copy(FOLDER.parent / "data/training/megatron.log", folder / "training.log")
    (folder / "pairs.jsonl").write_text(f"{json.dumps(_pairs_of_nodes())}\n", encoding="utf-8")
    shutil.copytree(FOLDER.parent / "data/golden", folder / "plans")
    for path in folder.glob("results/*/*/run.json"):
        read_summarised(path.parent)  # once, not in every copy of the folder


def _pairs_of_nodes() -> dict[str, object]:
    """What SuperBench summarises of the pairs of eight nodes, one of which is twice as slow; GB/s."""
    draw, nodes = random.Random(3), [f"n{number:02}" for number in range(1, 9)]
    rates = {
        f"ib-traffic/ib_write_bw_8388608_gpu-to-gpu_{place}_0:{first}_{second}:0": 46.2
        * draw.lognormvariate(0, 0.02)
        / (2 if "n03" in {first, second} else 1)
        for place, (first, second) in enumerate(combinations(nodes, 2))
    }
    return {"node": nodes[0], "ib-traffic/return_code:0": 0.0, **rates}


@contextmanager
def _workplace(inputs: Path) -> Iterator[dict[str, str | None]]:
    """A copy of the inputs as the working directory, on a machine of 16 cores that lacks nothing; its environment."""
    outside: dict[str, str | None] = {
        name: None for name in os.environ if name.startswith(("BUSBW_", "SLURM_", "OMPI_", "PMI", "XDG_"))
    }
    with tempfile.TemporaryDirectory() as place, chdir(place), ExitStack() as changed:
        shutil.copytree(inputs, place, dirs_exist_ok=True)
        for what, instead in {
            "busbw.system.environment.cores_of_launcher": lambda: _CORES,
            "busbw.system.environment.versions": lambda _: {},
            "busbw.launch.run_session.place_here": lambda _: anywhere(),
            "busbw.launch.run_session.way_here": lambda *_: "direct",
        }.items():
            changed.enter_context(patch(what, instead))
        changed.enter_context(patch.object(BackendRow, "missing", lambda _: None))
        yield {**outside, "HOME": place, "COLUMNS": "80"}


def _runs() -> dict[str, StoredRun]:
    steady = World(launch_noise=0.01, by_op={"memory_copy": (Piece(2e-6, 2e-10),)}, slow_ranks=(2,), slow_factor=3.0)
    slower = World(pieces=(Piece(30e-6, 1.5e-10),), launch_noise=0.01, late_rank=1, late_seconds=60e-6)
    usual = [*(case(op, size) for op in ("all_reduce", "memory_copy") for size in _SIZES), case("pair_matrix", _MIB)]
    nightly = [case("all_reduce", size) for size in (64, _KIB, _MIB)]
    few = Machine(usable_cores=2)
    wrong = SyntheticEnd({usual[3]: "wrong data in element 7"}, {usual[4]: "no room"}, reached=12, ended="interrupted")
    return {
        "usual": _run("usual", usual, steady, launches=6),
        **{f"night-{seed}": _run(f"night-{seed}", nightly, steady, launches=8, seed=seed) for seed in (1, 2, 3)},
        "night-4": _run("night-4", nightly, slower, launches=8, seed=4),
        "slower": _run("slower", usual, slower, launches=6),
        "broken": _run("broken", usual, slower, launches=2, machine=few, end=wrong),
        "another": _run("another", usual, steady, machine=Machine(name="another")),
        "with-rings": _run(
            "with-rings",
            [case("all_reduce", size, algorithm=name) for size in _SIZES for name in (None, "ring")],
            World(launch_noise=0.01, by_setting={"ring": (Piece(30e-6, 9e-11),)}),
            launches=8,
            label="rings",
        ),
        **{
            f"ranks-{ranks}": _run(
                f"ranks-{ranks}",
                [case(op, size, ranks) for op in ("all_reduce", "ping_pong") for size in _SIZES],
                World(pieces=(Piece(10e-6 * ranks, 2e-10 * (ranks - 1) / ranks),), sample_noise=0.01),
                launches=6,
            )
            for ranks in (2, 4)
        },
    }


def _run(
    name: str,
    cases: Sequence[Case],
    world: World,
    *,
    launches: int = 3,
    machine: Machine | None = None,
    end: SyntheticEnd | None = None,
    label: str | None = None,
    seed: int = 0,
) -> StoredRun:
    stored = synthetic_run(cases, world, machine=machine, launches=launches, samples=9, end=end, seed=seed)
    return replace(stored, run=msgspec.structs.replace(planned(stored.run, label=label), id=name))


if __name__ == "__main__":
    asked = invocations()
    shutil.rmtree(FOLDER)
    with tempfile.TemporaryDirectory() as inputs:
        write_inputs(Path(inputs))
        for file, of_file in asked.items():
            (FOLDER / file).parent.mkdir(parents=True, exist_ok=True)
            (FOLDER / f"{file}.txt").write_text(transcript(of_file, Path(inputs)), encoding="utf-8")
    LIST.write_text("".join(sorted(f"{file}.txt\n" for file in asked)), encoding="utf-8")
    logs.EXPECTED.write_text(logs.expected(), encoding="utf-8")
