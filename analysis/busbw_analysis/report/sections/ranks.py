"""The part of a report about single ranks: who keeps the others waiting."""

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import Final

from busbw.ops import SYNCHRONISING
from busbw.units import format_time
from busbw_analysis.data.load import Dataset
from busbw_analysis.data.summary import LAUNCHES_FOR_AN_INTERVAL, CaseSummary, GroupSummary
from busbw_analysis.diagnosis.arrivals import RELEASE_NS, TIMES_USUAL
from busbw_analysis.diagnosis.stragglers import LEAST_COST, LEAST_EXCESS, GroupLateness, RankLateness
from busbw_analysis.report.document import MISSING, Block, Cell, Column, Paragraph, Section, Table
from busbw_analysis.report.sections.pairs import shades

_MOST_RANK_COLUMNS = 32
SHORTEST: Final = "Shortest time (usually the one that came last)"
_ENTRY: Final = "Who came last is read from a clock that the ranks share; the others wait for it."
_NO_ENTRY: Final = (
    "The order of arrival was not recorded. The rank with the shortest time is usually the one that the others waited "
    "for, but not always where ranks share cores or the algorithm treats them differently."
)
_NO_INTERVAL: Final = (
    "Without an interval are what is taken over cases: they differ by far more than launches of one do."
)


def rank_views(dataset: Dataset, summaries: Sequence[CaseSummary], lateness: Sequence[GroupLateness]) -> Section:
    """Each rank's own times against the headline, how often it was the last to come, and whether it comes late."""
    whole = [
        (summary, group)
        for summary in summaries
        if summary.state == "measured" and (group := summary.only) is not None and len(group.ranks) > 1
    ]
    everyone = sorted({rank for _, group in whole for rank in group.ranks})
    if not everyone:
        text = "No operation was measured in which ranks could wait for each other."
        return Section("ranks", "Single ranks", (Paragraph(text),))
    late: dict[int, list[float]] = {rank: [] for rank in everyone}
    own: dict[int, list[float]] = {rank: [] for rank in everyone}
    for summary, group in whole:
        for view in group.views:
            if math.isfinite(view.own_share):
                own[view.rank].append(view.own_share)
            if summary.case.op in SYNCHRONISING and view.samples:
                late[view.rank].append(view.late_count / view.samples)
    hosts = dataset.runs[0].run.hosts
    together = next((group for group in lateness if group.ranks == tuple(everyone)), None)
    members = {} if together is None else {member.rank: member for member in together.members}
    rows = tuple(
        (
            Cell(str(rank)),
            Cell(hosts[rank] if rank < len(hosts) else MISSING),
            Cell(f"{100 * median(own[rank]):.1f}") if own[rank] else Cell(MISSING),
            Cell(f"{100 * (share := fmean(late[rank])):.1f}", bar=share) if late[rank] else Cell(MISSING),
            *_late_cells(members.get(rank)),
        )
        for rank in everyone
    )
    waiting = [group for summary, group in whole if summary.case.op in SYNCHRONISING]
    known = all(group.entry_known for group in waiting)
    name = "Came last" if known else SHORTEST
    columns = (
        Column("Rank"),
        Column("Host", numeric=False),
        Column("Own time", "% of the slowest rank's"),
        Column(name, "% of samples"),
        Column("Late", "% of samples"),
        Column("By", "median"),
        Column("Others wait", "% of the time"),
        Column("Verdict", numeric=False),
    )
    note = (
        f"Own time: median over {len(whole)} cases. {name}: mean over the {len(waiting)} "
        f"cases of operations that synchronise; chance alone gives each of n ranks 1/n. "
        f"{_ENTRY if known else _NO_ENTRY}{_late_note(together)} {_NO_INTERVAL}"
    )
    table = Table("Each rank over all cases that all ranks ran together", columns, rows, note=note)
    blocks: tuple[Block, ...] = (table, *_late_by_op(whole, everyone, known=known))
    return Section("ranks", "Single ranks", blocks)


def _late_cells(member: RankLateness | None) -> tuple[Cell, ...]:
    if member is None:
        return (Cell(MISSING),) * 4
    by_launch = (
        "" if member.low is None or member.high is None else f" ({100 * member.low:.1f}–{100 * member.high:.1f})"
    )
    return (
        Cell(f"{100 * member.share:.1f}{by_launch}"),
        Cell(format_time(member.median_ns) if math.isfinite(member.median_ns) else MISSING),
        Cell(f"{100 * member.cost:.1f}"),
        Cell("late", tone="caution") if member.accused else Cell("not late", tone="quiet"),
    )


def _late_note(group: GroupLateness | None) -> str:
    if group is None:
        return " Whether a rank comes late is not judged: these ranks ran no operation together that synchronises."
    spread = {
        True: "in brackets the 95 % interval over launches",
        False: "in brackets the range of launches" if group.launches > 1 else "one launch has no interval",
    }[group.launches >= LAUNCHES_FOR_AN_INTERVAL]
    return (
        f" Late: last, and by more than {format_time(RELEASE_NS)} and {TIMES_USUAL:g} times what is usual, which is "
        f"{format_time(group.usual_ns)} (in 4 of 5 samples none of the ranks that are not called late is further "
        f"behind); {spread}. A rank is called late when that is {LEAST_EXCESS:.0%} of samples more than for the "
        f"next rank, costs {LEAST_COST:.0%} of the time, and is neither chance nor the matter of a few launches."
    )


def _late_by_op(
    whole: Sequence[tuple[CaseSummary, GroupSummary]], everyone: Sequence[int], *, known: bool
) -> list[Table]:
    shown = everyone[:_MOST_RANK_COLUMNS]
    what = "came last" if known else "had the shortest time"
    shares: dict[str, dict[int, list[float]]] = {}
    for summary, group in whole:
        if summary.case.op in SYNCHRONISING:
            by_rank = shares.setdefault(summary.case.op, {rank: [] for rank in everyone})
            for view in group.views:
                by_rank[view.rank].append(view.late_count / max(1, view.samples))
    if not shares:
        return []
    means = {op: {rank: fmean(values) for rank, values in by_rank.items() if values} for op, by_rank in shares.items()}
    shade = shades([share for by_rank in means.values() for share in by_rank.values()])
    rows = tuple(
        (
            Cell(op),
            *(
                Cell(f"{100 * share:.1f}", heat=shade(share))
                if (share := by_rank.get(rank)) is not None
                else Cell(MISSING)
                for rank in shown
            ),
        )
        for op, by_rank in means.items()
    )
    columns = (Column("Operation", numeric=False), *(Column(f"rank {rank}") for rank in shown))
    cut = "" if len(shown) == len(everyone) else f"; the first {len(shown)} of {len(everyone)} ranks"
    return [
        Table(
            f"How often each rank {what}, in % of samples, by operation{cut}",
            columns,
            rows,
            folded=True,
            note=_NO_INTERVAL,
        )
    ]
