"""``busbw training``: what it prints as JSON, what it refuses, rates of a described network, rooflines of steps."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import msgspec
import pytest
from click.testing import CliRunner

from busbw.cli.main import main
from busbw.errors import BusbwError
from busbw.runs.facts import GpuFacts
from busbw.workloads.model_rows import models, parameters
from busbw_analysis.cli.training import training
from busbw_analysis.data.load import load, read
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.judge import judge
from busbw_analysis.predict import Questions, read_groups
from busbw_analysis.training.layout import Layout, Step
from busbw_analysis.training.rates import Rates, rates_of
from busbw_analysis.training.roofline import least_tokens, phases

STORED = Path(__file__).parents[1] / "data"
RING = "--model 'Llama 3 8B' --dp 2 --tp 4 --pp 2 --cp 2 --batch 16 --micro-batches 4"


def asked(words: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["training", *shlex.split(words), "--json"])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def refused(words: str) -> BusbwError:
    with pytest.raises(BusbwError) as error:
        training.main(shlex.split(words), standalone_mode=False)
    return error.value


def test_volumes_are_rows_and_their_sums() -> None:
    document = asked(f"volumes {RING} --explain")
    assert document["headline"].startswith("A rank sends")
    for dimension, bytes_ in document["sent_bytes"].items():
        rows = [row for row in document["traffic"] if row["dimension"] == dimension]
        assert sum(row["sent_bytes"] for row in rows) == bytes_
        assert sum(row["sent_bytes"] for row in rows if not row["hideable"]) == document["waited_bytes"][dimension]
    assert all(row["formula"] and row["source"] for row in document["traffic"])
    assert [row["dimension"] for row in document["statements"]] == ["dp", "tp", "pp", "cp", ""]
    assert document["layout"]["gpus"] == 32
    assert document["layout"]["bubble_share"] == 1 / 5


def test_a_model_of_ones_own_is_described_by_options() -> None:
    """GPT-2's smallest: 12 L h² matrices (arXiv:2001.08361, section 2.1); keys of a row in place of its own."""
    (row,) = asked("models --layers 12 --hidden 768")["models"]
    assert row["parameters_in_products"] == 12 * 12 * 768**2
    (row,) = asked("models --layers 12 --hidden 768 --heads 12 --vocabulary 50257")["models"]
    assert row["parameters"] == 12 * (12 * 768**2 + 2 * 768) + 2 * 50257 * 768 + 768
    mixtral = "--layers 32 --hidden 4096 --kv-heads 8 --experts 8 --top-k 2 --expert-ffn 14336 --gated"
    (row,) = asked(f"models {mixtral} --vocabulary 32000")["models"]
    assert row["parameters"] == parameters(models()["Mixtral 8x7B"])
    (half,) = asked("models --model 'Llama 3 8B' --layers 16")["models"]
    whole = models()["Llama 3 8B"]
    assert half["parameters"] == parameters(msgspec.structs.replace(whole, layers=16))
    for words in ("volumes --dp 2", "memory", "roofline", "plan --gpus 4 --nic '4X NDR'"):
        assert asked(f"{words} --layers 2 --hidden 256 --seq 64 --batch 8")["model"] == "own model"
    assert asked("storage --layers 2 --hidden 256 --gpus 1 --achieved 1e12")["reading"]["what"] == "tokens of own model"


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        ("models", "8 models"),
        ("volumes --model 'Llama 3 8B'", "A rank sends nothing"),
        (f"volumes {RING}", "A rank sends 31.06 GB"),
        (f"memory {RING}", "A rank needs"),
        (f"memory {RING} --gpu 'H100 SXM5'", "Fits 80 GB of H100 SXM5"),
        ("memory --model 'Llama 3 8B' --dp 8 --batch 8 --gpu-memory 80GiB", "Does not fit"),
        (f"roofline {RING} --network rail:nic=50GB/s,inner=450GB/s", "A step takes at least"),
        ("limits", "The cliff is at 2.8e+28 FLOP, the latency wall at 2.0e+31 FLOP"),
        ("storage --sample DeepCAM --gpus 8 --achieved 1e15 --read-rate 50GB/s", "Training reads 73.1 GB/s of 50 GB/s"),
        ("plan --model 'Llama 3 8B' --gpus 8 --nic '4X NDR'", "Fastest: dp "),
    ],
)
def test_the_first_line_is_the_answer(words: str, starts: str) -> None:
    first = CliRunner().invoke(main, ["training", *shlex.split(words)]).stdout.splitlines()[0]
    assert first.startswith(f"# {starts}"[:80])
    assert len(first) <= 80


def test_models_are_listed_with_what_follows_from_them() -> None:
    rows = {row["model"]: row for row in asked("models")["models"]}
    assert list(rows) == list(models())
    assert rows["Llama 3 8B"]["parameters"] == 8030261248
    assert all(row["causal_flop_per_token"] <= row["flop_per_token"] for row in rows.values())


def test_memory_is_that_of_a_run_or_of_this_machine_where_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = {
        address: GpuFacts(address=address, index=index, name=name)
        for index, (address, name) in enumerate(
            (("0000:1b:00.0", "NVIDIA H200"), ("0000:1c:00.0", "NVIDIA H100 80GB HBM3"))
        )
    }
    monkeypatch.setattr("busbw_analysis.cli.training_machines.gpus_by_address", lambda: gpus)
    assert asked(f"memory {RING}")["gpu_memory_bytes"] == 80e9, "the smallest of all"
    assert asked(f"memory {RING} --gpu-memory 1024GiB")["gpu_memory_bytes"] == 1 << 40
    monkeypatch.setattr("busbw_analysis.cli.training_machines.gpus_by_address", dict)
    assert asked(f"memory {RING}")["gpu_memory_bytes"] is None
    assert asked(f"memory {RING} --from {STORED / 'logs' / 'nccl-tests-2.19.txt'}")["gpu_memory_bytes"] == 80e9
    assert refused(f"memory {RING} --from {STORED / 'schema-7'}").code == "gpu"


def test_memory_says_what_fits() -> None:
    fits = asked(f"memory {RING} --gpu 'H100 SXM5'")
    assert fits["gpu_memory_bytes"] == 80e9
    assert fits["bytes_per_parameter"] == [16, 4 + 12 / 4, 2 + 14 / 4, 16 / 4]
    assert (fits["fits"], fits["would_fit"]) == (True, None)
    too_small = asked("memory --model 'Llama 3 8B' --dp 8 --batch 8 --gpu-memory 80GiB")
    assert too_small["fits"] is False
    assert too_small["would_fit"]["zero"] == 1


@pytest.mark.parametrize(
    ("gpu", "bytes_"), [("V100 SXM2", 16e9), ("B200 SXM", 180e9), ("B300 SXM", 270e9), ("NVIDIA H200", 141e9)]
)
def test_memory_of_a_gpu_is_the_least_that_its_label_has(gpu: str, bytes_: float) -> None:
    assert asked(f"memory {RING} --gpu '{gpu}'")["gpu_memory_bytes"] == bytes_


def test_limits_take_a_network_and_constants(tmp_path: Path) -> None:
    picture = tmp_path / "limits.svg"
    words = f"limits --network rail:nic=100GB/s,inner=900GB/s,delay=5us --days 365 --plot {shlex.quote(str(picture))}"
    document = asked(words)
    constants = document["constants"]
    assert (constants["outer"], constants["inner"]) == (100e9, 900e9)
    assert constants["hop_seconds"] == pytest.approx(5e-6)
    assert constants["days"] == 365
    assert document["limits"][0]["cliff"] > 1e28
    drawn = picture.read_text()
    assert drawn.startswith("<?xml")
    curves = set(re.findall(r"stroke: (#[0-9a-f]{6}); stroke-width: 1.5", drawn))
    assert len(curves) == len(document["limits"]), "no two curves have one colour"
    assert "wall of latency" in drawn


def test_storage_takes_what_a_run_has_measured() -> None:
    found = asked(f"storage --model 'Llama 3 8B' --gpus 2 --achieved 1e12 --from {STORED / 'schema-5'}")
    (written,) = (one.rate for one in judge(load([STORED / "schema-5"])).files if one.op == "storage_write")
    assert found["write_rate"]["bytes_per_second"] == written
    assert (found["read_rate"], found["share_of_read_rate"]) == (None, None), "nothing was read"
    synchronous, asynchronous = found["checkpoints"]
    copied = found["checkpoint_bytes"] / 2 / 55e9
    assert synchronous["stops"] == pytest.approx(found["checkpoint_bytes"] / written + copied)
    assert asynchronous["stops"] == pytest.approx(copied)
    assert synchronous["interval"] is None, "nobody said how often it fails"
    given = asked(
        f"storage --model 'Llama 3 8B' --gpus 2 --achieved 1e12 --from {STORED / 'schema-5'} --write-rate 9GB/s"
    )
    assert given["write_rate"]["bytes_per_second"] == 9e9


def test_storage_reads_and_saves() -> None:
    words = (
        "storage --model 'Llama 3 405B' --gpus 16384 --achieved 400e12 --read-rate 1TB/s --write-rate 100GB/s --mtbf 3"
    )
    document = asked(words)
    written = document["checkpoint_bytes"] / 100e9
    copied = document["checkpoint_bytes"] / 16384 / 55e9
    assert [one["stops"] for one in document["checkpoints"]] == pytest.approx([written + copied, copied])
    assert document["share_of_read_rate"] < 1e-3
    assert asked("storage --sample DeepCAM --gpus 1 --achieved 1e15")["checkpoint_bytes"] is None


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("volumes --model 'Llama 9'", "model"),
        ("volumes", "model"),
        ("volumes --layers 12", "model"),
        ("volumes --layers 12 --hidden 768 --heads 5", "model"),
        ("volumes --layers 12 --hidden -1", "row"),
        ("volumes --layers 12 --hidden 768 --experts 8", "row"),
        ("volumes --model 'Llama 3 8B' --pp 3", "divides"),
        ("volumes --model 'Llama 3 8B' --dp 2 --ep 2", "no-experts"),
        ("volumes --model 'Llama 3 8B' --zero hsdp", "layout"),
        ("volumes --model 'Llama 3 8B' --zero 3 --shard 2 --dp 2", "layout"),
        ("volumes --model 'Llama 3 8B' --pp 2 --stage 2", "layout"),
        ("volumes --model 'MLP 1024' --cp 2 --seq 2", "no-attention"),
        ("memory --model 'Llama 3 405B' --dp 8 --batch 8 --gpu 'H100 SXM5'", "never-fits"),
        ("memory --model 'Llama 3 8B' --gpu H9000", "gpu"),
        ("memory --model 'Llama 3 8B' --gpu-memory 80GB", "usage"),
        ("roofline --model 'Llama 3 8B' --gpu 'V100 SXM2'", "gpu"),
        ("limits --days 0", "limits"),
        ("limits --network star:rate=1GB/s", "usage"),
        ("limits --plot nowhere/limits.svg", "usage"),
        ("storage --gpus 1 --achieved 1e12", "storage"),
        ("storage --gpus 1 --achieved 1e12 --sample DeepCAM --mtbf 3", "storage"),
        ("storage --gpus 1 --achieved 1e12 --model 'Llama 3 8B' --mtbf 3", "storage"),
        ("storage --gpus 1 --achieved -1 --sample DeepCAM", "storage"),
        (f"storage --gpus 1 --achieved 1e12 --model 'Llama 3 8B' --from {STORED / 'schema-7'}", "storage"),
        ("storage --gpus 1 --achieved 1e12 --model 'Llama 3 8B' --write-rate 1GB/s --mtbf -1", "storage"),
        ("storage --gpus 1 --achieved 1e12 --sample DeepCAM --write-rate 1GB/s", "storage"),
    ],
)
def test_what_cannot_be_is_refused_by_its_code(words: str, code: str) -> None:
    error = refused(words)
    assert error.code == code
    assert "\n" not in str(error)


@pytest.mark.parametrize(("gpu", "known"), [("H100", "H100 SXM5, H100 PCIe, H100 NVL"), ("h200sxm", "H200 SXM?")])
def test_part_of_the_name_of_a_gpu_is_answered_with_those_that_have_it(gpu: str, known: str) -> None:
    assert str(refused(f"memory --model 'Llama 3 8B' --gpu {gpu}")).endswith(known)


def test_a_sequence_beyond_all_reason_is_refused_before_anything_is_counted() -> None:
    words = f"storage --model 'Llama 3 70B' --gpus 1 --achieved 1 --read-rate 1TB/s --seq {'9' * 400}"
    assert CliRunner().invoke(main, ["training", *shlex.split(words)]).exit_code == 2


def test_loading_the_commands_loads_no_picture() -> None:
    with patch.dict("sys.modules", {"matplotlib": None}):
        assert CliRunner().invoke(main, ["training", "--help"]).exit_code == 0
    assert isinstance(training, click.Group)


# --- networks and rooflines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ("flat:rate=10GB/s,delay=2s", Rates(10e9, 10e9, 2, 2, 8)),
        ("shared:rate=10GB/s,memory=32GB/s", Rates(2e9, 2e9, 0, 0, 16)),
        ("rail:nic=50GB/s,inner=450GB/s,delay=5s,inner_delay=1s", Rates(450e9, 50e9, 1, 5, 8)),
        ("two-level:nic=50GB/s,inner=450GB/s", Rates(450e9, 50e9 / 8, 0, 0, 8)),
        ("fat-tree:nic=40GB/s,inner=450GB/s,leaf=2,oversubscription=2", Rates(450e9, 2.5e9, 0, 0, 8)),
    ],
)
def test_a_gpu_has_its_share_of_what_is_described(network: str, expected: Rates) -> None:
    assert rates_of(network, 16, 8) == expected


@pytest.mark.parametrize(("rate", "tokens"), [(450e9, 2199), (50e9, 19788), (400e9, 2473.5)])
def test_tokens_at_which_data_parallelism_is_hidden(rate: float, tokens: float) -> None:
    """H100 in bfloat16: on NVLink, on one card of 400 Gb/s, and on eight with a sum in the node first."""
    assert least_tokens(989.4e12, rate, 1 << 40) == pytest.approx(tokens, abs=0.5)


def test_at_these_tokens_the_wire_takes_as_long_as_the_backward_pass() -> None:
    document = asked("roofline --model 'MLP 1024' --dp 4 --gpu 'A100 SXM4 80 GB' --network flat:rate=10GB/s")
    flop, wire, weights = document["flop_per_second"], 10e9, document["parameters"]
    sent = 2 * 3 / 4 * weights * 4
    assert 4 * weights * document["least_tokens"] / flop == pytest.approx(sent / wire)


@pytest.mark.parametrize(("degrees", "cards"), [("--dp 64 --batch 64", 8), ("--dp 32 --tp 2 --batch 32", 4)])
def test_ranks_of_a_node_that_reduce_first_have_the_cards_of_all(degrees: str, cards: int) -> None:
    words = f"roofline --model 'Llama 3 8B' {degrees} --network rail:inner=450GB/s,nic="
    one = asked(f"{words}50GB/s")
    assert one["least_tokens_by_node"] == pytest.approx(one["least_tokens"] / cards)
    assert asked(f"{words}400GB/s")["least_tokens_by_node"] == pytest.approx(one["least_tokens"] / 9), "the node's rate"
    within = asked("roofline --model 'Llama 3 8B' --dp 8 --batch 8 --network rail:inner=450GB/s,nic=50GB/s")
    assert within["least_tokens_by_node"] is None


def test_rates_are_those_of_messages_that_a_run_has_measured() -> None:
    sample = Path(__file__).parents[2] / "results" / "samples" / "vm" / "20261121T081628.085Z-4ad500"
    message = Questions(read_groups([read(sample)])).messages("all_reduce", far=False)
    assert not isinstance(message, Unavailable)
    rates = asked(f"roofline --model 'Llama 3 8B' --dp 4 --batch 4 --from {sample}")["rates"]
    assert rates["inner"] == rates["outer"] == 1 / message.beta_seconds_per_byte, "it has one host"
    assert rates["inner_delay"] == message.alpha_seconds
    constants = asked(f"limits --from {sample}")["constants"]
    assert (constants["outer"], constants["per_host"]) == (rates["outer"], rates["per_host"])
    assert refused(f"limits --from {sample} --network flat:rate=1GB/s").code == "network"
    assert refused(f"limits --from {STORED / 'schema-5'}").code == "no-price"


def test_products_of_a_step_are_counted_matrix_by_matrix() -> None:
    """The plain network: batch 128 through 8 square matrices; each product reads its matrix, its input, writes one."""
    found = {one.name: one for one in phases(Step(models()["MLP 1024"], Layout(), 128, 1), causal=False)}
    forward = found["products forward"]
    assert forward.flop == 8 * 2 * 128 * 1024 * 1024
    assert forward.memory_bytes == 4 * 8 * (1024 * 1024 + 2 * 128 * 1024)
    assert found["products backward"].flop == 2 * forward.flop
    assert "attention forward" not in found


def test_the_phases_of_all_ranks_are_the_flop_of_the_batch() -> None:
    model = models()["Llama 3 8B"]
    document = asked(f"roofline {RING} --seq 4096 --network rail:nic=50GB/s,inner=450GB/s")
    found = {row["name"]: row for row in document["phases"]}
    compute = sum(row["flop"] for name, row in found.items() if name.startswith(("products", "attention")))
    tokens = 16 * 4096
    layers = 6 * (model.layers * 218103808) * tokens / 32
    attention = 3 * 2 * (4097 / 2) * 32 * 256 * model.layers * tokens / 32
    assert compute == pytest.approx(2 * (layers + attention) * 16 / 32, rel=1e-3), "a stage has half of the layers"
    assert found["step and TP"]["flop"] == pytest.approx(compute)
    steps = {name[-2:]: row for name, row in found.items() if row["dimension"]}
    wires = {name: row["network_bytes"] / row["seconds"]["network"] for name, row in steps.items()}
    assert wires == pytest.approx({"TP": 450e9, "CP": 450e9, "DP": 50e9, "PP": 50e9}), "8 GPUs of a node: tp 4 · cp 2"
