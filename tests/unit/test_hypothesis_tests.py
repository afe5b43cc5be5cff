"""The test and the estimate against scipy and against known truths: they know launches and nothing finer."""

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, wilcoxon
from testing.narrow import require
from testing.noise import Noise, simulated

from busbw.errors import AnalysisError
from busbw_analysis.diagnosis.hypothesis_tests import (
    MOST_DIFFERENCE,
    Estimate,
    Launches,
    adjusted,
    estimate,
    launches_needed,
    percent,
    scatter_in_words,
    shown_from,
    verdicts,
)


def side(name: str, values: "np.typing.ArrayLike") -> dict[tuple[str, int], float]:
    return {(name, number): float(value) for number, value in enumerate(np.asarray(values))}


def paired(side_a: Launches, side_b: Launches) -> Estimate:
    return estimate(side_a, side_b, list(zip(side_a, side_b, strict=True)))


def rejected(comparison: Estimate) -> bool:
    return comparison.p_value is not None and comparison.p_value <= 0.05


positive = st.floats(0.5, 2.0).map(lambda value: round(value, 6))


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(positive, min_size=4, max_size=9, unique=True), st.lists(positive, min_size=4, max_size=9, unique=True))
def test_the_rank_sum_p_is_that_of_scipy(first: list[float], second: list[float]) -> None:
    if set(first) & set(second):
        return
    expected = mannwhitneyu(second, first, method="exact").pvalue
    assert estimate(side("a", first), side("b", second)).p_value == pytest.approx(expected)


def test_very_many_launches_are_compared_as_scipy_does() -> None:
    generator = np.random.default_rng(6)
    first, second = generator.lognormal(0, 0.1, 300), generator.lognormal(0.015, 0.1, 80)
    expected = mannwhitneyu(second, first, method="asymptotic").pvalue
    comparison = estimate(side("a", first), side("b", second))
    assert comparison.p_value == pytest.approx(expected, rel=1e-3)
    assert rejected(comparison) == (not (comparison.low or 0) <= 1 <= (comparison.high or 0))


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(positive, min_size=4, max_size=14, unique=True))
def test_the_signed_rank_p_is_that_of_scipy(ratios: list[float]) -> None:
    steps = np.log(ratios)
    if len(np.unique(np.abs(steps))) < len(steps) or (steps == 0).any():
        return
    comparison = paired(side("a", np.ones(len(ratios))), side("b", ratios))
    assert comparison.p_value == pytest.approx(wilcoxon(steps, method="exact").pvalue)


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(positive, min_size=4, max_size=10), st.lists(positive, min_size=4, max_size=10), st.booleans())
def test_interval_and_test_never_contradict_each_other(first: list[float], second: list[float], pair: bool) -> None:  # noqa: FBT001
    side_a, side_b = side("a", first), side("b", second)
    comparison = (
        paired(side_a, side("b", second[: len(first)]))
        if pair and len(second) >= len(first)
        else estimate(side_a, side_b)
    )
    if comparison.low is None or comparison.high is None:
        assert not rejected(comparison)
        return
    assert comparison.low <= comparison.ratio <= comparison.high
    assert rejected(comparison) == (not comparison.low <= 1 <= comparison.high)


def test_the_ratio_is_hodges_lehmanns_and_b_over_a() -> None:
    first, second = np.array([10.0, 11.0, 12.0, 13.0, 30.0]), np.array([21.0, 22.0, 24.0, 26.0])
    expected = np.exp(np.median(np.log(second[:, np.newaxis] / first)))
    comparison = estimate(side("a", first), side("b", second))
    assert comparison.ratio == pytest.approx(expected)
    assert estimate(side("b", second), side("a", first)).ratio == pytest.approx(1 / expected)


def test_pairing_removes_what_neighbours_share() -> None:
    generator = np.random.default_rng(1)
    drift = generator.lognormal(0, 0.3, 10)
    side_a, side_b = side("a", drift * generator.lognormal(0, 0.01, 10)), side("b", 1.05 * drift)
    assert rejected(paired(side_a, side_b))
    assert not rejected(estimate(side_a, side_b))
    assert (paired(side_a, side_b).scatter or 1) < (estimate(side_a, side_b).scatter or 0) / 10


@pytest.mark.parametrize("launches", [1, 2, 3])
def test_fewer_than_four_launches_never_tell(launches: int) -> None:
    side_a, side_b = side("a", np.linspace(1, 1.01, 10)), side("b", np.linspace(100, 101, launches))
    comparison = estimate(side_a, side_b)
    assert (comparison.low, comparison.high, comparison.p_value) == (None, None, None)
    (verdict,) = verdicts([comparison], 0.05)
    assert verdict.word == "cannot tell"
    assert require(verdict.needed).launches >= 4
    assert verdict.fewest == 4


def test_one_launch_a_side_shows_no_scatter() -> None:
    comparison = estimate(side("a", [1.0]), side("b", [1.0]))
    assert comparison.scatter is None
    assert verdicts([comparison], 0.05)[0].needed is None


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [1.0, math.nan], [-1.0], [math.inf]])
def test_what_is_no_time_is_refused(values: list[float]) -> None:
    with pytest.raises(AnalysisError, match="positive"):
        estimate(side("a", values), side("b", [1.0]))


def _estimated(ratio: float, low: float, high: float, p: float) -> Estimate:
    return Estimate(ratio, low, high, p, (10, 10), 0.03, paired=False)


@pytest.mark.parametrize(
    ("p_values", "by_hand"),
    [([0.01, 0.04, 0.03, 0.005], (0.03, 0.06, 0.06, 0.02)), ([], ()), ([0.9, 0.8], (1.0, 1.0))],
)
def test_holm_by_hand(p_values: list[float], by_hand: tuple[float, ...]) -> None:
    assert adjusted([_estimated(1.0, 0.9, 1.1, p_value) for p_value in p_values]) == pytest.approx(by_hand)


def test_the_words() -> None:
    words = [
        (_estimated(1.1, 1.05, 1.15, 0.001), "slower"),
        (_estimated(0.9, 0.85, 0.95, 0.001), "faster"),
        (_estimated(1.0, 0.96, 1.04, 0.9), "equal"),
        (_estimated(1.02, 1.01, 1.03, 0.001), "equal"),
        (_estimated(1.04, 0.98, 1.1, 0.2), "cannot tell"),
    ]
    for comparison, word in words:
        assert verdicts([comparison], 0.05)[0].word == word
    assert verdicts([words[3][0]], 0.0)[0].word == "slower"


def test_many_tests_need_more_evidence_each() -> None:
    lone = _estimated(1.1, 1.01, 1.2, 0.02)
    others = [_estimated(1.0, 0.9, 1.1, 0.9)] * 2
    assert verdicts([lone], 0.05)[0].word == "slower"
    (first, *_) = verdicts([lone, *others], 0.05)
    assert first.word == "cannot tell"
    assert first.adjusted_p == pytest.approx(0.06)


def test_the_launches_needed_grow_with_scatter_and_with_the_number_of_tests() -> None:
    needed = [launches_needed(scatter, 0.05) or 0 for scatter in (0.0, 0.01, 0.03, 0.1)]
    assert needed == sorted(needed)
    assert needed[0] == 4
    assert (launches_needed(0.03, 0.05, 10) or 0) > needed[2]
    assert launches_needed(0.0, 0.05, paired=True) == 6
    assert launches_needed(3.0, 0.05) is None


# --- known truths, fixed seeds -------------------------------------------------------------------------------------


def _share(trial: Callable[[np.random.Generator], bool], trials: int) -> float:
    generator = np.random.default_rng(2026)
    return sum(trial(generator) for _ in range(trials)) / trials


def _medians(
    generator: np.random.Generator, noise: Noise, cases: int, launches: int = 20
) -> "np.typing.NDArray[np.float64]":
    medians = np.median(simulated(noise, generator, launches=launches, cases=cases, samples=60), axis=2)
    return np.asarray(np.exp(np.log(medians).mean(axis=0)))


@pytest.mark.parametrize("noise", [Noise(), Noise(slow_share=0.1)])
def test_like_sides_are_called_different_about_as_often_as_allowed(noise: Noise) -> None:
    def alarm(generator: np.random.Generator) -> bool:
        values = _medians(generator, noise, 1)
        return rejected(estimate(side("a", values[::2]), side("b", values[1::2])))

    # The exact test of 10 against 10 has size 4.3 %; 300 trials have a standard error of 1.2 %.
    assert 0.01 <= _share(alarm, 300) <= 0.08


def test_a_slowdown_of_a_twentieth_is_found_in_a_band_of_four_sizes() -> None:
    def slower(generator: np.random.Generator) -> bool:
        values = _medians(generator, Noise(shared=0.25), 4)
        return verdicts([estimate(side("a", values[::2]), side("b", 1.05 * values[1::2]))], 0.05)[0].word == "slower"

    assert _share(slower, 150) >= 0.9


@pytest.mark.parametrize(
    ("launches", "ratio", "detects"),
    [
        pytest.param(6, 1.3, 0.05, id="too few to find 5 %"),
        pytest.param(30, 1.03, 0.03, id="enough for 5 %, so what was found"),
        pytest.param(30, 1.001, None, id="enough for 5 %, and sooner shown equal than found"),
    ],
)
def test_the_launches_said_to_be_needed_detect_what_they_are_said_to(
    launches: int, ratio: float, detects: float | None
) -> None:
    unsure = Estimate(ratio, 0.9, 1.4, 0.2, (launches, launches), scatter=0.05, paired=False)
    needed = require(verdicts([unsure], 0.05)[0].needed)
    assert needed.launches > launches
    assert needed.detects == (None if detects is None else pytest.approx(detects))

    def decided(generator: np.random.Generator) -> bool:
        first, second = generator.lognormal(0, 0.05, (2, needed.launches))
        comparison = estimate(side("a", first), side("b", second * (1 + (detects or 0.0))))
        return (
            verdicts([comparison], 0.05)[0].word == "equal"
            if detects is None
            else rejected(comparison) and comparison.ratio > 1
        )

    assert _share(decided, 300) >= 0.75, "80 % is said; 300 trials have a standard error of 2.3 %"


def test_the_interval_covers_the_true_ratio() -> None:
    def covered(generator: np.random.Generator) -> bool:
        values = _medians(generator, Noise(), 1)
        comparison = estimate(side("a", values[::2]), side("b", 1.3 * values[1::2]))
        return (comparison.low or 0) <= 1.3 <= (comparison.high or 0)

    assert 0.92 <= _share(covered, 300) <= 0.99


@given(st.lists(st.floats(1e-4, 1e25), min_size=1, max_size=4))
def test_no_difference_beyond_a_thousand_percent_is_printed(differences: list[float]) -> None:
    """4 launches a side were said to detect differences of 4829919225073095680 % or more."""
    words = shown_from(*differences)
    printed = [float(number.replace(",", "")) for number in re.findall(r"[\d,.]+(?:e-?\d+)?(?= %)", words)]
    assert all(number <= 100 * MOST_DIFFERENCE for number in printed)
    assert bool(printed) == (min(differences) <= MOST_DIFFERENCE)
    for share in differences:
        if share <= MOST_DIFFERENCE:
            assert float(percent(share).removesuffix(" %")) == pytest.approx(100 * share, rel=0.06)


@given(st.floats(1e-4, 100))
def test_scatter_is_never_more_than_a_whole_below(share: float) -> None:
    """Times were said to scatter by ± 357 %."""
    words = scatter_in_words(share)
    number = float(re.sub(r"[^\d.e-]", "", words.replace(",", "")))
    assert number == pytest.approx(100 * share if share <= 1 else 1 + share, rel=0.06)
    assert ("±" in words) == (share <= 1)
