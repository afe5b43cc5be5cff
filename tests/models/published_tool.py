"""How well the fit does on curves that others have published."""

import json
from collections.abc import Sequence
from statistics import median
from typing import Final

import click

from busbw.errors import AnalysisError
from busbw.escape import echo
from busbw.runs.records import JSON
from busbw.units import about_size, format_rate, format_size, format_time, parse_size
from busbw_analysis.fitting.curve import Fit, fit_points
from busbw_analysis.fitting.published import Published, published_curves
from busbw_analysis.report.document import Column, Table, table
from busbw_analysis.report.to_terminal import render

IN_SAMPLE: Final = 0.05
"""What the mean relative error of a fit on its own points should be at most."""

_NOTES: Final = (
    "all_reduce, measured by others with NCCL; the fit is that of busbw fit: T = α + S/B in each segment",
    f"in sample: error of the fit on its own sizes, wanted ≤ {IN_SAMPLE:.0%} (mean)",
    "held-out: error on every second size, which was left out of another fit, wanted ≤ 10 % (median)",
)


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def published(*, name: str | None, as_json: bool) -> None:
    """Fit the curves that others have published, or show the one called NAME point by point, with its source."""
    try:
        curves = published_curves() if name is None else (curve_named(name),)
    except AnalysisError as error:
        raise click.UsageError(str(error)) from error
    pairs = [(curve, fit_of(curve)) for curve in curves]
    if as_json:
        rows = [_row(curve, fit) for curve, fit in pairs]
        echo(json.dumps({"published": rows}, indent=2, ensure_ascii=False, allow_nan=False))
        return
    if name is not None:
        echo(render([_points_table(*pairs[0])]))
    echo(render([_curves_table(pairs)]))


def curve_named(name: str) -> Published:
    """The curve of that name. Raises AnalysisError, with the names that there are, for another one."""
    curves = published_curves()
    found = next((curve for curve in curves if curve.name == name), None)
    if found is None:
        message = f"{name!r} is no published curve; there are {', '.join(curve.name for curve in curves)}"
        raise AnalysisError(message)
    return found


def left_out(curve: Published) -> int:
    """Number of smallest sizes that are not fitted."""
    return sum(size < parse_size(curve.fitted_from) for size in curve.sizes_bytes)


def fit_of(curve: Published) -> Fit:
    """Our fit of the curve, with the same function as for a run."""
    start = left_out(curve)
    return fit_points(curve.sizes_bytes[start:], curve.times_ns[start:], bus_factor=curve.bus_factor)


def _row(curve: Published, fit: Fit) -> dict[str, JSON]:
    return {
        "curve": curve.name,
        "what": curve.what,
        "source": curve.source,
        "ranks": curve.ranks,
        "hosts": curve.hosts,
        "sizes_bytes": list(curve.sizes_bytes),
        "times_ns": list(curve.times_ns),
        "left_out": left_out(curve),
        "left_out_because": curve.left_out_because or None,
        "library_switches": list(curve.switches),
        "breaks_bytes": list(fit.breaks_bytes),
        "candidates": [
            {"segments": one.segments, "held_out_error": one.held_out_error, "bic": one.bic} for one in fit.candidates
        ],
        "alpha_seconds": fit.alpha_seconds,
        "busbw": fit.busbw,
        "median_residual": _median_residual(fit),
        "mean_residual": fit.mean_residual,
        "max_residual": fit.max_residual,
        "held_out_median_error": fit.held_out_sizes.median_error,
        "held_out_worst_error": fit.held_out_sizes.worst_error,
        "validated": fit.validated,
    }


def _note(fit: Fit) -> str:
    missed = [f"in sample above {IN_SAMPLE:.0%}"] if fit.mean_residual > IN_SAMPLE else []
    missed += ["not validated"] if fit.validated is False else []
    breaks = [f"breakpoints at {', '.join(about_size(size) for size in fit.breaks_bytes)}"] if fit.breaks_bytes else []
    return "; ".join([*missed, *breaks])


def _held_out(fit: Fit) -> str | None:
    checked = fit.held_out_sizes
    return None if checked.median_error is None else f"{checked.median_error:.1%}/{checked.worst_error:.1%}"


def _in_sample(fit: Fit) -> str:
    return f"{_median_residual(fit):.1%}/{fit.mean_residual:.1%}/{fit.max_residual:.1%}"


def _curves_table(pairs: Sequence[tuple[Published, Fit]]) -> Table:
    columns: tuple[Column[tuple[Published, Fit]], ...] = (
        Column("curve", lambda one: one[0].name),
        Column("ranks", lambda one: one[0].ranks, str),
        Column("hosts", lambda one: one[0].hosts, str),
        Column("sizes", lambda one: len(one[1].sizes_bytes), str),
        Column("segments", lambda one: len(one[1].segments), str),
        Column("α", lambda one: one[1].alpha_seconds * 1e9, format_time),
        Column("busbw", lambda one: one[1].busbw, format_rate),
        Column("in sample", lambda one: _in_sample(one[1]), str, "median/mean/max"),
        Column("held-out", lambda one: _held_out(one[1]), str, "median/worst"),
        Column("note", lambda one: _note(one[1])),
    )
    return table("", columns, pairs, *_NOTES)


def _points_table(curve: Published, fit: Fit) -> Table:
    said = [curve.what, f"source: {curve.source} ({curve.looked_up})"]
    said += [f"the library changed, by its own log, at {one}" for one in curve.switches]
    sizes, times = curve.sizes_bytes, curve.times_ns

    def fitted(place: int) -> float | None:
        return None if place < left_out(curve) else _fitted_ns(fit, sizes[place])

    def note(place: int) -> str:
        if place < left_out(curve):
            return f"left out: {curve.left_out_because}"
        return "breakpoint" if sizes[place] in {one.first_bytes for one in fit.segments[1:]} else ""

    columns: tuple[Column[int], ...] = (
        Column("size", lambda place: sizes[place], format_size),
        Column("time", lambda place: times[place], format_time),
        Column("busbw", curve.busbw, format_rate),
        Column("fit", fitted, format_time),
        Column("error", lambda place: (ns := fitted(place)) and ns / times[place] - 1, "{:+.1%}".format),
        Column("note", note),
    )
    return table("", columns, range(len(sizes)), *said)


def _fitted_ns(fit: Fit, size: int) -> float:
    segment = next(one for one in fit.segments if one.first_bytes <= size <= one.last_bytes)
    return (segment.alpha_seconds + segment.beta_seconds_per_byte * size) * 1e9


def _median_residual(fit: Fit) -> float:
    return median(
        abs(_fitted_ns(fit, size) / time - 1) for size, time in zip(fit.sizes_bytes, fit.times_ns, strict=True)
    )


if __name__ == "__main__":
    published()
