"""Every operation, data type, reduction and way of splitting the world, on real ranks, with the data verified."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from testing.plans import sweep

from busbw.ops import LATENCIES, OPS, TRAINED
from busbw.ops.settings import PairSettings, TrafficSettings
from busbw.runs.records import StepParts
from busbw.runs.resume import plan_of

if TYPE_CHECKING:
    from tests.integration.conftest import Commands

pytestmark = pytest.mark.integration

_PAIR_OPS = {op.name for op in OPS.values() if op.members != "all"}


@pytest.mark.slow
def test_a_step_of_training_is_verified_taken_apart_and_counted(commands: Commands) -> None:
    options = ("--scale=0.05", "--micro-batches=2", "--compute=wait=1ms", "--max-seconds=0.1", "--no-baseline")
    commands.succeed("run", "--op", "train_ddp,train_1f1b,train_interleaved", "--ranks", "2", *options)
    run = commands.read()
    parts = {row.case.op: row.supplement for row in run.measurements if row.check.state == "verified"}
    sent = {
        op: {(call.op, call.ranks) for call in step.sent} for op, step in parts.items() if isinstance(step, StepParts)
    }
    assert sent == {
        "train_ddp": {("all_reduce", (0, 1))},
        "train_1f1b": {("send_recv", (0, 1))},
        "train_interleaved": {("send_recv", (0, 1))},
    }


def test_sizes_that_an_op_cannot_have_are_rounded_and_said(commands: Commands) -> None:
    plan = commands.sweep("all_gather,all_reduce", "8,1001")
    finished = commands.succeed("run", "--plan", plan, "--ranks", "3")
    run = commands.read()
    sizes = {op: sorted({case.size_bytes for case in run.run.cases if case.op == op}) for op in OPS}
    assert sizes["all_gather"] == [12, 996]
    assert sizes["all_reduce"] == [8, 1000]
    assert len(run.run.adjusted) == 3
    assert all(note in finished.err for note in run.run.adjusted)


def test_a_traffic_matrix_is_carried_out(commands: Commands) -> None:
    matrix = commands.folder / "traffic.csv"
    matrix.write_text("0,4,0\n1,1,2\n0,0,0\n", encoding="utf-8")
    plan = commands.sweep("all_to_all_v", "4000")
    commands.succeed("run", "--plan", plan, "--ranks", "3", "--traffic", matrix)
    run = commands.read()
    assert plan_of(run.run, None).sweep[0].communication.traffic == ((0.0, 4.0, 0.0), (1.0, 1.0, 2.0), (0.0, 0.0, 0.0))
    for row in run.measurements:
        assert isinstance(row.case.settings, TrafficSettings)
        assert row.case.settings.traffic is not None
        assert row.case.settings.imbalance is None
        assert row.check.state == "verified"
        # Rank 1 receives 5 of 5 parts and is the busiest; 7 parts cross a wire, of which one part is 800 B.
        assert row.groups[0].wire_bytes == pytest.approx(7 * 800)


@pytest.mark.slow
def test_the_extremes_of_imbalance_are_verified(commands: Commands) -> None:
    plan = commands.plan(*(sweep("all_to_all_v", "8,4000", imbalance=share) for share in (0.0, 1.0)))
    commands.succeed("run", "--plan", plan, "--ranks", "3")
    run = commands.read()
    assert {row.check.state for row in run.measurements} == {"verified"}
    assert {row.case.settings for row in run.measurements} == {TrafficSettings(imbalance=share) for share in (0.0, 1.0)}
    assert not run.not_reached


def test_groups_run_at_once_and_are_recorded_one_by_one(commands: Commands) -> None:
    splits: dict[str, list[tuple[int, ...]]] = {
        "div:2": [(0, 1), (2, 3)],
        "mod:2": [(0, 2), (1, 3)],
        "and:0x1": [(0, 2), (1, 3)],
        "or:0x1": [(0, 1), (2, 3)],
        "0,3;2": [(0, 3), (2,)],
        "1,3": [(1, 3)],
    }
    ops = ["all_reduce", "all_gather", "scatter", "send_recv", "barrier", "ping_pong"]
    plan = commands.plan(*(sweep(",".join(ops), "1200", groups=split) for split in splits), blocks=1)
    commands.succeed("run", "--plan", plan, "--ranks", "4")
    run = commands.read()
    assert {(case.op, case.group) for case in run.run.cases} == {(op, split) for op in ops for split in splits}
    assert not run.failed
    assert {(row.case.op, row.case.group) for row in run.skipped} == {("ping_pong", "0,3;2"), ("send_recv", "0,3;2")}
    for row in run.measurements:
        assert [group.ranks for group in row.groups] == splits[row.case.group], row.case
        assert row.check.state == ("not checked" if row.case.op == "barrier" else "verified")
        for group in row.groups:
            assert (group.bus_factor is None) == (len(group.ranks) == 1 or row.case.op == "barrier")


@pytest.mark.slow
def test_a_group_whose_order_the_library_cannot_keep_is_skipped_where_the_order_matters(commands: Commands) -> None:
    unable = {*TRAINED, *LATENCIES}
    able = [name for name, op in OPS.items() if not (op.needs_device or op.plain_sockets or name in unable)]
    plan = commands.plan(sweep(",".join(name for name in able if name != "checkpoint_save"), "1200"), blocks=1)
    commands.succeed("run", "--plan", plan, "--ranks", "4", "--groups", "3,0,1")
    run = commands.read()
    blocks = {"all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "gather", "scatter"}
    assert {row.case.op for row in run.skipped} == blocks
    for row in run.measurements:
        assert row.check.state == ("not checked" if row.case.op == "barrier" else "verified")
    ends = {row.case.op: row.groups[0].ranks for row in run.measurements if row.case.op in _PAIR_OPS - {"pair_matrix"}}
    assert ends == dict.fromkeys(("ping_pong", "pair_uni", "pair_bidir"), (3, 1))


@pytest.mark.slow
def test_a_root_other_than_the_first_is_verified(commands: Commands) -> None:
    plan = commands.sweep("broadcast,reduce,gather,scatter", "1200", in_place="both")
    commands.succeed("run", "--plan", plan, "--ranks", "3", "--root", "2")
    run = commands.read()
    assert {(row.case.op, row.case.in_place) for row in run.skipped} == {("broadcast", False), ("reduce", False)}
    assert {(row.case.root, row.check.state) for row in run.measurements} == {(2, "verified")}


@pytest.mark.slow
def test_the_pair_matrix_has_every_ordered_pair_once(commands: Commands) -> None:
    ranks = 5
    plan = commands.plan(*(sweep("pair_matrix", "1KiB", pairs=pairs) for pairs in ("together", "alone")))
    commands.succeed("run", "--plan", plan, "--ranks", str(ranks))
    rows = commands.read().measurements
    alone, together = PairSettings("alone"), PairSettings("together")
    assert Counter(row.case.settings for row in rows) == {alone: 2, together: 2}
    for row in rows:
        assert row.check.state == "verified"
        measured = [group.ranks for group in row.groups]
        assert sorted(measured) == [
            (source, target) for source in range(ranks) for target in range(ranks) if source != target
        ]
