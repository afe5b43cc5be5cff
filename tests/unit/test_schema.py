"""Old runs: golden ones of every schema still load, and lifting them adds nothing that was not measured."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from busbw.backends import BACKENDS
from busbw.errors import DamagedRun
from busbw.ops.storage import Access
from busbw.runs import outline, store, upgrades
from busbw.runs.cases import expand
from busbw.runs.records import SCHEMA, SETTINGS, BackendTraits, Case, Failed, settings_in_words
from busbw.runs.resume import lack_of, plan_of


@pytest.mark.parametrize("schema", range(1, SCHEMA + 1))
def test_a_run_of_every_schema_can_still_be_read(schema: int) -> None:
    """Golden runs, each written by the busbw of its time: two launches of at least three cases."""
    folder = Path(__file__).parents[1] / "data" / f"schema-{schema}"
    stored = store.read(folder)
    assert stored.warnings == ()
    assert len(stored.launches) == 2
    assert {row.case.op for row in stored.measurements} >= {"all_reduce", "barrier", "pair_matrix"}
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
    assert {name: added.pop(name) for name in SETTINGS} == {key: [None] for key in SETTINGS}
    launch = {"empty_call_ns": (), "empty_loop_ns": (), "clocks": (), "resumes": None}
    launch |= {"compiled_call_ns": (), "compiled_loop_ns": ()}
    block = {"buffer_sets": 1, "loop": "python", "clock_error_ns": None, "conditions": (), "cross_check": None}
    block |= {"step": None}
    group = {
        "exit_skew_ns": None,
        "disturbed": (),
        "missed": (),
        "timed_by": "host",
        "other_clock_ns": None,
        "overlap": None,
    }
    end = {"rows": None, "checksum": None}
    group["last_rank"] = None  # kept since before the end of schema 1, but not yet by this run
    # A launch has its clocks, even if none were compared; a block has none where all ranks read one.
    assert set(added) == set(launch | block | group | end | {"sync": 0, "cache": 0, "pre_enqueue": 0, "entries_ns": 0})
    assert added["clocks"] == [(), None]
    assert added["sync"] == ["barrier"], "which is what it did: no other start was known"
    assert added["cache"] == ["warm"]
    assert added["pre_enqueue"] == [False]
    assert added["entries_ns"] == [None]
    for name, value in (launch | block | group | end).items():
        assert name == "clocks" or added[name] == [value], name


_RENAMED = {
    "held": "pre_enqueue",
    "late_rank": "fastest_rank",
    "moved_factor": "traffic_factor",
    "beside_ns": "other_clock_ns",
}
_STOP_REASONS = {"cap_time": "time_limit", "cap_samples": "sample_limit"}
"""Names of before schema 9 → the names of now."""

_PAIRS: dict[str | None, dict[str, str]] = {None: {}, "together": {"pairs": "together"}}
"""What a golden run of before schema 5 can have as the text of a case → the fields that this is now."""


def _hold(old: Any, new: Any, added: dict[str, Any]) -> None:  # noqa: ANN401 - JSON
    """Everything of ``old`` is in ``new`` as it was; ``added`` collects what ``new`` has beyond that."""
    if isinstance(old, dict):
        if "variant" in old:
            old = {name: value for name, value in old.items() if name != "variant"} | _PAIRS[old["variant"]]
        old = {_RENAMED.get(name, name): value for name, value in old.items()}
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
        assert _STOP_REASONS.get(old, old) == new


def test_the_run_file_of_schema_1_keeps_all_but_the_number_of_its_schema() -> None:
    old = upgrades.run_as_now(msgspec.json.decode((OLD / store.RUN_FILE).read_bytes()), 4)
    new = msgspec.to_builtins(store.read(OLD).run)
    del old["schema"], new["schema"]
    assert new.pop("imported") is None
    unknown = {"sync", "cache", "pre_enqueue", *SETTINGS}
    assert [{key: case[key] for key in case.keys() - unknown} for case in old.pop("cases")] == [
        {key: case[key] for key in case.keys() - unknown} for case in new.pop("cases")
    ]
    (facts,), (old_facts,) = new.pop("environments").values(), old.pop("environments").values()
    assert old_facts["clock"].pop("tick_hz"), "which nothing reads and no later version records"
    _hold(old_facts, facts, {})
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
    assert {name: added.pop(name) for name in SETTINGS} == {key: [None] for key in SETTINGS}
    assert added == {
        "loop": ["python"],
        "compiled_call_ns": [()],
        "compiled_loop_ns": [()],
        "cross_check": [None],
        "step": [None],
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


# --- the settings of schema 5, which were one text -------------------------------------------------------------------

WRITTEN = {
    None: {},
    "by hand: ring": {"algorithm": "ring"},
    "by hand: two words: 1": {"algorithm": "two words: 1"},
    "threads:4": {"threads": 4},
    "threads:4 node:1": {"threads": 4, "numa_node": 1},
    "node:0": {"numa_node": 0},
    "pinned": {"pinning": "pinned"},
    "pageable node:1": {"pinning": "pageable", "numa_node": 1},
    "block:1MiB depth:4 direct": {"access": Access(1 << 20, 4, "direct")},
    "block:4KiB depth:1 memory": {"access": Access(4096, 1, "memory")},
    "together": {"pairs": "together"},
    "alone": {"pairs": "alone"},
    "skew:0.5": {"imbalance": 0.5},
    "skew:1e-05": {"imbalance": 1e-05},
    "matrix:0a1b2c3d": {"traffic": "0a1b2c3d"},
}
"""What stood in ``variant`` up to schema 4 → the fields that it has become."""


def _with_variant(folder: Path, schema: int, variant: object) -> Path:
    """The golden run of ``schema`` in ``folder``, with ``variant`` in every case of an all_reduce."""
    golden = OLD.with_name(f"schema-{schema}")
    for name in (store.RUN_FILE, store.SAMPLES_FILE):
        lines = [msgspec.json.decode(line) for line in _documents(golden / name)]
        for document in lines:
            for case in [*document.get("cases", []), *([document["case"]] if "case" in document else [])]:
                if case["op"] == "all_reduce":
                    case["variant"] = variant
            document.pop("checksum", None)
        (folder / name).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return folder


def _documents(path: Path) -> list[bytes]:
    content = path.read_bytes()
    return content.splitlines() if path.suffix == ".jsonl" else [content]


@pytest.mark.parametrize("schema", range(1, 5))
@pytest.mark.parametrize(("variant", "settings"), WRITTEN.items(), ids=str)
def test_every_variant_of_an_older_schema_reads_as_fields(
    tmp_path: Path, schema: int, variant: str | None, settings: dict[str, object]
) -> None:
    stored = store.read(_with_variant(tmp_path, schema, variant))
    found = [row.case for row in stored.measurements if row.case.op == "all_reduce"]
    found += [case for case in stored.run.cases if case.op == "all_reduce"]
    assert len(found) > 2
    wanted = dict.fromkeys(SETTINGS) | settings
    assert all({name: getattr(case, name) for name in SETTINGS} == wanted for case in found)
    assert outline.outline(tmp_path) == outline.outline_of(stored)


@pytest.mark.parametrize("schema", range(1, SCHEMA + 1))
@pytest.mark.parametrize(
    ("error", "cause"), [("wrong data before timing: 3 elements differ", "wrong_data"), ("rank 1 died", "unknown")]
)
def test_wrong_data_of_older_runs_have_their_cause(schema: int, error: str, cause: str) -> None:
    """Their error has begun so since schema 1; from schema 4 on the cause is stored, and not guessed."""
    golden = store.read(OLD.with_name(f"schema-{schema}"))
    old = msgspec.json.decode((OLD.with_name(f"schema-{schema}") / store.SAMPLES_FILE).read_bytes().splitlines()[1])
    row = {"kind": "failed", "case": old["case"], "launch": 0, "block": 0, "error": error}
    found = msgspec.json.decode(upgrades.row_as_now(msgspec.json.encode(row), schema), type=Failed)
    assert found.case in golden.run.cases
    assert found.cause == (cause if schema < 4 else "unknown")


@pytest.mark.parametrize(
    "variant", ["threads:four", "quickly", "depth:4", "skew:inf", "block:1MiB depth:4 fast", 5, "threads:0"]
)
def test_a_variant_that_no_run_had_is_damage(tmp_path: Path, variant: object) -> None:
    with pytest.raises(DamagedRun):
        store.read(_with_variant(tmp_path, 4, variant))


def test_a_run_of_schema_4_that_is_resumed_finds_its_cases_again() -> None:
    stored = store.read(OLD.with_name("schema-4"))
    plan = plan_of(stored.run, None)
    assert [sweep.imbalance for sweep in plan.sweep] == [0.5] * len(plan.sweep)
    assert expand(plan, 2, 1).cases == stored.run.cases
    assert lack_of(stored, plan).blocks == 0
    assert lack_of(stored, plan_of(stored.run, 3)).blocks == len({row.case for row in stored.measurements})


def test_the_run_of_schema_5_has_what_schema_5_is_for() -> None:
    stored = store.read(OLD.with_name("schema-5"))
    words = {case.op: settings_in_words(case) for case in stored.run.cases}
    assert words == {
        "all_reduce": ["ring over send/recv"],
        "barrier": [],
        "pair_matrix": ["pairs alone"],
        "all_to_all_v": ["imbalance 0.25"],
        "memory_copy": ["1 thread", "NUMA node 0"],
        "storage_write": ["16 KiB blocks, depth 2, direct"],
    }


def test_settings_have_ranges() -> None:
    first = store.read(OLD.with_name("schema-5")).run.cases[0]
    for name, value in (
        ("threads", 0),
        ("threads", (1 << 16) + 1),
        ("numa_node", -1),
        ("numa_node", 1024),
        ("access", Access(4096, 0, "direct")),
        ("access", Access(0, 1, "direct")),
        ("imbalance", -0.5),
    ):
        odd = msgspec.json.encode(msgspec.structs.replace(first, **{name: value}))
        with pytest.raises(msgspec.ValidationError, match=name):
            msgspec.json.decode(odd, type=Case)


@pytest.mark.parametrize("schema", range(1, 6))
def test_names_of_an_older_schema_read_as_those_of_now(schema: int) -> None:
    folder = OLD.with_name(f"schema-{schema}")
    raw = msgspec.json.decode((folder / store.RUN_FILE).read_bytes())
    run = store.read(folder).run
    assert [sweep["in_place"] for sweep in run.plan["sweep"]] == [
        {"in": "yes", "out": "no"}.get(sweep["placement"], sweep["placement"]) for sweep in raw["plan"]["sweep"]
    ]
    for sweep, old in zip(run.plan["sweep"], raw["plan"]["sweep"], strict=True):
        assert not {"held", "placement", "memory_nodes"} & set(sweep)
        assert sweep.get("pre_enqueue") == old.get("held")
        assert sweep.get("numa_nodes") == old.get("memory_nodes")
    assert run.backend == BACKENDS[raw["plan"].get("backend", "gloo")].traits


def test_the_backend_of_an_older_run_is_that_of_its_cases() -> None:
    raw = msgspec.json.decode((OLD.with_name("schema-5") / store.RUN_FILE).read_bytes())
    over_mpi = {**raw, "plan": {}, "cases": [{**case, "backend": "mpi"} for case in raw["cases"]]}
    assert upgrades.run_as_now(over_mpi, 5)["backend"] == msgspec.to_builtins(BACKENDS["mpi"].traits)
    assert upgrades.run_as_now({**raw, "cases": []}, 5)["backend"] is None


def test_the_run_of_schema_6_has_what_schema_6_is_for() -> None:
    run = store.read(OLD.with_name("schema-6")).run
    assert [(case.op, case.in_place) for case in run.cases if case.op == "all_gather"] == [
        ("all_gather", False),
        ("all_gather", True),
    ]
    assert run.backend == BackendTraits(cost_models="gloo", transport="gloo-tcp")
    assert expand(plan_of(store.read(OLD.with_name("schema-6")).run, None), 2, 1).cases == run.cases


def test_the_run_of_schema_7_has_what_schema_7_is_for() -> None:
    stored = store.read(OLD.with_name("schema-7"))
    steps = {row.case.op: row for row in stored.measurements if row.step is not None}
    workload = steps["train_1f1b"].case.workload
    assert workload is not None
    assert (workload.pp, workload.micro_batches, workload.wait_ns) == (2, 4, 2_000_000)
    assert all(row.check.state == "verified" for row in steps.values())
    assert {row.step for row in stored.measurements if row.case.op == "all_reduce"} == {None}


def test_facts_of_schema_7_have_the_names_of_schema_8() -> None:
    raw = msgspec.json.decode((OLD.with_name("schema-7") / store.RUN_FILE).read_bytes())
    (old,), (facts,) = raw["environments"].values(), store.read(OLD.with_name("schema-7")).run.environments.values()
    assert facts.pci.unknown == tuple(old["pci"]["untold"])
    assert facts.memory_modules is not None
    assert facts.memory_modules.unknown == tuple(old["memory_modules"]["untold"]) != ()
    assert facts.memory_modules.source == old["memory_modules"]["told_by"]


def test_rows_of_schema_8_have_the_names_of_schema_9() -> None:
    folder = OLD.with_name("schema-8")
    raw = [msgspec.json.decode(line) for line in (folder / store.SAMPLES_FILE).read_bytes().splitlines()]
    stored = store.read(folder)
    blocks = [row for row in raw if row["kind"] == "measurement"]
    assert len(blocks) == len(stored.measurements)
    for old, row in zip(blocks, stored.measurements, strict=True):
        assert row.stop_reason == _STOP_REASONS.get(old["stop_reason"], old["stop_reason"])
        for was, group in zip(old["groups"], row.groups, strict=True):
            assert group.fastest_rank == tuple(was["late_rank"])
            assert group.traffic_factor == was["moved_factor"]
            assert group.other_clock_ns is was["beside_ns"] is None
    plan = msgspec.json.decode((folder / store.RUN_FILE).read_bytes())["plan"]
    assert stored.run.plan["timing"]["max_warmup_calls"] == plan["timing"]["warmup_calls_cap"]
    assert "warmup_calls_cap" not in stored.run.plan["timing"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'{"late_rank":[1],"beside_ns":[2]}', b'{"fastest_rank":[1],"other_clock_ns":[2]}'),
        (b'{"late_rank" : [1]}', b'{"fastest_rank" : [1]}'),
        (b'{"stop_reason": "cap_time"}', b'{"stop_reason": "time_limit"}'),
        (b'{"error":"\\"late_rank\\": 1, \\"stop_reason\\":\\"cap_time\\""}',) * 2,
        (b'{"reason":"late_rank","error":"cap_time"}',) * 2,
    ],
)
def test_only_names_of_fields_and_stop_reasons_are_renamed_in_a_row(old: bytes, new: bytes) -> None:
    assert upgrades.row_as_now(old, 8) == new


def test_what_an_mpi_library_did_not_report_reads_as_now() -> None:
    facts = {"host": {"mpi": {"transport": {"netmod": "not told by the library", "pml": "ucx"}}}}
    (found,) = upgrades.run_as_now({"environments": facts}, 8)["environments"].values()
    assert found["mpi"]["transport"] == {"netmod": "not reported by the library", "pml": "ucx"}


def test_the_run_of_schema_9_has_what_schema_9_is_for() -> None:
    stored = store.read(OLD.with_name("schema-9"))
    assert stored.run.plan["timing"]["max_warmup_calls"] == 20
    assert {row.stop_reason for row in stored.measurements} == {"time_limit"}
    factors = {row.case.op: {group.traffic_factor for group in row.groups} for row in stored.measurements}
    assert factors["reduce_scatter"] == {2.0}
    assert factors["all_reduce"] == factors["pair_matrix"] == {1.0}
