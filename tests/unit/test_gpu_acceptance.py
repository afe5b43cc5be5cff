"""The command that a machine with GPUs is accepted with: what fails or hangs costs its own time and is said."""

import json
import sys
import tarfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import msgspec
import psutil
import pytest
from simulated.management import Driver, managed, managed_gpus
from testing.narrow import require
from testing.nvml_record import record


@pytest.fixture(scope="module")
def acceptance() -> ModuleType:
    spec = require(spec_from_file_location("acceptance", Path(__file__).parents[1] / "gpu" / "acceptance.py"))
    module = module_from_spec(spec)
    sys.modules["acceptance"] = module
    require(spec.loader).exec_module(module)
    return module


def python(acceptance: ModuleType, name: str, code: str, *, needed: bool = True, seconds: float = 60) -> object:
    return acceptance.Part(name, (sys.executable, "-c", code), seconds / 60, needed)


def test_every_part_has_its_outcome_and_the_archive_all_of_them(acceptance: ModuleType, tmp_path: Path) -> None:
    child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    parts = [
        python(acceptance, "good", "print('seen')"),
        python(acceptance, "bad", "raise SystemExit(3)", needed=False),
        python(acceptance, "hung", f"{child}; print('begun', flush=True); time.sleep(600)", seconds=1.5),
        acceptance.Part("absent", ("no-such-program",), 1, False),
    ]
    before = set(psutil.Process().children(recursive=True))
    assert acceptance.accept(parts, tmp_path / "sent") == 1
    outcomes = msgspec.json.decode((tmp_path / "sent/summary.json").read_bytes())
    assert [outcome["state"] for outcome in outcomes] == ["passed", "failed", "timed out", "not here"]
    assert outcomes[1]["exit_status"] == 3
    with tarfile.open(tmp_path / "sent.tar.gz") as archive:
        assert {"sent/summary.json", "sent/good.txt", "sent/bad.txt", "sent/hung.txt"} <= set(archive.getnames())
    assert (tmp_path / "sent/good.txt").read_text() == "seen\n"
    assert set(psutil.Process().children(recursive=True)) == before
    assert not [
        process for process in psutil.process_iter(["cmdline"]) if "time.sleep(600)" in str(process.info["cmdline"])
    ]


def test_a_part_that_is_not_needed_may_fail(acceptance: ModuleType, tmp_path: Path) -> None:
    parts = [python(acceptance, "good", ""), python(acceptance, "bad", "raise SystemExit(3)", needed=False)]
    assert acceptance.accept(parts, tmp_path / "sent") == 0


@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_all_parts_together_take_at_most_twenty_minutes(acceptance: ModuleType, tmp_path: Path, gpus: int) -> None:
    parts = acceptance.parts(tmp_path, gpus)
    assert sum(part.minutes for part in parts) <= 20
    assert len({part.name for part in parts}) == len(parts)
    root = Path(__file__).parents[2]
    assert all((root / word).exists() for part in parts for word in part.command if word.startswith("tests/"))


@pytest.mark.parametrize("name", ["dgx1-v100", "dgx-a100", "h200"])
def test_what_nvml_tells_is_kept_as_machines_on_record_are(name: str) -> None:
    known = json.loads((Path(__file__).parents[1] / f"data/machines/{name}.nvml.json").read_text())
    with managed(Driver(managed_gpus(known, 0))):
        assert json.loads(json.dumps(record())) == known
    with managed(Driver(managed_gpus(known, 2))):
        assert [gpu["down"] for gpu in record().values()] == [2] * len(known)
