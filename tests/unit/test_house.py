"""What strangers meet first: workflows, templates and the facts of a release agree with the project."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SCHEMAS = {
    "vendor.github-workflows": ".github/workflows/*.yml",
    "vendor.github-issue-forms": ".github/ISSUE_TEMPLATE/[!c]*.yml",
    "vendor.github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
    "vendor.citation-file-format": "CITATION.cff",
    "vendor.github-actions": "docs/deploy/gate/action.yml",
}


def read(path: str) -> Any:  # noqa: ANN401 - whatever a YAML file holds
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize(("schema", "pattern"), SCHEMAS.items())
def test_files_for_other_programs_follow_their_schemas(schema: str, pattern: str) -> None:
    files = [str(path) for path in sorted(ROOT.glob(pattern))]
    assert files
    check = ["-m", "check_jsonschema", "--builtin-schema", schema, *files]
    ran = subprocess.run([sys.executable, *check], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_workflow_runs_the_gate_and_every_python_that_the_project_allows() -> None:
    jobs = read(".github/workflows/gate.yml")["jobs"]
    assert any("bash .ci/run" in step.get("run", "") for step in jobs["gate"]["steps"])
    pythons = jobs["tests"]["strategy"]["matrix"]["python"]
    assert f">={pythons[0]}" == PROJECT["requires-python"]


def test_a_commit_is_checked_as_the_gate_checks_it() -> None:
    (hook,) = [hook for repo in read(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    assert hook["entry"] == "make lint"
    assert "make lint" in (ROOT / ".ci/run").read_text()


def test_the_site_leads_to_every_document() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    pages = {str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")}
    assert sorted(re.findall(r"(docs/\S+\.md)$", nav, re.MULTILINE)) == sorted(pages)
