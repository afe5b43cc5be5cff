"""Joint fit: one set of parameters c0, α, β (or 1/R) and γ for many curves of several ops and rank counts.

T = c0 + rounds · α + sent · β + added · γ. If all ranks share one host, moved / R may replace sent · β. Over hosts with
several ranks each, hierarchical algorithms have an additional α and β inside a host. Errors are relative and
coefficients non-negative, as in ``curve``. Parameters that the data do not separate are reported as a sum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, Final

import numpy as np

from busbw.errors import AnalysisError
from busbw.ops import OF_TWO_RANKS
from busbw.units import about_size, format_time
from busbw_analysis.data.grouped import grouped
from busbw_analysis.data.series import Series
from busbw_analysis.fitting import design, identify
from busbw_analysis.fitting.checks import refuse_mixed, usable
from busbw_analysis.fitting.curve import LAUNCHES_FOR_A_BOOTSTRAP, interval_note
from busbw_analysis.fitting.design import PARAMETERS, Curve, Floats, Models, Observed, Parameter, Regime, Wanted
from busbw_analysis.fitting.score import Validation
from busbw_analysis.fitting.selection import Candidate, select_algorithms
from busbw_analysis.fitting.sharing import by_cards, link_sharing, through_one_card, unknown_by_card
from busbw_analysis.fitting.validation import OfCurve, by_curve, validations
from busbw_analysis.models.costs import INSIDE_AS_BETWEEN, CostModel
from busbw_analysis.models.select import candidates

_NOTHING_INSIDE: Final = (
    "these data do not depend on α_i and β_i inside a host; add all_reduce with algorithm hierarchical or "
    "all_to_all with two-level, on several hosts with several ranks each"
)

_UNKNOWN_MATTERS: Final = 0.20
"""A time is unknown if an undetermined fact changes it by more than this fraction: whether the ranks of a host share a
card, or the time inside a host.
"""

_RESAMPLES: Final = 400


@dataclass(frozen=True, slots=True)
class Estimate:
    """A parameter and both ends of its 95 % interval, which are None below 5 launches. ``at_bound``: it is 0 because
    negative values are not allowed.
    """

    value: float
    low: float | None
    high: float | None
    at_bound: bool


@dataclass(frozen=True, slots=True)
class NotSeparated(identify.Mixed):
    """Parameters that the data do not separate.

    ``estimate``: the value of their sum; None if nothing is known.
    ``needs``: what to measure.
    """

    estimate: Estimate | None
    needs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solved:
    """The results for given models of all curves; fields as in ``JointFit``."""

    parameters: Mapping[Parameter, Estimate]
    not_separated: tuple[NotSeparated, ...]
    coefficients: tuple[float, ...]
    draws: tuple[tuple[float, ...], ...]
    interval_note: str
    unknown: tuple[tuple[float, ...], ...]

    @property
    def solved(self) -> dict[str, Any]:
        """These fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(_Solved)}


@dataclass(frozen=True, slots=True, kw_only=True)
class JointFit(_Solved):
    """The result of a joint fit.

    ``basis``: what it is, in words.
    ``parameters``: the parameters that the data separate; ``not_separated`` has the others.
    ``coefficients``: the fitted values in the order of PARAMETERS, in seconds or seconds per byte.
    ``draws``: the coefficients of every resample of launches; empty below 5 launches.
    ``interval_note``: the origin of the intervals, or why there are none.
    ``unknown``: directions in which coefficients can change without effect on any observation.
    ``algorithms``: by op, the algorithm that explains the library best.
    ``ties``, ``candidates``: by op, other algorithms that fit equally well, and the errors of all.
    ``curves``: the CostModel of every curve, including explicit algorithms.
    ``wanted``: the fitted parameters.
    ``validations``: held-out errors of all observations together.
    ``of_curves``: held-out errors of each op with each algorithm.
    ``cards``: the coefficients of a fit with one card per rank and of a fit with one card per host, if the data do not
    decide between them; else empty.
    """

    basis: ClassVar[str] = "a joint fit over numbers of ranks"

    backend: str
    cost_models: str
    algorithms: Mapping[str, str]
    ties: Mapping[str, tuple[str, ...]]
    candidates: Mapping[str, tuple[Candidate, ...]]
    curves: Models
    wanted: tuple[Parameter, ...]
    validations: tuple[Validation, ...]
    of_curves: Mapping[Curve, OfCurve]
    notes: tuple[str, ...]
    observations: tuple[design.Observation, ...]
    cards: tuple[tuple[float, ...], ...]

    @property
    def origin(self) -> str:
        """The parameters, or their sums if the data do not separate them, with their values; and the fitted data."""
        known = [identify.written(name, estimate.value) for name, estimate in self.parameters.items()]
        known += [
            f"{mixed.sum} = {identify.in_units(mixed.parameters[0], mixed.estimate.value)}"
            for mixed in self.not_separated
            if mixed.estimate is not None
        ]
        words = ", ".join(known) or "no parameter that the data separate"
        if self.coefficients[PARAMETERS.index("shared")] > 0:
            words += " (instead of S β: the bytes that all ranks move, over R)"
        if self.coefficients[PARAMETERS.index("card")] > 0:
            words += " (instead of S β: the bytes that all ranks of a host send to other hosts, over C)"
        ops = sorted({one.op for one in self.observations})
        ranks = sorted({one.ranks for one in self.observations})
        return f"{words}, from a joint fit to {', '.join(ops)} on {', '.join(map(str, ranks))} ranks"

    def includes(self, series: Series) -> bool:
        """Whether all points of ``series`` with a size are among the fitted data, with the same times."""
        key, seen = series.key, {(one.op, one.algorithm, *one.where, one.seconds) for one in self.observations}
        points = ((point.size_bytes, point.time_ns / 1e9) for point in series.points if point.size_bytes)
        return all((key.op, key.algorithm, *series.shape, *point) in seen for point in points)

    def seconds(self, model: CostModel, ranks: int, hosts: int, size_bytes: float) -> float:
        """The time of one call with ``model``.

        Raises AnalysisError if it depends on parameters that the data do not separate, on whether the ranks of a host
        share a card and the data do not decide that, or on the bytes through one card and ``model`` does not give them.
        """
        if not design.known_in(model, self.wanted, ranks, hosts, size_bytes):
            raise AnalysisError(
                f"{unknown_by_card(model)}, and in these data the ranks share one; choose a ring or a two-level "
                "algorithm"
            )
        branched = np.asarray(design.branches(model, ranks, hosts, size_bytes))
        row, inside = branched[0], branched[-1]
        if not identify.determined_by(row, self.unknown):
            inner = identify.INNER
            nothing = set(identify.directions_of(inner)) <= set(self.unknown) and any(row[identify.columns_of(inner)])
            reasons = [_NOTHING_INSIDE] if nothing else [f"{one.reason}: {one.needs}" for one in self.not_separated]
            raise AnalysisError(f"{_undetermined(model, ranks)}: {'; '.join(reasons)}")
        if self.cards and model.of_hosts_known(ranks, hosts, size_bytes):
            own, one_card = (float((branched @ np.asarray(coefficients)).max()) for coefficients in self.cards)
            if abs(one_card - own) > _UNKNOWN_MATTERS * max(one_card, own):
                raise AnalysisError(
                    f"{_undetermined(model, ranks)}: it is undecided whether the ranks of a host share a card, and "
                    f"{about_size(round(size_bytes))} would take {format_time(own * 1e9)} with a card per rank or "
                    f"{format_time(one_card * 1e9)} with one per host; add all_reduce with algorithms ring and "
                    f"multi-ring, on several hosts with {ranks // hosts} ranks each"
                )
        if not identify.determined_by(inside, self.unknown):
            self._refuse_more_inside(model, ranks, hosts, size_bytes)
        return float((branched @ np.asarray(self.coefficients)).max())

    def _refuse_more_inside(self, model: CostModel, ranks: int, hosts: int, size_bytes: float) -> None:
        """Raise AnalysisError if the unknown time inside a host may exceed the time between hosts. It is only known
        not to do so with the measured number of ranks per host.
        """
        own = [curve for curve, one in self.curves.items() if (one.op, one.algorithm) == (model.op, model.algorithm)]
        seen = max((one.ranks / one.hosts for one in self.observations if one.curve in own), default=1.0)
        row = np.asarray(design.amounts(model, ranks, hosts, size_bytes))
        least = float(row @ np.asarray(self.coefficients))
        row[PARAMETERS.index("beta")] *= max(1.0, ranks / hosts / seen)
        most = float(row @ np.asarray(self.coefficients))
        if most - least > _UNKNOWN_MATTERS * most:
            raise AnalysisError(
                f"{_undetermined(model, ranks)}: {about_size(round(size_bytes))} would take "
                f"{format_time(least * 1e9)} if limited between hosts, and up to {format_time(most * 1e9)} if limited "
                f"inside a host; {_NOTHING_INSIDE}"
            )

    def interval(self, model: CostModel, ranks: int, hosts: int, size_bytes: float) -> tuple[float, float] | None:
        """Both ends of the 95 % interval of ``seconds``, from resampled launches; None without them."""
        if not self.draws:
            return None
        times = (np.asarray(self.draws) @ np.asarray(design.branches(model, ranks, hosts, size_bytes)).T).max(axis=1)
        low, high = np.quantile(times, (0.025, 0.975)).tolist()
        return low, high

    def explained_by(self, model: CostModel) -> "JointFit":
        """The same observations refitted with ``model`` as the library's algorithm of its op. Validations and selection
        stay those of this fit.
        """
        models = {**self.curves, (model.op, None): model}
        found = _solved(self.observations, models, self.wanted)
        before = _about(self.observations, self.curves, self.wanted)
        others = [note for note in self.notes if note not in before]
        return replace(
            self,
            **found.solved,
            curves=models,
            notes=(*others, *_about(self.observations, models, self.wanted)),
            cards=by_cards(self.observations, models) if self.cards else (),
        )


def _undetermined(model: CostModel, ranks: int) -> str:
    return f"these data do not determine the time of {model.op} by {model.algorithm} on {ranks} ranks"


@dataclass(frozen=True, slots=True)
class OneRegime:
    """The joint fit of one regime.

    ``joint``: the fit; None if there is none, and ``refused`` is the reason.
    ``left_out``: curves that the fit could not use, and why.
    """

    regime: Regime
    joint: JointFit | None
    refused: str | None
    left_out: tuple[str, ...]


def regimes(observations: Observed) -> dict[Regime, list[design.Observation]]:
    """``observations`` grouped by regime; different regimes need different parameters."""
    return grouped(observations, lambda one: one.regime)


def fit_regimes(observations: Observed) -> tuple[OneRegime, ...]:
    """A joint fit for each regime of ``observations``, with all usable curves; never raises."""
    found: list[OneRegime] = []
    for regime, members in regimes(observations).items():
        kept, left_out = usable(members)
        if not kept:
            alone = len(left_out) == 1
            why = left_out[0] if alone else "no curve is usable; each has its own reason"
            found.append(OneRegime(regime, None, why, () if alone else left_out))
            continue
        try:
            found.append(OneRegime(regime, fit_jointly(kept), None, left_out))
        except AnalysisError as error:
            found.append(OneRegime(regime, None, str(error), left_out))
    return tuple(found)


def fit_jointly(observations: Observed) -> JointFit:
    """One set of parameters for all ``observations``, which are ``usable`` and of one regime and one backend.

    The algorithms of the library's ops come from ``selection.select_algorithms``, the model of shared links from
    ``sharing.link_sharing``. Raises AnalysisError, with what to measure, for data that cannot be fitted.
    """
    return _fitted(tuple(observations))


@lru_cache(maxsize=16)
def _fitted(observations: tuple[design.Observation, ...]) -> JointFit:
    """Cached because a fit takes seconds, and the table and the plot of the same runs need the same fit."""
    refuse_mixed(observations)
    carried = link_sharing(observations)
    wanted, notes = carried.wanted, list(carried.notes)
    if "card" in wanted:
        observations, left_out = through_one_card(observations)
        notes += left_out
    outcome = select_algorithms(observations, wanted)
    found = _solved(observations, outcome.models, wanted)
    notes += [*outcome.notes, *design.unknown_choices(observations), *_about(observations, outcome.models, wanted)]
    return JointFit(
        backend=observations[0].backend,
        cost_models=observations[0].cost_models,
        **found.solved,
        algorithms={op: model.algorithm for (op, name), model in outcome.models.items() if name is None},
        ties=outcome.ties,
        candidates=outcome.candidates,
        curves=outcome.models,
        wanted=wanted,
        validations=validations(observations, outcome.models, wanted),
        of_curves=by_curve(observations, outcome.models, wanted),
        notes=tuple(notes),
        observations=observations,
        cards=() if carried.cards_known or observations[0].hosts == 1 else by_cards(observations, outcome.models),
    )


def _solved(observations: Observed, models: Models, wanted: Wanted) -> _Solved:
    times = design.times_of(observations)
    rows, _ = identify.settled(design.branches_of(observations, models), times, wanted)
    separation = identify.separated(rows, times, wanted)
    kept = identify.columns_of(separation.kept)
    coefficients = design.solve(rows, times, kept)
    draws, interval_note = _draws(observations, rows, kept)
    remedies = _remedies(observations, models, coefficients)
    apart: list[NotSeparated] = []
    for one in separation.mixed:
        estimate = _estimate(one.parameters[0], coefficients, draws) if one.weights else None
        needs = identify.needs(rows, times, wanted, one, remedies)
        apart.append(NotSeparated(one.parameters, one.weights, estimate, needs))
    return _Solved(
        parameters={name: _estimate(name, coefficients, draws) for name in separation.separable},
        not_separated=tuple(apart),
        coefficients=tuple(coefficients.tolist()),
        draws=tuple(map(tuple, draws.tolist())),
        interval_note=interval_note,
        unknown=separation.unknown,
    )


def _about(observations: Observed, models: Models, wanted: Wanted) -> tuple[str, ...]:
    """Notes on the algorithms assumed for the curves."""
    tables = dict.fromkeys(model.by_table for model in models.values() if model.by_table is not None)
    if "card" in wanted:
        return tuple(tables)
    mixed = dict.fromkeys(
        f"{one.op} by {models[one.curve].algorithm}"
        for one in observations
        if not models[one.curve].of_hosts_known(*one.where)
    )
    return (*tables, *([f"{', '.join(mixed)}: {INSIDE_AS_BETWEEN}"] if mixed else []))


def _estimate(name: Parameter, coefficients: Floats, draws: Floats) -> Estimate:
    column = PARAMETERS.index(name)
    value = float(coefficients[column])
    low, high = np.quantile(draws[:, column], (0.025, 0.975)).tolist() if len(draws) else (None, None)
    return Estimate(value, low, high, at_bound=value == 0)


def _draws(observations: Observed, rows: Floats, kept: Sequence[int]) -> tuple[Floats, str]:
    """Coefficients of every resample of launches, and the note on the intervals."""
    fewest = min(len(one.launches) for one in observations)
    if fewest < LAUNCHES_FOR_A_BOOTSTRAP:
        return np.empty((0, len(PARAMETERS))), interval_note(fewest)
    times = design.resampled_times(observations, _RESAMPLES)
    return np.asarray([design.solve(rows, drawn, kept) for drawn in times]), interval_note(fewest)


def _remedies(observations: Observed, models: Models, coefficients: Floats) -> tuple[identify.Remedy, ...]:
    """Possible additional measurements: other ops on the same ranks, and the same ops on other ranks."""
    first = observations[0]
    sizes = sorted({one.size_bytes for one in observations if one.size_bytes})
    where = sorted({(one.ranks, one.hosts) for one in observations})
    largest, hosts = where[-1]
    more = 2 * largest if largest * 2 not in {ranks for ranks, _ in where} else 3 * largest
    there = [(f"another number of ranks, such as {more}", (more, hosts * more // largest if hosts > 1 else 1))]
    several = first.regime.placement == "several ranks on several hosts"

    def rows(model: CostModel, places: Sequence[tuple[int, int]]) -> list[tuple[float, ...]]:
        return [design.amounts(model, *place, size) for place in places for size in sizes]

    found = []
    if several and any(model.two_levels for model in models.values()):
        each = largest // hosts
        there = [
            (f"another number of hosts, such as {2 * hosts} with {each} ranks each", (2 * largest, 2 * hosts)),
            (f"another number of ranks per host, such as {2 * each} on {hosts} hosts", (2 * largest, hosts)),
        ]
        if ("all_reduce", "ring") not in models:
            (ring,) = candidates("all_reduce", first.cost_models, "ring")
            found.append(("all_reduce with algorithm ring", rows(ring, where)))
    for op in ("all_gather", "all_reduce", "ping_pong"):
        # Two ranks on two hosts are a different regime from several ranks on each.
        if op not in {measured for measured, _ in models} and not (op == "ping_pong" and several):
            model = next(iter(candidates(op, first.cost_models)))
            places = [(2, min(hosts, 2))] if op == "ping_pong" else where
            found.append((op, rows(model, places)))
    again_there = [(model, size) for model in models.values() if model.op not in OF_TWO_RANKS for size in sizes]
    for words, shape in there:
        again = [design.amounts(model, *shape, size) for model, size in again_there if model.possible(*shape, size)]
        found.append((words, again))
    usual = np.median(design.times_of(observations))
    # If only a barrier was timed, there is no size for another measurement.
    made = [(words, np.asarray(extra), np.asarray(extra) @ coefficients) for words, extra in found if extra]
    return tuple(identify.Remedy(words, extra, np.where(times > 0, times, usual)) for words, extra, times in made)
