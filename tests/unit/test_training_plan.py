"""Plans of training: groups, prices and steps against independent counts, and what the command says and refuses."""

from __future__ import annotations

import json
import re
import shlex
from collections import defaultdict
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from testing.pipelines import play
from testing.synthetic import Piece, World, case, synthetic_run

from busbw.cli.main import main
from busbw.errors import AnalysisError, UsageError
from busbw.ops.algorithms import ALGORITHMS
from busbw.runs.store import read
from busbw.workloads.model_rows import Model, flop_per_token, models, one_expert
from busbw_analysis.cli.training_options import measured_step, network_named
from busbw_analysis.data.sources import find
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.models import simulate
from busbw_analysis.models.networks import Flat, Placement
from busbw_analysis.predict import Questions, read_results
from busbw_analysis.training import plan as plans
from busbw_analysis.training.kernels import Speed
from busbw_analysis.training.layout import Layout, Step, part
from busbw_analysis.training.machine import machine_of
from busbw_analysis.training.memory import gpu_of_runs, memory
from busbw_analysis.training.plan_report import gain
from busbw_analysis.training.prices import Described, Group, Measured, Price, Rates, group_of, slowdown_of
from busbw_analysis.training.step_time import Machine, Scenario, hops_in_a_row, step_time
from busbw_analysis.training.traffic import DIMENSIONS, Traffic, sent, traffic

TOY = msgspec.structs.replace(
    models()["Llama 3 8B"], layers=8, hidden=32, heads=8, kv_heads=4, head_dim=6, ffn=48, vocabulary=0, sequence=16
)
MIXED = msgspec.structs.replace(TOY, vocabulary=40, experts=8, top_k=2, expert_ffn=16, dense_layers=2)
RATES = Rates(inner=100e9, outer=10e9, inner_delay=1e-6, outer_delay=4e-6, per_host=4)


class Fixed:
    """Every call takes as long as the first row of its op says: latency and time of a byte."""

    def __init__(self, latency: float = 0.0, byte: float = 0.0, **ops: float) -> None:
        self.latency, self.byte, self.ops = latency, byte, ops

    def price(self, op: str, size_bytes: int, group: Group) -> Price:
        latency = self.ops.get(op, self.latency)
        return Price(
            latency, self.byte * size_bytes, group.hosts > 1, "fixed", latency, 3 * latency, ("far",), validated=True
        )


def machine(prices: Any = None, **more: Any) -> Machine:  # noqa: ANN401 - of a machine
    return Machine(**{"speed": Speed(1e9), "per_host": 4, "prices": prices or Fixed(), **more})


# --- where groups are ----------------------------------------------------------------------------------------------


def counted(members: list[list[int]], per_host: int) -> tuple[int, int, int]:
    """Ranks of a group, hosts of the group that has most, and groups that share the host where most do."""
    on_host: dict[int, set[int]] = defaultdict(set)
    for number, group in enumerate(members):
        for rank in group:
            on_host[rank // per_host].add(number)
    hosts = max(len({rank // per_host for rank in group}) for group in members)
    return len(members[0]), hosts, max(map(len, on_host.values()))


@pytest.mark.parametrize("per_host", [2, 4, 8])
@pytest.mark.parametrize(
    "degrees", [(2, 2, 2, 1), (4, 2, 1, 2), (1, 4, 2, 2), (2, 1, 4, 4), (8, 1, 1, 1), (1, 8, 2, 1)]
)
def test_groups_are_where_ranks_in_megatrons_order_are(degrees: tuple[int, int, int, int], per_host: int) -> None:
    tp, cp, dp, pp = degrees
    layout = Layout(tp=tp, cp=cp, dp=dp, pp=pp)
    if layout.gpus < per_host:
        return
    place = {
        (t, c, d, p): t + tp * (c + cp * (d + dp * p))
        for t, c, d, p in product(range(tp), range(cp), range(dp), range(pp))
    }

    def groups(*kept: int) -> list[list[int]]:
        found: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for key, rank in place.items():
            found[tuple(key[one] for one in kept)].append(rank)
        return [sorted(one) for one in found.values()]

    for dimension, kept in (("tp", (1, 2, 3)), ("cp", (0, 2, 3)), ("dp", (0, 3))):
        members = groups(*kept)
        stride = 1 if dimension == "tp" else tp
        row = Traffic(dimension, "", "all_reduce", len(members[0]), 8, 1, "backward", True, "", "", stride)  # type: ignore[arg-type]
        found = group_of(layout, row, per_host)
        if len(members[0]) > 1:
            assert (found.ranks, found.hosts, found.at_once) == counted(members, per_host)


def test_groups_of_experts_and_of_the_layers_around_them_are_apart() -> None:
    """Zero 3 with ep 4 on hosts of 4: layers around experts are on all 8 neighbours, an expert on every fourth."""
    rows = traffic(Step(MIXED, Layout(dp=8, ep=4, zero=3), 8, 16))
    hosts = {row.what: group_of(Layout(dp=8, ep=4, zero=3), row, 4) for row in rows if row.op == "all_gather"}
    assert hosts["weights, layers around experts"] == Group(8, 2, 1)
    assert hosts["weights, experts"] == Group(2, 2, 4)


# --- prices --------------------------------------------------------------------------------------------------------


def test_a_group_is_on_one_host_if_all_ranks_are() -> None:
    """Ranks 0 and 6 of 8, which is not a part of the host that other groups repeat."""
    model = msgspec.structs.replace(models()["GPT-3 175B"], tied=True)
    tied = Step(model, Layout(dp=2, pp=4), 2, 2048)
    row = next(row for row in traffic(tied, 0) if row.what == "tied embedding")
    assert (row.stride, row.ranks) == (6, 2)
    assert group_of(tied.layout, row, 8).hosts == 1
    assert group_of(replace(tied.layout, dp=4), row, 8).hosts == 2


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize(
    ("op", "algorithm"),
    [("all_reduce", "ring"), ("all_gather", "ring"), ("reduce_scatter", "ring"), ("all_to_all", "pairwise")],
)
def test_prices_of_rings_are_those_of_simulated_schedules(op: str, algorithm: str, ranks: int) -> None:
    delay, rate, size = 1e-9, 10e9, 840 * 1024
    played = simulate.Traffic.of(ALGORITHMS[op][algorithm].on(ranks, ranks))
    seconds = simulate.simulate(played, size, Flat(Placement(ranks), rate, delay), simulate.Costs()).seconds
    found = Described(Rates(rate, rate, delay, delay, 1)).price(op, size, Group(ranks, ranks, 1))
    assert found.seconds == pytest.approx(seconds, rel=1e-3)
    assert found.far


def test_a_group_with_several_ranks_on_a_host_uses_all_of_their_cards() -> None:
    one, four = (Described(RATES).price("all_reduce", 1 << 30, Group(16, hosts, 1)).moving for hosts in (16, 4))
    assert one == pytest.approx(2 * 15 / 16 * (1 << 30) / 10e9)
    assert four == pytest.approx(one / 4)
    within = Described(RATES).price("all_gather", 1 << 30, Group(4, 1, 1))
    assert within.seconds == pytest.approx(2e-6 + 3 / 4 * (1 << 30) / 100e9)
    assert not within.far


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
def test_a_gather_between_hosts_waits_for_every_hop_unless_it_has_one_rank_a_host(op: str) -> None:
    """As NCCL, which has a ring for these, and PAT for one rank a host."""
    doublings, hops = 4 * 4e-6 + 2 * 1e-6, 15 * 4e-6 + 48 * 1e-6
    group, alone = Group(64, 16, 1), Group(16, 16, 1)
    assert Described(RATES).price(op, 0, group).latency == pytest.approx(hops)
    assert Described(RATES, hops=(1e-7, 2e-7)).price(op, 0, group).latency == pytest.approx(doublings)
    assert Described(RATES).price(op, 0, alone).latency == pytest.approx(4 * 4e-6)
    assert Described(RATES).price("all_reduce", 0, group).latency == pytest.approx(2 * doublings)


@pytest.mark.parametrize(("stride", "cards"), [(1, 8), (2, 1), (4, 1), (8, 1)])
def test_a_ring_of_ranks_that_share_their_cards_with_others_uses_one_part_of_one(stride: int, cards: int) -> None:
    """Two GPUs have a card. A group of neighbours has both; without it the other one is in another group."""
    rates, each = replace(RATES, per_host=8, sharing=2), 8 // stride
    found = Described(rates).price("all_reduce", 1 << 30, Group(4 * each, 4, stride)).moving
    whole = 2 * (4 * each - 1) / (4 * each) * (1 << 30)
    assert found == pytest.approx(whole / min(100e9, cards * 10e9))
    own = Described(replace(rates, sharing=1)).price("all_reduce", 1 << 30, Group(4 * each, 4, stride)).moving
    assert own == pytest.approx(whole / min(100e9, each * 10e9))


# --- steps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "v", "m"), [(1, 1, 3), (2, 1, 4), (4, 1, 8), (4, 1, 2), (2, 2, 4), (4, 2, 8)])
def test_a_step_takes_what_a_played_pipeline_with_its_calls_takes(p: int, v: int, m: int) -> None:
    layout = Layout(pp=p, vpp=v, micro_batches=m, tp=2)
    found = step_time(Step(TOY, layout, m, 16), machine(Fixed(all_reduce=1e-4)))
    calls = 2 * TOY.layers / p * 1e-4
    works = flop_per_token(TOY, 16, causal=True) * 16 / 2 / p / 1e9
    whole, _ = play(p, v, m, seconds=(works / 3 + calls, 2 * works / 3 + calls))
    assert found.total == pytest.approx(whole)
    assert found.compute == pytest.approx(m * works)
    assert found.exposed["tp"] == pytest.approx(2 * m * calls)
    assert found.parts["bubble"] == pytest.approx(whole - m * (works + 2 * calls))


@pytest.mark.parametrize(
    ("p", "v", "m", "how", "near"),
    [
        *[(p, 1, m, "1f1b", 0.2) for p, m in ((4, 1), (4, 2), (4, 6), (8, 3), (8, 12), (8, 100))],
        *[(p, 1, m, "gpipe", 1e-6) for p in (2, 4, 5) for m in (1, 3, 8)],
        *[(p, 1, m * p, "1f1b", 1e-6) for p in (2, 3, 4, 8) for m in (1, 2, 5)],
        *[(p, v, m * p, "1f1b", 1e-6) for p in (2, 4) for v in (2, 4) for m in (1, 3)],
    ],
)
def test_a_pipeline_waits_for_as_many_hops_as_a_played_one(p: int, v: int, m: int, how: str, near: float) -> None:
    model = msgspec.structs.replace(TOY, layers=120)
    one = Step(model, Layout(pp=p, vpp=v, micro_batches=m, schedule=how, uneven=True), m, 16)  # type: ignore[arg-type]
    with_hops, without = (play(p, v, m, how, hop=hop)[0] for hop in (0.01, 0.0))
    assert hops_in_a_row(one) == pytest.approx((with_hops - without) / 0.01, rel=near)
    found = step_time(one, machine(Fixed(send_recv=0.5)))
    assert found.exposed["pp"] == pytest.approx(0.5 * hops_in_a_row(one))


@pytest.mark.parametrize(("layers", "p", "parts"), [(96, 8, 6), (126, 16, 8), (120, 8, 3), (120, 16, 1)])
def test_a_plan_has_parts_of_a_stage_that_are_alike_unless_others_are_wanted(layers: int, p: int, parts: int) -> None:
    model = msgspec.structs.replace(TOY, layers=layers)
    wanted = plans.Wanted(model, p, p, 16, {"pp": p, "micro_batch": 1})
    (best,) = plans.plan(wanted, machine()).layouts
    assert best.step.layout.vpp == parts
    (other,) = plans.plan(replace(wanted, settings={**wanted.settings, "vpp": 5}), machine()).layouts
    assert other.step.layout.vpp == 5
    with pytest.raises(UsageError, match=f"expected at most the {layers} layers"):
        plans.plan(replace(wanted, settings={**wanted.settings, "vpp": layers}), machine())


def test_parts_of_several_lengths_wait_longer_for_each_other_than_the_formula_says() -> None:
    model = msgspec.structs.replace(TOY, layers=96)
    for v, longer in ((6, 1.0), (8, 1.033)):
        step = Step(model, Layout(pp=8, vpp=v, micro_batches=24, uneven=True), 24, 16)
        played, _ = play(8, v, 24, lengths=[part(96, 8 * v, number)[1] for number in range(8 * v)])
        of_a_layer = flop_per_token(model, 16, causal=True) * 16 / 96 / 1e9
        assert played / 3 * of_a_layer / step_time(step, machine()).total == pytest.approx(longer, abs=1e-3)


@pytest.mark.parametrize(("seconds", "overlap"), [(1e-5, 1.0), (1e-5, 0.5), (1.0, 1.0), (1.0, 0.25), (1.0, 0.0)])
def test_gradients_hide_beside_the_last_backward_pass(seconds: float, overlap: float) -> None:
    one = Step(TOY, Layout(dp=4, micro_batches=2), 8, 16)
    found = step_time(one, machine(Fixed(all_reduce=seconds), overlap=overlap))
    backward = found.compute / 2 * 2 / 3
    hidden = overlap * min(seconds, backward)
    assert found.exposed["dp"] == pytest.approx(seconds - hidden)
    assert found.hidden["dp"] == pytest.approx(hidden)
    assert found.total == pytest.approx(found.compute + seconds - hidden)


def test_computation_takes_longer_while_it_hides_a_call() -> None:
    one = Step(TOY, Layout(dp=4, micro_batches=2), 8, 16)
    as_long, longer = (
        step_time(one, machine(Fixed(all_reduce=1e-5), overlap=0.5, slowdown=factor)) for factor in (1.0, 1.4)
    )
    assert longer.compute == pytest.approx(as_long.compute + 0.4 * 0.5e-5)
    assert (longer.bubble, longer.exposed, longer.hidden) == (as_long.bubble, as_long.exposed, as_long.hidden)


def test_pairs_are_not_summarised_for_what_no_pair_tells() -> None:
    class Pairs:
        state, case = "measured", case("pair_matrix", 8)

        @property
        def groups(self) -> None:
            pytest.fail("a million pairs would be made one by one")

    (results,) = read_results([read(STORED / "runs/mpi-modes")])
    run = Measured(Questions([replace(results, cases=cast("tuple[CaseSummary, ...]", (Pairs(),)))]))
    assert (run.flop_per_second("float32"), run.overlap(), run.overlaps) == (None, None, [])


def test_the_slowdown_is_the_median_of_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Measured(Questions(read_results([read(STORED / "runs/mpi-modes")])))
    (overlap,) = run.overlaps
    assert slowdown_of(run)[0] == max(1.0, overlap.slowdown)
    overlaps = [SimpleNamespace(slowdown=slowdown) for slowdown in (0.9, 1.3, 1.2)]
    monkeypatch.setattr(Measured, "overlaps", overlaps)
    assert slowdown_of(run)[0] == 1.2
    monkeypatch.undo()
    nothing = Measured(Questions(read_results([read(STORED / "runs/training")])))
    assert slowdown_of(nothing)[0] == slowdown_of(None)[0] == 1.0


def test_the_rate_of_memory_is_that_of_the_largest_triad_of_the_device() -> None:
    cached, large = (case("stream_triad", size_bytes) for size_bytes in (1 << 10, 1 << 24))
    fast, slow = Piece(0.0, 1 / 50e9), Piece(0.0, 1 / 10e9, large.size_bytes)
    stored = synthetic_run([cached, large], World(by_op={"stream_triad": (fast, slow)}, sample_noise=0.0), launches=2)
    run = Measured(Questions(read_results([stored])))
    assert run.memory_per_second("cpu") == pytest.approx(3 * 10e9, rel=0.05)
    assert run.memory_per_second("cuda") is None


def test_the_bubble_is_that_of_all_stages_of_a_mixture() -> None:
    """Its first two stages are dense, those behind them have experts, the last a head."""
    found = step_time(Step(MIXED, Layout(pp=8, micro_batches=8), 8, 16), machine())
    works = flop_per_token(MIXED, 16, causal=True) * 16 / 1e9
    assert found.parts["bubble"] == pytest.approx(works - found.compute / 8)


def test_recomputation_adds_a_forward_pass() -> None:
    plain, again = (step_time(Step(TOY, Layout(recompute=how), 1, 16), machine()).total for how in ("none", "full"))
    assert again == pytest.approx(plain * 4 / 3)


def test_a_scenario_changes_its_part_alone() -> None:
    one = Step(TOY, Layout(dp=4, tp=4), 4, 16)
    prices = Fixed(latency=1e-4, byte=1e-9)
    now = step_time(one, machine(prices, overlap=0.0))
    rows = traffic(one)
    latency = sum(row.messages for row in rows) * 1e-4
    moving = {
        far: sum(row.messages * row.size_bytes for row in rows if (row.dimension == "dp") == far) * 1e-9
        for far in (True, False)
    }
    for scenario, less in (
        (Scenario(latency=0.5), latency / 2),
        (Scenario(between=2.0), moving[True] / 2),
        (Scenario(inside=2.0), moving[False] / 2),
        (Scenario(compute=2.0), now.compute / 2),
        (Scenario(latency=0.0, latency_of="dp"), 1e-4),
    ):
        then = step_time(one, machine(prices, overlap=0.0), scenario)
        assert now.total - then.total == pytest.approx(less), scenario


# --- plans ---------------------------------------------------------------------------------------------------------


def wanted(model: Model = TOY, gpus: int = 8, **more: Any) -> plans.Wanted:  # noqa: ANN401 - of what is wanted
    return plans.Wanted(
        **{
            "model": model,
            "gpus": gpus,
            "batch": 16,
            "sequence": 16,
            "settings": {},
            "of_sequence": 1,
            **more,
        }
    )


@pytest.mark.parametrize("model", [TOY, MIXED])
@pytest.mark.parametrize("room", [None, 320e3])
def test_the_plan_is_what_a_search_through_everything_finds(model: Model, room: float | None) -> None:
    on = machine(Described(RATES))
    found = plans.plan(wanted(model, room=room), on)
    best: dict[tuple[int, ...], float] = {}
    degrees = product((1, 2, 4, 8), repeat=5)
    ways = list(product((1, 2, 3, 4, 6, 8), (1, 2, 4), (0, 1, 2, 3), ("none", "selective", "full")))
    for dp, tp, pp, cp, ep in degrees:
        if dp * tp * pp * cp != 8 or 16 % dp:
            continue
        for v, b, zero, recompute in ways:
            how = {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "vpp": v, "zero": zero}
            try:
                layout = Layout(
                    **how,  # type: ignore[arg-type]
                    micro_batches=max(1, 16 // dp // b),
                    recompute=recompute,  # type: ignore[arg-type]
                    sequence_parallel=tp > 1,
                    sync="every" if zero == 2 else None,
                    uneven=True,
                )
                one = Step(model, layout, 16, 16)
            except UsageError:
                continue
            if 16 // dp % b or (room is not None and memory(one).total > room):
                continue
            key = dp, tp, pp, cp, ep
            best[key] = min(best.get(key, 1e9), step_time(one, on).total)
    assert {key_of(one): one.time.total for one in found.layouts} == pytest.approx(best, rel=0.02)
    assert [one.time.total for one in found.layouts] == sorted(one.time.total for one in found.layouts)


def test_zero_is_tried_as_the_optimizer_takes_time_too() -> None:
    on = machine(Described(RATES), speed=Speed(1e9, 1e3))
    for replicas, zero in ((1, 0), (4, 1)):
        (one,) = plans.plan(wanted(gpus=replicas * 2, settings={"dp": replicas, "tp": 2, "pp": 1, "cp": 1}), on).layouts
        assert one.step.layout.zero == zero


@pytest.mark.parametrize(("per_host", "words"), [(4, ("between", "inside")), (3, ())])
def test_a_plan_limits_nodes_of_a_token_where_hosts_have_whole_groups(per_host: int, words: tuple[str, ...]) -> None:
    model = msgspec.structs.replace(MIXED, nodes_per_token=1)
    settings = {"dp": 8, "ep": 8, "tp": 1}
    (one,) = plans.plan(wanted(model, settings=settings), machine(Described(RATES), per_host=per_host)).layouts
    rows = [each for each in traffic(one.step) if each.dimension == "ep"]
    assert rows
    assert {each.what.split()[1] for each in rows if " " in each.what} == set(words)


def key_of(one: plans.Planned) -> tuple[int, ...]:
    layout = one.step.layout
    return layout.dp, layout.tp, layout.pp, layout.cp, layout.ep


def test_a_plan_says_what_it_rests_on() -> None:
    found = plans.plan(wanted(settings={"dp": 2, "tp": 4}), machine(Fixed(1e-4), overlap=0.0)).layouts[0]
    calls = sum(row.messages for row in traffic(found.step)) * 1e-4
    assert found.ends(machine(Fixed(1e-4), overlap=0.0)) == pytest.approx(
        (found.time.total, found.time.total + 2 * calls)
    )
    assert found.extrapolated == ("far",)
    assert found.not_validated == 0
    flop = flop_per_token(TOY, 16, causal=True) * 16 * 16
    assert found.share_of_peak(2e9, causal=True) == pytest.approx(flop / 8 / 2e9 / found.time.total)


def test_rules_are_orders_of_what_is_sent_and_waited_for() -> None:
    on = machine(Described(RATES))
    found = plans.plan(wanted(gpus=16), on)
    one = plans.with_most_dimensions(found)
    assert sum(getattr(one.step.layout, name) > 1 for name in ("dp", "tp", "pp", "cp")) == 4
    rows = traffic(one.step)
    orders = {order.by: order for order in plans.compare_rules(one, on)}
    assert list(orders) == ["bytes", "messages", "exposed time", "twice the latency"]
    assert orders["bytes"].values == {name: sent(rows, name) for name in ("tp", "cp", "pp", "dp")}
    for order in orders.values():
        values = [order.values[name] for name in order.dimensions]
        assert values == sorted(values, reverse=True)
        assert order.holds == (order.dimensions == ("tp", "cp", "pp", "dp"))
    assert sum(orders["exposed time"].values.values()) == pytest.approx(one.time.communication)


@pytest.mark.parametrize("delays", [(0.0, 0.0), (0.0, 4e-6)])
def test_latency_that_was_not_described_is_not_judged(delays: tuple[float, float]) -> None:
    """Without a delay of every call, what twice of it costs cannot be told; without any, nor what half of it saves."""
    on = machine(Described(Rates(100e9, 10e9, *delays, per_host=4)))
    one = plans.with_most_dimensions(plans.plan(wanted(gpus=16), on))
    orders = {order.by: order for order in plans.compare_rules(one, on)}
    latency = orders.pop("twice the latency")
    assert (latency.values, latency.dimensions, latency.holds) == ({}, (), None)
    assert all(order.values for order in orders.values())
    assert ("half the latency" in plans.sensitivity(one, on)) == any(delays)


def test_scaling_keeps_the_batch_of_a_rank_or_of_all() -> None:
    on = machine(Described(RATES), overlap=0.0)
    one = plans.plan(wanted(settings={"dp": 4, "tp": 2, "micro_batch": 1}), on).layouts[0]
    weak, strong = plans.scaling(one, on)
    assert [gpus for gpus, _ in weak.points] == [2 << power for power in range(16)]
    assert [gpus for gpus, _ in strong.points] == [2, 4, 8, 16, 32, 64, 128, 256], "replicas up to 16, then cp up to 8"
    assert {time.compute for _, time in weak.points} == {one.time.compute}
    assert [time.compute * gpus for gpus, time in strong.points] == pytest.approx([8 * one.time.compute] * 8)
    assert not any(time.exposed.get("cp") for _, time in strong.points[:5])
    assert all(time.exposed["cp"] for _, time in strong.points[5:])
    slow = Machine(Speed(1e15), 4, Described(RATES), 0.0)
    assert plans.scaling(one, slow)[0].takes_over == 2


def test_scaling_leaves_out_what_does_not_fit() -> None:
    on = machine(Described(RATES))
    one = plans.plan(wanted(settings={"dp": 8, "zero": 3, "micro_batch": 1}), on).layouts[0]
    weak, strong = plans.scaling(one, on, one.memory.total)
    assert [gpus for gpus, _ in weak.points] == [8 << power for power in range(14)]
    assert [gpus for gpus, _ in strong.points] == [8, 16, 32, 64, 128, 256]


def test_rules_on_one_dimension_say_nothing() -> None:
    assert plans.Order("bytes", {"tp": 1.0}).holds is None
    assert plans.Order("bytes", {"tp": 1.0, "dp": 2.0}).holds is False


def test_the_busiest_experts_compute_more() -> None:
    """Without a shared one and but for router and attention, x times as much."""
    even, uneven = (
        step_time(Step(MIXED, Layout(dp=4, ep=4), 4, 16, imbalance=x), machine()).compute for x in (1.0, 3.0)
    )
    chosen = MIXED.top_k * one_expert(MIXED) * MIXED.expert_layers
    assert uneven - even == pytest.approx(2 * 6 * chosen * 16 / 1e9)


def test_sixteen_thousand_gpus_are_few_thousand_steps() -> None:
    llama = models()["Llama 3 405B"]
    on = Machine(Speed(600e12), 8, Described(Rates(400e9, 47e9, 2e-6, 5e-6, 8)), 0.8)
    found = plans.plan(wanted(llama, 16384, batch=2048, sequence=8192, room=80e9, of_sequence=8192), on)
    assert found.tried < 5000
    best = found.layouts[0]
    assert best.step.layout.gpus == 16384
    assert best.memory.total <= 80e9
    assert 0.35 < best.share_of_peak(989e12, causal=True) < 0.6


# --- the command ---------------------------------------------------------------------------------------------------


TOY_FILE = """
[[model]]
name = "Toy"
layers = 8
hidden = 64
heads = 4
kv_heads = 4
head_dim = 16
ffn = 128
vocabulary = 128
sequence = 64
batch = 16
dtype = "float32"
source = "https://example.org/toy"
looked_up = "2026-11"
"""
SAMPLE = Path(__file__).parents[2] / "results" / "samples" / "vm" / "20261121T081628.085Z-4ad500"
STORED = Path(__file__).parents[1] / "data"
NETWORK = "--network rail:nic=50GB/s,inner=450GB/s,delay=5us"


@pytest.fixture
def toy(tmp_path: Path) -> str:
    path = tmp_path / "toy.toml"
    path.write_text(TOY_FILE, encoding="utf-8")
    return f"--model {shlex.quote(str(path))}"


def asked(words: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["training", "plan", *shlex.split(words), "--json"])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_the_command_prints_layouts_with_their_parts(tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    words = f"--model 'Llama 3 8B' --gpus 64 {NETWORK} --compare-rules --plot {shlex.quote(str(picture))} --top 5"
    document = asked(words)
    assert len(document["layouts"]) == 5
    for one in document["layouts"]:
        assert sum(one["parts"].values()) == pytest.approx(one["seconds"])
        assert one["memory_bytes"] <= 81559 << 20
        assert set(one["parts"]) == {"compute", "bubble", "optimizer", *DIMENSIONS}
        assert one["binds"] in one["parts"]
    assert set(document["sensitivity"]) == {one.name for one in plans.SCENARIOS}
    assert len(document["rules"]["orders"]) == 4
    assert set(document["scaling"]) == {"weak", "strong"}
    of_machine = {"network", "compute", "overlap", "slowdown", "memory", "gradients", "sync"}
    assert set(document["assumed"]) == {"gpu", "batch", *of_machine}
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize(("sequence", "batch", "cp"), [(8192, 128, 1), (131072, 128, 16), (8192, 8, 128)])
def test_only_long_sequences_are_divided_unless_the_rest_computes_little(sequence: int, batch: int, cp: int) -> None:
    """As in Llama 3, whose ranks have 8192 tokens of the longest sequences."""
    on = machine_of("bfloat16", 128, None, network=network_named("4X NDR"))
    asked_for = wanted(models()["Llama 3 8B"], 128, batch=batch, sequence=sequence, of_sequence=8192)
    found = plans.plan(asked_for, on.machine)
    assert max(planned.step.layout.cp for planned in found.layouts) == cp
    assert found.short is (batch == 128), "whether shorter ones were left out"


def test_a_plan_that_fits_nothing_says_how_many_gpus_would() -> None:
    on = machine(Described(RATES))
    with pytest.raises(AnalysisError, match="use 8 GPUs, or more memory"):
        plans.plan(wanted(gpus=4, room=250e3), on)
    assert plans.plan(wanted(gpus=8, room=250e3), on).layouts


def printed(words: str) -> str:
    result = CliRunner().invoke(main, ["training", "plan", *shlex.split(words)], env={"COLUMNS": "1000"})
    assert result.exit_code == 0, result.output
    return result.stdout


ONE_HOST: Final = "--model 'Llama 3 8B' --gpus 8 --gpu 'A100 SXM4 80 GB' --network '4X NDR'"


def test_a_plan_that_fills_the_memory_names_one_with_a_reserve() -> None:
    document = asked(ONE_HOST)
    best, other = document["layouts"][0], document["with_reserve"]
    assert document["closing"]["memory_share"] == pytest.approx(best["memory_bytes"] / document["gpu_memory_bytes"])
    assert best["memory_bytes"] * 1.08 > document["gpu_memory_bytes"] > other["memory_bytes"] * 1.08
    assert other["seconds"] > best["seconds"]
    assert asked(f"{ONE_HOST} --gpu-memory 1TiB")["with_reserve"] is None


def test_calls_inside_a_host_are_measured_there() -> None:
    text = " ".join(printed(ONE_HOST).replace("# ", "").split())
    assert "busbw run --ranks 8 --backend nccl --op" in text
    assert "srun" not in text


def test_the_row_of_a_measured_layout_has_the_measured_time() -> None:
    layout = asked(ONE_HOST)["layouts"][0]["layout_option"]
    text = printed(f"{ONE_HOST} --top 1 --measured '--layout={layout}: 133s'")
    answer = text.splitlines()[0]
    assert "takes 133 s (measured), MFU 65 %" in answer
    assert re.search(r" 133 s +measured, 1.* s predicted ", text)
    assert re.search(r" compute +65 |of peak: 65 %", text)


@pytest.mark.parametrize(
    ("now", "change", "said"),
    [
        (129.2, -0.004, "changes nothing"),
        (129.2, -0.005, "gives -1 %"),
        (129.0, -0.5, "gives 64.5 s (-50 %)"),
    ],
)
def test_a_gain_is_said_as_far_as_its_digits_show_it(now: float, change: float, said: str) -> None:
    assert gain(now, change - 1e-9) == said


def test_a_plan_closes_on_what_one_measured_step_would_tell() -> None:
    words = "--model 'Llama 3 8B' --gpus 16 --network '4X NDR' --layout tp=2,pp=1,cp=1"
    before = asked(words)
    closing = before["closing"]
    assert -0.6 < closing["gains"]["GPU"] < closing["gains"]["memory"] < 0
    assert closing["never_held"] == []
    assert {"all_gather", "reduce_scatter"} <= set(closing["not_validated"])
    slow = 1.1 * before["layouts"][0]["seconds"]
    after = asked(f"{words} --measured 'dp=8,tp=2,zero=1,sequence-parallel=yes:{slow}s'")
    factors = {factor["name"]: factor for factor in after["calibration"]}
    assert factors["kernels"]["determined"]
    assert 1 < factors["kernels"]["value"] < 1.1
    assert before["layouts"][0]["seconds"] < after["layouts"][0]["seconds"] < slow
    spans = [each["closing"]["high_seconds"] - each["closing"]["low_seconds"] for each in (before, after)]
    assert spans[1] < 0.8 * spans[0]
    assert after["measured"][0]["near"]
    assert after["closing"]["narrowed_seconds"] == pytest.approx(spans[1] / 2, rel=1e-2)
    best = before["layouts"][0]["layout_option"]
    same = asked(f"{words} --measured '{best}:{slow}s'")
    assert (same["layouts"][0]["layout_option"], same["measured"][0]["near"]) == (best, True)
    measured = [each["closing"]["measured_seconds"] for each in (before, after, same)]
    assert measured == [None, None, slow], "of this layout, not of a like one"
    far = f"--measured 'dp=8,tp=2,zero=1,sequence-parallel=yes:{2 * slow}s'"
    alone = asked(f"{words} {far}")
    assert not alone["measured"][0]["near"]
    assert alone["measured"][0]["predicted_seconds"] < 2 * slow / 1.5
    assert alone["calibration"] is None
    assert (alone["layouts"], closing) == (before["layouts"], alone["closing"])
    both = asked(f"{words} {far} --measured 'dp=8,tp=2,zero=1,sequence-parallel=yes:{slow}s'")
    assert [each["near"] for each in both["measured"]] == [False, True]
    assert (both["calibration"], both["layouts"]) == (after["calibration"], after["layouts"])


def test_a_measured_layout_takes_what_was_measured_whatever_others_take() -> None:
    """Also with tp 8, whose experts' traffic a plan counts by hosts and a measured step does not."""
    step = Step(models()["Llama 3 8B"], Layout(dp=2, tp=8, sequence_parallel=True), 16, 8192, "float32", 1.0, 8)
    other = replace(step, layout=replace(step.layout, zero=1))
    measured = [(replace(step, ranks_per_host=None), seconds) for seconds in (3.0, 2.0, 9.0)]
    assert plans.measured_seconds(step, measured) == 3.0
    assert plans.measured_seconds(other, measured) is None


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("iteration {}/ 99 | elapsed time per iteration (ms): 2000.0 |", 2.0),
        (
            "[titan] 2025-02-01 00:00:00,000 - root - INFO - step: {}  loss:  7.1  tps: 5,678  mfu: 33.75%",
            512 * 8192 / 16 / 5678,
        ),
    ],
    ids=["time", "tokens"],
)
def test_a_training_log_is_a_measured_step(line: str, seconds: float, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(line.format(step) + "\n" for step in range(1, 40)))
    step, read_seconds = measured_step(f"dp=8,tp=2,zero=1: {log}", models()["Llama 3 8B"], 512, 8192)
    assert (step.layout.dp, step.layout.tp, step.layout.zero) == (8, 2, 1)
    assert read_seconds == pytest.approx(seconds)


def test_a_card_of_the_catalogue_is_a_network() -> None:
    document = asked("--model 'Llama 3 8B' --gpus 16 --network '4X NDR' --gpu 'H200 SXM' --achieved 50% --overlap 1")
    assert document["flop_per_second"] == 0.5 * 989e12
    assert document["gpu_memory_bytes"] == pytest.approx(0.95 * (143771 << 20))
    assert document["overlap"] == 1


def test_a_plan_for_one_gpu_sends_nothing(toy: str) -> None:
    words = f"{toy} --gpus 1 {NETWORK} --achieved 50% --layout gradients=float32"
    document = asked(f"{words} --compare-rules")
    (one,) = document["layouts"]
    assert one["layout"]["gpus"] == 1
    assert one["calls"] == sum(one["parts"][name] for name in DIMENSIONS) == 0
    assert one["low_seconds"] is None
    assert {each["holds"] for each in document["rules"]["orders"]} == {None}
    shown = CliRunner().invoke(main, ["training", "plan", *shlex.split(words)])
    assert shown.exit_code == 0, shown.output


def test_a_plan_from_a_run_takes_its_calls(toy: str) -> None:
    words = f"{toy} --gpus 4 --from {SAMPLE} --achieved 1e9 --layout tp=4,sequence-parallel=no,micro-batch=4"
    (one,) = asked(words)["layouts"]
    step = Step(models(Path(shlex.split(toy)[-1]))["Toy"], Layout(tp=4, micro_batches=4), 16, 64)
    curve = Questions(read_results([read(SAMPLE)])).curve("all_reduce", 4, 1)
    assert curve is not None
    sizes = [point.size_bytes for point in curve.points]
    seconds = [mean(point.launch_means_ns) for point in curve.points]
    whole = sum(other.messages * float(np.interp(other.size_bytes, sizes, seconds)) / 1e9 for other in traffic(step))
    assert one["parts"]["tp"] == pytest.approx(whole)


@pytest.mark.parametrize("op", ["ping_pong", "all_gather"])
def test_a_call_that_was_measured_has_its_own_price_and_larger_ones_grow_as_predicted(op: str) -> None:
    """A message was half of half a round trip, and a call that no fit describes was the price of messages."""
    cases = [case(op, 1 << power, 2) for power in range(10, 25, 2)]
    questions = Questions(read_results([synthetic_run(cases, World())]))
    curve, prices = questions.curve(op, 2, 1), Measured(questions)
    assert curve is not None
    called = "send_recv" if op == "ping_pong" else op
    for point in curve.points:
        price = prices.price(called, point.size_bytes, Group(2, 1, 1))
        assert price.seconds * 1e9 == pytest.approx(mean(point.launch_means_ns))
        assert not price.extrapolated
    predicted = [row.seconds.value for row in questions.predict(op, 2, [1 << 24, 1 << 26], hosts=1).forecasts]
    twice = [prices.price(called, size, Group(2, 1, 1)) for size in (1 << 24, 1 << 26)]
    assert twice[1].seconds / twice[0].seconds == pytest.approx(predicted[1] / predicted[0])
    assert twice[1].extrapolated


def test_the_gpu_is_that_of_the_run() -> None:
    log = STORED / "logs" / "nccl-tests-2.19.txt"
    found = gpu_of_runs(read_results([find(STORED, str(log)).read()]))
    assert found is not None
    assert found.name == "H100 SXM5"
    assert gpu_of_runs(read_results([read(SAMPLE)])) is None, "its ranks were on processors"


def test_what_a_run_does_not_tell_the_network_does() -> None:
    document = asked(
        f"--model 'Llama 3 8B' --gpus 8 --from {SAMPLE} --achieved 1e12 --layout dp=8 --ranks-per-host 4 {NETWORK}"
    )
    assert document["layouts"][0]["origins"] == ["rail:nic=50GB/s,inner=450GB/s,delay=5us"]


def test_messages_of_more_ranks_at_once_are_the_price_of_one() -> None:
    cases = [case(op, 1 << power, 4) for op in ("send_recv", "all_reduce") for power in range(10, 25, 2)]
    questions = Questions(read_results([synthetic_run(cases, World())]))
    measured = {
        row.size_bytes: row.seconds.value for row in questions.predict("send_recv", 4, [1 << 20], hosts=1).forecasts
    }
    price = Measured(questions, shared=False).price("send_recv", 1 << 20, Group(2, 1, 1))
    assert price.seconds == pytest.approx(measured[1 << 20])


def test_nothing_has_a_price_where_nothing_tells() -> None:
    class Silent:
        def price(self, op: str, size_bytes: int, group: Group) -> Price:
            message = f"nothing tells of {op} of {size_bytes} B on {group.ranks}"
            raise AnalysisError(message, code="no-price")

    found = plans.plan(wanted(gpus=1), machine(Silent()))
    assert not found.layouts[0].time.prices
    with pytest.raises(AnalysisError) as error:
        plans.plan(wanted(gpus=2), machine(Silent()))
    assert error.value.code == "no-price"
