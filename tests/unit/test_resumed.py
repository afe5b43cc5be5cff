"""A run that was resumed, as it is judged: what is a launch, and what is said."""

import msgspec
import pytest
from testing.synthetic import SyntheticEnd, case, synthetic_run

from busbw.runs.records import Ended, EndStatus, LaunchStarted, Measurement, Row
from busbw.runs.store import StoredRun
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import pool
from busbw_analysis.diagnosis.trust import scatter_of, trust_in

CASES = [case("all_reduce", 64), case("all_gather", 1024)]


def resumed(status: EndStatus | None = "interrupted") -> StoredRun:
    """Two launches of two blocks a case; the second broke off before its last block, which a third one measured."""
    stored = synthetic_run(CASES, launches=3, blocks=2, samples=30)
    begun: list[LaunchStarted] = [row for row in stored.rows if isinstance(row, LaunchStarted)]
    done = [[row for row in stored.measurements if row.launch == number] for number in range(3)]
    ends: list[Row] = (
        [] if status is None else [Ended(status=status, reason="Ctrl-C", ended="2026-01-02T04:00:00.000Z")]
    )
    last: Measurement = next(row for row in done[2] if (row.case, row.block) == (done[1][3].case, done[1][3].block))
    third = msgspec.structs.replace(begun[2], resumes=1, started="2026-01-03T00:00:00.000Z")
    rows: list[Row] = [begun[0], *done[0], begun[1], *done[1][:3], *ends, third, last, stored.rows[-1]]
    return StoredRun(stored.path, stored.run, tuple(rows), ())


def broken_off(blocks: int, end: SyntheticEnd | None = None) -> StoredRun:
    """Two blocks of each case in four launches, broken off when the second one had ``blocks`` blocks."""
    stored = synthetic_run(CASES, launches=4, blocks=2, samples=30, end=end)
    second = next(place for place, row in enumerate(stored.rows) if isinstance(row, LaunchStarted) and row.launch == 1)
    last = Ended(status="interrupted", reason="Ctrl-C", ended="2026-01-02T04:00:00.000Z")
    return StoredRun(stored.path, stored.run, (*stored.rows[: second + 1 + blocks], last), ())


@pytest.mark.parametrize(
    ("blocks", "end", "words"),
    [
        (3, None, "3 of 4 blocks"),
        (0, None, "0 of 4 blocks"),
        (4, None, "2 of 4 launches"),
        (1, SyntheticEnd(skipped={CASES[1]: "no such dtype"}), "1 of 2 blocks"),
    ],
)
def test_a_run_that_was_broken_off_says_how_far_it_was(blocks: int, end: SyntheticEnd | None, words: str) -> None:
    (text,) = [
        finding.text for finding in judge(pool((broken_off(blocks, end),))).findings if finding.code == "interrupted"
    ]
    assert text.startswith("Run synthetic-0 was interrupted: Ctrl-C. ")
    assert words in text


def said(stored: StoredRun) -> list[str]:
    return [finding.text for finding in judge(pool((stored,))).findings if finding.code == "resumed"]


def test_a_launch_that_resumes_another_counts_as_its_own() -> None:
    dataset = pool((resumed(),))
    launches = {number: {row.launch for _, case, row in dataset.samples.rows() if case == number} for number in (0, 1)}
    assert sorted(launches.values(), key=len) == [{0, 1}, {0, 1, 2}]
    assert sorted(summary.groups[0].launches for summary in dataset.summaries) == [2, 3]


@pytest.mark.parametrize(("stored", "launches"), [(resumed(), "2 to 3 launches a case"), (broken_off(0), "1 launch")])
def test_the_trust_names_the_launches_that_its_scatter_is_of(stored: StoredRun, launches: str) -> None:
    judgement = judge(pool((stored,)))
    text = trust_in(judgement, advise=True)[1][0]
    assert text.startswith(launches)
    assert ("scatter" in text) == (scatter_of(judgement) is not None) == (launches != "1 launch")


@pytest.mark.parametrize(
    ("launcher", "command"), [("mpirun", "mpirun -n 4 busbw run"), ("srun", "busbw submit"), ("local", "busbw run")]
)
def test_what_goes_on_with_a_run_is_started_as_it_was(launcher: str, command: str) -> None:
    stored = broken_off(0)
    run = msgspec.structs.replace(stored.run, launcher=launcher)
    judgement = judge(pool((StoredRun(stored.path, run, stored.rows, ()),)))
    (text,) = [finding.text for finding in judgement.findings if finding.code == "interrupted"]
    assert f"; {command} --resume synthetic-0 measures the rest." in text


def test_launches_that_were_added_to_a_whole_run_are_said() -> None:
    stored = resumed("complete")
    rows = [
        msgspec.structs.replace(row, resumes=None) if isinstance(row, LaunchStarted) else row for row in stored.rows
    ]
    (text,) = said(StoredRun(stored.path, stored.run, tuple(rows), ()))
    assert "launch 3 (started 2026-01-03T00:00:00.000Z, 1 block) is new" in text


def test_a_run_that_nobody_resumed_says_nothing() -> None:
    assert said(synthetic_run(CASES, launches=2, blocks=2, samples=30)) == []


@pytest.mark.parametrize(
    ("ended", "blocks", "noted"),
    [
        ("2026-01-02T23:58:00.000Z", 4, False),
        ("2026-01-02T20:00:00.000Z", 4, True),  # hours before: who compares launches has to know
        ("2026-01-02T23:58:00.000Z", 3, True),  # in the middle of a launch
    ],
)
def test_the_next_launch_of_a_world_that_is_one_launch_is_no_resumption(
    ended: str,
    blocks: int,
    noted: bool,  # noqa: FBT001 - a column of the table
) -> None:
    stored = synthetic_run(CASES, launches=2, blocks=2, samples=30)
    begun = [row for row in stored.rows if isinstance(row, LaunchStarted)]
    done = [[row for row in stored.measurements if row.launch == number] for number in range(2)]
    end = Ended(status="interrupted", reason="1 launch(es) are still missing", ended=ended)
    second = msgspec.structs.replace(begun[1], started="2026-01-03T00:00:00.000Z")
    rows: list[Row] = [begun[0], *done[0][:blocks], end, second, *done[1], stored.rows[-1]]
    assert bool(said(StoredRun(stored.path, stored.run, tuple(rows), ()))) is noted
