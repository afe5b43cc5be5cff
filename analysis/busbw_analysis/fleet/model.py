"""The statistics of a fleet: effects of nodes in sparse rounds, whom they make suspect, and the evidence of new data.

The logarithm of a time is level (of the kind of path, in the round) + sender + receiver + pair + error, as in
``diagnosis/pairs.py`` for full matrices.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np

from busbw_analysis.fleet.rounds import (
    AGAIN,
    FRESH,
    FULL,
    MAD_TO_SIGMA,
    Fleet,
    Floats,
    Ints,
    Round,
    Stage,
    Truths,
)

LARGEST: Final = 50.0
"""Largest slowdown that the alternative expects."""
OUTLIERS: Final = 0.1
"""Share of single times of a healthy node that may be anything. Of the launches in ``tests/data/launches.json``, 1 % to
3 % are beyond four robust standard deviations."""
_MAD_TO_SCALE: Final = 1 / 0.741
"""Student's t with 4 degrees of freedom has a median absolute deviation of 0.741 scales."""
_LEAST_SCALE: Final = 0.01
_RANGE: Final = 3.0
"""An outlier is anywhere in so many units of the logarithm: a factor of 150 up or down."""
_GRID: Final = 16
_SPREADS: Final = 2
_NULLS: Final = (0.0, 0.25, 0.5)
_SWEEPS: Final = 4
_LEAST_CONTROLS: Final = 5
"""Pairs of a round that show its level: a suspect and its partner leave 7 of 16 nodes."""
_ENOUGH_CONTROLS: Final = 32
"""New times of others that say alone how new times err."""
_LEAST_GOOD: Final = 6
"""Pairs of three good nodes, both ways: of four nodes, one is bad."""
_WEIGHT_IF_BUSY: Final = 1 / 3
"""At least, where programs compete for CPUs. Moments of four rounds, seen in every second, have a correlation of 0.75²
from one time to the next, so n times are worth n (1 − 0.56) / (1 + 0.56)."""
_MEDIAN_OVER_MEAN: Final = 1.2533
_NODE_SIGMAS, _LINK_SIGMAS, _ALONE_SIGMAS = 1.5, 2.0, 2.0
"""How far out a suspect is. A healthy suspect only costs a place in rounds that are measured anyway."""
_NINE_OF_TEN: Final = 0.9
_DRAWS: Final = 100

_SLOW_SIGMAS: Final = 4.0

OF_PAIRS: Final[tuple[Stage, ...]] = ("pairs", *FRESH)
"""Stages whose pairs say who loses messages, before and after the suspicion."""

_LATE: Final = 1.4
_LATE_SECONDS: Final = 0.01
"""Spread of a time, and seconds of its mean over the others, above which samples were late: of five, one took three
times as long, and 50 ms more. What was lost is sent again after 200 ms over TCP, after 67 ms over InfiniBand
(4.096 µs · 2¹⁴); who waits for a processor is less late."""
_LATE_SIGMAS: Final = 2.0
_MOST_LATE_LINKS: Final = 8
_LINKS_PER_NODE: Final = 1.5
"""Of 240 times of 16 real nodes, a dozen may be outliers: those must not crowd a slow link out."""
_LEAST_SHARE, _ENOUGH_LATE, _MOST_SHARE, _CAUTION = 0.02, 0.2, 0.95, 2.0
"""Share of late times that a healthy node may have at least, that a bad one has at least and at most, and by how much
the share of others may be exceeded.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Suspects:
    """Whom the schedule of pairs (or of nodes alone) of a case makes suspect, the worst first.

    nodes: their numbers
    links: pairs (k × 2) that stand out from both of their nodes; the smaller number first
    excess: of each node, logarithm of the slowdown that made it suspect; of each link in ``excess_of_links``
    scale: of the error of a single time (logarithm)
    level: usual logarithm of a time, by kind of path
    clear: nodes that are so slow that their times say nothing of the others
    late: whether they are suspects of ``lateness``
    """

    nodes: Ints
    links: Ints
    scale: float
    level: Floats
    excess: Floats
    excess_of_links: Floats
    clear: Ints
    late: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Data:
    """All times of some rounds, concatenated, by round; times that failed are left out."""

    turn: Ints
    sender: Ints
    receiver: Ints
    path: Ints
    log: Floats


def data_of(fleet: Fleet, rounds: list[Round], instead: list[Floats] | None = None) -> Data:
    """The times of ``rounds``.

    instead: of each round, what is taken for its seconds
    """
    if not rounds:
        none = np.zeros(0, dtype=np.int64)
        return Data(none, none, none, none, np.zeros(0))
    turn = np.repeat(np.arange(len(rounds)), [len(each.sender) for each in rounds])
    own = instead or [each.evidence if each.stage in FRESH else each.seconds for each in rounds]
    seconds = np.concatenate(own)
    sender, receiver = (np.concatenate([getattr(each, name) for each in rounds]) for name in ("sender", "receiver"))
    kept = seconds > 0
    sender, receiver = sender[kept], receiver[kept]
    return Data(turn[kept], sender, receiver, fleet.path(sender, receiver), np.log(seconds[kept]))


def logs_of(seconds: Floats) -> Floats:
    """Logarithms; NaN where nothing was measured."""
    return np.asarray(np.log(np.where(seconds > 0, seconds, np.nan)))


def medians(values: Floats, keys: Ints, count: int) -> Floats:
    """The median of ``values`` with each key 0 … count − 1; NaN without any."""
    order = np.lexsort((values, keys))
    numbers = np.bincount(keys, minlength=count)
    ends = np.cumsum(numbers)
    result = np.full(count, np.nan)
    some = numbers > 0
    start, number = (ends - numbers)[some], numbers[some]
    ranked = values[order]
    result[some] = (ranked[start + (number - 1) // 2] + ranked[start + number // 2]) / 2
    return result


def without_levels(data: Data, level: Floats, control: Truths) -> Floats:
    """The logarithms without the level of their path: that of their round if enough ``control`` pairs show it.

    So a moment in which everything is slow accuses nobody.
    """
    if not len(data.log):
        return data.log
    key = 2 * data.turn + data.path
    count = int(key.max()) + 1
    numbers = np.bincount(key[control], minlength=count)
    of_round = medians(data.log[control], key[control], count)
    known = numbers >= _LEAST_CONTROLS
    of_round = np.where(known, of_round, np.resize(level, count + count % 2)[:count])
    return np.asarray(data.log - of_round[key])


def suspects_of_pairs(fleet: Fleet, rounds: list[Round], within: float) -> Suspects:
    """Suspects of the rounds of one case.

    within: logarithm of the least slowdown that counts
    """
    data = data_of(fleet, [each for each in rounds if each.stage == "pairs"])
    every = np.ones(len(data.log), dtype=np.bool_)
    level = _levels(data, every, np.zeros(2))
    # Not by round: below a bad switch, the median of a round may be that of slow pairs.
    effects = _effects(fleet, data, data.log - level[data.path])
    # Pairs of nodes that are clearly slow say nothing of the usual, though they may be half of all: below a bad switch.
    largest = effects.max(axis=0)
    slow = largest > max(within, _SLOW_SIGMAS * float(np.median(np.abs(largest))) * MAD_TO_SIGMA)
    control = ~slow[data.sender] & ~slow[data.receiver]
    if control.sum() < _LEAST_GOOD:
        control = every
    level = _levels(data, control, level)
    rest = without_levels(data, level, control)
    effects = _effects(fleet, data, rest)
    scale = scale_of_errors(rest[control] - np.median(rest[control])) if control.any() else _LEAST_SCALE
    numbers = np.stack([np.bincount(side, minlength=fleet.count) for side in (data.sender, data.receiver)])
    error = error_of_node(scale, numbers)
    both = effects.mean(axis=0) / (np.sqrt((error**2).sum(axis=0)) / 2)
    worst = np.maximum((effects / error).max(axis=0), both)
    nodes = np.flatnonzero((effects.max(axis=0) > within / 2) & (worst > _NODE_SIGMAS))
    nodes = nodes[np.argsort(-worst[nodes])][: fleet.count // 2]
    links, excess = _links(fleet, rounds, level, effects, scale, within)
    return Suspects(nodes, links, scale, level, effects.max(axis=0)[nodes], excess, np.flatnonzero(slow))


def error_of_node(scale: float, times: Ints | int) -> Floats:
    """Error of the effect of a node that has so many times in a direction."""
    return np.asarray(_MEDIAN_OVER_MEAN * scale / np.sqrt(np.maximum(times, 1)))


def _levels(data: Data, control: Truths, otherwise: Floats) -> Floats:
    """The median logarithm of each kind of path; without any, of the other kind."""
    level = medians(data.log[control], data.path[control], 2)
    known = level[np.isfinite(level)]
    return np.where(np.isnan(level), known.mean() if len(known) else otherwise, level)


def _effects(fleet: Fleet, data: Data, rest: Floats) -> Floats:
    """How much longer each node takes as sender and as receiver (2 × nodes): median polish of sparse rounds."""
    sides, effects, left = (data.sender, data.receiver), np.zeros((2, fleet.count)), rest.copy()
    for _ in range(_SWEEPS):
        for place, side in enumerate(sides):
            step = np.nan_to_num(medians(left, side, fleet.count))
            effects[place] += step
            left -= step[side]
        effects -= np.median(effects, axis=1, keepdims=True)
    return effects


def _links(
    fleet: Fleet, rounds: list[Round], level: Floats, effects: Floats, scale: float, within: float
) -> tuple[Ints, Floats]:
    """Pairs that stand out from the effects of their nodes in one direction, or in the mean of both; the worst first,
    and by how much.
    """
    data = data_of(fleet, [each for each in rounds if each.stage in {"pairs", "held out"}])
    own = without_levels(data, level, np.ones(len(data.log), dtype=np.bool_))
    own = own - effects[0][data.sender] - effects[1][data.receiver]
    keys, number = np.unique(_pairs(fleet, data), return_inverse=True)
    times = np.bincount(number, minlength=len(keys))
    mean = np.bincount(number, own, minlength=len(keys)) / times
    most = np.full(len(keys), -np.inf)
    np.maximum.at(most, number, own)
    excess = np.maximum(most, mean * np.sqrt(times))
    out = np.flatnonzero(excess > max(within, _LINK_SIGMAS * scale))
    most_links = max(round(_LINKS_PER_NODE * min(fleet.count, FULL)), fleet.count // 2)
    out = out[np.argsort(-excess[out], kind="stable")][:most_links]
    return np.stack([keys[out] // fleet.count, keys[out] % fleet.count], axis=1), np.maximum(most, mean)[out]


def lateness(
    fleet: Fleet, rounds: list[Round], stages: tuple[Stage, ...], undisturbed: tuple[Stage, ...] = FRESH
) -> Data:
    """Of pairs in some stages, 1 instead of the logarithm of a time if messages were late or lost, else 0.

    undisturbed: stages without the times of disturbed pairs
    """
    own, late = [], []
    for each in rounds:
        if each.spread is not None and each.stage in stages and "alone" not in each.stage:
            lost = (each.spread > _LATE) & ((each.spread - 1) * each.seconds > _LATE_SECONDS)
            lost = lost if each.resent is None else lost | each.resent
            seconds = np.where(lost, np.e, 1.0)
            if each.disturbed is not None and each.stage in undisturbed:
                seconds[each.disturbed] = np.nan
            own.append(each)
            late.append(seconds)
    return data_of(fleet, own, late)


def suspects_late(fleet: Fleet, rounds: list[Round]) -> Suspects:
    """Nodes with late samples among several partners, and links, in more times than the share of all others explains.

    rounds: of all cases
    """
    data = lateness(fleet, rounds, ("pairs",))
    late = data.log > 0
    excess = _excess(late, (data.sender, data.receiver), fleet.count)
    keys, number = np.unique(_pairs(fleet, data), return_inverse=True)
    ends = np.stack([keys // fleet.count, keys % fleet.count], axis=1)
    partners = np.bincount(ends[np.bincount(number, late, len(keys)) > 0].ravel(), minlength=fleet.count)
    nodes = np.flatnonzero((excess > _LATE_SIGMAS) & (partners > 1))
    nodes = nodes[np.argsort(-excess[nodes])][: fleet.count // 2]
    excess = _excess(late, (number,), len(keys))
    links = np.argsort(-excess, kind="stable")[:_MOST_LATE_LINKS]
    links = links[excess[links] > _LATE_SIGMAS]
    none = np.zeros(len(nodes))
    return Suspects(nodes, ends[links], 0.0, np.zeros(2), none, np.zeros(len(links)), nodes[:0], late=True)


def losing(fleet: Fleet, rounds: list[Round], limit: float) -> Ints:
    """Nodes whose pairs were late so often in the rounds that find suspects that the log evidence is above ``limit``.
    It accuses nobody, since it is of the data that make suspects.
    """
    suspects = suspects_late(fleet, rounds)
    if not len(suspects.nodes):
        return suspects.nodes
    data = lateness(fleet, rounds, ("pairs",))
    own = [(data.sender == node) | (data.receiver == node) for node in suspects.nodes.tolist()]
    others = data.log[_others(fleet, data, suspects)] > 0
    healthy = Punctuality(float(_share(others.sum(), len(others))))
    return suspects.nodes[[healthy.log_evidence(data.log[np.newaxis, mask], 0)[0] > limit for mask in own]]


def _share(late: float | Floats, times: float | Ints) -> Floats:
    """The share of late times that healthy nodes may have, if others have so many."""
    return np.asarray(np.clip(_CAUTION * (late + 0.5) / (times + 1), _LEAST_SHARE, _MOST_SHARE))


def _excess(late: Truths, sides: tuple[Ints, ...], count: int) -> Floats:
    """Late times of each node or link beyond the share of all others, in standard deviations of Poisson's distribution.

    sides: of each time, the numbers (below ``count``) that it belongs to
    """
    own = np.sum([np.bincount(side, late, minlength=count) for side in sides], axis=0)
    times = np.sum([np.bincount(side, minlength=count) for side in sides], axis=0)
    usual = np.maximum(1, times) * _share(late.sum() - own, len(late) - times) / _CAUTION
    return np.asarray((own - usual) / np.sqrt(usual))


def _pairs(fleet: Fleet, data: Data) -> Ints:
    """A number for the two nodes of each time, the same both ways."""
    return np.minimum(data.sender, data.receiver) * fleet.count + np.maximum(data.sender, data.receiver)


def suspects_alone(fleet: Fleet, rounds: list[Round], within: float) -> Suspects:
    """Suspects of the first rounds in which every node ran a case alone, by the median of its times."""
    data = data_of(fleet, [each for each in rounds if each.stage == "alone"])
    every = np.ones(len(data.log), dtype=np.bool_)
    level = _levels(data, every, np.zeros(2))
    errors = without_levels(data, level, every)
    scale = scale_of_errors(errors)
    excess = medians(errors, data.sender, fleet.count)
    times = np.bincount(data.sender, minlength=fleet.count)
    far = np.flatnonzero(excess > np.maximum(within / 2, least_alone(scale, times)))
    return Suspects(far, np.zeros((0, 2), np.int64), scale, level, excess[far], np.zeros(0), far)


def least_alone(scale: float, times: Ints | int) -> Floats:
    """Least excess that so many times show."""
    return np.asarray(_ALONE_SIGMAS * scale / np.sqrt(np.maximum(times, 1)))


def scale_of_errors(errors: Floats) -> float:
    """Robust scale of Student's t, larger by two standard errors because few errors may look alike by chance."""
    if not len(errors):
        return _LEAST_SCALE
    caution = 1 + 2 / np.sqrt(len(errors))
    return float(max(_LEAST_SCALE, caution * _MAD_TO_SCALE * np.median(np.abs(errors))))


def least_found(
    kind: str, errors: Floats, scale: float, noise: "Noise", times: int, proof: tuple[int, float], within: float
) -> float:
    """Logarithm of the smallest slowdown that is found in nine of ten cases: that makes a suspect, and that later times
    then prove (infinite: none), if times err as the ``errors`` of others did in the first rounds, of this ``scale``.

    kind: alone, node or link, which has so many ``times`` before the suspicion; a link has one
    proof: number of times thereafter, and the evidence that they must have
    """
    error, least, sigmas = {
        "alone": (scale / math.sqrt(times), within / 2, _ALONE_SIGMAS),
        "node": (float(error_of_node(scale, times)), within / 2, _NODE_SIGMAS),
        "link": (scale, within, _LINK_SIGMAS),
    }[kind]
    draw = np.random.default_rng(0)
    first = np.median(draw.choice(errors, (_DRAWS, 1 if kind == "link" else times)), axis=1)
    later = draw.choice(errors, (_DRAWS, proof[0]))
    for shift in np.geomspace(within, np.log(LARGEST), 2 * _GRID):
        suspect = shift + first > max(least, sigmas * error)
        if np.mean(suspect) < _NINE_OF_TEN:
            continue
        proven = noise.log_evidence(shift + later, within) > np.log(proof[1])
        if np.mean(suspect & proven) >= _NINE_OF_TEN:
            return float(shift)
    return math.inf


# --- evidence --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Evidences:
    """New data on suspects, one row for each.

    out, back: logarithms of time over usual, tests × times, NaN behind the last: as sender and as receiver (of a link:
        from the smaller number and to it; of a node alone only out)
    partners: number of different other nodes behind them
    log: log of the evidence for slow both ways, out only and back only (tests × 3; of nodes alone × 1)
    """

    out: Floats
    back: Floats
    partners: Ints
    log: Floats

    @property
    def total(self) -> Floats:
        """Log of the evidence that anything is slow: the mean of the three, which have equal priors."""
        return np.asarray(np.logaddexp.reduce(self.log, axis=1) - np.log(self.log.shape[1]))


_NONE: Final = Evidences(np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0, dtype=np.int64), np.zeros((0, 1)))
"""Of no suspects."""


@cache
def _slowdowns(within: float) -> Floats:
    """From ``within`` to ``LARGEST``, evenly spaced as logarithms of logarithms."""
    return np.geomspace(within, np.log(LARGEST), _GRID)


@dataclass(frozen=True, slots=True)
class Noise:
    """How single times of healthy nodes err.

    scale: of their logarithm
    outliers: share that is anything
    weight: independent times per time: below 1 where slow moments last several rounds
    """

    scale: float
    outliers: float = OUTLIERS
    weight: float = 1.0

    def log_evidence(self, errors: Floats, within: float) -> Floats:
        """Log of the evidence against "not slower than half of ``within``" in each row of ``errors`` (NaN: none).

        E = ∫ L(δ) π(δ) dδ / max L(δ₀): the likelihood of a slowdown δ averaged over δ from ``within`` to ``LARGEST``,
        over the largest likelihood of a δ₀ from 0 to half of ``within``. Such an E exceeds 1/α with a probability of at
        most α if nothing is wrong, whenever one stops to look (Ville's inequality; universal inference: Wasserman,
        Ramdas and Balakrishnan 2020, https://arxiv.org/abs/1912.11436; e-values: Vovk and Wang 2021,
        https://arxiv.org/abs/1912.06116). It is also a Bayes factor, so prior odds times E are posterior odds. L is
        Student's t with 4 degrees of freedom (Lange, Little and Taylor 1989, doi:10.1080/01621459.1989.10478852) mixed
        with outliers anywhere, so a single slow moment is worth a factor of at most 1/``OUTLIERS``. A second spread,
        half of δ, is for faults that come and go.
        """
        shifts = _slowdowns(within)
        spreads = np.stack([np.full(_GRID, self.scale), np.maximum(self.scale, shifts / 2)], axis=1)
        alternatives = self._likelihood(errors, np.repeat(shifts, _SPREADS), spreads.ravel())
        null = self._likelihood(errors, within * np.asarray(_NULLS), np.full(len(_NULLS), self.scale))
        mean = np.logaddexp.reduce(alternatives, axis=1) - np.log(alternatives.shape[1])
        return np.asarray(mean - null.max(axis=1))

    def _likelihood(self, errors: Floats, shifts: Floats, scales: Floats) -> Floats:
        """Log likelihood of each row (rows × times) for each shift and scale: rows × shifts."""
        z = (errors[:, :, np.newaxis] - shifts) / scales
        # Student's t with 4 degrees of freedom: its constant is 3/8, its power 5/2. ``**`` takes three times as long.
        tail = 1 + z * z / 4
        inside = 0.375 / (tail * tail * np.sqrt(tail) * scales)
        logs = np.log((1 - self.outliers) * inside + self.outliers / _RANGE)
        return np.asarray(self.weight * np.where(np.isnan(z), 0.0, logs).sum(axis=1))


@dataclass(frozen=True, slots=True)
class Punctuality:
    """How many times of healthy nodes have late samples: a ``share`` at most."""

    share: float

    def log_evidence(self, errors: Floats, within: float) -> Floats:
        """As in ``Noise``, with Bernoulli's likelihood: of shares above ``_ENOUGH_LATE``, over that of ``share``."""
        del within
        late = (errors > 0).sum(axis=1)
        others = np.isfinite(errors).sum(axis=1) - late
        shares = np.geomspace(min(_MOST_SHARE, max(_ENOUGH_LATE, _CAUTION * self.share)), _MOST_SHARE, _GRID)
        logs = np.outer(late, np.log(shares)) + np.outer(others, np.log1p(-shares))
        null = np.clip(late / np.maximum(1, late + others), 1e-9, self.share)
        usual = late * np.log(null) + others * np.log1p(-null)
        return np.asarray(np.logaddexp.reduce(logs, axis=1) - np.log(_GRID) - usual)


def _noise(controls: Floats, scale: float, weight: float) -> Noise:
    """The noise of ``controls``, if these are few at least that of what made a suspect."""
    scale = max(scale if len(controls) < _ENOUGH_CONTROLS else 0.0, scale_of_errors(controls))
    out = np.count_nonzero(np.abs(controls) > _SLOW_SIGMAS * scale)
    # As if 10 more had been seen, with the usual share.
    share = max(OUTLIERS, (out + 10 * OUTLIERS) / (len(controls) + 10))
    return Noise(scale, share, weight)


def weight_of(again: Iterable[Round], lasts: float = 1.0) -> float:
    """The weight of the times of some rounds. lasts: correlation of consecutive times, if it was measured."""
    return max(_WEIGHT_IF_BUSY, (1 - lasts) / (1 + lasts)) if any(each.busy for each in again) else 1.0


def lasting(fleet: Fleet, rounds: list[Round], suspects: Suspects) -> float:
    """How slow moments outlast rounds: the correlation of a healthy node's consecutive times, or of whether they are
    slow, as sender or as receiver: the largest, with two standard errors. 1 if too few are known.
    """
    # In rounds of suspects, others send in some only; suspected links stay, as slow moments may have made them so.
    data = data_of(fleet, [each for each in rounds if each.stage in {"alone", "alone again", "pairs"}])
    control = ~_has_part(fleet, data, suspects)
    if not control.any():
        return 1.0
    errors = without_levels(data, suspects.level, control)
    scale = scale_of_errors(errors[control])
    slow = np.asarray(errors > _SLOW_SIGMAS * scale, dtype=np.float64)
    largest = 0.0
    for values in (np.clip(errors, -_SLOW_SIGMAS * scale, _SLOW_SIGMAS * scale), slow - slow.mean()):
        for side in (data.sender, data.receiver):
            table = _table(np.where(control, side, -1), values, fleet.count)
            both = np.isfinite(table[:, 1:])
            now, later = table[:, :-1][both], table[:, 1:][both]
            squares = (now @ now + later @ later) / 2
            together = float(now @ later / squares) if squares else float(not len(now))
            largest = max(largest, together + 2 / math.sqrt(max(1, len(now))))
    return min(1.0, largest)


def evidence_of_nodes(fleet: Fleet, rounds: list[Round], suspects: Suspects, within: float) -> Evidences:
    """The evidence of rounds after the suspicion: of nodes alone, or against partners that are no suspects.

    Of late nodes also that of all rounds, over the number of nodes among which it was chosen: the mean of both is one,
    too (Vovk and Wang 2021, as in ``Noise``). All wait for what such a node loses, so each round counts; but only if
    the later rounds speak for it as well, as late moments may last several rounds.
    """
    if not len(suspects.nodes):
        return _NONE
    fresh = _evidence_of_nodes(fleet, rounds, suspects, within, FRESH)
    if not suspects.late:
        return fresh
    every = _evidence_of_nodes(fleet, rounds, suspects, within, OF_PAIRS)
    both = np.logaddexp(fresh.log, every.log - np.log(max(1, fleet.count))) - np.log(2)
    return replace(every, log=np.where(fresh.total[:, np.newaxis] > 0, both, fresh.log))


def _evidence_of_nodes(
    fleet: Fleet, rounds: list[Round], suspects: Suspects, within: float, stages: tuple[Stage, ...]
) -> Evidences:
    data, errors, healthy = _times_in(fleet, rounds, suspects, stages)
    row = np.full(fleet.count, -1)
    row[suspects.nodes] = np.arange(len(suspects.nodes))
    first, second = row[data.sender], row[data.receiver]
    met = np.concatenate([fleet.count * first + data.receiver, fleet.count * second + data.sender])
    met = np.unique(met[np.concatenate([(first >= 0) & (second < 0), (second >= 0) & (first < 0)])])
    out = np.where((second < 0) | (data.sender == data.receiver), first, -1)
    partners = np.bincount(met // fleet.count, minlength=len(suspects.nodes))
    return _evidences((out, np.where(first < 0, second, -1)), errors, partners, healthy, within)


def evidence_of_links(fleet: Fleet, rounds: list[Round], suspects: Suspects, within: float) -> Evidences:
    """The evidence of rounds in which the suspected links were measured again."""
    if not len(suspects.links):
        return _NONE
    data, errors, healthy = _times_in(fleet, rounds, suspects, AGAIN)
    number = {(first, second): row for row, (first, second) in enumerate(suspects.links.tolist())}
    pairs = list(zip(data.sender.tolist(), data.receiver.tolist(), strict=True))
    out = np.asarray([number.get(pair, -1) for pair in pairs], dtype=np.int64)
    back = np.asarray([number.get(pair[::-1], -1) for pair in pairs], dtype=np.int64)
    return _evidences((out, back), errors, np.ones(len(number), dtype=np.int64), healthy, within)


def _evidences(
    rows: tuple[Ints, Ints], errors: Floats, partners: Ints, healthy: Noise | Punctuality, within: float
) -> Evidences:
    """The evidence of times in both directions, by the test that each is of (-1: none)."""
    out, back = (_table(own, errors, len(partners)) for own in rows)
    one, other = (healthy.log_evidence(table, within) for table in (out, back))
    log = np.stack([one + other, one, other] if back.shape[1] else [one], axis=1)
    return Evidences(out, back, partners, log)


def _times_in(
    fleet: Fleet, rounds: list[Round], suspects: Suspects, stages: tuple[Stage, ...]
) -> tuple[Data, Floats, Noise | Punctuality]:
    """The times of some stages, their logarithms over the usual, and what healthy nodes do."""
    if suspects.late:
        data = lateness(fleet, rounds, stages, undisturbed=OF_PAIRS)
        every = lateness(fleet, rounds, OF_PAIRS)
        late = every.log[_others(fleet, every, suspects)] > 0
        return data, data.log, Punctuality(float(_share(late.sum(), len(late))))
    data = data_of(fleet, [each for each in rounds if each.stage in stages])
    errors = without_levels(data, suspects.level, _others(fleet, data, suspects))
    return data, errors, noise_of(fleet, rounds, suspects)


def noise_of(fleet: Fleet, rounds: list[Round], suspects: Suspects) -> Noise:
    """How single times err that are measured after the suspicion."""
    again = [each for each in rounds if each.stage in FRESH]
    weight = weight_of(again, lasting(fleet, rounds, suspects))
    return _noise(errors_of_others(fleet, again, suspects), suspects.scale, weight)


def errors_of_others(fleet: Fleet, rounds: list[Round], suspects: Suspects) -> Floats:
    """The errors of the times of ``rounds`` that no suspect has a part in."""
    data = data_of(fleet, rounds)
    control = _others(fleet, data, suspects)
    return without_levels(data, suspects.level, control)[control]


def _others(fleet: Fleet, data: Data, suspects: Suspects) -> Truths:
    """The times of pairs that are no suspects, of nodes that are none."""
    others = ~_has_part(fleet, data, suspects)
    if len(suspects.links):
        others &= ~np.isin(_pairs(fleet, data), suspects.links @ np.asarray([fleet.count, 1]))
    return others


def _has_part(fleet: Fleet, data: Data, suspects: Suspects) -> Truths:
    """The times of pairs with a suspected node."""
    named = np.zeros(fleet.count, dtype=np.bool_)
    named[suspects.nodes] = True
    return np.asarray(named[data.sender] | named[data.receiver])


def _table(rows: Ints, values: Floats, count: int) -> Floats:
    """``values`` by row (-1: none) as a table with NaN behind the last of each."""
    kept = rows >= 0
    rows, values = rows[kept], values[kept]
    order = np.argsort(rows, kind="stable")
    numbers = np.bincount(rows, minlength=count)
    table = np.full((count, int(numbers.max(initial=0))), np.nan)
    starts = np.cumsum(numbers) - numbers
    table[rows[order], np.arange(len(order)) - np.repeat(starts, numbers)] = values[order]
    return table
