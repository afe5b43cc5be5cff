"""The shell blocks of the documents are run, on one small run that all of them share."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "docs/usage.md", "docs/operations.md")
NEEDS_MORE = {"README.md": 2, "docs/usage.md": 5, "docs/operations.md": 8}
"""Blocks marked ``sh no-run`` by document: installing, Slurm, MPI, GPUs, or many minutes. Count a new one here."""
OTHER = {"text", "toml"}
"""What a block holds that is no input of a shell."""

WRAPPER = """\
#!/bin/sh
# One small run of the quick suite; other options of run are only checked. What the document gives comes last and wins.
[ "$1" = run ] || exec {python} -m busbw "$@"
shift
case "$*" in
*--resume*) exec {python} -m busbw run --quiet "$@" ;;
*--suite*) exec {python} -m busbw run --quiet --launches 1 --max-seconds 0.01 --op all_reduce --sizes 64,4MiB "$@" ;;
*) exec {python} -m busbw run --dry-run "$@" ;;
esac
"""


def blocks_of(document: str) -> list[tuple[str, str]]:
    """Every fenced block with the words behind its fence."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """The lines of all blocks that can run anywhere, each once and in order: later ones read the run of the first."""
    blocks = [block for document in DOCUMENTS for words, block in blocks_of(document) if words == "sh"]
    lines = [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return list(dict.fromkeys(filter(None, lines)))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_block_is_left_out_unnoticed(document: str) -> None:
    kinds = Counter(words for words, _ in blocks_of(document))
    assert set(kinds) <= {"sh", "sh no-run", *OTHER}
    assert kinds["sh no-run"] == NEEDS_MORE[document]
    assert kinds["sh"] > 0


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose ``busbw`` makes runs small and keeps them in one folder."""
    folder = tmp_path_factory.mktemp("documents")
    wrapper = folder / "bin/busbw"
    wrapper.parent.mkdir()
    wrapper.write_text(WRAPPER.format(python=sys.executable), encoding="utf-8")
    wrapper.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BUSBW_", "SLURM_", "MASTER_"))}
    path = f"{wrapper.parent}{os.pathsep}{kept['PATH']}"
    return {**kept, "PATH": path, "BUSBW_RESULTS_DIR": str(folder / "results"), "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_the_commands_of_the_documents_succeed(shell: dict[str, str]) -> None:
    for command in commands():
        finished = subprocess.run(
            ["/bin/bash", "-euc", command],
            env=shell,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert finished.returncode == 0, f"{command}\n{finished.stdout}\n{finished.stderr}"
