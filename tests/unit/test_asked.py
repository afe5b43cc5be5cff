"""Runs whose controller chooses the rounds: over fake ranks, by scripted controllers."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
import pytest
from testing.fakes import QUICK, FakeBackend, FakeWorld, Script
from testing.synthetic import case

from busbw.backends.base import BackendRow, World, broadcast
from busbw.backends.faults import CorruptingBackend, wrapped
from busbw.errors import BackendError, LaunchError, RankFailure, StoreError, UsageError
from busbw.launch.run_session import Listener
from busbw.launch.worker import Job, Outcome, run
from busbw.measure.unsupported import anywhere, unsuited
from busbw.ops.base import Op
from busbw.runs import asked, resume, store
from busbw.runs.asked import Ask
from busbw.runs.cases import estimated_seconds, expand
from busbw.runs.facts import HostFacts
from busbw.runs.plan import Plan, Sweep, read_suite
from busbw.runs.progress import progress_of
from busbw.runs.records import Case, Failed, Measurement, Skipped
from busbw.slurm.job_plan import new_order

PAIRS, COPY, REDUCED = 0, 1, 2
"""Places of the cases of ``fleet``."""


def fleet(**more: object) -> Plan:
    sweeps = (
        Sweep(ops=("pair_uni", "memory_copy"), sizes="64", sync="none", groups="asked"),
        Sweep(ops=("all_reduce",), sizes="64", groups="asked"),
    )
    given = {"sweep": msgspec.to_builtins(sweeps), "timing": msgspec.to_builtins(QUICK), "controller": "fleet", **more}
    return msgspec.convert(given, Plan)


@dataclass
class Scripted:
    """Asks for what a test has written down, and remembers what it was told."""

    asks: ClassVar[Sequence[Ask]] = ()
    made: "ClassVar[list[Scripted]]"

    plan: Plan
    told: list[Measurement | Failed | Skipped | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.made.append(self)

    def begin(self, cases: Sequence[Case], hosts: Sequence[str], facts: Mapping[str, HostFacts]) -> None:
        assert [case.op for case in cases] == ["pair_uni", "memory_copy", "all_reduce"]
        assert {case.group for case in cases} == {"asked"}
        assert set(facts) == set(hosts)

    def next(self, measured: Measurement | Failed | Skipped | None) -> Ask | None:
        self.told.append(measured)
        return self.asks[len(self.told) - 1] if len(self.told) <= len(self.asks) else None


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(asked.CONTROLLERS, "fleet", (__name__, "Scripted"))
    monkeypatch.setattr(Scripted, "made", [], raising=False)


def launched(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    asks: Sequence[Ask],
    world: FakeWorld | None = None,
    row: BackendRow | None = None,
    *,
    end: Sequence[bool] = (),
) -> list[Outcome | BaseException]:
    """What a launch of ``asks`` gives on every rank. ``end``: whether rank 1 is asked to end, at each choice."""
    monkeypatch.setattr(Scripted, "asks", asks)
    world = world or FakeWorld(4)
    answers = iter(end)

    def work(backend: FakeBackend) -> Outcome:
        ending = (lambda: next(answers, False)) if backend.rank == 1 else (lambda: False)
        job = Job(fleet(), folder, 0, "local", row or world.row(), asked_to_end=ending)
        return run(job, World(backend.rank, world.size, backend.rank, "local", 5.0), Listener(), backend.clock)

    return list(world.run(work))


ROUNDS = [
    Ask(case=COPY, groups=((0,), (1,), (2,), (3,))),
    Ask(case=PAIRS, groups=((0, 1), (3, 2))),
    Ask(case=PAIRS, groups=((2, 0),)),
    Ask(case=REDUCED, groups=((0, 1, 3),)),
    Ask(case=REDUCED, groups=((0, 1, 2, 3),)),
    Ask(case=PAIRS, groups=((1, 0), (2, 3))),
]


def test_rounds_are_measured_as_asked_and_stored_as_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = launched(tmp_path, monkeypatch, ROUNDS)
    assert outcomes == [Outcome(6, 0)] * 4
    stored = store.read(tmp_path)
    assert [(stored.run.cases.index(row.case), row.block) for row in stored.measurements] == [
        (ask.case, number) for number, ask in enumerate(ROUNDS)
    ]
    assert [tuple(group.ranks for group in row.groups) for row in stored.measurements] == [ask.groups for ask in ROUNDS]
    assert {row.check.state for row in stored.measurements} == {"verified"}
    assert {(row.calls, row.loop) for row in stored.measurements} == {(1, "python")}
    assert all(set(group.slowest_ns) == {1_000} for row in stored.measurements for group in row.groups)
    (controller,) = Scripted.made  # on rank 0 alone
    first, *rows = controller.told
    assert first is None
    assert tuple(rows) == stored.measurements
    progress = progress_of(stored)
    assert (progress.measured, progress.wanted, progress.complete) == (6, 6, 1)


def test_only_the_first_round_of_a_case_finds_its_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a round costs beside its messages decides how many of them fit into minutes."""
    counted: list[int] = []
    pairs = [Ask(case=PAIRS, groups=((0, 1), (2, 3))), Ask(case=PAIRS, groups=((3, 0), (1, 2)))] * 2

    class Counting(Scripted):
        def next(self, measured: Measurement | Failed | Skipped | None) -> Ask | None:
            counted.append(world.backends[0].reductions)
            return super().next(measured)

    world = FakeWorld(4)
    monkeypatch.setattr("busbw.launch.asked.controller_of", Counting)
    assert launched(tmp_path, monkeypatch, pairs, world) == [Outcome(4, 0)] * 4
    first, *others = np.diff(counted)
    assert set(others) == {7}
    assert first > 7
    warm, *rest = store.read(tmp_path).measurements
    assert {row.warmup_calls for row in rest} == {QUICK.warmup_calls}
    assert {row.groups[0].slowest_ns for row in (warm, *rest)} == {warm.groups[0].slowest_ns}


def test_a_case_that_cannot_run_is_told_without_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(op: Op, _case: Case) -> str | None:
        return "not here" if op.name == "memory_copy" else None

    assert launched(tmp_path, monkeypatch, ROUNDS[:2], FakeWorld(4, Script(refuse=refuse))) == [Outcome(1, 0)] * 4
    stored = store.read(tmp_path)
    (skipped,) = stored.skipped
    assert Scripted.made[0].told == [None, skipped, *stored.measurements]
    assert (skipped.case.op, skipped.reason) == ("memory_copy", "not here")


def test_wrong_data_are_told_and_the_controller_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = FakeWorld(4)
    row = wrapped(world.row(), lambda inner: CorruptingBackend(inner, lambda _case, _number: inner.rank == 2))
    assert launched(tmp_path, monkeypatch, ROUNDS[1:3], world, row) == [Outcome(1, 1)] * 4
    stored = store.read(tmp_path)
    (failed,) = stored.failed
    (measured,) = stored.measurements
    assert (failed.cause, failed.block, measured.block) == ("wrong_data", 0, 1)
    assert Scripted.made[0].told == [None, failed, measured]


def test_a_rank_that_is_asked_to_end_ends_all_before_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = launched(tmp_path, monkeypatch, ROUNDS, end=(False, False, True))
    assert outcomes == [Outcome(2, 0, stopped=True)] * 4
    assert len(store.read(tmp_path).measurements) == 2


def test_a_rank_that_dies_in_a_round_is_named_and_earlier_rounds_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def durations(rank: int, _number: int, of: Case) -> int:
        if rank == 3 and of.op == "pair_uni":
            raise BackendError("gone")
        return 1_000

    began = time.monotonic()
    outcomes = launched(tmp_path, monkeypatch, ROUNDS, FakeWorld(4, Script(durations=durations), timeout_seconds=2.0))
    assert time.monotonic() - began < 10
    assert [type(outcome) for outcome in outcomes] == [RankFailure] * 4
    assert "pair_uni at 64 B in groups asked" in str(outcomes[0])
    assert [row.case.op for row in store.read(tmp_path).measurements] == ["memory_copy"]


@pytest.mark.parametrize(
    "ask",
    [
        Ask(case=3, groups=((0, 1),)),
        Ask(case=-1, groups=((0, 1),)),
        Ask(case=PAIRS, groups=((0, 4),)),
        Ask(case=PAIRS, groups=((0, 1, 2),)),
        Ask(case=COPY, groups=((0, 1),)),
        Ask(case=REDUCED, groups=((0, 1), (2,))),
    ],
)
def test_a_round_that_cannot_be_is_refused_and_nobody_hangs(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = launched(tmp_path, monkeypatch, [ROUNDS[1], ask], FakeWorld(4, timeout_seconds=2.0))
    assert [type(outcome) for outcome in outcomes] == [LaunchError, *[RankFailure] * 3]
    assert len(store.read(tmp_path).measurements) == 1


@pytest.mark.parametrize("groups", [(), ((),), ((0, 1), (1, 2)), ((0, 0),)])
def test_groups_are_disjoint_and_not_empty(groups: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match="group"):
        Ask(case=0, groups=groups)


@pytest.mark.parametrize("length", [0, 1, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("flagged", [None, 0, 2])
def test_a_text_of_rank_0_reaches_all_ranks(length: int, flagged: int | None) -> None:
    text = ("ä" + "x" * length)[:length]
    heard = FakeWorld(3).run(
        lambda backend: broadcast(backend, text if backend.rank == 0 else "other", flag=backend.rank == flagged)
    )
    assert heard == [(text, flagged is not None)] * 3


@pytest.mark.parametrize(
    "change",
    [
        {"controller": None},
        {"controller": "nobody"},
        {"launches": 2},
        {"duration": "8h"},
        {"sweep": [{"ops": ["all_reduce"]}]},
    ],
)
def test_a_plan_whose_controller_and_groups_do_not_fit_is_refused(change: dict[str, object]) -> None:
    with pytest.raises((UsageError, msgspec.ValidationError), match=r"controller|launches|duration"):
        fleet(**change)


def test_fewer_nodes_than_a_controller_compares_are_refused_before_a_job_is_submitted() -> None:
    changes = dict.fromkeys(("path", "launches", "duration"))
    assert new_order("fleet", "4", None, changes).shape.nodes == 4
    with pytest.raises(UsageError, match="4"):
        new_order("fleet", "2", None, changes)
    with pytest.raises(UsageError):
        new_order("fleet", "2", 8, changes)


@pytest.mark.parametrize("op", ["pair_matrix", "all_to_all_v", "all_gather", "train_ddp", "checkpoint_save"])
def test_ops_that_depend_on_their_groups_cannot_be_asked_for(op: str) -> None:
    assert "before a run" in str(unsuited(case(op, 64, 4, group="asked"), anywhere()))


def test_buffers_of_pairs_are_counted_on_every_rank() -> None:
    place = dataclasses.replace(anywhere(), hosts=("a",) * 4, memory={"a": 3 << 30})
    assert "too little memory" in str(unsuited(case("pair_uni", 1 << 30, 4, group="asked"), place))
    assert unsuited(case("pair_uni", 1 << 30, 4), place) is None


def test_a_run_with_a_controller_is_judged_and_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched(tmp_path, monkeypatch, ROUNDS[:1])
    stored = store.read(tmp_path)
    with pytest.raises(UsageError, match="controller"):
        resume.plan_of(stored.run, None)
    assert resume.command_resuming(stored.run) == f"busbw fleet {stored.run.id}"
    assert resume.lack_of(stored, fleet()).launches == ()


def test_the_suite_asks_for_all_its_groups_and_takes_few_samples() -> None:
    suite = read_suite("fleet")
    assert suite.controller == "fleet"
    assert {sweep.groups for sweep in suite.sweep} == {"asked"}
    assert {sweep.sync for sweep in suite.sweep} == {"none"}
    assert suite.timing.max_samples <= 5
    # 30 rounds of two sizes took 10 to 14 s on 16 hosts of the test bed; 10,000 nodes have 40 rounds.
    seconds = [
        estimated_seconds(suite, expand(suite, ranks, ranks).cases, lambda _case: 0.0) for ranks in (16, 1_000, 10_000)
    ]
    assert 7 < seconds[0] < 28
    assert seconds[1] == seconds[2] < 60


def test_a_controller_that_fails_leaves_the_error_of_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Scripted):
        def next(self, measured: Measurement | Failed | Skipped | None) -> Ask | None:
            if measured is not None:
                raise StoreError("it cannot decide")
            return ROUNDS[0]

    monkeypatch.setattr("busbw.launch.asked.controller_of", Failing)
    outcomes = launched(tmp_path, monkeypatch, (), FakeWorld(4, timeout_seconds=2.0))
    assert [type(outcome) for outcome in outcomes] == [StoreError, *[RankFailure] * 3]
    assert len(store.read(tmp_path).measurements) == 1
