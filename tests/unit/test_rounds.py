"""Runs with a duration: rounds until it is over, bounded in memory and disk, and resumed where they ended."""

import random
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from testing.blocks import measured
from testing.fakes import QUICK, FakeBackend, FakeClock, FakeWorld, Script
from testing.narrow import require_type
from testing.synthetic import case

from busbw.backends.base import World
from busbw.errors import UsageError
from busbw.launch.run_session import Listener
from busbw.launch.worker import Job, Outcome, run
from busbw.measure.rounds import Windows, rounds
from busbw.runs import resume, store
from busbw.runs.plan import Plan, Sweep
from busbw.runs.progress import outline, progress_of
from busbw.runs.records import QUANTILES, Case, Ended, Measurement, Window

SECOND = 10**9
A, B, REFERENCE = (case("all_reduce", 64), case("all_reduce", 128), case("ping_pong", 8))


def plan(duration: str | None = "100s", blocks: int = 4, **more: object) -> Plan:
    sweeps = (Sweep(ops=("all_reduce",), sizes="64,128"), Sweep(ops=("ping_pong",), sizes="8", baseline=True))
    timing = msgspec.structs.replace(QUICK, blocks=blocks)
    return msgspec.convert(
        {"sweep": msgspec.to_builtins(sweeps), "timing": msgspec.to_builtins(timing), "duration": duration, **more},
        Plan,
    )


def simulated(
    asked: Plan, seconds: float, elapsed_ns: int = 0, void: set[Case] | None = None
) -> list[tuple[Case, int, bool, int]]:
    """The blocks of a run of which each takes ``seconds``, with the time at which they begin."""
    clock, blocks = FakeClock(elapsed_ns), []
    lacking = [(repeated, block) for repeated in (A, B, REFERENCE) for block in range(asked.timing.blocks)]
    random.Random(1).shuffle(lacking)
    for (repeated, block), planned in rounds(asked, (A, B), lacking, void if void is not None else set(), clock.now_ns):
        blocks.append((repeated, block, planned, clock.ns))
        clock.advance(round(seconds * SECOND))
    return blocks


def test_rounds_fill_the_duration_and_spread_the_blocks_over_it() -> None:
    blocks = simulated(plan(), 0.1)
    assert 100 * SECOND <= blocks[-1][3] + 0.1 * SECOND <= 100.3 * SECOND
    assert [repeated for repeated, _, _, _ in blocks[:4]] == [REFERENCE] * 4
    for repeated in (A, B):
        of_case = [row for row in blocks if row[0] == repeated]
        assert len(of_case) == pytest.approx(498, abs=2)
        planned = [(block, begin) for _, block, planned, begin in of_case if planned]
        assert [block for block, _ in planned] == [0, 1, 2, 3]
        assert all(block * 25 * SECOND <= begin <= ((block + 1) * 25 + 1) * SECOND for block, begin in planned)
        assert all(block == 4 for _, block, planned, _ in of_case if not planned)


def test_the_seed_draws_the_moments_and_the_order() -> None:
    assert simulated(plan(), 0.1) == simulated(plan(), 0.1) != simulated(plan(seed=2), 0.1)


def test_a_duration_that_is_too_short_for_the_plan_still_measures_it() -> None:
    blocks = simulated(plan("1s"), 10)
    assert sorted((repeated.size_bytes, block) for repeated, block, planned, _ in blocks if planned) == sorted(
        (repeated.size_bytes, block) for repeated in (A, B, REFERENCE) for block in range(4)
    )


def test_a_failed_case_leaves_the_others_and_no_case_ends_the_run() -> None:
    assert {repeated for repeated, *_ in simulated(plan(), 1, void={A})[8:]} == {
        A,
        B,
    }  # the caller leaves out what A still lacks
    assert len(simulated(plan(), 1, void={A, B})) == 12


def test_windows_count_all_samples_and_are_bounded() -> None:
    block = measured(
        FakeWorld(2, Script(durations=lambda _rank, index, _case: 1000 + index)), case("all_reduce", 64, 2)
    )
    written: list[Window] = []
    windows = Windows(0, 10 * SECOND, written.append)
    for second in range(100):
        windows.add(block, second * SECOND, (second + 1) * SECOND)
    assert len(written) == 10
    (group,) = block.groups
    first = written[0]
    assert (first.blocks, first.count, first.begin_ns, first.end_ns) == (10, 10 * len(group.slowest_ns), 0, 10 * SECOND)
    times = np.asarray(group.slowest_ns) / block.calls
    assert (first.min_ns, first.max_ns) == (times.min(), times.max())
    assert first.mean_ns == pytest.approx(times.mean())
    assert first.quantiles_ns == pytest.approx(np.quantile(np.tile(times, 10), QUANTILES))
    windows.add(block, 100 * SECOND, 101 * SECOND)
    assert len(written) == 10
    windows.close(102 * SECOND)
    windows.close(103 * SECOND)
    assert [row.blocks for row in written[10:]] == [1]


@pytest.mark.parametrize("text", ["0s", "0.5s", "-1s", "soon", "8", "", "1us", "721h"])
def test_a_duration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises((UsageError, msgspec.ValidationError), match="duration"):
        plan(text)


def test_a_duration_is_one_launch() -> None:
    with pytest.raises((UsageError, msgspec.ValidationError), match="one launch"):
        plan("8h", launches=2)
    assert plan("8h").duration_ns == 8 * 3600 * SECOND
    assert plan("90min").duration_ns == 5400 * SECOND
    assert plan(None).duration_ns == 0


@dataclass(frozen=True)
class Ahead:
    """A clock that runs 2 % faster than another."""

    clock: FakeClock

    def now_ns(self) -> int:
        return self.clock.now_ns() * 51 // 50


def alone(blocks: int) -> Plan:
    """20 s of a copy on one rank, with another op as the reference."""
    sweeps = (Sweep(ops=("memory_copy",), sizes="64,128"), Sweep(ops=("memory_write",), sizes="64", baseline=True))
    return msgspec.structs.replace(plan("20s", blocks), sweep=sweeps)


def measured_for(folder: Path, asked: Plan, remaining: resume.Remaining | None = None) -> store.StoredRun:
    """A launch on a rank on which a call takes 10 ms."""
    world = FakeWorld(1, Script(durations=lambda _rank, _index, _case: SECOND // 100))
    job = Job(asked, folder, 0 if remaining is None else 1, "local", world.row(), remaining)
    (outcome,) = world.run(lambda backend: run(job, World(0, 1, 0, "local", 5.0), Listener(), backend.clock))
    require_type(Outcome, outcome)
    return store.read(folder)


def test_a_run_that_was_killed_is_resumed_until_its_duration_is_full(tmp_path: Path) -> None:
    asked = alone(2)
    whole = measured_for(tmp_path, asked)
    assert {type(row) for row in whole.rows[1:]} == {Measurement, Window}
    assert {window.case.op for window in whole.windows} == {"memory_copy"}
    assert progress_of(whole).lacking(0) == frozenset()
    assert outline(tmp_path).blocks
    assert resume.lack_of(whole, asked).launches == ()
    # Killed at two thirds: the rows until then, and half of one more.
    path = tmp_path / store.SAMPLES_FILE
    lines = path.read_bytes().splitlines(keepends=True)
    kept = 2 * len(lines) // 3
    path.write_bytes(b"".join(lines[:kept]) + lines[kept][:40])
    broken = store.read(tmp_path)
    (remaining,) = resume.lack_of(broken, asked).launches
    assert (remaining.resumes, remaining.elapsed_ns) == (0, max(window.end_ns for window in broken.windows))
    assert 5 * SECOND < remaining.elapsed_ns < 18 * SECOND
    resumed = measured_for(tmp_path, asked, remaining)
    assert 20 * SECOND <= resumed.windows[-1].end_ns <= 21 * SECOND
    assert resume.lack_of(resumed, asked).launches == ()
    blocks = [(row.case, row.block) for row in resumed.measurements]
    assert len(blocks) == len(set(blocks)) == 6


def test_the_last_window_ends_when_the_rank_that_is_ahead_says_so(tmp_path: Path) -> None:
    sweeps = (Sweep(ops=("all_reduce",), sizes="64"), Sweep(ops=("ping_pong",), sizes="8", baseline=True))
    asked = msgspec.structs.replace(plan("20s", blocks=2), sweep=sweeps)
    world = FakeWorld(2, Script(durations=lambda _rank, _index, _case: SECOND // 100))
    job = Job(asked, tmp_path, 0, "local", world.row(), None)

    def be_rank(backend: FakeBackend) -> Outcome:
        own = backend.clock
        clock = own if backend.rank == 0 else Ahead(own)
        return run(job, World(backend.rank, 2, backend.rank, "local", 5.0), Listener(), clock)

    for outcome in world.run(be_rank):
        require_type(Outcome, outcome)
    stored = store.read(tmp_path)
    assert {window.case.op for window in stored.windows} == {"all_reduce"}
    assert 20 * SECOND <= stored.windows[-1].end_ns <= 21 * SECOND
    assert resume.lack_of(stored, asked).launches == ()


def test_a_run_that_ended_is_over_though_its_last_window_ended_before(tmp_path: Path) -> None:
    asked = alone(2)
    whole = measured_for(tmp_path, asked)
    rows = tuple(
        msgspec.structs.replace(row, end_ns=min(row.end_ns, 19 * SECOND)) if isinstance(row, Window) else row
        for row in whole.rows
    )
    assert resume.lack_of(replace(whole, rows=rows), asked).launches
    ended = Ended(status="complete", reason=None, ended=store.utc_now())
    assert resume.lack_of(replace(whole, rows=(*rows, ended)), asked).launches == ()


def test_a_run_whose_blocks_are_all_measured_still_lacks_the_rest_of_its_duration(tmp_path: Path) -> None:
    asked = alone(1)
    measured_for(tmp_path, asked)
    path = tmp_path / store.SAMPLES_FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-4]))
    lack = resume.lack_of(store.read(tmp_path), asked)
    assert [launch.blocks for launch in lack.launches] == [frozenset()]
    assert "duration" in lack.in_words()
