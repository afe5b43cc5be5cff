"""Rules from healthy runs: limits that a healthy machine fails less than once in 1,000 runs, by its own scatter.

The logarithm of a run's time is taken as normal over runs. A limit is as far from the mean as the next run is with
probability ``ERROR_RATE`` divided by the number of rules, and as an upper 95 % tolerance bound for this share of runs,
whichever is farther. So few runs give wide limits.
"""

import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from busbw.errors import UsageError
from busbw.ops.algorithms import LIBRARY
from busbw.ops.settings import explicit_algorithm
from busbw.runs.records import Case
from busbw.units import counted, format_size
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.load import Dataset
from busbw_analysis.diagnosis.compare import launch_values
from busbw_analysis.diagnosis.hypothesis_tests import percent
from busbw_analysis.gate.launch_tests import ERROR_RATE, FEWEST_RUNS, LEAST_SCATTER, bound
from busbw_analysis.gate.rules import Rule, written

_TIGHT: Final = 0.1
"""A slowdown that rules should find: how many runs would do is said of wider ones."""
_MARGIN: Final = math.log1p(_TIGHT)
_MOST_RUNS: Final = 100
_MOST_LIMIT: Final = 1.0
"""A limit that lets a larger slowdown pass, as a share, is none."""
_DIGITS: Final = 3


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Suggested rules.

    smallest: the slowdown, as a share of the mean time, that the widest limit lets pass.
    runs: number of runs; needed: of those that would bring every limit within ``_TIGHT``, at this scatter; None: too
        many.
    """

    rules: tuple[Rule, ...]
    smallest: float
    runs: int
    needed: int | None
    comments: tuple[str, ...]

    @property
    def text(self) -> str:
        """The file of rules."""
        return written(self.rules, self.comments)


@dataclass(frozen=True, slots=True)
class _Limited:
    """A case, with the mean and scatter over runs of the logarithm of its median time."""

    case: Case
    mean: float
    scatter: float
    runs: int
    bus_factor: float | None


def suggested(dataset: Dataset) -> Suggestion:
    """Rules for the cases of the pooled runs. Raises UsageError for fewer than ``FEWEST_RUNS``."""
    count = len(dataset.runs)
    if count < FEWEST_RUNS:
        raise UsageError(
            f"{counted(count, 'run')} cannot show how much runs scatter; give at least {FEWEST_RUNS} healthy runs, "
            "better 10 of several days",
            code="too-few-runs",
        )
    cases = list(_limited(dataset))
    if not cases:
        raise UsageError(f"no case has results in {FEWEST_RUNS} runs", code="too-few-runs")
    keys = by_key((_filters(limited.case, [other.case for other in cases]), limited) for limited in cases)
    rules, reaches = list[Rule](), list[tuple[float, float]]()
    for filters, members in keys.items():
        share = ERROR_RATE / len(keys)
        bounds = [limited.mean + bound(limited.runs, share) * limited.scatter for limited in members]
        worst = max(range(len(members)), key=lambda at: bounds[at] - math.log(members[at].bus_factor or 1))
        rules.append(_rule(filters, members[worst], bounds[worst]))
        reaches += [(limited.scatter, bounds[worst] - limited.mean) for limited in members]
    if any(summary.check.state == "verified" for summary in dataset.summaries):
        rules.append(Rule(metric="wrong_data", at_most="0"))
    rules.append(Rule(metric="missing_cases", at_most="0"))
    smallest = _slowdown(max(reach for _, reach in reaches))
    scatter = max(scatter for scatter, _ in reaches)
    at = bisect_left(
        range(count, _MOST_RUNS), True, key=lambda runs: bound(runs, ERROR_RATE / len(keys)) * scatter <= _MARGIN
    )
    needed = count + at if count + at < _MOST_RUNS else None
    if smallest > _MOST_LIMIT:
        more = f"{needed} runs that scatter like these would find 10 %" if needed else "take a quieter machine"
        raise UsageError(
            f"{counted(count, 'run')} that scatter so much give limits that only a slowdown of {percent(smallest)} "
            f"would fail; {more}",
            code="too-much-scatter",
        )
    return Suggestion(tuple(rules), smallest, count, needed, tuple(_comments(dataset, smallest)))


def _slowdown(reach: float) -> float:
    """A logarithm of a ratio as a share."""
    return math.expm1(min(reach, math.log(sys.float_info.max)))


def _limited(dataset: Dataset) -> list[_Limited]:
    rows = []
    for summary in dataset.summaries:
        if not summary.groups:
            continue
        by_run = by_key((run, math.log(value)) for (run, _), value in launch_values(dataset, summary, "median").items())
        means = [float(np.median(values)) for values in by_run.values()]
        if len(means) < FEWEST_RUNS:
            continue
        scatter = max(float(np.std(means, ddof=1)), LEAST_SCATTER)
        group = summary.groups[0]
        factor = None if group.busbw is None else group.bus_factor
        rows.append(_Limited(summary.case, float(np.mean(means)), scatter, len(means), factor))
    return rows


_Filters = tuple[tuple[str, str], ...]


def _filters(case: Case, every: Sequence[Case]) -> _Filters:
    """The keys that select a case. Settings that all cases share, or that no key selects, are left out."""
    algorithms = {explicit_algorithm(other.settings) for other in every}
    values = {
        "op": case.op,
        "sizes": format_size(case.size_bytes).replace(" ", "") if case.size_bytes else None,
        "backend": case.backend,
        "dtype": case.dtype,
        "mode": case.mode if len({other.mode for other in every}) > 1 else None,
        "algorithm": (explicit_algorithm(case.settings) or LIBRARY) if len(algorithms) > 1 else None,
    }
    return tuple((key, value) for key, value in values.items() if value is not None)


def _rule(filters: _Filters, limited: _Limited, log_ns: float) -> Rule:
    """The rule with its limit rounded away from healthy values."""
    time_ns = math.exp(log_ns)
    if limited.bus_factor:
        rate = limited.bus_factor * limited.case.size_bytes / time_ns * 1e9
        unit, factor = ("GB/s", 1e9) if rate >= 1e9 else ("MB/s", 1e6)
        limit = {"metric": "busbw", "at_least": f"{_rounded(rate / factor, math.floor)}{unit}"}
    else:
        limit = {"metric": "time", "at_most": f"{_rounded(time_ns / 1e3, math.ceil)}us"}
    return msgspec.convert({**limit, **dict(filters)}, Rule)


def _rounded(value: float, direction: Callable[[float], int]) -> str:
    step = 10.0 ** (math.floor(math.log10(value)) + 1 - _DIGITS)
    return f"{direction(value / step) * step:.{max(0, -round(math.log10(step)))}f}"


def _comments(dataset: Dataset, smallest: float) -> list[str]:
    runs = [stored.run for stored in dataset.runs]
    started = sorted(run.started for run in runs)
    launches = [len({row.launch for row in stored.measurements}) for stored in dataset.runs]
    days = counted(len({stamp[:10] for stamp in started}), "day")
    taken = f"{counted(len(runs), 'healthy run')} with {sum(launches)} launches on {days}"
    return [
        f"Rules of busbw rules suggest, from {taken}, {started[0]} to {started[-1]}, machine {runs[0].machine}.",
        f"A machine whose runs scatter like these fails them less than once in {1 / ERROR_RATE:,.0f} runs.",
        f"The widest limit lets a slowdown of {100 * smallest:.3g} % pass.",
        f"Runs: {', '.join(run.id for run in runs)}",
    ]
