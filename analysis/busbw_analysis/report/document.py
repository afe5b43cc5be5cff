"""Tables, figures and sections, independent of the output format (terminal, Markdown or HTML).

All renderers read the same tables, so they cannot disagree. All text here is plain and unescaped: each renderer escapes
it. The only markup is ``LegendEntry.swatch``, and what ``Figure.pictures`` draw when a renderer wants them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar

from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.intervals import Interval, IntervalKind
from busbw_analysis.data.sentences import sentences

if TYPE_CHECKING:  # a table of other numbers than a judgement's needs none of this, and it takes half a second
    from busbw_analysis.data.summary import DataCheck
    from busbw_analysis.diagnosis.answer import Answer
    from busbw_analysis.diagnosis.findings import Finding, Severity
    from busbw_analysis.diagnosis.judge import Status as RunStatus
    from busbw_analysis.diagnosis.verdicts import Status as VerdictStatus

Tone = Literal["plain", "good", "caution", "bad", "quiet", "bar"]

TONES: Final[dict["RunStatus | VerdictStatus", Tone]] = {
    "as expected": "good",
    "faster": "plain",
    "explained": "caution",
    "slower": "caution",
    "undecided": "caution",
    "not judged": "quiet",
    "failed": "bad",
}
"""Status of a run or of a verdict → its tone."""

SEVERITY: Final[dict["Severity", str]] = {"bad": "Problem", "caution": "Caution", "note": "Note"}
HEAT_STEPS = 9
"""A heatmap has shades 0 (lowest) to 8 (highest)."""
MISSING = "–"
"""Shown where there is no number. The table's note or the row gives the reason."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table.

    heat: shade, 0 to 8.
    bar: length of a bar behind the number, 0 to 1.
    link: anchor of the section that the cell names.
    """

    text: str
    tone: Tone = "plain"
    heat: int | None = None
    bar: float | None = None
    link: str = ""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One column of a table whose rows have type T.

    name: the heading.
    value: takes a row and returns text, a number, a finished ``Cell``, or None for an empty cell.
    text: formats a value. A column with a format holds numbers and is right-aligned; one without holds words.
    unit: the unit shared by all cells.
    group: a heading above neighbouring columns of the same group.
    ends: the ends of the value's interval or range, shown in two more columns.
    """

    name: str
    value: Callable[[T], object]
    text: Callable[[Any], str] | None = None
    unit: str = ""
    group: str = ""
    ends: Callable[[T], tuple[float | None, float | None]] | None = None

    @property
    def parts(self) -> Iterator["Column[T]"]:
        """The column itself and, if it has ends, its columns low and high."""
        yield self
        if (ends := self.ends) is not None:
            yield replace(self, name="low", value=lambda row: ends(row)[0])
            yield replace(self, name="high", value=lambda row: ends(row)[1])

    @property
    def numeric(self) -> bool:
        """Whether the cells are numbers, which are right-aligned."""
        return self.text is not None

    @property
    def heading(self) -> str:
        """Group, name and unit as one text."""
        name = f"{self.group}: {self.name}" if self.group else self.name
        return f"{name} ({self.unit})" if self.unit else name

    def cell(self, row: T) -> Cell:
        """The cell of ``row`` in this column."""
        value = self.value(row)
        if isinstance(value, Cell):
            return value
        if value is None:
            return Cell(MISSING, tone="quiet")
        return Cell(str(value) if self.text is None else self.text(value))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns.

    row_headers: how many of a row's first cells name the row.
    folded: hidden until the reader opens it.
    """

    caption: str
    columns: tuple[Column[Any], ...]
    rows: tuple[tuple[Cell, ...], ...]
    row_headers: int = 1
    folded: bool = False
    notes: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[tuple[str, int], ...]:
        """Column groups and their widths, from the left; empty if there are none."""
        if not any(column.group for column in self.columns):
            return ()
        return tuple((name, len(list(members))) for name, members in groupby(column.group for column in self.columns))

    @property
    def shaded(self) -> bool:
        """Whether it is a heatmap. The order of its rows matters, so it cannot be sorted."""
        return any(cell.heat is not None for row in self.rows for cell in row)

    @property
    def note(self) -> str:
        """All notes as one paragraph."""
        return sentences(*self.notes)


def table(
    caption: str,
    columns: Sequence[Column[T]],
    rows: Iterable[T],
    *notes: str,
    row_headers: int = 1,
    folded: bool = False,
    every_column: bool = False,
    distinct: bool = False,
) -> Table:
    """Build a table of ``rows`` without the columns that have no value, unless ``every_column`` is wanted.

    distinct: drop repeated rows.
    """
    shown = [part for column in columns for part in column.parts]
    cells = [tuple(column.cell(row) for column in shown) for row in rows]
    cells = list(dict.fromkeys(cells)) if distinct else cells
    if cells and not every_column:
        kept = [place for place in range(len(shown)) if any(row[place].text not in {"", MISSING} for row in cells)]
        shown = [shown[place] for place in kept]
        cells = [tuple(row[place] for place in kept) for row in cells]
    return Table(caption, tuple(shown), tuple(cells), row_headers, folded, tuple(note for note in notes if note))


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """A drawn sample and its label.

    series: the series' name in the drawing.
    link: anchor of the section that it stands for.
    """

    swatch: str
    label: str
    series: str = ""
    link: str = ""


Picture: TypeAlias = Callable[[], str]
"""Draws a picture as an inline SVG, which takes a part of a second and matplotlib: HTML has it, Markdown does not."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Drawings that belong together, a caption of one sentence, and the numbers behind them.

    marks: what the marks of the drawings mean; shown only with them.
    """

    caption: str
    pictures: tuple[Picture, ...]
    legend: tuple[LegendEntry, ...]
    table: Table
    marks: str = ""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms and their meanings."""

    entries: tuple[tuple[str, str], ...]


Block: TypeAlias = Paragraph | Terms | Table | Figure


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its content.

    anchor: unique on the page and safe in a URL.
    folded: hidden until the reader opens it.
    gist: a summary beside the heading.
    """

    anchor: str
    heading: str
    blocks: tuple[Block, ...]
    parts: tuple["Section", ...] = ()
    folded: bool = False
    gist: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report: the first screen, then the sections.

    answers: for each run its name (if there are several), its answer, and a table with one row per operation.
    figure: the overview.
    comparison: how two runs compare; shown before the answers.
    """

    title: str
    subtitle: str
    answers: "tuple[tuple[str, Answer, Table | None], ...]"
    figure: Figure | None
    sections: tuple[Section, ...]
    comparison: "ComparisonSummary | None" = None


@dataclass(frozen=True, slots=True)
class ComparisonSummary:
    """How two runs compare: labelled sentences, cautions, and a table with one row per band of sizes."""

    lines: tuple[tuple[str, str], ...]
    findings: "tuple[Finding, ...]"
    table: Table


def three_digits(value: float) -> str:
    """``value`` with three significant digits and thin spaces between thousands: ``52 300``, ``1.23``, ``0.000234``."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    if abs(rounded) >= 1000:
        return f"{rounded:,.0f}".replace(",", "\u202f")
    text = f"{rounded:#.3g}".removesuffix(".")
    return text if "e" not in text else f"{rounded:.7f}".rstrip("0")


def percent(share: float) -> str:
    """A share as a percentage without its sign: ``0.123`` → ``12.3``."""
    return three_digits(100 * share)


def checked(check: "DataCheck") -> Cell:
    """Whether the data were verified."""
    return Cell(check.in_words, tone="plain" if check.state == "verified" else "quiet")


def flagged(flags: Iterable[str], common: Sequence[str] = ()) -> str | None:
    """The flags, except those in ``common``."""
    return ", ".join(flag for flag in flags if flag not in common) or None


def ends_in_words(kinds: Iterable[IntervalKind]) -> str:
    """A sentence that explains the columns low and high of a table."""
    none = "no interval, because one launch needs at least 6 independent samples"
    return "Low and high: " + ", ".join(none if kind == "none" else kind for kind in dict.fromkeys(kinds)) + "."


def ends_of(interval: Interval) -> tuple[float | None, float | None]:
    """Both ends of an interval or range, as columns need them."""
    return interval.low_ns, interval.high_ns


def refusals(what: str, reasons: Iterable[tuple[str, str]], *, several: bool) -> Iterator[Paragraph]:
    """Why there is no ``what``: each reason once, with the names that it applies to if there are ``several``."""
    for reason, names in by_key(reasons).items():
        which = f" for {', '.join(names)}" if several else ""
        yield Paragraph(f"No {what}{which}: {reason}", tone="quiet")
