"""Steps that others have published, against the formula of a step with one share of the datasheet for all GPUs."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from busbw.system.catalog import catalogue
from busbw.system.named import gpu_named
from busbw.workloads.model_rows import Model, flop_per_token, models
from busbw_analysis.training.layout import Layout, Step
from busbw_analysis.training.machine import DELAYS, OF_DATASHEET
from busbw_analysis.training.prices import Described, Rates
from busbw_analysis.training.step_time import Machine, step_time

TESTS = Path(__file__).parents[1]
REPORTS = tomllib.loads((TESTS / "models" / "published_steps.toml").read_text(encoding="utf-8"))["report"]
DOCUMENT = (TESTS.parent / "docs" / "training.md").read_text(encoding="utf-8")
NEAR = 0.2
MEGATRON_VOCABULARY = 51200


@dataclass(frozen=True)
class Row:
    report: dict[str, Any]
    number: int

    @property
    def given(self) -> dict[str, Any]:
        return self.report | dict(zip(self.report["columns"], self.report["rows"][self.number], strict=True))

    @property
    def model(self) -> Model:
        row, given = models()[self.report["model"]], self.given
        if "hidden" not in given:
            return row
        heads, hidden = given["heads"], given["hidden"]
        shape = {"heads": heads, "kv_heads": heads, "head_dim": hidden // heads, "hidden": hidden, "ffn": 4 * hidden}
        return msgspec.structs.replace(
            row, **shape, layers=given["layers"], vocabulary=MEGATRON_VOCABULARY, sequence=2048, positions=2048
        )

    @property
    def step(self) -> Step:
        given = self.given
        how = dict(given["layout"])
        if how.get("scatter_gather"):
            how["scatter_gather"] = given["tp"] > 1 < given["pp"]
        layout = Layout(
            **how,
            **{name: given[name] for name in ("dp", "tp", "pp", "cp", "interleave") if name in given},
            micro_batches=given["batch"] // given["dp"] // given["micro_batch"],
        )
        return Step(self.model, layout, given["batch"], given["sequence"])

    @property
    def published(self) -> float:
        """Seconds of a step; FLOP of Megatron's by its equation 3, with the forward pass computed twice."""
        given, step = self.given, self.step
        if "seconds" in given:
            return float(given["seconds"])
        tokens, s, h, layers = step.batch * step.sequence, step.sequence, step.model.hidden, step.model.layers
        flop = 96 * tokens * layers * h**2 * (1 + s / (6 * h) + step.model.vocabulary / (16 * layers * h))
        if "hidden" not in given:
            flop = flop_per_token(step.model, s, causal=True) * tokens
        return float(flop / (step.layout.gpus * given["tflops"] * 1e12))

    @property
    def predicted(self) -> float:
        gpu = gpu_named(catalogue(), self.report["gpu"])
        rows = catalogue().rates
        link = next(row for row in rows if row.name == gpu.link)
        card = next(row for row in rows if row.name == self.report["nic"])
        inner = (gpu.links or 0) * (link.practical_bytes_per_second or link.bytes_per_second)
        rates = Rates(inner, card.practical_bytes_per_second or card.bytes_per_second, *DELAYS, 8)
        machine = Machine(
            OF_DATASHEET * gpu.flops["bfloat16"],
            8,
            Described(rates),
            self.report["overlap"],
            gpu.practical_memory_bytes_per_second or gpu.memory_bytes_per_second,
            causal="hidden" not in self.given,
        )
        return step_time(self.step, machine).total

    @property
    def off(self) -> float:
        """Share of the published time that the predicted one is more."""
        return self.predicted / self.published - 1


ROWS = [Row(report, number) for report in REPORTS for number in range(len(report["rows"]))]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.report['name']} {row.number}")
def test_published_steps_are_near_or_explained(row: Row) -> None:
    off = abs(row.off)
    why = row.report.get("why", {}).get(str(row.number))
    assert (off > NEAR) == (why is not None), f"{off:.1%}"
    assert off < 0.3


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: str(report["name"]))
def test_the_document_says_how_far_the_predictions_are_off(report: dict[str, Any]) -> None:
    off = sorted(row.off for row in ROWS if row.report is report)
    least, most = (f"{share:+.0%}".replace("%", "").replace("-", "−") for share in (off[0], off[-1]))
    assert f"| {report['name']} | {len(off)} | {least} to {most} % |" in DOCUMENT
    near = sum(abs(row.off) <= NEAR for row in ROWS)
    assert f"{near} of {len(ROWS)} published steps" in " ".join(DOCUMENT.split())


def test_there_are_three_reports_or_more_with_their_tables() -> None:
    assert len(REPORTS) >= 3
    for report in REPORTS:
        assert report["source"].startswith("https://")
        assert report["table"]
        assert report["checked"]
        assert report["assumed"]


def test_flop_of_full_attention_would_make_the_step_of_long_sequences_longer() -> None:
    """Table 4 of Llama 3 does not say which FLOP its 380 TFLOP/s count: 10.9 s (causal), or 15.3 s (full)."""
    row = ROWS[-1]
    tokens = row.step.batch * row.step.sequence
    full = flop_per_token(row.model, row.step.sequence, causal=False) * tokens / (16384 * row.given["tflops"] * 1e12)
    assert (row.published, full) == pytest.approx((10.9, 15.28), rel=1e-3)
    assert row.predicted / full - 1 == pytest.approx(-0.36, abs=0.005)


def test_without_parts_of_a_stage_llama_3_would_be_far_from_its_paper() -> None:
    """What is assumed matters: the paper's own interleaving is needed for its own numbers."""
    row = next(row for row in ROWS if row.report["name"] == "Llama 3" and row.number == 1)
    given = {**row.report, "rows": [[*line[:-2], 1, line[-1]] for line in row.report["rows"]]}
    assert Row(given, 1).predicted / row.published > 1.4
