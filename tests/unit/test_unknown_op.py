"""A stored run with an operation of another version is shown with its times; nothing fails, and nothing is invented."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner
from msgspec import structs
from testing.synthetic import Machine, case, synthetic_run, write_synthetic

from busbw.cli import listing
from busbw.cli.main import main
from busbw.errors import AnalysisError, DamagedRun
from busbw.escape import with_texts
from busbw.runs import store
from busbw.runs.records import Case, Ended, LaunchStarted, Measurement
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import pool
from busbw_analysis.data.unavailable import UNKNOWN_OP
from busbw_analysis.export import EXPORTERS
from busbw_analysis.models.results import results_of
from busbw_analysis.training.steps import steps_of

DATA: Final = Path(__file__).parents[1] / "data"
SIZES: Final = tuple(1 << power for power in range(6, 24, 4))
SIZED: Final = ("all_reduce", "all_gather", "broadcast", "ping_pong", "tcp_stream", "memory_copy", "pair_matrix")


def _renamed(stored: store.StoredRun, names: Mapping[str, str]) -> store.StoredRun:
    """The run with other names of operations."""

    def of(known: Case) -> Case:
        return structs.replace(known, op=names.get(known.op, known.op))

    rows = tuple(
        row if isinstance(row, LaunchStarted | Ended) else structs.replace(row, case=of(row.case))
        for row in stored.rows
    )
    return replace(stored, run=structs.replace(stored.run, cases=tuple(map(of, stored.run.cases))), rows=rows)


def _run(names: Mapping[str, str], hosts: tuple[str, ...] = ("n1",), seed: int = 0) -> store.StoredRun:
    cases = [case(op, size) for op in SIZED for size in SIZES]
    cases += [case("all_reduce", size, algorithm=name) for size in SIZES for name in ("ring", "of tomorrow")]
    cases += [case("barrier", 0)]
    return _renamed(synthetic_run(cases, machine=Machine(hosts=hosts), launches=2, samples=10, seed=seed), names)


COMMANDS: Final = (
    "show {a}",
    "show {a} --json",
    "report {a} {b} --output {out} --force",
    "fit {a}",
    "compare {a} {b} --force",
    "compare {a} {known} --force",
    "predict --from {a} --op {op} --ranks 4 --size 1KiB",
    "predict --from {a} --op {op} --ranks 64 --size 1KiB",
    *(f"export {{a}} --to {form} --output {{out}}.file" for form in EXPORTERS),
    *(f"export {{a}} --to {form} --samples --output {{out}}.file" for form in ("csv", "json-lines")),
    "status --results-dir {results}",
    "list runs --results-dir {results}",
)


@pytest.mark.parametrize(
    ("unknown", "hosts", "refused"),
    [
        (("all_reduce", "pair_matrix"), ("n1", "n2"), {"--ranks 64", "trace"}),
        ((*SIZED, "barrier"), ("n1",), {"--ranks 64", "trace", "nccl-tests", "osu", "{known}"}),
    ],
)
def test_every_command_answers(
    unknown: tuple[str, ...], hosts: tuple[str, ...], refused: set[str], tmp_path: Path
) -> None:
    """``refused``: words of the commands for which nothing is left, and which say so."""
    names = {op: f"*{op}" for op in unknown}
    results = tmp_path / "results"
    values: dict[str, object] = {"results": results, "out": tmp_path / "out", "op": names[unknown[0]]}
    for seed, (name, renamed) in enumerate({"a": names, "b": names, "known": {}}.items()):
        values[name] = write_synthetic(results, _run(renamed, hosts, seed))
    for words in COMMANDS:
        result = CliRunner().invoke(main, words.format(**values).split())
        assert result.exception is None or isinstance(result.exception, SystemExit), (words, result.exception)
        assert (result.exit_code == 0) != any(word in words for word in refused), (words, result.output)
        assert "delete" not in result.output, words
    assert {row["state"] for row in listing.rows("runs", results)} == {"complete"}


def test_its_times_and_rates_are_shown_and_nothing_else() -> None:
    known, unknown = (judge(pool([_run(names)])) for names in ({}, {"all_reduce": "*"}))
    assert [group.time_ns for judged_case in unknown.cases for group in judged_case.groups] == [
        group.time_ns for judged_case in known.cases for group in judged_case.groups
    ]
    curves = [curve for curve in unknown.curves if curve.series.key.op == "*"]
    same = [curve for curve in known.curves if curve.series.key.op == "all_reduce"]
    rates, expected = ([[point.busbw for point in curve.series.points] for curve in side] for side in (curves, same))
    assert rates == expected
    assert [curve.peak for curve in curves] == [curve.model for curve in curves] == [UNKNOWN_OP] * 3
    assert {verdict.status for verdict in unknown.verdicts if verdict.op == "*"} == {"not judged"}
    assert [finding.code for finding in unknown.findings].count("unknown-op") == 1
    assert "unknown-op" not in [finding.code for finding in known.findings]


@pytest.mark.parametrize("op", ["all_reduce", "pair_matrix", "barrier", "train_1f1b", "train_ddp"])
def test_any_operation_of_a_measured_run_may_be_unknown(op: str) -> None:
    stored = store.read(DATA / "runs" / "training")
    assert op in {case.op for case in stored.run.cases}
    judgement = judge(pool([_renamed(stored, {op: "*"})]))
    assert "unknown-op" in [finding.code for finding in judgement.findings]
    for exporter in EXPORTERS.values():
        with suppress(AnalysisError):
            assert exporter.cases(judgement)


def test_a_step_with_calls_of_an_unknown_operation_sends_an_unknown_number_of_bytes() -> None:
    stored = store.read(DATA / "runs" / "training")
    rows = with_texts(stored.rows, lambda text: "*" if text == "send_recv" else text)
    steps = {step.op: step.sent_bytes for step in steps_of(results_of(pool([replace(stored, rows=rows)])))}
    assert steps["train_1f1b"] is None
    assert steps["train_ddp"] is not None


@pytest.mark.parametrize("factor", [-1.0, 0.0, 1e300])
def test_a_bus_factor_that_cannot_be_is_refused(factor: float, tmp_path: Path) -> None:
    stored = _run({"all_reduce": "*"})
    rows = [
        structs.replace(row, groups=tuple(structs.replace(group, bus_factor=factor) for group in row.groups))
        if isinstance(row, Measurement) and row.case.op == "*"
        else row
        for row in stored.rows
    ]
    with pytest.raises(DamagedRun, match="bus_factor"):
        store.read(write_synthetic(tmp_path, replace(stored, rows=tuple(rows))))
