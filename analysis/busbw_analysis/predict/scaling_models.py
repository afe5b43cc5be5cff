"""The time of a call for any number of ranks: what an algorithm contributes, times parameters that were found in the
same data, with what is known of how wrong that is.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from busbw.errors import AnalysisError
from busbw.units import about_size, format_size
from busbw_analysis.data.series import Series
from busbw_analysis.fitting.design import PARAMETERS, candidates_of
from busbw_analysis.fitting.identify import written
from busbw_analysis.fitting.joint import JointFit
from busbw_analysis.fitting.score import VALID_RANKS, Validation, validation
from busbw_analysis.models.costs import CostModel, Parameters
from busbw_analysis.models.select import candidates

BY_CURVE = "the fit of the curve of these ranks"
BY_MESSAGES, JOINTLY = "messages between two ranks", "a joint fit over numbers of ranks"
"""What a prediction can rest on."""


@dataclass(frozen=True, slots=True)
class Value:
    """A number that was found and both ends of its 95 % interval, None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None


ROUNDED: Final = 1.01
"""A size is measured in whole elements of every rank, 2 MiB on six ranks as 2,097,144 B: so little is no other size."""

Shape = tuple[int, int]
"""Ranks and hosts."""

_NEAREST: Final = 3
"""Held-out sizes around one that is asked for."""


@dataclass(frozen=True, slots=True)
class ValidationRange:
    """How far measurements that were kept from a prediction tell of it: the least and the most of each that a question
    may have. Of ranks, hosts and ranks on each host that is from the fewest measured to as many times the most as that
    was more than what it was predicted from; of sizes, those that were held out. ``errors`` are (bytes,
    relative error).
    """

    ranks: tuple[float, float]
    hosts: tuple[float, float]
    on_a_host: tuple[float, float]
    errors: tuple[tuple[int, float], ...]

    @classmethod
    def of(
        cls, held_out: Sequence[Shape], seen: Sequence[Shape], errors: Iterable[tuple[int, float]]
    ) -> "ValidationRange":
        """Where ``held_out`` was predicted from ``seen``, with these errors."""

        def reach(amount: Callable[[Shape], int]) -> tuple[float, float]:
            most, before = max(map(amount, held_out)), max(map(amount, seen))
            return min(map(amount, [*held_out, *seen])), most * max(most / before, 1)

        return cls(reach(lambda one: one[0]), reach(lambda one: one[1]), reach(_on_a_host), tuple(errors))

    def error_near(self, size_bytes: int) -> float:
        """The median error of the sizes nearest to this one: a rate may be wrong where the time of a round is right."""
        nearest = sorted(self.errors, key=lambda one: abs(math.log(max(one[0], 1) / max(size_bytes, 1))))
        return median(error for _, error in nearest[:_NEAREST])

    def beyond(self, ranks: int, hosts: int, size_bytes: int) -> tuple[str, ...]:
        """What of a question lies outside, in words."""
        each = _on_a_host((ranks, hosts))
        rows = [(ranks, self.ranks, f"{ranks} ranks"), (hosts, self.hosts, f"{hosts} hosts")]
        if hosts > 1:
            rows.append((each, self.on_a_host, "one rank on each host" if each == 1 else f"{each} ranks on a host"))
        said = [words for amount, (least, most), words in rows if not least <= amount <= most]
        least, most = (end(size for size, _ in self.errors) for end in (min, max))
        if size_bytes > most * ROUNDED:
            said.append(f"sizes beyond {format_size(most)}")
        elif size_bytes < least:
            said.append(f"sizes below {format_size(least)}")
        return tuple(said)


_Scored = tuple[Validation, ValidationRange | None]


def _on_a_host(shape: Shape) -> int:
    return -(-shape[0] // shape[1])


@dataclass(frozen=True, slots=True)
class ScalingModel:
    """The time of one call for any number of ranks and hosts and any size, by one algorithm.

    ``cost``: what it costs.
    ``parameters``: what that is fed with, those of messages or of a joint fit.
    ``basis``, ``origin``: which of both, and in words what the parameters are and where from.
    ``interval_note``: where its intervals are from, or why there are none.
    ``held_out``: how wrong it was on measurements of this op by this algorithm.
    ``tested``: how far those tell of others; None where nothing was held out.
    ``chosen``: it is the one that answers, and no other candidate of the same data.
    ``tied``: the data cannot tell it from the chosen one.
    ``notes``: what its parameters take for granted or could not tell, and by which table a library chooses.
    """

    cost: CostModel
    parameters: Parameters | JointFit
    basis: str
    origin: str
    interval_note: str
    held_out: Validation
    tested: ValidationRange | None
    chosen: bool = True
    tied: bool = False
    notes: tuple[str, ...] = ()

    def at(self, ranks: int, hosts: int, size_bytes: float) -> Value:
        """The time of one call in seconds. Raises AnalysisError where the parameters do not tell."""
        where = (self.cost, ranks, hosts, size_bytes)
        value = self.parameters.seconds(*where)
        ends = self.parameters.interval(*where) if isinstance(self.parameters, JointFit) else None
        # Where resamples choose otherwise, what all launches say may lie outside.
        return Value(value) if ends is None else Value(value, min(ends[0], value), max(ends[1], value))

    def told(self, ranks: int, hosts: int, size_bytes: int) -> float | None:
        """The time in seconds; None where the parameters do not tell."""
        try:
            return self.at(ranks, hosts, size_bytes).value
        except AnalysisError:
            return None

    def held_out_for(self, ranks: int, hosts: int, size_bytes: int) -> Validation:
        """What was held out, for a question that may reach beyond it."""
        if self.tested is None:
            return self.held_out
        near = self.tested.error_near(size_bytes)
        found = self.held_out
        if found.passed and near > VALID_RANKS:
            where = f" the sizes around {about_size(size_bytes)} off by {near:.1%},"
            found = replace(found, held_out=found.held_out + where, passed=False)
        return found.asked_for(*self.tested.beyond(ranks, hosts, size_bytes))


def answering(
    models: Sequence[ScalingModel], ranks: int, hosts: int, size_bytes: int
) -> tuple[ScalingModel, str | None]:
    """The model that answers on so many ranks and hosts: the chosen one, and where there is no such thing, the first
    that the data cannot tell from it, with what has to be said of that. Raises AnalysisError where there is none, or
    where the parameters do not tell of it.
    """
    chosen = next(model for model in models if model.chosen)
    where = f"does not exist for {ranks} ranks on {hosts} host(s)"
    if chosen.cost.possible(ranks, hosts, size_bytes):
        chosen.at(ranks, hosts, size_bytes)
        return chosen, None
    try:
        chosen.cost.at(ranks, hosts, size_bytes)
    except AnalysisError as unknown:  # of a table that names what no cost is known of
        where = f"is not known there ({unknown})"
    for other in models:
        possible = other.tied and other.cost.possible(ranks, hosts, size_bytes)
        if possible and other.told(ranks, hosts, size_bytes) is not None:
            name = other.cost.algorithm
            said = f"algorithm: {chosen.cost.algorithm} {where}; {name} answers, which the data cannot tell from it"
            return replace(other, held_out=other.held_out.asked_for(name)), said
    raise AnalysisError(f"{chosen.cost.op} by {chosen.cost.algorithm} {where}")


def _scored(cost: CostModel, parameters: Parameters, curves: Sequence[Series]) -> _Scored:
    """How far it is off on the largest number of ranks, of which its parameters have seen nothing."""
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
    how = f"measured times on {largest} ranks ({len(tested)}), which the parameters have not seen,"
    errors = [
        abs(parameters.seconds(cost, largest, hosts, point.size_bytes) / (point.time_ns / 1e9) - 1)
        for hosts, point in tested
    ]
    # Two ranks said what so many take, and two hosts what so many take: as far as that, once more.
    pair = 2, 2 if tested[0][0] > 1 else 1
    by_size = zip([point.size_bytes for _, point in tested], errors, strict=True)
    held_out = [(largest, hosts) for hosts, _ in tested]
    return validation(how, errors, VALID_RANKS), ValidationRange.of(held_out, [pair], by_size)


def from_messages(cost: CostModel, parameters: Parameters, curves: Sequence[Series], *, chosen: bool) -> ScalingModel:
    """The model of ``cost`` with α, β and R from messages between two ranks: no sums and no constant of a call are
    known.

    ``curves`` are the measured ones of the same op and algorithm, which it is scored on.
    """
    left_out = "sums (γ) and what a call costs by itself (c0) are left out"
    if cost.two_levels:
        left_out += ", and inside hosts it is taken as between them"
    held_out, tested = _scored(cost, parameters, curves)
    return ScalingModel(
        cost=cost,
        parameters=parameters,
        basis=BY_MESSAGES,
        origin=f"{parameters.origin}; {left_out}",
        interval_note="no interval: α and β of messages have none",
        held_out=held_out,
        tested=tested,
        chosen=chosen,
        notes=() if cost.by_table is None else (cost.by_table,),
    )


def from_joint(joint: JointFit, op: str, algorithm: str | None = None) -> tuple[ScalingModel, ...]:
    """The models of ``op`` with the parameters of a joint fit: the one of ``algorithm`` where it is named, else of
    every algorithm, of which the one is chosen that explains the library best. Raises AnalysisError where that is asked
    for and the fit has nothing of the library's own.
    """
    if algorithm is None and op not in joint.algorithms:
        message = f"the library's own {op} is not among the data of the joint fit; name an algorithm with --algorithm"
        raise AnalysisError(message)
    chosen = algorithm or joint.algorithms[op]
    tied = joint.ties.get(op, ()) if algorithm is None else ()
    held_out, tested = _of_ranks(joint, op, algorithm)

    def model(cost: CostModel) -> ScalingModel:
        equal = cost.algorithm in tied and cost.algorithm != chosen
        # One that explains the data as well does so with parameters of its own: twice the rounds of half the α.
        found = joint.explained_by(cost) if equal else joint

        return ScalingModel(
            cost=cost,
            parameters=found,
            basis=JOINTLY,
            origin=_in_words(found),
            interval_note=joint.interval_note,
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
    """Of this op by this algorithm alone: that others are predicted well says nothing of it."""
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


def _in_words(joint: JointFit) -> str:
    said = [written(name, estimate.value) for name, estimate in joint.parameters.items()]
    ops = sorted({one.op for one in joint.observations})
    ranks = sorted({one.ranks for one in joint.observations})
    told = ", ".join(said) or "none that the data tell apart"
    if joint.coefficients[PARAMETERS.index("shared")] > 0:
        told += " (in place of S β the bytes that all ranks move, over R)"
    if joint.coefficients[PARAMETERS.index("card")] > 0:
        told += " (in place of S β the bytes that all ranks of a host send to others, over C)"
    return f"{told}, from {', '.join(ops)} on {', '.join(map(str, ranks))} ranks"
