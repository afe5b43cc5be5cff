"""The self-test with real ranks: whatever the machine is worth, what was done on purpose is found."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.conftest import Commands

pytestmark = [pytest.mark.integration, pytest.mark.alone]


@pytest.mark.slow
def test_a_self_test_says_what_it_found_and_reports_repeat_it(commands: Commands) -> None:
    tested = commands.run("selftest", "--ranks", "2", "--launches", "6", "--json")
    document = json.loads(tested.out)
    states = {check["name"]: check["state"] for check in document["checks"]}
    # What is a matter of the machine may be anything; what is a matter of the instrument may not.
    assert states["wrong data"] == "ok", tested.told
    assert states["clock error"] == "ok", tested.told
    assert {"timer", "empty call", "barrier exit skew", "quiet machine", "straggler"} <= set(states)
    assert {name for name in states if name.startswith("A/A")} == {f"A/A {name}" for name in document["resolution"]}
    assert document["trustworthy"] == ("fail" not in states.values())
    assert tested.code == (0 if document["trustworthy"] else 1), tested.told
    assert document["launches"] == 6

    commands.succeed("run", "--op", "barrier", "--ranks", "2", "--max-seconds", "0.05")
    assert commands.run("report", "latest").code == 0
    shown = commands.run("show", "latest", "--json")
    # A machine that passed has no finding: what its self-test can tell stands in the section of it alone.
    findings = [warning["text"] for warning in json.loads(shown.out)["warnings"] if warning["code"] == "self-test"]
    assert len(findings) == (0 if document["trustworthy"] else 1), shown.told
    (page,) = commands.results.rglob("report.html")
    assert document["id"] in page.read_text()


def test_a_self_test_refuses_what_it_cannot_do(commands: Commands) -> None:
    alone = commands.run("selftest", "--ranks", "1")
    assert alone.code == 2, alone.told
    joined = commands.run("selftest", program=commands.torchrun(2))
    assert joined.code != 0
    assert "torchrun" in joined.err, joined.told
