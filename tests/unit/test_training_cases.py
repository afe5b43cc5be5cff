"""What is trained: models at their scale, how ranks share them, and what is refused before anything starts."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from testing.narrow import require

from busbw.backends.pytorch.training import WORKLOADS, step
from busbw.backends.pytorch.training.data_parallel import AllReduced
from busbw.backends.pytorch.training.network import Network
from busbw.backends.pytorch.training.observer import Observer, Waits
from busbw.errors import UsageError
from busbw.ops import TRAINED
from busbw.ops.training import EXCHANGE, Workload, workload_in_words
from busbw.runs import cases
from busbw.runs.plan import measured_plan
from busbw.runs.records import Case
from busbw.workloads import model_rows
from busbw.workloads.shapes import DROPPED, StepShape, model_name, routed

MODELS = model_rows.models()


def case(op: str, model: str = "MLP 1024", ranks: int = 4, **sweep: Any) -> Case:  # noqa: ANN401 - keys of a sweep
    plan = measured_plan({"sweep": [{"ops": [op], "models": [model], **sweep}]})
    return cases.expand(plan, ranks, 1).cases[0]


def workload(one: Case) -> Workload:
    assert isinstance(one.settings, Workload)
    return one.settings


def test_every_step_has_a_call_and_nothing_else_has() -> None:
    assert {*WORKLOADS, EXCHANGE} == TRAINED


@pytest.mark.parametrize("name", MODELS)
def test_a_model_at_its_own_scale_is_itself(name: str) -> None:
    assert model_rows.scaled(MODELS[name], 1.0) == MODELS[name]


def test_a_scaled_model_has_as_large_a_part_of_dense_layers_and_at_least_one() -> None:
    deepseek = MODELS["DeepSeek-V3"]
    assert [model_rows.scaled(deepseek, scale).dense_layers for scale in (1.0, 0.7, 0.01)] == [3, 2, 1]
    assert model_rows.scaled(MODELS["Mixtral 8x7B"], 0.01).dense_layers == 0


@given(st.sampled_from(list(MODELS)), st.floats(1e-6, 1))
def test_a_scaled_model_can_be_divided_and_is_no_larger(name: str, scale: float) -> None:
    whole, small = MODELS[name], model_rows.scaled(MODELS[name], scale)
    assert model_rows.parameters(small) <= model_rows.parameters(whole)
    for key in ("hidden", "ffn", "vocabulary", "sequence", "batch"):
        given, made = getattr(whole, key), getattr(small, key)
        assert made == given or (made % 8 == 0 and made < given)
    assert small.layers == whole.layers or small.layers % 4 == 0


@given(
    st.sampled_from([8, 32, 120]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4, 8]),
    st.floats(1, 8),
    st.floats(1, 4),
)
def test_tokens_are_routed_as_was_stated(
    tokens: int, top_k: int, ranks: int, imbalance: float, capacity: float
) -> None:
    assume(imbalance <= min(ranks, 8 / top_k))
    chosen = routed(tokens, 8, top_k, ranks, imbalance, None)
    assert len(chosen) == tokens * top_k
    for token in range(tokens):
        assert len(set(chosen[token::tokens])) == top_k
    load = [chosen.count(expert) for expert in range(8)]
    busy = sum(load[: 8 // ranks])
    assert abs(busy - imbalance * len(chosen) / ranks) <= 1
    assert max(load[8 // ranks :], default=0) - min(load[8 // ranks :], default=0) <= 1
    kept = routed(tokens, 8, top_k, ranks, imbalance, capacity)
    most = math.ceil(capacity * len(chosen) / 8)
    assert [kept.count(expert) for expert in range(8)] == [min(one, most) for one in load]
    assert all(one in {DROPPED, other} for one, other in zip(kept, chosen, strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_a_network_has_the_parameters_that_its_row_counts(name: str) -> None:
    small = model_rows.scaled(MODELS[name], 1e-4)
    network = Network(small, 1, choice=range(small.top_k))
    assert sum(one.numel() for one in network.parameters()) == model_rows.parameters(small)


def test_the_same_seed_makes_the_same_weights_in_the_whole_and_in_a_part() -> None:
    small = model_rows.scaled(MODELS["Llama 3 8B"], 1e-4)
    whole = dict(Network(small, 1).named_parameters())
    part = dict(Network(small, 1, range(2, 4)).named_parameters())
    assert set(part) == {name for name in whole if name.startswith(("layers.2.", "layers.3.", "head."))}
    assert all(bool((whole[name] == part[name]).all()) for name in part)
    assert not bool((whole["layers.0.ffn.up.weight"] == whole["layers.1.ffn.up.weight"]).all())


@pytest.mark.parametrize(
    ("op", "sweep", "degrees"),
    [
        ("train_ddp", {}, (4, 1, 1, 1, 1)),
        ("train_tensor", {}, (1, 4, 1, 1, 1)),
        ("train_hsdp", {}, (4, 1, 1, 1, 1, 1, 1, 2)),
        ("train_hsdp", {"ranks": 3}, (3, 1, 1, 1, 1, 1, 1, 3)),
        ("train_tensor", {"replicas": [2]}, (2, 2, 1, 1, 1)),
        ("train_ring", {}, (1, 1, 1, 1, 1, 4)),
        ("train_ulysses", {"replicas": [2]}, (2, 1, 1, 1, 1, 2)),
        ("train_sequence", {"replicas": [2]}, (2, 2, 1, 1, 1)),
        ("train_1f1b", {}, (1, 1, 4, 8, 1)),
        ("train_gpipe", {"replicas": [2], "micro_batches": [3]}, (2, 1, 2, 3, 1)),
        ("train_interleaved", {}, (1, 1, 4, 8, 2)),
        ("train_3d", {}, (1, 2, 2, 4, 1)),
        ("train_experts", {"replicas": [2]}, (4, 1, 1, 1, 1, 1, 2)),
        ("train_3d", {"ranks": 8, "replicas": [2]}, (2, 2, 2, 4, 1)),
    ],
)
def test_ranks_are_divided_as_the_step_wants(op: str, sweep: dict[str, Any], degrees: tuple[int, ...]) -> None:
    one = workload(case(op, **sweep))
    whole = (one.dp, one.tp, one.pp, one.micro_batches, one.interleave, one.cp, one.ep, one.shard)
    assert whole == (*degrees, *(1,) * (len(whole) - len(degrees)))


@pytest.mark.parametrize(
    ("op", "sweep", "words"),
    [
        ("train_ddp", {}, None),
        ("train_ddp", {"model": "Mixtral 8x7B"}, "experts"),
        ("train_experts", {"model": "Mixtral 8x7B"}, None),
        ("train_experts", {"model": "Mixtral 8x7B", "expert_imbalance": 4.5}, "imbalance"),
        ("train_experts", {"model": "Mixtral 8x7B", "ranks": 16}, "not divisible"),
        ("train_experts", {}, "no experts"),
        ("train_experts", {"model": "Mixtral 8x7B", "replicas": [4]}, "replica"),
        ("train_experts", {"model": "DeepSeek-V3"}, None),
        ("train_tensor", {"model": "GPT-3 175B", "scale": 1.0}, "vocabulary"),
        ("train_tensor", {"model": "GPT-3 175B"}, None),
        ("train_sequence", {"model": "GPT-3 175B"}, "positions"),
        ("train_sequence", {"model": "MLP 1024"}, "sequence"),
        ("train_ring", {"model": "MLP 1024"}, "attention"),
        ("train_ring", {"model": "Llama 3 8B", "ranks": 8}, "2 cp"),
        ("train_ulysses", {"model": "Llama 3 8B", "ranks": 8, "scale": 0.125}, None),
        ("train_ulysses", {"model": "Llama 3 8B", "ranks": 13, "scale": 0.1}, "not divisible"),
        ("train_1f1b", {"model": "GPT-3 175B"}, None),
        ("train_ddp", {"micro_batches": [5]}, "batch"),
        ("train_interleaved", {}, "layers"),
        ("train_tensor", {"ranks": 3}, "ffn"),
        ("train_tensor", {"ranks": 16, "model": "Llama 3 8B"}, "kv_heads"),
        ("train_tensor", {"replicas": [4]}, "replica"),
        ("train_hsdp", {"ranks": 2}, "replica"),
        ("train_3d", {"ranks": 2}, "replica"),
        ("train_1f1b", {"ranks": 1}, "replica"),
        ("train_1f1b", {"micro_batches": [2]}, "micro-batches"),
        ("train_ddp", {"modes": ["pipelined"]}, "isolated"),
        ("train_ddp", {"cache": "flushed"}, "warm"),
        ("train_ddp", {"groups": "div:2"}, "groups"),
    ],
)
def test_what_cannot_be_trained_is_refused(op: str, sweep: dict[str, Any], words: str | None) -> None:
    reason = step.refuse(case(op, **sweep))
    assert (reason is None) if words is None else (reason is not None and words in reason)


def test_a_gpu_takes_steps_and_computes_their_products() -> None:
    asked = case("train_ddp"), case("train_ddp", compute="wait=1ms")
    computed, waited = (msgspec.structs.replace(one, device="cuda") for one in asked)
    assert step.refuse(computed) is None
    assert "GPU" in (step.refuse(waited) or "")
    assert "pre-enqueued" in (step.refuse(msgspec.structs.replace(computed, pre_enqueue=True)) or "")


@pytest.mark.parametrize("sweep", [{"replicas": [3]}, {"scale": 0.0}, {"scale": 1.5}, {"micro_batches": []}])
def test_bad_numbers_are_refused_before_there_is_a_plan(sweep: dict[str, Any]) -> None:
    with pytest.raises((UsageError, msgspec.ValidationError)):
        case("train_tensor", **sweep)


def test_an_unknown_model_is_refused_with_all_that_are_known() -> None:
    with pytest.raises(UsageError) as refused:
        model_name("Llama 9")
    assert all(name in str(refused.value) for name in MODELS)


def test_a_workload_says_what_is_not_the_usual() -> None:
    one = workload(case("train_1f1b", scale=0.5, compute="wait=20ms"))
    assert workload_in_words(one) == "MLP 1024, scale 0.5, pp 4, 8 micro-batches, compute waits 20 ms"


def test_what_is_owed_is_waited_for_when_it_is_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr("time.sleep", sleep)
    waits = Waits(1e-6)
    for _ in range(5):
        waits.owe(100)
    waits.settle()
    assert slept == pytest.approx([4e-4, 1e-4])


def test_what_rounding_leaves_of_a_gradient_of_nothing_is_not_wrong() -> None:
    """Scores that are all shifted alike weigh alike: a key's bias has no gradient."""
    one = AllReduced(StepShape(workload(case("train_ddp", "GPT-3 175B", 1, scale=1e-4))), 0, 1, None)
    one.run()
    keys = {name: parameter for name, parameter in one.named() if name.endswith("attention.key.bias")}
    assert keys
    for parameter in keys.values():
        require(parameter.grad).neg_()
    assert step.Reference(one).wrong() == 0
    first = next(iter(one.network.parameters()))
    require(first.grad).neg_()
    assert step.Reference(one).wrong() > 0


def test_a_step_multiplies_as_often_as_the_formula_says() -> None:
    shape = StepShape(workload(case("train_ddp", "Llama 3 8B", 1, scale=1e-4)))
    one = AllReduced(shape, 0, 1, None)
    with Observer() as seen:
        one.run()
    assert seen.flop == shape.flop
    assert step.Reference(one).wrong() == 0
