"""Steps by the clock of a log: tqdm's bars and time stamps, and what must not be taken for them."""

from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from testing.narrow import require

from busbw.cli.main import main
from busbw.errors import LogError
from busbw_analysis.data.readers import step_clock
from busbw_analysis.data.readers.logs import read_file, read_steps
from busbw_analysis.data.readers.training import FailedTraining, OfTraining, TrainingLog
from busbw_analysis.training.log import findings, step_times

LOSS = "{'loss': 3.5534, 'grad_norm': 1.41, 'learning_rate': 2.0e-06, 'epoch': 0.01}\n"
FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
TIMEOUT = (
    "[rank5]:[E602 11:17:52] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1517, "
    "OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600017 milliseconds\n"
)
STEPS = "".join(f"iter {step}: loss 4.0863, time 561.94ms\n" for step in range(30))


def bar(step: int, seconds: float, of: str = "", rest: str = "]", rate: str = "2.80s/it", total: int = 1752) -> str:
    at = int(seconds)
    return f"{of}  1%|▏         | {step}/{total} [{at // 60:02d}:{at % 60:02d}<1:22:01,  {rate}{rest}"


def stamped(text: str, seconds: Iterable[float]) -> str:
    """Lines whose text has the number of the step, each 50 steps later."""
    at = "2020-11-11 {:02d}:{:02d}:{:06.3f} "
    return "".join(
        f"{at.format(10 + int(each) // 3600, int(each) // 60 % 60, each % 60)}{text.format(50 * place)}\n"
        for place, each in enumerate(seconds, 1)
    )


def of(text: str) -> TrainingLog:
    with pytest.raises(OfTraining) as found:
        read_file("log", BytesIO(text.encode()))
    return found.value.steps


def refused(text: str) -> LogError:
    with pytest.raises(LogError) as found:
        read_file("log", BytesIO(text.encode()))
    return found.value


@pytest.mark.parametrize(
    ("named", "rest", "loss"),
    [
        ("", "]", LOSS),
        ("", "]{'loss': 2.1}", ""),
        ("Epoch 0:", ", v_num=0, loss=2.31]", ""),
        ("Train epoch [1/1]:", ", pg=0.1]", ""),
        ("", "]", "step loss=2\n"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r"])
def test_the_bars_of_a_training_program_are_its_steps(named: str, rest: str, loss: str, end: str) -> None:
    """hiyouga/LlamaFactory#8261, in part. The bar's own average is far above: it has the first step in it."""
    bars = end.join(bar(step, 60 + 2.8 * step, named, rest, "9.99s/it") for step in range(10, 60))
    times = step_times(of(f"{loss}{bars}\n{loss}"))
    assert (times.program, times.by_clock) == (step_clock.BAR, True)
    assert times.typical == pytest.approx(2.8, rel=0.05)
    assert "by-clock" in {finding.code for finding in findings(times)}


def test_epochs_of_a_bar_go_on() -> None:
    bars = "\n".join(
        bar(step, 2.8 * step, f"Epoch {epoch}:", ", loss=2.1]", total=40) for epoch in range(3) for step in range(1, 41)
    )
    times = step_times(of(bars))
    assert times.restarts == 0
    assert times.typical == pytest.approx(2.8, rel=0.05)


def test_two_runs_in_a_text_are_told_apart() -> None:
    slow, fast = (
        "\n".join(bar(step, seconds * step, "", ", loss=2.1]") for step in range(1, 60)) for seconds in (5.6, 2.8)
    )
    times = step_times(of(f"without NVLink\n{slow}\nwith NVLink\n{fast}\n"))
    assert times.restarts == 1
    assert [value for _, value in times.runs] == pytest.approx([5.6, 2.8], rel=0.05)
    assert "runs-differ" in {finding.code for finding in findings(times)}
    again = step_times(of(f"{fast}\n{fast}\n"))
    assert again.restarts == 1
    assert "runs-differ" not in {finding.code for finding in findings(again)}


@pytest.mark.parametrize(
    "named",
    [
        "Loading checkpoint shards:",
        "Map:",
        "Validation:",
        "Epoch 0 eval:",
        "Tokenizing train:",
        "Capturing CUDA graphs:",
    ],
)
def test_bars_of_other_work_are_no_steps(named: str) -> None:
    bars = "\n".join(bar(step, 2.8 * step, named) for step in range(50))
    assert not step_clock.seen(f"{LOSS}{bars}".encode())
    assert refused(f"{LOSS}{bars}\n").code == "not-a-log"


def test_bars_of_several_ranks_are_not_mixed() -> None:
    """facebookresearch/fairseq#247, in part: every rank has its own clock and number."""
    bars = [
        bar(step + rank % 3, 2.9 * step + rank * 4, " epoch 001:", ", loss=0.0]")
        for step in range(50, 80)
        for rank in range(4)
    ]
    assert not step_clock.seen("\n".join(bars).encode())


@pytest.mark.parametrize(("rate", "steps"), [("4.00it/s", 6), ("20.0s/it", 0)])
def test_averages_count_where_the_clock_agrees_with_them(rate: str, steps: int) -> None:
    bars = "\n".join(bar(step, 100 + step / 4, "Epoch 0:", ", loss=2.1]", rate) for step in range(400, 424, 4))
    found = read_steps("log", BytesIO(bars.encode())) if steps else None
    assert len(found.steps if found else ()) == steps
    assert found is None or found.steps[0].value == 0.25
    assert step_clock.seen(bars.encode()) == bool(steps)


@pytest.mark.parametrize(
    "text",
    [
        "| INFO | train_inner | epoch 001:   {} / 160368 loss=9.255, ups=0.04, wpb=1613, num_updates={}, wall=1236",
        "{{'loss': 0.42, 'train_speed(iter/s)': 0.19, 'epoch': 0.2, 'global_step/max_steps': '{}/4491'}}",
        "[root][INFO] - train, rank: 1, epoch: 0/500, total step: {}, (loss_avg_rank: 0.521)",
        "WARNING [train.py:546] (0/7) Epoch 1, batch {}, batch avg ctc loss 0.4471, batch size: 10",
        "- mmdet - INFO - Epoch [0][{}/29317] lr: 2.000e-02, eta: 1 day, 16:24:41, loss: 1.0037",
        "[INFO] [timer.py:189:stop] 0/{}, SamplesPerSec=83.48, MemAllocated=0.26GB",
        "intern-studio:0 olmo.train:908 INFO [step={}/739328,epoch=0]",
        "Epoch: [0],Step [{}/500],Estimated Remaining Time: 00:03:26",
    ],
)
def test_steps_beside_a_stamp_have_the_time_between_them(text: str) -> None:
    """facebookresearch/fairseq#2338, modelscope/ms-swift#4291, modelscope/FunASR#2006, k2-fsa/icefall#63,
    open-mmlab/mmdetection#4090, deepspeedai/DeepSpeed#1825, allenai/OLMo#692, huggingface/accelerate#2724, in parts.
    """
    lines = stamped(
        text.replace("num_updates={}", "num_updates={0}").replace("001:   {}", "001:   {0}"),
        [15.5 * place for place in range(1, 9)],
    )
    for written in (lines, lines.replace(" ", "\t"), "".join(f"[rank0]: {line}\n" for line in lines.splitlines())):
        times = step_times(of(written))
        assert (times.program, times.every) == (step_clock.STAMPS, 50)
        assert times.typical == pytest.approx(15.5 / 50)


@pytest.mark.parametrize(
    "text",
    [
        "Epoch(val) [1][{}/100] loss: 2.1",
        "rank {} packet loss 0%",
        "[  3] {} sec  1.0 GBytes  lost/total datagrams (loss)",
        "loss scale reduced to {}",
    ],
)
def test_other_stamped_lines_are_no_steps(text: str) -> None:
    assert not step_clock.seen(stamped(text, [15.5 * place for place in range(1, 9)]).encode())


def test_the_seconds_since_the_line_before_are_of_all_steps_between() -> None:
    """horovod/horovod#71, in part: of an excerpt, lines may be left out."""
    line = "INFO:tensorflow:loss = 2.30251, step = {} ({} sec)\n"
    times = step_times(of("".join(line.format(step, 1.8 + step / 1e4) for step in (15, 25, 35, 45, 95, 105, 115))))
    assert times.low > 0.18
    assert times.high < 0.182


def test_bars_that_were_joined_to_a_line_are_read() -> None:
    """hiyouga/LlamaFactory#2902, in part."""
    joined = " ".join(
        f"2%|▏ | {step}/620 [{5 * step // 60:02d}:{5 * step % 60:02d}<50:17, 4.95s/it]" for step in range(10, 20)
    )
    assert step_times(of(f"{LOSS}> {joined}\n")).typical == pytest.approx(5.0, rel=0.05)


def test_steps_without_a_usual_time_are_named() -> None:
    """NifTK/NiftyNet#47, in part."""
    line = "step: {}, loss: 2.1, time: {} s\n"
    for seconds, found in [
        ([8.0, 3.1, 9.2, 94.6, 43.0, 98.1, 6.3, 3.3], {"scatter"}),
        ([8.0, 3.1, 3.2, 3.3, 3.2, 3.1, 3.0, 3.3], set()),
    ]:
        times = step_times(of("".join(line.format(step, each) for step, each in enumerate(seconds, 1))))
        assert {finding.code for finding in findings(times)} == found


def test_steps_that_wait_for_their_data_are_named() -> None:
    """pytorch/examples#164, in part."""
    line = "Epoch: [0][{}/5005]\tTime {:.3f} (8.010)\tData {:.3f} (7.720)\tLoss 6.9074 (6.9080)\n"
    late = "".join(line.format(step, *((15.2, 15.1) if step % 7 == 3 else (0.15, 0.001))) for step in range(14, 60))
    times = step_times(of(late))
    assert times.typical == 0.15
    assert require(times.data_share) > 0.9
    found = {finding.code: finding.text for finding in findings(times)}
    assert "data-wait" in found
    assert "checkpoint" not in found["periodic-slow-steps"]
    fast = "".join(line.format(step, 0.15, 0.001) for step in range(14, 60))
    assert not {finding.code for finding in findings(step_times(of(fast)))}


def test_few_steps_that_grow_are_named_but_no_scatter_of_few() -> None:
    """epfLLM/Megatron-LLM#11, in part."""
    line = " iteration {:8d}/ 250000 | elapsed time per iteration (ms): {:.1f} | global batch size:  1024 |\n"

    def codes(values: Sequence[float]) -> set[str]:
        log = of("".join(line.format(step, value) for step, value in enumerate(values, 122)))
        return {finding.code for finding in findings(step_times(log))}

    assert codes([86545.2, 87871.6, 89474.8, 89075.2, 101995.3, 105553.7, 107804.5, 108554.9]) == {"drift"}
    assert not codes([86545.2, 87871.6, 89474.8, 89075.2, 88995.3, 89553.7, 89804.5, 89554.9])


@pytest.mark.parametrize(
    "failure",
    [
        FULL,
        "slurmstepd: error: *** STEP 494583.0 ON n1 CANCELLED AT 2024-04-20T09:09:37 DUE TO TIME LIMIT ***\n",
        "  traceback : Signal 9 (SIGKILL) received by PID 492347\n",
        TIMEOUT,
        'Traceback (most recent call last):\n  File "train.py", line 4, in <module>\nValueError: operands differ\n',
    ],
)
def test_a_failure_keeps_the_steps_before_it(failure: str, tmp_path: Path) -> None:
    found = refused(STEPS + failure)
    assert (type(found), found.code) == (
        FailedTraining,
        "hang" if "Watchdog" in failure or "LIMIT" in failure else "job-failed",
    )
    path = tmp_path / "log"
    path.write_text(STEPS + failure, encoding="utf-8")
    shown = CliRunner().invoke(main, ["show", str(path)])
    assert (shown.exit_code, "562 ms" in shown.output.replace("\n       ", " ")) == (1, True)
    assert not isinstance(refused(failure + FULL), FailedTraining)


@pytest.mark.parametrize(
    "after",
    [
        "Exception ignored in: <function F.__del__ at 0x7f>\nTraceback (most recent call last):\nTypeError: None\n",
        f"Traceback (most recent call last):\nValueError: retried\n{STEPS}",
        "Training finished\nTraceback (most recent call last):\nBrokenPipeError: wandb is gone\n",
        "no Traceback, ValueError: operands differ\n",
    ],
)
def test_an_error_that_is_ignored_ends_no_training(after: str) -> None:
    assert len(of(STEPS + after).steps) >= 30


INFO = f"node1:12:34 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0 {'x' * 900}\n" * 1200


def test_steps_between_many_messages_are_found() -> None:
    assert len(of(INFO + STEPS + INFO).steps) == 30
    failed = refused(INFO + STEPS + INFO + FULL)
    assert (type(failed), failed.code) == (FailedTraining, "job-failed")


def test_a_failure_far_below_the_first_steps_is_said() -> None:
    many = STEPS + f"{'x' * 199}\n" * 5500 + STEPS
    assert len(of(many).steps) == 60
    assert refused(many + FULL).code == "job-failed"
    assert len(of(f"{many}dataloader worker exited with exit code 137, restarting it\n{STEPS}").steps) == 90


def test_samples_of_an_epoch_are_no_steps() -> None:
    """pytorch/examples: the number of samples with their share behind it."""
    lines = (
        f"2026-01-01 10:{at // 60:02}:{at % 60:02} Train Epoch: 1 [{640 * at}/60000 ({at}%)]\tloss=0.5\n"
        for at in range(0, 60, 2)
    )
    assert refused("".join(lines)).code != OfTraining.code


def test_an_evaluation_between_two_lines_is_no_part_of_a_step() -> None:
    evaluation = "2026-01-01 10:{0:02}:50 evaluating\n"
    lines = "".join(
        f"2026-01-01 10:{at // 30:02}:{2 * at % 60:02} step {at} loss 2.1\n"
        + (evaluation.format(at // 30) if at % 30 == 5 else "")
        for at in [*range(30, 36), *range(60, 66), *range(90, 96), *range(120, 126)]
    )
    times = require(step_times(of(lines)))
    assert (times.low, times.high) == (2.0, 2.0)
