"""The verdict on one curve: measured against peak and model, in one word and one sentence per band of sizes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from busbw.ops import LOCAL, STORING
from busbw.units import format_rate, format_time
from busbw_analysis.data.series import Point, Series
from busbw_analysis.data.summary import Interval
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.fitting.curve import Fit
from busbw_analysis.models.bounds import Explanation
from busbw_analysis.models.costs import Parameters
from busbw_analysis.models.select import Prediction
from busbw_analysis.peaks.peaks import Peak

Label = Literal[
    "near the peak",
    "above the peak",
    "latency-bound",
    "as the model says",
    "below the model",
    "faster than the model",
    "below the peak",
    "undecided",
    "not judged",
]

LAUNCHES_FOR_A_VERDICT = 4
"""Below it no rank test on launches can reach 5 %, so a verdict only indicates."""

BANDS = (("up to 4 KiB", 4 << 10), ("up to 1 MiB", 1 << 20), ("above 1 MiB", None))
"""Names of the bands and the largest size in each."""

NEAR_PEAK = 0.8
"""Share of the peak from which on a rate is called near it."""

MODEL_TOLERANCE = 1.25
"""So many times the model's time is still as the model says. Both limits are rules of thumb, not tests."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One measured curve with everything that it is held against. ``model[i]`` is for ``series.points[i]``;
    ``parameters`` are what it was fed with; ``alternatives`` are the textbook algorithms at the largest size, which
    nothing is judged by. ``explanation`` says where the time goes; it is there where the model is.
    """

    series: Series
    fit: Fit | Unavailable
    model: tuple[Prediction, ...] | Unavailable
    parameters: Parameters | Unavailable
    peak: Peak | Unavailable
    explanation: Explanation | Unavailable
    alternatives: tuple[Prediction, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """One op in one band of sizes: measured against peak and model, at the largest size of the band.

    Times in ns per call, rates in B/s. ``peak_share`` is busbw over the peak (above 1 it is explained in ``why``),
    ``model_ratio`` measured time over predicted time. ``denominator`` says what 100 % is. ``word`` compares medians
    with fixed limits; it is ``undecided`` where the interval or range of the launches lies on both sides of one.
    ``indicative``: fewer than 4 launches, so another start of the program may well say something else.
    """

    label: str
    op: str
    band: str
    size_bytes: int
    time_ns: float
    interval: Interval
    busbw: float | None
    peak_share: float | None
    denominator: str
    model_ratio: float | None
    word: Label
    why: str
    indicative: bool


def verdicts_on(curve: Curve, *, oversubscribed: bool) -> Iterator[Verdict]:
    """One verdict per band of sizes that was measured. What stays in memory or on storage is shown with its peak and
    not judged: its sizes are levels of the hierarchy, and no messages.
    """
    if curve.series.key.op in LOCAL | STORING:
        return
    low = -1
    for band, high in BANDS:
        inside = [
            index
            for index, point in enumerate(curve.series.points)
            if low < point.size_bytes and (high is None or point.size_bytes <= high)
        ]
        if inside:
            name = band if curve.series.points[inside[-1]].size_bytes else "no size"
            yield _verdict(curve, inside[-1], name, oversubscribed=oversubscribed)
        low = high or 0


def _verdict(curve: Curve, index: int, band: str, *, oversubscribed: bool) -> Verdict:
    point = curve.series.points[index]
    peak = curve.peak.busbw if isinstance(curve.peak, Peak) else None
    peak_share = None if peak is None or point.busbw is None else point.busbw / peak
    prediction = None if isinstance(curve.model, Unavailable) else curve.model[index]
    model_ratio = None if prediction is None else point.time_ns / prediction.time_ns
    latent = bool(point.size_bytes) and latency_bound(curve, point)
    word = _word(peak_share, model_ratio, latent=latent)
    reasons = [*_peak_words(curve, point, peak_share), *_model_words(curve, prediction, point, model_ratio)]
    if latent:
        reasons.append("latency-bound: at least half of the time does not depend on the size")
    if oversubscribed:
        unknown = ", of which the model does not know" if model_ratio is not None else ""
        reasons.append(f"more ranks than cores: waiting for a core is part of every number{unknown}")
    best, worst = (
        _word(
            None if peak_share is None else peak_share * point.time_ns / end,
            None if model_ratio is None else model_ratio * end / point.time_ns,
            latent=latent,
        )
        for end in (point.interval.low_ns or point.time_ns, point.interval.high_ns or point.time_ns)
    )
    if not best == word == worst:
        ends = (
            f"{format_time(point.interval.low_ns or 0)} is {best}, {format_time(point.interval.high_ns or 0)} {worst}"
        )
        reasons.insert(0, f"the {point.interval.kind} lies on both sides of a limit: {ends}")
        word = "undecided"
    return Verdict(
        label=curve.series.key.label,
        op=curve.series.key.op,
        band=band,
        size_bytes=point.size_bytes,
        time_ns=point.time_ns,
        interval=point.interval,
        busbw=point.busbw,
        peak_share=peak_share,
        denominator=curve.peak.denominator if isinstance(curve.peak, Peak) else f"none: {curve.peak.reason}",
        model_ratio=model_ratio,
        word=word,
        why="; ".join(reasons),
        indicative=len(point.launch_medians_ns) < LAUNCHES_FOR_A_VERDICT,
    )


def _word(peak_share: float | None, model_ratio: float | None, *, latent: bool) -> Label:
    """The model comes before the latency: to be bound by latency is no excuse for being slower than theory says."""
    if peak_share is not None and peak_share > 1:
        return "above the peak"
    if peak_share is not None and peak_share >= NEAR_PEAK:
        return "near the peak"
    if model_ratio is not None:
        if model_ratio > MODEL_TOLERANCE:
            return "below the model"
        return "faster than the model" if model_ratio < 1 / MODEL_TOLERANCE else "as the model says"
    if latent:
        return "latency-bound"
    return "not judged" if peak_share is None else "below the peak"


def latency_bound(curve: Curve, point: Point) -> bool:
    """Whether at least half of the time does not depend on the size: α of the fit, or the time of the smallest size."""
    points = curve.series.points
    if isinstance(curve.fit, Fit):
        return curve.fit.alpha_seconds * 1e9 >= point.time_ns / 2
    return (
        len(points) > 1 and points[0].size_bytes * 8 <= points[-1].size_bytes and points[0].time_ns >= point.time_ns / 2
    )


def _peak_words(curve: Curve, point: Point, peak_share: float | None) -> Iterator[str]:
    if isinstance(curve.peak, Unavailable):
        yield f"no peak: {curve.peak.reason}"
    elif peak_share is not None:
        practical = curve.peak.practical_busbw
        reached = (
            f", {point.busbw / practical:.0%} of the {format_rate(practical)} that are reached in practice"
            if practical is not None and point.busbw is not None
            else ""
        )
        yield f"busbw {format_rate(point.busbw)} is {peak_share:.0%} of {format_rate(curve.peak.busbw)}{reached}"
        if peak_share > 1:
            yield _above(curve.peak)
        if curve.series.moved_factor > 1:
            yield (
                f"the backend moves {curve.series.moved_factor:g} times the bytes that are needed, "
                f"so {1 / curve.series.moved_factor:.0%} is all that can be reached"
            )


def _above(peak: Peak) -> str:
    if peak.measured:
        return (
            "above 100 % because the peak was measured by copying buffers that may be larger than a cache, while parts "
            "of this message stay in one; the number is shown as it is"
        )
    return "above 100 %: the stated speed is not that of the path taken, or the bytes went another way"


def _model_words(curve: Curve, prediction: Prediction | None, point: Point, model_ratio: float | None) -> Iterator[str]:
    if isinstance(curve.model, Unavailable):
        yield f"no model: {curve.model.reason}"
    elif prediction is not None and model_ratio is not None:
        yield (
            f"takes {format_time(point.time_ns)} where {prediction.algorithm} should take "
            f"{format_time(prediction.time_ns)} ({model_ratio:.2g} times)"
        )
