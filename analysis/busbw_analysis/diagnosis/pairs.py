"""Every pair of ranks compared with the others: which host, rank, direction of a rank, or single pair is slow; and the
share of the link between them that every pair of GPUs reaches that copy to each other.

The rule and its reasons are in docs/method.md, "Stragglers and slow links"; ``tests/bench/slow_pairs.py`` measures its
error rates.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from busbw.ops import PAIRED
from busbw.ops.settings import PairSettings
from busbw.system.catalog import Catalogue
from busbw.units import format_rate, format_size
from busbw_analysis.data.distributions import student_quantile
from busbw_analysis.data.facts import Facts, RankGpu
from busbw_analysis.data.intervals import Floats
from busbw_analysis.data.names import rank_list
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.distances import Steps, Truths, indistinct, kinds, steps_between
from busbw_analysis.peaks.paths import Narrowest, gpu_links, host_links

Kind = Literal["host", "rank", "sender", "receiver", "pair"]

LEAST_RANKS = 4
"""With fewer ranks, a row has too few cells for its median to outvote a slow one."""
LAUNCHES_FOR_A_PAIR = 4
"""With fewer launches, a slow pair may just be a slow moment, unless nothing like it scatters so much."""

_SLOW_RATIO = 0.85
_SLOW_RATIO_OF_ONE_LAUNCH = 0.7
_LINE_SIGMAS = 4.0
_PAIR_SIGMAS = 6.0
_FEW_SIGMAS = 10.0
_FEW_RATIO_OF_COPIES = 0.5
_FEW_RATIO_OF_MESSAGES = 0.25
"""Share of the usual rate below which a pair is slow with few launches: messages wait for cores, copies of GPUs do not.
"""
_LEAST_SIGMA = 0.02
_LEAST_SIGMA_OF_ONE_LAUNCH = 0.05
_SIGNIFICANCE = 0.01
_MOST_LAUNCHES = 0.75
_MOST_CELLS = 0.75
_ROUNDS = 20
_SETTLED = 1e-6
_MAD_TO_SIGMA = 1.4826
_MEDIAN_OVER_MEAN = 1.2533
"""Standard error of the median of normal numbers over that of their mean: √(π/2)."""
UPPER_QUARTILE_TO_SIGMA = 1 / 1.1503


DIRECT = frozenset({"peer_copy", "peer_copy_both", "peer_copy_sm"})
"""Copies that bypass the host."""
_STAGED, _DRIVEN = "peer_copy_staged", "peer_copy_driver"
_COPIES = frozenset({*DIRECT, _STAGED, _DRIVEN})


@dataclass(frozen=True, slots=True)
class Outlier:
    """A slow part of a matrix.

    name: short name (``host n4``, ``rank 3``, ``1 → 2``, ``1 ↔ 2``).
    ranks: the ranks that it is about (a pair: sender, receiver).
    ratio: its rate over the usual rate.
    text: a sentence without a full stop.
    """

    kind: Kind
    name: str
    ranks: tuple[int, ...]
    ratio: float
    text: str


@dataclass(frozen=True, slots=True)
class PairShares:
    """The share of its own peak that each pair of a matrix reached (n × n; NaN if not measured).

    practical_share: share of the rate that is reached in practice on such hardware; NaN if unknown, too.
    denominator: description of 100 %, for the pair with the lowest peak.
    """

    share: npt.NDArray[np.float64]
    practical_share: npt.NDArray[np.float64]
    denominator: str


@dataclass(frozen=True, slots=True)
class PairMatrix:
    """Every ordered pair at one size: row s, column d is from ``ranks[s]`` to ``ranks[d]``.

    steps: distance of every pair, as in ``placement.distance``.
    pairs: whether pairs ran alone or together.
    rate, time_ns: B/s and ns; NaN on the diagonal and where nothing was measured.
    low_ns, high_ns: interval over launches, or their range if they are too few; for a single launch, its own interval.
    unknown: what the matrix cannot show and why; None if it shows everything.
    op: what the pairs did.
    shares: what the pairs reached of their peaks; None for messages, whose peak is that of a curve.
    """

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    steps: Steps
    size_bytes: int
    dtype: str | None
    pairs: str | None
    rate: Floats
    time_ns: Floats
    low_ns: Floats
    high_ns: Floats
    outliers: tuple[Outlier, ...]
    unknown: str | None
    op: str
    shares: PairShares | Unavailable | None

    @property
    def middle(self) -> int:
        """The place of the median pair in the flat matrix: of two in the middle, the faster one."""
        measured = int(np.isfinite(self.time_ns).sum())
        return int(np.argsort(self.time_ns, axis=None, kind="stable")[(measured - 1) // 2])


def matrices_of(summaries: Iterable[CaseSummary], facts: Facts, rows: Catalogue) -> tuple[PairMatrix, ...]:
    """The pair matrices of the measured cases, in the order of the plan; ``rows`` is the catalogue of peaks."""
    measured = (summary for summary in summaries if summary.case.op in PAIRED and summary.state == "measured")
    return tuple(_matrix(summary, facts, rows) for summary in measured)


def _matrix(summary: CaseSummary, facts: Facts, rows: Catalogue) -> PairMatrix:
    case, placements = summary.case, facts.placements
    ranks, times = summary.groups.members, summary.groups
    cells = tuple(np.searchsorted(ranks, times.pairs).T)
    # Single launches can be used only if every pair has the same number of them.
    counts = np.unique(times.launches)
    launches = np.full((int(counts[0]) if len(counts) == 1 else 1, len(ranks), len(ranks)), np.nan)
    launches[:, *cells] = times.launch_medians_ns.T if len(counts) == 1 else times.time_ns
    time_ns, low_ns, high_ns = (np.full(launches.shape[1:], np.nan) for _ in range(3))
    time_ns[cells], low_ns[cells], high_ns[cells] = times.time_ns, times.low_ns, times.high_ns
    rate: Floats = case.size_bytes / time_ns * 1e9
    # If runs with fewer ranks are pooled by force, some placements are unknown.
    hosts = tuple(placements[rank].host if rank < len(placements) else "?" for rank in ranks)
    steps = steps_between(placements, ranks)
    alike = kinds(steps)
    why = indistinct(hosts, alike)
    holes = bool((np.isnan(time_ns) & ~np.eye(len(ranks), dtype=np.bool_)).any())
    may_name = len(ranks) >= LEAST_RANKS and not holes
    jumpy = 2 * int(times.bimodal.sum()) > len(summary.groups)
    few = _FEW_RATIO_OF_COPIES if case.op in _COPIES else _FEW_RATIO_OF_MESSAGES
    return PairMatrix(
        ranks=ranks,
        hosts=hosts,
        steps=steps,
        size_bytes=case.size_bytes,
        dtype=case.dtype,
        pairs=case.settings.pairs if isinstance(case.settings, PairSettings) else None,
        rate=rate,
        time_ns=time_ns,
        low_ns=low_ns,
        high_ns=high_ns,
        unknown=_unknown(len(ranks), len(launches), why, few, holes=holes, jumpy=jumpy),
        outliers=outliers_in(ranks, hosts, launches, case.size_bytes, alike, pairs=not jumpy, few=few)
        if may_name
        else (),
        op=case.op,
        shares=_shares(facts.gpus_of(ranks), case.op, rate, rows) if case.op in _COPIES else None,
    )


def _unknown(
    count: int, launches: int, indistinct: str | None, few_ratio: float, *, holes: bool, jumpy: bool
) -> str | None:
    if count == 2:
        return "two ranks form only one pair: a slow rank cannot be distinguished from a slow link"
    if count < LEAST_RANKS:
        return (
            f"{count} ranks are too few to name a slow one: each is in all but {count - 2} of the pairs, so a slow "
            f"pair looks like a slow rank; use at least {LEAST_RANKS} ranks"
        )
    if holes:
        return "some pairs were not measured, so the others cannot be compared"
    few = (
        f"single pairs are only judged below {few_ratio:.0%} of the usual rate: with fewer than {LAUNCHES_FOR_A_PAIR} "
        "launches, a slow pair may just be a slow moment; slow ranks and hosts are judged"
    )
    two = (
        "single pairs are not judged: most are bimodal, and the median of a launch falls into either mode by chance; "
        "slow ranks and hosts are judged"
    )
    reasons = (indistinct, few if launches < LAUNCHES_FOR_A_PAIR else two if jumpy else None)
    return "; ".join(reason for reason in reasons if reason) or None


# --- decomposing a matrix ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Effects:
    """Logarithms of times, decomposed by median polish.

    usual: the usual value of every cell (n × n).
    lines: the excess of every row (sender) and column (receiver) (2 × n).
    cells: the rest of every cell (n × n).
    """

    usual: Floats
    lines: Floats
    cells: Floats

    @property
    def explained(self) -> Floats:
        """The value of every cell by the usual value and the lines."""
        return np.asarray(self.usual + self.lines[0][:, None] + self.lines[1])


Lines: TypeAlias = dict[int, float]
"""Place in the matrix → excess of the logarithm of its times."""


def outliers_in(
    ranks: Sequence[int],
    hosts: Sequence[str],
    times_ns: Floats,
    size_bytes: int,
    alike: Sequence[Truths],
    *,
    pairs: bool,
    few: float,
) -> tuple[Outlier, ...]:
    """The slow parts of ``times_ns`` (launches × n × n, NaN on the diagonal only; n ≥ 4), hosts and ranks first.

    Logarithms of the times are decomposed by median polish (Tukey 1977) into a usual value, an effect of the sender,
    one of the receiver, and the rest of the pair. The usual value is that of the cells in a mask of ``alike``.

    An effect counts if it makes the rate less than 85 % of the usual, stands out from the other effects of its kind by
    4 σ (pairs: 6 σ), is present in at least three quarters of the launches, and is beyond the scatter of launches
    (t-test with the scatter pooled over the kind, p < 0.01 over all lines or cells). A single launch has no scatter, so
    the limit is 70 % there. Single pairs are judged only if ``pairs``; of fewer than four launches, their limits are
    the ratio ``few`` and 10 σ.
    """
    logs = np.log(times_ns)
    near = np.asarray([[host == other for other in hosts] for host in hosts])
    pace = _over_all(logs)
    even = logs - pace[:, None, None] + np.median(pace)
    effects = _polished(np.median(even, axis=0), alike)
    pace = _over_all(even - effects.explained)
    even -= pace[:, None, None]
    lines, effects = _slow_lines(even, effects, near)
    cells = _slow_cells(even - effects.explained, effects.cells, few) if pairs else {}
    parts = _SlowParts(tuple(ranks), tuple(hosts), size_bytes, effects, lines, cells)
    return (*parts.slow_lines(), *parts.pairs())


def _over_rows(logs: Floats) -> Floats:
    """The median of every row of the last two axes (… × n × n), without the diagonal."""
    count = logs.shape[-1]
    return np.median(logs[..., ~np.eye(count, dtype=np.bool_)].reshape(*logs.shape[:-1], count - 1), axis=-1)


def _over_all(logs: Floats) -> Floats:
    """The median of all cells without the diagonal."""
    return np.median(logs[..., ~np.eye(logs.shape[-1], dtype=np.bool_)], axis=-1)


def _polished(logs: Floats, alike: Sequence[Truths]) -> _Effects:
    """``logs`` (n × n) decomposed; cells that are ``alike`` (masks) share a usual value."""
    rest, usual, lines = logs.copy(), np.zeros_like(logs), np.zeros((2, len(logs)))
    for _ in range(_ROUNDS):
        for kind in alike:
            level = np.median(rest[kind])
            usual[kind] += level
            rest[kind] -= level
        most = 0.0
        for side, turned in enumerate((rest, rest.T)):
            by_line = _over_rows(turned)
            by_line -= np.median(by_line)
            lines[side] += by_line
            turned[...] -= by_line[:, None]
            most = max(most, float(np.abs(by_line).max()))
        if most < _SETTLED:
            break
    return _Effects(usual, lines - np.median(lines, axis=1, keepdims=True), rest)


def _slow_lines(even: Floats, effects: _Effects, near: Truths) -> tuple[tuple[Lines, Lines], _Effects]:
    """The slow rows and columns, and the effects in which a line that affects only some of its cells is moved into
    these.
    """
    by_row = _over_rows(even - effects.usual - effects.lines[1])
    by_column = _over_rows(np.swapaxes(even - effects.usual - effects.lines[0][:, None], -1, -2))
    both = effects.lines.ravel()
    sigma = _MAD_TO_SIGMA * float(np.median(np.abs(both)))
    slow = _slow(both, np.concatenate([by_row, by_column], axis=1), _LINE_SIGMAS * sigma).reshape(2, -1)
    lines, cells = effects.lines.copy(), effects.cells.copy()
    slow_lines: tuple[Lines, Lines] = ({}, {})
    for place in range(len(cells)):
        for side, turned in enumerate((cells, cells.T)):
            line = turned[place] + lines[side, place]
            if slow[side, place] and _shared(line, near[place], len(even)):
                slow_lines[side][place] = float(lines[side, place])
            elif slow[side, place]:
                lines[side, place], turned[place] = 0.0, line
    return slow_lines, _Effects(effects.usual, lines, cells)


def _slow_cells(rests: Floats, cells: Floats, few_ratio: float) -> dict[tuple[int, int], float]:
    few = len(rests) < LAUNCHES_FOR_A_PAIR
    off = np.argwhere(~np.isnan(cells))
    at = (off[:, 0], off[:, 1])
    # Median polish leaves many cells of a small matrix at exactly 0, so the scatter is taken from the upper quartile.
    sigma = UPPER_QUARTILE_TO_SIGMA * float(np.quantile(np.abs(cells[at]), 0.75))
    stands_out = max(_FEW_SIGMAS * sigma, -math.log(few_ratio)) if few else _PAIR_SIGMAS * sigma
    slow = _slow(cells[at], rests[:, at[0], at[1]], stands_out)
    return {(int(source), int(to)): float(cells[source, to]) for source, to in off[slow]}


def _slow(effects: Floats, by_launch: Floats, stands_out: float) -> Truths:
    """Which ``effects`` (k) count, given their value in each launch (launches × k) and the least size of one that
    stands out.
    """
    launches = len(by_launch)
    least = _least_effect(launches)
    floor = _LINE_SIGMAS * (_LEAST_SIGMA_OF_ONE_LAUNCH if launches == 1 else _LEAST_SIGMA)
    large: Truths = (effects > least) & (effects > max(stands_out, floor))
    if launches == 1:
        return large
    freedom = by_launch.shape[1] * (launches - 1)
    scatter = math.sqrt(float(((by_launch - by_launch.mean(axis=0)) ** 2).sum()) / freedom)
    error = max(_MEDIAN_OVER_MEAN * scatter / math.sqrt(launches), 1e-12)
    sure = effects / error > student_quantile(1 - _SIGNIFICANCE / len(effects), freedom)
    often = (by_launch > least / 2).mean(axis=0) >= _MOST_LAUNCHES
    return np.asarray(large & sure & often)


def _least_effect(launches: int) -> float:
    return -math.log(_SLOW_RATIO_OF_ONE_LAUNCH if launches == 1 else _SLOW_RATIO)


def _shared(line: Floats, near: Truths, launches: int) -> bool:
    """Whether most cells of a line are slow, or most of those to other hosts."""
    slow = line > _least_effect(launches) / 2
    there = ~np.isnan(line)
    parts = [there, there & ~near]
    return any(slow[part].mean() >= _MOST_CELLS for part in parts if part.sum() >= LEAST_RANKS - 1)


# --- as sentences ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _SlowParts:
    """The slow parts, by place in the matrix, to be described by ranks and hosts. If all ranks of a host are slow, the
    host is.
    """

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    size_bytes: int
    effects: _Effects
    lines: tuple[Lines, Lines]
    cells: Mapping[tuple[int, int], float]

    def slow_lines(self) -> Iterator[Outlier]:
        """Hosts and ranks that are slow as senders and as receivers, then those that are slow in one direction only."""
        rows, columns = self.lines
        both = {place: (rows[place] + columns[place]) / 2 for place in rows.keys() & columns.keys()}
        kinds_of_lines: tuple[tuple[Kind, Lines, str], ...] = (
            ("rank", both, "from and to"),
            ("sender", {place: effect for place, effect in rows.items() if place not in both}, "from"),
            ("receiver", {place: effect for place, effect in columns.items() if place not in both}, "to"),
        )
        for kind, effects, direction in kinds_of_lines:
            for merged, name, more, places in self._merged(effects):
                away = [place for place in range(len(self.ranks)) if place not in places]
                usual = float(np.median(self.effects.usual[np.ix_(list(places), away)]))
                effect = float(np.median([effects[place] for place in places]))
                text = f"all traffic {direction} {name} ({more}) is slow"
                yield self._outlier(merged if kind == "rank" else kind, name, places, usual, effect, text)

    def pairs(self) -> Iterator[Outlier]:
        """Single pairs. Both directions of a pair are one outlier, and so are all pairs between two hosts."""
        left = dict(self.cells)
        for members in self._host_pairs():
            effect = float(np.median([left.pop(pair) for pair in members]))
            usual = float(np.median([self.effects.usual[pair] for pair in members]))
            from_host, to_host = (self.hosts[place] for place in members[0])
            places = sorted({place for pair in members for place in pair})
            words = f"all traffic from host {from_host} to host {to_host} is slow"
            yield self._outlier("pair", f"host {from_host} → host {to_host}", places, usual, effect, words)
        for (source, to), effect in sorted(left.items(), key=lambda entry: -entry[1]):
            back = left.get((to, source))
            if back is not None and source > to:
                continue  # reported with the other direction
            arrow = "→" if back is None else "↔"
            worst = effect if back is None else (effect + back) / 2
            name = f"{self.ranks[source]} {arrow} {self.ranks[to]}"
            where = f" (host {self.hosts[source]} {arrow} host {self.hosts[to]})" if len(set(self.hosts)) > 1 else ""
            words = f"the pair {name}{where} is slow{'' if back is None else ' in both directions'}"
            usual = float(self.effects.explained[source, to])
            yield self._outlier("pair", name, (source, to), usual, worst, words)

    def _merged(self, places: Mapping[int, float]) -> Iterator[tuple[Kind, str, str, tuple[int, ...]]]:
        """Kind, name, details and places of slow lines, slowest first: a host if all of its ranks are slow, else a
        rank.
        """
        several = len(set(self.hosts)) > 1
        done: set[int] = set()
        for place in sorted(places, key=lambda place: -places[place]):
            host = self.hosts[place]
            of_host = tuple(index for index, other in enumerate(self.hosts) if other == host)
            if place in done:
                continue
            if several and all(other in places for other in of_host):
                done.update(of_host)
                word = "rank" if len(of_host) == 1 else "ranks"
                yield "host", f"host {host}", f"{word} {rank_list([self.ranks[other] for other in of_host])}", of_host
            else:
                yield "rank", f"rank {self.ranks[place]}", f"host {host}", (place,)

    def _host_pairs(self) -> Iterator[list[tuple[int, int]]]:
        """All pairs from one host to another, if there are several and all of them are slow."""
        members = {host: [at for at, name in enumerate(self.hosts) if name == host] for host in self.hosts}
        for host, sources in members.items():
            for other, targets in members.items():
                every = [(source, to) for source in sources for to in targets]
                if host != other and len(every) > 1 and all(pair in self.cells for pair in every):
                    yield every

    def _outlier(
        self, kind: Kind, name: str, places: Sequence[int], usual: float, effect: float, words: str
    ) -> Outlier:
        measured, expected = (format_rate(self.size_bytes / math.exp(log) * 1e9) for log in (usual + effect, usual))
        ratio = math.exp(-effect)
        return Outlier(
            kind=kind,
            name=name,
            ranks=tuple(self.ranks[place] for place in places),
            ratio=ratio,
            text=f"{words} at {format_size(self.size_bytes)}: {measured} instead of the usual {expected} ({ratio:.0%})",
        )


# --- the peak of every pair of GPUs ------------------------------------------------------------------------------


_PairPeak = tuple[float, str, float]
"""Nominal rate (B/s), its description, and the rate reached in practice (NaN: unknown)."""


def _shares(gpus: Sequence[RankGpu], op: str, rates: Floats, rows: Catalogue) -> PairShares | Unavailable:
    """The shares of one matrix, or why there are none; ``gpus`` are those of its ranks."""
    share, practical_share = np.full_like(rates, np.nan), np.full_like(rates, np.nan)
    peaks: list[_PairPeak] = []
    for row, column in np.argwhere(np.isfinite(rates)).tolist():
        source, to = gpus[row], gpus[column]
        peak = _peak_of(op, (source, to), rows)
        if isinstance(peak, Unavailable):
            return Unavailable("pair-not-known", f"{source.rank} → {to.rank}: {peak.reason}")
        peaks.append(peak)
        nominal, _, practical = peak
        share[row, column] = rates[row, column] / nominal
        practical_share[row, column] = rates[row, column] / practical
    if not peaks:
        return Unavailable("nothing-measured", "no pair was measured")
    _, denominator, _ = min(peaks, key=itemgetter(0, 1))
    return PairShares(share, practical_share, denominator)


def _peak_of(op: str, gpus: tuple[RankGpu, RankGpu], rows: Catalogue) -> _PairPeak | Unavailable:
    """Direct copies: the NVLinks between the two, or else the slower of their links to the host.

    Copies through the host go down the link of one and up that of the other: t ≥ S / B₁ + S / B₂ if staged, else t ≥ S
    / min(B₁, B₂), because a driver may overlap both halves.
    """
    ways = [gpu_links(gpus, rows)] if op in DIRECT else [host_links([gpu], rows) for gpu in gpus]
    links: list[Narrowest] = []
    for way in ways:
        if isinstance(way, Unavailable):
            return way
        links.append(way)
    if op != _STAGED:
        slower = min(links, key=lambda link: link.peak.nominal)
        both = "; the two directions do not share it" if op == "peer_copy_both" else ""
        return slower.peak.nominal, f"{slower.in_words}{both}", slower.peak.practical or np.nan
    rate = 1 / sum(1 / link.peak.nominal for link in links)
    practical = 1 / sum(1 / (link.peak.practical or np.nan) for link in links)
    words = "; ".join(link.in_words for link in links)
    return rate, f"{format_rate(rate)}, all of S down, then all of S up: {words}", practical
