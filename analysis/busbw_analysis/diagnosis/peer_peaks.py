"""The peak over every pair of GPUs that copy to each other: the way between the two, and what was reached of it.

Messages have none here: they are one of many, and the peak over what all ranks send is that of a curve.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from busbw.system.catalog import Catalogue
from busbw.units import format_rate
from busbw_analysis.data.load import Dataset
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.pairs import PairMatrix
from busbw_analysis.peaks.paths import gpu_links, host_links

DIRECT = frozenset({"peer_copy", "peer_copy_both"})
"""Copies that do not go by way of the host."""
_STAGED, _DRIVEN = "peer_copy_staged", "peer_copy_driver"


@dataclass(frozen=True, slots=True)
class PairShares:
    """What each pair of a matrix reached of its own peak (n × n; NaN where nothing was measured) and of what others
    reach on such hardware (``practical_share``; NaN where that is not known, too). ``denominator`` says what 100 % is,
    of the pair with the lowest peak.
    """

    share: npt.NDArray[np.float64]
    practical_share: npt.NDArray[np.float64]
    denominator: str


@dataclass(frozen=True, slots=True)
class _PairPeak:
    nominal: float
    denominator: str
    practical: float | None


def shares_of(dataset: Dataset, matrix: PairMatrix, rows: Catalogue) -> PairShares | Unavailable | None:
    """The shares of one matrix, or why there are none; None where its pairs send messages."""
    if matrix.op not in {*DIRECT, _STAGED, _DRIVEN}:
        return None
    share, practical_share = np.full_like(matrix.rate, np.nan), np.full_like(matrix.rate, np.nan)
    peaks: list[_PairPeak] = []
    for row, column in np.argwhere(np.isfinite(matrix.rate)).tolist():
        pair = (matrix.ranks[row], matrix.ranks[column])
        if matrix.op in DIRECT:
            peak = _direct(dataset, matrix.op, pair, rows)
        else:
            peak = _by_the_host(dataset, pair, rows, in_turn=matrix.op == _STAGED)
        if isinstance(peak, str):
            return Unavailable("pair-not-known", f"{pair[0]} → {pair[1]}: {peak}")
        peaks.append(peak)
        share[row, column] = matrix.rate[row, column] / peak.nominal
        if peak.practical is not None:
            practical_share[row, column] = matrix.rate[row, column] / peak.practical
    if not peaks:
        return Unavailable("nothing-measured", "no pair was measured")
    lowest = min(peaks, key=lambda one: (one.nominal, one.denominator))
    return PairShares(share, practical_share, lowest.denominator)


def _direct(dataset: Dataset, op: str, pair: Sequence[int], rows: Catalogue) -> _PairPeak | str:
    """The NVLinks between the two, else the link to the host of the one that has the slower one."""
    way = gpu_links(dataset, pair, rows)
    if isinstance(way, str):
        return way
    both = "; each direction has it to itself" if op == "peer_copy_both" else ""
    return _PairPeak(way.peak.nominal, f"{way.in_words('GPUs')}{both}", way.peak.practical)


def _by_the_host(dataset: Dataset, pair: Sequence[int], rows: Catalogue, *, in_turn: bool) -> _PairPeak | str:
    """Down the link of one and up that of the other: t ≥ S / B₁ + S / B₂ ``in_turn``, else t ≥ S / min(B₁, B₂), as a
    driver may have both halves under way at once.
    """
    links = [host_links(dataset, [rank], rows) for rank in pair]
    missing = next((link for link in links if isinstance(link, str)), None)
    if missing is not None:
        return missing
    down, up = (link for link in links if not isinstance(link, str))
    if not in_turn:
        slower = min(down, up, key=lambda link: link.peak.nominal)
        return _PairPeak(slower.peak.nominal, slower.in_words("GPUs"), slower.peak.practical)
    rate = 1 / (1 / down.peak.nominal + 1 / up.peak.nominal)
    known = [link.peak.practical for link in (down, up) if link.peak.practical is not None]
    practical = 1 / sum(1 / one for one in known) if len(known) == len(links) else None
    words = f"{format_rate(rate)}, all of S down and then all of it up: {down.in_words('GPUs')}; {up.in_words('GPUs')}"
    return _PairPeak(rate, words, practical)
