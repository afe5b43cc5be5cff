"""Ranks on several GPUs by the real command: what is measured is what is, and what is wrong is named."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from exhaustive import EXHAUSTIVE
from simulated.machine import EXACT, Faults, Machine
from simulated.management import managed_machine
from testing.gpu import ON_GPU, REAL, busbw_on_gpus, run_on_gpus
from testing.narrow import require

from busbw.backends.pytorch.calls import CALLS
from busbw.cli.main import main
from busbw.ops import OPS
from busbw.ops.settings import explicit_algorithm
from busbw.ops.training import OTHER_MODELS
from busbw.runs import store
from busbw.runs.facts import GpuFacts
from busbw.runs.records import Failed, StepParts

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


def run(
    folder: Path, sweeps: str, *arguments: str, faults: str = "{}", machine: str = "{}", gpus: int = 2
) -> tuple[int, str]:
    plan = folder / "plan.toml"
    plan.write_text(PLAN + sweeps, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIMULATED_FAULTS", faults)
        patch.setenv("SIMULATED_MACHINE", machine)
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
    status, text = run(
        tmp_path, f"{FEW}{collectives}pre_enqueue = true\n{pairs}{apart}pre_enqueue = true\n{copies}{small}"
    )
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
    choices = {(row["op"], row["size_bytes"]): [choice["algorithm"] for choice in row["choices"]] for row in rows}
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
@pytest.mark.parametrize(("op", "replicas"), [("train_3d", 1), ("train_interleaved", 2), ("train_hsdp", 2)])
def test_steps_of_four_ranks_are_verified(tmp_path: Path, op: str, replicas: int) -> None:
    """A pipeline of some of the ranks must not begin with messages."""
    size = f"scale = {1 / 256}\nmicro_batches = [2]\nreplicas = [{replicas}]\n"
    status, text = run(tmp_path, f'{FEW}[[sweep]]\nops = ["{op}"]\n{size}', "--max-seconds", "0.001", gpus=4)
    assert status == 0, text
    assert {row["check_state"] for row in shown(tmp_path)["cases"]} == {"verified"}


STEPS = [name for name, op in OPS.items() if op.splits and name not in {"train_hsdp", "train_3d"}]
"""Steps of training that two ranks can divide."""


WAYS = ["train_ddp", "train_fsdp", "train_tensor", "train_1f1b"]
"""Steps that divide data, weights, layers and the layers among themselves."""


def test_each_way_to_divide_a_step_is_verified(tmp_path: Path) -> None:
    size = f"scale = {1 / 1024}\n"
    status, text = run(tmp_path, f"{FEW}[[sweep]]\nops = {json.dumps(WAYS)}\n{size}", "--max-seconds", "0.001")
    assert status == 0, text
    (made,) = store.folders(tmp_path)
    rows = store.read(made).measurements
    assert {(row.case.op, row.check.state) for row in rows} == {(op, "verified") for op in WAYS}
    assert all(isinstance(row.supplement, StepParts) for row in rows)


@pytest.mark.slow
def test_steps_of_two_ranks_are_verified(tmp_path: Path) -> None:
    """With ``make test-exhaustive`` all of them; with attention, a step takes the host ten seconds."""
    steps = STEPS if EXHAUSTIVE else [op for op in STEPS if op not in {*WAYS, *OTHER_MODELS}]
    status, text = run(
        tmp_path, f"{FEW}[[sweep]]\nops = {json.dumps(steps)}\nscale = {1 / 1024}\n", "--max-seconds", "0.001"
    )
    assert status == 0, text
    (made,) = store.folders(tmp_path)
    stored = store.read(made)
    assert {(row.case.op, row.check.state) for row in stored.measurements} == {(op, "verified") for op in steps}
    assert {row.case.op for row in stored.skipped} <= {"train_exchange"}, "its server receives from any rank"


@pytest.mark.slow
def test_the_self_test_finds_on_gpus_what_was_done_on_purpose(tmp_path: Path) -> None:
    """Its 15 launches, the fewest that it allows, take the host half a minute. How quiet that is, is not simulated."""
    ran = busbw_on_gpus(tmp_path, "selftest", "--backend", "nccl", "--ranks", "2", "--launches", "6", "--json")
    checks = {check["name"]: check["state"] for check in json.loads(ran.stdout)["checks"]}
    assert checks.keys() >= {"straggler", "wrong data", "clock error", "timer", "A/A barrier"}
    assert {state for name, state in checks.items() if name not in {"quiet machine", "empty call"}} == {"ok"}, checks


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


@pytest.mark.parametrize("unconnected", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_rank_that_cannot_connect_over_nccl_ends_the_others_with_its_error(unconnected: int, tmp_path: Path) -> None:
    """Below a launcher that ends no other rank, the others would wait for the watchdog."""
    options = ["--ranks", "2", "--op", "all_reduce", "--sizes", "4KiB", "--timeout", "20"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

    def joined(rank: int) -> str:
        world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0}
        return run_on_gpus(
            tmp_path,
            *options,
            **{name: str(value) for name, value in world.items()},
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            SIMULATED_FAULTS=str({"unconnected": (unconnected,)}),
        ).stderr

    with ThreadPoolExecutor(2) as ranks:
        for text in ranks.map(joined, range(2)):
            assert f"rank {unconnected} of 2 could not connect over NCCL" in text
            assert "no progress" not in text


def test_a_rank_that_cannot_allocate_leaves_no_other_rank_waiting(tmp_path: Path) -> None:
    """Of groups whose communicator is still to be made, which takes all of its ranks."""
    sweeps = ('in_place = "no"\n', "registered = true\n", 'registered = true\nalgorithms = ["ring"]\n')
    more = 'ops = ["all_reduce"]\nsizes = "4KiB,1MiB"\ngroups = "1,0"\n'
    plan = FEW + "".join(f"[[sweep]]\n{sweep}{more}" for sweep in sweeps)
    status, text = run(tmp_path, plan, "--timeout", "10", faults='{"fragmented": {1: 65_536}}')
    assert status == 1, text
    ways = {(False, None), (True, None), (True, "ring")}
    (made,) = store.folders(tmp_path)
    failed, measured = failed_rows(tmp_path), store.read(made).measurements
    assert {(row.case.size_bytes, row.cause) for row in failed} == {(1 << 20, "backend")}
    assert {(row.case.size_bytes, row.check.state) for row in measured} == {(4096, "verified")}
    for rows in (failed, measured):
        assert {(row.case.registered, explicit_algorithm(row.case.settings)) for row in rows} == ways


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


DEGRADED = Faults(lanes=8, links_down=9)
"""Half of the lanes and half of the NVLinks of every GPU."""


def gpus_of(folder: Path) -> tuple[GpuFacts, ...]:
    """What the run has recorded of the GPUs of its host."""
    (made,) = store.folders(folder)
    (host,) = store.read(made).run.environments.values()
    return host.pci.gpus


def test_half_of_the_links_and_lanes_are_the_peak_and_the_cause(tmp_path: Path) -> None:
    timing = '[[sweep]]\nmodes = ["pipelined"]\npre_enqueue = true\nsizes = "1MiB"\n'
    plan = f'{FEW}{timing}ops = ["all_reduce"]\n{timing}ops = ["host_to_device"]\npinning = ["pinned"]\n'
    faults = str({"lanes": DEGRADED.lanes, "links_down": DEGRADED.links_down})
    status, text = run(tmp_path, plan, faults=faults)
    assert status == 0, text
    for gpu in gpus_of(tmp_path):
        assert (require(gpu.link).trained.lanes, require(require(gpu.link).card).lanes) == (8, 16)
        assert (require(gpu.nvlink).up, require(gpu.nvlink).down) == (9, 9)
    document = shown(tmp_path)
    assert {cause["code"] for cause in document["answer"]["causes"]} == {"gpu-hardware"}
    rows, machine = {row["op"]: row for row in document["cases"]}, replace(EXACT, faults=DEGRADED)
    collective, copy = rows["all_reduce"], rows["host_to_device"]
    assert collective["busbw"] / collective["peak_share"] == pytest.approx(9 * 25e9)
    assert copy["algbw"] / copy["peak_share"] == pytest.approx(8 * 32e9 / 8 * 128 / 130)
    assert collective["time_ns"] == pytest.approx(machine.collective((0, 1), 1 << 20), rel=0.01)
    assert copy["time_ns"] == pytest.approx(machine.host_copy(0, 1 << 20, pinned=True), rel=0.01)


def told_by(machine: Machine, *command: str) -> Any:  # noqa: ANN401 - JSON
    with managed_machine(machine):
        return json.loads(CliRunner().invoke(main, [*command, "--json"]).stdout)


def test_a_machine_with_half_of_its_links_and_lanes_says_so() -> None:
    here = told_by(replace(EXACT, faults=DEGRADED), "peaks", "--here")
    nominal = {level["level"]: level["nominal_bytes_per_second"] for level in here["levels"]}
    whole = {level["level"]: level["nominal_bytes_per_second"] for level in told_by(EXACT, "peaks", "--here")["levels"]}
    assert (nominal["NVLink"], nominal["PCIe"]) == (whole["NVLink"] / 2, whole["PCIe"] / 2)
    assert nominal["HBM"] == whole["HBM"]
    doctor = told_by(replace(EXACT, faults=DEGRADED), "doctor")
    assert set(here["findings"]) <= set(doctor["findings"])
    assert len(here["findings"]) == 4
    assert {gpu["nvlink"]["up"] for gpu in doctor["facts"]["pci"]["gpus"]} == {9}


def test_an_instance_of_a_gpu_is_not_judged_by_the_peaks_of_the_whole(tmp_path: Path) -> None:
    """It has a UUID that NVML does not know, so its conditions are found by address."""
    sweeps = '[[sweep]]\nops = ["memory_copy", "matmul"]\nsizes = "64KiB"\n'
    status, text = run(tmp_path, FEW + sweeps, machine=str({"mig": True, "peers": False}), gpus=1)
    assert status == 0, text
    assert [gpu.mig for gpu in gpus_of(tmp_path)] == [True]
    report = shown(tmp_path, "report")
    (copies,) = [curve["peak"] for curve in report["curves"] if curve["key"]["op"] == "memory_copy"]
    assert copies["code"] == "memory-not-known"
    (roofline,) = report["rooflines"]
    assert {peak["measured"] for peak in roofline["compute"]} == {True}, "no FLOP/s of the whole GPU"
    assert len(roofline["unknown"]) == 2
    (made,) = store.folders(tmp_path)
    assert {gpu.index for row in store.read(made).measurements for host in row.conditions for gpu in host.gpus} == {0}
    split = told_by(replace(EXACT, gpus=1, mig=True), "doctor")
    assert [gpu["mig"] for gpu in split["facts"]["pci"]["gpus"]] == [True]
    assert [level["nominal_bytes_per_second"] for level in split["levels"] if level["level"] == "HBM"] == [None]


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
