"""The guide for operators says what the code does: its messages, files and options are those that there are."""

import re
from pathlib import Path

import pytest

from busbw.cli import slurm

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
OURS = GUIDE.partition("### Messages of busbw")[2].partition("### Messages of Slurm")[0]
FRAGMENTS = [
    fragment
    for line in OURS.splitlines()
    if line.startswith("| `")
    for fragment in re.findall(r"`([^`]+)`", line.split(" | ")[0])
]


def source() -> str:
    """All of both packages, with strings that were broken over lines joined again."""
    paths = sorted(path for package in ("bench", "analysis") for path in (ROOT / package).rglob("*.py"))
    texts = (path.read_text(encoding="utf-8") for path in paths)
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(texts))


SOURCE = source()


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_a_message_that_is_explained_is_one_that_busbw_gives(fragment: str) -> None:
    assert fragment in SOURCE


WITHOUT_REMEDY = (
    *("did not answer during", "hangs: it does not answer", "was killed by", "earlier rows are kept", "was found in"),
    *("it reached its time limit", "a node went down", "it was cancelled", "ended at the end of a block by"),
    *("ranks have not reached rank 0", "has received nothing from rank 0", "reach rank 0 at"),
    *("mpi4py did not load an MPI library within", "ended before it reported its rank", "requeued; continuing run"),
    "the partition has or allows fewer nodes than requested",
)
"""What busbw says of something that went wrong, without a remedy: the guide has it."""


@pytest.mark.parametrize("text", WITHOUT_REMEDY)
def test_a_message_without_a_remedy_is_explained(text: str) -> None:
    assert any(text in fragment for fragment in FRAGMENTS)


def test_the_table_of_messages_is_not_empty() -> None:
    assert len(FRAGMENTS) > 15


def test_every_shipped_file_is_in_the_guide() -> None:
    assert set(re.findall(r"`([\w-]+)\.sbatch`", GUIDE)) >= {path.stem for path in (ROOT / "slurm").glob("*.sbatch")}


def test_the_options_of_submit_that_are_shown_exist() -> None:
    known = {option for parameter in slurm.submit.params for option in parameter.opts + parameter.secondary_opts}
    shown = {
        option
        for line in GUIDE.splitlines()
        if line.startswith("busbw submit")
        for option in re.findall(r"(?<!\S)--[a-z-]+", line)
    }
    assert shown
    assert shown <= known
