"""Real steps of training on links of known rate, held against what a plan says of them from the same run's fits."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp

import pytest
from bed import Bed, Network, Ranks
from measured import measured

from busbw.runs import store
from busbw_analysis.data.load import read
from busbw_analysis.predict import Questions, read_groups
from busbw_analysis.training.held import held, order_kept

RATE_MBIT, DELAY_MS = 100, 1
ORDER, NEAR = 0.8, 0.25
"""Kendall's τ of predicted and measured times, and how far each may be off."""

TIMING = """\
[timing]
blocks = 1
min_samples = 4
least_samples = 4
min_seconds = 0.0
max_seconds = 0.8
launch_warmup_seconds = 0.2
warmup_calls = 1
"""
STEP = """
[[sweep]]
ops = [{ops}]
models = ["MLP 1024"]
scale = 0.125
micro_batches = [{micro_batches}]
compute = "wait=150ms"
"""
STEPS = (("train_ddp", "train_fsdp_kept", "train_fsdp"), 1), (("train_tensor", "train_fsdp"), 2), (("train_1f1b",), 4)
"""Six layouts whose steps take different times, on four ranks of which three wait for products while one works."""
CALLS = """
[[sweep]]
ops = ["all_reduce", "all_gather", "reduce_scatter"]
sizes = "1KiB..1MiB*4"
"""
MESSAGES = """
[[sweep]]
ops = ["ping_pong"]
sizes = "1KiB..1MiB*4"
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@measured
def test_a_plan_keeps_the_order_of_real_steps_and_is_near_each(network: Bed, tmp_path: Path) -> None:
    results = Path(mkdtemp(dir=tmp_path))
    network.set_network(Network(RATE_MBIT, DELAY_MS))
    steps = "".join(
        STEP.format(ops=", ".join(f'"{op}"' for op in ops), micro_batches=micro_batches) for ops, micro_batches in STEPS
    )
    with Ranks(network, results) as ranks:
        for name, sweeps, hosts in (("all", CALLS + steps, network.names), ("two", MESSAGES, network.names[:2])):
            plan = results / f"{name}.toml"
            plan.write_text(f'name = "{name}"\n\n{TIMING}{sweeps}', encoding="utf-8")
            ends = ranks.run("--plan", plan, "--results-dir", results / name, "--quiet", hosts=hosts)
            assert [end.code for end in ends] == [0] * len(hosts), ends
    runs = [read(folder) for name in ("all", "two") for folder in store.folders(results / name)]
    # Two ranks say what a message takes, four what a call does: no pooling, and no other difference is looked at.
    found = held(Questions(read_groups(runs, force=True)))
    assert len(found) == 6
    errors = {one.what: one.error for one in found}
    assert None not in errors.values(), [one.refused for one in found]
    assert order_kept(found) >= ORDER, errors
    assert max(abs(error or 0) for error in errors.values()) <= NEAR, errors
