"""One set of parameters for many curves: c0, α, β (or 1/R) and γ over several ops and rank counts, and how far they
hold.

T = c0 + rounds · α + sent · β + added · γ, or with moved / R in place of sent · β where all ranks share one host; over
hosts with several ranks each, with an α and a β inside a host for what an algorithm that knows hosts does there.
Relative errors and non-negative coefficients, as in ``fit``; what the data cannot separate is not told apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from busbw.errors import AnalysisError
from busbw.ops import OF_TWO_RANKS
from busbw.units import about_size, format_time
from busbw_analysis.data.grouped import grouped
from busbw_analysis.fitting import design, identify
from busbw_analysis.fitting.checks import refuse_mixed, usable
from busbw_analysis.fitting.curve import LAUNCHES_FOR_A_BOOTSTRAP, interval_note
from busbw_analysis.fitting.design import PARAMETERS, Curve, Floats, Models, Observed, Parameter, Regime, Wanted
from busbw_analysis.fitting.score import Validation
from busbw_analysis.fitting.selection import Candidate, compete
from busbw_analysis.fitting.sharing import by_cards, link_sharing, through_one_card, unknown_by_card
from busbw_analysis.fitting.validation import OfCurve, by_curve, validations
from busbw_analysis.models.costs import INSIDE_AS_BETWEEN, CostModel
from busbw_analysis.models.select import candidates

_NOTHING_INSIDE: Final = (
    "nothing in these data has a part in α_i and β_i, those inside a host: add all_reduce by hierarchical or "
    "all_to_all by two-level, over send/recv on several hosts with several ranks each"
)

_UNKNOWN_MATTERS: Final = 0.20
"""A time is not known that what is not known would change by more than this share: one card for a host, or what is
inside of it.
"""

_RESAMPLES: Final = 400


@dataclass(frozen=True, slots=True)
class Estimate:
    """A parameter and both ends of its 95 % interval, which are None below 5 launches. ``at_bound``: the fit would have
    liked it to be negative.
    """

    value: float
    low: float | None
    high: float | None
    at_bound: bool


@dataclass(frozen=True, slots=True)
class NotSeparated:
    """Parameters that the data do not tell apart. ``weights`` says what of them is known, their weighted sum: alpha 1
    and per_call 0.5 for α + 0.5 c0 (``sum``); ``estimate`` is its value, None where nothing is known. ``needs`` says
    what to measure.
    """

    parameters: tuple[Parameter, ...]
    weights: tuple[float, ...]
    sum: str
    estimate: Estimate | None
    reason: str
    needs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solved:
    """What follows from observations once it is known what is behind each curve; as of ``JointFit``."""

    parameters: Mapping[Parameter, Estimate]
    not_separated: tuple[NotSeparated, ...]
    coefficients: tuple[float, ...]
    draws: tuple[tuple[float, ...], ...]
    interval_note: str
    unknown: tuple[tuple[float, ...], ...]

    @property
    def solved(self) -> dict[str, Any]:
        """All of that by name."""
        return {field.name: getattr(self, field.name) for field in fields(_Solved)}


@dataclass(frozen=True, slots=True, kw_only=True)
class JointFit(_Solved):
    """The outcome. ``parameters`` has only those that the data separate; the others are in ``not_separated``.

    ``algorithms`` says which algorithm explains each op of the library best, ``models`` the same as a CostModel,
    ``ties`` which others explain it as well, ``candidates`` how all of them did; curves over send/recv have no choice
    and are in ``curves`` alone, which has the CostModel of all. ``wanted`` are the parameters that were looked for.
    ``validations`` are of all observations together, ``of_curves`` of each op by each algorithm.
    ``draws`` are the coefficients of every resample of launches, in the order of PARAMETERS, for the interval of
    whatever is computed from them, resampled by ``seed``; empty below 5 launches. ``unknown`` are the directions in
    which coefficients may be changed and no observation would notice. ``cards`` are the coefficients of a fit with a
    card for each rank and of one with one card for a host, where these data do not tell them apart; else empty.
    """

    regime: Regime
    backend: str
    cost_models: str
    algorithms: Mapping[str, str]
    ties: Mapping[str, tuple[str, ...]]
    candidates: Mapping[str, tuple[Candidate, ...]]
    models: Mapping[str, CostModel]
    curves: Models
    wanted: tuple[Parameter, ...]
    validations: tuple[Validation, ...]
    of_curves: Mapping[Curve, OfCurve]
    notes: tuple[str, ...]
    observations: tuple[design.Observation, ...]
    cards: tuple[tuple[float, ...], ...]
    seed: int

    def seconds(self, model: CostModel, ranks: int, hosts: int, size_bytes: float) -> float:
        """What one call should take by ``model``. Raises AnalysisError when that depends on parameters that the data
        cannot separate, on whether the ranks of a host share a card where they do not tell that, or on what goes
        through one card and is not known of ``model``.
        """
        if not design.known_in(model, self.wanted, ranks, hosts, size_bytes):
            raise AnalysisError(
                f"{unknown_by_card(model)}, and these data say that they share one; ask for a ring or for two levels"
            )
        branched = np.asarray(design.branches(model, ranks, hosts, size_bytes))
        row, inside = branched[0], branched[-1]
        if not identify.determined_by(row, self.unknown):
            inner = identify.INNER
            nothing = set(identify.directions_of(inner)) <= set(self.unknown) and any(row[identify.columns_of(inner)])
            said = [_NOTHING_INSIDE] if nothing else [f"{one.reason}: {one.needs}" for one in self.not_separated]
            reasons = "; ".join(said)
            message = f"{model.op} by {model.algorithm} on {ranks} ranks cannot be told from these data: {reasons}"
            raise AnalysisError(message)
        if self.cards and model.of_hosts_known(ranks, hosts, size_bytes):
            own, one_card = (float((branched @ np.asarray(coefficients)).max()) for coefficients in self.cards)
            if abs(one_card - own) > _UNKNOWN_MATTERS * max(one_card, own):
                raise AnalysisError(
                    f"{model.op} by {model.algorithm} on {ranks} ranks cannot be told from these data, which do not "
                    f"say whether the ranks of a host share a card: {about_size(round(size_bytes))} would take "
                    f"{format_time(own * 1e9)} with a card for each and {format_time(one_card * 1e9)} with one for all"
                    "; add all_reduce by a ring and by multi-ring, over send/recv on several hosts with "
                    f"{ranks // hosts} ranks each"
                )
        if not identify.determined_by(inside, self.unknown):
            self._refuse_more_inside(model, ranks, hosts, size_bytes)
        return float((branched @ np.asarray(self.coefficients)).max())

    def _refuse_more_inside(self, model: CostModel, ranks: int, hosts: int, size_bytes: float) -> None:
        """Raise AnalysisError where what is under way inside a host may take longer than between hosts, and nothing is
        known of it but that it did not with as many ranks on a host as were measured.
        """
        own = [curve for curve, one in self.curves.items() if (one.op, one.algorithm) == (model.op, model.algorithm)]
        seen = max((one.ranks / one.hosts for one in self.observations if one.curve in own), default=1.0)
        row = np.asarray(design.amounts(model, ranks, hosts, size_bytes))
        least = float(row @ np.asarray(self.coefficients))
        row[PARAMETERS.index("beta")] *= max(1.0, ranks / hosts / seen)
        most = float(row @ np.asarray(self.coefficients))
        if most - least > _UNKNOWN_MATTERS * most:
            raise AnalysisError(
                f"{model.op} by {model.algorithm} on {ranks} ranks cannot be told from these data: "
                f"{about_size(round(size_bytes))} would take {format_time(least * 1e9)} if it waits for the cards, and "
                f"up to {format_time(most * 1e9)} if for what is inside a host; {_NOTHING_INSIDE}"
            )

    def interval(self, model: CostModel, ranks: int, hosts: int, size_bytes: float) -> tuple[float, float] | None:
        """Both ends of the 95 % interval of ``seconds``, from the resamples of launches; None without them."""
        if not self.draws:
            return None
        times = (np.asarray(self.draws) @ np.asarray(design.branches(model, ranks, hosts, size_bytes)).T).max(axis=1)
        low, high = np.quantile(times, (0.025, 0.975)).tolist()
        return low, high

    def explained_by(self, model: CostModel) -> "JointFit":
        """The same observations with ``model`` behind the library's own op of that name, and so with other parameters.
        What was validated and chosen stays that of this one.
        """
        models = {**self.curves, (model.op, None): model}
        found = _solved(self.observations, models, self.wanted, self.seed)
        before = _about(self.observations, self.curves, self.wanted)
        others = [said for said in self.notes if said not in before]
        return replace(
            self,
            **found.solved,
            curves=models,
            notes=(*others, *_about(self.observations, models, self.wanted)),
            cards=by_cards(self.observations, models) if self.cards else (),
        )


@dataclass(frozen=True, slots=True)
class OneRegime:
    """What became of the observations of one regime: ``joint``, or in ``refused`` why there is none. ``left_out`` are
    curves that could not take part, and why.
    """

    regime: Regime
    joint: JointFit | None
    refused: str | None
    left_out: tuple[str, ...]


def regimes(observations: Observed) -> dict[Regime, list[design.Observation]]:
    """``observations`` apart by what no common parameters can be expected of."""
    return grouped(observations, lambda one: one.regime)


def fit_regimes(observations: Observed, *, seed: int = 0) -> tuple[OneRegime, ...]:
    """A joint fit for each regime of ``observations``, of all curves that can take part in it; never raises."""
    found: list[OneRegime] = []
    for regime, members in regimes(observations).items():
        kept, left_out = usable(members)
        if not kept:
            alone = len(left_out) == 1
            why = left_out[0] if alone else "no curve can take part in it, each for its own reason"
            found.append(OneRegime(regime, None, why, () if alone else left_out))
            continue
        try:
            found.append(OneRegime(regime, fit_jointly(kept, seed=seed), None, left_out))
        except AnalysisError as error:
            found.append(OneRegime(regime, None, str(error), left_out))
    return tuple(found)


def fit_jointly(observations: Observed, *, seed: int = 0) -> JointFit:
    """One set of parameters for all of ``observations``, which are ``usable`` and of one regime and one backend.

    Algorithms of the library's ops are chosen by ``selection.compete``; where all ranks share a host, it is tried
    whether the bytes of each rank or those of all together explain the times better. ``seed`` seeds the resampling of
    launches. Raises AnalysisError for data that cannot carry a fit, with what is needed.
    """
    return _fitted(tuple(observations), seed)


@lru_cache(maxsize=16)
def _fitted(observations: tuple[design.Observation, ...], seed: int) -> JointFit:
    """A fit takes seconds, and a table and a drawing of the same runs ask for the same ones."""
    refuse_mixed(observations)
    carried = link_sharing(observations)
    wanted, notes = carried.wanted, list(carried.notes)
    if "card" in wanted:
        observations, left_out = through_one_card(observations)
        notes += left_out
    outcome = compete(observations, wanted, seed)
    found = _solved(observations, outcome.models, wanted, seed)
    notes += [*outcome.notes, *design.unknown_choices(observations), *_about(observations, outcome.models, wanted)]
    chosen = {op: model for (op, name), model in outcome.models.items() if name is None}
    return JointFit(
        regime=observations[0].regime,
        backend=observations[0].backend,
        cost_models=observations[0].cost_models,
        **found.solved,
        algorithms={op: model.algorithm for op, model in chosen.items()},
        ties=outcome.ties,
        candidates=outcome.candidates,
        models=chosen,
        curves=outcome.models,
        wanted=wanted,
        validations=validations(observations, outcome.models, wanted),
        of_curves=by_curve(observations, outcome.models, wanted),
        notes=tuple(notes),
        observations=observations,
        cards=() if carried.cards_told or observations[0].hosts == 1 else by_cards(observations, outcome.models),
        seed=seed,
    )


def _solved(observations: Observed, models: Models, wanted: Wanted, seed: int) -> _Solved:
    times = design.times_of(observations)
    rows, _ = identify.settled(design.branches_of(observations, models), times, wanted)
    separation = identify.separated(rows, times, wanted)
    kept = identify.columns_of(separation.kept)
    coefficients = design.solve(rows, times, kept)
    draws, interval_note = _draws(observations, rows, kept, seed)
    remedies = _remedies(observations, models, coefficients)
    apart: list[NotSeparated] = []
    for one in separation.mixed:
        estimate = _estimate(one.parameters[0], coefficients, draws) if one.weights else None
        needs = identify.needs(rows, times, wanted, one, remedies)
        apart.append(NotSeparated(one.parameters, one.weights, one.sum, estimate, one.reason, needs))
    return _Solved(
        parameters={name: _estimate(name, coefficients, draws) for name in separation.separable},
        not_separated=tuple(apart),
        coefficients=tuple(coefficients.tolist()),
        draws=tuple(map(tuple, draws.tolist())),
        interval_note=interval_note,
        unknown=separation.unknown,
    )


def _about(observations: Observed, models: Models, wanted: Wanted) -> tuple[str, ...]:
    """What is to be said of the algorithms that are taken to be behind the curves."""
    tables = dict.fromkeys(model.by_table for model in models.values() if model.by_table is not None)
    if "card" in wanted:
        return tuple(tables)
    mixed = dict.fromkeys(
        f"{one.op} by {models[one.curve].algorithm}"
        for one in observations
        if not models[one.curve].of_hosts_known(*one.where)
    )
    return (*tables, *([f"of {', '.join(mixed)} {INSIDE_AS_BETWEEN}"] if mixed else []))


def _estimate(name: Parameter, coefficients: Floats, draws: Floats) -> Estimate:
    column = PARAMETERS.index(name)
    value = float(coefficients[column])
    low, high = np.quantile(draws[:, column], (0.025, 0.975)).tolist() if len(draws) else (None, None)
    return Estimate(value, low, high, at_bound=value == 0)


def _draws(observations: Observed, rows: Floats, kept: Sequence[int], seed: int) -> tuple[Floats, str]:
    """Coefficients of every resample of launches, and what is to be said of the intervals."""
    fewest = min(len(one.launches) for one in observations)
    if fewest < LAUNCHES_FOR_A_BOOTSTRAP:
        return np.empty((0, len(PARAMETERS))), interval_note(fewest)
    times = design.resampled_times(observations, _RESAMPLES, seed)
    return np.asarray([design.solve(rows, drawn, kept) for drawn in times]), interval_note(fewest)


def _remedies(observations: Observed, models: Models, coefficients: Floats) -> tuple[identify.Remedy, ...]:
    """What could be measured besides: other ops on the same ranks, and the same ops on other ranks."""
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
            (f"another number of hosts, such as {2 * hosts} with {each} ranks on each", (2 * largest, 2 * hosts)),
            (f"another number of ranks on each host, such as {2 * each} on {hosts} hosts", (2 * largest, hosts)),
        ]
        if ("all_reduce", "ring") not in models:
            (ring,) = candidates("all_reduce", first.cost_models, "ring")
            found.append(("all_reduce by a ring over send/recv", rows(ring, where)))
    for op in ("all_gather", "all_reduce", "ping_pong"):
        # Two ranks of two hosts are another regime than several ranks on each.
        if op not in {measured for measured, _ in models} and not (op == "ping_pong" and several):
            model = next(iter(candidates(op, first.cost_models)))
            places = [(2, min(hosts, 2))] if op == "ping_pong" else where
            found.append((op, rows(model, places)))
    again_there = [(model, size) for model in models.values() if model.op not in OF_TWO_RANKS for size in sizes]
    for words, shape in there:
        again = [design.amounts(model, *shape, size) for model, size in again_there if model.possible(*shape, size)]
        found.append((words, again))
    usual = np.median(design.times_of(observations))
    # Where nothing but a barrier was timed there is no size to measure anything else at.
    made = [(words, np.asarray(extra), np.asarray(extra) @ coefficients) for words, extra in found if extra]
    return tuple(identify.Remedy(words, extra, np.where(times > 0, times, usual)) for words, extra, times in made)
