"""What a gate says: lines for a terminal, one line of JSON, JUnit XML, annotations and a summary for GitHub."""

import math
from collections.abc import Iterator, Sequence
from typing import Final
from xml.etree import ElementTree as ET

from busbw.escape import plain_text
from busbw.runs.records import JSON
from busbw.units import counted, listed
from busbw_analysis.data.as_json import plain
from busbw_analysis.diagnosis.compare_answer import MOST_LAUNCHES
from busbw_analysis.diagnosis.hypothesis_tests import POWER, percent
from busbw_analysis.gate.launch_tests import ERROR_RATE, FEWEST_RUNS, BaselineTest, CountTest, State, Test
from busbw_analysis.gate.metrics import WORDS, Gap
from busbw_analysis.gate.verdicts import Gate, Since, Verdict

CHECK: Final = "busbw-gate"
WORD: Final[dict[State, str]] = {"pass": "PASS", "fail": "FAIL", "cannot tell": "CANNOT TELL"}
HEALTHY: Final[dict[State, bool | None]] = {"pass": True, "fail": False, "cannot tell": None}
_NAMED: Final = 2
"""Most cases that a line names; JSON has all."""
_MOST_CHANGES: Final = 3
"""Most changes that a line names; JSON has all."""


def lines(gate: Gate) -> list[tuple[str, str]]:
    """The outcome, since when, and a line for each gap and rule: a word and a sentence."""
    since = [] if gate.since is None else [("since", since_in_words(gate.since))]
    rules = [(WORD[verdict.state], sentence(gate, verdict)) for verdict in gate.verdicts]
    # Without a rule that decides, the outcome has the first gap.
    gaps = [(WORD["cannot tell"], _gap(gap)) for gap in gate.gaps[0 if _decisive(gate) else 1 :]]
    return [("gate", outcome(gate)), *since, *gaps, *rules]


def headline(gate: Gate) -> str:
    """The outcome, the first rule that decides it, and since when, in one line."""
    decisive = _decisive(gate)
    said = [] if gate.state == "pass" or not decisive else [sentence(gate, decisive[0])]
    since = "" if gate.since is None else f"; since {since_in_words(gate.since)}"
    return ": ".join([outcome(gate), *said]) + since


def since_in_words(since: Since) -> str:
    """The day, the runs and the likeliest changes."""
    day = f"{since.started[:10]}, run {since.run}"
    if since.passed is None:
        return plain_text(f"{day}, or before: no earlier run passes")
    texts = [f"{change.key} {change.before} → {change.after}" for change in since.changes]
    changed = listed(texts, _MOST_CHANGES) if texts else "no recorded fact"
    return plain_text(f"{day}; {changed} changed since run {since.passed}")


def outcome(gate: Gate) -> str:
    """The state, how many rules have it, and of a pass what it would have found."""
    binding, decisive = _binding(gate), _decisive(gate)
    if gate.state == "pass":
        seen = [verdict.smallest for verdict in binding if verdict.smallest is not None]
        power = f"; would have found calls that take {percent(max(seen))} longer" if seen else ""
        return f"{WORD[gate.state]}: {counted(len(binding), 'rule')}{power}"
    if not decisive:
        return f"{WORD[gate.state]}: {gate.gaps[0].reason}"
    warnings = len(gate.verdicts) - len(binding)
    beside = f"; {counted(warnings, 'warning')} not counted" if warnings else ""
    return f"{WORD[gate.state]}, {len(decisive)} of {counted(len(binding), 'rule')}{beside}"


def _binding(gate: Gate) -> list[Verdict]:
    return [verdict for verdict in gate.verdicts if verdict.rule.severity == "error"]


def _decisive(gate: Gate) -> list[Verdict]:
    return [verdict for verdict in _binding(gate) if verdict.state == gate.state]


def sentence(gate: Gate, verdict: Verdict) -> str:
    """A rule, what was measured, and what would decide or have failed; without a full stop."""
    rule = verdict.rule
    said = {"pass": _passed, "fail": _failed, "cannot tell": _doubted}[verdict.state](gate, verdict)
    warning = "" if rule.severity == "error" else "warning only: "
    changes = listed(f"{each.name} {each.values[0]} → {each.values[1]}" for each in verdict.changed)
    since = f"; changed since the baseline: {changes}" if changes else ""
    return plain_text(f"{warning}{rule.title}: {said}{since}")


def _value(gate: Gate, verdict: Verdict, test: Test) -> str:
    """The value with its interval, where and of how many launches."""
    words = WORDS[verdict.rule.row.unit]
    between = "" if test.ends is None else f" ({words(test.ends[0])} to {words(test.ends[1])})"
    where = f" at {test.subject}" if len(verdict.tests) > 1 else ""
    limit = "" if verdict.rule.name is None else f", limit {words(verdict.rule.limit)}"
    return f"{words(test.value)}{between}{where}{limit}{_launches(gate, test)}"


def _launches(gate: Gate, test: Test) -> str:
    unit, units = _UNITS[gate.of_logs]
    if len(test.launches) == 2:
        return f", {counted(test.launches[0], unit, units)} of the baseline and {test.launches[1]} of the run"
    return "".join(f", {counted(count, unit, units)}" for count in test.launches)


_UNITS: Final = {False: ("launch", "launches"), True: ("log table", "log tables")}
"""What counts as a launch, by whether logs of other tools are judged."""


def _what(verdict: Verdict) -> str:
    return "an increase" if verdict.rule.metric == "skew" else "a slowdown"


def _passed(gate: Gate, verdict: Verdict) -> str:
    worst = verdict.tests[0]
    if isinstance(worst, CountTest):
        return worst.amount
    many = f", worst of {len(verdict.tests)}" if len(verdict.tests) > 1 else ""
    power = "" if verdict.smallest is None else f"; would have found {_what(verdict)} of {percent(verdict.smallest)}"
    return f"{_value(gate, verdict, worst)}{many}{power}"


def _failed(gate: Gate, verdict: Verdict) -> str:
    decisive = verdict.decisive
    worst = decisive[0]
    if isinstance(worst, CountTest):
        return f"{worst.amount}: {listed(worst.names, _NAMED)}"
    others = f"; {len(decisive)} of {len(verdict.tests)} tests fail" if len(verdict.tests) > 1 else ""
    others += "; slower, and not shown to stay within" if worst.excess <= 0 else ""
    return f"{_value(gate, verdict, worst)}{others}"


def _doubted(gate: Gate, verdict: Verdict) -> str:
    clauses = [_gap(gap) for gap in verdict.gaps[:_NAMED]]
    if decisive := verdict.decisive:
        worst = decisive[0]
        detect = percent(verdict.rule.visible or 0.0)
        why = {
            "too few launches": f"too few {_UNITS[gate.of_logs][1]} to fail",
            "disturbed": "a single launch cannot fail while other programs or the hypervisor take CPU time",
            "too much scatter": f"a slowdown of {detect} could have gone unseen",
            "runs differ": "the runs of the baseline differ by more than their launches",
            "not significant": "beyond the limit, which may be chance",
        }[worst.doubt(gate.tests)]
        some = f" in {len(decisive)} of {len(verdict.tests)} tests" if len(verdict.tests) > 1 else ""
        clauses += [f"{_value(gate, verdict, worst)}: {why}{some}", _decides(gate, verdict, worst)]
    return "; ".join(clauses)


def _gap(gap: Gap) -> str:
    return f"{gap.reason} ({listed(gap.cases, _NAMED)})" if gap.cases else gap.reason


def _decides(gate: Gate, verdict: Verdict, worst: Test) -> str:
    sides = " a side" if len(worst.launches) > 1 else ""
    if verdict.needed is None and worst.excess + math.log1p(verdict.rule.visible or math.inf) <= 0:
        return "the limit is farther away than that: take a tighter limit or a larger detect"
    if worst.doubt(gate.tests) == "runs differ":
        return f"a baseline of more runs ({FEWEST_RUNS} at least, better 10) would decide"
    if verdict.needed is None:
        return "with this scatter more launches would not decide: take a quieter machine or a looser limit"
    quieter = "; a quieter machine takes fewer" if verdict.needed > MOST_LAUNCHES else ""
    computed = all(
        test.estimate.scatter is not None if isinstance(test, BaselineTest) else test.excess <= 0
        for test in verdict.decisive
    )
    visible = verdict.rule.visible if computed else None
    finds = "" if visible is None else f", as they find {_what(verdict)} of {percent(visible)}"
    return f"{verdict.needed} {_UNITS[gate.of_logs][1]}{sides} would decide{finds}{quieter}"


def document(gate: Gate, runs: Sequence[str], hosts: Sequence[str], baseline: str | None) -> dict[str, JSON]:
    """One object for controllers. ``healthy`` is null if the gate cannot tell."""
    return {
        "check": CHECK,
        "healthy": HEALTHY[gate.state],
        "node": ",".join(hosts),
        "message": headline(gate),
        "state": gate.state,
        "exit_code": gate.code,
        "error_rate": ERROR_RATE,
        "power": POWER,
        "tests": gate.tests,
        "runs": list(runs),
        "baseline": baseline,
        "gaps": plain(gate.gaps),
        "rules": [_rule(gate, verdict) for verdict in gate.verdicts],
        "since": plain(gate.since),
    }


def _rule(gate: Gate, verdict: Verdict) -> JSON:
    rule = verdict.rule
    return {
        "rule": rule.title,
        "metric": rule.metric,
        "limit": rule.limit,
        "unit": rule.row.unit,
        "severity": rule.severity,
        "state": verdict.state,
        "message": sentence(gate, verdict),
        "smallest": verdict.smallest,
        "launches_needed": verdict.needed,
        "gaps": plain(verdict.gaps),
        "changed": [{"key": each.name, "values": plain(each.values)} for each in verdict.changed],
        "tests": [
            {
                "subject": test.subject,
                "state": state,
                "value": test.value,
                "interval": None if test.ends is None else list(test.ends),
                "launches": list(test.launches),
                "adjusted_p": adjusted,
            }
            for test, state, adjusted in zip(verdict.tests, verdict.states, verdict.adjusted, strict=True)
        ],
    }


def junit(gate: Gate) -> bytes:
    """JUnit XML: a test for each rule. A rule that cannot tell is an error, a warning that does not pass is skipped."""
    cases = [_testcase(gate, verdict) for verdict in gate.verdicts]
    cases += [_problem(ET.Element("testcase", classname=CHECK, name="gate"), "error", gap.reason) for gap in gate.gaps]
    suite = ET.Element("testsuite", name=CHECK, tests=str(len(cases)))
    for name, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.find(kind) is not None for case in cases)))
    if gate.since is not None:
        properties = ET.SubElement(suite, "properties")
        ET.SubElement(properties, "property", name="since", value=since_in_words(gate.since))
    suite.extend(cases)
    root = ET.Element("testsuites")
    root.append(suite)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _testcase(gate: Gate, verdict: Verdict) -> ET.Element:
    text = sentence(gate, verdict)
    case = ET.Element("testcase", classname=CHECK, name=plain_text(verdict.rule.title))
    if verdict.state == "pass":
        ET.SubElement(case, "system-out").text = text
        return case
    tags: dict[State, str] = {"fail": "failure", "cannot tell": "error"}
    return _problem(case, tags[verdict.state] if verdict.rule.severity == "error" else "skipped", text)


def _problem(case: ET.Element, tag: str, text: str) -> ET.Element:
    ET.SubElement(case, tag, message=plain_text(text))
    return case


def annotations(gate: Gate) -> Iterator[str]:
    """GitHub's workflow commands: an error for what changes the exit status, else a warning, and a notice since when.
    Escaped as ``@actions/core`` does.
    """
    for gap in gate.gaps:
        yield _command("error", CHECK, gap.reason)
    for verdict in gate.verdicts:
        if verdict.state != "pass":
            level = "error" if verdict.rule.severity == "error" else "warning"
            yield _command(level, f"{WORD[verdict.state]}: {verdict.rule.title}", sentence(gate, verdict))
    if gate.since is not None:
        yield _command("notice", "since", since_in_words(gate.since))


def _command(level: str, title: str, text: str) -> str:
    return f"::{level} title={_escaped(title, ':,')}::{_escaped(text)}"


def _escaped(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def summary(gate: Gate, runs: Sequence[str]) -> str:
    """Markdown for the summary of a job."""
    rows = [
        f"| {WORD[verdict.state]} | {_cell(verdict.rule.title)} | {_cell(sentence(gate, verdict))} |"
        for verdict in gate.verdicts
    ]
    return "\n".join(
        [
            f"### busbw gate: {WORD[gate.state]}",
            "",
            _cell(headline(gate)),
            "",
            "| | rule | measured |",
            "|---|---|---|",
            *rows,
            "",
            f"Runs: {_cell(', '.join(runs))}",
            "",
        ]
    )


def _cell(text: str) -> str:
    """Text in a table of Markdown that renders neither HTML nor links."""
    for character in "\\`*_{}[]<>|#!":
        text = text.replace(character, f"\\{character}")
    return plain_text(text)
