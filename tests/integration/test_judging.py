"""The analysis commands on runs as they come: finished, killed, wrong, and without any result."""

from __future__ import annotations

import json
import signal
import socket
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from exhaustive import AT_NIGHT

from busbw.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.conftest import Commands

pytestmark = pytest.mark.integration

_SIZES = "1KiB..16KiB*4"


def _killed(commands: Commands) -> int:
    started = commands.start("run", "--plan", commands.long(), "--ranks", "2")
    started.rows(atleast=5)
    started.process.kill()
    code = started.wait().code
    commands.until_gone(started.pids())
    return code


def _wrong(commands: Commands) -> int:
    plan = commands.sweep("broadcast,all_reduce", _SIZES)
    return commands.run(
        "corrupt", "run", "--plan", plan, "--ranks", "2", program=commands.program("with_fault.py")
    ).code


def _impossible(commands: Commands) -> int:
    return commands.run("run", "--plan", commands.sweep("all_reduce"), "--ranks", "2", "--in-place", "no").code


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (_killed, -signal.SIGKILL, []),
        (_wrong, 1, ["wrong data"]),
        pytest.param(_impossible, 1, [], marks=AT_NIGHT),
    ],
)
def test_every_run_can_be_shown_fitted_and_reported(
    commands: Commands, make: Callable[[Commands], int], code: int, words: list[str]
) -> None:
    assert make(commands) == code
    run = commands.read()
    for command in ("show", "fit", "report"):
        # In this process: judging starts nothing, and loading scipy for each takes longer than all the rest.
        judged = CliRunner(env={"BUSBW_RESULTS_DIR": str(commands.results)}).invoke(main, [command, "latest", "--json"])
        assert judged.exit_code == 0, f"{command}: {judged.output}"
        assert "Traceback" not in judged.stderr
        document = json.loads(judged.stdout)
        if command == "show":
            assert document["runs"] == [run.run.id]
            assert {row["op"] for row in document["cases"]} >= {row.case.op for row in run.measurements}
            assert all(word in judged.stdout for word in words)
    files = {name: (run.path / name) for name in ("report.html", "report.md", "report.json")}
    assert all(file.stat().st_size > 0 for file in files.values())
    assert all(word in files["report.md"].read_text(encoding="utf-8") for word in words)
    _assert_self_contained(files["report.html"])
    assert commands.read().rows == run.rows, "judging changes nothing"


def _assert_self_contained(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!")
    assert 'src="http' not in text
    assert "<script src" not in text


def test_a_run_that_does_not_exist_is_named(commands: Commands) -> None:
    finished = commands.run("show", "latest")
    assert finished.code == 2, finished.told
    assert "latest" in finished.err
    assert "Traceback" not in finished.err


@pytest.mark.slow
def test_a_node_is_checked_whatever_job_is_around_it(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine its time may be over before anything is measured."""
    for name in ("SLURM_PROCID", "RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    finished = commands.run("gate", "--prolog", "--json")
    assert finished.code in {0, 3}, finished.told
    document = json.loads(finished.out)
    assert document["healthy"] is {0: True, 3: None}[finished.code]
    assert document["node"] == socket.gethostname()
