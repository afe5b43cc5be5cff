"""The peak over every pair of GPUs that copy to each other: the way between the two, and what was reached of it.

Messages have none here: they are one of many, and the peak over what all ranks send is that of a curve.
"""

from dataclasses import dataclass
from operator import itemgetter

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


_PairPeak = tuple[float, str, float]
"""Nominal rate (B/s), what that is, and the rate that is reached in practice (NaN: not known)."""


def shares_of(dataset: Dataset, matrix: PairMatrix, rows: Catalogue) -> PairShares | Unavailable | None:
    """The shares of one matrix, or why there are none; None where its pairs send messages."""
    if matrix.op not in {*DIRECT, _STAGED, _DRIVEN}:
        return None
    share, practical_share = np.full_like(matrix.rate, np.nan), np.full_like(matrix.rate, np.nan)
    peaks: list[_PairPeak] = []
    for row, column in np.argwhere(np.isfinite(matrix.rate)).tolist():
        pair = (matrix.ranks[row], matrix.ranks[column])
        peak = _peak_of(dataset, matrix.op, pair, rows)
        if isinstance(peak, str):
            return Unavailable("pair-not-known", f"{pair[0]} → {pair[1]}: {peak}")
        peaks.append(peak)
        nominal, _, practical = peak
        share[row, column] = matrix.rate[row, column] / nominal
        practical_share[row, column] = matrix.rate[row, column] / practical
    if not peaks:
        return Unavailable("nothing-measured", "no pair was measured")
    _, denominator, _ = min(peaks, key=itemgetter(0, 1))
    return PairShares(share, practical_share, denominator)


def _peak_of(dataset: Dataset, op: str, pair: tuple[int, int], rows: Catalogue) -> _PairPeak | str:
    """Of direct copies the NVLinks between the two, else the link to the host of the one that has the slower one. By
    the host: down the link of one and up that of the other, t ≥ S / B₁ + S / B₂ where that is staged, else
    t ≥ S / min(B₁, B₂), as a driver may have both halves under way at once.
    """
    ways = [gpu_links(dataset, pair, rows)] if op in DIRECT else [host_links(dataset, [rank], rows) for rank in pair]
    links = [way for way in ways if not isinstance(way, str)]
    missing = next((way for way in ways if isinstance(way, str)), None)
    if missing is not None:
        return missing
    if op != _STAGED:
        slower = min(links, key=lambda link: link.peak.nominal)
        both = "; each direction has it to itself" if op == "peer_copy_both" else ""
        return slower.peak.nominal, f"{slower.in_words('GPUs')}{both}", slower.peak.practical or np.nan
    rate = 1 / sum(1 / link.peak.nominal for link in links)
    practical = 1 / sum(1 / (link.peak.practical or np.nan) for link in links)
    way = "; ".join(link.in_words("GPUs") for link in links)
    return rate, f"{format_rate(rate)}, all of S down and then all of it up: {way}", practical
