"""No structure is read out of text that the product made itself: text is read at the places of ``READERS`` only."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = (ROOT / "analysis", ROOT / "bench")

METHODS: Final = frozenset(
    {
        *("partition", "rpartition", "split", "rsplit", "splitlines", "find", "rfind"),
        *("startswith", "endswith", "removeprefix", "removesuffix"),
    }
)
EXPRESSIONS: Final = frozenset(
    {"compile", "match", "fullmatch", "search", "split", "sub", "subn", "findall", "finditer"}
)

READERS: Final[dict[str, str]] = tomllib.loads(
    (Path(__file__).parents[1] / "data/text_readers.toml").read_text(encoding="utf-8")
)
"""Which places read text, and what it is."""


class Use(NamedTuple):
    """A place that reads text: its file, line, the statement of the module that contains it, and the method."""

    file: str
    line: int
    name: str
    method: str

    @property
    def rows(self) -> tuple[str, ...]:
        """The keys of ``READERS`` that allow it."""
        folder = Path(self.file).parent
        folders = (f"{parent.as_posix()}/" for parent in (folder, *folder.parents))
        return (f"{self.file}:{self.name}", self.file, *folders)


def uses_in(source: str, file: str) -> Iterator[Use]:
    """Everything in ``source`` that reads text."""
    tree = ast.parse(source)
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for statement in tree.body:
        for node in ast.walk(statement):
            method = _called(node, imported) if isinstance(node, ast.Call) else _asked(node)
            if method is not None and isinstance(node, ast.expr):
                yield Use(file, node.lineno, _name_of(statement), method)


def _name_of(statement: ast.stmt) -> str:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return statement.name
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return next((target.id for target in targets if isinstance(target, ast.Name)), "")


def _called(call: ast.Call, imported: set[str]) -> str | None:
    """The method of text that is called. Functions of modules (``store.find``) are none, and ``replace`` of a single
    character is a spelling, from which nothing follows.
    """
    match call.func:
        case ast.Attribute(value=ast.Name(id="re"), attr=name):
            return f"re.{name}" if name in EXPRESSIONS else None
        case ast.Attribute(value=ast.Name(id=receiver)) if receiver in imported:
            return None
        case ast.Attribute(attr="replace") if len(call.args) > 1:
            old = call.args[0]
            spelled = isinstance(old, ast.Constant) and isinstance(old.value, str | bytes) and len(old.value) == 1
            return None if spelled else "replace"
        case ast.Attribute(attr=name) if name in METHODS:
            return name
    return None


def _asked(node: ast.AST) -> str | None:
    """``in`` behind a literal that is more than a word: a word is rather a member of a set."""
    match node:
        case ast.Compare(left=ast.JoinedStr(), ops=[ast.In() | ast.NotIn()]):
            return "in"
        case ast.Compare(left=ast.Constant(value=str(literal)), ops=[ast.In() | ast.NotIn()]):
            return None if re.fullmatch(r"[\w-]+", literal) else "in"
    return None


@cache
def uses() -> list[Use]:
    """Everything in the product that reads text."""
    return [
        use
        for package in PACKAGES
        for path in sorted(package.rglob("*.py"))
        for use in uses_in(path.read_text(encoding="utf-8"), path.relative_to(package).as_posix())
    ]


def unlisted(uses: list[Use]) -> list[str]:
    """A line for every use that no row allows."""
    return [
        f"{use.file}:{use.line}: {use.name or 'the module'} uses {use.method} on text. Make what it reads a field "
        "(a code, a record, a tuple of clauses) where the text is made; if the text is not the product's own, add a "
        "row to READERS in tests/unit/test_text.py"
        for use in uses
        if not READERS.keys() & set(use.rows)
    ]


def test_text_is_read_at_listed_places_only() -> None:
    assert not unlisted(uses()), "\n" + "\n".join(unlisted(uses()))


def test_every_listed_place_still_reads_text() -> None:
    needed = {row for use in uses() for row in use.rows}
    assert not READERS.keys() - needed, "rows of places that read no text any more"


@pytest.mark.parametrize(
    ("line", "method"),
    [
        ('cause.text.partition(". ")[0]', "partition"),
        ('summary.check.startswith("not checked")', "startswith"),
        ('peak.denominator.split(",")', "split"),
        ('"busbw compare" in action', "in"),
        ('f"link {number}" not in text', "in"),
        ('re.search("[0-9]+ ranks", text)', "re.search"),
        ('formula.replace("S β", "S γ")', "replace"),
    ],
)
def test_a_new_reader_of_text_is_reported_with_its_place(line: str, method: str) -> None:
    source = f"import re\n\n\ndef judge(cause, summary, peak):\n    return {line}\n"
    (use,) = uses_in(source, "busbw_analysis/diagnosis/new.py")
    assert use == ("busbw_analysis/diagnosis/new.py", 5, "judge", method)
    (message,) = unlisted([use])
    assert message.startswith("busbw_analysis/diagnosis/new.py:5: judge uses")


@pytest.mark.parametrize(
    "line",
    ['"failed" in states', 'name.replace("_", "-")', "store.find(folder)", "dataclasses.replace(peak, basis=text)"],
)
def test_members_of_sets_spellings_and_functions_of_modules_are_left_alone(line: str) -> None:
    assert not list(uses_in(f"import dataclasses\nimport store\n\nvalue = {line}\n", "busbw/new.py"))
