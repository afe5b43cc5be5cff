"""How well the fit does on curves that others have published."""

import json
from collections.abc import Iterator
from statistics import median
from typing import Final

import click
from reference_curves import IN_SAMPLE, Published, curve_named, published_curves

from busbw.errors import AnalysisError
from busbw.escape import echo
from busbw.units import about_size, format_rate, format_size, format_time
from busbw_analysis.fitting.curve import Fit
from busbw_analysis.report.tables.layout import MISSING, Row, aligned

_COLUMNS: Final = (
    ("curve", ""),
    ("ranks", ""),
    ("hosts", ""),
    ("sizes", ""),
    ("pieces", ""),
    ("α", ""),
    ("busbw", ""),
    ("in sample", "median/mean/max"),
    ("held-out", "median/worst"),
    ("note", ""),
)
_NOTES: Final = (
    "all_reduce, measured by others with NCCL; the fit is that of busbw fit: T = α + S/B in each piece",
    f"in sample: error of the fit on its own sizes, wanted ≤ {IN_SAMPLE:.0%} (mean)",
    "held-out: error on every second size, which was left out of another fit, wanted ≤ 10 % (median)",
)
_POINT_COLUMNS: Final = (("size", ""), ("time", ""), ("busbw", ""), ("fit", ""), ("error", ""), ("note", ""))


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def published(*, name: str | None, as_json: bool) -> None:
    """Fit the curves that others have published, or show the one called NAME point by point, with its source."""
    try:
        curves = published_curves() if name is None else (curve_named(name),)
    except AnalysisError as error:
        raise click.UsageError(str(error)) from error
    pairs = [(curve, curve.fit()) for curve in curves]
    if as_json:
        rows = [_row(curve, fit) for curve, fit in pairs]
        echo(json.dumps({"published": rows}, indent=2, ensure_ascii=False, allow_nan=False))
        return
    if name is not None:
        echo(_points_text(*pairs[0]))
    echo(aligned(_COLUMNS, [_line(curve, fit) for curve, fit in pairs], _NOTES))


def _row(curve: Published, fit: Fit) -> Row:
    return {
        "curve": curve.name,
        "what": curve.what,
        "source": curve.source,
        "ranks": curve.ranks,
        "hosts": curve.hosts,
        "sizes_bytes": list(curve.sizes_bytes),
        "times_ns": list(curve.times_ns),
        "left_out": curve.left_out,
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


def _line(curve: Published, fit: Fit) -> list[str]:
    checked = fit.held_out_sizes
    missed = [f"in sample above {IN_SAMPLE:.0%}"] if fit.mean_residual > IN_SAMPLE else []
    missed += ["not validated"] if fit.validated is False else []
    breaks = [f"jumps at {', '.join(about_size(size) for size in fit.breaks_bytes)}"] if fit.breaks_bytes else []
    return [
        curve.name,
        str(curve.ranks),
        str(curve.hosts),
        str(len(fit.sizes_bytes)),
        str(len(fit.segments)),
        format_time(fit.alpha_seconds * 1e9),
        format_rate(fit.busbw),
        f"{_median_residual(fit):.1%}/{fit.mean_residual:.1%}/{fit.max_residual:.1%}",
        MISSING if checked.median_error is None else f"{checked.median_error:.1%}/{checked.worst_error:.1%}",
        "; ".join([*missed, *breaks]),
    ]


def _points_text(curve: Published, fit: Fit) -> str:
    said = [curve.what, f"source: {curve.source} ({curve.looked_up})"]
    said += [f"the library changed, by its own log, at {one}" for one in curve.switches]
    return aligned(_POINT_COLUMNS, list(_point_lines(curve, fit)), said)


def _point_lines(curve: Published, fit: Fit) -> Iterator[list[str]]:
    for position, (size, time) in enumerate(zip(curve.sizes_bytes, curve.times_ns, strict=True)):
        head = [format_size(size), format_time(time), format_rate(curve.busbw(position))]
        if position < curve.left_out:
            yield [*head, MISSING, MISSING, f"left out: {curve.left_out_because}"]
            continue
        fitted = _fitted_ns(fit, size)
        jump = "jump" if size in {one.first_bytes for one in fit.segments[1:]} else ""
        yield [*head, format_time(fitted), f"{fitted / time - 1:+.1%}", jump]


def _fitted_ns(fit: Fit, size: int) -> float:
    segment = next(one for one in fit.segments if one.first_bytes <= size <= one.last_bytes)
    return (segment.alpha_seconds + segment.beta_seconds_per_byte * size) * 1e9


def _median_residual(fit: Fit) -> float:
    return median(
        abs(_fitted_ns(fit, size) / time - 1) for size, time in zip(fit.sizes_bytes, fit.times_ns, strict=True)
    )


if __name__ == "__main__":
    published()
