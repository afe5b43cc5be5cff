"""From a question to its prediction: check the question, select the curve or model, list extrapolations and notes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from busbw.errors import AnalysisError, UsageError
from busbw.ops import MESSAGES, OF_TWO_RANKS
from busbw.units import about_size
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.series import Point
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.fitting.checks import usable
from busbw_analysis.fitting.design import Observation, Regime
from busbw_analysis.fitting.joint import fit_jointly, regimes
from busbw_analysis.models.costs import CostModel
from busbw_analysis.models.gloo import MODELLED, unmodelled
from busbw_analysis.models.select import candidates, model_for
from busbw_analysis.predict.forecast import NEW_REGIME, Forecast, by_curve, by_scaling_model, curve_of, size_words
from busbw_analysis.predict.scaling_models import ScalingModel, Value, from_joint, from_messages, model_for_question
from busbw_analysis.predict.selection import MeasuredCurves

_SIZES = 5
"""Number of sizes that are predicted if none is given."""


@dataclass(frozen=True, slots=True)
class PredictionQuery:
    """A question: ``op`` on ``ranks`` ranks over ``hosts`` hosts at each of ``sizes_bytes``; (0,) without a size."""

    op: str
    ranks: int
    hosts: int
    sizes_bytes: tuple[int, ...]


def query(
    data: MeasuredCurves,
    ranks: int,
    sizes_bytes: Sequence[int],
    *,
    hosts: int | None = None,
    ranks_per_host: int | None = None,
) -> PredictionQuery:
    """The question with defaults from ``data``: without ``sizes_bytes``, a few of the measured sizes.

    Without ``hosts`` and ``ranks_per_host``, the hosts are those measured with as many ranks; otherwise each host gets
    as many ranks as were measured. Raises UsageError for an invalid question, AnalysisError if nothing was measured
    between hosts but the question needs it.
    """
    op = data.op
    if ranks < 2:
        raise UsageError(f"--ranks {ranks}: fewer than 2 ranks send nothing; give at least 2", code="one-rank")
    if op in OF_TWO_RANKS and ranks != 2:
        raise UsageError(f"--ranks {ranks}: {op} always runs between 2 ranks; give 2", code="two-ranks")
    unsized = not any(point.size_bytes for one in data.of_op for point in one.points)
    if unsized and sizes_bytes:
        raise UsageError(f"{op} has no size; omit --size", code="no-size")
    if not unsized and not all(sizes_bytes):
        raise UsageError(f"size 0: {op} needs a size above 0 (--size 1MiB)", code="size")
    found = _hosts(data, ranks, hosts, ranks_per_host)
    return PredictionQuery(op, ranks, found, tuple(sizes_bytes) or ((0,) if unsized else _some_sizes(data)))


def _some_sizes(data: MeasuredCurves) -> tuple[int, ...]:
    """A few of the measured sizes, evenly spaced from the smallest to the largest."""
    sizes = sorted({point.size_bytes for one in data.of_op for point in one.points} - {0})
    places = {round((len(sizes) - 1) * step / (_SIZES - 1)) for step in range(_SIZES)}
    return tuple(sizes[place] for place in sorted(places))


def _hosts(data: MeasuredCurves, ranks: int, hosts: int | None, ranks_per_host: int | None) -> int:
    shapes = [one.shape for one in data.of_op]
    far = [shape for shape in shapes if shape[1] > 1]
    if hosts is not None and ranks_per_host is not None:
        raise UsageError("--hosts and --ranks-per-host are alternatives; give only one of them", code="said-twice")
    if ranks_per_host is not None:
        if ranks_per_host < 1:
            raise UsageError(f"--ranks-per-host {ranks_per_host}: must be at least 1", code="ranks-per-host")
        hosts = -(-ranks // ranks_per_host)
    if hosts is None:
        same = [shape[1] for shape in shapes if shape[0] == ranks]
        most = max((-(-count // over) for count, over in far), default=ranks)
        hosts = same[0] if same else -(-ranks // most)
    if not 1 <= hosts <= ranks:
        raise UsageError(f"--hosts {hosts}: must be 1 to {ranks}, so that each host has a rank", code="hosts")
    if hosts > 1 and not far:
        raise AnalysisError(
            f"{ranks} ranks on {hosts} hosts need the network, but these runs have no measurement between hosts. "
            "Measure on two or more hosts, or predict for one host with --hosts 1",
            code="between-hosts-not-measured",
        )
    if hosts == 1 and not any(shape[1] == 1 for shape in shapes):
        least = min(shape[1] for shape in shapes)
        raise AnalysisError(
            f"{ranks} ranks on 1 host: these runs have only measurements over {least} or more hosts, which do not "
            "determine the time inside a host; measure on one host, or predict for several with --hosts",
            code="within-host-not-measured",
        )
    return hosts


def extrapolations(data: MeasuredCurves, asked: PredictionQuery, size_bytes: int) -> tuple[str, ...]:
    """Notes on the respects in which the question lies outside the measurements."""
    far = asked.hosts > 1
    curves = [one for one in data.curves or data.of_op if (one.key.hosts > 1) == far]
    sizes = sorted({point.size_bytes for one in curves for point in one.points if point.size_bytes})
    notes = size_words(size_bytes, sizes[0], sizes[-1]) if sizes and size_bytes else []
    shapes = [one.shape for one in curves]
    if data.curve(asked.ranks, asked.hosts) is not None or not shapes:
        return tuple(notes)
    amounts = ("ranks", asked.ranks), ("hosts", asked.hosts)
    for (what, amount), measured in zip(amounts, zip(*shapes, strict=True), strict=True):
        if amount > max(measured):
            notes.append(f"{what}: {amount} are {amount / max(measured):.3g} × the most measured, {max(measured)}")
        elif amount < min(measured):
            notes.append(f"{what}: {amount} are fewer than the fewest measured, {min(measured)}")
    return (*notes, *_on_a_host(data, asked, shapes))


def _on_a_host(data: MeasuredCurves, asked: PredictionQuery, shapes: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    """A note on the number of ranks per host and their cores, if it lies outside the measurements."""
    counts = sorted({-(-ranks // hosts) for ranks, hosts in shapes})
    each, least, measured = -(-asked.ranks // asked.hosts), counts[0], counts[-1]
    oversubscribed = [shape for shape in shapes if data.oversubscribed(*shape)]
    of = f"{each} ranks on a host of {data.cores} usable cores"
    if data.oversubscribed(asked.ranks, asked.hosts) and not oversubscribed:
        return (f"cores: {of} share cores, {NEW_REGIME}: the measured ranks had a core each",)
    if oversubscribed and len(oversubscribed) == len(shapes) and not data.oversubscribed(asked.ranks, asked.hosts):
        return (f"cores: {of} have a core each, {NEW_REGIME}: the measured ranks shared cores",)
    if oversubscribed and each > measured:
        return (f"cores: {of} share cores; at most {measured} ranks on a host were measured",)
    if each > measured:
        return (f"ranks per host: {each} are more than the most measured, {measured}",)
    if asked.hosts > 1 and each < least:
        return (f"ranks per host: {each} are fewer than the fewest measured, {least}",)
    return ()


def sized(label: str, notes: Iterable[tuple[int, str]], sizes_bytes: Sequence[int]) -> list[str]:
    """The ``notes`` (size, text) without duplicates, each with its sizes unless these are all of ``sizes_bytes``."""
    lines: list[str] = []
    for words, of in by_key((words, size) for size, words in notes).items():
        where = "" if set(of) >= set(sizes_bytes) else sizes_in_words(of)
        head = f"{label} ({where})" if label and where else label or where
        lines.append(f"{head}: {words}" if head else words)
    return lines


def sizes_in_words(sizes_bytes: Sequence[int]) -> str:
    """The size, or the first and last of several."""
    first, last = about_size(sizes_bytes[0]), about_size(sizes_bytes[-1])
    return first if len(sizes_bytes) == 1 else f"{first} to {last}"


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
    unanswered: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Line:
    """The time of one algorithm over the number of ranks.

    ``points``: (ranks, time).
    ``chosen``, ``tied``: as in its ScalingModel.
    ``at_once``: the most concurrent messages of a rank in a round, over all points.
    """

    algorithm: str
    chosen: bool
    tied: bool
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
    measured: tuple[tuple[int, Point], ...]
    fitted: tuple[tuple[int, Value], ...]


def scaling(data: MeasuredCurves, asked: PredictionQuery) -> Scaling:
    """One size over 2 to 65,536 ranks, for every algorithm with known parameters.

    Each host has as many ranks as in the question. Raises UsageError for several sizes, AnalysisError if there is no
    algorithm.
    """
    if len(asked.sizes_bytes) != 1:
        raise UsageError("--plot needs exactly one size, such as --size 1MiB", code="several-sizes")
    (size,) = asked.sizes_bytes
    each = -(-asked.ranks // asked.hosts)
    far = asked.hosts > 1
    curves = [one for one in data.curves if (one.key.hosts > 1) == far]
    counts = sorted({*(2**power for power in range(1, 17)), asked.ranks, *(len(one.key.ranks) for one in curves)})
    found, notes = scaling_models_for(data, asked)
    models, refused = found[size].models, found[size].refused
    shapes = [(count, -(-count // each) if far else 1) for count in counts]
    lines = [line for model in models if len((line := _along(model, shapes, size)).points) > 1]
    if not lines:
        why = "; ".join([*notes, *([refused] if refused else [])]) or "no algorithm is known"
        raise AnalysisError(f"no model of {asked.op} can be plotted over ranks: {why}", code="nothing-to-draw")
    measured, fitted = [], []
    for one in curves:
        ranks = len(one.key.ranks)
        if (at := one.at(size)) is not None:
            measured.append((ranks, at))
            continue
        try:
            fitted.append((ranks, by_curve(curve_of(one), size).seconds))
        except AnalysisError:
            continue  # a curve without a fit gives no time for another size

    def taken(line: Line) -> tuple[bool, bool, float]:
        nearest = min(line.points, key=lambda point: abs(point[0] - asked.ranks))
        return not line.chosen, not line.tied, nearest[1].value

    return Scaling(asked, size, tuple(sorted(lines, key=taken)), tuple(measured), tuple(fitted))


def _along(model: ScalingModel, shapes: Sequence[tuple[int, int]], size_bytes: int) -> Line:
    """The times of ``model`` for every shape that it exists for and its parameters determine."""
    cost = model.cost
    points: list[tuple[int, Value]] = []
    at_once = 1.0
    for ranks, hosts in shapes:
        if cost.possible(ranks, hosts, size_bytes):
            try:
                points.append((ranks, model.at(ranks, hosts, size_bytes)))
            except AnalysisError:
                continue
            at_once = max(at_once, cost.at_once(ranks, hosts, size_bytes))
    return Line(cost.algorithm, model.chosen, model.tied, tuple(points), at_once)


def answer(data: MeasuredCurves, asked: PredictionQuery) -> Prediction:
    """The prediction for ``asked``. Raises AnalysisError, with what to measure, if the data determine none."""
    measured = data.curve(asked.ranks, asked.hosts)
    notes = list(data.notes)
    if measured is not None and measured.points[-1].size_bytes:
        try:
            curve = curve_of(measured)
            return Prediction(asked, data, tuple(by_curve(curve, size) for size in asked.sizes_bytes), tuple(notes))
        except AnalysisError as error:
            notes.append(str(error))
    found, about = scaling_models_for(data, asked)
    notes += about
    unanswered = {size: one.refused for size, one in found.items() if one.refused is not None}
    if len(unanswered) == len(found):
        # Several reasons may end with the same clause, such as the number of sizes that a fit needs.
        reasons = [*notes, next(iter(unanswered.values()))]
        why = "; ".join(dict.fromkeys(clause for reason in reasons for clause in reason.split("; ")))
        raise AnalysisError(f"no prediction for {data.op} on {asked.ranks} ranks: {why}", code="nothing-follows")
    forecasts = [
        by_scaling_model(
            one.models, asked.ranks, asked.hosts, size, one.beyond(extrapolations(data, asked, size)), measured
        )
        for size, one in found.items()
        if one.refused is None
    ]
    answered = [one.size_bytes for one in forecasts]
    notes += sized("", [(one.size_bytes, note) for one in forecasts for note in one.notes], answered)
    return Prediction(asked, data, tuple(forecasts), tuple(notes), unanswered)


@dataclass(frozen=True, slots=True)
class SizeModels:
    """The models for one size.

    ``models``: the known models, one of which is ``chosen`` unless ``refused``.
    ``regime``: a note on the regime of their parameters if it differs from that of the question.
    ``refused``: the reason why no model predicts this size; None if one does.
    """

    models: tuple[ScalingModel, ...]
    regime: str | None = None
    refused: str | None = None

    def beyond(self, notes: Sequence[str]) -> tuple[str, ...]:
        """The ``extrapolations`` of the question, and the regime if these do not mention it."""
        mentioned = self.regime is None or any(NEW_REGIME in note for note in notes)
        return tuple(notes) if mentioned else (*notes, f"regime: {self.regime}")


def scaling_models_for(data: MeasuredCurves, asked: PredictionQuery) -> tuple[dict[int, SizeModels], tuple[str, ...]]:
    """For each size, every algorithm that may be behind the op, with parameters from these data; and notes.

    The parameters come from a joint fit or from messages between two ranks, whichever has the lower held-out error. No
    model is chosen if it is unknown which algorithm the backend runs. The result for a size does not depend on the
    other sizes.
    """
    sizes = asked.sizes_bytes
    if (reason := unmodelled(data.op)) is not None:
        why = f"{data.op}: {reason.reason}, so other numbers of ranks cannot be predicted"
        return {size: SizeModels((), refused=why) for size in sizes}, ()
    by_joint, no_joint, notes = _by_joint_fit(_JointFitData(data, asked), asked)
    messages, unknown = _by_messages(data, asked)
    found: dict[int, SizeModels] = {}
    instead: dict[int, str] = {}
    left: dict[int, str] = {}
    for size in sizes:
        why_not = unknown or _refusal(messages, asked, size)
        fitted, refused = by_joint.get(size), no_joint.get(size)
        if fitted is None:
            reasons = dict.fromkeys(reason for reason in (refused, why_not) if reason)
            found[size] = SizeModels(messages, refused="; ".join(reasons) if why_not else None)
            instead |= {size: refused} if refused and not why_not else {}
        elif why_not:
            found[size] = fitted
        else:
            by_messages, left[size] = _better(fitted.models, messages)
            found[size] = SizeModels(messages) if by_messages else fitted
    # Reasons differ only in the times they name, so the reason of the last size represents all of them.
    instead = dict.fromkeys(instead, next(reversed(instead.values()), ""))
    return found, (
        *notes,
        *sized("no joint fit", instead.items(), sizes),
        *sized("not used", left.items(), sizes),
    )


def _refusal(models: Sequence[ScalingModel], asked: PredictionQuery, size_bytes: int) -> str:
    """Why ``models``, one of which is chosen, do not predict a size; empty if they do."""
    try:
        model_for_question(models, asked.ranks, asked.hosts, size_bytes)
    except AnalysisError as error:
        return str(error)
    return ""


class _JointFitData:
    """The data of joint fits for ``op``.

    ``apart``: observations by regime, those most similar to the ``wanted`` regime first.
    ``explicit``: the explicit algorithm of the question; None for the library's own.
    ``measured``: whether that explicit algorithm was measured.
    """

    def __init__(self, data: MeasuredCurves, asked: PredictionQuery) -> None:
        wanted = Regime.of(asked.ranks, asked.hosts, oversubscribed=data.oversubscribed(asked.ranks, asked.hosts))
        apart = regimes([one for one in data.observations() if (one.hosts > 1) == (asked.hosts > 1)])

        def unlike(regime: Regime) -> int:
            return (regime.oversubscribed != wanted.oversubscribed) + (regime.placement != wanted.placement)

        self.op, self.explicit = data.op, data.algorithm
        self.measured = self.explicit is not None and any(data.curves)
        self.wanted, self.apart = wanted, {regime: apart[regime] for regime in sorted(apart, key=unlike)}

    def own(self, one: Observation) -> bool:
        """Whether it is of the op, and of the requested explicit algorithm if that was measured."""
        return one.op == self.op and (not self.measured or one.algorithm == self.explicit)

    def fits(self) -> Iterator[tuple[Regime, SizeModels, tuple[str, ...]]]:
        """For each regime, its models and the reasons for curves left out.

        The first fit of a regime uses the op's own curves and messages; the second uses all ops, in case the first does
        not separate the parameters. A regime with the op on too few numbers of ranks is skipped.
        """
        for regime, members in self.apart.items():
            known = [one for one in members if one.op in MODELLED]
            few = [one for one in known if self.own(one) or (one.op in MESSAGES and one.op != self.op)]
            for chosen in (few, known):
                kept, left_out = usable(chosen)
                if len({one.ranks for one in kept if self.own(one)}) < 2:
                    continue
                try:
                    models = from_joint(fit_jointly(kept), self.op, self.explicit)
                except AnalysisError as error:
                    yield regime, SizeModels((), refused=str(error)), ()
                    continue
                yield regime, self.carried_over(regime, models), left_out

    def too_few(self) -> str:
        """Why no regime has a fit."""
        own = {regime: [one for one in members if self.own(one)] for regime, members in self.apart.items()}
        counts = {regime: sorted({one.ranks for one in members}) for regime, members in own.items() if members}
        fewest_first = sorted(counts.items(), key=lambda one: one[1])
        there = "; ".join(f"{regime}: {', '.join(map(str, ranks))}" for regime, ranks in fewest_first)
        why = f"it needs {self.op} on two numbers of ranks in one regime; these runs have {there or 'none'}"
        return "; ".join(dict.fromkeys([why, *(reason for members in own.values() for reason in usable(members)[1])]))

    def carried_over(self, regime: Regime, models: tuple[ScalingModel, ...]) -> SizeModels:
        """The models of a fit, marked as not validated for the wanted regime if that differs."""
        wanted = self.wanted
        where: list[str] = [] if regime.placement == wanted.placement else [wanted.placement]
        if regime.oversubscribed != wanted.oversubscribed:
            cores = "ranks that share cores" if wanted.oversubscribed else "ranks with a core each"
            models = tuple(replace(model, held_out=model.held_out.asked_for(cores)) for model in models)
            where.append(cores)
        return SizeModels(models, f"the parameters are for {regime}, not for {' and '.join(where)}" if where else None)


def _by_joint_fit(
    data: _JointFitData, asked: PredictionQuery
) -> tuple[dict[int, SizeModels], dict[int, str], list[str]]:
    """Joint fits for each size: the first that predicts it; or why none does; and notes on curves left out, and why
    there is no joint fit at all.
    """
    found: dict[int, SizeModels] = {}
    # Keep the last reason of each regime: the fit to all ops lacks less than the fit to the op and messages.
    refused: dict[int, dict[Regime, str]] = {size: {} for size in asked.sizes_bytes}
    left_out: dict[str, None] = {}
    for regime, tried, without in data.fits():
        for size in [size for size in refused if size not in found]:
            why = tried.refused or _refusal(tried.models, asked, size)
            if why:
                refused[size][regime] = why
            else:
                found[size] = tried
                left_out |= dict.fromkeys(f"left out of the joint fit: {reason}" for reason in without)
        if len(found) == len(refused):
            break
    reasons = {size: "; ".join(dict.fromkeys(why.values())) for size, why in refused.items() if size not in found}
    # If a fit exists but does not determine the size, that is the reason, whatever other regimes lack.
    if reasons and not any(reasons.values()):
        return found, {}, [*left_out, f"no joint fit: {data.too_few()}"]
    return found, reasons, list(left_out)


def _by_messages(data: MeasuredCurves, asked: PredictionQuery) -> tuple[tuple[ScalingModel, ...], str]:
    """The models with parameters from messages, and why none of them is chosen; empty if one is."""
    far = asked.hosts > 1
    parameters = data.parameters(far=far)
    if isinstance(parameters, Unavailable):
        return (), parameters.reason
    calls = data.calls(asked.ranks, asked.hosts)
    choices = [calls.choice(data.op, asked.ranks, asked.hosts, size) for size in asked.sizes_bytes] if calls else []
    unknown = [one.reason for one in choices if isinstance(one, Unavailable)]
    # A table that has an algorithm for some of the sizes is used for those; the others get the reason.
    why = f": {unknown[0]}" if unknown and len(unknown) == len(choices) else ""
    costs = candidates(data.op, data.key.cost_models, data.algorithm, None if why else calls)
    own = isinstance(model_for(data.op, data.key.cost_models), CostModel) or costs[0].family == data.key.cost_models
    known = data.algorithm is not None or own
    names = ", ".join(cost.algorithm for cost in costs)
    why_not = f"the algorithm of {data.key.backend} for {data.op} is unknown{why}; choose one with --algorithm: {names}"
    curves = [one for one in data.curves if (one.key.hosts > 1) == far]
    models = tuple(
        from_messages(cost, parameters, curves if place == 0 and known else (), chosen=place == 0 and known)
        for place, cost in enumerate(costs)
    )
    return models, "" if known else why_not


def _better(joint: Sequence[ScalingModel], messages: Sequence[ScalingModel]) -> tuple[bool, str]:
    """Whether messages have a lower held-out error than the joint fit, and a note on the rejected one.

    If nothing could be held out of the joint fit, it has still used the op on several numbers of ranks, which messages
    have not; then messages are used only if they passed their validation.
    """
    known, other = (next(model for model in models if model.chosen) for models in (joint, messages))
    score, against = known.held_out.median_error, other.held_out.median_error
    by_messages = bool(other.held_out.passed) if score is None else against is not None and against < score
    left = known if by_messages else other
    return by_messages, f"{left.parameters.basis}, {left.held_out.words}"
