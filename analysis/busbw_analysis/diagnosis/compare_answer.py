"""The answer of a comparison: its result, how many launches would decide, and how far to trust it."""

import math
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from statistics import median
from typing import Any, Final

from busbw.runs.records import Case, case_in_words
from busbw.units import counted, listed
from busbw_analysis.data.grouped import grouped
from busbw_analysis.data.sentences import sentences
from busbw_analysis.diagnosis.compare import Compared, Comparison
from busbw_analysis.diagnosis.hypothesis_tests import Estimate, Label, Verdict, percent, scatter_in_words, shown_from
from busbw_analysis.diagnosis.trust import SCATTERED, dots

_STRONGEST: Final[dict[Label, int]] = {"slower": -1, "faster": 0}
"""Index of the strongest band of a verdict, with the bands sorted by ratio."""
_DOUBTS: Final = frozenset({"forced", "not-recorded", "store"})
"""Codes of notices that leave open whether the sides of a comparison are alike and whole."""
_NAMED: Final = 3
"""Most values of a setting that are named, if all are undecided."""
MOST_LAUNCHES: Final = 30
"""Most launches a side (or pairs) that are recommended."""


def answer_lines(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    """Labelled sentences: the result, how many launches would decide, and how far to trust it."""
    confidence, trust = trust_in_comparison(comparison)
    every = (
        ("Answer", sentences(*gist(comparison))),
        ("Do", sentences(decides(comparison))),
        ("Trust", f"{dots(confidence)} {sentences(*trust)}"),
    )
    return tuple((name, text) for name, text in every if text)


def gist(comparison: Comparison) -> tuple[str, ...]:
    """The runs that did not reach their end, differences that are meant, then bands by verdict, each with its strongest
    ratio of times; sentences without full stops.
    """
    across = (notice.claim for notice in comparison.notices if notice.code == "across")
    verdicts = (f"{title}: {_by_verdict(bands, comparison)}" for title, bands in _comparisons(comparison))
    return (*_unfinished(comparison), *across, *verdicts)


def _comparisons(comparison: Comparison) -> Iterator[tuple[str, Sequence[Compared]]]:
    """The bands of B against A, or of each value against the first one, with that as title. Values of which all bands
    are undecided are one.
    """
    by = comparison.by
    if by is None:
        yield "B against A", comparison.bands
        return
    undecided = dict[str, Sequence[Compared]]()
    for value, bands in grouped(comparison.bands, lambda band: by.value(band.case)).items():
        if any(band.verdict.word != "cannot tell" for band in bands):
            yield f"{by.setting} {value} against {by.base}", bands
        else:
            undecided[str(value)] = bands
    if undecided:
        title = f"{by.setting} {listed(undecided, _NAMED)} against {by.base}"
        yield title, [band for bands in undecided.values() for band in bands]


def _by_verdict(compared: Sequence[Compared], comparison: Comparison) -> str:
    titles = titles_of(comparison, _compared(comparison))

    def name(band: Compared) -> str:
        title = " ".join(titles[label(band.case)])
        return title if band.band == "no size" else f"{title} {band.band}"

    ordered = sorted(compared, key=lambda band: band.estimate.ratio)
    by_verdict = defaultdict(list, grouped(ordered, lambda band: band.verdict.word))
    many = len(compared)
    parts = []
    for word, place in _STRONGEST.items():
        if bands := by_verdict[word]:
            most = bands[place]
            which = f"{'most ' * (len(bands) > 1)}{name(most)}"
            parts.append(f"{word} in {_of(len(bands), many)}, {which}: {_times(most.estimate)}")
    if by_verdict["equal"]:
        parts.append(f"equal within {comparison.within * 100:.3g} % in {_of(len(by_verdict['equal']), many)}")
    if undecided := by_verdict["cannot tell"]:
        ends = [f"{band.estimate.ratio:.3g}× ({name(band)})" for band in (undecided[0], undecided[-1])]
        middle = f", median {median(band.estimate.ratio for band in undecided):.3g}×" if len(undecided) > 2 else ""
        took = " to ".join(dict.fromkeys(ends))
        where = f"in {_of(len(undecided), many)}, where"
        if many == 1:
            took, where = f"{undecided[0].estimate.ratio:.3g}×", f"for {name(undecided[0])}, the only band:"
        parts.append(f"cannot tell {where} B takes {took} the time of A{middle}")
    return "; ".join(parts)


def _unfinished(comparison: Comparison) -> Iterator[str]:
    """A clause for every run that was interrupted or killed, or is still running."""
    for run in comparison.incomplete:
        if run.status != "complete":
            ends = {None: "was killed or is still running", "interrupted": "was interrupted"}
            complete = f"{run.launches} of {counted(run.planned, 'launch', 'launches')} complete"
            yield f"{run.where} is incomplete: run {run.run} {ends.get(run.status, run.status)}, {complete}"


def titles_of(comparison: Comparison, without: Container[Any] = ()) -> dict[str, tuple[str, ...]]:
    """The parts of the label of every curve, without those that all curves share, and details to leave out."""
    shared = shared_words(comparison)
    return {
        label(band.case): tuple(
            word for place, word in enumerate(case_in_words(band.case, without)) if not place or word not in shared
        )
        for band in comparison.bands
    }


def shared_words(comparison: Comparison) -> list[str]:
    """The words that all curves share, except their ops, and those of the setting that is compared within runs."""
    every = [case_in_words(band.case, _compared(comparison))[1:] for band in comparison.bands]
    return [word for word in every[0] if all(word in other for other in every)]


def _compared(comparison: Comparison) -> frozenset[Any]:
    """The detail of ``case_in_words`` that is compared within runs."""
    if comparison.by is None:
        return frozenset()
    return frozenset({comparison.by.setting if comparison.by.setting in Case.__struct_fields__ else "settings"})


def label(case: Case) -> str:
    """A case without its size: the op, and settings that differ from the default."""
    return " ".join(case_in_words(case))


def _of(some: int, every: int) -> str:
    """The count of bands among all bands, in words."""
    if every == 1:
        return "the only band"
    if some < every:
        return f"{some} of {every} bands of sizes"
    return "both bands of sizes" if every == 2 else f"all {every} bands of sizes"


def _times(estimated: Estimate) -> str:
    """A ratio with its interval, in words."""
    between = (
        "" if estimated.low is None or estimated.high is None else f" ({estimated.low:.3g} to {estimated.high:.3g})"
    )
    between = between or " (one number a side, no test)"
    return f"{estimated.ratio:.3g}× the time{between}"


def decides(comparison: Comparison) -> str:
    """What would decide the undecided bands: the number of launches, or what to do if it is too large. "" if all are
    decided or no number is known.
    """
    bands = [band for band in comparison.bands if band.verdict.word == "cannot tell"]
    undecided = [band.verdict for band in bands]
    fewest = max((verdict.fewest or 0 for verdict in undecided), default=0)
    if not undecided:
        return ""
    if fewest and comparison.imported:
        return f"give {fewest} logs or tables of each side or more, separated by commas: one number a side has no test"
    among = f" among {len(comparison.bands)} bands" if len(comparison.bands) > 1 else ""
    of = unit(comparison)
    counts = sorted(
        verdict.needed.launches for verdict in undecided if verdict.needed is not None and not hopeless(verdict)
    )
    if fewest and not counts:
        known = all(band.estimate.scatter is not None for band in bands)
        many = (
            f"; with this scatter, it takes over {MOST_LAUNCHES} to show {percent(comparison.within)}" if known else ""
        )
        return f"measure {fewest} {of} or more: with fewer, no difference{among} can be significant{many}"
    decided = ""
    if counts:
        of_them = "" if len(counts) == len(undecided) else f" {len(counts)} of {len(undecided)} undecided bands"
        least = f" (with fewer than {fewest}, no difference{among} can be significant)" if fewest else ""
        decided = (
            f"{_range(counts)} {of} would decide{of_them}{least}; the notes below the tables give the number by band"
        )
    seen = sorted(verdict.detectable for verdict in undecided if hopeless(verdict) and verdict.detectable is not None)
    if not seen:
        return decided
    better = (
        "measure on a quieter machine"
        if comparison.paired
        else "take launches in turns (A B B A …) and compare with --paired, which cancels slow drift"
    )
    where = " in the other undecided bands" if counts else ""
    detect = f"{min(comparison.launches)} {of} {shown_from(*seen)}{where}"
    return sentences(decided, f"{better}: {detect}, and {MOST_LAUNCHES} would not be enough")


def unit(comparison: Comparison) -> str:
    """What is counted when launches are recommended."""
    if comparison.imported:
        return "tables of logs"
    return "launches" if comparison.by else "pairs" if comparison.paired else "launches a side"


def hopeless(verdict: Verdict) -> bool:
    """Whether more launches than anybody makes would be needed."""
    return verdict.needed is None or verdict.needed.launches > MOST_LAUNCHES


def _range(counts: Sequence[int]) -> str:
    return " to ".join(dict.fromkeys((str(counts[0]), str(counts[-1]))))


def trust_in_comparison(comparison: Comparison) -> tuple[int, tuple[str, ...]]:
    """Points of confidence, as ``trust_in`` gives them, and the clauses that explain them."""
    if comparison.imported:
        return 0, ("numbers from logs: the scatter between runs is known only if a side has several tables",)
    scatters = [band.estimate.scatter for band in comparison.bands if band.estimate.scatter is not None]
    scatter = math.expm1(median(scatters)) if scatters else None
    codes = {notice.code for notice in comparison.notices}
    turns = comparison.paired or comparison.in_turns
    points = (
        not comparison.incomplete and not codes & _DOUBTS,
        all(band.verdict.fewest is None for band in comparison.bands),
        turns and not codes & {"disturbed", "throttled"},
        scatter is not None and scatter <= SCATTERED,
    )
    count_a, count_b = comparison.launches
    many = f"{counted(count_a, 'launch', 'launches')} {'a side' if count_a == count_b else f'of A and {count_b} of B'}"
    if comparison.by is not None:
        many = f"{counted(min(count_a, count_b), 'launch', 'launches')} with each of the values"
    elif comparison.paired and count_a == count_b:
        many = counted(count_a, "pair of launches", "pairs of launches")
    where = " on a busy machine" if "disturbed" in codes else ""
    bands = " (median of the bands)" if len(scatters) > 1 else ""
    differ = "" if scatter is None else f"; launches of a side differ by {scatter_in_words(scatter)}{bands}"
    order = (
        "all launches of one side were taken before those of the other, so a change of the machine looks like a "
        "difference. To rule that out, take launches in turns (A B B A …) and use --paired"
    )
    return sum(points), (f"{many}{where}{differ}", "" if turns else order)
