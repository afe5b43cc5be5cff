"""Joint fits in tables and sentences, for ``busbw fit`` and for the report: one section per regime."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from busbw.units import format_rate, listed
from busbw_analysis.data.grouped import by_key
from busbw_analysis.diagnosis.answer import sentences
from busbw_analysis.fitting.design import Parameter
from busbw_analysis.fitting.identify import A_CALL, SYMBOLS, in_units, written
from busbw_analysis.fitting.joint import Estimate, JointFit, NotSeparated, OneRegime
from busbw_analysis.fitting.score import Validation
from busbw_analysis.fitting.selection import Candidate
from busbw_analysis.report.document import (
    Block,
    Cell,
    Column,
    Paragraph,
    Section,
    Table,
    percent,
    table,
)
from busbw_analysis.report.tables.fits import TONES

_BETWEEN: Final = frozenset({"alpha", "beta"})
_INNER: Final = frozenset({"inner_alpha", "inner_beta"})
_MEANING: Final[dict[Parameter, str]] = {
    "alpha": "per round",
    "beta": "per byte through the link of one rank",
    "shared": "per byte moved by all ranks of the host",
    "per_call": "per call",
    "gamma": "per reduced byte",
    "inner_alpha": "per round inside a host",
    "inner_beta": "per byte inside a host, through the link of one rank",
    "card": "per byte sent to other hosts by all ranks of a host",
}
_NAMED: Final = 4


def joint_sections(regimes: Iterable[OneRegime]) -> tuple[Section, ...]:
    """One section for each of ``regimes``, which cannot have common parameters."""
    return tuple(
        Section(f"joint-{number}", f"All curves in one fit: {place(one)}", tuple(_blocks(one)))
        for number, one in enumerate(regimes, start=1)
    )


def place(one: OneRegime) -> str:
    """The placement of a regime's ranks."""
    return f"{one.regime.placement}{', more ranks than cores' if one.regime.oversubscribed else ''}"


def _blocks(one: OneRegime) -> Iterator[Block]:
    if one.joint is None:
        yield Paragraph(sentences(f"no joint fit: {one.refused}"))
    else:
        yield from _of(one.joint)
    if one.left_out:
        yield Paragraph(sentences(f"left out of the joint fit: {'; '.join(one.left_out)}"))


def _of(joint: JointFit) -> Iterator[Block]:
    yield Paragraph(_found(joint))
    yield Paragraph(_validated(joint))
    notes = f"{formula(joint)}, one set for all; {joint.interval_note}"
    caption = "Parameters of all curves together"
    yield table(caption, _PARAMETER_COLUMNS, _parameters(joint), notes)
    if joint.not_separated:
        yield table("Not separated by these data", _TOGETHER_COLUMNS, joint.not_separated)
    if joint.algorithms:
        algorithms = [(joint, op) for op in joint.algorithms]
        notes = _names_explained(joint)
        yield table("Algorithms", _ALGORITHM_COLUMNS, algorithms, notes, row_headers=2)
    yield from _candidates(joint)
    yield table("Predictions of held-out data", _HELD_OUT_COLUMNS, joint.validations)
    explicit = sorted({f"{seen.op} by {seen.algorithm}" for seen in joint.observations if seen.algorithm})
    known = [f"explicit algorithms over send/recv: {', '.join(explicit)}"] if explicit else []
    yield from (Paragraph(sentences(note)) for note in (*known, *joint.notes))


def _found(joint: JointFit) -> str:
    """The parameters of all curves together, in one or two sentences."""
    ops = list(dict.fromkeys(seen.op for seen in joint.observations))
    ranks = sorted({seen.ranks for seen in joint.observations})
    values = [written(name, estimate.value) for name, estimate in joint.parameters.items()]
    sums = [mixed.sum for mixed in joint.not_separated if mixed.estimate is not None]
    found = [", ".join(values)] if values else []
    found += [f"{listed(sums)} only as a sum"] if sums else []
    what = f"One set of parameters for {listed(ops)} on {listed(map(str, ranks))} ranks"
    return f"{what} over {joint.backend}: {'; '.join(found)}."


def _validated(joint: JointFit) -> str:
    """Which held-out data the fit predicts, in one sentence."""
    checks = sorted(joint.validations, key=lambda check: not check.passed)
    by_verdict = by_key(("validated" if check.passed else "not validated", check.held_out) for check in checks)
    return f"Held out: {'; '.join(f'{word} on {listed(names)}' for word, names in by_verdict.items())}."


def formula(joint: JointFit) -> str:
    """The fitted formula, with the parameters that were estimated."""
    fitted = _fitted(joint)
    carrier = "moved / R" if "shared" in fitted else "sent by a host / C" if "card" in fitted else "sent · β"
    inside = " + inside a host rounds · α_i + sent · β_i" if _INNER & fitted else ""
    return f"T = c0 + rounds · α + {carrier}{inside} + added · γ"


def _fitted(joint: JointFit) -> set[str]:
    return {*joint.parameters, *(name for mixed in joint.not_separated for name in mixed.parameters)}


@dataclass(frozen=True, slots=True)
class _Known:
    """An estimate: a parameter, or a sum of parameters that the data do not separate.

    symbol: how it is written.
    what: what the parameter is the cost of.
    """

    symbol: str
    name: Parameter
    estimate: Estimate
    what: str

    @property
    def note(self) -> str:
        """What it is the cost of, and its value as a rate."""
        value = self.estimate.value
        rate = "" if self.name in A_CALL or not value else f": {format_rate(1 / value)}"
        return f"{self.what}{rate}{'; at its lower limit 0' if self.estimate.at_bound else ''}"

    def in_units(self, value: float | None) -> str | None:
        """``value`` with its unit."""
        return None if value is None else in_units(self.name, value)


def _parameters(joint: JointFit) -> Iterator[_Known]:
    for name, estimate in joint.parameters.items():
        where = " between hosts" if name in _BETWEEN and _INNER & _fitted(joint) else ""
        yield _Known(SYMBOLS[name], name, estimate, _MEANING[name] + where)
    for mixed in joint.not_separated:
        if mixed.estimate is not None:
            yield _Known(mixed.sum, mixed.parameters[0], mixed.estimate, "only as a sum")


_PARAMETER_COLUMNS: Final[tuple[Column[_Known], ...]] = (
    Column("Parameter", lambda one: one.symbol),
    Column("Value", lambda one: one.in_units(one.estimate.value), str),
    Column("Low", lambda one: one.in_units(one.estimate.low), str),
    Column("High", lambda one: one.in_units(one.estimate.high), str),
    Column("Note", lambda one: one.note),
)
_TOGETHER_COLUMNS: Final[tuple[Column[NotSeparated], ...]] = (
    Column("Reason", lambda one: one.reason),
    Column("Needed data", lambda one: one.needs),
)
_HELD_OUT_COLUMNS: Final[tuple[Column[Validation], ...]] = (
    Column("Held out", lambda check: check.held_out),
    Column("Median error", lambda check: check.median_error, percent, "%"),
    Column("Worst error", lambda check: check.worst_error, percent, "%"),
    Column("Of", lambda check: None if check.median_error is None else check.count, str),
    Column("Verdict", lambda check: Cell(check.note, tone=TONES[check.passed])),
)


def _own(joint: JointFit, op: str) -> Candidate | None:
    """The fit of the algorithm that explains ``op`` best."""
    return next((one for one in joint.candidates.get(op, ()) if one.algorithm == joint.algorithms[op]), None)


def _ties(joint: JointFit, op: str) -> str | None:
    """Algorithms that explain ``op`` equally well."""
    # The same name without a backend is the textbook formula, which counts other delays.
    own, fitted = joint.algorithms[op].partition(" (")[0], _own(joint, op)
    ties = [f"{name} (textbook)" if name == own else name for name in joint.ties.get(op, ())]
    if not ties:
        return None if fitted is None else "the others do worse"
    some = listed(ties, _NAMED)
    return f"not distinguished from {some}" if fitted is None else f"a tie with {some}"


_ALGORITHM_COLUMNS: Final[tuple[Column[tuple[JointFit, str]], ...]] = (
    Column("Op", lambda one: one[1]),
    Column("Algorithm", lambda one: one[0].algorithms[one[1]]),
    Column("Held-out", lambda one: (own := _own(*one)) and own.held_out, percent, "%"),
    Column("Fitted", lambda one: (own := _own(*one)) and own.seen, percent, "%"),
    Column("Note", lambda one: _ties(*one)),
)


def _names_explained(joint: JointFit) -> str:
    """Explains a backend behind an algorithm's name, if such an algorithm ties with others."""
    own = f"({joint.cost_models})"
    if not any(own in name and joint.ties.get(op) for op, name in joint.algorithms.items()):
        return ""
    return f"{own}: as {joint.backend} implements it, with possibly several delays per step; others take one per round"


_CANDIDATE_COLUMNS: Final[tuple[Column[tuple[str, Candidate]], ...]] = (
    Column("Op", lambda one: one[0]),
    Column("Algorithm", lambda one: one[1].algorithm),
    Column("Held-out", lambda one: one[1].held_out, percent, "%"),
    Column("Fitted", lambda one: one[1].seen, percent, "%"),
)


def _candidates(joint: JointFit) -> Iterator[Table]:
    """All candidate algorithms for each op of the library, the best first."""
    candidates = [(op, candidate) for op in joint.algorithms for candidate in joint.candidates.get(op, ())]
    if candidates:
        note = "Mean errors on the largest number of ranks, which was held out, and on the fewer ranks of the fit."
        yield table("All candidate algorithms", _CANDIDATE_COLUMNS, candidates, note, row_headers=2, folded=True)
