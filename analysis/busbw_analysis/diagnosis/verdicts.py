"""The verdict on one curve: measured times compared with peak and model, as direction and ratio per band of sizes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from busbw.ops import LOCAL, ON_SOCKETS, OPS, STORING
from busbw.units import format_rate, format_time
from busbw_analysis.data.bands import BANDS, Band, band_of
from busbw_analysis.data.intervals import Interval
from busbw_analysis.data.series import Point, Series
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.fitting.curve import Fit
from busbw_analysis.fitting.published import Published, PublishedPoint, published_of, published_words
from busbw_analysis.models.bounds import Explanation
from busbw_analysis.models.costs import Parameters
from busbw_analysis.models.select import Prediction
from busbw_analysis.peaks.peaks import Peak

Status = Literal["as expected", "slower", "faster", "undecided", "not judged"]

LAUNCHES_FOR_A_VERDICT = 4
"""With fewer launches no rank test can reach 5 %, so a verdict is only indicative."""

NEAR_PEAK = 0.8
"""Rates from this share of the peak on are called near the peak."""

NEAR_PRACTICAL = 0.85
"""Rates from this share of the practical peak on are near the peak, too: links between GPUs carry 80 to 87 % of their
nominal rate as data.
"""

ABOVE_PEAK = 1.05
"""Above this share, a nominal peak does not apply to this machine, and a rate is called faster than a measured peak. A
switch that reduces in the network carries up to twice as much.
"""

NOT_ITS_PEAK: Final = "the stated peak does not apply here"

MODEL_TOLERANCE = 1.25
"""Up to this factor, a time agrees with the model. All of these limits are rules of thumb, not tests."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One measured curve with everything that it is compared with.

    model: predicted times; ``model[i]`` belongs to ``series.points[i]``.
    parameters: the parameters of the model.
    peak: the rate that is 100 %.
    explanation: where the time goes; available if the model is.
    alternatives: textbook algorithms at the largest size, not used by verdicts.
    published: published results for the same GPUs, which verdicts use if there is no model.
    """

    series: Series
    fit: Fit | Unavailable
    model: tuple[Prediction, ...] | Unavailable
    parameters: Parameters | Unavailable
    peak: Peak | Unavailable
    explanation: Explanation | Unavailable
    alternatives: tuple[Prediction, ...] = ()
    published: tuple[Published, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """One op in one band of sizes: measured against peak and model, at the largest size of the band.

    label, op: of the curve.
    band: the band of sizes, as in ``bands.BANDS``.
    time_ns, interval: of a call, in ns.
    busbw: B/s; None if nothing crosses a wire.
    peak_share: busbw over the peak; ``denominator`` says what 100 % is.
    model_ratio: measured time over predicted time.
    status: compares medians with fixed limits. ``undecided``: the interval or range of the launches straddles a limit,
        or the rate is so far above a nominal peak that this peak cannot be right.
    text: direction and ratio, such as ``2.2× slower than the model`` or ``97 % of peak``.
    why: the numbers behind the verdict.
    indicative: there are fewer than 4 launches, so another launch may give another verdict.
    explained_by: code of the cause that explains the verdict (``answer.Answer.causes``); None if there is none.
    """

    label: str
    op: str
    band: Band
    size_bytes: int
    time_ns: float
    interval: Interval
    busbw: float | None
    peak_share: float | None
    denominator: str
    model_ratio: float | None
    status: Status
    text: str
    why: str
    indicative: bool
    explained_by: str | None = None


def verdicts_on(curve: Curve) -> Iterator[Verdict]:
    """One verdict per measured band of sizes.

    Memory, storage and the socket streams that serve as peaks are shown, but not judged.
    """
    if curve.series.key.op in LOCAL | STORING | ON_SOCKETS:
        return
    last = {band_of(point.size_bytes): index for index, point in enumerate(curve.series.points)}
    for band, _, _ in BANDS:
        if band in last:
            yield _verdict(curve, last[band], band)


def _verdict(curve: Curve, index: int, band: Band) -> Verdict:
    point = curve.series.points[index]
    peak = curve.peak.busbw if isinstance(curve.peak, Peak) else None
    peak_share = None if peak is None or point.busbw is None else point.busbw / peak
    model_ratio = None if isinstance(curve.model, Unavailable) else point.time_ns / curve.model[index].time_ns
    latent = bool(point.size_bytes) and latency_bound(curve, point)
    ends = ends_of(point)
    (status, text), best, worst = (
        _judged(curve, point.time_ns, peak_share, model_ratio, slowdown, latent=latent)
        for slowdown in (1.0, *(end / point.time_ns for end in ends))
    )
    reasons = [*_peak_words(curve, point, peak_share), _model_words(curve, index)]
    if (published := published_of(curve.published, point)) is not None:
        reasons.append(published_words(published))
    if latent:
        reasons.append("latency-bound: at least half of the time does not depend on the size")
    found = {best[0], status, worst[0]}
    if len(found) > 1 and not found <= {"as expected", "faster", "not judged"}:
        reasons.insert(
            0,
            f"a limit lies inside the interval ({point.interval.kind}): {format_time(ends[0])} would be {best[1]}, "
            f"{format_time(ends[1])} {worst[1]}",
        )
        status, text = "undecided", f"undecided: {best[1]} to {worst[1]}"
    elif published is not None and model_ratio is None and status != "undecided":
        status, text = _with_published(published, status, text)
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
        status=status,
        text=text,
        why="; ".join(reasons),
        indicative=len(point.launch_medians_ns) < LAUNCHES_FOR_A_VERDICT,
    )


def _near_share(curve: Curve) -> float:
    """The share of the peak from which on a rate is near the peak."""
    if not isinstance(curve.peak, Peak) or curve.peak.busbw is None or curve.peak.practical_busbw is None:
        return NEAR_PEAK
    return min(NEAR_PEAK, NEAR_PRACTICAL * curve.peak.practical_busbw / curve.peak.busbw)


def _most_share(curve: Curve) -> float:
    """The largest credible share of the peak; any share of a measured peak is credible."""
    if not isinstance(curve.peak, Peak) or curve.peak.measured:
        return math.inf
    summed = OPS[curve.series.key.op].reduces and curve.peak.level in {"links of GPUs", "network"}
    return 2 * ABOVE_PEAK if summed else ABOVE_PEAK


def _judged(
    curve: Curve, time_ns: float, peak_share: float | None, model_ratio: float | None, slowdown: float, *, latent: bool
) -> tuple[Status, str]:
    """Status and text for a time, multiplied by ``slowdown``, by its share of the peak and its ratio to the model.

    The model takes precedence over latency: a latency-bound call must still be as fast as the model says. If only the
    peak is known, a call is not called slow if its rate without the fitted α is near the peak, because nothing says how
    large α should be. Nor is a rate called slow if the peak is that of the widest link such hardware can have.
    """
    near, most = _near_share(curve), _most_share(curve)
    peak_share = None if peak_share is None else peak_share / slowdown
    reached = "" if peak_share is None else f"{100 * peak_share:.3g} % of peak"
    if peak_share is not None and peak_share >= near:
        # A measured peak scatters, too.
        believed: Status = "faster" if peak_share > (ABOVE_PEAK if math.isinf(most) else 1) else "as expected"
        return (believed, reached) if peak_share <= most else ("undecided", f"{reached}: {NOT_ITS_PEAK}")
    if model_ratio is not None:
        status, text = _by_tolerance(model_ratio * slowdown, "the model")
        return status, text or f"{model_ratio * slowdown:.2g}× the model's time"
    if latent or peak_share is None:
        return "not judged", "latency-bound" if latent else "no peak or model"
    moving_ns = time_ns * slowdown - curve.fit.alpha_seconds * 1e9 if isinstance(curve.fit, Fit) else 0.0
    beyond_latency = peak_share * (time_ns * slowdown) / moving_ns if moving_ns > 0 else 0.0
    if beyond_latency >= near:
        return "not judged", f"{reached}, {100 * beyond_latency:.3g} % without latency"
    return ("not judged" if isinstance(curve.peak, Peak) and curve.peak.widest else "slower"), reached


def _by_tolerance(ratio: float, what: str) -> tuple[Status, str]:
    """The status of a time with this ratio to the expected one, and its text ("" if as expected)."""
    if ratio > MODEL_TOLERANCE:
        return "slower", f"{times(ratio)} slower than {what}"
    if ratio < 1 / MODEL_TOLERANCE:
        return "faster", f"{times(1 / ratio)} faster than {what}"
    return "as expected", ""


def _with_published(published: PublishedPoint, status: Status, text: str) -> tuple[Status, str]:
    """A verdict by the peak alone, or without any reference, compared with published results.

    A call that takes no longer than the published one is as expected, at any share of the peak. A rate near the peak is
    never slow.
    """
    by_published, words = _by_tolerance(published.ratio, "published")
    found = f"{words or 'as published'}: {published.rate_in_words}"
    known = f"{text}, {found}" if "of peak" in text else found
    if status not in {"slower", "not judged"}:
        return status, known
    return (by_published if by_published == "slower" or status == "not judged" else "as expected"), known


def ends_of(point: Point) -> tuple[float, float]:
    """Both ends of the interval; the median twice if there is no interval."""
    low, high = point.interval.low_ns, point.interval.high_ns
    return (point.time_ns, point.time_ns) if low is None or high is None else (low, high)


def times(ratio: float) -> str:
    """A ratio as text without an exponent: 1.4×, 140×."""
    return f"{ratio:.2g}×" if ratio < 100 else f"{ratio:.0f}×"


def latency_bound(curve: Curve, point: Point) -> bool:
    """Whether at least half of the time does not depend on the size: α of the fit, or the time of the smallest size."""
    points = curve.series.points
    if isinstance(curve.fit, Fit):
        return curve.fit.alpha_seconds * 1e9 >= point.time_ns / 2
    return (
        len(points) > 1 and points[0].size_bytes * 8 <= points[-1].size_bytes and points[0].time_ns >= point.time_ns / 2
    )


def _peak_words(curve: Curve, point: Point, peak_share: float | None) -> Iterator[str]:
    peak = curve.peak
    if isinstance(peak, Unavailable):
        yield f"no peak: {peak.reason}"
    elif peak_share is not None:
        practical = peak.practical_busbw
        reached = (
            f", {100 * point.busbw / practical:.3g} % of the {format_rate(practical)} reached in practice"
            if practical is not None and point.busbw is not None
            else ""
        )
        yield f"busbw {format_rate(point.busbw)} is {100 * peak_share:.3g} % of {format_rate(peak.busbw)}{reached}"
        if peak.widest:
            yield "the peak assumes the widest link of this GPU model, because the log does not state its link"
        if peak_share > 1:
            yield _above(peak)
        if curve.series.moved_factor > 1:
            yield (
                f"the backend moves {curve.series.moved_factor:g}× the necessary bytes, so at most "
                f"{1 / curve.series.moved_factor:.0%} can be reached"
            )


def _above(peak: Peak) -> str:
    if peak.level == "sockets of a host":
        return "above 100 %: the peak was measured with plain sockets at another moment, when they were slower"
    if peak.measured:
        return (
            "above 100 % (not clipped): the peak was measured by copying buffers that may exceed the caches, while "
            "parts of this message stay in a cache"
        )
    return "above 100 %: the bytes took another path than the one with the stated rate, or its rate is wrong"


def _model_words(curve: Curve, index: int) -> str:
    if isinstance(curve.model, Unavailable):
        return f"no model: {curve.model.reason}"
    point, prediction = curve.series.points[index], curve.model[index]
    return (
        f"takes {format_time(point.time_ns)}; {prediction.algorithm} should take {format_time(prediction.time_ns)} "
        f"({times(point.time_ns / prediction.time_ns)})"
    )
