"""Whether the times of a curve agree with the model of its algorithm, and what the run recorded about deviations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from busbw.runs.records import JSON
from busbw.units import counted, format_size
from busbw_analysis.data.facts import Facts
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.curves import Curve
from busbw_analysis.diagnosis.doubts import DOUBTS, MODEL_TOLERANCE, Doubt
from busbw_analysis.diagnosis.verdicts import (
    Status,
    by_tolerance,
    over_interval,
    times,
    times_of_model,
)
from busbw_analysis.models.bounds import Explanation, Spent
from busbw_analysis.models.select import Prediction

_OF_THE_TIME: Final[frozenset[str]] = frozenset(
    {"bimodal", "outlier mode", "skew>10%", "drift", "outliers", "disturbed"}
)
"""Flags that affect the time of a call."""


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
    point_statuses = [_status(modelled, index) for index in range(len(points))]
    outside = [index for index, ratio in enumerate(ratios) if by_tolerance(ratio) != "as expected"]
    sure, unsure = (
        [index for index, status in enumerate(point_statuses) if status in statuses]
        for statuses in (("slower", "faster"), ("undecided",))
    )
    if not (named := sure or unsure or outside):
        some = (
            f"From {format_size(points[0].size_bytes)} to {format_size(points[-1].size_bytes)} a" if points[1:] else "A"
        )
        return f"{some} call takes {times_of_model(min(ratios), max(ratios))}, which is normal."
    place = max(named, key=lambda index: max(ratios[index], 1 / ratios[index]))
    point, ratio, ends = points[place], ratios[place], _ends(modelled, place)
    span = f" ({' to '.join(map(times, ends))})" if ends else ""
    at = f"At {format_size(point.size_bytes)} a" if point.size_bytes else "A"
    text = f"{at} call takes {times(ratio)}{span} the model's time"
    if point_statuses[place] == "as expected":
        text += f", which is normal: the interval reaches to a factor of {MODEL_TOLERANCE:g}"
    elif point_statuses[place] == "undecided":
        text += f", which is undecided: the interval contains a limit (a factor of {MODEL_TOLERANCE:g})"
    elif ratio < 1:
        text += ": the model is too pessimistic here"
    else:
        observations = _observations(curve, point, facts, cases)
        text += f": {', '.join(observations)}" if observations else ", and no record of the run explains it"
    if points[1:]:
        inside = len(points) - len(outside)
        text += f"; {inside or 'none'} of {len(points)} sizes {'is' if inside == 1 else 'are'} within a factor of "
        text += f"{MODEL_TOLERANCE:g}"
    return f"{text}."


def _status(modelled: Modelled, place: int) -> Status:
    """The status of a time by the model alone, as a verdict has it."""
    ratio = modelled.ratios[place]
    best, worst = _ends(modelled, place) or (ratio, ratio)
    return over_interval(*map(by_tolerance, (best, ratio, worst)))


def _ends(modelled: Modelled, place: int) -> tuple[float, ...]:
    """Both ends of the measured interval over the prediction; empty without an interval."""
    interval, predicted = modelled.curve.series.points[place].interval, modelled.model[place].time_ns
    if interval.low_ns is None or interval.high_ns is None:
        return ()
    return interval.low_ns / predicted, interval.high_ns / predicted


def _observations(curve: Curve, point: GroupSummary, facts: Facts, cases: Sequence[CaseSummary]) -> list[str]:
    """Observations of the run that affect the time of this point: shared cores, and flags."""
    hosts = facts.hosts_of(curve.series.key.ranks)
    observations = [
        f"{ranks} ranks share {counted(cores, 'core')}{f' of {host}' if len(hosts) > 1 else ''}"
        for host, (ranks, cores) in facts.oversubscribed_hosts.items()
        if host in hosts
    ]
    return observations + [flag for flag in cases[point.case].flags if flag in _OF_THE_TIME]
