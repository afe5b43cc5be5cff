"""The verdict on one curve: measured against peak and model, as direction and ratio per band of sizes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from busbw.ops import LOCAL, ON_SOCKETS, OPS, STORING
from busbw.units import format_rate, format_time
from busbw_analysis.data.bands import BANDS, Band, band_of
from busbw_analysis.data.groups import Interval
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
"""Below it no rank test on launches can reach 5 %, so a verdict only indicates."""

NEAR_PEAK = 0.8
"""Share of the peak from which on a rate is called near it."""

NEAR_PRACTICAL = 0.85
"""Share of what is reached in practice from which on it is near the peak, too: links between GPUs carry 80 to 87 % of
their nominal rate as data."""

ABOVE_PEAK = 1.05
"""Share of a nominal peak above which the peak cannot be that of this machine, and of a measured one above which a rate
is not the same; a switch that does the sums carries up to twice as much."""

NOT_ITS_PEAK: Final = "the peak is not this machine's"

MODEL_TOLERANCE = 1.25
"""So many times the model's time is still as the model says. Both limits are rules of thumb, not tests."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One measured curve with everything that it is held against. ``model[i]`` is for ``series.points[i]``;
    ``parameters`` are what it was fed with; ``alternatives`` are the textbook algorithms at the largest size, which
    nothing is judged by. ``published`` is what others have of the same GPUs, which judges where no model does.
    ``explanation`` says where the time goes; it is there where the model is.
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

    label, op: the curve.
    band: the band of sizes, as in ``bands.BANDS``.
    time_ns, interval: of a call, in ns.
    busbw: B/s; None where nothing crosses a wire.
    peak_share: busbw over the peak; ``denominator`` says what 100 % is.
    model_ratio: measured time over predicted time.
    status: compares medians with fixed limits; ``undecided`` where the interval or range of the launches lies on both
        sides of one, or the rate is so far above a nominal peak that it cannot be the machine's.
    text: direction and ratio, such as ``2.2× slower than the model`` or ``97 % of peak``.
    why: the numbers behind it.
    indicative: fewer than 4 launches, so another start of the program may well say something else.
    explained_by: code of the cause that explains it (``answer.Answer.causes``); None where none does.
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
    """One verdict per band of sizes that was measured.

    Memory, storage and the streams that are peaks themselves are shown and not judged.
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
    ends = (point.interval.low_ns or point.time_ns, point.interval.high_ns or point.time_ns)
    (status, text), best, worst = (
        _judged(curve, point.time_ns, peak_share, model_ratio, slowdown, latent=latent)
        for slowdown in (1.0, *(end / point.time_ns for end in ends))
    )
    reasons = [*_peak_words(curve, point, peak_share), _model_words(curve, index)]
    if (theirs := published_of(curve.published, point)) is not None:
        reasons.append(published_words(theirs))
    if latent:
        reasons.append("latency-bound: at least half of the time does not depend on the size")
    found = {best[0], status, worst[0]}
    if len(found) > 1 and not found <= {"as expected", "faster", "not judged"}:
        reasons.insert(
            0,
            f"the {point.interval.kind} lies on both sides of a limit: {format_time(ends[0])} is {best[1]}, "
            f"{format_time(ends[1])} {worst[1]}",
        )
        status, text = "undecided", f"undecided: {best[1]} to {worst[1]}"
    elif theirs is not None and model_ratio is None and status != "undecided":
        status, text = _beside(theirs, status, text)
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
    """The share of the peak from which on a rate is near it."""
    if not isinstance(curve.peak, Peak) or curve.peak.busbw is None or curve.peak.practical_busbw is None:
        return NEAR_PEAK
    return min(NEAR_PEAK, NEAR_PRACTICAL * curve.peak.practical_busbw / curve.peak.busbw)


def _most_share(curve: Curve) -> float:
    """The share of the peak that is still believed: any of one that was measured."""
    if not isinstance(curve.peak, Peak) or curve.peak.measured:
        return math.inf
    summed = OPS[curve.series.key.op].reduces and curve.peak.level in {"links of GPUs", "network"}
    return 2 * ABOVE_PEAK if summed else ABOVE_PEAK


def _judged(
    curve: Curve, time_ns: float, peak_share: float | None, model_ratio: float | None, slowdown: float, *, latent: bool
) -> tuple[Status, str]:
    """``slowdown`` times a time against peak (``peak_share``: busbw over it) and model (None: there is none).

    The model comes before the latency: to be bound by latency is no excuse for being slower than theory says. Where
    only the peak judges, nobody is slow whose time without α of the fit is near it, as nothing tells how much latency
    is, nor who is below the widest link that such hardware has.
    """
    near, most = _near_share(curve), _most_share(curve)
    peak_share = None if peak_share is None else peak_share / slowdown
    reached = "" if peak_share is None else f"{100 * peak_share:.3g} % of peak"
    if peak_share is not None and peak_share >= near:
        # What was measured beside it scatters, too.
        believed: Status = "faster" if peak_share > (ABOVE_PEAK if math.isinf(most) else 1) else "as expected"
        return (believed, reached) if peak_share <= most else ("undecided", f"{reached}: {NOT_ITS_PEAK}")
    if model_ratio is not None:
        status, text = _by_tolerance(model_ratio * slowdown, "the model")
        return status, text or f"{model_ratio * slowdown:.2g}× the model's time"
    if latent or peak_share is None:
        return "not judged", "latency-bound" if latent else "nothing to compare with"
    moving_ns = time_ns * slowdown - curve.fit.alpha_seconds * 1e9 if isinstance(curve.fit, Fit) else 0.0
    beyond_latency = peak_share * (time_ns * slowdown) / moving_ns if moving_ns > 0 else 0.0
    if beyond_latency >= near:
        return "not judged", f"{reached}, {100 * beyond_latency:.3g} % without latency"
    return ("not judged" if isinstance(curve.peak, Peak) and curve.peak.widest else "slower"), reached


def _by_tolerance(ratio: float, what: str) -> tuple[Status, str]:
    """How a time stands to what is expected (``ratio``: over it), and where that is not as expected, in words."""
    if ratio > MODEL_TOLERANCE:
        return "slower", f"{times(ratio)} slower than {what}"
    if ratio < 1 / MODEL_TOLERANCE:
        return "faster", f"{times(1 / ratio)} faster than {what}"
    return "as expected", ""


def _beside(theirs: PublishedPoint, status: Status, text: str) -> tuple[Status, str]:
    """The verdict by the peak alone, or on what no peak and no model judges, beside what others published.

    Who takes no longer than they is as expected, whatever share of the peak that is; near the peak nobody is slow.
    """
    by_theirs, words = _by_tolerance(theirs.ratio, "published")
    found = f"{words or 'as published'}: {theirs.rate_in_words}"
    known = f"{text}, {found}" if "of peak" in text else found
    if status not in {"slower", "not judged"}:
        return status, known
    return (by_theirs if by_theirs == "slower" or status == "not judged" else "as expected"), known


def times(ratio: float) -> str:
    """A ratio in words, without an exponent: 1.4×, 140×."""
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
        if curve.peak.widest:
            yield "the peak is of the widest link that such a GPU has: the log does not tell what it has here"
        if peak_share > 1:
            yield _above(curve.peak)
        if curve.series.moved_factor > 1:
            yield (
                f"the backend moves {curve.series.moved_factor:g} times the bytes that are needed, "
                f"so {1 / curve.series.moved_factor:.0%} is all that can be reached"
            )


def _above(peak: Peak) -> str:
    if peak.level == "sockets of a host":
        return "above 100 %: plain sockets and this op are timed alike, and were not as fast at the same moment"
    if peak.measured:
        return (
            "above 100 % because the peak was measured by copying buffers that may be larger than a cache, while parts "
            "of this message stay in one; the number is shown as it is"
        )
    return "above 100 %: the stated speed is not that of the path taken, or the bytes went another way"


def _model_words(curve: Curve, index: int) -> str:
    if isinstance(curve.model, Unavailable):
        return f"no model: {curve.model.reason}"
    point, prediction = curve.series.points[index], curve.model[index]
    return (
        f"takes {format_time(point.time_ns)} where {prediction.algorithm} should take "
        f"{format_time(prediction.time_ns)} ({point.time_ns / prediction.time_ns:.2g} times)"
    )
