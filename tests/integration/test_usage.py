"""What cannot be right is refused before anything is measured: exit 2, the reason, and what is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from busbw.cli import main

if TYPE_CHECKING:
    from tests.integration.conftest import Commands

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--op", "allreduce"], ["op 'allreduce' is unknown", "all_reduce, all_gather", "pair_matrix"]),
        (["--op", "barrier", "--dtype", "f32"], ["dtype 'f32' is unknown", "float32, float64", "int64"]),
        (["--op", "barrier", "--redop", "xor"], ["redop 'xor' is unknown", "sum, avg, min, max, product"]),
        (["--op", "barrier", "--sizes", "1MB"], ["'1MB'", "KiB, MiB, GiB", "did you mean 1MiB?"]),
        (["--op", "barrier", "--backend", "smoke"], ["backend 'smoke' is unknown", "known: gloo"]),
        (["--op", "barrier", "--backend", "smoke", "--dry-run"], ["backend 'smoke' is unknown", "known: gloo"]),
        (["--suite", "huge"], ["suite 'huge' is unknown", "known: full, memory, memory-gpu, quick, "]),
        (["--op", "barrier", "--pairs", "both"], ["'both'", "together, alone"]),
        (["--op", "barrier", "--placement", "under"], ["'under'", "native, in, out, both"]),
        (["--op", "barrier", "--groups", "half", "--dry-run"], ["groups 'half'", "div:N, mod:N, and:MASK, or:MASK"]),
        (["--op", "barrier", "--root", "-1"], ["--root: root -1", "known: 0 to"]),
        (["--op", "barrier", "--port", "70000"], ["70000", "0<=x<=65535"]),
        (["--op", "barrier", "--timeout", "inf"], ["inf", "finite"]),
        (["--op", "barrier", "--seed", "9" * 30], ["seed", "at most"]),
        (["--op", "barrier", "--ranks", "0"], ["--ranks: want at least 1", "given 0"]),
        (["--op", "all_to_all_v", "--traffic", "missing.csv"], ["missing.csv", "No such file"]),
        (["--plan", "missing.toml"], ["missing.toml", "No such file"]),
        ([], ["nothing to measure", "give --op, --suite (full, memory, memory-gpu, ", "storage) or --plan FILE"]),
    ],
)
def test_what_is_unknown_is_refused_with_what_is_known(
    commands: Commands, arguments: list[str], words: list[str]
) -> None:
    ranks = [] if "--ranks" in arguments else ["--ranks", "2"]
    _assert_refused(commands, [*arguments, *ranks], words)


def test_a_refusal_reaches_the_shell(commands: Commands) -> None:
    finished = commands.run("run", "--op", "allreduce", program=commands.console_script())
    assert finished.code == 2, finished.told
    assert finished.out == ""
    assert finished.err.startswith("busbw: --op: op 'allreduce' is unknown; known: all_reduce, ")
    assert len(finished.err.splitlines()) == 1


def test_groups_that_do_not_fit_the_ranks_are_refused(commands: Commands) -> None:
    finished = commands.run("run", "--plan", commands.sweep("barrier"), "--ranks", "2", "--groups", "0,9")
    assert finished.code == 2, finished.told
    assert "groups '0,9': ranks [9] do not exist; allowed are ranks 0 to 1, each once" in finished.err
    assert not list(commands.results.glob("*/*"))


@pytest.mark.parametrize(
    ("sweeps", "line", "words"),
    [
        ('[[sweep]]\nops = ["barrier"]\nsise = "8"\n', 3, ["unknown key 'sise'", "sizes", "dtypes"]),
        ('[[sweep]]\nops = "barrier"\n', 2, ["key 'ops'", "array"]),
        ('[[sweep]]\nops = ["barrier"]\n[[sweep]]\nops = ["barrier"]\nsizes = 8\n', 5, ["key 'sizes'", "str"]),
        ('[[sweep]]\nops = ["barrier"]\npairs = "both"\n', 3, ["key 'pairs'", "together", "alone"]),
        ('[[sweep]]\nops = ["bar"]\n', 2, ["op 'bar' is unknown", "barrier"]),
        ("[[sweep]\n", 1, ["not TOML"]),
    ],
)
def test_a_mistake_in_a_plan_file_is_named_with_its_key_and_its_line(
    commands: Commands, sweeps: str, line: int, words: list[str]
) -> None:
    plan = commands.plan(sweeps)
    above = plan.read_text(encoding="utf-8").removesuffix(sweeps).count("\n")
    _assert_refused(commands, ["--plan", str(plan), "--ranks", "2"], [str(plan), f"line {above + line}", *words])


def _assert_refused(commands: Commands, arguments: list[str], words: list[str]) -> None:
    """Where nothing is started there is no need of another process."""
    runner = CliRunner(env={"BUSBW_RESULTS_DIR": str(commands.results)})
    result = runner.invoke(main.main, ["run", *arguments])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr
    assert not commands.results.exists()
