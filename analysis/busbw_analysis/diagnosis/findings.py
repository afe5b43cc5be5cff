"""What to know before believing a number: warnings in plain words, each with the numbers that support it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Final, Literal, get_args

from busbw.runs.placement import taken_twice
from busbw.runs.records import JSON, Case, case_in_words
from busbw.system.catalog import Catalogue
from busbw.system.detect import picture
from busbw.units import format_size, format_time
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.load import CaseState, Dataset
from busbw_analysis.data.pair_groups import PairGroups, of_groups
from busbw_analysis.data.resumed import ended_in_words, resumptions
from busbw_analysis.data.summary import CaseSummary, summarise
from busbw_analysis.diagnosis.pairs import PairMatrix
from busbw_analysis.diagnosis.selftest import SelfTest, taken_in_words
from busbw_analysis.diagnosis.stragglers import GroupLateness, in_words

Severity = Literal["bad", "caution", "note"]
_ReasonOf = Callable[[CaseSummary], str | None]

_ORDER: Final = (
    *("wrong-data", "failed", "no-end", "interrupted"),
    *("store", "not-checked", "taken-twice", "late-rank", "slow-host", "slow-rank", "slow-pair", "oversubscribed"),
    *("disturbed", "throttled", "launches-differ", "self-test", "hardware", "drift", "launch-lost", "not-reached"),
    *("skipped", "clock-error", "one-machine", "resumed", "adjusted"),
)
"""Codes by how much they change a decision."""
_EXAMPLES = 3
_LAUNCHES_APART = 1.5
"""So much slower than the others in all of its cases is a launch not of the same machine."""
_DRIFTING_SHARE = 0.25
_DISTURBED_SHARE = 0.1
"""That share of the cases is disturbed on a busy machine, and not on a quiet one."""
_MOST_LINKS = 4
"""So many findings on the links of a host are said one by one; more are mostly one cause."""


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
        return self.code if self.code == "self-test" else self.code.replace("-", " ")

    def as_json(self) -> dict[str, JSON]:
        """What scripts are told; of it ``subject`` and ``text`` are words, which may change."""
        return {"severity": self.severity, "code": self.code, "subject": self.subject, "text": self.text}


def findings_on(
    dataset: Dataset,
    matrices: Sequence[PairMatrix],
    lateness: Sequence[GroupLateness],
    selftest: SelfTest | None,
    rows: Catalogue,
) -> tuple[Finding, ...]:
    """All findings on a dataset, ``ranked``; ``rows`` is the catalogue of peaks."""
    summaries = summarise(dataset)
    measured = [summary for summary in summaries if summary.state == "measured"]
    found = [
        *_imported(dataset, measured),
        *_ends(dataset),
        *(finding for row in _UNMEASURED for finding in _by_reason(summaries, *row)),
        *_by_reason(summaries, "caution", "not-checked", _lack_of_check, "The data of {cases} were {reason}: {names}."),
        *_taken_twice(dataset),
        *_odd(matrices),
        *disturbances(measured),
    ]
    of_one_kind: tuple[tuple[Severity, str, Iterable[str]], ...] = (
        ("note", "resumed", resumptions(dataset)),
        ("caution", "store", (f"{notice}." for notice in dataset.notices)),
        ("caution", "oversubscribed", _oversubscribed(dataset)),
        ("caution", "late-rank", _late(lateness, summaries)),
        ("caution", "launches-differ", _launches(measured)),
        ("caution", "drift", _drifting(measured)),
        ("note", "clock-error", _clocks(measured)),
        ("caution", "self-test", _tested(selftest, dataset)),
        ("note", "adjusted", (f"{text}." for stored in dataset.runs for text in stored.run.adjusted)),
        ("caution", "hardware", _links(dataset, rows)),
    )
    found += [Finding(severity, code, text) for severity, code, texts in of_one_kind for text in texts]
    return ranked(dict.fromkeys(found))


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """``findings`` by how much they change a decision: severity first, then the order of ``_ORDER``."""
    severities = get_args(Severity)
    order = {code: place for place, code in enumerate(_ORDER)}
    return tuple(sorted(findings, key=lambda one: (severities.index(one.severity), order.get(one.code, len(order)))))


def _imported(dataset: Dataset, measured: Sequence[CaseSummary]) -> Iterator[Finding]:
    """What logs of other tools cannot tell, what somebody said in place of them, and what its reader noted."""
    for stored in dataset.runs:
        log = stored.run.imported
        if log is None:
            continue
        what = dict.fromkeys(group.statistic for one in measured for group in one.groups if group.statistic)
        tool = f"{log.tool} {log.tool_version or '(version not told)'}"
        sampled = bool(what) and all(group.samples for one in measured for group in one.groups)
        have = "samples of one start" if sampled else "no samples"
        text = (
            f"{log.file} is a log of {tool}: one number a case ({', '.join(map(str, what)) or 'none'}), {have}. "
            f"{'I' if sampled else 'Spread, i'}ntervals, two modes, drift, disturbance, late ranks and the cost of the "
            "timer cannot be judged, "
            "and a single log cannot be told from another one by a test"
        )
        yield Finding("caution", "imported", f"{text}.")
        if log.given:
            said = ", ".join(f"{name} {value}" for name, value in log.given.items())
            yield Finding("note", "given", f"Said by the user, not by the log: {said}.")
        if unknown := [name for name in log.unknown if name != "machine"]:
            options = " ".join(f"--{name}" for name in unknown)
            text = (
                f"Neither the log nor the user says: {', '.join(unknown)}. What needs them is not judged; see {options}"
            )
            yield Finding("note", "unknown", f"{text}.")
        for note in log.notes:
            where = "" if note.line is None else f", line {note.line}"
            severity: Severity = "caution" if note.code in _DOUBTFUL else "note"
            yield Finding(severity, note.code, f"{log.file}{where}: {note.text}.")


_DOUBTFUL: Final = frozenset(
    {
        *("gib-as-gb", "size-per-rank", "no-bus-factor", "rate-differs", "one-rank"),
        *("wrong-results", "failed-test", "unfinished", "unfinished-line", "dropped", "repeated-header"),
        *("assumed-size", "deduced"),
    }
)
"""What readers find that should be known before a number is believed."""


def case_name(case: Case) -> str:
    """A case in a sentence: op, size and what is not the usual."""
    op, *details = case_in_words(case, {"device", "root"})
    size = [format_size(case.size_bytes)] if case.size_bytes else []
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


def _by_reason(
    summaries: Sequence[CaseSummary], severity: Severity, code: str, reason_of: _ReasonOf, words: str
) -> Iterator[Finding]:
    """One finding for each reason that ``reason_of`` tells of cases (None: of this one none); ``words`` has places for
    ``cases`` (how many), their ``names`` and the ``reason``.
    """
    told = ((reason, summary) for summary in summaries if (reason := reason_of(summary)) is not None)
    for reason, cases in by_key(told).items():
        names = _some([case_name(one.case) for one in cases])
        text = words.format(cases=_cases(len(cases)), names=names, reason=reason)
        yield Finding(severity, "wrong-data" if code == "failed" and "wrong data" in reason else code, text)


def _of_state(state: CaseState) -> _ReasonOf:
    return lambda summary: "; ".join(summary.reasons) if summary.state == state else None


def _loss(summary: CaseSummary) -> str | None:
    return "; ".join(summary.lost) or None


def _lack_of_check(summary: CaseSummary) -> str | None:
    """An op without data (a barrier) has nothing to check; that is not worth a warning."""
    checked = not summary.case.size_bytes or not summary.check.startswith("not checked")
    return None if checked or summary.state != "measured" else summary.check


_KEPT: Final = " The other launches count; --resume measures what is missing."
_UNMEASURED: Final[tuple[tuple[Severity, str, _ReasonOf, str], ...]] = (
    ("bad", "failed", _of_state("failed"), "{cases} failed ({names}): {reason}. Nothing is judged by them."),
    ("caution", "launch-lost", _loss, "{cases} failed in a launch by no fault of its own ({names}): {reason}." + _KEPT),
    ("caution", "not-reached", _of_state("not reached"), "{cases} of the plan had no turn: {names}."),
    ("note", "skipped", _of_state("skipped"), "{cases} could not run here ({names}): {reason}."),
)
"""Severity, code, why a case belongs there, and words, as of ``_by_reason``."""


def _oversubscribed(dataset: Dataset) -> Iterator[str]:
    for host, (ranks, cores) in dataset.oversubscribed_hosts.items():
        yield (
            f"{ranks} ranks share {cores} usable cores on {host}. Ranks wait for a core as well as for each other, so "
            "times are longer and scatter more than on a machine with a core for each."
        )


def _taken_twice(dataset: Dataset) -> Iterator[Finding]:
    """Hosts and GPUs that more ranks have than should, and hosts that are one machine after all."""
    run = dataset.largest
    for text in taken_twice(dataset.placements, run.environments):
        yield Finding("caution", "taken-twice", f"{text[:1].upper()}{text[1:]}.")
    kernels = by_key((dataset.environment(host).get("boot_id"), host) for host in dict.fromkeys(run.hosts))
    for kernel, hosts in kernels.items():
        if kernel is not None and len(hosts) > 1:
            text = f"{_some(hosts)} are one machine, with one kernel: its cores are those of all, and so is its memory"
            yield Finding("note", "one-machine", f"{text}. No network is between them but one that was made.")


def _late(lateness: Sequence[GroupLateness], summaries: Sequence[CaseSummary]) -> Iterator[str]:
    for group in lateness:
        for member in group.flagged:
            yield in_words(group, member, case_name(summaries[member.worst].case))


def _odd(matrices: Sequence[PairMatrix]) -> Iterator[Finding]:
    """One finding per kind of outlier: whom it is about, the strongest with its numbers, and in how many matrices."""
    found = [(matrix.op, number, outlier) for number, matrix in enumerate(matrices) for outlier in matrix.outliers]
    for (op, kind), members in by_key(((op, one.kind), (number, one)) for op, number, one in found).items():
        among = [matrix for matrix in matrices if matrix.op == op]
        worst = min((outlier for _, outlier in members), key=lambda outlier: outlier.ratio)
        text = f"{'Pair matrix' if op == 'pair_matrix' else f'Pairs of {op}'}: {worst.text}"
        if len(members) > 1:
            ordered = sorted(members, key=lambda member: member[1].ratio)
            by_name = by_key((outlier.name, number) for number, outlier in ordered)
            names = _some([f"{name} in {len(set(numbers))}" for name, numbers in by_name.items()])
            text += f"; that is the worst of {len(members)}. Slow by {kind}, of {len(among)} matrices: {names}"
        yield Finding("caution", f"slow-{kind}", f"{text}.")


def _launches(measured: Sequence[CaseSummary]) -> Iterator[str]:
    """Launches that were slower than the others as a whole; how far single cases scatter is in the trust."""
    found = by_key(
        (key, time_ns / group.time_ns)
        for summary in measured
        if not isinstance(summary.groups, PairGroups)
        for group in summary.groups
        for key, time_ns in zip(group.launch_keys, group.launch_medians_ns, strict=True)
    )
    for (_, launch), ratios in found.items():
        slower = geometric_mean(ratios)
        if slower > _LAUNCHES_APART:
            yield (
                f"Launch {launch + 1} took {slower:.2g} times as long as the launches usually did (geometric mean over "
                f"{_cases(len(ratios))}): the machine was not the same all the time."
            )


def _drifting(measured: Sequence[CaseSummary]) -> Iterator[str]:
    """The one flag that healthy runs have in few of their cases; the others are in the rows alone."""
    cases = [case_name(summary.case) for summary in measured if "drift" in summary.flags]
    if len(cases) > _DRIFTING_SHARE * len(measured):
        yield (
            f"{len(cases)} of {_cases(len(measured))} drift: within most blocks the first and the last third differ by "
            f"more than their intervals allow ({_some(cases)})."
        )


def disturbances(measured: Sequence[CaseSummary]) -> Iterator[Finding]:
    """What else ran, or slowed GPUs down, beside these cases."""
    for code, share, of in (
        ("throttled", 0.0, [summary for summary in measured if summary.disturbance.throttled]),
        ("disturbed", _DISTURBED_SHARE, [summary for summary in measured if summary.disturbance.high]),
    ):
        if len(of) > share * len(measured):
            worst = max(of, key=lambda summary: (summary.disturbance.foreign or 0.0, summary.disturbance.missed))
            words = worst.disturbance.in_words()
            text = f"{words[:1].upper()}{words[1:]} ({case_name(worst.case)})"
            text += f"; {len(of)} of {_cases(len(measured))} {'was' if len(of) == 1 else 'were'} disturbed"
            yield Finding("caution", code, f"{text}. Every sample is kept; a quiet machine has other numbers.")


def _clocks(measured: Sequence[CaseSummary]) -> Iterator[str]:
    cases = [summary for summary in measured if "clock error" in summary.flags]
    if cases:
        worst = max(float(of_groups(summary.groups, "clock_error_ns").max()) for summary in cases)
        yield (
            f"In {len(cases)} of {_cases(len(measured))} the clocks of the ranks are not known to agree better than "
            f"{format_time(worst)}, which is more than 5 % of a call: who came when is not told there."
        )


def _tested(selftest: SelfTest | None, dataset: Dataset) -> Iterator[str]:
    if selftest is not None and selftest.failures:
        which = taken_in_words(selftest, [stored.run.started for stored in dataset.runs])
        yield f"S{which[1:]}: {selftest.answer()}"


def _links(dataset: Dataset, rows: Catalogue) -> Iterator[str]:
    """Links of hosts that carry less than their two ends could, as recorded before the run began. Those that may have
    been at rest are left out: the facts are read before anybody copies.
    """
    hosts = dict.fromkeys(dataset.hosts)
    found = by_key((said, host) for host in hosts for said in _said(picture(dataset.environment(host), rows).findings))
    yield from (f"On {', '.join(of)}: {finding}." for finding, of in found.items())


def _said(findings: Sequence[str]) -> Iterator[str]:
    yield from findings[:_MOST_LINKS]
    if len(findings) > _MOST_LINKS:
        yield f"{len(findings) - _MOST_LINKS} more findings of this kind: busbw peaks --here on that host lists them"
