"""Kendall's τ and the Theil–Sen slope, held against SciPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau, theilslopes

from busbw_analysis.data.rank_statistics import kendall, theil_sen

NUMBERS = st.integers(0, 30) | st.floats(0.1, 10)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=50))
def test_tau_and_its_p_are_those_of_scipy(points: list[tuple[float, float]]) -> None:
    ours, theirs = kendall(*zip(*points, strict=True)), kendalltau(*zip(*points, strict=True), alternative="less")
    assert ours.tau == pytest.approx(float(theirs.statistic), nan_ok=True)
    assert ours.p_falls == pytest.approx(float(theirs.pvalue), nan_ok=True, abs=1e-12)


@pytest.mark.parametrize("count", [33, 34, 200])
def test_an_order_without_ties_has_the_p_of_scipy(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count) - 0.01 * np.arange(count)
    assert kendall(range(count), values).p_falls == pytest.approx(
        float(kendalltau(range(count), values, alternative="less").pvalue)
    )


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=3, max_size=40, unique_by=lambda point: point[0]))
def test_the_slope_and_its_interval_are_those_of_scipy(points: list[tuple[float, float]]) -> None:
    at, values = np.array(points, dtype=float).T
    theirs = theilslopes(values, at, 0.95)
    ours = theil_sen(at, values)
    assert ours == pytest.approx((float(theirs.slope), float(theirs.low_slope), float(theirs.high_slope)))


def test_points_that_all_share_their_height_have_no_slope() -> None:
    assert theil_sen([0, 0, 1], [5, 5, 5]) == (0, 0, 0)
