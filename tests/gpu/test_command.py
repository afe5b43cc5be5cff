"""Ranks on several GPUs by the real command: what is measured is what is, and what is wrong is named."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from exhaustive import EXHAUSTIVE
from simulated.machine import EXACT
from testing.gpu import ON_GPU, REAL, run_on_gpus

from busbw.cli.main import main
from busbw.runs import store

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


def run(folder: Path, sweeps: str, *arguments: str, faults: str = "{}", gpus: int = 2) -> tuple[int, str]:
    plan = folder / "plan.toml"
    plan.write_text(PLAN + sweeps, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIMULATED_FAULTS", faults)
        patch.setenv("SIMULATED_GPUS", str(gpus))
        ran = run_on_gpus(folder, "--plan", str(plan), "--ranks", str(gpus), *arguments)
    return ran.returncode, ran.stdout + ran.stderr


def shown(folder: Path, command: str = "show") -> Any:  # noqa: ANN401 - JSON
    (made,) = store.folders(folder)
    options = ["--output", str(folder / "report")] if command == "report" else []
    return json.loads(CliRunner().invoke(main, [command, str(made), "--json", *options]).stdout)


def test_two_ranks_measure_what_is(tmp_path: Path) -> None:
    collectives = f'[[sweep]]\nops = ["all_reduce", "all_gather"]\nsizes = "{SIZE}"\nmodes = ["pipelined", "graph"]\n'
    pairs = f'[[sweep]]\nops = ["ping_pong"]\nsizes = "{SIZE}"\nmodes = ["pipelined"]\npre_enqueue = true\n'
    copies = '[[sweep]]\nops = ["peer_copy_both", "peer_copy_staged"]\nsizes = "4KiB"\npairs = "together"\n'
    small = '[[sweep]]\nops = ["reduce", "all_to_all"]\nsizes = "4KiB"\ndtypes = ["float8_e4m3", "float8_e5m2"]\n'
    status, text = run(tmp_path, f"{collectives}pre_enqueue = true\n{pairs}{copies}{small}")
    assert status == 0, text
    rows = shown(tmp_path)["cases"]
    known = {
        "all_reduce": EXACT.collective((0, 1), SIZE),
        "all_gather": EXACT.collective((0, 1), SIZE / 2),
        "ping_pong": EXACT.message(0, 1, SIZE),
    }
    assert {row["check_state"] for row in rows} == {"verified"}
    choices = {(row["op"], row["size_bytes"]): [one["algorithm"] for one in row["choices"]] for row in rows}
    assert choices["all_reduce", SIZE] == ["NVLS"], "in a graph and without"
    assert choices["reduce", 4096] == ["RING"]
    assert choices["ping_pong", SIZE] == choices["all_to_all", 4096] == []
    for row in rows:
        if row["op"] in known:
            assert row["time_ns"] == pytest.approx(known[row["op"]], rel=0.01), row["in_words"]


@pytest.mark.skipif(not EXHAUSTIVE, reason="its sixteen processes take two minutes; set BUSBW_EXHAUSTIVE=1")
def test_a_slow_link_between_two_gpus_is_named(tmp_path: Path) -> None:
    sweep = '[[sweep]]\nops = ["peer_copy"]\nsizes = "1MiB"\nmodes = ["isolated"]\npairs = "alone"\n'
    slow = '{"slow_links": {(2, 1): 20.0}}'
    status, text = run(tmp_path, sweep, "--launches", "4", "--max-seconds", "0.001", gpus=4, faults=slow)
    assert status == 0, text
    report = shown(tmp_path, "report")
    (matrix,) = report["pair_matrices"]
    assert [outlier["ranks"] for outlier in matrix["outliers"]] == [[2, 1]]


@pytest.mark.slow
def test_a_gpu_that_is_lost_ends_the_launch_and_is_named(tmp_path: Path) -> None:
    sweep = '[[sweep]]\nops = ["all_reduce"]\nsizes = "4KiB"\nmodes = ["pipelined"]\n'
    status, text = run(tmp_path, sweep, "--timeout", "20", faults='{"lost": {1: 300}}')
    assert status != 0
    assert "rank 1" in text
    assert "launch failure" in text
