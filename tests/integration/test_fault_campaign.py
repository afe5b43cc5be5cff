"""A short campaign of ``make faults``: one fault of each kind that ends differently, side by side, by a fixed seed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from busbw.backends import BACKENDS

pytestmark = pytest.mark.integration

_CAMPAIGN = Path(__file__).parents[1] / "faults" / "campaign.py"


@pytest.mark.slow
@pytest.mark.timeout(400)  # six runs of seconds each, of which a busy machine makes minutes
@pytest.mark.skipif(BACKENDS["mpi"].missing() is not None, reason=str(BACKENDS["mpi"].missing()))
def test_what_is_broken_leaves_nothing_behind_and_becomes_whole() -> None:
    faults = "kill_a_rank,terminate,kill_the_launcher"
    command = [sys.executable, str(_CAMPAIGN), "--rounds", "1", "--seed", "2", "--jobs", "3", "--json"]
    ran = subprocess.run(
        [*command, "--faults", faults, "--backends", "mpi"], check=False, capture_output=True, text=True
    )
    assert ran.returncode in {0, 1}, ran.stderr
    trials = json.loads(ran.stdout)["trials"]
    assert len(trials) == 3
    assert not [trial for trial in trials if trial["problems"]]
