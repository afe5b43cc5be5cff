"""What the report says of theory: whether times are normal, where they go, and nothing where there is no model."""

import json
import re
from dataclasses import replace

import pytest
from testing.narrow import require
from testing.synthetic import Machine, Piece, World, case, synthetic_run

from busbw.runs.records import Case
from busbw_analysis.assembly import compose
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import pool
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.diagnosis.verdicts import against_model, in_words
from busbw_analysis.models.bounds import Explanation
from busbw_analysis.report import models
from busbw_analysis.report.document import Figure, Section
from busbw_analysis.report.fits import fits_table
from busbw_analysis.report.models import theory
from busbw_analysis.report.to_terminal import render

SIZES = tuple(2**exponent for exponent in range(3, 23, 3))
ALPHA, BETA = 20e-6, 1e-10
RING = (Piece(12 * ALPHA, 1.5 * BETA),)
"""Gloo's all_reduce on 4 ranks, up to 8 MiB, with R unknown."""


def sweep(op: str, ranks: int = 4, algorithm: str | None = None) -> list[Case]:
    return [case(op, size, ranks, algorithm=algorithm) for size in SIZES]


def judged(*cases: Case, times: float = 1.0, cores: int = 8, launches: int = 6) -> Judgement:
    """A run of ``cases`` and of messages, in which an all_reduce takes ``times`` times what the model says."""
    slower = tuple(replace(piece, alpha_seconds=times * piece.alpha_seconds) for piece in RING)
    slower = tuple(replace(piece, beta_seconds_per_byte=times * piece.beta_seconds_per_byte) for piece in slower)
    world = World((Piece(ALPHA, BETA),), by_op={"all_reduce": slower}, sample_noise=0.02)
    run = synthetic_run([*cases, *sweep("ping_pong")], world, machine=Machine(usable_cores=cores), launches=launches)
    return judge(pool((run,)))


def words_of(judgement: Judgement) -> str:
    curve = judgement.curves[0]
    return in_words(curve, judgement.doubts[curve.series.key].model, judgement.facts, judgement.cases)


def figures(section: Section) -> list[Figure]:
    own = [block for block in section.blocks if isinstance(block, Figure)]
    return own + [figure for part in section.parts for figure in figures(part)]


def section_of(judgement: Judgement) -> Section:
    return require(theory(judgement))


@pytest.mark.parametrize(
    ("times", "cores", "words"),
    [
        (1.0, 8, r"^From 8 B to 2 MiB a call takes (0\.9\d?× to )?1× the model's time, which is normal\.$"),
        (2.6, 2, r"2\.[67]× \(2\.\d+× to 2\.\d+×\) the model's time: 4 ranks share 2 cores;.* of 1\.25\.$"),
        (2.6, 8, "no record of the run explains it;"),
    ],
)
def test_a_curve_is_told_with_what_the_run_knows_of_it(times: float, cores: int, words: str) -> None:
    assert re.search(words, words_of(judged(*sweep("all_reduce"), times=times, cores=cores)))


def test_a_model_that_is_too_slow_is_told_in_the_sentence_and_in_the_table() -> None:
    judgement = judged(*sweep("all_reduce"), times=0.5)
    assert {doubts.model is not None for key, doubts in judgement.doubts.items() if key.op == "all_reduce"} == {True}
    assert "the reference does not fit" in words_of(judgement)
    (figure,) = figures(section_of(judgement))
    (place,) = [index for index, column in enumerate(figure.table.columns) if column.name == "unexplained"]
    assert all(row[place].text.startswith("model too slow by") for row in figure.table.rows)


@pytest.mark.parametrize("times", [1.0, 1.4])
def test_ends_on_both_sides_of_the_limit_decide_nothing(times: float) -> None:
    judgement = judged(*sweep("all_reduce"), times=times)
    curve = judgement.curves[0]
    wide = tuple(
        replace(point, interval=replace(point.interval, low_ns=point.time_ns / 2, high_ns=2 * point.time_ns))
        for point in curve.series.points
    )
    curve = replace(curve, series=replace(curve.series, points=wide))
    text = in_words(curve, judgement.doubts[curve.series.key].model, judgement.facts, judgement.cases)
    assert "which is undecided: the interval contains a limit (a factor of 1.25)" in text


def test_without_a_model_there_is_no_section_and_no_sentence() -> None:
    run = synthetic_run(sweep("all_reduce"), launches=2)
    judgement = judge(pool((run,)))
    assert theory(judgement) is None
    assert words_of(judgement) == ""
    assert isinstance(judgement.curves[0].explanation, Unavailable)


def test_a_figure_has_a_picture_a_legend_and_all_sizes() -> None:
    (figure,) = figures(section_of(judged(*sweep("all_reduce"), times=1.5)))
    assert len(figure.pictures) == 1
    labels = " ".join(entry.label for entry in figure.legend)
    for word in ("measured", "segmented ring", "⌈lg n⌉ α + 2(n−1)/n S β"):
        assert word in labels
    sizes = [row[0].text for row in figure.table.rows]
    assert len(sizes) == len(figure.table.rows) == 7
    names = [column.name for column in figure.table.columns]
    shares = [
        float(row[names.index(name)].text)
        for row in figure.table.rows[:1]
        for name in names
        if "(α)" in name or name == "unexplained"
    ]
    # Two thirds of 8 B are the 12 messages that the model knows of, one third is nobody's.
    assert shares == pytest.approx([66.7, 33.3], abs=1.5)


def test_the_rate_of_the_host_stands_with_the_other_parameters() -> None:
    ring = [case("send_recv", size, 4) for size in (8, 1 << 20)]
    copies = [case("memory_copy", size, 4) for size in (64 << 20, 256 << 20)]
    for op, others, sources in (
        ("all_reduce", ring, ["R send_recv"]),
        ("all_reduce", copies, ["R memory_copy"]),
        ("all_gather", [*ring, *copies], ["R send_recv", "M memory_copy"]),
    ):
        modelled = judged(*sweep(op), *others).curves[0].model
        assert not isinstance(modelled, Unavailable)
        rates = re.findall(r"; ([RM]) [\d.]+ [GM]B/s, from (?:the )?(\w+)", modelled[0].parameters)
        assert [" ".join(pair) for pair in rates] == sources


def test_algorithms_that_send_several_messages_for_one_delay_are_never_the_fastest() -> None:
    explanation = judged(*sweep("reduce_scatter")).curves[0].explanation
    assert not isinstance(explanation, Unavailable)
    assert {alternative.algorithm: alternative.at_once for alternative in explanation.others}["direct"] == 3
    assert all("direct" not in span.algorithms for span in explanation.fastest)


def test_a_barrier_has_its_numbers_and_no_picture() -> None:
    judgement = judged(case("barrier", 0))
    (figure,) = figures(section_of(judgement))
    assert figure.pictures == ()
    assert len(figure.table.rows) == 1


def test_many_curves_are_folded_and_only_some_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    hands = ("ring", "rabenseifner", "binomial-tree", "direct", "parameter-server", "recursive-doubling", "binary-tree")
    cases = [setting for name in hands for setting in sweep("all_reduce", algorithm=name)]
    monkeypatch.setattr(models, "_MOST_DRAWN", 2)
    judgement = judged(*cases, launches=1)
    html = compose.compose(judgement).html
    assert html.count('<details class="part"><summary><h4>') == len(hands)
    assert html.count("<details") == html.count("</details>")
    section = section_of(judgement)
    (part,) = section.parts
    assert all(subsection.folded for subsection in part.parts)
    assert [bool(figure.pictures) for subsection in part.parts for figure in figures(subsection)] == [
        True,
        True,
        *[False] * 5,
    ]


def test_the_json_has_it_for_every_size() -> None:
    judgement = judged(*sweep("all_reduce"), times=2.0)
    curve, message = json.loads(compose.compose(judgement).json)["curves"]
    explanation = curve["explanation"]
    assert [spent["size_bytes"] for spent in explanation["spent"]] == list(SIZES)
    for spent in explanation["spent"]:
        parts = spent["latency_ns"] + spent["bandwidth_ns"] + spent["unexplained_ns"]
        assert parts == pytest.approx(spent["measured_ns"])
        assert spent["bound_share"] == pytest.approx(spent["bound_ns"] / spent["measured_ns"])
    assert explanation["in_words"] == words_of(judgement)
    assert "circular" in message["explanation"]["none"]


def test_the_table_of_fits_says_how_a_curve_stands_to_theory() -> None:
    judgement = judged(*sweep("all_reduce"), times=2.0)
    curve, message = judgement.curves
    assert against_model(message) is None
    model = require(against_model(curve))
    assert model["median_ratio"] == pytest.approx(2.0, rel=0.05)
    text = render([fits_table([("curve", curve), ("message", message)])])
    table = " ".join(text.replace("|", "").split())
    assert re.search(r"× the model's time \(segmented ring\), at least (?:2\.[5-9]|3)[\d.]* × the lower bound", table)


def test_a_curve_faster_than_its_lower_bound_says_so_as_a_caution() -> None:
    """Messages were slower than the all_reduce is made of, so that the bound is wrong."""
    (curve, _) = judged(*sweep("all_reduce"), times=0.25).curves
    share = require(against_model(curve))["best_bound_share"]
    assert share > 1.5
    table = " ".join(render([fits_table([("curve", curve)])]).replace("|", "").split())
    assert f"CAUTION: {share:.3g} times" in table
    assert "× the lower bound" not in table


def test_an_explanation_has_a_row_for_every_point() -> None:
    for curve in judged(*sweep("all_reduce"), *sweep("broadcast"), case("barrier", 0)).curves:
        if isinstance(curve.explanation, Explanation):
            assert len(curve.explanation.spent) == len(curve.series.points)
