"""What ``busbw run --op`` measures beside the operations, so that a verdict can be made of them."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from testing.narrow import require_type
from testing.synthetic import Piece, World, case, synthetic_run

from busbw.backends import BACKENDS, backend_named
from busbw.cli.main import main
from busbw.cli.measuring import baseline
from busbw.launch.worker import asked_first
from busbw.ops import ON_SOCKETS, OPS
from busbw.ops.communication import COLLECTIVES, POINT_TO_POINT
from busbw.runs.cases import expand
from busbw.runs.plan import Plan, Sweep
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import pool
from busbw_analysis.diagnosis.answer import answer_of
from busbw_analysis.models.costs import Parameters
from busbw_analysis.peaks.peaks import Peak

_ALL = {"ping_pong", "send_recv", "tcp_stream", "tcp_ping_pong", "memory_copy"}


def ops_beside(*ops: str, backend: str = "gloo", ranks: int = 2, one_host: bool = True) -> set[str]:
    return {name for sweep in baseline(ops, backend_named(backend), ranks, one_host=one_host) for name in sweep.ops}


def dry(*options: str) -> Any:  # noqa: ANN401 - JSON
    result = CliRunner().invoke(main, ["run", "--dry-run", "--json", "--ranks", "2", *options])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_backend_over_sockets_is_held_against_sockets_and_one_of_gpus_against_neither_copy() -> None:
    assert ops_beside("all_reduce") == _ALL
    assert ops_beside("all_reduce", backend="mpi") == _ALL - ON_SOCKETS
    assert ops_beside("all_reduce", backend="nccl") == {"ping_pong", "send_recv"}


def test_between_hosts_latency_alone_is_measured() -> None:
    assert ops_beside("all_reduce", one_host=False) == {"ping_pong"}


def test_an_op_without_data_needs_no_peak() -> None:
    assert ops_beside("barrier") == {"ping_pong"}


@pytest.mark.parametrize("op", [name for name, op in OPS.items() if op.local or op.plain_sockets or op.stores])
def test_what_sends_nothing_needs_nothing(op: str) -> None:
    assert ops_beside(op) == set()


def test_pairs_and_single_ranks_need_nothing() -> None:
    assert ops_beside("pair_matrix") == set()
    assert ops_beside("all_reduce", ranks=1) == set()


@pytest.mark.parametrize("op", sorted(_ALL))
def test_what_was_asked_for_is_not_doubled(op: str) -> None:
    assert ops_beside("all_reduce", op) == _ALL - {op}
    cases = dry("--op", f"all_reduce,{op}", "--sizes", "1KiB,1MiB")["cases"]
    assert [case["size_bytes"] for case in cases if case["op"] == op] == [1 << 10, 1 << 20]


def test_the_highest_busbw_is_one_of_an_operation_that_was_asked_for() -> None:
    """The messages that the baseline adds are faster than the barrier-like broadcast that was asked for."""
    sweeps = (
        Sweep(ops=("broadcast",), sizes="8,4MiB"),
        *baseline(("broadcast",), backend_named("gloo"), 2, one_host=True),
    )
    wanted = Plan(backend="gloo", sweep=sweeps)
    slow = World(by_op={"broadcast": (Piece(20e-6, 1e-8),)})
    stored = synthetic_run(expand(wanted, 2, 1).cases, slow)
    planned = replace(stored, run=msgspec.structs.replace(stored.run, plan=wanted))
    assert planned.run.plan.baseline_ops == _ALL
    of_all, of_asked = (judge(pool([run])) for run in (stored, planned))
    assert [judgement.best and judgement.cases[judgement.best.case].case.op for judgement in (of_all, of_asked)] == [
        "send_recv",
        "broadcast",
    ]
    assert "send_recv" not in answer_of(of_asked).measured


@pytest.mark.parametrize("backend", [name for name, row in BACKENDS.items() if row.device == "cpu"])
def test_a_run_of_one_op_has_a_model_and_a_peak(backend: str) -> None:
    row = backend_named(backend)
    sweeps = (Sweep(ops=("all_reduce",), sizes="8,4MiB"), *baseline(("all_reduce",), row, 2, one_host=True))
    cases = expand(Plan(backend=backend, sweep=sweeps), 2, 1).cases
    (curve,) = [curve for curve in judge(pool([synthetic_run(cases)])).curves if curve.series.key.op == "all_reduce"]
    assert require_type(Parameters, curve.parameters).host_bytes_per_second is not None
    # Each MPI library chooses algorithms of its own, and a made-up run has none.
    assert isinstance(curve.model, tuple) == (backend != "mpi")
    assert isinstance(curve.peak, Peak)


def test_a_dry_run_says_what_the_baseline_takes() -> None:
    options = ("--op", "all_reduce", "--sizes", "1KiB")
    document, alone = dry(*options), dry(*options, "--no-baseline")
    assert set(document["baseline"]["ops"]) == _ALL
    seconds = document["baseline"]["estimated_seconds"]
    assert seconds == pytest.approx(document["estimated_seconds"] - alone["estimated_seconds"])
    assert seconds > 0
    assert alone["baseline"] == {"ops": [], "estimated_seconds": 0}
    assert {case["op"] for case in alone["cases"]} == {"all_reduce"}


def test_a_suite_measures_what_it_says_and_what_judges_an_op_of_it() -> None:
    assert dry("--suite", "quick")["baseline"]["ops"] == []
    options = ("--suite", "quick", "--op", "all_reduce")
    assert set(dry(*options)["baseline"]["ops"]) == _ALL
    assert {case["op"] for case in dry(*options, "--no-baseline")["cases"]} == {"all_reduce"}


def test_all_operations_are_those_between_ranks_or_those_of_the_suite() -> None:
    cases = dry("--op", "all", "--sizes", "1KiB", "--no-baseline")["cases"]
    assert {case["op"] for case in cases} == {op.name for op in (*COLLECTIVES, *POINT_TO_POINT)}
    of_suite = [
        {case["op"] for case in dry("--suite", "quick", *options)["cases"]} for options in ([], ["--op", "all"])
    ]
    assert of_suite[0] == of_suite[1]


def test_the_first_block_is_one_that_was_asked_for() -> None:
    order = [(case(op, 8), block) for block in range(2) for op in ("ping_pong", "all_reduce", "send_recv")]
    assert asked_first(order, {"ping_pong", "send_recv"}) == order[1:] + order[:1]
    assert asked_first(order[:1], {"ping_pong"}) == order[:1]
