"""Memory of training: the paper's own formulas, schedules that are played, and what is said to fit."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import msgspec
import pytest
import torch
from testing.pipelines import play
from torch.profiler import ProfilerActivity, profile

from busbw.backends.pytorch.training.network import Network, batch_of, loss_of
from busbw.workloads.model_rows import Model, models, parameters
from busbw.workloads.shapes import routed
from busbw_analysis.training.layout import Layout, Step, part
from busbw_analysis.training.memory import layer_bytes, least_gpus, memory, per_parameter, under_way, what_fits
from busbw_analysis.training.traffic import traffic

GPT = models()["GPT-3 175B"]
S, B, H, A = 2048, 1, 12288, 96


@pytest.mark.parametrize("ranks", [1, 4, 64])
def test_bytes_of_a_parameter_are_those_of_the_paper(ranks: int) -> None:
    """Rajbhandari et al. 2020, figure 1."""
    totals = [per_parameter(2, 2, "adam", zero, ranks).total for zero in range(4)]
    assert totals == pytest.approx([16, 4 + 12 / ranks, 2 + 14 / ranks, 16 / ranks])
    assert per_parameter(2, 4, "adam", 0, ranks).total == 18
    assert per_parameter(4, 4, "adam", 0, ranks).total == 16, "float32 has no copy of itself"
    assert per_parameter(2, 2, "momentum", 0, 1).total == 2 + 2 + 8
    assert per_parameter(2, 2, "sgd", 0, 1).total == 2 + 2 + 4


def gpt(**how: object) -> Step:
    return Step(GPT, replace(Layout(tp=8, pp=8, micro_batches=8), **how), 8, S)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"tp": 1}, S * B * H * (34 + 5 * A * S / H)),
        ({}, S * B * H * (10 + 24 / 8 + 5 * A * S / (H * 8))),
        ({"sequence_parallel": True}, S * B * H / 8 * (34 + 5 * A * S / H)),
        ({"sequence_parallel": True, "recompute": "selective"}, S * B * H * 34 / 8),
        ({"recompute": "selective"}, S * B * H * (10 + 24 / 8)),
    ],
)
def test_a_layer_keeps_what_the_paper_counts(how: dict[str, object], expected: float) -> None:
    """Korthikanti et al. 2022, table 2."""
    assert layer_bytes(gpt(**how), "scores", experts=False) == pytest.approx(expected)


def test_the_first_stage_keeps_all_layers_of_the_model_at_once() -> None:
    """Section 4.2.3: s b h L/t (34 + …), interleaved 1 + (p−1)/(p v) times it; masks of the embedding: section 4.3."""
    layer = S * B * H / 8 * (34 + 5 * A * S / H)
    once = memory(gpt(sequence_parallel=True))
    assert once.activations == pytest.approx(96 * layer + S * B * H * 8 / 8)
    interleaved = Step(GPT, Layout(tp=8, pp=8, micro_batches=64, vpp=3, sequence_parallel=True), 64, S)
    assert memory(interleaved).activations == pytest.approx((1 + 7 / 24) * 96 * layer + S * B * H * 15 / 8)
    full = memory(gpt(recompute="full"))
    assert full.activations == pytest.approx(96 * 2 * S * B * H + S * B * H * 8)
    assert full.buffers == pytest.approx(S * B * H * (10 + 3 + 5 * A * S / H / 8))


def test_a_gated_model_with_few_keys_keeps_its_own_tensors() -> None:
    """Llama 3 8B by hand: inputs and outputs of two norms, queries, keys, values, results, three inner tensors."""
    model = models()["Llama 3 8B"]
    tokens = 2 * 512
    step = Step(model, Layout(), 2, 512)
    elements = 4 * 4096 + 4096 + 2 * 1024 + 4096 + 3 * 14336
    assert layer_bytes(step, "flash", experts=False) == tokens * (2 * elements + 4 * 32)
    assert layer_bytes(step, "scores", experts=False) == tokens * 2 * elements + 2 * 2 * 32 * 512 * 512


def test_deepseek_v3_fits_its_gpus_as_its_report_says() -> None:
    """arXiv:2412.19437: norms, activations and the widening of queries, keys and values are computed again (section
    3.2.3), inputs of products and activations are kept in float8 (3.3.3): 16 stages and 64 ranks with the experts fit
    80 GB, even with the weights and gradients twice, for DualPipe (table 2).
    """
    model = models()["DeepSeek-V3"]
    how: dict[str, Any] = {"dp": 128, "pp": 16, "ep": 64, "zero": 1, "micro_batches": 120, "uneven": True}
    step = Step(model, Layout(**how, fp8=True, recompute="selective"), 15360, 4096, "float32")
    attention = 2 * (128 * 128 + 7168 + 1536 + 512) + 4 * 128
    around = 2 * 7168 + 2 * 2048 + 4 * 256
    assert layer_bytes(step, "flash", experts=True) == 4096 * (attention + around + 8 * (2 * 2048 + 7168))
    needed = memory(step)
    assert needed.total + needed.weights + needed.gradients < 80e9
    plain = replace(step, layout=Layout(**how))
    assert memory(plain).total > 1.5 * 80e9, "which is why they do"


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(
    ("p", "v", "m"), [(2, 1, 4), (4, 1, 8), (4, 1, 2), (8, 1, 8), (2, 2, 4), (4, 2, 8), (4, 3, 12)]
)
def test_bubbles_and_kept_micro_batches_are_those_of_a_played_schedule(p: int, v: int, m: int, schedule: str) -> None:
    if schedule == "gpipe" and v > 1:
        return
    layout = Layout(pp=p, vpp=v, micro_batches=m, schedule=schedule)  # type: ignore[arg-type]
    seconds, kept = play(p, v, m, schedule)
    assert seconds == pytest.approx(3 * m * (1 + layout.bubble))
    assert 1 - 3 * m / seconds == pytest.approx(layout.bubble_share)
    assert [under_way(layout, stage) for stage in range(p)] == kept


@pytest.mark.parametrize("layers", [7, 9, 31, 126])
@pytest.mark.parametrize(
    ("p", "v", "rounds", "schedule", "least", "most"),
    [
        *[(p, 1, rounds, "gpipe", 1.0, 1.0) for p in (2, 3, 4, 7) for rounds in (1, 3)],
        *[(p, 1, 8, "1f1b", 1.0, 1.03) for p in (2, 3, 4, 7)],
        *[(p, 2, 8, "1f1b", 0.97, 1.04) for p in (2, 3)],
    ],
)
def test_uneven_stages_wait_for_the_longest(
    layers: int, p: int, v: int, rounds: int, schedule: str, least: float, most: float
) -> None:
    model = msgspec.structs.replace(models()["Llama 3 8B"], layers=layers)
    layout = Layout(pp=p, vpp=v, micro_batches=rounds * p, uneven=True, schedule=schedule)  # type: ignore[arg-type]
    step = Step(model, layout, rounds * p, 16)
    parts = [part(layers, p * v, number) for number in range(p * v)]
    lengths = [length for _, length in parts]
    assert [first for first, _ in parts] == [sum(lengths[:number]) for number in range(p * v)]
    assert sum(lengths) == layers
    assert max(lengths) - min(lengths) <= 1
    assert lengths[-1] == min(lengths)
    seconds, _ = play(p, v, rounds * p, schedule, lengths)
    works = 3 * rounds * p * layers / p
    assert least <= works / (1 - step.bubble_share) / seconds * (1 + 1e-9) <= most + 2e-9


def test_the_stages_of_llama_3_405b_are_those_of_its_paper() -> None:
    step = Step(models()["Llama 3 405B"], Layout(pp=16, micro_batches=16, uneven=True), 16, 8192)
    assert [sum(step.layers_of(stage)) for stage in range(16)] == [7, *[8] * 14, 7]


def test_zero_3_divides_everything_but_what_it_has_gathered() -> None:
    model = models()["Llama 3 8B"]
    used = memory(Step(model, Layout(dp=8, zero=3), 8, 512))
    assert used.weights + used.gradients + used.optimizer == pytest.approx(16 * parameters(model) / 8)
    assert used.buffers == (2 + 2 + 2) * (model.vocabulary * model.hidden + model.hidden)


def _what_fits(step: Step, room: float) -> Layout:
    fitting = what_fits(step, room, None)
    assert fitting is not None
    assert memory(fitting).total <= room < memory(step).total
    assert fitting.layout.gpus == step.layout.gpus
    return fitting.layout


def test_what_fits_costs_least_time_and_does_fit() -> None:
    alone = gpt(sequence_parallel=True)
    assert _what_fits(alone, 75e9) == replace(alone.layout, recompute="selective"), "one replica: zero divides nothing"
    wide = Step(GPT, Layout(dp=4, tp=8, pp=8, micro_batches=8, sequence_parallel=True), 32, S)
    assert _what_fits(wide, 75e9) == replace(wide.layout, zero=1)


def test_activations_that_are_too_large_are_divided_before_anything_that_takes_time() -> None:
    step = Step(models()["Llama 3 70B"], Layout(dp=4, tp=8, pp=4, micro_batches=16), 64, 8192, "float32")
    needed = memory(step)
    assert needed.activations > needed.total / 2
    assert _what_fits(step, 81e9) == replace(step.layout, sequence_parallel=True)
    split = replace(step, layout=replace(step.layout, sequence_parallel=True))
    less = _what_fits(split, 40e9)
    assert (less.zero, less.recompute) == (1, "selective"), "no weights in every micro-batch of a pipeline"


def test_what_never_fits_has_no_layout() -> None:
    step = Step(models()["Llama 3 405B"], Layout(dp=8), 8, 8192)
    assert what_fits(step, 80e9, None) is None
    assert "82 GPUs" in least_gpus(step, 80e9)


def test_experts_are_divided_among_their_own_ranks() -> None:
    model = msgspec.structs.replace(models()["Mixtral 8x7B"], layers=2)
    experts = 2 * 8 * 3 * model.hidden * model.expert_ffn
    used = memory(Step(model, Layout(dp=8, ep=4, zero=1), 8, 64))
    assert used.weights == 2 * ((parameters(model) - experts) + experts / 4)
    assert used.optimizer == pytest.approx(12 * ((parameters(model) - experts) / 8 + experts / 4 / 2))


def test_stages_of_a_mixture_with_experts_decide() -> None:
    """DeepSeek-V3 on 32 stages: (1, 0), (2, 0), 28 times (0, 2), twice (0, 1) layers without and with experts."""
    step = Step(models()["DeepSeek-V3"], Layout(dp=32, pp=32, cp=2, ep=2, micro_batches=8, uneven=True), 256, 4096)
    assert step.kinds == {0: 1, 1: 1, 2: 28, 30: 1, 31: 1}
    assert step.middle == 2
    used = memory(step)
    assert used.stage == 2
    assert used.weights == 2 * sum(unit.total for unit in step.units(2))
    assert "ep" in {row.dimension for row in traffic(step)}


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (2, 1), (3, 1), (7, 1), (8, 2), (61, 1)])
def test_every_stage_is_of_a_kind(pp: int, vpp: int) -> None:
    layout = Layout(pp=pp, vpp=vpp, micro_batches=pp, uneven=True)
    step = Step(models()["DeepSeek-V3"], layout, pp, 4096)
    assert sum(step.kinds.values()) == pp
    assert sum(count * sum(step.layers_of(stage)) for stage, count in step.kinds.items()) == step.model.layers
    assert {step.units(stage) for stage in range(pp)} == {step.units(stage) for stage in step.kinds}


@pytest.mark.parametrize("zero", [2, 3])
def test_gradients_are_whole_until_the_last_micro_batch(zero: int) -> None:
    """2 bytes of 8 ranks: of each gradient, unless every micro-batch reduces them, or there is one alone."""
    model = models()["Llama 3 8B"]
    every, last = (
        memory(Step(model, Layout(dp=8, zero=zero, micro_batches=4, sync=sync), 32, 512)) for sync in ("every", "last")
    )
    alone = memory(Step(model, Layout(dp=8, zero=zero, sync="last"), 8, 512))
    assert last.gradients == 2 * parameters(model)
    assert every.gradients == alone.gradients == pytest.approx(2 * parameters(model) / 8)
    assert last.weights == every.weights


def test_without_resharding_weights_stay_whole() -> None:
    model = models()["Llama 3 8B"]
    again, kept = (memory(Step(model, Layout(dp=8, zero=3, reshard=reshard), 8, 512)) for reshard in (True, False))
    assert again.weights == pytest.approx(2 * parameters(model) / 8)
    assert kept.weights == pytest.approx(again.weights + 2 * parameters(model))
    assert kept.buffers == pytest.approx(again.buffers / 3), "two units of weights, one of gradients"


def peak(model: Model) -> int:
    """Bytes of a forward and a backward pass at their most, by torch's allocator, with weights, and with gradients that
    an earlier micro-batch has left.
    """
    choice = routed(model.batch * model.sequence, model.experts, model.top_k, 1, 1.0, None) if model.experts else ()
    network, (given, wanted) = Network(model, 1, choice=choice), batch_of(model, 1)
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        entering = given.detach().requires_grad_(given.is_floating_point())
        torch.autograd.backward(loss_of(network(entering), wanted))
    results: Any = profiler.profiler
    events = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    held = accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return int(max(held)) + sum(2 * 4 * parameter.numel() for parameter in network.parameters())


OF_GPT = {
    "layers": 8,
    "hidden": 128,
    "ffn": 512,
    "heads": 4,
    "kv_heads": 4,
    "head_dim": 32,
    "batch": 4,
    "sequence": 128,
}
OF_LATENT = {
    "rope_dim": 16,
    "value_dim": 32,
    "q_rank": 64,
    "kv_rank": 32,
    "expert_ffn": 64,
    "experts": 16,
    "top_k": 4,
    "dense_layers": 2,
    "nodes_per_token": 0,
}
SMALL_ENDS = {"vocabulary": 64, "positions": 0, "tied": False, "dropout": False, "dtype": "float32"}


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("MLP 1024", {}),
        ("MLP 1024", {"batch": 512}),
        ("GPT-3 175B", {**OF_GPT, **SMALL_ENDS}),
        ("Llama 3 8B", {**OF_GPT, **SMALL_ENDS, "ffn": 448, "kv_heads": 1}),
        ("Llama 3 8B", {**OF_GPT, **SMALL_ENDS, "ffn": 448}),
        ("Llama 3 8B", {**OF_GPT, **SMALL_ENDS, "ffn": 448, "sequence": 256, "heads": 8, "head_dim": 16}),
        ("Llama 3 8B", {**OF_GPT, **SMALL_ENDS, "gated": False, "norm": "layer"}),
        ("Mixtral 8x7B", {**OF_GPT, **SMALL_ENDS, "ffn": 0, "kv_heads": 1, "expert_ffn": 448}),
        ("DeepSeek-V3", {**OF_GPT, **SMALL_ENDS, **OF_LATENT}),
        ("DeepSeek-V3", {**OF_GPT, **SMALL_ENDS, **OF_LATENT, "shared_experts": 0, "experts": 8, "sequence": 32}),
    ],
)
def test_the_peak_of_a_step_is_that_of_the_allocator(name: str, changed: dict[str, Any]) -> None:
    """Within a tenth, for torch joins no operations here."""
    model = msgspec.structs.replace(models()[name], **changed)
    step = Step(model, Layout(), model.batch, model.sequence)
    assert memory(step, "sgd", "eager").total == pytest.approx(peak(model), rel=0.1)


@pytest.mark.parametrize(
    ("model", "layers", "how", "sequence", "gibibytes"),
    [
        ("Llama 3 70B", 12, {"tp": 4, "dp": 2, "micro_batches": 4}, 4096, 39.07),
        ("Llama 3 70B", 12, {"tp": 8, "micro_batches": 8}, 4096, 28.29),
        ("Llama 3 70B", 12, {"pp": 2, "dp": 4, "micro_batches": 8}, 4096, 66.55),
        ("Llama 3 405B", 4, {"tp": 8, "micro_batches": 32}, 4096, 38.57),
        ("Llama 3 70B", 12, {"cp": 8, "micro_batches": 4, "context": "ulysses"}, 131072, 147.99),
    ],
)
def test_memory_of_megatron_is_that_of_float32_gradients(
    model: str, layers: int, how: dict[str, Any], sequence: int, gibibytes: float
) -> None:
    """Peaks of Megatron-LM on eight B200, ZeRO 1 (https://github.com/MooreThreads/SimuMax, docs/b200): within 1 %."""
    layout = Layout(zero=1, sequence_parallel="tp" in how, **how)
    rows = msgspec.structs.replace(models()[model], layers=layers)
    kept, narrow = (
        memory(Step(rows, layout, layout.dp * layout.micro_batches, sequence, gradients)).total / gibibytes / (1 << 30)
        for gradients in ("float32", None)
    )
    assert kept == pytest.approx(1, abs=0.01)
    assert narrow < kept - 0.08
