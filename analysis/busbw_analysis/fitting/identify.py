"""Which parameters a design can separate, which it sees only together, and which further measurement would help.

Whether a fit is possible is decided before it: by the rank and the condition of its columns, not by what came out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import Final

import numpy as np

from busbw.units import format_rate, format_time
from busbw_analysis.fitting.design import PARAMETERS, Floats, Parameter, Wanted, longer_of, solve

LARGEST_CONDITION: Final = 100.0
"""Beyond it the weakest direction of the columns shows with less than 1 % of the strength of the best one, which the
noise of any measured time drowns.
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
"""Parameters that are seconds; the others are seconds for each byte."""

_AS_A_RATE: Final[Mapping[Parameter, str]] = {
    "beta": "1/β",
    "shared": "R",
    "gamma": "1/γ",
    "inner_beta": "1/β inside a host",
    "card": "C",
}

_TURNS: Final = 10
"""Enough for any branch to change; where they go around in a circle, the last fit is as good as any of them."""

_NOTHING = 1e-6
"""A column that is so much smaller than another in scaled units takes no part in it."""


@dataclass(frozen=True, slots=True)
class Mixed:
    """Parameters of which the design knows one weighted sum and no more: 1 · beta + 0.5 · gamma. A single one with
    ``weights`` () has nothing to say in any row.
    """

    parameters: tuple[Parameter, ...]
    weights: tuple[float, ...]

    @property
    def sum(self) -> str:
        """The sum in symbols: β + 0.5 γ; the symbol alone where there is none."""
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
        """What is wrong with these data, in words."""
        if not self.weights:
            return f"nothing in these data has a part in {self.sum}"
        names = [SYMBOLS[parameter] for parameter in self.parameters]
        told = f"{', '.join(names[:-1])} and {names[-1]}"
        return f"{told} cannot be told apart by these data, which know {self.sum} alone"


@dataclass(frozen=True, slots=True)
class Separation:
    """What a design can tell.

    ``kept``: columns that are independent enough to be fitted.
    ``separable``: those of them that have taken nothing over from a column that was not kept.
    ``mixed``: sums that the design knows alone, and parameters that have no part in it.
    ``unknown``: the directions (in the order of PARAMETERS) that no row notices.
    """

    kept: tuple[Parameter, ...]
    separable: tuple[Parameter, ...]
    mixed: tuple[Mixed, ...]
    unknown: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Remedy:
    """What could be added to a measurement, in words, with its rows (rows × PARAMETERS) and times (seconds)."""

    words: str
    rows: Floats
    times: Floats


def written(parameter: Parameter, value: float) -> str:
    """A parameter with its value (seconds, or seconds for each byte) as people know it: a time, or a rate."""
    if parameter in A_CALL:
        symbol = "α inside a host" if parameter == "inner_alpha" else SYMBOLS[parameter]
        return f"{symbol} {format_time(value * 1e9)}"
    return f"{_AS_A_RATE[parameter]} {format_rate(1 / value) if value > 0 else 'without limit'}"


def columns_of(parameters: Wanted) -> list[int]:
    """Where ``parameters`` stand in PARAMETERS."""
    return [PARAMETERS.index(parameter) for parameter in parameters]


def identify(rows: Floats, times: Floats, wanted: Wanted) -> Separation:
    """What ``rows`` (observations × PARAMETERS) with ``times`` (seconds) can tell of ``wanted``, the most wanted first.

    A column joins those that are kept while their condition stays below LARGEST_CONDITION; of two that are alike the
    one that is wanted more is kept, and stands for both.
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
    """As ``identify``. Where nothing has a part inside a host it is no news that nothing is known of it: only a
    question that needs it has to be refused.
    """
    if rows[:, columns_of(INNER)].any():
        return identify(rows, times, wanted)
    found = identify(rows, times, [name for name in wanted if name not in INNER])
    return replace(found, unknown=(*found.unknown, *directions_of(INNER)))


def settled(branched: Floats, times: Floats, wanted: Wanted) -> tuple[Floats, Floats]:
    """The rows of a fit to ``branched`` (observations × two branches × PARAMETERS), and its coefficients: which branch
    takes longer follows from the coefficients, and these from the branches, so both are found in turns.
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
    """Largest over smallest singular value; infinite for columns that depend on each other."""
    if columns.shape[1] == 0 or columns.shape[0] < columns.shape[1]:
        return np.inf
    values = np.linalg.svd(columns, compute_uv=False)
    return float(values[0] / values[-1]) if values[-1] > values[0] * 1e-12 else np.inf


def _shares(scaled: Floats, scale: Floats, kept: Sequence[int], column: int) -> tuple[float, ...]:
    """How much of every kept column is in ``column``: what its coefficient adds to theirs."""
    found = np.linalg.lstsq(scaled[:, kept], scaled[:, column], rcond=None)[0]
    found[np.abs(found) < max(1 / LARGEST_CONDITION * np.abs(found).max(), _NOTHING)] = 0.0
    return tuple(float(share) for share in found * scale[column] / scale[list(kept)])


def _direction(parts: Mapping[Parameter, float]) -> tuple[float, ...]:
    return tuple(parts.get(name, 0.0) for name in PARAMETERS)


def directions_of(parameters: Wanted) -> tuple[tuple[float, ...], ...]:
    """One direction (in the order of PARAMETERS) for each of ``parameters``, of which nothing is known."""
    return tuple(_direction({name: 1.0}) for name in parameters)


def determined_by(row: Floats, unknown: Sequence[Sequence[float]]) -> bool:
    """Whether ``row`` (PARAMETERS) stays where it is when coefficients move in the ``unknown`` directions, as every
    observation does; else its time depends on what is not known.
    """
    changes = [row * np.asarray(direction) for direction in unknown]
    return not any(abs(one.sum()) > 2 / LARGEST_CONDITION * np.abs(one).max() for one in changes)


def needs(rows: Floats, times: Floats, wanted: Wanted, one: Mixed, remedies: Sequence[Remedy]) -> str:
    """Which of ``remedies`` would separate the parameters of ``one``, tried out one by one, in pairs and by threes."""

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
    return "add ops whose rounds and bytes are in other proportions, and other numbers of ranks"
