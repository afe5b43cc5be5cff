"""Joint fits in tables and sentences, for ``busbw fit`` and for the report: a section for each regime."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from busbw.units import format_rate, format_time
from busbw_analysis.data.grouped import by_key
from busbw_analysis.fitting.design import Parameter
from busbw_analysis.fitting.identify import A_CALL, SYMBOLS, written
from busbw_analysis.fitting.joint import Estimate, JointFit, NotSeparated, OneRegime
from busbw_analysis.fitting.score import Validation
from busbw_analysis.fitting.selection import Candidate
from busbw_analysis.predict.selection import LIBRARY
from busbw_analysis.report.document import (
    Block,
    Cell,
    Column,
    Paragraph,
    Section,
    Table,
    listed,
    percent,
    sentence,
    table,
)
from busbw_analysis.report.tables.fits import TONES

_BETWEEN: Final = frozenset({"alpha", "beta"})
_INNER: Final = frozenset({"inner_alpha", "inner_beta"})
_MEANING: Final[dict[Parameter, str]] = {
    "alpha": "a round",
    "beta": "a byte through the link of one rank",
    "shared": "a byte of all that the ranks of the host move",
    "per_call": "a call, whatever it does",
    "gamma": "a byte that is added up",
    "inner_alpha": "a round inside a host",
    "inner_beta": "a byte inside a host, through the link of one rank",
    "card": "a byte of all that the ranks of a host send to others",
}
_NAMED: Final = 4


def joint_sections(regimes: Iterable[OneRegime]) -> tuple[Section, ...]:
    """A section for each of ``regimes``, of which no common parameters can be expected."""
    return tuple(
        Section(f"joint-{number}", f"All curves in one fit: {place(one)}", tuple(_blocks(one)))
        for number, one in enumerate(regimes, start=1)
    )


def place(one: OneRegime) -> str:
    """Where the ranks of a regime sit."""
    return f"{one.regime.placement}{', more ranks than cores' if one.regime.oversubscribed else ''}"


def _blocks(one: OneRegime) -> Iterator[Block]:
    if one.joint is None:
        yield Paragraph(sentence(f"no joint fit: {one.refused}"))
    else:
        yield from _of(one.joint)
    if one.left_out:
        yield Paragraph(sentence(f"left out of the joint fit: {'; '.join(one.left_out)}"))


def _of(joint: JointFit) -> Iterator[Block]:
    yield Paragraph(_found(joint))
    yield Paragraph(_kept_from_it(joint))
    notes = f"{formula(joint)}, one set for all; {joint.interval_note}"
    caption = "Parameters of all curves together"
    yield table(caption, _PARAMETER_COLUMNS, _parameters(joint), notes, without_empty=True)
    if joint.not_separated:
        yield table("Not separated by these data", _TOGETHER_COLUMNS, joint.not_separated)
    if joint.algorithms:
        algorithms = [(joint, op) for op in joint.algorithms]
        notes = _names_explained(joint)
        yield table("Algorithms", _ALGORITHM_COLUMNS, algorithms, notes, row_headers=2, without_empty=True)
    yield from _rivals(joint)
    yield table("What was kept from the fit, and predicted by it", _HELD_OUT_COLUMNS, joint.validations)
    by_hand = sorted({f"{seen.op} by {seen.algorithm}" for seen in joint.observations if seen.algorithm})
    known = [f"over send/recv, so that their algorithm is known: {', '.join(by_hand)}"] if by_hand else []
    yield from (Paragraph(sentence(note)) for note in (*known, *joint.notes))


def _found(joint: JointFit) -> str:
    """What all curves together tell, in one or two sentences."""
    ops = list(dict.fromkeys(seen.op for seen in joint.observations))
    ranks = sorted({seen.ranks for seen in joint.observations})
    told = [written(name, estimate.value) for name, estimate in joint.parameters.items()]
    sums = [mixed.sum for mixed in joint.not_separated if mixed.estimate is not None]
    found = [", ".join(told)] if told else []
    found += [f"{listed(sums)} only together"] if sums else []
    what = f"One set of parameters for {listed(ops)} on {listed(map(str, ranks))} ranks"
    return f"{what} over {joint.backend}: {'; '.join(found)}."


def _kept_from_it(joint: JointFit) -> str:
    """The verdict of what was held out, in one sentence."""
    checks = sorted(joint.validations, key=lambda check: not check.passed)
    by_verdict = by_key(("validated" if check.passed else "not validated", check.held_out) for check in checks)
    return f"Held out: {'; '.join(f'{word} on {listed(names)}' for word, names in by_verdict.items())}."


def formula(joint: JointFit) -> str:
    """What was fitted, by the parameters that were looked for."""
    fitted = _fitted(joint)
    carrier = "moved / R" if "shared" in fitted else "sent by a host / C" if "card" in fitted else "sent · β"
    inside = " + inside a host rounds · α_i + sent · β_i" if _INNER & fitted else ""
    return f"T = c0 + rounds · α + {carrier}{inside} + added · γ"


def _fitted(joint: JointFit) -> set[str]:
    return {*joint.parameters, *(name for mixed in joint.not_separated for name in mixed.parameters)}


@dataclass(frozen=True, slots=True)
class _Known:
    """A parameter, or a sum that is known where its parameters are not: how it is written, and what it is of."""

    symbol: str
    name: Parameter
    estimate: Estimate
    what: str

    @property
    def note(self) -> str:
        """What it is a price of, and as a rate."""
        value = self.estimate.value
        rate = "" if self.name in A_CALL or not value else f": {format_rate(1 / value)}"
        return f"{self.what}{rate}{'; at 0, the fit would have liked less' if self.estimate.at_bound else ''}"

    def in_units(self, value: float | None) -> str | None:
        """``value`` of it with its unit."""
        if value is None:
            return None
        return format_time(value * 1e9) if self.name in A_CALL else f"{value * 1e9:.3g} ns/B"


def _parameters(joint: JointFit) -> Iterator[_Known]:
    for name, estimate in joint.parameters.items():
        where = " between hosts" if name in _BETWEEN and _INNER & _fitted(joint) else ""
        yield _Known(SYMBOLS[name], name, estimate, _MEANING[name] + where)
    for mixed in joint.not_separated:
        if mixed.estimate is not None:
            yield _Known(mixed.sum, mixed.parameters[0], mixed.estimate, "only together")


_PARAMETER_COLUMNS: Final[tuple[Column[_Known], ...]] = (
    Column("Parameter", lambda one: one.symbol),
    Column("Value", lambda one: one.in_units(one.estimate.value), str),
    Column("Low", lambda one: one.in_units(one.estimate.low), str),
    Column("High", lambda one: one.in_units(one.estimate.high), str),
    Column("Note", lambda one: one.note),
)
_TOGETHER_COLUMNS: Final[tuple[Column[NotSeparated], ...]] = (
    Column("What cannot be told", lambda one: one.reason),
    Column("What would tell it", lambda one: one.needs),
)
_HELD_OUT_COLUMNS: Final[tuple[Column[Validation], ...]] = (
    Column("Held out", lambda check: check.held_out),
    Column("Median error", lambda check: check.median_error, percent, "%"),
    Column("Worst error", lambda check: check.worst_error, percent, "%"),
    Column("Of", lambda check: None if check.median_error is None else check.count, str),
    Column("Verdict", lambda check: Cell(check.note, tone=TONES[check.passed])),
)


def _own(joint: JointFit, op: str) -> Candidate | None:
    """How the algorithm did that explains ``op`` best."""
    return next((one for one in joint.candidates.get(op, ()) if one.algorithm == joint.algorithms[op]), None)


def _ties(joint: JointFit, op: str) -> str | None:
    """What else explains ``op`` as well."""
    # The same name without the backend's behind it is the formula of the textbook, which counts other delays.
    own, rival = joint.algorithms[op].partition(" (")[0], _own(joint, op)
    ties = [f"{name} (textbook)" if name == own else name for name in joint.ties.get(op, ())]
    if not ties:
        return None if rival is None else "the others do worse"
    rest = len(ties) - _NAMED
    some = ", ".join(ties) if rest <= 1 else f"{', '.join(ties[:_NAMED])} and {rest} more"
    return f"not told from {some}" if rival is None else f"a tie with {some}"


_ALGORITHM_COLUMNS: Final[tuple[Column[tuple[JointFit, str]], ...]] = (
    Column("Op", lambda one: one[1]),
    Column("Algorithm", lambda one: one[0].algorithms[one[1]] or LIBRARY),
    Column("Held-out", lambda one: (own := _own(*one)) and own.held_out, percent, "%"),
    Column("Seen", lambda one: (own := _own(*one)) and own.seen, percent, "%"),
    Column("Note", lambda one: _ties(*one)),
)


def _names_explained(joint: JointFit) -> str:
    """What the backend behind the name of an algorithm means, where one that is tied with another has it."""
    own = f"({joint.backend})"
    if not any(own in name and joint.ties.get(op) for op, name in joint.algorithms.items()):
        return ""
    return f"{own}: as {joint.backend} runs it, where a step may take several delays; others take one a round"


_RIVAL_COLUMNS: Final[tuple[Column[tuple[str, Candidate]], ...]] = (
    Column("Op", lambda one: one[0]),
    Column("Algorithm", lambda one: one[1].algorithm),
    Column("Held-out", lambda one: one[1].held_out, percent, "%"),
    Column("Seen", lambda one: one[1].seen, percent, "%"),
)


def _rivals(joint: JointFit) -> Iterator[Table]:
    """All that competed for an op of the library, the best first."""
    rivals = [(op, rival) for op in joint.algorithms for rival in joint.candidates.get(op, ())]
    if rivals:
        note = "Mean errors on the largest number of ranks, which was kept from the fit, and on the fewer ones."
        yield table("All algorithms that competed", _RIVAL_COLUMNS, rivals, note, row_headers=2, folded=True)
