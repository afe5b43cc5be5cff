"""``busbw training``: what it prints as JSON, what it refuses, rates of a described network, rooflines of steps."""

from __future__ import annotations

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from testing.synthetic import World, case, synthetic_run, write_synthetic

from busbw.cli.main import main
from busbw.errors import BusbwError
from busbw.runs.facts import GpuFacts
from busbw.runs.store import read
from busbw.workloads import model_rows
from busbw.workloads.model_rows import models, parameters
from busbw_analysis.assembly.judge import judge
from busbw_analysis.cli.training import CONSTANTS, training
from busbw_analysis.cli.training_options import LAYOUT_KEYS, MODEL_KEYS, PLAN_KEYS, layout_settings, step_of
from busbw_analysis.data.load import load
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.networks import parse_network
from busbw_analysis.node.slice import Node
from busbw_analysis.predict import Questions, read_results
from busbw_analysis.training.kernels import Speed
from busbw_analysis.training.layout import DEFAULT_SETTINGS, Layout, Step, layout_text
from busbw_analysis.training.limits import Constants
from busbw_analysis.training.memory import Room, memory, memory_headline
from busbw_analysis.training.prices import Described, Rates, rates_of
from busbw_analysis.training.roofline import least_tokens, phases, wires_of_step
from busbw_analysis.training.step_time import Machine, step_time

STORED = Path(__file__).parents[1] / "data"
RING = "--model 'Llama 3 8B' --layout dp=2,tp=4,pp=2,cp=2,micro-batch=2 --batch 16"


def asked(words: str, status: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["training", *shlex.split(words), "--json"])
    assert result.exit_code == status, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def refused(words: str) -> BusbwError:
    with pytest.raises(BusbwError) as error:
        training.main(shlex.split(words), standalone_mode=False)
    return error.value


def test_volumes_are_rows_and_their_sums() -> None:
    document = asked(f"volumes {RING} --explain")
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
    (row,) = asked("models --model layers=12,hidden=768")["models"]
    assert row["parameters_in_products"] == 12 * 12 * 768**2
    (row,) = asked("models --model layers=12,hidden=768,heads=12,vocabulary=50257")["models"]
    assert row["parameters"] == 12 * (12 * 768**2 + 2 * 768) + 2 * 50257 * 768 + 768
    mixtral = "layers=32,hidden=4096,kv-heads=8,experts=8,top-k=2,expert-ffn=14336,gated=yes"
    (row,) = asked(f"models --model {mixtral},vocabulary=32000")["models"]
    assert row["parameters"] == parameters(models()["Mixtral 8x7B"])
    (half,) = asked("models --model 'Llama 3 8B,layers=16'")["models"]
    whole = models()["Llama 3 8B"]
    assert half["parameters"] == parameters(msgspec.structs.replace(whole, layers=16))
    for words in ("volumes --layout dp=2", "memory", "roofline", "plan --gpus 4 --network '4X NDR'"):
        assert asked(f"{words} --model layers=2,hidden=256 --seq 64 --batch 8")["model"] == "own model"
    reading = asked("storage --model layers=2,hidden=256 --gpus 1 --achieved 1e12")["reading"]
    assert reading["what"] == "tokens of own model"


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
    monkeypatch.setattr("busbw_analysis.training.machine.gpus_by_address", lambda: gpus)
    assert asked(f"memory {RING}")["gpu_memory"]["bytes"] == 81559 << 20, "the smallest of all"
    assert asked(f"memory {RING} --gpu-memory 1024GiB")["gpu_memory"]["bytes"] == 1 << 40
    monkeypatch.setattr("busbw_analysis.training.machine.gpus_by_address", dict)
    assert asked(f"memory {RING}")["gpu_memory"] is None
    of_run = asked(f"memory {RING} --from {STORED / 'logs' / 'nccl-tests-2.19.txt'}")
    assert of_run["gpu_memory"]["bytes"] == 81559 << 20
    assert refused(f"memory {RING} --from {STORED / 'runs/training'}").code == "gpu"


def test_memory_says_what_fits() -> None:
    fits = asked(f"memory {RING} --gpu 'H100 SXM5'")
    assert fits["gpu_memory"]["bytes"] == 81559 << 20
    assert fits["bytes_per_parameter"] == [18, 6 + 12 / 4, 2 + 16 / 4, 18 / 4]
    assert (fits["fits"], fits["would_fit"]) == (True, None)
    too_small = asked("memory --model 'Llama 3 8B' --layout dp=8,gradients=bfloat16 --batch 8 --gpu-memory 80GiB", 1)
    assert too_small["fits"] is False
    assert (too_small["would_fit"]["zero"], too_small["would_fit"]["recompute"]) == (2, "none")
    never = asked("memory --model 'Llama 3 405B' --layout dp=8 --batch 8 --gpu 'H100 SXM5'", 1)
    assert (never["fits"], never["would_fit"]) == (False, None), "one status for one answer"


@pytest.mark.parametrize(
    ("of_room", "said"),
    [(0.9999, "99.99 %"), (1.0, "100 %"), (1.0033, "100.3 %"), (1.25, "125 %"), (17.9, "17.9 times")],
)
def test_a_share_of_memory_is_100_percent_only_if_it_fits_exactly(of_room: float, said: str) -> None:
    step = Step(models()["Llama 3 8B"], Layout(dp=8), 8, 8192)
    needed = memory(step)
    room = Room(needed.total / of_room / 0.95, "a GPU", "as given")
    assert f"), {said} " in memory_headline(step, needed, room, step if of_room > 1 else None, None)


@pytest.mark.parametrize(
    ("gpu", "mib"),
    [
        ("P100 SXM2", 16e9 / (1 << 20)),  # no driver is known to report it: the datasheet's
        *[("V100 SXM2", 16160), ("A100 SXM4 80 GB", 81920), ("H100 SXM5", 81559), ("NVIDIA H200", 143771)],
        *[("B200 SXM", 183359), ("GB200", 189471), ("B300 SXM", 275040), ("GB300", 284208), ("MI300X", 196592)],
    ],
)
def test_memory_of_a_gpu_is_what_its_driver_reports(gpu: str, mib: float) -> None:
    small = gpu in {"P100 SXM2", "V100 SXM2"}
    assert asked(f"memory {RING} --gpu '{gpu}'", int(small))["gpu_memory"]["bytes"] == mib * (1 << 20)


def test_a_gpu_of_ones_own_without_memory_is_refused_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A label such as 1 TB is for people; its numbers are not read."""
    row = """[[gpu]]
name = "Fast 9000"
names = ["Fast 9000 PCIe"]
memory = "HBM9, 1 TB"
memory_bytes_per_second = 20e12
flops = { bfloat16 = 1e15 }
source = "https://example.org/fast"
looked_up = "2026-11"
"""
    (tmp_path / "peaks.toml").write_text(row)
    monkeypatch.setenv("BUSBW_PEAKS", str(tmp_path / "peaks.toml"))
    assert refused(f"memory {RING} --gpu 'Fast 9000'").code == "gpu"
    (tmp_path / "peaks.toml").write_text(row + "memory_bytes = 1e12\n")
    assert asked(f"memory {RING} --gpu 'Fast 9000'")["gpu_memory"]["bytes"] == 1e12


def test_the_interleaved_layout_of_llama_3_fills_its_gpus() -> None:
    """8192 H100 (arXiv:2407.21783, table 4), one layer a part, none in the first and last, gradients reduced in every
    micro-batch: the tensors that Megatron keeps need all of 81559 MiB, without outputs of norms and gates 70 %.
    """
    degrees = "--layout dp=64,tp=8,pp=16,vpp=8,uneven,sequence-parallel,zero=2,sync=every"
    found = asked(f"memory --model 'Llama 3 405B' {degrees} --batch 2048 --gpu 'H100 SXM5'", 1)
    assert found["micro_batch"] == 1
    assert found["memory"]["total"] == pytest.approx(81559 << 20, rel=0.011)
    assert not found["fits"], "libraries need a part of it"
    assert asked(f"memory --model 'Llama 3 405B' {degrees},recompute=selective --batch 2048 --gpu 'H100 SXM5'")["fits"]


@pytest.mark.parametrize(
    "command", ["memory", "volumes", "roofline", "plan --gpus 8192 --network '4X NDR' --gpu 'B200 SXM'"]
)
def test_each_command_reads_the_same_layout(command: str) -> None:
    """As reports write it; a key alone means yes."""
    layout = "fp8,tp=8,pp=16,dp=64,cp=1,vpp=2,zero=1,recompute=selective,uneven"
    answer = asked(f"{command} --model 'Llama 3 405B' --batch 2048 --layout {layout}")
    read = answer["layouts"][0]["layout"] if "layouts" in answer else answer["layout"]
    assert [read[key] for key in ("tp", "pp", "dp", "cp", "vpp", "zero", "recompute", "fp8", "uneven")] == [
        *(8, 16, 64, 1, 2, 1, "selective", True, True)
    ]


def test_defaults_are_those_of_the_frameworks_and_are_named() -> None:
    found = asked("memory --model 'Llama 3 8B' --layout dp=8,zero=3 --gpu 'H100 SXM5'")
    assert (found["micro_batch"], found["layout"]["micro_batches"], found["gradients"]) == (1, 512 // 8, "float32")
    assert set(found["assumed"]) == {"micro_batch", "gradients"}
    assert found["fits"]
    given = asked("memory --model 'Llama 3 8B' --layout dp=8,micro-batch=2,gradients=bfloat16")
    assert (given["micro_batch"], given["gradients"], given["assumed"]) == (2, "bfloat16", {})
    assert asked("memory --model 'Llama 3 8B,dtype=float64'")["gradients"] == "float64", "never narrower than weights"
    for layout in ("dp=4 --batch 10", "dp=4,micro-batch=3 --batch 16"):
        assert refused(f"memory --model 'Llama 3 8B' --layout {layout}").code == "divides"
    assert "gradients" in asked("plan --model 'Llama 3 8B' --gpus 8 --network '4X NDR'")["assumed"]


def test_every_setting_of_a_layout_and_the_limits_is_a_key() -> None:
    """Only measured steps keep inputs or split by columns alone; --batch and micro-batch give the micro-batches."""
    derived = {"micro_batches", "keep_inputs", "columns"}
    assert set(LAYOUT_KEYS) == {*Layout.__slots__} - derived | {"micro_batch", "gradients", "imbalance"}
    assert set(PLAN_KEYS) == set(LAYOUT_KEYS), "what a command prints, the others take"
    assert LAYOUT_KEYS.keys() | {"keep_inputs", "columns"} == DEFAULT_SETTINGS.keys()
    assert set(MODEL_KEYS) < {*model_rows.Model.__struct_fields__} - {"name", "sequence", "batch"}
    assert set(CONSTANTS) == {*Constants.__slots__}


@given(
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2]),
    zero=st.integers(0, 3),
    micro_batch=st.sampled_from([1, 2]),
    words=st.fixed_dictionaries(
        {"context": st.sampled_from(["ring", "ulysses"]), "recompute": st.sampled_from(["none", "full"])},
        optional={"sync": st.just("every"), "reshard": st.just("no"), "gradients": st.just("bfloat16")},
    ),
    shard=st.booleans(),
)
def test_a_layout_is_printed_as_the_option_takes_it(
    tp: int, pp: int, zero: int, micro_batch: int, words: dict[str, str], *, shard: bool
) -> None:
    numbers = {"dp": 4, "tp": tp, "pp": pp, "zero": zero, "micro_batch": micro_batch}
    numbers |= {"shard": 2} if shard and zero == 3 else {}
    switches = {"sequence_parallel": "yes"} if tp > 1 else {}
    given_text = ",".join(f"{name}={value}" for name, value in {**numbers, **words, **switches}.items())
    step, _ = step_of(models()["Llama 3 8B"], layout_settings(given_text, LAYOUT_KEYS), 16, 64)
    again, _ = step_of(models()["Llama 3 8B"], layout_settings(layout_text(step), LAYOUT_KEYS), 16, 64)
    assert again == step


MOE = "plan --model 'Mixtral 8x7B' --gpus 64 --network '4X NDR' --layout"


@pytest.mark.parametrize(
    "settings",
    [
        "sync=every",
        "zero=2,sync=last",
        "shard=4",
        "reshard=no,zero=3",
        "scatter-gather,sequence-parallel=no",
        "imbalance=1.5,ep=4",
        "uneven=no",
        "recompute=none",
        "recompute=full,recompute-layers=1",
        "hide-experts",
        "zero-bubble",
        "gradients=bfloat16",
    ],
)
def test_a_plan_takes_every_setting_and_prints_what_others_take(settings: str) -> None:
    found = asked(f"{MOE} {settings} --top 2")["layouts"]
    assert found
    given = layout_settings(settings, PLAN_KEYS)
    for planned in found:
        step, _ = step_of(models()["Mixtral 8x7B"], layout_settings(planned["layout_option"], LAYOUT_KEYS), 1024, 4096)
        assert step.layout.gpus == 64
        for name, value in given.items():
            assert getattr(step if name in {"gradients", "imbalance"} else step.layout, name) == value
    assert asked(f"{MOE} '{planned['layout_option']}' --top 1")["layouts"][0]["seconds"] <= planned["seconds"]


def test_settings_that_no_layout_can_have_are_named() -> None:
    assert refused(f"{MOE} zero-bubble,pp=1").code == "layout"


def test_an_imbalance_that_the_asked_layouts_cannot_have_is_refused() -> None:
    assert asked(f"{MOE} imbalance=2 --top 1")["layouts"], "with experts in parallel"
    assert refused(f"{MOE} imbalance=2,ep=1").code == "layout"
    assert refused("plan --model 'Llama 3 8B' --gpus 8 --network '4X NDR' --layout imbalance=2").code == "layout"


def test_a_layout_that_fits_is_printed_as_an_option() -> None:
    words = "memory --model 'Llama 3 8B' --batch 8 --gpu-memory 80GiB"
    too_small = asked(f"{words} --layout dp=8,gradients=bfloat16", 1)
    (option,) = re.findall(r"--layout \S+", too_small["headline"])
    fits = asked(f"{words} {option}")
    assert fits["fits"]
    assert {**too_small["would_fit"]} == {name: fits["layout"][name] for name in too_small["would_fit"]}


def test_a_layout_and_a_model_are_files_too(tmp_path: Path) -> None:
    layout = tmp_path / "layout.toml"
    layout.write_text('tp = 4\nzero = 1\nsequence-parallel = true\nrecompute = "full"\n')
    of_file = asked(f"memory --model 'Llama 3 8B' --layout {layout},dp=2")
    assert of_file == asked(
        "memory --model 'Llama 3 8B' --layout tp=4,zero=1,sequence-parallel=yes,recompute=full,dp=2"
    )
    own = tmp_path / "own.toml"
    rows = (Path(model_rows.__file__).parent / "models/dense.toml").read_text()
    own.write_text(rows)
    assert asked(f"memory --model '{own}:Llama 3 8B,layers=16'")["parameters"] == parameters(
        msgspec.structs.replace(models()["Llama 3 8B"], layers=16)
    )
    assert [row["model"] for row in asked(f"models --model {own}")["models"]] == list(models(own))
    assert refused(f"memory --model {own}").code == "model", "it has several"
    (tmp_path / "none.toml").write_text("")
    assert asked(f"models --model {tmp_path / 'none.toml'}")["models"] == []
    assert refused(f"memory --model {own}:toy").code == "model"
    layout.write_text("[layout]\ntp = 4\n")
    assert refused(f"memory --model 'Llama 3 8B' --layout {layout}").code == "layout"


def test_a_card_is_a_network_of_a_roofline_too() -> None:
    words = "roofline --model 'Llama 3 8B' --layout dp=64 --batch 64 --network"
    named = asked(f"{words} '4X NDR'")["rates"]
    described = "rail:nic=4X NDR,inner=H100 SXM5,delay=15us,inner_delay=15us"
    assert named == pytest.approx(asked(f"{words} '{described}'")["rates"])


def test_limits_take_a_card() -> None:
    rates = {
        name: asked(f"limits {words}")["constants"] for name, words in {"own": "", "card": "--network '4X NDR'"}.items()
    }
    assert rates["card"]["outer"] < rates["own"]["outer"] == 50e9
    assert rates["card"]["reduce_seconds"] == rates["own"]["reduce_seconds"], "a card has a rate alone"


def test_limits_take_a_network_and_constants(tmp_path: Path) -> None:
    picture = tmp_path / "limits.svg"
    words = "limits --network rail:nic=100GB/s,inner=900GB/s,delay=5us --constants days=365"
    document = asked(f"{words} --plot {shlex.quote(str(picture))}")
    constants = document["constants"]
    assert (constants["outer"], constants["inner"]) == (100e9, 900e9)
    assert constants["hop_seconds"] == pytest.approx(5e-6)
    assert constants["days"] == 365
    assert document["limits"][0]["cliff"] > 1e28
    drawn = picture.read_text()
    assert drawn.startswith("<?xml")
    curves = set(re.findall(r"stroke: (#[0-9a-f]{6}); stroke-width: 1.5", drawn))
    assert len(curves) == len(document["limits"]), "no two curves have one colour"


def test_storage_takes_what_a_run_has_measured() -> None:
    found = asked(f"storage --model 'Llama 3 8B' --gpus 2 --achieved 1e12 --from {STORED / 'runs/settings'}")
    files = judge(load([STORED / "runs/settings"])).of(Node).files
    (written,) = (result.rate for result in files if result.op == "storage_write")
    assert found["write_rate"]["bytes_per_second"] == written
    assert (found["read_rate"], found["share_of_read_rate"]) == (None, None), "nothing was read"
    synchronous, asynchronous = found["checkpoints"]
    copied = found["checkpoint_bytes"] / 2 / 55e9
    assert synchronous["stops"] == pytest.approx(found["checkpoint_bytes"] / written + copied)
    assert asynchronous["stops"] == pytest.approx(copied)
    assert synchronous["interval"] is None, "nobody said how often it fails"
    given = asked(
        f"storage --model 'Llama 3 8B' --gpus 2 --achieved 1e12 --from {STORED / 'runs/settings'} --write-rate 9GB/s"
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


def test_the_command_that_measures_a_missing_matmul_is_one_that_lets_the_plan_go_on(tmp_path: Path) -> None:
    sizes, ops = [1 << power for power in range(10, 25, 2)], ("all_reduce", "all_gather", "send_recv", "ping_pong")
    calls = [case(op, size, 2 if op == "ping_pong" else 4) for op in ops for size in sizes]
    first = write_synthetic(tmp_path, synthetic_run(calls, World(), seed=1))
    words = f"plan --model 'Llama 3 8B' --gpus 4 --batch 4 --gpu-memory 2000GiB --from {shlex.quote(str(first))}"
    error = refused(words)
    assert error.code == "compute"
    (command,) = re.findall(r"\(busbw (run [^)]*)\)", str(error))
    assert CliRunner().invoke(main, [*shlex.split(command), "--dry-run"]).exit_code == 0
    options = dict(pairwise(shlex.split(command)))
    assert (options["--op"], options["--dtype"], options["--ranks"]) == ("matmul", "bfloat16", "4")
    product = msgspec.structs.replace(
        case("matmul", 1 << 20, 4), dtype=options["--dtype"], backend=options["--backend"]
    )
    second = write_synthetic(tmp_path, synthetic_run([product], World(), seed=2))
    assert asked(f"{words} --from {shlex.quote(str(second))}")["layouts"]


# --- networks and rooflines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ("flat:rate=10GB/s,delay=2s", Rates(10e9, 10e9, 2, 2, 8)),
        ("shared:rate=10GB/s,memory=32GB/s", Rates(2e9, 2e9, 0, 0, 16)),
        ("rail:nic=50GB/s,inner=450GB/s,delay=5s,inner_delay=1s", Rates(450e9, 50e9, 1, 5, 8)),
        ("rail:nic=50GB/s,inner=450GB/s,sharing=2", Rates(450e9, 50e9, 0, 0, 8, sharing=2)),
        ("two-level:nic=50GB/s,inner=450GB/s", Rates(450e9, 50e9 / 8, 0, 0, 8)),
        ("fat-tree:nic=40GB/s,inner=450GB/s,leaf=2,oversubscription=2", Rates(450e9, 2.5e9, 0, 0, 8)),
    ],
)
def test_a_gpu_has_its_share_of_what_is_described(network: str, expected: Rates) -> None:
    assert rates_of(parse_network(network), 16, 8) == expected


H100 = "--gpu 'H100 SXM5' --network rail:nic=50GB/s,inner=450GB/s"
PEAK = 989e12
PLAIN = msgspec.structs.replace(models()["MLP 1024"], dtype="bfloat16")


@pytest.mark.parametrize(
    ("rates", "tokens"),
    [
        (Rates(450e9, 50e9, 0, 0, 1 << 20), 2197.78),
        (Rates(450e9, 50e9, 0, 0, 1), 19780),
        (Rates(450e9, 50e9, 0, 0, 8), 2472.5),
    ],
)
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_tokens_at_which_data_parallelism_is_hidden(rates: Rates, tokens: float, zero: int) -> None:
    """H100 in bfloat16, (n−1)/n π/W: on NVLink, on one card of 400 Gb/s, and on eight with a sum in the node first."""
    ranks = 1 << 18
    step = Step(PLAIN, Layout(dp=ranks, zero=zero), ranks, 1)
    assert least_tokens(step, PEAK, rates) == pytest.approx(tokens, rel=1e-4)


def test_at_these_tokens_the_wire_takes_as_long_as_the_backward_pass() -> None:
    document = asked("roofline --model 'MLP 1024' --layout dp=4 --gpu 'A100 SXM4 80 GB' --network flat:rate=10GB/s")
    flop, wire, weights = document["flop_per_second"], 10e9, document["parameters"]
    sent = 2 * 3 / 4 * weights * 4
    assert 4 * weights * document["least_tokens"] / flop == pytest.approx(sent / wire)


def test_experts_need_more_tokens_because_the_gradients_of_all_are_sent() -> None:
    """Mixtral, one GPU a node: π/W (n−1)/n = 19,761 of a dense model, times all parameters over those in products."""
    mixtral = models()["Mixtral 8x7B"]
    found = asked(
        f"roofline --model 'Mixtral 8x7B' --layout dp=1024,gradients=bfloat16 --batch 1024 --ranks-per-host 1 {H100}"
    )
    more = parameters(mixtral) / model_rows.products(mixtral)
    assert more == pytest.approx(46.70 / 12.75, rel=1e-3)
    assert found["least_tokens"] == pytest.approx(1023 / 1024 * PEAK / 50e9 * more)
    assert found["least_tokens"] == pytest.approx(72400, rel=1e-3)


def test_gradients_that_are_reduced_once_hide_behind_the_last_micro_batch_alone() -> None:
    layout = "dp=64,gradients=bfloat16"
    once, of_many = (
        asked(f"roofline --model 'Llama 3 8B' --layout {layout},micro-batch={sequences} --batch 640 {H100}")
        for sequences in (10, 1)
    )
    assert once["least_tokens"] == of_many["least_tokens"]
    assert once["headline"].endswith(f" {8192 * 10}")
    assert of_many["headline"].endswith(f" {8192}")


# --- the least time of a step --------------------------------------------------------------------------------------


def wires(words: str, dimension: str) -> tuple[float, float]:
    (row,) = (row for row in asked(f"roofline {words}")["phases"] if row["dimension"] == dimension)
    return row["seconds"]["inside"], row["seconds"]["between"]


LLAMA = "--model 'Llama 3 8B' --batch 64 --layout dp=64,gradients=bfloat16"
WEIGHTS = 2 * 8030261248


def test_sharded_weights_use_all_cards_of_a_node() -> None:
    """FSDP of Llama 3 8B on 64 H100: 3 Ψ w, 7/8 inside at 450 GB/s, 7/8 between nodes over eight cards of 50 GB/s."""
    found = asked(f"roofline {LLAMA},zero=3 {H100}")
    assert wires(f"{LLAMA},zero=3 {H100}", "dp") == pytest.approx(
        (3 * 7 / 8 * WEIGHTS / 450e9, 3 * 7 / 8 * WEIGHTS / (8 * 50e9)), rel=1e-6
    )
    longest = max(second for row in found["phases"] for second in row["seconds"].values())
    assert longest == pytest.approx(0.426, abs=1e-3), "one card for all of it would take 949 ms"


def test_hybrid_shards_stay_inside_a_node() -> None:
    """HSDP with shards of 8: 3 · 7/8 Ψ w inside, 94 ms; 2 · 7/8 of a shard Ψ w/8 between nodes, 70 ms."""
    expected = 3 * 7 / 8 * WEIGHTS / 450e9, 2 * 7 / 8 * WEIGHTS / 8 / 50e9
    assert expected == pytest.approx((0.0937, 0.0703), rel=1e-3)
    assert wires(f"{LLAMA},zero=3,shard=8 {H100}", "dp") == pytest.approx(expected, rel=1e-6)


def test_experts_of_deepseek_v3_are_sent_to_four_nodes_and_forwarded_inside() -> None:
    """Of 4 layers a stage: 4 copies between nodes at 50 GB/s, 8 inside at 200 (arXiv:2412.19437, section 3.2)."""
    degrees = "--model 'DeepSeek-V3' --layout pp=16,dp=128,ep=64,uneven=yes,zero=1 --batch 15360"
    inside, between = wires(f"{degrees} --network rail:nic=50GB/s,inner=200GB/s", "ep")
    tokens = 4 * 4 * 120 * 4096 * 7168 * 2 * 7 / 8
    assert (inside, between) == pytest.approx((8 * tokens / 200e9, 4 * tokens / 50e9))
    assert (inside, between) == pytest.approx((3.9, 7.9), abs=0.06)


@given(
    degrees=st.sampled_from(
        [
            *[{"dp": 8}, {"dp": 64}, {"dp": 64, "zero": 3}, {"dp": 64, "zero": 3, "shard": 8}, {"dp": 16, "tp": 4}],
            *[{"dp": 32, "tp": 2, "zero": 1}, {"dp": 4, "tp": 16}, {"dp": 8, "cp": 8}],
            {"dp": 8, "cp": 8, "context": "ulysses"},
        ]
    ),
    micro_batches=st.sampled_from([1, 2, 8]),
    inner=st.floats(1e9, 1e12),
    outer=st.floats(1e8, 1e12),
    per_host=st.sampled_from([1, 4, 8, 72]),
)
def test_no_step_is_planned_below_the_roofline(
    degrees: dict[str, Any], micro_batches: int, inner: float, outer: float, per_host: int
) -> None:
    layout = Layout(micro_batches=micro_batches, **degrees)
    step = Step(msgspec.structs.replace(models()["Llama 3 8B"], heads=64, kv_heads=64), layout, 8 * layout.dp, 8192)
    rates = Rates(inner, outer, 0.0, 0.0, per_host)
    planned = step_time(step, Machine(Speed(PEAK), per_host, Described(rates), 1.0, causal=True)).total
    found = wires_of_step(step, rates)
    for phase in phases(step, causal=True):
        if phase.dimension is not None:
            least = max(phase.seconds(PEAK, 1.0, found[phase.dimension]).values())
            assert least <= planned * (1 + 1e-9)


def test_rates_are_those_of_messages_that_a_run_has_measured() -> None:
    sample = Path(__file__).parents[2] / "results" / "samples" / "vm" / "20261121T081628.085Z-4ad500"
    message = Questions(read_results([read(sample)])).messages("all_reduce", far=False)
    assert not isinstance(message, Unavailable)
    rates = asked(f"roofline --model 'Llama 3 8B' --layout dp=4 --batch 4 --from {sample}")["rates"]
    assert rates["inner"] == rates["outer"] == 1 / message.beta_seconds_per_byte, "it has one host"
    assert rates["inner_delay"] == message.alpha_seconds
    constants = asked(f"limits --from {sample}")["constants"]
    assert (constants["outer"], constants["per_host"]) == (rates["outer"], rates["per_host"])
    assert refused(f"limits --from {sample} --network flat:rate=1GB/s").code == "network"
    assert refused(f"limits --from {STORED / 'runs/settings'}").code == "no-price"


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
    assert found["step over TP"]["flop"] == pytest.approx(compute)
    steps = {name[-2:]: row["seconds"] for name, row in found.items() if row["dimension"]}
    links = {name: {link for link in ("inside", "between") if seconds[link]} for name, seconds in steps.items()}
    assert links == {"TP": {"inside"}, "CP": {"inside"}, "DP": {"inside", "between"}, "PP": {"between"}}, "8 a node"
