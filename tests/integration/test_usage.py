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
