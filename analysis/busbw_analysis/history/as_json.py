"""A history as JSON: trends with their steps, and the moments that several of them share."""

import msgspec
import numpy as np

from busbw.runs.records import JSON
from busbw_analysis.data.as_json import plain, values_of
from busbw_analysis.history.trends import History, Moment, Trend, TrendStep


def document(history: History) -> dict[str, JSON]:
    """``runs`` (number of runs), ``moments`` and ``trends``."""
    return {
        "runs": history.runs,
        "moments": [_moment(moment) for moment in history.moments],
        "trends": [
            _trend(trend, [trend_step for trend_step in history.steps if trend_step.trend is trend])
            for trend in history.trends
        ],
    }


def _moment(moment: Moment) -> dict[str, JSON]:
    return {
        "date": moment.first.date,
        "first_run": moment.first.run,
        "last_run_before": moment.last.run,
        **values_of(moment, "slower", "lasting", "changes"),
        "cases": [{"series": trend_step.trend.series, "ratio": trend_step.ratio} for trend_step in moment.steps],
    }


def _trend(trend: Trend, steps: list[TrendStep]) -> dict[str, JSON]:
    numbers = ("time_ns", "low_ns", "high_ns", "busbw", "launches")
    return {
        **values_of(trend, "series", "machine", "machine_kind", "tool"),
        "case": msgspec.to_builtins(trend.case),
        "values": [
            {
                "run": run.run,
                "started": None if run.started is None else run.started.isoformat(),
                "label": run.label,
                **{name: plain(np.asarray(getattr(trend, name))[place]) for name in numbers},
            }
            for place, run in enumerate(trend.runs)
        ],
        "smallest_step": trend.smallest_step,
        "steps": [
            {**plain(trend_step.step), "ratio": trend_step.ratio, "changes": plain(trend_step.changes)}
            for trend_step in steps
        ],
    }
