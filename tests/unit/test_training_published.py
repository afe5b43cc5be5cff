"""Steps that others have published, against the formula of a step with the kernels' times by shape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from training_truth import Row, places, published, reports

from busbw.workloads.model_rows import flop_per_token
from busbw_analysis.training.step_time import step_time

DOCUMENT = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
NEAR = 0.15
REPORTS = reports()
ROWS = [published(report, number) for report in REPORTS for number in range(len(report["rows"]))]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.group} {row.step.layout.gpus}")
def test_published_steps_are_near_or_explained(row: Row) -> None:
    report = next(report for report in REPORTS if report["name"] == row.group)
    number = [other for other in ROWS if other.group == row.group].index(row)
    why = report.get("why", {}).get(str(number))
    assert (abs(row.off) > NEAR) == (why is not None), f"{row.off:.1%}"
    assert abs(row.off) < 0.3


def test_what_is_far_from_its_siblings_does_the_same_work_in_more_time() -> None:
    """A stage's share of a step for one micro-batch, where model, tp, pp and micro-batch are the same."""

    def each(report: str, number: int) -> tuple[float, str]:
        row = published(next(other for other in REPORTS if other["name"] == report), number)
        layout, time = row.step.layout, step_time(row.step, row.machine)
        once = time.exposed.get("dp", 0.0) + time.optimizer
        same = (row.step.model, layout.tp, layout.pp, row.step.micro_batch, row.step.layout.recompute)
        return (row.seconds - once) / (layout.micro_batches + (layout.pp - 1) / layout.vpp), str(same)

    for report in REPORTS:
        for sibling in report.get("siblings", {}).items():
            known, same = each(*sibling)
            for number in map(int, report["why"]):
                seconds, own = each(report["name"], number)
                assert (seconds > 1.15 * known, own) == (True, same)


def test_steps_of_opt_are_near_if_nothing_is_hidden() -> None:
    row = published(next(report for report in REPORTS if report["name"] == "OPT-175B"), 0)
    alone = replace(row, machine=replace(row.machine, overlap=0.0))
    assert 100 * alone.predicted / row.seconds == pytest.approx(95.4, abs=0.5)


def test_the_document_says_how_many_are_near_and_names_the_others() -> None:
    far: dict[str, list[int]] = {}
    for row in ROWS:
        if abs(row.off) > NEAR:
            far.setdefault(row.group, []).append(round(100 * row.off))
    ends = {name: dict.fromkeys((min(offs), max(offs))) for name, offs in far.items()}
    others = [f"{name} ({' to '.join(f'{off:+}' for off in of_report)} %)" for name, of_report in ends.items()]
    near = f"{len(ROWS) - sum(map(len, far.values()))} of {len(ROWS)} published steps are within 15 %"
    text = " ".join(DOCUMENT.split()).replace("-", "−")
    assert f"{near}, not those of {' and '.join(others)}".replace("-", "−") in text


def test_the_document_says_where_plans_have_the_published_layouts() -> None:
    found = list(places())
    assert {place.name for place in found if place.place == 1} >= {"Llama 3", "Smith et al. 2022"}
    gains = [place.gain for place in found if place.gain is not None]
    assert len(gains) == len(found) == len(ROWS)
    text = " ".join(DOCUMENT.split())
    assert f"{sum(place.in_first_tenth for place in found)} of {len(found)} published layouts are" in text
    assert f"{100 * median(gains):.0f} % faster than the published (median; at most {100 * max(gains):.0f} %)" in text


def test_there_are_three_reports_or_more_with_their_tables() -> None:
    assert len(REPORTS) >= 3
    for report in REPORTS:
        assert report["source"].startswith("https://")
        assert report["table"]
        assert report["checked"]
        assert report["assumed"]


def _llama(number: int) -> Row:
    return published(next(report for report in REPORTS if report["name"] == "Llama 3"), number)


def test_flop_of_full_attention_would_make_the_step_of_long_sequences_longer() -> None:
    """Table 4 of Llama 3 does not say which FLOP its 380 TFLOP/s count: 10.9 s (causal), or 15.3 s (full)."""
    row = _llama(2)
    tokens = row.step.batch * row.step.sequence
    full = flop_per_token(row.step.model, row.step.sequence, causal=False) * tokens / (16384 * 380e12)
    assert (row.seconds, full) == pytest.approx((10.9, 15.28), rel=1e-3)
    assert row.predicted / full < 0.75


def test_without_parts_of_a_stage_llama_3_would_be_far_from_its_paper() -> None:
    """What is assumed matters: the paper's own interleaving is needed for its own numbers."""
    row = _llama(1)
    alone = replace(row, step=replace(row.step, layout=replace(row.step.layout, vpp=1)))
    assert alone.predicted / row.seconds > 1.4
