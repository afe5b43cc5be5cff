"""Ranks on several GPUs by the real command: what is measured is what is, and what is wrong is named."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import simulated
from click.testing import CliRunner
from exhaustive import EXHAUSTIVE
from simulated.machine import EXACT
from testing.gpu import ON_GPU, REAL, run_on_gpus
from testing.narrow import require

from busbw.backends.pytorch.calls import CALLS
from busbw.cli.main import main
from busbw.ops import OPS
from busbw.runs import store
from busbw.runs.records import Failed

pytestmark = [*ON_GPU, pytest.mark.skipif(REAL, reason="the truth of a real GPU is not known")]

SIZE = 1 << 16
PLAN = """
name = "truth"
backend = "nccl"
launches = 1
[timing]
launch_warmup_seconds = 0
blocks = 1
min_seconds = 0.0005
max_seconds = 0.005
"""
FEW = "least_samples = 2\nmin_samples = 2\nmax_samples = 2\nwarmup_calls = 1\nmax_warmup_calls = 1\n"
"""Keys of the timing, for what takes the host seconds."""


def run(folder: Path, sweeps: str, *arguments: str, faults: str = "{}", gpus: int = 2) -> tuple[int, str]:
    plan = folder / "plan.toml"
    plan.write_text(PLAN + sweeps, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIMULATED_FAULTS", faults)
        patch.setenv("SIMULATED_GPUS", str(gpus))
        ran = run_on_gpus(folder, "--plan", str(plan), "--ranks", str(gpus), "--quiet", *arguments)
    return ran.returncode, ran.stdout + ran.stderr


def shown(folder: Path, command: str = "show") -> Any:  # noqa: ANN401 - JSON
    (made,) = store.folders(folder)
    options = ["--output", str(folder / "report")] if command == "report" else []
    return json.loads(CliRunner().invoke(main, [command, str(made), "--json", *options]).stdout)


def test_two_ranks_measure_what_is(tmp_path: Path) -> None:
    collectives = f'[[sweep]]\nops = ["all_reduce", "all_gather"]\nsizes = "{SIZE}"\nmodes = ["pipelined", "graph"]\n'
    pairs = f'[[sweep]]\nops = ["ping_pong"]\nsizes = "{SIZE}"\nmodes = ["pipelined"]\npre_enqueue = true\n'
    ops = ("peer_copy_both", "peer_copy_staged", "peer_copy_sm", "peer_all_to_one", "peer_one_to_all")
    apart = (
        f'[[sweep]]\nops = ["all_reduce", "broadcast", "reduce"]\nsizes = "{SIZE}"\nmodes = ["pipelined", "graph"]\n'
    )
    apart += 'in_place = "no"\nroot = 1\n'
    copies = f'[[sweep]]\nops = {json.dumps(ops)}\nsizes = "4KiB"\npairs = "together"\nroot = 1\n'
    small = '[[sweep]]\nops = ["reduce", "all_to_all"]\nsizes = "4KiB"\ndtypes = ["float8_e4m3", "float8_e5m2"]\n'
    status, text = run(tmp_path, f"{collectives}pre_enqueue = true\n{pairs}{apart}pre_enqueue = true\n{copies}{small}")
    assert status == 0, text
    rows = shown(tmp_path)["cases"]
    known = {
        "all_reduce": EXACT.collective((0, 1), SIZE),
        "all_gather": EXACT.collective((0, 1), SIZE / 2),
        "broadcast": EXACT.collective((0, 1), SIZE),
        "reduce": EXACT.collective((0, 1), SIZE),
        "ping_pong": EXACT.message(0, 1, SIZE),
    }
    assert {row["check_state"] for row in rows} == {"verified"}
    choices = {(row["op"], row["size_bytes"]): [one["algorithm"] for one in row["choices"]] for row in rows}
    assert choices["all_reduce", SIZE] == ["NVLS"], "in a graph and without"
    assert choices["reduce", 4096] == ["RING"]
    assert choices["ping_pong", SIZE] == choices["all_to_all", 4096] == []
    for row in rows:
        if row["op"] in known and row["size_bytes"] == SIZE:
            assert row["time_ns"] == pytest.approx(known[row["op"]], rel=0.01), row["in_words"]
    (made,) = store.folders(tmp_path)
    crossed = {(row.case.op, group.wire_bytes) for row in store.read(made).measurements for group in row.groups}
    assert crossed >= {(op, 4096 * (2 if op == "peer_copy_both" else 1)) for op in ops}


def test_messages_are_sent_in_groups_after_a_collective_of_all_ranks(tmp_path: Path) -> None:
    """As NCCL needs them; otherwise this ends without an answer, or with one that the simulated NCCL refuses."""
    sweep = f'[[sweep]]\nops = ["send_recv"]\nsizes = "{SIZE}"\n'
    ring = '[[sweep]]\nops = ["all_reduce"]\nsizes = "4KiB"\nalgorithms = ["ring"]\n'
    status, text = run(tmp_path, sweep + ring, "--timeout", "10")
    assert status == 0, text
    assert {row["check_state"] for row in shown(tmp_path)["cases"]} == {"verified"}


@pytest.mark.slow
def test_all_collectives_and_messages_of_two_ranks_are_verified(tmp_path: Path) -> None:
    ops = [name for name in CALLS if OPS[name].sized and not OPS[name].stores]
    sweep = (
        f'{FEW}[[sweep]]\nops = {json.dumps(ops)}\nsizes = "4KiB"\nmodes = ["isolated", "graph"]\nin_place = "both"\n'
    )
    status, text = run(tmp_path, sweep, "--max-seconds", "0.002")
    assert status == 0, text
    states = {(row["op"], row["check_state"]) for row in shown(tmp_path)["cases"]}
    assert states == {(op, "verified") for op in ops}


@pytest.mark.slow
@pytest.mark.parametrize(("op", "replicas"), [("train_3d", 1), ("train_interleaved", 2)])
def test_a_pipeline_of_some_of_the_ranks_does_not_begin_with_messages(tmp_path: Path, op: str, replicas: int) -> None:
    size = f"scale = {1 / 256}\nmicro_batches = [2]\nreplicas = [{replicas}]\n"
    status, text = run(tmp_path, f'{FEW}[[sweep]]\nops = ["{op}"]\n{size}', "--max-seconds", "0.001", gpus=4)
    assert status == 0, text
    assert {row["check_state"] for row in shown(tmp_path)["cases"]} == {"verified"}


STEPS = [name for name, op in OPS.items() if op.splits and name not in {"train_hsdp", "train_3d"}]
"""Steps of training that two ranks can divide."""


@pytest.mark.slow
def test_steps_of_two_ranks_are_verified(tmp_path: Path) -> None:
    """With ``make test-exhaustive`` all of them; with attention, a step takes the host ten seconds."""
    steps = STEPS if EXHAUSTIVE else ["train_zero1", "train_tensor"]
    status, text = run(
        tmp_path, f"{FEW}[[sweep]]\nops = {json.dumps(steps)}\nscale = {1 / 1024}\n", "--max-seconds", "0.001"
    )
    assert status == 0, text
    (made,) = store.folders(tmp_path)
    stored = store.read(made)
    assert {(row.case.op, row.check.state) for row in stored.measurements} == {(op, "verified") for op in steps}
    assert {row.case.op for row in stored.skipped} <= {"train_exchange"}, "its server receives from any rank"


SELF_TEST = """
import json, sys
from dataclasses import replace
from pathlib import Path
from busbw.cli import selftest
from busbw_analysis.diagnosis.selftest import judge_selftest
from simulated.install import seen_by_busbw, simulated
from simulated.machine import EXACT
with simulated(replace(EXACT, flops=1e9)), seen_by_busbw():
    folder = selftest._measured(Path(sys.argv[1]), "nccl", 2, 1)
print(json.dumps({check.name: check.state for check in judge_selftest(folder).checks}))
"""


@pytest.mark.slow
def test_the_self_test_finds_on_gpus_what_was_done_on_purpose(tmp_path: Path) -> None:
    """With one launch a side, which is too few to compare."""
    command = [sys.executable, "-c", SELF_TEST, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(simulated.__file__).parents[1])}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=170)
    assert ran.returncode == 0, ran.stderr
    states = json.loads(ran.stdout.splitlines()[-1])
    assert {states[name] for name in ("straggler", "wrong data", "clock error", "timer")} == {"ok"}, states


@pytest.mark.slow
def test_eight_gpus_measure_what_is(tmp_path: Path) -> None:
    sweep = f'[[sweep]]\nops = ["all_reduce"]\nsizes = "{SIZE}"\nmodes = ["pipelined"]\npre_enqueue = true\n'
    status, text = run(tmp_path, sweep, "--max-seconds", "0.001", gpus=8)
    assert status == 0, text
    (row,) = shown(tmp_path)["cases"]
    assert row["check_state"] == "verified"
    assert row["time_ns"] == pytest.approx(EXACT.collective(tuple(range(8)), 2 * 7 / 8 * SIZE), rel=0.01)


@pytest.mark.slow
def test_a_slow_link_between_two_gpus_is_named(tmp_path: Path) -> None:
    sweep = f'{FEW}[[sweep]]\nops = ["peer_copy"]\nsizes = "1MiB"\nmodes = ["isolated"]\npairs = "alone"\n'
    slow = '{"slow_links": {(2, 1): 20.0}}'
    status, text = run(tmp_path, sweep, "--launches", "3", "--max-seconds", "0.001", gpus=4, faults=slow)
    assert status == 0, text
    assert "slow-link" in causes(tmp_path)
    (matrix,) = shown(tmp_path, "report")["pair_matrices"]
    assert [outlier["ranks"] for outlier in matrix["outliers"]] == [[2, 1]]


def failed_rows(folder: Path) -> tuple[Failed, ...]:
    """The failed blocks of the run, which has ended in failure; its host has every rank."""
    (made,) = store.folders(folder)
    stored = store.read(made)
    assert require(stored.end).status == "failed"
    return stored.failed


@pytest.mark.slow
def test_a_gpu_that_is_lost_ends_the_launch_and_is_named(tmp_path: Path) -> None:
    sweep = '[[sweep]]\nops = ["all_reduce"]\nsizes = "4KiB"\nmodes = ["pipelined"]\n'
    status, text = run(tmp_path, sweep, "--timeout", "20", faults='{"lost": {1: 150}}')
    assert status != 0
    assert "rank 1" in text
    assert "launch failure" in text


def test_a_rank_that_hangs_in_nccl_is_named_by_the_watchdog(tmp_path: Path) -> None:
    sweep = '[[sweep]]\nops = ["all_reduce"]\nsizes = "4KiB"\nmodes = ["pipelined"]\n'
    status, text = run(tmp_path, sweep, "--timeout", "3", faults='{"hung": {1: 60}}')
    assert status == 1
    assert f"rank 1 (host {socket.gethostname()}" in text
    assert "rank 0 (" not in text, "the rank that waits is not to blame"
    (failure,) = failed_rows(tmp_path)
    assert (failure.case.op, failure.case.size_bytes, failure.cause) == ("all_reduce", 4096, "timeout")


def test_a_gpu_that_receives_wrong_data_fails_the_case(tmp_path: Path) -> None:
    sweep = f'{FEW}[[sweep]]\nops = ["all_reduce", "memory_copy"]\nsizes = "4KiB"\n'
    status, text = run(tmp_path, sweep, faults='{"garbled": (1,)}')
    assert status == 1, text
    (failure,) = failed_rows(tmp_path)
    assert (failure.case.op, failure.cause) == ("all_reduce", "wrong_data")
    assert "wrong-data" in causes(tmp_path)


def causes(folder: Path) -> set[str]:
    """Codes of the causes that the answer names."""
    return {cause["code"] for cause in shown(folder)["answer"]["causes"]}


def test_a_late_rank_and_a_throttled_gpu_are_named(tmp_path: Path) -> None:
    sweeps = '[[sweep]]\nops = ["all_reduce", "memory_copy"]\nsizes = "4KiB,64KiB"\n'
    wrong = '{"late": {1: 2_000_000}, "slowed": {0: 3.0}}'
    status, text = run(tmp_path, sweeps, "--max-seconds", "0.1", faults=wrong)
    assert status == 0, text
    assert {"straggler", "throttled"} <= causes(tmp_path)
    (group,) = shown(tmp_path, "report")["lateness"]
    late = {member["rank"]: member["median_ns"] for member in group["members"] if member["flagged"]}
    assert late == {1: pytest.approx(2_000_000, rel=0.01)}
    (made,) = store.folders(tmp_path)
    gpus = [gpu for row in store.read(made).measurements for host in row.conditions for gpu in host.gpus]
    assert {gpu.index for gpu in gpus if gpu.throttled} == {0}
