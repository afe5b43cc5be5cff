"""Findings: warnings in plain words, each with the numbers that support it."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Final, Literal, get_args

from busbw import __version__
from busbw.ops import OPS, PAIRED
from busbw.ops.groups import ASKED
from busbw.runs.placement import shared_resources
from busbw.runs.progress import Progress, progress_of
from busbw.runs.records import JSON, Case, Ended, LaunchStarted, case_in_words
from busbw.runs.store import StoredRun
from busbw.system.detect import Picture
from busbw.units import counted, format_size, format_time, listed
from busbw_analysis.data.apart import TABLES_APART
from busbw_analysis.data.counters import Moved
from busbw_analysis.data.facts import Facts
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.imported import TABLE_LEFT_OUT
from busbw_analysis.data.lateness import GroupLateness, RankLateness
from busbw_analysis.data.likeness import to_be_given
from busbw_analysis.data.names import rank_list, statistic_in_words
from busbw_analysis.data.readers.nccl_info import EVIDENCE
from busbw_analysis.data.resumed import resumed_launches, resuming
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.diagnosis.pairs import PairMatrix
from busbw_analysis.diagnosis.selftest import SelfTest, failure_in_words
from busbw_analysis.diagnosis.siblings import Contrast
from busbw_analysis.models.results import Results

Severity = Literal["bad", "caution", "note"]

CODES: Final = (
    *("wrong-data", "wrong-results", "failed", "no-end", "interrupted", "unknown-op", TABLE_LEFT_OUT),
    *("store", "not-checked", "shared-resources", "counters-slow-host"),
    *("straggler", "slow-host", "slow-rank", "slow-pair"),
    *(
        "slow-gpu",
        "slow-nic",
        "counters",
        "collapse",
        "asymmetric",
        "slow-peers",
        "groups-apart",
        "slow-size",
        "oversubscribed",
    ),
    *(
        "disturbed",
        "throttled",
        "launches-differ",
        "self-test",
        "gpu-hardware",
        "hardware",
        "step-parts",
        "level-step",
        "slow-drift",
        "periodic",
        "drift",
        "launch-lost",
        "not-reached",
    ),
    *("skipped", "clock-error", "one-machine", "resumed", "adjusted"),
)
"""Codes of findings; those that change a decision most come first."""
_EXAMPLES = 3
_LAUNCHES_APART = 1.5
"""A launch that is this many times slower than the others over all of its cases ran on a changed machine."""
_DRIFTING_SHARE = 0.25
_DISTURBED_SHARE = 0.1
"""A machine is busy if more than this share of its cases is disturbed."""
_MORE_THAN_ELSEWHERE = 2
"""How many times the largest of the other hosts a counter has to move by to be evidence against a host."""
_MOST_LINKS = 4
"""Number of findings on the links of a host that are listed; more of them usually have one cause."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A warning about the numbers of a run.

    severity: ``bad``, ``caution`` or ``note``.
    code: a stable word (``oversubscribed``, ``failed``, ``straggler`` …).
    sentences: what is wrong, then the numbers that support it and what to do; each without a full stop.
    """

    severity: Severity
    code: str
    sentences: tuple[str, ...]

    @property
    def claim(self) -> str:
        """The first sentence, without a full stop."""
        return self.sentences[0]

    @property
    def text(self) -> str:
        """All sentences."""
        return " ".join(f"{sentence}." for sentence in self.sentences)

    @property
    def subject(self) -> str:
        """The code as a heading."""
        return self.code if self.code == "self-test" else self.code.replace("-", " ")

    def as_json(self) -> dict[str, JSON]:
        """The finding as JSON; ``subject`` and ``text`` are wording and may change."""
        return {"severity": self.severity, "code": self.code, "subject": self.subject, "text": self.text}


def findings_on(
    results: Results,
    matrices: Sequence[PairMatrix],
    contrasts: Sequence[Contrast],
    pictures: Mapping[str, Picture],
    selftest: SelfTest | None,
) -> tuple[Finding, ...]:
    """All findings on the results of runs, ``ranked``; ``pictures`` are those of the hosts."""
    runs, facts, summaries = results.runs, results.facts, results.cases
    measured = [summary for summary in summaries if summary.state == "measured"]
    lost = [stored for stored in runs if any(row.transient for row in stored.failed)]
    slow = {host for contrast in contrasts for host in contrast.hosts}
    slow |= {facts.hosts[rank] for matrix in matrices for outlier in matrix.outliers for rank in outlier.ranks}
    slow |= {member.host for group in results.lateness for member in group.flagged if member.host is not None}
    on_slow = _telling(results.counters, slow, others=not slow.issuperset(facts.hosts))
    findings = [
        *_ends(runs),
        *_imported(runs, measured),
        *_of_cases(summaries, " and ".join(map(resuming, lost))),
        *_shared_resources(facts),
        *_slow_pairs(matrices),
        *(Finding("caution", contrast.code, (contrast.claim,)) for contrast in contrasts),
        *disturbances(measured),
    ]
    of_one_kind: tuple[tuple[Severity, str, Iterable[tuple[str, ...]]], ...] = (
        ("caution", "self-test", failure_in_words(selftest, [stored.run.started for stored in runs])),
        ("caution", "unknown-op", _unknown_ops(runs)),
        ("caution", "store", ((notice,) for notice in results.notices)),
        ("caution", "oversubscribed", _oversubscribed(facts)),
        ("caution", "straggler", _late(results.lateness, summaries)),
        ("caution", "launches-differ", _launches(runs, measured)),
        ("caution", "drift", _drifting(measured)),
        ("note", "clock-error", _clocks(measured)),
        ("note", "adjusted", ((text,) for stored in runs for text in stored.run.adjusted)),
        ("caution", "gpu-hardware", _hardware((host, seen.of_gpus) for host, seen in pictures.items())),
        ("caution", "hardware", _hardware((host, seen.of_others) for host, seen in pictures.items())),
        ("caution", "counters-slow-host", _counters(on_slow)),
        ("caution", "counters", _counters([m for m in results.counters if m.kind == "error" and m.host not in slow])),
    )
    findings += [Finding(severity, code, claims) for severity, code, each in of_one_kind for claims in each]
    return ranked(dict.fromkeys(findings))


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """``findings`` by severity, then by the order of ``CODES``."""
    severities = get_args(Severity)
    order = {code: place for place, code in enumerate(CODES)}
    return tuple(
        sorted(findings, key=lambda finding: (severities.index(finding.severity), order.get(finding.code, len(order))))
    )


def _imported(runs: Sequence[StoredRun], measured: Sequence[CaseSummary]) -> Iterator[Finding]:
    """Limits of the logs of other tools, facts that the user gave for them, and notes of their readers: what holds for
    several logs comes once.
    """
    limits: list[tuple[tuple[str, str], str]] = []
    notes: list[tuple[tuple[Severity, str, str], tuple[str, int | None]]] = []
    others: list[Finding] = []
    for stored in runs:
        log = stored.run.imported
        if log is None:
            continue
        what = dict.fromkeys(group.statistic for summary in measured for group in summary.groups if group.statistic)
        tool = f"{log.tool} {log.tool_version or '(unknown version)'}"
        sampled = bool(what) and all(group.samples for summary in measured for group in summary.groups)
        ranked_times = any(row.rank_samples_ns for row in stored.imported)
        have = "the samples of one launch" if sampled else "no samples"
        have += " of every rank" if ranked_times else ""
        hidden = [*([] if sampled else ["scatter"]), "drift", "interference", *([] if ranked_times else ["stragglers"])]
        statistics = ", ".join(map(statistic_in_words, what)) or "none"
        number = "one sample per case" if [*what] == ["sample"] else f"one number per case ({statistics}) and {have}"
        missing = f"{listed(hidden, word='or')}, and two single logs cannot be tested for a difference"
        limits.append(((f"{tool} with {number}", missing), log.file))
        if log.given:
            given = ", ".join(f"{name} {value}" for name, value in log.given.items())
            others.append(Finding("note", "given", (f"Given by the user, not by the log: {given}",)))
        if unknown := to_be_given(stored.run):
            options = " ".join(f"--{name}" for name in unknown)
            lacks = f"Not stated by the log: {', '.join(unknown)}"
            others.append(Finding("note", "unknown", (lacks, f"Verdicts that need them are missing; add {options}")))
        for note in log.notes:
            wrong = note.code == "wrong-results"
            severity: Severity = "bad" if wrong else "caution" if note.code in _DOUBTFUL else "note"
            notes.append(((severity, note.code, note.text), (log.file, note.line)))
    for (of_tool, missing), names in by_key(limits).items():
        several = f"{len(names)} logs, such as {names[0]}, are of {of_tool}"
        claim, verb = (several, "They do") if len(names) > 1 else (f"{names[0]} is a log of {of_tool}", "It does")
        yield Finding("caution", "imported", (claim, f"{verb} not show {missing}"))
    yield from others
    for (severity, code, text), places in by_key(notes).items():
        logs = len({file for file, _ in places})
        together = logs > 1 and severity != "bad"  # each log with wrong results is named
        for where in [f"{logs} logs, such as {_line(places[0])}"] if together else map(_line, places):
            yield Finding(severity, code, (f"{text} ({where})" if code in EVIDENCE else f"{where}: {text}",))


def _line(place: tuple[str, int | None]) -> str:
    """The place of a note: its log, and the line if it has one."""
    name, line = place
    return name if line is None else f"{name}, line {line}"


_DOUBTFUL: Final = frozenset(
    {
        *("gib-as-gb", "size-per-rank", "no-bus-factor", "rate-differs", "one-rank"),
        *("failed-test", "unfinished", "unfinished-line", "dropped", "repeated-header"),
        *("assumed-size", "deduced", TABLES_APART, TABLE_LEFT_OUT),
        *EVIDENCE,
    }
)
"""Notes of readers that are cautions: they affect whether a number can be believed."""


def case_name(case: Case) -> str:
    """A case in a sentence: op, size and settings that are not the default."""
    op, *details = case_in_words(case, {"device", "root"})
    size = [format_size(case.size_bytes)] if case.size_bytes else []
    return " ".join([op, *size, *details])


def _ends(runs: Sequence[StoredRun]) -> Iterator[Finding]:
    """Runs that are incomplete, and runs that were resumed."""
    for stored in runs:
        end, resumed = stored.end, list(resumed_launches(stored))
        if end is None or end.status != "complete":
            progress = progress_of(stored)
            yield Finding("bad", "no-end" if end is None else end.status, ended_in_words(stored, progress))
        if resumed:
            launches = "; ".join(_resumed(stored, begun, before) for begun, before in resumed)
            yield Finding("note", "resumed", (f"Run {stored.run.id} was resumed: {launches}", _SEPARATE))


_SEPARATE: Final = (
    "A launch that measures the remaining blocks of another counts as a separate launch: cases with blocks in both "
    "have one launch more, with fewer blocks each"
)


def ended_in_words(stored: StoredRun, progress: Progress) -> tuple[str, ...]:
    """How an incomplete run ended, how many of its launches are complete, and how to measure the rest, as sentences
    without full stops.
    """
    end, log = stored.end, stored.run.imported
    if end is None:
        ended = [f"Run {stored.run.id} has no end: it was killed or is still running", "Its finished blocks are kept"]
    elif log is not None:
        ends = "reports a failure" if end.status == "failed" else "ends early"
        ended = [f"The log {log.file} {ends}{'' if end.reason is None else f': {end.reason}'}"]
    else:
        ended = [f"Run {stored.run.id} {'' if end.status == 'failed' else 'was '}{end.in_words()}"]
    incomplete = progress.complete < progress.planned and log is None
    return (*ended, *([f"{progress.in_words()}; {resuming(stored)} measures the rest"] if incomplete else []))


def _resumed(stored: StoredRun, begun: LaunchStarted, end: Ended | None) -> str:
    """A resumed launch. Fresh processes are a launch with its own number, even if they measure the blocks that an
    earlier launch did not reach.
    """
    blocks = counted(sum(row.launch == begun.launch for row in stored.measurements), "block")
    what = "is new" if begun.resumes is None else f"measured the remaining blocks of launch {begun.resumes + 1}"
    was = "" if end is None or end.status == "failed" else "was "
    before = "" if end is None else f", after the run {was}{end.status} at {end.ended}"
    return f"launch {begun.launch + 1} (started {begun.started}, {blocks}) {what}{before}"


def _of_cases(summaries: Sequence[CaseSummary], resume: str) -> Iterator[Finding]:
    """One finding for each reason why cases have no result, lost a launch, or were not checked."""
    by_reason = by_key((reason, summary) for summary in summaries for reason in _reasons(summary))
    for (code, reason), cases in by_reason.items():
        severity, claims = _OF_CASES[code]
        names = listed((case_name(summary.case) for summary in cases), _EXAMPLES)
        which = "" if len(cases) == len(summaries) else f": {names}"
        fields = {
            "cases": counted(len(cases), "case"),
            "names": names,
            "which": which,
            "reason": reason,
            "resume": resume,
        }
        yield Finding(severity, code, tuple(claim.format(**fields) for claim in claims))


def _reasons(summary: CaseSummary) -> Iterator[tuple[str, str]]:
    """Codes of findings on a case, each with its reason."""
    if summary.state == "measured":
        # An op without data, such as a barrier, has nothing to check.
        if summary.check.state == "not checked" and summary.case.size_bytes:
            yield "not-checked", summary.check.in_words
    elif summary.state != "not reached" or summary.case.group != ASKED:  # a controller did not ask for it
        failed = "wrong-data" if summary.cause == "wrong_data" else "failed"
        codes = {"failed": failed, "not reached": "not-reached", "skipped": "skipped"}
        yield codes[summary.state], "; ".join(summary.reasons)
    if summary.lost:
        yield "launch-lost", "; ".join(summary.lost)


_FAILED: Final = ("{cases} failed ({names}): {reason}", "Failed cases are not judged")
_LOST: Final = (
    "{cases} lost a launch to an unrelated failure ({names}): {reason}",
    "The other launches count; {resume} measures the missing ones",
)
_OF_CASES: Final[dict[str, tuple[Severity, tuple[str, ...]]]] = {
    "wrong-data": ("bad", _FAILED),
    "failed": ("bad", _FAILED),
    "launch-lost": ("caution", _LOST),
    "not-reached": ("caution", ("The run ended before {cases} of the plan: {names}",)),
    "not-checked": ("caution", ("The data of {cases} were {reason}{which}",)),
    "skipped": ("note", ("{cases} could not run here ({names}): {reason}",)),
}
"""Severity and sentences by code: ``cases`` is their number, ``which`` their names unless they are all, ``resume`` the
commands that measure what was lost.
"""


def _oversubscribed(facts: Facts) -> Iterator[tuple[str, ...]]:
    waits = "Ranks also wait for a core, so times are longer and scatter more than with one core per rank"
    for host, (ranks, cores) in facts.oversubscribed_hosts.items():
        yield f"{ranks} ranks share {cores} usable cores on {host}", waits


def _shared_resources(facts: Facts) -> Iterator[Finding]:
    """Hosts and GPUs that are shared by too many ranks, and host names that are the same machine."""
    for text in shared_resources(facts.placements, facts.environments):
        yield Finding("caution", "shared-resources", (f"{text[:1].upper()}{text[1:]}",))
    kernels = by_key((facts.environment(host).boot_id, host) for host in dict.fromkeys(facts.hosts))
    for kernel, hosts in kernels.items():
        if kernel is not None and len(hosts) > 1:
            text = f"{listed(hosts, _EXAMPLES)} are the same machine (one kernel): they share its cores and memory"
            yield Finding("note", "one-machine", (text, "Any network between them is virtual"))


def _late(lateness: Sequence[GroupLateness], summaries: Sequence[CaseSummary]) -> Iterator[tuple[str, ...]]:
    for group in lateness:
        for member in group.flagged:
            yield _straggler(group, member, case_name(summaries[member.worst].case))


def _straggler(group: GroupLateness, member: RankLateness, worst: str) -> tuple[str, ...]:
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


def _telling(counters: Sequence[Moved], slow: Collection[str], *, others: bool) -> list[Moved]:
    """The counters of ``slow`` hosts: all errors; if there are ``others``, also what moved more than there, because
    a few retransmissions and queues that are full for a moment are usual.
    """
    elsewhere: Counter[str] = Counter()
    for moved in counters:
        if moved.host not in slow:
            elsewhere[moved.name] = max(elsewhere[moved.name], moved.delta)
    return [
        moved
        for moved in counters
        if moved.host in slow
        and (moved.kind == "error" or (others and moved.delta > _MORE_THAN_ELSEWHERE * elsewhere[moved.name]))
    ]


def _counters(counters: Sequence[Moved]) -> Iterator[tuple[str, ...]]:
    """The counters of each host that moved; of the first hosts, and the names of the others."""
    by_host = by_key((moved.host, moved.in_words) for moved in counters)
    for host, of_host in list(by_host.items())[:_EXAMPLES]:
        yield (f"On {host} counters moved during the run: {listed(of_host, _EXAMPLES)}",)
    if more := list(by_host)[_EXAMPLES:]:
        yield (f"Counters of the same kinds moved on {listed(more, _EXAMPLES)}",)


def _slow_pairs(matrices: Sequence[PairMatrix]) -> Iterator[Finding]:
    """One finding per kind of outlier: the strongest one with its numbers, then the number of matrices with each."""
    outliers = [(matrix.op, number, outlier) for number, matrix in enumerate(matrices) for outlier in matrix.outliers]
    for (op, kind), members in by_key(
        ((op, outlier.kind), (number, outlier)) for op, number, outlier in outliers
    ).items():
        among = [matrix for matrix in matrices if matrix.op == op]
        worst = min((outlier for _, outlier in members), key=lambda outlier: outlier.ratio)
        claims = [f"{'Pair matrix' if op == 'pair_matrix' else f'Pairs of {op}'}: {worst.text}"]
        if len(members) > 1:
            ordered = sorted(members, key=lambda member: member[1].ratio)
            by_name = by_key((outlier.name, number) for number, outlier in ordered)
            names = listed((f"{name} in {len(set(numbers))}" for name, numbers in by_name.items()), _EXAMPLES)
            claims += [f"This is the worst of {len(members)}", f"Slow {kind}s in {len(among)} matrices: {names}"]
        yield Finding("caution", f"slow-{kind}", tuple(claims))


def _launches(runs: Sequence[StoredRun], measured: Sequence[CaseSummary]) -> Iterator[tuple[str, ...]]:
    """Launches that were slower than the others as a whole; of two tables of logs, than the other one. The scatter of
    single cases is part of the trust.
    """

    def two_tables(group: GroupSummary) -> bool:
        return len(group.launch_keys) == 2 and all(runs[run].run.imported is not None for run, _ in group.launch_keys)

    by_launch = by_key(
        (key, time_ns / (min(group.launch_medians_ns) if two_tables(group) else group.time_ns))
        for summary in measured
        if summary.case.op not in PAIRED
        for group in summary.groups
        for key, time_ns in zip(group.launch_keys, group.launch_medians_ns, strict=True)
    )
    for (run, launch), ratios in by_launch.items():
        slower = geometric_mean(ratios)
        log = runs[run].run.imported
        if slower > _LAUNCHES_APART and log is not None:
            took = f"Table {launch + 1} of {log.file} took {slower:.2g}× the time of the others with the same cases"
            yield took, "If something was changed between them, give each its own file to busbw compare"
        elif slower > _LAUNCHES_APART:
            mean = f"geometric mean over {counted(len(ratios), 'case')}"
            took = f"Launch {launch + 1} took {slower:.2g}× the median launch's time ({mean})"
            yield f"{took}: the machine changed between launches", "Look for other load and rerun"


def _drifting(measured: Sequence[CaseSummary]) -> Iterator[tuple[str, ...]]:
    """Drift is the one flag that is rare on healthy machines, so it is a finding if common; other flags are shown per
    row.
    """
    cases = [case_name(summary.case) for summary in measured if "drift" in summary.flags]
    if len(cases) > _DRIFTING_SHARE * len(measured):
        drift = f"{len(cases)} of {counted(len(measured), 'case')} drift ({listed(cases, _EXAMPLES)})"
        apart = "within most blocks, the first and the last third differ by more than their intervals allow"
        yield f"{drift}: {apart}", "Rerun on an idle machine"


def disturbances(measured: Sequence[CaseSummary]) -> Iterator[Finding]:
    """Other load on the machine, and slowed-down GPUs, during these cases."""
    for code, share, of in (
        ("throttled", 0.0, [summary for summary in measured if summary.disturbance.throttled]),
        ("disturbed", _DISTURBED_SHARE, [summary for summary in measured if summary.disturbance.high]),
    ):
        if len(of) > share * len(measured):
            worst = max(of, key=lambda summary: (summary.disturbance.foreign or 0.0, summary.disturbance.missed))
            text = f"{len(of)} of {counted(len(measured), 'case')} disturbed; worst: "
            text += f"{worst.disturbance.in_words()} ({case_name(worst.case)})"
            kept = "All samples are kept; rerun on a quiet machine for better numbers"
            yield Finding("caution", code, (text, kept))


def _unknown_ops(runs: Sequence[StoredRun]) -> Iterator[tuple[str, ...]]:
    for stored in runs:
        if unknown := dict.fromkeys(case.op for case in stored.run.cases if case.op not in OPS):
            lacks = f"This busbw ({__version__}) does not know {listed(unknown, _EXAMPLES)}"
            of_run = f"the run is of busbw {stored.run.busbw}"
            yield f"{lacks}; {of_run}", "Times and rates are as stored, without model, peak or verdict"


def _clocks(measured: Sequence[CaseSummary]) -> Iterator[tuple[str, ...]]:
    cases = [summary for summary in measured if "clock error" in summary.flags]
    if cases:
        worst = max(float(summary.groups.clock_error_ns.max()) for summary in cases)
        clocks = f"In {len(cases)} of {counted(len(measured), 'case')} the clocks of the ranks may differ by up to"
        yield (f"{clocks} {format_time(worst)}, more than 5 % of a call: the order of arrival is unknown there",)


def _hardware(problems: Iterable[tuple[str, Sequence[str]]]) -> Iterator[tuple[str, ...]]:
    """Links of hosts that are slower than both of their ends allow, as recorded before the run. Links that may have
    been in power saving are left out, because these facts are read before any traffic.
    """
    by_text = by_key((text, host) for host, texts in problems for text in _first(texts))
    yield from ((f"On {', '.join(on)}: {text}",) for text, on in by_text.items())


def _first(findings: Sequence[str]) -> Iterator[str]:
    yield from findings[:_MOST_LINKS]
    if len(findings) > _MOST_LINKS:
        yield f"{len(findings) - _MOST_LINKS} more findings of this kind; busbw peaks --here on that host lists them"
