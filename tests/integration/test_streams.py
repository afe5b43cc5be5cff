"""stdout and stderr that are closed, full or not read: no run is lost, and the exit status and a message tell of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from exhaustive import EXHAUSTIVE
from testing.narrow import require

from busbw.runs import store

if TYPE_CHECKING:
    from tests.integration.conftest import Commands

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here"),
]

_FULL = "cannot write to stdout: No space left on device"
_DRY_RUN = ("run", "--op", "barrier", "--ranks", "2", "--dry-run")


def _shell(redirection: str) -> tuple[str, ...]:
    return ("sh", "-c", f'exec "$0" -m busbw "$@" {redirection}', sys.executable)


@pytest.mark.slow
def test_a_run_is_whole_whatever_becomes_of_its_output(commands: Commands) -> None:
    wanted = [
        (">/dev/full", 1, _FULL),
        ("2>/dev/full", 0, ""),
        (">&- 2>&- <&-", 0, ""),
        ("--json >/dev/full", 1, _FULL),
        *([(">&-", 0, ""), ("2>&-", 0, "")] if EXHAUSTIVE else []),
    ]
    plan = commands.sweep("all_reduce", "8,1KiB")
    started = [
        commands.start(
            *("run", "--plan", plan, "--ranks", "2"), program=_shell(redirection), results=commands.folder / str(number)
        )
        for number, (redirection, _, _) in enumerate(wanted)
    ]
    for command, (redirection, code, words) in zip(started, wanted, strict=True):
        finished = command.wait()
        assert finished.code == code, (redirection, finished.told)
        assert words in finished.told, redirection
        assert "Traceback" not in finished.told, redirection
        stored = commands.read(command.results)
        assert require(stored.end).status == "complete", redirection
        assert len(stored.measurements) == 2 * 2
        assert words == "" or "2>" in redirection or f"results: {stored.path}" in finished.err
        names = {path.name for path in stored.path.iterdir()}
        assert names - {store.SUMMARY_FILE} == {store.RUN_FILE, store.SAMPLES_FILE}


@pytest.mark.parametrize(
    ("arguments", "redirection", "code", "words"),
    [
        (("list", "ops"), ">/dev/full", 1, _FULL),
        (("list", "ops"), ">&-", 0, ""),
        (("list", "ops", "--json"), ">/dev/full", 1, _FULL),
        (("list", "ops"), "2>&-", 0, ""),
        (_DRY_RUN, "2>&-", 0, ""),
        (_DRY_RUN, "2>/dev/full", 0, ""),
        (("list", "nothing"), "2>&-", 2, ""),
        (("--help",), ">/dev/full", 1, _FULL),
        (("list", "nothing"), "2>/dev/full", 2, ""),
    ],
)
def test_any_command_says_what_it_could_not_write(
    commands: Commands, arguments: tuple[str, ...], redirection: str, code: int, words: str
) -> None:
    finished = commands.run(*arguments, program=_shell(redirection))
    assert finished.code == code, finished.told
    assert words in finished.told
    assert "Traceback" not in finished.told


def test_a_reader_that_has_seen_enough_is_no_failure_to_tell_of(commands: Commands) -> None:
    command = f"{sys.executable} -m busbw list algorithms --json"
    ran = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | true"],  # noqa: S607 - wherever it is
        check=False,
        capture_output=True,
        text=True,
        env=commands.environment(),
    )
    assert (ran.returncode, ran.stderr) == (0, "")
