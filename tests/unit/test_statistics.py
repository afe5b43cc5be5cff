"""Intervals of the median and autocorrelation times: against scipy, by simulation, and where the truth is known."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter
from scipy.stats import quantile_test
from testing.narrow import require

from busbw.statistics import MedianInterval, autocorrelation_time, autocorrelation_times, median_interval, spreads

COUNTS = [*range(1, 121), 284, 999, 1000, 1001, 1500, 2000, 4000, 19_999, 20_000]


@pytest.mark.parametrize("confidence", [0.6, 0.9, 0.95, 0.99])
def test_the_interval_is_that_of_scipy(confidence: float) -> None:
    for count in COUNTS:
        values = np.arange(count, dtype=np.float64)
        oracle: Any = quantile_test(values, p=0.5).confidence_interval(confidence_level=confidence)
        ours = median_interval(values, confidence=confidence)
        low = math.nan if ours.low is None else ours.low
        high = math.nan if ours.high is None else ours.high
        assert (low, high) == pytest.approx((oracle.low, oracle.high), nan_ok=True), count


def test_fewer_than_six_values_have_no_interval() -> None:
    assert median_interval([3, 1, 2, 5, 4]) == MedianInterval(3.0, None, None)
    assert median_interval([3, 1, 2, 5, 4]).relative_half_width == math.inf
    assert median_interval([3, 1, 2, 5, 4, 6]) == MedianInterval(3.5, 1.0, 6.0)


def test_a_far_value_moves_an_end_of_the_interval_and_not_the_median() -> None:
    assert median_interval([1, 2, 3, 4, 5, 1000]) == MedianInterval(3.5, 1.0, 1000.0)


def test_the_spread_is_half_of_what_nine_in_ten_values_span_over_the_median() -> None:
    assert spreads(np.arange(50.0, 151)[np.newaxis]) == pytest.approx((145 - 55) / 2 / 100)


def test_the_half_width_is_relative_to_the_median() -> None:
    assert MedianInterval(10.0, 9.0, 13.0).relative_half_width == pytest.approx(0.2)
    assert MedianInterval(0.0, -1.0, 1.0).relative_half_width == math.inf


@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_the_order_of_the_values_does_not_matter(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert median_interval(shuffled) == median_interval(values)


@given(st.lists(st.floats(1, 1e9), min_size=6, max_size=60), st.floats(1, 20))
def test_correlation_only_widens_the_interval(values: list[float], tau: float) -> None:
    free, correlated = median_interval(values), median_interval(values, tau=tau)
    assert free.low is not None
    assert free.high is not None
    assert free.low <= free.median <= free.high
    if correlated.low is not None and correlated.high is not None:
        assert correlated.low <= free.low
        assert correlated.high >= free.high


def test_the_ends_are_symmetric_and_whole_fractions_are_not_rounded_down() -> None:
    """29 of 100 is the 29th value, though 29 / 100 * 100 is 28.999999999999996."""
    for count in range(6, 400):
        interval = median_interval(np.arange(count))
        assert require(interval.low) + require(interval.high) == count - 1


@pytest.mark.parametrize("count", [6, 10, 31, 100, 1001])
def test_the_interval_covers_the_median_as_often_as_it_says(count: int) -> None:
    """Skewed values, seeded: at least 95 % coverage (it is conservative), and not by being absurdly wide."""
    random = np.random.default_rng(20260101)
    trials = 1000
    truth = math.exp(0)
    covered = 0
    for _ in range(trials):
        interval = median_interval(random.lognormal(0, 1, count))
        assert interval.low is not None
        assert interval.high is not None
        covered += interval.low <= truth <= interval.high
    assert 0.935 <= covered / trials <= 0.99


def first_order(random: np.random.Generator, count: int, coefficient: float) -> npt.NDArray[np.float64]:
    """An AR(1) series that starts in its stationary distribution."""
    noise = random.normal(0, 1, count)
    noise[0] /= math.sqrt(1 - coefficient**2)
    series: npt.NDArray[np.float64] = lfilter([1.0], [1.0, -coefficient], noise)
    return series


def true_tau(coefficient: float) -> float:
    """Of the indicator "above the median" of AR(1): its correlation at lag k is (2 / π) arcsin(coefficient^k)."""
    lags = np.arange(1, 10_000)
    return float(1 + 2 * np.sum(2 / np.pi * np.arcsin(coefficient**lags)))


@pytest.mark.parametrize("coefficient", [0.0, 0.3, 0.6, 0.9, 0.97])
def test_the_autocorrelation_time_of_a_known_process(coefficient: float) -> None:
    random = np.random.default_rng(7)
    estimates = [autocorrelation_time(first_order(random, 20_000, coefficient)) for _ in range(20)]
    assert np.mean(estimates) == pytest.approx(true_tau(coefficient), rel=0.1)


def test_correlated_values_are_covered_only_with_their_tau() -> None:
    random = np.random.default_rng(11)
    plain = corrected = 0
    trials = 400
    for _ in range(trials):
        series = first_order(random, 2000, 0.9)
        free, honest = median_interval(series), median_interval(series, tau=autocorrelation_time(series))
        assert free.low is not None
        assert free.high is not None
        assert honest.low is not None
        assert honest.high is not None
        plain += free.low <= 0 <= free.high
        corrected += honest.low <= 0 <= honest.high
    assert plain / trials < 0.6
    assert corrected / trials > 0.9


@given(st.lists(st.lists(st.integers(1, 9), min_size=23, max_size=23), min_size=1, max_size=8))
@settings(max_examples=200, deadline=None)
def test_autocorrelation_of_many_is_that_of_each_to_the_last_bit(rows: list[list[int]]) -> None:
    samples = np.asarray(rows, dtype=np.float64)
    assert autocorrelation_times(samples).tolist() == [autocorrelation_time(row) for row in samples]


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0, 3.0], [5.0] * 100, list(range(100))[::-1]])
def test_the_autocorrelation_time_of_degenerate_series_is_a_number(values: list[float]) -> None:
    assert 1.0 <= autocorrelation_time(values) <= 2 * len(values)


def test_alternating_values_do_not_count_for_more_than_free_ones() -> None:
    assert autocorrelation_time([1.0, 2.0] * 500) == 1.0


def test_one_outlier_decides_nothing() -> None:
    random = np.random.default_rng(3)
    values = random.normal(100, 1, 2000)
    calm = autocorrelation_time(values)
    values[1000] = 1e9
    assert autocorrelation_time(values) == pytest.approx(calm, rel=0.1)
