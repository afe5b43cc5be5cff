"""Times of kernels from their shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from testing.narrow import require

from busbw.errors import UsageError
from busbw.system.catalog import catalogue
from busbw.system.named import gpu_named
from busbw.workloads.model_rows import flop_per_token, models
from busbw_analysis.training.calibration import calibrate
from busbw_analysis.training.kernels import UNALIGNED, Speed, speed_of
from busbw_analysis.training.layout import Layout, Step
from busbw_analysis.training.memory import memory
from busbw_analysis.training.prices import Described, Rates
from busbw_analysis.training.step_time import Machine, step_time
from busbw_analysis.training.traffic import sent, traffic

A100 = gpu_named(catalogue(), "A100 SXM4 80 GB")
LLAMA = models()["Llama 3 8B"]
NETWORK = Described(Rates(240e9, 25e9, 41e-6, 41e-6, 8))
PLAIN = Machine(Speed(1e15), 8, NETWORK, 0.0)


def test_a_product_takes_whole_tiles_and_half_a_wave_or_at_least_a_wave() -> None:
    speed = Speed(1e12, processors=4)
    wave = 4 * 128 * 128 * 2 * 64 / 1e12
    assert speed.product(128, 128, 64) == speed.product(129, 128, 64) == pytest.approx(wave)
    assert speed.product(256, 256, 64) == pytest.approx(1.5 * wave)
    assert speed.product(257, 256, 64) == speed.product(128, 128, 64, count=6) == pytest.approx(2 * wave)


def test_a_shallow_product_reaches_less_and_a_narrow_one_is_limited_by_memory() -> None:
    deep = replace(Speed(1e12, processors=1), depth=64)
    assert deep.product(10, 10, 64) == pytest.approx(2 * 2 * 10 * 10 * 64 / 1e12)
    assert Speed(1e15, memory=1e9).product(1, 1000, 1000) == pytest.approx(2 * (1001 * 1000 + 1000) / 1e9)


def test_products_of_a_gpu_are_near_those_measured() -> None:
    """SimuMax's a100_pcie.json, fitted: a share of 312 TFLOP/s in products of 4096 rows (within 7 %)."""
    speed = speed_of(gpu_named(catalogue(), "A100 PCIe 80 GB"), "bfloat16")
    for n, k, share in ((16384, 5120, 0.761), (5120, 16384, 0.749), (24576, 1536, 0.697), (5120, 12288, 0.772)):
        assert 2 * 4096 * n * k / speed.product(4096, n, k) / 312e12 == pytest.approx(share, rel=0.07)


def test_all_products_of_a_step_are_its_flop() -> None:
    """At one rate, without memory and host, a step computes what formulas of FLOP count."""
    for name in ("Llama 3 8B", "GPT-3 175B", "Mixtral 8x7B", "DeepSeek-V3"):
        model = models()[name]
        layout = Layout(dp=8, ep=8 if model.experts else 1)
        times = step_time(Step(model, layout, 8, 2048), replace(PLAIN, causal=not model.dropout))
        flop = flop_per_token(model, 2048, causal=not model.dropout) * 2048
        assert times.compute == pytest.approx(flop / 1e15, rel=1e-9), name


def test_a_small_step_is_limited_by_the_host() -> None:
    speed = speed_of(A100, "bfloat16")
    small = Step(
        msgspec.structs.replace(LLAMA, hidden=256, ffn=512, heads=4, kv_heads=4, head_dim=64), Layout(), 1, 128
    )
    times = [step_time(small, Machine(replace(speed, launch=launch), 8, NETWORK)).compute for launch in (62e-6, 124e-6)]
    assert times[1] == pytest.approx(2 * times[0])


def test_the_host_hides_no_head_behind_the_layers_before_it() -> None:
    """Forward the head takes its 100 s on the GPU after the host's time for the layers, not the host's 8 s; backward it
    comes first, and the host is busy with the layers meanwhile.
    """
    step = Step(msgspec.structs.replace(LLAMA, vocabulary=200 * LLAMA.vocabulary), Layout(), 1, 1024)
    flop = 2 * 1024 * step.model.vocabulary * step.model.hidden
    speeds = (Speed(rate, launch=1.0) for rate in (flop / 100, 1e30))
    slow, fast = (step_time(step, replace(PLAIN, speed=speed)).compute for speed in speeds)
    assert slow - fast == pytest.approx(100 - 8)


def test_heads_that_the_fused_softmax_cannot_take_need_more_kernels() -> None:
    """Megatron-LM's takes four heads at once: of 16 heads over 8 ranks, those of two sequences, not of one."""
    model = msgspec.structs.replace(models()["GPT-3 175B"], heads=16, kv_heads=16, head_dim=64, hidden=1024)
    on = replace(PLAIN, speed=Speed(1e30, launch=1.0))
    steps = [Step(model, Layout(tp=8), sequences, 1024) for sequences in (1, 2)]
    single, double = (step_time(step, on).compute for step in steps)
    assert single - double == pytest.approx((4 + 5) * model.layers, rel=1e-4)


def test_each_kernel_takes_time_beside_its_work() -> None:
    step = Step(LLAMA, Layout(), 1, 8192)
    work, begun = (step_time(step, replace(PLAIN, speed=Speed(1e15, started=each))).compute for each in (0.0, 1e-6))
    assert 30 * LLAMA.layers < (begun - work) / 1e-6 < 60 * LLAMA.layers


@pytest.mark.parametrize(
    ("how", "part"),
    [({"fp8": True}, "compute"), ({"hide_experts": True}, "ep"), ({"zero_bubble": True}, "bubble")],
)
def test_what_a_layout_does_shortens_its_part(how: dict[str, Any], part: str) -> None:
    layout = Layout(dp=64, pp=4, ep=16, zero=1, micro_batches=8, uneven=True)
    on = Machine(speed_of(gpu_named(catalogue(), "H100 SXM5"), "bfloat16"), 8, NETWORK, 0.8)
    steps = [Step(models()["DeepSeek-V3"], ranks, 512, 4096) for ranks in (layout, replace(layout, **how))]
    before, after = (step_time(step, on) for step in steps)
    assert after.parts[part] < 0.9 * before.parts[part]
    if part == "bubble":
        assert after.bubble == pytest.approx(before.bubble / 3)
    if part == "compute":
        expected = (1 + 2) / (2 + 2)  # tokens go out in one byte instead of two, and come back in two
        assert sent(traffic(steps[1]), "ep") == pytest.approx(expected * sent(traffic(steps[0]), "ep"))


@pytest.mark.parametrize(
    "how", [{"hide_experts": True}, {"zero_bubble": True}, {"zero_bubble": True, "schedule": "gpipe"}]
)
def test_what_has_nothing_to_shorten_is_refused(how: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Layout(dp=2, **how)


def test_selective_recomputation_keeps_less_for_little_time() -> None:
    kept, again, full = (Step(LLAMA, Layout(dp=8, recompute=how), 8, 8192) for how in ("none", "selective", "full"))
    on = Machine(speed_of(A100, "bfloat16"), 8, NETWORK)
    assert memory(full).activations < memory(again).activations < 0.75 * memory(kept).activations
    times = [step_time(step, on).compute for step in (kept, again, full)]
    assert times[0] < times[1] < 1.05 * times[0] < times[2]


def test_each_layer_that_is_recomputed_keeps_less_and_takes_a_forward_pass_more() -> None:
    """Eight layers a stage: with two of them recomputed, a quarter of what all of them save and take."""
    like = Layout(dp=2, tp=2, pp=4, ep=2, micro_batches=4, sequence_parallel=True, recompute="full")
    none, some, full = (
        Step(models()["Mixtral 8x7B"], layout, 8, 4096)
        for layout in (replace(like, recompute="none"), replace(like, recompute_layers=2), like)
    )
    kept = [memory(step).activations for step in (none, some, full)]
    times = [step_time(step, PLAIN).compute for step in (none, some, full)]
    moved = [sent(traffic(step), "tp") + sent(traffic(step), "ep") for step in (none, some, full)]
    for values in (kept, times, moved):
        assert (values[1] - values[0]) / (values[2] - values[0]) == pytest.approx(2 / 8)
    with pytest.raises(UsageError):
        replace(like, recompute="selective", recompute_layers=2)


@pytest.mark.parametrize("slower", [0.9, 1.1])
def test_a_measured_step_moves_the_speed_of_kernels_towards_it(slower: float) -> None:
    step = Step(LLAMA, Layout(dp=8), 8, 8192)
    on = Machine(speed_of(A100, "bfloat16"), 8, NETWORK)
    now = step_time(step, on).total
    calibrated = calibrate(on, [(step, slower * now)])
    kernels, calls = calibrated.factors
    assert min(1, slower) < kernels.value < max(1, slower)
    assert kernels.determined
    assert not calls.determined
    assert kernels.low < kernels.value < kernels.high
    many = calibrate(on, [(step, slower * now)] * 20)
    assert step_time(step, many.machine).total == pytest.approx(slower * now, rel=0.01)


@pytest.mark.parametrize(("times", "widest"), [((1.5,), 0.4), ((1.3, 1.6, 1.7, 2.2, 2.8, 3.4), 1.0)])
def test_steps_of_a_log_calibrate_however_far_they_are_and_leave_what_they_scatter(
    times: Sequence[float], widest: float
) -> None:
    step = Step(LLAMA, Layout(dp=8), 8, 8192)
    on = Machine(speed_of(A100, "bfloat16"), 8, NETWORK)
    now = step_time(step, on).total
    steps = [(step, each * now) for each in times]
    calibrated = calibrate(on, steps, len(steps))
    assert all(each.near for each in calibrated.steps)
    middle = sorted(times)[len(times) // 2]
    assert step_time(step, calibrated.machine).total == pytest.approx(middle * now, rel=0.25)
    assert widest / 5 < require(calibrated.machine.deviation) < widest / 2
    assert not any(each.near for each in calibrate(on, steps[-1:]).steps)


def test_wider_elements_take_longer_to_move() -> None:
    speed = Speed(1e30, 1e9)
    times = [
        step_time(
            Step(msgspec.structs.replace(LLAMA, dtype=dtype), Layout(), 1, 8192, dtype), Machine(speed, 8, NETWORK)
        )
        for dtype in ("bfloat16", "float32")
    ]
    assert times[1].compute == pytest.approx(2 * times[0].compute)


def test_a_vocabulary_that_is_not_padded_makes_its_products_slower() -> None:
    speed = speed_of(A100, "bfloat16")
    times = [
        step_time(Step(msgspec.structs.replace(LLAMA, vocabulary=size), Layout(), 1, 8192), Machine(speed, 8, NETWORK))
        for size in (128256, 128257)
    ]
    products = 3 * speed.product(8192, 128256, LLAMA.hidden)
    assert times[1].compute - times[0].compute == pytest.approx((UNALIGNED - 1) * products, rel=0.05)


def test_calls_need_the_host_and_the_gpu_as_kernels_do() -> None:
    step = Step(LLAMA, Layout(tp=8), 1, 8192)
    calls = sum(row.messages for row in traffic(step) if not row.hideable)
    for speed, rate in ((Speed(1e30, launch=1.0), 1.0), (Speed(1e30, started=1.0), 1.0)):
        alone, all_ = (
            step_time(work, replace(PLAIN, speed=speed)).compute for work in (Step(LLAMA, Layout(), 1, 8192), step)
        )
        assert all_ - alone == pytest.approx(rate * calls, rel=1e-3)


def test_gpus_that_send_tokens_to_experts_compute_with_fewer_processors() -> None:
    like = Step(models()["DeepSeek-V3"], Layout(dp=8, ep=8), 8, 4096)
    before, after = (
        step_time(replace(like, layout=replace(like.layout, hide_experts=hides)), PLAIN).compute
        for hides in (False, True)
    )
    assert after / before == pytest.approx(132 / 112)
