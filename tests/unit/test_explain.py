"""``busbw explain``: every heading and state that a table shows has a meaning, and a word finds its own."""

import re
import typing
from collections.abc import Iterator

import pytest
from golden import FOLDER

from busbw.errors import UsageError
from busbw_analysis.cli.explain import explain, meanings
from busbw_analysis.data.summary import FLAGS, CaseState
from busbw_analysis.diagnosis.causes import CAUSES
from busbw_analysis.diagnosis.doubts import DOUBTS
from busbw_analysis.diagnosis.findings import CODES

_TABLES = sorted(path for path in FOLDER.rglob("*.txt") if path.parent.name != "list")


def _headings(text: str) -> Iterator[str]:
    """The headings above rows, those of columns with equal values, and those of columns below their rows."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("  ") and not line.startswith("    |"):
            above = number - 1
            while lines[above].startswith("# ") and not re.search(r"\S  +\S", lines[above]):
                above -= 1  # the values that all rows have
            heading = lines[above][2:].strip() if lines[above].startswith("# ") else ""
            if heading.startswith("("):  # units
                heading = lines[above - 1][2:].strip()
            if not re.search(r"[:;]", heading):
                yield from filter(None, re.split(r"  +", heading))
    below = [" ".join(re.findall(r"\| (.*)", rows)) for rows in re.findall(r"(?:^    \| .*\n)+", text, re.MULTILINE)]
    alike = re.findall(r"^# all rows: (.*)$", text, re.MULTILINE)
    for part in "; ".join([*below, *alike]).split("; "):
        name, colon, _ = part.partition(": ")
        if colon and len(name) <= 30:
            yield name


def test_every_heading_of_a_table_is_explained() -> None:
    shown = {heading for path in _TABLES for heading in _headings(path.read_text(encoding="utf-8"))}
    assert len(shown) > 100
    exactly = {heading for heading in shown if any(_is(heading, names) for names in meanings(heading))}
    assert shown - exactly == set()


def _is(heading: str, names: str) -> bool:
    return heading.lower() in {name.lower() for name in names.split(", ")}


@pytest.mark.parametrize("word", [*FLAGS, *typing.get_args(CaseState), "EXTRAPOLATED", "NOT VALIDATED"])
def test_every_flag_and_state_is_explained(word: str) -> None:
    assert meanings(word)


@pytest.mark.parametrize("code", sorted({*CODES, *CAUSES, *DOUBTS}))
def test_every_code_of_a_finding_is_explained(code: str) -> None:
    assert any(_is(code, names) for names in meanings(code))


@pytest.mark.parametrize(
    ("word", "headings"),
    [
        ("mode", {"mode"}),
        ("count", {"count"}),
        ("S", {"S"}),
        ("launch", {"Launch"}),
        ("skew", {"Skew", "skew>10%"}),
        ("algbw", {"algbw"}),
        ("of peak", {"Of peak"}),
        ("not checked", {"not-checked"}),  # as tables have it
        ("bubbles", {"bubble"}),
        ("large", {"large"}),
    ],
)
def test_a_whole_word_is_meant_before_longer_ones_that_begin_with_it(word: str, headings: set[str]) -> None:
    assert set(meanings(word)) == headings


@pytest.mark.parametrize("word", ["launch", "time", "model", "s", "b", "size", "held", "α"])
def test_no_meaning_is_printed_twice(word: str) -> None:
    texts = [*meanings(word).values()]
    assert len(texts) == len(set(texts)) > 0


@pytest.mark.parametrize("word", ["all_reduce", "barrier", "why", "do", "groups", "measure next", "sync none"])
def test_operations_and_labels_of_answers_are_explained(word: str) -> None:
    assert any(_is(word, names) for names in meanings(word))


@pytest.mark.parametrize(("word", "near"), [("bandwith", ""), ("foo", ""), ("bimodl", "near: bimodal")])
def test_an_unknown_word_is_refused_with_those_that_it_may_be(word: str, near: str) -> None:
    with pytest.raises(UsageError) as refused:
        explain.main([word], standalone_mode=False)
    assert (near or "is no flag, heading or operation; busbw") in str(refused.value)
