"""The commands about machines, and a user's own peaks in all that print percentages."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from testing.command import busbw
from testing.synthetic import Machine, as_facts, case, synthetic_run, write_synthetic

from busbw.runs.records import JSON
from busbw.system import environment
from busbw.system.catalog import VARIABLE

MINE = """\
[[gpu]]
name = "Fast 9000"
names = ["NVIDIA Fast 9000"]
memory = "HBM9, 1 TB"
memory_bytes_per_second = 20e12
practical_memory_bytes_per_second = 18e12
practical_source = "https://example.org/stream"
source = "https://example.org/fast"
looked_up = "2026-11"
note = "air-cooled"
"""
GPU: dict[str, JSON] = {"index": 0, "name": "NVIDIA Fast 9000", "address": "0000:01:00.0"}


@pytest.fixture(autouse=True)
def nobodys_peaks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(MINE, encoding="utf-8")
    return str(path)


def test_the_catalogue_is_listed_with_sources(mine: str) -> None:
    table = re.sub(r"\n +\| ", " ", busbw("peaks", "--peaks", mine).stdout)
    assert "air-cooled" in table
    (own,) = [line for line in table.splitlines() if line.startswith("Fast 9000 ")]
    assert mine in own
    pages = [line.partition("] ")[2] for line in table.splitlines() if line.startswith("[")]
    assert len(set(pages)) == len(pages)
    assert all(page.startswith("https://") for page in pages)
    document = json.loads(busbw("peaks", "--json").stdout)
    assert {"gpus", "rates"} == set(document)
    assert all(row["source"] and row["looked_up"] for row in (*document["gpus"], *document["rates"]))
    assert "Fast 9000" not in {row["name"] for row in document["gpus"]}


def test_what_applies_here_is_said_with_its_reason(monkeypatch: pytest.MonkeyPatch, mine: str) -> None:
    facts = msgspec.structs.replace(environment.host_facts(), pci=as_facts({"pci": {"gpus": [GPU]}}).pci)
    monkeypatch.setattr(environment, "host_facts", lambda: facts)
    known = json.loads(busbw("peaks", "--here", "--json", environment={VARIABLE: mine}).stdout)
    (memory,) = [row for row in known["levels"] if row["level"] == "HBM"]
    assert (memory["of"], memory["nominal_bytes_per_second"]) == ("GPU 0", 20e12)
    assert memory["source"] == "https://example.org/fast"
    assert memory["practical_source"] == "https://example.org/stream"
    here = re.sub(r"\n +\| ", " ", busbw("peaks", "--here", "--peaks", mine).stdout)
    (line,) = [line for line in here.splitlines() if line.startswith("HBM")]
    assert all(word in line for word in (" 18 TB/s ", "https://example.org/fast", "https://example.org/stream"))


@pytest.mark.parametrize("arguments", [("peaks",), ("peaks", "--here"), ("doctor",), ("show", "latest")])
def test_a_wrong_file_of_peaks_is_refused_with_its_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(MINE.replace("https://example.org/fast", "the datasheet"), encoding="utf-8")
    result = busbw(*arguments, "--peaks", str(path))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert str(path) in result.stderr


def test_own_peaks_give_runs_their_percentages(tmp_path: Path, mine: str) -> None:
    seats = [{"rank": 0, "local_rank": 0, "gpu": 0}]
    machine = Machine(facts={"pci": {"gpus": [GPU]}, "ranks": seats})
    run = synthetic_run([case("memory_copy", 1 << 28, 1, backend="nccl", device="cuda")], machine=machine)
    folder = str(write_synthetic(tmp_path, run))
    (without,) = json.loads(busbw("show", folder, "--json").stdout)["cases"]
    assert without["peak_share"] is None
    (row,) = json.loads(busbw("show", folder, "--json", "--peaks", mine).stdout)["cases"]
    assert row["peak_share"] == pytest.approx(row["algbw"] / 10e12)
    assert "https://example.org/fast" in row["denominator"]
    assert "https://example.org/stream" in row["denominator"]
