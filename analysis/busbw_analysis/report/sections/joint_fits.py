"""The part of a report about joint fits: one set of parameters for all curves, what it cannot tell, who competed."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from busbw_analysis.fitting.identify import written
from busbw_analysis.report.document import (
    MISSING,
    Block,
    Cell,
    Column,
    Paragraph,
    Section,
    Table,
    Tone,
    percent,
    sentence,
    without_empty,
    words,
)
from busbw_analysis.report.tables.joint_fits import (
    ALGORITHM_COLUMNS,
    PARAMETER_COLUMNS,
    algorithm_line,
    formula,
    names_explained,
    notes_on,
    parameter_lines,
    place,
)
from busbw_analysis.report.tables.layout import Row

_TONES: Final[dict[bool | None, Tone]] = {True: "good", False: "caution", None: "quiet"}
_WORDS: Final = frozenset({"parameter", "op", "algorithm", "note"})
_LEFT_OUT: Final = 4
"""So many reasons are shown unfolded."""


def joint_fits(rows: Sequence[Row]) -> tuple[Section, ...]:
    """A section for each of ``rows`` (of ``joint_rows``), which are regimes of which no common parameters can be
    expected.
    """
    return tuple(
        Section(f"joint-{number}", f"All curves in one fit: {place(row)}", tuple(_blocks(row)))
        for number, row in enumerate(rows, start=1)
    )


def _blocks(row: Row) -> Iterator[Block]:
    if row["refused"] is not None:
        yield Paragraph(sentence(f"no joint fit: {row['refused']}"))
        yield from _left_out(row)
        return
    yield Paragraph(_found(row))
    yield Paragraph(_kept_from_it(row))
    note = f"{formula(row)}, one set for all; {row['interval_note']}"
    yield _table("Parameters of all curves together", PARAMETER_COLUMNS, parameter_lines(row), note=f"{note}.")
    if row["not_separated"]:
        untold = tuple(words((mixed["reason"], mixed["needs"])) for mixed in row["not_separated"])
        heads = (Column("What cannot be told", numeric=False), Column("What would tell it", numeric=False))
        yield Table("Not separated by these data", heads, untold)
    if row["algorithms"]:
        lines = (algorithm_line(one) for one in row["algorithms"])
        explained = " ".join(sentence(said) for said in names_explained(row))
        yield _table("Algorithms", ALGORITHM_COLUMNS, lines, row_headers=2, note=explained)
    yield from _rivals(row)
    yield _held_out(row)
    yield from (Paragraph(sentence(note)) for note in notes_on(row))
    yield from _left_out(row)


def _table(
    caption: str, names: Sequence[tuple[str, str]], lines: Iterable[Sequence[str]], *, row_headers: int = 1, note: str
) -> Table:
    columns = [Column(name.capitalize(), numeric=name not in _WORDS) for name, _ in names]
    kept = without_empty(columns, [words(line) for line in lines])
    return Table(caption, *kept, row_headers=row_headers, note=note)


def _found(row: Row) -> str:
    """What all curves together tell, in one or two sentences."""
    what = f"One set of parameters for {_listed(row['ops'])} on {_listed(map(str, row['ranks']))} ranks"
    told = [written(name, estimate["value"]) for name, estimate in row["parameters"].items()]
    sums = [mixed["sum"] for mixed in row["not_separated"] if mixed["estimate"] is not None]
    alone = [f"{_listed(sums)} only together"] if sums else []
    return f"{what} over {row['backend']}: {'; '.join([', '.join(told), *alone] if told else alone)}."


def _listed(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _kept_from_it(row: Row) -> str:
    """The verdict of what was held out, in one sentence."""
    passed = [check["held_out"] for check in row["validations"] if check["validated"]]
    failed = [check["held_out"] for check in row["validations"] if not check["validated"]]
    verdicts = [
        f"{word} on {_listed(names)}" for word, names in (("validated", passed), ("not validated", failed)) if names
    ]
    return f"Held out: {'; '.join(verdicts)}."


def _held_out(row: Row) -> Table:
    columns = (
        Column("Held out", numeric=False),
        Column("Median error", "%"),
        Column("Worst error", "%"),
        Column("Of"),
        Column("Verdict", numeric=False),
    )
    lines = tuple(
        (
            Cell(check["held_out"]),
            *(
                Cell(MISSING if check[name] is None else percent(check[name]))
                for name in ("median_error", "worst_error")
            ),
            Cell(str(check["count"]) if check["median_error"] is not None else MISSING),
            Cell(check["note"], tone=_TONES[check["validated"]]),
        )
        for check in row["validations"]
    )
    return Table("What was kept from the fit, and predicted by it", columns, lines)


def _rivals(row: Row) -> Iterator[Table]:
    """All that competed for an op of the library, the best first."""
    lines = tuple(
        words((one["op"], rival["algorithm"], percent(rival["held_out_error"]), percent(rival["seen_error"])))
        for one in row["algorithms"]
        for rival in one["rivals"]
    )
    if lines:
        columns = (
            Column("Op", numeric=False),
            Column("Algorithm", numeric=False),
            Column("Held-out", "%"),
            Column("Seen", "%"),
        )
        note = "Mean errors on the largest number of ranks, which was kept from the fit, and on the fewer ones."
        yield Table("All algorithms that competed", columns, lines, row_headers=2, folded=True, note=note)


def _left_out(row: Row) -> Iterator[Table]:
    if row["left_out"]:
        lines = tuple(words((reason,)) for reason in row["left_out"])
        head = (Column("Curve and reason", numeric=False),)
        yield Table("Left out of the joint fit", head, lines, folded=len(lines) > _LEFT_OUT)
