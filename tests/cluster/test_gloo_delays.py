"""How many delays of the network a small call by Gloo takes, held against what its programs take when executed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from bed import Bed, Network, Ranks
from exhaustive import thinned
from measured import measured
from testing.narrow import require_type
from testing.plans import STEADY, plan_text, sweep

from busbw.runs import store
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import load
from busbw_analysis.models.costs import CostModel
from busbw_analysis.models.select import model_for

OPS = (
    *("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "gather", "scatter"),
    *("barrier", "send_recv"),
)
PAIRS = ("ping_pong", "pair_uni", "pair_bidir")
DELAYS_MS = (1, 6)
SIZE_BYTES = 1024
RATE_MBIT = 100
LARGE_BYTES = 2 << 20
"""A message of this size takes a sixth of a second at that rate, beside which a delay is nothing."""

TIMING = {**STEADY, "min_samples": 6, "max_seconds": 0.5}


def expected(op: str, hosts: int) -> float:
    """What the model says; of a broadcast on 4 hosts one less (tests/unit/test_gloo.py says why)."""
    row = require_type(CostModel, model_for(op, "gloo"))
    return row.rounds(hosts, 1, SIZE_BYTES) - (1 if (op, hosts) == ("broadcast", 4) else 0)


@pytest.fixture(scope="module")
def ranks(network_of_module: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with Ranks(network_of_module, tmp_path_factory.mktemp("told")) as ranks:
        yield ranks


@pytest.mark.timeout(600)
@pytest.mark.parametrize("hosts", thinned((4, 2, 3), 3))
@measured
def test_delays_of_gloo_are_those_of_its_programs(network: Bed, ranks: Ranks, tmp_path: Path, hosts: int) -> None:
    results = Path(mkdtemp(dir=tmp_path))
    ops = (*OPS, *(PAIRS if hosts == 2 else ()))
    plan = results / "plan.toml"
    plan.write_text(plan_text(sweep(",".join(ops), str(SIZE_BYTES)), timing=TIMING), encoding="utf-8")
    took_ms: dict[tuple[str, int], float] = {}
    for delay_ms in DELAYS_MS:
        network.set_network(Network(1000, delay_ms))
        here = results / f"{delay_ms}ms"
        options = ("--plan", plan, "--results-dir", here, "--quiet")
        ends = ranks.run(*options, hosts=network.names[:hosts])
        assert [end.code for end in ends] == [0] * hosts, ends
        for curve in judge(load([*store.folders(here)])).curves:
            took_ms[curve.series.key.op, delay_ms] = curve.series.points[0].time_ns / 1e6
    short, long = DELAYS_MS
    counted = {op: (took_ms[op, long] - took_ms[op, short]) / (long - short) for op in ops}
    # What a busy machine adds is a part of a delay, and the counts are whole numbers.
    assert counted == pytest.approx({op: expected(op, hosts) for op in ops}, abs=0.4)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("hosts", thinned((4, 2, 3), 3))
@measured
def test_messages_of_a_broadcast_share_the_link_of_who_sends_them(
    network: Bed, ranks: Ranks, tmp_path: Path, hosts: int
) -> None:
    results = Path(mkdtemp(dir=tmp_path))
    plan = results / "plan.toml"
    plan.write_text(plan_text(sweep("broadcast", str(LARGE_BYTES)), timing=TIMING), encoding="utf-8")
    network.set_network(Network(RATE_MBIT, 1))
    ends = ranks.run("--plan", plan, "--results-dir", results, "--quiet", hosts=network.names[:hosts])
    assert [end.code for end in ends] == [0] * hosts, ends
    (curve,) = judge(load([*store.folders(results)])).curves
    one_message_ns = LARGE_BYTES * 8e3 / RATE_MBIT * 9038 / 8948  # of a frame the latter are data
    row = require_type(CostModel, model_for("broadcast", "gloo"))
    wanted = row.sent(hosts, 1, LARGE_BYTES)
    assert curve.series.points[0].time_ns / one_message_ns == pytest.approx(wanted, rel=0.1)
