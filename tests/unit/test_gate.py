"""Gates: rules, verdicts and their error rate, baselines, suggested rules, and what other programs read."""

import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from xml.etree import ElementTree as ET

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result
from exhaustive import trials
from hypothesis import given
from hypothesis import strategies as st
from testing.gates import against_baseline, against_limits, bands, failed, real_launches, resampled, scaled
from testing.logs import LOGS
from testing.synthetic import Machine, Piece, SyntheticEnd, World, case, disturbed, synthetic_run, write_synthetic

from busbw.backends import BACKENDS
from busbw.cli.main import main
from busbw.errors import UsageError
from busbw.runs.records import JSON, Case, EndStatus
from busbw.runs.store import StoredRun
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import pool
from busbw_analysis.diagnosis.hypothesis_tests import estimate, holm, launches_needed, smallest_difference
from busbw_analysis.gate import baselines, outputs
from busbw_analysis.gate.launch_tests import ERROR_RATE, TWO_SIDED, BaselineTest, CountTest, LimitTest, bound
from busbw_analysis.gate.metrics import METRICS, Evidence, Measured
from busbw_analysis.gate.rules import EXAMPLES, Rule, parse_rules, written
from busbw_analysis.gate.suggestion import suggested
from busbw_analysis.gate.verdicts import Gate, gate_of, judged

STEADY = World(launch_noise=0.01)
CASES = [*(case("all_reduce", size) for size in (64, 1 << 20)), case("barrier", 0)]
SLOWER, MISSING = (
    Rule(metric="ratio_to_baseline", at_most="1.05", detect="0.1"),
    Rule(metric="missing_cases", at_most="0"),
)


def slower(factor: float, noise: float = 0.01) -> World:
    piece = World().pieces[0]
    slow = Piece(piece.alpha_seconds * factor, piece.beta_seconds_per_byte * factor)
    return World(launch_noise=noise, by_op={"all_reduce": (slow,)})


def run_of(
    seed: int,
    world: World = STEADY,
    launches: int = 10,
    cases: Sequence[Case] = CASES,
    *,
    machine: Machine | None = None,
    end: SyntheticEnd | None = None,
) -> StoredRun:
    return synthetic_run(cases, world, launches=launches, samples=15, seed=seed, machine=machine, end=end)


def gate(rules: Sequence[Rule], *runs: StoredRun, baseline: StoredRun | None = None) -> Gate:
    dataset = pool(runs)
    return gate_of(rules, Evidence(judge(dataset), dataset, None if baseline is None else pool((baseline,))))


# --- verdicts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "launches", "code"),
    [(STEADY, 10, 0), (slower(1.2), 10, 1), (STEADY, 5, 3), (slower(10), 5, 3), (World(launch_noise=0.3), 10, 3)],
)
def test_a_baseline_decides_by_launches(world: World, launches: int, code: int) -> None:
    result = gate([SLOWER, MISSING], run_of(2, world, launches), baseline=run_of(1, launches=launches))
    assert (result.code, result.verdicts[1].state) == (code, "pass")
    assert result.tests == 3, "bands of sizes; a count is exact"
    (verdict, _) = result.verdicts
    if code == 0:
        assert verdict.smallest is not None
        assert 0.05 <= verdict.smallest < 0.1, "what it would have found"
    if launches == 5:
        assert {test.doubt(3) for test in verdict.tests} == {"too few launches"}
        assert verdict.needed == 7
    elif code == 3:
        assert verdict.decisive[0].doubt(3) == "too much scatter"
        assert (verdict.needed or 1001) > 10


@pytest.mark.parametrize(
    ("rule", "factor", "launches", "code"),
    [
        (Rule(metric="time", op="all_reduce", sizes="64", at_most="30us"), 1, 10, 0),
        (Rule(metric="time", op="all_reduce", sizes="64", at_most="30us"), 10, 1, 1),
        (Rule(metric="time", op="all_reduce", sizes="64", at_most="30us"), 1.3, 1, 0),
        (Rule(metric="time", op="all_reduce", sizes="64", at_most="30us"), 1.6, 1, 3),
        (Rule(metric="busbw", sizes="1MiB..", at_least="20GB/s"), 1, 10, 1),
        (Rule(metric="busbw", sizes="1MiB..", at_least="12GB/s"), 1, 10, 0),
        (Rule(metric="algbw", sizes="1MiB..", at_least="12GB/s"), 1, 10, 1),
        (Rule(metric="busbw", sizes="1MiB..", at_least="12GB/s", detect="0.001"), 1, 10, 3),
        (Rule(metric="busbw", sizes="2MiB..", at_least="12GB/s"), 1, 10, 3),
        (Rule(metric="time", backend="mpi", at_most="1s"), 1, 10, 3),
        (Rule(metric="time", algorithm="ring", at_most="1s"), 1, 10, 3),
        (Rule(metric="time", algorithm="library", at_most="1s"), 1, 10, 0),
        (Rule(metric="skew", at_most="500%"), 1, 10, 0),
        (Rule(metric="share_of_peak", at_least="90%"), 1, 10, 3),
        (Rule(metric="ratio_to_model", op="all_reduce", at_most="2"), 1, 10, 3),
        (Rule(metric="ratio_to_reference", op="all_reduce", at_most="2"), 1, 10, 3),
        (SLOWER, 1, 10, 3),
        (Rule(metric="wrong_data", at_most="0"), 1, 2, 0),
    ],
)
def test_one_rule(rule: Rule, factor: float, launches: int, code: int) -> None:
    result = gate([rule], run_of(1, slower(factor), launches))
    assert result.code == code
    (verdict,) = result.verdicts
    if code == 3:
        assert verdict.gaps or verdict.needed or rule.detect, "what would decide"
    assert outputs.sentence(result, verdict)


@pytest.mark.parametrize(("launches", "finds"), [(1, False), (4, True)])
def test_a_number_of_launches_finds_the_slowdown_that_it_was_computed_for(launches: int, *, finds: bool) -> None:
    """Of one launch a side the scatter is unknown, and the number is the fewest."""
    judged = gate([SLOWER], run_of(1, launches=launches), baseline=run_of(2, launches=launches))
    said = " ".join(text for _, text in outputs.lines(judged))
    assert ("would decide" in said, "as they find" in said) == (True, finds)


def test_what_launches_do_not_prove_is_named_with_the_missing_fact() -> None:
    codes = {
        "share_of_peak": "no-rate",
        "ratio_to_model": "no-model",
        "ratio_to_reference": "no-reference",
        "ratio_to_baseline": "no-baseline",
        "busbw": "no-case",
    }
    for metric, code in codes.items():
        row = METRICS[metric]
        op = "barrier" if metric == "busbw" else "all_reduce"
        rule = msgspec.convert({"metric": metric, "op": op, row.bound: EXAMPLES[row.unit]}, Rule)
        (verdict,) = gate([rule], run_of(1, cases=CASES[:2])).verdicts
        assert verdict.state == "cannot tell"
        assert verdict.gaps[0].code == code or metric == "share_of_peak"


@pytest.mark.parametrize(
    ("fact", "before", "after", "values"),
    [
        ("kernel", "6.1.0-31", "6.1.0-32", ("6.1.0-31", "6.1.0-32")),
        ("drivers", {"nvidia": "570.86"}, {"nvidia": "575.51"}, ("nvidia 570.86", "nvidia 575.51")),
        ("firmware", {"mlx5_core": "28.39"}, {"mlx5_core": "28.43"}, ("mlx5_core 28.39", "mlx5_core 28.43")),
    ],
)
@pytest.mark.parametrize(("factor", "state"), [(1.0, "pass"), (1.3, "fail")])
def test_other_software_is_compared_and_named(
    factor: float, state: str, fact: str, before: JSON, after: JSON, values: tuple[str, str]
) -> None:
    old, new = (Machine(facts={fact: value}) for value in (before, after))
    result = gate([SLOWER], run_of(2, slower(factor), machine=new), baseline=run_of(1, machine=old))
    verdict = result.verdicts[0]
    assert (verdict.state, verdict.gaps) == (state, ())
    assert [(each.name, each.values) for each in verdict.changed] == [(fact, values)]
    assert " → ".join(values) in outputs.sentence(result, verdict)


def test_another_machine_is_named_and_nothing_is_compared() -> None:
    result = gate([SLOWER], run_of(2, machine=Machine(name="other")), baseline=run_of(1))
    assert (result.code, result.verdicts[0].gaps[0].code) == (3, "unlike-runs")
    assert "'other'" in result.verdicts[0].gaps[0].reason


def test_cases_of_an_unlike_baseline_or_of_another_plan_are_not_missing() -> None:
    missing = [Rule(metric="missing_cases", at_most="0")]
    other_plan = synthetic_run([case("broadcast", number, 1 << number) for number in range(3)], launches=3)
    for baseline, code in ((run_of(1, machine=Machine(name="other")), "unlike-runs"), (other_plan, "no-common-case")):
        result = gate(missing, run_of(2), baseline=baseline)
        assert result.state == "cannot tell"
        assert [gap.code for gap in result.verdicts[0].gaps] == [code]


@pytest.mark.parametrize(("ended", "missing"), [("complete", 0), ("interrupted", 1)])
def test_what_a_controller_did_not_ask_for_is_missing_only_in_a_run_that_was_cut(
    ended: EndStatus, missing: int
) -> None:
    cases = [*CASES[:2], case("ping_pong", 2, 4, group="asked")]
    run = run_of(1, cases=cases, end=SyntheticEnd(reached=2, ended=ended))
    evidence: Any = SimpleNamespace(baseline=None, measured=pool((run,)))
    (test,) = METRICS["missing_cases"].measure(evidence, MISSING).tests
    assert test.value == missing


def test_missing_and_wrong_cases_are_counted() -> None:
    end = SyntheticEnd({CASES[0]: "wrong data in element 7", CASES[1]: "no memory"})
    rules = [MISSING, Rule(metric="wrong_data", at_most="0"), Rule(metric="busbw", at_least="1kB/s"), SLOWER]
    result = gate(rules, run_of(1, end=end), baseline=run_of(2))
    assert [verdict.state for verdict in result.verdicts] == ["fail", "fail", "cannot tell", "cannot tell"]
    counts = [verdict.tests[0] for verdict in result.verdicts[:2]]
    assert [(test.value, isinstance(test, CountTest) and test.looked_at) for test in counts] == [(2, 3), (1, 1)]
    fewer = gate([MISSING], run_of(1, cases=CASES[:1]), baseline=run_of(2))
    assert (fewer.code, fewer.verdicts[0].tests[0].value) == (1, 2)
    assert gate([MISSING], run_of(1, cases=CASES[:1])).code == 0


def test_a_warning_never_changes_the_exit_status_and_alone_decides_nothing() -> None:
    warning = Rule(metric="time", at_most="1ns", severity="warning")
    result = gate([warning, MISSING], run_of(1))
    assert (result.code, result.verdicts[0].state) == (0, "fail")
    for rules in ([warning], []):
        nothing = gate(rules, run_of(1))
        assert (nothing.code, nothing.gaps[0].code) == (3, "no-rule")


def test_one_launch_beside_other_programs_cannot_fail() -> None:
    rule = Rule(metric="time", op="all_reduce", sizes="64", at_most="30us")
    slow = run_of(1, slower(10), 1)
    assert gate([rule], slow).code == 1
    (verdict,) = gate([rule], disturbed(slow, ["all_reduce"])).verdicts
    assert (verdict.state, verdict.tests[0].doubt(1), verdict.needed) == ("cannot tell", "disturbed", 5)
    many = disturbed(run_of(1, slower(10), 10), ["all_reduce"])
    assert gate([rule], many).code == 1, "many launches show how much they scatter"


def test_launches_of_several_runs_are_pooled() -> None:
    runs = [run_of(seed, launches=4) for seed in (2, 3)]
    assert gate([SLOWER], runs[0], baseline=run_of(1)).code == 3
    result = gate([SLOWER], *runs, baseline=run_of(1))
    assert (result.code, result.verdicts[0].tests[0].launches) == (0, (10, 8))


def test_runs_of_a_baseline_that_differ_by_more_than_their_launches_count() -> None:
    """Each run with its own pace: one run shows nothing of that, two not how much, eight do."""

    def paced(seed: int, factor: float) -> StoredRun:
        return run_of(seed, World(pieces=(Piece(20e-6 * factor, 1e-10 * factor),), launch_noise=0.005), cases=CASES[:1])

    paces = np.exp(np.random.default_rng(1).permutation(np.linspace(-0.015, 0.015, 8))).tolist()
    before, after = [paced(seed, pace) for seed, pace in enumerate(paces)], pool((paced(20, 1.03),))
    rule = Rule(metric="ratio_to_baseline", at_most="1.01", detect="0.2")
    codes = {}
    for many in (1, 2, 8):
        side = pool([paced(11, 0.99)] if many == 1 else before[:many])
        (verdict,) = gate_of([rule], Evidence(judge(after), after, side)).verdicts
        codes[many] = verdict.state
        if many == 2:
            assert verdict.tests[0].doubt(1) == "runs differ"
    assert codes == {1: "fail", 2: "cannot tell", 8: "pass"}
    slow = pool((paced(20, 1.2),))
    assert gate_of([rule], Evidence(judge(slow), slow, pool(before))).code == 1


_TIMES = st.lists(st.floats(0.5, 2.0), min_size=4, max_size=12)


@given(_TIMES, _TIMES, st.floats(0.05, 0.9), st.floats(0.05, 0.9))
def test_no_baseline_passes_on_an_estimate_as_slow_as_it_must_see(
    one: list[float], two: list[float], detect: float, more: float
) -> None:
    first, second = (
        {(name, launch): value for launch, value in enumerate(side)} for name, side in (("a", one), ("b", two))
    )
    test = BaselineTest("band", estimate(first, second), 1.05)
    state = test.state(test.p_value, 1, detect)
    assert state != "pass" or test.value < 1 + detect
    assert state != "fail" or (test.value > 1 and test.p_value <= ERROR_RATE)
    if state == "pass":
        assert test.state(test.p_value, 1, max(detect, more)) == "pass"
    if state == "cannot tell" and test.decidable(1):
        needed = test.needed(1, detect)
        assert needed is None or needed > min(test.launches)


@given(
    st.lists(st.floats(0.5, 2.0), min_size=1, max_size=12),
    st.floats(0.1, 10.0),
    st.sampled_from((-1, 1)),
    st.integers(1, 99),
)
def test_a_limit_fails_only_beyond_it_and_names_more_launches(
    values: list[float], limit: float, worse: Literal[-1, 1], tests: int
) -> None:
    test = LimitTest("case", tuple(values), limit, worse)
    adjusted = min(1.0, tests * test.p_value)
    state = test.state(adjusted, tests, None)
    assert (state == "pass") == (test.excess <= 0)
    if state == "cannot tell":
        needed = test.needed(tests, None)
        assert needed is None or needed > len(values)
    assert test.smallest(tests) >= math.expm1(-test.excess) or test.excess > 0


def test_two_launches_that_scatter_widely_cannot_tell() -> None:
    """What the tests need beyond the limit is no number that a computer has."""
    test = LimitTest("case", (1e-3, 0.5), 0.9, 1, None)
    assert test.smallest(6) == math.inf
    assert test.state(min(1.0, 6 * test.p_value), 6, None) == "cannot tell"


@pytest.mark.parametrize(("assumed", "doubt"), [(None, "disturbed"), (0.02, "not significant")])
def test_a_launch_that_others_disturbed_cannot_fail_and_says_so(assumed: float | None, doubt: str) -> None:
    assert LimitTest("case", (1.01,), 1.0, 1, assumed).doubt(1) == doubt


def test_holm_is_over_all_rules_of_a_gate() -> None:
    values = tuple(np.exp(0.0365 + 0.02 * np.linspace(-1.5, 1.5, 10)).tolist())
    test, rule = LimitTest("case", values, 1.0, 1), Rule(metric="time", at_most="1ns")
    assert 1e-4 < test.p_value < ERROR_RATE
    alone = judged([(rule, Measured((test,)))])
    among = judged([(rule, Measured((test,))), (rule, Measured((replace(test, limit=2.0),) * 20))])
    assert (alone.code, among.code) == (1, 3)
    assert among.verdicts[0].adjusted[0] == pytest.approx(21 * test.p_value)
    assert holm([0.01, None, 0.02]) == (0.02, None, 0.02)


# --- error rates (the big counts are in tests/bench/gates.py) -------------------------------------------------------

BANDS = ((0, 1), (2,), (3,))
LAUNCHES = real_launches()
ALIKE = scaled(LAUNCHES, 0.02)


def test_healthy_gates_do_not_fail() -> None:
    """Resampled from real launches: at most what 1 in 1,000 makes plausible."""

    def draw(generator: np.random.Generator) -> Gate:
        before, after = (bands(resampled(ALIKE, 10, generator), BANDS) for _ in range(2))
        return against_baseline(before, after)

    def at_the_limit(generator: np.random.Generator) -> Gate:
        return against_limits(resampled(LAUNCHES, int(generator.choice((1, 3, 10))), generator), limits)

    limits = np.median(LAUNCHES.reshape(-1, LAUNCHES.shape[-1]), axis=0)
    assert failed(trials(50, 400), draw) <= 2
    assert failed(trials(25, 200), at_the_limit) <= 2


def test_a_slowdown_of_5_percent_is_found() -> None:
    def draw(generator: np.random.Generator) -> Gate:
        before, after = (bands(resampled(ALIKE, 10, generator), BANDS) for _ in range(2))
        return against_baseline(before, after + math.log(1.05))

    assert failed(300, draw) >= 0.95 * 300


def test_a_tenfold_slowdown_fails_with_one_launch_however_many_cases() -> None:
    def draw(generator: np.random.Generator) -> Gate:
        logs = np.tile(resampled(ALIKE, 1, generator), 25)
        slow = np.where(np.arange(100) == 7, math.log(10), 0.0)
        return against_limits(logs + slow, np.full(100, 0.05))

    assert failed(50, draw) == 50


# --- rules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rule_may_be_about_any_backend(backend: str) -> None:
    (rule,) = parse_rules(f'[[rule]]\nmetric = "time"\nat_most = "1s"\nbackend = "{backend}"', "r.toml")
    assert rule.backend == backend


@pytest.mark.parametrize("text", ["rule = 1", "[rule]\nmetric = 'time'", "[[rule]\n", "rule = [1]"])
def test_what_is_no_list_of_rules_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_rules(text, "r.toml")


@pytest.mark.parametrize(
    ("metric", "limit"),
    [
        *(("time", limit) for limit in ("0us", "0.0001ns")),
        *(("skew", limit) for limit in ("1e308", "0")),
        *(("ratio_to_model", limit) for limit in ("1e-320", "1e300")),
        *(("missing_cases", limit) for limit in ("1e308", "-1", "0.5")),
    ],
)
def test_a_limit_that_nothing_can_have_is_refused(metric: str, limit: str) -> None:
    with pytest.raises(UsageError):
        parse_rules(f'[[rule]]\nmetric = "{metric}"\nat_most = "{limit}"', "r.toml")


@pytest.mark.parametrize(
    ("sizes", "inside", "outside"),
    [
        ("64", (64,), (63, 65)),
        ("8..64*2", (8, 16, 64), (9,)),
        ("1KiB..1MiB", (1024, 1025, 1 << 20), (1023,)),
        ("..1KiB,1GiB..", (0, 1024, 1 << 30, 1 << 40), (1025,)),
    ],
)
def test_the_sizes_of_a_rule(sizes: str, inside: Sequence[int], outside: Sequence[int]) -> None:
    (rule,) = parse_rules(f'[[rule]]\nmetric = "time"\nat_most = "1s"\nsizes = "{sizes}"', "r.toml")
    assert all(rule.matches(case("all_reduce", size)) for size in inside)
    assert not any(rule.matches(case("all_reduce", size)) for size in outside)


_PRINTABLE = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=20)


@st.composite
def some_rules(draw: st.DrawFn) -> Rule:
    metric = draw(st.sampled_from([*METRICS]))
    keys: dict[str, str | None] = {
        "name": draw(st.none() | _PRINTABLE),
        "backend": draw(st.sampled_from([None, "mpi", "verbs"])),
        "op": draw(st.sampled_from([None, "all_reduce", "barrier"])),
        "sizes": draw(st.sampled_from([None, "64B", "1MiB..", "8..64*2"])),
        "detect": draw(st.sampled_from([None, "10%", "0.2"])),
        "severity": draw(st.sampled_from(["error", "warning"])),
    }
    row = METRICS[metric]
    given_keys = {key: value for key, value in keys.items() if value is not None}
    return msgspec.convert({"metric": metric, row.bound: EXAMPLES[row.unit], **given_keys}, Rule)


@given(st.lists(some_rules(), max_size=5), st.lists(_PRINTABLE, max_size=3))
def test_rules_that_are_written_read_back_equal(rules: list[Rule], comments: list[str]) -> None:
    assert parse_rules(written(rules, comments), "r.toml") == tuple(rules)


# --- suggested rules -----------------------------------------------------------------------------------------------


def test_suggested_rules_read_back_equal_and_healthy_runs_pass_them() -> None:
    runs = [run_of(seed) for seed in range(5)]
    suggestion = suggested(pool(runs))
    assert parse_rules(suggestion.text, "r.toml") == suggestion.rules
    assert {rule.metric for rule in suggestion.rules} == {"busbw", "time", "wrong_data", "missing_cases"}
    assert all(run.run.id in suggestion.text for run in runs)
    assert all(gate(suggestion.rules, run).code == 0 for run in (*runs, run_of(9)))
    assert gate(suggestion.rules, run_of(9, slower(1 + 2 * suggestion.smallest))).code == 1
    with pytest.raises(UsageError) as error:
        suggested(pool(runs[:2]))
    assert error.value.code == "too-few-runs"


@pytest.mark.parametrize("runs", [3, 5, 10])
def test_a_bound_is_exceeded_by_no_more_of_the_runs_than_said(runs: int) -> None:
    """Of the next run, over many sets of healthy runs: at a share that can be counted."""
    share, trials = 0.01, 40_000
    generator = np.random.default_rng(1)
    logs = generator.normal(0, 1, (trials, runs))
    limits = logs.mean(axis=1) + bound(runs, share) * logs.std(axis=1, ddof=1)
    exceeded = (generator.normal(0, 1, trials) > limits).mean()
    assert exceeded <= share + 3 * math.sqrt(share / trials)
    beyond = np.asarray([math.erfc(limit / math.sqrt(2)) / 2 for limit in limits[:4000].tolist()])
    assert (beyond > share).mean() <= 0.05 + 3 * math.sqrt(0.05 / 4000), "with 95 % confidence"
    assert bound(runs, share) > bound(runs + 1, share)


# --- commands ------------------------------------------------------------------------------------------------------


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


def busbw(results: Path, *arguments: object, **environment: str) -> Result:
    words = [*map(str, arguments), "--results-dir", str(results)]
    return CliRunner(env={"COLUMNS": "80", **environment}).invoke(main, words)


def stored(results: Path, *runs: StoredRun) -> list[str]:
    return [str(write_synthetic(results, run)) for run in runs]


class Outcome(msgspec.Struct, forbid_unknown_fields=True):
    """The line of ``--json``."""

    check: str
    healthy: bool | None
    node: str
    message: str
    state: str
    exit_code: int
    error_rate: float
    power: float
    tests: int
    runs: list[str]
    baseline: str | None
    since: dict[str, Any] | None
    gaps: list[dict[str, Any]]
    rules: list[dict[str, Any]]


def outcome(result: Result) -> Outcome:
    (line,) = result.stdout.splitlines()
    return msgspec.json.decode(line, type=Outcome)


@pytest.mark.parametrize(("world", "code", "healthy"), [(STEADY, 0, True), (slower(2), 1, False), (None, 3, None)])
def test_a_controller_reads_one_line(results: Path, world: World | None, code: int, healthy: bool | None) -> None:  # noqa: FBT001
    baseline, current = stored(results, run_of(1), run_of(2, world or STEADY, 10 if world else 2))
    result = busbw(results, "gate", current, "--baseline", baseline, "--json")
    line = outcome(result)
    assert (result.exit_code, line.exit_code, line.healthy, line.node) == (code, code, healthy, "node0")
    assert (line.check, line.error_rate, line.baseline) == ("busbw-gate", ERROR_RATE, baseline)
    assert [rule["metric"] for rule in line.rules] == ["ratio_to_baseline", "missing_cases"]
    tests = line.rules[0]["tests"]
    assert {test["state"] for test in tests} <= {"pass", "fail", "cannot tell"}
    assert tests[0]["launches"] == [10, 10 if world else 2]
    plain = busbw(results, "gate", current, "--baseline", baseline)
    assert plain.exit_code == code
    assert max(map(len, plain.stdout.splitlines())) <= 80


def test_junit_annotations_and_summary_say_the_same(results: Path, tmp_path: Path) -> None:
    rules, junit, summary = (tmp_path / name for name in ("r.toml", "gate.xml", "summary.md"))
    rules.write_text(
        written(
            [
                Rule(metric="time", at_most="1us", name="a <fast>: 100 %, one"),
                Rule(metric="time", at_most="1s"),
                Rule(metric="time", op="broadcast", at_most="1s"),
                Rule(metric="time", at_most="1us", severity="warning"),
            ]
        )
    )
    (run,) = stored(results, run_of(1))
    asked = ("gate", run, "--rules", rules, "--junit", junit, "--github")
    result = busbw(results, *asked, GITHUB_STEP_SUMMARY=str(summary))
    assert result.exit_code == 1
    (suite,) = ET.fromstring(junit.read_text(encoding="utf-8"))  # noqa: S314 - ours
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "4", "failures": "1", "errors": "1", "skipped": "1"}
    assert [[child.tag for child in row] for row in suite] == [["failure"], ["system-out"], ["error"], ["skipped"]]
    assert suite[0].get("name") == "a <fast>: 100 %, one"
    commands = [line for line in result.stdout.splitlines() if line.startswith("::")]
    assert [command.partition(" ")[0] for command in commands] == ["::error", "::error", "::warning"]
    assert commands[0].startswith("::error title=FAIL%3A a <fast>%3A 100 %25%2C one::a <fast>: 100 %25, one: ")
    assert summary.read_text().count("| FAIL |") == 2
    assert r"a \<fast\>" in summary.read_text()
    no_files = busbw(results, *asked, "--junit", str(tmp_path / ("x" * 300)), GITHUB_STEP_SUMMARY=str(tmp_path))
    assert (no_files.exit_code, no_files.stderr.count("warning: --")) == (1, 2)
    busbw(results, *asked, "--json", GITHUB_STEP_SUMMARY=str(summary))
    assert summary.read_text().count("### busbw gate") == 2, "appended"


def test_a_notifier_gets_the_line_without_a_shell_and_cannot_change_the_status(results: Path, tmp_path: Path) -> None:
    script, heard = tmp_path / "a script.py", tmp_path / "heard"
    script.write_text(
        f"import sys\nopen({str(heard)!r}, 'w').write(repr(sys.argv[1:]) + sys.stdin.read())\nsys.exit(7)\n"
    )
    baseline, current = stored(results, run_of(1), run_of(2))
    result = busbw(
        results, "gate", current, "--baseline", baseline, "--notify-command", f"{sys.executable} '{script}' ';' $HOME"
    )
    assert result.exit_code == 0
    assert "status 7" in result.stderr
    argv, _, line = heard.read_text().partition("]")
    assert argv == "[';', '$HOME'"
    assert json.loads(line)["healthy"] is True
    refused = busbw(results, "gate", "gone", "--baseline", baseline, "--notify-command", f"{sys.executable} '{script}'")
    assert (refused.exit_code, json.loads(heard.read_text()[len("[]") :])["healthy"]) == (2, None)
    for command in ("/no/such/program", "false"):
        assert busbw(results, "gate", current, "--baseline", baseline, "--notify-command", command).exit_code == 0


def test_a_baseline_counts_beside_rules_that_are_not_about_it(results: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nmetric = "busbw"\nop = "all_reduce"\nat_least = "1B/s"\n')
    baseline, current = stored(results, run_of(1), run_of(2, slower(1.5)))
    assert busbw(results, "gate", current, "--rules", str(rules)).exit_code == 0
    result = busbw(results, "gate", current, "--rules", str(rules), "--baseline", baseline, "--json")
    assert result.exit_code == 1
    assert [rule["metric"] for rule in json.loads(result.stdout)["rules"]] == [
        *("busbw", "ratio_to_baseline", "missing_cases")
    ]
    rules.write_text('[[rule]]\nmetric = "ratio_to_baseline"\nat_most = "2"\n')
    assert busbw(results, "gate", current, "--rules", str(rules), "--baseline", baseline).exit_code == 0
    assert (
        busbw(results, "gate", current, "--rules", str(rules), "--baseline", baseline, "--within", "1%").exit_code == 2
    )


def test_runs_that_scatter_too_much_give_no_rules(results: Path) -> None:
    noisy = [slower(factor) for factor in (0.2, 1.0, 5.0)]
    runs = stored(results, *(run_of(seed, world) for seed, world in enumerate(noisy)))
    assert busbw(results, "rules", "suggest", *runs).exit_code == 2


def test_refusals_of_a_gate_offer_only_what_it_has(results: Path) -> None:
    baseline, current = stored(results, run_of(1), run_of(2, machine=Machine(name="other")))
    result = busbw(results, "gate", baseline, current, "--baseline", baseline)
    assert result.exit_code == 2
    assert "--force" not in result.stderr


@pytest.mark.parametrize(
    ("log", "states"), [("nccl-tests-2.19", ("cannot tell", "fail")), ("osu-pairs", ("cannot tell",) * 2)]
)
def test_what_a_log_does_not_have_is_no_count_of_none(
    results: Path, tmp_path: Path, log: str, states: tuple[str, str]
) -> None:
    rules = tmp_path / "hosts.toml"
    rules.write_text(written([Rule(metric="counters", at_most="0"), Rule(metric="gpus", at_least="8")]))
    result = busbw(
        results, "gate", str(Path(__file__).parents[1] / f"data/logs/{log}.txt"), "--rules", str(rules), "--json"
    )
    assert tuple(rule["state"] for rule in json.loads(result.stdout)["rules"]) == states


def test_a_baseline_names_variables(results: Path) -> None:
    machine = Machine(facts={"variables": {"NCCL_ALGO": "Ring"}})
    (run,) = stored(results, run_of(1, machine=machine))
    assert busbw(results, "baseline", "set", "night", run).exit_code == 0
    assert "NCCL_ALGO Ring" in busbw(results, "baseline", "show", "night").stdout


def test_a_baseline_is_set_listed_used_and_removed(results: Path) -> None:
    first, second, third = stored(results, run_of(1), run_of(2), run_of(3, slower(2)))
    assert busbw(results, "baseline", "set", "nightly", first).exit_code == 0
    assert busbw(results, "baseline", "set", "nightly", second).exit_code == 2, "without --replace"
    assert busbw(results, "gate", second, "--baseline", "nightly").exit_code == 0
    assert busbw(results, "gate", third, "--baseline", "nightly").exit_code == 1
    assert busbw(results, "baseline", "set", "nightly", first, second, "--replace").exit_code == 0
    (row,) = json.loads(busbw(results, "baseline", "list", "--json").stdout)
    assert (row["name"], [run["launches"] for run in row["runs"]], row["facts"]["machine"]) == (
        "nightly",
        [10, 10],
        "synthetic",
    )
    assert not os.path.isabs(row["runs"][0]["folder"]), "the results may be moved"  # noqa: PTH117
    assert json.loads(busbw(results, "baseline", "show", "nightly", "--json").stdout) == row
    assert busbw(results, "baseline", "remove", "nightly").exit_code == 0
    assert baselines.names(results) == []
    assert Path(first).is_dir()


def test_a_baseline_of_too_few_launches_is_set_with_the_number_that_is_enough(results: Path) -> None:
    runs = [*stored(results, run_of(1, launches=1)), *stored(results, run_of(2, launches=10))]
    for run, cautions in zip(runs, (1, 0), strict=True):
        done = busbw(results, "baseline", "set", f"of-{cautions}", run)
        assert (done.exit_code, done.stderr.count("caution: ")) == (0, cautions)
        assert not cautions or "--launches 7 " in done.stderr


def test_a_baseline_that_is_damaged_or_whose_run_is_gone_says_so(results: Path) -> None:
    baseline, current = stored(results, run_of(1), run_of(2))
    busbw(results, "baseline", "set", "nightly", baseline)
    (Path(baseline) / "run.json").unlink()
    gone = busbw(results, "gate", current, "--baseline", "nightly")
    assert (gone.exit_code, "synthetic-1" in gone.stderr) == (2, True)
    (results / "baselines/nightly.json").write_text("{}")
    damaged = busbw(results, "gate", current, "--baseline", "nightly")
    assert (damaged.exit_code, "nightly.json" in damaged.stderr) == (2, True), "1 is a machine that fails"
    busbw(results, "baseline", "set", "weekly", current)
    listed = busbw(results, "baseline", "list", "--json")
    assert [row["name"] for row in json.loads(listed.stdout)] == ["weekly"]
    assert listed.stderr.count("nightly.json") == 1
    busbw(results, "baseline", "remove", "weekly")
    alone = busbw(results, "baseline", "list")
    assert (alone.exit_code, alone.stderr.count("\n")) == (0, 1), "as a list of damaged runs; not: there is none"
    (Path(current) / "run.json").write_text("{")
    assert busbw(results, "gate", current, "--baseline", current).exit_code == 2


def test_rules_are_suggested_checked_and_used(results: Path, tmp_path: Path) -> None:
    runs, rules = stored(results, *(run_of(seed) for seed in range(4))), tmp_path / "r.toml"
    assert busbw(results, "rules", "suggest", *runs[:3], "--output", rules).exit_code == 0
    checked = CliRunner().invoke(main, ["rules", "check", str(rules)])
    assert (checked.exit_code, checked.stdout.count("severity error")) == (0, 5)
    assert busbw(results, "gate", runs[3], "--rules", rules).exit_code == 0
    rules.write_text("[[rule]]\n")
    assert CliRunner().invoke(main, ["rules", "check", str(rules)]).exit_code == 2


def test_the_level_of_a_test_changes_what_it_needs() -> None:
    needs: Mapping[float, int | None] = {level: launches_needed(0.02, 0.05, level=level) for level in (0.05, TWO_SIDED)}
    assert (needs[0.05] or 0) < (needs[TWO_SIDED] or 0)
    assert smallest_difference(0.02, 10) < smallest_difference(0.02, 10, level=TWO_SIDED)


def test_a_gate_of_logs_asks_for_logs(results: Path, tmp_path: Path) -> None:
    """A log has no launches, of which 7 were asked for."""
    log = LOGS / "nccl-tests-2.19.txt"
    baseline = tmp_path / "before.log"
    baseline.write_text(log.read_text(encoding="utf-8"), encoding="utf-8")
    result = busbw(results, "gate", str(log), "--baseline", str(baseline))
    assert result.exit_code == 3
    assert re.search(r"\b\d+\s+log\s+tables", result.stdout)
    assert "launch" not in result.stdout
