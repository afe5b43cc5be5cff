"""What to know before believing a number: warnings in plain words, each with the numbers that support it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from busbw.runs.placement import taken_twice
from busbw.runs.records import JSON, LaunchStarted, case_in_words
from busbw.units import format_size, format_time
from busbw_analysis.data.load import Dataset, fact
from busbw_analysis.data.pair_numbers import PairNumbers
from busbw_analysis.data.resumed import ended_in_words, resumptions
from busbw_analysis.data.summary import (
    LAUNCHES_FOR_AN_INTERVAL,
    CaseSummary,
    Flag,
    Groups,
    GroupSummary,
    PairGroups,
    clock_error_of,
    launches_apart,
    launches_of,
    moved_factors,
)
from busbw_analysis.diagnosis.pairs import Outlier, PairMatrix
from busbw_analysis.diagnosis.selftest import SelfTest, taken_in_words
from busbw_analysis.diagnosis.stragglers import GroupLateness, in_words
from busbw_analysis.diagnosis.verdicts import LAUNCHES_FOR_A_VERDICT
from busbw_analysis.fitting.curve import LAUNCHES_FOR_A_BOOTSTRAP
from busbw_analysis.models.families import GLOO

Floats = npt.NDArray[np.float64]
Severity = Literal["bad", "caution", "note"]

_ORDER: Final[tuple[Severity, ...]] = ("bad", "caution", "note")
_EXAMPLES = 3
_BUSY_SHARE = 0.5
_LAUNCHES_APART = 1.5


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to know before believing a number. ``code`` is a stable word (``oversubscribed``, ``failed``,
    ``late-rank`` …), ``text`` whole sentences with the numbers that support them.
    """

    severity: Severity
    code: str
    text: str

    @property
    def subject(self) -> str:
        """The code as a heading."""
        return _SUBJECTS.get(self.code, self.code.replace("-", " "))

    def as_json(self) -> dict[str, JSON]:
        """What scripts are told; of it ``subject`` and ``text`` are words, which may change."""
        return {"severity": self.severity, "code": self.code, "subject": self.subject, "text": self.text}


_SUBJECTS: Final = {"self-test": "self-test", "skew": "skew>10%"}
"""Headings that are not just the words of the code."""


def findings_on(
    dataset: Dataset,
    summaries: Sequence[CaseSummary],
    matrices: Sequence[PairMatrix],
    lateness: Sequence[GroupLateness],
    selftest: SelfTest | None = None,
) -> tuple[Finding, ...]:
    """All findings on a dataset, the worst first."""
    measured = [summary for summary in summaries if summary.state == "measured"]
    found = [
        *_ends(dataset),
        *(Finding("note", "resumed", text) for text in resumptions(dataset)),
        *_unmeasured(summaries),
        *(Finding("caution", "store", f"{notice}.") for notice in dataset.notices),
        *_oversubscribed(dataset),
        *_taken_twice(dataset),
        *_busy(dataset),
        *_late(lateness, summaries),
        *_odd(matrices),
        *_launches(measured),
        *_flagged(measured),
        *_disturbed(measured),
        *_clocks(measured),
        *_tested(selftest, dataset),
        *_not_checked(measured),
        *_moved(dataset, measured),
        *(Finding("note", "adjusted", f"{text}.") for stored in dataset.runs for text in stored.run.adjusted),
    ]
    unique = list(dict.fromkeys(found))
    return tuple(sorted(unique, key=lambda finding: _ORDER.index(finding.severity)))


def case_name(summary: CaseSummary) -> str:
    """A case in a sentence: op, size and what is not the usual."""
    op, *details = case_in_words(summary.case, {"device", "root"})
    size = [format_size(summary.case.size_bytes)] if summary.case.size_bytes else []
    return " ".join([op, *size, *details])


def _some(names: Sequence[str]) -> str:
    # "and 1 more" takes the room of the one.
    if len(names) <= _EXAMPLES + 1:
        return ", ".join(names)
    return f"{', '.join(names[:_EXAMPLES])} and {len(names) - _EXAMPLES} more"


def _cases(count: int) -> str:
    return "1 case" if count == 1 else f"{count} cases"


def _ends(dataset: Dataset) -> Iterator[Finding]:
    for stored in dataset.runs:
        end = stored.end
        if end is None or end.status != "complete":
            yield Finding("bad", "no-end" if end is None else end.status, ended_in_words(stored))


def _unmeasured(summaries: Sequence[CaseSummary]) -> Iterator[Finding]:
    def grouped(state: str) -> Iterator[tuple[str, list[CaseSummary]]]:
        by_reason: dict[str, list[CaseSummary]] = {}
        for summary in summaries:
            if summary.state == state:
                by_reason.setdefault("; ".join(summary.reasons), []).append(summary)
        yield from by_reason.items()

    for reason, cases in grouped("failed"):
        code = "wrong-data" if "wrong data" in reason else "failed"
        names = _some([case_name(case) for case in cases])
        yield Finding("bad", code, f"{_cases(len(cases))} failed ({names}): {reason}. Nothing is judged by them.")
    by_loss: dict[str, list[CaseSummary]] = {}
    for summary in summaries:
        if summary.lost:
            by_loss.setdefault("; ".join(summary.lost), []).append(summary)
    for reason, cases in by_loss.items():
        names = _some([case_name(case) for case in cases])
        text = f"{_cases(len(cases))} failed in a launch by no fault of its own ({names}): {reason}."
        yield Finding("caution", "launch-lost", f"{text} The other launches count; --resume measures what is missing.")
    for _, cases in grouped("not reached"):
        names = _some([case_name(case) for case in cases])
        yield Finding("caution", "not-reached", f"{_cases(len(cases))} of the plan had no turn: {names}.")
    for reason, cases in grouped("skipped"):
        names = _some([case_name(case) for case in cases])
        yield Finding("note", "skipped", f"{_cases(len(cases))} could not run here ({names}): {reason}.")


def _oversubscribed(dataset: Dataset) -> Iterator[Finding]:
    for host, (ranks, cores) in dataset.oversubscribed_hosts.items():
        yield Finding(
            "caution",
            "oversubscribed",
            f"{ranks} ranks share {cores} usable cores on {host}. Ranks wait for a core as well as for each other, so "
            "times are longer and scatter more than on a machine with a core for each.",
        )


def _taken_twice(dataset: Dataset) -> Iterator[Finding]:
    """Hosts and GPUs that more ranks have than should, and hosts that are one machine after all."""
    run = dataset.runs[0].run
    for text in taken_twice(dataset.seats, run.environments):
        yield Finding("caution", "taken-twice", f"{text[:1].upper()}{text[1:]}.")
    kernels = {host: dataset.environment(host).get("boot_id") for host in dict.fromkeys(run.hosts)}
    for kernel in dict.fromkeys(kernels.values()):
        hosts = [host for host, mine in kernels.items() if mine == kernel]
        if kernel is not None and len(hosts) > 1:
            text = f"{_some(hosts)} are one machine, with one kernel: its cores are those of all, and so is its memory"
            yield Finding("note", "one-machine", f"{text}. No network is between them but one that was made.")


def _busy(dataset: Dataset) -> Iterator[Finding]:
    """Only the first launch of a run tells what others did on the machine: later ones see the run itself."""
    for stored in dataset.runs:
        first = next((row for row in stored.rows if isinstance(row, LaunchStarted)), None)
        if first is None:
            continue
        cores = fact(stored.run.environments.get(stored.run.hosts[0], {}), "cpu.usable_cores")
        if isinstance(cores, int | float) and first.load_average > _BUSY_SHARE * cores:
            yield Finding(
                "caution",
                "busy-machine",
                f"When run {stored.run.id} began, {stored.run.hosts[0]} had a load of {first.load_average:.1f} on "
                f"{cores:g} usable cores: something else was running, or had just been.",
            )


def _late(lateness: Iterable[GroupLateness], summaries: Sequence[CaseSummary]) -> Iterator[Finding]:
    names = {summary.index: case_name(summary) for summary in summaries}
    for group in lateness:
        for member in group.flagged:
            yield Finding("caution", "late-rank", in_words(group, member, names))


def _odd(matrices: Sequence[PairMatrix]) -> Iterator[Finding]:
    """One finding per kind of outlier: whom it is about, the strongest with its numbers, and in how many matrices."""
    found: dict[tuple[str, str], list[tuple[int, Outlier]]] = {}
    for number, matrix in enumerate(matrices):
        for odd in matrix.outliers:
            found.setdefault((matrix.op, odd.kind), []).append((number, odd))
    for (op, kind), members in found.items():
        among = [matrix for matrix in matrices if matrix.op == op]
        worst = min((odd for _, odd in members), key=lambda odd: odd.ratio)
        text = f"{'Pair matrix' if op == 'pair_matrix' else f'Pairs of {op}'}: {worst.text}"
        by_name: dict[str, set[int]] = {}
        for number, odd in sorted(members, key=lambda member: member[1].ratio):
            by_name.setdefault(odd.name, set()).add(number)
        if len(members) > 1:
            names = _some([f"{name} in {len(numbers)}" for name, numbers in by_name.items()])
            text += f"; that is the worst of {len(members)}. Slow by {kind}, of {len(among)} matrices: {names}"
        yield Finding("caution", f"slow-{kind}", f"{text}.")


_ENOUGH: Final = (
    f"{LAUNCHES_FOR_AN_INTERVAL} or more give every time an interval, "
    f"{LAUNCHES_FOR_A_BOOTSTRAP} the parameters of a fit"
)


def _launches(measured: Sequence[CaseSummary]) -> Iterator[Finding]:
    counts = [min(launches_of(summary.groups)) for summary in measured if summary.groups]
    if not counts:
        return
    fewest = min(counts)
    count = "1 launch" if fewest == 1 else f"{fewest} launches"
    if fewest < LAUNCHES_FOR_A_VERDICT:
        shown = (
            "the interval is that within the launch and does not cover another one"
            if fewest == 1
            else "ranges are shown"
        )
        text = (
            f"Only {count}: {shown}, and every verdict is indicative. Launches differ more from each other than their "
            f"samples do; {_ENOUGH}."
        )
        yield Finding("caution", "few-launches", text)
    elif fewest < LAUNCHES_FOR_AN_INTERVAL:
        text = f"{count}: the range of launch medians is shown; {_ENOUGH}."
        yield Finding("note", "few-launches", text)
    ratios = [(launches_apart(summary.groups), summary) for summary in measured if summary.groups]
    apart = [(ratio, summary) for ratio, summary in ratios if ratio > _LAUNCHES_APART]
    if apart:
        ratio, worst = max(apart, key=lambda entry: entry[0])
        affected = len({summary.index for _, summary in apart})
        text = (
            f"In {affected} of {_cases(len(measured))} launches differ by more than a factor of {_LAUNCHES_APART:g}; "
            f"most in {case_name(worst)}: a factor of {ratio:.1f} between the fastest and the slowest launch."
        )
        yield Finding("caution", "launches-differ", text)


def _bimodal(group: GroupSummary) -> str:
    modes = group.modes
    if modes is None:
        return "two humps"
    return (
        f"{format_time(modes.fast_ns)} in {1 - modes.slow_share:.0%} of the samples, "
        f"{format_time(modes.slow_ns)} in {modes.slow_share:.0%}, and their mean is {format_time(group.mean.value)}"
    )


def _correlated(group: GroupSummary) -> str:
    free = f"{group.samples} samples count as {group.effective_samples}"
    return f"what one sample shows lasts for {group.tau:.0f} of them, so that {free}"


def _slow(group: GroupSummary) -> str:
    return f"{group.slow_share:.1%} of the samples take {group.slow_time_share:.0%} of the time"


def _unbalanced(group: GroupSummary) -> str:
    return "" if group.overlap is None else f"the computation took {group.overlap.balance:.2g} × as long, both alone"


def _spread(group: GroupSummary) -> str:
    return f"a spread of ± {group.spread:.0%}"


_FLAGS: Final[
    tuple[tuple[Flag, Severity, str, Callable[[GroupSummary], float], Callable[[GroupSummary], str]], ...]
] = (
    (
        "bimodal",
        "caution",
        "have two modes, so that their median may jump from one to the other; comparisons go by their mean",
        lambda group: 0.0 if group.modes is None else group.modes.slow_ns / group.modes.fast_ns,
        _bimodal,
    ),
    (
        "slow mode",
        "caution",
        "have very slow samples (above 5 × the median and 1 ms) that take more than 10 % of the time",
        lambda group: group.slow_time_share,
        _slow,
    ),
    (
        "unbalanced",
        "caution",
        "computed for less than half or more than twice the time of the call alone, which hides another share of it",
        lambda group: 1.0 if group.overlap is None else group.overlap.imbalance,
        _unbalanced,
    ),
    (
        "drift",
        "caution",
        "drift: within most blocks the first and the last third differ by more than their intervals allow",
        lambda group: group.spread,
        _spread,
    ),
    (
        "outliers",
        "note",
        "have more than 5 % of their samples far from the rest of their launch: the median stands, a mean is theirs",
        lambda group: group.outlier_share,
        lambda group: f"{group.outlier_share:.0%} of the samples",
    ),
    (
        "correlated",
        "note",
        "have samples that know of their neighbours, so that far fewer of them count",
        lambda group: group.tau,
        _correlated,
    ),
    (
        "skew>10%",
        "note",
        "have ranks arriving further apart than 10 % of the time: part of the time is waiting, not moving",
        lambda group: group.skew_share or 0.0,
        lambda group: f"{group.skew_share or 0:.0%} of the median time",
    ),
    (
        "cap",
        "note",
        "were stopped by the limit of time or samples before the interval of the median was as narrow as asked",
        lambda group: group.spread,
        _spread,
    ),
)
"""Flag, severity, what it means for a case, how strong it is in a group, and the numbers of the strongest."""


_FLAGS_OF_PAIRS: Final[Mapping[Flag, Callable[[PairNumbers], Floats]]] = {
    "bimodal": lambda numbers: numbers.slow_over_fast,
    "slow mode": lambda numbers: numbers.slow_time_share,
    "drift": lambda numbers: numbers.spread,
    "outliers": lambda numbers: numbers.outlier_share,
    "correlated": lambda numbers: numbers.tau,
    "skew>10%": lambda numbers: np.nan_to_num(numbers.skew_share),
    "cap": lambda numbers: numbers.spread,
}
"""How strong each of them is in every pair of a matrix."""


def _strongest(groups: Groups, flag: Flag, strength: Callable[[GroupSummary], float]) -> GroupSummary:
    if isinstance(groups, PairGroups):
        return groups[int(np.argmax(_FLAGS_OF_PAIRS[flag](groups.numbers)))]
    return max(groups, key=strength)


def _flagged(measured: Sequence[CaseSummary]) -> Iterator[Finding]:
    for flag, severity, meaning, strength, numbers in _FLAGS:
        cases = [summary for summary in measured if flag in summary.flags]
        if cases:
            found = [(summary, _strongest(summary.groups, flag, strength)) for summary in cases]
            worst, group = max(found, key=lambda one: strength(one[1]))
            text = (
                f"{len(cases)} of {_cases(len(measured))} {meaning}; strongest in {case_name(worst)}: {numbers(group)}."
            )
            yield Finding(severity, flag.removesuffix(">10%").replace(" ", "-"), text)


def _disturbed(measured: Sequence[CaseSummary]) -> Iterator[Finding]:
    cases = [summary for summary in measured if summary.disturbance.high]
    if cases:
        worst = max(cases, key=lambda summary: (summary.disturbance.foreign or 0.0, summary.disturbance.flagged))
        text = (
            f"{len(cases)} of {_cases(len(measured))} were measured while something else disturbed them; most "
            f"{case_name(worst)}: {worst.disturbance.in_words()}. Every sample is kept; do not take these numbers for "
            "those of a quiet machine."
        )
        yield Finding("caution", "disturbed", text)


def _clocks(measured: Sequence[CaseSummary]) -> Iterator[Finding]:
    cases = [summary for summary in measured if "clock error" in summary.flags]
    if cases:
        worst = max((clock_error_of(summary.groups) for summary in cases), default=0.0)
        text = (
            f"In {len(cases)} of {_cases(len(measured))} the clocks of the ranks are not known to agree better than "
            f"{format_time(worst)}, which is more than 5 % of a call: who came when is not told there."
        )
        yield Finding("note", "clock-error", text)


def _tested(selftest: SelfTest | None, dataset: Dataset) -> Iterator[Finding]:
    """What the instrument says of itself: how small a difference it can tell here."""
    if selftest is None:
        text = "No self-test of this machine with so many ranks: how small a difference it can tell is not known."
        one_host = len(set(dataset.runs[0].run.hosts)) == 1
        advice = "busbw selftest finds out." if one_host else "busbw selftest finds out for the ranks of one host."
        yield Finding("note", "self-test", f"{text} {advice}")
        return
    which = taken_in_words(selftest, [stored.run.started for stored in dataset.runs])
    if selftest.failures:
        yield Finding("caution", "self-test", f"S{which[1:]}: {selftest.answer()}")
    elif selftest.coarsest is not None:
        worst = max(selftest.resolution, key=lambda name: selftest.resolution[name])
        text = (
            f"Differences below {selftest.coarsest:.0%} ({worst}) are not resolved here between {selftest.launches} "
            f"and {selftest.launches} launches"
            + (f"; the best case is {selftest.finest:.0%}" if len(selftest.resolution) > 1 else "")
        )
        yield Finding("note", "self-test", f"{text} ({which}).")


def _not_checked(measured: Sequence[CaseSummary]) -> Iterator[Finding]:
    by_reason: dict[str, list[CaseSummary]] = {}
    for summary in measured:
        # An op without data (a barrier) has nothing to check; that is not worth a warning.
        if summary.case.size_bytes and summary.check.startswith("not checked"):
            by_reason.setdefault(summary.check, []).append(summary)
    for reason, cases in by_reason.items():
        names = _some([case_name(case) for case in cases])
        yield Finding("caution", "not-checked", f"The data of {_cases(len(cases))} were {reason}: {names}.")


def _moved(dataset: Dataset, measured: Sequence[CaseSummary]) -> Iterator[Finding]:
    factors = {
        (summary.case.backend, summary.case.op, factor)
        for summary in measured
        for factor in moved_factors(summary.groups)
        if factor > 1
    }
    for backend, op, factor in sorted(factors):
        usual = f"{backend} is known to move more than the best algorithm would"
        known = _MOVED.get((dataset.backend.cost_models, op), usual)
        limit = f"Its busbw reaches at most {1 / factor:.0%} of a peak."
        text = f"{op} moves {factor:g} times the bytes it needs: {known}. {limit}"
        yield Finding("note", "moved-factor", text)


_MOVED: Final = {(GLOO, "reduce_scatter"): "gloo's reduce_scatter is a whole all_reduce and a slice, not a slow link"}
