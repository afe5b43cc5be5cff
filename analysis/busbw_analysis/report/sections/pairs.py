"""The part of a report about pairs of ranks: those within a host against those between hosts, and every single one."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from busbw.runs.placement import RankPlacement
from busbw.runs.records import settings_in_words
from busbw.units import format_rate, format_size, format_time
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.distances import BETWEEN_HOSTS, PairClass, PairSplit
from busbw_analysis.diagnosis.judge import PairMatrix
from busbw_analysis.diagnosis.peer_peaks import PairShares
from busbw_analysis.report.document import (
    HEAT_STEPS,
    MISSING,
    Block,
    Cell,
    Column,
    Paragraph,
    Section,
    Table,
    sentence,
    table,
    three_digits,
)
from busbw_analysis.report.sections.labels import ends_in_words

Floats = npt.NDArray[np.float64]
Quantity = Literal["rate", "time"]

_NARROW = 0.5
"""A heatmap's lightest shade is at most this share of its darkest: small differences must look small."""
_FAR_APART = 4
"""From this ratio on, shades follow the logarithm of the numbers."""
_LEAF_AND_HOST = " · "
_MESSAGES = "pair_matrix"
_MOST_ROWS = 24
"""Rows of a table that need not be folded."""
_MOST_IN_A_HEATMAP = 64
"""Rows of a heatmap that can be read: 4,096 cells. No browser shows a page with a million."""
_SLOWEST = 20
"""Pairs that are named where there is no room for all."""


def pairs(
    matrices: Sequence[PairMatrix],
    splits: Sequence[PairSplit],
    placements: Sequence[RankPlacement],
    shares: Sequence[PairShares | Unavailable | None] = (),
) -> Section | None:
    """Pairs within a host against pairs between hosts, then every pair as a heatmap with its numbers; None when no pair
    was measured. ``shares[i]`` is what the pairs of matrix i reached of their peaks.

    The largest size of a matrix is shown as rates and the smallest as times; the sizes between are folded.
    """
    blocks: list[Block] = _split_by_distance(splits) if splits else []
    series: dict[str, list[PairMatrix]] = {}
    large = False
    for matrix in matrices:
        if matrix.ranks:
            large |= len(matrix.ranks) > _MOST_IN_A_HEATMAP
            op = None if matrix.op == _MESSAGES else matrix.op
            label = " · ".join(text for text in (op, matrix.dtype, *settings_in_words(matrix)) if text)
            series.setdefault(label, []).append(matrix)
    if series:
        how = (
            "Rows send, columns receive. Each number is the median over launches; its interval or range has no room in "
            "the cell and is in report.json. A darker shade is a larger number; by their logarithms where they are "
            f"more than {_FAR_APART} times apart."
        )
        if large:
            how = (
                f"Of more than {_MOST_IN_A_HEATMAP} ranks the {_SLOWEST} slowest pairs are listed, and a heatmap has "
                "the median over all pairs of two hosts: rows send, columns receive. Each number is the median over "
                "launches. The numbers of every pair are in report.json."
            )
        blocks.append(Paragraph(how))
    of_peaks = {id(matrix): share for matrix, share in zip(matrices, shares, strict=False)}
    for label, members in series.items():
        ordered = sorted(members, key=lambda matrix: matrix.size_bytes)
        blocks += _every_pair(ordered[-1], label, placements, "rate")
        blocks += _of_their_peaks(of_peaks.get(id(ordered[-1])))
        blocks += _slow(ordered[-1])
        blocks += _every_pair(ordered[0], label, placements, "time")
        if len(ordered) > 1:
            blocks += _slow(ordered[0])
        blocks += _unknown(ordered)
        for matrix in reversed(ordered[1:-1]):
            blocks += _every_pair(matrix, label, placements, "rate", folded=True)
    return Section("pairs", "Pairs of ranks", tuple(blocks)) if blocks else None


# --- within a host and between hosts -------------------------------------------------------------------------------


_SPLIT_COLUMNS: Final[tuple[Column[tuple[PairSplit, PairClass]], ...]] = (
    Column("Size", lambda row: row[0].size_bytes, format_size),
    Column("Pairs", lambda row: f"of these: {row[1].name}" if row[1].part else row[1].name),
    Column("Number", lambda row: row[1].pairs, str),
    Column("Time of a call", lambda row: row[1].time_ns, format_time),
    Column("low", lambda row: row[1].interval.low_ns, format_time),
    Column("high", lambda row: row[1].interval.high_ns, format_time),
    Column("Rate", lambda row: row[1].rate, format_rate),
    Column("Slowest pair", lambda row: f"{row[1].slowest[0]} → {row[1].slowest[1]}", str),
    Column("Times as long as within a host", lambda row: row[1].times_within, three_digits),
    Column("low", lambda row: row[1].times_low, three_digits),
    Column("high", lambda row: row[1].times_high, three_digits),
)
_TIMES_COLUMNS: Final = 3


def _split_by_distance(splits: Sequence[PairSplit]) -> list[Block]:
    """For every operation what it comes to, and a table of its sizes."""
    blocks: list[Block] = []
    by_label: dict[str, list[PairSplit]] = {}
    for split in splits:
        by_label.setdefault(split.label, []).append(split)
    for label, members in by_label.items():
        ordered = sorted(members, key=lambda split: split.size_bytes)
        # Without a pair within a host there is nothing to be times as long as.
        both = any(kind.times_within is not None for split in ordered for kind in split.classes)
        columns = _SPLIT_COLUMNS if both else _SPLIT_COLUMNS[:-_TIMES_COLUMNS]
        rows = [(split, kind) for split in ordered for kind in split.classes]
        ends = ends_in_words(kind.interval for split in members for kind in split.classes)
        note = (
            f"Time of a call: median over the pairs, then over launches. {ends} Groups of ranks that run at the same "
            "time count as so many pairs."
        )
        blocks += [Paragraph(text) for text in _finding(label, ordered)]
        caption, folded = f"{label}: pairs by how far apart they are", len(rows) > _MOST_ROWS
        blocks.append(table(caption, columns, rows, note, row_headers=2, folded=folded))
    return blocks


def _finding(label: str, splits: Sequence[PairSplit]) -> Iterator[str]:
    """One sentence where there are pairs of both kinds: the smallest size in time, the largest in rate."""
    both = [split for split in splits if split.classes[-1].times_within is not None]
    if both:
        small, large = both[0], both[-1]
        parts = [f"{format_size(small.size_bytes)} take {_against(small, lambda kind: format_time(kind.time_ns))}"]
        if large.size_bytes:
            at = _against(large, lambda kind: format_rate(kind.rate))
            parts.append(f"{format_size(large.size_bytes)} move at {at}")
        yield f"{label}: {'; '.join(parts)}."


def _against(split: PairSplit, words: Callable[[PairClass], str]) -> str:
    within, between = split.classes[0], next(kind for kind in split.classes if kind.name == BETWEEN_HOSTS)
    times = three_digits(between.times_within or math.nan)
    parts = [f"{words(kind)} {kind.name}" for kind in split.classes if kind.part]
    more = f": {', '.join(parts)}" if parts else ""
    longer = f"{times} times as long in the middle launch"
    return f"{words(within)} within a host and {words(between)} between hosts ({longer}){more}"


# --- heatmaps ------------------------------------------------------------------------------------------------------


def _slow(matrix: PairMatrix) -> list[Block]:
    return [Paragraph(sentence(outlier.text), tone="caution") for outlier in matrix.outliers]


def _unknown(matrices: Sequence[PairMatrix]) -> list[Block]:
    sizes: dict[str, list[str]] = {}
    for matrix in matrices:
        if matrix.unknown is not None:
            sizes.setdefault(matrix.unknown, []).append(format_size(matrix.size_bytes))
    return [Paragraph(sentence(f"at {', '.join(at)}: {reason}"), tone="quiet") for reason, at in sizes.items()]


def _every_pair(
    matrix: PairMatrix, label: str, placements: Sequence[RankPlacement], quantity: Quantity, *, folded: bool = False
) -> list[Block]:
    """Every pair as a cell; where there are too many, the slowest by name and the others by their hosts."""
    size = format_size(matrix.size_bytes)
    call = "message of {} with its answer" if matrix.op == _MESSAGES else "copy of {}"
    text: Callable[[float], str] = format_time
    values, unit, factor = matrix.time_ns, "µs", 1e3
    what = f"Time of a {call.format(size)} · {label}"
    if quantity == "rate":
        values, text, what = matrix.rate, format_rate, f"Rate from rank to rank at {size} · {label}"
        unit, factor = ("GB/s", 1e9) if np.nanmax(values, initial=0.0) >= 1e9 else ("MB/s", 1e6)
    if not np.isfinite(values).any():
        return [_heatmap(f"{what}: none was measured", matrix, placements, values, unit, folded=folded)]
    ends = [
        f"{text(float(values.flat[cell]))} ({_named(matrix, cell)})"
        for cell in (np.nanargmin(values), np.nanargmax(values))
    ]
    caption = f"{what}: {' to '.join(ends)}, median {text(float(np.nanmedian(values)))}"
    if len(matrix.ranks) <= _MOST_IN_A_HEATMAP:
        return [_heatmap(caption, matrix, placements, values / factor, unit, folded=folded)]
    return [_slowest(caption, matrix, folded=folded), *_by_hosts(matrix, values / factor, unit, folded=folded)]


def _named(matrix: PairMatrix, cell: int | np.integer) -> str:
    source, target = divmod(int(cell), len(matrix.ranks))
    return f"{matrix.ranks[source]} → {matrix.ranks[target]}"


def _by_hosts(matrix: PairMatrix, values: Floats, unit: str, *, folded: bool) -> Iterator[Table]:
    """The median over the pairs of every two hosts, where there is room for it."""
    hosts = list(dict.fromkeys(matrix.hosts))
    if not 1 < len(hosts) <= _MOST_IN_A_HEATMAP:
        return
    number = np.asarray([hosts.index(host) for host in matrix.hosts])
    of_hosts = np.full((len(hosts), len(hosts)), np.nan)
    for one, to in np.ndindex(of_hosts.shape):
        cells = values[np.ix_(number == one, number == to)]
        of_hosts[one, to] = np.nanmedian(cells) if np.isfinite(cells).any() else np.nan
    shade = _shades_by_ratio(of_hosts[np.isfinite(of_hosts)].tolist())
    columns: tuple[Column[tuple[str, list[Cell]]], ...] = (
        Column("from \\ to", lambda row: row[0], None, unit),
        *(_cell_column(place, host) for place, host in enumerate(hosts)),
    )
    rows = [(host, list(_cells(row, shade))) for host, row in zip(hosts, of_hosts.tolist(), strict=True)]
    yield table("Median over the pairs of two hosts", columns, rows, folded=folded)


def _slowest(caption: str, matrix: PairMatrix, *, folded: bool) -> Table:
    """The slowest pairs and how much slower than the median pair they are."""
    flat = np.where(np.isfinite(matrix.time_ns), matrix.time_ns, -np.inf).ravel()
    middle = float(np.nanmedian(matrix.time_ns))
    worst = np.argsort(-flat, kind="stable")[:_SLOWEST].tolist()
    more = int(np.isfinite(flat).sum()) - len(worst)
    ranks = len(matrix.ranks)
    columns: tuple[Column[int], ...] = (
        Column("Pair", lambda cell: _named(matrix, cell)),
        Column("Hosts", lambda cell: f"{matrix.hosts[cell // ranks]} → {matrix.hosts[cell % ranks]}"),
        Column("Time of a call", lambda cell: matrix.time_ns.flat[cell], format_time),
        Column("low", lambda cell: matrix.low_ns.flat[cell], format_time),
        Column("high", lambda cell: matrix.high_ns.flat[cell], format_time),
        Column("Rate", lambda cell: matrix.rate.flat[cell], format_rate),
        Column("Times the median pair", lambda cell: matrix.time_ns.flat[cell] / middle, three_digits),
    )
    note = f"The {len(worst)} slowest pairs; {more} more are in report.json."
    return table(caption, columns, worst, note, folded=folded)


def _cell_column(place: int, name: str, group: str = "") -> Column[Any]:
    """The column of the cells at ``place`` of a heatmap's rows."""
    return Column(name, lambda row: row[1][place], str, group=group)


def _cells(values: Sequence[float], shade: Callable[[float], int]) -> Iterator[Cell]:
    for value in values:
        known = math.isfinite(value)
        yield Cell(three_digits(value), heat=shade(value)) if known else Cell(MISSING, tone="quiet")


def _of_their_peaks(shares: PairShares | Unavailable | None) -> list[Block]:
    if shares is None:
        return []
    if isinstance(shares, Unavailable):
        return [Paragraph(sentence(f"no percentages: {shares.reason}"), tone="quiet")]
    known = shares.share[np.isfinite(shares.share)]
    text = (
        f"Of the peak of its pair each copy reaches {known.min():.0%} to {known.max():.0%}, the median "
        f"{float(np.median(known)):.0%}. 100 % of the lowest of these peaks is {shares.denominator}"
    )
    practical = shares.practical_share[np.isfinite(shares.practical_share)]
    if len(practical):
        text += (
            f". Of what is reached in practice that is {practical.min():.0%} to {practical.max():.0%}, the median "
            f"{float(np.median(practical)):.0%}"
        )
    return [Paragraph(sentence(text))]


def _heatmap(
    caption: str,
    matrix: PairMatrix,
    placements: Sequence[RankPlacement],
    values: Floats,
    unit: str,
    *,
    folded: bool,
) -> Table:
    """Ranks of one host side by side below its name, and hosts of one leaf switch side by side."""
    shade = _shades_by_ratio(values[np.isfinite(values)].tolist())
    places = _places(matrix, placements)
    several = len(set(places.values())) > 1
    ranks = sorted(matrix.ranks, key=lambda rank: (*_order(matrix, placements, rank), rank))
    # Where every host has one rank, the rows name it, and columns need no more than its leaf switch.
    single = len(set(places.values())) == len(places)
    above = {rank: place.rpartition(_LEAF_AND_HOST)[0] if single else place for rank, place in places.items()}
    first = {places[rank]: rank for rank in reversed(ranks)}

    def heading(rank: int) -> str:
        return (above[rank] or places[rank]) if several else ""

    columns: tuple[Column[tuple[int, list[Cell]]], ...] = (
        *([Column("host", lambda row: places[row[0]] if first[places[row[0]]] == row[0] else "")] if several else []),
        Column("from \\ to", lambda row: row[0], None, unit),
        *(_cell_column(place, str(rank), heading(rank)) for place, rank in enumerate(ranks)),
    )
    at = {rank: matrix.ranks.index(rank) for rank in ranks}
    rows = [(source, list(_cells([float(values[at[source], at[to]]) for to in ranks], shade))) for source in ranks]
    return table(caption, columns, rows, row_headers=2 if several else 1, folded=folded)


def _places(matrix: PairMatrix, placements: Sequence[RankPlacement]) -> dict[int, str]:
    """What stands above a rank: its host, with its leaf switch where there are several."""
    leaves = {rank: _leaf(placements, rank) for rank in matrix.ranks}
    several = len(set(leaves.values())) > 1
    return {
        rank: f"{leaves[rank]}{_LEAF_AND_HOST}{host}" if several and leaves[rank] else host
        for rank, host in zip(matrix.ranks, matrix.hosts, strict=True)
    }


def _leaf(placements: Sequence[RankPlacement], rank: int) -> str:
    switches = placements[rank].switches if rank < len(placements) else None
    return switches[-1] if switches else ""


def _order(matrix: PairMatrix, placements: Sequence[RankPlacement], rank: int) -> tuple[tuple[str, ...], int]:
    switches = placements[rank].switches if rank < len(placements) else None
    return switches or (), matrix.hosts.index(matrix.hosts[matrix.ranks.index(rank)])


def _shades_by_ratio(values: Sequence[float]) -> Callable[[float], int]:
    """As ``shades``; by logarithms where the values are far apart, or all between hosts would look alike."""
    if not values or max(values) <= _FAR_APART * min(values):
        return shades(values)
    low, high = math.log(min(values)), math.log(max(values))
    return lambda value: round((HEAT_STEPS - 1) * (math.log(value) - low) / (high - low))


def shades(values: Sequence[float]) -> Callable[[float], int]:
    """From a value to its shade: 0 for the smallest of ``values``, or for half of the largest if that is smaller."""
    high = max(values, default=1.0)
    low = min([*values, high * _NARROW])
    span = high - low
    return lambda value: round((HEAT_STEPS - 1) * (value - low) / span) if span > 0 else 0
