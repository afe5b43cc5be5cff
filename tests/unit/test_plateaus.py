"""Plateaus: found where they were put, not where there are none, and refused with a reason."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from exhaustive import thinned, trials
from testing.narrow import require_type

from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.node.plateaus import LEAST_SIZES, TIMES_THE_CACHES, Plateaus, find_plateaus

KIB, MIB = 1 << 10, 1 << 20

GPUS = {
    "A100": (40e6, 4.0e12, 1.75e12),
    "H100": (50e6, 5.7e12, 3.0e12),
    "H200": (50e6, 6.5e12, 4.3e12),
    "MI300X": (256e6, 10e12, 4.5e12),
}
"""The outermost cache in bytes, its rate and that of memory in B/s: shapes, not measurements."""


def of_a_gpu(
    card: str, start: float, noise: float, *, power: float = 1.0, steps: int = 2, arrays: int = 1, seed: int = 0
) -> tuple[list[int], list[list[float]]]:
    """Working sets and the rates of three launches of a kernel that takes ``start`` seconds to begin, one after the
    other with its memory (``power`` 1) or beside it. 64 KiB to 4 GiB an array; the cache gives way over an octave.
    """
    cache, within, behind = GPUS[card]
    sizes = [arrays * round(64 * KIB * 2 ** (index / steps)) for index in range(16 * steps + 1)]
    sets = np.asarray(sizes, dtype=np.float64)
    hit = 1 / (1 + (sets / (0.75 * cache)) ** (4 / np.log(2)))
    times = (start**power + (sets * (hit / within + (1 - hit) / behind)) ** power) ** (1 / power)
    generator = np.random.default_rng(seed)
    return sizes, [
        [float(size / time * np.exp(generator.normal(0, noise))) for _ in range(3)]
        for size, time in zip(sets, times, strict=True)
    ]


def of_launches(sizes: Sequence[int], launches: Sequence[Sequence[float]]) -> Plateaus:
    return plateaus_of(sizes, [float(np.median(rates)) for rates in launches], launches)


def sweep(first: int = 12, last: int = 28, steps: int = 2) -> list[int]:
    return [round(2 ** (first + index / steps)) for index in range((last - first) * steps + 1)]


def levels(sizes: Sequence[int], rates: Sequence[float], ends: Sequence[float], ramp: float = 1.0) -> list[float]:
    """Rates over sizes: levels that end at 2^end with ramps of so many octaves between them."""
    knots = [end + side * ramp / 2 for end in ends for side in (-1, 1)]
    values = [rates[0], *(rate for rate in rates[1:-1] for _ in range(2)), rates[-1]]
    return [float(rate) for rate in np.exp(np.interp(np.log2(sizes), knots, np.log(values)))]


def noisy(rates: Sequence[float], seed: int, noise: float = 0.03, tails: float = 0.1) -> list[float]:
    generator = np.random.default_rng(seed)
    late = np.where(generator.random(len(rates)) < tails, generator.exponential(0.15, len(rates)), 0.0)
    return [float(rate) for rate in rates * np.exp(generator.normal(0, noise, len(rates)) - late)]


def plateaus_of(sizes: Sequence[int], rates: Sequence[float], launches: Sequence[Sequence[float]] = ()) -> Plateaus:
    return require_type(Plateaus, find_plateaus(sizes, rates, launches))


@pytest.mark.parametrize(
    ("rates", "ends"), [((200e9, 80e9, 20e9), (15.5, 20.5)), ((250e9, 120e9, 60e9, 18e9), (15.5, 20.5, 24.5))]
)
@pytest.mark.parametrize("ramp", [0.5, 2.0])
def test_planted_plateaus_are_found_where_they_are(
    rates: tuple[float, ...], ends: tuple[float, ...], ramp: float
) -> None:
    right = 0
    for seed in range(10):
        answer = plateaus_of(sweep(), noisy(levels(sweep(), rates, ends, ramp), seed))
        same = len(answer.plateaus) == len(rates)
        right += same and all(
            abs(plateau.rate / rate - 1) < 0.06 for plateau, rate in zip(answer.plateaus, rates, strict=True)
        )
        right += same and all(
            abs(np.log2(plateau.last_bytes) - end) <= ramp / 2 + 1
            for plateau, end in zip(answer.plateaus, ends, strict=False)
        )
    assert right >= 18, "in 10 curves, the rates and the ends each"


def test_without_noise_ends_and_rates_are_exact() -> None:
    answer = plateaus_of(sweep(steps=1), levels(sweep(steps=1), (200e9, 80e9, 20e9), (15.5, 20.5)))
    assert [(plateau.first_bytes, plateau.last_bytes) for plateau in answer.plateaus] == [
        (4 * KIB, 32 * KIB),
        (64 * KIB, MIB),
        (2 * MIB, 256 * MIB),
    ]
    assert [plateau.rate for plateau in answer.plateaus] == pytest.approx([200e9, 80e9, 20e9])
    assert answer.end == "flat"


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03])
def test_a_flat_curve_has_one_plateau(noise: float) -> None:
    for seed in range(trials(4, 10)):
        answer = plateaus_of(sweep(), noisy([20e9] * len(sweep()), seed, noise))
        assert len(answer.plateaus) == 1
        assert answer.plateaus[0].rate == pytest.approx(20e9, rel=0.05)


def test_the_cost_of_starting_a_call_is_no_plateau() -> None:
    sizes = sweep()
    rates = [20e9 / (1 + 16 * KIB / size) for size in sizes]
    answer = plateaus_of(sizes, noisy(rates, 1, 0.01, tails=0.0))
    assert len(answer.plateaus) == 1
    assert answer.plateaus[0].first_bytes >= 16 * KIB, "below, starting takes longer than moving"
    assert answer.call_bytes == pytest.approx(16 * KIB, rel=0.05)
    assert answer.plateaus[0].rate == pytest.approx(20e9, rel=0.01), "without the start"


def test_one_slow_size_bends_no_level() -> None:
    rates = levels(sweep(), (200e9, 20e9), (18.5,))
    rates[4] *= 0.6
    rates[-6] *= 0.7
    assert [plateau.rate for plateau in plateaus_of(sweep(), rates).plateaus] == pytest.approx([200e9, 20e9])


def test_levels_closer_than_a_tenth_are_one() -> None:
    assert len(plateaus_of(sweep(), levels(sweep(), (100e9, 95e9), (20.5,))).plateaus) == 1


def test_a_rate_that_rises_is_a_plateau_as_well() -> None:
    """A library's copy changes to stores past the caches for large sizes: more traffic than before is possible."""
    answer = plateaus_of(sweep(), levels(sweep(), (60e9, 15e9, 22e9), (15.5, 21.5)))
    assert [plateau.rate for plateau in answer.plateaus] == pytest.approx([60e9, 15e9, 22e9])


@pytest.mark.parametrize("count", [0, 1, LEAST_SIZES - 1])
def test_too_few_sizes_are_refused(count: int) -> None:
    answer = require_type(Unavailable, find_plateaus(sweep()[:count], [1e9] * count))
    assert answer.code == "few-sizes"


def test_a_rate_that_falls_all_the_way_has_no_plateau() -> None:
    sizes = sweep(steps=1)
    require_type(Unavailable, find_plateaus(sizes, [1e12 * 0.7**index for index in range(len(sizes))]))


def test_a_fall_at_the_end_says_that_memory_was_perhaps_not_reached() -> None:
    sizes = sweep(steps=1)
    rates = levels(sizes, (100e9, 40e9), (17.5,))
    rates[-2:] = [30e9, 20e9]
    answer = plateaus_of(sizes, rates)
    assert answer.end == "falls"


def test_the_last_plateau_goes_to_the_end_where_the_end_is_less_than_a_step_away() -> None:
    sizes = sweep()
    rates = [rate * 0.95 if number >= len(sizes) - 4 else rate for number, rate in enumerate([20e9] * len(sizes))]
    answer = plateaus_of(sizes, rates)
    assert answer.plateaus[-1].last_bytes == sizes[-1]
    assert answer.end == "flat"


def test_a_short_last_plateau_is_not_called_the_outermost() -> None:
    sizes = sweep(steps=2)
    answer = plateaus_of(sizes, levels(sizes, (100e9, 40e9), (26.9,), ramp=0.2))
    assert len(answer.plateaus) == 2
    assert answer.end == "short"


def test_a_plateau_of_sizes_that_the_stated_caches_hold_is_not_called_memory() -> None:
    """Two levels as on a processor with 256 MiB of cache, swept to 192 MiB: memory is not in the curve."""
    sizes = [3 * size for size in sweep(12, 26)]
    rates = levels(sizes, (3000e9, 1500e9), (24.5,))
    unknown = find_plateaus(sizes, rates)
    held = find_plateaus(sizes, rates, caches_bytes=256 * MIB)
    small = require_type(Plateaus, find_plateaus(sizes, rates, caches_bytes=sizes[-1] // TIMES_THE_CACHES))
    assert isinstance(unknown, Plateaus)
    assert isinstance(held, Plateaus)
    assert [plateau.rate for plateau in held.plateaus] == [plateau.rate for plateau in unknown.plateaus], (
        "they place no plateau"
    )
    assert (unknown.end, held.end, small.end) == ("flat", "small", "flat")


def test_the_interval_is_over_launches() -> None:
    sizes, rates = sweep(steps=1), levels(sweep(steps=1), (100e9, 20e9), (18.5,))
    shifts = (0.95, 0.97, 1.0, 1.01, 1.02, 1.03, 1.04)
    few = plateaus_of(sizes, rates, [[rate * shift for shift in shifts[:3]] for rate in rates])
    assert (few.plateaus[1].low, few.plateaus[1].high) == pytest.approx((19e9, 20e9))
    assert few.plateaus[1].kind == "range of launch medians"
    many = plateaus_of(sizes, rates, [[rate * shift for shift in shifts] for rate in rates])
    assert many.plateaus[1].kind == "95 % over launches"
    alone = plateaus_of(sizes, rates, [[rate] for rate in rates])
    assert (alone.plateaus[1].low, alone.plateaus[1].kind) == (None, "none")


def test_what_launches_differ_in_counts_as_noise() -> None:
    """Three sizes 12 % below are a plateau when launches agree to 0.1 %, and chance when they differ by 30 %."""
    sizes, rates = sweep(steps=1), levels(sweep(steps=1), (100e9, 88e9), (25.5,))
    generator = np.random.default_rng(0)
    sure = [[rate * factor for factor in np.exp(generator.normal(0, 0.001, 4))] for rate in rates]
    unsure = [[rate * factor for factor in np.exp(generator.normal(0, 0.3, 4))] for rate in rates]
    assert len(plateaus_of(sizes, rates, sure).plateaus) == 2
    assert len(plateaus_of(sizes, rates, unsure).plateaus) == 1


# --- GPUs: most of a sweep is the cost of launching ------------------------------------------------------------------


LAUNCHING = ((1e-6, 0.005, 1.0), (1e-6, 0.02, 3.0), (2e-6, 0.005, 1.0), (1e-6, 0.03, 1.0))
"""Start, noise and power."""


@pytest.mark.parametrize(("card", "launching", "arrays"), thinned(product(GPUS, LAUNCHING, (1, 2)), 3))
def test_cache_and_memory_of_a_gpu_are_two_plateaus(
    card: str, launching: tuple[float, float, float], arrays: int
) -> None:
    start, noise, power = launching
    cache, within, behind = GPUS[card]
    sizes, launches = of_a_gpu(card, start, noise, power=power, arrays=arrays)
    answer = of_launches(sizes, launches)
    assert answer.end == "flat"
    assert answer.plateaus[-1].rate == pytest.approx(behind, rel=0.03)
    seen = [size for size in sizes if start * within < size < 0.6 * cache]
    assert len(answer.plateaus) == 2 or (len(answer.plateaus) == 1 and len(seen) < 4), "launching may hide the cache"
    assert [plateau.rate for plateau in answer.plateaus[:-1]] == pytest.approx(
        [within] * (len(answer.plateaus) - 1), rel=0.15
    )
    assert all(plateau.last_bytes <= cache for plateau in answer.plateaus[:-1])


@pytest.mark.parametrize(("card", "start", "noise"), thinned(product(GPUS, (3e-6, 5e-6), (0.005, 0.03)), 3))
def test_where_launching_hides_a_cache_memory_is_found_and_no_other_level(
    card: str, start: float, noise: float
) -> None:
    _, within, behind = GPUS[card]
    answer = of_launches(*of_a_gpu(card, start, noise))
    assert answer.end == "flat"
    assert answer.plateaus[-1].rate == pytest.approx(behind, rel=0.03)
    assert [plateau.rate for plateau in answer.plateaus[:-1]] == pytest.approx(
        [within] * (len(answer.plateaus) - 1), rel=0.15
    )


def test_the_noise_of_a_gpu_is_not_the_slope_of_its_launches() -> None:
    assert of_launches(*of_a_gpu("H100", 1e-6, 0.004)).noise < 0.01


def test_a_sweep_that_ends_soon_behind_a_cache_does_not_call_it_memory() -> None:
    """Sizes behind the last plateau that are far below it are no noise."""
    sizes, launches = of_a_gpu("MI300X", 1e-6, 0.004, steps=1)
    answer = of_launches(sizes[:13], launches[:13])
    assert answer.plateaus[-1].last_bytes <= 256 * MIB
    assert answer.plateaus[-1].rate == pytest.approx(10e12, rel=0.05)
    assert answer.end != "flat"
