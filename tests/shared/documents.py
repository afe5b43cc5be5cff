"""The parts of docs/ that rows and records define: ``make documents`` rewrites them, ``test_documents.py`` compares.

A part lies between ``<!--name-->`` and ``<!--/name-->``; ``PARTS`` has the function that writes it.
"""

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Final

import msgspec
from drawing_tool import documented
from gallery import gallery
from training_truth import table_of_scores

from busbw.ops import OPS
from busbw.ops.communication import COLLECTIVES
from busbw.ops.training import METHODS
from busbw.runs import records
from busbw_analysis.gate.metrics import METRICS
from busbw_analysis.gate.rules import EXAMPLES
from busbw_analysis.models import gloo, library_algorithms, textbook
from busbw_analysis.models.costs import GLOO, CostModel

_DRAWINGS: Final = [name for name, _ in documented()]
FOLDER: Final = Path(__file__).parents[2] / "docs"
README: Final = FOLDER.parent / "README.md"
GOLDEN: Final = FOLDER.parent / "tests/golden"

_FACTORS: Final[dict[str, Callable[[int], float]]] = {
    "1": lambda _n: 1,
    "(n−1)/n": lambda n: (n - 1) / n,
    "2(n−1)/n": lambda n: 2 * (n - 1) / n,
    "n−1": lambda n: n - 1,
}
"""Formulas of n in text: the one with the values of a function is how documents write it."""


def written(function: Callable[[int], float]) -> str:
    """A function of the number of ranks as a formula."""
    values = [function(ranks) for ranks in range(2, 9)]
    return next(text for text, formula in _FACTORS.items() if [formula(ranks) for ranks in range(2, 9)] == values)


def on_a_wire() -> Iterator[str]:
    """What S and busbw of each communicating operation are; operations that agree share a line."""
    rows: dict[str, list[str]] = {}
    for op in OPS.values():
        if op.bus_factor is not None:
            rows.setdefault(f"{op.size_meaning}; {written(op.bus_factor)}", []).append(op.name)
    yield from (f"- {', '.join(names)}: {row}" for row, names in rows.items())


def formulas(rows: Iterable[CostModel], *, headings: bool = False) -> Iterator[str]:
    """The cost of each algorithm with its drawings; algorithms of an operation with the same cost share an item.

    headings: name each operation above its algorithms, instead of in every item
    """
    items: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        formula = row.formula.replace(f"; {textbook.LEVELS}", "")
        items.setdefault(row.op, {}).setdefault(formula, []).append(_drawn(row))
    for op, of_op in items.items():
        if headings:
            yield from ("", f"{op}:", "")
        for formula, labels in of_op.items():
            yield f"- {'' if headings else f'{op}, '}{', '.join(labels)}: {formula}"


def drawn(rows: Iterable[CostModel]) -> Iterator[str]:
    """The algorithms of each operation with their drawings."""
    items: dict[str, list[str]] = {}
    for row in rows:
        items.setdefault(row.op, []).append(_drawn(row))
    yield from (f"- {op}: {', '.join(labels)}" for op, labels in items.items())


def _drawn(row: CostModel) -> str:
    """The name of an algorithm, with links to its drawings for 4 ranks and for others."""
    name = "gloo" if row.family == GLOO else row.algorithm
    files = [file for file in _DRAWINGS if re.fullmatch(rf"{row.op}-{name}(-\d+)?\.svg", file)]
    links = [f"[{Path(file).stem.rpartition('-')[2]}](drawings/{file})" for file in files[1:]]
    return " ".join([f"[{row.algorithm}](drawings/{files[0]})" if files else row.algorithm, *links])


def bounds() -> Iterator[str]:
    """The lower bound of every collective; operations with the same share a row."""
    rows: dict[str, list[str]] = {}
    for op in OPS.values():
        if (bound := op.lower_bound) is not None:
            terms = (bound.sent, bound.added, bound.moved)
            rows.setdefault("; ".join(term.words or "–" for term in terms), []).append(op.name)
    yield from (f"- {', '.join(names)}: {terms}" for terms, names in rows.items())


def fields(kind: type[msgspec.Struct]) -> Iterator[str]:
    """The fields of a record as its docstring explains them, with the words that each may be."""
    hints = typing.get_type_hints(kind)
    for names, text in explained(kind):
        words = {name: ", ".join(f"`{word}`" for word in _words(hints[name])) for name in names}
        labelled = (f"{name} {of_name}" if len(names) > 1 else of_name for name, of_name in words.items() if of_name)
        meaning = "; ".join(filter(None, (text, *labelled)))
        head = ", ".join(f"`{name}`" for name in names)
        yield f"- {head}: {meaning}" if meaning else f"- {head}"


def explained(kind: type[msgspec.Struct]) -> list[tuple[tuple[str, ...], str]]:
    """The names and the explanation of each line of the docstring, then the fields that explain themselves."""
    lines: list[tuple[tuple[str, ...], str]] = []
    bases = (record for record in kind.__mro__ if issubclass(record, msgspec.Struct) and record is not msgspec.Struct)
    text = "\n".join(inspect.cleandoc(record.__doc__ or "") for record in bases)
    for line in text.replace("``", "`").splitlines():
        head, colon, text = line.partition(": ")
        names = tuple(head.split(", "))
        if colon and set(names) <= set(kind.__struct_fields__):
            lines.append((names, text))
        elif lines and line.startswith(" "):
            lines[-1] = (lines[-1][0], f"{lines[-1][1]} {line.strip()}")
    explained = {name for names, _ in lines for name in names}
    hints = typing.get_type_hints(kind)
    rest = [name for name in kind.__struct_fields__ if name not in explained]
    plain = tuple(name for name in rest if not [*records_in(hints[name]), *_words(hints[name])])
    return [*lines, *(((name,), "") for name in rest if name not in plain), *([(plain, "")] if plain else [])]


def records_in(hint: object) -> Iterator[type[msgspec.Struct]]:
    """The records in a type."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for argument in typing.get_args(hint):
        yield from records_in(argument)


def _words(hint: object) -> Iterator[str]:
    if typing.get_origin(hint) is typing.Literal:
        yield from (word for word in typing.get_args(hint) if isinstance(word, str))
        return
    for argument in typing.get_args(hint):
        yield from _words(argument)


def exchange_methods() -> Iterator[str]:
    """The methods of exchanging gradients, with their default parameter and source."""
    for name, method in METHODS.items():
        number = "" if method.number is None else f":{method.number}"
        yield f"- `{name}{number}`: {method.summary} ({method.source})"


def metrics() -> Iterator[str]:
    """The metrics of rules."""
    for name, row in METRICS.items():
        yield f'- `{name}`, `{row.bound} = "{EXAMPLES[row.unit]}"`: {row.help}'


_GATHERS: Final = {row.algorithm for row in textbook.TEXTBOOK if row.op == "all_gather"}
_REVERSED: Final = [row for row in textbook.TEXTBOOK if row.op == "reduce_scatter" and row.algorithm in _GATHERS]


def excerpt(name: str, *, until: str) -> Iterator[str]:
    """The first lines of a golden file up to the one that begins with ``until``."""
    lines = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    shown = takewhile(lambda line: not line.startswith(until), lines)
    printed = "\n".join(line for line in shown if not line.startswith(("stderr:", "exit status"))).rstrip("\n")
    yield from ("```text", printed, "```")


PARTS: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "on_a_wire": on_a_wire,
    "textbook": partial(
        formulas, (*(row for row in textbook.TEXTBOOK if row not in _REVERSED), *textbook.LIMITS), headings=True
    ),
    "reversed": partial(drawn, _REVERSED),
    "switched": partial(formulas, textbook.SWITCHED),
    "gloo": partial(formulas, [row for row in gloo.MODELS if row.family == GLOO and OPS[row.op] in COLLECTIVES]),
    "libraries": partial(drawn, library_algorithms.OF_LIBRARIES),
    "bounds": bounds,
    "exchanges": exchange_methods,
    "scores": table_of_scores,
    "metrics": metrics,
    "gallery": gallery,
    "Case": partial(fields, records.Case),
    "shown_log": partial(excerpt, "show/log-with-cards", until="# Measured"),
    "named_node": partial(excerpt, "fleet/pairs", until="# Verdict"),
    "planned": partial(excerpt, "training/plan-64", until="# No time of a call"),
}
"""Name of a part → the lines between its marks."""


_MARKED: Final = re.compile(r"<!--(?P<name>\w+)-->\n.*?<!--/(?P=name)-->", re.DOTALL)


def marks(text: str) -> list[str]:
    """The names of the parts in a document."""
    return [mark["name"] for mark in _MARKED.finditer(text)]


def refreshed(text: str) -> str:
    """A document with its parts written anew."""

    def part(mark: re.Match[str]) -> str:
        lines = "\n".join(PARTS[mark["name"]]()).strip("\n")
        return f"<!--{mark['name']}-->\n{lines}\n<!--/{mark['name']}-->"

    return _MARKED.sub(part, text)


def main() -> None:
    """Rewrite the documents."""
    for path in (*FOLDER.glob("*.md"), README):
        text = path.read_text(encoding="utf-8")
        path.write_text(refreshed(text), encoding="utf-8")


if __name__ == "__main__":
    main()
