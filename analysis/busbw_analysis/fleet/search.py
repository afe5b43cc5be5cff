"""The rounds of a fleet, one after the other: a decision on arrays alone, which runs, simulations and replays share."""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from busbw_analysis.fleet import model
from busbw_analysis.fleet.rounds import (
    FULL,
    SAMPLES,
    Fleet,
    Floats,
    Ints,
    Round,
    Stage,
    Truths,
    against_good,
    everybody,
    joined,
    matching,
    matchings_within,
    most_links,
    tournament,
)

ERROR_RATE: Final = 0.01
"""Share of healthy fleets in which anything is accused, at most."""
MOST_ROUNDS: Final = 40
"""Of a fleet with more than ``FULL`` nodes; failed rounds that are repeated in parts come on top."""
_TIMES_ALONE, _MOST_ALONE = 3, 12
"""Times that every node of a small fleet runs a case before any is a suspect: the first round after the start scatters.
More if the scatter hides what counts.
"""
TURNS, TURNS_IF_BUSY, _TURNS_IF_LIKELY = 8, 16, 32
"""Times that suspects are measured (pairs: both ways), unless they are decided before; at last only if ``_LIKELY``.
"""
_TURNS_BESIDE_LOSS: Final = 2
"""Times that suspects are measured once a node that loses messages is named: all wait for it, which takes long."""
_LIKELY: Final = float(np.log(10))
"""Logarithm of the evidence that a healthy suspect reaches in one of ten cases at most."""
PARTNERS: Final = 2
"""A node is accused with so many partners at least: with one, its link may be slow instead."""
_TURNS_WITHIN, _TURNS_CUT, _TURNS_CUT_IF_BUSY, _NARROWINGS = 2, 4, 12, 4
_DOUBT: Final = 0.1
_TURNS_OF_DOUBT: Final = 4
"""Evidence below which a suspect is cleared at first; the limit rises to 1 in so many turns, as that of a triangular
test does (Whitehead 1997, The Design and Analysis of Sequential Clinical Trials): who has no evidence against it by
then is not worth more rounds.
"""
_MARGIN: Final = 4.0
"""Logarithm of the evidence that is measured beyond the limit, because other cases may have suspects too."""
_MOST_PARTS: Final = 40
_OF_CUT: Final = 5
"""Rounds of a large fleet that suspects leave to switches and the cut; nodes alone leave two to each turn of pairs."""
_LONG: Final = 1 / 3
"""Correlation from one time to the next above which slow moments last: a time is worth half of one then."""
_TURN_OF_LINKS: Final = 3
"""In every third turn, suspected links come before their nodes, which may be suspects as well."""
_LEAST_SIDE, _ENOUGH = 2, 8
SHARE_OF_SWITCH: Final = 0.75
"""Share of a switch's nodes that must be bad for the switch to be."""
_LEAST_BELOW: Final = 3
_OF_ROUND: Final = 0.05
"""Scatter that all pairs of a round have in common."""
_MEDIAN_OVER_MEAN: Final = 1.2533
_BLOCKS: Final = 0.25
"""Least share of the nodes on one side of a cut that the times show."""

Rounds = Generator[Round, Round, None]


@dataclass(frozen=True, slots=True)
class Options:
    """What the user chose.

    within: logarithm of the least slowdown that counts
    sample: random matchings instead of all pairs; None: all, up to ``FULL`` nodes
    seed: of the random matchings
    """

    within: float = float(np.log(1 / 0.85))
    sample: int | None = None
    seed: int = 1


class Search:
    """Chooses rounds until the question is answered.

    rounds: those that were measured so far
    """

    def __init__(self, fleet: Fleet, options: Options) -> None:
        self.fleet, self.options = fleet, options
        self.rounds: list[Round] = []
        self._generator = np.random.default_rng(options.seed)
        self._parts = 0
        self._failed_with: dict[int, set[int]] = {}
        self._stages = self._all()
        self.asked: Round | None = next(self._stages, None)

    def tell(self, outcome: Round) -> None:
        """Take ``asked``, or a round of its case and stage, with its times, and choose the next; None: answered."""
        if self.asked is None:
            raise ValueError("no round was asked")
        try:
            self.asked = self._stages.send(outcome)
        except StopIteration:
            self.asked = None

    def stage_of(self, case: int, sender: Ints, receiver: Ints) -> Stage:
        """Why pairs were measured after ``rounds`` if the search would ask for others: the first ones of a case find
        suspects, those that come again test them.
        """
        own = self.of_case(case)
        if case in self.fleet.alone:
            return "alone again" if any(each.case in self.fleet.pairs for each in self.rounds) else "alone"
        if self._large:
            first = sum(each.stage == "pairs" for each in own) < 2 * (self.options.sample or SAMPLES)
        else:
            seen = {pair for each in own for pair in each.pairs}
            first = not seen.issuperset(zip(sender.tolist(), receiver.tolist(), strict=True))
        return "pairs" if first else "suspects"

    @property
    def _large(self) -> bool:
        return self.fleet.count > FULL or self.options.sample is not None

    def _room(self, rounds: int) -> bool:
        return not self._large or len(self.rounds) + rounds <= MOST_ROUNDS + self._parts

    def _ask(self, asked: Round) -> Rounds:
        """Measure a round; if it fails as a whole, halves of it, to find the pair that fails, and without pairs whose
        data are wrong. Nodes that fail alone or with several partners take part in no more rounds.
        """
        dead = [node for node, partners in self._failed_with.items() if node in partners or len(partners) > 1]
        asked = asked.without(np.asarray(dead, dtype=np.int64))
        if not len(asked.sender):
            return
        outcome = yield asked
        self.rounds.append(outcome)
        failed, half, parts = np.isnan(outcome.seconds), len(outcome.sender) // 2, []
        if failed.all() and half:
            parts = [outcome.part(0, half), outcome.part(half, len(outcome.sender))]
        elif failed.any():
            ends = outcome.sender[failed], outcome.receiver[failed]
            for first, second in zip(*map(np.ndarray.tolist, ends), strict=True):
                self._failed_with.setdefault(first, set()).add(second)
                self._failed_with.setdefault(second, set()).add(first)
            parts = [outcome.without(np.concatenate(ends))]
        if self._parts < _MOST_PARTS:
            self._parts += len(parts)
            for part in parts:
                yield from self._ask(part)

    def _all(self) -> Rounds:
        for number in range(1 if self._large else _MOST_ALONE):
            for case in self.fleet.alone:
                if number < _TIMES_ALONE or self._hides(case):
                    yield from self._ask(everybody(self.fleet, case, "alone"))
        pairs = self.fleet.pairs if self.fleet.count > 1 else ()
        # A large fleet takes the largest messages only, because its rounds are limited.
        pairs = pairs[:1] if self._large else pairs
        for place, case in enumerate(pairs):
            yield from self._pairs(case, sample=place > 0)
            if not self._large and not place:
                yield from self._cut(case)
        yield from self._suspects(pairs)
        for case in pairs[:1]:
            yield from self._within(case)
            if self._large:
                yield from self._cut(case)

    def _hides(self, case: int) -> bool:
        """Whether a node that is too slow alone may not be a suspect yet."""
        rounds = self.of_case(case)
        scale = model.suspects_alone(self.fleet, rounds, 0.0).scale
        return bool(model.least_alone(scale, len(rounds)) > self.options.within)

    def of_case(self, case: int) -> list[Round]:
        """The measured rounds of a case."""
        return [each for each in self.rounds if each.case == case]

    def _pairs(self, case: int, *, sample: bool) -> Rounds:
        """Every pair both ways unless a node loses messages, or random matchings."""
        nodes = np.arange(self.fleet.count)
        count = SAMPLES if self.options.sample is None else self.options.sample
        if sample or self._large:
            schedule = [matching(nodes, case, "pairs", self._generator) for _ in range(count)]
        else:
            schedule = list(tournament(self.fleet.count, case))
        for number, each in enumerate(schedule, start=1):
            yield from self._ask(each)
            yield from self._ask(each.turned)
            # All wait for what a node loses, so the partners that a node of a large fleet has are enough.
            bound = np.log(self.fleet.count / ERROR_RATE)
            if number >= SAMPLES and len(model.losing(self.fleet, self.rounds, bound)):
                return

    def _suspects(self, pairs: Sequence[int]) -> Rounds:
        """Suspects of all cases in turn, until each is decided: a slow moment may last several rounds.

        Nodes alone run all at once; suspects of pairs have good partners, all at the same time, both ways. A node that
        one case accuses is not asked about in others.
        """
        within = self.options.within
        alone = {case: model.suspects_alone(self.fleet, self.of_case(case), within) for case in self.fleet.alone}
        fleets = {case: with_sides(self.fleet, self.of_case(case), within) for case in pairs}
        suspects = {case: model.suspects_of_pairs(fleets[case], self.of_case(case), within) for case in pairs}
        late = model.suspects_late(self.fleet, self.rounds)
        # Links wait for each other.
        waiting = max([len(each.links) for each in suspects.values()], default=0)
        turn, more = 0, waiting // most_links(self.fleet)
        while turn < _TURNS_IF_LIKELY + more:
            tested_late = model.evidence_of_nodes(self.fleet, self.rounds, late, within)
            lossy = late.nodes[_is_sure(tested_late, PARTNERS)]
            usual = max(TURNS + more, TURNS_IF_BUSY if self.rounds and self.rounds[-1].busy else 0)
            usual = min(usual, _TURNS_BESIDE_LOSS) if len(lossy) else usual
            least = -np.inf if turn < usual else _LIKELY
            left = 2 * max(0, TURNS - turn) + len(self.fleet.alone)
            of_alone = {
                case: model.evidence_of_nodes(self.fleet, self.of_case(case), suspect, within)
                for case, suspect in alone.items()
            }
            asked = [
                everybody(self.fleet, case, "alone again")
                for case in (self.fleet.alone if not pairs or self._room(left + _OF_CUT) else ())
                if open_tests(of_alone[case], turn, least).any()
            ]
            turned = []
            accused = {case: suspect.nodes[_is_sure(of_alone[case], 0)] for case, suspect in alone.items()}
            tested = {
                case: model.evidence_of_nodes(fleets[case], self.of_case(case), suspects[case], within)
                for case in pairs
            }
            accused |= {case: suspects[case].nodes[_is_sure(tested[case], PARTNERS)] for case in pairs}
            of_late = open_suspects(self.fleet, self.rounds, late, tested_late, within, turn, least)
            for case in pairs if self._room(2 + _OF_CUT + len(asked)) else ():
                own = self.of_case(case)
                of_times = open_suspects(fleets[case], own, suspects[case], tested[case], within, turn, least)
                # Slow links come first: they are soon decided, and a link that was late once may stay open.
                nodes, links = (np.concatenate(both) for both in zip(of_times, of_late, strict=True))
                # What loses messages is slow sometimes, and so are its pairs.
                elsewhere = np.concatenate([accused[other] for other in accused if other != case])
                sure = np.concatenate([lossy, _without_neighbours(fleets[case], elsewhere, suspects[case].nodes)])
                nodes, links = nodes[~np.isin(nodes, sure)], links[~np.isin(links, sure).any(axis=1)]
                if len(nodes) or len(links):
                    of_all = np.concatenate([late.nodes, suspects[case].nodes])
                    once = nodes[np.sort(np.unique(nodes, return_index=True)[1])]
                    asked.append(against_good(fleets[case], case, once, links, of_all, turn, self._generator))
                    turned.append(asked[-1].turned)
            for each in (*asked, *turned):
                yield from self._ask(each)
                # Where programs compete for long, other rounds lie between those of a suspect.
                if len(asked) == 1 and self.rounds and self.rounds[-1].busy:
                    of_case = (suspects | alone)[each.case]
                    if model.lasting(self.fleet, self.of_case(each.case), of_case) > _LONG:
                        yield from self._between(each.case, pairs)
            if not asked:
                return
            turn += 1

    def _between(self, case: int, pairs: Sequence[int]) -> Rounds:
        """A round of another case."""
        others = [other for other in (*pairs, *self.fleet.alone) if other != case]
        for other in others[:1]:
            if other in pairs:
                yield from self._ask(matching(np.arange(self.fleet.count), other, "between", self._generator))
            else:
                yield from self._ask(everybody(self.fleet, other, "between"))

    def _within(self, case: int) -> Rounds:
        """Measure pairs below each switch if most nodes of one are bad, to tell the switch from its trunk."""
        fleet, rounds = self.fleet, self.of_case(case)
        if len(fleet.switches) < 2 or not len(bad_switches(fleet, bad_nodes(fleet, rounds, self.options.within))):
            return
        for _ in range(1 if self._large else _TURNS_WITHIN):
            asked = matchings_within(fleet, np.flatnonzero(fleet.leaf >= 0), case, "within", self._generator)
            yield from self._ask(asked)
            yield from self._ask(asked.turned)

    def _cut(self, case: int) -> Rounds:
        """All pairs across a cut at once against as many within its sides; narrowed if the former are slow."""
        fleet, within = self.fleet, self.options.within
        good = np.ones(fleet.count, dtype=np.bool_)
        # Medians over enough pairs outvote slow nodes, which may only look so because of the cut.
        if fleet.switches or fleet.count < _ENOUGH:
            good[model.suspects_of_pairs(fleet, self.of_case(case), within).clear] = False
        sides = sides_of(fleet, self.of_case(case), np.flatnonzero(good), within)
        if min(map(len, sides)) < _LEAST_SIDE:
            return
        asked, cut = self._across(case, sides, 0), None
        for turn in range(_TURNS_CUT_IF_BUSY):
            if not self._room(3) or (turn >= _TURNS_CUT and not self.rounds[-1].busy):
                break
            halves = joined([matching(side, case, "halves", self._generator) for side in sides])
            asked = self._across(case, sides, len(halves.sender))
            for each in (asked, asked.turned, halves):
                yield from self._ask(each)
            scale = model.suspects_of_pairs(
                with_sides(fleet, self.of_case(case), within), self.of_case(case), within
            ).scale
            cut = cut_evidence(self.of_case(case), scale, within)
            if cut is None or not cut.is_open:
                break
        if cut is not None and cut.is_bad:
            yield from self._narrow(asked, within)

    def _across(self, case: int, sides: tuple[Ints, Ints], most: int) -> Round:
        """Pairs across a cut, as many as there are within its sides."""
        first, second = (self._generator.permutation(side) for side in sides)
        count = min(len(first), len(second), most)
        return Round.of(case, "cross", first[:count], second[:count])

    def _narrow(self, asked: Round, within: float) -> Rounds:
        """Halves of the pairs across, as long as one of them is slow too."""
        across = [log_median(each) for each in self.of_case(asked.case) if each.stage == "cross"]
        ratio = float(np.median(across)) - usual_within(self.of_case(asked.case))
        for _ in range(_NARROWINGS):
            half = len(asked.sender) // 2
            if not half or not self._room(2):
                return
            parts = [asked.part(0, half), asked.part(half, len(asked.sender))]
            slow = []
            for part in parts:
                yield from self._ask(Round.of(part.case, "narrow", part.sender, part.receiver))
                slow.append(log_median(self.rounds[-1]) - usual_within(self.of_case(asked.case)))
            worst = int(np.argmax(slow))
            if not slow[worst] > max(within, ratio / 2):
                return
            asked = parts[worst]


# --- what the rounds so far say --------------------------------------------------------------------------------------


def _is_cleared(evidence: model.Evidences, turn: int) -> Truths:
    """Which suspects ``turn`` turns cleared. Turns without an undisturbed time of a suspect do not count for it."""
    ways = [np.isfinite(times).sum(axis=1) for times in (evidence.out, evidence.back) if times.shape[1]]
    turns = np.min([np.full(len(evidence.total), turn if ways else 0), *ways], axis=0)
    return np.asarray(evidence.total <= np.log(_DOUBT) * np.maximum(0, 1 - turns / _TURNS_OF_DOUBT))


def open_tests(evidence: model.Evidences, turn: int, least: float) -> Truths:
    """Which suspects are neither accused nor cleared. least: logarithm of their evidence."""
    total = evidence.total
    seen = np.isfinite(evidence.out).any(axis=1) | np.isfinite(evidence.back).any(axis=1)
    is_open = ~seen | ((total < _limit(evidence)) & ~_is_cleared(evidence, turn))
    return np.asarray(is_open & (total >= least))


def _limit(evidence: model.Evidences) -> float:
    return float(np.log(max(1, len(evidence.total)) / ERROR_RATE)) + _MARGIN


def _without_neighbours(fleet: Fleet, nodes: Ints, suspects: Ints) -> Ints:
    """``nodes`` without those below a switch that has several ``suspects``: together these show whether it is slow."""
    below = np.bincount(fleet.leaf[suspects] + 1, minlength=int(fleet.leaf.max()) + 2)
    below[0] = 0  # of unknown switches
    return np.asarray(nodes[below[fleet.leaf[nodes] + 1] < 2])


def _is_sure(evidence: model.Evidences, partners: int) -> Truths:
    """Which nodes are accused with so many partners at least, whatever other cases say."""
    return np.asarray((evidence.total >= _limit(evidence)) & (evidence.partners >= partners))


def open_suspects(
    fleet: Fleet,
    rounds: list[Round],
    suspects: model.Suspects,
    tested: model.Evidences,
    within: float,
    turn: int,
    least: float,
) -> tuple[Ints, Ints]:
    """The nodes and links that more rounds have to decide. A link waits for its nodes, or comes before them.

    tested: the evidence of the nodes
    """
    cleared = _is_cleared(tested, turn)
    lone = ~cleared & (tested.partners < PARTNERS) & (tested.total >= least)
    is_open = open_tests(tested, turn, least) | lone
    nodes = suspects.nodes[is_open]
    links = suspects.links[open_tests(model.evidence_of_links(fleet, rounds, suspects, within), turn, least)]
    before = _is_sure(tested, PARTNERS) if turn % _TURN_OF_LINKS == _TURN_OF_LINKS - 1 else ~cleared | is_open
    links = links[~np.isin(links, suspects.nodes[before]).any(axis=1)]
    return nodes, links


def bad_nodes(fleet: Fleet, rounds: list[Round], within: float) -> Ints:
    """Suspects of a case that new data accuse (without regard to other cases)."""
    suspects = model.suspects_of_pairs(fleet, rounds, within)
    total = model.evidence_of_nodes(fleet, rounds, suspects, within).total
    return np.asarray(suspects.nodes[total > np.log(max(1, len(total)) / ERROR_RATE)])


def bad_switches(fleet: Fleet, bad: Ints) -> Ints:
    """Numbers of the switches most of whose nodes are bad, unless most nodes of all are."""
    below = fleet.leaf >= 0
    members = np.bincount(fleet.leaf[below], minlength=len(fleet.switches))
    numbers = np.bincount(fleet.leaf[bad][fleet.leaf[bad] >= 0], minlength=len(fleet.switches))
    chosen = (members >= _LEAST_BELOW) & (numbers >= SHARE_OF_SWITCH * members)
    return np.asarray(np.flatnonzero(chosen), dtype=np.int64)


def with_sides(fleet: Fleet, rounds: list[Round], within: float) -> Fleet:
    """``fleet`` with the sides of a cut as its switches, if no others are known and pairs across it are slow."""
    slow = [log_median(each) - usual_within(rounds) > within for each in rounds if each.stage == "cross"]
    if fleet.switches or not any(slow):
        return fleet
    return replace(fleet, leaf=(across_of(fleet, rounds) > 0).astype(np.int64))


def sides_of(fleet: Fleet, rounds: list[Round], good: Ints, within: float) -> tuple[Ints, Ints]:
    """The sides of the cut that is tested.

    Of the known switches, the boundary nearest to the middle; else the blocks
    that a full matrix shows, else the first and second half of the nodes in their order.
    """
    if len(fleet.switches) > 1:
        good = good[np.argsort(fleet.leaf[good], kind="stable")]
        ends = np.flatnonzero(np.diff(fleet.leaf[good])) + 1
        if len(ends):
            middle = int(ends[np.argmin(np.abs(ends - len(good) / 2))])
            return good[:middle], good[middle:]
    blocks = _blocks(fleet, rounds, good, within) if fleet.count <= FULL else None
    return blocks or (good[: len(good) // 2], good[len(good) // 2 :])


def _blocks(fleet: Fleet, rounds: list[Round], good: Ints, within: float) -> tuple[Ints, Ints] | None:
    """Two blocks of nodes between which pairs are slower than inside; None if the matrix is not full or shows none.

    The matrix of logarithms, centred in rows and columns, is −d v vᵀ for blocks v = ±1 that differ by 2 d, so its most
    negative eigenvalue has v as its vector (spectral bisection: Fiedler 1973).
    """
    logs = np.full((fleet.count, fleet.count), np.nan)
    for each in rounds:
        if each.stage in {"pairs", "held out"}:
            logs[each.sender, each.receiver] = model.logs_of(each.seconds)
    logs = ((logs + logs.T) / 2)[np.ix_(good, good)]
    off = ~np.eye(len(good), dtype=np.bool_)
    if len(good) < 2 * _LEAST_SIDE or np.isnan(logs[off]).any():
        return None
    centre = np.eye(len(good)) - 1 / len(good)
    _, vectors = np.linalg.eigh(centre @ np.where(off, logs, logs[off].mean()) @ centre)
    side = vectors[:, 0] > 0
    if not _BLOCKS <= side.mean() <= 1 - _BLOCKS:
        return None
    across = side[:, np.newaxis] != side
    differ = logs[across].mean() - logs[~across & off].mean()
    return (good[side], good[~side]) if differ > within / 2 else None


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Pairs across a cut against as many within its sides.

    first: log ratio of the medians of the first rounds, which found it
    log: log of the evidence of the later rounds: both ways, out, back
    times: log ratios of the later rounds
    """

    first: float
    log: Floats
    times: Floats
    slow: bool

    @property
    def total(self) -> float:
        """Log of the evidence that the pairs across are slow."""
        return float(np.logaddexp.reduce(self.log) - np.log(len(self.log)))

    @property
    def is_open(self) -> bool:
        """Whether it needs another round."""
        limit = np.log(1 / ERROR_RATE) + _MARGIN
        return self.slow and (not len(self.times) or np.log(_DOUBT) < self.total < limit)

    @property
    def is_bad(self) -> bool:
        """Whether new data accuse it."""
        return self.slow and len(self.times) > 0 and self.total > np.log(1 / ERROR_RATE)


def log_median(measured: Round) -> float:
    """Median logarithm of the times of a round; NaN without any."""
    times = measured.seconds[measured.seconds > 0]
    return float(np.median(np.log(times))) if len(times) else float("nan")


def usual_within(rounds: list[Round]) -> float:
    """Median logarithm of the pairs within the sides of the cut."""
    return float(np.median([log_median(each) for each in rounds if each.stage == "halves"]))


def cut_evidence(rounds: list[Round], scale: float, within: float) -> Cut | None:
    """The cut of a case; None if none was measured. Its pairs share a limit, so each round counts as a single time."""
    halves = [log_median(each) for each in rounds if each.stage == "halves"]
    across = np.asarray([log_median(each) for each in rounds if each.stage == "cross"])
    turns = min(len(halves), len(across) // 2)
    if not turns or np.isnan([*halves[:turns], *across[: 2 * turns]]).any():
        return None
    ratios = across[: 2 * turns].reshape(turns, 2) - np.asarray(halves)[:turns, np.newaxis]
    # A ratio has the errors of two medians over so many pairs, and what all pairs of a round have in common.
    pairs = min(len(each.sender) for each in rounds if each.stage in {"cross", "halves"})
    error = max(_OF_ROUND, _MEDIAN_OVER_MEAN * math.sqrt(2 / pairs) * scale)
    noise = model.Noise(error, weight=model.weight_of(each for each in rounds if each.stage == "cross"))
    ways = [noise.log_evidence(ratios[np.newaxis, 1:, way], within)[0] for way in (0, 1)]
    slow = bool(ratios[0].max() > within)
    return Cut(float(ratios[0].max()), np.asarray([ways[0] + ways[1], *ways]), ratios[1:], slow)


def across_of(fleet: Fleet, rounds: list[Round]) -> Floats:
    """The side of each node in the cut that was tested: 1 or −1; 0 for a node in neither."""
    sides = np.zeros(fleet.count)
    for number, each in enumerate(each for each in rounds if each.stage == "cross"):
        sign = 1 - 2 * (number % 2)
        sides[each.sender], sides[each.receiver] = sign, -sign
    return sides
