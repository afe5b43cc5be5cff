"""The text of batch scripts: that of the golden files, and whatever is in a value reaches the command as it is."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from busbw.errors import UsageError
from busbw.ops.groups import split_world
from busbw.slurm.script import Job, render

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/data/slurm"
SHIPPED = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "slurm").glob("*.sbatch"))}
HOSTILE = ("a 0", '"a\'; echo foo"', "$HOME `id` $(id)", "a\\b", "#a#", "é –", "*", "-x", "a;b|c&d")

PLAIN = Job(
    run=("--suite", "quick"), nodes=2, ranks_per_node=4, busbw="/shared/venv/bin/busbw", results_dir="/shared/results"
)
JOBS = {
    "plain": PLAIN,
    "everything": replace(
        PLAIN,
        run=("--plan", "/shared/a plan's.toml", "--backend", "mpi"),
        name='busbw-it\'s "mine"',
        busbw="/shared/my venv/bin/busbw",
        partition="main",
        account="physics",
        qos="high",
        time="1:30:00",
        gpus_per_node=8,
        cpus_per_task=16,
        nodelist="n[1-2,7]",
        exclude="n9",
        constraint="[rack1|rack2]",
        reservation="bench",
        requeue=False,
        signal_seconds=0,
        silence_seconds=300.4,
        comment="resumes 20261121T081628.085Z-4ad500",
        mpi="pmix",
        srun=("--cpu-bind=cores", "--label"),
        about="Written for a test.",
        before=("module load openmpi/5", "export OMPI_MCA_btl=self,tcp"),
    ),
    "array": replace(PLAIN, nodes=4, node_counts=(1, 2, 4), ranks_per_node=2),
}


def test_no_golden_file_is_left_behind() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {f"{name}.sbatch" for name in JOBS}


@pytest.mark.parametrize("name", JOBS)
def test_a_job_becomes_the_text_of_the_golden_file(name: str) -> None:
    # To accept another text: BUSBW_REWRITE_GOLDEN=1, and read what git says has changed.
    golden = GOLDEN / f"{name}.sbatch"
    if "BUSBW_REWRITE_GOLDEN" in os.environ:
        golden.write_text(render(JOBS[name]), encoding="utf-8")
    assert render(JOBS[name]) == golden.read_text(encoding="utf-8")


def carried_out(text: str, folder: Path, *arguments: str, **variables: str) -> list[str]:
    """The arguments that the command of the job gets when the shell has read the script."""
    command = folder / "busbw"
    command.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n", encoding="utf-8")
    command.chmod(0o755)
    (folder / "script").write_text(text, encoding="utf-8")
    path = f"{folder}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["/bin/bash", folder / "script", *arguments],
        env={"PATH": path, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stderr == ""
    received: list[str] = json.loads(ran.stdout)
    return received


@pytest.mark.parametrize("value", HOSTILE)
def test_whatever_is_in_a_value_reaches_the_command_as_it_is(value: str, tmp_path: Path) -> None:
    folder = tmp_path / value.replace("/", "-")
    folder.mkdir()
    job = replace(
        PLAIN,
        run=("--plan", value, f"--results-dir={value}"),
        srun=(value,),
        mpi=value,
        busbw=str(folder / "busbw"),
        about=value,
        name=value,
    )
    argv = carried_out(render(job), folder)
    started = ["srun", "--kill-on-bad-exit=0", "--wait=120", f"--mpi={value}", value]
    asked = [str(folder / "busbw"), "run", "--plan", value, f"--results-dir={value}"]
    assert argv == ["launches", *started, *asked]


def test_what_stands_behind_a_shipped_file_goes_to_the_run(tmp_path: Path) -> None:
    argv = carried_out(SHIPPED["cpu"], tmp_path, "--op", "all reduce", SUITE="full", LAUNCHES="3")
    assert argv[argv.index("run") :] == [
        *("run", "--suite", "full", "--backend", "gloo", "--launches", "3"),
        *("--op", "all reduce"),
    ]


def test_a_task_of_an_array_uses_as_many_nodes_as_its_number(tmp_path: Path) -> None:
    argv = carried_out(SHIPPED["scaling"], tmp_path, SLURM_ARRAY_TASK_ID="4", SLURM_NTASKS_PER_NODE="3")
    assert argv[argv.index("--wait=120") + 1 :][:2] == ["--nodes=4", "--ntasks=12"]


@pytest.mark.parametrize("field", ["name", "partition", "nodelist", "comment", "mpi", "time"])
@pytest.mark.parametrize("value", ["", " ", "a\nscancel 1", "a\rb", "a\0b", "\x1b[2J"])
def test_empty_words_line_breaks_and_their_like_are_refused(field: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"^{field} "):
        replace(PLAIN, **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [("run", ("--suite", "")), ("srun", ("",)), ("busbw", ""), ("before", ("a\nb",)), ("about", "a\nb")],
)
def test_a_word_that_no_script_can_have_is_refused_wherever_it_stands(field: str, value: str | tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=f"^{field} "):
        replace(PLAIN, **{field: value})  # type: ignore[arg-type]


# --- the files in slurm/ ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_file_is_a_script_that_names_nothing_of_this_machine(name: str) -> None:
    text = SHIPPED[name]
    subprocess.run(["/bin/bash", "-n"], input=text, text=True, check=True)
    assert str(ROOT) not in text
    assert "BUSBW=${BUSBW:-busbw}" in text
    assert f"slurm/{name}.sbatch" in text, "its first lines say how to submit it"
    assert len(text.splitlines()) < 60, "thin"


def night(folder: Path, status: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    """The job of a night, with a busbw that leaves a run, says what it is asked for besides, keeps one baseline, and
    has gates that end with ``status``.
    """
    run = folder / "runs/tonight"
    run.mkdir(parents=True, exist_ok=True)
    command = folder / "busbw"
    command.write_text(
        f"""#!/bin/sh
[ "$1" = launches ] && echo {shlex.quote(str(run))} || echo "asked: $*"
[ "$1 $2" = "baseline set" ] && touch {shlex.quote(str(folder / "set"))}
[ "$1 $2" = "baseline show" ] && [ ! -e {shlex.quote(str(folder / "set"))} ] && exit 2
[ "$1" = gate ] && exit {status}
[ "$1" != history ]
""",
        encoding="utf-8",
    )
    command.chmod(0o755)
    return subprocess.run(
        ["/bin/bash"],
        input=SHIPPED["nightly"],
        env={"PATH": "/usr/bin:/bin", "BUSBW": str(command), "BUSBW_RESULTS_DIR": str(folder / "runs"), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_first_night_becomes_the_baseline_and_the_next_one_passes_its_gate(tmp_path: Path) -> None:
    """Without a page of the history, which is not worth failing a night for."""
    run = tmp_path / "runs/tonight"
    first = night(tmp_path)
    assert first.returncode == 0
    assert first.stdout.splitlines()[-2] == f"asked: baseline set nightly {run}"
    second = night(tmp_path)
    assert (second.returncode, second.stderr) == (0, "no history page\n")
    assert second.stdout.splitlines()[-2:] == [f"asked: gate {run} --baseline nightly --within 5%", "night passed"]


def test_a_night_takes_rules_and_a_notifier_as_whole_words(tmp_path: Path) -> None:
    night(tmp_path)
    ended = night(tmp_path, RULES="my rules.toml", NOTIFY="mail -s 'a night' me", BASELINE="other")
    asked = "gate {} --baseline other --within 5% --rules my rules.toml --notify-command mail -s 'a night' me"
    assert f"asked: {asked.format(tmp_path / 'runs/tonight')}" in ended.stdout


@pytest.mark.parametrize(("status", "outcome"), [(1, "failed"), (3, "cannot tell"), (2, None)])
def test_a_night_that_is_not_green_has_the_status_and_the_outcome_of_its_gate(
    tmp_path: Path, status: int, outcome: str | None
) -> None:
    night(tmp_path)
    ended = night(tmp_path, status)
    assert ended.returncode == status
    said = [line.partition(":")[0] for line in ended.stderr.splitlines()]
    assert said == ["no history page", *([f"night {outcome}"] if outcome else [])]
    assert "passed" not in ended.stdout


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_file_sets_the_variables_that_it_reads_and_no_others(name: str) -> None:
    given = {"PWD", "SLURM_ARRAY_TASK_ID", "SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK"}
    given |= {"SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURMD_NODENAME"}
    lines = [line for line in SHIPPED[name].splitlines() if not line.startswith("#")]
    there = {match[1] for line in lines if (match := re.match(r"(?:export )?([A-Z_]+)=", line))}
    exported = {match[1] for line in lines if (match := re.match(r"export ([A-Z_]+)=", line))}
    read = set(re.findall(r"\$\{?([A-Z_]+)", "\n".join(lines)))
    used = set(re.findall(r"\$(?:\{([A-Z_]+)[}\[]|([A-Z_]+))", SHIPPED[name]))
    assert read <= there | given
    assert there - exported <= {braced or plain for braced, plain in used}


def test_every_shipped_file_that_needs_no_gpu_is_submitted_by_a_test() -> None:
    tests = (ROOT / "tests/cluster" / name for name in ("test_slurm.py", "test_slurm_series.py"))
    texts = "".join(path.read_text(encoding="utf-8") for path in tests)
    submitted = set(re.findall(r'site\.shipped\(\s*"([\w-]+)"', texts))
    assert submitted == {name for name, text in SHIPPED.items() if "#SBATCH --gpus-per-node" not in text}


def test_the_example_of_copies_between_gpus_of_several_hosts_has_no_pair_over_two_of_them() -> None:
    text = SHIPPED["gpu-memory"]
    (example,) = (line for line in text.splitlines() if "peer_copy" in line and "--groups" in line)
    (nodes,), (groups,) = re.findall(r"--nodes=(\d+)", example), re.findall(r"--groups (\S+)", example)
    of_a_host = int(re.findall(r"SBATCH --ntasks-per-node=(\d+)", text)[0])
    for group in split_world(groups, int(nodes) * of_a_host):
        assert len({rank // of_a_host for rank in group}) == 1, "a GPU copies to those of its own host"
