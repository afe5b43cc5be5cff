"""Verdicts on a fleet: what is slow, how sure that is, and the numbers behind it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from types import MappingProxyType
from typing import Final, Literal

import numpy as np

from busbw.runs.asked import LEAST_NODES
from busbw.runs.records import Case
from busbw_analysis.data.grouped import by_key
from busbw_analysis.fleet import model, search
from busbw_analysis.fleet.rounds import AGAIN, FRESH, Fleet, Floats, Ints, Round, Truths

Kind = Literal["failed", "wrong", "device", "alone", "node", "link", "switch", "trunk", "undecided"]
"""failed: cannot be measured; wrong: other results than most; device: fewer of a kind than other nodes; alone: slow by
itself; trunk: pairs across a cut, or between a switch and the others, are slow together; undecided: a node or its link.
"""
Way = Literal["both", "out", "in"]
WAYS: Final[tuple[Way, ...]] = ("both", "out", "in")

PRIOR: Final[dict[Kind, float]] = {"alone": 0.01, "node": 0.01, "link": 0.001, "switch": 0.001, "trunk": 0.001}
"""Share of nodes, of the pairs of a node, and of switches that are bad before anything is measured: assumed, at the
upper end of the 0.1 % to 2 % of nodes that operators report. Evidence of accused ones outweighs it by far."""
_FAR_SIGMAS: Final = 4.0
_CLEAR, _LOWEST, _CLEAR_SIGMAS = 1.5, 0.25, 2.0
"""Times over the lowest level of the map that are never called healthy, the quantile which that level is (of four
nodes, a slow one has half of all pairs), and over the scatter of the others."""
_LIKELY: Final = 0.1
"""Adjusted error below which a suspect is undecided, not cleared."""
_ALL_FAILED: Final = 2
_OF_A_NODE: Final = frozenset({"alone", "node"})


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was measured of a suspect in a case, after it was one; of a late node also before.

    case: place in the run's cases
    measured_seconds, usual_seconds: median of the times of its rounds (mean, if some were late), and of the others
    ratio: measured over usual
    rounds: number of times
    late: how many of them had lost or late messages, if that is what is wrong; else 0
    """

    case: int
    measured_seconds: float
    usual_seconds: float
    ratio: float
    rounds: int
    late: int = 0


@dataclass(frozen=True, slots=True)
class Device:
    """A count that differs from the other nodes': ``count`` of ``what`` instead of ``usual``."""

    what: str
    count: int
    usual: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Something that is slow, missing or failed, or may be.

    nodes: their numbers; of a link its two nodes, sender first if one direction is slow
    way: of a node sending or receiving, of a link from the first to the second; of a cut from its first side
    switch: name of the switch, or None
    probability: posterior, from ``PRIOR`` and the evidence
    error: probability of so much evidence if nothing is wrong, adjusted for all suspects (Holm); None: counted, not
        measured
    case: place of the case that failed or was computed wrongly
    next_pairs: pairs that would decide; None: with any good node
    at_once: fewest pairs of a cut that were slow together; 0: not a cut
    throttled: what slowed a GPU of the node down in most rounds
    busy: whether it is undecided while other programs took CPUs
    """

    kind: Kind
    nodes: tuple[int, ...]
    way: Way = "both"
    switch: str | None = None
    probability: float = 1.0
    error: float | None = None
    evidence: tuple[Evidence, ...] = ()
    device: Device | None = None
    case: int | None = None
    next_pairs: tuple[tuple[int, int | None], ...] = ()
    at_once: int = 0
    throttled: tuple[str, ...] = ()
    busy: bool = False

    @property
    def accuses(self) -> bool:
        """Whether it names something as bad."""
        return self.kind != "undecided"

    @property
    def ratio(self) -> float:
        """The largest measured over usual time; 1 without evidence."""
        return max((each.ratio for each in self.evidence), default=1.0)


@dataclass(frozen=True, slots=True)
class Found:
    """The smallest ``ratio`` of measured to usual time of a case at which nine of ten slow nodes or links are found;
    infinite: none is.
    """

    kind: Kind
    case: int
    ratio: float


@dataclass(frozen=True, slots=True)
class Apart:
    """How far the times of the largest size of ``pairs`` different pairs are apart, by place in the fleet.

    shortest, longest: seconds
    slowest: the pair with the longest
    is_open: whether a node that is so slow may not be found, so that nothing says which of the times are usual
    """

    case: int
    shortest: float
    longest: float
    slowest: tuple[int, int]
    pairs: int
    is_open: bool

    @property
    def ratio(self) -> float:
        """The longest time over the shortest."""
        return self.longest / self.shortest


@dataclass(frozen=True, slots=True, eq=False)
class FleetJudgement:
    """All verdicts of a fleet, the surest and slowest first.

    rounds: measured rounds
    tests: suspects that were tested
    found: what the scatter of each case hides
    apart: of pairs that were measured without a controller, if their times differ and there is no verdict
    """

    fleet: Fleet
    verdicts: tuple[Verdict, ...]
    rounds: tuple[Round, ...]
    tests: int
    found: tuple[Found, ...]
    apart: Apart | None = None

    @property
    def accused(self) -> tuple[Verdict, ...]:
        """Verdicts that name something as bad."""
        return tuple(verdict for verdict in self.verdicts if verdict.accuses)

    @property
    def is_comparable(self) -> bool:
        """Whether there are enough nodes that were measured."""
        times = [(each, np.isfinite(each.seconds)) for each in self.rounds]
        measured = {int(node) for each, some in times for side in (each.sender, each.receiver) for node in side[some]}
        return len(measured) >= LEAST_NODES

    @property
    def partners(self) -> Ints:
        """With how many others each node was measured, suspect or not."""
        every = [each for each in self.rounds if each.stage in {"pairs", "held out"}]
        pairs = {pair for each in every for pair, time in zip(each.pairs, each.seconds, strict=True) if time > 0}
        both = {pair for first, second in pairs if first != second for pair in ((first, second), (second, first))}
        return np.bincount([first for first, _ in both], minlength=self.fleet.count)

    @property
    def bad_nodes(self) -> tuple[int, ...]:
        """Nodes to leave out: those of every verdict but cuts without a switch, of a link only the first."""
        verdicts = [verdict for verdict in self.accused if verdict.kind != "trunk" or verdict.switch is not None]
        nodes = [verdict.nodes[:1] if verdict.kind == "link" else verdict.nodes for verdict in verdicts]
        return tuple(sorted({node for some in nodes for node in some}))

    @property
    def code(self) -> int:
        """Exit status: 1 if anything is bad, 3 if that cannot be told, else 0."""
        if self.accused:
            return 1
        return 0 if self.is_decided and not self.verdicts else 3

    @property
    def is_decided(self) -> bool:
        """Whether what has no verdict is usual."""
        return self.is_comparable and not (self.apart is not None and self.apart.is_open)


@dataclass(frozen=True, slots=True, eq=False)
class _Test:
    """A suspect.

    log: of the evidence by way
    times: number of new data
    partners: different nodes behind them
    is_far: whether the data that made it a suspect are all there are, and it stands out from them
    """

    verdict: Verdict
    log: Floats
    times: int
    partners: int
    is_far: bool = False

    @property
    def total(self) -> float:
        return float(np.logaddexp.reduce(self.log) - np.log(len(self.log)))

    @property
    def is_slow_again(self) -> bool:
        """Whether new data speak for it and show it clearly slow: never called healthy, though it may be chance."""
        return self.total > 0 and self.verdict.ratio >= _CLEAR


def judge(
    fleet: Fleet,
    rounds: Sequence[Round],
    options: search.Options,
    devices: Iterable[tuple[int, Device]] = (),
    throttled: Mapping[int, tuple[str, ...]] = MappingProxyType({}),
) -> FleetJudgement:
    """The verdicts of the rounds of a search.

    devices: missing devices by node
    throttled: what slowed the GPUs of each node down
    A node is accused by data that were measured after it became suspect, with a family-wise error of ``ERROR_RATE``:
    1/E is a p value (Markov's inequality), and Holm's procedure goes over all suspects of all cases.
    """
    tests = [
        *(test for case in fleet.alone for test in _alone(fleet, _of(rounds, case), options)),
        *(late := list(_late(fleet, list(rounds), options))),
    ]
    # What is late is slow sometimes.
    bad = [test.verdict for test in late if test.total > np.log(1 / search.ERROR_RATE)]
    doubtful = [node for verdict in bad if verdict.kind == "node" for node in verdict.nodes]
    for case in fleet.pairs:
        tests += _of_pairs(fleet, _of(rounds, case), options, doubtful)
    if fleet.count < LEAST_NODES:
        tests = []
    verdicts = [Verdict("device", (node,), device=device) for node, device in devices]
    verdicts += _failed(rounds)
    verdicts += _merged(list(_decided(tests)))
    for case in fleet.pairs:
        verdicts += list(_unnamed(fleet, _of(rounds, case), verdicts))
    order = ("failed", "wrong", "device", "switch", "trunk", "alone", "node", "link", "undecided")
    verdicts = [_with_causes(each, rounds, throttled) for each in verdicts]
    ranked = sorted(verdicts, key=lambda verdict: (order.index(verdict.kind), -verdict.ratio))
    found = tuple(_found(fleet, list(rounds), options.within, max(1, len(tests)))) if fleet.count >= LEAST_NODES else ()
    return FleetJudgement(fleet, tuple(ranked), tuple(rounds), len(tests), found)


def _found(fleet: Fleet, every: list[Round], within: float, tests: int) -> Iterator[Found]:
    for case in (*fleet.alone, *fleet.pairs):
        rounds, alone = _of(every, case), case in fleet.alone
        first = "alone" if alone else "pairs"
        times = sum(int((each.seconds > 0).sum()) for each in rounds if each.stage == first) // fleet.count
        suspects = (model.suspects_alone if alone else model.suspects_of_pairs)(fleet, rounds, within)
        noise = model.noise_of(fleet, rounds, suspects)
        errors = model.errors_of_others(fleet, [each for each in rounds if each.stage == first], suspects)
        turns = search.TURNS_IF_BUSY if any(each.busy for each in rounds) else search.TURNS
        # The mean over three directions is a third of one.
        proof = (turns, (1 if alone else len(WAYS)) * tests / search.ERROR_RATE)
        kinds: tuple[Kind, ...] = ("alone",) if alone else ("node", "link")
        for kind in kinds:
            if times and len(errors):
                log = model.least_found(kind, errors, suspects.scale, noise, times, proof, within)
                yield Found(kind, case, float(np.exp(log)))


def _with_causes(verdict: Verdict, rounds: Sequence[Round], throttled: Mapping[int, tuple[str, ...]]) -> Verdict:
    if verdict.accuses:
        return replace(verdict, throttled=throttled.get(verdict.nodes[0], ()) if verdict.kind in _OF_A_NODE else ())
    again = [each for each in rounds if each.stage in FRESH]
    return replace(verdict, busy=any(each.busy or _disturbed(each, verdict.nodes) for each in again))


def _of(rounds: Sequence[Round], case: int) -> list[Round]:
    return [each for each in rounds if each.case == case]


def _alone(fleet: Fleet, rounds: list[Round], options: search.Options) -> Iterator[_Test]:
    suspects = model.suspects_alone(fleet, rounds, options.within)
    evidence = model.evidence_of_nodes(fleet, rounds, suspects, options.within)
    yield from _tests("alone", fleet, rounds, suspects, evidence, np.ones(len(suspects.nodes), np.bool_), options)


def _late(fleet: Fleet, rounds: list[Round], options: search.Options) -> Iterator[_Test]:
    """Who loses or delays messages of any size, with what that costs those of the first case."""
    suspects = model.suspects_late(fleet, rounds)
    nodes = model.evidence_of_nodes(fleet, rounds, suspects, options.within)
    links = model.evidence_of_links(fleet, rounds, suspects, options.within)
    tests = [_test("node", (node,), 0, nodes, row, suspects, 0.0) for row, node in enumerate(suspects.nodes.tolist())]
    doubtful = suspects.nodes[nodes.total > 0]
    tests += [
        _test("link", tuple(pair), 0, links, row, suspects, 0.0)
        for row, pair in enumerate(suspects.links.tolist())
        if not np.isin(pair, doubtful).any()
    ]
    every = [each for each in rounds if each.stage in model.OF_PAIRS and each.case in fleet.pairs[:1]]
    usual = model.data_of(fleet, every)
    spread = model.data_of(fleet, [replace(each, seconds=each.spread) for each in every if each.spread is not None])
    seconds = float(np.exp(np.median(usual.log))) if len(usual.log) else 0.0
    for test in tests:
        seen, subject = test.verdict.evidence[0], test.verdict.nodes
        own = np.isin(spread.sender, subject).astype(int) + np.isin(spread.receiver, subject) >= len(subject)
        ratio = float(np.exp(spread.log[own]).mean()) if own.any() else 1.0
        found = Evidence(fleet.pairs[0], seconds * ratio, seconds, ratio, seen.rounds, seen.late)
        yield replace(test, verdict=replace(test.verdict, evidence=(found,)))


def _of_pairs(fleet: Fleet, rounds: list[Round], options: search.Options, late: Sequence[int]) -> Iterator[_Test]:
    """Whose times are long in a case. late: nodes whose pairs are none of its suspects."""
    if not rounds:
        return
    within = options.within
    fleet = search.with_sides(fleet, rounds, within)
    suspects = model.suspects_of_pairs(fleet, rounds, within)
    evidence = model.evidence_of_nodes(fleet, rounds, suspects, within)
    bad = suspects.nodes[evidence.total > np.log(max(1, len(suspects.nodes)) / search.ERROR_RATE)]
    switches = search.bad_switches(fleet, bad) if len(fleet.switches) > 1 else np.zeros(0, dtype=np.int64)
    for switch in switches.tolist():
        yield _switch(fleet, rounds, suspects, evidence, switch, within)
    yield from _tests(
        "node", fleet, rounds, suspects, evidence, ~np.isin(fleet.leaf[suspects.nodes], switches), options
    )
    doubtful = np.concatenate([suspects.nodes[evidence.total > 0], np.asarray(late, dtype=np.int64)])
    cut = search.cut_evidence(rounds, suspects.scale, within)
    # Pairs across a bad cut are slow, too.
    side = search.across_of(fleet, rounds) if cut is not None and cut.is_bad else np.ones(fleet.count)
    kept = ~np.isin(suspects.links, doubtful).any(axis=1) & (side[suspects.links].prod(axis=1) > 0)
    of_links = model.evidence_of_links(fleet, rounds, suspects, within)
    yield from _tests("link", fleet, rounds, suspects, of_links, kept, options)
    if cut is not None and cut.slow:
        yield _cut(rounds, cut, within)


def _tests(
    kind: Kind,
    fleet: Fleet,
    rounds: list[Round],
    suspects: model.Suspects,
    evidence: model.Evidences,
    kept: Truths,
    options: search.Options,
) -> Iterator[_Test]:
    """The suspects among the nodes or links of a case that are ``kept``."""
    names: Ints = suspects.links if kind == "link" else suspects.nodes[:, np.newaxis]
    excess = suspects.excess_of_links if kind == "link" else suspects.excess
    for row in np.flatnonzero(kept).tolist():
        nodes = tuple(names[row].tolist())
        test = _test(kind, nodes, rounds[0].case, evidence, row, suspects, excess[row])
        yield _first_seen(fleet, rounds, test, suspects, options)


def _first_seen(
    fleet: Fleet, rounds: list[Round], test: _Test, suspects: model.Suspects, options: search.Options
) -> _Test:
    """A suspect of which nothing was measured again, with the times that made it one: ``is_far`` if it stands out in
    them, not only from the effects of its nodes.
    """
    nodes = test.verdict.nodes
    if test.times or any(each.stage in AGAIN and not _disturbed(each, nodes) for each in rounds):
        return test
    data = model.data_of(fleet, [each for each in rounds if each.stage in {"alone", "pairs", "held out"}])
    ends = [(data.sender, data.receiver), (data.receiver, data.sender)]
    # Pairs with other suspects are slow for two reasons.
    usual = ~np.isin(np.stack([data.sender, data.receiver]), np.setdiff1d(suspects.nodes, nodes)).any(axis=0)
    sides = [(one == nodes[0]) & ((other == nodes[1]) if len(nodes) == 2 else usual) for one, other in ends]
    sides = [side for side in sides if side.any()]
    if not sides:
        return test
    found = max((_seen(data, side, suspects.level, rounds[0].case) for side in sides), key=lambda each: each.ratio)
    limit = max(options.within, _FAR_SIGMAS * suspects.scale)
    is_far = min(np.log(found.ratio), np.log(test.verdict.ratio)) > limit
    return replace(test, verdict=replace(test.verdict, evidence=(found,)), is_far=bool(is_far))


def _seen(data: model.Data, chosen: Truths, level: Floats, case: int) -> Evidence:
    """The median of chosen times, and over the level of their path."""
    measured = float(np.exp(np.median(data.log[chosen])))
    ratio = float(np.exp(np.median((data.log - level[data.path])[chosen])))
    return Evidence(case, measured, measured / ratio, ratio, int(chosen.sum()))


def _unnamed(fleet: Fleet, rounds: list[Round], verdicts: Sequence[Verdict]) -> Iterator[Verdict]:
    """Nodes without a verdict whose row or column of the map is clearly slow: with few good pairs, half of all times
    may be slow, so that no test knows what is usual.
    """
    if fleet.count < LEAST_NODES or any(verdict.at_once or verdict.switch is not None for verdict in verdicts):
        return
    named = [node for verdict in verdicts for node in verdict.nodes]
    data = _of_map(fleet, rounds)
    pairs = set(zip(data.sender.tolist(), data.receiver.tolist(), strict=True))
    both_ways = any(pair[::-1] in pairs for pair in pairs)
    lines = ((data.sender,), (data.receiver,)) if both_ways else ((data.sender, data.receiver),)
    for _ in range(fleet.count // 2):
        others = _without(data, named)
        level = np.full(2, np.nan)
        for path in np.unique(data.path[others]).tolist():
            level[path] = np.quantile(data.log[others & (data.path == path)], _LOWEST, method="lower")
        excess = data.log - level[data.path]
        slow = np.full((fleet.count, len(lines)), -np.inf)
        for place, ends in enumerate(lines):
            keys = np.concatenate([end[others] for end in ends])
            medians = model.medians(np.tile(excess[others], len(ends)), keys, fleet.count)
            slow[:, place] = np.where(np.bincount(keys, minlength=fleet.count) >= search.PARTNERS, medians, -np.inf)
        node, place = divmod(int(slow.argmax()), len(lines))
        if slow[node, place] == -np.inf:
            return
        line = others & np.any([end == node for end in lines[place]], axis=0)
        worst = _seen(data, line, level, rounds[0].case)
        named.append(node)
        # Times that scatter as widely without this node do not point at it.
        rest = (data.log - level[data.path])[_without(data, named)]
        scale = model.scale_of_errors(rest - np.median(rest)) if len(rest) else 0.0
        if np.log(worst.ratio) < max(np.log(_CLEAR), _CLEAR_SIGMAS * scale):
            return
        yield Verdict(
            "undecided",
            (node,),
            probability=PRIOR["node"],
            error=1.0,
            evidence=(worst,),
            next_pairs=((node, None),),
        )


_Pairs = dict[tuple[int, int], float]
"""The shortest seconds of each pair."""


def without_usual(
    judgement: FleetJudgement, rounds: Sequence[Round], cases: Sequence[Case], within: float
) -> FleetJudgement:
    """``judgement``, which accuses nobody, with what the times of pairs at the largest size leave open: of few pairs,
    nothing says which is usual.
    """
    paired = [each for each in rounds if each.stage not in {"alone", "alone again"}]
    place = max((each.case for each in paired), key=lambda case: cases[case].size_bytes, default=-1)
    times: _Pairs = {}
    for each in paired:
        rows = zip(each.sender.tolist(), each.receiver.tolist(), each.seconds.tolist(), strict=True)
        for *pair, seconds in (row for row in rows if each.case == place and row[-1] > 0):
            times[pair[0], pair[1]] = min(seconds, times.get((pair[0], pair[1]), seconds))
    ordered = sorted(times, key=lambda pair: times[pair])
    if not ordered or np.log(times[ordered[-1]] / times[ordered[0]]) < within:
        return judgement
    gaps = [times[slower] / times[faster] for faster, slower in pairwise(ordered)]
    at = gaps.index(gap := max(gaps)) + 1
    fast, slow = ({pair: times[pair] for pair in part} for part in (ordered[:at], ordered[at:]))
    if np.log(gap) >= within and gap > max(max(part.values()) / min(part.values()) for part in (fast, slow)):
        alone = {*judgement.fleet.alone}
        kept = (verdict for verdict in judgement.verdicts if any(each.case in alone for each in verdict.evidence))
        return replace(judgement, verdicts=(*_of_two_rates(place, times, fast, slow), *kept))
    if judgement.verdicts:
        return judgement
    apart = Apart(place, times[ordered[0]], times[ordered[-1]], ordered[-1], len(ordered), is_open=True)
    hidden = max((each.ratio for each in judgement.found if each.case == place), default=np.inf)
    return replace(judgement, apart=replace(apart, is_open=hidden > apart.longest / median(times.values())))


def _of_two_rates(place: int, times: _Pairs, fast: _Pairs, slow: _Pairs) -> Iterator[Verdict]:
    """Who may be slow if every pair has one of two rates. Nodes of fast pairs are not suspect."""
    cleared = {node: None for pair in fast for node in pair}
    often = Counter(node for pair in slow for node in pair if node not in cleared)
    suspects = by_key(
        (tuple(node for node in pair if often[node] == max(often[end] for end in pair)), pair) for pair in slow
    )
    usual = median(fast.values())
    for nodes, pairs in sorted(suspects.items(), key=lambda entry: -len(entry[1])):
        seconds = median(slow[pair] for pair in pairs)
        # Nodes that are in no fast pair are measured with such that are; a link between good nodes is measured again.
        doubtful = [node for node in nodes if node not in cleared]
        good = (
            (node, next((other for other in cleared if not {(node, other), (other, node)} & times.keys()), None))
            for node in doubtful
        )
        evidence = Evidence(place, seconds, usual, seconds / usual, len(pairs))
        yield Verdict("undecided", nodes, evidence=(evidence,), next_pairs=tuple(good) or ((nodes[0], nodes[1]),))


def _of_map(fleet: Fleet, rounds: list[Round]) -> model.Data:
    """The median time of every ordered pair."""
    data = model.data_of(fleet, [each for each in rounds if each.stage in {"pairs", *FRESH}])
    keys, number = np.unique(data.sender * fleet.count + data.receiver, return_inverse=True)
    sender, receiver = keys // fleet.count, keys % fleet.count
    log = model.medians(data.log, number, len(keys))
    return model.Data(np.zeros(len(keys), np.int64), sender, receiver, fleet.path(sender, receiver), log)


def _without(data: model.Data, nodes: Sequence[int]) -> Truths:
    """The times of pairs that have none of ``nodes``."""
    return np.asarray(~np.isin(data.sender, nodes) & ~np.isin(data.receiver, nodes))


def _disturbed(measured: Round, nodes: tuple[int, ...]) -> bool:
    """Whether other programs took CPUs of the pair that has any of ``nodes``."""
    own = np.isin(measured.sender, nodes) | np.isin(measured.receiver, nodes)
    return measured.disturbed is not None and bool(measured.disturbed[own].any())


def _test(
    kind: Kind,
    nodes: tuple[int, ...],
    case: int,
    evidence: model.Evidences,
    row: int,
    suspects: model.Suspects,
    excess: float,
) -> _Test:
    """A node or link with its evidence, in its most probable direction."""
    log = evidence.log[row]
    way = WAYS[int(np.argmax(log))]
    chosen = {"both": (evidence.out, evidence.back), "out": (evidence.out,), "in": (evidence.back,)}[way]
    times = np.concatenate([side[row] for side in chosen])
    times = times[np.isfinite(times)]
    usual = float(np.exp(suspects.level[-1 if np.isfinite(suspects.level[-1]) else 0]))
    ratio = float(np.exp(np.median(times))) if len(times) else float(np.exp(excess))
    if kind == "link" and way == "in":
        nodes, way = nodes[::-1], "out"
    late = int((times > 0).sum()) if suspects.late else 0
    found = (Evidence(case, usual * ratio, usual, ratio, len(times), late),)
    share = float(np.exp(log.max() - np.logaddexp.reduce(log)))
    verdict = Verdict(kind, nodes, way, probability=share, evidence=found)
    return _Test(verdict, log, len(times), int(evidence.partners[row]))


def _switch(
    fleet: Fleet, rounds: list[Round], suspects: model.Suspects, evidence: model.Evidences, switch: int, within: float
) -> _Test:
    """A switch most of whose nodes are bad: it, if pairs below it are slow too, else its trunk."""
    below = fleet.leaf == switch
    rows = np.flatnonzero(below[suspects.nodes])
    log = np.logaddexp.reduce(evidence.log[rows], axis=0) - np.log(len(rows))
    data = model.data_of(fleet, [each for each in rounds if each.stage == "within"])
    inside = below[data.sender]
    errors = model.without_levels(data, suspects.level, ~inside)[inside]
    is_switch = model.Noise(suspects.scale).log_evidence(errors[np.newaxis], within)[0] > np.log(1 / search.ERROR_RATE)
    members = tuple(np.flatnonzero(below).tolist())
    test = _test("switch" if is_switch else "trunk", members, rounds[0].case, evidence, int(rows[0]), suspects, 0.0)
    way = WAYS[int(np.argmax(log))]
    usual = test.verdict.evidence[0].usual_seconds
    ratio = float(np.exp(np.nanmedian(np.concatenate([evidence.out[rows], evidence.back[rows]], axis=1))))
    found = replace(test.verdict.evidence[0], measured_seconds=usual * ratio, ratio=ratio)
    verdict = replace(test.verdict, nodes=members, way=way, switch=fleet.switches[switch], evidence=(found,))
    return _Test(verdict, log, test.times, len(members))


def _cut(rounds: list[Round], cut: search.Cut, within: float) -> _Test:
    """A cut whose pairs are slow together, narrowed to the smallest set that is."""
    usual = search.usual_within(rounds)
    across = [each for each in rounds if each.stage == "cross"]
    times = cut.times.ravel() if len(cut.times) else np.asarray([cut.first])
    slow = max(within, float(np.median(times)) / 2)
    narrow = [each for each in rounds if each.stage == "narrow" and search.log_median(each) - usual > slow]
    smallest = min([across[-1], *narrow], key=lambda each: len(each.sender))
    ratio = float(np.exp(np.median(times)))
    seconds = float(np.exp(usual))
    nodes = tuple(np.concatenate([smallest.sender, smallest.receiver]).tolist())
    share = float(np.exp(cut.log.max() - np.logaddexp.reduce(cut.log)))
    verdict = Verdict(
        "trunk",
        nodes,
        WAYS[int(np.argmax(cut.log))],
        probability=share,
        evidence=(Evidence(rounds[0].case, seconds * ratio, seconds, ratio, cut.times.size),),
        at_once=len(smallest.sender),
    )
    return _Test(verdict, cut.log, cut.times.size, len(nodes))


def _decided(tests: list[_Test]) -> Iterator[Verdict]:
    """Accused suspects, and those that are likely but not sure."""
    totals = np.asarray([test.total for test in tests])
    order = np.argsort(-totals, kind="stable")
    adjusted = 0.0
    for place, row in enumerate(order.tolist()):
        test = tests[row]
        adjusted = max(adjusted, min(1.0, (len(tests) - place) * float(np.exp(min(0.0, -test.total)))))
        posterior = _posterior(PRIOR[test.verdict.kind], test.total)
        # One partner leaves open whether its link is slow instead.
        lone = test.verdict.kind == "node" and test.partners < search.PARTNERS
        if test.times and adjusted <= search.ERROR_RATE and not lone:
            yield replace(test.verdict, probability=posterior * test.verdict.probability, error=adjusted)
        elif test.is_far or (test.times and (adjusted <= _LIKELY or test.is_slow_again)):
            pairs = test.verdict.nodes if len(test.verdict.nodes) == 2 else (test.verdict.nodes[0], -1)
            next_pairs = () if test.verdict.kind in {"alone", "trunk"} else ((pairs[0], pairs[1]),)
            yield replace(test.verdict, kind="undecided", probability=posterior, error=adjusted, next_pairs=next_pairs)


def _posterior(prior: float, log_evidence_: float) -> float:
    """Probability after the evidence: odds times evidence."""
    log_odds = np.log(prior / (1 - prior)) + log_evidence_
    return float(1 / (1 + np.exp(-np.clip(log_odds, -700, 700))))


def _merged(verdicts: list[Verdict]) -> Iterator[Verdict]:
    """One verdict for each subject. A node that is slow by itself explains its pairs, and two cases the same node."""
    by_subject: dict[tuple[object, ...], list[Verdict]] = {}
    for verdict in verdicts:
        single = verdict.kind in _OF_A_NODE
        key = (single, verdict.nodes, verdict.kind if not single else "") if verdict.accuses else (verdict,)
        by_subject.setdefault(key, []).append(verdict)
    named = {verdict.nodes[0] for verdict in verdicts if verdict.accuses and len(verdict.nodes) == 1}
    doubtful = {verdict.nodes[0] for verdict in verdicts if len(verdict.nodes) == 1}
    for members in by_subject.values():
        first = min(members, key=lambda verdict: (verdict.kind != "alone", verdict.error))
        same = [verdict for verdict in members if verdict.kind == first.kind]
        way: Way = first.way if len({verdict.way for verdict in same}) == 1 else "both"
        ordered = sorted(members, key=lambda verdict: (verdict.kind != first.kind, -verdict.ratio))
        evidence = tuple(each for verdict in ordered for each in verdict.evidence)
        explained = named if len(first.nodes) == 1 else doubtful
        if first.accuses or not explained & set(first.nodes):
            yield replace(first, way=way, evidence=evidence)


def _failed(rounds: Sequence[Round]) -> Iterator[Verdict]:
    """Nodes that fail alone or with several partners, and pairs that fail.

    Of a round that failed as a whole, its parts say which pair did.
    """
    partners: dict[int, set[int]] = {}
    pairs: dict[tuple[int, int], Round] = {}
    worked: set[int] = set()
    for each in rounds:
        failed = np.isnan(each.seconds)
        worked.update(each.sender[each.seconds > 0].tolist(), each.receiver[each.seconds > 0].tolist())
        if failed.all() and len(failed) > 1:
            continue
        for sender, receiver in zip(each.sender[failed].tolist(), each.receiver[failed].tolist(), strict=True):
            pairs.setdefault((min(sender, receiver), max(sender, receiver)), each)
            partners.setdefault(sender, set()).add(receiver)
            partners.setdefault(receiver, set()).add(sender)
    bad = {node for node, others in partners.items() if node in others or len(others) >= _ALL_FAILED}
    bad |= {node for node in partners if node not in worked}
    for node in sorted(bad):
        first = next(each for pair, each in pairs.items() if node in pair)
        yield Verdict("wrong" if first.wrong else "failed", (node,), case=first.case)
    for pair, first in sorted(pairs.items(), key=lambda item: item[0]):
        if not bad & set(pair):
            yield Verdict("wrong" if first.wrong else "failed", pair, case=first.case)


def fullest(judgement: FleetJudgement) -> int:
    """The case of which most pairs were measured; of several, that of the largest messages."""
    return max(judgement.fleet.pairs, key=lambda case: np.isfinite(ratios(judgement, case)).sum())


def ratios(judgement: FleetJudgement, case: int) -> Floats:
    """Median time over the usual of every pair of a case (n × n, from rows to columns; NaN: not measured)."""
    fleet = judgement.fleet
    data = _of_map(fleet, _of(judgement.rounds, case))
    matrix = np.full((fleet.count, fleet.count), np.nan)
    level = model.medians(data.log, data.path, 2)
    matrix[data.sender, data.receiver] = np.exp(data.log - level[data.path])
    return matrix
