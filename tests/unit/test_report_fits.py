"""What the report says of models over several curves: the words and numbers of ``busbw fit``, and nothing where it has
none.
"""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

from click.testing import CliRunner
from testing.synthetic import Machine, Piece, World, case, synthetic_run

from busbw.cli.main import main
from busbw.runs import store
from busbw.runs.records import Case
from busbw_analysis.data.load import pool
from busbw_analysis.diagnosis.judge import Judgement, judge, with_joint_fits
from busbw_analysis.fitting.joint import JointFit, OneRegime
from busbw_analysis.fitting.selection import Candidate
from busbw_analysis.report import compose
from busbw_analysis.report.document import Paragraph, Section, Table
from busbw_analysis.report.sections.models import fits
from busbw_analysis.report.tables.joint_fits import joint_sections
from busbw_analysis.report.to_terminal import render

SIZES = tuple(2**exponent for exponent in range(3, 23))
SAMPLE = Path(__file__).parents[2] / "results/samples/vm/20261121T081628.085Z-4ad500"


def sweep(op: str, ranks: int, sizes: tuple[int, ...] = SIZES, algorithm: str | None = None) -> list[Case]:
    return [case(op, size, ranks, algorithm=algorithm) for size in sizes]


def judged(*cases: Case, launches: int = 6) -> Judgement:
    world = World((Piece(20e-6, 1e-10),), sample_noise=0.02)
    return judge(pool((synthetic_run(cases, world, machine=Machine(usable_cores=16), launches=launches),)))


@cache
def usual(launches: int = 6) -> Judgement:
    ring = sweep("all_reduce", 8, algorithm="ring")
    return judged(*sweep("all_reduce", 8), *ring, *sweep("ping_pong", 2), launches=launches)


def joint_of(judgement: Judgement) -> tuple[OneRegime, ...]:
    return with_joint_fits([judgement])[0].regimes


def fits_of(judgement: Judgement) -> Section:
    return fits(with_joint_fits([judgement])[0])


@cache
def usual_fits(launches: int = 6) -> Section:
    return fits_of(usual(launches))


def tables_of(section: Section) -> dict[str, Table]:
    return {block.caption: block for block in section.blocks if isinstance(block, Table)}


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def prose(section: Section) -> str:
    return " ".join(block.text for block in section.blocks if isinstance(block, Paragraph))


def test_command_and_report_show_the_same_section() -> None:
    (together,), (one,) = usual_fits().parts, joint_of(usual())
    assert joint_sections([one]) == (together,)
    joint = joint_in(one)
    text = render([together])
    for name in joint.algorithms.values():
        assert name in text
    held_out = texts(tables_of(together)["Predictions of held-out data"])
    assert [line[-1] for line in held_out] == [check.note for check in joint.validations]
    for note in joint.notes:
        assert note[1:] in prose(together)


def joint_in(one: OneRegime) -> JointFit:
    assert one.joint is not None
    return one.joint


def test_verdicts_are_told_in_words() -> None:
    (together,) = usual_fits().parts
    told = prose(together)
    assert "One set of parameters for all_reduce and ping_pong on 2 and 8 ranks over gloo: α" in told
    assert "not validated on" in told


def test_only_what_launches_predict_too_is_called_validated() -> None:
    worlds = [World((Piece(slower * 20e-6, slower * 1e-10),)) for slower in (1.0, 1.5)]
    runs = [synthetic_run(sweep("ping_pong", 2), world, seed=seed, launches=1) for seed, world in enumerate(worlds)]
    section = fits_of(judge(pool(tuple(runs))))
    (curve,) = next(texts(block) for block in section.blocks if isinstance(block, Table))
    assert curve[4].startswith("not validated: each launch in turn is off by")


def test_the_json_has_what_the_command_has() -> None:
    judgement = judge(pool((store.read(SAMPLE),)))
    document = json.loads(compose.compose(judgement).json)
    said = json.loads(CliRunner().invoke(main, ["fit", str(SAMPLE), "--json"]).stdout)
    assert document["joint"] == said["joint"]
    assert len(document["joint"]) == 2


def test_markdown_and_html_have_it() -> None:
    written = compose.compose(usual())
    for text in (written.text, written.html):
        assert "All curves in one fit: one host" in text
        assert "per byte through the link of one rank" in text


def test_without_intervals_their_columns_go_and_the_reason_stands() -> None:
    few, enough = (tables_of(usual_fits(launches).parts[0]) for launches in (3, 6))
    told = few["Parameters of all curves together"]
    assert [column.name for column in told.columns] == ["Parameter", "Value", "Note"]
    assert "no interval: 3 launches; 5 are needed" in told.note
    assert "Low" in [column.name for column in enough["Parameters of all curves together"].columns]


def test_what_cannot_be_told_apart_says_what_would_tell_it() -> None:
    judgement = judged(*sweep("ping_pong", 2))
    (together,) = fits_of(judgement).parts
    ((alone, remedy), *_) = texts(tables_of(together)["Not separated by these data"])
    assert "do not separate α and c0" in alone
    assert remedy.startswith("add ")
    assert "α + c0 only as a sum" in prose(together)


def test_all_that_competed_are_there_to_be_opened() -> None:
    (one,) = joint_of(usual())
    joint = replace(joint_in(one), candidates={"all_reduce": (Candidate("ring", 0.012, 0.01),)})
    (section,) = joint_sections([replace(one, joint=joint)])
    table = tables_of(section)["All candidate algorithms"]
    assert table.folded
    assert texts(table) == [["all_reduce", "ring", "1.20", "1.00"]]


def test_a_joint_fit_that_is_refused_says_why() -> None:
    judgement = judged(*sweep("all_reduce", 4, SIZES[:3]))
    (section,) = fits_of(judgement).parts
    (one,) = joint_of(judgement)
    assert one.refused
    assert one.refused in prose(section)


def test_where_no_message_was_sent_there_is_no_joint_fit() -> None:
    judgement = judged(case("memory_copy", 1 << 20), case("memory_copy", 1 << 24))
    assert fits_of(judgement).parts == ()
    document = json.loads(compose.compose(judgement).json)
    assert document["joint"] == []
