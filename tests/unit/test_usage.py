"""What cannot be right is refused before anything is measured; tests/golden/run holds the words."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from golden import PLANS

from busbw.cli.main import main


def refused(tmp_path: Path, *arguments: str) -> Result:
    """The result of a ``busbw run`` that ends with 2, prints no data and makes no results."""
    ranks = () if "--ranks" in arguments else ("--ranks", "2")
    results = tmp_path / "results"
    result = CliRunner(env={"BUSBW_RESULTS_DIR": str(results)}).invoke(main, ["run", *arguments, *ranks])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert not results.exists()
    return result


@pytest.mark.parametrize(
    "arguments",
    [
        ("--op", "allreduce"),
        ("--op", "barrier", "--sizes", "1MB"),
        ("--op", "barrier", "--backend", "smoke", "--dry-run"),
        ("--op", "barrier", "--groups", "half", "--dry-run"),
        ("--op", "barrier", "--seed", "9" * 30),
        ("--op", "barrier", "--ranks", "0"),
        ("--plan", "missing.toml"),
        (),
    ],
)
def test_what_is_unknown_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    message = refused(tmp_path, *arguments).stderr
    assert "Traceback" not in message
    wrong = [value for value in arguments[1::2] if value not in {"barrier", "broadcast", "all_to_all_v"}]
    # A number far beyond every limit is not repeated.
    assert all(value in message for value in wrong if len(value) < 30)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (PLANS["unknown-key"], 3),
        (PLANS["no-text"], 5),
        ('[[sweep]]\nops = ["barrier"]\npairs = "both"\n', 3),
        ("[[sweep]\n", 1),
    ],
)
def test_a_mistake_in_a_plan_file_is_named_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "plan.toml"
    above = 'name = "small"\n\n'
    path.write_text(above + text, encoding="utf-8")
    message = refused(tmp_path, "--plan", str(path)).stderr
    assert str(path) in message
    assert f"line {line + above.count(chr(10))}" in message
