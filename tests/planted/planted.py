"""Plant faults in a copy of the sources, one at a time, and print which test notices each: ``make planted``.

For every row of ``faults.FAULTS`` the tests named there are run until one fails, then the unit part of ``make test``.
At the end all tests that have noticed a fault must pass without one. Exit status 1 when a fault stays unnoticed, 2 when
the table no longer fits the sources or a test fails by itself.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import cache_from_source
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue

from faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]

_NEEDED = ("analysis", "bench", "docs", "results/samples", "slurm", "tests")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_FOUND_SOME = 1
"""The exit status of pytest when tests have failed; others are troubles of its own, as a module that cannot load is."""
_COULD_NOT_LOAD = 2
_LONGEST_SECONDS = 1800


def misfits(faults: Iterable[Fault], root: Path = ROOT) -> list[str]:
    """What is wrong with the rows of the table, each in a sentence; empty where all can be planted."""
    found = []
    for fault in faults:
        path = root / fault.file
        times = path.read_text(encoding="utf-8").count(fault.old) if path.is_file() else 0
        if times != 1:
            found.append(f"{fault.name!r}: its text is {times} times in {fault.file}, want once: {fault.old!r}")
        if fault.old == fault.new:
            found.append(f"{fault.name!r} changes nothing")
        missing = [name for name in fault.tests if not (root / "tests" / name).is_file()]
        found += [f"{fault.name!r}: there is no tests/{name}" for name in missing]
    return found


@dataclass(frozen=True, slots=True)
class Copy:
    """The sources in ``folder``, to be broken there."""

    folder: Path

    @classmethod
    def into(cls, folder: Path) -> Copy:
        """Of all that the unit tests read."""
        for name in _NEEDED:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for path in ROOT.iterdir():
            if path.is_file():
                shutil.copy(path, folder)
        return cls(folder)

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """With the fault in it, and afterwards without."""
        path = self.folder / fault.file
        sound = path.read_text(encoding="utf-8")
        _write(path, sound.replace(fault.old, fault.new))
        try:
            yield
        finally:
            _write(path, sound)

    def failing(self, *arguments: str) -> str | None:
        """The first test that fails; None where all pass. Raises RuntimeError when no test could be run."""
        python_path = os.pathsep.join(str(self.folder / name) for name in ("bench", "analysis"))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=_LONGEST_SECONDS,
        )
        if done.returncode == 0:
            return None
        found = _FAILED.search(done.stdout)
        if done.returncode not in {_FOUND_SOME, _COULD_NOT_LOAD} or found is None:
            message = f"pytest ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            raise RuntimeError(message)
        return found[1]

    def noticed_by(self, fault: Fault, workers: int) -> str | None:
        """The test that notices ``fault``; None where none does. Those of GPUs keep their machine for their process."""
        folders = groupby(fault.tests, lambda name: name.partition("/")[0])
        with self.planted(fault):
            named = (self.failing(*(f"tests/{name}" for name in names)) for _, names in folders)
            return (
                next(filter(None, named), None)
                or self.failing("tests/unit", "-m", "not alone", "-n", str(workers))
                or self.failing("tests/unit", "-m", "alone")
            )


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    # Python takes a compiled file for fresh by the second and the length of its source.
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def noticed(faults: Sequence[Fault], copies: Sequence[Copy]) -> Iterable[tuple[Fault, str | None]]:
    """Each fault with the test that notices it, in the order of the table; as many at a time as there are copies."""
    free: SimpleQueue[Copy] = SimpleQueue()
    for one in copies:
        free.put(one)

    def plant(fault: Fault) -> str | None:
        one = free.get()
        try:
            return one.noticed_by(fault, max((os.cpu_count() or 1) // len(copies), 1))
        finally:
            free.put(one)

    with ThreadPoolExecutor(len(copies)) as pool:
        yield from zip(faults, pool.map(plant, faults), strict=True)


def main() -> int:
    """Plant those that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="faults with TEXT in their name or file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="faults at a time")
    asked = parser.parse_args()
    if wrong := misfits(FAULTS):
        sys.stderr.write("\n".join(["the table of faults does not fit the sources:", *wrong, ""]))
        return 2
    faults = [one for one in FAULTS if asked.only in one.name or asked.only in one.file]
    tests: dict[str, None] = {}
    missed = 0
    with tempfile.TemporaryDirectory(prefix="busbw-planted-") as scratch:
        copies = [Copy.into(Path(scratch, str(number))) for number in range(asked.jobs)]
        for fault, test in noticed(faults, copies):
            print(f"{fault.name} ({fault.file}): {test or 'NOT NOTICED'}", flush=True)
            if test is None:
                missed += 1
            else:
                tests[test] = None
        parts = ([test for test in tests if test.startswith(f"tests/{folder}/")] for folder in ("unit", "gpu"))
        itself = next(filter(None, (copies[0].failing(*part) for part in parts if part)), None)
    print(f"{len(faults) - missed} of {len(faults)} faults are noticed by a test")
    if itself is not None:
        print(f"but {itself} fails without any fault")
        return 2
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
