"""The command line: what is refused exits 2 and names what is allowed, stdout is data, and nothing heavy is loaded."""

import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner
from testing.command import busbw
from testing.logs import LOGS
from testing.narrow import require_type
from testing.synthetic import SyntheticEnd, case, synthetic_run, write_synthetic

from busbw import launch
from busbw.backends import BACKENDS
from busbw.cli.main import main
from busbw.cli.options import Sectioned
from busbw.errors import BusbwError, Interrupted, LaunchError, RankFailure, UsageError
from busbw.launch import rendezvous
from busbw.launch.run_session import Result as RunResult
from busbw.launch.run_session import Settings, open_run
from busbw.ops.training import SCALES
from busbw.runs import plan, store
from busbw.runs.plan import Plan, Sweep
from busbw.runs.records import Measurement
from busbw.runs.store import StoredRun


def refused(*arguments: str) -> str:
    result = busbw(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == "", "stdout is data"
    return result.stderr


def dry(*arguments: str) -> dict[str, Any]:
    result = busbw("run", "--dry-run", "--json", *arguments)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_a_self_test_that_could_find_no_difference_is_refused() -> None:
    refused("selftest", "--launches", "5")


@pytest.mark.parametrize("ranks", ["0", "1", "-3"])
def test_a_self_test_of_too_few_ranks_says_how_many_it_needs(ranks: str, tmp_path: Path) -> None:
    message = refused("selftest", "--ranks", ranks, "--results-dir", str(tmp_path))
    assert ranks in message
    assert list(tmp_path.iterdir()) == []


# --- help and usage --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (("--op", "broadcast", "--root", "7"), "--root: rank 7 does not exist; allowed are 0 to 1"),
        (("--op", "broadcast", "--root", "-1"), "--root: rank -1 does not exist; allowed are 0 to 1"),
        (("--op", "all_reduce", "--sizes", "4096TiB"), "--sizes"),
        (("--op", "all_reduce", "--groups", "0,9"), "[9]"),
        (("--op", "train_ddp", "--model", "Llama 3 70B", "--scale", "1"), "--scale"),
        (("--op", "barrier", "--ranks", "100000"), "--ranks"),
    ],
)
@pytest.mark.parametrize("dry_run", [("--dry-run",), ()])
def test_what_cannot_be_on_these_ranks_is_refused_before_they_start(
    tmp_path: Path, options: tuple[str, ...], key: str, dry_run: tuple[str, ...]
) -> None:
    ranks = () if "--ranks" in options else ("--ranks", "2")
    assert key in refused("run", *options, *dry_run, *ranks, "--results-dir", str(tmp_path / "results"))
    assert not (tmp_path / "results").exists()


def test_errors_in_plan_keys_name_the_option_that_exists() -> None:
    (command,) = [command for command in (main.get_command(click.Context(main), "run"),) if command is not None]
    options = {parameter.name: parameter.opts[0] for parameter in command.params}
    keys = {*Plan.__struct_fields__, *plan.SWEEP_KEYS, *plan.Timing.__struct_fields__} & options.keys()
    assert len(keys) > 20
    for key in keys:
        with pytest.raises(UsageError) as refused, plan.naming_options():
            raise UsageError(f"key {key!r}: no")
        assert str(refused.value).startswith(f"{options[key]}: ")


def test_a_dry_run_says_which_cases_would_be_skipped_and_why() -> None:
    options = ("--op", "all_to_all,all_gather", "--sizes", "8,16", "--in-place", "yes", "--ranks", "2", "--no-baseline")
    document = dry(*options)
    assert [row["case"]["op"] for row in document["skipped"]] == ["all_to_all"] * 2
    result = busbw("run", "--dry-run", *options)
    assert result.stdout.count("skipped: 2 cases of all_to_all: all_to_all supports only out-of-place buffers") == 1


# --- dry runs --------------------------------------------------------------------------------------------------


def test_a_dry_run_prints_cases_and_time_and_writes_nothing(tmp_path: Path) -> None:
    sizes = ("--sizes", "1KiB,1", "--no-baseline", "--ranks", "3")
    result = busbw("run", "--op", "all_gather,barrier", *sizes, "--dry-run", "--results-dir", str(tmp_path / "results"))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["all_gather", "all_gather", "barrier"]
    assert not (tmp_path / "results").exists()


def test_a_dry_run_of_a_backend_that_is_not_here_says_so() -> None:
    result = busbw("run", "--op", "all_reduce", "--backend", "nccl", "--ranks", "2", "--dry-run")
    reason = BACKENDS["nccl"].missing()
    assert result.exit_code == 0
    assert (str(reason) in result.stderr.partition("\n")[0]) == (reason is not None)
    assert ("about" in result.stderr) == (reason is None)


def test_a_dry_run_in_which_every_case_is_skipped_estimates_no_time() -> None:
    result = busbw("run", "--op", "all_reduce", "--ranks", "1", "--dry-run")
    assert (result.exit_code, result.stdout.count("skipped:")) == (0, 1)
    assert not {"×", "about"} & set(result.stderr.split())


@pytest.mark.parametrize(("typed", "name"), [("deepseek-v3", "DeepSeek-V3"), ("mlp 1024", "MLP 1024")])
def test_a_model_in_other_letters_is_trained_at_the_scale_of_its_name(typed: str, name: str) -> None:
    options = ("--op", "train_tensor", "--ranks", "2", "--no-baseline")
    as_typed, as_named = (dry(*options, "--model", model) for model in (typed, name))
    assert as_typed["cases"] == as_named["cases"]
    assert as_typed["cases"][0]["settings"]["scale"] == SCALES[name]


def test_a_plan_file_and_its_options(tmp_path: Path) -> None:
    path = tmp_path / "a 0.toml"
    path.write_text('[[sweep]]\nops = ["all_reduce"]\nsizes = "8"\n', encoding="utf-8")
    assert [case["dtype"] for case in dry("--plan", str(path), "--dtype", "int8, int32")["cases"]] == ["int8", "int32"]
    path.write_text('[[sweep]]\nops = ["all_reduce"]\nsize = "8"\n', encoding="utf-8")
    message = refused("run", "--plan", str(path))
    assert str(path) in message


def test_traffic_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "moe.csv"
    path.write_text("0,1\n1,0\n", encoding="utf-8")
    (case,) = dry("--op", "all_to_all_v", "--sizes", "8", "--no-baseline", "--traffic", str(path), "--ranks", "2")[
        "cases"
    ]
    assert len(case["settings"]["traffic"]) == 8
    assert "imbalance" not in case["settings"]
    assert "2 ranks" in refused("run", "--op", "all_to_all_v", "--traffic", str(path), "--ranks", "3", "--dry-run")


def test_in_the_world_of_torchrun_its_size_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    world = {"RANK": "0", "WORLD_SIZE": "6", "LOCAL_RANK": "0", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    for name, value in world.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rendezvous, "_LINGER_SECONDS", 0.1)  # nobody comes who could be told
    assert dry("--op", "barrier")["cases"][0]["ranks"] == 6
    message = refused("run", "--op", "barrier", "--ranks", "4", "--dry-run")
    assert "torchrun" in message


# --- runs ------------------------------------------------------------------------------------------------------


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> Callable[[RunResult | BaseException], list[tuple[Plan, Settings]]]:
    """Let runs end as told, and remember what they were asked."""

    def ending(end: RunResult | BaseException) -> list[tuple[Plan, Settings]]:
        asked: list[tuple[Plan, Settings]] = []

        def execute(wanted: Plan, given: Settings) -> RunResult:
            asked.append((wanted, given))
            if isinstance(end, BaseException):
                raise end
            return end

        monkeypatch.setattr(launch, "execute", execute)
        return asked

    return ending


Ending = Callable[[RunResult | BaseException], list[tuple[Plan, Settings]]]


def test_a_run_is_told_everything_and_says_where_it_is(executed: Ending, tmp_path: Path) -> None:
    asked = executed(RunResult(tmp_path / "run", 3, 0, speaks=True))
    result = busbw("run", "--op", "all_reduce", "--max-seconds", "0.01", "--port", "5", "--results-dir", str(tmp_path))
    assert result.exit_code == 0
    ((wanted, given),) = asked
    assert (wanted.timing.max_seconds, wanted.timing.min_seconds) == (0.01, 0.01)
    assert given == Settings(tmp_path, 5, quiet=False)
    assert result.stdout == ""
    assert str(tmp_path / "run") in result.stderr


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A run whose cases were measured in another order than that of its plan."""
    cases = [case(op, size) for op in ("all_reduce", "all_gather") for size in (8, 1 << 20)]
    made = synthetic_run(cases, launches=2)

    def place(row: object) -> tuple[int, int]:
        return getattr(row, "launch", 2), -row.case.size_bytes if isinstance(row, Measurement) else -(1 << 40)

    return write_synthetic(tmp_path, dataclasses.replace(made, rows=tuple(sorted(made.rows, key=place))))


def test_a_run_ends_with_its_table_in_the_order_of_the_plan_and_its_answer(executed: Ending, measured: Path) -> None:
    executed(RunResult(measured, 8, 0, speaks=True))
    result = busbw("run", "--op", "barrier")
    table = [line for line in result.stdout.splitlines() if line]
    sizes = [line.split()[:2] for line in table if not line.startswith("#")]
    assert sizes == [["8", "B"], ["1", "MiB"]] * 2
    assert result.stdout == busbw("show", str(measured)).stdout.partition("\n\n")[2]
    assert str(measured) in result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_quiet_run_says_only_where_it_is(executed: Ending, measured: Path) -> None:
    executed(RunResult(measured, 8, 0, speaks=True))
    result = busbw("run", "--op", "barrier", "--quiet")
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 2


def test_a_run_in_json_has_what_show_has(executed: Ending, measured: Path) -> None:
    executed(RunResult(measured, 8, 0, speaks=True))
    document = json.loads(busbw("run", "--op", "barrier", "--json").stdout)
    shown = json.loads(busbw("show", str(measured), "--json").stdout)
    assert document == {"run": str(measured), "measured": 8, "failed": 0, **shown}
    assert [row["op"] for row in document["cases"]] == ["all_reduce"] * 2 + ["all_gather"] * 2


def test_failed_cases_exit_1(executed: Ending, tmp_path: Path) -> None:
    executed(RunResult(tmp_path, 3, 2, speaks=True))
    result = busbw("run", "--op", "barrier")
    assert result.exit_code == 1


def test_the_last_line_of_a_run_that_skipped_everything_says_why(executed: Ending, tmp_path: Path) -> None:
    cases = [case("barrier", 0), case("all_reduce", 8)]
    stored = synthetic_run(cases, end=SyntheticEnd(skipped=dict.fromkeys(cases, "too few ranks")))
    executed(RunResult(write_synthetic(tmp_path, stored), 0, 0, speaks=True))
    result = busbw("run", "--op", "barrier")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].endswith(" skipped: too few ranks")


@pytest.mark.parametrize(("ops", "code"), [(["ping_pong"], 1), (["ping_pong", "all_reduce"], 0)])
def test_a_run_that_measured_only_the_baseline_exits_1(
    executed: Ending, tmp_path: Path, ops: list[str], code: int
) -> None:
    folder = write_synthetic(tmp_path, synthetic_run([case(name, 8) for name in ops]))
    executed(RunResult(folder, 2, 0, speaks=True))
    result = busbw("run", "--op", "all_reduce", "--sizes", "8", "--quiet")
    assert result.exit_code == code
    assert ("baseline" in result.stderr) == bool(code)


def test_a_rank_that_does_not_speak_is_silent(executed: Ending, tmp_path: Path) -> None:
    executed(RunResult(tmp_path, 3, 0, speaks=False))
    assert busbw("run", "--op", "barrier").output == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RankFailure("rank 1 was killed"), 1),
        (LaunchError("no world"), 1),
        (BusbwError("odd"), 1),
        (UsageError("not like this"), 2),
        (KeyboardInterrupt(), 1),
    ],
)
def test_an_error_becomes_a_line_and_an_exit_code(executed: Ending, error: BaseException, code: int) -> None:
    executed(error)
    result = busbw("run", "--op", "barrier")
    assert result.exit_code == code
    assert result.stderr.startswith("busbw: ")
    assert len(result.stderr.splitlines()) == 1
    assert (str(error) or "interrupted") in result.stderr


def in_folder(error: BusbwError, folder: Path) -> BusbwError:
    error.folder = folder
    return error


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_run_that_was_broken_off_says_where_it_is_and_what_goes_on_with_it(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    interrupted: bool,  # noqa: FBT001
    resume: bool,  # noqa: FBT001
) -> None:
    folder = write_synthetic(tmp_path / "a b", synthetic_run([case("barrier", 0)], launches=1))
    error = Interrupted(folder) if interrupted else in_folder(RankFailure("rank 1 was killed"), folder)

    def breaks(*_: object) -> None:
        raise error

    monkeypatch.setattr(launch, "resume" if resume else "execute", breaks)
    result = busbw("run", *(("--resume", str(folder)) if resume else ("--op", "barrier")))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith(f"busbw run --resume '{folder}'\n")


@pytest.mark.parametrize(
    ("launcher", "command"), [("srun", "busbw submit"), ("mpirun", f"mpirun -n {case('barrier', 0).ranks} busbw run")]
)
def test_a_run_goes_on_below_its_own_launcher(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, launcher: str, command: str
) -> None:
    def breaks(*_: object) -> None:
        raise in_folder(RankFailure("rank 1 was killed"), folder)

    stored = synthetic_run([case("barrier", 0)], launches=1)
    run = msgspec.structs.replace(stored.run, launcher=launcher)
    folder = write_synthetic(tmp_path, StoredRun(stored.path, run, stored.rows, ()))
    monkeypatch.setattr(launch, "session", breaks)
    result = busbw("run", "--op", "barrier")
    assert result.exit_code == 1
    assert result.stderr.endswith(f" {command} --resume {folder}\n")
    (folder / store.RUN_FILE).write_text("nonsense")
    assert busbw("run", "--op", "barrier").stderr.endswith(f" busbw run --resume {folder}\n")


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RankFailure("gone"), LaunchError("another world")])
def test_what_breaks_a_run_off_names_its_folder_once_it_can_be_gone_on_with(
    tmp_path: Path,
    error: BaseException,
    begun: bool,  # noqa: FBT001
) -> None:
    wanted = Plan(sweep=(Sweep(ops=("barrier",)),))
    with pytest.raises(type(error)) as caught, open_run(wanted, Settings(tmp_path)) as here:  # noqa: PT012 - it is the end
        if begun:
            store.write_run(here.folder, synthetic_run([case("barrier", 0)], launches=1).run)
        raise error
    named = getattr(caught.value, "folder", None)
    assert named == (here.folder if begun and not isinstance(error, LaunchError) else None)


# --- lists and doctor ------------------------------------------------------------------------------------------


def test_the_doctor_speaks_both_languages() -> None:
    assert "findings" in busbw("doctor").stdout
    assert {"facts", "timer_ns", "backends", "launchers", "findings"} <= set(
        json.loads(busbw("doctor", "--json").stdout)
    )


@pytest.mark.parametrize("given", [("--op", "xyzzy"), ("xyzzy",), ("--op", "")])
def test_what_is_near_to_nothing_is_not_guessed(given: tuple[str, ...]) -> None:
    assert "id you mean" not in refused("run", *given)


def test_the_help_of_run_has_every_option_in_one_section() -> None:
    command = require_type(Sectioned, main.get_command(click.Context(main), "run"))
    shown = busbw("run", "--help").output
    begins = [line.split()[0].rstrip(",") for line in shown.splitlines() if line.startswith("  -")]
    assert sorted(begins) == sorted([*(parameter.opts[0] for parameter in command.params), "-h"])
    headings = [section.heading for section in command.sections]
    assert [line[:-1] for line in shown.splitlines() if line.endswith(":") and line[0] != " "] == headings


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, -signal.SIGTERM),
        (signal.SIGHUP, -signal.SIGHUP),
        (signal.SIGINT, -signal.SIGINT),
        (signal.SIGUSR1, 0),
    ],
)
def test_a_signal_while_python_exits_prints_no_traceback(number: signal.Signals, code: int) -> None:
    ends = f"""
import atexit, os, signal, sys
from busbw.cli.main import main
from busbw.launch.signals import raise_interrupt
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, raise_interrupt)  # as a run of local ranks does
signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(os.kill, os.getpid(), {int(number)})
sys.argv = ["busbw", "list", "ops"]
main()
"""
    ended = subprocess.run([sys.executable, "-c", ends], check=False, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (code, "")
    assert "all_reduce" in ended.stdout


@pytest.mark.parametrize("sign", ["±", "█", "bar"])
def test_signs_of_a_table_are_explained(sign: str) -> None:
    assert busbw("explain", sign).exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [("show", "RUN"), ("compare", "RUN", "latest"), ("run", "--dry-run", "--plan", "RUN"), ("fleet", "RUN")],
)
def test_what_the_machine_refuses_is_an_error_in_words(arguments: tuple[str, ...]) -> None:
    name = "x" * 300  # longer than the name of a file can be
    result = busbw(*(name if argument == "RUN" else argument for argument in arguments))
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == 2
    assert name in result.stderr


@pytest.mark.parametrize(("command", "lacks"), [("predict", True), ("fleet", True), ("show", False)])
def test_a_hint_on_options_of_logs_names_the_command_that_has_them(command: str, *, lacks: bool) -> None:
    answer = busbw(command, str(LOGS / "perftest-untitled.txt"))
    assert answer.exit_code != 0
    assert "--op" in answer.stderr
    assert ("busbw import" in answer.stderr) == lacks


def test_completion_of_what_cannot_be_read_is_silent() -> None:
    line = {"_BUSBW_COMPLETE": "bash_complete", "COMP_WORDS": "busbw show ", "COMP_CWORD": "2"}
    result = CliRunner().invoke(main, env={**line, "BUSBW_RESULTS_DIR": "x" * 300}, prog_name="busbw")
    assert (result.output.strip(), result.exit_code) == ("", 0)
