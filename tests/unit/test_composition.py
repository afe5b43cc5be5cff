"""An all-reduce beside a reduce-scatter and an all-gather one after the other: the same sizes, measured in one way."""

import json

import pytest
from testing.synthetic import Piece, World, case, synthetic_run

from busbw.runs.records import Case
from busbw_analysis.assembly import compose
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import pool
from busbw_analysis.diagnosis.equivalents import compositions_of
from busbw_analysis.diagnosis.judge import Judgement

MIB = 1 << 20
WORLD = World(
    by_op={
        "all_reduce": (Piece(0.0, 3e-9),),
        "reduce_scatter": (Piece(0.0, 2e-9),),
        "all_gather": (Piece(0.0, 1.6e-9),),
    },
    sample_noise=0.0,
    launch_noise=0.0,
    jitter_seconds=0.0,
)


def judged(cases: list[Case]) -> Judgement:
    return judge(pool((synthetic_run(cases, WORLD, samples=5),)))


def test_the_sum_stands_beside_the_all_reduce_where_all_three_were_measured() -> None:
    cases = [case(op, size) for op in ("all_reduce", "reduce_scatter", "all_gather") for size in (MIB, 4 * MIB)]
    judgement = judged([*cases, case("all_reduce", 16 * MIB), case("all_gather", 64 * MIB)])
    found = compositions_of(judgement.curves)
    assert [one.size_bytes for one in found] == [MIB, 4 * MIB]
    for one in found:
        assert one.sum_ns == pytest.approx(3.6e-9 * one.size_bytes * 1e9, rel=1e-3)
        assert one.ratio == pytest.approx(1.2, rel=1e-3)
    written = compose.compose(judgement)
    assert [one["ratio"] for one in json.loads(written.json)["compositions"]] == [one.ratio for one in found]
    assert written.text.count("| 1.20 |") == 2


@pytest.mark.parametrize(
    "other",
    [
        case("all_gather", MIB, dtype="float64"),
        case("all_gather", MIB, mode="pipelined"),
        case("all_gather", MIB, algorithm="ring"),
        case("all_gather", 2 * MIB),
    ],
)
def test_what_was_measured_in_another_way_or_at_another_size_is_not_added(other: Case) -> None:
    judgement = judged([case("all_reduce", MIB), case("reduce_scatter", MIB), other])
    assert compositions_of(judgement.curves) == ()
