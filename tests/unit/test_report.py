"""The report: it says everything, it lets nothing from outside become markup, and it needs nothing but itself."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from refused import refused
from testing.narrow import require
from testing.synthetic import Machine, Piece, SyntheticEnd, World, case, synthetic_run, write_synthetic

from busbw.cli.main import main
from busbw.errors import StoreError
from busbw.runs.records import Case, Measurement, Row
from busbw.runs.store import StoredRun
from busbw.units import format_rate
from busbw_analysis.assembly import compose
from busbw_analysis.assembly.judge import judge
from busbw_analysis.assembly.to_json import LAYOUT
from busbw_analysis.data.as_json import plain
from busbw_analysis.data.load import pool, pool_by_setup
from busbw_analysis.data.summary import FLAGS
from busbw_analysis.diagnosis.judge import Finding, Judgement
from busbw_analysis.diagnosis.trust import dots
from busbw_analysis.peaks.peaks import Peak
from busbw_analysis.report.document import Figure, Paragraph, Section, Table
from busbw_analysis.report.run import glossary_terms
from busbw_analysis.report.show import show_blocks, show_rows
from busbw_analysis.report.to_html import unbroken
from busbw_analysis.report.to_terminal import render

HOSTILE = ("<script>alert(1)</script>", "a|b\nc`d`", '"><img src=x onerror=alert(1)>', "$x^2$ {{ 7*7 }} {% raw %}")
SIZES = tuple(2**exponent for exponent in range(6, 25, 2))
WORLD = World(pieces=(Piece(20e-6, 1e-10), Piece(80e-6, 3e-10, 1 << 16)), sample_noise=0.05, launch_noise=0.02)


def sweep(op: str = "all_reduce", ranks: int = 4) -> list[Case]:
    return [case(op, size, ranks) for size in SIZES]


def judged(*runs: StoredRun) -> Judgement:
    return judge(pool(runs))


def usual(seed: int = 0, launches: int = 3) -> StoredRun:
    cases = [*sweep(), case("barrier", 0), *(case("memory_copy", size) for size in (1 << 20, 1 << 26))]
    return synthetic_run(cases, WORLD, launches=launches, seed=seed)


def test_host_times_of_a_gpu_stand_beside_the_cost_of_an_empty_call() -> None:
    timed = {"isolated": 4_000.0, "barriers": 4_000.0, "pipelined": None, "graph": None}
    on_gpu = {mode: case("all_reduce", 1 << 20, 4, backend="nccl", device="cuda", mode=mode) for mode in timed}
    run = synthetic_run([*on_gpu.values(), case("all_reduce", 1 << 20, 4)], WORLD)
    costly = [msgspec.structs.replace(launch, empty_call_ns=(3_000, 4_000)) for launch in run.launches]
    rows = show_rows(judged(replace(run, rows=(*costly, *run.measurements))))
    assert {row.case.mode: row.empty_call_ns for row in rows if row.case.device == "cuda"} == timed
    assert {row.empty_call_ns for row in rows if row.case.device == "cpu"} == {None}
    texts = {
        mode: render(show_blocks([row for row in rows if row.case == setting])) for mode, setting in on_gpu.items()
    }
    assert [mode for mode, text in texts.items() if "4 µs" in text] == ["isolated", "barriers"]
    assert [mode for mode, text in texts.items() if "NCCL_GRAPH_REGISTER" in text] == ["graph"]


@cache
def composed() -> compose.Report:
    """The report on the usual run."""
    return compose.compose(judged(usual()))


class Outline(HTMLParser):
    """What a page is made of, and whether its elements are closed in order."""

    VOID = frozenset({"meta", "link", "br", "img", "hr", "input"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.figures: list[set[str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "figure":
            self.figures.append(set())
        elif self.figures and "figure" in self.open:
            self.figures[-1].add(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def every(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_the_page_is_well_formed_and_in_the_promised_order() -> None:
    html = composed().html
    outline = Outline(html)
    assert outline.open == []
    headings = re.findall(r"<h2>([^<]+)</h2>", html)
    folded = re.findall(r'<details class="part"><summary><h2>([^<]+)</h2> <span class="gist">[^<]+</span>', html)
    promised = [
        "Operations",
        "Single ranks",
        "Fits",
        "Hierarchy of memories and links",
        "Memory",
        "How far to trust the instrument",
        "How it was timed",
        "Machine and software",
        "Words and units",
        "What this means for training",
    ]
    assert [heading for heading in headings if heading in promised] == promised
    assert [heading for heading in promised if heading not in folded] == promised[:2]
    assert len(outline.every("h1")) == 1
    anchors = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(anchors) == len(set(anchors))
    links = [str(attributes["href"]) for attributes in outline.every("a")]
    assert all(link.startswith("#") and link[1:] in anchors for link in links)


def test_the_page_fetches_nothing_and_runs_nothing_but_its_own_script() -> None:
    html = composed().html
    outline = Outline(html)
    tags = {tag for tag, _ in outline.tags}
    assert not tags & {"link", "img", "iframe", "object", "embed", "audio", "video", "base", "form"}
    ((script, digest),) = [
        (match[1], base64.b64encode(hashlib.sha256(match[1].encode()).digest()).decode())
        for match in re.finditer(r"<script>(.*?)</script>", html, flags=re.DOTALL)
    ]
    assert f"script-src 'sha256-{digest}'" in html
    assert len(script.splitlines()) <= 150
    assert not re.search(r"innerHTML|eval|fetch|XMLHttpRequest|import\b", script)
    for _, attributes in outline.tags:
        assert not any(name.startswith("on") or name in {"src", "srcset", "action", "data"} for name in attributes)
        assert str(attributes.get("href", "#")).startswith("#")
    assert "http://" not in html
    assert "https://" not in html
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    assert "default-src 'none'" in html


def test_figures_have_alt_text_and_their_numbers_and_tables_their_headers() -> None:
    outline = Outline(composed().html)
    assert all("table" in parts for parts in outline.figures)
    plots = [attributes for attributes in outline.every("svg") if attributes.get("class") == "plot"]
    anchors = {attributes.get("id") for _, attributes in outline.tags}
    assert len(plots) == 4, "the overview, time, rate, and the hierarchy"
    for attributes in plots:
        assert attributes["role"] == "img"
        assert set(str(attributes["aria-labelledby"]).split()) <= anchors
    others = [attributes for attributes in outline.every("svg") if attributes.get("class") != "plot"]
    assert all(attributes.get("aria-hidden") == "true" for attributes in others)
    assert len(outline.every("table")) == len(outline.every("caption"))
    assert all(attributes.get("scope") in {"col", "colgroup", "row"} for attributes in outline.every("th"))


def tables_of(section: Section) -> Iterator[tuple[str, Table]]:
    """Every table with the text that stands around it."""
    texts = " ".join(block.text for block in section.blocks if isinstance(block, Paragraph))
    for block in section.blocks:
        if isinstance(block, Table | Figure):
            table = block if isinstance(block, Table) else block.table
            headings = " ".join(column.heading for column in table.columns)
            yield f"{texts} {table.caption} {headings} {table.note}", table
    for part in section.parts:
        yield from tables_of(part)


@pytest.mark.parametrize("launches", [1, 2, 6])
def test_every_table_of_measured_numbers_has_intervals_or_says_why_not(launches: int) -> None:
    cases = [*sweep(), case("memory_copy", 1 << 20, 4), case("pair_matrix", 1 << 20, 4), case("barrier", 0, 4)]
    page = compose.page_of(judged(synthetic_run(cases, launches=launches, samples=10)))
    measured = [section for section in page.sections if section.anchor in {"operations", "pairs", "ranks"}]
    assert len(measured) == 3
    tables = [entry for section in measured for entry in tables_of(section)]
    assert len(tables) > 6
    for text, table in tables:
        predicted = any(column.name == "Predicted time" for column in table.columns)
        if any(column.numeric for column in table.columns) and not predicted:
            assert re.search(r"\b(low|intervals?|range)\b", text), table.caption


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nothing_from_outside_becomes_markup(hostile: str) -> None:
    odd_one, failed = case("all_reduce", 1 << 30, algorithm=hostile), case("broadcast", 1 << 29)
    end = SyntheticEnd(skipped={odd_one: hostile}, failed={failed: hostile})
    facts = {"kernel": hostile, "variables": {"GLOO_X": hostile}, hostile: hostile}
    machine = Machine(name=hostile, hosts=(hostile, f"{hostile}2"), interface_bytes_per_second=1e9, facts=facts)
    judgement = judged(synthetic_run([*sweep(), odd_one, failed], WORLD, machine=machine, end=end))
    finding = Finding("bad", "wrong-data", (hostile,))
    written = compose.compose(replace(judgement, findings=(finding, *judgement.findings)))
    outline = Outline(written.html)
    assert outline.open == []
    assert [tag for tag, _ in outline.tags if tag in {"script", "img"}] == ["script"]
    assert not re.search(r"(?<!\\)<", written.text)
    lines = written.text.splitlines()
    tables = [line for line in lines if line.startswith("|")]
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in tables]
    rules = [number for number, line in enumerate(tables) if set(line) <= set("|:-")]
    for rule, following in zip(rules, [*rules[1:], len(tables) + 1], strict=True):
        assert len(set(widths[rule - 1 : following - 1])) == 1
    assert json.loads(written.json)["warnings"][0]["text"] == f"{hostile}."


def test_no_line_ends_inside_an_option() -> None:
    assert unbroken("a<b: --launches 10") == 'a&lt;b: <span class="option">--launches</span> 10'
    assert unbroken("p50--p99, --- and a--b") == "p50--p99, --- and a--b"


def test_the_same_judgement_gives_the_same_bytes() -> None:
    assert compose.compose(judged(usual())) == compose.compose(judged(usual()))


def test_the_json_is_strict_and_says_what_was_found() -> None:
    matrix = case("pair_matrix", 1 << 20, pairs="together")
    world = replace(WORLD, slow_pairs=((2, 1),), launch_noise=0.0)
    written = compose.compose(judged(synthetic_run([*sweep(), case("barrier", 0), matrix], world, launches=6)))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    document = json.loads(written.json, parse_constant=refuse)
    assert plain({"a": (float("nan"), float("inf"), np.float64("-inf"), 1.5)}) == {"a": [None, None, None, 1.5]}
    assert document["report"] == LAYOUT
    assert document["counts"] == {"measured": 12, "failed": 0, "skipped": 0, "not reached": 0}
    assert document["runs"][0]["status"] == "complete"
    assert document["pair_matrices"][0]["rate"][0][0] is None
    assert document["curves"][0]["points"][0]["size_bytes"] == 64
    assert document["curves"][1]["fit"]["code"] == "no-size"


@pytest.mark.parametrize("late", [False, True])
def test_a_run_as_expected_is_green_only_without_a_caution(*, late: bool) -> None:
    world = World(by_op={"ping_pong": (Piece(1e-6, 1e-9),), "all_reduce": (Piece(12e-6, 1.5e-9),)}, sample_noise=0.01)
    cases = [*sweep(), *(case("ping_pong", size) for size in SIZES)]
    judgement = judged(synthetic_run(cases, world, launches=6))
    finding = Finding("caution", "straggler", ("Rank 1 is a straggler", "It is late in 30 % of samples"))
    written = compose.compose(replace(judgement, findings=(finding,) if late else ()))
    assert written.answers[""].status == "as expected"
    assert f'<dl class="headline {"caution" if late else "good"}">' in written.html


def test_show_explains_each_flag_that_it_prints_in_one_line() -> None:
    assert max(len(f"# {flag}: {meaning}") for flag, meaning in FLAGS.items()) <= 80
    late, few = World(late_rank=1, late_seconds=20e-6), Machine(usable_cores=2)
    rows = show_rows(judged(synthetic_run(sweep(), late, launches=2, machine=few)))
    raised = {flag for row in rows for flag in row.summary.flags}
    assert len(raised) > 1
    printed = render(show_blocks(rows)).splitlines()
    assert [flag for flag, meaning in FLAGS.items() if f"# {flag}: {meaning}" in printed] == [
        flag for flag in FLAGS if flag in raised
    ]
    meaning = dict(glossary_terms())["Flags"]
    assert all(f"{flag}: {text}" in meaning for flag, text in FLAGS.items())


def test_slow_small_messages_are_counted_in_the_answer() -> None:
    world = World(by_op={"ping_pong": (Piece(1e-6, 1e-9),), "all_reduce": (Piece(100e-6, 1e-9),)}, sample_noise=0.0)
    cases = [*sweep(), *(case("ping_pong", size) for size in SIZES)]
    answer = compose.compose(judged(synthetic_run(cases, world, launches=6))).answers[""]
    assert answer.status == "slower"
    assert "1 of 2 operations slower" in dict(answer.bands)["small"]
    alone = compose.compose(judged(synthetic_run(sweep(), WORLD, launches=6)))
    assert alone.answers[""].status == "not judged", "it was held against nothing"


def test_the_textbook_algorithms_stand_beside_the_one_that_ran() -> None:
    cases = [*sweep(), *(case("ping_pong", size) for size in SIZES)]
    written = compose.compose(judged(synthetic_run(cases, WORLD, launches=3)))
    curves = json.loads(written.json)["curves"]
    (alternatives,) = (curve["alternatives"] for curve in curves if curve["key"]["op"] == "all_reduce")
    assert {alternative["size_bytes"] for alternative in alternatives} == {16 << 20}
    assert all(alternative["time_ns"] > 0 for alternative in alternatives)


def test_one_rank_has_no_busbw_and_no_zero() -> None:
    judgement = judged(synthetic_run(sweep(ranks=1), WORLD))
    point = json.loads(compose.compose(judgement).json)["curves"][0]["points"][0]
    assert point["busbw"] is None
    assert point["algbw"] > 0
    (part,) = next(section.parts for section in compose.page_of(judgement).sections if section.anchor == "operations")
    (figure,) = (block for block in part.blocks if isinstance(block, Figure))
    headings = {column.name for column in figure.table.columns}
    assert "algbw" in headings
    assert "busbw" not in headings


def test_several_runs_are_told_apart() -> None:
    written = compose.compose(judged(usual(1), usual(2)))
    document = json.loads(written.json)
    names = ["synthetic-1", "synthetic-2"]
    assert [run["id"] for run in document["runs"]] == names
    assert document["answer"]["pooled"] == names
    assert json.loads(composed().json)["answer"]["pooled"] == []
    pooled = f"pooled from 2 runs: {', '.join(names)}"
    assert pooled in written.html.partition('class="subtitle">')[2].partition("</p>")[0]
    trust = dict(written.answers[""].lines)["Trust"].lower()
    assert pooled in trust
    assert "compare" in trust
    answer = written.answers[""]
    assert document["answer"]["confidence"] == answer.confidence
    assert dict(answer.lines)["Trust"] == f"{dots(answer.confidence)} {answer.trust}"


def with_cache(cache: str, seed: int) -> StoredRun:
    """A collective with this state of the cache, and the baseline of its verdicts."""
    cases = [case("all_reduce", size, cache=cache) for size in SIZES[:4]]
    return synthetic_run([*cases, *(case("ping_pong", size) for size in SIZES)], WORLD, launches=3, seed=seed)


def test_a_setting_in_which_pooled_runs_differ_has_curves_and_labels() -> None:
    judgement = judged(with_cache("warm", 1), with_cache("flushed", 2))
    page = compose.page_of(judgement)
    assert page.figure is not None
    assert "busbw compare" not in page.answers[0][1].trust, "their cases differ"
    labels = [entry.label for entry in page.figure.legend if entry.series]
    assert sorted(labels) == ["all_reduce · flushed", "all_reduce · warm", "ping_pong"]
    (operations,) = [section for section in page.sections if section.anchor == "operations"]
    (part,) = [part for part in operations.parts if part.heading == "all_reduce"]
    (verdicts,) = [block for block in part.blocks if isinstance(block, Table)]
    place = [column.name for column in verdicts.columns].index("Curve")
    assert {row[place].text for row in verdicts.rows} == {"warm", "flushed"}


def test_the_overview_has_every_peak_by_name_and_the_ranges() -> None:
    world = replace(WORLD, by_op={"tcp_stream": (Piece(1e-6, 1e-9),), "tcp_ping_pong": (Piece(1e-6, 0.5e-9),)})
    cases = [*sweep(), *(case(op, size, 4) for op in ("ping_pong", "tcp_stream", "tcp_ping_pong") for size in SIZES)]
    judgement = judged(synthetic_run(cases, world, launches=3))
    figure = require(compose.page_of(judgement).figure)
    peaks = {
        curve.peak.busbw
        for curve in judgement.curves
        if isinstance(curve.peak, Peak) and curve.series.key.op in ("all_reduce", "ping_pong")
    }
    assert len(peaks) == 2
    named = [entry.label for entry in figure.legend if not entry.series]
    assert sorted(label.rpartition(" for ")[2] for label in named) == ["all_reduce", "ping_pong"]
    assert all(any(f"peak {format_rate(rate or 0)}:" in label for label in named) for rate in peaks)


SPLITS = tuple({"group": group} for group in ("all", "div:2"))
SETTINGS = tuple({"dtype": d, "in_place": p} for d in ("float32", "float64", "int8", "int32") for p in (False, True))


@pytest.mark.parametrize("settings", [SPLITS, SETTINGS])
def test_each_split_of_the_ranks_and_every_few_curves_have_a_figure(settings: Sequence[dict[str, Any]]) -> None:
    cases = [case("all_reduce", size, **setting) for size in SIZES[:4] for setting in settings]
    html = compose.compose(judged(synthetic_run(cases, WORLD))).html
    assert html.count('class="plot"') == 6


def test_unlike_runs_stand_beside_each_other_and_like_ones_are_pooled() -> None:
    own, other = usual(1), other_backend(usual(3))
    datasets = pool_by_setup((own, other, usual(2)))
    assert [[stored.run.id for stored in dataset.runs] for dataset in datasets] == [
        ["synthetic-1", "synthetic-2"],
        ["synthetic-3"],
    ]
    written = compose.compose_beside([judge(dataset) for dataset in datasets])
    assert list(written.answers) == ["gloo", "mpi"]
    sides = json.loads(written.json)["sides"]
    assert [(side["name"], len(side["runs"])) for side in sides] == [("gloo", 2), ("mpi", 1)]
    (part,) = re.findall(r'<section id="op-all-reduce">(.*?)</section>', written.html, flags=re.DOTALL)
    rate = part[part.index("all_reduce: rate over size") :]
    for slot, curve in enumerate(sides[0]["curves"][:1] + sides[1]["curves"][:1]):
        points = re.findall(r'data-tip="([^"]+)"', rate.partition(f"series series-{slot}")[2].partition("</g>")[0])
        said = [point.split("&#10;")[1].partition(",")[0] for point in points]
        assert said == [format_rate(point["busbw"]) for point in curve["points"]]


def test_sides_of_one_operation_have_a_colour_each_and_are_named_once() -> None:
    cases = [case("all_reduce", size) for size in (1 << 10, 64 << 10, 1 << 20)]
    own = synthetic_run(cases, WORLD)
    html = compose.compose_beside([judge(pool((stored,))) for stored in (own, other_backend(own))]).html
    (overview,) = re.findall(r'<figure class="overview">(.*?)</figure>', html, flags=re.DOTALL)
    assert {f"var(--series-{slot})" in overview for slot in (0, 1)} == {True}
    (part,) = re.findall(r'<section id="op-all-reduce">(.*?)</section>', html, flags=re.DOTALL)
    assert {tip.partition(" · ")[0] for tip in re.findall(r'data-tip="([^"]+)"', part)} == {"gloo", "mpi"}


def other_backend(stored: StoredRun) -> StoredRun:
    """The same run as if MPI had done it, at half the times."""

    def moved(setting: Case) -> Case:
        return msgspec.structs.replace(setting, backend="mpi")

    def row(stored_row: Row) -> Row:
        if not isinstance(stored_row, Measurement):
            return stored_row
        groups = tuple(
            msgspec.structs.replace(
                group,
                slowest_ns=tuple(time // 2 for time in group.slowest_ns),
                fastest_ns=tuple(time // 2 for time in group.fastest_ns),
            )
            for group in stored_row.groups
        )
        return msgspec.structs.replace(stored_row, case=moved(stored_row.case), groups=groups)

    run = msgspec.structs.replace(stored.run, cases=tuple(map(moved, stored.run.cases)))
    return replace(stored, run=run, rows=tuple(map(row, stored.rows)))


def test_a_reference_is_a_thin_line_and_no_number_of_the_report() -> None:
    alone, beside = composed(), compose.compose(judged(usual()), [judged(usual(7))])
    assert beside.json == alone.json
    lines = [re.findall(r"stroke-width: 0\.7\b", made.html) for made in (alone, beside)]
    assert len(lines[1]) - len(lines[0]) == 3, "in the overview, the times and the rates"
    assert "reference:" not in alone.html


def test_a_comparison_has_a_page_with_both_sides_and_its_verdicts_first(tmp_path: Path) -> None:
    folders = [str(write_synthetic(tmp_path / str(seed), usual(seed, launches=8))) for seed in (1, 2)]
    page = tmp_path / "new" / "page.html"
    result = CliRunner().invoke(main, ["compare", *folders, "--html", str(page), "--json"])
    assert result.exit_code == 0, result.output
    html = page.read_text(encoding="utf-8")
    assert Outline(html).open == []
    for band in json.loads(result.stdout)["bands"]:
        assert f">{band['ratio']:.3f}" in html
    assert html.index("B against A by band of sizes") < html.index("<h2>A</h2>") < html.index("<h2>B</h2>")
    assert re.search(r'data-tip="A · ', html)
    assert re.search(r'data-tip="B · ', html)


def test_a_reference_is_refused_where_runs_stand_beside_each_other(tmp_path: Path) -> None:
    elsewhere = synthetic_run(sweep(), WORLD, machine=Machine(name="elsewhere"), seed=2)
    folders = [str(write_synthetic(tmp_path, run)) for run in (usual(1), elsewhere)]
    asked = ["report", *folders, "--reference", folders[0], "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(main, asked)
    assert (result.exit_code, "--reference" in result.stderr) == (2, True), result.output
    assert not (tmp_path / "out").exists()


def test_markdown_has_tables_of_the_html_page_alone() -> None:
    written = composed()
    captions = re.findall(r"^\*(.+)\*$", written.text.replace("\\", ""), flags=re.MULTILINE)
    assert captions
    assert [caption for caption in captions if caption not in written.html] == []


def test_markdown_does_not_explain_the_marks_of_drawings() -> None:
    figure = compose.page_of(judged(usual()), (), ()).figure
    assert figure is not None
    assert figure.marks
    assert figure.marks in composed().html
    assert figure.marks not in composed().text


def test_the_files_are_written_whole_or_it_is_said_why_not(tmp_path: Path) -> None:
    written = composed()
    path = compose.write(written, tmp_path / "new" / "folder")
    assert path.read_text(encoding="utf-8") == written.html
    assert {entry.name for entry in path.parent.iterdir()} == {"report.html", "report.md", "report.json"}
    with refused(StoreError, "not-writable"):
        compose.write(written, path / "below")


def test_a_report_on_several_runs_has_a_folder_of_its_own(tmp_path: Path) -> None:
    assert compose.folder_for([tmp_path], None, tmp_path) == tmp_path
    assert compose.folder_for([tmp_path, tmp_path / "b"], tmp_path / "c", tmp_path) == tmp_path / "c"
    two = [tmp_path / "20261121T081628.085Z-4ad500", tmp_path / "20261122T081628.085Z-4ad501"]
    assert compose.folder_for(two, None, tmp_path) == tmp_path / "reports" / "4ad500+4ad501"


def test_the_command_writes_into_the_run_and_says_where(tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path, usual())
    result = CliRunner().invoke(main, ["report", "latest", "--results-dir", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(folder / "report.html")
    shown = CliRunner().invoke(main, ["report", str(folder), "--json", "--output", str(tmp_path / "elsewhere")])
    assert json.loads(shown.stdout)["counts"]["measured"] == 13
    assert (tmp_path / "elsewhere" / "report.html").is_file()
    folders = [str(write_synthetic(tmp_path / "more", usual(seed))) for seed in (1, 2)]
    both = CliRunner().invoke(main, ["report", *folders, "--results-dir", str(tmp_path / "all")])
    assert Path(both.stdout.strip()).parent.parent == tmp_path / "all" / "reports"
