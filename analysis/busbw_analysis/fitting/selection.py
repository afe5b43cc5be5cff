"""Which algorithm is behind an op of the library: candidates compete on a number of ranks that the fit has not seen.

At one number of ranks every algorithm is a straight line in S, and any line can be fitted; only how rounds and bytes
grow with n tells them apart. So all are fitted on fewer ranks and held against the most.
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
"""Two to fit how a cost grows with n, and one to see whether it goes on like that."""

_TOO_CLOSE: Final = 0.10
"""With too few launches to tell how sure a score is, differences below this are taken for noise."""

_UNEXPLAINED: Final = 0.20
"""A mean error above which the best candidate explains nothing either."""

_KNOWN: Final = 0
"""Where the algorithm that a backend is known to run stands among the options, if there is one."""

_RESAMPLES: Final = 100
_SWEEPS: Final = 5


@dataclass(frozen=True, slots=True)
class Candidate:
    """One algorithm that could be behind an op, fitted to all but the largest number of ranks: its mean relative error
    there, of which the fit knew nothing (``held_out``), and on the fewer ranks that it was fitted to (``seen``).
    """

    algorithm: str
    held_out: float
    seen: float

    @property
    def error(self) -> float:
        """What candidates are ordered by. Both count: one that misses the ranks it was fitted to has no claim."""
        return (self.held_out + self.seen) / 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a competition came to: ``models`` of all curves, by op who competed how well, the best first, which others
    are as good as it, and in words what could not be decided.
    """

    models: Models
    candidates: Mapping[str, tuple[Candidate, ...]]
    ties: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Option:
    """Algorithms that cost the same in every observation of their curve, and what they cost, as of ``branches_of``."""

    models: tuple[CostModel, ...]
    branched: Floats


@dataclass(frozen=True, slots=True)
class _Field:
    """All that competes: times, where each curve stands in them, and its options."""

    times: Floats
    ranks: npt.NDArray[np.int64]
    places: Mapping[Curve, npt.NDArray[np.int64]]
    options: Mapping[Curve, tuple[_Option, ...]]
    wanted: tuple[Parameter, ...]

    def rank_counts(self, curve: Curve) -> int:
        """On how many numbers of ranks a curve was measured."""
        return len(set(self.ranks[self.places[curve]].tolist()))

    def contested(self) -> list[Curve]:
        """Curves with a choice and with rank counts enough to make it."""
        several = (curve for curve, options in self.options.items() if len(options) > 1)
        return [curve for curve in several if self.rank_counts(curve) >= LEAST_RANK_COUNTS]

    def fitted(self, choice: Mapping[Curve, int], times: Floats, largest: int) -> tuple[Floats, Floats]:
        """Rows of all observations by ``choice``, and the coefficients of a fit to fewer than ``largest`` ranks."""
        branched = np.zeros((len(times), 2, len(PARAMETERS)))  # and 0 for curves that have no part in it
        for curve, option in choice.items():
            branched[self.places[curve]] = self.options[curve][option].branched
        known = np.zeros(len(times), dtype=bool)
        known[np.concatenate([self.places[curve] for curve in choice])] = True
        known &= self.ranks < largest
        _, coefficients = settled(branched[known], times[known], self.wanted)
        return design.longer_of(branched, coefficients), coefficients

    def errors(self, curve: Curve, choice: Mapping[Curve, int], times: Floats) -> tuple[Floats, ...]:
        """Relative errors when the curves of ``choice`` are fitted to fewer ranks than the largest n of ``curve``: of
        ``curve`` at that n and at its others, then of each other curve at the ranks that were fitted.
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
        """What options of ``curve`` are compared by: as ``Candidate.error``, and what they do to the other curves."""
        return _weighed([float(part.mean()) for part in self.errors(curve, choice, times)])

    def total(self, choice: Mapping[Curve, int]) -> float:
        """The scores of all contested curves and the errors of all others, of which no n is held out."""
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


def compete(observations: Observed, wanted: Wanted, seed: int = 0) -> Outcome:
    """The algorithm behind every curve of ``observations``, chosen with ``wanted`` as the parameters.

    Every contested op is first fitted alone, then all together, two changing at a time, until nothing gets better. An
    op with fewer than LEAST_RANK_COUNTS rank counts is taken for what its backend is known to run, else for the first
    of the textbook, and everything else is a tie. Raises AnalysisError where no known algorithm is possible.
    """
    field = _field(observations, wanted)
    choice = _choose(field)
    candidates: dict[str, tuple[Candidate, ...]] = {}
    ties: dict[str, tuple[str, ...]] = {}
    notes: list[str] = []
    undecided: dict[int, list[str]] = {}
    contested = field.contested()
    for curve, options in field.options.items():
        op, by_hand = curve
        if by_hand is not None:
            continue
        equals = [option for option in range(len(options)) if option != choice[curve]]
        if curve in contested:
            candidates[op], equals = _ranked(field, curve, choice, observations, seed)
            if max(candidates[op][0].held_out, candidates[op][0].seen) > _UNEXPLAINED:
                best = candidates[op][0]
                notes.append(
                    f"no known algorithm explains {op}: the best of them, {best.algorithm}, is off by "
                    f"{best.held_out:.0%} at the largest number of ranks and by {best.seen:.0%} on fewer"
                )
            if _KNOWN in equals and options[_KNOWN].models[0].family == observations[0].cost_models:
                # Of algorithms that do as well as each other, the one that the library is known to run.
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
    """The choice of ``compete`` alone, without scores and ties."""
    field = _field(observations, wanted)
    return {curve: field.options[curve][option].models[0] for curve, option in _choose(field).items()}


def _undecided(counts: int, ops: Sequence[str]) -> str:
    why = "on one number of ranks ring and tree and all others fit alike"
    if counts > 1:
        why = "two numbers of ranks are needed to fit a cost, and another one to hold it against"
    return (
        f"which algorithm is behind {', '.join(ops)} cannot be told, so that in brackets is taken: {why}. Measure on "
        f"at least {LEAST_RANK_COUNTS} numbers of ranks under like conditions"
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
        told = ", ".join(f"{ranks} ranks on {hosts} hosts" for ranks, hosts in where)
        raise AnalysisError(f"no known algorithm of {curve[0]} is possible on {told}")
    return tuple(found)


def _choose(field: _Field) -> dict[Curve, int]:
    """Which option of each curve is best on its largest n."""
    choice = dict.fromkeys(field.options, _KNOWN)
    contested = field.contested()
    for curve in contested:
        scores = [field.score(curve, {curve: option}, field.times) for option in range(len(field.options[curve]))]
        choice[curve] = int(np.argmin(scores))
    # Two ops at a time: twice the rounds in both is half the α, so that neither could be changed for the better alone.
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
    field: _Field, curve: Curve, choice: Mapping[Curve, int], observations: Observed, seed: int
) -> tuple[tuple[Candidate, ...], list[int]]:
    """All options of ``curve``, the best first, and which of them are as good as the chosen one."""
    options = field.options[curve]
    errors = [field.errors(curve, {**choice, curve: option}, field.times) for option in range(len(options))]
    chosen = errors[choice[curve]]
    enough = min(len(one.launches) for one in observations) >= LAUNCHES_FOR_A_BOOTSTRAP
    draws = design.resampled_times(observations, _RESAMPLES, seed) if enough else None
    best = [field.score(curve, choice, times) for times in draws] if draws is not None else []
    tied: list[int] = []
    for option in range(len(options)):
        if option == choice[curve]:
            continue
        worse = [one - two for one, two in zip(errors[option], chosen, strict=True)]
        behind = _weighed([float(part.mean()) for part in worse])
        # The standard error of ``behind``, from those of its parts.
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
    """The parts of ``_Field.errors`` as one number: a curve counts once, its largest n as much as all of its others."""
    held_out, seen, *others = parts
    return (held_out + seen) / 2 + sum(others)
