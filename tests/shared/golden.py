"""The words of every command, one file each: ``make golden`` rewrites tests/golden, ``test_golden.py`` compares.

It also rewrites what is read of each log in tests/data/logs.

The files hold what a command prints and its exit status, on runs whose numbers are known; what depends on the machine
is set or left out. Other tests assert codes and numbers.
"""

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final
from unittest.mock import patch

import click
import msgspec
from click.testing import CliRunner
from testing import logs
from testing.synthetic import Machine, Piece, SyntheticEnd, World, case, synthetic_run

from busbw import __version__
from busbw.backends.base import BackendRow
from busbw.cli.main import main
from busbw.measure.unsupported import anywhere
from busbw.runs import store
from busbw.runs.records import Case
from busbw.runs.store import StoredRun

FOLDER: Final = Path(__file__).parents[1] / "golden"
_WIDTH = 120
_KIB, _MIB = 1 << 10, 1 << 20
_SIZES = tuple(8 * 4**step for step in range(11))
_CORES = 16
_PREDICT = "--from ranks-2 --from ranks-4 --op all_reduce"
_LLAMA = "--model 'Llama 3 70B'"
_PLAN = '[[sweep]]\nops = ["barrier"]\n'

PLANS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "unknown-key": f'{_PLAN}sise = "8"\n',
        "no-array": '[[sweep]]\nops = "barrier"\n',
        "no-text": f"{_PLAN}{_PLAN}sizes = 8\n",
        "no-such-op": '[[sweep]]\nops = ["bar"]\n',
    }
)
"""Plans with a mistake each."""

COMMANDS: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        **{name: [f"{name} --help"] for name in main.list_commands(click.Context(main))},
        "busbw": ["--help", "--version", "nothing"],
        "list": [
            "list --help",
            *(f"list {what}" for what in ("ops", "backends", "algorithms", "suites", "launchers", "runs")),
            "list everything",
        ],
        "show": [
            "show --help",
            "show usual",
            "show broken",
            "show stored",
            "show trained",
            "show usual another",
            "show nowhere",
        ],
        "fit": ["fit --help", "fit ranks-2 ranks-4", "fit stored", "fit nowhere"],
        "predict": [
            "predict --help",
            f"predict {_PREDICT} --ranks 256 --size 1KiB..1GiB*1024",
            f"predict {_PREDICT} --ranks 4",
            f"predict {_PREDICT} --ranks 4 --size 100KiB",
            f"predict {_PREDICT} --ranks 1 --size 1MiB",
            f"predict {_PREDICT} --ranks 8 --size 0",
            f"predict {_PREDICT} --ranks 8 --size 1MB",
            f"predict {_PREDICT} --ranks 8 --size 1MiB --hosts 2",
            f"predict {_PREDICT} --ranks 8 --size 1MiB --hosts 9",
            f"predict {_PREDICT} --ranks 8 --size 1MiB --algorithm rings",
            f"predict {_PREDICT} --ranks 8 --size 1MiB --plot scaling.jpg",
            f"predict {_PREDICT} --ranks 8 --size 1KiB,1MiB --plot scaling.svg",
            f"predict {_PREDICT} --ranks 8 --size 1MiB --from ranks-2",
            f"predict {_PREDICT} --ranks 8 --size 1MiB --from another",
            f"predict {_PREDICT} --ranks 8 --size 1MiB --from nowhere",
            f"predict {_PREDICT} --size 1MiB",
            "predict --from ranks-4 --op broadcast --ranks 8 --size 1MiB",
        ],
        "compare": [
            "compare --help",
            "compare usual slower",
            "compare usual broken --force --fail-on missing",
            "compare usual slower --fail-on slower",
            "compare usual usual",
            "compare usual another",
            "compare usual slower --within 2",
        ],
        "report": [
            "report --help",
            "report usual --output page",
            "report broken --output page",
            "report usual slower",
        ],
        "simulate": [
            "simulate --help",
            "simulate --op all_reduce --ranks 8 --size 1KiB,64MiB --network rail:nic=50GB/s,inner=450GB/s",
            "simulate --op all_reduce --algorithm ring --from ranks-4 --size 1MiB",
            "simulate --op all_reduce --algorithm rings --ranks 8 --size 1MiB --network flat:rate=1GB/s",
            "simulate --op all_reduce --ranks 8 --size 1MiB --network ring:rate=1GB/s",
        ],
        "training": [
            "training --help",
            "training models",
            *(f"training {what} --help" for what in ("volumes", "memory", "limits", "storage", "roofline", "plan")),
            f"training volumes {_LLAMA} --layout tp=8,pp=4,dp=16 --batch 256 --explain",
            "training volumes --model DeepSeek-V3 --layout dp=64,ep=64,zero=1 --ranks-per-host 8 --batch 64",
            f"training volumes {_LLAMA} --layout tp=3",
            "training volumes --model 'Llama 9'",
            f"training memory {_LLAMA} --layout tp=8,pp=4,dp=4 --batch 64 --gpu 'H100 SXM5'",
            f"training memory {_LLAMA} --layout dp=4 --batch 4 --gpu 'H100 SXM5'",
            f"training roofline {_LLAMA} --layout tp=8,dp=8 --batch 64 --network rail:nic=50GB/s,inner=450GB/s",
            f"training plan {_LLAMA} --gpus 512 --network '4X NDR' --compare-rules --top 4",
            f"training plan {_LLAMA} --gpus 4 --network '4X NDR'",
            f"training plan {_LLAMA} --gpus 512",
            f"training plan {_LLAMA} --layout tp=8,pq=4",
            "training plan --model 'Llama 3 70B,layer=16'",
            "training limits",
            "training storage --sample ResNet-50 --gpus 8 --achieved 130e12 --read-rate 5GB/s",
            "training storage --model 'Llama 3 405B' --gpus 16384 --achieved 400e12 --write-rate 2TB/s --mtbf 3.1",
        ],
        "import": ["import --help", "import all_reduce.log --ranks 4", "import usual", "show all_reduce.log"],
        "export": [
            "export --help",
            "export usual --to nccl-tests",
            "export all_reduce.log --to osu",
            "export usual --to excel",
        ],
        "peaks": ["peaks --help", "peaks", "peaks --peaks nowhere.toml"],
        "selftest": ["selftest --help", "selftest --launches 2"],
        "submit": [
            "submit --help",
            "submit quick --nodes 2 --ranks-per-node 4 --time 30 --busbw busbw --mpi pmi2 --dry-run",
            "submit quik",
            "submit huge --nodes 2 --ranks-per-node 4 --dry-run",
        ],
        "run": [
            "run --help",
            "run --suite quick --ranks 4 --dry-run",
            "run --suite full --ranks 4 --op barrier,pair_bidir --dry-run",
            "run --suite memory --ranks 4 --op memory_touch --dry-run",
            "run --suite memory-gpu --ranks 4 --op peer_copy --dry-run",
            "run --suite roofline --ranks 4 --op matmul --dry-run",
            "run --suite roofline-gpu --ranks 4 --op attention,matmul --dry-run",
            "run --suite standard --ranks 4 --op all_to_all_v --dry-run",
            "run --suite storage --ranks 4 --path . --dry-run",
            *(
                f"run --ranks 2 {options}"
                for options in (
                    "",
                    "--op allreduce",
                    "--op barrier --dtype f32",
                    "--op barrier --redop xor",
                    "--op barrier --sizes 1MB",
                    "--op barrier --backend smoke",
                    "--op barrier --backend smoke --dry-run",
                    "--suite huge",
                    "--op barrier --pairs both",
                    "--op barrier --in-place under",
                    "--op barrier --groups half --dry-run",
                    "--op barrier --groups 0,9",
                    "--op barrier --root -1",
                    "--op barrier --port 70000",
                    "--op barrier --timeout inf",
                    "--op barrier --seed 999999999999999999999999999999",
                    "--op barrier --ranks 0",
                    "--op all_reduce --sizes 1KiB --ranks 1 --dry-run",
                    "--op all_to_all_v --traffic missing.csv",
                    "--plan missing.toml",
                    "--suite quick --plan missing.toml",
                    *(f"--plan plans/{name}.toml" for name in PLANS),
                )
            ),
        ],
    }
)
"""What is asked of each command, in a folder with the runs of ``_runs``: its help, if nothing more is said here."""


def transcript(name: str) -> str:
    """What all invocations of one command print, with their exit status."""
    with _laid_out() as environment:
        runner = CliRunner(env=environment)
        if (command := main.get_command(click.Context(main), name)) is not None:
            command._help_option = None  # click keeps the one of whoever called the command by itself before
        return "\n".join(_told(runner, arguments) for arguments in COMMANDS[name])


def _told(runner: CliRunner, arguments: str) -> str:
    said = runner.invoke(main, shlex.split(arguments), prog_name="busbw", terminal_width=_WIDTH)
    out, err = (_normal(text) for text in (said.stdout, said.stderr))
    if said.exit_code == 0 and "--output page" in arguments:
        out = Path("page/report.md").read_text(encoding="utf-8").replace(__version__, "VERSION")
    told = [f"$ busbw {arguments}", *out.splitlines(), *(f"stderr: {line}" for line in err.splitlines())]
    return "\n".join(line.rstrip() for line in [*told, f"exit status {said.exit_code}", ""])


def _normal(text: str) -> str:
    return text.replace(str(Path.cwd()), "HERE").replace(f"version {__version__}", "version VERSION")


@contextmanager
def _laid_out() -> Iterator[dict[str, str | None]]:
    """A folder with runs and plans as the working directory, on a machine of 16 cores that lacks nothing."""
    outside: dict[str, str | None] = {
        name: None for name in os.environ if name.startswith(("BUSBW_", "SLURM_", "OMPI_", "PMI", "XDG_"))
    }
    with tempfile.TemporaryDirectory() as place, chdir(place), ExitStack() as changed:
        for name, stored in _runs().items():
            folder = Path("results/synthetic") / name
            folder.mkdir(parents=True)
            store.write_run(folder, stored.run)
            with store.Appender(folder) as appender:
                for row in stored.rows:
                    appender.append(row)
        shutil.copytree(FOLDER.parent / "data/runs/mpi-modes", "results/synthetic/stored")
        shutil.copytree(FOLDER.parent / "data/runs/training", "results/synthetic/trained")
        shutil.copy(FOLDER.parent / "data/logs/nccl-tests-2.19.txt", "all_reduce.log")
        Path("plans").mkdir()
        for name, text in PLANS.items():
            Path(f"plans/{name}.toml").write_text(text, encoding="utf-8")
        for what, instead in {
            "busbw.system.environment.cores_of_launcher": lambda: _CORES,
            "busbw.system.environment.versions": lambda _: {},
            "busbw.launch.run_session.place_here": lambda _: anywhere(),
            "busbw.launch.run_session.way_here": lambda *_: "direct",
        }.items():
            changed.enter_context(patch(what, instead))
        changed.enter_context(patch.object(BackendRow, "missing", lambda _: None))
        yield {**outside, "HOME": place, "COLUMNS": "80"}


@cache
def _runs() -> dict[str, StoredRun]:
    steady = World(launch_noise=0.01, by_op={"memory_copy": (Piece(2e-6, 2e-10),)}, slow_ranks=(2,), slow_factor=3.0)
    slower = World(pieces=(Piece(30e-6, 1.5e-10),), launch_noise=0.01, late_rank=1, late_seconds=60e-6)
    usual = [*(case(op, size) for op in ("all_reduce", "memory_copy") for size in _SIZES), case("pair_matrix", _MIB)]
    few = Machine(usable_cores=2)
    wrong = SyntheticEnd({usual[3]: "wrong data in element 7"}, {usual[4]: "no room"}, reached=12, ended="interrupted")
    return {
        "usual": _run("usual", usual, steady, launches=6),
        "slower": _run("slower", usual, slower, launches=6),
        "broken": _run("broken", usual, slower, launches=2, machine=few, end=wrong),
        "another": _run("another", usual, steady, machine=Machine(name="another")),
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
) -> StoredRun:
    stored = synthetic_run(cases, world, machine=machine, launches=launches, samples=9, end=end)
    return replace(stored, run=msgspec.structs.replace(stored.run, id=name))


if __name__ == "__main__":
    for command in COMMANDS:
        (FOLDER / f"{command}.txt").write_text(transcript(command), encoding="utf-8")
    logs.EXPECTED.write_text(logs.expected(), encoding="utf-8")
    for file in FOLDER.glob("*.txt"):
        if file.stem not in COMMANDS:
            file.unlink()
