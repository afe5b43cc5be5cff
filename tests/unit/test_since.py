"""A gate that fails says since when, and what changed then."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from testing.command import busbw
from testing.nights import CASES, write_night, write_run
from testing.synthetic import case

from busbw.runs import store
from busbw.runs.records import Case, Measurement

KERNELS = ("6.1.0-31", "6.1.0-32")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nights that are 20 % slower from the 4th on, when the driver changed; the kernel had changed the night before."""
    place = tmp_path_factory.mktemp("since")
    for night in range(6):
        facts = {"kernel": KERNELS[night > 1], "drivers": {"nvidia": "575.51" if night > 2 else "570.86"}}
        write_night(place, night, slower=1.2 if night > 2 else 1.0, facts={**facts, "boot_id": f"{night}"}, launches=8)
    busbw("baseline", "set", "good", "night-000", "--results-dir", str(place))
    return place


@pytest.mark.parametrize("night", ["night-003", "night-005"])
def test_the_first_run_that_fails_is_named_with_what_changed_before_it(
    results: Path, night: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the answer, and by what other programs read."""
    junit, summary = tmp_path / "gate.xml", tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    asked = ("gate", night, "--baseline", "good", "--json", "--github", "--junit", str(junit))
    answer = busbw(*asked, "--results-dir", str(results))
    assert answer.exit_code == 1
    (notice,) = (line for line in answer.stderr.splitlines() if line.startswith("::notice title=since::"))
    (recorded,) = ET.fromstring(junit.read_text(encoding="utf-8")).iter("property")  # noqa: S314 - ours
    assert all(
        "night-003" in text and "drivers.nvidia" in text
        for text in (notice, recorded.attrib["value"], summary.read_text())
    )
    document = json.loads(answer.stdout)
    since = document["since"]
    assert (since["run"], since["started"][:10], since["passed"]) == ("night-003", "2026-02-15", "night-002")
    assert [change["key"] for change in since["changes"]] == ["drivers.nvidia", "boot_id"], "not the kernel"
    assert "night-003" in document["message"]


def test_a_run_of_the_baseline_is_the_last_good_one_and_a_damaged_run_is_passed_over(
    results: Path, tmp_path: Path
) -> None:
    for night, slower in ((0, 1.0), (1, 1.2), (2, 1.2), (3, 1.2)):
        write_night(tmp_path, night, slower=slower, launches=8)
    (tmp_path / "cluster/night-002/run.json").write_text("{")
    asked = ("gate", "night-003", "--json", "--results-dir", str(tmp_path), "--baseline")
    since = json.loads(busbw(*asked, "night-000").stdout)["since"]
    assert (since["run"], since["passed"], since["changes"]) == ("night-001", "night-000", [])
    beyond = json.loads(busbw(*asked, str(results / "cluster/night-000")).stdout)["since"]
    assert (beyond["run"], beyond["passed"]) == ("night-001", "night-000")


OTHER = case("reduce_scatter", 1 << 20, 2)


@pytest.mark.parametrize(
    ("cases", "changed"), [(CASES[:2], ["3 → 2"]), ((*CASES[:2], OTHER), ["3 → 2"]), (CASES, [" → ".join(KERNELS[:2])])]
)
def test_cases_that_the_plan_leaves_out_are_not_explained_by_facts(
    tmp_path: Path, cases: Sequence[Case], changed: list[str]
) -> None:
    """Those that failed are."""
    write_night(tmp_path, 0, facts={"kernel": KERNELS[0]}, launches=8)
    folder = write_night(tmp_path, 1, cases, facts={"kernel": KERNELS[1]}, launches=8)
    if cases == CASES:
        stored = store.read(folder)
        kept = tuple(row for row in stored.rows if not isinstance(row, Measurement) or row.case != CASES[2])
        write_run(folder, replace(stored, rows=kept))
    asked = ("gate", "night-001", "--baseline", "night-000", "--json", "--results-dir", str(tmp_path))
    since = json.loads(busbw(*asked).stdout)["since"]
    assert [f"{change['before']} → {change['after']}" for change in since["changes"]] == changed


def test_what_passes_has_no_since(results: Path) -> None:
    answer = busbw("gate", "night-002", "--baseline", "good", "--json", "--results-dir", str(results))
    assert (answer.exit_code, json.loads(answer.stdout)["since"]) == (0, None)
