"""References that cannot be trusted give no verdict, in no output, and the headline follows from the rows."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from exhaustive import trials
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.narrow import require_type
from testing.synthetic import Piece, World, case, disturbed, planned, synthetic_run

from busbw.runs.plan import Sweep
from busbw.runs.store import StoredRun
from busbw_analysis.assembly.judge import judge
from busbw_analysis.assembly.to_json import render
from busbw_analysis.data.load import pool
from busbw_analysis.diagnosis.answer import answer_of
from busbw_analysis.diagnosis.doubts import Doubt
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.diagnosis.verdicts import Status, in_words
from busbw_analysis.report.document import Table
from busbw_analysis.report.verdicts import verdict_table

MIB = 1 << 20
SIZES = (64, 4096, 256 << 10, MIB, 16 * MIB)
FAIR: Mapping[str, Piece] = {
    "ping_pong": Piece(1e-6, 1e-9),
    "all_reduce": Piece(12e-6, 1.5e-9),
    "all_gather": Piece(6e-6, 0.75e-9),
}
"""What the model of 4 ranks says of large messages."""


def scaled(op: str, factor: float) -> tuple[Piece, ...]:
    piece = FAIR[op]
    return (Piece(factor * piece.alpha_seconds, factor * piece.beta_seconds_per_byte),)


def run_of(factors: Mapping[str, float], *, noise: float = 0.0, mode: str = "isolated") -> StoredRun:
    """Operations that take these factors times the model's time, and the messages of the model."""
    by_op = {op: scaled(op, factor) for op, factor in factors.items()}
    by_op.setdefault("ping_pong", (FAIR["ping_pong"],))
    cases = [case(op, size, mode=mode if op != "ping_pong" else "isolated") for op in by_op for size in SIZES]
    return synthetic_run(cases, World(by_op=by_op, sample_noise=0.01, launch_noise=noise), launches=6)


def judged(stored: StoredRun) -> Judgement:
    return judge(pool((stored,)))


def doubts_of(judgement: Judgement) -> set[Doubt | None]:
    return {verdict.doubt for verdict in judgement.verdicts if verdict.model_ratio is not None}


def statuses_of(judgement: Judgement) -> set[Status]:
    return {verdict.status for verdict in judgement.verdicts if verdict.model_ratio is not None}


@pytest.mark.parametrize("factor", [0.1, 1.0, 5.0])
def test_a_disturbed_reference_gives_no_verdict_in_any_output(factor: float) -> None:
    """α of a ping_pong beside a CPU burner called 5 of 8 operations faster and the run slower for a known reason."""
    judgement = judged(disturbed(run_of({"all_reduce": factor}), {"ping_pong"}))
    assert (doubts_of(judgement), statuses_of(judgement)) == ({"disturbed"}, {"undecided"})
    answer = answer_of(judgement)
    assert (answer.status, [cause.code for cause in answer.causes]) == ("undecided", ["doubted-reference"])
    assert not any(word in answer.answer for word in ("slower", "faster", "expected", "×"))
    assert [band for band, _ in answer.bands] == ["large"]  # numbers without a verdict, of which the table has the rest
    assert "disturbed" not in {finding.code for finding in answer.findings}  # the cause says it
    of_model = [
        verdict for verdict in json.loads(render(judgement, answer))["verdicts"] if verdict["model_ratio"] is not None
    ]
    assert {(verdict["status"], verdict["doubt"]) for verdict in of_model} == {("undecided", "disturbed")}
    table = require_type(Table, verdict_table(judgement, answer))
    (row,) = (row for row in table.rows if row[0].text == "all_reduce")
    assert not {"good", "caution"} & {cell.tone for cell in row} or {cell.tone for cell in row[1:4]} == {row[1].tone}
    assert not any(word in cell.text for cell in row for word in ("slower", "faster", "expected"))
    assert {cell.text for cell in row[1:4]} == {"? cannot tell"}
    explained = {note.partition(":")[0] for note in table.notes if not note.startswith("100 %")}
    shown = {verdict.word for verdict in answer.verdicts}
    assert (explained & {"faster", "cannot tell"}, "undecided" in explained) == (
        shown & {"faster", "cannot tell"},
        False,
    )
    (curve,) = (curve for curve in judgement.curves if curve.series.key.op == "all_reduce")
    assert "×" not in in_words(curve, judgement.doubts[curve.series.key].model, judgement.facts, judgement.cases)


def test_load_beside_an_operation_alone_leaves_its_reference_sound() -> None:
    judgement = judged(disturbed(run_of({"all_reduce": 3.0}), {"all_reduce"}))
    assert (doubts_of(judgement), statuses_of(judgement)) == ({None}, {"slower"})
    assert [cause.code for cause in answer_of(judgement).causes] == ["disturbed"]


def test_launches_of_a_reference_that_differ_by_a_factor_of_two_are_no_reference() -> None:
    assert "scattered" in doubts_of(judged(run_of({"all_reduce": 1.0}, noise=1.0)))
    assert doubts_of(judged(run_of({"all_reduce": 1.0}, noise=0.02))) == {None}


@pytest.mark.parametrize(
    ("factors", "doubt"),
    [
        ({"all_reduce": 0.6, "all_gather": 0.7}, "contradicted"),  # most are faster than the model
        ({"all_reduce": 0.2, "all_gather": 3.0}, "contradicted"),  # no α and β give both
        ({"all_reduce": 0.6, "all_gather": 1.0}, None),
        ({"all_reduce": 1.0, "all_gather": 3.0}, None),
    ],
)
def test_results_that_contradict_the_model_are_not_judged_by_it(
    factors: Mapping[str, float], doubt: Doubt | None
) -> None:
    judgement = judged(run_of(factors))
    assert doubts_of(judgement) == {doubt}
    assert ("doubted-reference" in {cause.code for cause in answer_of(judgement).causes}) == (doubt is not None)


def test_calls_in_a_row_may_beat_the_messages_of_single_calls() -> None:
    assert doubts_of(judged(run_of({"all_reduce": 0.3}, mode="pipelined"))) == {None}


def test_an_alpha_longer_than_a_larger_message_takes_is_doubted() -> None:
    by_op = {"all_reduce": scaled("all_reduce", 1.0), "ping_pong": (Piece(90e-6, 1e-9), Piece(1e-6, 1e-9, 4096))}
    cases = [case(op, size) for op in by_op for size in SIZES]
    assert doubts_of(judged(synthetic_run(cases, World(by_op=by_op, sample_noise=0.01), launches=6))) == {
        "contradicted"
    }


@pytest.mark.parametrize("ranks_at_once", [0.9, 1.4])
def test_sockets_that_one_operation_exceeds_by_far_judge_no_other(ranks_at_once: float) -> None:
    """At 140 % of plain TCP, another operation at 90 % has at most 64 % of the true rate."""
    stream = 1e-9
    by_op = {
        "tcp_stream": (Piece(0.0, stream),),
        "send_recv": (Piece(0.0, stream / ranks_at_once),),
        "all_gather": (Piece(0.0, 0.75 * stream / 0.9),),
    }
    cases = [case(op, 64 * MIB) for op in by_op]
    judgement = judged(synthetic_run(cases, World(by_op=by_op, sample_noise=0.0), launches=6))
    verdicts = {verdict.op: verdict for verdict in judgement.verdicts}
    assert verdicts["all_gather"].peak_share == pytest.approx(0.9, rel=0.01)
    beaten = ranks_at_once > 1
    assert {verdict.doubt for verdict in verdicts.values()} == ({"exceeded"} if beaten else {None})
    assert {verdict.status for verdict in verdicts.values()} == ({"undecided"} if beaten else {"as expected"})
    assert verdicts["all_gather"].peak_doubted is False


@pytest.mark.parametrize("asked", [("send_recv", "all_gather"), ("all_gather",)])
def test_a_peak_is_exceeded_by_what_was_asked_before_references(asked: tuple[str, ...]) -> None:
    by_op = {
        "tcp_stream": (Piece(0.0, 1e-9),),
        "send_recv": (Piece(0.0, 1e-9 / 2),),
        "all_gather": (Piece(0.0, 0.75e-9 / 1.5),),
    }
    stored = synthetic_run([case(op, 64 * MIB) for op in by_op], World(by_op=by_op, sample_noise=0.0), launches=6)
    sweeps = tuple(Sweep(ops=(op,), baseline=op not in asked) for op in by_op)
    judgement = judged(replace(stored, run=planned(stored.run, sweep=sweeps)))
    (cause,) = (cause for cause in answer_of(judgement).causes if cause.code == "above-peak")
    assert ("send_recv" in cause.text) == ("send_recv" in asked)
    assert ("200 %" in cause.text) == ("send_recv" in asked)
    assert ("150 %" in cause.text) != ("send_recv" in asked)


def test_a_disturbed_peak_calls_nothing_as_expected() -> None:
    by_op = {"memory_copy": (Piece(0.0, 4 / 66e9),), "all_reduce": (Piece(0.0, 1e-10),)}
    stored = synthetic_run([case(op, 64 * MIB) for op in by_op], World(by_op=by_op, sample_noise=0.0), launches=6)
    for ops, status, doubt in (((), "as expected", None), ({"memory_copy"}, "undecided", "disturbed")):
        (verdict,) = judged(disturbed(stored, ops)).verdicts
        assert (verdict.status, verdict.doubt) == (status, doubt)


BASE = judged(run_of({"all_reduce": 1.0, "all_gather": 1.0}))
ROWS = st.one_of(
    st.tuples(st.sampled_from(["as expected", "slower", "faster", "undecided", "not judged"]), st.none()),
    st.tuples(st.just("undecided"), st.sampled_from(["disturbed", "scattered", "contradicted", "exceeded"])),
)


@given(st.lists(ROWS, min_size=1, max_size=6))
def test_the_headline_follows_from_the_rows(rows: Sequence[tuple[Status, Doubt | None]]) -> None:
    verdicts = tuple(
        replace(verdict, status=status, doubt=doubt)
        for verdict, (status, doubt) in zip(BASE.verdicts * 2, rows, strict=False)
    )
    answer = answer_of(replace(BASE, verdicts=verdicts))
    statuses = [status for status, _ in rows]
    doubts = [doubt for status, doubt in rows if status == "undecided"]
    if "slower" in statuses:
        assert answer.status in {"slower", "explained"}
    elif "undecided" in statuses:
        assert answer.status == "undecided"
    else:
        assert answer.status == ("as expected" if {"as expected", "faster"} & {*statuses} else "not judged")
    assert ("slower" in answer.headline.lower()) == ("slower" in statuses)
    assert answer.headline.startswith("As expected") == (
        "as expected" in statuses and not {"slower", "undecided"} & {*statuses}
    )
    assert answer.headline.startswith("Faster") == ("faster" in statuses and {*statuses} <= {"faster", "not judged"})
    assert answer.headline.startswith("Cannot tell") == (
        "slower" not in statuses and bool(doubts) and None not in doubts
    )


@settings(max_examples=trials(8, 25))
@given(
    st.dictionaries(st.sampled_from(["all_reduce", "all_gather"]), st.sampled_from([0.1, 0.5, 1.0, 3.0]), min_size=1),
    st.sets(st.sampled_from(["all_reduce", "all_gather", "ping_pong"])),
)
def test_no_doubted_reference_calls_anything_slower_or_faster(factors: dict[str, float], busy: set[str]) -> None:
    judgement = judged(disturbed(run_of(factors), busy))
    for verdict in answer_of(judgement).verdicts:
        if verdict.by == "model" and judgement.doubts[verdict.key].model is not None:
            assert (verdict.status, verdict.doubt) == ("undecided", judgement.doubts[verdict.key].model)
        assert verdict.doubt is None or verdict.status == "undecided"
    if "ping_pong" in busy:
        assert statuses_of(judgement) == {"undecided"}
