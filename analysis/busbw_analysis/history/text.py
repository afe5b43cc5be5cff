"""A history in words: sentences of its moments, and a line for each case with its trend."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, get_args

import numpy as np

from busbw.runs.records import Detail, case_in_words
from busbw.units import counted, format_rate, format_size, format_time, listed
from busbw_analysis.data.block_columns import Floats
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.diagnosis.hypothesis_tests import percent
from busbw_analysis.history.steps import FEWEST_BEFORE, FEWEST_RUNS, SOON
from busbw_analysis.history.trends import Change, History, Moment, Trend, TrendStep
from busbw_analysis.report.document import Column, Table, table

MOST_MOMENTS: Final = 5
"""So many are in the answer; JSON and the page have all."""
_MOST_CAUSES: Final = 3
_LONGEST_VALUE: Final = 60
_BARS: Final = "▁▂▃▄▅▆▇█"
_MARK: Final = "│"
_MOST_MARKS: Final = 3
_WIDTH: Final = 15
_LEAST_RANGE: Final = 1.2
"""A sparkline spans at least this ratio, so that scatter does not look like change."""


def names_of(trends: Sequence[Trend]) -> dict[str, str]:
    """A name for each series: the operation, and as many of ``_TOLD_BY`` as tell its trends of the same size apart."""
    names: dict[str, str] = {}
    for of in grouped(trends, lambda trend: trend.case.op).values():
        words = {trend.series: [trend.case.op] for trend in of}
        for text in _TOLD_BY:
            alike = by_key(((*words[trend.series], trend.case.size_bytes), text(trend)) for trend in of)
            if any(len(set(texts)) > 1 for texts in alike.values()):
                for trend in of:
                    words[trend.series] += filter(None, [text(trend)])
        names |= {series: " ".join(texts) for series, texts in words.items()}
    return names


def _detail(name: Detail) -> Callable[[Trend], str]:
    others = [other for other in get_args(Detail) if other != name]
    return lambda trend: " ".join(case_in_words(trend.case, others))


_TOLD_BY: Final[tuple[Callable[[Trend], str], ...]] = (
    lambda trend: "" if trend.tool == "busbw" else trend.tool,
    *(_detail(name) for name in get_args(Detail) if name != "op"),
    lambda trend: trend.case.tool_op or "",
    lambda trend: trend.case.backend,
    lambda trend: counted(trend.case.ranks, "rank"),
    lambda trend: counted(trend.case.nodes, "host"),
    lambda trend: f"on {trend.machine_kind}",
)
"""What tells cases of an operation apart in words; the first that do are used."""


def answer_lines(history: History) -> list[tuple[str, str]]:
    """The answer, as labels and sentences: the latest moments first."""
    if not history.trends:
        return [("history", "no result is selected")]
    names = names_of(history.trends)
    moments = history.moments
    lines = [_line(moment, names) for moment in moments[:MOST_MOMENTS]]
    if len(moments) > MOST_MOMENTS:
        lines.append(("earlier", f"{counted(len(moments) - MOST_MOMENTS, 'more moment')} with steps"))
    of = f"{counted(len(history.trends), 'case')} over {counted(history.runs, 'run')}"
    stepped = len({trend_step.trend.series for trend_step in history.steps})
    return [
        *lines,
        ("cases", _changes(history, stepped, of)),
        ("next", _power(history)),
    ]


def _changes(history: History, stepped: int, of: str) -> str:
    most = max(len(trend.runs) for trend in history.trends)
    if most < FEWEST_RUNS:
        few = f"a change shows once a case has {FEWEST_RUNS} runs, and none has more than {most}"
        return f"{of}: {few}; busbw compare A B tests two runs"
    return f"{stepped or 'none'} of {of} became faster or slower"


def _power(history: History) -> str:
    """The step that would be found, so that none is not taken for proof of none."""
    known = [share for trend in history.trends if (share := trend.smallest_step) is not None]
    if not known:
        return (
            f"collect {FEWEST_BEFORE} runs of each case: a large change after them shows within {SOON} runs; after "
            "fewer runs, perhaps much later"
        )
    few = len(history.trends) - len(known)
    more = f"; {counted(few, 'case')} with fewer than {FEWEST_BEFORE} runs may need more" if few else ""
    return f"a change of {percent(max(known))} would be seen within {SOON} runs{more}"


def _line(moment: Moment, names: dict[str, str]) -> tuple[str, str]:
    label = f"{'since' if moment.lasting else 'on'} {moment.first.date}"
    return label, f"{_cases(moment.steps, names)} {_changed(moment)}: {cause(moment.changes)}"


def _cases(steps: Sequence[TrendStep], names: dict[str, str]) -> str:
    sizes = by_key((names[trend_step.trend.series], trend_step.trend.case.size_bytes) for trend_step in steps)
    parts = [f"{name} at {listed(map(format_size, sorted(of)), 3)}" if any(of) else name for name, of in sizes.items()]
    return f"{listed(parts, 3)} {'is' if len(steps) == 1 else 'are'}"


def _changed(moment: Moment) -> str:
    shares = [f"{100 * abs(trend_step.ratio - 1):.0f}" for trend_step in moment.steps][::-1]
    span = shares[0] if shares[0] == shares[-1] else f"{shares[0]} to {shares[-1]}"
    over = "" if moment.lasting else ", until a later step"
    return f"{span} % {'slower' if moment.slower else 'faster'}{over}"


def cause(changes: Sequence[Change]) -> str:
    """What changed at a moment and at the fewest other places, and between which runs."""
    likeliest = [change for change in changes if change.inside and change.elsewhere == changes[0].elsewhere]
    if not likeliest:
        return "no recorded fact changed with it"
    texts = [in_words(change) for change in likeliest]
    where = f"changed between run {likeliest[0].last} and run {likeliest[0].first}"
    return f"{listed(texts, _MOST_CAUSES)} {where}"


def in_words(change: Change) -> str:
    """The fact and its values."""
    return f"{change.key} {_short(change.before)} → {_short(change.after)}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def case_table(history: History) -> Table:
    """A row for each case: its last value, its last step, and its trend."""
    names = names_of(history.trends)
    rows = sorted(history.trends, key=lambda trend: not trend.steps)
    columns: list[Column[Trend]] = [
        Column("case", lambda trend: names[trend.series]),
        Column("size", lambda trend: trend.case.size_bytes or None, format_size),
        Column("median time", lambda trend: float(np.median(trend.level_ns)), format_time),
        Column("busbw", _busbw, format_rate),
        Column("last step", _last_step),
        Column("time by run", lambda trend: sparkline(trend.time_ns, [step.at for step in trend.steps[-_MOST_MARKS:]])),
        Column("runs", lambda trend: len(trend.runs), str),
    ]
    since = (
        "median time: of all runs since the last change, with the busbw of such a call; time by run: the oldest first"
    )
    return table("", columns, rows, since)


def _busbw(trend: Trend) -> float | None:
    """That of a call of the median time: a run has the busbw of its own median time, so their product is the same."""
    times = trend.level_ns
    moved = trend.busbw[-len(times) :] * times
    return None if np.isnan(moved).all() else float(np.nanmedian(moved) / np.median(times))


def _last_step(trend: Trend) -> str | None:
    if not trend.steps:
        return None
    step = trend.steps[-1]
    return f"{100 * (step.after / step.before - 1):+.0f} % {trend.runs[step.at].date}"


def sparkline(values: Floats, steps: Sequence[int]) -> str:
    """Positive ``values`` as bars on a logarithmic scale, with a mark before the first value after each of ``steps``.
    More values than ``_WIDTH`` are medians of neighbours, which no step parts.
    """
    cuts = [0, *steps, len(values)]
    each = max(1, -(-len(values) // _WIDTH))
    pieces = [
        [float(np.median(part[first : first + each])) for first in range(0, len(part), each)]
        for part in (np.log(values[begin:end]) for begin, end in pairwise(cuts))
    ]
    low, high = min(map(min, pieces)), max(map(max, pieces))
    middle, span = (low + high) / 2, max(high - low, float(np.log(_LEAST_RANGE)))
    return _MARK.join("".join(_bars(piece, middle - span / 2, span)) for piece in pieces)


def _bars(levels: Iterable[float], low: float, span: float) -> Iterator[str]:
    for level in levels:
        yield _BARS[min(len(_BARS) - 1, int((level - low) / span * len(_BARS)))]
