"""Real steps of training on links of known rate, held against what a plan says of them from the same run's fits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from bed import Bed, Network, Ranks
from exhaustive import EXHAUSTIVE
from measured import measured
from scipy.stats import kendalltau
from testing.plans import STEADY, plan_text, sweep

from busbw.runs import store
from busbw.runs.store import read
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import load
from busbw_analysis.predict import Questions, read_results
from busbw_analysis.training.prices import Measured
from busbw_analysis.training.slice import Training, training
from busbw_analysis.training.step_time import AS_IT_IS, Scenario
from busbw_analysis.training.step_verdicts import StepVerdict, order_kept, step_verdicts, steps
from busbw_analysis.training.steps import steps_of

RATE_MBIT, SLOW_MBIT, DELAY_MS = 100, 20, 1
ORDER, NEAR = 0.8, 0.25
"""Kendall's τ of predicted and measured times, and how far each may be off."""

TIMING = {**STEADY, "min_samples": 2, "least_samples": 2, "max_seconds": 0.3}
CALLED = "1KiB..256KiB*4"
"""Sizes of the calls from which steps are predicted."""


@pytest.fixture(params=[8, *([16] if EXHAUSTIVE else [])])
def wide(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """Hosts of a rank each, without Slurm."""
    with Bed(hosts=request.param, shared=[tmp_path_factory.getbasetemp()]) as bed:
        yield bed


def step(ops: str, micro_batches: int = 1, replicas: int = 1) -> str:
    """The sweep of a layout, or of several that are alike but for the operation."""
    keys: dict[str, object] = {"micro_batches": [micro_batches], "replicas": [replicas], "compute": "wait=100ms"}
    return sweep(ops.replace(" ", ","), models=["MLP 1024"], scale=0.125, **keys)


def sweeps_of(ranks: int) -> tuple[str, str]:
    """Six layouts whose steps take different times, on ranks that mostly wait for products; and those three of them
    whose order is another on slow links: the pipeline has little to send.
    """
    three = step("train_ddp train_fsdp_kept") + step("train_gpipe", 2, ranks // 4)
    return three + step("train_fsdp train_tensor") + step("train_tensor", 2), three


def run(ranks: Ranks, results: Path, name: str, sweeps: str, hosts: int) -> Path:
    """The folder of one run of these sweeps."""
    plan = results / f"{name}.toml"
    plan.write_text(plan_text(sweeps, timing=TIMING), encoding="utf-8")
    chosen = ranks.bed.names[:hosts]
    ends = ranks.run("--plan", plan, "--results-dir", results / name, "--quiet", hosts=chosen)
    assert [end.code for end in ends] == [0] * hosts, ends
    (folder,) = store.folders(results / name)
    return folder


def predicted(questions: Questions, scenario: Scenario = AS_IT_IS) -> dict[str, StepVerdict]:
    """The measured steps beside their predictions, each by what it is."""
    steps = (step for results in questions.results for step in steps_of(results))
    return {verdict.name: verdict for verdict in step_verdicts(steps, Measured(questions), scenario)}


def what_fast_links_tell_of_slow_ones(questions: Questions, found: dict[str, StepVerdict], slow_run: Path) -> None:
    slower = predicted(questions, Scenario("slower links", between=SLOW_MBIT / RATE_MBIT))
    slow = predicted(Questions(read_results([read(slow_run)])))
    assert len(slow) == 3
    times = [(one.step.step_ns, ns) for name, one in slow.items() if (ns := slower[name].predicted_ns)]
    assert kendalltau(*zip(*times, strict=True)).statistic >= ORDER, times
    assert max(abs(ns / measured_ns - 1) for measured_ns, ns in times) <= NEAR, times
    fast_order, slow_order = (sorted(slow, key=lambda name: told[name].step.step_ns) for told in (found, slow))
    assert fast_order != slow_order


@pytest.mark.slow
@pytest.mark.timeout(600)
@measured
def test_a_plan_keeps_the_order_of_real_steps_and_is_near_each(wide: Bed, tmp_path: Path) -> None:
    results, count = Path(mkdtemp(dir=tmp_path)), len(wide.names)
    six, three = sweeps_of(count)
    wide.set_network(Network(RATE_MBIT, DELAY_MS))
    with Ranks(wide, results) as ranks:
        calls = sweep("all_reduce,all_gather,reduce_scatter", CALLED)
        known = [
            run(ranks, results, "all", calls + six, count),
            run(ranks, results, "two", sweep("ping_pong,all_reduce", CALLED), 2),
        ]
        if count > 8:
            known.append(run(ranks, results, "replicas", sweep("all_reduce", CALLED), count // 4))
        slow_run: Path | None = None
        if EXHAUSTIVE:
            wide.set_network(Network(SLOW_MBIT, DELAY_MS))
            slow_run = run(ranks, results, "slow", three, count)
    # Two ranks say what a message takes, all what a call does: no pooling, and no other difference is looked at.
    questions = Questions(read_results([read(folder) for folder in known], force=True))
    found = predicted(questions)
    assert len(found) == 6
    errors = {name: verdict.error for name, verdict in found.items()}
    assert None not in errors.values(), [verdict.refused for verdict in found.values()]
    assert order_kept([*found.values()]) >= ORDER, errors
    assert max(abs(error or 0) for error in errors.values()) <= NEAR, errors
    if slow_run is not None:
        what_fast_links_tell_of_slow_ones(questions, found, slow_run)
    # The report ranks them, says what each waits for, and shows the errors.
    judgement = judge(load([known[0]]))
    judged = judgement.of(Training)
    for section, columns in (
        (steps(judged.verdicts), ("Over the fastest", "Waits most for")),
        (training(judgement.results, judged.verdicts, ()), ("Error",)),
    ):
        assert section is not None
        headings = {column.heading for block in section.blocks for column in getattr(block, "columns", ())}
        assert {*columns} <= headings
    assert {one.waits_for[0] for one in judged.steps} >= {"dp", "tp", "bubble"}
