"""Two runs brought together: what is compared with what, what is refused, and what is named because it cannot be."""

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from testing.narrow import require
from testing.synthetic import Machine, Piece, SyntheticEnd, World, case, planned, synthetic_run, write_synthetic

from busbw.cli.main import main
from busbw.errors import UnlikeRuns, UsageError
from busbw.runs.records import Case, LaunchStarted, Measurement, Row
from busbw.runs.store import StoredRun
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.bands import band_of
from busbw_analysis.data.load import pool
from busbw_analysis.diagnosis.compare import Comparison, compare
from busbw_analysis.diagnosis.compare_answer import answer_lines, gist, trust_in_comparison
from busbw_analysis.diagnosis.hypothesis_tests import (
    percent,
    smallest_difference,
)
from busbw_analysis.diagnosis.trust import MOST_CONFIDENCE, fewest_made
from busbw_analysis.report import compare as compare_tables
from busbw_analysis.report.show import show_rows
from busbw_analysis.report.to_terminal import render

SIZES = (64, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 4 << 20)
STEADY = World(launch_noise=0.01)


def run_of(
    seed: int,
    cases: Sequence[Case],
    world: World = STEADY,
    *,
    launches: int = 10,
    machine: Machine | None = None,
    end: SyntheticEnd | None = None,
    starts: Sequence[int] | None = None,
) -> StoredRun:
    stored = synthetic_run(cases, world, launches=launches, samples=15, seed=seed, machine=machine, end=end)
    if starts is None:
        return stored
    rows = tuple(
        msgspec.structs.replace(row, started=f"2026-01-02T03:{starts[row.launch]:02d}:00.000Z")
        if isinstance(row, LaunchStarted)
        else row
        for row in stored.rows
    )
    return replace(stored, rows=rows)


def compared(
    one: StoredRun, two: StoredRun, *, within: float = 0.05, paired: bool = False, force: bool = False
) -> Comparison:
    return compare(pool((one,)), pool((two,)), within=within, paired=paired, force=force)


def words_of(found: Comparison) -> Counter[str]:
    return Counter(band.verdict.word for band in found.bands)


def told(found: Comparison, *, cases: bool = False) -> str:
    """The tables as a terminal shows them."""
    return render(compare_tables.compare_blocks(found, cases=cases))


def slower_by(share: float, *ops: str) -> World:
    """A world in which ``ops`` take longer by ``share``."""
    usual = World().pieces[0]
    slow = Piece(usual.alpha_seconds * (1 + share), usual.beta_seconds_per_byte * (1 + share))
    return World(launch_noise=0.01, by_op=dict.fromkeys(ops, (slow,)))


def test_the_slow_op_is_slower_and_the_others_are_equal() -> None:
    cases = [*(case(op, size) for op in ("all_reduce", "all_gather") for size in SIZES), case("barrier", 0)]
    found = compared(run_of(1, cases), run_of(2, cases, slower_by(0.2, "all_gather")))
    words = {(band.case.op, band.band): band.verdict.word for band in found.bands}
    assert words == {
        **{("all_reduce", band): "equal" for band in ("small", "middle", "large")},
        **{("all_gather", band): "slower" for band in ("small", "middle", "large")},
        ("barrier", "no size"): "equal",
    }
    assert found.bands[3].sizes == (64, 1 << 10, 4 << 10)
    assert [one.case.size_bytes for one in found.bands[3].cases] == [64, 1 << 10, 4 << 10]
    assert all(one.estimate.ratio == pytest.approx(1.2, rel=0.02) for one in found.bands[3].cases)
    assert found.bands[3].estimate.ratio == pytest.approx(1.2, rel=0.02)
    assert found.left_out == ()
    swapped = compared(run_of(2, cases, slower_by(0.2, "all_gather")), run_of(1, cases))
    assert words_of(swapped) == {"equal": 4, "faster": 3}


@pytest.mark.parametrize(
    ("size", "band"),
    [
        *((0, "no size"), (8, "small"), (4 << 10, "small")),
        *(((4 << 10) + 4, "middle"), ((1 << 20) - 4, "middle"), (1 << 20, "large")),
    ],
)
def test_the_bounds_of_the_bands(size: int, band: str) -> None:
    assert band_of(size) == band


def test_an_unknown_scatter_is_not_taken_from_another_band() -> None:
    many, one = (case("all_reduce", 1 << 20), case("barrier", 0))
    sides = [
        pool((run_of(seed, [many], launches=9), run_of(seed + 1, [one], launches=1)), force=True) for seed in (1, 3)
    ]
    do = dict(answer_lines(compare(*sides, within=0.05)))["Do"]
    assert do.startswith("Measure 5 launches")
    assert "scatter" not in do


def test_modes_are_never_compared_with_each_other() -> None:
    isolated, pipelined = case("all_reduce", 64), case("all_reduce", 64, mode="pipelined")
    found = compared(run_of(1, [isolated, pipelined]), run_of(2, [pipelined]))
    assert [band.case.mode for band in found.bands] == ["pipelined"]
    assert [(one.case.mode, one.missing) for one in found.left_out] == [("isolated", "B")]


def test_what_is_computation_in_part_is_left_out_with_the_reason() -> None:
    cases = [case("all_reduce", 64), case("all_reduce", 64, mode="overlap")]
    found = compared(run_of(1, cases), run_of(2, cases, slower_by(0.2, "all_reduce")))
    assert [band.case.mode for band in found.bands] == ["isolated"]
    assert [(one.case.mode, one.missing) for one in found.left_out] == [("overlap", "both")]
    assert not any(left.unjudged or left.missing == "B" for left in found.left_out), "missing on neither side"
    with pytest.raises(UsageError):
        compared(run_of(1, cases[1:]), run_of(2, cases[1:]))


def test_a_band_is_made_of_the_sizes_that_both_sides_have() -> None:
    first = [case("all_reduce", size) for size in (64, 128, 256)]
    second = [case("all_reduce", size) for size in (128, 256, 512)]
    found = compared(run_of(1, first), run_of(2, second))
    assert found.bands[0].sizes == (128, 256)
    assert [(one.case.size_bytes, one.missing) for one in found.left_out] == [(64, "B"), (512, "A")]


def test_failed_cases_are_named_and_never_compared() -> None:
    cases = [case("all_reduce", size) for size in (64, 128)]
    found = compared(run_of(1, cases), run_of(2, cases, end=SyntheticEnd(failed={cases[0]: "wrong data: 3 elements"})))
    assert found.bands[0].sizes == (128,)
    assert [(one.case, one.missing) for one in found.left_out] == [(cases[0], "B")]
    assert [one.unjudged for one in found.left_out] == [True]
    assert not any(one.unjudged for one in compared(run_of(3, cases[1:]), run_of(2, cases)).left_out), "A never had it"


def test_settings_that_differ_in_every_case_are_named_with_both_values() -> None:
    one, two = run_of(1, [case("all_reduce", 64)]), run_of(2, [case("all_reduce", 64, mode="persistent")])
    with pytest.raises(UsageError, match=r"isolated.*persistent"):
        compared(one, two)


def test_an_op_is_compared_across_a_setting_with_one_value_on_each_side() -> None:
    both = [case("broadcast", size, root=0) for size in (64, 1 << 20)]
    usual = [case("all_reduce", size) for size in (64, 1 << 20)]
    rings = [case("all_reduce", size, algorithm="ring", cache="flushed") for size in (64, 1 << 20)]
    found = compared(run_of(1, [*both, *usual]), run_of(2, [*both, *rings]))
    assert {band.case.op for band in found.bands} == {"all_reduce", "broadcast"}
    assert not found.left_out
    assert [(notice.code, notice.severity) for notice in found.notices] == [("across", "caution")]
    assert "ring" in found.notices[0].text
    assert "flushed" in found.notices[0].text
    several = [*usual, case("all_reduce", 64, algorithm="pipelined")]
    with pytest.raises(UsageError):
        compared(run_of(1, several), run_of(2, rings))


def test_sizes_that_no_launch_has_together_are_bands_of_their_own() -> None:
    cases = [case("all_reduce", size) for size in (64, 128)]
    run = run_of(1, cases)
    # The first half of the launches has only the one size, the second half only the other.
    rows = tuple(
        row for row in run.rows if not isinstance(row, Measurement) or (row.launch < 5) == (row.case is cases[0])
    )
    found = compared(replace(run, rows=rows), run_of(2, cases))
    assert [(band.sizes, band.estimate.launches) for band in found.bands] == [((64,), (5, 10)), ((128,), (5, 10))]


def test_cases_are_told_apart_by_their_ranks_where_those_differ() -> None:
    first, second = (
        [case("all_reduce", 64), case("all_reduce", 128, 4)],
        [case("all_reduce", 64), case("all_reduce", 128, 2)],
    )
    lines = list(compare_tables.left_out_lines(compared(run_of(1, first), run_of(2, second))))
    assert [("on 4 gloo ranks" in line, "on 2 gloo ranks" in line) for line in lines] == [(True, False), (False, True)]


def test_splits_go_by_their_slowest_group_and_pair_matrices_by_all_pairs() -> None:
    for one in (case("all_gather", 1 << 20, group="div:2"), case("pair_matrix", 1 << 10)):
        slow = World(launch_noise=0.01, by_op={one.op: (Piece(40e-6, 2e-10),)})
        found = compared(run_of(1, [one]), run_of(2, [one], slow))
        assert found.bands[0].estimate.launches == (10, 10)
        assert found.bands[0].estimate.ratio == pytest.approx(2, rel=0.05)


def test_of_groups_that_run_at_once_the_slowest_counts() -> None:
    """The second one takes twice as long, and the first as long as ever."""
    one, two = (run_of(seed, [case("all_gather", 1 << 20, group="div:2")]) for seed in (1, 2))
    rows: list[Row] = []
    for row in two.rows:
        if isinstance(row, Measurement):
            first, second = row.groups
            times = tuple(2 * time for time in second.slowest_ns)
            rows.append(msgspec.structs.replace(row, groups=(first, msgspec.structs.replace(second, slowest_ns=times))))
        else:
            rows.append(row)
    found = compared(one, replace(two, rows=tuple(rows)))
    assert found.bands[0].estimate.ratio == pytest.approx(2, rel=0.05)


def test_unlike_runs_are_refused_with_all_differences_and_forced_with_notices() -> None:
    cases = [case("all_reduce", 64)]
    other = Machine(usable_cores=2, facts={"kernel": "9.9", "torch": "2.4.0"})
    one, two = run_of(1, cases), run_of(2, cases, machine=other)
    with pytest.raises(UnlikeRuns) as refused:
        compared(one, two)
    wanted = ("'kernel'", "'6.0.0-synthetic'", "'9.9'", "'torch'", "'2.13.0'", "'2.4.0'", "'cpu.usable_cores'")
    assert [text for text in wanted if text not in str(refused.value)] == []
    found = compared(one, two, force=True)
    assert {notice.code for notice in found.notices} == {"forced"}
    notices = " ".join(notice.text for notice in found.notices)
    assert [text for text in wanted if text not in notices] == []


def threads(number: str, **more: str) -> Machine:
    return Machine(facts={"variables": {"OMP_NUM_THREADS": number, **more}})


def test_a_difference_that_is_meant_is_compared_and_said_first() -> None:
    cases = [case("all_reduce", 64)]
    one, two = run_of(1, cases, machine=threads("1")), run_of(2, cases, machine=threads("2", NCCL_ALGO="Ring"))
    sides = pool((one,)), pool((two,))
    for allow in ([], ["OMP_NUM_THREADS"], ["NCCL_ALGO", "kernel"]):
        with pytest.raises(UnlikeRuns):
            compare(*sides, allow=allow)
    for allow in (["OMP_NUM_THREADS", "NCCL_ALGO"], ["variables"]):
        found = compare(*sides, allow=allow)
        assert [notice.code for notice in found.notices] == ["across"]
        assert (
            gist(found)[0]
            == "compared across NCCL_ALGO not set in A and Ring in B and OMP_NUM_THREADS 1 in A and 2 in B"
        )
    told = compare(*sides, allow=["variables", "kernel", "OMP_PROC_BIND"])
    assert [notice.code for notice in told.notices] == ["across", "not-different", "not-different"]
    with pytest.raises(UsageError, match="OMP_NUM_THREADS"):
        compare(*sides, allow=["OMP_NUM_THREADS", "NUM_THREADS"])
    with pytest.raises(UsageError, match="kernel"):
        compare(*sides, allow=["kernels"])


def test_differences_within_a_side_are_not_allowed_but_forced() -> None:
    cases = [case("all_reduce", 64)]
    runs = [run_of(seed, cases, machine=threads(str(seed))) for seed in (1, 2, 2)]
    first = pool([runs[0], replace(runs[1], run=msgspec.structs.replace(runs[1].run, id="other"))], force=True)
    with pytest.raises(UnlikeRuns):
        compare(first, pool(runs[2:]), allow=["OMP_NUM_THREADS"])


def test_a_backend_that_is_meant_brings_its_variables_and_facts() -> None:
    world = {"mpi.library": "MPICH 5", "UCX_TLS": "tcp"}
    gloo = run_of(1, [case("all_reduce", 64)], machine=Machine(facts={"variables": {"GLOO_SOCKET_IFNAME": "lo"}}))
    facts = {"variables": {"UCX_TLS": world["UCX_TLS"]}, "mpi": {"library": world["mpi.library"]}}
    mpi = run_of(2, [case("all_reduce", 64, backend="mpi")], machine=Machine(facts=facts))
    with pytest.raises(UnlikeRuns, match=r"--allow backend;"):
        compared(gloo, mpi)
    found = compare(pool((gloo,)), pool((mpi,)), allow=["backend"])
    assert [(notice.code, "gloo" in notice.text, "mpi" in notice.text) for notice in found.notices] == [
        ("across", True, True)
    ]


@pytest.mark.parametrize("launches", [1, 5, 12])
def test_the_tables_fit_80_columns_and_have_every_ratio(launches: int) -> None:
    noisy = World(launch_noise=0.4)
    cases = [
        *(case("all_reduce", size, mode=mode) for size in (8, *SIZES, 1 << 30) for mode in ("isolated", "pipelined")),
        case("reduce_scatter", 512 << 10, in_place=True),
        case("barrier", 0),
    ]
    found = compared(run_of(1, cases, noisy, launches=launches), run_of(2, cases, slower_by(99, "barrier")))
    for folded in (False, True):
        text = told(found, cases=not folded)
        assert max(map(len, text.splitlines())) <= 80
        rows = [line for line in text.splitlines() if line.startswith("  ")]
        ratios = []
        for band in found.bands:
            ratios.append(band.estimate.ratio)
            ratios += [] if folded or len(band.cases) == 1 else [one.estimate.ratio for one in band.cases]
        assert [f" {ratio:.3f} " in row for ratio, row in zip(ratios, rows, strict=True)] == [True] * len(rows)


def test_pairs_are_neighbours_in_time() -> None:
    cases = [case("all_reduce", 64)]
    first, second = (0, 3, 4, 7, 8, 11, 12, 15), (1, 2, 5, 6, 9, 10, 13, 14)
    one = run_of(1, cases, launches=8, starts=first)
    two = run_of(2, cases, slower_by(0.3, "all_reduce"), launches=8, starts=second)
    found = compared(one, two, paired=True)
    assert found.bands[0].verdict.word == "slower"
    assert found.bands[0].estimate.p_value == pytest.approx(2 / 2**8)
    assert found.notices == ()
    assert found.in_turns
    assert trust_in_comparison(found)[0] == MOST_CONFIDENCE


def test_launches_that_were_not_taken_in_turns_are_not_paired_and_not_passed_over() -> None:
    cases = [case("all_reduce", 64)]
    one = run_of(1, cases, launches=4, starts=(0, 1, 2, 3))
    two = run_of(2, cases, launches=4, starts=(4, 5, 6, 7))
    with pytest.raises(UsageError):
        compared(one, two, paired=True)
    found = compared(one, two)
    assert not found.in_turns
    assert trust_in_comparison(found)[0] == 3


# --- the command --------------------------------------------------------------------------------------------------


def busbw(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["compare", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def three(tmp_path: Path) -> list[str]:
    """Run folders: a run, one like it, and one that is slower."""
    cases = [case("all_reduce", size) for size in (64, 128)]
    worlds = (STEADY, STEADY, slower_by(0.3, "all_reduce"))
    return [str(write_synthetic(tmp_path, run_of(seed, cases, world, launches=8))) for seed, world in enumerate(worlds)]


def test_json_has_the_same_and_nothing_else_is_on_stdout(three: list[str]) -> None:
    document: dict[str, Any] = json.loads(busbw(three[0], three[2], "--json", "--within", "0.1").stdout)
    (band,) = document["bands"]
    assert (document["within"], document["correction"], document["verdicts"]) == (0.1, "Holm", {"slower": 1})
    assert (band["verdict"], band["launches"], band["sizes"]) == ("slower", [8, 8], [64, 128])
    assert band["low"] < band["ratio"] < band["high"]
    assert [one["size_bytes"] for one in band["cases"]] == [64, 128]
    assert "size_bytes" not in band


def test_several_runs_on_a_side_are_pooled(three: list[str]) -> None:
    document: dict[str, Any] = json.loads(busbw(f"{three[0]}, {three[1]}", three[2], "--json").stdout)
    assert document["a"] == {"runs": ["synthetic-0", "synthetic-1"], "labels": [], "launches": 16, "incomplete": []}
    assert document["bands"][0]["launches"] == [16, 8]


@pytest.mark.parametrize(
    "machine",
    [
        threads("2"),
        threads("2", NCCL_ALGO="Ring", UCX_TLS="tcp"),
        Machine(name="other", usable_cores=2, facts={"kernel": "9.9", "torch": "2.4.0"}),
    ],
)
def test_the_options_of_a_refusal_permit_the_comparison(machine: Machine, tmp_path: Path) -> None:
    cases = [case("all_reduce", 64), case("barrier", 0)]
    one, two = (
        str(write_synthetic(tmp_path, run_of(seed, cases, machine=of, launches=2)))
        for seed, of in ((1, threads("1")), (2, machine))
    )
    refused = busbw(one, two)
    assert refused.exit_code == 2
    hint = refused.stderr.partition(" add ")[2].partition(";")[0]
    options = shlex.split(hint)
    assert set(options[::2]) == {"--allow"}
    assert busbw(one, two, *options).exit_code == 0
    for left_out in range(0, len(options), 2):
        assert busbw(one, two, *options[:left_out], *options[left_out + 2 :]).exit_code == 2, "each is needed"
    found = json.loads(busbw(one, two, *options, "--json").stdout)
    assert [name for name in options[1::2] if name not in found["answer"]] == []


def test_runs_without_a_common_case_get_no_option_that_would_not_help(tmp_path: Path) -> None:
    machines = threads("1"), threads("2")
    one, two = (
        str(write_synthetic(tmp_path, run_of(ranks, [case("all_reduce", 64, ranks)], machine=of, launches=1)))
        for ranks, of in zip((2, 4), machines, strict=True)
    )
    refused = busbw(one, two)
    assert refused.exit_code == 2
    assert "--allow" not in refused.stderr


def test_labels_select_runs_and_stand_beside_them(tmp_path: Path) -> None:
    for seed, label in ((1, "before"), (2, "after")):
        run = run_of(seed, [case("all_reduce", 64)], launches=1)
        write_synthetic(tmp_path, replace(run, run=planned(run.run, label=label)))
    where = ("--results-dir", str(tmp_path))
    document = json.loads(busbw("before", "after", *where, "--json").stdout)
    assert [(document[side]["runs"], document[side]["labels"]) for side in "ab"] == [
        *((["synthetic-1"], ["before"]), (["synthetic-2"], ["after"]))
    ]
    assert [line for line in busbw("before", "after", *where).stdout.splitlines() if "'after'" in line]


def test_the_launches_that_are_said_to_be_needed_come_with_what_they_detect() -> None:
    noisy, one = World(launch_noise=0.05), [case("barrier", 0)]
    found = compared(run_of(1, one, noisy), run_of(3, one, noisy))
    document: Any = compare_tables.document(found)
    (band,) = document["bands"]
    assert band["verdict"] == "cannot tell"
    assert 10 < band["launches_needed"] <= 30
    assert (band["needed_to_detect"], document["power"]) == (0.05, 0.8)
    assert band["fewest_launches"] is None
    assert str(band["launches_needed"]) in dict(answer_lines(found))["Do"]


@pytest.mark.parametrize("paired", [False, True])
def test_launches_that_nobody_makes_are_not_asked_for(paired: bool) -> None:  # noqa: FBT001
    """What is said instead is the smallest difference that these launches show, and to take launches in turns."""
    noisy, one = World(launch_noise=0.2), [case("barrier", 0)]
    starts = [[4 * turn + step for turn in range(5) for step in steps] for steps in ((0, 3), (1, 2))]
    sides = (run_of(seed, one, noisy, starts=begun) for seed, begun in zip((1, 3), starts, strict=True))
    found = compared(*sides, paired=paired)
    document: Any = compare_tables.document(found)
    (band,) = document["bands"]
    assert band["verdict"] == "cannot tell"
    assert band["launches_needed"] is None or band["launches_needed"] > 30
    assert band["detectable"] == pytest.approx(smallest_difference(band["scatter"], 10, paired=paired))
    action = dict(answer_lines(found))["Do"]
    assert document["action"] == action
    assert percent(band["detectable"]) in action
    assert ("--paired" in action) != paired
    assert str(band["launches_needed"]) not in action
    assert percent(band["detectable"]) in told(found)


def test_trust_has_the_same_points_everywhere() -> None:
    one, noisy = [case("all_reduce", 64)], World(launch_noise=0.3)
    starts = [[2 * number + side for number in range(10)] for side in (0, 1)]
    quiet = compared(run_of(1, one, starts=starts[0]), run_of(2, one, starts=starts[1]))
    few = compared(run_of(1, one, noisy, launches=3), run_of(2, one, noisy, launches=3))
    for found, points in ((quiet, 4), (few, 2)):
        document: Any = compare_tables.document(found)
        assert document["trust_confidence"] == points


def test_times_of_a_band_are_of_the_statistic_that_is_compared() -> None:
    half = World(launch_noise=0.01, slow_share=0.5, slow_seconds=4e-3)
    cases = [case("all_reduce", size) for size in (64, 128)]
    found = compared(run_of(1, cases, half), run_of(2, cases))
    document: Any = compare_tables.document(found)
    (band,) = document["bands"]
    for side in ("a_ns", "b_ns"):
        sizes = [one[side] for one in band["cases"]]
        assert band[side] == pytest.approx(math.sqrt(sizes[0] * sizes[1]), rel=0.05)
    assert band["a_ns"] == pytest.approx(2e6, rel=0.3), "the mean; medians lie at one of the two modes"
    assert band["ratio"] == pytest.approx(band["b_ns"] / band["a_ns"], rel=0.05)


def test_an_incomplete_side_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    cases = [case("all_reduce", size) for size in (64, 128, 256, 512)]
    end = SyntheticEnd(
        failed={cases[0]: "wrong data: 3 elements"}, skipped={cases[1]: "not here"}, reached=3, ended=None
    )
    one, two = (
        str(write_synthetic(tmp_path, run))
        for run in (run_of(1, cases, launches=5), run_of(2, cases, launches=5, end=end))
    )
    document: dict[str, Any] = json.loads(busbw(one, two, "--json").stdout)
    assert document["a"]["incomplete"] == []
    (found,) = document["b"]["incomplete"]
    assert (found["run"], found["status"], found["launches"], found["planned"]) == ("synthetic-2", None, 0, 5)
    kinds = ("failed", "skipped", "not_reached")
    assert [[one["size_bytes"] for one in found[kind]] for kind in kinds] == [[64], [128], [512]]
    said = " ".join(busbw(one, two).stderr.split())
    assert all(
        name in said
        for name in ("side B is incomplete", "synthetic-2", "killed", "1 failed", "64 B", "1 skipped", "1 not reached")
    )
    interrupted = run_of(3, cases, launches=5, end=SyntheticEnd(ended="interrupted"))
    rows = tuple(row for row in interrupted.rows if not isinstance(row, LaunchStarted | Measurement) or row.launch < 4)
    comparison = compared(replace(interrupted, rows=rows), run_of(4, cases, launches=5))
    (short,) = comparison.incomplete
    assert (short.side, short.status, short.launches, short.planned) == ("A", "interrupted", 4, 5)
    (label, first), *_ = answer_lines(comparison)
    assert (label, first.index("synthetic-3") < first.index("B against A")) == ("Answer", True)
    assert dict(compare_tables.document(comparison))["answer"] in first
    whole = compared(run_of(1, cases, launches=5), run_of(4, cases, launches=5))
    assert gist(whole)[0].startswith("B against A")


def test_launches_of_a_resumed_run_are_counted_as_show_counts_them() -> None:
    """A launch that measures the blocks that another lacks is one launch more only of the cases that both measured."""
    cases = [case("all_reduce", size) for size in (64, 128, 256)]
    whole = synthetic_run(cases, STEADY, launches=3, blocks=2, samples=15, seed=1)
    rows: list[Row] = []
    for row in whole.rows:
        if isinstance(row, Measurement) and row.launch == 2 and (row.block == 1 or row.case == cases[2]):
            rows.append(msgspec.structs.replace(row, launch=3))
        else:
            rows.append(row)
    begun = next(launch for launch in whole.launches if launch.launch == 2)
    first = next(place for place, row in enumerate(rows) if isinstance(row, Measurement) and row.launch == 3)
    rows.insert(first, msgspec.structs.replace(begun, launch=3, resumes=2))
    resumed = replace(whole, rows=tuple(rows))
    judged = judge(pool((resumed,)))
    assert {require(row.group).launches for row in show_rows(judged)} == {3, 4}
    found = compared(resumed, run_of(2, cases, launches=3))
    assert found.launches == (fewest_made(judged.cases), 3) == (3, 3)


def test_the_statistic_is_named() -> None:
    half = World(launch_noise=0.01, slow_share=0.5, slow_seconds=4e-3)
    for sizes, world, wanted in (((64,), half, "mean"), ((64,), STEADY, "median"), ((64, 128), half, "geometric mean")):
        cases = [case("all_reduce", size) for size in sizes]
        found = compared(run_of(1, cases, world), run_of(2, cases, world))
        document: Any = compare_tables.document(found)
        assert [band["statistic"] for band in document["bands"]] == [wanted]


@pytest.mark.parametrize(
    ("launches", "ops", "paired", "fewest"),
    [
        *((3, 1, False, 4), (3, 3, False, 5), (4, 3, False, 5), (5, 3, False, None), (4, 1, False, None)),
        *((5, 1, True, 6), (6, 2, True, 7), (7, 2, True, None)),
    ],
)
def test_too_few_launches_for_so_many_bands_are_said(
    launches: int,
    ops: int,
    paired: bool,  # noqa: FBT001
    fewest: int | None,
) -> None:
    cases = [case(op, 1 << 10) for op in ("all_reduce", "all_gather", "broadcast")[:ops]]
    starts = (
        [4 * turn + step for turn in range(launches) for step in (0, 3)][:launches],
        [4 * turn + step for turn in range(launches) for step in (1, 2)][:launches],
    )
    one, two = (
        run_of(seed, cases, world, launches=launches, starts=begun)
        for seed, world, begun in zip((1, 2), (STEADY, slower_by(9, *(one.op for one in cases))), starts, strict=True)
    )
    found = compared(one, two, paired=paired)
    assert {band.verdict.fewest for band in found.bands} == {fewest}
    needed = [band.verdict.needed.launches for band in found.bands if band.verdict.needed]
    said = {*map(int, re.findall(r"\d+", dict(answer_lines(found)).get("Do", "")))}
    assert said >= {fewest, *needed} if fewest else not said, "what is enough comes before the fewest"
    assert words_of(found) == {"cannot tell" if fewest else "slower": ops}


# --- the page -----------------------------------------------------------------------------------------------------


def page_of(tmp_path: Path, *runs: StoredRun) -> tuple[str, dict[str, Any]]:
    """The HTML page before the sections, and the JSON of the same comparison."""
    folders = [str(write_synthetic(tmp_path, run)) for run in runs]
    result = busbw(*folders, "--html", str(tmp_path / "page.html"), "--json")
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    return html.partition('<section id="sizes">')[0], json.loads(result.stdout)


def test_the_page_has_the_verdict_beside_the_case_and_shared_words_once(tmp_path: Path) -> None:
    cases = [case(op, size) for op in ("all_reduce", "all_gather") for size in (64, 1 << 20)]
    first, document = page_of(tmp_path, run_of(1, cases), run_of(2, cases, slower_by(0.3, "all_gather")))
    (table,) = re.findall(r'<table class="verdicts bands">.*?</table>', first, flags=re.DOTALL)
    assert re.findall(r'<td[^>]* data-label="([^"]+)"', table)[0] == "verdict"
    rows = re.findall(r'<th scope="row"[^>]*>([^<]+)</th>\s*<td[^>]*>([^<]+)</td>', table)
    assert [verdict for _, verdict in rows] == [band["verdict"] for band in document["bands"]]
    assert not [name for name, _ in rows if "float32" in name]
    assert first.partition("<figure")[0].count("float32") == 1


@pytest.mark.parametrize("within", ["x", "-1%", "0", "0%", "100%", "1", "nan", ""])
def test_what_is_no_share_is_refused(three: list[str], within: str) -> None:
    result = busbw(three[0], three[1], "--within", within)
    assert result.exit_code == 2
    assert "5%" in result.stderr
