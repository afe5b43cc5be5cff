"""Fits in the report: those of ``busbw fit``, and the reason why one is not validated."""

from testing.synthetic import Piece, World, case, synthetic_run

from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import pool
from busbw_analysis.report.document import Table
from busbw_analysis.report.models import fits

SIZES = tuple(2**exponent for exponent in range(3, 23))


def test_only_what_launches_predict_too_is_called_validated() -> None:
    worlds = [World((Piece(slower * 20e-6, slower * 1e-10),)) for slower in (1.0, 1.5)]
    cases = [case("ping_pong", size, 2) for size in SIZES]
    runs = [synthetic_run(cases, world, seed=seed, launches=1) for seed, world in enumerate(worlds)]
    section = fits(judge(pool(tuple(runs))))
    (curve,) = next(
        [[cell.text for cell in row] for row in block.rows] for block in section.blocks if isinstance(block, Table)
    )
    assert curve[4].startswith("not validated: each launch in turn is off by")
