"""What a slice adds to what the core says of a run: its part of the answer, and its numbers of cases."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Status = Literal["as expected", "explained", "slower", "undecided", "not judged", "failed"]
"""Status of a whole run. ``explained``: slower than expected, and the causes say why. ``slower``: slower, and no cause
was found.
"""


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that explains verdicts, or makes every number unreliable.

    code: a stable word; usually the code of the finding that is its evidence.
    text: what was found, without a full stop.
    action: what to do about it, without a full stop.
    compares: whether the action is a comparison with another run.
    """

    code: str
    text: str
    action: str
    compares: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPart:
    """The part of a slice in the answer. Texts are clauses without a full stop; "" says nothing.

    label, text: a line of its own below the bands of sizes.
    statuses: what its verdicts mean for the whole run; empty if none was possible.
    causes: those that the core does not name.
    action: what to do, after what the causes say.
    unjudged: why its verdicts are missing.
    shown_instead: what the report shows if nothing at all was judged.
    rates: its highest rates, named before the highest busbw.
    rates_without_busbw: those that are named only if no busbw was measured.
    """

    label: str = ""
    text: str = ""
    statuses: frozenset[Status] = frozenset()
    causes: tuple[Cause, ...] = ()
    action: str = ""
    unjudged: str = ""
    shown_instead: str = ""
    rates: tuple[str, ...] = ()
    rates_without_busbw: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CaseNumber:
    """A number that a slice knows of some cases, for the rows of ``busbw show``.

    key: in JSON, null for other cases.
    heading: of its column; "" if only JSON has it.
    unit: fractions are shown as percentages.
    values: by the index of the case.
    note: what the column means, shown below tables that have it; "" if another column's note says so.
    """

    key: str
    heading: str
    unit: Literal["fraction", "ns"]
    values: Mapping[int, float | None]
    note: str = ""

    @property
    def known(self) -> bool:
        """Whether some case has it."""
        return any(value is not None for value in self.values.values())
