"""The answer to a run: causes before accusations, findings that healthy runs do not have, and trust by launches."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from testing.narrow import require
from testing.synthetic import Machine, Piece, SyntheticEnd, World, case, disturbed, synthetic_run, write_synthetic

from busbw.ops import OPS
from busbw.runs.progress import progress_of
from busbw.runs.records import BackendTraits, Case, EndStatus, Failed, FailureCause, Measurement
from busbw.runs.store import StoredRun
from busbw.units import format_rate
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import load, pool
from busbw_analysis.data.sentences import sentences
from busbw_analysis.diagnosis.answer import Answer, answer_of
from busbw_analysis.diagnosis.compare import compare
from busbw_analysis.diagnosis.findings import Finding, ranked
from busbw_analysis.diagnosis.hypothesis_tests import fewest_launches, launches_needed, smallest_difference
from busbw_analysis.diagnosis.trust import count_tests, scatter_of
from busbw_analysis.models.results import results_of
from busbw_analysis.report.document import Paragraph
from busbw_analysis.report.verdicts import reasons

SIZES = (64, 4096, 256 << 10, 1 << 20, 16 << 20)
PINGS = (Piece(1e-6, 1e-9),)
SAMPLE = next((Path(__file__).parents[2] / "results" / "samples" / "vm").iterdir())


def run_of(
    factor: float = 1.0,
    *,
    launches: int = 6,
    machine: Machine | None = None,
    end: SyntheticEnd | None = None,
    noise: float = 0.0,
) -> StoredRun:
    """An all-reduce on 4 ranks that takes ``factor`` times what the model of large messages says."""
    world = World(
        by_op={"ping_pong": PINGS, "all_reduce": (Piece(factor * 12e-6, factor * 1.5e-9),)},
        sample_noise=0.01,
        launch_noise=noise,
    )
    cases: list[Case] = [case(op, size) for op in ("all_reduce", "ping_pong") for size in SIZES]
    return synthetic_run(cases, world, machine=machine, launches=launches, end=end)


def answer(stored: StoredRun) -> Answer:
    return answer_of(judge(pool((stored,))))


@given(st.lists(st.sampled_from(["the rest", "α and β", "all_reduce: 5", "n7 is slow.", " it ends. ", "", ".", " . "])))
def test_joined_clauses_are_sentences_with_one_full_stop_and_names_as_they_are_spelled(clauses: list[str]) -> None:
    text = sentences(*clauses)
    spoken = [clause.strip(" .") for clause in clauses if clause.strip(" .")]
    assert text.count(".") == len(spoken)
    assert [one.strip() for one in text.split(".")[:-1]] == [
        clause.replace("the", "The").replace("it", "It") for clause in spoken
    ]


def codes(of: Answer) -> list[str]:
    return [cause.code for cause in of.causes]


def test_a_healthy_run_is_as_expected_and_has_no_finding() -> None:
    found = answer(disturbed(run_of(), OPS, 0.02, lost=range(12)))
    assert (found.status, found.causes, found.findings) == ("as expected", (), ())
    assert found.confidence == 4
    assert {verdict.status for verdict in found.verdicts} <= {"as expected", "not judged"}


def test_a_slow_run_without_a_cause_says_how_slow_and_that_none_was_found() -> None:
    found = answer(run_of(3.0))
    assert (found.status, found.causes) == ("slower", ())
    assert found.cause
    assert "3×" in found.answer


@pytest.mark.parametrize(
    ("stored", "code"),
    [
        (run_of(3.0, machine=Machine(usable_cores=2)), "oversubscribed"),
        (disturbed(run_of(3.0), {"all_reduce"}, 0.3), "disturbed"),
        (run_of(3.0, machine=Machine(usable_cores=4)), "no-spare-core"),
    ],
)
def test_a_cause_explains_what_is_slower(stored: StoredRun, code: str) -> None:
    found = answer(stored)
    assert found.status == "explained"
    assert codes(found) == [code]
    assert {code for one, code in found.verdicts.items() if one.status == "slower"} == {code}
    assert code == "no-spare-core" or code in {finding.code for finding in found.evidence}
    assert code not in {finding.code for finding in found.findings}
    # Where ranks run is no fault of the machine, and said first; that it was busy leaves that open.
    assert ("faulty" in found.answer.partition(":")[0]) == (code != "disturbed")


@pytest.mark.parametrize(("gathering", "said"), [(3.0, False), (1.25, True)])
def test_an_operation_repeats_a_cause_that_does_not_explain_all(gathering: float, *, said: bool) -> None:
    by_op = {
        "ping_pong": PINGS,
        "all_reduce": (Piece(36e-6, 4.5e-9),),
        "all_gather": (Piece(gathering * 6e-6, gathering * 0.75e-9),),
    }
    world = World(by_op=by_op, sample_noise=0.01, launch_noise=0.1 if said else 0.0)
    cases = [case(op, size) for op in by_op for size in SIZES]
    found = answer(synthetic_run(cases, world, machine=Machine(usable_cores=4), launches=5))
    assert codes(found) == ["no-spare-core"]
    assert any(verdict.status == "undecided" for verdict in found.verdicts) == said
    assert any(isinstance(block, Paragraph) for block in reasons(found)["all_reduce"]) == said


@pytest.mark.parametrize(
    ("op", "factor", "status"),
    [
        ("all_gather", 2.0, "explained"),
        ("all_gather", 5.0, "slower"),
        ("all_reduce", 5.0, "explained"),
        ("all_reduce", 10.0, "slower"),
    ],
)
def test_copies_of_an_mpi_library_explain_what_sound_hosts_lose_to_them(op: str, factor: float, status: str) -> None:
    share = factor * (1.0 if op == "all_reduce" else 0.5)
    world = World(by_op={"ping_pong": PINGS, op: (Piece(share * 12e-6, share * 1.5e-9),)}, sample_noise=0.01)
    stored = synthetic_run([case(one, size) for one in (op, "ping_pong") for size in SIZES], world, launches=6)
    of_mpi = replace(stored, run=msgspec.structs.replace(stored.run, backend=BackendTraits(cost_models="mpi")))
    found = answer_of(replace(judge(pool((stored,))), results=results_of(pool((of_mpi,)))))
    assert found.status == status
    explained = status == "explained"
    assert ("library-copies" in codes(found), "faulty" in found.answer) == (explained, explained)


def test_a_comparison_is_advised_once() -> None:
    judgement = judge(pool((run_of(3.0, machine=Machine(usable_cores=4)),)))
    slow = next(verdict for verdict in judgement.verdicts if verdict.status == "slower")
    of_mpi = msgspec.structs.replace(judgement.samples.runs[0].run, backend=BackendTraits(cost_models="mpi"))
    results = results_of(pool((replace(judgement.samples.runs[0], run=of_mpi),)))
    other = replace(slow, model_ratio=30.0)
    found = answer_of(replace(judgement, results=results, verdicts=(replace(slow, model_ratio=2.0), other)))
    assert [*found.verdicts.values()] == ["library-copies", None]
    assert found.action.count("busbw compare") == 1


def test_a_machine_is_not_acquitted_where_more_speaks_against_it() -> None:
    far_off = answer(run_of(30.0, machine=Machine(usable_cores=4)))
    judgement = judge(pool((run_of(3.0, machine=Machine(usable_cores=4)),)))
    drifting = answer_of(replace(judgement, findings=(Finding("caution", "drift", ("It became slower",)),)))
    assert not any("faulty" in one.answer for one in (far_off, drifting))


def test_a_healthy_run_without_a_spare_core_is_as_expected() -> None:
    found = answer(run_of(machine=Machine(usable_cores=4)))
    assert (found.status, found.causes) == ("as expected", ())


def test_shared_cores_are_named_before_the_rank_that_waits_for_one() -> None:
    stored = run_of(3.0, machine=Machine(usable_cores=2))
    judgement = judge(pool((stored,)))
    late = Finding("caution", "straggler", ("Rank 3 is a straggler", "Most in all_reduce"))
    assert codes(answer_of(replace(judgement, findings=(late, *judgement.findings)))) == ["oversubscribed", "straggler"]


def test_a_failed_run_without_a_verdict_is_not_advised_to_measure_a_peak() -> None:
    end = SyntheticEnd(failed={case("all_reduce", 64): "wrong data"})
    cases = [case("all_reduce", size) for size in SIZES]
    whole, failed = (answer(synthetic_run(cases, launches=2, end=one)) for one in (None, end))
    assert (whole.status, failed.status, failed.bands) == ("not judged", "failed", ())
    assert "memory_copy" in whole.headline
    assert "memory_copy" not in failed.headline


def test_wrong_data_come_first_whatever_else_there_is() -> None:
    stored = run_of(machine=Machine(usable_cores=2), end=SyntheticEnd(failed={case("all_reduce", 64): "wrong data"}))
    found = answer(stored)
    assert found.status == "failed"
    assert codes(found)[0] == "wrong-data"
    assert found.confidence < 4


@pytest.mark.parametrize("ended", ["interrupted", None])
def test_an_incomplete_run_is_called_that_and_says_how_to_complete_it(ended: EndStatus | None) -> None:
    stored = run_of(launches=3, end=SyntheticEnd(reached=7, ended=ended))
    found = answer(stored)
    assert progress_of(stored).in_words() in found.headline
    assert "--resume" in found.action
    wrong = SyntheticEnd(ended=ended, failed={stored.run.cases[0]: "wrong data: 3 elements"})
    assert progress_of(stored).in_words() not in answer(run_of(launches=3, end=wrong)).headline


@pytest.mark.parametrize("cause", ["backend", "rank_lost"])
def test_only_what_a_resumption_tries_again_is_sent_to_one(cause: FailureCause) -> None:
    stored = run_of(launches=3)
    first = next(row for row in stored.rows if isinstance(row, Measurement))
    failure = Failed(case=first.case, launch=first.launch, block=first.block, error="it failed", cause=cause)
    rows = tuple(failure if row is first else row for row in stored.rows)
    found = answer(replace(stored, rows=rows))
    texts = " ".join([found.action, *(finding.text for finding in found.findings)])
    assert ("--resume" in texts) == (cause == "rank_lost")


@pytest.mark.parametrize(
    ("op", "cores", "fewer"), [("pair_matrix", 2, False), ("pair_matrix", 3, True), ("all_reduce", 2, True)]
)
def test_a_pair_matrix_alone_is_not_sent_to_two_ranks(op: str, cores: int, *, fewer: bool) -> None:
    stored = synthetic_run([case(of, 1 << 20) for of in {op, "pair_matrix"}], machine=Machine(usable_cores=cores))
    assert (f"--ranks {cores}" in answer(stored).action) == fewer


def test_more_launches_are_the_action_where_verdicts_are_open() -> None:
    found = answer(run_of(1.25, noise=0.2, launches=5))
    assert found.status == "undecided"
    assert codes(found) == []
    assert "--launches" in found.action
    assert "--launches" not in answer(run_of(1.25, noise=0.1, launches=20)).action, "so many were taken already"
    crowded = answer(run_of(1.25, noise=0.2, launches=5, machine=Machine(usable_cores=2)))
    assert {code for one, code in crowded.verdicts.items() if one.status == "undecided"} == {"oversubscribed"}
    assert "--launches" not in crowded.action, "more launches do not free a core"


def test_the_answer_counts_the_statuses_of_its_verdicts() -> None:
    by_op = {
        "ping_pong": PINGS,
        "all_reduce": (Piece(8e-6, 1e-9),),
        "all_gather": (Piece(6e-6, 0.75e-9),),
        "barrier": (Piece(4e-6, 0.0),),
    }
    cases = [case(op, size) for op in by_op for size in (SIZES if op != "barrier" else (0,))]
    found = answer(synthetic_run(cases, World(by_op=by_op, sample_noise=0.01), launches=6))
    large = [verdict.status for verdict in found.verdicts if verdict.band == "large"]
    assert sorted(large) == ["as expected", "faster", "not judged"]
    text = dict(found.bands)["large"]
    counted = re.findall(r"(\d) (?:of 3 operations )?(as expected|faster|not judged)", text)
    assert counted == [("1", "as expected"), ("1", "faster"), ("1", "not judged")]
    assert "(0.67×" in text
    assert "Barrier" in [label for label, _ in found.lines]


def test_undecided_results_are_counted_beside_the_cause_of_slower_ones() -> None:
    judgement = judge(pool((run_of(3.0, machine=Machine(usable_cores=4), noise=0.1, launches=5),)))
    slow = next(verdict for verdict in judgement.verdicts if verdict.status == "slower" and verdict.band == "large")
    found = answer_of(replace(judgement, verdicts=(slow, replace(slow, status="undecided"))))
    assert codes(found) == ["no-spare-core"]
    assert [*found.verdicts.values()] == ["no-spare-core", None]
    assert "--launches" in found.action


def test_a_run_as_expected_with_a_slow_link_is_not_called_so_without_more() -> None:
    judgement = judge(pool((run_of(),)))
    slow = Finding("caution", "slow-host", ("All traffic of node1 is slow", "It has 30 % of the usual rate"))
    plain, warned = answer_of(judgement), answer_of(replace(judgement, findings=(slow,)))
    assert plain.status == warned.status == "as expected"
    assert plain.headline != warned.headline


def test_a_model_that_most_operations_beat_by_far_is_doubted_and_not_the_run_praised() -> None:
    found = answer(run_of(0.2))
    assert found.status == "undecided"
    assert codes(found) == ["doubted-reference"]
    assert {verdict.doubt for verdict in found.verdicts if verdict.model_ratio is not None} == {"contradicted"}
    large = next(verdict for verdict in found.verdicts if (verdict.op, verdict.band) == ("all_reduce", "large"))
    assert format_rate(large.busbw) in found.answer
    assert "model" not in found.answer, "what is doubted judges nothing"


@pytest.mark.parametrize(("launches", "points"), [(1, 2), (4, 3), (5, 4)])
def test_few_launches_cost_confidence(launches: int, points: int) -> None:
    assert answer(run_of(launches=launches)).confidence == points


def test_the_best_collective_stands_beside_a_faster_message_between_two_ranks() -> None:
    judgement = judge(pool((run_of(),)))
    best = require(judgement.best)
    assert best.label.startswith("ping_pong")
    rates = [
        point.busbw
        for curve in judgement.curves
        if curve.series.key.op == "all_reduce"
        for point in curve.series.points
        if point.busbw is not None
    ]
    measured = answer_of(judgement).measured
    assert format_rate(best.busbw) in measured
    assert format_rate(max(rates)) in measured


@pytest.mark.parametrize("beside", [(), ("all_reduce",)])
def test_the_slowest_pair_is_named_with_its_share(beside: Sequence[str]) -> None:
    cases = [case("pair_matrix", 1 << 20), *(case(op, size) for op in beside for size in SIZES)]
    judgement = judge(pool((synthetic_run(cases, World(slow_pairs=((2, 0),), slow_factor=5.0), launches=6),)))
    (matrix,) = judgement.matrices
    source, target = np.unravel_index(np.nanargmin(matrix.rate), matrix.rate.shape)
    share = 100 * matrix.rate[source, target] / np.sort(matrix.rate[np.isfinite(matrix.rate)])[6]
    made = answer_of(judgement)
    said = made.measured if judgement.verdicts else made.answer
    assert format_rate(matrix.rate[source, target]) in said
    assert f"{share:.3g}" in said


@pytest.mark.parametrize("launches", [2, 6])
def test_launches_of_pairs_are_trusted_by_their_scatter(launches: int, tmp_path: Path) -> None:
    """They were said to have none, whatever their number."""
    world = World(launch_noise=0.05)
    run = synthetic_run([case("pair_matrix", 1 << 20, pairs="alone")], world, launches=launches)
    folder = write_synthetic(tmp_path, run)
    scatter = require(scatter_of(judge(load([folder]))))
    assert 0.0 < scatter < 0.2


def test_findings_are_ranked_by_severity_and_then_by_what_they_change() -> None:
    cautions = (Finding("caution", code, ("",)) for code in ("drift", "straggler", "new"))
    found = ranked([Finding("note", "adjusted", ("",)), *cautions, Finding("bad", "failed", ("",))])
    assert [one.code for one in found] == ["failed", "straggler", "drift", "new", "adjusted"]


@pytest.mark.parametrize("scatter", [0.01, 0.1, 0.5])
def test_the_smallest_difference_is_one_that_so_many_launches_find(scatter: float) -> None:
    small, large = smallest_difference(scatter, 6), smallest_difference(scatter, 20)
    assert 0 < large < small
    needed = require(launches_needed(scatter, small))
    assert needed >= 6


def test_the_worst_of_two_curves_of_one_op_is_told_from_the_other() -> None:
    judgement = judge(pool((run_of(3.0),)))
    slow = next(verdict for verdict in judgement.verdicts if verdict.status == "slower" and verdict.band == "large")
    other = msgspec.structs.replace(slow.key, in_place=False, mode="pipelined")
    faster = replace(slow, key=other, model_ratio=2.0)
    found = answer_of(replace(judgement, verdicts=(slow, faster)))
    assert "place" in found.answer


def test_a_fault_is_in_the_headline_beside_a_peak_that_decides_nothing() -> None:
    """The headline was only that the peak is too low, while all pairs of rank 2 ran at a third of the others' rate."""
    pieces = (Piece(1e-6, 1e-10),)
    by_op = {"memory_copy": (Piece(0.0, 1e-9),), "all_reduce": pieces, "pair_matrix": pieces}
    world = World(by_op=by_op, sample_noise=0.01, slow_ranks=(2,), slow_factor=3.0)
    cases = [case("all_reduce", 16 << 20), case("memory_copy", 16 << 20), case("pair_matrix", 1 << 20)]
    for slow in (True, False):
        found = answer(synthetic_run(cases, world if slow else replace(world, slow_ranks=()), launches=6))
        assert (found.status, {verdict.doubt for verdict in found.verdicts}) == ("undecided", {"exceeded"})
        assert codes(found) == [*(["slow-link"] if slow else []), "above-peak"]
        assert ("rank 2" in found.headline.casefold(), "33 %" in found.headline) == (slow, slow)


@pytest.mark.parametrize(("sizes", "launches", "enough"), [((64,), 4, True), (SIZES, 4, False), (SIZES, 5, True)])
def test_launches_are_counted_for_all_bands_that_a_comparison_tests(
    sizes: tuple[int, ...], launches: int, *, enough: bool
) -> None:
    """4 launches were recommended where the comparison of 4 bands took at least 5."""
    cases = [case("all_reduce", size) for size in sizes]
    runs = [pool((synthetic_run(cases, World(launch_noise=0.01), launches=count),)) for count in (launches, 2)]
    judged, few = (judge(run) for run in runs)
    other = pool((synthetic_run(cases, World(launch_noise=0.01), launches=2, seed=1),))
    bands = compare(runs[0], other).bands
    assert count_tests(judged.cases) == len(bands)
    assert (answer_of(judged).confidence == 4) == enough
    (needed,) = re.findall(r"--launches (\d+) ", answer_of(few).trust)
    assert int(needed) >= fewest_launches(len(bands), paired=False)


def test_the_verdict_on_curves_in_place_and_out_of_place_has_the_highest_busbw_and_its_size() -> None:
    world = World(by_op={"memory_copy": (Piece(0.0, 6e-11),)}, sample_noise=0.03, launch_noise=0.02)
    cases = [case("all_reduce", 16 << 20, in_place=way) for way in (True, False)]
    judgement = judge(pool((synthetic_run([*cases, case("memory_copy", 16 << 20)], world, launches=6),)))
    text = dict(answer_of(judgement).bands)["large"]
    assert f"{100 * require(require(judgement.best).share):.3g} %" in text
    assert "16 MiB" in text


def test_what_has_wrong_data_is_not_measured_again_by_resuming_the_run() -> None:
    cases = [case("all_reduce", size) for size in SIZES]
    end = SyntheticEnd(failed={cases[0]: "wrong data"}, reached=2, ended="interrupted")
    found = answer(synthetic_run(cases, World(), end=end))
    assert codes(found)[0] == "wrong-data"
    assert "new run" in found.action
