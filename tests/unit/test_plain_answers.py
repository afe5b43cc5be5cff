"""Answers say which number is meant, which option gives a fact, and each caution once and after the answer."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from testing.logs import LOGS

from busbw.cli.main import main
from busbw.system.catalog import catalogue
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.imported import LogFacts
from busbw_analysis.data.load import pool
from busbw_analysis.data.sources import find
from busbw_analysis.diagnosis.answer import answer_of
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.peaks.peaks import noun_of
from busbw_analysis.report.document import Paragraph, Table
from busbw_analysis.report.show import show_blocks, show_rows


def judged(path: Path, **given: object) -> Judgement:
    return judge(pool([find(path.parent, str(path)).read(LogFacts.stated(given, catalogue()))]))


def notes_of(judgement: Judgement) -> list[str]:
    log = judgement.runs[0].run.imported
    return [note.text for note in log.notes if note.code == "deduced"] if log is not None else []


def test_a_bandwidth_test_far_below_the_rate_of_its_nic_is_slower_and_two_bytes_are_not_judged() -> None:
    judgement = judged(LOGS / "perftest-bw.txt", hosts=2, nics="400Gb/s")
    statuses = {verdict.op: verdict.status for verdict in judgement.verdicts}
    assert statuses == {"pair_bidir": "slower", "pair_uni": "not judged"}
    assert "ibstat" in answer_of(judgement).action


def test_a_bandwidth_test_at_the_rate_of_its_nic_is_as_expected() -> None:
    judgement = judged(LOGS / "perftest-bw.txt", hosts=2, nics="100Gb/s")
    assert {"pair_bidir": "as expected"}.items() <= {v.op: v.status for v in judgement.verdicts}.items()


def test_what_others_published_is_beside_the_links_that_it_exceeds(tmp_path: Path) -> None:
    rows = "8589934592 2147483648 float sum -1 66807 128.57 225.00 0 66807 128.57 225.00 0\n"
    (tmp_path / "h100.txt").write_text(rows, encoding="utf-8")
    judgement = judged(tmp_path / "h100.txt", op="all_reduce", ranks=8, hosts=1, gpu="H100 SXM5")
    verdict = judgement.verdicts[0]
    assert (verdict.by, verdict.status) == ("published", "slower")
    assert all(number in verdict.reached for number in ("8 × H100 SXM", "480 GB/s", "450 GB/s", "NVLS"))


@pytest.mark.parametrize(
    ("given", "options"), [({}, {"--op", "--ranks"}), ({"op": "all_reduce"}, {"--ranks"}), ({"ranks": 8}, {"--op"})]
)
def test_what_columns_imply_names_the_option_of_what_is_missing(given: dict[str, object], options: set[str]) -> None:
    (note,) = notes_of(judged(LOGS / "nccl-tests-no-header.txt", **given))
    assert {option for option in ("--op", "--ranks") if option in note} == options


def test_what_a_run_measured_is_a_reference_and_no_peak() -> None:
    assert [noun_of(level) for level in ("plain TCP of a host", "memory copy of a host", "network", None)] == [
        *("reference", "reference", "peak", "peak")
    ]


def test_data_that_no_case_had_checked_are_said_once() -> None:
    judgement = judged(LOGS / "perftest-8-nics.txt")
    blocks = show_blocks(show_rows(judgement), explain=False)
    texts = [block.text for block in blocks if isinstance(block, Paragraph)]
    cells = [cell.text for block in blocks if isinstance(block, Table) for row in block.rows for cell in row]
    assert sum(text.count("not checked") for text in [*texts, *cells]) == 1
    claims = [finding.text for finding in judgement.findings if finding.code == "not-checked"]
    assert [("8" in claim, "mlx5" in claim) for claim in claims] == [(True, False)]


def test_cautions_of_a_comparison_follow_its_answer(tmp_path: Path) -> None:
    text = (LOGS / "nccl-tests-2.19.txt").read_text(encoding="utf-8")
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text(f"{name}\n{text}", encoding="utf-8")
    result = CliRunner().invoke(main, ["compare", str(tmp_path / "a.log"), str(tmp_path / "b.log")])
    assert result.exit_code == 0
    assert result.output.startswith("# ")
