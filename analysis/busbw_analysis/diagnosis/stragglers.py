"""The evidence that a rank is a straggler, in words."""

from busbw.units import counted, format_time
from busbw_analysis.data.lateness import GroupLateness, RankLateness
from busbw_analysis.data.names import rank_list


def in_words(group: GroupLateness, member: RankLateness, worst: str) -> tuple[str, ...]:
    """The evidence that ``member`` of ``group`` is a straggler, as sentences without full stops; ``worst`` is the name
    of its worst case.
    """
    chance = "p < 10⁻¹²" if member.p_value < 1e-12 else f"p = {member.p_value:.1g}"
    amount = f"in {member.share:.0%} of samples, by {format_time(member.median_ns or 0.0)} (median)"
    if group.seen == "shortest time":
        what = f"is probably a straggler: it has the shortest time (usually that of the last to arrive) {amount}"
    else:
        what = f"is a straggler: late {amount}"
    host = [other for other in group.members if other.host == member.host]
    together = 1 < len(host) < len(group.members) and all(other.flagged for other in host)
    who = f"Rank {member.rank}" + (f" (host {member.host})" if member.host else "")
    evidence = (
        f"Among ranks {rank_list(group.ranks)} it stands out in {member.cases} of {counted(group.cases, 'case')} and "
        f"{member.launches} of {counted(group.launches, 'launch', 'launches')}, most in {worst} ({chance} if all ranks "
        "are equal)"
    )
    return (
        f"{who} {what}",
        f"The other ranks wait for it during {member.cost:.0%} of the time of the calls",
        evidence,
        *([f"All ranks of host {member.host} are stragglers"] if together else []),
    )
