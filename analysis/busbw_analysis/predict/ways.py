"""The ways to a forecast, the first that answers: the curve of the same ranks, the curve of other ranks carried to
these, and α, β and R of messages between two ranks with the counts of the algorithm.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial

from busbw.errors import AnalysisError, UsageError
from busbw.units import about_size
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.series import Series
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.costs import INSIDE_AS_BETWEEN, CostModel, Parameters
from busbw_analysis.models.gloo import unmodelled
from busbw_analysis.models.results import Results
from busbw_analysis.models.select import algorithms, candidates, model_for
from busbw_analysis.predict.forecast import (
    LEAST_RANKS,
    Carrier,
    Carry,
    Extrapolation,
    FittedCurve,
    Forecast,
    HeldOut,
    Shape,
    Value,
    on_a_host,
)
from busbw_analysis.predict.selection import MeasuredCurves, PredictionQuery, measured_curves, query

_Begun = partial[Forecast]
"""A forecast without what depends on the way."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The forecasts of a question.

    ``forecasts``: one per size that has one.
    ``notes``: notes on all of them.
    ``unanswered``: the other sizes, each with the reason.
    """

    query: PredictionQuery
    data: MeasuredCurves
    forecasts: tuple[Forecast, ...]
    notes: tuple[str, ...]
    unanswered: Mapping[int, Unavailable]


class Questions:
    """Answers questions from ``results`` as read by ``read_results``; curves are selected once for many questions."""

    def __init__(self, results: Sequence[Results]) -> None:
        self.results = tuple(results)
        self._ways = lru_cache(maxsize=None)(self._select)

    def _select(self, op: str, algorithm: str | None, **way: str | float | None) -> "Ways":
        return Ways(measured_curves(self.results, op, algorithm, **way))

    def predict(
        self,
        op: str,
        ranks: int,
        sizes_bytes: Sequence[int] = (),
        *,
        algorithm: str | None = None,
        hosts: int | None = None,
        ranks_per_host: int | None = None,
        **way: str | float | None,
    ) -> Prediction:
        """The time of ``op`` on ``ranks`` ranks at each of ``sizes_bytes``.

        ``algorithm``: an explicit algorithm over send/recv; None is the library's own.
        ``hosts``, ``ranks_per_host``: at most one of them, to distribute the ranks over hosts.
        ``way``: dtype, mode or imbalance, as in ``measured_curves``.

        Raises UsageError for an invalid question, AnalysisError if the data do not determine an answer.
        """
        ways = self._ways(op, algorithm, **way)
        return ways.predict(query(ways.data, ranks, sizes_bytes, hosts=hosts, ranks_per_host=ranks_per_host))

    def curve(self, op: str, ranks: int, hosts: int) -> Series | None:
        """The curve of ``op`` that was measured on these ranks and hosts, if any. Raises as ``measured_curves``."""
        return self._ways(op, None).data.curve((ranks, hosts))

    def messages(self, op: str, *, far: bool) -> Parameters | Unavailable:
        """α, β and R of messages inside a host (``far``: between hosts), timed in the same way as ``op``."""
        return self._ways(op, None).data.messages[far]


class Ways:
    """The ways to forecasts from ``data``; what they need is computed once for many questions."""

    def __init__(self, data: MeasuredCurves) -> None:
        self.data = data
        self._fits: dict[tuple[str | None, Shape], FittedCurve | Unavailable] = {}
        self.carrier, self.candidates = cache(self._carrier), cache(self._candidates)
        self._carried_held_out = cache(lambda far, sharing: self.carrier(far, sharing).held_out())
        self._messages_held_out = cache(self._held_out_of_messages)

    def predict(self, asked: PredictionQuery) -> Prediction:
        """The prediction for ``asked``. Raises AnalysisError, with what to measure, if the data determine none."""
        by_size = {size: self.forecast(asked, size) for size in asked.sizes_bytes}
        forecasts = tuple(outcome for outcome in by_size.values() if isinstance(outcome, Forecast))
        unanswered = {size: outcome for size, outcome in by_size.items() if isinstance(outcome, Unavailable)}
        if not forecasts:
            why = next(iter(unanswered.values()))
            message = f"no prediction for {asked.op} on {asked.ranks} ranks: {why.reason}"
            raise AnalysisError(message, code=why.code)
        notes = [(forecast.size_bytes, note) for forecast in forecasts for note in forecast.notes]
        of_sizes = sized("", notes, [forecast.size_bytes for forecast in forecasts])
        return Prediction(asked, self.data, forecasts, (*self.data.notes, *of_sizes), unanswered)

    def forecast(self, asked: PredictionQuery, size_bytes: int) -> Forecast | Unavailable:
        """The time at one size; if there is none, the code of the first way and the reasons of all."""
        reasons: list[Unavailable] = []
        measured = self.data.curve(asked.shape)
        if measured is not None and size_bytes:
            curve = self.fitted(measured)
            own = curve if isinstance(curve, Unavailable) else curve.forecast(size_bytes)
            if isinstance(own, Forecast):
                return own
            reasons.append(own)
        notes = tuple(reason.reason for reason in reasons)
        point = None if measured is None else measured.at(size_bytes)
        begun = partial(Forecast, asked.op, size_bytes, *asked.shape, measured=point)
        for way in (self._by_carrying, self._by_messages):
            outcome = way(asked, size_bytes, begun)
            if isinstance(outcome, Forecast):
                return self._annotated(outcome, notes)
            reasons.append(outcome)
        # Without messages no algorithm helps unless a curve is fitted.
        fits, lacking = self._not_fitted(), isinstance(self.data.messages[asked.hosts > 1], Unavailable)
        code = reasons[0].code
        reasons = [*fits, *reasons] if lacking else [*reasons, *fits]
        return Unavailable(code, "; ".join(dict.fromkeys(reason.reason for reason in reasons)))

    def _annotated(self, forecast: Forecast, notes: tuple[str, ...]) -> Forecast:
        """The forecast with ``notes``, and what is to be noted of its algorithm."""
        where = forecast.ranks, forecast.hosts, forecast.size_bytes
        table = self.candidates(where[:2])[0][0].by_table
        notes = (*notes, *forecast.notes, *(() if table is None else (table,)))
        if forecast.cost is None or forecast.cost.of_hosts_known(*where):
            return replace(forecast, notes=notes)
        parameters = f"{forecast.parameters}; {forecast.algorithm}: {INSIDE_AS_BETWEEN}"
        return replace(forecast, notes=notes, parameters=parameters)

    def fitted(self, series: Series) -> FittedCurve | Unavailable:
        """The fit of a curve of ``data``, or why there is none."""
        name = series.key.algorithm, series.shape
        if name not in self._fits:
            self._fits[name] = FittedCurve.of(series)
        return self._fits[name]

    def _not_fitted(self) -> list[Unavailable]:
        """Why curves of enough ranks cannot be carried."""
        fits = [self.fitted(curve) for curve in self._carried if curve.shape[0] >= LEAST_RANKS]
        return [fit for fit in fits if isinstance(fit, Unavailable)]

    def _candidates(self, shape: Shape) -> tuple[tuple[CostModel, ...], Unavailable | None]:
        """The algorithms that may be behind the op on these ranks, and why the first one is not known to be."""
        data, op, family = self.data, self.data.op, self.data.key.cost_models
        if (reason := unmodelled(op)) is not None:
            return (), replace(reason, reason=f"{op}: {reason.reason}, so other numbers of ranks cannot be predicted")
        calls = data.calls(shape)
        try:
            costs = candidates(op, family, data.algorithm, calls)
        except AnalysisError as error:
            return (), Unavailable(error.code, str(error))
        if data.algorithm is not None or isinstance(model_for(op, family), CostModel) or costs[0].family == family:
            return costs, None
        names = ", ".join(algorithms(op, family))
        library = None if calls is None else calls.library
        why = f": {library.reason}" if isinstance(library, Unavailable) else ""
        unknown = f"the algorithm of {data.key.backend} for {op} is unknown{why}; choose one with --algorithm: {names}"
        return costs, Unavailable("algorithm-not-known", unknown)

    def algorithm(self, shape: Shape, size_bytes: int) -> CostModel | Unavailable:
        """The algorithm of one call."""
        costs, unknown = self.candidates(shape)
        if unknown is not None:
            return unknown
        calls = self.data.calls(shape)
        if costs[0].by_table and calls is not None:
            choice = calls.choice(self.data.op, *shape, size_bytes)
            if isinstance(choice, Unavailable):
                return choice
        if not costs[0].possible(*shape, size_bytes):
            where = f"does not exist for {shape[0]} ranks on {shape[1]} host(s)"
            return Unavailable("algorithm-not-possible", f"{self.data.op} by {costs[0].algorithm} {where}")
        return costs[0].at(*shape, size_bytes)

    @cached_property
    def assumed(self) -> bool:
        """Whether the library's curves are carried by an algorithm that was only named, because its own is unknown."""
        data = self.data
        if data.algorithm is None or data.curves or not data.of_library:
            return False
        own = Ways(replace(data, algorithm=None)).algorithm(data.of_library[-1].shape, 1)
        return isinstance(own, Unavailable) and own.code == "algorithm-not-known"

    @property
    def _carried(self) -> tuple[Series, ...]:
        """The curves that may be carried to other ranks."""
        return self.data.of_library if self.assumed else self.data.curves

    def _carrier(self, far: bool, sharing: bool) -> Carrier:  # noqa: FBT001 - cached by position
        """All fitted curves between hosts (``far``) or inside one, preferably with ranks that share cores as asked."""
        curves = [curve for curve in self._carried if curve.shape[0] >= LEAST_RANKS and (curve.key.hosts > 1) == far]
        alike = [curve for curve in curves if self.data.oversubscribed(curve.shape) == sharing]
        fits = (self.fitted(curve) for curve in alike or curves)
        parameters = self.data.messages[far]
        fitted = tuple(fit for fit in fits if isinstance(fit, FittedCurve))
        return Carrier(fitted, self.algorithm, parameters if isinstance(parameters, Parameters) else None)

    def carry(self, shape: Shape, size_bytes: int) -> Carry | Unavailable:
        """The curve that is carried to ``shape``."""
        return self.carrier(shape[1] > 1, self.data.oversubscribed(shape)).carry(shape, size_bytes)

    def _by_carrying(self, asked: PredictionQuery, size_bytes: int, begun: _Begun) -> Forecast | Unavailable:
        data = self.data
        carry = self.carry(asked.shape, size_bytes)
        if isinstance(carry, Unavailable):
            return carry
        source, sharing = carry.source.series.shape, data.oversubscribed(asked.shape)
        beyond = [f"{data.algorithm}, which was not measured"] if self.assumed else []
        outside = list(data.extrapolations(asked, size_bytes))
        if data.oversubscribed(source) != sharing:
            beyond.append(_cores(sharing=sharing))
            if not data.new_regime(asked.shape):
                other = f"the curve is of {_cores(sharing=not sharing)}, not of {beyond[-1]}"
                outside.append(Extrapolation("cores", other))
        if jump := carry.source.jump(size_bytes):
            beyond.append("sizes at a jump")
            outside.append(Extrapolation("jump", f"{size_bytes} B is {jump}, on {source[0]} ranks"))
        held_out = self._carried_held_out(asked.hosts > 1, sharing)
        return begun(
            seconds=carry.seconds(size_bytes),
            basis="carried",
            rests_on=carry.words,
            cost=carry.cost,
            parameters=carry.source.parameters(size_bytes),
            interval_note=carry.source.interval_note,
            extrapolated=tuple(outside),
            held_out=held_out.asked_for(asked.shape, size_bytes, *beyond),
            carried_from=source,
            notes=tuple(reason.reason for reason in self._not_fitted()),
        )

    def _by_messages(self, asked: PredictionQuery, size_bytes: int, begun: _Begun) -> Forecast | Unavailable:
        shape, data = asked.shape, self.data
        cost, parameters = self.algorithm(shape, size_bytes), data.messages[asked.hosts > 1]
        if isinstance(cost, Unavailable):
            return cost
        if isinstance(parameters, Unavailable):
            return parameters
        ignored = "; reduction (γ) and the constant cost of a call are ignored"
        if cost.two_levels:
            ignored += ", and messages inside hosts cost the same as between hosts"
        beyond = [_cores(sharing=data.oversubscribed(shape))] if data.new_regime(shape) else []
        return begun(
            seconds=Value(parameters.seconds(cost, *shape, size_bytes)),
            basis="messages",
            rests_on="messages between two ranks",
            cost=cost,
            parameters=parameters.origin + ignored,
            interval_note="no interval: α and β of messages have none",
            extrapolated=data.extrapolations(asked, size_bytes),
            held_out=self._messages_held_out(asked.hosts > 1).asked_for(shape, size_bytes, *beyond),
        )

    def _held_out_of_messages(self, far: bool) -> HeldOut:  # noqa: FBT001 - cached by position
        """The error of messages on the largest measured number of ranks, which they did not use."""
        parameters = self.data.messages[far]

        def seconds(shape: Shape, size_bytes: int) -> float | None:
            cost = self.algorithm(shape, size_bytes)
            if isinstance(cost, Unavailable) or isinstance(parameters, Unavailable):
                return None
            return parameters.seconds(cost, *shape, size_bytes)

        curves = [curve for curve in self.data.curves if (curve.key.hosts > 1) == far]
        why_not = f"{self.data.op} by {self.data.algorithm or 'the library'} was not measured"
        words = "which the parameters did not use", why_not
        # The test extrapolated from 2 ranks, or 2 hosts, to these, so it validates the same factor beyond them.
        return HeldOut.of(curves, [(2, 2 if far else 1)], seconds, words)


def _cores(*, sharing: bool) -> str:
    return "ranks that share cores" if sharing else "ranks with a core each"


def sized(label: str, notes: Iterable[tuple[int, str]], sizes_bytes: Sequence[int]) -> list[str]:
    """The ``notes`` (size, text) without duplicates, each with its sizes unless these are all of ``sizes_bytes``."""
    lines: list[str] = []
    for words, of in by_key((words, size) for size, words in notes).items():
        where = "" if set(of) >= set(sizes_bytes) else " to ".join(map(about_size, dict.fromkeys((of[0], of[-1]))))
        head = f"{label} ({where})" if label and where else label or where
        lines.append(f"{head}: {words}" if head else words)
    return lines


@dataclass(frozen=True, slots=True)
class Line:
    """The time of one algorithm over the number of ranks.

    ``points``: (ranks, time).
    ``chosen``: whether predictions use it; it is then carried if possible, while others are by messages.
    ``at_once``: the most concurrent messages of a rank in a round, over all points.
    """

    algorithm: str
    chosen: bool
    points: tuple[tuple[int, Value], ...]
    at_once: float = 1.0


@dataclass(frozen=True, slots=True)
class Scaling:
    """The time of one call of ``size_bytes`` over the number of ranks.

    ``lines``: one per algorithm, the fastest at the requested number of ranks first.
    ``measured``: measured points of this size, by ranks.
    ``fitted``: times of this size from the fits of curves that did not measure it, by ranks.
    """

    query: PredictionQuery
    size_bytes: int
    lines: tuple[Line, ...]
    measured: tuple[tuple[int, GroupSummary], ...]
    fitted: tuple[tuple[int, Value], ...]


def scaling(ways: Ways, asked: PredictionQuery) -> Scaling:
    """One size over 2 to 65,536 ranks, for every algorithm with known parameters.

    Each host has as many ranks as in the question. Raises UsageError for several sizes, AnalysisError if there is no
    algorithm.
    """
    if len(asked.sizes_bytes) != 1:
        raise UsageError("--plot needs exactly one size, such as --size 1MiB", code="several-sizes")
    (size,), far, each = asked.sizes_bytes, asked.hosts > 1, on_a_host(asked.shape)
    curves = [curve for curve in ways.data.curves if (curve.key.hosts > 1) == far]
    counts = sorted({*(2**power for power in range(1, 17)), asked.ranks, *(curve.shape[0] for curve in curves)})
    shapes = [(count, -(-count // each) if far else 1) for count in counts]
    costs, unknown = ways.candidates(asked.shape)
    lines = [
        _along(ways, cost, shapes, size, chosen=place == 0 and unknown is None) for place, cost in enumerate(costs)
    ]
    lines = [line for line in lines if len(line.points) > 1]
    if not lines:
        why = unknown or ways.forecast(asked, size)
        reason = why.reason if isinstance(why, Unavailable) else "no algorithm is known on several numbers of ranks"
        raise AnalysisError(f"no model of {asked.op} can be plotted over ranks: {reason}", code="nothing-to-draw")
    measured, fitted = [], []
    for curve in curves:
        if (at := curve.at(size)) is not None:
            measured.append((curve.shape[0], at))
        elif isinstance(fit := ways.fitted(curve), FittedCurve) and fit.no_slope(size) is None:
            fitted.append((curve.shape[0], fit.seconds(size)))

    def taken(line: Line) -> tuple[bool, float]:
        nearest = min(line.points, key=lambda point: abs(point[0] - asked.ranks))
        return not line.chosen, nearest[1].value

    return Scaling(asked, size, tuple(sorted(lines, key=taken)), tuple(measured), tuple(fitted))


def _along(ways: Ways, cost: CostModel, shapes: Sequence[Shape], size_bytes: int, *, chosen: bool) -> Line:
    """The times of ``cost`` for every shape that it exists for; if ``chosen``, all carried or all by messages."""
    carried = {shape: ways.carry(shape, size_bytes) for shape in shapes} if chosen else {}
    values = {shape: carry.seconds(size_bytes) for shape, carry in carried.items() if isinstance(carry, Carry)}
    if not values:
        values = {
            shape: Value(parameters.seconds(cost, *shape, size_bytes))
            for shape in shapes
            if isinstance(parameters := ways.data.messages[shape[1] > 1], Parameters)
            and cost.possible(*shape, size_bytes)
        }
    at_once = max((cost.at_once(*shape, size_bytes) for shape in values), default=1.0)
    return Line(cost.algorithm, chosen, tuple((ranks, value) for (ranks, _), value in values.items()), at_once)
