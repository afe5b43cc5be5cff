"""Trends: one value per run of every case, where its level stepped, and what else changed at that moment."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Final

import msgspec
import numpy as np

from busbw.runs.records import Case
from busbw_analysis.data.block_columns import Floats
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.ragged import Integers
from busbw_analysis.history.steps import FEWEST_BEFORE, Step, smallest_step, steps_of
from busbw_analysis.history.views import Views

Facts = Mapping[str, str]

_CASE: Final = tuple(field.name for field in msgspec.structs.fields(Case))


@dataclass(frozen=True, slots=True)
class Selection:
    """Which results a history is of; None or empty: all.

    runs: ids
    since, until: the first day, and the last one
    """

    runs: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    machine: str | None = None
    backend: str | None = None
    label: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def condition(self) -> tuple[str, dict[str, object]]:
        """The condition in SQL over ``launches``, and its parameters."""
        rows: dict[str, tuple[object, str]] = {
            "runs": (list(self.runs) or None, "list_contains($runs, run)"),
            "ops": (list(self.ops) or None, "list_contains($ops, op)"),
            "sizes": (list(self.sizes) or None, "list_contains($sizes, size_bytes)"),
            "machine": (self.machine, "machine = $machine"),
            "backend": (self.backend, "backend = $backend"),
            "label": (self.label, "label = $label"),
            "since": (self.since, "started >= $since"),
            "until": (self.until, "started < $until + INTERVAL 1 DAY"),
        }
        given = {name: (value, text) for name, (value, text) in rows.items() if value is not None}
        texts = [text for _, text in given.values()]
        return " AND ".join(["state <> 'wrong'", *texts]), {name: value for name, (value, _) in given.items()}


class RunFacts(msgspec.Struct, frozen=True):
    """A run of a history: ``started`` is in UTC; None if unknown. ``text``: its facts as JSON."""

    run: str
    started: datetime | None
    label: str | None
    text: str

    @property
    def facts(self) -> Facts:
        """Its facts by key; the same mapping for all runs with the same facts."""
        return _decoded(self.text)

    @property
    def date(self) -> str:
        """The day of its start."""
        return "an unknown day" if self.started is None else f"{self.started:%Y-%m-%d}"


@cache
def _decoded(text: str) -> Facts:
    return msgspec.json.decode(text, type=dict[str, str])


@dataclass(frozen=True, slots=True)
class Change:
    """A fact that differs between the runs before and after a step.

    key, before, after: the fact and its values
    last, first: ids of the last run that recorded ``before`` and of the first with ``after``
    inside: whether the change lies within the interval of the step
    elsewhere: how often the fact changed at other places of the series
    """

    key: str
    before: str
    after: str
    last: str
    first: str
    inside: bool
    elsewhere: int


@dataclass(frozen=True, slots=True)
class Trend:
    """One case over runs, oldest first. Unlike settings, machines and tools are other trends.

    series: its identity, as the column of ``launches``
    runs: one entry per run with a result; the arrays are aligned with it
    time_ns, low_ns, high_ns: median, lowest and highest over the launches of the run's time of a call; of several
        groups of ranks, the slowest counts
    busbw: the same median as bus bandwidth in B/s; NaN if it has none
    launches: number of launches
    """

    series: str
    case: Case
    machine: str
    machine_kind: str
    tool: str
    runs: tuple[RunFacts, ...]
    time_ns: Floats
    low_ns: Floats
    high_ns: Floats
    busbw: Floats
    launches: Integers
    steps: tuple[Step, ...]

    @property
    def level_ns(self) -> Floats:
        """The times since the last step."""
        return self.time_ns[self.steps[-1].at if self.steps else 0 :]

    @property
    def smallest_step(self) -> float | None:
        """The smallest step, as a share, that is found with 95 % within 10 runs after it, if it comes next; None:
        too few runs at the present level.
        """
        level = self.level_ns
        if len(level) < FEWEST_BEFORE:
            return None
        return smallest_step(float(np.log(level).std(ddof=1)), len(level))


@dataclass(frozen=True, slots=True)
class TrendStep:
    """A step of a trend, and what changed with it, the likeliest cause first."""

    trend: Trend
    step: Step
    changes: tuple[Change, ...]

    @property
    def ratio(self) -> float:
        """Time after the step over time before it: above 1 is slower."""
        return self.step.after / self.step.before

    @property
    def last(self) -> RunFacts:
        """The last run before the step."""
        return self.trend.runs[self.step.at - 1]

    @property
    def first(self) -> RunFacts:
        """The first run after the step."""
        return self.trend.runs[self.step.at]


@dataclass(frozen=True, slots=True)
class Moment:
    """Steps of several cases in the same direction at the same time.

    steps: the steps, largest first
    changes: what changed within most of their intervals
    lasting: whether the last run still has the new level, in any of the cases
    """

    first: RunFacts
    last: RunFacts
    slower: bool
    steps: tuple[TrendStep, ...]
    changes: tuple[Change, ...]
    lasting: bool


@dataclass(frozen=True, slots=True)
class History:
    """Trends of all selected cases. ``runs``: number of runs with a result; ``moments``: the steps, latest first."""

    runs: int
    trends: tuple[Trend, ...]
    steps: tuple[TrendStep, ...]
    moments: tuple[Moment, ...]


def history_of(views: Views, selection: Selection | None) -> History:
    """The trends of the cases that are selected, by operation and size."""
    condition, parameters = (selection or Selection()).condition
    views.connection.execute(_OF_RUNS.format(condition=condition), parameters)
    views.connection.execute(_NUMBERED)
    described = {row[0]: row[1:] for row in views.rows(_DESCRIBED)}
    runs = [RunFacts(*row) for row in views.rows(_RUNS)]
    table = views.connection.execute(_TRENDS).fetchnumpy()
    trends = [
        _trend(series, described[series], runs, {name: _floats(table[name][place]) for name in _LISTS})
        for place, series in enumerate(table["series"].tolist())
    ]
    trends.sort(key=lambda trend: (trend.machine_kind, trend.tool, trend.case.op, trend.case.size_bytes, trend.series))
    steps = tuple(trend_step for trend in trends for trend_step in steps_with_changes(trend))
    return History(len(runs), tuple(trends), steps, moments_of(steps))


_OF_RUNS: Final = """
    CREATE OR REPLACE TEMP TABLE of_runs AS
    WITH of_launches AS (
        SELECT series, run, launch, max(median_ns) AS time_ns, min(busbw_bytes_per_s) AS busbw
        FROM launches WHERE {condition} AND median_ns > 0 GROUP BY ALL
    )
    SELECT
        series, run, median(time_ns) AS time_ns, min(time_ns) AS low_ns, max(time_ns) AS high_ns,
        median(busbw * time_ns) / median(time_ns) AS busbw, count(*) AS launches
    FROM of_launches GROUP BY ALL
"""
"""What has a value per case and run."""
_NUMBERED: Final = """
    CREATE OR REPLACE TEMP TABLE numbered AS
    SELECT
        run, started, label, facts::VARCHAR AS facts,
        row_number() OVER (ORDER BY started NULLS FIRST, run) - 1 AS number
    FROM runs SEMI JOIN of_runs USING (run)
"""
"""The runs with a value, oldest first."""
_RUNS: Final = "SELECT run, started, label, facts FROM numbered ORDER BY number"
_LISTS: Final = ("number", "time_ns", "low_ns", "high_ns", "busbw", "launches")
_TRENDS: Final = f"""
    SELECT series, {", ".join(f"list({name} ORDER BY number) AS {name}" for name in _LISTS)}
    FROM of_runs JOIN numbered USING (run) GROUP BY series
"""  # noqa: S608 - names of columns
_DESCRIBED: Final = f"""
    SELECT DISTINCT ON (series) series, machine, machine_kind, tool, {", ".join(f'"{name}"' for name in _CASE)}
    FROM launches SEMI JOIN (SELECT series, min(run) AS run FROM of_runs GROUP BY series) USING (series, run)
"""  # noqa: S608 - names of columns


def _floats(values: object) -> Floats:
    """A list of DuckDB; NULL is NaN."""
    return np.ma.asarray(values, np.float64).filled(np.nan)


def _trend(series: str, described: Sequence[object], runs: Sequence[RunFacts], columns: Mapping[str, Floats]) -> Trend:
    machine, kind, tool, *settings = described
    case = dict(zip(_CASE, settings, strict=True))
    if isinstance(text := case["settings"], str):
        case["settings"] = msgspec.json.decode(text)
    times = columns["time_ns"]
    return Trend(
        series=series,
        case=msgspec.convert(case, Case),
        machine=str(machine),
        machine_kind=str(kind),
        tool=str(tool),
        runs=tuple(runs[number] for number in columns["number"].astype(int).tolist()),
        time_ns=times,
        low_ns=columns["low_ns"],
        high_ns=columns["high_ns"],
        busbw=columns["busbw"],
        launches=columns["launches"].astype(np.int64),
        steps=steps_of(times.tolist()),
    )


def steps_with_changes(trend: Trend) -> tuple[TrendStep, ...]:
    """The steps of a trend, each with the facts that differ between the runs before and after it: first those that
    changed within its interval and nowhere else.

    A fact that changed several times is reported at the place nearest to the step, within the segments beside it. Runs
    that did not record it are passed over.
    """
    changes = _changes_of(trend) if trend.steps else {}
    cuts = [0, *(step.at for step in trend.steps), len(trend.runs)]
    return tuple(
        TrendStep(trend, step, tuple(_changes_at(step, begin, end, changes)))
        for begin, step, end in zip(cuts, trend.steps, cuts[2:], strict=False)
    )


def _changes_of(trend: Trend) -> dict[str, list[tuple[int, Change]]]:
    """Each fact → its changes, each with the place of the first run with the new value."""
    changes: dict[str, list[tuple[int, Change]]] = {}
    last: dict[str, tuple[str, list[RunFacts]]] = {}
    before: Facts | None = None
    alike: list[RunFacts] = []
    for place, run in enumerate(trend.runs):
        facts = run.facts
        if facts is not before:
            before, alike = facts, []
            for key, value in facts.items():
                if key in last and last[key][0] != value:
                    old, runs = last[key]
                    change = Change(key, old, value, runs[-1].run, run.run, inside=False, elsewhere=0)
                    changes.setdefault(key, []).append((place, change))
                last[key] = value, alike
        alike.append(run)
    return changes


def _changes_at(
    step: Step, begin: int, end: int, changes: Mapping[str, Sequence[tuple[int, Change]]]
) -> Iterator[Change]:
    nearest = (min(of, key=lambda placed: abs(placed[0] - step.at)) for of in changes.values())
    near = (
        (
            abs(place - step.at),
            replace(change, inside=step.low <= place <= step.high, elsewhere=len(changes[change.key]) - 1),
        )
        for place, change in nearest
        if begin < place < end
    )
    yield from (
        change
        for distance, change in sorted(
            near,
            key=lambda row: (not row[1].inside, row[1].elsewhere, row[0], row[1].key),
        )
    )


def moments_of(steps: Iterable[TrendStep]) -> tuple[Moment, ...]:
    """The steps by direction and time, latest first: a step belongs to the moment of the surest step whose first run
    lies within its interval.
    """
    groups: list[list[TrendStep]] = []
    for trend_step in sorted(
        steps, key=lambda trend_step: (trend_step.step.high - trend_step.step.low, trend_step.step.p_value)
    ):
        fitting = (group for group in groups if _is_at(trend_step, group[0]))
        if (group := next(fitting, None)) is None:
            groups.append(group := [])
        group.append(trend_step)
    moments = (_moment(group) for group in groups)
    return tuple(sorted(moments, key=lambda moment: (str(moment.first.started), moment.first.run), reverse=True))


def _is_at(trend_step: TrendStep, other: TrendStep) -> bool:
    """Whether ``trend_step`` is of the same direction and moment as ``other``."""
    within = trend_step.trend.runs[trend_step.step.low : trend_step.step.high + 1]
    same = other.first in within or trend_step.last == other.last
    return (trend_step.ratio > 1) == (other.ratio > 1) and same and trend_step.trend.machine == other.trend.machine


def _moment(group: Sequence[TrendStep]) -> Moment:
    counted = by_key(
        ((change.key, change.before, change.after), change) for trend_step in group for change in trend_step.changes
    )
    often = [changes[0] for changes in counted.values() if sum(change.inside for change in changes) * 2 > len(group)]
    return Moment(
        first=group[0].first,
        last=group[0].last,
        slower=group[0].ratio > 1,
        steps=tuple(sorted(group, key=lambda trend_step: -abs(np.log(trend_step.ratio)))),
        changes=tuple(sorted(often, key=lambda change: (change.elsewhere, change.key))),
        lasting=any(trend_step.step is trend_step.trend.steps[-1] for trend_step in group),
    )
