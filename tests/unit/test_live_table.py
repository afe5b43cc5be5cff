"""The live table: columns that stay columns, and no bar where there is no terminal."""

import io
import os
import time
from dataclasses import replace
from typing import TextIO

import msgspec
import pytest
from testing.synthetic import Piece, World, case, synthetic_run

from busbw.cli import streams
from busbw.launch import live_table
from busbw.ops import OPS
from busbw.runs.cases import Cases
from busbw.runs.plan import Plan, Sweep, Timing
from busbw.runs.records import Case, Failed, GroupSamples, Measurement, Skipped
from busbw.runs.resume import Remaining
from busbw.units import format_time

BARE = World(pieces=(Piece(100e-6, 1e-10),), sample_noise=0.0)
PLAN = Plan(launches=3, timing=Timing(blocks=1), sweep=(Sweep(ops=("all_reduce",)),))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def measurement(world: World, setting: Case, block: int = 0) -> Measurement:
    stored = synthetic_run([setting], world, launches=1, blocks=block + 1)
    return stored.measurements[block]


def cells(line: str) -> list[str]:
    return line.split()


def table(err: TextIO, launch: int = 0, plan: Plan = PLAN) -> live_table.LiveTable:
    return live_table.LiveTable(plan, launch, time.monotonic(), err=err)


def columns(line: str) -> dict[str, str]:
    """The cells of a line by the names above them."""
    names, places = live_table.header(), {}
    start = 1
    for name in names.split()[1:]:
        end = names.index(name, start) + len(name) if name != "op" else 20
        places[name] = line[start:end].strip()
        start = end
    return places


def only_line(case_: Case, world: World = BARE) -> str:
    return live_table.line([measurement(world, case_)], 3)


def test_a_small_size_shows_a_rate_and_not_zero() -> None:
    row = columns(only_line(case("all_reduce", 8)))
    assert row == {
        "op": "all_reduce",
        "size": "8 B",
        "time": "100 µs",
        "rate": "120 kB/s",
        "check": "ok",
        "±": "±0%",
        "launch": "1/3",
    }


def test_an_interval_wider_than_the_time_is_printed_as_such() -> None:
    assert columns(only_line(case("all_reduce", 8), replace(BARE, sample_noise=3.0)))["±"] == "±>100%"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (case("all_reduce", 8), ""),
        (case("all_reduce", 8, mode="pipelined"), "  (pipelined)"),
        (case("all_reduce", 8, sync="window", cache="flushed"), "  (sync window, flushed)"),
        (case("all_reduce", 8, mode="pipelined", pre_enqueue=True), "  (pipelined, pre-enqueued)"),
        (case("all_reduce", 8, algorithm="ring"), "  (ring over send/recv)"),
    ],
)
def test_a_line_says_how_it_was_timed_where_it_is_not_as_usual(setting: Case, said: str) -> None:
    usual = only_line(case("all_reduce", 8))
    assert only_line(setting) == usual + said
    err = io.StringIO()
    shown = table(err)
    shown.row_written(Skipped(case=setting, reason="not here"))
    shown.row_written(Failed(case=setting, launch=0, block=0, error="no luck", cause="backend"))
    skipped, failed = err.getvalue().splitlines()
    assert skipped.endswith(f"{said}  skipped: not here")
    assert failed.endswith(f"{said}  FAILED: no luck")


@pytest.mark.parametrize("size", [4, 1 << 20, 1000 << 30, (1 << 40) - 4])
@pytest.mark.parametrize("op", sorted(name for name, op in OPS.items() if op.members != "pairs" and op.sized))
def test_columns_stand_under_their_names_and_fit_80(op: str, size: int) -> None:
    names, line = live_table.header(), only_line(case(op, size // 4096 * 4096 or 4096))
    for name in ("size", "time", "rate", "check", "±", "launch"):
        end = names.index(name) + len(name)
        assert line[end - 1] != " ", (name, line)
        assert line[end : end + 1] in {" ", ""}, (name, line)
    assert len(line) <= 80


def test_what_has_no_wire_shows_its_own_rate() -> None:
    assert columns(only_line(case("barrier", 0)))["rate"] == "–"
    assert columns(only_line(case("memory_copy", 1 << 20)))["rate"].endswith("GB/s")


def test_what_is_computed_in_part_shows_no_rate() -> None:
    assert columns(only_line(case("all_reduce", 1 << 20, mode="overlap")))["rate"] == "–"


def test_buffers_other_than_the_default_are_marked() -> None:
    assert cells(only_line(case("all_gather", 64, in_place=True)))[0] == "all_gather*"
    assert cells(only_line(case("all_gather", 64)))[0] == "all_gather"
    assert cells(only_line(case("all_reduce", 64)))[0] == "all_reduce"
    assert cells(only_line(case("all_reduce", 64, in_place=False)))[0] == "all_reduce*"


@pytest.mark.parametrize(("ranks", "slow"), [(4, (2, 1)), (2, (1, 0))])
def test_of_several_pairs_or_groups_the_slowest_is_shown(ranks: int, slow: tuple[int, int]) -> None:
    world = World(pieces=(Piece(100e-6, 1e-10),), sample_noise=0.0, slow_pairs=(slow,))
    line = live_table.line([measurement(world, case("pair_matrix", 1 << 20, ranks, pairs="together"))], 1)
    assert f"slowest of {ranks * (ranks - 1)} pairs: {slow[0]} → {slow[1]}" in line
    assert columns(line)["time"] == "2.05 ms"
    assert "slowest of 2 groups: " in only_line(case("all_reduce", 1 << 20, group="div:2"))


def test_blocks_of_unlike_numbers_of_calls_are_shown_by_the_call() -> None:
    blocks = [measurement(BARE, case("all_reduce", 64, mode="pipelined"), block) for block in range(2)]
    as_they_are = live_table.line(blocks, 1)
    (group,) = blocks[1].groups
    double = {
        name: tuple(2 * value for value in getattr(group, name))
        for name in ("slowest_ns", "fastest_ns", "arrival_skew_ns")
    }
    longer = msgspec.structs.replace(
        blocks[1], calls=2 * blocks[1].calls, groups=(msgspec.structs.replace(group, **double),)
    )
    assert live_table.line([blocks[0], longer], 1) == as_they_are
    assert live_table.line([longer, blocks[0]], 1) == as_they_are


def run_through(live: live_table.LiveTable, rows: list[Measurement], adjusted: tuple[str, ...] = ()) -> None:
    live.world_formed(
        Cases((rows[0].case,), adjusted, {}),
        len(rows),
        ("here",) * 4,
        ("4 ranks share 2 usable cores: oversubscribed",),
    )
    for row in rows:
        live.block_begins(row.case, row.launch, row.block)
        live.row_written(row)
    live.launch_ended()


def test_a_line_comes_with_the_first_block_of_a_run_and_with_the_last_of_every_case() -> None:
    out = io.StringIO()
    live = table(out, plan=Plan(timing=Timing(blocks=2), sweep=(*PLAN.sweep, Sweep(ops=("ping_pong",), baseline=True))))
    reference, *cases = case("ping_pong", 8, ranks=2), case("all_reduce", 1024), case("all_reduce", 2048)
    live.world_formed(Cases((reference, *cases), (), {}), 6, ("here",) * 4, ())
    assert "2 cases and 1 as reference" in out.getvalue()
    shown = []
    for setting, block in ((reference, 0), (cases[0], 0), (cases[1], 0), (cases[1], 1), (cases[0], 1), (reference, 1)):
        before = len(out.getvalue().splitlines())
        live.row_written(measurement(BARE, setting, block))
        shown.append(len(out.getvalue().splitlines()) - before)
    assert shown == [0, 1, 0, 1, 1, 0]
    live.launch_ended()


def test_a_resumed_launch_shows_a_case_when_what_was_missing_of_it_is_in() -> None:
    cases = (case("all_reduce", 8), case("all_reduce", 16), case("all_reduce", 32))
    plan = msgspec.structs.replace(PLAN, timing=Timing(blocks=2))
    remaining = Remaining(1, frozenset({(0, 1), (1, 0), (1, 1), (2, 1)}), frozenset(), 0, 2)
    out = io.StringIO()
    shown = live_table.LiveTable(plan, 3, time.monotonic(), remaining, err=out)
    shown.world_formed(Cases(cases, (), {}), 4, ("a", "a"), ())
    head = len(out.getvalue().splitlines())
    shown.row_written(measurement(BARE, cases[0], block=1))
    assert len(out.getvalue().splitlines()) == head + 1
    shown.row_written(measurement(BARE, cases[1]))
    assert len(out.getvalue().splitlines()) == head + 1, "the other block of this one is to come"
    shown.row_written(Failed(case=cases[1], launch=3, block=1, error="wrong data", cause="wrong_data"))
    err = Terminal()
    shown = live_table.LiveTable(plan, 3, time.monotonic(), remaining, err=err)
    shown.world_formed(Cases(cases, (), {}), 4, ("a", "a"), ())
    shown.row_written(measurement(BARE, cases[0], block=1))
    shown.block_begins(cases[2], 3, 1)
    assert "1/8" in err.getvalue(), "blocks of what is to come, in this launch and the next"
    assert "4/5" in err.getvalue()


def test_the_head_comes_once_a_run_and_says_what_was_rounded() -> None:
    out = io.StringIO()
    run_through(table(out), [measurement(BARE, case("all_reduce", 64))], ("1 B became 4 B",))
    text = out.getvalue()
    assert text.startswith("# custom: 1 case, 4 ranks on 1 host, 3 launches, backend gloo\n")
    assert live_table.header() in text
    later = io.StringIO()
    run_through(table(later, launch=1), [measurement(BARE, case("all_reduce", 64))])
    assert "#" not in later.getvalue()


def test_only_a_terminal_gets_a_progress_bar() -> None:
    rows = [measurement(BARE, case("all_reduce", 64))]
    for err, drawn in ((io.StringIO(), False), (Terminal(), True)):
        run_through(table(err), rows)
        assert ("\x1b" in err.getvalue()) == drawn
        assert "\x1b[?25" not in err.getvalue()  # a rank that is killed would leave the cursor hidden


def test_the_time_left_follows_from_the_blocks_and_not_from_the_start_of_the_ranks() -> None:
    err = Terminal()
    rows = [measurement(BARE, case("all_reduce", 64), block) for block in range(2)]
    plan = msgspec.structs.replace(PLAN, timing=Timing(blocks=2))
    run_through(live_table.LiveTable(plan, 0, time.monotonic() - 1000, err=err), rows)
    assert " s left" in err.getvalue()
    assert " min " not in err.getvalue()


def test_a_ping_pong_is_half_a_round_trip() -> None:
    world = World(pieces=(Piece(100e-6, 0.0),), sample_noise=0.0)
    made = measurement(world, case("ping_pong", 1000))
    assert made.calls == 2
    group: GroupSamples = made.groups[0]
    assert columns(only_line(case("ping_pong", 1000), world))["time"] == format_time(group.slowest_ns[0] / 2)


def test_a_reader_that_goes_away_does_not_end_the_run() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    raw = streams._Raw(writer, strict=False)
    rows = [measurement(BARE, case("all_reduce", 1024))]
    with io.TextIOWrapper(io.BufferedWriter(raw), line_buffering=True) as err:
        run_through(table(err), rows)
    os.close(writer)
    assert isinstance(raw.error, BrokenPipeError)
