"""The verdict on one curve: measured times compared with peak and model, as direction and ratio per band of sizes; and
whether all of its times agree with the model, with what the run recorded about deviations.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final, Literal

from busbw.ops import REDUCING
from busbw.runs.records import JSON
from busbw.units import counted, format_rate, format_size
from busbw_analysis.data.bands import Band
from busbw_analysis.data.facts import Facts
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.intervals import Interval
from busbw_analysis.data.series import SeriesKey
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.curves import Curve, JudgedPoint
from busbw_analysis.diagnosis.doubts import DOUBTS, MODEL_TOLERANCE, Doubt, Doubts
from busbw_analysis.fitting.curve import Fit
from busbw_analysis.fitting.published import PublishedPoint
from busbw_analysis.models.bounds import Explanation, Spent
from busbw_analysis.models.select import Prediction
from busbw_analysis.peaks.peaks import Peak, PeakLevel

Status = Literal["as expected", "slower", "faster", "undecided", "not judged"]
Reference = Literal["peak", "model", "published"]
"""What a verdict compares with: a peak, the model's time, or a published time."""

LAUNCHES_FOR_A_VERDICT = 4
"""With fewer launches no rank test can reach 5 %, so a verdict is only indicative."""

NEAR_PEAK = 0.8
"""Rates from this share of the peak on are called near the peak."""

NEAR_PRACTICAL = 0.85
"""Rates from this share of the practical peak on are near the peak, too: links between GPUs carry 80 to 87 % of their
nominal rate as data.
"""

ABOVE_PEAK = 1.05
"""Above this share, a measured peak is too low to judge by. All of these limits are rules of thumb, not tests."""

ABOVE_NOMINAL: Final = 1.01
"""The same of a nominal peak, which nothing exceeds but rounding."""

_OF_THE_TIME: Final = frozenset[str]({"bimodal", "outlier mode", "skew>10%", "drift", "outliers", "disturbed"})
"""Flags that affect the time of a call."""


UNSEEN_LATENCY_NS: Final = 100_000.0
"""Latency that a call may have where its sizes do not show it: several times that of NCCL's collectives within a host,
and that of TCP between two hosts.
"""

UNSEEN_MESSAGE_NS: Final = 1_000.0
"""What a NIC may need for each message of a bandwidth test, whose messages do not wait for each other: some times what
10 million messages/s leave.
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One op in one band of sizes: measured against peak and model, at the largest size of the band.

    key: of the curve.
    band: the band of sizes, as in ``bands.BANDS``.
    time_ns, interval: of a call, in ns.
    busbw: B/s; None if nothing crosses a wire.
    peak_share: busbw over the peak.
    peak: name of the part of the machine whose rate is 100 %; ``denominator`` explains it.
    model_ratio: measured time over predicted time.
    status: compares medians with fixed limits. ``undecided``: the interval or range of the launches contains the limit
        to slower, or the reference is doubted. ``faster``: all of the interval is.
    by: what decided the status; None if nothing did.
    reached: the number that decided it, such as ``2.2× the model's time`` or ``97 % of tcp_stream of 2 ranks on n0``.
    why: what else a reader of the numbers must know; "" if nothing.
    latency_bound: at least half of the time does not depend on the size.
    indicative: there are fewer than 4 launches, so another launch may give another verdict.
    peak_doubted: the rate is so far above the peak that this peak cannot be right.
    doubt: why the reference that would decide the status cannot be trusted; None if it can.
    level: kind of the part of the machine whose rate is 100 %.
    """

    key: SeriesKey
    band: Band
    size_bytes: int
    time_ns: float
    interval: Interval
    busbw: float | None
    peak_share: float | None
    peak: str | None
    denominator: str
    model_ratio: float | None
    status: Status
    by: Reference | None
    reached: str
    why: str
    latency_bound: bool
    indicative: bool
    peak_doubted: bool = False
    doubt: Doubt | None = None
    level: PeakLevel | None = None

    @property
    def op(self) -> str:
        """The operation."""
        return self.key.op

    @property
    def label(self) -> str:
        """The name of the curve."""
        return self.key.label

    def name_among(self, verdicts: Sequence["Verdict"]) -> str:
        """The op, with the settings that distinguish it from other curves of the same op."""
        others = [verdict.key.parts for verdict in verdicts if verdict.op == self.op and verdict is not self]
        more = (part for part in self.key.parts[1:] if any(part not in other for other in others))
        return " ".join([self.op, *more])

    @property
    def text(self) -> str:
        """Status and number."""
        return f"{self.word}: {self.reached}"

    @property
    def word(self) -> str:
        """The status, as it is shown."""
        return "cannot tell" if self.doubt else self.status


def verdicts_on(curve: Curve, doubts: Doubts) -> Iterator[Verdict]:
    """One verdict per judged band of sizes."""
    return (_verdict(curve, doubts, judged) for judged in curve.judged)


def _verdict(curve: Curve, doubts: Doubts, at: JudgedPoint) -> Verdict:
    point, peak_share, model_ratio, published = at.point, at.peak_share, at.model_ratio, at.published
    exceeded = peak_share is not None and peak_share > _most_share(curve)
    if exceeded:
        doubts = replace(doubts, peak="exceeded")
    latent = bool(point.size_bytes) and latency_bound(curve, point)
    judged, best, worst = (
        _judge(curve, doubts, point.time_ns, peak_share, model_ratio, slowdown, latent=latent)
        for slowdown in (1.0, *(end / point.time_ns for end in point.ends))
    )
    status = over_interval(best.status, judged.status, worst.status)
    doubted = next((candidate for candidate in (judged, best, worst) if candidate.doubt), None)
    if doubted is not None:
        judged = doubted
    elif status != judged.status:
        judged = replace(judged, status=status, reached=_from_to(curve, best, worst))
    if published is not None and model_ratio is None and judged.status != "undecided":
        judged = _judge_by_published(published, judged, curve)
    return Verdict(
        key=curve.series.key,
        band=at.band,
        size_bytes=point.size_bytes,
        time_ns=point.time_ns,
        interval=point.interval,
        busbw=point.busbw,
        peak_share=peak_share,
        peak=curve.peak.name if isinstance(curve.peak, Peak) else None,
        denominator=curve.peak.denominator if isinstance(curve.peak, Peak) else f"none: {curve.peak.reason}",
        model_ratio=model_ratio,
        status=judged.status,
        by=judged.by,
        reached=judged.reached,
        why="; ".join(_why(curve, point, peak_share, published)),
        latency_bound=latent,
        indicative=len(point.launch_medians_ns) < LAUNCHES_FOR_A_VERDICT,
        peak_doubted=exceeded,
        doubt=judged.doubt,
        level=curve.peak.level if isinstance(curve.peak, Peak) else None,
    )


def _near_share(curve: Curve) -> float:
    """The share of the peak from which on a rate is near the peak."""
    if not isinstance(curve.peak, Peak) or curve.peak.busbw is None or curve.peak.practical_busbw is None:
        return NEAR_PEAK
    return min(NEAR_PEAK, NEAR_PRACTICAL * curve.peak.practical_busbw / curve.peak.busbw)


def _most_share(curve: Curve) -> float:
    """The largest credible share of the peak."""
    if not isinstance(curve.peak, Peak):
        return math.inf
    return (ABOVE_PEAK if curve.peak.measured else ABOVE_NOMINAL) * summed_on_the_way(curve.series.key.op, curve.peak)


def summed_on_the_way(op: str, peak: Peak) -> float:
    """How many times the peak an op reaches if switches add (NVLink SHARP, SHARP): S passes each link once."""
    adding = op in REDUCING and peak.level in {"links of GPUs", "network"}
    return max(1.0, peak.rate / peak.algbw) if adding else 1.0


@dataclass(frozen=True, slots=True)
class _Judged:
    """The status of a time. ``number``: what decided it, a share of the peak or a ratio to a time. ``doubt``: as of
    ``Verdict``.
    """

    status: Status
    reached: str
    by: Reference | None = None
    number: float = 0.0
    doubt: Doubt | None = None


def _judge(
    curve: Curve,
    doubts: Doubts,
    time_ns: float,
    peak_share: float | None,
    model_ratio: float | None,
    slowdown: float,
    *,
    latent: bool,
) -> _Judged:
    """The status of a time, multiplied by ``slowdown``, by its share of the peak and its ratio to the model.

    A reference that is doubted decides nothing: the next one does, and without one the status is undecided. The model
    takes precedence over latency: a latency-bound call must still be as fast as the model says. If only the peak is
    known, a call is not called slow if its rate without the fitted α is near the peak, because nothing says how
    large α should be. Nor is a rate called slow if the peak is that of the widest link such hardware can have.
    """
    near = _near_share(curve)
    share = 0.0 if peak_share is None else peak_share / slowdown
    reached = _share_of(curve.peak, share) if isinstance(curve.peak, Peak) else ""
    if near <= share < NEAR_PEAK and isinstance(curve.peak, Peak) and (practical := curve.peak.practical_busbw):
        of_practical = 100 * share * (curve.peak.busbw or 0.0) / practical
        reached = f"{of_practical:.3g} % of the {format_rate(practical)} {curve.peak.in_practice} ({reached})"
    if share >= near and doubts.peak is None:
        return _Judged("as expected", reached, "peak", share)
    if model_ratio is not None:
        ratio = model_ratio * slowdown
        if doubts.model is not None:
            return _Judged("undecided", DOUBTS[doubts.model], "model", ratio, doubts.model)
        return _Judged(by_tolerance(ratio), times_of_model(ratio), "model", ratio)
    if doubts.peak is not None and (share >= near or not latent):
        numbers = f"{reached}, so " if doubts.peak == "exceeded" else ""
        return _Judged("undecided", f"{numbers}{DOUBTS[doubts.peak]}", "peak", share, doubts.peak)
    if latent or peak_share is None:
        return _Judged("not judged", "latency-bound" if latent else "no peak or model")
    return _without_latency(curve, time_ns * slowdown, share, reached)


def _without_latency(curve: Curve, time_ns: float, share: float, reached: str) -> _Judged:
    """The status of a time by its ``share`` of the peak alone, which is less than near.

    Where too few sizes were measured to fit α, up to :data:`UNSEEN_LATENCY_NS` of the time may be latency, or up to
    :data:`UNSEEN_MESSAGE_NS` of a test of a NIC's bandwidth.
    """
    fitted = isinstance(curve.fit, Fit)
    unseen_ns = UNSEEN_MESSAGE_NS if in_flight(curve.series.key) else UNSEEN_LATENCY_NS
    moving_ns = time_ns - (curve.fit.alpha_seconds * 1e9 if isinstance(curve.fit, Fit) else unseen_ns)
    beyond_latency = share * time_ns / moving_ns if moving_ns > 0 else 0.0 if fitted else math.inf
    if beyond_latency >= _near_share(curve):
        why = (
            f"{100 * beyond_latency:.3g} % with latency subtracted"
            if fitted
            else "there are too few sizes to tell latency apart"
        )
        return _Judged("not judged", f"{reached}, {why}", "peak", share)
    if fitted and beyond_latency > 1.01 * share:
        reached = f"{reached}, {100 * beyond_latency:.3g} % with latency subtracted"
    widest = isinstance(curve.peak, Peak) and curve.peak.widest
    return _Judged("not judged" if widest else "slower", reached, "peak", share)


def in_flight(key: SeriesKey) -> bool:
    """Whether this is a bandwidth test of perftest or a stream, which keep many messages in flight."""
    is_stream = key.backend == "sockets" and key.op != "ping_pong"
    return is_stream or (key.backend == "verbs" and (key.tool_op or "").endswith("BW Test"))


def over_interval(best: Status, middle: Status, worst: Status) -> Status:
    """The status of a median, given those of both ends of its interval: slower or faster only with all of it."""
    statuses = {best, middle, worst}
    if len(statuses) > 1 and not statuses <= {"as expected", "faster", "not judged"}:
        return "undecided"
    return "as expected" if middle == "faster" and worst != "faster" else middle


def _share_of(peak: Peak, *shares: float) -> str:
    """A share, or the range of several, with the rate and the name of its peak."""
    return share_of_peak(f"the {peak.allowance}", *shares)


def share_of_peak(peak: str, *shares: float) -> str:
    """A share, or the range of several, with what it is of."""
    return f"{' to '.join(dict.fromkeys(f'{100 * share:.3g} %' for share in shares))} of {peak}"


def times_of_model(*ratios: float) -> str:
    """A ratio to the model's time, or the range of several."""
    return f"{' to '.join(dict.fromkeys(map(times, ratios)))} the model's time"


def _from_to(curve: Curve, best: _Judged, worst: _Judged) -> str:
    """The numbers at both ends of an interval, lowest first."""
    if best.by == worst.by == "model":
        return times_of_model(best.number, worst.number)
    if best.by == worst.by == "peak" and isinstance(curve.peak, Peak):
        return _share_of(curve.peak, worst.number, best.number)
    return f"{best.reached} at best, {worst.reached} at worst"


def by_tolerance(ratio: float) -> Status:
    """The status of a time with this ratio to the expected one."""
    if ratio > MODEL_TOLERANCE:
        return "slower"
    return "faster" if ratio < 1 / MODEL_TOLERANCE else "as expected"


def _judge_by_published(published: PublishedPoint, judged: _Judged, curve: Curve) -> _Judged:
    """A verdict by the peak alone, or without any reference, compared with published results.

    A call that takes no longer than the published one is as expected, at any share of the peak. A rate near the peak is
    never slow.
    """
    ratio = times(published.ratio)
    text = f"{'as fast as' if ratio == '1×' else f'{ratio} the time'} published for {published.of.ranks} × "
    peak = curve.peak
    adds = (
        isinstance(peak, Peak)
        and summed_on_the_way(curve.series.key.op, peak) > 1
        and max(published.rates) > (peak.busbw or math.inf)
    )
    above = ", above the links by NVLS" if adds else ""
    text += f"{published.of.gpu}: {published.rate_in_words}{above}"
    reached = f"{text}; {judged.reached}" if judged.by == "peak" else text
    if judged.status not in {"slower", "not judged"}:
        return replace(judged, reached=reached)
    status = by_tolerance(published.ratio)
    if judged.status == "slower" and status != "slower":
        status = "as expected"
    return _Judged(status, reached, "published", published.ratio)


def times(ratio: float) -> str:
    """A ratio as text without an exponent: 1.4×, 140×."""
    return f"{ratio:.2g}×" if ratio < 100 else f"{ratio:.0f}×"


def latency_bound(curve: Curve, point: GroupSummary) -> bool:
    """Whether at least half of the time does not depend on the size: α of the fit, or the time of the smallest size."""
    points = curve.series.points
    if isinstance(curve.fit, Fit):
        return curve.fit.alpha_seconds * 1e9 >= point.time_ns / 2
    return (
        len(points) > 1 and points[0].size_bytes * 8 <= points[-1].size_bytes and points[0].time_ns >= point.time_ns / 2
    )


def _why(
    curve: Curve, point: GroupSummary, peak_share: float | None, published: PublishedPoint | None
) -> Iterator[str]:
    peak = curve.peak
    if isinstance(peak, Peak) and peak_share is not None and point.busbw is not None:
        if (practical := peak.practical_busbw) is not None:
            yield f"{100 * point.busbw / practical:.3g} % of the {format_rate(practical)} {peak.in_practice}"
        if peak.widest:
            yield "the peak assumes the widest link of this GPU model, because the log does not state its link"
        if peak_share > 1:
            yield f"above 100 %: {why_above(curve.series.key.op, peak)}"
    if published is not None:
        yield published.in_words


def why_above(op: str, peak: Peak) -> str:
    """Why the rate of an op may be above this peak."""
    level = peak.level
    if summed_on_the_way(op, peak) > 1:
        return "switches that add (NVLink SHARP, SHARP) pass on fewer bytes than the peak assumes, or its rate is wrong"
    if level == "plain TCP of a host":
        return "plain sockets were slower when the reference was measured"
    if level == "memory copy of a host":
        return "parts of this message stay in a cache, but the copies behind the reference may not"
    return "the bytes took another path than the one with the stated rate, or its rate is wrong"


# --- all times of a curve ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Modelled:
    """A curve with its model and the explanation by it."""

    curve: Curve
    model: tuple[Prediction, ...]
    explanation: Explanation

    @property
    def rows(self) -> Iterator[tuple[GroupSummary, Prediction, Spent]]:
        """Measured point, prediction and breakdown of the time, size by size."""
        yield from zip(self.curve.series.points, self.model, self.explanation.spent, strict=True)

    @property
    def ratios(self) -> list[float]:
        """Measured over predicted times."""
        return [point.time_ns / prediction.time_ns for point, prediction, _ in self.rows]


def modelled_curve(curve: Curve) -> Modelled | None:
    """The curve with its model; None if there is no model, or none that explains its time."""
    if isinstance(curve.model, Unavailable) or isinstance(curve.explanation, Unavailable):
        return None
    return Modelled(curve, curve.model, curve.explanation)


def against_model(curve: Curve) -> dict[str, JSON] | None:
    """The curve compared with the model of its algorithm (measured over predicted) and with the lower bound."""
    modelled = modelled_curve(curve)
    if modelled is None:
        return None
    shares = [spent.bound_share for spent in modelled.explanation.spent if spent.bound_share is not None]
    return {
        "algorithm": modelled.model[0].algorithm,
        "least_ratio": min(modelled.ratios),
        "median_ratio": median(modelled.ratios),
        "largest_ratio": max(modelled.ratios),
        "bound": modelled.explanation.bound or None,
        "best_bound_share": max(shares, default=None),
    }


def in_words(curve: Curve, doubt: Doubt | None, facts: Facts, cases: Sequence[CaseSummary]) -> str:
    """Whether the times of ``curve`` agree with its model, in one sentence, with what the run recorded about
    deviations; "" without a model. Of a doubted model it says that alone. It names observations, not causes.
    """
    modelled = modelled_curve(curve)
    if modelled is None:
        return ""
    if doubt is not None:
        return f"The model cannot explain these times: {DOUBTS[doubt]}."
    points, ratios = curve.series.points, modelled.ratios
    ends = [[end / prediction.time_ns for end in point.ends] for point, prediction, _ in modelled.rows]
    statuses = [
        over_interval(by_tolerance(low), by_tolerance(ratio), by_tolerance(high))
        for ratio, (low, high) in zip(ratios, ends, strict=True)
    ]
    sure = [index for index, status in enumerate(statuses) if status in {"slower", "faster"}]
    unsure = [index for index, status in enumerate(statuses) if status == "undecided"]
    outside = [index for index, ratio in enumerate(ratios) if by_tolerance(ratio) != "as expected"]
    if not (named := sure or unsure or outside):
        first, last = (format_size(point.size_bytes) for point in (points[0], points[-1]))
        some = f"From {first} to {last} a" if points[1:] else "A"
        return f"{some} call takes {times_of_model(min(ratios), max(ratios))}, which is normal."
    place = max(named, key=lambda index: max(ratios[index], 1 / ratios[index]))
    point, ratio = points[place], ratios[place]
    span = "" if point.interval.low_ns is None else f" ({' to '.join(map(times, ends[place]))})"
    at = f"At {format_size(point.size_bytes)} a" if point.size_bytes else "A"
    text = f"{at} call takes {times(ratio)}{span} the model's time"
    if statuses[place] == "as expected":
        text += f", which is normal: the interval reaches to a factor of {MODEL_TOLERANCE:g}"
    elif statuses[place] == "undecided":
        text += f", which is undecided: the interval contains a limit (a factor of {MODEL_TOLERANCE:g})"
    elif ratio < 1:
        text += ": the model is too pessimistic here"
    else:
        observations = ", ".join(_observations(curve, point, facts, cases))
        text += f": {observations}" if observations else ", and no record of the run explains it"
    if points[1:]:
        inside = len(points) - len(outside)
        within = f"{inside or 'none'} of {len(points)} sizes {'is' if inside == 1 else 'are'}"
        text += f"; {within} within a factor of {MODEL_TOLERANCE:g}"
    return f"{text}."


def _observations(curve: Curve, point: GroupSummary, facts: Facts, cases: Sequence[CaseSummary]) -> Iterator[str]:
    """What affects the time of this point: shared cores, and flags."""
    hosts = curve.series.at_work
    for host, (ranks, cores) in facts.oversubscribed_hosts.items():
        if host in hosts:
            yield f"{ranks} ranks share {counted(cores, 'core')}{f' of {host}' if len(hosts) > 1 else ''}"
    yield from (flag for flag in cases[point.case].flags if flag in _OF_THE_TIME)
