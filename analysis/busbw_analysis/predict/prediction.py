"""From what was measured to what was not: what may be asked, which curve or algorithm answers, how far that lies
outside of what was measured, and what has to be said with it.
"""

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
from busbw_analysis.models.gloo import UNMODELLED
from busbw_analysis.models.select import candidates, model_for
from busbw_analysis.predict.forecast import NEW_REGIME, Forecast, by_curve, by_scaling_model, curve_of, size_words
from busbw_analysis.predict.scaling_models import ScalingModel, Value, answering, from_joint, from_messages
from busbw_analysis.predict.selection import LIBRARY, MeasuredCurves, shape_of

_SIZES = 5
"""So many sizes are predicted where none is given."""


@dataclass(frozen=True, slots=True)
class PredictionQuery:
    """What is asked: ``op`` on ``ranks`` ranks over ``hosts`` hosts at each of ``sizes_bytes`` ((0,) for an op that has
    no size).
    """

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
    """The question as it can be asked of ``data``; without ``sizes_bytes`` it is of a few sizes that were measured.
    Unless ``hosts`` or ``ranks_per_host`` say it, ranks are on hosts as in the measurement of as many, else with as
    many on each as were measured.

    Raises UsageError for what cannot be asked, AnalysisError for hosts between which nothing was measured.
    """
    op = data.op
    if ranks < 2:
        raise UsageError(f"--ranks {ranks}: one rank sends nothing; want at least 2", code="one-rank")
    if op in OF_TWO_RANKS and ranks != 2:
        raise UsageError(f"--ranks {ranks}: {op} is between 2 ranks, however many there are; want 2", code="two-ranks")
    unsized = not any(point.size_bytes for one in data.of_op for point in one.points)
    if unsized and sizes_bytes:
        raise UsageError(f"{op} has no size; leave out --size", code="no-size")
    if not unsized and not all(sizes_bytes):
        raise UsageError(f"size 0: {op} needs a size above 0 (--size 1MiB)", code="size")
    found = _hosts(data, ranks, hosts, ranks_per_host)
    return PredictionQuery(op, ranks, found, tuple(sizes_bytes) or ((0,) if unsized else _some_sizes(data)))


def _some_sizes(data: MeasuredCurves) -> tuple[int, ...]:
    """A few of the sizes that were measured, from the smallest to the largest."""
    sizes = sorted({point.size_bytes for one in data.of_op for point in one.points} - {0})
    places = {round((len(sizes) - 1) * step / (_SIZES - 1)) for step in range(_SIZES)}
    return tuple(sizes[place] for place in sorted(places))


def _hosts(data: MeasuredCurves, ranks: int, hosts: int | None, ranks_per_host: int | None) -> int:
    shapes = [shape_of(one) for one in data.of_op]
    far = [shape for shape in shapes if shape[1] > 1]
    if hosts is not None and ranks_per_host is not None:
        raise UsageError("--hosts and --ranks-per-host say the same twice; give one of them", code="said-twice")
    if ranks_per_host is not None:
        if ranks_per_host < 1:
            raise UsageError(f"--ranks-per-host {ranks_per_host}: want at least 1", code="ranks-per-host")
        hosts = -(-ranks // ranks_per_host)
    if hosts is None:
        same = [shape[1] for shape in shapes if shape[0] == ranks]
        most = max((-(-count // over) for count, over in far), default=ranks)
        hosts = same[0] if same else -(-ranks // most)
    if not 1 <= hosts <= ranks:
        raise UsageError(f"--hosts {hosts}: want 1 to {ranks}, a rank on each at least", code="hosts")
    if hosts > 1 and not far:
        raise AnalysisError(
            f"{ranks} ranks on {hosts} hosts cross a node boundary, and nothing in these runs was measured between "
            "hosts: what a network takes does not follow from one host. Measure on two hosts or more, or ask for one "
            "with --hosts 1",
            code="between-hosts-not-measured",
        )
    if hosts == 1 and not any(shape[1] == 1 for shape in shapes):
        least = min(shape[1] for shape in shapes)
        raise AnalysisError(
            f"{ranks} ranks on 1 host: these runs have only measurements over {least} hosts or more, from which the "
            "time inside a host does not follow; measure on one host, or ask for more with --hosts",
            code="within-host-not-measured",
        )
    return hosts


def reaches(data: MeasuredCurves, asked: PredictionQuery, size_bytes: int) -> tuple[str, ...]:
    """What of the question lies outside of what was measured."""
    far = asked.hosts > 1
    curves = [one for one in data.curves or data.of_op if (one.key.hosts > 1) == far]
    sizes = sorted({point.size_bytes for one in curves for point in one.points if point.size_bytes})
    said = size_words(size_bytes, sizes[0], sizes[-1]) if sizes and size_bytes else []
    shapes = [shape_of(one) for one in curves]
    if data.curve(asked.ranks, asked.hosts) is not None or not shapes:
        return tuple(said)
    amounts = ("ranks", asked.ranks), ("hosts", asked.hosts)
    for (what, amount), measured in zip(amounts, zip(*shapes, strict=True), strict=True):
        if amount > max(measured):
            said.append(f"{what}: {amount} are {amount / max(measured):.3g} × the most measured, {max(measured)}")
        elif amount < min(measured):
            said.append(f"{what}: {amount} are fewer than the fewest measured, {min(measured)}")
    return (*said, *_on_a_host(data, asked, shapes))


def _on_a_host(data: MeasuredCurves, asked: PredictionQuery, shapes: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    """What is said of the number of ranks on each host, and of the cores that they have."""
    counts = sorted({-(-ranks // hosts) for ranks, hosts in shapes})
    each, least, measured = -(-asked.ranks // asked.hosts), counts[0], counts[-1]
    oversubscribed = [shape for shape in shapes if data.oversubscribed(*shape)]
    of = f"{each} ranks on a host of {data.cores} usable cores"
    if data.oversubscribed(asked.ranks, asked.hosts) and not oversubscribed:
        return (f"cores: {of} share cores, {NEW_REGIME}: none of the measured ranks did",)
    if oversubscribed and len(oversubscribed) == len(shapes) and not data.oversubscribed(asked.ranks, asked.hosts):
        return (f"cores: {of} have a core each, {NEW_REGIME}: none of the measured ranks had",)
    if oversubscribed and each > measured:
        return (f"cores: {of} share cores more than the most measured, {measured}",)
    if each > measured:
        return (f"a host: {each} ranks on one are more than the most measured, {measured}",)
    if asked.hosts > 1 and each < least:
        return (f"a host: {each} on one are fewer than the fewest ranks measured, {least}",)
    return ()


def sized(label: str, said: Iterable[tuple[int, str]], sizes_bytes: Sequence[int]) -> list[str]:
    """Everything that is ``said`` of a size, once, with the sizes it is said of where that is not all of them."""
    lines: list[str] = []
    for words, of in by_key((words, size) for size, words in said).items():
        where = "" if set(of) >= set(sizes_bytes) else sizes_in_words(of)
        head = f"{label} ({where})" if label and where else label or where
        lines.append(f"{head}: {words}" if head else words)
    return lines


def sizes_in_words(sizes_bytes: Sequence[int]) -> str:
    """One size, or from which to which."""
    first, last = about_size(sizes_bytes[0]), about_size(sizes_bytes[-1])
    return first if len(sizes_bytes) == 1 else f"{first} to {last}"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The answers, one for each size, with the data that they are from and what has to be known of all of them.
    ``unanswered`` are the sizes that have none, each with the reason.
    """

    query: PredictionQuery
    data: MeasuredCurves
    forecasts: tuple[Forecast, ...]
    notes: tuple[str, ...]
    unanswered: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Line:
    """What one algorithm takes over numbers of ranks: (ranks, time). ``chosen`` and ``tied`` as of its model;
    ``at_once`` is the most messages that a rank has in a round on any of them.
    """

    algorithm: str
    chosen: bool
    tied: bool
    points: tuple[tuple[int, Value], ...]
    at_once: float = 1.0


@dataclass(frozen=True, slots=True)
class Scaling:
    """The time of one call of ``size_bytes`` over ranks, fastest algorithm first at the number that was asked for.

    ``measured`` are the points of that very size, ``fitted`` what the fits of other curves say of it.
    """

    query: PredictionQuery
    size_bytes: int
    lines: tuple[Line, ...]
    measured: tuple[tuple[int, Point], ...]
    fitted: tuple[tuple[int, Value], ...]


def scaling(data: MeasuredCurves, asked: PredictionQuery) -> Scaling:
    """One size over 2 to 65,536 ranks, by every algorithm that there are parameters for; ranks are spread over hosts
    as those that were asked for. Raises UsageError for several sizes, AnalysisError without any algorithm.
    """
    if len(asked.sizes_bytes) != 1:
        raise UsageError("--plot draws one size over ranks: give one with --size 1MiB", code="several-sizes")
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
        raise AnalysisError(f"there is no model to draw {asked.op} over ranks by: {why}", code="nothing-to-draw")
    measured, fitted = [], []
    for one in curves:
        ranks = len(one.key.ranks)
        at = next((point for point in one.points if point.size_bytes == size), None)
        if at is not None:
            measured.append((ranks, at))
            continue
        try:
            fitted.append((ranks, by_curve(curve_of(one), size).seconds))
        except AnalysisError:
            continue  # a curve that carries no fit says nothing of another size

    def taken(line: Line) -> tuple[bool, bool, float]:
        nearest = min(line.points, key=lambda point: abs(point[0] - asked.ranks))
        return not line.chosen, not line.tied, nearest[1].value

    return Scaling(asked, size, tuple(sorted(lines, key=taken)), tuple(measured), tuple(fitted))


def _along(model: ScalingModel, shapes: Sequence[tuple[int, int]], size_bytes: int) -> Line:
    """The times of ``model`` on every shape that it exists for and that its parameters tell of."""
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
    """The answers to ``asked``. Raises AnalysisError, with what is needed, where the data carry none."""
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
        why = "; ".join(dict.fromkeys([*notes, next(iter(unanswered.values()))]))
        raise AnalysisError(f"nothing follows for {data.op} on {asked.ranks} ranks: {why}", code="nothing-follows")
    forecasts = [
        by_scaling_model(one.models, asked.ranks, asked.hosts, size, one.beyond(reaches(data, asked, size)), measured)
        for size, one in found.items()
        if one.refused is None
    ]
    answered = [one.size_bytes for one in forecasts]
    notes += sized("", [(one.size_bytes, said) for one in forecasts for said in one.notes], answered)
    return Prediction(asked, data, tuple(forecasts), tuple(notes), unanswered)


@dataclass(frozen=True, slots=True)
class Answering:
    """The models that answer one size, of which one is chosen; or those that there are, with the reason why none
    answers in ``refused``. ``regime`` says where their parameters are from, if that is no regime like that asked for.
    """

    models: tuple[ScalingModel, ...]
    regime: str | None = None
    refused: str | None = None

    def beyond(self, reaches: Sequence[str]) -> tuple[str, ...]:
        """What is extrapolated: what ``reaches`` of the question does, and the regime where those do not say it."""
        said = self.regime is None or any(NEW_REGIME in one for one in reaches)
        return tuple(reaches) if said else (*reaches, f"regime: {self.regime}")


def scaling_models_for(data: MeasuredCurves, asked: PredictionQuery) -> tuple[dict[int, Answering], tuple[str, ...]]:
    """For each size every algorithm that could be behind the op, with parameters from these data, and what has to be
    said of them. A size is answered in the same way whatever others are asked for beside it.

    Parameters are those of a joint fit or those of messages between two ranks: of those that answer the size, whichever
    was less wrong on what it had not seen. None of the models is chosen where it is not known what the backend
    runs.
    """
    sizes = asked.sizes_bytes
    if data.op in UNMODELLED:
        why = f"{data.op}: {UNMODELLED[data.op]}, so nothing follows for other numbers of ranks"
        return {size: Answering((), refused=why) for size in sizes}, ()
    by_joint, no_joint, left_out, too_few = _by_joint_fit(_Joinable(data, asked), asked)
    messages, untold = _by_messages(data, asked)
    found: dict[int, Answering] = {}
    instead: dict[int, str] = {}
    left: dict[int, str] = {}
    for size in sizes:
        why_not = untold or _refusal(messages, asked, size)
        fitted, refused = by_joint.get(size), no_joint.get(size)
        if fitted is None:
            reasons = dict.fromkeys(reason for reason in (refused, why_not) if reason)
            found[size] = Answering(messages, refused="; ".join(reasons) if why_not else None)
            instead |= {size: refused} if refused and not why_not else {}
        elif why_not:
            found[size] = fitted
        else:
            by_messages, left[size] = _better(fitted.models, messages)
            found[size] = Answering(messages) if by_messages else fitted
    # Reasons differ by the times that they name: of several sizes, that of the last one stands for all.
    instead = dict.fromkeys(instead, next(reversed(instead.values()), ""))
    return found, (
        *left_out,
        *([f"no joint fit: {too_few}"] if too_few else []),
        *sized("no joint fit", instead.items(), sizes),
        *sized("not used", left.items(), sizes),
    )


def _refusal(models: Sequence[ScalingModel], asked: PredictionQuery, size_bytes: int) -> str:
    """Why ``models``, of which one is chosen, say nothing of a size; nothing where they do."""
    try:
        answering(models, asked.ranks, asked.hosts, size_bytes)
    except AnalysisError as error:
        return str(error)
    return ""


class _Joinable:
    """What joint fits for ``op`` can be made of: observations ``apart`` by their regime, those most like the ``wanted``
    one first. ``by_hand`` is the algorithm that is asked for; ``measured`` says whether it was measured.
    """

    def __init__(self, data: MeasuredCurves, asked: PredictionQuery) -> None:
        wanted = Regime.of(asked.ranks, asked.hosts, oversubscribed=data.oversubscribed(asked.ranks, asked.hosts))
        apart = regimes([one for one in data.observations() if (one.hosts > 1) == (asked.hosts > 1)])

        def unlike(regime: Regime) -> int:
            return (regime.oversubscribed != wanted.oversubscribed) + (regime.placement != wanted.placement)

        self.op, self.by_hand = data.op, None if data.algorithm == LIBRARY else data.algorithm
        self.measured = self.by_hand is not None and any(data.curves)
        self.wanted, self.apart = wanted, {regime: apart[regime] for regime in sorted(apart, key=unlike)}

    def own(self, one: Observation) -> bool:
        """Whether it is of the op, by the algorithm that is asked for where that was measured."""
        return one.op == self.op and (not self.measured or one.algorithm == self.by_hand)

    def fits(self) -> Iterator[tuple[Regime, Answering, tuple[str, ...]]]:
        """In each regime from the op's own curves and messages, then from all ops, for where those do not tell all
        parameters apart; none in a regime that has the op on too few numbers of ranks. With each what was left out.
        """
        for regime, members in self.apart.items():
            known = [one for one in members if one.op not in UNMODELLED]
            few = [one for one in known if self.own(one) or (one.op in MESSAGES and one.op != self.op)]
            for chosen in (few, known):
                kept, left_out = usable(chosen)
                if len({one.ranks for one in kept if self.own(one)}) < 2:
                    continue
                try:
                    models = from_joint(fit_jointly(kept), self.op, self.by_hand)
                except AnalysisError as error:
                    yield regime, Answering((), refused=str(error)), ()
                    continue
                yield regime, self.carried_over(regime, models), left_out

    def too_few(self) -> str:
        """Why there is no fit in any regime."""
        own = {regime: [one for one in members if self.own(one)] for regime, members in self.apart.items()}
        counts = {regime: sorted({one.ranks for one in members}) for regime, members in own.items() if members}
        fewest_first = sorted(counts.items(), key=lambda one: one[1])
        there = "; ".join(f"{regime}: {', '.join(map(str, ranks))}" for regime, ranks in fewest_first)
        why = f"it takes {self.op} on two numbers of ranks of one kind, and these runs have it on {there or 'none'}"
        return "; ".join(dict.fromkeys([why, *(reason for members in own.values() for reason in usable(members)[1])]))

    def carried_over(self, regime: Regime, models: tuple[ScalingModel, ...]) -> Answering:
        """The models of a fit, for the regime that is wanted."""
        wanted = self.wanted
        where: list[str] = [] if regime.placement == wanted.placement else [wanted.placement]
        if regime.oversubscribed != wanted.oversubscribed:
            cores = "ranks that share cores" if wanted.oversubscribed else "ranks with a core each"
            models = tuple(replace(model, held_out=model.held_out.asked_for(cores)) for model in models)
            where.append(cores)
        return Answering(models, f"the parameters are of {regime}, not of {' and '.join(where)}" if where else None)


def _by_joint_fit(
    data: _Joinable, asked: PredictionQuery
) -> tuple[dict[int, Answering], dict[int, str], tuple[str, ...], str]:
    """What joint fits say: of each size the first that answers it, else why those that there are do not; what could not
    take part in those that answer, and why there is none at all.
    """
    found: dict[int, Answering] = {}
    # Of each regime the last reason: that of a fit to all ops, which lacks less than one to the op and messages.
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
    reasons = {size: "; ".join(dict.fromkeys(said.values())) for size, said in refused.items() if size not in found}
    # Laws that exist and do not tell are the reason, whatever other regimes lack.
    too_few = data.too_few() if reasons and not any(reasons.values()) else ""
    return found, {} if too_few else reasons, tuple(left_out), too_few


def _by_messages(data: MeasuredCurves, asked: PredictionQuery) -> tuple[tuple[ScalingModel, ...], str]:
    """The models by messages, and why none of them is chosen where that is so."""
    far = asked.hosts > 1
    parameters = data.parameters(far=far)
    if isinstance(parameters, Unavailable):
        return (), parameters.reason
    by_hand = None if data.algorithm == LIBRARY else data.algorithm
    calls = data.calls(asked.ranks, asked.hosts)
    choices = [calls.choice(data.op, asked.ranks, asked.hosts, size) for size in asked.sizes_bytes] if calls else []
    unknown = [one.reason for one in choices if isinstance(one, Unavailable)]
    # A table that names something for some of the sizes answers those, and of the others it is said why not.
    why = f": {unknown[0]}" if unknown and len(unknown) == len(choices) else ""
    costs = candidates(data.op, data.cost_models, by_hand, None if why else calls)
    own = isinstance(model_for(data.op, data.cost_models), CostModel) or costs[0].family == data.cost_models
    known = by_hand is not None or own
    names = ", ".join(cost.algorithm for cost in costs)
    untold = f"what {data.backend} runs for {data.op} is not known{why}; name one with --algorithm: {names}"
    curves = [one for one in data.curves if (one.key.hosts > 1) == far]
    models = tuple(
        from_messages(cost, parameters, curves if place == 0 and known else (), chosen=place == 0 and known)
        for place, cost in enumerate(costs)
    )
    return models, "" if known else untold


def _better(joint: Sequence[ScalingModel], messages: Sequence[ScalingModel]) -> tuple[bool, str]:
    """Whether messages were less wrong than the joint fit on what they had not seen, and what is said of the other one.

    Where nothing could be kept from the joint fit, it has seen the op itself on several numbers of ranks, and messages
    have not: they are taken only where they passed.
    """
    known, other = (next(model for model in models if model.chosen) for models in (joint, messages))
    score, against = known.held_out.median_error, other.held_out.median_error
    by_messages = bool(other.held_out.passed) if score is None else against is not None and against < score
    left = known if by_messages else other
    return by_messages, f"{left.basis}, {left.held_out.words}"
