"""The judgement: what the numbers of a run mean, warnings first, each in plain words and with its evidence."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from busbw_analysis.fit import Fit, Refused
from busbw_analysis.load import Dataset
from busbw_analysis.models import NoModel, Prediction
from busbw_analysis.peaks import NoRoof, Roof
from busbw_analysis.series import Series
from busbw_analysis.summary import CaseSummary

Severity = Literal["bad", "caution", "note"]
Word = Literal[
    "near the roof",
    "above the roof",
    "latency-bound",
    "as the model says",
    "below the model",
    "faster than the model",
    "below the roof",
    "not judged",
]


@dataclass(frozen=True, slots=True)
class Remark:
    """Something to know before believing a number. ``subject`` is a short stable word (``oversubscribed``,
    ``failed``, ``late rank`` …), ``text`` whole sentences with the numbers that support them.
    """

    severity: Severity
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Curve:
    """One measured curve with everything that it is held against. ``model[i]`` is for ``series.points[i]``."""

    series: Series
    fit: Fit | Refused
    model: tuple[Prediction, ...] | NoModel
    roof: Roof | NoRoof


@dataclass(frozen=True, slots=True)
class Verdict:
    """One op in one band of sizes: measured against roof and model, at the largest size of the band.

    Times in ns per call, rates in B/s. ``roof_share`` is busbw over the roof (above 1 it is explained in ``why``),
    ``model_ratio`` measured time over predicted time. ``denominator`` says what 100 % is. ``indicative``: fewer than
    4 launches, so nothing here is statistical.
    """

    label: str
    op: str
    band: str
    size_bytes: int
    time_ns: float
    busbw: float | None
    roof_share: float | None
    denominator: str
    model_ratio: float | None
    word: Word
    why: str
    indicative: bool


@dataclass(frozen=True, slots=True)
class Odd:
    """A row, column or pair of a matrix that stands out: ``what`` names it, ``ratio`` its rate over the usual."""

    kind: Literal["sender", "receiver", "pair"]
    ranks: tuple[int, ...]
    ratio: float
    text: str


@dataclass(frozen=True, slots=True)
class PairMatrix:
    """Every ordered pair at one size: ``rate[s, d]`` (B/s) and ``time_ns[s, d]`` from ``ranks[s]`` to ``ranks[d]``;
    NaN on the diagonal and where nothing was measured. ``variant`` is ``together`` or ``alone``.
    """

    ranks: tuple[int, ...]
    size_bytes: int
    dtype: str | None
    variant: str | None
    rate: npt.NDArray[np.float64]
    time_ns: npt.NDArray[np.float64]
    odd: tuple[Odd, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """All that a report needs: the data, then what is thought of them. ``remarks`` are sorted, the worst first."""

    dataset: Dataset
    remarks: tuple[Remark, ...]
    verdicts: tuple[Verdict, ...]
    curves: tuple[Curve, ...]
    matrices: tuple[PairMatrix, ...]
    cases: tuple[CaseSummary, ...]


def judge(dataset: Dataset) -> Judgement:
    """Judge ``dataset``. Never raises for what was measured badly: that becomes a remark or a refused fit."""
    raise NotImplementedError(dataset)
