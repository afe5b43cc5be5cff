"""Text of a run folder reaches terminals, pages and tables as text: no escape sequence, no forged line."""

import io
import json
import os
import re
import subprocess
import sys
import termios
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from testing.command import busbw
from testing.synthetic import Piece, World, case, synthetic_run, write_synthetic

from busbw.errors import LaunchError
from busbw.escape import as_argument, echo, echo_toned, output_columns, plain_text
from busbw.launch.live_table import LiveTable
from busbw.ops import TRAINED
from busbw.runs import resume, store
from busbw.runs.facts import UNKNOWN_HOST, CpuFacts, GpuFacts, Nic, PciFacts
from busbw.runs.plan import Plan, Sweep, Timing
from busbw.runs.records import JSON, Failed, Skipped
from busbw.slurm import jobs
from busbw.system import environment
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import pool
from busbw_analysis.report.show import show_blocks, show_rows
from busbw_analysis.report.to_terminal import render

ROOT = Path(__file__).parents[2]
FORGED = "FORGED 0 failures"
HOSTILE = f"x\x1b[31m\x1b]0;title\x07\r\n{FORGED}\n\x9b2J\x08\x7f\u202egnp\u2066\x85\u2028{FORGED}\x00"
UNPRINTED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
SECRETS = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_CLIENT_SECRET", "ARM_CLIENT_SECRET"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "GITHUB_TOKEN", "GH_TOKEN", "GITLAB_TOKEN", "CI_JOB_TOKEN", "NPM_TOKEN"),
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY", "DATABASE_URL", "PGPASSWORD"),
    *("MYSQL_PWD", "REDIS_PASSWORD", "DOCKER_AUTH_CONFIG", "KUBECONFIG", "VAULT_TOKEN", "SSH_AUTH_SOCK", "SSH_KEY"),
    *("SLURM_JWT", "SLURMRESTD_SECURITY", "PMIX_SERVER_URI", "PMIX_SECURITY_MODE", "PMI_FD", "NCCL_COMM_ID"),
    *("OMPI_MCA_orte_hnp_uri", "NCCL_API_TOKEN", "UCX_PASSWORD", "GLOO_SECRET", "TORCH_TOKEN", "OMP_PASSWORD"),
    *("SLURM_JOB_TOKEN", "MUNGE_KEY", "http_proxy", "BUSBW_PASSWORD", "MPICH_KEY", "CUDA_SECRET", "I_MPI_PASSWORD"),
)


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "mine", Mock(side_effect=LaunchError(f"no Slurm {HOSTILE}")))


def poisoned(value: JSON) -> JSON:
    """``value`` with hostile text at the end of every string and of every name."""
    if isinstance(value, str):
        return value + HOSTILE
    if isinstance(value, dict):
        return {key + HOSTILE: poisoned(inner) for key, inner in value.items()}
    return [poisoned(inner) for inner in value] if isinstance(value, list) else value


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A run whose every free text is hostile, and that lacks a launch."""
    cases = [case("all_reduce", 1 << power, algorithm=None) for power in range(3, 24, 4)]
    odd = [case("all_gather", 1 << power, algorithm=HOSTILE) for power in (10, 12)]
    stored = synthetic_run([*cases, *odd], launches=2)
    run = stored.run
    facts = msgspec.structs.replace(
        run.environments["node0"],
        kernel=HOSTILE,
        torch=HOSTILE,
        cpu=CpuFacts(model=HOSTILE, usable_cores=64),
        nics=(Nic(name=HOSTILE, driver=HOSTILE),),
        pci=PciFacts(gpus=(GpuFacts(address=HOSTILE, name=HOSTILE),), unknown=("", HOSTILE)),
        variables={"NCCL_ALGO": HOSTILE, f"GLOO_{HOSTILE}": HOSTILE, "SLURM_JOB_ID": HOSTILE},
    )
    plan = Plan(name=HOSTILE, sweep=(Sweep(ops=("all_reduce",)),), launches=3, timing=Timing(blocks=1))
    host = f"node0{HOSTILE}"
    run = msgspec.structs.replace(
        run,
        machine=HOSTILE,
        launcher=HOSTILE,
        plan=plan,
        hosts=(host,) * len(run.hosts),
        environments={host: facts},
        adjusted=(HOSTILE,),
    )
    rows = [
        *stored.rows[:-1],
        Skipped(case=odd[0], reason=HOSTILE),
        Failed(case=odd[1], launch=1, block=0, error=HOSTILE, cause="backend"),
        msgspec.structs.replace(stored.rows[-1], status="failed", reason=HOSTILE),
    ]
    folder = store.create(tmp_path, "synthetic")
    store.write_run(folder, run)
    with store.Appender(folder) as appender:
        for row in rows:
            appender.append(row)
    folder.rename(folder.parent / "run")
    broken = write_synthetic(tmp_path, stored)
    broken.rename(broken.parent / "broken")
    document = json.loads((tmp_path / "synthetic" / "broken" / "run.json").read_text())
    (tmp_path / "synthetic" / "broken" / "run.json").write_text(
        json.dumps({**document, HOSTILE: HOSTILE, "id": [HOSTILE]})
    )
    return tmp_path


def a_step(folder: Path) -> Path:
    """A run with a step of training, of which model, calls and timeline have hostile names."""
    made, measured = folder / "steps", ROOT / "tests/data/runs/training"
    made.mkdir()
    run = json.loads((measured / store.RUN_FILE).read_text())
    rows = [json.loads(line) for line in (measured / store.SAMPLES_FILE).read_text().splitlines()]
    rows = [row for row in rows if row["kind"] != "end"]  # it has the checksum of the others
    for setting in [*run["cases"], *(row["case"] for row in rows if "case" in row)]:
        if setting["op"] in TRAINED:
            setting["settings"]["model"] += HOSTILE
    for step in [row["supplement"] for row in rows if row.get("supplement")]:
        step["sent"] = [call | {"op": HOSTILE} for call in step["sent"]]
        step["timeline"] = [{"rank": rank, "spans": [["compute", 0, 9], [HOSTILE, 9, 20]]} for rank in (0, 1)]
    (made / store.RUN_FILE).write_text(json.dumps(run))
    (made / store.SAMPLES_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def a_log(folder: Path) -> Path:
    """A log of nccl-tests whose hosts and GPUs have hostile names, as far as a line can."""
    text = (ROOT / "tests/data/logs/nccl-tests-2.19.txt").read_text()
    path = folder / f"{HOSTILE.replace(chr(0), '')}.txt"
    path.write_text(re.sub(r"NVIDIA|GPU", "\x1b]0;title\x07\u202e\x9b2J", text))
    return path


def clean(text: str) -> None:
    match = UNPRINTED.search(text)
    assert match is None, text[max(0, match.start() - 200) : match.end()]
    assert not [line for line in text.splitlines() if line.strip().startswith(FORGED)], text


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "runs"),
        ("show", "RUN"),
        ("show", "RUN", "--json"),
        ("fit", "RUN"),
        ("compare", "RUN", "RUN"),
        ("report", "RUN", "--json"),
        ("predict", "--from", "RUN", "--op", "all_reduce", "--ranks", "8", "--size", "1MiB"),
        ("predict", "--from", "RUN", "--op", HOSTILE.replace("\0", ""), "--ranks", "8", "--size", "1MiB"),
        ("simulate", "--from", "RUN", "--op", "all_reduce", "--size", "8"),
        ("status",),
        ("run", "--resume", "RUN"),
        ("run", "--resume", "RUN", "--dry-run", "--json"),
        ("submit", "--resume", "RUN", "--dry-run"),
        *((*command, "BROKEN") for command in (("show",), ("run", "--resume"), ("submit", "--dry-run", "--resume"))),
        *(("export", "RUN", "--to", form) for form in ("nccl-tests", "openmetrics", "csv", "markdown")),
        *(("export", "STEP", "--to", "trace"), ("show", "STEP"), ("report", "STEP", "--json")),
        ("training", "memory", "--from", "STEP", "--model", "MLP 1024"),
        ("training", "plan", "--from", "STEP", "--model", HOSTILE.replace("\0", ""), "--gpus", "2"),
        *(("show", "LOG"), ("import", "LOG"), ("export", "LOG", "--to", "nccl-tests")),
        ("show", HOSTILE.replace("\0", "")),
        ("run", "--op", HOSTILE.replace("\0", "")),
        ("list", HOSTILE.replace("\0", "")),
    ],
)
def test_no_command_hands_a_terminal_what_a_run_folder_says(arguments: tuple[str, ...], results: Path) -> None:
    places = {"RUN": results / "synthetic" / "run", "BROKEN": results / "synthetic" / "broken"}
    places |= {word: make(results) for word, make in (("STEP", a_step), ("LOG", a_log)) if word in arguments}
    typed = [str(places.get(word, word)) for word in arguments]
    result = busbw(*typed, "--results-dir", str(results))
    assert result.stdout + result.stderr, "something is said"
    clean(result.stdout)
    clean(result.stderr)
    if "--json" in arguments and result.exit_code == 0 and arguments[0] != "run":
        json.loads(result.stdout)


def test_the_report_has_no_control_characters(results: Path) -> None:
    folder = next(results.glob("*/run"))
    result = busbw("report", str(folder))
    assert result.exit_code == 0, result.output
    for name in ("report.html", "report.md", "report.json"):
        text = (folder / name).read_text(encoding="utf-8")
        assert "\x1b" not in text
        clean(text.replace("\t", " "))


def test_the_live_table_is_lines_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan(name=HOSTILE, sweep=(Sweep(ops=("all_reduce",)),))
    table = LiveTable(plan, 0, 0.0)
    setting = case("all_reduce", 8)
    from busbw.runs.cases import Cases  # noqa: PLC0415

    table.world_formed(Cases((setting,), (HOSTILE,), {}), 1, (HOSTILE,), (HOSTILE,))
    table.row_written(Skipped(case=setting, reason=HOSTILE))
    table.row_written(Failed(case=setting, launch=0, block=0, error=HOSTILE, cause="backend"))
    table.launch_ended()
    clean(capsys.readouterr().err)


def test_json_means_the_same_after_it_was_printed(capsys: pytest.CaptureFixture[str]) -> None:
    echo(json.dumps({"a": HOSTILE}, ensure_ascii=False))
    shown = capsys.readouterr().out
    clean(shown)
    assert json.loads(shown) == {"a": HOSTILE}


@pytest.mark.parametrize("name", ["plain", "ä ö", "-lead", "new\nline", "it's", "\x1b[2J", "bad\udcff'\\"])
def test_a_path_in_a_command_is_the_path_for_a_shell(name: str) -> None:
    word = as_argument(name)
    assert (word.isprintable(), word[0] == "-") == (True, False)
    command = ["bash", "-c", f"printf %s {word}"]
    said = subprocess.run(command, check=True, capture_output=True).stdout
    assert Path(os.fsdecode(said)) == Path(name)


def test_plain_text_is_one_line_of_what_can_be_seen() -> None:
    assert plain_text("a\x1b[31mb\r\nc\u202e\udcff") == "a\\x1b[31mb c\\u202e\\udcff"


@pytest.mark.parametrize(
    "path", sorted([*ROOT.glob("bench/**/*.py"), *ROOT.glob("analysis/**/*.py")]), ids=lambda path: path.name
)
def test_only_one_place_prints(path: Path) -> None:
    if path.name != "escape.py":
        assert "click.echo(" not in path.read_text(encoding="utf-8"), "busbw.escape.echo writes control characters out"


def test_no_secret_reaches_a_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(SECRETS):
        monkeypatch.setenv(name, f"hunter-{number}-2")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    facts = environment.host_facts()
    stored = synthetic_run([case("all_reduce", 8)], launches=1)
    noted = resume._with_what_is_new(UNKNOWN_HOST, facts, 1)
    assert noted.resumed[0].variables == facts.variables != {}
    resumed = msgspec.structs.replace(facts, resumed=noted.resumed)
    run = msgspec.structs.replace(stored.run, environments={"node0": resumed})
    folder = write_synthetic(tmp_path, store.StoredRun(stored.path, run, stored.rows, ()))
    leaked = [name for path in folder.iterdir() for name in re.findall(r"hunter-\d+-2", path.read_text())]
    assert leaked == []


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colours_are_for_terminals_that_want_them(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], *, coloured: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    line = (("12% ", "good"), (HOSTILE, "plain"), ("FAILED", "bad"))
    shown = []
    for stream in (_Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stdout", stream)
        echo_toned([line])
        shown.append(stream.getvalue())
    terminal, pipe = shown
    clean(pipe)
    assert pipe.startswith("12% ")
    assert ("\x1b[" in terminal) == coloured
    clean(re.sub(r"\x1b\[\d*m", "", terminal))
    assert re.sub(r"\x1b\[\d*m", "", terminal) == pipe


# --- width -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "printed"), [(0.05, False), (3.0, True)])
def test_an_interval_wider_than_the_time_is_printed_as_such(noise: float, printed: bool) -> None:  # noqa: FBT001
    world = World(pieces=(Piece(100e-6, 1e-10),), sample_noise=noise)
    rows = show_rows(judge(pool([synthetic_run([case("all_reduce", 8)], world, launches=1)])))
    assert (" >100% " in render(show_blocks(rows))) == printed


@pytest.mark.parametrize("columns", [40, 50, 60, 72, 100, 200])
def test_what_is_printed_is_as_wide_as_the_output_and_nothing_is_lost(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [8 << step for step in range(12)]
    rows = show_rows(judge(pool([synthetic_run([case("all_reduce", size) for size in sizes], launches=3)])))
    blocks = show_blocks(rows, "a plan", "of a run")
    usual = render(blocks)
    monkeypatch.setenv("COLUMNS", str(columns))
    text = render(blocks)
    assert max(map(len, text.splitlines())) <= columns
    numbers = re.compile(r"[\d.]+(?: ?[%\w/]+)")
    unwrapped = re.sub(r"\n(    \||#)", "", text)
    assert set(numbers.findall(usual)) <= set(numbers.findall(unwrapped))
    assert "█" in usual


@pytest.mark.parametrize(("given", "columns"), [("60", 60), ("0", 80), ("-3", 80), ("x", 80), ("", 80), ("5", 20)])
def test_columns_says_how_wide_the_output_is(given: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", given)
    assert output_columns(io.StringIO()) == columns


def test_a_terminal_says_how_wide_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    master, slave = os.openpty()
    with open(master, "rb"), open(slave, "w") as terminal:  # noqa: PTH123 - they are descriptors
        termios.tcsetwinsize(slave, (24, 66))
        assert output_columns(terminal) == 66
