"""MPI: everything that Gloo is held to, over a library that starts its own ranks and never ends a wait by itself."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING

import pytest
from exhaustive import AT_NIGHT
from testing.narrow import require
from testing.plans import sweep

from busbw.backends import BACKENDS, compiled_loop
from busbw.ops import OPS
from busbw.runs.facts import MpiFacts
from busbw.runs.resume import plan_of
from busbw.system.environment import usable_cores

if TYPE_CHECKING:
    from tests.integration.conftest import Commands, Finished

    from busbw.runs.store import StoredRun

_MISSING = BACKENDS["mpi"].missing()

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING)),
    pytest.mark.usefixtures("no_shared_memory_left"),
]

_HOST = socket.gethostname()
_NO_COMPILER = compiled_loop.missing()
_ONE_PIECE = {"ping_pong", "pair_uni", "pair_matrix"}
_TALKING = [name for name, op in OPS.items() if not (op.local or op.stores or op.splits)]
_NO_CALL_OF_MPI = ("memory_copy", "tcp_stream", "tcp_ping_pong")
_MPI = ("--backend", "mpi")
_spins = pytest.mark.alone
"""Ranks over MPI that wait keep their core: beside others, many cases take minutes."""


def _mpi_of(run: StoredRun) -> MpiFacts:
    return require(run.run.environments[_HOST].mpi)


def _verified(run: StoredRun) -> None:
    assert not run.failed
    assert not run.not_reached
    for row in run.measurements:
        assert row.check.state == ("not checked" if row.case.op == "barrier" else "verified"), row.case


# --- what it measures ------------------------------------------------------------------------------------------


@_spins
def test_every_op_in_every_mode_is_verified_or_skipped_with_its_reason(commands: Commands) -> None:
    modes = ["pipelined", "persistent", "overlap"]  # test_conformance.py has isolated calls
    talking = [*_TALKING, "memory_copy"]
    plan = commands.plan(sweep(",".join(talking), "1KiB", modes=modes, in_place="both"), blocks=1)
    commands.succeed("run", "--plan", plan, "--ranks", "2", *_MPI)
    run = commands.read()
    _verified(run)
    skipped = {(row.case.op, row.case.mode, row.case.in_place) for row in run.skipped}
    assert skipped == {
        *((op, "overlap", False) for op in (*_ONE_PIECE, *_NO_CALL_OF_MPI)),
        *((op, "persistent", False) for op in _NO_CALL_OF_MPI),
        *((op, mode, way) for op, way in (("broadcast", False), ("reduce_scatter", True)) for mode in modes),
    }
    for row in run.measurements:
        by_python = row.case.mode == "overlap" or OPS[row.case.op].plain_sockets or _NO_COMPILER is not None
        assert row.loop == ("python" if by_python else "compiled"), row.case
        assert all((group.overlap is not None) == (row.case.mode == "overlap") for group in row.groups)


@pytest.mark.slow
@_spins
def test_what_the_library_chooses_is_what_is_predicted(commands: Commands) -> None:
    """One size is short and one long, so that MPICH gathers by two algorithms. Beside other tests a ping-pong of 8 B
    may take as long as one of 1 MiB: there is no β then, and no prediction."""
    plan = commands.sweep("ping_pong,all_gather", "8,4MiB")
    commands.succeed("run", "--plan", plan, "--ranks", "2", *_MPI)
    judged = commands.succeed("report", "latest", "--json", "--results-dir", commands.results)
    library = str(_mpi_of(commands.read()).library)
    if library.startswith("MPICH Version: 5."):
        assert "recursive_doubling" in judged.out
        assert "ring" in judged.out
    else:
        assert library.split(maxsplit=1)[0] in judged.out


@pytest.mark.slow
@_spins
def test_launches_are_fresh_processes_of_one_run_and_the_library_is_recorded(commands: Commands) -> None:
    plan = commands.sweep("all_reduce,all_gather,send_recv")
    commands.succeed("run", "--plan", plan, "--ranks", "4", "--launches", "3", *_MPI)
    run = commands.read()
    _verified(run)
    assert run.run.launcher == "local"
    assert len({pid for launch in run.launches for pid in launch.pids}) == 3 * 4
    facts = _mpi_of(run)
    assert facts.library
    assert facts.threads in {"single", "funneled", "serialized", "multiple"}
    assert facts.loop == ("compiled" if _NO_COMPILER is None else "python")
    assert facts.cuda_aware in {True, False, "unknown"}
    library, transport = str(facts.library), facts.transport
    if library.startswith("MPICH"):
        assert transport["netmod"] in (facts.device or "").partition(":")[2].split()
    elif library.startswith("Open MPI"):
        assert transport["pml"] == "ob1", "which local ranks are given"
    assert transport
    assert all(transport.values())


@pytest.mark.slow
@_spins
def test_without_a_compiler_python_makes_the_calls_and_the_two_are_not_compared(commands: Commands) -> None:
    ops = "all_reduce,broadcast,all_to_all_v,ping_pong"
    plan = commands.sweep(ops, "64", modes=["isolated", "pipelined", "persistent"])
    commands.succeed("run", "--plan", plan, "--ranks", "2", *_MPI, program=commands.program("no_compiler.py"))
    run = commands.read()
    _verified(run)
    assert {row.loop for row in run.measurements} == {"python"}
    facts = _mpi_of(run)
    assert facts.loop == "python"
    assert "llvmlite" in (facts.loop_missing or "")
    assert run.launches[0].compiled_call_ns == ()
    if _NO_COMPILER is None:
        commands.succeed("run", "--plan", plan, "--ranks", "2", *_MPI)
        compared = commands.run("compare", run.path, "latest", "--results-dir", commands.results)
        assert compared.code != 0
        assert "'loop'" in compared.err, compared.told


@pytest.mark.slow
@_spins
def test_groups_in_any_order_and_other_roots_are_verified(commands: Commands) -> None:
    splits = {"div:2": [(0, 1), (2, 3)], "0,3;2": [(0, 3), (2,)], "3,0,1": [(3, 0, 1)]}
    others = ("pair_matrix", *_NO_CALL_OF_MPI)
    talking = sorted(set(_TALKING) - set(others))
    modes = ["isolated", "persistent"]
    sweeps = [sweep(",".join(talking), "1200", groups=split, modes=modes) for split in splits]
    sweeps.append(sweep("broadcast,reduce,gather,scatter", "1200", root=2, modes=modes, in_place="both"))
    sweeps.append(sweep("all_reduce,all_gather", "64", modes=modes, cache="rotating"))
    commands.succeed("run", "--plan", commands.plan(*sweeps, blocks=1), "--ranks", "4", *_MPI)
    run = commands.read()
    _verified(run)
    for row in run.measurements:
        if row.case.group in splits and OPS[row.case.op].members == "all":
            assert [group.ranks for group in row.groups] == splits[row.case.group]
    assert {(row.case.op, row.case.group) for row in run.skipped} == {
        *((op, "0,3;2") for op in ("ping_pong", "pair_uni", "pair_bidir")),
        ("all_to_all_v", "0,3;2"),
        ("broadcast", "all"),
    }


@pytest.mark.slow
@_spins
def test_other_starts_and_caches_work_over_mpi(commands: Commands) -> None:
    ways = (("dissemination", "rotating"), ("window", "flushed"), ("none", "warm"))
    plan = commands.plan(*(sweep("all_reduce", sync=sync, cache=cache) for sync, cache in ways), blocks=1)
    commands.succeed("run", "--plan", plan, "--ranks", "2", *_MPI)
    _verified(commands.read())


# --- what goes wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "fate"),
    [
        (signal.SIGKILL, "was killed by SIGKILL"),
        pytest.param(signal.SIGSTOP, "is stopped and does not answer", marks=AT_NIGHT),
    ],
)
def test_a_rank_that_is_killed_or_stopped_is_named(commands: Commands, number: signal.Signals, fate: str) -> None:
    """Also while the others wait within a compiled loop, where Python has no say."""
    started = commands.start("run", "--plan", commands.long(), "--ranks", "3", "--timeout", "10", *_MPI)
    before = started.rows(atleast=2)
    pid = started.pids()[1]
    os.kill(pid, number)
    finished = started.wait()
    run = commands.read()
    finished.assert_failed(run, f"rank 1 (host {_HOST}, pid {pid}) {fate} during ")
    assert run.rows[: len(before)] == before
    assert {row.loop for row in run.measurements} == {"compiled" if _NO_COMPILER is None else "python"}
    assert finished.err.count("(host ") == 1, finished.told


@AT_NIGHT
def test_a_rank_that_hangs_is_named_when_the_others_have_waited_long_enough(commands: Commands) -> None:
    words = "hangs: it does not answer during broadcast at 1 KiB (float32)"
    finished = _with_fault(commands, "hang")
    run = commands.read()
    finished.assert_failed(run, f"rank 1 (host {_HOST}, pid {run.launches[0].pids[1]}) {words}")


def test_an_error_on_one_rank_alone_ends_the_run_and_is_told(commands: Commands) -> None:
    finished = _with_fault(commands, "raise-alone")
    finished.assert_failed(commands.read(), "this rank does not like it")


def _with_fault(commands: Commands, fault: str) -> Finished:
    plan = commands.sweep("broadcast,all_reduce")
    arguments = (fault, "run", "--plan", plan, "--ranks", "3", "--timeout", "10", *_MPI)
    return commands.run(*arguments, program=commands.program("with_fault.py"))


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=AT_NIGHT), signal.SIGKILL])
def test_a_launcher_that_is_ended_takes_ranks_and_mpiexec_along(commands: Commands, number: signal.Signals) -> None:
    started = commands.start("run", "--plan", commands.long(), "--ranks", "3", *_MPI)
    before = started.rows(atleast=2)
    started.process.send_signal(number)
    started.wait()
    assert commands.nobody_left(within_seconds=15)
    run = commands.read()
    assert run.rows[: len(before)] == before
    assert (run.end.status if run.end else None) == ("interrupted" if number == signal.SIGINT else None)


# --- below mpiexec ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_joins_the_world_that_mpiexec_started_and_can_be_resumed_there(commands: Commands) -> None:
    plan = commands.sweep("all_reduce,pair_matrix,barrier")
    joined = commands.mpirun(3)
    finished = commands.succeed("run", "--plan", plan, "--launches", "2", *_MPI, program=joined)
    assert finished.err.count("# op ") == 1, "one rank prints the table"
    commands.succeed("run", "--resume", "latest", "--launches", "2", program=joined)
    run = commands.read()
    _verified(run)
    assert run.run.launcher == "mpirun"
    assert len({pid for launch in run.launches for pid in launch.pids}) == 2 * 3
    assert require(run.end).status == "complete"


@pytest.mark.slow
@_spins
@pytest.mark.skipif(usable_cores() < 2, reason="ranks that share a core are to yield")
def test_ranks_that_are_bound_to_cores_of_their_own_do_not_pay_for_yielding(commands: Commands) -> None:
    bind = (
        "import os, runpy, sys\n"
        "mine = int(os.environ.get('PMI_RANK') or os.environ['OMPI_COMM_WORLD_RANK'])\n"
        "os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[mine]})\n"
        "sys.argv[0] = 'busbw'; runpy.run_module('busbw', run_name='__main__')"
    )
    commands.succeed("run", "--op", "barrier", *_MPI, program=commands.mpirun(2, ("-c", bind)))
    run = commands.read()
    assert len({rank.cores for rank in run.run.environments[_HOST].ranks}) == 2
    assert _mpi_of(run).threads == "funneled"


@pytest.mark.slow
def test_ranks_with_different_levels_of_threads_are_refused(commands: Commands) -> None:
    """MPICH chooses algorithms by the level; its barrier then takes the message of another one, now and then."""
    mixed = (
        "import os, runpy, sys\n"
        "mine = int(os.environ.get('PMI_RANK') or os.environ['OMPI_COMM_WORLD_RANK'])\n"
        "os.environ['MPI4PY_RC_THREAD_LEVEL'] = ['funneled', 'multiple', 'funneled'][mine]\n"
        "sys.argv[0] = 'busbw'; runpy.run_module('busbw', run_name='__main__')"
    )
    finished = commands.run("run", "--op", "barrier", *_MPI, program=commands.mpirun(3, ("-c", mixed)))
    assert finished.code != 0, finished.told
    assert "MPI4PY_RC_THREAD_LEVEL=multiple" in finished.err, finished.told
    assert commands.nobody_left(within_seconds=15)


@pytest.mark.slow
def test_what_cannot_be_right_ends_below_mpiexec_as_it_does_without(commands: Commands) -> None:
    """MPICH's mpiexec makes one status of those of all ranks, bit by bit: 2 of rank 0 and 1 of the others were 3."""
    finished = commands.run("run", "--op", "allreduce", *_MPI, program=commands.mpirun(2))
    assert finished.code == 2, finished.told
    assert finished.err.count("op 'allreduce' is unknown") == 1


@_spins
@pytest.mark.parametrize(
    ("number", "rank"), [pytest.param(signal.SIGSTOP, 1, marks=pytest.mark.slow), (signal.SIGKILL, 1)]
)
def test_a_rank_below_mpiexec_that_is_lost_ends_the_run_and_nothing_is_lost_with_it(
    commands: Commands, number: signal.Signals, rank: int
) -> None:
    started = commands.start("run", "--plan", commands.long(), "--timeout", "10", *_MPI, program=commands.mpirun(3))
    before = started.rows(atleast=2)
    os.kill(started.pids()[rank], number)
    finished = started.wait()
    assert finished.code != 0, finished.told
    assert commands.nobody_left(within_seconds=15)
    run = commands.read()
    assert run.rows[: len(before)] == before
    if number == signal.SIGSTOP:  # a killed one makes mpiexec kill all others at once, rank 0 with the end of the run
        assert f"rank {rank} (host {_HOST}) did not answer during " in finished.err
        assert require(run.end).status == "failed"


@pytest.mark.slow
@_spins
@pytest.mark.parametrize(
    ("rank", "does", "said"),
    [
        (1, "sys.exit()", f"rank 0 of 2 (host {_HOST}) waits in MPI_Init, which not all ranks have called within 8 s"),
        (
            0,
            "from mpi4py import MPI; input()",
            f"rank 1 of 2 (host {_HOST}) has received nothing from rank 0 within 8 s",
        ),
    ],
)
def test_a_rank_that_never_takes_part_is_not_waited_for_for_ever(
    commands: Commands, rank: int, does: str, said: str
) -> None:
    instead = (
        "import os, sys, runpy\n"
        f"if {{os.environ.get('PMI_RANK'), os.environ.get('OMPI_COMM_WORLD_RANK')}} & {{'{rank}'}}: {does}\n"
        "else: sys.argv[0] = 'busbw'; runpy.run_module('busbw', run_name='__main__')"
    )
    program = commands.mpirun(2, ("-c", instead))
    finished = commands.run("run", "--op", "barrier", "--timeout", "8", *_MPI, program=program)
    assert finished.code != 0
    assert said in finished.err, finished.told
    assert commands.nobody_left(within_seconds=15)


@pytest.mark.slow
def test_ctrl_c_below_mpiexec_ends_in_order(commands: Commands) -> None:
    started = commands.start("run", "--plan", commands.long(), *_MPI, program=commands.mpirun(3))
    before = started.rows(atleast=2)
    started.signal_group(signal.SIGINT)
    finished = started.wait()
    assert finished.code != 0
    assert commands.nobody_left(within_seconds=15)
    run = commands.read()
    assert run.rows[: len(before)] == before
    assert require(run.end).status == "interrupted"


@pytest.mark.slow
def test_silent_singletons_are_an_error_in_words(commands: Commands) -> None:
    """What the mpiexec of another library promises, and the one that was loaded knows nothing of."""
    promise = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    promise["OMPI_COMM_WORLD_LOCAL_SIZE"] = "4"
    finished = commands.run("run", "--plan", commands.sweep("barrier"), *_MPI, environment=promise)
    assert finished.code == 1, finished.told
    assert "MPI4PY_LIBMPI" in finished.err
    assert not list(commands.results.glob("*/*"))


@pytest.mark.slow
def test_a_launcher_that_cannot_start_a_backend_says_which_can(commands: Commands) -> None:
    plan = commands.sweep("barrier")
    finished = commands.run("run", "--plan", plan, *_MPI, program=commands.torchrun(1))
    assert finished.code != 0
    assert "mpirun" in finished.err
    assert not list(commands.results.glob("*/*"))


@pytest.mark.parametrize("with_port", [pytest.param(False, marks=AT_NIGHT), True])
def test_ranks_of_gloo_meet_below_mpiexec_with_its_mpi_and_without(commands: Commands, *, with_port: bool) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    # With a store of its own no MPI is loaded at all: there is none of that name.
    nowhere = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "MPI4PY_LIBMPI": str(commands.folder / "libmpi.so")}
    plan = commands.sweep("all_reduce,barrier")
    finished = commands.succeed(
        "run", "--plan", plan, program=commands.mpirun(3), environment=nowhere if with_port else {"MASTER_ADDR": "n0"}
    )
    run = commands.read()
    _verified(run)
    assert (run.run.launcher, plan_of(run.run, None).backend, len(run.run.hosts)) == ("mpirun", "gloo", 3)
    assert finished.err.count("# op ") == 1, "one rank prints the table"


@AT_NIGHT
@_spins
def test_a_rank_of_gloo_below_mpiexec_that_is_lost_is_named(commands: Commands) -> None:
    started = commands.start("run", "--plan", commands.long(), "--timeout", "10", program=commands.mpirun(3))
    before = started.rows(atleast=2)
    os.kill(started.pids()[1], signal.SIGSTOP)
    finished = started.wait()
    assert finished.code != 0, finished.told
    assert commands.nobody_left(within_seconds=15)
    run = commands.read()
    assert run.rows[: len(before)] == before
    assert f"rank 1 (host {_HOST}) did not answer during " in finished.err
    assert require(run.end).status == "failed"


def test_a_library_without_its_mpiexec_is_said(commands: Commands) -> None:
    environment = {"MPI4PY_LIBMPI": str(commands.folder / "libmpi.so")}
    finished = commands.run("run", "--plan", commands.sweep("barrier"), *_MPI, environment=environment)
    assert finished.code == 1, finished.told
    assert "mpi4py" in finished.err
    assert not list(commands.results.glob("*/*"))
