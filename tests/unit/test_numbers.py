"""The same number everywhere: what is shown of stored runs, worked out once more from the lines of their samples."""

import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from busbw.cli.main import main
from busbw.launch import live_table
from busbw.runs import store
from busbw.runs.records import QUANTILES
from busbw.statistics import autocorrelation_time, median_interval
from busbw.units import format_rate, format_size, format_time

ROOT = Path(__file__).parents[2]
SAMPLES = sorted(path.parent for path in ROOT.glob("results/samples/*/*/run.json"))
RUNS = [*SAMPLES, ROOT / "tests/data/runs/mpi-modes"]


def exactly(value: float) -> Any:  # noqa: ANN401 - pytest has no type for it
    return pytest.approx(value, rel=1e-9)


@dataclass
class Raw:
    """One case on one group of ranks: ns per call of every sample by launch, as they are in the file."""

    case: dict[str, Any]
    ranks: tuple[int, ...]
    factor: float | None
    slowest: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    fastest: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    skew: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def medians(self) -> list[float]:
        return [statistics.median(times) for times in self.slowest.values()]

    @property
    def time(self) -> float:
        return statistics.median(self.medians)

    @property
    def busbw(self) -> float | None:
        if self.factor is None or not self.case["size_bytes"] or self.case["mode"] == "overlap":
            return None
        return float(self.factor * self.case["size_bytes"] / (self.time * 1e-9))

    @property
    def spread(self) -> float:
        return statistics.median(spread(times) for times in self.slowest.values())


def spread(times: list[float]) -> float:
    p5, p95 = np.quantile(times, [0.05, 0.95])
    return float((p95 - p5) / 2 / statistics.median(times))


def raw(folder: Path) -> dict[tuple[str, tuple[int, ...]], Raw]:
    by_group: dict[tuple[str, tuple[int, ...]], Raw] = {}
    for line in (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for group in row.get("groups", ()):
            ranks = tuple(group["ranks"])
            key = identity(row["case"]), ranks
            samples = by_group.setdefault(key, Raw(row["case"], ranks, group["bus_factor"]))
            for name in ("slowest", "fastest"):
                getattr(samples, name)[row["launch"]] += [time / row["calls"] for time in group[f"{name}_ns"]]
            samples.skew[row["launch"]] += [time / row["calls"] for time in group["arrival_skew_ns"] or ()]
    return by_group


def identity(case: dict[str, Any]) -> str:
    """What tells the cases of these runs apart, in a row of samples as in each output."""
    return "|".join(str(case[name]) for name in ("op", "dtype", "redop", "size_bytes", "mode", "in_place"))


def output(*arguments: object) -> Any:  # noqa: ANN401 - whatever JSON holds
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def _differences(shown: dict[str, Any], truth: Raw) -> Iterator[tuple[str, Any, float | None]]:
    """Name of a number, what is shown and what it is."""
    yield "time_ns", shown["time_ns"], truth.time
    yield "spread", shown["spread"], truth.spread
    yield "busbw", shown["busbw"], truth.busbw
    yield "fastest_ns", shown["fastest_ns"], statistics.median(map(statistics.median, truth.fastest.values()))
    if shown["skew_share"] is not None:
        shares = [
            statistics.median(skew) / statistics.median(times)
            for skew, times in zip(truth.skew.values(), truth.slowest.values(), strict=True)
        ]
        yield "skew_share", shown["skew_share"], statistics.median(shares)


@dataclass
class Written:
    """What the commands make of a run: their JSON, and the files of the report."""

    folder: Path
    show: Any
    report: Any
    files: tuple[str, str]


@pytest.fixture(scope="module", params=RUNS, ids=lambda folder: folder.name)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder: Path = request.param
    where = tmp_path_factory.mktemp("report")
    document = output("report", folder, "--output", where)
    page, text = ((where / name).read_text(encoding="utf-8") for name in ("report.html", "report.md"))
    return Written(folder, output("show", folder), document, (page, text.replace("\\", "")))


def test_show_and_report_have_the_numbers_of_the_samples(written: Written) -> None:
    truth, checked = raw(written.folder), 0
    for row in written.show["cases"]:
        if row["ranks"] is None or row["row"] == "none":
            continue
        sampled = truth[identity(row), tuple(row["ranks"])]
        for name, value, wanted in _differences(row, sampled):
            assert value == (None if wanted is None else exactly(wanted)), (identity(row), name)
            checked += 1
        assert (row["low_ns"], row["high_ns"]) == (exactly(min(sampled.medians)), exactly(max(sampled.medians)))
    for case in written.report["cases"]:
        for group in case["groups"]:
            sampled = truth[identity(case["case"]), tuple(group["ranks"])]
            for name, value, wanted in _differences(group, sampled):
                assert value == (None if wanted is None else exactly(wanted)), (identity(case["case"]), name)
                checked += 1
    for curve in written.report["curves"]:
        for point in curve["points"]:
            sampled = truth[identity({**curve["key"], "size_bytes": point["size_bytes"]}), tuple(curve["key"]["ranks"])]
            assert (point["time_ns"], point["busbw"]) == (
                exactly(sampled.time),
                sampled.busbw and exactly(sampled.busbw),
            )
            checked += 2
    assert checked >= 50


def test_the_highest_busbw_is_that_of_the_run_in_every_output(written: Written) -> None:
    truth = raw(written.folder)
    best = max(
        (sampled for sampled in truth.values() if sampled.busbw is not None), key=lambda sampled: sampled.busbw or 0.0
    )
    for row in (written.show["best"], written.report["best"]):
        assert (row["busbw"], tuple(row["ranks"])) == (exactly(best.busbw or 0.0), best.ranks)
        assert row["size_bytes"] == best.case["size_bytes"]
    label = written.show["best"]["label"]
    said = f"Highest busbw {format_rate(best.busbw)} (median), {label} at {format_size(best.case['size_bytes'])}"
    assert label.startswith(best.case["op"])
    shown = CliRunner().invoke(main, ["show", str(written.folder)]).stdout
    for where in (shown.replace("\n#", " "), *written.report["answer"].values(), *written.files):
        if isinstance(where, str) and "Highest" in where:
            assert said in " ".join(where.split())
    assert all("Highest" in where for where in (shown, *written.files))


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_the_live_table_has_the_time_and_interval_of_its_launch(folder: Path) -> None:
    truth, checked = raw(folder), 0
    for row in store.read(folder).measurements:
        if len(row.groups) != 1 or row.case.in_place:
            continue
        line = live_table.line([row], 3)
        times = truth[identity(json.loads(json.dumps({**_fields(row.case)}))), row.groups[0].ranks].slowest[row.launch]
        assert f" {format_time(statistics.median(times))} " in line
        interval = median_interval(times, tau=autocorrelation_time(times))
        if interval.low is not None and interval.high is not None:
            width = max(interval.median - interval.low, interval.high - interval.median)
            share = width / interval.median
            assert f" ±{'>100%' if share > 1 else f'{share:.0%}'} " in line
        checked += 1
    assert checked >= 1


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_the_table_of_show_has_the_numbers_of_its_json_in_80_columns(folder: Path) -> None:
    lines = CliRunner().invoke(main, ["show", str(folder)]).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    shown = [line for line in lines if line and not line.startswith("#")]
    rows = output("show", folder)["cases"]
    assert len(shown) == len(rows)
    # Operations are told apart by headings, in the order of the plan; those of one heading may lie apart in it.
    for row in rows:
        size = [format_size(row["size_bytes"])] if row["size_bytes"] else []
        rate = row["algbw"] if row["busbw"] is None else row["busbw"]
        wanted = [*size, *([] if row["time_ns"] is None else [format_time(row["time_ns"])])]
        wanted += [] if rate is None else [format_rate(rate)]
        assert any(all(f" {text} " in f" {line} " for text in wanted) for line in shown), row


def test_the_tables_of_the_report_have_the_numbers_of_its_json(written: Written) -> None:
    rows = [re.sub(r"<[^>]+>", "|", row) for row in written.files[0].split("<tr")]
    for curve in written.report["curves"]:
        for point in curve["points"]:
            cells = [format_size(point["size_bytes"]), format_time(point["time_ns"])]
            cells += [] if point["busbw"] is None else [format_rate(point["busbw"])]
            assert any(all(re.search(rf"\| ?{re.escape(cell)} ?\|", row) for cell in cells) for row in rows), cells


def test_the_report_in_markdown_can_be_read_to_its_end(written: Written) -> None:
    assert len(written.files[1].split()) <= 3000


def _fields(case: Any) -> dict[str, Any]:  # noqa: ANN401 - a record by its fields
    return {name: getattr(case, name) for name in case.__struct_fields__}


@pytest.fixture
def slowed(tmp_path: Path) -> Path:
    """The sample run once more under another name, every launch slower by another factor."""
    folder = tmp_path / "slowed"
    folder.mkdir()
    (source,) = SAMPLES[:1]
    run = json.loads((source / "run.json").read_text(encoding="utf-8"))
    (folder / "run.json").write_text(json.dumps({**run, "id": "slowed"}), encoding="utf-8")
    lines = []
    for line in (source / "samples.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["kind"] == "end":
            row["checksum"] = None
        for group in row.get("groups", ()):
            for times in (group, *group["per_rank"]):
                for name in {"slowest_ns", "fastest_ns", "samples_ns"} & times.keys():
                    times[name] = times[name] and [(2 + row["launch"]) * time for time in times[name]]
            for rank in group["per_rank"]:
                own = rank["samples_ns"]
                rank["quantiles_ns"] = [int(time) for time in np.quantile(own, QUANTILES).round()]
        lines.append(json.dumps(row))
    (folder / "samples.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_compare_has_the_numbers_of_the_samples(slowed: Path) -> None:
    first, second = raw(SAMPLES[0]), raw(slowed)
    document, checked = output("compare", SAMPLES[0], slowed), 0
    for band in document["bands"]:
        sides: list[tuple[list[float], list[float]]] = []
        for case in band["cases"]:
            name = identity({**band, "size_bytes": case["size_bytes"]})
            one, two = (_launches(side, name, case["statistic"]) for side in (first, second))
            assert (case["a_ns"], case["b_ns"]) == (exactly(statistics.median(one)), exactly(statistics.median(two)))
            assert case["ratio"] == exactly(_hodges_lehmann(one, two))
            sides.append((one, two))
            checked += 3
        one, two = (
            [statistics.geometric_mean(sizes) for sizes in zip(*side, strict=True)] for side in zip(*sides, strict=True)
        )
        assert band["ratio"] == exactly(_hodges_lehmann(one, two))
        assert band["statistic"] == ("geometric mean" if len(sides) > 1 else band["cases"][0]["statistic"])
        checked += 1
    assert {case["statistic"] for band in document["bands"] for case in band["cases"]} == {"mean", "median"}
    assert checked >= 50


def _launches(side: dict[tuple[str, tuple[int, ...]], Raw], name: str, statistic: str) -> list[float]:
    """One number a launch: of the one group, or of all pairs their geometric mean."""
    of = statistics.median if statistic == "median" else statistics.fmean
    groups = [[of(times) for times in group.slowest.values()] for (case, _), group in side.items() if case == name]
    return [statistics.geometric_mean(launch) for launch in zip(*groups, strict=True)]


def _hodges_lehmann(one: list[float], two: list[float]) -> float:
    return math.exp(statistics.median(math.log(b / a) for a in one for b in two))
