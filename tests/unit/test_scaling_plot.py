"""The picture over numbers of ranks: which lines are in it, and what is said of the others."""

import pytest

from busbw_analysis.prediction import Line, Question, Scaling
from busbw_analysis.scaling_plot import draw
from busbw_analysis.theory.laws import Value

MIB = 1 << 20
COUNTS = (2, 4, 8, 65536)


def line(algorithm: str, seconds: float, *, chosen: bool = False) -> Line:
    return Line(algorithm, chosen, False, tuple((ranks, Value(seconds * ranks, None, None)) for ranks in COUNTS))


def labels(*lines: Line, ranks: int = 8, hosts: int = 1) -> list[str]:
    figure = draw(Scaling(Question("all_reduce", ranks, hosts, (MIB,)), MIB, lines, (), ()), "all_reduce over gloo")
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_lines_that_win_only_because_thousands_of_messages_cost_one_delay_are_named_and_not_drawn() -> None:
    said = labels(line("ring (gloo)", 2e-5, chosen=True), line("sharded-parameter-server", 1e-6), line("ring", 2e-5))
    assert said[:2] == ["ring (gloo), the model that answers", "ring"]
    assert said[2].startswith("not drawn: sharded-parameter-server")
    assert "as if messages sent at once cost one α together" in said[2]


@pytest.mark.parametrize("name", ["double-ring", "multi-ring", "double-tree", "4-ary-tree", "segmented-ring"])
def test_a_few_messages_at_once_are_no_reason_to_leave_a_line_out(name: str) -> None:
    assert labels(line("ring", 2e-5, chosen=True), line(name, 1e-5), ranks=16, hosts=2)[1] == name


def test_the_algorithm_that_was_asked_for_is_drawn_with_what_its_formula_leaves_out() -> None:
    (said, _) = labels(line("direct", 1e-6, chosen=True))
    assert said == "direct, the model that answers, as if messages sent at once cost one α together"
