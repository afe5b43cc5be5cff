"""What every backend has to pass: the Protocol held on every rank, and every case measured or skipped with a reason."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from testing.plans import sweep

from busbw.backends import BACKENDS
from busbw.ops import OPS, TRAINED
from busbw.runs.records import DTYPE_BYTES, FLOAT8, REDOPS
from busbw.system.environment import versions

if TYPE_CHECKING:
    from tests.integration.conftest import Commands

pytestmark = pytest.mark.integration

_UNCHECKED = {"barrier"}
_REDUCING = ("all_reduce", "reduce_scatter", "reduce")
_BY_TWO_BUFFERS = {"all_reduce", "reduce"}
_HALF = {"float16", "bfloat16"}


@pytest.fixture(params=sorted(BACKENDS))
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


def test_every_op_and_dtype_of_a_backend_is_verified_or_skipped_with_a_reason(commands: Commands, backend: str) -> None:
    ops = ",".join(name for name in OPS if name not in TRAINED)  # steps of training have tests of their own
    plan = commands.plan(
        sweep(ops, "96", in_place="both"),
        sweep(",".join(_REDUCING), "1KiB", dtypes=[*DTYPE_BYTES], redops=[*REDOPS]),
        sweep("all_to_all,scatter,send_recv", "256", dtypes=[*DTYPE_BYTES]),
        blocks=1,
    )
    commands.succeed("run", "--plan", plan, "--ranks", "3", "--backend", backend)
    run = commands.read()
    assert not run.not_reached
    assert not run.failed
    assert all(row.reason.strip() for row in run.skipped)
    assert {case.backend for case in run.run.cases} == {backend}
    assert {row.case.device for row in run.measurements} == {BACKENDS[backend].device}
    for row in run.measurements:
        assert row.check.state == ("not checked" if row.case.op in _UNCHECKED else "verified"), row.case
    apart = {row.case.op for row in run.measurements if row.case.op in _BY_TWO_BUFFERS and not row.case.in_place}
    assert apart == (_BY_TWO_BUFFERS if backend == "mpi" else set())
    unable = {row.case for row in run.skipped if row.case.op in _REDUCING and row.case.size_bytes > 96}
    assert {(case.op, case.dtype, case.redop) for case in unable} == {
        (op, dtype, redop)
        for op, dtype, redop in itertools.product(_REDUCING, DTYPE_BYTES, REDOPS)
        if (redop == "avg" and (backend == "mpi" or "int" in dtype))
        or (backend == "mpi" and dtype in _HALF)
        or dtype in FLOAT8
    }
    assert set(versions(BACKENDS[backend].packages)) <= set(next(iter(run.run.environments.values())).versions)
