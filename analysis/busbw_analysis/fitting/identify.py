"""Identifiability: which parameters a design separates, which appear only in sums, and which measurements would help.

This is decided before the fit, from the rank and condition number of the columns, not from the fitted values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import Final

import numpy as np

from busbw.units import format_rate, format_time
from busbw_analysis.fitting.design import PARAMETERS, Floats, Parameter, Wanted, longer_of, solve

LARGEST_CONDITION: Final = 100.0
"""Above it, the weakest direction of the columns has less than 1 % of the strength of the strongest one and is lost in
measurement noise.
"""

SYMBOLS: Final[Mapping[Parameter, str]] = {
    "alpha": "α",
    "beta": "β",
    "shared": "1/R",
    "per_call": "c0",
    "gamma": "γ",
    "inner_alpha": "α_i",
    "inner_beta": "β_i",
    "card": "1/C",
}

INNER: Final[tuple[Parameter, ...]] = ("inner_alpha", "inner_beta")

A_CALL: Final = frozenset({"alpha", "inner_alpha", "per_call"})
"""Parameters in seconds; the others are in seconds per byte."""

_AS_A_RATE: Final[Mapping[Parameter, str]] = {
    "beta": "1/β",
    "shared": "R",
    "gamma": "1/γ",
    "inner_beta": "1/β inside a host",
    "card": "C",
}

_TURNS: Final = 10
"""Enough for every branch to change; if the branches cycle, the last fit is as good as any."""

_NOTHING = 1e-6
"""A smaller contribution to another column, in scaled units, counts as 0."""


@dataclass(frozen=True, slots=True)
class Mixed:
    """Parameters of which the design determines only one weighted sum, such as 1 · beta + 0.5 · gamma. A single
    parameter with ``weights`` () does not appear in any row.
    """

    parameters: tuple[Parameter, ...]
    weights: tuple[float, ...]

    @property
    def sum(self) -> str:
        """The sum in symbols, such as β + 0.5 γ; the symbol alone if there is no sum."""
        if not self.weights:
            return SYMBOLS[self.parameters[0]]
        words = ""
        for parameter, weight in zip(self.parameters, self.weights, strict=True):
            sign = "−" if weight < 0 else "+"
            factor = "" if abs(abs(weight) - 1) < 1e-9 else f"{abs(weight):.3g} "
            words += f"{f' {sign} ' if words else ''}{factor}{SYMBOLS[parameter]}"
        return words

    @property
    def reason(self) -> str:
        """Why these data do not separate the parameters."""
        if not self.weights:
            return f"these data do not depend on {self.sum}"
        names = [SYMBOLS[parameter] for parameter in self.parameters]
        return f"these data do not separate {', '.join(names[:-1])} and {names[-1]}, only their sum {self.sum} is known"


@dataclass(frozen=True, slots=True)
class Separation:
    """What a design determines.

    ``kept``: columns that are independent enough to be fitted.
    ``separable``: kept columns that do not include the effect of a dropped column.
    ``mixed``: sums of which only the total is determined, and parameters that do not appear.
    ``unknown``: directions (in the order of PARAMETERS) in which coefficients can change without effect on any row.
    """

    kept: tuple[Parameter, ...]
    separable: tuple[Parameter, ...]
    mixed: tuple[Mixed, ...]
    unknown: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Remedy:
    """A possible additional measurement in words, with its rows (rows × PARAMETERS) and times (seconds)."""

    words: str
    rows: Floats
    times: Floats


def written(parameter: Parameter, value: float) -> str:
    """A parameter with its value (seconds, or seconds per byte) written as a time or a rate."""
    if parameter in A_CALL:
        symbol = "α inside a host" if parameter == "inner_alpha" else SYMBOLS[parameter]
        return f"{symbol} {format_time(value * 1e9)}"
    return f"{_AS_A_RATE[parameter]} {format_rate(1 / value) if value > 0 else 'without limit'}"


def in_units(parameter: Parameter, value: float) -> str:
    """The value of a parameter, or of a sum that begins with it, with its unit."""
    return format_time(1e9 * value) if parameter in A_CALL else f"{1e9 * value:.3g} ns/B"


def columns_of(parameters: Wanted) -> list[int]:
    """The indices of ``parameters`` in PARAMETERS."""
    return [PARAMETERS.index(parameter) for parameter in parameters]


def identify(rows: Floats, times: Floats, wanted: Wanted) -> Separation:
    """What ``rows`` (observations × PARAMETERS) with ``times`` (seconds) determine of ``wanted``, the most important
    first.

    A column is kept while the condition number stays below LARGEST_CONDITION. Of two similar columns, the more
    important one is kept and represents both.
    """
    places = columns_of(wanted)
    system = rows[:, places] / times[:, None]
    scale = np.abs(system).max(axis=0)
    present = [column for column in range(len(wanted)) if scale[column] > 0]
    scaled = np.where(scale > 0, system / np.where(scale > 0, scale, 1.0), 0.0)
    kept: list[int] = []
    for column in present:
        if _condition(scaled[:, [*kept, column]]) <= LARGEST_CONDITION:
            kept.append(column)
    absent = [column for column in range(len(wanted)) if column not in present]
    dropped = [column for column in present if column not in kept]
    shares = {column: _shares(scaled, scale, kept, column) for column in dropped}
    mixed = []
    for number, one in enumerate(kept):
        if parts := {wanted[column]: shares[column][number] for column in dropped if shares[column][number]}:
            mixed.append(Mixed((wanted[one], *parts), (1.0, *parts.values())))
    unknown = list(directions_of([wanted[column] for column in absent]))
    for column in dropped:
        others = {wanted[one]: -share for one, share in zip(kept, shares[column], strict=True)}
        unknown.append(_direction({wanted[column]: 1.0} | others))
    taken = {parameter for one in mixed for parameter in one.parameters}
    return Separation(
        kept=tuple(wanted[column] for column in kept),
        separable=tuple(wanted[column] for column in kept if wanted[column] not in taken),
        mixed=(*mixed, *(Mixed((wanted[column],), ()) for column in absent)),
        unknown=tuple(unknown),
    )


def separated(rows: Floats, times: Floats, wanted: Wanted) -> Separation:
    """Like ``identify``, but if no row has a part inside a host, that is not reported as a missing parameter: only
    questions that need it are refused.
    """
    if rows[:, columns_of(INNER)].any():
        return identify(rows, times, wanted)
    found = identify(rows, times, [name for name in wanted if name not in INNER])
    return replace(found, unknown=(*found.unknown, *directions_of(INNER)))


def settled(branched: Floats, times: Floats, wanted: Wanted) -> tuple[Floats, Floats]:
    """The rows and coefficients of a fit to ``branched`` (observations × two branches × PARAMETERS).

    The longer branch depends on the coefficients and these on the branch, so both are found by iteration.
    """

    def fit(rows: Floats) -> Floats:
        return solve(rows, times, columns_of(identify(rows, times, wanted).kept))

    rows = branched[:, 0]
    coefficients = fit(rows)
    for _ in range(_TURNS):
        longer = longer_of(branched, coefficients)
        if np.array_equal(longer, rows):
            break
        rows, coefficients = longer, fit(longer)
    return rows, coefficients


def _condition(columns: Floats) -> float:
    """The condition number; infinite with fewer rows than columns."""
    return float(np.linalg.cond(columns)) if columns.shape[0] >= columns.shape[1] else np.inf


def _shares(scaled: Floats, scale: Floats, kept: Sequence[int], column: int) -> tuple[float, ...]:
    """The share of every kept column in ``column``: how much its coefficient adds to theirs."""
    found = np.linalg.lstsq(scaled[:, kept], scaled[:, column], rcond=None)[0]
    found[np.abs(found) < max(1 / LARGEST_CONDITION * np.abs(found).max(), _NOTHING)] = 0.0
    return tuple(float(share) for share in found * scale[column] / scale[list(kept)])


def _direction(parts: Mapping[Parameter, float]) -> tuple[float, ...]:
    return tuple(parts.get(name, 0.0) for name in PARAMETERS)


def directions_of(parameters: Wanted) -> tuple[tuple[float, ...], ...]:
    """One direction (in the order of PARAMETERS) for each of ``parameters``, which are undetermined."""
    return tuple(_direction({name: 1.0}) for name in parameters)


def determined_by(row: Floats, unknown: Sequence[Sequence[float]]) -> bool:
    """Whether the time of ``row`` (PARAMETERS) is unchanged when coefficients move in the ``unknown`` directions;
    otherwise it depends on undetermined parameters.
    """
    changes = [row * np.asarray(direction) for direction in unknown]
    return not any(abs(one.sum()) > 2 / LARGEST_CONDITION * np.abs(one).max() for one in changes)


def needs(rows: Floats, times: Floats, wanted: Wanted, one: Mixed, remedies: Sequence[Remedy]) -> str:
    """Which of ``remedies`` would separate the parameters of ``one``: tried singly, in pairs and in threes."""

    def helps(parts: Sequence[Remedy]) -> bool:
        more = np.vstack([rows, *(part.rows for part in parts)])
        longer = np.concatenate([times, *(part.times for part in parts)])
        return set(one.parameters) <= set(identify(more, longer, wanted).separable)

    single = [remedy.words for remedy in remedies if helps([remedy])]
    if single:
        return f"add {' or '.join(single)}"
    for parts in chain(combinations(remedies, 2), combinations(remedies, 3)):
        if helps(parts):
            return f"add {', '.join(part.words for part in parts[:-1])} and {parts[-1].words}"
    return "add ops with a different ratio of rounds to bytes, and other numbers of ranks"
