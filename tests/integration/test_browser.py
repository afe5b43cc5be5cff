"""The report in a real browser: no errors, the values of the data under the pointer, sorted tables, nothing cut off."""

import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, needs_chromium
from click.testing import CliRunner
from matplotlib import image
from testing.synthetic import World, case, synthetic_run, write_synthetic

from busbw.cli.main import main
from busbw.units import format_rate, format_size

SAMPLE = next((Path(__file__).parents[2] / "results/samples/vm").iterdir())
PHONE = 400
AXE = (resources.files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as session:
        yield session


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    result = CliRunner().invoke(main, ["report", str(SAMPLE), "--output", str(folder)])
    assert result.exit_code == 0, result.output
    return folder / "report.html"


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two runs that have two sizes of some operations, one of them bimodal."""
    folder = tmp_path_factory.mktemp("comparison")
    ops = ("all_reduce", "all_gather", "reduce_scatter", "tcp_stream")
    cases = [case(op, size, 4) for op in ops for size in (4 << 10, 4 << 20)]
    worlds = (World(launch_noise=0.1, slow_share=0.5, slow_seconds=1e-3), World(launch_noise=0.1))
    runs = [synthetic_run(cases, world, launches=5, samples=30, seed=seed) for seed, world in enumerate(worlds)]
    sides = [str(write_synthetic(folder, run)) for run in runs]
    result = CliRunner().invoke(main, ["compare", *sides, "--html", str(folder / "page.html")])
    assert result.exit_code == 0, result.output
    return folder / "page.html"


@pytest.fixture
def page(browser: Browser, report: Path) -> Browser:
    browser.open(report)
    return browser


def middle(browser: Browser, element: str) -> tuple[float, float]:
    """Scroll an element, which a JavaScript expression is, into sight; where its middle then is."""
    x, y = browser.run(
        f"""(async () => {{
            const element = {element};
            element.scrollIntoView({{ block: "center", behavior: "instant" }});
            // The event of the scrolling comes with the next frame, and takes a tip away.
            for (const _ of [1, 2]) await new Promise(requestAnimationFrame);
            const box = element.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()"""
    )
    return x, y


def test_it_opens_without_a_complaint_or_a_request(page: Browser, report: Path) -> None:
    assert page.run("document.title").endswith("busbw report")
    assert page.complaints == []
    assert set(page.requests) == {report.resolve().as_uri()}


def test_a_point_under_the_pointer_tells_its_value_range_and_launches(page: Browser, report: Path) -> None:
    curves: list[dict[str, Any]] = json.loads(report.with_name("report.json").read_text())["curves"]
    curve = next(curve for curve in curves if curve["key"]["op"] == "broadcast")
    point = curve["points"][-1]
    size, launches = format_size(point["size_bytes"]), len(point["launch_medians_ns"])
    assert page.run("document.querySelector('#tip').hidden")
    points = "[...document.querySelectorAll('.overview [data-tip]')]"
    page.move(*middle(page, f"{points}.find(one => one.dataset.tip.startsWith('broadcast · {size}'))"))
    page.wait_for("!document.querySelector('#tip').hidden")
    said = page.run("document.querySelector('#tip').textContent").splitlines()
    assert said[0] == f"broadcast · {size}"
    assert said[1].startswith(format_rate(point["busbw"]))
    assert said[2].endswith(f"{launches} launches")
    page.move(1, 1)
    page.wait_for("document.querySelector('#tip').hidden")


def test_a_click_on_a_heading_sorts_and_another_turns_it_round(page: Browser) -> None:
    table = "#op-all-reduce figure table"
    page.run(f"document.querySelector('{table}').closest('details').open = true")
    column = page.run(f"[...document.querySelectorAll('{table} thead th')].findIndex(e => /^Size/.test(e.innerText))")
    sizes = f"[...document.querySelectorAll('{table} tbody tr')].map(row => row.cells[{column}].innerText)"
    before = page.run(sizes)
    by_bytes = sorted(before, key=bytes_of)
    assert sorted(before) != by_bytes, "as text they would stand otherwise"
    head = f"document.querySelector('{table} thead th:nth-child({column + 1}) .sort')"
    for expected in (by_bytes, by_bytes[::-1]):
        page.click(*middle(page, head))
        assert page.run(sizes) == expected


def bytes_of(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"B": 1, "KiB": 2**10, "MiB": 2**20}[unit]


def test_terms_lead_to_the_glossary_and_open_it(page: Browser) -> None:
    page.run("document.querySelector('a.term[href=\"#term-busbw\"]').click()")
    page.wait_for("document.querySelector('#glossary details').open")


@pytest.mark.parametrize("width", [1280, PHONE])
@pytest.mark.parametrize("name", ["report", "comparison"])
def test_nothing_overflows(browser: Browser, width: int, name: str, request: pytest.FixtureRequest) -> None:
    browser.open(request.getfixturevalue(name), width)
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    wide = "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll') && e.getClientRects().length"
    over = browser.run(f"{wide} && e.getBoundingClientRect().right > {width} + 1).map(e => e.outerHTML.slice(0, 80))")
    assert over == []
    assert browser.run("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [PHONE, 700, 920])
def test_the_verdict_stays_in_sight_in_a_narrow_window(page: Browser, width: int) -> None:
    page.resize(width)
    cells = "[...document.querySelectorAll('.headline dd, .verdicts th, .verdicts td')]"
    boxes = page.run(f"{cells}.map(e => e.getBoundingClientRect()).filter(b => b.width).map(b => [b.left, b.right])")
    assert len(boxes) > 8
    assert all(left >= 0 and right <= width for left, right in boxes)


@pytest.mark.parametrize("dark", [False, True])
def test_a_shadow_shows_on_which_sides_a_table_goes_on(
    browser: Browser, report: Path, tmp_path: Path, *, dark: bool
) -> None:
    browser.open(report, PHONE, dark=dark)
    cut = "[...document.querySelectorAll('.scroll')].find(e => e.scrollWidth > e.clientWidth + 100)"
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    browser.run(f"{cut}.querySelectorAll('*').forEach(e => {{ e.style.color = 'transparent'; e.style.border = 0; }})")
    browser.run(f"{cut}.scrollIntoView({{behavior: 'instant'}})")
    box = browser.run(f"(b => [b.left, b.right - 1, (b.top + b.bottom) / 2])({cut}.getBoundingClientRect())")
    left, right, middle_of_it = map(round, box)
    seen = []
    for moved in (0, 100, 10_000):
        browser.run(f"{cut}.scrollLeft = {moved}")
        browser.picture(tmp_path / "page.png")
        line = image.imread(tmp_path / "page.png")[middle_of_it]
        page = line[2]
        seen.append([float(abs(line[x] - page).max()) > 0.1 for x in (left + 2, right - 3)])
    assert seen == [[False, True], [True, True], [True, False]]


def test_a_comparison_begins_with_its_verdicts_and_both_curves(browser: Browser, comparison: Path) -> None:
    browser.open(comparison, height=1450)
    assert browser.run("document.querySelector('.overview svg').getBoundingClientRect().bottom") <= 1450
    assert browser.run("document.querySelectorAll('.overview .series').length") == 2 * 3
    assert browser.run("document.querySelectorAll('.overview .bars').length") == 2 * 3
    assert browser.complaints == []


def test_it_is_dark_where_the_reader_wants_it_dark(browser: Browser, report: Path) -> None:
    seen: dict[bool, list[str]] = {}
    for dark in (False, True):
        browser.open(report, dark=dark)
        seen[dark] = browser.run(
            "[getComputedStyle(document.body).backgroundColor,"
            " getComputedStyle(document.querySelector('.overview svg text')).fill]"
        )
    page, text = zip(seen[False], seen[True], strict=True)
    assert brightness(page[0]) > 200
    assert brightness(page[1]) < 60
    assert brightness(text[0]) < 130 < brightness(text[1])


def brightness(colour: str) -> float:
    channels = [float(part) for part in re.findall(r"[\d.]+", colour)[:3]]
    return sum(channels) / 3


def test_on_paper_it_has_at_most_six_pages(page: Browser) -> None:
    pages = re.findall(rb"/Type\s*/Page\b", page.paper())
    assert 1 <= len(pages) <= 6


@pytest.mark.parametrize(
    ("name", "dark"),
    [("comparison", False), ("comparison", True), pytest.param("report", False, marks=pytest.mark.slow)],
)
def test_it_passes_axe(browser: Browser, name: str, request: pytest.FixtureRequest, *, dark: bool) -> None:
    """Names, roles, headings and contrast. Shadows of tables hide the background from axe, so they are left out."""
    browser.open(request.getfixturevalue(name), dark=dark)
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    browser.run("document.querySelectorAll('.scroll').forEach(one => { one.style.backgroundImage = 'none'; })")
    browser.run(f"{AXE};0")
    checked = browser.run(
        """axe.run(document, {resultTypes: ["violations"]}).then(({violations, passes}) => ({
            passed: passes.map(rule => rule.id),
            violated: violations.map(rule => [rule.id, rule.nodes.map(node => node.html.slice(0, 120))]),
        }))"""
    )
    assert checked["violated"] == []
    assert {"color-contrast", "html-has-lang", "landmark-unique", "empty-table-header"} <= set(checked["passed"])


def test_without_scripts_everything_can_still_be_read(browser: Browser, report: Path) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(report)
        assert not browser.run("document.querySelector('#tip')"), "the script has not run"
        assert browser.run("document.querySelectorAll('svg.plot, table').length") > 10
        browser.run("document.querySelector('#glossary summary').click()")
        assert browser.run("document.querySelector('#term-busbw').checkVisibility()")
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
