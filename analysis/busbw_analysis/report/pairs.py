"""Report sections on pairs of ranks (within a host against between hosts, and every pair) and on single ranks."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean, median
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from busbw.ops import SYNCHRONISING
from busbw.runs.placement import RankPlacement
from busbw.units import format_rate, format_size, format_time
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.intervals import LAUNCHES_FOR_AN_INTERVAL
from busbw_analysis.data.lateness import LEAST_COST, LEAST_EXCESS, TIMES_USUAL, GroupLateness, RankLateness
from busbw_analysis.data.sentences import sentences
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.distances import PairClass, PairSplit
from busbw_analysis.diagnosis.judge import Judgement, PairMatrix
from busbw_analysis.diagnosis.pairs import PairShares
from busbw_analysis.report.document import (
    HEAT_STEPS,
    Block,
    Cell,
    Column,
    Paragraph,
    Section,
    Table,
    ends_in_words,
    ends_of,
    table,
    three_digits,
)

Floats = npt.NDArray[np.float64]
Quantity = Literal["rate", "time"]

_NARROW = 0.5
"""A heatmap's lightest shade is at most this share of its darkest, so small differences look small."""
_FAR_APART = 4
"""Above this ratio of extremes, shades follow the logarithm."""
_MESSAGES = "pair_matrix"
_MOST_ROWS = 24
"""Longer tables are folded."""
_MOST_IN_A_HEATMAP = 64
"""Most rows of a readable heatmap (4,096 cells); no browser can show a million."""
_SLOWEST = 20
"""Pairs listed by name if there are too many for a heatmap."""
_HOW: Final = (
    "Rows send, columns receive. Each number is the median over launches; its interval or range is in report.json."
)
_SHADES: Final = f"Darker means larger; shades are logarithmic if the numbers are more than {_FAR_APART} times apart."
_HOW_OF_MANY: Final = (
    f"With more than {_MOST_IN_A_HEATMAP} ranks, the {_SLOWEST} slowest pairs are listed, and the heatmap shows the "
    "median over all pairs of two hosts: rows send, columns receive. Each number is the median over launches. "
    "report.json has every pair."
)


def pairs(judgement: Judgement) -> Section | None:
    """Pairs within a host against pairs between hosts, then every pair as a heatmap; None if no pair was measured.

    The largest size of a matrix is shown as rates and the smallest as times; the sizes between are folded.
    """
    blocks = _split_by_distance(judgement.splits)
    placements = judgement.facts.placements
    series = grouped((matrix for matrix in judgement.matrices if matrix.ranks), _label)
    if series:
        large = any(len(matrix.ranks) > _MOST_IN_A_HEATMAP for matrix in judgement.matrices)
        blocks += [Paragraph(_HOW_OF_MANY)] if large else [Paragraph(_HOW), Paragraph(_SHADES, tone="quiet")]
    for label, members in series.items():
        ordered = sorted(members, key=lambda matrix: matrix.size_bytes)
        smallest, largest = ordered[0], ordered[-1]
        blocks += _every_pair(largest, label, placements, "rate")
        blocks += _of_their_peaks(largest.shares)
        blocks += _slow_pairs(largest)
        blocks += _every_pair(smallest, label, placements, "time")
        if smallest is not largest:
            blocks += _slow_pairs(smallest)
        unknown = by_key(
            (matrix.unknown, format_size(matrix.size_bytes)) for matrix in ordered if matrix.unknown is not None
        )
        blocks += (Paragraph(sentences(f"at {', '.join(at)}: {why}"), tone="quiet") for why, at in unknown.items())
        for matrix in reversed(ordered[1:-1]):
            blocks += _every_pair(matrix, label, placements, "rate", folded=True)
    return Section("pairs", "Pairs of ranks", tuple(blocks)) if blocks else None


def _label(matrix: PairMatrix) -> str:
    op = None if matrix.op == _MESSAGES else matrix.op
    return " · ".join(text for text in (op, matrix.dtype, matrix.pairs and f"pairs {matrix.pairs}") if text)


# --- within a host and between hosts -------------------------------------------------------------------------------


_SPLIT_COLUMNS: Final[tuple[Column[tuple[PairSplit, PairClass]], ...]] = (
    Column("Size", lambda row: row[0].size_bytes, format_size),
    Column("Pairs", lambda row: f"of these: {row[1].name}" if row[1].part else row[1].name),
    Column("Count", lambda row: row[1].pairs, str),
    Column("Time of a call", lambda row: row[1].time_ns, format_time, ends=lambda row: ends_of(row[1].interval)),
    Column("Rate", lambda row: row[1].rate, format_rate),
    Column("Slowest pair", lambda row: f"{row[1].slowest[0]} → {row[1].slowest[1]}", str),
    Column(
        "Time / time within a host",
        lambda row: row[1].times_within,
        three_digits,
        ends=lambda row: (row[1].times_low, row[1].times_high),
    ),
)


def _split_by_distance(splits: Sequence[PairSplit]) -> list[Block]:
    """For every operation a table of its sizes."""
    blocks: list[Block] = []
    for label, members in grouped(splits, lambda split: split.label).items():
        ordered = sorted(members, key=lambda split: split.size_bytes)
        rows = [(split, kind) for split in ordered for kind in split.classes]
        ends = ends_in_words(kind.interval.kind for split in members for kind in split.classes)
        note = (
            f"Time of a call: median over the pairs, then over launches. {ends} Each group of ranks that runs at the "
            "same time counts as a pair."
        )
        caption, folded = f"{label}: pairs by distance", len(rows) > _MOST_ROWS
        blocks.append(table(caption, _SPLIT_COLUMNS, rows, note, row_headers=2, folded=folded))
    return blocks


# --- heatmaps ------------------------------------------------------------------------------------------------------


def _slow_pairs(matrix: PairMatrix) -> list[Block]:
    return [Paragraph(sentences(outlier.text), tone="caution") for outlier in matrix.outliers]


def _every_pair(
    matrix: PairMatrix, label: str, placements: Sequence[RankPlacement], quantity: Quantity, *, folded: bool = False
) -> Iterator[Table]:
    """Every pair as a cell; if there are too many, the slowest by name and the rest by host."""
    size = format_size(matrix.size_bytes)
    call = "message of {} and its reply" if matrix.op == _MESSAGES else "copy of {}"
    text: Callable[[float], str] = format_time
    values, unit, factor = matrix.time_ns, "µs", 1e3
    what = f"Time of a {call.format(size)} · {label}"
    if quantity == "rate":
        values, text, what = matrix.rate, format_rate, f"Rate from rank to rank at {size} · {label}"
        unit, factor = ("GB/s", 1e9) if np.nanmax(values, initial=0.0) >= 1e9 else ("MB/s", 1e6)
    if not np.isfinite(values).any():
        return
    ends = [
        f"{text(float(values.flat[cell]))} ({_pair_name(matrix, cell)})"
        for cell in (np.nanargmin(values), np.nanargmax(values))
    ]
    middle = f", median pair {text(float(values.flat[matrix.middle]))}" if len(matrix.ranks) > 2 else ""
    caption = f"{what}: {' to '.join(ends)}{middle}"
    if len(matrix.ranks) <= _MOST_IN_A_HEATMAP:
        yield _by_ranks(caption, matrix, placements, values / factor, unit, folded=folded)
    else:
        yield _slowest(caption, matrix, folded=folded)
        yield from _by_hosts(matrix, values / factor, unit, folded=folded)


def _pair_name(matrix: PairMatrix, cell: int | np.integer) -> str:
    source, target = divmod(int(cell), len(matrix.ranks))
    return f"{matrix.ranks[source]} → {matrix.ranks[target]}"


def _by_hosts(matrix: PairMatrix, values: Floats, unit: str, *, folded: bool) -> Iterator[Table]:
    """The median over the pairs of every two hosts, unless there are too many hosts."""
    hosts = list(dict.fromkeys(matrix.hosts))
    if not 1 < len(hosts) <= _MOST_IN_A_HEATMAP:
        return
    number = np.asarray([hosts.index(host) for host in matrix.hosts])
    of_hosts = np.full((len(hosts), len(hosts)), np.nan)
    for row, column in np.ndindex(of_hosts.shape):
        cells = values[np.ix_(number == row, number == column)]
        of_hosts[row, column] = np.nanmedian(cells) if np.isfinite(cells).any() else np.nan
    yield heatmap("Median over the pairs of two hosts", hosts, of_hosts, unit, folded=folded)


def _slowest(caption: str, matrix: PairMatrix, *, folded: bool) -> Table:
    """The slowest pairs, and their times relative to the median pair."""
    flat = np.where(np.isfinite(matrix.time_ns), matrix.time_ns, -np.inf).ravel()
    worst = np.argsort(-flat, kind="stable")[:_SLOWEST].tolist()
    more = int(np.isfinite(flat).sum()) - len(worst)
    ranks = len(matrix.ranks)
    times, low, high = matrix.time_ns.flat, matrix.low_ns.flat, matrix.high_ns.flat
    middle = float(times[matrix.middle])
    columns: tuple[Column[int], ...] = (
        Column("Pair", lambda cell: _pair_name(matrix, cell)),
        Column("Hosts", lambda cell: f"{matrix.hosts[cell // ranks]} → {matrix.hosts[cell % ranks]}"),
        Column("Time of a call", lambda cell: times[cell], format_time, ends=lambda cell: (low[cell], high[cell])),
        Column("Rate", lambda cell: matrix.rate.flat[cell], format_rate),
        Column("Time / median pair", lambda cell: times[cell] / middle, three_digits),
    )
    note = f"The {len(worst)} slowest pairs; {more} more are in report.json."
    return table(caption, columns, worst, note, folded=folded)


def _of_their_peaks(shares: PairShares | Unavailable | None) -> Iterator[Paragraph]:
    if isinstance(shares, Unavailable):
        yield Paragraph(sentences(f"no percentages: {shares.reason}"), tone="quiet")
    elif shares is not None:
        text = f"Each copy reaches {_spread(shares.share)} of the peak of its pair"
        text += f". 100 % of the lowest of these peaks is {shares.denominator}"
        if np.isfinite(shares.practical_share).any():
            text += f". Of the rate reached in practice: {_spread(shares.practical_share)}"
        yield Paragraph(sentences(text))


def _spread(shares: Floats) -> str:
    finite = shares[np.isfinite(shares)]
    return f"{finite.min():.0%} to {finite.max():.0%}, median {float(np.median(finite)):.0%}"


def _by_ranks(
    caption: str, matrix: PairMatrix, placements: Sequence[RankPlacement], values: Floats, unit: str, *, folded: bool
) -> Table:
    """A heatmap with the ranks of one host side by side below its name, and hosts of one leaf switch side by side."""
    switches_of = {placement.rank: placement.switches or () for placement in placements}
    ordered = sorted(
        (switches_of.get(rank, ()), matrix.hosts.index(host), rank, place, host)
        for place, (rank, host) in enumerate(zip(matrix.ranks, matrix.hosts, strict=True))
    )
    order = [place for _, _, _, place, _ in ordered]
    leaves = ["".join(switches[-1:]) for switches, *_ in ordered]
    several = len(set(leaves)) > 1
    places = [f"{leaf} · {row[-1]}" if several and leaf else row[-1] for leaf, row in zip(leaves, ordered, strict=True)]
    names = [str(rank) for _, _, rank, _, _ in ordered]
    return heatmap(caption, names, values[np.ix_(order, order)], unit, places, folded=folded)


def heatmap(
    caption: str, names: Sequence[str], values: Floats, unit: str, places: Sequence[str] = (), *, folded: bool
) -> Table:
    """A heatmap from each of ``names`` to each of them.

    places: hosts or switches, shown above the columns and, if there are several, in the first row of each.
    """
    shade = shades(values[np.isfinite(values)].tolist(), by_ratio=True)
    several = len(set(places)) > 1
    # With one rank per host, the rows name the host.
    groups = places if several and len(set(places)) < len(names) else [""] * len(names)

    def to(target: int) -> Callable[[int], Cell | None]:
        def cell(source: int) -> Cell | None:
            value = float(values[source, target])
            return Cell(three_digits(value), heat=shade(value)) if math.isfinite(value) else None

        return cell

    columns: tuple[Column[int], ...] = (
        *([Column("host", lambda row: "" if places[row] in places[:row] else places[row])] if several else []),
        Column("from \\ to", lambda row: names[row], None, unit),
        *(Column(name, to(place), str, group=groups[place]) for place, name in enumerate(names)),
    )
    return table(caption, columns, range(len(names)), row_headers=2 if several else 1, folded=folded, every_column=True)


def shades(values: Sequence[float], *, by_ratio: bool = False) -> Callable[[float], int]:
    """A function from a value to its shade: 0 for the smallest of ``values``, or for half of the largest if that is
    smaller.

    by_ratio: values far apart have logarithmic shades; they would otherwise look alike between hosts.
    """
    high = max(values, default=1.0)
    low = min([*values, high * _NARROW])
    far_apart = by_ratio and values and high > _FAR_APART * min(values)
    scale: Callable[[float], float] = math.log if far_apart else float
    span = scale(high) - scale(low)
    return lambda value: round((HEAT_STEPS - 1) * (scale(value) - scale(low)) / span) if span > 0 else 0


_MOST_RANK_COLUMNS = 32
SHORTEST: Final = "Shortest time (usually the last to arrive)"
_ENTRY: Final = "The order of arrival is read from a shared clock; the others wait for the last rank."
_NO_ENTRY: Final = (
    "The order of arrival was not recorded. The others usually wait for the rank with the shortest time, but not "
    "always if ranks share cores or the algorithm treats them differently."
)
_NO_INTERVAL: Final = "Numbers over cases have no interval: cases differ by far more than the launches of one case."


_VERDICTS: Final = {True: Cell("straggler", tone="caution"), False: Cell("normal", tone="quiet")}


def rank_views(judgement: Judgement) -> Section:
    """Each rank's own time against the slowest rank's, how often it arrived last, and whether it is a straggler."""
    whole = [
        (summary.case.op, group)
        for summary in judgement.cases
        if summary.state == "measured" and (group := summary.only) is not None and len(group.ranks) > 1
    ]
    everyone = sorted({rank for _, group in whole for rank in group.ranks})
    if not everyone:
        text = "No measured operation lets ranks wait for each other."
        return Section("ranks", "Single ranks", (Paragraph(text),))
    if judgement.from_logs and not any(row.rank_samples_ns for stored in judgement.runs for row in stored.imported):
        return Section("ranks", "Single ranks", (Paragraph("The log does not record the times of single ranks."),))
    waiting = [(op, group) for op, group in whole if op in SYNCHRONISING]
    views = [view for _, group in whole for view in group.views]
    shares = by_key((view.rank, view.own_share) for view in views if math.isfinite(view.own_share))
    own = {rank: median(of) for rank, of in shares.items()}
    arrivals = [
        (op, view.rank, view.late_count / view.samples) for op, group in waiting for view in group.views if view.samples
    ]
    late = by_key((rank, share) for _, rank, share in arrivals)
    hosts = judgement.facts.hosts
    together = next((group for group in judgement.results.lateness if group.ranks == tuple(everyone)), None)
    members = {} if together is None else {member.rank: member for member in together.members}

    def late_share(rank: int) -> Cell | None:
        return Cell(_percent(share := fmean(late[rank])), bar=share) if rank in late else None

    timed = all(group.entry_known for _, group in waiting)
    name = "Arrived last" if timed else SHORTEST
    columns: tuple[Column[tuple[int, RankLateness | None]], ...] = (
        Column("Rank", lambda row: row[0], str),
        Column("Host", lambda row: hosts[row[0]] if row[0] < len(hosts) else None),
        Column("Own time", lambda row: own.get(row[0]), _percent, "% of the longest, median over cases"),
        Column(name, lambda row: late_share(row[0]), str, "% of samples"),
        Column("Late", lambda row: row[1] and _late(row[1]), str, "% of samples"),
        Column("Late by", lambda row: row[1] and row[1].median_ns, format_time, "median"),
        Column("Others wait", lambda row: row[1] and row[1].cost, _percent, "% of the time"),
        Column("Verdict", lambda row: row[1] and _VERDICTS[row[1].flagged]),
    )
    note = (
        f"Own time: over {len(whole)} cases. {name}: mean over the {len(waiting)} "
        f"cases of operations that synchronise; by chance, each of n ranks has 1/n. "
        f"{_ENTRY if timed else _NO_ENTRY}{_late_note(together)} {_NO_INTERVAL}"
    )
    rows = [(rank, members.get(rank)) for rank in everyone]
    each = table("Each rank over all cases that all ranks ran together", columns, rows, note)
    return Section("ranks", "Single ranks", (each, *_late_by_op(arrivals, everyone, timed=timed)))


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _late(member: RankLateness) -> str:
    ends = "" if member.low is None or member.high is None else f" ({_percent(member.low)}–{_percent(member.high)})"
    return f"{_percent(member.share)}{ends}"


def _late_note(group: GroupLateness | None) -> str:
    if group is None:
        return " Stragglers are not judged: these ranks ran no synchronising operation together."
    if group.launches >= LAUNCHES_FOR_AN_INTERVAL:
        spread = "in brackets the 95 % interval over launches"
    else:
        spread = "in brackets the range of launches" if group.launches > 1 else "one launch has no interval"
    return (
        f" Late: last, by more than {format_time(group.release_ns)} and than {TIMES_USUAL:g} times the usual delay, "
        f"{format_time(group.usual_ns)}, below which 4 of 5 samples of normal ranks stay; {spread}. A straggler is "
        f"late in at least {100 * LEAST_EXCESS:.0f} percentage points more samples than the next rank, costs "
        f"at least {LEAST_COST:.0%} of the time, and is late neither by chance nor in a few launches only."
    )


def _late_by_op(arrivals: Iterable[tuple[str, int, float]], everyone: Sequence[int], *, timed: bool) -> list[Table]:
    """A heatmap of ``arrivals``: op, rank, and the share of samples in which the rank was the last."""
    shown = everyone[:_MOST_RANK_COLUMNS]
    what = "arrived last" if timed else "had the shortest time"
    shares = by_key(((op, rank), share) for op, rank, share in arrivals)
    means = {place: fmean(of) for place, of in shares.items()}
    if not means:
        return []
    shade = shades(list(means.values()))

    def of_rank(rank: int) -> Column[str]:
        def share(op: str) -> Cell | None:
            return Cell(_percent(mean), heat=shade(mean)) if (mean := means.get((op, rank))) is not None else None

        return Column(f"rank {rank}", share, str)

    columns: tuple[Column[str], ...] = (Column("Operation", lambda op: op), *map(of_rank, shown))
    cut = "" if len(shown) == len(everyone) else f"; the first {len(shown)} of {len(everyone)} ranks"
    caption = f"How often each rank {what}, in % of samples, by operation{cut}"
    return [table(caption, columns, dict.fromkeys(op for op, _ in means), _NO_INTERVAL, folded=True)]
