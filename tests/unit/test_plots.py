"""The figures: the same data give the same drawing, every drawing has words, and nothing is drawn that is not there."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from busbw_analysis.report.plots import Line, Panel, Point, Series, canvas, draw, drawable, paint, swatch

SIZES = [2**exponent for exponent in range(3, 25)]


def panel(slots: int = 2) -> Panel:
    series = tuple(
        Series(slot, tuple(Point(size, 3e4 + size, 2.9e4 + size, 4e4 + size) for size in SIZES))
        for slot in range(slots)
    )
    fit = Line("fit", tuple((float(size), 3e4 + size) for size in SIZES), 0)
    peak = Line("peak", ((8.0, 1e9), (2.0**24, 1e9)), None, "peak $5 & more")
    return Panel("time", "Time of one call", series, (fit, peak), breaks=(4096.0,))


def test_a_drawing_carries_its_words_escaped() -> None:
    svg = draw(panel(), "a", "<b>all & sundry</b>", 'finding "quoted"')
    root = ET.fromstring(svg)  # noqa: S314 (our own drawing)
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-labelledby"] == "a-title a-text"
    assert [child.text for child in root if child.tag in {"title", "desc"}] == [
        "<b>all & sundry</b>",
        'finding "quoted"',
    ]
    assert "<b>" not in svg
    assert "peak $5 &amp; more" in svg
    assert "data-tip" not in svg, "its points have no words"
    assert svg == draw(panel(), "a", "<b>all & sundry</b>", 'finding "quoted"')


def test_every_point_has_the_words_of_its_data_escaped() -> None:
    points = [Point(size, 3e4 + size, tip=f"<{size}> & co") for size in SIZES]
    root = ET.fromstring(draw(Panel("time", "t", (Series(7, tuple(points)),), ()), "a", "t", "t"))  # noqa: S314
    (group,) = [element for element in root.iter("g") if element.get("class") == "series series-7"]
    markers = list(group.iter("use"))
    assert [marker.get("data-tip") for marker in markers] == [point.tip for point in points]
    across = [float(marker.attrib["x"]) for marker in markers]
    assert across == sorted(across)


def test_a_drawing_refers_to_nothing_outside_and_its_ids_are_its_own() -> None:
    svg = draw(panel(), "fig-1", "title", "text")
    assert "http" not in svg
    assert "<style" not in svg
    ids = re.findall(r'id="([^"]+)"', svg)
    assert len(ids) == len(set(ids))
    assert all(name.startswith("fig-1-") for name in ids)
    assert set(re.findall(r"(?:href=\"#|url\(#)([^\")]+)", svg)) <= set(ids)


def test_every_colour_is_left_to_the_style_sheet() -> None:
    svg = draw(panel(6), "a", "title", "text")
    assert re.findall(r"#[0-9a-fA-F]{6}", svg) == []
    for slot in range(6):
        assert f"var(--series-{slot})" in svg


def test_peaks_of_a_drawing_are_told_apart_by_their_dashes_as_in_the_legend() -> None:
    series = (Series(0, tuple(Point(size, 1e9) for size in SIZES)),)
    peaks = tuple(Line("peak", ((8.0, rate), (2.0**24, rate)), number=number) for number, rate in enumerate((2e9, 3e9)))
    with canvas() as (_, axes):
        paint(axes, Panel("rate", "busbw", series, peaks))
        assert len({str(line._unscaled_dash_pattern) for line in axes.lines[:2]}) == 2  # type: ignore[attr-defined]
    legend = [re.findall(r'stroke-dasharray="([^"]+)"', swatch(None, "peak", number)) for number in range(4)]
    assert len({str(dashes) for dashes in legend}) == 4


@pytest.mark.parametrize(("rates", "notes"), [((1e9,), ["peak 1e+09"]), ((1e9, 1e9), ["peak 1e+09"]), ((1e9, 2e9), [])])
def test_a_peak_alone_has_its_name_beside_its_line(rates: tuple[float, ...], notes: list[str]) -> None:
    peaks = tuple(Line("peak", ((8.0, rate), (2.0**24, rate)), None, f"peak {rate:g}") for rate in rates)
    with canvas() as (_, axes):
        paint(axes, replace(panel(), quantity="rate", lines=peaks))
        assert [text.get_text() for text in axes.texts] == notes


@pytest.mark.parametrize("wide", [False, True])
def test_points_have_the_bars_of_their_intervals(wide: bool) -> None:  # noqa: FBT001
    with canvas() as (_, axes):
        paint(axes, replace(panel(2), wide=wide))
        drawn = [bars for bars in axes.collections if isinstance(bars, LineCollection)]
        ends = [np.asarray(segment)[:, 1].tolist() for bars in drawn for segment in bars.get_segments()]
        assert ends == [pytest.approx([2.9e4 + size, 4e4 + size]) for _ in range(2) for size in SIZES]


def test_points_without_a_fit_are_joined() -> None:
    points = (Point(8, 1e4), Point(1024, 2e4))
    with canvas() as (_, axes):
        paint(axes, Panel("time", "t", (Series(0, points), Series(1, points, joined=True)), ()))
        assert [line.get_linestyle() != "None" for line in axes.lines] == [False, True]


@pytest.mark.parametrize("factor", [1.0, 1.0001, 3.0, 1e3, 1e9])
def test_any_range_of_values_has_at_least_one_labelled_tick(factor: float) -> None:
    series = Series(0, (Point(8, 1e4), Point(1024, 1e4 * factor)))
    svg, rates = (draw(Panel(kind, "Time", (series,), ()), "a", "title", "text") for kind in ("time", "rate"))
    assert re.search(r"[kMG]B/s<", rates)
    assert "KiB<" in rates
    labels = re.findall(r">([\d.]+ (?:ns|µs|ms|s))<", svg)
    assert 1 <= len(labels) <= 9
    assert len(labels) == len(set(labels))


def test_one_size_is_not_a_picture() -> None:
    assert not drawable([])
    assert not drawable([Series(0, (Point(0, 5.0), Point(8, 5.0)))])
    assert drawable([Series(0, (Point(0, 5.0), Point(8, 5.0), Point(16, 5.0)))])
    assert drawable([Series(0, (Point(8, 5.0),)), Series(1, (Point(16, 5.0),))])
    assert not drawable([Series(0, (Point(8, 5.0), Point(16, 5.0)))], sizes=3)


def test_swatches_differ_in_shape_too() -> None:
    shapes = {re.sub(r"var\([^)]*\)", "", swatch(slot, "points")) for slot in range(6)}
    assert len(shapes) == 6
    assert len({swatch(slot, "joined") for slot in range(24)}) == 24
    assert 'aria-hidden="true"' in swatch(None, "peak")
