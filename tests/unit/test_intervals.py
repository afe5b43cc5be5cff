"""What is said over launches covers what it promises, measured with a known truth and fixed seeds."""

import numpy as np
import pytest
from testing.narrow import require

from busbw.statistics import median_interval
from busbw_analysis.data.intervals import Interval, interval_of, resampled


@pytest.mark.parametrize("launches", [6, 7, 10, 13])
def test_the_interval_lies_within_the_one_that_covers_more(launches: int) -> None:
    values = np.random.default_rng(launches).lognormal(0, 0.03, launches)
    wide = median_interval(values)
    interval = interval_of(values)
    assert interval.low_ns is not None
    assert interval.high_ns is not None
    assert wide.low is not None
    assert wide.high is not None
    assert wide.low <= interval.low_ns <= np.median(values) <= interval.high_ns <= wide.high
    assert interval.high_ns - interval.low_ns < wide.high - wide.low


def test_ten_launches_by_hand() -> None:
    """Ranks 2 and 9 cover 1 − 22/1024, ranks 3 and 8 cover 1 − 112/1024; the formula of Hettmansperger and Sheather."""
    wide, narrow = 1 - 22 / 1024, 1 - 112 / 1024
    excess = (wide - 0.95) / (wide - narrow)
    inwards = 8 * excess / (2 + 6 * excess)
    interval = interval_of(range(1, 11))
    assert interval.low_ns == pytest.approx(2 + inwards)
    assert interval.high_ns == pytest.approx(9 - inwards)
    assert interval.kind == "95 % over launches"


def test_five_launches_have_a_range_and_one_has_nothing() -> None:
    assert interval_of(range(5)) == Interval(0.0, 4.0, "range of launch medians")
    assert interval_of([3.0]) == Interval(None, None, "none")


@pytest.mark.parametrize("launches", [6, 8, 10])
def test_it_covers_the_true_median_as_often_as_promised(launches: int) -> None:
    generator = np.random.default_rng(1)
    draws = generator.exponential(1.0, (1000, launches))
    ends = [interval_of(values) for values in draws]
    covered = sum((end.low_ns or 0) <= np.log(2) <= (end.high_ns or 0) for end in ends)
    # Three standard errors of 1000 trials are 2.1 %.
    assert 0.92 <= covered / 1000 <= 0.97


def test_the_bootstrap_of_a_mean_is_as_wide_as_students() -> None:
    values = np.random.default_rng(2).normal(10, 1, 30)
    bootstrap = resampled(values.tolist())
    half = 2.045 * values.std(ddof=1) / np.sqrt(30)
    assert bootstrap.value == pytest.approx(values.mean())
    assert (require(bootstrap.high) - require(bootstrap.low)) / 2 == pytest.approx(half, rel=0.06)


def test_the_bootstrap_covers_the_truth_with_ten_launches() -> None:
    generator = np.random.default_rng(4)
    covered = 0
    for _ in range(300):
        launches = [value + generator.exponential(1.0, 20) for value in generator.normal(0, 0.3, 10)]
        bootstrap = resampled([float(np.mean(samples)) for samples in launches])
        covered += (bootstrap.low or 0) <= 1 <= (bootstrap.high or 0)
    assert 0.92 <= covered / 300 <= 0.98


def test_the_same_numbers_give_the_same_interval() -> None:
    medians = np.median(np.random.default_rng(5).lognormal(0, 0.1, (8, 30)), axis=1).tolist()
    assert resampled(medians) == resampled(medians)
