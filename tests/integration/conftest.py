"""What the tests with real ranks share: the real command, started with a mark by which every process of it is found.

Whatever a test does to a run, its processes have to be gone when it ends: that is checked after every test.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
from exhaustive import EXHAUSTIVE
from forked import MARK, Forker
from testing.plans import QUICK, plan_text, sweep

from busbw.launch import mpiexec
from busbw.runs import store
from busbw.runs.records import Failed, Measurement, Row

_Value = TypeVar("_Value")

_HERE = Path(__file__).parent
_PATIENCE_SECONDS = 120.0
"""How long anything may take on a machine that is busy with something else; nothing here should need a tenth of it."""

_FOREIGN = ("BUSBW_", "MASTER_", "TORCHELASTIC_", "GLOO_", "SLURM_", "OMP_", "OMPI_", "PMI_", "PMIX_", "MPI_LOCAL")
_FOREIGN_NAMES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"}

_TIMING = {**QUICK, "max_seconds": 0.02, "launch_warmup_seconds": 0.05}


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended: its exit code, what it said to programs (out) and to people (err)."""

    code: int
    out: str
    err: str

    @property
    def told(self) -> str:
        """Everything it said, for the message of a failed assertion."""
        return f"exit {self.code}\n{self.out}\n{self.err}"

    def assert_failed(self, run: store.StoredRun, *words: str) -> None:
        """Exit 1, and the same reason on stderr, in the row of the end and in the failed case's before it. What comes
        while a row is written, between two cases, fails none of them.
        """
        assert self.code == 1, self.told
        assert "Traceback" not in self.told
        assert run.end is not None
        assert run.end.status == "failed"
        reason = str(run.end.reason)
        texts = [self.err, reason]
        if " during the pause after " not in reason:
            assert isinstance(run.rows[-2], Failed)
            texts.append(run.rows[-2].error)
        for text in texts:
            assert all(word in text for word in words), self.told


@dataclass(slots=True)
class Started:
    """A command under way, the leader of a session of its own as under a terminal."""

    results: Path
    process: subprocess.Popen[str]

    def wait(self, seconds: float = _PATIENCE_SECONDS) -> Finished:
        """Wait for its end. Raises subprocess.TimeoutExpired when it hangs."""
        out, err = self.process.communicate(timeout=seconds)
        return Finished(self.process.returncode, out, err)

    def folder(self) -> Path:
        """The run folder, once the world has formed."""
        return until(lambda: next(iter(store.folders(self.results)), None), "there is no run folder", self.process)

    def rows(self, atleast: int = 1) -> tuple[Row, ...]:
        """The rows, once ``atleast`` blocks are measured: from then on the run is in the midst of measuring."""

        def enough() -> tuple[Row, ...] | None:
            rows = store.read(self.folder()).rows
            return rows if sum(isinstance(row, Measurement) for row in rows) >= atleast else None

        return until(enough, f"there are no {atleast} measured blocks", self.process)

    def pids(self) -> tuple[int, ...]:
        """The process of every rank of the latest launch."""
        return store.read(self.folder()).launches[-1].pids

    def signal_group(self, number: signal.Signals) -> None:
        """What a terminal does on Ctrl-C: the signal goes to every process of the group."""
        os.killpg(self.process.pid, number)


def until(
    condition: Callable[[], _Value | None], otherwise: str, process: subprocess.Popen[str] | None = None
) -> _Value:
    """Poll until ``condition`` gives something, and return that; fail with ``otherwise`` when it never does."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        outcome = condition()
        if outcome is not None:
            return outcome
        if process is not None and process.poll() is not None:
            out, err = process.communicate()
            pytest.fail(f"{otherwise}, and the command has ended: {Finished(process.returncode, out, err).told}")
        time.sleep(0.01)
    pytest.fail(otherwise)


def _clean_environment() -> dict[str, str]:
    """The environment of the tests without anything that says where a rank is."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_FOREIGN) and name not in _FOREIGN_NAMES
    }


@dataclass(slots=True)
class Commands:
    """The real ``busbw`` in processes of its own, writing below ``results``; ``mark`` is in the environment of all."""

    folder: Path
    forker: Callable[[], Forker]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: list[Started] = field(default_factory=list)

    @property
    def results(self) -> Path:
        """Where runs go."""
        return self.folder / "results"

    def run(
        self, *arguments: str | Path, environment: Mapping[str, str] | None = None, program: Sequence[str] | None = None
    ) -> Finished:
        """``busbw`` with these arguments, until it has ended."""
        return self.start(*arguments, environment=environment, program=program).wait()

    def succeed(
        self, *arguments: str | Path, environment: Mapping[str, str] | None = None, program: Sequence[str] | None = None
    ) -> Finished:
        """``run`` that has to end with 0."""
        finished = self.run(*arguments, environment=environment, program=program)
        assert finished.code == 0, finished.told
        return finished

    def start(
        self,
        *arguments: str | Path,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] | None = None,
        results: Path | None = None,
    ) -> Started:
        """``busbw`` (or a program that stands in for it) with these arguments, in the background.

        A program of this interpreter is forked from a process that has busbw in memory; every other one is started from
        nothing, and so is ``console_script``.
        """
        results = results or self.results
        command = [*(program or (sys.executable, "-m", "busbw")), *map(str, arguments)]
        given = {**self.environment(), "BUSBW_RESULTS_DIR": str(results), **(environment or {})}
        if command[0] == sys.executable and not EXHAUSTIVE:
            process = self.forker().start(command, given, self.folder)
        else:
            process = subprocess.Popen(
                command,
                env=given,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
                cwd=self.folder,
            )
        started = Started(results, process)
        self.started.append(started)
        return started

    def environment(self) -> dict[str, str]:
        """The environment of the tests without anything that says where a rank is, and with the mark."""
        return {**_clean_environment(), MARK: self.mark}

    def plan(self, *sweeps: str, blocks: int = 2) -> Path:
        """A plan file with the pace of these tests and these sweeps; one block is enough to see that data are right."""
        path = self.folder / f"plan-{uuid.uuid4().hex[:8]}.toml"
        text = plan_text(*sweeps, timing={**_TIMING, "blocks": blocks})
        path.write_text(f'path = "."\n{text}', encoding="utf-8")
        return path

    def sweep(self, ops: str, sizes: str = "1KiB", /, **keys: object) -> Path:
        """A plan of one sweep."""
        return self.plan(sweep(ops, sizes, **keys))

    def long(self) -> Path:
        """A plan that goes on for much longer than any test: to be broken off."""
        return self.sweep("all_reduce,all_gather,broadcast", "1KiB..64KiB+512")

    def until_gone(self, pids: Iterable[int]) -> None:
        """Wait until none of these processes is there any more; a zombie is gone, too."""
        waited_for = set(pids)
        until(lambda: waited_for.isdisjoint(self.alive()) or None, "they do not end")

    def program(self, name: str) -> tuple[str, ...]:
        """One of the programs beside these tests that stand in for ``busbw``."""
        return (sys.executable, str(_HERE / "programs" / name))

    def console_script(self) -> tuple[str, ...]:
        """The command as pip has installed it, in an interpreter of its own."""
        return (str(Path(sys.executable).with_name("busbw")),)

    def torchrun(self, ranks: int, program: Sequence[str] = ("-m", "busbw")) -> tuple[str, ...]:
        """``torchrun … -m busbw``, or another program below it, on the loopback interface."""
        here = ("--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(ranks))
        return (sys.executable, "-m", "torch.distributed.run", *here, *program)

    def mpirun(self, ranks: int, program: Sequence[str] = ("-m", "busbw")) -> tuple[str, ...]:
        """``mpiexec … -m busbw``, or another program below it."""
        return (mpiexec.chosen()[1], "-n", str(ranks), sys.executable, *program)

    def read(self, results: Path | None = None) -> store.StoredRun:
        """The one run there is."""
        (folder,) = store.folders(results or self.results)
        return store.read(folder)

    def alive(self) -> list[int]:
        """The processes that carry the mark and have not ended."""
        needle = f"{MARK}={self.mark}".encode()
        processes = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):  # it ended while we looked
                    if needle in (entry / "environ").read_bytes():
                        processes.append(int(entry.name))
        return processes

    def nobody_left(self, within_seconds: float = 0.0) -> bool:
        """Whether every process of these commands is gone, after at most this long."""
        deadline = time.monotonic() + within_seconds
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        return not self.alive()

    def clear(self) -> None:
        """Kill what is left, so that one failed test does not disturb the next."""
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for started in self.started:
            started.process.communicate()


@pytest.fixture(scope="session")
def forker() -> Iterator[Callable[[], Forker]]:
    """The process that commands are forked from, once one is."""
    made: list[Forker] = []

    def only() -> Forker:
        if not made:
            made.append(Forker(_clean_environment()))
        return made[0]

    yield only
    for process in made:
        process.close()


@pytest.fixture
def commands(tmp_path: Path, forker: Callable[[], Forker]) -> Iterator[Commands]:
    """The real command; when the test ends, no process of it may be left."""
    given = Commands(tmp_path, forker)
    yield given
    left = given.alive()
    given.clear()
    assert not left, f"processes {left} outlived their run"


@pytest.fixture(scope="module")
def shared_commands(tmp_path_factory: pytest.TempPathFactory, forker: Callable[[], Forker]) -> Iterator[Commands]:
    """The real command for what several tests of a module look at."""
    given = Commands(tmp_path_factory.mktemp("shared"), forker)
    yield given
    left = given.alive()
    given.clear()
    assert not left, f"processes {left} outlived their run"


@pytest.fixture
def no_shared_memory_left() -> Iterator[None]:
    """A file of a world that has ended takes memory until the machine is started anew."""
    folder = Path("/dev/shm")  # noqa: S108 - what is tested is there
    before = set(folder.glob("mpich_shm_*"))
    yield
    new = set(folder.glob("mpich_shm_*")) - before
    maps = ""
    for process in Path("/proc").glob("[0-9]*/maps") if new else ():  # of tests that run beside this one
        with contextlib.suppress(OSError):
            maps += process.read_text(encoding="utf-8", errors="replace")
    assert [path for path in new if path.exists() and str(path) not in maps] == []
