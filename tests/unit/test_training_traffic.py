"""Traffic of training: every formula against a count of a small model, message by message, or an executed schedule."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest
from schedule_counts import cost

from busbw.errors import UsageError
from busbw.ops.algorithms import ALGORITHMS
from busbw.workloads.model_rows import Model, models, parameters
from busbw_analysis.training.layout import Layout, Step, layouts
from busbw_analysis.training.traffic import Traffic, sent, statements, traffic

TOY = msgspec.structs.replace(
    models()["Llama 3 8B"], layers=8, hidden=32, heads=8, kv_heads=4, head_dim=6, ffn=48, vocabulary=40, sequence=16
)
MIXED = msgspec.structs.replace(
    TOY, experts=8, top_k=2, expert_ffn=16, dense_layers=2, shared_experts=1, nodes_per_token=2
)


def step(model: Model = TOY, batch: int = 16, sequence: int = 16, **how: Any) -> Step:  # noqa: ANN401 - of a layout or a step
    outside = {name: how.pop(name) for name in ("gradients", "imbalance", "ranks_per_host") if name in how}
    return Step(model, Layout(**how), batch, sequence, **outside)


def row(training: Step, what: str, phase: str, op: str | None = None, stage: int | None = None) -> Traffic:
    (call,) = [
        each for each in traffic(training, stage) if each.what == what and each.phase == phase and op in {None, each.op}
    ]
    return call


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize(
    ("op", "algorithm"),
    [("all_reduce", "ring"), ("all_gather", "ring"), ("reduce_scatter", "ring"), ("all_to_all", "pairwise")],
)
def test_what_a_call_sends_is_what_an_executed_schedule_sends(op: str, algorithm: str, ranks: int) -> None:
    schedule = ALGORITHMS[op][algorithm].on(ranks, 1)
    blocks = [0] * ranks
    for transfers in schedule.rounds:
        for transfer in transfers:
            blocks[transfer.source] += len(transfer.sent)
    call = Traffic("dp", "", op, ranks, 840 * schedule.blocks, 7, "forward", True, "", "")
    assert [7 * 840 * count for count in blocks] == pytest.approx([call.sent_bytes] * ranks)
    assert float(cost(schedule).sent) * call.size_bytes * 7 == pytest.approx(call.sent_bytes)


# --- parameters ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pp", "vpp", "ep"), [(1, 1, 1), (4, 1, 1), (4, 2, 2), (2, 4, 4)])
def test_ranks_of_all_stages_and_experts_hold_the_model_together(pp: int, vpp: int, ep: int) -> None:
    training = step(MIXED, pp=pp, vpp=vpp, micro_batches=4, dp=4, ep=ep)
    held = sum(
        unit.total * (ep if unit.name == "experts" else 1) for stage in range(pp) for unit in training.units(stage)
    )
    assert held == parameters(MIXED)


def test_tensor_ranks_hold_matrices_in_parts_and_norms_whole() -> None:
    whole, part = (sum(unit.total for unit in step(tp=tp).units(0)) for tp in (1, 4))
    norms = (2 * TOY.layers + 1) * TOY.hidden
    assert part == (whole - norms) // 4 + norms


@pytest.mark.parametrize("ranks", [2, 8])
def test_zero_sends_two_or_three_times_the_weights(ranks: int) -> None:
    """Ψ from the model itself; 2 bytes of a weight, 4 of a gradient."""
    share, count = (ranks - 1) / ranks, parameters(TOY)
    volumes = {zero: sent(traffic(step(dp=ranks, zero=zero, gradients="float32"))) for zero in range(4)}
    assert volumes[0] == pytest.approx(2 * share * 4 * count)
    assert volumes[1] == volumes[2] == pytest.approx(share * (4 + 2) * count)
    assert volumes[3] == pytest.approx(share * (2 + 2 + 4) * count)


def test_zero_3_gathers_in_every_micro_batch_unless_told() -> None:
    whole = sent(traffic(step(dp=2, zero=3)))
    assert sent(traffic(step(dp=2, zero=3, micro_batches=4))) == 4 * whole
    kept = step(dp=2, zero=3, micro_batches=4, reshard=False, sync="last")
    assert sent(traffic(kept)) == pytest.approx(whole * 2 / 3)
    assert sent(traffic(step(dp=2, micro_batches=4, sync="every"))) == 4 * sent(traffic(step(dp=2)))


def test_hsdp_adds_up_the_parts_of_its_groups() -> None:
    """8 ranks in groups of 4: rank r of a group has 1/4 of each unit, and adds it up with its twin by a ring of two."""
    training = step(dp=8, zero=3, shard=4)
    count = 2 * parameters(TOY)
    assert sent(traffic(training)) == pytest.approx(3 * 3 / 4 * count + 2 * 1 / 2 * count / 4)


def test_context_ranks_reduce_gradients_and_experts_do_among_fewer() -> None:
    assert row(step(dp=2, cp=4), "gradients, dense", "backward").ranks == 8
    assert row(step(MIXED, dp=8, ep=2), "gradients, experts", "backward").ranks == 4
    assert not [call for call in traffic(step(MIXED, dp=8, ep=8)) if call.what == "gradients, experts"]


# --- activations ---------------------------------------------------------------------------------------------------


def test_tensor_parallel_products_lack_one_sum_forward_and_one_backward() -> None:
    """Two matrices, the first cut by columns and the second by rows, over 4 ranks: Y and dX are sums over the ranks."""
    rng = np.random.default_rng(1)
    x, a, b = (rng.normal(size=shape) for shape in ((6, 8), (8, 12), (12, 8)))
    up = rng.normal(size=(6, 8))
    parts = [(a[:, cut : cut + 3], b[cut : cut + 3]) for cut in range(0, 12, 3)]
    assert sum(x @ first @ second for first, second in parts) == pytest.approx(x @ a @ b)
    assert sum(up @ second.T @ first.T for first, second in parts) == pytest.approx(up @ b.T @ a.T)


def test_tensor_traffic_of_a_layer_is_eight_b_s_h() -> None:
    training = step(tp=4, pp=4, micro_batches=2, batch=8)
    b, s, h, layers, m, w = 4, 16, 32, 2, 2, 2
    assert sent(traffic(training), "tp") == 8 * b * s * h * 3 / 4 * w * layers * m
    split = step(tp=4, pp=4, micro_batches=2, batch=8, sequence_parallel=True)
    assert sent(traffic(split), "tp", hideable=False) == sent(traffic(training), "tp")
    norms = 2 * 3 / 4 * (2 * h) * layers * w
    assert sent(traffic(split), "tp", hideable=True) == pytest.approx(sent(traffic(training), "tp") / 4 + norms)
    kept = step(tp=4, pp=4, micro_batches=2, batch=8, sequence_parallel=True, keep_inputs=True)
    assert sent(traffic(kept), "tp", hideable=True) == norms
    again = step(tp=4, pp=4, micro_batches=2, batch=8, recompute="full")
    assert sent(traffic(again), "tp") == sent(traffic(training), "tp") * 3 / 2


def test_expert_layers_sum_what_came_to_them() -> None:
    training = step(MIXED, tp=2, batch=1)
    size = 16 * 32 * 2
    assert row(training, "experts", "forward").size_bytes == 2 * size
    assert row(training, "experts", "forward").messages == row(training, "shared experts", "forward").messages == 6
    assert row(training, "feed-forward", "forward").messages == 2


@pytest.mark.parametrize(("pp", "vpp", "m"), [(2, 1, 3), (4, 1, 8), (4, 2, 8), (2, 4, 6)])
def test_pipeline_messages_are_those_of_parts_that_hand_on(pp: int, vpp: int, m: int) -> None:
    """Part k of all layers is on stage k mod p and hands to part k+1."""
    outputs, gradients = [0] * pp, [0] * pp
    for _, part in product(range(m), range(pp * vpp - 1)):
        outputs[part % pp] += 1
        gradients[(part + 1) % pp] += 1
    training = step(pp=pp, vpp=vpp, micro_batches=m, batch=m)
    for stage in range(pp):
        calls = {each.phase: each for each in traffic(training, stage) if each.op == "send_recv"}
        counted = {"forward": outputs[stage], "backward": gradients[stage]}
        assert {phase: each.messages for phase, each in calls.items()} == {p: n for p, n in counted.items() if n}
        assert {each.size_bytes for each in calls.values()} == {16 * 32 * 2}


def test_scatter_gather_sends_a_part_and_gathers_it() -> None:
    whole, part = step(tp=4, pp=4), step(tp=4, pp=4, scatter_gather=True)
    assert sent(traffic(part), "pp") == sent(traffic(whole), "pp") / 4
    assert row(part, "inputs of the stage", "forward").size_bytes == row(whole, "outputs", "forward").size_bytes
    assert sent(traffic(step(tp=4, pp=4, sequence_parallel=True)), "pp") == sent(traffic(part), "pp")


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ring_attention_sends_every_block_to_all_others_and_its_gradient_home(ranks: int) -> None:
    """Blocks and sums of gradients go around; a sum starts at the next rank and is at home after c−1 hops."""
    hops = gradient_hops = 0
    seen = {block: {block} for block in range(ranks)}
    added: dict[int, set[int]] = {block: set() for block in range(ranks)}
    for round_ in range(1, ranks):
        for block in range(ranks):
            holder = (block + round_) % ranks
            hops += 1
            seen[block].add(holder)
            added[block].add(holder)
            gradient_hops += 1  # on with the block, from the last one home
        assert all(len(there) == round_ + 1 for there in seen.values())
    assert all(len(there) == ranks - 1 for there in added.values()), "the owner adds its own"
    training = step(cp=ranks, tp=2, batch=2)
    block = 2 * 16 // ranks * (2 * 2 * 6) * 2  # b s/c tokens, keys and values of 2 of 4 heads of 6, 2 bytes
    calls = TOY.layers
    forward, backward = row(training, "keys and values", "forward"), row(training, "keys and values", "backward")
    assert forward.sent_bytes == hops // ranks * block * calls
    total = forward.sent_bytes + backward.sent_bytes + row(training, "their gradients", "backward").sent_bytes
    assert total == (2 * hops + gradient_hops) // ranks * block * calls


def test_ulysses_deals_heads_for_tokens() -> None:
    """4 ranks, 8 heads of queries, 4 of keys: rank r keeps its heads of its tokens and sends the others'."""
    training = step(cp=4, context="ulysses", batch=1)
    tokens = 16 // 4
    for what, heads in (("queries", 8), ("keys", 4), ("values", 4), ("results", 8)):
        counted = sum(tokens * (heads // 4) * 6 * 2 for other in range(4) if other != 0)
        assert row(training, what, "forward").sent_bytes == counted * TOY.layers
    repeated = step(cp=8, context="ulysses", batch=1)
    assert row(repeated, "keys", "forward").size_bytes == 2 * 8 * 6 * 2, "keys of 4 heads, one for each of 8 ranks"


def test_dispatch_sends_each_token_to_experts_elsewhere() -> None:
    """Every expert is chosen as often as the others: token i takes experts i and i + 3."""
    e, k, tokens = 4, 2, 16
    per_rank = MIXED.experts // e
    away = sum((token + far) % 8 // per_rank != 0 for token in range(tokens) for far in (0, 3))
    training = step(MIXED, dp=e, ep=e, batch=e)
    assert row(training, "dispatch", "forward").sent_bytes == away * 32 * 2 * 6
    assert sent(traffic(training), "ep") == 4 * tokens * k * 32 * 3 / 4 * 2 * 6


def test_an_imbalance_is_what_the_busiest_rank_has_more() -> None:
    even, uneven = (step(MIXED, dp=4, ep=4, batch=4, imbalance=x) for x in (1.0, 1.5))
    assert row(uneven, "combine", "forward").op == "all_to_all_v"
    assert sent(traffic(uneven), "ep") == 1.5 * sent(traffic(even), "ep")


def test_limited_nodes_get_each_token_once() -> None:
    """Tokens of rank 0 of 8 on 4 nodes choose 2 nodes each, all pairs of nodes alike."""
    training = step(MIXED, dp=8, ep=8, batch=8, ranks_per_host=2)
    pairs = [(a, b) for a in range(4) for b in range(a)]
    copies = sum(node != 0 for pair in pairs for node in pair) / len(pairs)
    assert row(training, "dispatch between nodes", "forward").sent_bytes == copies * 16 * 32 * 2 * 6
    assert row(training, "dispatch inside a node", "forward").sent_bytes == 2 / 2 * 16 * 32 * 2 * 6
    anywhere = msgspec.structs.replace(MIXED, nodes_per_token=0)
    assert row(step(anywhere, dp=8, ep=8, batch=8, ranks_per_host=2), "dispatch", "forward").ranks == 8


def test_ranks_of_tp_take_places_of_a_host_from_experts() -> None:
    training = step(MIXED, dp=8, ep=8, tp=2, batch=8, ranks_per_host=4)
    assert row(training, "dispatch between nodes", "forward").ranks == 4
    assert row(training, "dispatch inside a node", "forward").ranks == 2
    alone = step(MIXED, dp=8, ep=8, tp=2, batch=8, ranks_per_host=2)
    assert [(each.what, each.ranks) for each in traffic(alone) if each.dimension == "ep"] == [
        (f"{what} between nodes", 8) for what in ("dispatch", "dispatch", "combine", "combine")
    ]
    with pytest.raises(UsageError, match="ranks-per-host"):
        step(MIXED, dp=8, ep=8, tp=2, batch=8, ranks_per_host=6)


def test_the_ends_of_the_pipeline_have_their_vocabulary() -> None:
    training = step(tp=2, pp=2, batch=2, micro_batches=2)
    assert (
        row(training, "embedding", "forward", stage=0).messages
        == row(training, "head", "backward", stage=1).messages
        == 2
    )
    loss = row(training, "loss", "forward", stage=1)
    assert (loss.size_bytes, loss.messages) == (16 * 4, 3 * 2)
    tied = msgspec.structs.replace(TOY, tied=True)
    assert row(step(tied, pp=2), "tied embedding", "backward").size_bytes == 40 * 32 * 2


def test_the_known_case_of_seventy_billion() -> None:
    """t 8, p 4, 16 micro-batches of one sequence of 8192: 300 GB, 4.3 GB, and close to 2 Ψ w of 1/32."""
    training = Step(models()["Llama 3 70B"], Layout(dp=1024, tp=8, pp=4, micro_batches=16), 16384, 8192)
    rows = traffic(training)
    assert sent(rows, "tp") == pytest.approx(300e9, rel=0.01)
    assert sent(rows, "pp") == pytest.approx(4.3e9, rel=0.01)
    assert sent(rows, "dp") == pytest.approx(8.75e9, rel=0.03)
    ring = Step(models()["Llama 3 70B"], Layout(tp=8, pp=4, cp=2, micro_batches=16), 16, 8192)
    assert sent(traffic(ring), "cp") == pytest.approx(2.0e9, rel=0.01)
    said = {each.dimension: each for each in statements(training, rows)}
    assert said["dp"].said_value == 2 * parameters(training.model)
    assert said["pp"].said_value == 16 * 8192 * 8192 / 16
    divided = Step(training.model, replace(training.layout, zero=3), training.batch, training.sequence)
    (orders,) = (each.holds for each in statements(divided, traffic(divided)) if not each.dimension)
    assert orders.startswith("by calls here: TP > DP > PP"), "weights are gathered in every micro-batch"


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("context", ["ring", "ulysses"])
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_what_holds_is_the_formula_of_what_is_sent(recompute: str, context: str, *, sequence_parallel: bool) -> None:
    training = step(tp=2, cp=2, batch=2, context=context, recompute=recompute, sequence_parallel=sequence_parallel)
    rows = traffic(training)
    said = {each.dimension: each.holds for each in statements(training, rows)}
    unit = training.tokens * training.model.width_bytes
    hidden = sum(each.sent_bytes for each in rows if each.what.split(":")[0] in {"attention", "feed-forward"})
    times = hidden / (unit * training.model.hidden / 2 * training.model.layers)
    assert f"activations: {times:g} b s h (t−1)/t" in said["tp"]
    keys = training.key_heads * 2 * training.model.head_dim
    if context == "ring":
        wide, words = keys, "(c−1) b s/c (h_k"
    else:
        wide, words = (keys + training.model.heads // 2 * 2 * training.model.head_dim) // 2, "(c−1)/c b s/c (h_q"
    assert f"{sent(rows, 'cp') / (unit * wide * training.model.layers):g} {words}" in said["cp"]


# --- layouts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "code", "fit"),
    [
        ({"pp": 3}, "divides", "1, 2, 4, 8, or uneven=yes"),
        ({"pp": 9, "uneven": True}, "divides", "8 layers"),
        ({"pp": 4, "vpp": 3, "micro_batches": 4, "uneven": True}, "divides", "8 layers"),
        ({"tp": 3}, "divides", "1, 2, 4"),
        ({"tp": 8}, "divides", "1, 2, 4"),
        ({"cp": 3}, "divides", "16"),
        ({"cp": 16, "context": "ulysses"}, "divides", "heads"),
        ({"ep": 2, "dp": 2}, "no-experts", "ep 1"),
        ({"ep": 2}, "divides", "use one of 1"),
        ({"dp": 3}, "divides", "= 3"),
        ({"dp": 4, "micro_batches": 3}, "divides", "= 12"),
        ({"dp": 4, "zero": 3, "shard": 3}, "divides", "1, 2, 4"),
        ({"dp": 4, "shard": 2}, "layout", "zero 3"),
        ({"zero": 4}, "layout", "0, 1, 2 or 3"),
        ({"dp": 0}, "layout", "1"),
        ({"vpp": 2}, "layout", "pp"),
        ({"pp": 4, "vpp": 2, "micro_batches": 2}, "layout", "multiple of pp = 4"),
        ({"sequence_parallel": True}, "layout", "tp"),
        ({"scatter_gather": True}, "layout", "tp and pp"),
        ({"imbalance": 2.0}, "layout", "1 (even)"),
        ({"imbalance": float("nan")}, "layout", "1 (even)"),
        ({"dp": 1 << 20, "pp": 1 << 20}, "layout", "at most"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(how: dict[str, Any], code: str, fit: str) -> None:
    with pytest.raises(UsageError) as refused:
        step(**how)
    assert refused.value.code == code
    assert fit in str(refused.value)


@pytest.mark.parametrize("model", [TOY, MIXED])
def test_all_layouts_are_those_that_a_search_through_all_degrees_finds(model: Model) -> None:
    enumerated = {(layout.dp, layout.tp, layout.pp, layout.cp, layout.ep) for layout in layouts(model, 16)}
    expected = set()
    for dp, tp, pp, cp, ep in product((1, 2, 4, 8, 16), repeat=5):
        fits = dp * tp * pp * cp == 16 and tp <= 4 and pp <= 8 and dp * cp % ep == 0
        if fits and ep <= (8 if model.experts else 1):
            expected.add((dp, tp, pp, cp, ep))
    assert enumerated == expected
    assert {layout.tp for layout in layouts(model, 16, degrees=2)} == {1, 2}
    with pytest.raises(UsageError) as refused:
        next(layouts(model, 735_134_400))  # with 1344 divisors
    assert refused.value.code == "layout"
