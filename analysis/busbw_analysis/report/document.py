"""Tables, figures and sections, before they are text for a terminal, Markdown or HTML.

All renderers read the same tables, so that they cannot disagree. All text here is plain and unescaped; escaping is the
business of the renderer. The only markup is ``Figure.pictures`` and ``LegendEntry.swatch``, which ``plots`` has drawn.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from busbw_analysis.diagnosis.answer import Answer
from busbw_analysis.diagnosis.answer import Status as RunStatus
from busbw_analysis.diagnosis.findings import Severity
from busbw_analysis.diagnosis.verdicts import Status as VerdictStatus

Tone = Literal["plain", "good", "caution", "bad", "quiet", "bar"]

TONES: Final[dict[RunStatus | VerdictStatus, Tone]] = {
    "as expected": "good",
    "faster": "plain",
    "explained": "caution",
    "slower": "caution",
    "undecided": "caution",
    "not judged": "quiet",
    "failed": "bad",
}
"""The tone of the status of a run or of a verdict."""

SEVERITY: Final[dict[Severity, str]] = {"bad": "Problem", "caution": "Caution", "note": "Note"}
HEAT_STEPS = 9
"""A heatmap has the shades 0 (lowest) to 8 (highest)."""
MISSING = "–"
"""What stands where there is no number. The reason is said in the same table's note or row."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: ``heat`` shades it (0 … 8), ``bar`` draws a bar of that share (0 … 1) behind the number, ``link`` is
    the anchor of what it names.
    """

    text: str
    tone: Tone = "plain"
    heat: int | None = None
    bar: float | None = None
    link: str = ""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """What a table shows of each of its rows, of type T, under one heading.

    name: the heading.
    value: what a row has here: text, a number, a finished ``Cell``, or None where there is nothing.
    text: how a value is written. A column with one is of numbers and set right; without one it is of words.
    unit: the unit of every cell, where all have the same.
    group: the heading above those of neighbouring columns that have the same group.
    ends: the ends of the interval or range of a value, which have columns of their own behind it.
    """

    name: str
    value: Callable[[T], object]
    text: Callable[[Any], str] | None = None
    unit: str = ""
    group: str = ""
    ends: Callable[[T], tuple[float | None, float | None]] | None = None

    @property
    def parts(self) -> Iterator["Column[T]"]:
        """Itself and those of its ends, low and high."""
        yield self
        if (ends := self.ends) is not None:
            yield replace(self, name="low", value=lambda row: ends(row)[0])
            yield replace(self, name="high", value=lambda row: ends(row)[1])

    @property
    def numeric(self) -> bool:
        """Whether its cells are numbers, which are set right."""
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
    """Rows under columns; the first ``row_headers`` cells of a row name it. ``folded`` tables wait to be asked for."""

    caption: str
    columns: tuple[Column[Any], ...]
    rows: tuple[tuple[Cell, ...], ...]
    row_headers: int = 1
    folded: bool = False
    notes: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[tuple[str, int], ...]:
        """The groups of columns with how many they have, from the left; empty where there are none."""
        if not any(column.group for column in self.columns):
            return ()
        return tuple((name, len(list(members))) for name, members in groupby(column.group for column in self.columns))

    @property
    def shaded(self) -> bool:
        """Whether it is a heatmap, whose order means something."""
        return any(cell.heat is not None for row in self.rows for cell in row)

    @property
    def note(self) -> str:
        """Its notes as one paragraph."""
        return " ".join(map(sentence, self.notes))


def table(
    caption: str,
    columns: Sequence[Column[T]],
    rows: Iterable[T],
    *notes: str,
    row_headers: int = 1,
    folded: bool = False,
    without_empty: bool = False,
    distinct: bool = False,
) -> Table:
    """A table of ``rows``. ``without_empty`` leaves out the columns in which nothing stands, ``distinct`` the rows that
    read like an earlier one.
    """
    shown = [part for column in columns for part in column.parts]
    cells = [tuple(column.cell(row) for column in shown) for row in rows]
    cells = list(dict.fromkeys(cells)) if distinct else cells
    if without_empty:
        kept = [place for place in range(len(shown)) if any(row[place].text != MISSING for row in cells)]
        shown = [shown[place] for place in kept]
        cells = [tuple(row[place] for place in kept) for row in cells]
    return Table(caption, tuple(shown), tuple(cells), row_headers, folded, tuple(note for note in notes if note))


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """A drawn sample and what it stands for; ``link`` is the anchor of that, ``series`` its name in the drawing."""

    swatch: str
    label: str
    series: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """Drawings that belong together, what they show in one sentence, and the numbers behind them."""

    caption: str
    pictures: tuple[str, ...]
    legend: tuple[LegendEntry, ...]
    table: Table


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Terms:
    """Words and what they mean."""

    entries: tuple[tuple[str, str], ...]


Lines: TypeAlias = tuple[tuple[str, str], ...]
"""Labels and their sentences, as an answer has them."""

Block: TypeAlias = Paragraph | Terms | Table | Figure


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with what stands under it; ``anchor`` is unique on the page and safe in a URL. A ``folded`` one waits
    to be asked for, and ``gist`` says beside its heading what it shows.
    """

    anchor: str
    heading: str
    blocks: tuple[Block, ...]
    parts: tuple["Section", ...] = ()
    folded: bool = False
    gist: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report: what stands on its first screen, then its sections.

    answers: those of the runs, with their names where several stand beside each other, and an operation a row.
    figure: the overview.
    comparison: how two runs compare, as labels with sentences and as a table; it comes before their answers.
    """

    title: str
    subtitle: str
    answers: tuple[tuple[str, Answer, Table | None], ...]
    figure: Figure | None
    sections: tuple[Section, ...]
    comparison: tuple[Lines, Table] | None = None


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
    """A share as a number of per cent: ``0.123`` → ``12.3``."""
    return three_digits(100 * share)


def sentence(text: str) -> str:
    """``text`` with a capital at its start and a full stop at its end."""
    stripped = text.strip()
    closed = stripped if stripped.endswith((".", "!", "?")) else f"{stripped}."
    return closed[:1].upper() + closed[1:]


def clock_time(stamp: str) -> str:
    """A stored time of day as people read it, to the second: ``2026-11-21 06:12:34``."""
    return stamp.replace("T", " ").removesuffix("Z").partition(".")[0]


def listed(texts: Iterable[str], word: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *others, last = texts
    return f" {word} ".join(filter(None, (", ".join(others), last)))
