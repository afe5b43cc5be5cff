"""The result of a self-test: each part of the instrument against a limit, and whether this machine can be trusted.

The runs come from ``busbw selftest``: the same cases in alternating launches, a rank that was delayed on purpose, and
data that were corrupted on purpose. The truth is known, so results are right or wrong.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from busbw.errors import AnalysisError, StoreError
from busbw.runs.records import JSON, SCHEMA
from busbw.runs.selftest import FOLDER, TRUTH_FILE, Truth
from busbw.units import clock_time, format_size, format_time
from busbw_analysis.data.load import Dataset, load
from busbw_analysis.data.sentences import capitalised
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.diagnosis.hypothesis_tests import Estimate, LaunchKey, adjusted, estimate, percent, shown_from

State = Literal["ok", "caution", "fail"]

RESULT_FILE = "selftest.json"

_TIMER_NS = (200.0, 1_000.0)
_EMPTY_NS = (1_000.0, 5_000.0)
_SKEW_SHARE = (0.1, 1.0)
_RESOLUTION = (0.05, 0.5)
_FOREIGN_SHARE = (0.06, 0.5)
_STEAL_SHARE = (0.005, 0.1)
_DELAY_ERROR = (0.25, 0.5)
_SAME_P = (0.05, 0.01)


@dataclass(frozen=True, slots=True)
class Check:
    """One part of the instrument: the result, its limit, and the consequence if the limit is exceeded."""

    name: str
    found: str
    limit: str
    state: State
    meaning: str


@dataclass(frozen=True, slots=True)
class SelfTest:
    """A judged self-test.

    resolution: name of the case → smallest relative difference between ``launches`` and as many launches that would be
        detected (half the width of the ratio's interval).
    """

    id: str
    started: str
    machine: str
    backend: str
    ranks: int
    usable_cores: int
    launches: int
    checks: tuple[Check, ...]
    resolution: dict[str, float]

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.state == "fail")

    @property
    def coarsest(self) -> float | None:
        """The worst resolution of any case; None if there is none."""
        return max(self.resolution.values(), default=None)

    def sentences(self) -> tuple[str, ...]:
        """Whether numbers of this machine can be trusted, as sentences without full stops."""
        if self.failures:
            meanings = "; ".join(check.meaning for check in self.failures)
            return (f"This machine cannot give trustworthy numbers: {meanings}",)
        widths = self.resolution.values()
        if not widths:
            return ("The instrument works here; its resolution was not measured",)
        cautions = sum(check.state == "caution" for check in self.checks)
        aside = [f"{cautions} of {len(self.checks)} checks call for caution"] if cautions else []
        can = f"{self.launches} launches per side {shown_from(*widths)} (by case)"
        return ("The instrument works here", can, *aside)

    def answer(self) -> str:
        """``sentences`` as one text."""
        return " ".join(f"{sentence}." for sentence in self.sentences())


def judge_selftest(folder: Path) -> SelfTest:
    """Judge the runs in ``folder``. Raises StoreError or AnalysisError if one of them cannot be read."""
    try:
        truth = msgspec.json.decode((folder / TRUTH_FILE).read_bytes(), type=Truth)
        names = truth.runs.same, truth.runs.straggler, truth.runs.wrong
        same, straggler, wrong = (load([folder / name]) for name in names)
    except (OSError, ValueError) as error:
        message = f"{folder} does not contain a complete self-test: {type(error).__name__}: {error}"
        raise AnalysisError(message) from error
    summaries = same.summaries
    estimates = _same_with_itself(summaries)
    return SelfTest(
        id=folder.name,
        started=same.runs[0].run.started,
        machine=same.runs[0].run.machine,
        backend=truth.backend,
        ranks=truth.ranks,
        usable_cores=truth.usable_cores,
        launches=len(same.runs[0].launches) // 2,
        checks=(
            *_clock_reads(same),
            _start_skew(summaries),
            _clocks(same),
            _quiet(same),
            *_repeated(estimates),
            _straggler(straggler, truth),
            _wrong(wrong),
        ),
        resolution={name: width for name, row in estimates.items() if (width := _half_width(row)) is not None},
    )


def write_selftest(folder: Path, judged: SelfTest) -> Path:
    """Store the result beside the runs, for the reports of this machine. Raises StoreError."""
    path = folder / RESULT_FILE
    try:
        path.write_text(json.dumps(as_json(judged), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error
    return path


def as_json(judged: SelfTest) -> dict[str, JSON]:
    """A self-test as it is stored and printed."""
    return {"schema": SCHEMA, **asdict(judged), "answer": judged.answer(), "trustworthy": not judged.failures}


def as_text(judged: SelfTest) -> str:
    """The table of checks with their limits, then the answer."""
    checks = [(check.state, check.name, check.found, check.limit) for check in judged.checks]
    rows = [("", "check", "found", "limit"), *checks]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    cautions = [f"caution: {check.name}: {check.meaning}" for check in judged.checks if check.state == "caution"]
    return "\n".join([*lines, "", *cautions, judged.answer()])


def selftest_for(machine_folder: Path, backend: str, ranks: int, began: str) -> SelfTest | None:
    """The self-test that applies to a run, by machine folder, backend, number of ranks and start of the run (UTC, as
    stored).

    It is the newest one before the run, or else the first one after it, so later self-tests do not change a judgement.
    None if none can be read.
    """
    tests: list[SelfTest] = []
    for path in machine_folder.glob(f"{FOLDER}/*/{RESULT_FILE}"):
        # Errors of msgspec are ValueErrors, and so are those of invalid UTF-8.
        with suppress(OSError, ValueError):
            tests.append(msgspec.json.decode(path.read_bytes(), type=SelfTest))
    fitting = [test for test in tests if (test.backend, test.ranks) == (backend, ranks)]
    before = [test for test in fitting if test.started <= began]
    first = min(fitting, key=lambda test: (test.started, test.id), default=None)
    return max(before, key=lambda test: (test.started, test.id), default=first)


def taken_in_words(tested: SelfTest, began: Sequence[str]) -> str:
    """Which self-test applies to runs that ``began`` then: when it was taken, and with how many launches."""
    late = any(start < tested.started for start in began)
    after = ", taken after the run" if late else ""
    return f"self-test of {clock_time(tested.started)} UTC, {tested.launches} launches per side{after}"


def failure_in_words(tested: SelfTest | None, began: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """That the self-test of runs that ``began`` then failed, as sentences without full stops; nothing if it did not."""
    if tested is not None and tested.failures:
        first, *others = tested.sentences()
        yield f"{capitalised(taken_in_words(tested, began))}: {first}", *others


# --- the checks ------------------------------------------------------------------------------------------------


def _state(value: float, limits: tuple[float, float]) -> State:
    caution, fail = limits
    return "ok" if value <= caution else "caution" if value <= fail else "fail"


def _clock_reads(same: Dataset) -> Iterator[Check]:
    launches = same.runs[0].launches
    timer = max(max(launch.timer_ns) for launch in launches)
    empty = max(max(launch.empty_call_ns) for launch in launches)
    row = max(max(launch.empty_loop_ns) for launch in launches)
    for name, cost, text, limits, action in (
        ("timer", timer, f"{timer} ns per read or step", _TIMER_NS, "reading the clock"),
        ("empty call", empty, f"{empty} ns alone, {row} ns in a row", _EMPTY_NS, "timing an empty call"),
    ):
        limit = f"≤ {format_time(limits[0])} (fails above {format_time(limits[1])})"
        yield Check(name, text, limit, _state(cost, limits), f"{action} takes too long to time short calls")


def _start_skew(summaries: Sequence[CaseSummary]) -> Check:
    """How far apart the ranks leave the barrier, relative to the shortest operation that is timed after it."""
    groups = [group for summary in summaries for group in summary.groups if group.skew_share is not None]
    limit = f"≤ {_SKEW_SHARE[0]:.0%} of the shortest call (fails above {_SKEW_SHARE[1]:.0%})"
    meaning = "the skew of ranks leaving the barrier is a large part of the calls after it"
    if not groups:
        return Check("barrier exit skew", "unknown", limit, "fail", "the clocks do not show when ranks begin")
    shortest = min(groups, key=lambda group: group.time_ns)
    share = shortest.skew_share or 0.0
    skew = format_time(share * shortest.time_ns)
    text = f"{skew} median, {share:.0%} of a call"
    return Check("barrier exit skew", text, limit, _state(share, _SKEW_SHARE), meaning)


def _clocks(same: Dataset) -> Check:
    """The error of clock synchronisation between ranks that share a clock: the true offset is 0."""
    clocks = [clock for launch in same.runs[0].launches if launch.shared_clock for clock in launch.clocks if clock.rank]
    if not clocks:
        return Check("clock error", "unknown: ranks have different clocks", "–", "caution", "not tested")
    worst = max(clocks, key=lambda clock: abs(clock.offset_ns))
    bound = float(np.median([clock.error_ns for clock in clocks]))
    broken = sum(abs(clock.offset_ns) > clock.error_ns for clock in clocks)
    return Check(
        "clock error",
        f"{format_time(abs(worst.offset_ns))} at worst, stated bound {format_time(bound)} (median)",
        f"within its bound in all {len(clocks)}",
        "fail" if broken else "ok",
        f"clocks were off by more than the stated bound in {broken} of {len(clocks)} comparisons",
    )


def _quiet(same: Dataset) -> Check:
    """CPU time that other programs and the hypervisor took during the test."""
    conditions = [condition for row in same.runs[0].measurements for condition in row.conditions]
    foreign = [condition.foreign_share for condition in conditions if condition.foreign_share is not None]
    stolen = [condition.steal_share for condition in conditions if condition.steal_share is not None]
    limit = (
        f"≤ {_FOREIGN_SHARE[0]:.0%} foreign (fails above {_FOREIGN_SHARE[1]:.0%}), "
        f"≤ {_STEAL_SHARE[0]:.1%} stolen (fails above {_STEAL_SHARE[1]:.0%})"
    )
    if not foreign:
        return Check("quiet machine", "unknown", limit, "caution", "the kernel does not report what else was running")
    used, taken = float(np.median(foreign)), float(np.median(stolen)) if stolen else 0.0
    text = f"{used:.0%} foreign, {taken:.1%} stolen (median of {len(foreign)} blocks)"
    reasons = {
        f"others use {used:.0%} of the machine during the test": _state(used, _FOREIGN_SHARE),
        f"the hypervisor takes {taken:.0%} of it": _state(taken, _STEAL_SHARE),
    }
    worst = _worse(*reasons.values())
    # Only the reasons for the state of the check.
    meaning = " and ".join(reason for reason, state in reasons.items() if state == worst)
    return Check("quiet machine", text, limit, worst, meaning)


def _same_with_itself(summaries: Sequence[CaseSummary]) -> dict[str, Estimate]:
    """Every case compared with itself (A/A): its launches are split as A B B A, A B B A and so on."""
    estimates: dict[str, Estimate] = {}
    for case, group in ((summary.case, summary.only) for summary in summaries):
        if group is not None:
            # As in every comparison: medians of bimodal samples jump between the modes, means do not.
            values = group.launch_medians_ns if group.modes is None else group.launch_means_ns
            sides: tuple[dict[LaunchKey, float], dict[LaunchKey, float]] = ({}, {})
            for number, value in enumerate(values):
                sides[number % 4 in {1, 2}]["same", number] = value
            name = f"{case.op} {format_size(case.size_bytes)}" if case.size_bytes else case.op
            estimates[name] = estimate(*sides)
    return estimates


def _half_width(estimated: Estimate) -> float | None:
    """Half the width of a ratio's interval, as a share: √(high / low) − 1."""
    low, high = estimated.low, estimated.high
    return None if low is None or high is None else float(np.sqrt(high / low) - 1)


def _repeated(estimates: dict[str, Estimate]) -> Iterator[Check]:
    limit = f"no difference (p ≥ {_SAME_P[0]:g} after Holm), ± {_RESOLUTION[0]:.0%} (fails above {_RESOLUTION[1]:.0%})"
    for (name, estimated), p_value in zip(estimates.items(), adjusted([*estimates.values()]), strict=True):
        width = _half_width(estimated)
        if width is None or p_value is None:
            yield Check(f"A/A {name}", "too few launches", limit, "fail", f"{name} has too few launches")
            continue
        alarm: State = "ok" if p_value >= _SAME_P[0] else "caution" if p_value >= _SAME_P[1] else "fail"
        state = _worse(alarm, _state(width, _RESOLUTION))
        ends = f"{estimated.low:.3f} to {estimated.high:.3f}"
        text = f"B/A {estimated.ratio:.3f} ({ends}), p = {p_value:.2g} after Holm: ± {percent(width)}"
        meaning = (
            f"{name} differs from itself (p = {p_value:.1g} after Holm)"
            if alarm == "fail"
            else f"launches of {name} scatter too much to detect a difference of {percent(width)}"
        )
        yield Check(f"A/A {name}", text, limit, state, meaning)


def _worse(state: State, other: State) -> State:
    return max((state, other), key=("ok", "caution", "fail").index)


def _straggler(straggler: Dataset, truth: Truth) -> Check:
    """Whether the delayed rank is flagged, no other rank is, and the delay is measured correctly."""
    rank, true_ns, share = truth.straggler_rank, truth.straggler_delay_ns, truth.straggler_share
    limit = f"rank {rank} alone, {format_time(true_ns)} ± {_DELAY_ERROR[0]:.0%} (fails above {_DELAY_ERROR[1]:.0%})"
    flagged = {late.rank: late for group in straggler.lateness for late in group.flagged}
    if set(flagged) != {rank}:
        text = f"flagged: {', '.join(f'rank {other}' for other in flagged) or 'none'}"
        return Check("straggler", text, limit, "fail", f"rank {rank} was delayed on purpose but is not flagged alone")
    late = flagged[rank]
    late_ns = late.median_ns or 0.0
    error = abs(late_ns / true_ns - 1)
    text = f"rank {rank}, median {format_time(late_ns)} in {late.share:.0%} of the samples ({share:.0%} true)"
    return Check("straggler", text, limit, _state(error, _DELAY_ERROR), "the measured delay of the rank is wrong")


def _wrong(wrong: Dataset) -> Check:
    caught = [row for row in wrong.summaries if row.cause == "wrong_data"]
    text = f"{len(caught)} of {len(wrong.summaries)} cases failed"
    state: State = "ok" if len(caught) == len(wrong.summaries) else "fail"
    return Check("wrong data", text, "every corrupted case fails", state, "corrupted data were accepted as a result")
