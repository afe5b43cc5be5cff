"""The verdicts of a gate: pass, fail or cannot tell for each rule, and what would decide."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from busbw_analysis.data.likeness import Difference
from busbw_analysis.diagnosis.hypothesis_tests import holm
from busbw_analysis.gate.launch_tests import CountTest, State, Test
from busbw_analysis.gate.metrics import Evidence, Gap, Measured
from busbw_analysis.gate.rules import Rule

EXIT_STATUS: Final[dict[State, int]] = {"pass": 0, "fail": 1, "cannot tell": 3}
"""2 is the status of a wrong request, which no gate shares."""

_ORDER: Final = ("pass", "cannot tell", "fail").index

NO_CASE: Final = Gap("no-case", "no case matches the rule")
NO_RULE: Final = Gap("no-rule", "there is no rule that could fail: add one whose severity is error")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one rule.

    tests, states: the tests and their results, worst first.
    adjusted: the p-values after Holm; None: of a count.
    gaps: what could not be tested.
    smallest: of a pass: an increase of this share, in whatever case, would have failed with probability 80 %; None: it
        counts cases.
    needed: launches that would decide all undecided tests; None: nothing is undecided, or launches do not help.
    changed: software that is another one than that of the baseline.
    """

    rule: Rule
    state: State
    tests: tuple[Test, ...]
    states: tuple[State, ...]
    adjusted: tuple[float | None, ...]
    gaps: tuple[Gap, ...]
    smallest: float | None
    needed: int | None
    changed: tuple[Difference, ...] = ()

    @property
    def decisive(self) -> tuple[Test, ...]:
        """The tests with the state of the rule, worst first."""
        return tuple(test for test, state in zip(self.tests, self.states, strict=True) if state == self.state)


@dataclass(frozen=True, slots=True)
class Change:
    """A recorded fact with its values before and after."""

    key: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Since:
    """Since when a gate fails.

    run, started: id and start of the first of the runs that fail without one between them that passes
    passed: id of the last run before it that passes, or is of the baseline; None: not among those that were looked at
    changes: facts that differ between the two, the likeliest first
    """

    run: str
    started: str
    passed: str | None
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Gate:
    """The result of a gate.

    tests: the size of the family for which the error rate holds.
    gaps: why the gate as a whole cannot fail.
    since: since when it fails; None: it does not, or there is no baseline to ask.
    of_logs: whether it judges logs of other tools, of which each table counts as a launch.
    """

    verdicts: tuple[Verdict, ...]
    tests: int
    gaps: tuple[Gap, ...]
    since: Since | None = None
    of_logs: bool = False

    @property
    def state(self) -> State:
        """``fail`` if a rule fails, even if others cannot tell; warnings do not count."""
        binding = [verdict.state for verdict in self.verdicts if verdict.rule.severity == "error"]
        return _worst(binding, self.gaps)

    @property
    def code(self) -> int:
        """The exit status."""
        return EXIT_STATUS[self.state]


def _worst(states: Sequence[State], gaps: Sequence[Gap]) -> State:
    """``fail`` outweighs ``cannot tell``, which a gap is."""
    least: State = "cannot tell" if gaps else "pass"
    return max((*states, least), key=_ORDER)


def gate_of(rules: Sequence[Rule], evidence: Evidence) -> Gate:
    """The verdicts of ``rules``."""
    gate = judged([(rule, rule.row.measure(evidence, rule)) for rule in rules])
    return replace(gate, of_logs=evidence.judgement.from_logs)


def judged(measured: Sequence[tuple[Rule, Measured]]) -> Gate:
    """The verdicts of rules whose numbers are measured. All their tests are one family."""
    tests = [test for _, of_rule in measured for test in of_rule.tests]
    family = sum(test.p_value is not None for test in tests)
    adjusted = iter(holm([test.p_value for test in tests]))
    verdicts = tuple(
        _verdict(rule, of_rule, [next(adjusted) for _ in of_rule.tests], max(1, family)) for rule, of_rule in measured
    )
    able = any(verdict.rule.severity == "error" for verdict in verdicts)
    return Gate(verdicts, family, () if able else (NO_RULE,))


def _verdict(rule: Rule, measured: Measured, adjusted: Sequence[float | None], family: int) -> Verdict:
    rows = sorted(zip(measured.tests, adjusted, strict=True), key=lambda row: row[0].excess, reverse=True)
    detect = rule.visible
    states = [test.state(p_value, family, detect) for test, p_value in rows]
    gaps = measured.gaps if rows or measured.gaps else (NO_CASE,)
    state = _worst(states, gaps)
    tests = tuple(test for test, _ in rows)
    seen = [test.smallest(family) for test in tests if not isinstance(test, CountTest)]
    whole = [share for share in seen if share is not None]
    undecided = [test for test, of_test in zip(tests, states, strict=True) if of_test == "cannot tell"]
    counts = [test.needed(family, detect) for test in undecided]
    launches = [count for count in counts if count is not None]
    return Verdict(
        rule=rule,
        state=state,
        tests=tests,
        states=tuple(states),
        adjusted=tuple(p_value for _, p_value in rows),
        gaps=gaps,
        smallest=max(whole) if state == "pass" and whole and len(whole) == len(seen) else None,
        needed=max(launches) if launches and len(launches) == len(counts) else None,
        changed=measured.changed,
    )
