"""From what was measured to what was not: which curve or law answers a question, and what has to be said with it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from busbw.errors import AnalysisError, UsageError
from busbw_analysis.evidence import LIBRARY, SINGLE_MESSAGES, Evidence
from busbw_analysis.questions import Question, reaches
from busbw_analysis.series import Point
from busbw_analysis.theory.choices import Unknown
from busbw_analysis.theory.curve_models import model_for
from busbw_analysis.theory.forecast import Forecast, by_curve, by_law, curve_of
from busbw_analysis.theory.joint import Observation, Regime, fit_jointly, regimes
from busbw_analysis.theory.laws import Law, Value, answering, from_joint, from_messages
from busbw_analysis.theory.models import UNMODELLED, CostModel, NoModel
from busbw_analysis.theory.refusals import usable
from busbw_analysis.theory.terms import candidates


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
        raise UsageError(message)
    (size,) = asked.sizes_bytes
    each = -(-asked.ranks // asked.hosts)

    def hosts(ranks: int) -> int:
        return 1 if asked.hosts == 1 else -(-ranks // each)

    far = asked.hosts > 1
    curves = [one for one in evidence.curves if (one.key.hosts > 1) == far]
    counts = sorted({*(2**power for power in range(1, 17)), asked.ranks, *(len(one.key.ranks) for one in curves)})
    laws, notes = laws_for(evidence, asked)
    shapes = [(count, hosts(count)) for count in counts]
    lines = [line for law in laws if len((line := _along(law, shapes, size)).points) > 1]
    if not lines:
        message = f"there is no model to draw {asked.op} over ranks by: {'; '.join(notes) or 'no algorithm is known'}"
        raise AnalysisError(message)
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
    term = law.term
    points: list[tuple[int, Value]] = []
    at_once = 1.0
    for ranks, hosts in shapes:
        if term.possible(ranks, hosts, size_bytes):
            try:
                points.append((ranks, law.at(ranks, hosts, size_bytes)))
            except AnalysisError:
                continue
            at_once = max(at_once, term.at_once(ranks, hosts, size_bytes))
    return Line(term.algorithm, law.chosen, law.tied, tuple(points), at_once)


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
    laws, why = laws_for(evidence, asked)
    notes += why
    if not any(law.chosen for law in laws):
        message = f"nothing follows for {evidence.op} on {asked.ranks} ranks: {'; '.join(notes)}"
        raise AnalysisError(message)
    unanswered = _unanswered(laws, asked)
    if len(unanswered) == len(asked.sizes_bytes):
        raise AnalysisError(next(iter(unanswered.values())))
    forecasts = [
        by_law(laws, asked.ranks, asked.hosts, size, reaches(evidence, asked, size), measured)
        for size in asked.sizes_bytes
        if size not in unanswered
    ]
    notes += dict.fromkeys(said for one in forecasts for said in one.notes)
    return Prediction(asked, evidence, tuple(forecasts), tuple(notes), unanswered)


def _unanswered(laws: Sequence[Law], asked: Question) -> dict[int, str]:
    """The sizes of which ``laws`` say nothing, and why."""
    found: dict[int, str] = {}
    for size in asked.sizes_bytes:
        try:
            answering(laws, asked.ranks, asked.hosts, size)
        except AnalysisError as error:
            found[size] = str(error)
    return found


def laws_for(evidence: Evidence, asked: Question) -> tuple[tuple[Law, ...], tuple[str, ...]]:
    """Every algorithm that could be behind the op, with parameters from these data, and what has to be said of them.

    Parameters are those of a joint fit or those of messages between two ranks: whichever was less wrong on what it had
    not seen. None of the laws is chosen where it is not known what the backend runs.
    """
    notes: list[str] = []
    if evidence.op in UNMODELLED:
        return (), (f"{evidence.op}: {UNMODELLED[evidence.op]}, so nothing follows for other numbers of ranks",)
    joint = _by_joint_fit(evidence, asked, notes)
    about_messages: list[str] = []
    laws = _better(joint, _by_messages(evidence, asked, about_messages), notes)
    # Where the joint fit answers, it is no matter what messages could not.
    return laws, tuple(notes if joint and laws is joint else [*notes, *about_messages])


def _by_joint_fit(evidence: Evidence, asked: Question, notes: list[str]) -> tuple[Law, ...]:
    """The first that answers every size, else the one that answers the most."""
    best: tuple[Law, ...] = ()
    fewest = len(asked.sizes_bytes)
    left_out: tuple[str, ...] = ()
    why = ""
    for tried in _joint_fits(evidence, asked):
        if isinstance(tried, NoModel):
            why = tried.reason
            continue
        laws, out = tried
        unanswered = _unanswered(laws, asked)
        if len(unanswered) < fewest:
            best, fewest, left_out = laws, len(unanswered), out
        if not unanswered:
            break
        why = next(reversed(unanswered.values()))
    notes += [f"left out of the joint fit: {reason}" for reason in left_out] if best else [f"no joint fit: {why}"]
    return best


def _joint_fits(evidence: Evidence, asked: Question) -> Iterator[tuple[tuple[Law, ...], tuple[str, ...]] | NoModel]:
    """From the op's own curves and messages, then from all ops, for where those do not tell all parameters apart: laws
    and what was left out, or why there are none. Regimes are in the order in which they are like the one asked for.
    """
    by_hand = None if evidence.algorithm == LIBRARY else evidence.algorithm
    apart = regimes([one for one in evidence.observations() if (one.hosts > 1) == (asked.hosts > 1)])
    crowded, alone = evidence.crowded(asked.ranks, asked.hosts), asked.hosts == asked.ranks
    measured_by_hand = any(evidence.curves) and by_hand is not None

    def own(one: Observation) -> bool:
        return one.op == evidence.op and (not measured_by_hand or one.algorithm == by_hand)

    def unlike(regime: Regime) -> int:
        other = regime.placement != "one host" and (regime.placement == "one rank on each host") != alone
        return (regime.oversubscribed != crowded) + other

    has = {regime: sorted({one.ranks for one in members if own(one)}) for regime, members in apart.items()}
    there = "; ".join(f"{regime}: {', '.join(map(str, counts))}" for regime, counts in has.items() if counts)
    why = f"it takes {evidence.op} on two numbers of ranks of one kind, and these runs have it on {there or 'none'}"
    yield NoModel(why)
    for regime in sorted(apart, key=unlike):
        members = [one for one in apart[regime] if one.op not in UNMODELLED]
        with_messages = [one for one in members if own(one) or (one.op in SINGLE_MESSAGES and one.op != evidence.op)]
        for chosen in (with_messages, members):
            kept, left_out = usable(chosen)
            if len({one.ranks for one in kept if own(one)}) < 2:
                _, short = usable([one for one in chosen if own(one)])
                why = "; ".join((why, *(reason for reason in short if reason not in why)))
                yield NoModel(why)
                continue
            try:
                laws = from_joint(fit_jointly(kept), evidence.op, by_hand)
            except AnalysisError as error:
                why = str(error)
                yield NoModel(why)
                continue
            if regime.oversubscribed != crowded:
                cores = "ranks that share cores" if crowded else "ranks with a core each"
                laws = tuple(replace(law, held_out=law.held_out.asked_for(cores)) for law in laws)
            yield laws, left_out


def _by_messages(evidence: Evidence, asked: Question, notes: list[str]) -> tuple[Law, ...]:
    far = asked.hosts > 1
    parameters = evidence.parameters(far=far)
    if isinstance(parameters, NoModel):
        notes.append(parameters.reason)
        return ()
    by_hand = None if evidence.algorithm == LIBRARY else evidence.algorithm
    calls = evidence.calls(asked.ranks, asked.hosts)
    choices = [calls.choice(evidence.op, asked.ranks, asked.hosts, size) for size in asked.sizes_bytes] if calls else []
    unknown = [one.reason for one in choices if isinstance(one, Unknown)]
    # A table that names something for some of the sizes answers those, and of the others it is said why not.
    why = f": {unknown[0]}" if unknown and len(unknown) == len(choices) else ""
    terms = candidates(evidence.op, evidence.backend, by_hand, None if why else calls)
    own = isinstance(model_for(evidence.op, evidence.backend), CostModel) or terms[0].backend == evidence.backend
    known = by_hand is not None or own
    if not known:
        names = ", ".join(term.algorithm for term in terms)
        what = f"what {evidence.backend} runs for {evidence.op} is not known{why}"
        notes.append(f"{what}; name one with --algorithm: {names}")
    curves = [one for one in evidence.curves if (one.key.hosts > 1) == far]
    return tuple(
        from_messages(term, parameters, curves if place == 0 and known else (), chosen=place == 0 and known)
        for place, term in enumerate(terms)
    )


def _better(joint: tuple[Law, ...], messages: tuple[Law, ...], notes: list[str]) -> tuple[Law, ...]:
    """Those of which the chosen one was less wrong on what it had not seen; the other one is named in ``notes``.

    Where nothing could be kept from the joint fit, it has seen the op itself on several numbers of ranks, and messages
    have not: they are taken only where they passed.
    """
    known, other = (next((law for law in laws if law.chosen), None) for laws in (joint, messages))
    if known is None or other is None:
        return messages if known is None else joint
    score, against = known.held_out.median_error, other.held_out.median_error
    by_messages = other.held_out.passed if score is None else against is not None and against < score
    left = known if by_messages else other
    notes.append(f"not used: {left.basis}, {left.held_out.words}")
    return messages if by_messages else joint
