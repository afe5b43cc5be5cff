"""The words of every command are those on file; what they mean is tested by codes and numbers elsewhere."""

import click
import pytest
from golden import COMMANDS, FOLDER, transcript

from busbw.cli.main import main


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_what_is_on_file(name: str) -> None:
    on_file = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    assert transcript(name) == on_file, "make golden rewrites the file; read what it changed"


def test_every_command_has_its_file() -> None:
    assert set(COMMANDS) == {"busbw", *main.list_commands(click.Context(main))}, "a command that is no more"
    assert {path.stem for path in FOLDER.iterdir()} == set(COMMANDS)
