"""What every backend has to pass: the Protocol held on every rank, and every case measured or skipped with a reason."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from exhaustive import EXHAUSTIVE
from testing.plans import sweep

from busbw.backends import BACKENDS
from busbw.ops import LATENCIES, OPS, TRAINED
from busbw.runs.records import DTYPE_BYTES, FLOAT8, REDOPS
from busbw.system.environment import versions

if TYPE_CHECKING:
    from tests.integration.conftest import Commands

    from busbw.runs.store import StoredRun

pytestmark = pytest.mark.integration

_UNCHECKED = {"barrier"}
_REDUCING = ("all_reduce", "reduce_scatter", "reduce")
_BY_TWO_BUFFERS = {"all_reduce", "reduce"}
_HALF = {"float16", "bfloat16"}
_RANKS = 3
_PAIR_OPS = {op.name for op in OPS.values() if op.members != "all"}
_NEEDS_DEVICE = {name for name, op in OPS.items() if op.needs_device}
_REDUCED = {
    (op, dtype, redop)
    for op, dtype, redop in itertools.product(_REDUCING, DTYPE_BYTES, REDOPS)
    if EXHAUSTIVE or op == "all_reduce" or redop == "sum" or dtype == "float32"
}
"""For a commit, every pair of data type and reduction in one operation, and either of them in the others."""


@pytest.fixture(scope="module", params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    missing = BACKENDS[name].missing()
    if missing is not None:
        pytest.skip(missing)
    if BACKENDS[name].device != "cpu":
        pytest.skip("four ranks would want four devices; tests/gpu has what one can show")
    return name


def test_a_backend_keeps_the_promises_of_the_protocol(commands: Commands, backend: str) -> None:
    commands.succeed(  # 6 ranks: control traffic has other ways for those beyond a power of two
        *(backend, "run", "--plan", commands.sweep("barrier"), "--ranks", "6", "--backend", backend),
        program=commands.program("conform.py"),
    )


@pytest.fixture(scope="module")
def every_case(shared_commands: Commands, backend: str) -> StoredRun:
    """One run of every op, in place and out of place, and of every data type and reduction."""
    ops = ",".join(name for name in OPS if name not in TRAINED)  # steps of training have tests of their own
    plan = shared_commands.plan(
        sweep(ops, "96", in_place="both"),
        *(sweep(op, "1KiB", dtypes=[dtype], redops=[redop]) for op, dtype, redop in sorted(_REDUCED)),
        sweep("all_to_all,scatter,send_recv", "256", dtypes=[*DTYPE_BYTES]),
        blocks=1,
    )
    results = shared_commands.results / backend
    options = ("--ranks", str(_RANKS), "--backend", backend, "--results-dir", results)
    shared_commands.succeed("run", "--plan", plan, *options)
    return shared_commands.read(results)


def test_every_op_and_dtype_of_a_backend_is_verified_or_skipped_with_a_reason(
    every_case: StoredRun, backend: str
) -> None:
    run = every_case
    assert not run.not_reached
    assert not run.failed
    assert all(row.reason.strip() for row in run.skipped)
    assert {case.backend for case in run.run.cases} == {backend}
    assert {row.case.device for row in run.measurements} == {BACKENDS[backend].device}
    for row in run.measurements:
        assert row.check.state == ("not checked" if row.case.op in _UNCHECKED else "verified"), row.case
        assert all(min(group.fastest_ns) > 0 for group in row.groups)
    apart = {row.case.op for row in run.measurements if row.case.op in _BY_TWO_BUFFERS and not row.case.in_place}
    assert apart == (_BY_TWO_BUFFERS if backend == "mpi" else set())
    unable = {row.case for row in run.skipped if row.case.op in _REDUCING and row.case.size_bytes > 96}
    assert {(case.op, case.dtype, case.redop) for case in unable} == {
        (op, dtype, redop)
        for op, dtype, redop in _REDUCED
        if (redop == "avg" and (backend == "mpi" or "int" in dtype))
        or (backend == "mpi" and dtype in _HALF)
        or dtype in FLOAT8
    }
    assert set(versions(BACKENDS[backend].packages)) <= set(next(iter(run.run.environments.values())).versions)


def test_every_op_in_every_placement_is_measured_or_lacks_what_it_needs(every_case: StoredRun, backend: str) -> None:
    placements = {(op.name, in_place) for op in OPS.values() if not op.splits for in_place in op.in_place}
    assert {(case.op, case.in_place) for case in every_case.run.cases} == placements
    measured = {(row.case.op, row.case.in_place) for row in every_case.measurements}
    lacking = {op for op, _ in placements - measured} - _NEEDS_DEVICE - LATENCIES
    if backend == "gloo":
        assert lacking == {"all_reduce", "reduce", "broadcast"}
        assert ("all_reduce", True) in measured, "torch.distributed has it in place alone"


def test_groups_of_every_op_are_the_ranks_that_took_part(every_case: StoredRun) -> None:
    for row in every_case.measurements:
        groups = [group.ranks for group in row.groups]
        if row.case.op == "pair_matrix":
            assert sorted(groups) == [*itertools.permutations(range(_RANKS), 2)]
        else:
            assert groups == [(0, _RANKS - 1) if row.case.op in _PAIR_OPS else tuple(range(_RANKS))]
        for group in row.groups:
            assert [samples.rank for samples in group.per_rank] == list(group.ranks)
            assert set(group.fastest_rank) <= set(group.ranks)
            assert all(low <= high for low, high in zip(group.fastest_ns, group.slowest_ns, strict=True))
