"""The words of every command are those on file; what they mean is tested by codes and numbers elsewhere."""

from pathlib import Path

import pytest
from golden import FOLDER, LIST, invocations, transcript, write_inputs

_INVOCATIONS = invocations()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


def test_no_file_is_lost_and_none_is_left_behind() -> None:
    listed = LIST.read_text(encoding="utf-8").splitlines()
    assert sorted(f"{file}.txt" for file in _INVOCATIONS) == listed
    assert {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()} == {*listed, LIST.name}


@pytest.mark.parametrize("file", _INVOCATIONS)
def test_a_command_prints_what_is_on_file(file: str, inputs: Path) -> None:
    on_file = (FOLDER / f"{file}.txt").read_text(encoding="utf-8")
    assert transcript(_INVOCATIONS[file], inputs) == on_file, "make golden rewrites the file; read what it changed"
