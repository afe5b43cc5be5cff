"""Whole launches over fake ranks: what a worker writes, in which order, and whom it blames."""

import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from testing.devices import DeviceScript
from testing.fakes import QUICK, FakeBackend, FakeWorld, Script
from testing.narrow import require_type

from busbw.backends.base import Backend, BackendRow, World
from busbw.backends.faults import CorruptingBackend, wrapped
from busbw.errors import BackendError, BusbwError, LaunchError, RankFailure
from busbw.launch import run_session, worker
from busbw.runs import store
from busbw.runs.placement import rank_placements
from busbw.runs.plan import Plan, Sweep
from busbw.runs.records import Case, Failed, LaunchStarted, Measurement, Skipped

TWO_BLOCKS = msgspec.structs.replace(QUICK, blocks=2)
PLAN = Plan(
    timing=TWO_BLOCKS,
    sweep=(
        Sweep(ops=("all_reduce", "all_gather", "barrier"), sizes="64,1KiB"),
        Sweep(ops=("all_to_all",), sizes="64", in_place="yes"),
    ),
)


class Heard(run_session.Listener):
    """Notes the order of the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[tuple[Case, int]] = []

    def block_begins(self, case: Case, launch: int, block: int) -> None:  # noqa: ARG002 - there is one
        self.blocks.append((case, block))


def launched(
    world: FakeWorld, folder: Path, plan: Plan = PLAN, *, launch: int = 0, row: BackendRow | None = None
) -> tuple[list[worker.Outcome | BusbwError], list[Heard]]:
    heard = [Heard() for _ in range(world.size)]
    job = worker.Job(plan, folder, launch, "local", row or world.row())

    def work(backend: FakeBackend) -> worker.Outcome:
        place = World(backend.rank, world.size, backend.rank, "local", 5.0)
        return worker.run(job, place, heard[backend.rank], backend.clock)

    return world.run(work), heard


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return store.create(tmp_path, "fake")


def test_a_gpu_that_nobody_numbers_is_recorded_by_its_place_on_pci(folder: Path) -> None:
    """As with AMD's GPUs, and NVIDIA's where NVML is not installed."""
    address = "0000:c1:00.0"
    launched(FakeWorld(1, Script(device=DeviceScript(address=address))), folder)
    (facts,) = store.read(folder).run.environments.values()
    (rank,) = facts.ranks
    assert (rank.gpu, rank.gpu_address) == (None, address)
    (seat,) = rank_placements(tuple(store.read(folder).run.hosts), store.read(folder).run.environments)
    assert seat.gpu_address == address


def test_a_launch_writes_every_case_in_one_order_on_all_ranks(folder: Path) -> None:
    outcomes, heard = launched(FakeWorld(3), folder)
    assert outcomes == [worker.Outcome(measured=10, failed=0)] * 3
    assert all(listener.blocks == heard[0].blocks for listener in heard)
    stored = store.read(folder)
    assert len(stored.run.cases) == 6
    rows = [row for row in stored.rows if isinstance(row, Measurement)]
    assert [(row.case, row.block) for row in rows] == heard[0].blocks
    assert len(set(heard[0].blocks)) == len(heard[0].blocks)
    assert [type(row) for row in stored.rows[:2]] == [LaunchStarted, Skipped]
    assert stored.run.adjusted


def test_the_order_follows_from_the_seed_and_the_launch(tmp_path: Path) -> None:
    orders = []
    for seed, launch in ((1, 0), (1, 0), (2, 0)):
        _, heard = launched(
            FakeWorld(2), store.create(tmp_path, "fake"), msgspec.structs.replace(PLAN, seed=seed), launch=launch
        )
        orders.append(heard[0].blocks)
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert set(orders[0]) == set(orders[2])


def test_a_launch_tells_what_the_clock_and_the_harness_cost(folder: Path) -> None:
    script = Script(read_cost_ns=60, offsets_ns=(0, 700, -50))
    plan = Plan(timing=QUICK, sweep=(Sweep(ops=("barrier",)),))
    launched(FakeWorld(3, script), folder, plan)
    (launch,) = store.read(folder).launches
    assert launch.timer_ns == (60,) * 3
    assert launch.empty_call_ns == (60,) * 3, "one read, and a call that does nothing"
    assert launch.empty_loop_ns == (1,) * 3, "60 ns over 100 calls"
    assert launch.shared_clock
    for clock, ahead in zip(launch.clocks, (0, 700, -50), strict=True):
        assert abs(clock.offset_ns + ahead) <= clock.error_ns, "compared also where the clock is said to be one"
    assert launch.resumes is None


def test_a_case_with_wrong_data_is_void_and_the_others_go_on(folder: Path) -> None:
    world = FakeWorld(2)

    def corrupt(backend: Backend) -> Backend:
        return CorruptingBackend(backend, lambda case, _index: case.op == "all_gather" and case.size_bytes == 64)

    outcomes, _ = launched(world, folder, row=wrapped(world.row(), corrupt))
    assert outcomes == [worker.Outcome(measured=8, failed=1)] * 2
    failed = [row for row in store.read(folder).rows if isinstance(row, Failed)]
    assert [(row.case.op, row.cause) for row in failed] == [("all_gather", "wrong_data")]


def test_a_launch_on_other_hosts_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched(FakeWorld(2), folder)
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    outcomes, _ = launched(FakeWorld(2), folder, launch=1)
    assert "elsewhere" in str(require_type(LaunchError, outcomes[0]))
    assert all(isinstance(outcome, BusbwError) for outcome in outcomes)


def breaking(error: Callable[[int], BusbwError | None]) -> Script:
    def durations(rank: int, index: int, _case: Case) -> int:
        broken = error(rank) if index == 4 else None
        if broken is not None:
            raise broken
        return 1_000

    return Script(durations=durations)


def test_what_breaks_everywhere_is_nobodys_fault(folder: Path) -> None:
    plan = Plan(timing=QUICK, sweep=(Sweep(ops=("all_reduce",), sizes="1KiB"),))
    outcomes, _ = launched(FakeWorld(2, breaking(lambda _rank: BackendError("the switch is off"))), folder, plan)
    for outcome in outcomes:
        assert isinstance(outcome, RankFailure)
        assert outcome.lost == ()
