"""Algorithm selection: which algorithm a library runs for an op, by the error on a held-out number of ranks.

At one number of ranks, every algorithm is a straight line in S and fits any line. Only the growth of rounds and bytes
with n distinguishes them, so candidates are fitted on fewer ranks and compared on the largest number of ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Final

import numpy as np
import numpy.typing as npt

from busbw.errors import AnalysisError
from busbw_analysis.fitting import design
from busbw_analysis.fitting.curve import LAUNCHES_FOR_A_BOOTSTRAP
from busbw_analysis.fitting.design import PARAMETERS, Curve, Floats, Models, Observed, Parameter, Wanted
from busbw_analysis.fitting.identify import settled
from busbw_analysis.models.costs import CostModel

LEAST_RANK_COUNTS: Final = 3
"""Two numbers of ranks to fit the growth with n, and one to test it."""

_TOO_CLOSE: Final = 0.10
"""With too few launches for a bootstrap, smaller differences count as noise."""

_UNEXPLAINED: Final = 0.20
"""A mean error above which not even the best candidate explains the data."""

_KNOWN: Final = 0
"""Index of the backend's known algorithm among the options, if there is one."""

_RESAMPLES: Final = 100
_SWEEPS: Final = 5


@dataclass(frozen=True, slots=True)
class Candidate:
    """One algorithm that may be behind an op, fitted to all but the largest number of ranks.

    ``held_out``: its mean relative error on the largest number of ranks.
    ``seen``: its mean relative error on the ranks it was fitted to.
    """

    algorithm: str
    held_out: float
    seen: float

    @property
    def error(self) -> float:
        """The score of a candidate, from both errors: it must also match the ranks it was fitted to."""
        return (self.held_out + self.seen) / 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a selection.

    ``models``: the selected model of every curve.
    ``candidates``: by op, all candidates, the best first.
    ``ties``: by op, other algorithms that fit equally well.
    ``notes``: what could not be decided.
    """

    models: Models
    candidates: Mapping[str, tuple[Candidate, ...]]
    ties: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Option:
    """Algorithms with equal costs in every observation of their curve, and these costs (``branches_of``)."""

    models: tuple[CostModel, ...]
    branched: Floats


@dataclass(frozen=True, slots=True)
class _Field:
    """The data of a selection: times, the indices of each curve in them, and the options of each curve."""

    times: Floats
    ranks: npt.NDArray[np.int64]
    places: Mapping[Curve, npt.NDArray[np.int64]]
    options: Mapping[Curve, tuple[_Option, ...]]
    wanted: tuple[Parameter, ...]

    def rank_counts(self, curve: Curve) -> int:
        """The number of different rank counts of a curve."""
        return len(set(self.ranks[self.places[curve]].tolist()))

    def contested(self) -> list[Curve]:
        """Curves with several options and enough rank counts to choose."""
        several = (curve for curve, options in self.options.items() if len(options) > 1)
        return [curve for curve in several if self.rank_counts(curve) >= LEAST_RANK_COUNTS]

    def fitted(self, choice: Mapping[Curve, int], times: Floats, largest: int) -> tuple[Floats, Floats]:
        """Rows of all observations with ``choice``, and the coefficients of a fit to fewer than ``largest`` ranks."""
        branched = np.zeros((len(times), 2, len(PARAMETERS)))  # stays 0 for curves outside ``choice``
        for curve, option in choice.items():
            branched[self.places[curve]] = self.options[curve][option].branched
        known = np.zeros(len(times), dtype=bool)
        known[np.concatenate([self.places[curve] for curve in choice])] = True
        known &= self.ranks < largest
        _, coefficients = settled(branched[known], times[known], self.wanted)
        return design.longer_of(branched, coefficients), coefficients

    def errors(self, curve: Curve, choice: Mapping[Curve, int], times: Floats) -> tuple[Floats, ...]:
        """Relative errors when the curves of ``choice`` are fitted to fewer ranks than the largest n of ``curve``.

        The first array is for ``curve`` at that n, the second for ``curve`` at its other n, and the rest for each other
        curve at the fitted n.
        """
        places = self.places[curve]
        largest = int(self.ranks[places].max())
        rows, coefficients = self.fitted(choice, times, largest)
        own = design.relative_errors(rows[places], times[places], coefficients)
        held_out = self.ranks[places] == largest
        seen = (self.places[other][self.ranks[self.places[other]] < largest] for other in choice if other != curve)
        others = [design.relative_errors(rows[one], times[one], coefficients) for one in seen if len(one)]
        return own[held_out], own[~held_out], *others

    def score(self, curve: Curve, choice: Mapping[Curve, int], times: Floats) -> float:
        """The score of an option of ``curve``: ``Candidate.error`` plus the errors it causes on other curves."""
        return _weighed([float(part.mean()) for part in self.errors(curve, choice, times)])

    def total(self, choice: Mapping[Curve, int]) -> float:
        """The sum of the scores of contested curves and the errors of all others, for which no n is held out."""
        contested = self.contested()
        total = 0.0
        for largest in {int(self.ranks[self.places[curve]].max()) for curve in contested}:
            rows, coefficients = self.fitted(choice, self.times, largest)
            errors = design.relative_errors(rows, self.times, coefficients)
            for curve, places in self.places.items():
                seen = places[self.ranks[places] < largest]
                if curve in contested and int(self.ranks[places].max()) == largest:
                    total += float(errors[places[self.ranks[places] == largest]].mean() + errors[seen].mean()) / 2
                elif curve not in contested and len(seen):
                    total += float(errors[seen].mean())
        return total


def select_algorithms(observations: Observed, wanted: Wanted) -> Outcome:
    """The algorithm behind every curve of ``observations``, selected with ``wanted`` as the parameters.

    Each contested op is first fitted alone. Then all are fitted together, changing two at a time, until the error stops
    falling. An op with fewer than LEAST_RANK_COUNTS rank counts gets the known algorithm of its backend, else the first
    of the textbook, and all others are ties. Raises AnalysisError if no known algorithm is possible.
    """
    field = _field(observations, wanted)
    choice = _choose(field)
    candidates: dict[str, tuple[Candidate, ...]] = {}
    ties: dict[str, tuple[str, ...]] = {}
    notes: list[str] = []
    undecided: dict[int, list[str]] = {}
    contested = field.contested()
    for curve, options in field.options.items():
        op, explicit = curve
        if explicit is not None:
            continue
        equals = [option for option in range(len(options)) if option != choice[curve]]
        if curve in contested:
            candidates[op], equals = _ranked(field, curve, choice, observations)
            if max(candidates[op][0].held_out, candidates[op][0].seen) > _UNEXPLAINED:
                best = candidates[op][0]
                notes.append(
                    f"no known algorithm explains {op}: the best, {best.algorithm}, is off by "
                    f"{best.held_out:.0%} on the largest number of ranks and by {best.seen:.0%} on fewer"
                )
            if _KNOWN in equals and options[_KNOWN].models[0].family == observations[0].cost_models:
                # Among equally good algorithms, prefer the one that the library is known to run.
                equals[equals.index(_KNOWN)], choice[curve] = choice[curve], _KNOWN
        elif len(options) > 1:
            undecided.setdefault(field.rank_counts(curve), []).append(f"{op} ({options[_KNOWN].models[0].algorithm})")
        alike = [model.algorithm for option in (choice[curve], *equals) for model in options[option].models]
        if len(alike) > 1:
            ties[op] = tuple(alike[1:])
    models = {curve: field.options[curve][option].models[0] for curve, option in choice.items()}
    notes += [_undecided(counts, ops) for counts, ops in undecided.items()]
    return Outcome(models, candidates, ties, tuple(notes))


def chosen_models(observations: Observed, wanted: Wanted) -> Models:
    """The models of ``select_algorithms``, without scores and ties."""
    field = _field(observations, wanted)
    return {curve: field.options[curve][option].models[0] for curve, option in _choose(field).items()}


def _undecided(counts: int, ops: Sequence[str]) -> str:
    why = "on one number of ranks all algorithms fit equally well"
    if counts > 1:
        why = "two numbers of ranks are needed to fit a cost, and a third to test it"
    return (
        f"the algorithm of {', '.join(ops)} is undecided, and the one in brackets is assumed: {why}. Measure on "
        f"at least {LEAST_RANK_COUNTS} numbers of ranks under the same conditions"
    )


def _field(observations: Observed, wanted: Wanted) -> _Field:
    curves = dict.fromkeys(one.curve for one in observations)
    places = {
        curve: np.asarray([place for place, one in enumerate(observations) if one.curve == curve]) for curve in curves
    }
    return _Field(
        times=design.times_of(observations),
        ranks=np.asarray([one.ranks for one in observations]),
        places=places,
        options={curve: _options(curve, [observations[place] for place in places[curve]], wanted) for curve in curves},
        wanted=tuple(wanted),
    )


def _options(curve: Curve, observations: Observed, wanted: Wanted) -> tuple[_Option, ...]:
    found: list[_Option] = []
    for model in design.candidates_of(observations):
        if not design.possible_for(model, observations, wanted):
            continue
        branched = design.branches_of(observations, {curve: model})
        same = next((option for option in found if np.allclose(option.branched, branched, rtol=1e-12)), None)
        if same is None:
            found.append(_Option((model,), branched))
        else:
            found[found.index(same)] = _Option((*same.models, model), branched)
    if not found:
        where = sorted({(one.ranks, one.hosts) for one in observations})
        shapes = ", ".join(f"{ranks} ranks on {hosts} hosts" for ranks, hosts in where)
        raise AnalysisError(f"no known algorithm of {curve[0]} is possible on {shapes}")
    return tuple(found)


def _choose(field: _Field) -> dict[Curve, int]:
    """The option of each curve with the lowest error on its largest n."""
    choice = dict.fromkeys(field.options, _KNOWN)
    contested = field.contested()
    for curve in contested:
        scores = [field.score(curve, {curve: option}, field.times) for option in range(len(field.options[curve]))]
        choice[curve] = int(np.argmin(scores))
    # Change two ops at a time: twice the rounds of both with half the α may fit, although changing only one does not.
    together: list[tuple[Curve, ...]] = [*combinations(contested, 2)]
    together = together or [(curve,) for curve in contested]
    lowest = field.total(choice)
    for _ in range(_SWEEPS):
        before = lowest
        for curves in together:
            for options in product(*(range(len(field.options[curve])) for curve in curves)):
                other = {**choice, **dict(zip(curves, options, strict=True))}
                total = field.total(other)
                if total < lowest:
                    choice, lowest = other, total
        if lowest == before:
            break
    return choice


def _ranked(
    field: _Field, curve: Curve, choice: Mapping[Curve, int], observations: Observed
) -> tuple[tuple[Candidate, ...], list[int]]:
    """All options of ``curve``, the best first, and those that tie with the chosen one."""
    options = field.options[curve]
    errors = [field.errors(curve, {**choice, curve: option}, field.times) for option in range(len(options))]
    chosen = errors[choice[curve]]
    enough = min(len(one.launches) for one in observations) >= LAUNCHES_FOR_A_BOOTSTRAP
    draws = design.resampled_times(observations, _RESAMPLES) if enough else None
    best = [field.score(curve, choice, times) for times in draws] if draws is not None else []
    tied: list[int] = []
    for option in range(len(options)):
        if option == choice[curve]:
            continue
        worse = [one - two for one, two in zip(errors[option], chosen, strict=True)]
        behind = _weighed([float(part.mean()) for part in worse])
        # The standard error of ``behind``, from the standard errors of its parts.
        held_out, seen, *others = (float(part.std() / np.sqrt(len(part))) for part in worse)
        unsure = float(np.hypot.reduce([held_out / 2, seen / 2, *others]))
        if draws is None:
            surely = behind > _TOO_CLOSE
        else:
            scores = [field.score(curve, {**choice, curve: option}, times) for times in draws]
            surely = float(np.quantile(np.subtract(scores, best), 0.025)) > 0
        if behind <= 2 * unsure or not surely:
            tied.append(option)
    found = [
        Candidate(model.algorithm, float(held_out.mean()), float(seen.mean()))
        for option, (held_out, seen, *_) in zip(options, errors, strict=True)
        for model in option.models
    ]
    return tuple(sorted(found, key=lambda candidate: candidate.error)), tied


def _weighed(parts: Sequence[float]) -> float:
    """The parts of ``_Field.errors`` as one number: each curve counts once, its largest n as much as all others."""
    held_out, seen, *others = parts
    return (held_out + seen) / 2 + sum(others)
