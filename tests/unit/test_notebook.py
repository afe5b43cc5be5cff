"""Runs in notebooks: ``busbw_analysis.load`` and docs/python.md, whose code is run."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from refused import refused

import busbw_analysis as ba
from busbw.errors import UsageError
from busbw_analysis.notebook import Run
from busbw_analysis.report.show import show_rows

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/python.md").read_text(encoding="utf-8")
SAMPLE = ROOT / "results/samples/vm/20261121T081628.085Z-4ad500"


@pytest.fixture(scope="module")
def run() -> Run:
    return ba.load(SAMPLE)


def documented(heading: str) -> list[str]:
    """The columns in the list below a heading of the document."""
    part = TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^- (`.*?): ", part, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def test_the_code_of_the_document_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run: Run
) -> None:
    (tmp_path / "results").symlink_to(ROOT / "results")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(block, names)  # noqa: S102 - what a reader is told to type
    assert float(capsys.readouterr().out.split()[-1]) == run.table()["time_ns"][0]
    assert (tmp_path / "all_reduce.png").stat().st_size > 5000


def test_every_column_is_documented_and_every_documented_one_is_there(run: Run) -> None:
    assert sorted(documented("Table")) == sorted(run.table().columns)
    assert sorted(documented("Samples")) == sorted(run.samples().columns)


def test_the_table_has_the_numbers_of_show(run: Run) -> None:
    rows = [row for row in show_rows(run.judgement) if row.row == "group"]
    table = run.table()
    of_groups = table[~table["op"].isin(["pair_matrix"])]
    for column, name in {
        "time_ns": "time_ns",
        "busbw_bytes_per_s": "busbw",
        "algbw_bytes_per_s": "algbw",
        "low_ns": "low_ns",
        "peak_share": "peak_share",
        "spread_share": "spread",
    }.items():
        shown = [np.nan if (value := row.document[name]) is None else value for row in rows]
        assert np.array_equal(of_groups[column].to_numpy(), np.asarray(shown), equal_nan=True), column
    known = table.dropna(subset=["peak_share"])
    assert len(known)
    assert np.allclose(known["peak_share"], known["busbw_bytes_per_s"] / known["peak_bytes_per_s"])


def test_the_samples_have_every_case_and_pair_and_give_the_times_of_the_table(run: Run) -> None:
    samples, table = run.samples(), run.table()
    keys = ["case", "group"]
    times = samples.groupby([*keys, "launch"], observed=True)["time_ns"].median()
    medians = times.groupby(level=keys, observed=True).median()
    expected = table.set_index(keys)["time_ns"]
    assert set(map(tuple, medians.index)) == set(map(tuple, expected.index))
    assert all(np.isclose(medians[key], expected[key], rtol=1e-12) for key in expected.index)
    assert samples.groupby(keys, observed=True).size().to_dict() == table.set_index(keys)["samples"].to_dict()


def test_a_plot_has_the_points_of_the_table_and_the_peak(run: Run) -> None:
    (axes,) = run.plot("all_reduce").axes
    table = run.table()
    wanted = table[table["op"] == "all_reduce"]["busbw_bytes_per_s"].to_numpy()
    drawn = [np.asarray(line.get_ydata(), dtype=float) for line in axes.lines]
    assert any(len(curve) == len(wanted) and np.allclose(curve, wanted) for curve in drawn)
    peak = table[table["op"] == "all_reduce"]["peak_bytes_per_s"].iloc[0]
    assert any(np.allclose(curve, peak) for curve in drawn)


def test_what_a_notebook_shows_is_escaped_and_has_every_row(run: Run) -> None:
    text = run._repr_html_()
    assert all(row.case.op in text for row in show_rows(run.judgement))
    assert set(re.findall(r"<(/?\w+)>", text)) == {"p", "/p", "pre", "/pre"}


def test_what_is_no_run_and_no_op_of_it_is_refused(tmp_path: Path, run: Run) -> None:
    for asked in (ba.load, lambda: ba.load("latest", results_dir=tmp_path), lambda: run.plot("allreduce")):
        with pytest.raises(UsageError):
            asked()


def test_only_a_frame_needs_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    run = ba.load(SAMPLE)
    for frame in (run.table, run.samples):
        with refused(UsageError, "no-pandas"):
            frame()


def test_the_folder_of_runs_is_that_of_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUSBW_RESULTS_DIR", str(SAMPLE.parents[1]))
    assert ba.load(SAMPLE.name).judgement.runs[0].path == SAMPLE
    with pytest.raises(UsageError, match=re.escape(str(tmp_path))):
        ba.load(SAMPLE.name, results_dir=tmp_path)
