"""The ways to a forecast, the first that answers: the curve of the same ranks, the curve of other ranks carried to
these, and α, β and R of messages between two ranks with the counts of the algorithm.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from busbw.errors import AnalysisError
from busbw_analysis.data.series import Series
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.fitting.score import VALID_RANKS, Validation, validation
from busbw_analysis.models.costs import INSIDE_AS_BETWEEN, CostModel, Parameters
from busbw_analysis.models.gloo import unmodelled
from busbw_analysis.models.select import candidates, model_for
from busbw_analysis.predict.carried import Carrier, Carry, can_be_carried
from busbw_analysis.predict.forecast import Basis, Extrapolation, FittedCurve, Forecast, Value, by_curve, curve_of
from busbw_analysis.predict.held_out import HeldOut, Shape, ValidationRange
from busbw_analysis.predict.query import PredictionQuery, extrapolations, new_regime
from busbw_analysis.predict.selection import MeasuredCurves


@dataclass(frozen=True, slots=True)
class _Grounds:
    """What a forecast rests on; fields as of ``Forecast``."""

    rests_on: str
    parameters: str
    interval_note: str
    extrapolated: tuple[Extrapolation, ...]
    held_out: Validation
    carried_from: Shape | None = None
    notes: tuple[str, ...] = ()


class Ways:
    """The ways to forecasts from ``data``; what they need is computed once for many questions."""

    def __init__(self, data: MeasuredCurves) -> None:
        self.data = data
        self._fits: dict[tuple[str | None, Shape], FittedCurve | Unavailable] = {}
        self.carrier, self.candidates = cache(self._carrier), cache(self._candidates)
        self._carried_held_out = cache(lambda far, sharing: self.carrier(far, sharing).held_out())
        self._messages_held_out = cache(self._held_out_of_messages)

    def forecast(self, asked: PredictionQuery, size_bytes: int) -> Forecast | Unavailable:
        """The time at one size; if there is none, the code of the first way and the reasons of all."""
        reasons: list[Unavailable] = []
        for outcome in self._in_turn(asked, size_bytes):
            if isinstance(outcome, Forecast):
                return outcome
            reasons.append(outcome)
        reasons += self._not_fitted()
        return Unavailable(reasons[0].code, "; ".join(dict.fromkeys(reason.reason for reason in reasons)))

    def _in_turn(self, asked: PredictionQuery, size_bytes: int) -> Iterator[Forecast | Unavailable]:
        measured = self.data.curve(asked.ranks, asked.hosts)
        notes: tuple[str, ...] = ()
        if measured is not None and size_bytes:
            curve = self.fitted(measured)
            outcome = by_curve(curve, size_bytes) if isinstance(curve, FittedCurve) else curve
            yield outcome
            notes = (outcome.reason,) if isinstance(outcome, Unavailable) else ()
        for way in (self._by_carrying, self._by_messages):
            outcome = way(asked, size_bytes)
            yield outcome if isinstance(outcome, Unavailable) else replace(outcome, notes=(*notes, *outcome.notes))

    def fitted(self, series: Series) -> FittedCurve | Unavailable:
        """The fit of a curve of ``data``, or why there is none."""
        name = series.key.algorithm, series.shape
        if name not in self._fits:
            try:
                self._fits[name] = curve_of(series)
            except AnalysisError as error:
                self._fits[name] = Unavailable(error.code, str(error))
        return self._fits[name]

    def _not_fitted(self) -> list[Unavailable]:
        """Why curves of enough ranks cannot be carried."""
        fits = map(self.fitted, can_be_carried(self.data.curves))
        return [fit for fit in fits if isinstance(fit, Unavailable)]

    def _candidates(self, ranks: int, hosts: int) -> tuple[tuple[CostModel, ...], Unavailable | None]:
        """The algorithms that may be behind the op on these ranks, and why the first one is not known to be."""
        data, op, family = self.data, self.data.op, self.data.key.cost_models
        if (reason := unmodelled(op)) is not None:
            return (), replace(reason, reason=f"{op}: {reason.reason}, so other numbers of ranks cannot be predicted")
        calls = data.calls(ranks, hosts)
        try:
            costs = candidates(op, family, data.algorithm, calls)
        except AnalysisError as error:
            return (), Unavailable(error.code, str(error))
        if data.algorithm is not None or isinstance(model_for(op, family), CostModel) or costs[0].family == family:
            return costs, None
        names = ", ".join(cost.algorithm for cost in costs)
        library = None if calls is None else calls.library
        why = f": {library.reason}" if isinstance(library, Unavailable) else ""
        unknown = f"the algorithm of {data.key.backend} for {op} is unknown{why}; choose one with --algorithm: {names}"
        return costs, Unavailable("algorithm-not-known", unknown)

    def algorithm(self, ranks: int, hosts: int, size_bytes: int) -> CostModel | Unavailable:
        """The algorithm of one call."""
        costs, unknown = self.candidates(ranks, hosts)
        if unknown is not None:
            return unknown
        calls = self.data.calls(ranks, hosts)
        if costs[0].by_table and calls is not None:
            choice = calls.choice(self.data.op, ranks, hosts, size_bytes)
            if isinstance(choice, Unavailable):
                return choice
        if not costs[0].possible(ranks, hosts, size_bytes):
            where = f"does not exist for {ranks} ranks on {hosts} host(s)"
            return Unavailable("algorithm-not-possible", f"{self.data.op} by {costs[0].algorithm} {where}")
        return costs[0].at(ranks, hosts, size_bytes)

    @cached_property
    def assumed(self) -> bool:
        """Whether the library's curves are carried by an algorithm that was only named, because its own is unknown."""
        data = self.data
        if data.algorithm is None or data.curves or not data.of_library:
            return False
        own = Ways(replace(data, algorithm=None)).algorithm(*data.of_library[-1].shape, 1)
        return isinstance(own, Unavailable) and own.code == "algorithm-not-known"

    def _carrier(self, far: bool, sharing: bool) -> Carrier:  # noqa: FBT001 - cached by position
        """All fitted curves between hosts (``far``) or inside one, preferably with ranks that share cores as asked."""
        measured = self.data.of_library if self.assumed else self.data.curves
        curves = [curve for curve in can_be_carried(measured) if (curve.key.hosts > 1) == far]
        alike = [curve for curve in curves if self.data.oversubscribed(*curve.shape) == sharing]
        fits = (self.fitted(curve) for curve in alike or curves)
        parameters = self.data.parameters(far=far)
        fitted = tuple(fit for fit in fits if isinstance(fit, FittedCurve))
        return Carrier(fitted, self.algorithm, parameters if isinstance(parameters, Parameters) else None)

    def carry(self, shape: Shape, size_bytes: int) -> Carry | Unavailable:
        """The curve that is carried to ``shape``."""
        return self.carrier(shape[1] > 1, self.data.oversubscribed(*shape)).carry(shape, size_bytes)

    def _by_carrying(self, asked: PredictionQuery, size_bytes: int) -> Forecast | Unavailable:
        data, shape = self.data, (asked.ranks, asked.hosts)
        carry = self.carry(shape, size_bytes)
        if isinstance(carry, Unavailable):
            return carry
        source = carry.source.series.shape
        sharing = data.oversubscribed(*shape)
        beyond = [f"{data.algorithm}, which was not measured"] if self.assumed else []
        outside = list(extrapolations(data, asked, size_bytes))
        if data.oversubscribed(*source) != sharing:
            beyond.append(_cores(sharing=sharing))
            if not new_regime(data, asked):
                other = f"the curve is of {_cores(sharing=not sharing)}, not of {beyond[-1]}"
                outside.append(Extrapolation("cores", other))
        jump = carry.source.jump(size_bytes)
        if jump:
            beyond.append("sizes at a jump")
            outside.append(Extrapolation("jump", f"{size_bytes} B is {jump}, on {source[0]} ranks"))
        held_out = self._carried_held_out(asked.hosts > 1, sharing).asked_for(*shape, size_bytes, *beyond)
        return self._forecast(
            asked,
            size_bytes,
            carry.cost,
            "carried",
            carry.seconds(size_bytes),
            _Grounds(
                rests_on=carry.words,
                parameters=carry.source.parameters(size_bytes),
                interval_note=carry.source.interval_note,
                extrapolated=tuple(outside),
                held_out=held_out,
                carried_from=source,
                notes=tuple(reason.reason for reason in self._not_fitted()),
            ),
        )

    def by_messages(self, cost: CostModel, shape: Shape, size_bytes: int) -> Value | Unavailable:
        """The time by messages with an algorithm that exists for ``shape``."""
        parameters = self.data.parameters(far=shape[1] > 1)
        return (
            parameters if isinstance(parameters, Unavailable) else Value(parameters.seconds(cost, *shape, size_bytes))
        )

    def _by_messages(self, asked: PredictionQuery, size_bytes: int) -> Forecast | Unavailable:
        shape = asked.ranks, asked.hosts
        cost, parameters = self.algorithm(*shape, size_bytes), self.data.parameters(far=asked.hosts > 1)
        if isinstance(cost, Unavailable):
            return cost
        if isinstance(parameters, Unavailable):
            return parameters
        ignored = "; reduction (γ) and the constant cost of a call are ignored"
        if cost.two_levels:
            ignored += ", and messages inside hosts cost the same as between hosts"
        beyond = [_cores(sharing=self.data.oversubscribed(*shape))] if new_regime(self.data, asked) else []
        return self._forecast(
            asked,
            size_bytes,
            cost,
            "messages",
            Value(parameters.seconds(cost, *shape, size_bytes)),
            _Grounds(
                rests_on=parameters.basis,
                parameters=parameters.origin + ignored,
                interval_note=parameters.interval_note,
                extrapolated=extrapolations(self.data, asked, size_bytes),
                held_out=self._messages_held_out(asked.hosts > 1).asked_for(*shape, size_bytes, *beyond),
            ),
        )

    def _forecast(
        self, asked: PredictionQuery, size_bytes: int, cost: CostModel, basis: Basis, seconds: Value, grounds: _Grounds
    ) -> Forecast:
        """What carried curves and messages have in common."""
        measured = self.data.curve(asked.ranks, asked.hosts)
        table = self.candidates(asked.ranks, asked.hosts)[0][0].by_table
        flat = not cost.of_hosts_known(asked.ranks, asked.hosts, size_bytes)
        return Forecast(
            op=asked.op,
            size_bytes=size_bytes,
            ranks=asked.ranks,
            hosts=asked.hosts,
            seconds=seconds,
            basis=basis,
            rests_on=grounds.rests_on,
            algorithm=cost.algorithm,
            formula=cost.formula,
            parameters=f"{grounds.parameters}; {cost.algorithm}: {INSIDE_AS_BETWEEN}" if flat else grounds.parameters,
            interval_note=grounds.interval_note,
            extrapolated=grounds.extrapolated,
            held_out=grounds.held_out,
            measured=None if measured is None else measured.at(size_bytes),
            carried_from=grounds.carried_from,
            notes=grounds.notes if table is None else (*grounds.notes, table),
        )

    def _held_out_of_messages(self, far: bool) -> HeldOut:  # noqa: FBT001 - cached by position
        """The error of messages on the largest measured number of ranks, which they did not use."""
        parameters = self.data.parameters(far=far)
        curves: Sequence[Series] = [curve for curve in self.data.curves if (curve.key.hosts > 1) == far]
        largest = max((curve.shape[0] for curve in curves), default=0)
        tested = [curve for curve in curves if curve.shape[0] == largest]
        errors = [
            (
                point.size_bytes,
                abs(parameters.seconds(cost, *curve.shape, point.size_bytes) / (point.time_ns / 1e9) - 1),
            )
            for curve in tested
            for point in curve.points
            if isinstance(parameters, Parameters)
            and isinstance(cost := self.algorithm(*curve.shape, point.size_bytes), CostModel)
        ]
        if not errors:
            by = self.data.algorithm or "the library"
            return HeldOut(validation(f"{self.data.op} by {by} was not measured", None, VALID_RANKS))
        how = f"measured times on {largest} ranks ({len(errors)}), which the parameters did not use,"
        result = validation(how, [error for _, error in errors], VALID_RANKS)
        # The test extrapolated from 2 ranks, or 2 hosts, to these, so it validates the same factor beyond them.
        return HeldOut(result, ValidationRange.of([curve.shape for curve in tested], [(2, 2 if far else 1)], errors))


def _cores(*, sharing: bool) -> str:
    return "ranks that share cores" if sharing else "ranks with a core each"
