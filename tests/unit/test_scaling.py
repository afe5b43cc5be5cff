"""The picture over numbers of ranks: which lines are in it, and what is said of the others."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from testing.synthetic import Machine, World, case, synthetic_run

from busbw_analysis.models.select import candidates
from busbw_analysis.predict.forecast import Value
from busbw_analysis.predict.selection import PredictionQuery, measured_curves, query, read_results
from busbw_analysis.predict.ways import Line, Scaling, Ways, scaling
from busbw_analysis.report.predict import draw

MIB = 1 << 20
COUNTS = (2, 4, 8, 65536)
SIZES = tuple(64 * 8**step for step in range(6))


def line(algorithm: str, seconds: float, *, chosen: bool = False, hosts: int = 1) -> Line:
    term = next(term for term in candidates("all_reduce", "gloo") if term.algorithm == algorithm)
    points = tuple((ranks, Value(seconds * ranks, None, None)) for ranks in COUNTS)
    return Line(algorithm, chosen, points, term.at_once(COUNTS[-1], hosts, MIB))


def labels(*lines: Line, ranks: int = 8, hosts: int = 1) -> list[str]:
    return legend(Scaling(PredictionQuery("all_reduce", ranks, hosts, (MIB,)), MIB, lines, (), ()))


def legend(shown: Scaling) -> list[str]:
    return [text.get_text() for text in draw(shown, "all_reduce over gloo").legends[0].get_texts()]


def test_lines_that_win_only_because_thousands_of_messages_cost_one_delay_are_named_and_not_drawn() -> None:
    said = labels(
        line("segmented ring (gloo)", 2e-5, chosen=True), line("sharded-parameter-server", 1e-6), line("ring", 2e-5)
    )
    assert said[2].startswith("not drawn: sharded-parameter-server")


@pytest.mark.parametrize("name", ["double-ring", "multi-ring", "double-tree", "4-ary-tree", "segmented-ring"])
def test_a_few_messages_at_once_are_no_reason_to_leave_a_line_out(name: str) -> None:
    hosts = COUNTS[-1] // 8
    assert labels(line("ring", 2e-5, chosen=True), line(name, 1e-5, hosts=hosts), ranks=16, hosts=2)[1] == name


def test_the_algorithm_that_was_asked_for_is_drawn_with_what_its_formula_leaves_out() -> None:
    (said, _) = labels(line("direct", 1e-6, chosen=True))
    assert said == "direct, used for the prediction, as if concurrent messages cost one α together"


@cache
def over_open_mpi(op: str, size: int) -> Scaling:
    sizes: Sequence[int] = (0,) if op == "barrier" else SIZES
    facts = {"mpi": {"library": "Open MPI v5.0.8", "threads": "funneled"}}
    stored = [
        synthetic_run(
            [case(op, each_size, ranks, backend="mpi") for each_size in sizes]
            + [case("ping_pong", each_size, ranks, backend="mpi") for each_size in SIZES],
            World(),
            machine=Machine(usable_cores=64, facts=facts),
            samples=7,
            seed=ranks,
        )
        for ranks in (2, 4, 8)
    ]
    known = measured_curves(read_results(stored), op)
    return scaling(Ways(known), query(known, 64, [size] if size else []))


@pytest.mark.parametrize(
    ("op", "names"),
    [("broadcast", ("linear", "4-nomial-tree-at-once", "binomial-tree-at-once")), ("barrier", ("linear-at-once",))],
)
def test_what_only_a_library_sends_at_once_is_no_better_drawn(op: str, names: Sequence[str]) -> None:
    said = legend(over_open_mpi(op, 0 if op == "barrier" else SIZES[0]))
    (left_out,) = (label for label in said if label.startswith("not drawn: "))
    untrue = left_out.removeprefix("not drawn: ").partition("\n")[0].split(", ")
    drawn = [label.partition(",")[0] for label in said if label != left_out]
    assert set(names) <= {*untrue, *drawn}
    assert not set(names) & set(drawn)
    assert set(drawn) & {"binomial-tree", "recursive-doubling"}


@pytest.mark.parametrize(("op", "many"), [("broadcast", True), ("all_gather", False)])
def test_a_table_that_leads_to_many_messages_at_once_says_so(op: str, many: bool) -> None:  # noqa: FBT001
    line = next(line for line in over_open_mpi(op, SIZES[0]).lines if line.algorithm.startswith("choice of Open MPI"))
    (said, _) = labels(replace(line, chosen=True))
    finding = ", as if concurrent messages cost one α together"
    assert said == f"choice of Open MPI 5.0.8, used for the prediction{finding if many else ''}"
