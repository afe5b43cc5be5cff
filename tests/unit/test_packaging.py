"""What is in the archives that people install: everything that is needed at run time, and nothing else."""

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"busbw": ROOT / "bench/busbw", "busbw_analysis": ROOT / "analysis/busbw_analysis"}
IN_SDIST = {"bench", "analysis", "tests", "slurm", "docs", "results"}
PAPERS = {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "constraints.txt", "pyproject.toml"}
IN_SDIST |= PAPERS | {"PKG-INFO"}
IN_SDIST |= {".gitignore"}  # hatchling adds it, so that a build from the archive leaves out the same files

STRAY = [
    "results/host/20260101T000000.000Z-abcdef/run.json",
    "results/host/20260101T000000.000Z-abcdef/samples.jsonl",
    ".venv/lib/python3/site-packages/secret.py",
    ".mypy_cache/cache.json",
    "bench/busbw/__pycache__/units.cpython-311.pyc",
    "analysis/busbw_analysis/__pycache__/load.cpython-311.pyc",
    "notes.txt",
]
"""Files that lie about in a working tree and must not ship."""


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], set[str]]:
    """The files of the wheel and of the source archive, built from a copy of the tree that holds stray files too."""
    place = tmp_path_factory.mktemp("packaging")
    tree, out = place / "tree", place / "out"
    leave = shutil.ignore_patterns(".git", ".venv", "venv", "*_cache", ".hypothesis", "__pycache__", "build", "dist")
    shutil.copytree(ROOT, tree, ignore=leave, symlinks=True)
    for name in STRAY:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("stray")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    for target in ("wheel", "sdist"):
        made = subprocess.run([*build, "-t", target], cwd=tree, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
    (wheel,) = out.glob("busbw-0.dev0-*.whl")  # no .git, so no tag
    (sdist,) = out.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as file:
        in_wheel = {name for name in file.namelist() if not name.endswith("/")}
    with tarfile.open(sdist) as tar:
        in_sdist = {member.name.partition("/")[2] for member in tar.getmembers() if member.isfile()}
    return in_wheel, in_sdist


def wanted_files() -> set[str]:
    """Every file of the two packages, as the wheel names them."""
    return {
        f"{package}/{path.relative_to(folder)}"
        for package, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_is_the_two_packages_and_its_own_papers(archives: tuple[set[str], set[str]]) -> None:
    in_wheel, _ = archives
    papers = {name for name in in_wheel if ".dist-info/" in name}
    assert in_wheel - papers == wanted_files()
    assert {name.partition("/")[2] for name in papers} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
    }


def test_the_wheel_carries_what_is_no_python(archives: tuple[set[str], set[str]]) -> None:
    in_wheel, _ = archives
    assert {"busbw/py.typed", "busbw_analysis/py.typed", "busbw/runs/suites/quick.toml"} <= in_wheel
    suites = {f"busbw/runs/suites/{path.name}" for path in (PACKAGES["busbw"] / "runs/suites").glob("*.toml")}
    templates = {
        f"busbw_analysis/report/templates/{path.name}"
        for path in (PACKAGES["busbw_analysis"] / "report/templates").iterdir()
    }
    assert suites
    assert templates
    assert suites | templates <= in_wheel


def test_the_source_archive_holds_only_what_is_listed(archives: tuple[set[str], set[str]]) -> None:
    _, in_sdist = archives
    assert {name.partition("/")[0] for name in in_sdist} <= IN_SDIST
    assert in_sdist.isdisjoint(STRAY)
    assert all(
        name.startswith(("results/README.md", "results/samples/")) for name in in_sdist if "results/" in name[:8]
    )


def test_the_source_archive_can_be_built_and_tested(archives: tuple[set[str], set[str]]) -> None:
    _, in_sdist = archives
    assert PAPERS | {"tests/unit/test_packaging.py"} <= in_sdist
    assert {
        name.replace("busbw_analysis/", "analysis/busbw_analysis/", 1) for name in wanted_files() if "analysis" in name
    } <= in_sdist
    assert {f"bench/{name}" for name in wanted_files() if name.startswith("busbw/")} <= in_sdist


def test_what_the_extras_need_is_there_when_tests_run_and_pinned() -> None:
    """Else what needs it is skipped on the very machines that have the hardware."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert {*extras["mpi"], *extras["gpu"]} <= set(extras["dev"])
    pinned = {
        line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    }
    others = [wanted for wanted in extras["dev"] if not wanted.startswith("busbw[")]
    assert {wanted.partition(">=")[0].lower() for wanted in [*others, *extras["docs"]]} <= pinned
