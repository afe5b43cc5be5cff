"""The peak of every pair of GPUs that copy to each other: the link between the two, and the share of it that was
reached.

Pairs that send messages have no such peak; the peak of all messages of a rank is that of a curve.
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
from busbw_analysis.peaks.paths import Narrowest, gpu_links, host_links

DIRECT = frozenset({"peer_copy", "peer_copy_both"})
"""Copies that bypass the host."""
_STAGED, _DRIVEN = "peer_copy_staged", "peer_copy_driver"


@dataclass(frozen=True, slots=True)
class PairShares:
    """The share of its own peak that each pair of a matrix reached (n × n; NaN if not measured).

    practical_share: share of the rate that is reached in practice on such hardware; NaN if unknown, too.
    denominator: description of 100 %, for the pair with the lowest peak.
    """

    share: npt.NDArray[np.float64]
    practical_share: npt.NDArray[np.float64]
    denominator: str


_PairPeak = tuple[float, str, float]
"""Nominal rate (B/s), its description, and the rate reached in practice (NaN: unknown)."""


def shares_of(dataset: Dataset, matrix: PairMatrix, rows: Catalogue) -> PairShares | Unavailable | None:
    """The shares of one matrix, or why there are none; None if its pairs send messages."""
    if matrix.op not in {*DIRECT, _STAGED, _DRIVEN}:
        return None
    share, practical_share = np.full_like(matrix.rate, np.nan), np.full_like(matrix.rate, np.nan)
    peaks: list[_PairPeak] = []
    for row, column in np.argwhere(np.isfinite(matrix.rate)).tolist():
        pair = (matrix.ranks[row], matrix.ranks[column])
        peak = _peak_of(dataset, matrix.op, pair, rows)
        if isinstance(peak, Unavailable):
            return Unavailable("pair-not-known", f"{pair[0]} → {pair[1]}: {peak.reason}")
        peaks.append(peak)
        nominal, _, practical = peak
        share[row, column] = matrix.rate[row, column] / nominal
        practical_share[row, column] = matrix.rate[row, column] / practical
    if not peaks:
        return Unavailable("nothing-measured", "no pair was measured")
    _, denominator, _ = min(peaks, key=itemgetter(0, 1))
    return PairShares(share, practical_share, denominator)


def _peak_of(dataset: Dataset, op: str, pair: tuple[int, int], rows: Catalogue) -> _PairPeak | Unavailable:
    """Direct copies: the NVLinks between the two, or else the slower of their links to the host.

    Copies through the host go down the link of one and up that of the other: t ≥ S / B₁ + S / B₂ if staged, else t ≥ S
    / min(B₁, B₂), because a driver may overlap both halves.
    """
    ways = [gpu_links(dataset, pair, rows)] if op in DIRECT else [host_links(dataset, [rank], rows) for rank in pair]
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
