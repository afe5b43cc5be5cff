"""The health check of a node: its run, its rules, and the scripts for Slurm and Kubernetes around it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from testing.synthetic import SyntheticEnd, case, disturbed, synthetic_run, write_synthetic

from busbw.cli.main import main
from busbw.errors import UsageError
from busbw.ops import OPS
from busbw.runs.facts import UNKNOWN_HOST, GpuFacts, PciFacts
from busbw_analysis.data.load import pool
from busbw_analysis.gate import prolog
from busbw_analysis.gate.prolog import NodeRun, own_variables
from busbw_analysis.gate.rules import parse_rules

ROOT = Path(__file__).parents[2]
CASES = [case("memory_copy", 1 << 20, 2), case("signature", 1 << 20, 2)]


def lines(ended: subprocess.CompletedProcess[str]) -> tuple[int, list[str]]:
    return ended.returncode, ended.stdout.splitlines()


# --- the run ---------------------------------------------------------------------------------------------------


def test_the_run_is_that_of_this_node_whoever_started_the_check() -> None:
    of_job = dict.fromkeys(("SLURM_PROCID", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "RANK", "WORLD_SIZE", "MASTER_ADDR"))
    kept = {"PATH": "/bin", "OMPI_MCA_btl": "self", "NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "0"}
    assert own_variables({**dict.fromkeys(of_job, "1"), **kept}) == kept


@pytest.mark.parametrize(("seconds", "late"), [(60.0, False), (1.5, True)])
def test_a_run_that_takes_too_long_is_asked_to_end(seconds: float, *, late: bool) -> None:
    """It may still write what it has; this one needs 0.1 s for it."""
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.1), print('kept', file=sys.stderr), sys.exit(1)))\n"
        f"time.sleep({60 if late else 0})\n"
    )
    began = time.monotonic()
    assert prolog._run([sys.executable, "-c", program], dict(os.environ), seconds) == (
        late,
        "kept\n" if late else "",
    )
    assert time.monotonic() - began < 20


def test_a_run_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prolog, "_ENDING_SECONDS", 0.2)
    program = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)"
    assert prolog._run([sys.executable, "-c", program], dict(os.environ), 1.0)[0]


def test_a_node_on_which_nothing_can_be_measured_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prolog, "_run", lambda *_: (False, "Error: torch is not installed"))
    with pytest.raises(UsageError) as raised, prolog.measured_here():
        pass
    assert raised.value.code == "prolog"


def node(folder: Path, *, late: bool = False, gpus: int = 0) -> NodeRun:
    pci = PciFacts(gpus=tuple(GpuFacts(address=f"0000:{bus:02x}:00.0") for bus in range(gpus)))
    return NodeRun(folder, late, msgspec.structs.replace(UNKNOWN_HOST, pci=pci))


def test_every_check_has_rules_and_a_gpu_that_the_kernel_lists_must_work(tmp_path: Path) -> None:
    assert [rule.metric for rule in node(tmp_path).and_usual((), ())] == ["wrong_data", "counters", "missing_cases"]
    (gpus,) = (rule for rule in node(tmp_path, gpus=8).and_usual((), ()) if rule.metric == "gpus")
    assert gpus.limit == 8


# --- the command -----------------------------------------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:  # noqa: ANN401 - a function with keywords
    """Sets what the run on this node has measured."""

    def set_(end: SyntheticEnd, *, late: bool = False) -> None:
        folder = write_synthetic(tmp_path, disturbed(synthetic_run(CASES, launches=3, end=end), OPS, foreign=0.0))

        @contextmanager
        def here() -> Iterator[NodeRun]:
            yield node(folder, late=late)

        monkeypatch.setattr("busbw_analysis.cli.gate.measured_here", here)

    return set_


@pytest.mark.parametrize(
    ("end", "late", "code", "healthy"),
    [
        (SyntheticEnd(), False, 0, True),
        (SyntheticEnd({CASES[1]: "wrong data on rank 1"}), False, 1, False),
        (SyntheticEnd(reached=1), False, 1, False),
        (SyntheticEnd(reached=1), True, 3, None),  # a slow start is no fault of the hardware
        (SyntheticEnd({CASES[0]: "wrong data on rank 1"}, reached=1), True, 1, False),
        (SyntheticEnd({CASES[1]: "no answer of rank 1"}), True, 1, False),  # a case that failed was reached
    ],
)
def test_a_node_fails_only_for_what_was_measured(
    measured: Any,  # noqa: ANN401
    end: SyntheticEnd,
    code: int,
    healthy: bool | None,  # noqa: FBT001
    *,
    late: bool,
) -> None:
    measured(end, late=late)
    ended = CliRunner().invoke(main, ["gate", "--prolog", "--json"])
    assert ended.exit_code == code, ended.output
    assert json.loads(ended.stdout)["healthy"] is healthy


def test_the_lines_say_that_its_time_was_over(measured: Any) -> None:  # noqa: ANN401
    measured(SyntheticEnd(reached=0), late=True)
    ended = CliRunner().invoke(main, ["gate", "--prolog"])
    assert ended.exit_code == 3
    assert f"{prolog.SECONDS:.0f} s were over" in ended.stdout


def test_cases_that_its_time_did_not_reach_are_no_failure_beside_a_baseline(measured: Any, tmp_path: Path) -> None:  # noqa: ANN401
    before = write_synthetic(tmp_path / "before", synthetic_run(CASES, launches=3, seed=1))
    for late, code in ((True, 3), (False, 1)):
        measured(SyntheticEnd(reached=1), late=late)
        ended = CliRunner().invoke(main, ["gate", "--prolog", "--baseline", str(before)])
        assert ended.exit_code == code, ended.output


def test_rules_of_a_file_replace_those_of_every_check(measured: Any, tmp_path: Path) -> None:  # noqa: ANN401
    measured(SyntheticEnd({CASES[1]: "wrong data on rank 1"}))
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nmetric = "wrong_data"\nat_most = "1"\n', encoding="utf-8")
    ended = CliRunner().invoke(main, ["gate", "--prolog", "--json", "--rules", str(rules)])
    limits = {rule["metric"]: rule["limit"] for rule in json.loads(ended.stdout)["rules"]}
    assert limits == {"wrong_data": 1, "counters": 0, "missing_cases": 0}


@pytest.mark.parametrize("arguments", [("gate",), ("gate", "--prolog", "latest")])
def test_a_gate_judges_runs_or_this_node(arguments: tuple[str, ...]) -> None:
    assert CliRunner().invoke(main, arguments).exit_code == 2


def test_time_that_was_over_after_all_cases_is_no_gap(tmp_path: Path) -> None:
    dataset = pool((synthetic_run(CASES, launches=2),))
    assert node(tmp_path, late=True).gaps(dataset.summaries) == ()


# --- scripts ---------------------------------------------------------------------------------------------------

PASS, FAIL, OPEN = '{"healthy": true}', '{"check": "busbw-gate", "healthy": false}', '{"healthy": null}'
OUTCOMES = [(PASS, 0, 0), (FAIL, 1, 1), (OPEN, 3, 0), ("", 2, 0), ("", 1, 0)]
"""Line and status of the check, and the status that Slurm or Kubernetes sees: only a node that fails is taken out."""


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def script(folder: Path, text: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder}:/usr/bin:/bin"
    return subprocess.run(
        ["/bin/bash", "-c", text, "script", *arguments],
        env={"PATH": path, "SLURMD_NODENAME": "n7", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("drain", ["", "yes"])
@pytest.mark.parametrize(("line", "status", "seen"), OUTCOMES)
def test_a_prolog_takes_out_only_a_node_that_fails(
    tmp_path: Path, line: str, status: int, seen: int, drain: str
) -> None:
    program(tmp_path, "busbw", f"echo \"$*\" > {tmp_path}/asked\necho '{line}'\nexit {status}")
    program(tmp_path, "scontrol", f'printf "%s\\n" "$@" > {tmp_path}/drained')
    text = (ROOT / "slurm/prolog.sh").read_text(encoding="utf-8")
    ended = script(tmp_path, text, RULES="my rules.toml", DRAIN=drain)
    assert lines(ended) == (seen, [])
    assert ("n7" in ended.stderr) == (line != PASS)
    assert (tmp_path / "asked").read_text() == "gate --prolog --json --rules my rules.toml\n"
    drained = tmp_path / "drained"
    assert drained.exists() == (seen == 1 and drain == "yes")
    if drained.exists():
        assert drained.read_text().splitlines()[:3] == ["update", "NodeName=n7", "State=DRAIN"]


@pytest.mark.parametrize(
    ("silent", "bad", "status"), [((), (), 0), ((3,), (), 3), ((3,), (1, 2), 1), ((), (1, 2), 1), ((0, 1, 2, 3), (), 3)]
)
def test_a_job_lists_nodes_that_fail_and_names_those_that_say_nothing(
    tmp_path: Path, silent: tuple[int, ...], bad: tuple[int, ...], status: int
) -> None:
    program(tmp_path, "busbw", 'eval "line=\\$LINE_$SLURMD_NODENAME"; echo "$line"')
    each = 'for n in 0 1 2 3; do SLURMD_NODENAME=$n "$@"; done'
    program(tmp_path, "srun", f'while [ "$1" != bash ]; do shift; done\n{each}')
    program(tmp_path, "scontrol", '[ "$2" = hostnames ] && echo "$3" | tr , "\\n" || echo "n[$3]"')
    answers = {number: "" if number in silent else FAIL if number in bad else PASS for number in range(4)}
    text = (ROOT / "slurm/health.sbatch").read_text(encoding="utf-8")
    of_nodes = {f"LINE_{number}": answer for number, answer in answers.items()}
    ended = script(tmp_path, text, SLURM_JOB_NODELIST="0,1,2,3", **of_nodes)
    code, said = lines(ended)
    assert code == status, ended.stderr
    assert [json.loads(line) for line in said if line.startswith("{")] == [
        json.loads(answer) for answer in answers.values() if answer
    ]
    assert said[-1:] == ["--exclude=n[1,2]"] or not bad
    assert ended.stderr.strip().rpartition(": ")[2] == (f"n[{','.join(map(str, silent))}]" if silent else "")


# --- Kubernetes ------------------------------------------------------------------------------------------------


def documents(name: str = "jobset") -> list[Any]:
    yaml = pytest.importorskip("yaml")
    text = (ROOT / f"docs/deploy/kubernetes/{name}.yaml").read_text(encoding="utf-8")
    return list(yaml.safe_load_all(text))


def strict(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """The schema that also refuses unknown fields, as kubectl's strict validation does."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(part) for key, part in schema.items()}
    known = isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema
    return closed | ({"additionalProperties": False} if known else {})


def flaws(document: Any) -> list[str]:  # noqa: ANN401 - JSON
    jsonschema = pytest.importorskip("jsonschema")
    names = {"JobSet": "jobset-v1alpha2", "ConfigMap": "configmap-v1", "TrainJob": "trainjob-v1alpha1"}
    name = names[document["kind"]]
    schema = json.loads((ROOT / f"tests/data/kubernetes/{name}.json").read_text(encoding="utf-8"))
    if name != "configmap-v1":  # a CRD leaves the metadata of all objects to the server
        schema["properties"]["metadata"] = {"type": "object"}
    errors = jsonschema.Draft202012Validator(strict(schema)).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in errors]


@pytest.mark.parametrize("name", ["jobset", "trainjob"])
def test_the_manifests_are_valid(name: str) -> None:
    for document in documents(name):
        assert flaws(document) == []


def test_the_schema_of_a_trainjob_refuses_mistakes() -> None:
    (document,) = documents("trainjob")
    document["spec"]["trainer"] |= {"numNodes": "two", "nodes": 2}
    assert len(flaws(document)) == 2


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "replicatedJobs", 0, "replicas"), "one"),
        (("spec", "replicatedJobs", 0, "template", "spec", "template", "spec", "initContainer"), []),
        (("spec", "replicatedJobs", 0, "template", "spec", "template", "spec", "initContainers", 0, "name"), None),
    ],
)
def test_the_schema_refuses_mistakes(path: tuple[str | int, ...], value: object) -> None:
    document = documents()[1]
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert len(flaws(document)) == 1


@pytest.mark.parametrize(("line", "status", "seen"), OUTCOMES)
def test_the_init_container_stops_only_on_a_node_that_fails(tmp_path: Path, line: str, status: int, seen: int) -> None:
    config, jobset = documents()
    assert len(parse_rules(config["data"]["rules.toml"], "rules.toml")) == 2
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (health,) = pod["initContainers"]
    program(tmp_path, "busbw", f"echo '{line}'\nexit {status}")
    message = tmp_path / "message"
    ended = script(tmp_path, health["args"][0], NODE_NAME="n7", RULES="r.toml", MESSAGE=str(message))
    assert ended.returncode == seen
    assert message.read_text() == f"n7 {line or 'was not judged'}\n"


def test_a_check_without_a_place_for_its_run_is_no_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    assert CliRunner().invoke(main, ["gate", "--prolog"]).exit_code == 2


def test_folders_of_checks_that_were_killed_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(prolog, "gettempdir", lambda: str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name in (f"busbw-prolog-{ended.pid}-a", f"busbw-prolog-{os.getpid()}-b", "busbw-prolog-c"):
        (tmp_path / name).mkdir()
    prolog._remove_abandoned()
    assert {folder.name for folder in tmp_path.iterdir()} == {f"busbw-prolog-{os.getpid()}-b", "busbw-prolog-c"}
