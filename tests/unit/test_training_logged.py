"""A training's log says which model, layout and batch its steps are of, and what it does not say is asked for."""

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from busbw.cli.main import main
from busbw.errors import UsageError
from busbw.workloads.model_rows import models
from busbw_analysis.cli.training import training
from busbw_analysis.cli.training_options import logged_step, read_logged

STATED = tomllib.loads((Path(__file__).parents[1] / "data/training/stated.toml").read_text(encoding="utf-8"))


def written(folder: Path, name: str, before: str = "", **changed: str) -> Path:
    row = STATED[name]
    text = before or row["text"]
    for old, new in changed.items():
        text = text.replace(old, new)
    steps = (row["step"].format(step) + "\n" for step in range(1, 31))
    log = folder / "train.log"
    log.write_text(text + "".join(steps), encoding="utf-8")
    return log


def asked(words: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["training", "plan", *shlex.split(words), "--json"])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.mark.parametrize("name", STATED)
def test_the_step_of_a_log_has_its_model_layout_and_time(name: str, tmp_path: Path) -> None:
    row, log = STATED[name], read_logged(written(tmp_path, name))
    given = models()[row["given"]] if "given" in row else None
    step, seconds = logged_step(log, {}, given, (None, None, row.get("sequence")))
    layout = step.layout
    assert [layout.gpus, step.batch, step.sequence] == row["sizes"]
    assert {key: getattr(step.model, key) for key in row["model"]} == row["model"]
    assert {key: getattr(layout, key) for key in row["layout"]} == row["layout"]
    assert seconds == pytest.approx(row["seconds"])
    assert log.gpu == row.get("gpu")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("torchtitan of 2026", ["--model"]),
        ("DeepSpeed", ["--model", "--seq"]),
        ("Megatron-LM", ["--model", "--gpus", "--measured", "--seq"]),
    ],
)
def test_what_a_log_does_not_say_is_named_with_its_option(name: str, options: list[str], tmp_path: Path) -> None:
    log = written(tmp_path, name, before="\n" if name == "Megatron-LM" else "")
    with pytest.raises(UsageError) as error:
        training.main(["plan", "--from", str(log)], standalone_mode=False)
    message = str(error.value)
    assert error.value.code == "measured"
    assert [
        option for option in ("--model", "--gpus", "--measured", "--batch", "--seq") if option in message
    ] == options


def test_latent_attention_and_experts_are_read_or_asked_for(tmp_path: Path) -> None:
    log = written(tmp_path, "Megatron-LM", **{"attention .......................... False": "attention ... True"})
    assert read_logged(log).model is None
    log = written(
        tmp_path, "Megatron-LM", **{"num_experts ..................................... None": "num_experts ... 8"}
    )
    step, _ = logged_step(read_logged(log), {}, None, (None, None, None))
    assert (step.model.experts, step.model.top_k, step.model.expert_ffn, step.model.ffn) == (8, 2, 21504, 0)


def test_only_steps_of_the_last_batch_count(tmp_path: Path) -> None:
    log = written(tmp_path, "Megatron-LM")
    small = log.read_text().replace("size:   512", "size:    64").replace("40000.0", "5000.0")
    log.write_text(small + "".join(STATED["Megatron-LM"]["step"].format(step) + "\n" for step in range(31, 61)))
    step, seconds = logged_step(read_logged(log), {}, None, (None, None, None))
    assert (step.batch, seconds) == (512, 40.0)


def test_a_log_alone_gives_a_calibrated_plan(tmp_path: Path) -> None:
    """Far from the prediction too, because the log itself says of what layout its steps are."""
    log = written(tmp_path, "torchtitan")
    document = asked(f"--from {shlex.quote(str(log))} --top 1")
    assert (document["gpus"], document["batch"], document["sequence"]) == (8, 8, 8192)
    assert document["gpu_memory_bytes"] == pytest.approx(0.95 * (143771 << 20))
    (measured,) = document["measured"]
    kernels = next(factor for factor in document["calibration"] if factor["name"] == "kernels")
    assert measured["near"]
    assert measured["predicted_seconds"] == pytest.approx(measured["seconds"], rel=0.1)
    assert kernels["determined"]
    assert kernels["value"] > 1.2
    larger = asked(f"--from {shlex.quote(str(log))} --gpus 64 --batch 512 --top 1")
    assert (larger["gpus"], larger["batch"], larger["calibration"]) == (64, 512, document["calibration"])


@pytest.mark.parametrize(
    ("options", "cautions"), [("", 2), ("--network '4X HDR'", 1), ("--network '4X HDR' --gpu 'A100 SXM4 80 GB'", 0)]
)
def test_what_is_assumed_of_the_machine_is_said(options: str, cautions: int, tmp_path: Path) -> None:
    log = written(tmp_path, "NeMo")
    result = CliRunner().invoke(main, ["training", "plan", "--from", str(log), "--top", "1", *shlex.split(options)])
    assert result.exit_code == 0, result.output
    assert " ".join(result.stdout.split()).count("train.log does not say") == cautions


def test_a_layout_that_does_not_divide_the_ranks_is_refused(tmp_path: Path) -> None:
    log = written(tmp_path, "Megatron-LM", **{"using world size: 8": "using world size: 12"})
    with pytest.raises(UsageError) as error:
        logged_step(read_logged(log), {}, None, (None, None, None))
    assert error.value.code == "measured"


def test_settings_that_are_no_numbers_are_not_stated(tmp_path: Path) -> None:
    broken = {
        "tensor_model_parallel_size ...................... 4": "tensor_model_parallel_size ... 0\n  multiple_of ... x",
        "micro_batch_size ................................ 1": "micro_batch_size ... 1e999",
        "hidden_dropout .................................. 0.0": "hidden_dropout ... yes",
    }
    log = read_logged(written(tmp_path, "Megatron-LM", **broken))
    step, _ = logged_step(log, {}, None, (None, None, None))
    assert (step.layout.tp, step.layout.pp, step.micro_batch, step.model.ffn) == (1, 2, 1, 21504)
