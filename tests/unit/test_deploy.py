"""What docs/deploy has for other programs: names, arguments and pages that follow the product."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import man_pages
import pytest
import yaml
from click.testing import CliRunner

from busbw.cli.main import main

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs/deploy"
SAMPLE = next((ROOT / "results/samples/vm").iterdir())


def test_the_container_file_has_no_flaw() -> None:
    ran = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), DEPLOY / "container/Containerfile"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "")


@pytest.mark.parametrize("name", ["Containerfile", "busbw.def"])
def test_images_install_what_the_project_has(name: str) -> None:
    text = (DEPLOY / "container" / name).read_text(encoding="utf-8")
    extras = re.findall(r"'\.\[(.*)\]'", text)[0].split(",")
    known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(extras) <= set(known)
    for path in ("pyproject.toml", "README.md", "LICENSE", "constraints.txt", "bench", "analysis"):
        assert path in text
        assert (ROOT / path).exists()


@pytest.fixture(scope="module")
def exported() -> str:
    result = CliRunner().invoke(main, ["export", str(SAMPLE), "--to", "openmetrics"])
    assert result.exit_code == 0, result.output
    return result.output


def test_alerts_and_dashboard_name_metrics_that_are_exported(exported: str) -> None:
    metrics = set(re.findall(r"^(busbw_\w+)", exported, re.MULTILINE))
    labels = set(re.findall(r"[{,](\w+)=", exported))
    alerts = yaml.safe_load((DEPLOY / "monitoring/alerts.yml").read_text(encoding="utf-8"))
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    board = json.loads((DEPLOY / "monitoring/grafana.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    variables = [variable["query"] for variable in board["templating"]["list"] if variable["type"] == "query"]
    named = re.findall(r"busbw_\w+", " ".join([*(rule["expr"] for rule in rules), *queries, *variables]))
    assert set(named) <= metrics
    legends = [target["legendFormat"] for panel in board["panels"] for target in panel["targets"]]
    used = re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"]["summary"] for rule in rules))
    used += re.findall(r"{{(\w+)}}", " ".join(legends)) + re.findall(r"(\w+)=~", " ".join(queries))
    assert {"machine", "op", "size_bytes"} <= set(used) <= labels


@pytest.mark.parametrize("given", [{}, {"RULES": "my rules.toml"}, {"RULES": "r.toml", "BASELINE": "$(touch x)"}])
def test_the_action_passes_its_inputs_as_they_are(tmp_path: Path, given: dict[str, str]) -> None:
    action = yaml.safe_load((DEPLOY / "gate/action.yml").read_text(encoding="utf-8"))
    judge = action["runs"]["steps"][-1]
    inputs = {"RUN": "a run", "RESULTS": "results", "RULES": "", "BASELINE": ""} | given
    assert set(judge["env"]) == set(inputs)
    program = tmp_path / "busbw/bin/busbw"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit 3\n", encoding="utf-8")
    program.chmod(0o755)
    ran = subprocess.run(
        ["/bin/bash", "-e", "-c", judge["run"]],
        env=os.environ | inputs | {"RUNNER_TEMP": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    options = {"RULES": "--rules", "BASELINE": "--baseline"}
    expected = [part for name, value in given.items() for part in (options[name], value)]
    assert ran.stdout.splitlines() == ["gate", "--results-dir", "results", "--github", *expected, "--", "a run"]
    assert ran.returncode == 3


def test_every_command_has_a_man_page() -> None:
    pages = {name: man_pages.page(name, context) for name, context in man_pages.commands()}
    assert {"busbw", "busbw-run", "busbw-rules-check", "busbw-schema"} <= set(pages)
    for name, context in man_pages.commands():
        for parameter in context.command.get_params(context):
            for option in parameter.opts if parameter.param_type_name == "option" and not parameter.hidden else ():  # type: ignore[attr-defined]
                assert option.replace("-", r"\-") in pages[name]
