"""Arrays that do not fit into the memory of a host are refused, with what is there and what is needed."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from testing.fakes import QUICK, FakeWorld
from testing.synthetic import case

from busbw.backends.base import World
from busbw.launch.observers import Listener
from busbw.launch.worker import Job, run
from busbw.measure.unsupported import Place, skip_reason
from busbw.runs import store
from busbw.runs.plan import Plan, Sweep
from busbw.runs.records import Case, Measurement
from busbw.system import environment

MIB, GIB = 1 << 20, 1 << 30


def why_not(one: Case, memory: Mapping[str, int], *hosts: str) -> str | None:
    place = Place(oversubscribed=False, comparable=True, hosts=hosts, memory=memory)
    return skip_reason(one, FakeWorld(one.ranks).backends[0], place)


def test_the_arrays_of_all_ranks_of_a_host_must_fit_into_its_memory() -> None:
    triad = case("stream_triad", GIB, 2)
    assert why_not(triad, {"a": 8 * GIB}, "a", "a") is None
    assert why_not(triad, {"a": 6 * GIB}, "a", "a") == (
        "too little memory: a had 6 GiB available when the run started, but 6.6 GiB are needed (2 ranks × 3 GiB "
        "of arrays and a margin); use smaller --sizes or fewer --ranks"
    )
    assert why_not(triad, {"a": 4 * GIB, "b": 4 * GIB}, "a", "b") is None, "a memory of its own in each"
    assert "b had 3 GiB" in str(why_not(triad, {"a": 4 * GIB, "b": 3 * GIB}, "a", "b"))
    alone = case("stream_triad", GIB, 2, group="1")
    assert why_not(alone, {"a": 4 * GIB}, "a", "a") is None, "the other rank has no arrays"


@pytest.mark.parametrize(
    ("op", "arrays"),
    [("memory_copy", 2), ("stream_add", 3), ("memory_read", 1), ("memory_touch", 1), ("storage_read", 3)],
)
def test_every_array_of_a_call_counts(op: str, arrays: int) -> None:
    one = case(op, GIB, 1)
    assert f"1 rank × {arrays} GiB of arrays" in str(why_not(one, {"a": arrays * GIB}, "a"))
    assert "too little memory" not in str(why_not(one, {"a": 2 * arrays * GIB}, "a"))


def test_buffers_in_turns_are_counted_as_often_as_they_are_there() -> None:
    assert "1 rank × 4 GiB of arrays" in str(why_not(case("memory_copy", GIB, 1, cache="rotating"), {"a": GIB}, "a"))


def test_what_is_not_known_refuses_nothing() -> None:
    assert why_not(case("memory_copy", GIB, 1), {}) is None
    assert why_not(case("memory_copy", GIB, 2), {"a": 3 * GIB}, "a", "b") is None
    assert why_not(case("all_reduce", GIB, 2), {"a": 1}, "a", "a") is None, "what a library takes is not known"


def test_what_did_not_fit_in_the_first_launch_is_in_no_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(
        launches=2,
        sweep=(Sweep(ops=("memory_copy",), sizes="4KiB,1MiB", modes=("pipelined",)),),
        timing=QUICK,
    )
    folder = tmp_path / "machine" / "run"
    folder.mkdir(parents=True)
    for launch, available in enumerate((65 * MIB, GIB)):
        monkeypatch.setattr(environment, "available_memory_bytes", lambda told=available: told)
        world = FakeWorld(1)
        run(Job(plan, folder, launch, "local", world.row()), World(0, 1, 0, "local", 5.0), Listener())
    stored = store.read(folder)
    assert [(one.case.size_bytes, one.reason.partition(":")[0]) for one in stored.skipped] == [
        (MIB, "too little memory")
    ]
    assert [(row.case.size_bytes, row.launch) for row in stored.rows if isinstance(row, Measurement)] == [
        (4096, 0),
        (4096, 1),
    ]
    (facts,) = stored.run.environments.values()
    assert facts["memory"]["available_bytes"] == 65 * MIB


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, 8 * GIB),
        (
            {"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/memory.max": "max", "/sys/fs/cgroup/memory.current": "5"},
            8 * GIB,
        ),
        (
            {
                "/proc/self/cgroup": "0::/job/step",
                "/sys/fs/cgroup/job/memory.max": str(4 * GIB),
                "/sys/fs/cgroup/job/memory.current": str(2 * GIB),
                "/sys/fs/cgroup/job/memory.stat": f"anon 1\ninactive_file {GIB}\nactive_file 7",
                "/sys/fs/cgroup/job/step/memory.max": "max",
                "/sys/fs/cgroup/job/step/memory.current": "7",
            },
            3 * GIB,
        ),
        (
            {
                "/proc/self/cgroup": "5:devices:/other\n4:memory:/job\n0::/",
                "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(2 * GIB),
                "/sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(GIB),
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
                "/sys/fs/cgroup/memory/memory.usage_in_bytes": str(GIB),
            },
            GIB,
        ),
    ],
)
def test_available_memory_is_what_control_groups_leave(
    files: dict[str, str], available: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "text_of", lambda path: files.get(str(path)))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=8 * GIB, total=9 * GIB))
    assert environment.available_memory_bytes() == available
