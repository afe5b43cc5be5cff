"""The time of a call with one algorithm: its counts times parameters from messages or from a joint fit; and for
predictions, the held-out error.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from busbw.errors import AnalysisError
from busbw.units import about_size, format_size
from busbw_analysis.data.series import Series
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.fitting.design import candidates_of
from busbw_analysis.fitting.joint import JointFit
from busbw_analysis.fitting.score import VALID_RANKS, Validation, validation
from busbw_analysis.models.choices import Calls
from busbw_analysis.models.costs import CostModel, Parameters
from busbw_analysis.models.select import candidates

BY_CURVE = "the fit of the curve of these ranks"
BY_MESSAGES, JOINTLY = Parameters.basis, JointFit.basis
"""The possible bases of a prediction."""


@dataclass(frozen=True, slots=True)
class Value:
    """An estimate with both ends of its 95 % interval, which are None if there is none."""

    value: float
    low: float | None = None
    high: float | None = None


ROUNDED: Final = 1.01
"""Sizes within this factor are equal: sizes are rounded to whole elements per rank (2 MiB on 6 ranks: 2,097,144 B)."""

Shape = tuple[int, int]
"""Ranks and hosts."""

_NEAREST: Final = 3
"""Number of held-out sizes near a requested size that must be predicted well."""


@dataclass(frozen=True, slots=True)
class ValidationRange:
    """The range of questions that held-out measurements validate.

    ``ranks``, ``hosts``, ``on_a_host``: least and most allowed. The least is the fewest measured; the most is the most
    measured times the factor by which the held-out test itself extrapolated.
    ``errors``: (bytes, relative error) of every held-out measurement.
    """

    ranks: tuple[float, float]
    hosts: tuple[float, float]
    on_a_host: tuple[float, float]
    errors: tuple[tuple[int, float], ...]

    @classmethod
    def of(
        cls, held_out: Sequence[Shape], seen: Sequence[Shape], errors: Iterable[tuple[int, float]]
    ) -> "ValidationRange":
        """The range for ``held_out`` shapes that were predicted from the ``seen`` shapes with these errors."""

        def reach(amount: Callable[[Shape], int]) -> tuple[float, float]:
            most, before = max(map(amount, held_out)), max(map(amount, seen))
            return min(map(amount, [*held_out, *seen])), most * max(most / before, 1)

        return cls(reach(lambda one: one[0]), reach(lambda one: one[1]), reach(_on_a_host), tuple(errors))

    def error_near(self, size_bytes: int) -> float:
        """The median error of the nearest sizes: the rate may be wrong although the time of a round is right."""
        nearest = sorted(self.errors, key=lambda one: abs(math.log(max(one[0], 1) / max(size_bytes, 1))))
        return median(error for _, error in nearest[:_NEAREST])

    def beyond(self, ranks: int, hosts: int, size_bytes: int) -> tuple[str, ...]:
        """The respects in which a question lies outside the range, in words."""
        each = _on_a_host((ranks, hosts))
        rows = [(ranks, self.ranks, f"{ranks} ranks"), (hosts, self.hosts, f"{hosts} hosts")]
        if hosts > 1:
            rows.append((each, self.on_a_host, "one rank on each host" if each == 1 else f"{each} ranks on a host"))
        outside = [words for amount, (least, most), words in rows if not least <= amount <= most]
        least, most = (end(size for size, _ in self.errors) for end in (min, max))
        if size_bytes > most * ROUNDED:
            outside.append(f"sizes beyond {format_size(most)}")
        elif size_bytes < least:
            outside.append(f"sizes below {format_size(least)}")
        return tuple(outside)


_Scored = tuple[Validation, ValidationRange | None]


def _on_a_host(shape: Shape) -> int:
    return -(-shape[0] // shape[1])


@dataclass(frozen=True, slots=True)
class Costed:
    """The cost model of an algorithm, and the parameters, from messages or from a joint fit, that give its time for any
    number of ranks and hosts and any size.
    """

    cost: CostModel
    parameters: Parameters | JointFit

    def at(self, ranks: int, hosts: int, size_bytes: float) -> Value:
        """The time of one call in seconds. Raises AnalysisError if the parameters do not determine it."""
        where = (self.cost, ranks, hosts, size_bytes)
        value, ends = self.parameters.seconds(*where), self.parameters.interval(*where)
        # If resamples choose another branch, the time from all launches may lie outside their interval.
        return Value(value) if ends is None else Value(value, min(ends[0], value), max(ends[1], value))

    def seconds_if_known(self, ranks: int, hosts: int, size_bytes: float) -> float | None:
        """The time in seconds; None if the parameters do not determine it."""
        try:
            return self.parameters.seconds(self.cost, ranks, hosts, size_bytes)
        except AnalysisError:
            return None


def by_messages(series: Series, parameters: Parameters, calls: Calls | None) -> Costed | Unavailable:
    """The algorithm behind ``series`` with the parameters of messages; ``calls`` as in ``candidates``."""
    key = series.key
    cost = candidates(key.op, key.cost_models, key.algorithm, calls)[0]
    if cost.inner_sent(*series.shape, 1) > 0:
        return Unavailable(
            "one-level",
            "messages between hosts give no α and β within a host, which a two-level algorithm needs; busbw fit finds "
            "both from runs with several numbers of hosts and of ranks per host",
        )
    return Costed(cost, parameters)


def by_joint_fit(series: Series, joint: JointFit) -> Costed | Unavailable:
    """The algorithm behind ``series``, which ``joint`` includes, with its parameters."""
    costed = Costed(joint.curves[series.key.op, series.key.algorithm], joint)
    try:
        costed.at(*series.shape, series.points[-1].size_bytes)
    except AnalysisError as error:
        return Unavailable(error.code, str(error))
    return costed


@dataclass(frozen=True, slots=True)
class ScalingModel(Costed):
    """The time of one call with one algorithm, and how well it is known.

    ``held_out``: its error on held-out measurements of this op with this algorithm.
    ``tested``: the range they validate; None if nothing was held out.
    ``chosen``: whether this candidate is used for predictions.
    ``tied``: whether the data cannot distinguish it from the chosen one.
    ``notes``: assumptions and undetermined parameters, and the table by which a library chooses.
    """

    held_out: Validation
    tested: ValidationRange | None
    chosen: bool = True
    tied: bool = False
    notes: tuple[str, ...] = ()

    def held_out_for(self, ranks: int, hosts: int, size_bytes: int) -> Validation:
        """The held-out result as it applies to a question, which may lie outside the tested range."""
        if self.tested is None:
            return self.held_out
        near = self.tested.error_near(size_bytes)
        found = self.held_out
        if found.passed and near > VALID_RANKS:
            where = f" the sizes near {about_size(size_bytes)} off by {near:.1%},"
            found = replace(found, held_out=found.held_out + where, passed=False)
        return found.asked_for(*self.tested.beyond(ranks, hosts, size_bytes))


def model_for_question(
    models: Sequence[ScalingModel], ranks: int, hosts: int, size_bytes: int
) -> tuple[ScalingModel, str | None]:
    """The model for this question: the chosen one, or if its algorithm does not exist here, the first one tied with it
    and a note. Raises AnalysisError if there is none, or if its parameters do not determine the time.
    """
    chosen = next(model for model in models if model.chosen)
    where = f"does not exist for {ranks} ranks on {hosts} host(s)"
    if chosen.cost.possible(ranks, hosts, size_bytes):
        chosen.at(ranks, hosts, size_bytes)
        return chosen, None
    try:
        chosen.cost.at(ranks, hosts, size_bytes)
    except AnalysisError as unknown:  # the table names an algorithm without a known cost
        where = f"is unknown there ({unknown})"
    for other in models:
        possible = other.tied and other.cost.possible(ranks, hosts, size_bytes)
        if possible and other.seconds_if_known(ranks, hosts, size_bytes) is not None:
            name = other.cost.algorithm
            note = f"algorithm: {chosen.cost.algorithm} {where}; used instead: {name}, which fits the data equally well"
            return replace(other, held_out=other.held_out.asked_for(name)), note
    raise AnalysisError(f"{chosen.cost.op} by {chosen.cost.algorithm} {where}")


def _scored(cost: CostModel, parameters: Parameters, curves: Sequence[Series]) -> _Scored:
    """The error on the largest number of ranks, which its parameters did not use."""
    largest = max((len(one.key.ranks) for one in curves), default=0)
    tested = [
        (one.key.hosts, point)
        for one in curves
        if len(one.key.ranks) == largest
        for point in one.points
        if cost.possible(largest, one.key.hosts, point.size_bytes)
    ]
    if not tested:
        return validation(f"{cost.op} by {cost.algorithm} was not measured", None, VALID_RANKS), None
    how = f"measured times on {largest} ranks ({len(tested)}), which the parameters did not use,"
    errors = [
        abs(parameters.seconds(cost, largest, hosts, point.size_bytes) / (point.time_ns / 1e9) - 1)
        for hosts, point in tested
    ]
    # The test extrapolated from 2 ranks, or 2 hosts, to these, so it validates the same factor beyond them.
    pair = 2, 2 if tested[0][0] > 1 else 1
    by_size = zip([point.size_bytes for _, point in tested], errors, strict=True)
    held_out = [(largest, hosts) for hosts, _ in tested]
    return validation(how, errors, VALID_RANKS), ValidationRange.of(held_out, [pair], by_size)


def from_messages(cost: CostModel, parameters: Parameters, curves: Sequence[Series], *, chosen: bool) -> ScalingModel:
    """The model of ``cost`` with α, β and R from messages between two ranks, which determine neither γ nor c0.

    ``curves`` are measured ones of the same op and algorithm; the model is validated on them.
    """
    left_out = "reduction (γ) and the constant cost of a call (c0) are ignored"
    if cost.two_levels:
        left_out += ", and messages inside hosts cost the same as between hosts"
    held_out, tested = _scored(cost, parameters, curves)
    return ScalingModel(
        cost=cost,
        parameters=replace(parameters, origin=f"{parameters.origin}; {left_out}"),
        held_out=held_out,
        tested=tested,
        chosen=chosen,
        notes=() if cost.by_table is None else (cost.by_table,),
    )


def from_joint(joint: JointFit, op: str, algorithm: str | None = None) -> tuple[ScalingModel, ...]:
    """The models of ``op`` with the parameters of a joint fit: only that of ``algorithm`` if given, else of every
    algorithm, with the one chosen that explains the library best.

    Raises AnalysisError if the library's own algorithm is requested but not among the fitted data.
    """
    if algorithm is None and op not in joint.algorithms:
        message = f"the joint fit has no data of the library's own {op}; choose an algorithm with --algorithm"
        raise AnalysisError(message)
    chosen = algorithm or joint.algorithms[op]
    tied = joint.ties.get(op, ()) if algorithm is None else ()
    held_out, tested = _of_ranks(joint, op, algorithm)

    def model(cost: CostModel) -> ScalingModel:
        equal = cost.algorithm in tied and cost.algorithm != chosen
        # A tied algorithm fits equally well with its own parameters, such as twice the rounds with half the α.
        found = joint.explained_by(cost) if equal else joint
        return ScalingModel(
            cost=cost,
            parameters=found,
            held_out=held_out,
            tested=tested,
            chosen=cost.algorithm == chosen,
            tied=equal,
            notes=found.notes,
        )

    order = {name: place for place, name in enumerate((chosen, *tied))}
    own = [one for one in joint.observations if one.curve == (op, None)]
    costs = candidates(op, joint.cost_models, algorithm) if algorithm else candidates_of(own)
    return tuple(model(cost) for cost in sorted(costs, key=lambda cost: order.get(cost.algorithm, len(order))))


def _of_ranks(joint: JointFit, op: str, algorithm: str | None) -> _Scored:
    """The validation of this op with this algorithm alone; the error of other ops says nothing about it."""
    found = joint.of_curves.get((op, algorithm))
    if found is None:
        return validation(f"{op} by {algorithm or 'the library'} was not measured", None, VALID_RANKS), None
    if not found.errors:
        return validation(found.note, None, VALID_RANKS), None
    where = f"{op} on {found.tested[0].ranks} ranks ({len(found.errors)})"
    how = ", ".join(part for part in (f"times of {where}", "predicted from fewer ranks", found.note) if part)
    held_out, seen = ([(one.ranks, one.hosts) for one in part] for part in (found.tested, found.seen))
    by_size = zip([one.size_bytes for one in found.tested], found.errors, strict=True)
    return validation(f"{how},", found.errors, VALID_RANKS), ValidationRange.of(held_out, seen, by_size)
