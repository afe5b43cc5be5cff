"""Old runs: golden ones of every schema still load, and lifting them adds nothing that was not measured."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from busbw.runs import store
from busbw.runs.records import SCHEMA


@pytest.mark.parametrize("schema", range(1, SCHEMA + 1))
def test_a_run_of_every_schema_can_still_be_read(schema: int) -> None:
    """Golden runs, each written by the busbw of its time: two launches of three cases."""
    folder = Path(__file__).parents[1] / "data" / f"schema-{schema}"
    stored = store.read(folder)
    assert stored.warnings == ()
    assert len(stored.launches) == 2
    assert {row.case.op for row in stored.measurements} == {"all_reduce", "barrier", "pair_matrix"}
    assert all(len(group.slowest_ns) == 20 for row in stored.measurements for group in row.groups)
    assert stored.end is not None
    assert stored.end.status == "complete"


OLD = Path(__file__).parents[1] / "data" / "schema-1"
NEW = Path(__file__).parents[1] / "data" / "schema-2"


def test_a_run_of_schema_1_is_lifted_without_a_guess() -> None:
    """What it recorded is untouched, and what it did not takes the default of its field; nothing else changes."""
    stored = store.read(OLD)
    raw = [msgspec.json.decode(line) for line in (OLD / store.SAMPLES_FILE).read_bytes().splitlines()]
    assert len(raw) == len(stored.rows)
    added: dict[str, Any] = {}
    for old, row in zip(raw, stored.rows, strict=True):
        _hold(old, msgspec.to_builtins(row), added)
    launch = {"empty_call_ns": (), "empty_loop_ns": (), "clocks": (), "resumes": None}
    launch |= {"compiled_call_ns": (), "compiled_loop_ns": ()}
    block = {"buffer_sets": 1, "loop": "python", "clock_error_ns": None, "conditions": (), "cross_check": None}
    group = {
        "exit_skew_ns": None,
        "disturbed": (),
        "missed": (),
        "timed_by": "host",
        "beside_ns": None,
        "overlap": None,
    }
    end = {"rows": None, "checksum": None}
    group["last_rank"] = None  # kept since before the end of schema 1, but not yet by this run
    # A launch has its clocks, even if none were compared; a block has none where all ranks read one.
    assert set(added) == set(launch | block | group | end | {"sync": 0, "cache": 0, "held": 0, "entries_ns": 0})
    assert added["clocks"] == [(), None]
    assert added["sync"] == ["barrier"], "which is what it did: no other start was known"
    assert added["cache"] == ["warm"]
    assert added["held"] == [False]
    assert added["entries_ns"] == [None]
    for name, value in (launch | block | group | end).items():
        assert name == "clocks" or added[name] == [value], name


def _hold(old: Any, new: Any, added: dict[str, Any]) -> None:  # noqa: ANN401 - JSON
    """Everything of ``old`` is in ``new`` as it was; ``added`` collects what ``new`` has beyond that."""
    if isinstance(old, dict):
        assert old.keys() <= new.keys()
        for key, value in new.items():
            if key in old:
                _hold(old[key], value, added)
            elif value not in added.setdefault(key, []):
                added[key].append(value)
    elif isinstance(old, list):
        assert len(old) == len(new)
        for one, other in zip(old, new, strict=True):
            _hold(one, other, added)
    else:
        assert old == new


def test_the_run_file_of_schema_1_keeps_all_but_the_number_of_its_schema() -> None:
    old = msgspec.json.decode((OLD / store.RUN_FILE).read_bytes())
    new = msgspec.to_builtins(store.read(OLD).run)
    assert (old.pop("schema"), new.pop("schema")) == (1, SCHEMA)
    assert old.pop("cases") == [
        {key: value for key, value in case.items() if key not in {"sync", "cache", "held"}} for case in new.pop("cases")
    ]
    assert {**new, "adjusted": list(new["adjusted"]), "hosts": list(new["hosts"])} == old


def test_an_old_run_is_not_rewritten_by_reading() -> None:
    before = {path: path.read_bytes() for path in OLD.iterdir()}
    store.read(OLD)
    assert {path: path.read_bytes() for path in OLD.iterdir()} == before


def test_the_run_of_schema_2_has_what_schema_2_is_for() -> None:
    stored = store.read(NEW)
    assert {row.case.mode for row in stored.measurements} == {"isolated", "overlap"}
    assert {(row.case.sync, row.case.cache) for row in stored.measurements} == {
        ("barrier", "warm"),
        ("dissemination", "rotating"),
    }
    assert [row.case.op for row in stored.skipped] == ["memory_copy"]
    for launch in stored.launches:
        assert len(launch.empty_call_ns) == len(launch.empty_loop_ns) == len(launch.clocks) == 2
    for row in stored.measurements:
        assert row.clock_error_ns == 0
        assert [len(host.switches) for host in row.conditions] == [2]
        assert (row.buffer_sets > 1) == (row.case.cache == "rotating")
        for group in row.groups:
            assert (group.overlap is not None) == (row.case.mode == "overlap")
            assert group.exit_skew_ns is not None
            assert all(len(rank.entries_ns or ()) == 20 for rank in group.per_rank)


def test_a_run_of_schema_2_was_timed_by_python() -> None:
    stored = store.read(NEW)
    assert store.written_schema(NEW) == 2
    assert stored.run.schema == SCHEMA
    raw = [msgspec.json.decode(line) for line in (NEW / store.SAMPLES_FILE).read_bytes().splitlines()]
    added: dict[str, Any] = {}
    for old, row in zip(raw, stored.rows, strict=True):
        _hold(old, msgspec.to_builtins(row), added)
    assert added == {
        "loop": ["python"],
        "compiled_call_ns": [()],
        "compiled_loop_ns": [()],
        "cross_check": [None],
        "rows": [None],
        "checksum": [None],
    }


def test_the_run_of_schema_3_has_what_schema_3_is_for() -> None:
    stored = store.read(OLD.with_name("schema-3"))
    loops = {row.case.mode: row.loop for row in stored.measurements}
    assert loops == {"isolated": "compiled", "persistent": "compiled", "overlap": "python"}
    assert [(row.case.op, row.case.mode) for row in stored.skipped] == [("memory_copy", "persistent")]
    for launch in stored.launches:
        assert len(launch.compiled_call_ns) == len(launch.compiled_loop_ns) == 2


def test_the_run_of_schema_4_has_what_schema_4_is_for() -> None:
    folder = OLD.with_name("schema-4")
    content = (folder / store.SAMPLES_FILE).read_bytes()
    before = content[: content.rindex(b"\n", 0, -1) + 1]
    end = store.read(folder).end
    assert end is not None
    assert (end.rows, end.checksum) == (before.count(b"\n"), hashlib.sha256(before).hexdigest())
