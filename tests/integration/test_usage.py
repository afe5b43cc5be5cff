"""A refusal reaches the shell as exit 2 and a line; which there are is tested without processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.conftest import Commands

pytestmark = pytest.mark.integration


def test_a_refusal_reaches_the_shell(commands: Commands) -> None:
    finished = commands.run("run", "--op", "allreduce", program=commands.console_script())
    assert finished.code == 2, finished.told
    assert finished.out == ""
    assert len(finished.err.splitlines()) == 1


def test_groups_that_do_not_fit_the_ranks_are_refused(commands: Commands) -> None:
    finished = commands.run("run", "--plan", commands.sweep("barrier"), "--ranks", "2", "--groups", "0,9")
    assert finished.code == 2, finished.told
    assert "[9]" in finished.err
    assert not list(commands.results.glob("*/*"))
