"""Pair matrices of many ranks: the numbers of all pairs at once are those of each pair by itself."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from testing.narrow import require
from testing.synthetic import Machine, World, case, synthetic_run, with_blocks, with_groups, write_synthetic

from busbw.errors import DamagedRun
from busbw.runs import store
from busbw.runs.records import JSON, GroupSamples, Measurement
from busbw_analysis.assembly.compose import compose
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data import block_columns
from busbw_analysis.data.block_columns import BlockColumns, PairBlock, group_columns, packed
from busbw_analysis.data.groups import Groups, GroupSummary
from busbw_analysis.data.load import load, pool
from busbw_analysis.data.ragged import Ragged
from busbw_analysis.report import pairs
from busbw_analysis.report.document import Table

_UNEVEN = World(launch_noise=0.3, sample_noise=0.4, slow_share=0.3, slow_seconds=3e-3, jitter_seconds=2e-6)


def _ragged(run: store.StoredRun, generator: np.random.Generator) -> store.StoredRun:
    """``run`` with blocks of other lengths: every pair stops when it will."""

    def shorter(group: GroupSamples) -> GroupSamples:
        count = int(generator.integers(1, len(group.slowest_ns) + 1))
        names = [name for name in GroupSamples.__struct_fields__ if name.endswith(("_ns", "_rank"))]
        vectors = {name: getattr(group, name) for name in names if name != "per_rank"}
        return msgspec.structs.replace(
            group, **{name: None if vector is None else vector[:count] for name, vector in vectors.items()}
        )

    return with_groups(run, shorter)


@pytest.mark.parametrize(
    ("launches", "blocks", "ragged", "shared"),
    [(1, 1, False, True), (2, 2, True, True), (6, 1, True, False), (7, 2, False, True)],
)
def test_the_numbers_of_all_pairs_are_those_of_each_pair(
    *, launches: int, blocks: int, ragged: bool, shared: bool
) -> None:
    run = synthetic_run(
        [case("pair_matrix", 1 << 10, 4, pairs="alone")],
        replace(_UNEVEN, shared_clock=shared),
        launches=launches,
        blocks=blocks,
        samples=33,
        seed=launches,
    )
    if ragged:
        run = _ragged(run, np.random.default_rng(launches))
    (summary,) = pool((run,)).summaries
    assert len(summary.groups) == 12
    for place, group in enumerate(summary.groups):
        alone = _only(run, group.ranks)
        for name in _ROUNDED:
            assert getattr(group, name) == pytest.approx(getattr(alone, name), rel=1e-12), name
        assert group == replace(alone, **{name: getattr(group, name) for name in _ROUNDED})
        assert summary.groups.time_ns[place] == group.time_ns


_ROUNDED = ("launch_means_ns", "launch_p99_ns", "spread", "tau", "outlier_share", "slow_time_share")
"""Sums and means may differ in their last bit."""


def _only(run: store.StoredRun, ranks: tuple[int, ...]) -> GroupSummary:
    """The summary of one pair, of a run that has only this one."""

    def alone(block: Measurement) -> Measurement:
        return msgspec.structs.replace(block, groups=tuple(group for group in block.groups if group.ranks == ranks))

    return pool((with_blocks(run, alone),)).summaries[0].groups[0]


def _blocks(folder: Path) -> list[PairBlock]:
    return [row for row in store.read(folder, keep=packed).rows if isinstance(row, PairBlock)]


def test_what_is_made_for_a_matrix_does_not_grow_with_its_pairs() -> None:
    """Counted, not timed: summaries of single pairs."""
    made: dict[int, int] = {}
    for ranks in (8, 18):
        run = synthetic_run(
            [case("pair_matrix", size, ranks, nodes=2, pairs="together") for size in (8, 1 << 20)],
            _UNEVEN,
            machine=Machine(hosts=("a", "b")),
            launches=3,
            samples=10,
        )
        dataset = pool((run,))
        with patch.object(Groups, "_summary", autospec=True, side_effect=Groups._summary) as group:
            compose(judge(dataset))
        made[ranks] = group.call_count
    # The report lists up to 240 pairs of each of two matrices with all their numbers; 8 ranks have 2 × 56 pairs.
    assert made[8] <= 2 * 56 + 20
    assert made[18] <= 2 * 240 + 20


def test_a_wide_row_is_decoded_in_parts_and_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = synthetic_run([case("pair_matrix", 8, 6, pairs="together"), case("barrier", 0, 6)], launches=2, samples=5)
    folder = write_synthetic(tmp_path, run)
    whole = _blocks(folder)
    monkeypatch.setattr(store, "_WIDE_BYTES", 100)
    monkeypatch.setattr(block_columns, "_AT_A_TIME", 7)
    _hold_columns(_blocks(folder), whole)
    measured = [row for row in run.rows if isinstance(row, Measurement) and row.case.op == "pair_matrix"]
    for block, row in zip(whole, measured, strict=True):
        _hold_column(block.columns, group_columns(row.groups))


@pytest.mark.parametrize("wide_bytes", [1 << 30, 100])
@pytest.mark.parametrize("name", ["last_rank", "arrival_skew_ns", "exit_span_ns"])
def test_what_one_pair_lacks_is_taken_of_none(
    name: str, wide_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = synthetic_run([case("pair_matrix", 8, 4, pairs="together")], World(), launches=1, samples=5)

    lacking = run.measurements[0].groups[4].ranks

    def without(group: GroupSamples) -> GroupSamples:
        return msgspec.structs.replace(group, **{name: None}) if group.ranks == lacking else group

    folder = write_synthetic(tmp_path, with_groups(run, without))
    monkeypatch.setattr(store, "_WIDE_BYTES", wide_bytes)
    (block,) = _blocks(folder)
    columns = {"arrival_skew_ns": "skew", "exit_span_ns": "span", "last_rank": "last_place"}
    assert len(getattr(block.columns, columns[name])) == 0
    assert len(block.columns.fastest_place) == len(block.columns.slowest) == 4 * 3 * 5


def _hold_columns(blocks: Sequence[PairBlock], wanted: Sequence[PairBlock]) -> None:
    for block, other in zip(blocks, wanted, strict=True):
        _hold_column(block.columns, other.columns)


def _hold_column(block: BlockColumns, wanted: BlockColumns) -> None:
    for field in fields(BlockColumns):
        columns = (getattr(block, field.name), getattr(wanted, field.name))
        values, expected = (column.flat if isinstance(column, Ragged) else column for column in columns)
        np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [("ranks", [0, 1, 2]), ("bus_factor", 2.0), ("fastest_ns", []), ("unknown", 1), ("slowest_ns", None)],
)
def test_a_flaw_of_a_pair_of_a_long_row_is_found(
    name: str, value: JSON, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = synthetic_run([case("pair_matrix", 8, 6, pairs="together")], launches=2, samples=5)
    folder = write_synthetic(tmp_path, run)
    path = folder / store.SAMPLES_FILE
    rows = [row for row in map(msgspec.json.decode, path.read_bytes().splitlines()) if row["kind"] != "end"]
    next(row for row in rows if row["kind"] == "measurement")["groups"][9][name] = value
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    monkeypatch.setattr(store, "_WIDE_BYTES", 100)
    with pytest.raises(DamagedRun):
        load([folder])


def test_a_large_matrix_names_its_slowest_pairs_and_says_how_many_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "_MOST_IN_A_HEATMAP", 24)
    ranks = 26
    run = synthetic_run(
        [case("pair_matrix", 1 << 20, ranks, nodes=2, pairs="together")],
        World(slow_pairs=((5, 20),), shared_clock=False),
        machine=Machine(hosts=("a", "b")),
        launches=1,
        samples=5,
    )
    judgement = judge(pool((run,)))
    section = require(pairs.pairs(judgement))
    tables = [block for block in section.blocks if isinstance(block, Table)]
    slowest = next(table for table in tables if table.columns[0].name == "Pair")
    assert slowest.rows[0][0].text == "5 → 20"
    assert len(slowest.rows) == 20
    assert str(ranks * (ranks - 1) - 20) in (slowest.note or "")
    assert max(len(table.rows) for table in tables) <= 24
