"""Logs of training programs: the numbers of every format, and what was planted in them is found."""

import json
import pickle
import random
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from testing.logs import LOGS, read_log
from testing.narrow import require

from busbw.cli.main import main
from busbw.errors import LogError
from busbw.system.catalog import catalogue
from busbw.system.named import gpu_named
from busbw_analysis.cli.training import training
from busbw_analysis.data.rank_statistics import theil_sen
from busbw_analysis.data.readers.logs import read_steps
from busbw_analysis.data.readers.training import FailedTraining, OfTraining, TrainingLog
from busbw_analysis.training.log import StepTimes, findings, step_times


def megatron(step: int, seconds: float) -> str:
    return (
        f" [2025-03-01 10:00:00] iteration {step:8d}/  500000 | consumed samples: {step * 1024:12d} | elapsed time per "
        f"iteration (ms): {seconds * 1e3:.1f} | throughput per GPU (TFLOP/s/GPU): {2000 / seconds:.1f} | learning "
        "rate: 1.0E-05 | global batch size:  1024 | lm loss: 9.1E+00 | number of nan iterations:   0 |"
    )


def logged(lines: Sequence[str]) -> TrainingLog:
    return read_steps("log", BytesIO("\n".join(lines).encode()))


def times_of(seconds: Sequence[float], first: int = 1) -> StepTimes:
    return step_times(logged([megatron(step, taken) for step, taken in enumerate(seconds, first)]))


def codes(times: StepTimes) -> set[str]:
    return {finding.code for finding in findings(times)}


def steady(count: int, seed: int = 1, scatter: float = 0.01) -> list[float]:
    draw = random.Random(seed)
    return [5.0 * (1 + draw.gauss(0, scatter)) for _ in range(count)]


FORMATS = tomllib.loads((Path(__file__).parents[1] / "data/training/lines.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("text", "program", "value"),
    [
        ("step: {}, loss: 2.1, data time: 3.1 ms, step time: 345.6 ms", "script", 0.3456),
        ("step: {}, loss: 2.1, data time: 3.1 ms, time: 345.6 ms", "script", 0.3456),
        ("step: {}  loss: 2.1  tps: 1,000", "torchtitan", 1000.0),
    ],
)
def test_the_time_of_a_step_is_none_of_its_parts(text: str, program: str, value: float) -> None:
    log = logged([text.format(step) for step in range(1, 4)])
    assert (log.program, [(step.step, step.value) for step in log.steps]) == (
        program,
        [(step, value) for step in range(1, 4)],
    )


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_its_steps(name: str) -> None:
    text, value = FORMATS[name]["line"], FORMATS[name]["value"]
    log = logged(["NCCL version 2.27.3+cuda12.9", *(text.format(step) for step in range(1, 31))])
    assert log.program == name.partition(" ")[0]
    assert [step.step for step in log.steps] == list(range(1, 31))
    assert [step.value for step in log.steps] == pytest.approx([value] * 30)


def test_what_the_program_states_is_read() -> None:
    log = logged(
        ["[titan] - INFO - Peak FLOPS used for computing MFU: 9.890e+14"]
        + [FORMATS["torchtitan"]["line"].format(step) for step in range(10, 200, 10)]
    )
    times = step_times(log)
    assert (times.every, times.tokens, times.flops) == (10, 5678.0, 333.8e12)
    assert times.utilised == pytest.approx(333.8 / 989)
    assert times.peak == (989e12, "as the program states it")


@pytest.mark.parametrize(("name", "teraflops"), [("MaxText", 346.932), ("MaxText 2023", 36.722)])
def test_maxtext_prints_the_work_of_a_device(name: str, teraflops: float) -> None:
    log = logged([FORMATS[name]["line"].format(step) for step in range(10)])
    assert {step.flops for step in log.steps} == {teraflops * 1e12}


@pytest.mark.parametrize("untimed", [[44.9, 0.319], [44.9, 0.319, 0.002], [0.319, 0.002]])
@pytest.mark.parametrize("count", [6, 20])
def test_first_steps_that_were_not_waited_for_are_warm_up(untimed: list[float], count: int) -> None:
    times = times_of([*untimed, *steady(count)])
    assert (times.warm_up, times.count) == (len(untimed), count)
    assert times.low > 4.5


def test_the_peak_is_that_of_the_gpu() -> None:
    times = step_times(logged([megatron(step, 5.0) for step in range(30)]), gpu_named(catalogue(), "H100 SXM5"))
    peak, of = require(times.peak)
    assert times.utilised == pytest.approx(400e12 / peak)
    assert "H100 SXM5" in of


def test_ranks_that_print_the_same_step_are_one_step() -> None:
    lines = [f"{rank}: {megatron(step, 5.0 + rank)}" for step in range(1, 21) for rank in (0, 1)]
    log = logged(lines)
    assert [step.value for step in log.steps] == [6.0] * 20


def test_a_steady_log_has_no_findings() -> None:
    for seed in range(20):
        times = times_of([30.0, *steady(200, seed)])
        assert codes(times) == set()
        assert (times.warm_up, times.count) == (1, 200)
        assert times.typical == pytest.approx(5.0, rel=0.01)


@pytest.mark.parametrize("period", [10, 25, 50])
def test_a_period_is_found(period: int) -> None:
    seconds = [taken * (1.8 if step % period == 0 else 1) for step, taken in enumerate(steady(300), 1)]
    times = times_of(seconds)
    assert times.period == period
    assert len(times.slow) == 300 // period
    lost = sum(seconds[1:]) - 299 * 5.0
    assert times.slow_share == pytest.approx(lost / sum(seconds[1:]), abs=0.01)
    assert codes(times) == {"periodic-slow-steps"}


def test_slow_steps_at_random_have_no_period() -> None:
    for seed in range(20):
        slow = set(random.Random(seed).sample(range(20, 300), 8))
        times = times_of([taken * (2 if step in slow else 1) for step, taken in enumerate(steady(300), 1)])
        assert {step.step for step in times.slow} == slow
        assert (times.period, codes(times)) == (None, {"slow-steps"})


@pytest.mark.parametrize("share", [0.05, 0.2, -0.1])
def test_a_drift_is_found(share: float) -> None:
    times = times_of([taken * (1 + share) ** (step / 300) for step, taken in enumerate(steady(300, 3), 1)])
    drift = require(times.drift)
    assert drift.low <= share <= drift.high
    assert drift.share == pytest.approx(share, abs=0.01)
    assert codes(times) == {"drift"}


def test_the_drift_of_a_long_job_does_not_compare_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def noted(at: Sequence[float], values: Sequence[float]) -> tuple[float, float, float]:
        compared.append(len(at))
        return theil_sen(at, values)

    monkeypatch.setattr("busbw_analysis.training.log.theil_sen", noted)
    times = times_of([taken * 1.2 ** (step / 5000) for step, taken in enumerate(steady(5000, 3), 1)])
    assert require(times.drift).share == pytest.approx(0.2, abs=0.01)
    assert max(compared) <= 2000


def test_a_restart_has_its_own_warm_up() -> None:
    before, after = steady(120), [20.0, 15.0, *steady(80, 2)]
    lines = [megatron(step, taken) for step, taken in enumerate(before, 1)]
    lines += [megatron(step, taken) for step, taken in enumerate(after, 101)]
    times = step_times(logged(lines))
    assert (times.restarts, times.warm_up, times.slow) == (1, 3, ())
    assert codes(times) == {"restarted"}


@pytest.mark.parametrize(
    ("lines", "code"),
    [(["no step at all"] * 20, "no-steps"), ([megatron(step, 5.0) for step in range(3)], "too-few-steps")],
)
def test_a_log_without_enough_steps_is_refused(lines: list[str], code: str) -> None:
    with pytest.raises(LogError) as refused:
        step_times(logged(lines))
    assert refused.value.code == code


def test_a_fence_and_a_broken_line_are_read() -> None:
    lines = [megatron(step, 5.0) for step in range(30)]
    assert len(logged(["Why is it slow?", "```", *lines, "```"]).steps) == 30
    broken = [line[at : at + 80] for line in lines for at in range(0, len(line), 80)]
    assert {step.value for step in logged(broken).steps} == {5.0}


@pytest.mark.parametrize("before", [[], ["host:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 8 Init START"] * 3])
def test_show_names_the_command_that_reads_it(before: list[str], tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("\n".join([*before, *(megatron(step, 5.0) for step in range(30))]), encoding="utf-8")
    with pytest.raises(LogError) as refused:
        read_log(path)
    assert refused.value.code == "training-log"
    assert "busbw training log" in str(refused.value)
    result = CliRunner().invoke(training, ["log", str(path), "--json"])
    assert json.loads(result.stdout)["steps"]["typical"] == 5.0


def every(error: type[LogError]) -> Iterator[type[LogError]]:
    """The class and those below it."""
    yield error
    for below in error.__subclasses__():
        yield from every(below)


def test_an_error_of_a_log_is_the_same_in_another_process() -> None:
    steps = logged([megatron(step, 5.0) for step in range(9)])
    hang = LogError("said", [("Why", "so")], code="hang", log="x.log")
    of = {LogError: hang, OfTraining: OfTraining(steps), FailedTraining: FailedTraining(hang, steps)}
    assert {*every(LogError)} == of.keys()
    for error in of.values():
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 - its own bytes
        assert type(again) is type(error)
        assert (str(again), again.__dict__, again.code) == (str(error), error.__dict__, error.code)


@pytest.mark.parametrize("first", ["train.log", "nccl.txt"])
def test_steps_are_shown_alone_and_beside_results(first: str, tmp_path: Path) -> None:
    steps = tmp_path / "train.log"
    steps.write_text("\n".join(megatron(step, 5.0) for step in range(30)), encoding="utf-8")
    shutil.copy(LOGS / "nccl-tests-2.19.txt", tmp_path / "nccl.txt")
    other = {"train.log": "nccl.txt", "nccl.txt": "train.log"}[first]
    result = CliRunner().invoke(main, ["show", str(tmp_path / first), str(tmp_path / other)])
    assert result.exit_code == 0
    assert ("all_reduce" in result.output, "\n# train.log\n" in result.output) == (True, True)
    alone = CliRunner().invoke(main, ["show", str(steps)])
    assert alone.exit_code == 0
    assert alone.output in result.output


@pytest.mark.parametrize(("first", "warm_up"), [(0, 1), (180, 0)])
def test_an_excerpt_from_the_middle_has_no_warm_up(first: int, warm_up: int, tmp_path: Path) -> None:
    """epfLLM/Megatron-LLM#11."""
    path = tmp_path / "train.log"
    path.write_text("\n".join(megatron(step, 5.0) for step in range(first, first + 4)), encoding="utf-8")
    steps = json.loads(CliRunner().invoke(main, ["show", "--json", str(path)]).stdout)["steps"]
    assert (steps["typical"], steps["warm_up"], steps["count"]) == (5.0, warm_up, 4 - warm_up)


def test_a_timeout_at_its_end_is_told_and_read(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    timeouts = (LOGS / "watchdog-missing.txt").read_text(encoding="utf-8")
    path.write_text("\n".join([*(megatron(step, 5.0) for step in range(30)), timeouts]), encoding="utf-8")
    log = read_steps("log", BytesIO(path.read_bytes()))
    assert "timeout" in codes(step_times(log))
    with pytest.raises(LogError) as refused:
        read_log(path)
    assert refused.value.code == "hang"
