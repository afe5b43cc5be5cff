"""Questions to predictions: their defaults, and in what they lie outside the measurements."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from busbw.errors import AnalysisError, UsageError
from busbw.ops import OF_TWO_RANKS
from busbw_analysis.predict.forecast import Extrapolation, Respect, beyond_sizes
from busbw_analysis.predict.held_out import on_a_host
from busbw_analysis.predict.selection import MeasuredCurves

NEW_REGIME: Final = "a new regime"
"""Marks a question to which no measurement may apply."""

_SIZES: Final = 5
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
    unsized = not any(point.size_bytes for curve in data.of_op for point in curve.points)
    if unsized and sizes_bytes:
        raise UsageError(f"{op} has no size; omit --size", code="no-size")
    if not unsized and not all(sizes_bytes):
        raise UsageError(f"size 0: {op} needs a size above 0 (--size 1MiB)", code="size")
    host_count = _hosts(data, ranks, hosts, ranks_per_host)
    return PredictionQuery(op, ranks, host_count, tuple(sizes_bytes) or ((0,) if unsized else _some_sizes(data)))


def _some_sizes(data: MeasuredCurves) -> tuple[int, ...]:
    """A few of the measured sizes, evenly spaced from the smallest to the largest."""
    sizes = sorted({point.size_bytes for curve in data.of_op for point in curve.points} - {0})
    places = {round((len(sizes) - 1) * step / (_SIZES - 1)) for step in range(_SIZES)}
    return tuple(sizes[place] for place in sorted(places))


def _hosts(data: MeasuredCurves, ranks: int, hosts: int | None, ranks_per_host: int | None) -> int:
    shapes = [curve.shape for curve in data.of_op]
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


def extrapolations(data: MeasuredCurves, asked: PredictionQuery, size_bytes: int) -> tuple[Extrapolation, ...]:
    """The respects in which the question lies outside the measurements."""
    far = asked.hosts > 1
    curves = [curve for curve in data.curves or data.of_op if (curve.key.hosts > 1) == far]
    sizes = sorted({point.size_bytes for curve in curves for point in curve.points if point.size_bytes})
    beyond = beyond_sizes(size_bytes, sizes[0], sizes[-1]) if sizes and size_bytes else []
    shapes = [curve.shape for curve in curves]
    if data.curve(asked.ranks, asked.hosts) is not None or not shapes:
        return tuple(beyond)
    amounts: tuple[tuple[Respect, int], ...] = (("ranks", asked.ranks), ("hosts", asked.hosts))
    for (what, amount), measured in zip(amounts, zip(*shapes, strict=True), strict=True):
        if amount > max(measured):
            times = f"{amount / max(measured):.3g} × the most measured, {max(measured)}"
            beyond.append(Extrapolation(what, f"{amount} are {times}"))
        elif amount < min(measured):
            beyond.append(Extrapolation(what, f"{amount} are fewer than the fewest measured, {min(measured)}"))
    return (*beyond, *_on_a_host(data, asked, shapes))


def new_regime(data: MeasuredCurves, asked: PredictionQuery) -> bool:
    """Whether ranks would share cores as in no measurement of the same placement, or have a core each as in none."""
    curves = [curve for curve in data.curves or data.of_op if (curve.key.hosts > 1) == (asked.hosts > 1)]
    sharing = data.oversubscribed(asked.ranks, asked.hosts)
    return bool(curves) and all(data.oversubscribed(*curve.shape) != sharing for curve in curves)


def _on_a_host(
    data: MeasuredCurves, asked: PredictionQuery, shapes: Sequence[tuple[int, int]]
) -> tuple[Extrapolation, ...]:
    """The number of ranks per host and their cores, if they lie outside the measurements."""
    counts = sorted(on_a_host(shape) for shape in shapes)
    each, least, measured = on_a_host((asked.ranks, asked.hosts)), counts[0], counts[-1]
    sharing = data.oversubscribed(asked.ranks, asked.hosts)
    of = f"{each} ranks on a host of {data.cores} usable cores"
    if new_regime(data, asked):
        how = "share cores" if sharing else "have a core each"
        before = "had a core each" if sharing else "shared cores"
        return (Extrapolation("cores", f"{of} {how}, {NEW_REGIME}: the measured ranks {before}"),)
    if sharing and each > measured:
        return (Extrapolation("cores", f"{of} share cores; at most {measured} ranks on a host were measured"),)
    if each > measured:
        return (Extrapolation("ranks per host", f"{each} are more than the most measured, {measured}"),)
    if asked.hosts > 1 and each < least:
        return (Extrapolation("ranks per host", f"{each} are fewer than the fewest measured, {least}"),)
    return ()
