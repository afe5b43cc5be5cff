"""The fit on curves that others measured: what it is wanted to reach, and what it does not."""

from functools import cache
from pathlib import Path
from statistics import median

import pytest

from busbw.units import parse_size
from busbw_analysis.fitting.curve import Fit, fit_points
from busbw_analysis.fitting.published import Published, published_curves

CURVES = published_curves()
IN_SAMPLE = 0.05
"""What the mean relative error of a fit on its own points should be at most."""

NAMES = [curve.name for curve in CURVES]
ABOVE = {"b200x8": 0.055}
"""Curves whose mean error in sample is above what is wanted, and what it is held below instead. This one scatters: from
4 to 16 MiB its times are 96, 116 and 115 µs, and another jump is not what left-out sizes or BIC speak for."""

A100_BUSBW = [1.31, 2.45, 4.43, 7.47, 11.41, 18.00, 36.18, 72.33, 109.93, 106.16]
A100_BUSBW += [138.49, 171.54, 176.92, 194.07, 222.72, 229.04, 231.41, 233.88, 234.61, 234.89]
"""The column busbw of the same published table, of which the data have the times."""


def curve_named(name: str) -> Published:
    return next(curve for curve in CURVES if curve.name == name)


def left_out(curve: Published) -> int:
    """Number of smallest sizes that are not fitted."""
    return sum(size < parse_size(curve.fitted_from) for size in curve.sizes_bytes)


@cache
def fit_of(name: str) -> Fit:
    """Our fit of a curve, with the same function as for a run."""
    curve = curve_named(name)
    start = left_out(curve)
    return fit_points(curve.sizes_bytes[start:], curve.times_ns[start:], bus_factor=curve.bus_factor)


@pytest.mark.parametrize("curve", CURVES, ids=NAMES)
def test_the_fit_is_near_the_points_it_was_made_of(curve: Published) -> None:
    assert fit_of(curve.name).mean_residual <= ABOVE.get(curve.name, IN_SAMPLE)


@pytest.mark.parametrize("name", sorted(ABOVE))
def test_what_is_excused_is_still_missed(name: str) -> None:
    assert fit_of(name).mean_residual > IN_SAMPLE, "it is reached now: take it out of ABOVE"


@pytest.mark.parametrize("curve", CURVES, ids=NAMES)
def test_the_fit_foretells_every_second_size(curve: Published) -> None:
    fit = fit_of(curve.name)
    assert fit.held_out_sizes.median_error is not None
    assert fit.held_out_sizes.count >= 8
    assert fit.held_out_sizes.median_error <= 0.10
    assert fit.held_out_launches.passed is None, "there are none"
    assert fit.validated


def test_times_and_rates_of_the_same_table_agree() -> None:
    curve = curve_named("a100x8")
    ours = [curve.busbw(position) / 1e9 for position in range(len(curve.sizes_bytes))]
    assert ours == pytest.approx(A100_BUSBW, rel=1e-3, abs=0.006)  # as many digits as were published


def test_one_line_alone_would_not_do() -> None:
    for curve in CURVES:
        line = fit_of(curve.name).candidates[0]
        assert line.segments == 1
        assert line.held_out_error > 0.06, curve.name
        assert len(fit_of(curve.name).segments) > 1, curve.name


def test_a_jump_is_found_where_the_library_changed() -> None:
    curve = curve_named("b200x32-nccl-2.30")
    assert any(switch.startswith("32MiB: Tree LL128 to Ring LL128") for switch in curve.switches)
    assert any(16 << 20 < size < 32 << 20 for size in fit_of(curve.name).breaks_bytes)


def test_sources_are_pinned_to_a_commit() -> None:
    for curve in CURVES:
        assert curve.source.startswith("https://github.com/")
        commit = curve.source.split("/blob/")[1].split("/")[0]
        assert len(commit) == 40
        assert curve.looked_up


@pytest.mark.parametrize("curve", CURVES, ids=NAMES)
def test_every_row_has_times_or_rates_for_each_size_and_a_reason_for_sizes_that_are_left_out(curve: Published) -> None:
    assert bool(curve.times_us) != bool(curve.busbw_gbs)
    assert len(curve.times_ns) == len(curve.sizes_bytes)
    assert min(curve.times_ns) > 0
    assert bool(left_out(curve)) == bool(curve.left_out_because)


def test_the_documentation_says_of_the_fits_what_they_reach() -> None:
    fits = {curve.name: fit_of(curve.name) for curve in CURVES}
    held_out = sorted(fit.held_out_sizes.median_error or 0.0 for fit in fits.values())
    single = sorted(fit.candidates[0].held_out_error for fit in fits.values())
    above = {name: fit.mean_residual for name, fit in fits.items() if fit.mean_residual > IN_SAMPLE}
    documented = " ".join((Path(__file__).parents[2] / "docs/fits.md").read_text(encoding="utf-8").split())
    assert f"off by {100 * single[0]:.0f} to {100 * single[-1]:.0f} %" in documented
    assert f"the fit by {100 * held_out[0]:.1f} to {100 * held_out[-1]:.1f} %" in documented
    assert f"is at most {100 * max(map(median_residual, fits.values())):.1f} %" in documented
    assert [f"{100 * (mean - IN_SAMPLE):.1f}" for mean in above.values()] == ["0.2"]
    assert (list(above), len(fits)) == (["b200x8"], 9)


def median_residual(fit: Fit) -> float:
    errors = []
    for size, time_ns in zip(fit.sizes_bytes, fit.times_ns, strict=True):
        segment = next(segment for segment in fit.segments if segment.first_bytes <= size <= segment.last_bytes)
        errors.append(abs((segment.alpha_seconds + segment.beta_seconds_per_byte * size) * 1e9 / time_ns - 1))
    return median(errors)
