"""The guide for operators says what the code does: its messages, files and options are those that there are."""

import re
from pathlib import Path

import pytest
from batch_files import SHIPPED

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


PROVOKED = {
    "integration/test_torchrun.py": ("omit --ranks or make them agree", "did not answer during", "appears twice"),
    "integration/test_mpi.py": (
        "cannot start ranks of backend",
        "use one of:",
        "mpi4py cannot load an MPI library:",
        "runs one launch only, so the plan's",
        "did not answer during",
    ),
    "integration/test_resume.py": (
        "launch(es) of run",
        "are still missing",
        "nothing is missing in run",
        "is still being measured, or is being resumed by another process",
    ),
    "integration/test_faults.py": (
        "hangs: it does not answer",
        "was killed by",
        "exited with status",
        "without a message",
        "cannot start rank",
        "case(s) failed",
        "cannot create the run folder",
        "cannot open the rendezvous on",
        "give another --port",
        "earlier rows are kept",
    ),
    "integration/test_storage.py": ("files cannot be created:", "does not exist", "is on a read-only file system"),
    "../bench/busbw/slurm/follow.py": ("was found in",),
    "../bench/busbw/slurm/queue.py": (
        "it reached its time limit",
        "a node went down",
        "it was cancelled",
        "its script exited with an error",
    ),
    "unit/test_attach.py": (
        "ranks have not reached rank 0",
        "has received nothing from rank 0",
        "reach rank 0 at",
        "registered twice at",
    ),
    "unit/test_mpi.py": (
        "a launcher that busbw does not know",
        "mpi4py did not load an MPI library within",
        "ended before it reported its rank",
        "is not supported by",
    ),
    "cluster/test_slurm.py": ("start the ranks with", "the step produced no run and ended with exit status"),
    "cluster/test_slurm_jobs.py": (
        "the partition has or allows fewer nodes than requested",
        "ended at the end of a block by",
        "requeued; continuing run",
    ),
    "cluster/test_slurm_lost.py": ("did not answer during",),
    "cluster/test_launchers.py": ("Open MPI's mpirun started the ranks, but mpi4py has loaded",),
    "cluster/test_hostile_launches.py": ("reach rank 0 at",),
}
"""File of tests → what it brings busbw to say of something that went wrong: the guide says what to do then."""


@pytest.mark.parametrize(("file", "text"), [(file, text) for file, texts in PROVOKED.items() for text in texts])
def test_a_message_that_tests_provoke_is_explained(file: str, text: str) -> None:
    assert text in (ROOT / "tests" / file).read_text(encoding="utf-8"), "it is not provoked there any more"
    assert any(text in fragment for fragment in FRAGMENTS)


def test_the_table_of_messages_is_not_empty() -> None:
    assert len(FRAGMENTS) > 20


def test_every_shipped_file_is_in_the_guide() -> None:
    assert set(re.findall(r"`([\w-]+)\.sbatch`", GUIDE)) >= set(SHIPPED)


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
