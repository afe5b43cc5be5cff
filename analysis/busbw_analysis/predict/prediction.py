"""From what was measured to what was not: which curve or law answers a question, and what has to be said with it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from busbw.errors import AnalysisError, UsageError
from busbw.ops import MESSAGES
from busbw_analysis.data.series import Point
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.fitting.joint import Observation, Regime, fit_jointly, regimes
from busbw_analysis.fitting.refusals import usable
from busbw_analysis.models.costs import CostModel
from busbw_analysis.models.gloo import UNMODELLED
from busbw_analysis.models.select import candidates, model_for
from busbw_analysis.predict.forecast import NEW_REGIME, Forecast, by_curve, by_law, curve_of
from busbw_analysis.predict.laws import Law, Value, answering, from_joint, from_messages
from busbw_analysis.predict.query import Question, reaches, sized
from busbw_analysis.predict.selection import LIBRARY, Evidence


@dataclass(frozen=True, slots=True)
class Prediction:
    """The answers, one for each size, with the evidence that they are from and what has to be known of all of them.
    ``unanswered`` are the sizes that have none, each with the reason.
    """

    question: Question
    evidence: Evidence
    forecasts: tuple[Forecast, ...]
    notes: tuple[str, ...]
    unanswered: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Line:
    """What one algorithm takes over numbers of ranks: (ranks, time). ``chosen`` and ``tied`` as of its law;
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

    question: Question
    size_bytes: int
    lines: tuple[Line, ...]
    measured: tuple[tuple[int, Point], ...]
    fitted: tuple[tuple[int, Value], ...]


def scaling(evidence: Evidence, asked: Question) -> Scaling:
    """One size over 2 to 65,536 ranks, by every algorithm that there are parameters for; ranks are spread over hosts
    as those that were asked for. Raises UsageError for several sizes, AnalysisError without any algorithm.
    """
    if len(asked.sizes_bytes) != 1:
        message = f"--plot draws one size over ranks; --size has {len(asked.sizes_bytes)}"
        raise UsageError(message, code="several-sizes")
    (size,) = asked.sizes_bytes
    each = -(-asked.ranks // asked.hosts)

    def hosts(ranks: int) -> int:
        return 1 if asked.hosts == 1 else -(-ranks // each)

    far = asked.hosts > 1
    curves = [one for one in evidence.curves if (one.key.hosts > 1) == far]
    counts = sorted({*(2**power for power in range(1, 17)), asked.ranks, *(len(one.key.ranks) for one in curves)})
    found, notes = laws_for(evidence, asked)
    laws, refused = found[size].laws, found[size].refused
    shapes = [(count, hosts(count)) for count in counts]
    lines = [line for law in laws if len((line := _along(law, shapes, size)).points) > 1]
    if not lines:
        why = "; ".join([*notes, *([refused] if refused else [])]) or "no algorithm is known"
        message = f"there is no model to draw {asked.op} over ranks by: {why}"
        raise AnalysisError(message, code="nothing-to-draw")
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


def _along(law: Law, shapes: Sequence[tuple[int, int]], size_bytes: int) -> Line:
    """The times of ``law`` on every shape that it exists for and that its parameters tell of."""
    model = law.model
    points: list[tuple[int, Value]] = []
    at_once = 1.0
    for ranks, hosts in shapes:
        if model.possible(ranks, hosts, size_bytes):
            try:
                points.append((ranks, law.at(ranks, hosts, size_bytes)))
            except AnalysisError:
                continue
            at_once = max(at_once, model.at_once(ranks, hosts, size_bytes))
    return Line(model.algorithm, law.chosen, law.tied, tuple(points), at_once)


def predict(evidence: Evidence, asked: Question) -> Prediction:
    """The answers to ``asked``. Raises AnalysisError, with what is needed, where the data carry none."""
    measured = evidence.curve(asked.ranks, asked.hosts)
    notes = list(evidence.notes)
    if measured is not None and measured.points[-1].size_bytes:
        try:
            curve = curve_of(measured)
            return Prediction(asked, evidence, tuple(by_curve(curve, size) for size in asked.sizes_bytes), tuple(notes))
        except AnalysisError as error:
            refused = str(error)
            notes.append(refused)
    found, about = laws_for(evidence, asked)
    notes += about
    unanswered = {size: one.refused for size, one in found.items() if one.refused is not None}
    if len(unanswered) == len(found):
        why = "; ".join(dict.fromkeys([*notes, next(iter(unanswered.values()))]))
        message = f"nothing follows for {evidence.op} on {asked.ranks} ranks: {why}"
        raise AnalysisError(message, code="nothing-follows")
    forecasts = [
        by_law(one.laws, asked.ranks, asked.hosts, size, one.beyond(reaches(evidence, asked, size)), measured)
        for size, one in found.items()
        if one.refused is None
    ]
    answered = [one.size_bytes for one in forecasts]
    notes += sized("", [(one.size_bytes, said) for one in forecasts for said in one.notes], answered)
    return Prediction(asked, evidence, tuple(forecasts), tuple(notes), unanswered)


@dataclass(frozen=True, slots=True)
class Answering:
    """The laws that answer one size, of which one is chosen; or those that there are, with the reason why none answers
    in ``refused``. ``regime`` says where their parameters are from, if that is no regime like the one asked for.
    """

    laws: tuple[Law, ...]
    regime: str | None = None
    refused: str | None = None

    def beyond(self, reaches: Sequence[str]) -> tuple[str, ...]:
        """What is extrapolated: what ``reaches`` of the question does, and the regime where those do not say it."""
        said = self.regime is None or any(NEW_REGIME in one for one in reaches)
        return tuple(reaches) if said else (*reaches, f"regime: {self.regime}")


def laws_for(evidence: Evidence, asked: Question) -> tuple[dict[int, Answering], tuple[str, ...]]:
    """For each size every algorithm that could be behind the op, with parameters from these data, and what has to be
    said of them. A size is answered in the same way whatever others are asked for beside it.

    Parameters are those of a joint fit or those of messages between two ranks: of those that answer the size, whichever
    was less wrong on what it had not seen. None of the laws is chosen where it is not known what the backend runs.
    """
    sizes = asked.sizes_bytes
    if evidence.op in UNMODELLED:
        why = f"{evidence.op}: {UNMODELLED[evidence.op]}, so nothing follows for other numbers of ranks"
        return {size: Answering((), refused=why) for size in sizes}, ()
    joint = _by_joint_fit(_Joinable.of(evidence, asked), asked)
    messages, untold = _by_messages(evidence, asked)
    found: dict[int, Answering] = {}
    instead: dict[int, str] = {}
    left: dict[int, str] = {}
    for size in sizes:
        why_not = untold or _refusal(messages, asked, size)
        fitted, refused = joint.found.get(size), joint.refused.get(size)
        if fitted is None:
            reasons = dict.fromkeys(reason for reason in (refused, why_not) if reason)
            found[size] = Answering(messages, refused="; ".join(reasons) if why_not else None)
            instead |= {size: refused} if refused and not why_not else {}
        elif why_not:
            found[size] = fitted
        else:
            by_messages, left[size] = _better(fitted.laws, messages)
            found[size] = Answering(messages) if by_messages else fitted
    # Reasons differ by the times that they name: of several sizes, that of the last one stands for all.
    instead = dict.fromkeys(instead, next(reversed(instead.values()), ""))
    none = [f"no joint fit: {joint.too_few}"] if joint.too_few else []
    return found, (
        *joint.left_out,
        *none,
        *sized("no joint fit", instead.items(), sizes),
        *sized("not used", left.items(), sizes),
    )


def _refusal(laws: Sequence[Law], asked: Question, size_bytes: int) -> str:
    """Why ``laws``, of which one is chosen, say nothing of a size; nothing where they do."""
    try:
        answering(laws, asked.ranks, asked.hosts, size_bytes)
    except AnalysisError as error:
        return str(error)
    return ""


@dataclass(frozen=True, slots=True)
class _Joint:
    """What joint fits say: of each size the first that answers it, else why those that there are do not. ``too_few`` is
    why there is none at all, ``left_out`` what could not take part in those that answer.
    """

    found: dict[int, Answering] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    too_few: str = ""


@dataclass(frozen=True, slots=True)
class _Tried:
    """The laws of one joint fit, and what was left out of it; or why there are none."""

    regime: Regime
    laws: tuple[Law, ...] = ()
    left_out: tuple[str, ...] = ()
    refused: str = ""


@dataclass(frozen=True, slots=True)
class _Joinable:
    """What joint fits for ``op`` can be made of: observations ``apart`` by their regime, those most like the ``wanted``
    one first. ``by_hand`` is the algorithm that is asked for; ``measured`` says whether it was measured.
    """

    op: str
    by_hand: str | None
    measured: bool
    wanted: Regime
    apart: Mapping[Regime, Sequence[Observation]]

    @classmethod
    def of(cls, evidence: Evidence, asked: Question) -> "_Joinable":
        wanted = Regime.of(asked.ranks, asked.hosts, oversubscribed=evidence.crowded(asked.ranks, asked.hosts))
        apart = regimes([one for one in evidence.observations() if (one.hosts > 1) == (asked.hosts > 1)])

        def unlike(regime: Regime) -> int:
            return (regime.oversubscribed != wanted.oversubscribed) + (regime.placement != wanted.placement)

        by_hand = None if evidence.algorithm == LIBRARY else evidence.algorithm
        order = {regime: apart[regime] for regime in sorted(apart, key=unlike)}
        return cls(evidence.op, by_hand, by_hand is not None and any(evidence.curves), wanted, order)

    def own(self, one: Observation) -> bool:
        """Whether it is of the op, by the algorithm that is asked for where that was measured."""
        return one.op == self.op and (not self.measured or one.algorithm == self.by_hand)

    def fits(self) -> Iterator[_Tried]:
        """In each regime from the op's own curves and messages, then from all ops, for where those do not tell all
        parameters apart; none in a regime that has the op on too few numbers of ranks.
        """
        for regime, members in self.apart.items():
            known = [one for one in members if one.op not in UNMODELLED]
            few = [one for one in known if self.own(one) or (one.op in MESSAGES and one.op != self.op)]
            for chosen in (few, known):
                kept, left_out = usable(chosen)
                if len({one.ranks for one in kept if self.own(one)}) < 2:
                    continue
                try:
                    laws = from_joint(fit_jointly(kept), self.op, self.by_hand)
                except AnalysisError as error:
                    yield _Tried(regime, refused=str(error))
                    continue
                yield _Tried(regime, laws, left_out)

    def too_few(self) -> str:
        """Why there is no fit in any regime."""
        own = {regime: [one for one in members if self.own(one)] for regime, members in self.apart.items()}
        counts = {regime: sorted({one.ranks for one in members}) for regime, members in own.items() if members}
        fewest_first = sorted(counts.items(), key=lambda one: one[1])
        there = "; ".join(f"{regime}: {', '.join(map(str, ranks))}" for regime, ranks in fewest_first)
        why = f"it takes {self.op} on two numbers of ranks of one kind, and these runs have it on {there or 'none'}"
        return "; ".join(dict.fromkeys([why, *(reason for members in own.values() for reason in usable(members)[1])]))

    def carried_over(self, tried: _Tried) -> Answering:
        """The laws of a fit, for the regime that is wanted."""
        regime, wanted, laws = tried.regime, self.wanted, tried.laws
        where: list[str] = [] if regime.placement == wanted.placement else [wanted.placement]
        if regime.oversubscribed != wanted.oversubscribed:
            cores = "ranks that share cores" if wanted.oversubscribed else "ranks with a core each"
            laws = tuple(replace(law, held_out=law.held_out.asked_for(cores)) for law in laws)
            where.append(cores)
        return Answering(laws, f"the parameters are of {regime}, not of {' and '.join(where)}" if where else None)


def _by_joint_fit(data: _Joinable, asked: Question) -> _Joint:
    found: dict[int, Answering] = {}
    # Of each regime the last reason: that of a fit to all ops, which lacks less than one to the op and messages.
    refused: dict[int, dict[Regime, str]] = {size: {} for size in asked.sizes_bytes}
    left_out: dict[str, None] = {}
    for tried in data.fits():
        for size in [size for size in refused if size not in found]:
            why = tried.refused or _refusal(tried.laws, asked, size)
            if why:
                refused[size][tried.regime] = why
            else:
                found[size] = data.carried_over(tried)
                left_out |= dict.fromkeys(f"left out of the joint fit: {reason}" for reason in tried.left_out)
        if len(found) == len(refused):
            break
    reasons = {size: "; ".join(dict.fromkeys(said.values())) for size, said in refused.items() if size not in found}
    # Laws that exist and do not tell are the reason, whatever other regimes lack.
    too_few = data.too_few() if reasons and not any(reasons.values()) else ""
    return _Joint(found, {} if too_few else reasons, tuple(left_out), too_few)


def _by_messages(evidence: Evidence, asked: Question) -> tuple[tuple[Law, ...], str]:
    """The laws by messages, and why none of them is chosen where that is so."""
    far = asked.hosts > 1
    parameters = evidence.parameters(far=far)
    if isinstance(parameters, Unavailable):
        return (), parameters.reason
    by_hand = None if evidence.algorithm == LIBRARY else evidence.algorithm
    calls = evidence.calls(asked.ranks, asked.hosts)
    choices = [calls.choice(evidence.op, asked.ranks, asked.hosts, size) for size in asked.sizes_bytes] if calls else []
    unknown = [one.reason for one in choices if isinstance(one, Unavailable)]
    # A table that names something for some of the sizes answers those, and of the others it is said why not.
    why = f": {unknown[0]}" if unknown and len(unknown) == len(choices) else ""
    models = candidates(evidence.op, evidence.cost_models, by_hand, None if why else calls)
    own = (
        isinstance(model_for(evidence.op, evidence.cost_models), CostModel) or models[0].family == evidence.cost_models
    )
    known = by_hand is not None or own
    names = ", ".join(model.algorithm for model in models)
    untold = f"what {evidence.backend} runs for {evidence.op} is not known{why}; name one with --algorithm: {names}"
    curves = [one for one in evidence.curves if (one.key.hosts > 1) == far]
    laws = tuple(
        from_messages(model, parameters, curves if place == 0 and known else (), chosen=place == 0 and known)
        for place, model in enumerate(models)
    )
    return laws, "" if known else untold


def _better(joint: Sequence[Law], messages: Sequence[Law]) -> tuple[bool, str]:
    """Whether messages were less wrong than the joint fit on what they had not seen, and what is said of the other one.

    Where nothing could be kept from the joint fit, it has seen the op itself on several numbers of ranks, and messages
    have not: they are taken only where they passed.
    """
    known, other = (next(law for law in laws if law.chosen) for laws in (joint, messages))
    score, against = known.held_out.median_error, other.held_out.median_error
    by_messages = other.held_out.passed if score is None else against is not None and against < score
    left = known if by_messages else other
    return by_messages, f"{left.basis}, {left.held_out.words}"
