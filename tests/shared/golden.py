"""The words of every command, a file for each invocation: ``make golden`` rewrites tests/golden.

It also rewrites what is read of each log in tests/data/logs.

The files hold what a command prints and its exit status, on runs whose numbers are known; what depends on the machine
is set or left out. ``test_golden.py`` compares them; other tests assert codes and numbers.
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
_FORMULAS = ("models", "volumes", "memory", "limits", "storage", "roofline", "plan", "log")
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

RULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "rules": """
[[rule]]
op = "all_reduce"
sizes = "1MiB.."
metric = "busbw"
at_least = "7GB/s"

[[rule]]
metric = "share_of_peak"
op = "all_reduce"
at_least = "10%"
severity = "warning"

[[rule]]
metric = "time"
op = "broadcast"
at_most = "25us"

[[rule]]
metric = "wrong_data"
at_most = 0
""",
        "mistakes": """
[[rule]]
metric = "buswb"
limit = "7GB/s"

[[rule]]
metric = "time"
at_most = "25GB/s"
""",
    }
)
"""Rules of gates, and some with mistakes."""

INVOCATIONS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "busbw": {"help": "--help", "version": "--version", "unknown-command": "nothing"},
        "list": {
            **{what: what for what in ("ops", "backends", "algorithms", "suites", "launchers", "runs")},
            "unknown-table": "everything",
        },
        "explain": {"flags": "", "several": "skew", "unknown": "bandwith"},
        "show": {
            "steady": "usual",
            "interrupted": "broken",
            "stored": "stored",
            "training": "trained",
            "log": "all_reduce.log",
            "log-with-cards": "all_reduce.log --nics '8x4X NDR'",
            "two-runs": "usual another",
            "no-such-run": "nowhere",
        },
        "fleet": {"pairs": "pairs.jsonl"},
        "fit": {"synthetic": "ranks-2 ranks-4", "stored": "stored", "no-such-run": "nowhere"},
        "predict": {
            "more-ranks": f"{_PREDICT} --ranks 256 --size 1KiB..1GiB*1024",
            "measured-sizes": f"{_PREDICT} --ranks 4",
            "size-between": f"{_PREDICT} --ranks 4 --size 100KiB",
            "one-rank": f"{_PREDICT} --ranks 1 --size 1MiB",
            "size-zero": f"{_PREDICT} --ranks 8 --size 0",
            "wrong-unit": f"{_PREDICT} --ranks 8 --size 1MB",
            "hosts": f"{_PREDICT} --ranks 8 --size 1MiB --hosts 2",
            "hosts-above-ranks": f"{_PREDICT} --ranks 8 --size 1MiB --hosts 9",
            "unknown-algorithm": f"{_PREDICT} --ranks 8 --size 1MiB --algorithm rings",
            "unknown-plot": f"{_PREDICT} --ranks 8 --size 1MiB --plot scaling.jpg",
            "plot": f"{_PREDICT} --ranks 8 --size 1KiB,1MiB --plot scaling.svg",
            "same-run-twice": f"{_PREDICT} --ranks 8 --size 1MiB --from ranks-2",
            "another-machine": f"{_PREDICT} --ranks 8 --size 1MiB --from another",
            "no-such-run": f"{_PREDICT} --ranks 8 --size 1MiB --from nowhere",
            "no-ranks": f"{_PREDICT} --size 1MiB",
            "not-measured": "--from ranks-4 --op broadcast --ranks 8 --size 1MiB",
        },
        "compare": {
            "slower": "usual slower",
            "missing": "usual broken --force",
            "same-run": "usual usual",
            "another-machine": "usual another",
            "within": "usual slower --within 2",
            "allowed": "usual another --allow machine",
            "unknown-difference": "usual another --allow machin",
            "by": "rings --by algorithm",
            "by-missing": "rings",
            "by-one-value": "usual --by algorithm",
            "by-unknown": "rings --by algoritm",
        },
        "gate": {
            "pass": "night-2 --baseline night-1",
            "fail": "night-4 --baseline night-1",
            "too-few-launches": "usual --baseline slower",
            "another-machine": "another --baseline usual",
            "rules": "night-1 --rules plans/rules.toml --github",
            "rules-json": "night-4 --rules plans/rules.toml --json",
            "mistakes": "night-1 --rules plans/mistakes.toml",
            "nothing-to-judge-by": "night-1",
            "unknown-baseline": "night-1 --baseline nightly",
        },
        "rules": {
            "check": "check plans/rules.toml",
            "check-help": "check --help",
            "suggest-help": "suggest --help",
            "suggest": "suggest night-1 night-2 night-3",
            "too-few-runs": "suggest night-1",
        },
        "baseline": {
            "set": "set nightly night-1",
            "set-help": "set --help",
            "list": "list",
            "show-unknown": "show nightly",
            "wrong-name": "set a/b night-1",
        },
        "report": {"steady": "usual --output page", "interrupted": "broken --output page", "two-runs": "usual slower"},
        "simulate": {
            "library": "--op all_reduce --ranks 8 --size 1KiB,64MiB --network rail:nic=50GB/s,inner=450GB/s",
            "from-run": "--op all_reduce --algorithm ring --from ranks-4 --size 1MiB",
            "unknown-algorithm": ("--op all_reduce --algorithm rings --ranks 8 --size 1MiB --network flat:rate=1GB/s"),
            "unknown-network": "--op all_reduce --ranks 8 --size 1MiB --network ring:rate=1GB/s",
        },
        "training": {
            **{f"{what}-help": f"{what} --help" for what in _FORMULAS},
            "models": "models",
            "volumes": f"volumes {_LLAMA} --layout tp=8,pp=4,dp=16 --batch 256 --explain",
            "volumes-experts": "volumes --model DeepSeek-V3 --layout dp=64,ep=64,zero=1 --ranks-per-host 8 --batch 64",
            "volumes-no-layout": f"volumes {_LLAMA} --layout tp=3",
            "unknown-model": "volumes --model 'Llama 9'",
            "memory": f"memory {_LLAMA} --layout tp=8,pp=4,dp=4 --batch 64 --gpu 'H100 SXM5'",
            "memory-does-not-fit": f"memory {_LLAMA} --layout dp=4 --batch 4 --gpu 'H100 SXM5'",
            "roofline": f"roofline {_LLAMA} --layout tp=8,dp=8 --batch 64 --network rail:nic=50GB/s,inner=450GB/s",
            "plan": f"plan {_LLAMA} --gpus 512 --network '4X NDR' --compare-rules --what-if --top 4",
            "plan-64": f"plan {_LLAMA} --gpus 64 --network '4X NDR' --top 3",
            "plan-too-few": f"plan {_LLAMA} --gpus 4 --network '4X NDR'",
            "plan-no-network": f"plan {_LLAMA} --gpus 512",
            "unknown-layout-key": f"plan {_LLAMA} --layout tp=8,pq=4",
            "unknown-model-key": "plan --model 'Llama 3 70B,layer=16'",
            "log": "log training.log --gpu 'H100 SXM5'",
            "log-no-steps": "log all_reduce.log",
            "limits": "limits",
            "storage-samples": "storage --sample ResNet-50 --gpus 8 --achieved 130e12 --read-rate 5GB/s",
            "storage-checkpoints": (
                "storage --model 'Llama 3 405B' --gpus 16384 --achieved 400e12 --write-rate 2TB/s --mtbf 3.1"
            ),
        },
        "history": {
            "runs": "usual slower --op all_reduce --sizes 2KiB,8MiB",
            "nothing-selected": "--machine nowhere",
            "no-such-run": "nowhere",
            "wrong-day": "--since yesterday",
        },
        "index": {"runs": "", "wrong-part": "--shard 3/2", "unknown-engine": "--engine ray"},
        "sql": {
            "operations": "'SELECT op, count(*) AS launches FROM launches GROUP BY op ORDER BY op'",
            "csv": "'SELECT run, machine, tool FROM runs ORDER BY run LIMIT 2' --csv",
            "json": "'SELECT run, hosts FROM runs ORDER BY run LIMIT 1' --json",
            "writes": "'DROP VIEW runs'",
            "file": "\"SELECT * FROM read_csv('all_reduce.log')\"",
            "no-such-column": "'SELECT size FROM launches'",
        },
        "import": {"log": "all_reduce.log --ranks 4", "run": "usual"},
        "export": {
            "nccl-tests": "usual --to nccl-tests",
            "osu": "all_reduce.log --to osu",
            "unknown-format": "usual --to excel",
        },
        "peaks": {"catalogue": "", "no-such-file": "--peaks nowhere.toml"},
        "selftest": {"two-launches": "--launches 2"},
        "submit": {
            "quick": "quick --nodes 2 --ranks-per-node 4 --time 30 --busbw busbw --mpi pmi2 --dry-run",
            "misspelt-suite": "quik",
            "unknown-suite": "huge --nodes 2 --ranks-per-node 4 --dry-run",
        },
        "run": {
            "suite-quick": "--suite quick --ranks 4 --dry-run",
            "suite-full": "--suite full --ranks 4 --op barrier,pair_bidir --dry-run",
            "suite-memory": "--suite memory --ranks 4 --op memory_touch --dry-run",
            "suite-memory-gpu": "--suite memory-gpu --ranks 4 --op peer_copy --dry-run",
            "suite-roofline": "--suite roofline --ranks 4 --op matmul --dry-run",
            "suite-roofline-gpu": "--suite roofline-gpu --ranks 4 --op attention,matmul --dry-run",
            "suite-standard": "--suite standard --ranks 4 --op all_to_all_v --dry-run",
            "suite-storage": "--suite storage --ranks 4 --path . --dry-run",
            "nothing": "--ranks 2",
            "unknown-op": "--ranks 2 --op allreduce",
            "unknown-dtype": "--ranks 2 --op barrier --dtype f32",
            "unknown-redop": "--ranks 2 --op barrier --redop xor",
            "wrong-unit": "--ranks 2 --op barrier --sizes 1MB",
            "unknown-backend": "--ranks 2 --op barrier --backend smoke",
            "unknown-backend-planned": "--ranks 2 --op barrier --backend smoke --dry-run",
            "unknown-suite": "--ranks 2 --suite huge",
            "unknown-pairs": "--ranks 2 --op barrier --pairs both",
            "unknown-placement": "--ranks 2 --op barrier --in-place under",
            "no-groups": "--ranks 2 --op barrier --groups half --dry-run",
            "groups-without-ranks": "--ranks 2 --op barrier --groups 0,9",
            "root-without-effect": "--ranks 2 --op barrier --root -1",
            "wrong-port": "--ranks 2 --op barrier --port 70000",
            "endless-timeout": "--ranks 2 --op barrier --timeout inf",
            "huge-seed": "--ranks 2 --op barrier --seed 999999999999999999999999999999",
            "no-ranks": "--ranks 2 --op barrier --ranks 0",
            "one-rank": "--ranks 2 --op all_reduce --sizes 1KiB --ranks 1 --dry-run",
            "no-such-traffic": "--ranks 2 --op all_to_all_v --traffic missing.csv",
            "no-such-plan": "--ranks 2 --plan missing.toml",
            "suite-and-plan": "--ranks 2 --suite quick --plan missing.toml",
            **{f"plan-{name}": f"--ranks 2 --plan plans/{name}.toml" for name in PLANS},
        },
    }
)
"""What is asked of commands besides their help, by the name of the file, in a folder with the runs of ``_runs``."""


def invocations() -> dict[str, str]:
    """Arguments of ``busbw`` by the path of the file of the output, below ``FOLDER`` and without ``.txt``."""
    commands = main.list_commands(click.Context(main))
    return {
        **{f"{command}/help": f"{command} --help" for command in commands},
        **{
            f"{command}/{name}": f"{command} {arguments}".strip() if command in commands else arguments
            for command, cases in INVOCATIONS.items()
            for name, arguments in cases.items()
        },
    }


def transcript(arguments: str, inputs: Path) -> str:
    """What one invocation prints in a copy of the folder of ``write_inputs``, with its exit status."""
    with _workplace(inputs) as environment:
        command = main.get_command(click.Context(main), arguments.split(maxsplit=1)[0])
        if command is not None:
            command._help_option = None  # click keeps the one of whoever called the command by itself before
        result = CliRunner(env=environment).invoke(
            main, shlex.split(arguments), prog_name="busbw", terminal_width=_WIDTH
        )
        output, error = (_without_place(text) for text in (result.stdout, result.stderr))
        if result.exit_code == 0 and "--output page" in arguments:
            output = Path("page/report.md").read_text(encoding="utf-8").replace(__version__, "VERSION")
    lines = [f"$ busbw {arguments}", *output.splitlines(), *(f"stderr: {line}" for line in error.splitlines())]
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
    (folder / "plans").mkdir()
    for name, text in {**PLANS, **RULES}.items():
        (folder / f"plans/{name}.toml").write_text(text, encoding="utf-8")


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
    plan = stored.run.plan if label is None else {**stored.run.plan, "label": label}
    return replace(stored, run=msgspec.structs.replace(stored.run, id=name, plan=plan))


if __name__ == "__main__":
    shutil.rmtree(FOLDER)
    with tempfile.TemporaryDirectory() as inputs:
        write_inputs(Path(inputs))
        for file, arguments in invocations().items():
            (FOLDER / file).parent.mkdir(parents=True, exist_ok=True)
            (FOLDER / f"{file}.txt").write_text(transcript(arguments, Path(inputs)), encoding="utf-8")
    logs.EXPECTED.write_text(logs.expected(), encoding="utf-8")
