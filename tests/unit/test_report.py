"""The report: it says everything, it lets nothing from outside become markup, and it needs nothing but itself."""

import json
import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from busbw.errors import StoreError, UsageError
from busbw.records import (
    JSON,
    SCHEMA,
    Case,
    Check,
    Ended,
    EndStatus,
    Failed,
    GroupSamples,
    LaunchStarted,
    Measurement,
    RankSamples,
    Row,
    Run,
    Skipped,
)
from busbw.store import StoredRun
from busbw_analysis import report
from busbw_analysis.fit import fit_series
from busbw_analysis.judge import Curve, Judgement, Odd, PairMatrix, Remark, Verdict
from busbw_analysis.load import pool
from busbw_analysis.models import NoModel, Prediction
from busbw_analysis.peaks import NoRoof, Roof
from busbw_analysis.report_json import plain
from busbw_analysis.series import Series, series_of
from busbw_analysis.summary import summarise

HOSTILE = "<script>alert(1)</script>"
SIZES = tuple(2**exponent for exponent in range(6, 25, 2))


def case(op: str = "all_reduce", size: int = 1024, ranks: int = 4, **changes: JSON) -> Case:
    fields: dict[str, JSON] = {"dtype": "float32", "redop": "sum" if op == "all_reduce" else None, **changes}
    return Case(op=op, backend="gloo", device="cpu", size_bytes=size, ranks=ranks, nodes=1, **fields)


def block(of: Case, launch: int = 0, members: Sequence[int] | None = None) -> Measurement:
    ranks = tuple(members if members is not None else range(of.ranks))
    count = 40
    slowest = tuple(int(30_000 + 0.3 * of.size_bytes + 97 * (i % 7) + 1000 * launch) for i in range(count))
    fastest = tuple(value - 500 for value in slowest)
    wired = len(ranks) > 1 and of.op != "barrier"
    group = GroupSamples(
        ranks=ranks,
        bus_factor=1.5 if wired else None,
        wire_bytes=6.0 * of.size_bytes if wired else 0.0,
        slowest_ns=slowest,
        fastest_ns=fastest,
        late_rank=tuple(ranks[i % len(ranks)] for i in range(count)),
        arrival_skew_ns=None,
        exit_span_ns=None,
        per_rank=tuple(RankSamples(rank=rank, quantiles_ns=(30_000,) * 7, samples_ns=None) for rank in ranks),
    )
    return Measurement(
        case=of,
        launch=launch,
        block=0,
        calls=1,
        first_call_ns=90_000,
        warmup_calls=5,
        stop_reason="converged",
        check=Check(state="verified"),
        started="2026-03-01T10:00:00.000Z",
        elapsed_ns=5_000_000,
        groups=(group,),
    )


def stored(
    cases: Sequence[Case],
    rows: Sequence[Row],
    *,
    name: str = "20260301T100000Z-abc123",
    host: str = "node1",
    machine: str = "machine",
    end: EndStatus | None = "complete",
    facts: Mapping[str, JSON] | None = None,
) -> StoredRun:
    ranks = max((one.ranks for one in cases), default=1)
    launches = sorted({row.launch for row in rows if isinstance(row, Measurement)}) or [0]
    run = Run(
        schema=SCHEMA,
        id=name,
        busbw="0.1.0",
        machine=machine,
        started="2026-03-01T10:00:00.000Z",
        launcher="local",
        plan={"name": "quick", "timing": {"blocks": 2}, "sweep": [{"ops": ["all_reduce"]}]},
        cases=tuple(cases),
        adjusted=(),
        hosts=(host,) * ranks,
        environments={host: dict(facts or {"cpu": {"model": "A CPU", "usable_cores": 2}})},
    )
    starts = [
        LaunchStarted(
            launch=launch,
            started="2026-03-01T10:00:00.000Z",
            order_seed=7,
            hosts=run.hosts,
            pids=tuple(range(ranks)),
            timer_ns=(70,) * ranks,
            shared_clock=True,
            load_average=0.5,
        )
        for launch in launches
    ]
    ends = [] if end is None else [Ended(status=end, reason=None, ended="2026-03-01T10:10:00.000Z")]
    return StoredRun(path=Path(name), run=run, rows=(*starts, *rows, *ends), warnings=())


def judged(
    *runs: StoredRun,
    remarks: Sequence[Remark] = (),
    denominator: str = "memory copy of node1, measured in this run",
    matrices: tuple[PairMatrix, ...] = (),
) -> Judgement:
    """A judgement with hand-made verdicts, so that these tests are about the report alone."""
    dataset = pool(runs)
    summaries = summarise(dataset)
    curves = tuple(curve(series, denominator) for series in series_of(dataset, summaries))
    return Judgement(
        dataset=dataset,
        remarks=tuple(remarks),
        verdicts=tuple(verdict(one) for one in curves),
        curves=curves,
        matrices=matrices,
        cases=summaries,
    )


def curve(series: Series, denominator: str) -> Curve:
    wired = series.bus_factor is not None
    model = tuple(
        Prediction(point.size_bytes, point.time_ns * 0.8, None, "ring", "2(n−1)a", "a book", "ping_pong of this run")
        for point in series.points
    )
    return Curve(
        series=series,
        fit=fit_series(series),
        model=model if wired else NoModel("one rank sends nothing"),
        roof=Roof(8e9, 12e9, denominator, measured=True) if wired else NoRoof("nothing crosses a wire"),
    )


def verdict(one: Curve) -> Verdict:
    point = one.series.points[-1]
    wired = isinstance(one.roof, Roof) and point.busbw is not None
    return Verdict(
        label=one.series.key.label,
        op=one.series.key.op,
        band="large",
        size_bytes=point.size_bytes,
        time_ns=point.time_ns,
        busbw=point.busbw,
        roof_share=(point.busbw or 0.0) / 12e9 if wired else None,
        denominator=one.roof.denominator if isinstance(one.roof, Roof) else "",
        model_ratio=1.25 if wired else None,
        word="as the model says" if wired else "not judged",
        why="the time is within a factor of two of the model" if wired else "there is no wire",
        indicative=True,
    )


def usual(launches: int = 3, **changes: JSON) -> StoredRun:
    cases = [case(size=size) for size in SIZES] + [case("barrier", 0, dtype=None)]
    rows = [block(one, launch) for launch in range(launches) for one in cases]
    return stored(cases, rows, **changes)


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
    html = report.compose(judged(usual())).html
    outline = Outline(html)
    assert outline.open == []
    headings = re.findall(r"<h2>([^<]+)</h2>", html)
    assert headings == [
        "Warnings",
        "Verdict",
        "Operations",
        "Single ranks",
        "Fits",
        "Cases without a result",
        "How it was timed",
        "Machine and software",
        "Words and units",
    ]
    assert len(outline.every("h1")) == 1
    anchors = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(anchors) == len(set(anchors))
    links = [str(attributes["href"]) for attributes in outline.every("a")]
    assert all(link.startswith("#") and link[1:] in anchors for link in links)


def test_the_page_fetches_nothing_and_runs_nothing() -> None:
    html = report.compose(judged(usual())).html
    outline = Outline(html)
    tags = {tag for tag, _ in outline.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "audio", "video", "base", "form"}
    for _, attributes in outline.tags:
        assert not any(name.startswith("on") or name in {"src", "srcset", "action", "data"} for name in attributes)
        assert str(attributes.get("href", "#")).startswith("#")
    assert "http://" not in html
    assert "https://" not in html
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    assert "default-src 'none'" in html


def test_every_figure_has_alt_text_and_its_numbers() -> None:
    outline = Outline(report.compose(judged(usual())).html)
    assert outline.figures
    assert all("table" in parts and "figcaption" in parts for parts in outline.figures)
    plots = [attributes for attributes in outline.every("svg") if attributes.get("class") == "plot"]
    anchors = {attributes.get("id") for _, attributes in outline.tags}
    assert len(plots) == 2
    for attributes in plots:
        assert attributes["role"] == "img"
        assert set(str(attributes["aria-labelledby"]).split()) <= anchors
    others = [attributes for attributes in outline.every("svg") if attributes.get("class") != "plot"]
    assert all(attributes.get("aria-hidden") == "true" for attributes in others)


def test_every_table_has_a_caption_and_scoped_headers() -> None:
    outline = Outline(report.compose(judged(usual())).html)
    assert len(outline.every("table")) == len(outline.every("caption"))
    assert all(attributes.get("scope") in {"col", "row"} for attributes in outline.every("th"))


@pytest.mark.parametrize(
    "hostile", [HOSTILE, "a|b\nc`d`", '"><img src=x onerror=alert(1)>', "$x^2$ {{ 7*7 }} {% raw %}"]
)
def test_nothing_from_outside_becomes_markup(hostile: str) -> None:
    cases = [case(size=size) for size in SIZES]
    odd_one = case(size=1 << 30, variant=hostile)
    failed = case("broadcast", size=1 << 29, redop=None)
    rows: list[Row] = [block(one) for one in cases]
    rows += [Skipped(case=odd_one, reason=hostile), Failed(case=failed, launch=0, block=0, error=hostile)]
    facts = {"cpu": {"model": hostile}, "variables": {"GLOO_X": hostile}, hostile: hostile}
    run = stored([*cases, odd_one, failed], rows, host=hostile, machine=hostile, facts=facts)
    written = report.compose(judged(run, remarks=[Remark("bad", hostile, hostile)], denominator=hostile))
    outline = Outline(written.html)
    assert outline.open == []
    assert not {tag for tag, _ in outline.tags} & {"script", "img"}
    lines = written.text.splitlines()
    assert not re.search(r"(?<!\\)<(?!/?sub)", written.text)
    tables = [line for line in lines if line.startswith("|")]
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in tables]
    rules = [number for number, line in enumerate(tables) if set(line) <= set("|:-")]
    for rule, following in zip(rules, [*rules[1:], len(tables) + 1], strict=True):
        assert len(set(widths[rule - 1 : following - 1])) == 1
    assert json.loads(written.json)["warnings"][0]["text"] == hostile


def test_the_same_judgement_gives_the_same_bytes() -> None:
    assert report.compose(judged(usual())) == report.compose(judged(usual()))


def test_the_json_is_strict_and_says_what_was_found() -> None:
    rate = np.asarray([[np.nan, 2e9], [1e9, np.nan]])
    odd = Odd("pair", (1, 0), 0.5, "1 → 0 is slow")
    matrix = PairMatrix((0, 1), 1 << 20, "float32", "together", rate, 1e9 / rate, (odd,))
    written = report.compose(judged(usual(), matrices=(matrix,)))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    document = json.loads(written.json, parse_constant=refuse)
    assert document["report"] == 1
    assert document["counts"] == {"measured": 11, "failed": 0, "skipped": 0, "not reached": 0}
    assert document["runs"][0]["status"] == "complete"
    assert document["pair_matrices"][0]["rate"] == [[None, 2e9], [1e9, None]]
    assert document["curves"][0]["points"][0]["size_bytes"] == 64
    assert document["curves"][1]["fit"]["none"]
    assert "1 → 0 is slow" in written.html
    assert "slowest pair is 1 → 0 with 1 GB/s" in written.html


def test_numbers_that_are_not_finite_become_null() -> None:
    assert plain({"a": (float("nan"), float("inf"), np.float64("-inf"), 1.5)}) == {"a": [None, None, None, 1.5]}


def test_warnings_come_first_and_in_words() -> None:
    remarks = [
        Remark("bad", "failed", "Something broke."),
        Remark("caution", "oversubscribed", "4 ranks share 2 cores."),
    ]
    written = report.compose(judged(usual(), remarks=remarks))
    assert written.html.index("Something broke.") < written.html.index("4 ranks share 2 cores.")
    assert written.html.index("4 ranks share 2 cores.") < written.html.index(">Verdict</h2>")
    assert "This is not normal: the problem must be looked at first." in written.html
    assert "- **Problem:** Something broke." in written.text


def test_every_percentage_of_a_roof_says_what_100_per_cent_is() -> None:
    written = report.compose(judged(usual()))
    assert "% of A" in written.html
    assert "Memory copy of node1, measured in this run." in written.html
    assert "12 GB/s" in written.html


def test_one_rank_has_no_busbw_and_no_zero() -> None:
    cases = [case(size=size, ranks=1) for size in SIZES]
    written = report.compose(judged(stored(cases, [block(one) for one in cases])))
    assert "there is no wire, so there is no busbw" in written.html
    assert "algbw over size" in written.html
    assert "busbw over size" not in written.html
    point = json.loads(written.json)["curves"][0]["points"][0]
    assert point["busbw"] is None
    assert point["algbw"] > 0
    row = next(line for line in written.text.splitlines() if line.startswith("| 64 B"))
    assert row.split("|")[7].strip() == "–"


def test_a_run_in_which_everything_failed() -> None:
    cases = [case(size=size) for size in SIZES]
    rows = [Failed(case=one, launch=0, block=0, error="rank 2 on node1 died in all_reduce") for one in cases]
    written = report.compose(
        judged(stored(cases, rows, end="failed"), remarks=[Remark("bad", "failed", "10 cases failed.")])
    )
    assert "Nothing was measured" in written.html
    assert "rank 2 on node1 died in all_reduce" in written.html
    assert "64 B … 16 MiB (10 sizes)" in written.html
    assert "0 of 10" in written.html


def test_a_run_without_cases_or_launches() -> None:
    empty = StoredRun(path=Path("x"), run=stored([], []).run, rows=(), warnings=())
    written = report.compose(judged(empty))
    assert "Nothing was measured" in written.html
    assert "No launch came to life." in written.html
    assert "killed" in written.html


def test_an_interrupted_run_names_what_it_did_not_reach() -> None:
    cases = [case(size=size) for size in SIZES]
    written = report.compose(judged(stored(cases, [block(one) for one in cases[:4]], end="interrupted")))
    assert "interrupted" in written.html
    assert "not reached" in written.html
    assert "16 KiB … 16 MiB (6 sizes)" in written.html
    assert "6 not reached" in written.text


def test_several_runs_are_told_apart() -> None:
    names = ("20260301T100000Z-aaaaaa", "20260302T100000Z-bbbbbb")
    written = report.compose(judged(*(usual(name=name) for name in names)))
    assert "2 runs, 4 gloo ranks on machine" in written.html
    assert all(name in written.text for name in names)
    assert [run["id"] for run in json.loads(written.json)["runs"]] == list(names)


def test_many_curves_are_spread_over_figures() -> None:
    cases = [case(size=size, dtype=dtype, in_place=place) for size in SIZES[:4]
             for dtype in ("float32", "float64", "int8", "int32") for place in (False, True)]  # fmt: skip
    html = report.compose(judged(stored(cases, [block(one) for one in cases]))).html
    assert html.count('class="plot"') == 4
    assert "float64 · in place" in html


def test_markdown_and_html_show_the_same_tables() -> None:
    written = report.compose(judged(usual()))
    assert written.html.count("<table>") == len(re.findall(r"^\|[:|-]+\|$", written.text, flags=re.MULTILINE))


def test_the_files_are_written_whole(tmp_path: Path) -> None:
    written = report.compose(judged(usual()))
    path = report.write(written, tmp_path / "new" / "folder")
    assert path.name == "report.html"
    assert path.read_text(encoding="utf-8") == written.html
    assert {entry.name for entry in path.parent.iterdir()} == {"report.html", "report.md", "report.json"}


def test_a_folder_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.touch()
    with pytest.raises(StoreError, match=r"cannot write the report .* --output"):
        report.write(report.compose(judged(usual())), blocker / "below")


def test_a_report_on_several_runs_needs_a_place(tmp_path: Path) -> None:
    assert report.folder_for([tmp_path], None) == tmp_path
    assert report.folder_for([tmp_path, tmp_path / "b"], tmp_path / "c") == tmp_path / "c"
    with pytest.raises(UsageError, match="--output"):
        report.folder_for([tmp_path, tmp_path / "b"], None)
