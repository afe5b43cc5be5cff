"""What is known of MPI without ranks: variables, stubs, which mpiexec is taken, and the watch over endless waits."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from busbw.backends.mpi import probe
from busbw.backends.watchdog import Watchdog
from busbw.errors import LaunchError
from busbw.launch import mpiexec, ranks_of
from busbw.launch.launchers import LAUNCHERS, launcher_here
from busbw.runs.plan import Plan, Sweep

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
_OPEN_MPI["OMPI_COMM_WORLD_LOCAL_SIZE"] = "4"
_HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
_SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0"}
_SRUN |= {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_NODEID": "0"}
_TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("variables", "launcher", "size"),
    [
        ({}, "local", None),
        (_OPEN_MPI, "mpirun", 4),
        (_HYDRA, "mpirun", 4),
        (_TORCHRUN, "torchrun", 2),
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, "local", None),  # half of a promise: srun's
        (_SRUN, "srun", 4),
        ({**_SRUN, "PMI_RANK": "0", "PMI_SIZE": "4"}, "srun", 4),  # with --mpi=pmi2
        ({**_SRUN, **_HYDRA}, "mpirun", 4),  # mpirun within a job starts its own helpers with srun
        ({**_SRUN, **_TORCHRUN}, "torchrun", 2),  # one torchrun a node
        (dict.fromkeys(_TORCHRUN, ""), "local", None),  # left over, empty
        ({**_SRUN, "SLURM_STEP_NUM_TASKS": "1"}, "local", None),  # srun --pty bash: a place to start ranks in
        ({name: value for name, value in _SRUN.items() if "_STEP_" not in name}, "local", None),  # a batch script
    ],
)
def test_a_launcher_is_known_by_its_whole_promise(variables: dict[str, str], launcher: str, size: int | None) -> None:
    row = launcher_here(variables)
    assert row.name == launcher
    assert row.size(variables) == size


_ONE = Plan(ranks=1, sweep=(Sweep(ops=("barrier",)),))


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, "PMI_SIZE"),
        ({"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "4"}, "FLUX_JOB_SIZE"),
        ({"JSM_NAMESPACE_RANK": "0", "JSM_NAMESPACE_SIZE": "2"}, "JSM_NAMESPACE_SIZE"),
        ({"PMIX_RANK": "1"}, "PMIX_RANK"),
        ({"PALS_RANKID": "3"}, "PALS_RANKID"),
    ],
)
def test_one_of_several_ranks_of_an_unknown_launcher_does_not_measure_by_itself(
    variables: dict[str, str], name: str
) -> None:
    advice = rf"torchrun, mpirun or srun, or .* RANK.* unset {name}"
    words = rf"{name} is {variables[name]}: a launcher that busbw does not know .* {advice}"
    with pytest.raises(LaunchError, match=words):
        ranks_of(_ONE, variables)


@pytest.mark.parametrize(
    "variables",
    [
        {"PMI_RANK": "0", "PMI_SIZE": "1", "PMIX_RANK": "0"},  # a step of one task
        {"PMI_SIZE": "many"},
        {"FLUX_JOB_SIZE": "1"},
    ],
)
def test_the_only_rank_of_an_unknown_launcher_may_start_others(variables: dict[str, str]) -> None:
    assert ranks_of(_ONE, variables) == 1


def test_a_known_launcher_may_set_what_others_set() -> None:
    others = {"PMI_SIZE": "4", "FLUX_JOB_SIZE": "4", "PMIX_RANK": "1"}
    plan = Plan(sweep=_ONE.sweep)
    assert [ranks_of(plan, {**launcher, **others}) for launcher in (_HYDRA, _SRUN, _TORCHRUN)] == [4, 4, 2]


def test_a_size_that_is_no_number_is_refused() -> None:
    with pytest.raises(LaunchError, match="PMI_SIZE"):
        LAUNCHERS["mpirun"].size({**_HYDRA, "PMI_SIZE": "many"})


def _mpiexec_of(folder: Path, words: str) -> Path:
    folder.mkdir()
    path = folder / "mpiexec"
    path.write_text(f"#!/bin/sh\necho '{words}'\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def path_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two in PATH: that of MPICH, behind that of Open MPI. None is beside this Python."""
    first = _mpiexec_of(tmp_path / "one", "mpiexec (Open MPI) 4.1.4")
    second = _mpiexec_of(tmp_path / "two", "HYDRA build details:")
    monkeypatch.setenv("PATH", f"{first.parent}:{second.parent}:/bin:/usr/bin")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    mpiexec.chosen.cache_clear()
    return first, second


@pytest.mark.parametrize(("vendor", "place"), [("Open MPI", 0), ("MPICH", 1)])
def test_the_mpiexec_of_the_library_is_taken_wherever_it_stands(
    path_of_two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, vendor: str, place: int
) -> None:
    monkeypatch.setattr(mpiexec, "vendor_of_library", lambda: vendor)
    assert mpiexec.chosen() == (vendor, str(path_of_two[place]))
    mpiexec.chosen.cache_clear()


@pytest.mark.parametrize(("vendor", "words"), [("Intel MPI", "libraries"), ("Platform MPI", "Platform")])
def test_a_library_whose_ranks_nothing_starts_is_refused_in_words(
    path_of_two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, vendor: str, words: str
) -> None:
    monkeypatch.setattr(mpiexec, "vendor_of_library", lambda: vendor)
    with pytest.raises(LaunchError, match=words) as refused:
        mpiexec.chosen()
    assert (str(path_of_two[0]) in str(refused.value)) == (vendor == "Intel MPI")


def test_a_library_that_takes_for_ever_to_load_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 20\n", encoding="utf-8")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    monkeypatch.setattr(probe, "_ASKS_SECONDS", 0.2)
    with pytest.raises(LaunchError):
        probe.vendor_of_library()


def test_an_mpiexec_that_starts_nothing_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _mpiexec_of(tmp_path / "one", "-------- there are not enough slots")
    monkeypatch.setattr(mpiexec, "chosen", lambda: ("MPICH", str(path)))
    words = f"{path} started 0 of 2 ranks; its output: there are not enough slots"
    with pytest.raises(LaunchError, match=words), mpiexec.rank_stubs(2):
        pass


def test_a_folder_that_no_socket_can_be_in_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    monkeypatch.setattr(mpiexec, "chosen", lambda: ("MPICH", "mpiexec"))
    with pytest.raises(LaunchError, match="TMPDIR"), mpiexec.rank_stubs(2):
        pass


def test_stubs_bring_what_was_given_to_every_rank_and_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mpiexec in three lines: numbers, descriptors, and waiting for its processes."""
    path = tmp_path / "mpiexec"
    path.write_text(
        '#!/bin/bash\nuntil [ "$1" = -n ]; do shift; done\nshift 2\nfor r in 1 0; do\n'
        "export PMI_RANK=$r PMI_SIZE=2 MPI_LOCALRANKID=$r MPI_LOCALNRANKS=2 PMI_FD=7\n"
        '"$@" 7< <(echo secret of $r) &\ndone\nwait\n',
        encoding="utf-8",
    )
    path.chmod(0o755)
    monkeypatch.setattr(mpiexec, "chosen", lambda: ("MPICH", str(path)))
    with mpiexec.rank_stubs(2) as stubs:
        assert [stub.rank for stub in stubs] == [0, 1]
        for stub in stubs:
            assert stub.variables["PMI_RANK"] == str(stub.rank)
            assert list(stub.descriptors) == [7]
            with open(stub.descriptors[7], encoding="utf-8", closefd=False) as given:
                assert given.read() == f"secret of {stub.rank}\n"
        mpiexec.close_descriptors(stubs)
    command = ["pgrep", "-f", str(path)]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 1, "it is gone"


@pytest.mark.parametrize("said", [b"", b"\2", (9).to_bytes(8, "little"), (9).to_bytes(8, "little") + b'{"var'])
def test_a_process_at_a_door_that_ends_before_its_last_word_is_an_error_in_words(said: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours:
        theirs.sendall(said)
        theirs.close()
        with pytest.raises(LaunchError):
            mpiexec._received(ours, 2)


def test_mpiexec_is_kept_on_this_machine_and_told_nothing_of_the_place_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of one task has a process manager of its own, and a job other hosts; local ranks are to see neither."""
    path = tmp_path / "mpiexec"
    path.write_text('#!/bin/bash\necho "$@"; compgen -e | grep -E "^(PMI|SLURM)"\n', encoding="utf-8")
    path.chmod(0o755)
    places = {"PMIX_NAMESPACE": "slurm.pmix.1.0", "PMIX_RANK": "0", "PMI_FD": "7", "PMI_RANK": "0", "PMI2_FD": "7"}
    for name, value in {**places, "PMIX_MCA_gds": "hash", "SLURM_JOB_ID": "1"}.items():
        monkeypatch.setenv(name, value)
    for vendor, arguments in (
        ("MPICH", "-launcher fork -hosts localhost -n 2"),
        ("Intel MPI", "-bootstrap fork -hosts localhost -n 2"),
        ("Open MPI", r"--mca ras \^alps,\S*slurm\S* --mca plm \^alps,\S*slurm\S* -n 2"),
    ):
        monkeypatch.setattr(mpiexec, "chosen", lambda vendor=vendor: (vendor, str(path)))
        with pytest.raises(LaunchError, match=arguments) as raised, mpiexec.rank_stubs(2):
            pass
        names = str(raised.value).split()
        assert not set(places) & set(names)
        assert {"PMIX_MCA_gds", "SLURM_JOB_ID"} <= set(names), "which are the user's, and recorded"


# --- the watch -------------------------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.parametrize(
    ("timeout", "does", "is_lost"),
    [
        (0.3, lambda _watch: None, True),
        (0.3, lambda _watch: time.sleep(0.05), False),  # the others wait for it: it is not the one to say so
        (0.05, lambda _watch: time.sleep(0.05), True),  # a library that sleeps while it waits
        (0.6, lambda watch: setattr(watch, "beats", watch.beats + 1), False),
    ],
)
def test_who_waits_in_mpi_for_longer_than_the_timeout_says_so(
    timeout: float,
    does: Callable[[Any], None],
    is_lost: bool,  # noqa: FBT001
) -> None:
    errors: list[str] = []
    watch = Watchdog("MPI", timeout, lambda error: errors.append(str(error)))
    until = time.monotonic() + (20 if is_lost else 3 * timeout)
    while time.monotonic() < until and not errors:
        does(watch)
    watch.end()
    assert bool(errors) == is_lost
    assert not errors or errors[0].startswith("no progress over MPI for ")


_MPICH = "MPICH Version:\t5.0.2\nMPICH configure:    --with-pm=hydra:gforker\n"
_OPEN = "Open MPI v5.0.11, package: Open MPI"


@pytest.mark.parametrize(
    ("launcher", "version", "advice"),
    [
        ("mpirun", _MPICH, "mpiexec"),
        ("srun", _MPICH, "pmi2"),
        ("srun", _OPEN, "pmix"),
        ("srun", "Intel(R) MPI Library 2021.14", "pmi2"),
        ("srun", "MVAPICH 4.1", "list"),
    ],
)
def test_another_world_than_the_promised_one_is_refused(launcher: str, version: str, advice: str) -> None:
    backend = pytest.importorskip("busbw.backends.mpi.init", exc_type=ImportError)
    backend.refuse_mismatched_world((2, 4), (2, 4), launcher, version)
    with pytest.raises(LaunchError, match=advice):
        backend.refuse_mismatched_world((2, 4), (0, 1), launcher, version)


def test_a_process_manager_that_the_library_was_built_without_is_refused_before_it_ends_the_process() -> None:
    backend = pytest.importorskip("busbw.backends.mpi.init", exc_type=ImportError)
    pmix = {"PMIX_RANK": "0"}
    with pytest.raises(LaunchError, match="--mpi=pmi2"):
        backend.refuse_another_manager("srun", pmix, _MPICH)
    backend.refuse_another_manager("srun", pmix, _MPICH.replace("gforker", "gforker --with-pmix=/usr"))
    backend.refuse_another_manager("srun", pmix, _OPEN)
    backend.refuse_another_manager("srun", {"PMI_RANK": "0"}, _MPICH)
    backend.refuse_another_manager("mpirun", pmix, _MPICH)
    open_mpis = {**pmix, **_OPEN_MPI}
    words = r"Open MPI's mpirun started the ranks, but mpi4py has loaded MPICH Version: 5\.0\.2, .* MPICH's mpiexec"
    with pytest.raises(LaunchError, match=words):
        backend.refuse_another_manager("mpirun", open_mpis, _MPICH)
    backend.refuse_another_manager("mpirun", open_mpis, _OPEN)
    backend.refuse_another_manager("mpirun", {**open_mpis, **_HYDRA}, _MPICH)


@pytest.mark.parametrize(
    ("asked", "ranks", "level"), [(None, 2, "funneled"), (None, 3, "multiple"), ("single", 3, "single")]
)
def test_ranks_that_share_cores_ask_for_the_level_with_which_they_yield(
    asked: str | None, ranks: int, level: str
) -> None:
    backend = pytest.importorskip("busbw.backends.mpi.init", exc_type=ImportError)
    assert backend.thread_level(asked, ranks, 2) == level
    with pytest.raises(LaunchError, match="single"):
        backend.thread_level("many", ranks, 2)


def test_without_mpi4py_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from busbw import backends  # noqa: PLC0415 - as above

    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert "busbw[mpi]" in str(backends.BACKENDS["mpi"].missing())


def test_a_world_that_nobody_listens_to_ends_the_process_with_words() -> None:
    program = (
        "from busbw.backends.base import World\nfrom busbw.errors import BackendError\n"
        "World(0, 1, 0, 'x', 1.0).lost(BackendError('nothing came back'))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert ended.returncode == 1


def test_a_library_that_cannot_be_loaded_is_an_error_in_words(tmp_path: Path) -> None:
    source = """\
import sys
from busbw.errors import LaunchError
try:
    import busbw.backends.mpi.backend
except LaunchError as error:
    sys.exit(str(error))
"""
    library = tmp_path / "libmpi.so"
    library.touch()
    ran = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "MPI4PY_LIBMPI": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1, ran.stderr
    assert ran.stderr.startswith("mpi4py cannot load an MPI library on ")
    assert str(library) in ran.stderr


def test_a_number_that_the_library_wants_is_given_to_no_pipe_meanwhile() -> None:
    free = os.dup(0)
    os.close(free)
    with ExitStack() as stack:
        mpiexec._reserve(stack, {0, free})
        ends = os.pipe()
        assert free not in ends
        for end in ends:
            os.close(end)
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(free)
