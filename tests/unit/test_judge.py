import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from testing.narrow import require, require_type
from testing.synthetic import Machine, Piece, SyntheticEnd, World, case, synthetic_run, write_synthetic

from busbw.runs.records import Case, Failed, FailureCause
from busbw.runs.store import StoredRun
from busbw_analysis.assembly.judge import judge
from busbw_analysis.cli import main
from busbw_analysis.data.load import load, pool
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.answer import answer_of
from busbw_analysis.diagnosis.judge import Judgement, Verdict
from busbw_analysis.diagnosis.verdicts import in_words
from busbw_analysis.report.document import Table
from busbw_analysis.report.show import show_blocks, show_rows

MIB = 1 << 20
SIZES = [64, 4096, 256 << 10, 4 * MIB, 16 * MIB]


def judged(
    cases: list[Case],
    world: World | None = None,
    *,
    machine: Machine | None = None,
    launches: int = 6,
    end: SyntheticEnd | None = None,
) -> Judgement:
    return judge(pool((synthetic_run(cases, world, machine=machine, launches=launches, end=end),)))


def codes(judgement: Judgement) -> list[str]:
    return [finding.code for finding in judgement.findings]


def said(judgement: Judgement, code: str) -> str:
    return " ".join(finding.text for finding in judgement.findings if finding.code == code)


def verdict(judgement: Judgement, op: str, size: int) -> Verdict:
    return next(one for one in judgement.verdicts if (one.op, one.size_bytes) == (op, size))


def test_failures_interruptions_and_cases_not_reached_come_first() -> None:
    cases = [case("all_reduce", size) for size in SIZES]
    end = SyntheticEnd(
        failed={cases[1]: "wrong data before timing: 3 elements differ"},
        skipped={cases[2]: "no such dtype"},
        reached=4,
        ended="interrupted",
    )
    judgement = judged(cases, launches=1, end=end)
    assert [finding.severity for finding in judgement.findings] == sorted(
        (finding.severity for finding in judgement.findings), key=["bad", "caution", "note"].index
    )
    assert "all_reduce" in said(judgement, "wrong-data")
    assert "dtype" in said(judgement, "skipped")
    assert "interrupted" in codes(judgement)
    assert {point.size_bytes for curve in judgement.curves for point in curve.series.points} == {64, 4 * MIB}


def test_a_killed_run_is_said_to_have_no_end() -> None:
    assert "no-end" in codes(judged([case("barrier", 0)], end=SyntheticEnd(ended=None)))


def test_more_ranks_than_cores_are_flagged_everywhere() -> None:
    judgement = judged([case("all_reduce", size) for size in SIZES], machine=Machine(usable_cores=2))
    assert "node0" in said(judgement, "oversubscribed")
    assert all("oversubscribed" in summary.flags for summary in judgement.cases)
    assert [cause.code for cause in answer_of(judgement).causes] == ["oversubscribed"]
    enough = judged([case("all_reduce", 64)], machine=Machine(usable_cores=4))
    assert "oversubscribed" not in codes(enough)


def test_a_machine_that_records_nothing_is_still_judged() -> None:
    bare = synthetic_run([case("all_reduce", size) for size in SIZES], launches=2)
    run = replace(
        bare,
        run=type(bare.run)(
            **{**{name: getattr(bare.run, name) for name in bare.run.__struct_fields__}, "environments": {}}
        ),
    )
    judgement = judge(pool((run,)))
    assert "oversubscribed" not in codes(judgement)
    assert judgement.verdicts


@pytest.mark.parametrize(("launches", "indicative"), [(3, True), (4, False)])
def test_verdicts_on_few_launches_only_indicate(launches: int, indicative: bool) -> None:  # noqa: FBT001
    judgement = judged([case("all_reduce", 64)], launches=launches)
    assert [one.indicative for one in judgement.verdicts] == [indicative]


def copying(rate: float) -> tuple[Piece, ...]:
    return (Piece(0.0, 4 / rate),)


@pytest.mark.parametrize(
    ("copies", "status", "share"),
    [
        # all_reduce of 16 MiB at 1e-10 s/B: busbw near 15 GB/s; the peak is a quarter of the host's copy rate.
        (66e9, "as expected", 0.9),
        (600e9, "slower", 0.099),
    ],
)
def test_words_about_the_peak(copies: float, status: str, share: float) -> None:
    cases = [case("all_reduce", size) for size in SIZES] + [case("memory_copy", 64 * MIB)]
    world = World(by_op={"memory_copy": copying(copies)}, sample_noise=0.0)
    found = verdict(judged(cases, world), "all_reduce", 16 * MIB)
    assert found.status == status
    assert (found.by, found.peak) == ("peak", "memory_copy of 4 ranks on node0")
    assert found.peak_share == pytest.approx(share, rel=0.02)
    assert (found.peak_doubted, found.doubt) == (False, None)


def test_a_measured_peak_that_is_exceeded_judges_nothing() -> None:
    """At 149 % of the peak, ``as expected`` had a green tick although the interval only reached down to 102 %."""
    cases = [case("all_reduce", size) for size in SIZES] + [case("memory_copy", 64 * MIB)]
    for noise in (0.0, 0.3):
        world = World(by_op={"memory_copy": copying(40e9)}, sample_noise=0.0, launch_noise=noise)
        judgement = judged(cases, world)
        found = verdict(judgement, "all_reduce", 16 * MIB)
        assert (found.peak_share or 0.0) > 1.05
        assert (found.status, found.doubt, found.peak_doubted) == ("undecided", "exceeded", True)
        answer = answer_of(judgement)
        assert (answer.status, [cause.code for cause in answer.causes]) == ("undecided", ["above-peak"])
        tables = [block for block in show_blocks(show_rows(judgement)) if isinstance(block, Table)]
        shares = [cell for table in tables for row in table.rows for cell in row if cell.text.endswith("%")]
        above = [cell.tone for cell in shares if float(cell.text.strip("<>%")) > 105]
        assert above
        assert "good" not in above
    messages = [case("ping_pong", size) for size in SIZES]
    world = World(by_op={"memory_copy": copying(40e9), "ping_pong": (Piece(1e-6, 1e-10),)}, sample_noise=0.0)
    by_model = verdict(judged([*cases, *messages], world), "all_reduce", 16 * MIB)
    assert (by_model.by, by_model.doubt, by_model.peak_doubted) == ("model", None, True)


@pytest.mark.parametrize(("seconds_per_byte", "status"), [(1.1e-10, "not judged"), (1.4e-10, "slower")])
def test_where_only_a_peak_judges_who_is_near_it_without_latency_is_not_slow(
    seconds_per_byte: float, status: str
) -> None:
    """The bytes have 91 and 71 % of a peak of 10 GB/s, and at 256 KiB with the 10 µs of latency 68 and 56 %."""
    world = World(
        by_op={"ping_pong": (Piece(1e-5, seconds_per_byte),), "tcp_ping_pong": (Piece(0.0, 1e-10),)}, sample_noise=0.0
    )
    sizes = [64 << doublings for doublings in range(13)]
    cases = [*(case("ping_pong", size) for size in sizes), case("tcp_ping_pong", 16 * MIB)]
    found = verdict(judged(cases, world), "ping_pong", sizes[-1])
    assert found.status == status
    assert require(found.peak_share) < 0.8


@pytest.mark.parametrize(("size", "status"), [(4096, "not judged"), (64 * MIB, "slower")])
def test_a_size_alone_is_slower_only_if_its_time_is_more_than_latency(size: int, status: str) -> None:
    """Half of a peak of 10 GB/s and 10 µs of latency, of which one size shows nothing."""
    world = World(by_op={"ping_pong": (Piece(1e-5, 2e-10),), "tcp_ping_pong": (Piece(0.0, 1e-10),)}, sample_noise=0.0)
    cases = [case("ping_pong", size), case("tcp_ping_pong", 16 * MIB)]
    assert verdict(judged(cases, world), "ping_pong", size).status == status


def test_a_small_message_is_bound_by_latency() -> None:
    judgement = judged([case("all_reduce", size) for size in SIZES])
    assert verdict(judgement, "all_reduce", 4096).reached == "latency-bound"


@pytest.mark.parametrize(("factor", "status"), [(1.0, "as expected"), (4.0, "slower"), (0.5, "faster")])
def test_latency_is_no_excuse_for_being_slower_than_the_model(factor: float, status: str) -> None:
    # 4 ranks, small messages: 4 * 3 message times by the model.
    world = World(
        by_op={"ping_pong": (Piece(1e-6, 1e-10),), "all_reduce": (Piece(factor * 12e-6, 1e-12),)}, sample_noise=0.0
    )
    cases = [*(case("all_reduce", size) for size in (64, 4096)), *(case("ping_pong", size) for size in SIZES)]
    found = verdict(judged(cases, world, machine=Machine(usable_cores=2)), "all_reduce", 4096)
    assert found.model_ratio == pytest.approx(factor, rel=0.1)
    assert found.status == status
    assert found.latency_bound


def test_launches_on_both_sides_of_a_limit_leave_the_verdict_undecided() -> None:
    world = World(
        by_op={"ping_pong": (Piece(1e-6, 1e-9),), "all_reduce": (Piece(0.0, 1.8e-9),)},
        sample_noise=0.0,
        launch_noise=0.1,
    )
    cases = [case("all_reduce", 16 * MIB), *(case("ping_pong", size) for size in SIZES)]
    found = verdict(judged(cases, world), "all_reduce", 16 * MIB)
    assert found.status == "undecided"
    low, high = (end / found.time_ns for end in (found.interval.low_ns or 0.0, found.interval.high_ns or 0.0))
    ratio = found.model_ratio or 0.0
    assert found.reached == f"{ratio * low:.2g}× to {ratio * high:.2g}× the model's time"


@pytest.mark.parametrize(("factor", "status"), [(0.75, "as expected"), (0.5, "faster")])
def test_faster_is_only_what_is_faster_in_all_of_its_interval(factor: float, status: str) -> None:
    world = World(
        by_op={"ping_pong": (Piece(1e-6, 1e-9),), "all_reduce": (Piece(0.0, factor * 1.5e-9),)},
        sample_noise=0.0,
        launch_noise=0.1,
    )
    cases = [case("all_reduce", 16 * MIB), *(case("ping_pong", size) for size in SIZES)]
    judgement = judged(cases, world)
    found = verdict(judgement, "all_reduce", 16 * MIB)
    highest = (found.model_ratio or 0.0) * (found.interval.high_ns or 0.0) / found.time_ns
    assert (found.model_ratio or 1.0) < 0.8
    assert (found.status, highest > 0.8) == (status, status == "as expected")
    # The theory says the same of it.
    curve = judgement.curves[0]
    theory = in_words(curve, judgement.doubts[curve.series.key].model, judgement.facts, judgement.cases)
    assert (", which is normal" in theory) == (status == "as expected")
    assert f"{highest:.2g}×" in theory


def test_an_undecided_share_of_the_peak_goes_from_low_to_high() -> None:
    cases = [case("all_reduce", size) for size in SIZES] + [case("memory_copy", 64 * MIB)]
    world = World(by_op={"memory_copy": copying(74e9)}, sample_noise=0.0, launch_noise=0.1)
    found = verdict(judged(cases, world), "all_reduce", 16 * MIB)
    assert (found.status, found.by) == ("undecided", "peak")
    shares = found.reached.partition(" of the ")[0].split(" to ")
    low, high = (float(share.removesuffix(" %")) for share in shares)
    assert low < 100 * (found.peak_share or 0) < high


@pytest.mark.parametrize(("cause", "code"), [("wrong_data", "wrong-data"), ("backend", "failed")])
def test_wrong_data_are_known_by_the_code_of_the_cause_and_not_by_words(cause: FailureCause, code: str) -> None:
    one = case("all_reduce", 64)
    stored = synthetic_run([one], launches=2)
    error = "3 elements differ" if code == "wrong-data" else "the library says wrong data type"
    rows = (*stored.rows, Failed(case=one, launch=1, block=1, error=error, cause=cause))
    judgement = judge(pool((replace(stored, rows=rows),)))
    assert code in codes(judgement)
    assert [(row.state, row.cause) for row in judgement.cases] == [("failed", cause)]


def test_groups_that_run_at_once_share_the_rate_of_the_host() -> None:
    ring, pingpong = case("send_recv", 16 * MIB), [case("ping_pong", size) for size in SIZES]
    pieces: dict[str, tuple[Piece, ...]] = {"ping_pong": (Piece(1e-6, 1e-10),), "send_recv": (Piece(0.0, 4 / 8e9),)}
    world = World(by_op=pieces, sample_noise=0.0)
    cases = [case("all_gather", 16 * MIB, group=group) for group in ("all", "div:2")]
    judgement = judged([*cases, ring, *pingpong], world)
    models = {curve.series.key.group: curve.model for curve in judgement.curves if curve.series.key.op == "all_gather"}
    alone, split = models["all"], models["div:2"]
    assert not isinstance(alone, Unavailable)
    assert not isinstance(split, Unavailable)
    # (n−1) S bytes at 8 GB/s on four ranks; two pairs at once move 2 (n−1) S.
    assert alone[0].time_ns == pytest.approx(3 * 16 * MIB / 8, rel=0.01)
    assert split[0].time_ns == pytest.approx(2 * 16 * MIB / 8, rel=0.01)
    require_type(Unavailable, judged([cases[1], *pingpong], world).curves[0].model)


@pytest.mark.parametrize(("op", "code"), [("ping_pong", "same-curve"), ("all_reduce", "no-messages")])
def test_what_has_no_model_says_why(op: str, code: str) -> None:
    model = require_type(Unavailable, judged([case(op, size) for size in SIZES]).curves[0].model)
    assert model.code == code


def test_gloos_reduce_scatter_is_explained() -> None:
    cases = [case("reduce_scatter", size) for size in SIZES] + [case("memory_copy", 64 * MIB)]
    world = World(by_op={"memory_copy": copying(600e9)}, moved={"reduce_scatter": 2.0}, sample_noise=0.0)
    found = answer_of(judged(cases, world))
    assert [cause.code for cause in found.causes] == ["excess-traffic"]
    assert {code for one, code in found.verdicts.items() if one.status == "slower"} == {"excess-traffic"}


def test_one_rank_is_not_judged_by_a_wire_that_it_does_not_have() -> None:
    judgement = judged([case("all_reduce", MIB, ranks=1)])
    assert judgement.verdicts[0].busbw is None
    assert judgement.verdicts[0].peak_share is None
    assert judgement.verdicts[0].status == "not judged"


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, StoredRun]:
    cases = [
        *(case("all_reduce", size) for size in SIZES),
        case("all_gather", MIB, group="div:2"),
        case("barrier", 0),
        case("pair_matrix", MIB),
        case("memory_copy", 64 * MIB),
        case("all_reduce", MIB, dtype="int8"),
    ]
    run = synthetic_run(cases, end=SyntheticEnd(failed={cases[-1]: "rank 1 died"}))
    write_synthetic(tmp_path, run)
    return tmp_path, run


def test_show_as_json_has_null_where_there_is_no_number(stored: tuple[Path, StoredRun]) -> None:
    result = CliRunner().invoke(main.show, ["latest", "--json", "--results-dir", str(stored[0])])
    document = json.loads(result.stdout)
    barrier = next(row for row in document["cases"] if row["op"] == "barrier")
    assert (barrier["busbw"], barrier["peak_share"]) == (None, None)
    total = next(row for row in document["cases"] if row["row"] == "total")
    groups = [row for row in document["cases"] if row["row"] == "group" and row["groups"] == "div:2"]
    assert total["busbw"] == pytest.approx(sum(row["busbw"] for row in groups))
    assert total["peak_share"] == pytest.approx(np.mean([row["peak_share"] for row in groups]))
    assert document["runs"] == ["synthetic-0"]
    assert any(finding["code"] == "failed" for finding in document["warnings"])


def test_a_failed_case_shows_no_numbers_though_a_launch_went_well(tmp_path: Path) -> None:
    wrong, died = case("all_reduce", 64), case("broadcast", 64)
    ends = (None, SyntheticEnd(failed={wrong: "wrong data: 3 elements differ", died: "rank 1 died"}))
    names = []
    for seed, end in enumerate(ends):
        names.append(str(write_synthetic(tmp_path, synthetic_run([wrong, died], launches=2, seed=seed, end=end))))
    document = json.loads(CliRunner().invoke(main.show, [*names, "--json"]).stdout)
    assert [row["check_state"] for row in document["cases"]] == ["wrong", "failed"]
    for row in document["cases"]:
        assert row["state"] == "failed"
        assert {row[name] for name in ("time_ns", "low_ns", "high_ns", "fastest_ns", "algbw", "busbw")} == {None}
    text = CliRunner().invoke(main.show, names).stdout
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    assert rows == [["64", "B", "FAILED"]] * 2
    judgement = judge(load([Path(name) for name in names]))
    assert [len(summary.groups) for summary in judgement.cases] == [0, 0]
    assert judgement.curves == ()
