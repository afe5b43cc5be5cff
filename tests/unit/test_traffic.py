"""Uneven traffic: nothing is lost in rounding, nobody exceeds S, somebody reaches it, and bad matrices are refused."""

from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from busbw.errors import UsageError
from busbw.ops import traffic
from busbw.ops.base import Matrix

weights = st.integers(1, 8).flatmap(
    lambda side: st.lists(
        st.lists(
            st.one_of(st.just(0.0), st.floats(1e-3, 1e3), st.integers(0, 9).map(float)), min_size=side, max_size=side
        ),
        min_size=side,
        max_size=side,
    )
)


def busiest(split: Matrix) -> int:
    """The most elements that any rank sends or receives."""
    return max(*map(sum, split), *map(sum, zip(*split, strict=True)))


@given(weights, st.integers(0, 1 << 34))
@settings(deadline=None)
def test_nobody_sends_or_receives_more_than_the_size_and_the_busiest_reaches_it(
    matrix: list[list[float]], count: int
) -> None:
    assume(any(map(any, matrix)))
    checked = traffic.checked_weights(matrix, "of the test")
    split = traffic.split(checked, count)
    side = len(matrix)
    assert all(share >= 0 for row in split for share in row)
    assert max(map(sum, split)) <= count
    assert max(map(sum, zip(*split, strict=True))) <= count
    assert count - side < busiest(split) <= count or count == 0
    assert all(
        share == 0
        for row, given in zip(split, matrix, strict=True)
        for share, weight in zip(row, given, strict=True)
        if weight == 0
    )


@given(weights, st.integers(1, 1 << 30))
@settings(deadline=None, max_examples=50)
def test_shares_are_in_proportion_to_within_an_element(matrix: list[list[float]], count: int) -> None:
    assume(any(map(any, matrix)))
    heaviest = max(*map(sum, matrix), *map(sum, zip(*matrix, strict=True)), 0)
    for row, given_row in zip(traffic.split(traffic.checked_weights(matrix, ""), count), matrix, strict=True):
        for share, weight in zip(row, given_row, strict=True):
            assert abs(share - weight * count / heaviest) <= 1.001


@given(st.integers(1, 40), st.floats(0, 1))
def test_an_imbalance_keeps_the_volume_and_heats_the_last_rank(ranks: int, imbalance: float) -> None:
    rows = traffic.imbalanced(ranks, imbalance)
    assert len(set(rows)) == 1, "all ranks send alike"
    assert sum(rows[0]) == pytest.approx(ranks)
    assert list(rows[0]) == sorted(rows[0])
    if ranks > 1:
        assert rows[0][0] == pytest.approx(1 - imbalance)
        assert rows[0][-1] == pytest.approx(1 + imbalance)


@pytest.mark.parametrize("imbalance", [-0.1, 1.1, float("nan"), float("inf")])
def test_an_imbalance_has_limits(imbalance: float) -> None:
    with pytest.raises(UsageError):
        traffic.imbalanced(4, imbalance)


def test_what_stays_at_home_does_not_cross() -> None:
    assert traffic.crossing(((5, 1), (2, 7))) == 3
    assert traffic.crossing(((5,),)) == 0


@given(weights, st.integers(0, 1 << 20))
@settings(deadline=None, max_examples=30)
def test_crossing_counts_everything_but_the_diagonal(matrix: list[list[float]], count: int) -> None:
    assume(any(map(any, matrix)))
    split = traffic.split(traffic.checked_weights(matrix, ""), count)
    foreign = sum(share for s, row in enumerate(split) for d, share in enumerate(row) if s != d)
    assert traffic.crossing(split) == foreign


def test_a_fingerprint_tells_matrices_apart() -> None:
    first, second = traffic.fingerprint(((1.0, 2.0), (3.0, 4.0))), traffic.fingerprint(((1.0, 2.0), (3.0, 4.5)))
    assert first != second
    assert len(first) == len(second) == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1,2\n3\n", "square"),
        ("1,2\n", "square"),
        ("", "square"),
        ("1,x\n3,4\n", "numbers"),
        ("1,-2\n3,4\n", "≥ 0"),
        ("0,0\n0,0\n", "zeros"),
        ("nan,1\n1,1\n", "finite"),
        ("inf,1\n1,1\n", "finite"),
    ],
)
def test_a_matrix_that_is_none_is_refused_with_its_path(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a 0.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=said) as caught:
        traffic.read_weights(path)
    assert str(path) in str(caught.value)


def test_a_matrix_is_read_with_spaces_and_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("0, 2\n\n 1.5 ,0\n", encoding="utf-8")
    assert traffic.read_weights(path) == ((0.0, 2.0), (1.5, 0.0))
    with pytest.raises(UsageError):
        traffic.read_weights(tmp_path / "absent.csv")


@given(st.integers(1, 40), st.floats(0, 1), st.integers(0, 1 << 30))
@settings(deadline=None, max_examples=50)
def test_the_hot_rank_of_an_imbalance_receives_exactly_the_size(ranks: int, imbalance: float, count: int) -> None:
    assert busiest(traffic.split(traffic.imbalanced(ranks, imbalance), count)) == count


@given(weights, st.integers(0, 1 << 20))
@settings(deadline=None, max_examples=50)
def test_where_one_rank_alone_is_busiest_it_gets_exactly_the_size(matrix: list[list[float]], count: int) -> None:
    lonely = [row if number else [weight + 10_000.0 for weight in row] for number, row in enumerate(matrix)]
    assert sum(traffic.split(traffic.checked_weights(lonely, ""), count)[0]) == count
