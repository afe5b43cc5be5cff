"""The report section on single ranks: which ranks keep the others waiting."""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median
from typing import Final

from busbw.ops import SYNCHRONISING
from busbw.units import format_time
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.intervals import LAUNCHES_FOR_AN_INTERVAL
from busbw_analysis.data.lateness import (
    LEAST_COST,
    LEAST_EXCESS,
    TIMES_USUAL,
    GroupLateness,
    RankLateness,
)
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.report.document import Cell, Column, Paragraph, Section, Table, table
from busbw_analysis.report.sections.pairs import shades

_MOST_RANK_COLUMNS = 32
SHORTEST: Final = "Shortest time (usually the last to arrive)"
_ENTRY: Final = "The order of arrival is read from a shared clock; the others wait for the last rank."
_NO_ENTRY: Final = (
    "The order of arrival was not recorded. The others usually wait for the rank with the shortest time, but not "
    "always if ranks share cores or the algorithm treats them differently."
)
_NO_INTERVAL: Final = "Numbers over cases have no interval: cases differ by far more than the launches of one case."


def rank_views(judgement: Judgement) -> Section:
    """Each rank's own time against the slowest rank's, how often it arrived last, and whether it is a straggler."""
    whole = [
        (summary.case.op, group)
        for summary in judgement.cases
        if summary.state == "measured" and (group := summary.only) is not None and len(group.ranks) > 1
    ]
    everyone = sorted({rank for _, group in whole for rank in group.ranks})
    if not everyone:
        text = "No measured operation lets ranks wait for each other."
        return Section("ranks", "Single ranks", (Paragraph(text),))
    waiting = [(op, group) for op, group in whole if op in SYNCHRONISING]
    views = [view for _, group in whole for view in group.views]
    shares = by_key((view.rank, view.own_share) for view in views if math.isfinite(view.own_share))
    own = {rank: median(of) for rank, of in shares.items()}
    arrivals = [
        (op, view.rank, view.late_count / view.samples) for op, group in waiting for view in group.views if view.samples
    ]
    late = by_key((rank, share) for _, rank, share in arrivals)
    hosts = judgement.facts.hosts
    together = next((group for group in judgement.lateness if group.ranks == tuple(everyone)), None)
    members = {} if together is None else {member.rank: member for member in together.members}

    def late_share(rank: int) -> Cell | None:
        return Cell(f"{100 * (share := fmean(late[rank])):.1f}", bar=share) if rank in late else None

    def member(rank: int, value: Callable[[RankLateness], object]) -> object:
        return None if (lateness := members.get(rank)) is None else value(lateness)

    timed = all(group.entry_known for _, group in waiting)
    name = "Arrived last" if timed else SHORTEST
    columns: tuple[Column[int], ...] = (
        Column("Rank", lambda rank: rank, str),
        Column("Host", lambda rank: hosts[rank] if rank < len(hosts) else None),
        Column("Own time", own.get, _percent, "% of the slowest rank's"),
        Column(name, late_share, str, "% of samples"),
        Column("Late", lambda rank: member(rank, _late), str, "% of samples"),
        Column("Late by", lambda rank: member(rank, lambda lateness: lateness.median_ns), format_time, "median"),
        Column("Others wait", lambda rank: member(rank, lambda lateness: lateness.cost), _percent, "% of the time"),
        Column("Verdict", lambda rank: member(rank, _verdict)),
    )
    note = (
        f"Own time: median over {len(whole)} cases. {name}: mean over the {len(waiting)} "
        f"cases of operations that synchronise; by chance, each of n ranks has 1/n. "
        f"{_ENTRY if timed else _NO_ENTRY}{_late_note(together)} {_NO_INTERVAL}"
    )
    each = table("Each rank over all cases that all ranks ran together", columns, everyone, note)
    return Section("ranks", "Single ranks", (each, *_late_by_op(arrivals, everyone, timed=timed)))


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _late(member: RankLateness) -> str:
    ends = "" if member.low is None or member.high is None else f" ({_percent(member.low)}–{_percent(member.high)})"
    return f"{_percent(member.share)}{ends}"


def _verdict(member: RankLateness) -> Cell:
    return Cell("straggler", tone="caution") if member.flagged else Cell("normal", tone="quiet")


def _late_note(group: GroupLateness | None) -> str:
    if group is None:
        return " Stragglers are not judged: these ranks ran no synchronising operation together."
    spread = {
        True: "in brackets the 95 % interval over launches",
        False: "in brackets the range of launches" if group.launches > 1 else "one launch has no interval",
    }[group.launches >= LAUNCHES_FOR_AN_INTERVAL]
    return (
        f" Late: last, by more than {format_time(group.release_ns)} and by {TIMES_USUAL:g} times the usual delay of "
        f"{format_time(group.usual_ns)} (in 4 of 5 samples no normal rank is further behind); {spread}. A straggler is "
        f"late in {LEAST_EXCESS:.0%} of samples more than the next rank, costs {LEAST_COST:.0%} of the time, and is "
        "late neither by chance nor in a few launches only."
    )


def _late_by_op(arrivals: Iterable[tuple[str, int, float]], everyone: Sequence[int], *, timed: bool) -> list[Table]:
    """A heatmap of ``arrivals``: op, rank, and the share of samples in which the rank was the last."""
    shown = everyone[:_MOST_RANK_COLUMNS]
    what = "arrived last" if timed else "had the shortest time"
    shares = by_key(((op, rank), share) for op, rank, share in arrivals)
    means = {place: fmean(of) for place, of in shares.items()}
    if not means:
        return []
    shade = shades(list(means.values()))

    def of_rank(rank: int) -> Column[str]:
        def share(op: str) -> Cell | None:
            return Cell(_percent(mean), heat=shade(mean)) if (mean := means.get((op, rank))) is not None else None

        return Column(f"rank {rank}", share, str)

    columns: tuple[Column[str], ...] = (Column("Operation", lambda op: op), *map(of_rank, shown))
    cut = "" if len(shown) == len(everyone) else f"; the first {len(shown)} of {len(everyone)} ranks"
    caption = f"How often each rank {what}, in % of samples, by operation{cut}"
    return [table(caption, columns, dict.fromkeys(op for op, _ in means), _NO_INTERVAL, folded=True)]
