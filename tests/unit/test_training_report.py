"""What a report says of training: steps beside the plan's, and plans of the models that are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from testing.synthetic import World, case, synthetic_run

from busbw.system.catalog import catalogue
from busbw.workloads.model_rows import Model, models
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import load, pool
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.report.document import Paragraph, Section, Table
from busbw_analysis.training.slice import Training
from busbw_analysis.training.slice import training as section_on

STORED = Path(__file__).parents[1] / "data" / "runs" / "training"
TOY = msgspec.structs.replace(
    models()["Llama 3 8B"], layers=8, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=128, vocabulary=128, sequence=64
)
SIZES = tuple(1 << power for power in range(10, 25, 2))
OPS = ("all_reduce", "all_gather", "reduce_scatter", "send_recv", "ping_pong")


def training(judgement: Judgement, models: Sequence[Model]) -> Section:
    return section_on(judgement.results, judgement.of(Training).verdicts, models)


@pytest.fixture(scope="module")
def small() -> Model:
    return msgspec.structs.replace(TOY, batch=16, dtype="float32")


def test_measured_steps_are_shown_folded() -> None:
    section = training(judge(load([STORED])), ())
    assert section.folded
    assert isinstance(section.blocks[0], Table)


def test_without_steps_and_models_it_is_said_how_to_name_one(small: Model) -> None:
    judgement = judge(pool([synthetic_run([case("all_reduce", size, 4) for size in SIZES], World())]))
    section = training(judgement, ())
    assert section.folded
    assert [type(block) for block in section.blocks] == [Paragraph]
    section = training(judgement, (small,))
    assert not section.folded
    assert isinstance(section.blocks[0], Paragraph), "nothing tells how long computation takes"


def test_a_model_is_planned_on_the_ranks_of_the_run(small: Model) -> None:
    cases = [case(op, size, 2 if op == "ping_pong" else 4) for op in OPS for size in SIZES]
    products = [case("matmul", 1 << 20, 4)]
    section = training(judge(pool([synthetic_run([*cases, *products], World())])), (small,))
    assert not section.folded
    answer, layouts = section.blocks[:2]
    assert isinstance(answer, Paragraph)
    assert isinstance(layouts, Table)
    assert 1 <= len(layouts.rows) <= 5
    assert answer.text.startswith(f"Fastest: {layouts.rows[0][0].text}")


def test_layouts_fit_the_gpus_of_the_run(small: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [case(op, size, 2 if op == "ping_pong" else 4) for op in OPS for size in SIZES]
    judgement = judge(pool([synthetic_run([*cases, case("matmul", 1 << 20, 4)], World())]))
    monkeypatch.setattr("busbw_analysis.training.machine.gpu_of_runs", lambda _: catalogue().gpus[0])
    large = msgspec.structs.replace(small, vocabulary=10**9)
    fits, section = (training(judgement, (model,)).blocks for model in (small, large))
    assert isinstance(fits[1], Table)
    (refused,) = section
    assert isinstance(refused, Paragraph)
