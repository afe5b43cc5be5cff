"""The guide for operators says what the code does: its messages, files and options are those that there are."""

import re
from pathlib import Path

import pytest

from busbw.slurm import commands
from busbw.slurm.shipped import SHIPPED

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
OURS = GUIDE.partition("### What busbw says")[2].partition("### What Slurm")[0]
FRAGMENTS = [
    fragment
    for line in OURS.splitlines()
    if line.startswith("| `")
    for fragment in re.findall(r"`([^`]+)`", line.split(" | ")[0])
]


def source() -> str:
    """All of the instrument, with strings that were broken over lines joined again."""
    texts = (path.read_text(encoding="utf-8") for path in sorted((ROOT / "bench/busbw").rglob("*.py")))
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(texts))


SOURCE = source()


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_a_message_that_is_explained_is_one_that_busbw_gives(fragment: str) -> None:
    assert fragment in SOURCE


def test_the_table_of_messages_is_not_empty() -> None:
    assert len(FRAGMENTS) > 20


def test_every_shipped_file_is_in_the_guide() -> None:
    assert set(re.findall(r"`([\w-]+)\.sbatch`", GUIDE)) >= set(SHIPPED)


def test_the_options_of_submit_that_are_shown_exist() -> None:
    known = {option for parameter in commands.submit.params for option in parameter.opts + parameter.secondary_opts}
    shown = {
        option
        for line in GUIDE.splitlines()
        if line.startswith("busbw submit")
        for option in re.findall(r"(?<!\S)--[a-z-]+", line)
    }
    assert shown
    assert shown <= known
