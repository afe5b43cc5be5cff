"""Modes, starts and clocks with real ranks: what was asked for is what is stored, and bounds are bounds."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from testing.narrow import require
from testing.plans import sweep

from busbw.system.environment import usable_cores

if TYPE_CHECKING:
    from tests.integration.conftest import Commands

    from busbw.runs.store import StoredRun

pytestmark = pytest.mark.integration

_MODES = ("isolated", "pipelined", "overlap")

needs_a_core_for_each_of_two = pytest.mark.skipif(usable_cores() < 2, reason="a window needs a core for every rank")


@pytest.fixture(scope="module")
def modes(shared_commands: Commands) -> StoredRun:
    """Two ranks in every mode that a CPU has, behind a dissemination barrier."""
    plan = shared_commands.plan(sweep("all_reduce,all_to_all,barrier,send_recv,ping_pong", "64,64KiB"), blocks=1)
    options = ("--mode", ",".join(_MODES), "--sync", "dissemination", "--ranks", "2")
    results = shared_commands.results / "modes"
    finished = shared_commands.run("run", "--plan", plan, *options, "--results-dir", results)
    assert finished.code == 0, finished.told
    return shared_commands.read(results)


def test_every_mode_that_was_asked_for_is_measured_or_skipped_with_a_reason(modes: StoredRun) -> None:
    assert not modes.failed
    assert not modes.not_reached
    assert require(modes.end).status == "complete"
    asked = Counter((case.op, case.mode) for case in modes.run.cases)
    assert set(asked) == {(op, mode) for op, _ in asked for mode in _MODES}
    skipped = {(row.case.op, row.case.mode): row.reason for row in modes.skipped}
    assert set(skipped) == {("ping_pong", "overlap")}
    assert "nonblocking" in skipped["ping_pong", "overlap"]
    assert {row.case.mode for row in modes.measurements} == set(_MODES)
    assert {row.case.sync for row in modes.measurements} == {"dissemination"}
    for row in modes.measurements:
        assert row.check.state == ("not checked" if row.case.op == "barrier" else "verified")


def test_a_row_has_many_calls_and_an_isolated_sample_one(modes: StoredRun) -> None:
    for row in modes.measurements:
        trips = 2 if row.case.op == "ping_pong" else 1
        assert row.calls % trips == 0
        if row.case.mode == "pipelined":
            assert row.calls >= 2 * trips
        elif row.case.mode == "overlap":
            assert row.calls == 1


def test_an_overlap_is_told_in_its_parts(modes: StoredRun) -> None:
    for row in modes.measurements:
        for group in row.groups:
            assert (group.overlap is not None) == (row.case.mode == "overlap")
            if group.overlap is None:
                continue
            overlap, samples = group.overlap, len(group.slowest_ns)
            assert overlap.compute_alone_ns > 0
            assert {len(overlap.pure_ns), len(overlap.post_ns), len(overlap.compute_ns)} == {samples}
            for index, slowest in enumerate(group.slowest_ns):
                exposed = overlap.exposed_ns[index]
                assert max(overlap.post_ns[index], overlap.wait_ns[index]) <= exposed <= slowest
                assert exposed <= overlap.post_ns[index] + overlap.wait_ns[index]
                assert slowest <= exposed + overlap.compute_ns[index]


def test_what_each_rank_saw_gives_the_skews_again(modes: StoredRun) -> None:
    for row in modes.measurements:
        assert row.clock_error_ns == 0
        for group in row.groups:
            entries = list(zip(*(rank.entries_ns or () for rank in group.per_rank), strict=True))
            assert min(map(min, entries)) == 0
            assert tuple(max(sample) - min(sample) for sample in entries) == group.arrival_skew_ns


def test_a_launch_tells_what_the_harness_costs_and_each_host_what_it_did(modes: StoredRun) -> None:
    (launch,) = modes.launches
    assert len(launch.empty_call_ns) == len(launch.empty_loop_ns) == 2
    assert all(cost > 0 for cost in launch.empty_call_ns + launch.empty_loop_ns)
    for row in modes.measurements:
        (host,) = row.conditions
        assert host.host == launch.hosts[0]
        assert len(host.switches) == 2
        for share in (host.busy_share, host.foreign_share, host.steal_share):
            assert share is None or 0 <= share <= 1.05, "ticks may be a little more than the time they are of"


@pytest.mark.slow
@needs_a_core_for_each_of_two
def test_two_ranks_start_by_windows(commands: Commands) -> None:
    plan = commands.plan(sweep("all_reduce", "64KiB", modes=list(_MODES)), blocks=1)
    commands.succeed("run", "--plan", plan, "--sync", "window", "--ranks", "2")
    run = commands.read()
    assert not run.failed
    assert not run.skipped
    assert {row.case.mode for row in run.measurements} == set(_MODES)
    assert {row.case.sync for row in run.measurements} == {"window"}
    for row in run.measurements:
        for group in row.groups:
            assert set(group.missed) <= set(range(len(group.slowest_ns)))


def test_windows_are_refused_where_ranks_share_cores(commands: Commands) -> None:
    ranks = usable_cores() + 1
    plan = commands.sweep("barrier")
    finished = commands.run("run", "--plan", plan, "--sync", "window", "--ranks", str(ranks))
    assert finished.code == 1, finished.told
    (skipped,) = commands.read().skipped
    assert "core" in skipped.reason


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["rotating", "flushed"])
def test_caches_are_as_asked_for(commands: Commands, cache: str) -> None:
    plan = commands.sweep("all_reduce,all_gather", "1MiB")
    commands.succeed("run", "--plan", plan, "--cache", cache, "--ranks", "2")
    run = commands.read()
    assert {row.case.cache for row in run.measurements} == {cache}
    assert {row.buffer_sets > 1 for row in run.measurements} == {cache == "rotating"}
    assert {row.check.state for row in run.measurements} == {"verified"}


def test_the_clocks_of_one_host_are_found_to_be_one_within_the_bound(commands: Commands) -> None:
    """A hard bound, whatever else the machine is doing: the truth is 0."""
    commands.succeed("run", "--plan", commands.sweep("barrier"), "--ranks", "4")
    (launch,) = commands.read().launches
    assert [clock.rank for clock in launch.clocks] == [0, 1, 2, 3]
    for clock in launch.clocks:
        assert abs(clock.offset_ns) <= clock.error_ns
        assert (clock.error_ns > 0) == (clock.rank > 0), "a message takes some time"


@pytest.mark.slow
def test_clocks_that_are_taken_for_different_ones_tell_the_truth_within_the_bound(commands: Commands) -> None:
    """The program holds every skew to that of the clock which the ranks truly share."""
    plan = commands.sweep("all_reduce", "64", modes=list(_MODES))
    commands.succeed("run", "--plan", plan, "--ranks", "3", program=commands.program("clocks_apart.py"))
    run = commands.read()
    (launch,) = run.launches
    assert not launch.shared_clock
    assert run.measurements
    for row in run.measurements:
        assert require(row.clock_error_ns) >= 2 * max(clock.error_ns for clock in require(row.clocks))
        assert all(group.arrival_skew_ns is not None for group in row.groups)
