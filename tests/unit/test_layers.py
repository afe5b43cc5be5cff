"""Which modules load which libraries: asked of a fresh process, because this one has long loaded them all."""

import ast
import json
import pkgutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import busbw
from busbw.cli.main import EXTRAS

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "pandas", "matplotlib", "scipy", "numpy", "mpi4py")
SHARED = {
    *("errors", "escape", "key_values", "ops", "runs", "shared_options", "statistics", "system", "units", "workloads"),
}
"""What the analysis may use of busbw."""

OF_DATASETS = {
    *(
        "assembly/judge.py",
        "assembly/since.py",
        "cli/exchange.py",
        "cli/main.py",
        "cli/simulate.py",
        "data/load.py",
        "diagnosis/judge.py",
    ),
    *("cli/gate.py", "gate/metrics.py", "gate/suggestion.py"),
    *(
        "diagnosis/compare.py",
        "diagnosis/compare_within.py",
        "diagnosis/selftest.py",
        "models/results.py",
        "predict/selection.py",
    ),
}
"""What pools runs, or takes a pooled data set apart; all else takes the results, facts, curves or samples."""

PROBE = """
import json, sys
sys.path[:0] = {paths!r}
sys.argv[:] = ["busbw", *{arguments!r}]
try:
    {statement}
except SystemExit as end:
    assert not end.code, end.code
print()
print(json.dumps(sorted(sys.modules)))
"""


def loaded_by(statement: str, *arguments: str) -> set[str]:
    """The names of all modules that a fresh interpreter holds after ``statement``."""
    source = PROBE.format(paths=[path for path in sys.path if path], arguments=arguments, statement=statement)
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    modules: list[str] = json.loads(ran.stdout.splitlines()[-1])
    return set(modules)


COMMAND = "import busbw.cli.main; busbw.cli.main.main()"
COMMANDS = (
    "from busbw.cli.main import main; "
    "assert not any([main.main(words.split(), standalone_mode=False) for words in sys.argv[1:]])"
)
"""One after the other: what any of them loads is loaded in the end."""
TOOLS = ("pandas", "matplotlib", "scipy", "busbw_analysis")
"""Of the judgement."""


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import busbw.units, busbw.ops, busbw.runs.store, busbw.runs.placement, busbw.runs.plan", HEAVY),
        ("import busbw.backends", {*HEAVY} - {"numpy"}),
        ("import busbw.statistics, busbw.measure.block, busbw.launch.worker", TOOLS),
        ("from busbw_analysis.cli import main, predict, training", {"matplotlib", "pandas"}),
        ("import busbw_analysis", {*HEAVY, "busbw"}),
        ("import busbw_analysis.diagnosis.judge, busbw_analysis.report.plots", {"torch", "mpi4py"}),
        ("import busbw_analysis.notebook, busbw_analysis.export", {"torch", "pandas", "matplotlib"}),
    ],
)
def test_a_module_loads_nothing_that_it_does_not_need(statement: str, unwanted: Iterable[str]) -> None:
    assert loaded_by(statement).isdisjoint(unwanted)


@pytest.mark.parametrize(
    ("commands", "unwanted"),
    [
        (("--help", "--version", "run --help"), HEAVY),
        (("list runs --results-dir nowhere",), {*HEAVY, "busbw.backends", "busbw.launch", "busbw.system"}),
        (("list ops", "doctor", "peaks", "run --op barrier --dry-run"), {"torch", "pandas", "matplotlib"}),
    ],
)
def test_a_command_loads_nothing_that_it_does_not_need(commands: Sequence[str], unwanted: Iterable[str]) -> None:
    assert loaded_by(COMMANDS, *commands).isdisjoint(unwanted)


NO_EXTRA = f"sys.modules.update(dict.fromkeys({tuple(EXTRAS)})); "
"""As where no extra is installed: importing from None raises ModuleNotFoundError."""


def test_what_does_not_measure_or_draw_needs_no_extra(tmp_path: Path) -> None:
    log, run = ROOT / "tests/data/logs/nccl-tests-2.19.txt", ROOT / "results/samples/vm/20261121T081628.085Z-4ad500"
    loaded_by(
        NO_EXTRA + COMMANDS,
        *(f"show {log}", f"show {run}", f"fit {log}", f"export {run} --to markdown"),
        *(f"export {log} --to parquet --output {tmp_path}/tidy.parquet", "training plan --help"),
        *("list backends", "doctor"),
    )


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        ("run --op barrier --ranks 2", "run"),
        ("selftest", "run"),
        ("report results/samples/vm/20261121T081628.085Z-4ad500 --output nowhere", "report"),
    ],
)
def test_who_needs_an_extra_learns_how_to_install_it(arguments: str, extra: str, tmp_path: Path) -> None:
    words = [str(ROOT / word) if (ROOT / word).exists() else word for word in arguments.split()]
    source = PROBE.format(paths=[path for path in sys.path if path], arguments=words, statement=NO_EXTRA + COMMAND)
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert f"pip install 'busbw[{extra}]'" in ran.stderr, ran.stderr


def test_every_optional_package_has_its_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    distributions = {"pynvml": "nvidia-ml-py"}
    for package, extra in EXTRAS.items():
        assert any(wanted.startswith(distributions.get(package, package)) for wanted in extras[extra]), package


def test_the_contract_of_the_analysis_forgets_no_package() -> None:
    """import-linter can only forbid by name, so a new package of busbw has to be added to the list."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    (contract,) = [row for row in tools["importlinter"]["contracts"] if row["id"] == "analysis-measures-nothing"]
    forbidden = {name.removeprefix("busbw.") for name in contract["forbidden_modules"]}
    packages = {module.name for module in pkgutil.iter_modules(busbw.__path__)}
    assert packages - forbidden - {"__main__"} == SHARED


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Within functions, too: import-linter holds apart packages, not the modules of one. Raises CycleError."""
    paths = [path.relative_to(root) for root in (ROOT / "bench", ROOT / "analysis") for path in root.rglob("*.py")]
    modules = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    imported: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        folder = "bench" if name.partition(".")[0] == "busbw" else "analysis"
        for node in nodes_of(ROOT / folder / path):
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                imported[name] |= {target if target in modules else str(node.module) for target in names}
            elif isinstance(node, ast.Import):
                imported[name] |= {alias.name for alias in node.names}
    assert len(modules) > 200
    TopologicalSorter({name: targets & set(modules) - {name} for name, targets in imported.items()}).prepare()


def test_only_the_first_stages_of_the_analysis_see_a_data_set() -> None:
    folder = ROOT / "analysis/busbw_analysis"
    seeing = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        for node in nodes_of(path)
        if isinstance(node, ast.Name | ast.alias | ast.ClassDef)
        and getattr(node, "id", getattr(node, "name", "")) in {"Dataset", "pool", "pool_by_setup"}
    }
    assert seeing <= OF_DATASETS
